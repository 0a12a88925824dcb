"""The small number loss recipes: each trains without any download, and they differ in the loss alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import numerate
from numerate.config import override
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.experiments.train import debug, train
from numerate.recipes.number_loss import ROWS
from numerate.text.models.t5 import T5
from numerate.training.recipe import Recipe

SMALL = [name for name in ROWS if name.startswith("number_loss_small_")]
WITHOUT_FILES = [name for name in SMALL if not name.endswith(("_rt", "_xval", "_regression"))]
TOKENS = Path(__file__).parents[1] / "text" / "tiny"
TINY = (
    "training.steps=2",
    "training.batch_size=4",
    "evaluation.validation_examples=4",
    "evaluation.grid=1+5",
    "evaluation.examples_per_cell=2",
)


def small(name: str, *more: str) -> Recipe:
    """Of a few steps, and hardly any weights."""
    recipe = override(debug(numerate.recipe(name)), [*TINY, *more])
    if isinstance(recipe.model, T5):
        pytest.importorskip("transformers", reason="the extra huggingface is not installed")
        sizes: dict[str, Any] = {
            "hidden_size": 16,
            "num_layers": 1,
            "num_heads": 2,
            "head_dim": 8,
            "intermediate_size": 16,
        }
        return replace(recipe, model=replace(recipe.model, **sizes))
    return override(recipe, ["model.hidden_size=16", "model.backbone.num_layers=1", "model.mixer.num_heads=2"])


@pytest.mark.parametrize("end", ["small_was", "small_gaussian", "small_number_level", "small_decoder_mse"])
def test_it_trains_and_is_evaluated_without_any_file(end: str, tmp_path: Path) -> None:
    run = train(small(f"number_loss_{end}"), runs_dir=tmp_path, quiet=True).run
    records = run.evaluate("1+5", count=2).records
    assert [record["cell"]["module"] for record in records] == [1, 5]
    assert all("numbers" in record for record in records)


@pytest.mark.parametrize("name", ["number_loss_small_was", "number_loss_small_xval"])
def test_it_trains_over_the_tokens_of_a_folder(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    given = f"tokenizer=Subwords(tokenizer={TOKENS},number_format=PerDigit,vocabulary=occurring)"
    recipe = small(name, given if name.endswith("_was") else f"tokenizer.tokenizer={TOKENS}")
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    assert run.evaluate("1", count=2).records[0]["count"] == 2


def test_all_have_the_same_data_tokens_and_budget() -> None:
    recipes = [numerate.recipe(name) for name in WITHOUT_FILES]
    assert len({(recipe.task, recipe.tokenizer) for recipe in recipes}) == 1
    for kind in (True, False):
        mine = [recipe for recipe in recipes if isinstance(recipe.model, T5) == kind]
        assert len({(recipe.model, recipe.optimizer, recipe.schedule, recipe.training) for recipe in mine}) == 1
        assert len({recipe.objective for recipe in mine}) == len(mine)


@pytest.mark.parametrize("name", SMALL)
def test_it_is_called_by_its_name(name: str) -> None:
    recipe = numerate.recipe(name)
    assert (recipe.title, recipe.training.threads, recipe.paper) == (name, 1, "number_loss")


def test_it_is_small() -> None:
    for name in ("number_loss_small_ce", "number_loss_small_decoder_ce"):
        recipe = numerate.recipe(name)
        if isinstance(recipe.model, T5):
            pytest.importorskip("transformers", reason="the extra huggingface is not installed")
        exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
        model = recipe.model.build(exam.vocabulary, 0)
        assert 100_000 < sum(parameter.numel() for parameter in model.parameters()) < 400_000
