"""Studies: recipes crossed with overrides, read from YAML, and the key by which results belong to a recipe."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from numerate.api import recipe
from numerate.config import override, to_tree, yaml_text
from numerate.errors import UserError
from numerate.recipes.naming import load_recipe_or_study
from numerate.recipes.studies import quickstart
from numerate.recipes.study import Study, content_key
from small_runs import TINY

PAIR = Study("pair", "Which of two?", (TINY, replace(TINY, title="another")))

# What is requested ----------------------------------------------------------------------------------------------------


def test_overrides_cross_every_recipe_with_every_seed() -> None:
    runs = PAIR.sweep(["seeds=3", "model.hidden_size=16,32"]).recipes
    assert len(runs) == 12
    assert {(run.title, run.seed, run.model.hidden_size) for run in runs} == {  # type: ignore[attr-defined]
        (title, seed, width) for title in ("rotary", "another") for seed in (0, 1, 2) for width in (16, 32)
    }
    assert len(PAIR.sweep(["name=one,two"]).recipes) == 2, "the same run is not made twice"


def test_two_budgets_of_one_run_are_refused_since_only_one_would_be_done() -> None:
    with pytest.raises(UserError, match=r"training\.steps=5,6: these are the same run of"):
        PAIR.sweep(["training.steps=5,6"])


def test_a_study_is_written_as_a_list_of_recipes() -> None:
    recipes = [override(TINY, [f"seed={seed}"]) for seed in range(3)]
    assert Study("mine", "Which seed?", recipes).recipes == tuple(recipes)
    assert len(Study("mine", "Which seed?", (one for one in recipes)).recipes) == 3  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"mine.*'rotary' must be a Recipe"):
        Study("mine", "Which?", ["rotary"])  # type: ignore[list-item]
    with pytest.raises(UserError, match="must contain letters or digits to name a folder"):
        Study("///", "Which?", recipes)


def test_the_quickstart_compares_two_models_that_differ_in_positions_alone() -> None:
    abacus, rotary = quickstart().recipes
    same = replace(
        rotary, model=replace(rotary.model, positions=abacus.model.positions), title=abacus.title, paper="abacus"
    )
    assert same == abacus
    assert abacus.model != rotary.model


# YAML -----------------------------------------------------------------------------------------------------------------

WIDTHS = """
title: widths
question: How wide must it be?
recipes:
  - addition_abacus
  - recipe: addition_rotary
    settings: [model.hidden_size=128, title=wide]
    label: rotary, 128
sweep: [seeds=2]
"""


def test_a_study_in_yaml_is_the_one_that_python_would_make(tmp_path: Path) -> None:
    (tmp_path / "widths.yaml").write_text(WIDTHS)
    wide = recipe("addition_rotary", "model.hidden_size=128", "title=wide")
    expected = Study("widths", "How wide must it be?", [recipe("addition_abacus"), wide], {"wide": "rotary, 128"})
    assert load_recipe_or_study(str(tmp_path / "widths.yaml")) == expected.sweep(["seeds=2"])


def test_a_study_in_yaml_may_hold_recipes_whole_and_is_called_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml_text({"recipes": [to_tree(TINY)]}))
    assert load_recipe_or_study(str(tmp_path / "mine.yaml")) == Study("mine", "", [TINY])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("sweep", "sweeps"), "sweeps: a study has no such entry. Did you mean 'sweep'"),
        (lambda text: text.replace("[seeds=2]", "seeds=2"), "sweep: must be a list, not 'seeds=2'"),
        (lambda text: text.replace("label:", "name:"), r"recipes\.1: must be a name of a recipe, or have a recipe"),
        (lambda text: text.replace("addition_abacus", "addition_abacos"), "Did you mean 'addition_abacus'"),
        (
            lambda text: text.replace("[model.hidden_size=128, title=wide]", "5"),
            r"recipes\.1\.settings: must be a list",
        ),
    ],
)
def test_anything_else_in_a_study_in_yaml_is_refused(
    change: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "widths.yaml").write_text(change(WIDTHS))
    with pytest.raises(UserError, match=message):
        load_recipe_or_study(str(tmp_path / "widths.yaml"))


# The key --------------------------------------------------------------------------------------------------------------

WITHOUT_EFFECT = (
    "name=mine group=mine device=cpu title=other paper=abacus trackers=[wandb] tracking.project=sums "
    "training.minutes=5 training.threads=2 training.log_every=7 training.checkpoint_every=7 "
    "training.checkpoint_minutes=7 training.keep_checkpoints=7 training.parallel=ddp"
)
WITH_EFFECT = (
    "seed=1 model.hidden_size=32 training.steps=8 training.evaluate_every=1 training.target_accuracy=0.5 "
    "evaluation.grid=1:3x1:3 evaluation.examples_per_cell=5 init_from=3f2a9c01b7de model.positions.0.base=500"
)


@pytest.mark.parametrize("change", WITHOUT_EFFECT.split())
def test_what_changes_no_result_changes_no_key(change: str) -> None:
    assert content_key(override(TINY, [change])) == content_key(TINY)


@pytest.mark.parametrize("change", WITH_EFFECT.split())
def test_what_may_change_a_result_changes_the_key(change: str) -> None:
    assert content_key(override(TINY, [change])) != content_key(TINY)
