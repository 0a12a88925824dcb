"""What recipes of all papers promise alike: names, papers, grids that fit, and that they train and are evaluated."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import numerate
from numerate import catalogue
from numerate.config import identity, override
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import resolve_grid
from numerate.evaluation.grid import Grid
from numerate.recipes import abacus, inductive_counting, number_loss, papers
from numerate.recipes.papers import BIBTEX_BY_LINK, PAPERS
from numerate.recipes.preset import debug
from numerate.runs.train import train
from numerate.text.models.t5 import T5
from numerate.training.recipe import Recipe

LISTED = list(catalogue.parts_by_kind()["Recipe"])
COUNTING = list(inductive_counting.family())
"""There are 804, so what is slow looks at some of them, always the same, with each model."""
SMALL_COUNTING = [name for name, row in inductive_counting.ROWS.items() if row.base == "counting_paper.small"]
UNIVERSAL = [f"counting_universal_{way}" for way in ("shifted", "modular", "items", "jointly")]
PUBLISHED_ABACUS = [name for name, row in abacus.ROWS.items() if row.base == "abacus_paper.published"]
TINY_TOKENIZER = Path(__file__).parents[1] / "text" / "tiny"
SUBWORDS = f"tokenizer=Subwords(tokenizer={TINY_TOKENIZER},number_format=PerDigit,vocabulary=occurring)"


@pytest.mark.parametrize("name", [*LISTED, *COUNTING[::43]])
def test_it_is_called_by_its_name_and_of_a_known_paper(name: str) -> None:
    recipe = numerate.recipe(name)
    assert recipe == numerate.recipe(name.replace("_", "-"))
    assert recipe.title == name
    assert recipe.paper is None or recipe.paper in PAPERS


def test_recipes_are_different_runs() -> None:
    found: dict[str, str] = {}
    for name in [*PUBLISHED_ABACUS, *number_loss.PUBLISHED, *COUNTING[::43]]:
        assert found.setdefault(identity(numerate.recipe(name)), name) == name


@pytest.mark.parametrize(
    "name", [name for name in LISTED if "_small_" in name or name in (*SMALL_COUNTING, *UNIVERSAL)]
)
def test_what_is_small_takes_one_thread(name: str) -> None:
    assert numerate.recipe(name).training.threads == 1


@pytest.mark.parametrize("name", [*PUBLISHED_ABACUS, *SMALL_COUNTING])
def test_its_grid_fits_the_tables(name: str) -> None:
    recipe = numerate.recipe(name)
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    # With the same tables, but hardly any weights.
    model = (debug(recipe) if name in PUBLISHED_ABACUS else recipe).model.build(exam.vocabulary, 0)
    assert sum(parameter.numel() for parameter in model.parameters()) < 500_000
    for grid in (recipe.evaluation.grid or "1:100", *(["diagonal:101:160"] if name.startswith("addition") else [])):
        for corner in resolve_grid(recipe.task, grid).corners():
            model.check_tokens(exam.longest_rows(recipe.task.at_cell(**dict(corner)), split="test", count=1))


TRAINED: list[tuple[str, str | None, tuple[str, ...]]] = [
    *(
        (name, "1:2x1:1", ())
        for name in (
            "addition_ff_ii_abacus_rope",
            "addition_ff_randomised_fire",
            "addition_lt_abacus_2x8",
            "addition_subtraction_lt_abacus_8x2",
            "multiplication_abacus_fire",
            "bitwise_or_16x1_ii_fire",
            "sorting_st_fire",
            "sorting_lt_abacus_fire",
        )
    ),
    *((f"number_loss_small_{name}", "1+5", ()) for name in ("was", "gaussian", "number_level", "decoder_mse")),
    ("number_loss_small_was", "1", (SUBWORDS,)),
    ("number_loss_small_xval", "1", (f"tokenizer.tokenizer={TINY_TOKENIZER}",)),
]
SLOWLY_TRAINED: list[tuple[str, str | None, tuple[str, ...]]] = [
    *((name, "51", ()) for name in SMALL_COUNTING if name.endswith(("lstm", "rnn", "lru", "alibi"))),
    *((name, "51", ()) for name in UNIVERSAL),
    *((name, None, ()) for name in COUNTING[::86]),
]
"""Recipes, a grid (None: the first cell of their own), and settings."""


def tiny(name: str, *settings: str) -> Recipe:
    """Of a few steps, and hardly any weights."""
    steps = ("training.steps=2", "training.batch_size=4", "training.evaluate_every=9", "evaluation.examples_per_cell=2")
    recipe = override(debug(numerate.recipe(name)), [*steps, "evaluation.validation_examples=4", *settings])
    if isinstance(recipe.model, T5):
        pytest.importorskip("transformers", reason="the extra huggingface is not installed")
        sizes: Any = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "head_dim": 8, "intermediate_size": 16}
        return replace(recipe, model=replace(recipe.model, **sizes))
    return recipe


@pytest.mark.parametrize(
    ("name", "grid", "settings"),
    [*TRAINED, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOWLY_TRAINED)],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_it_trains_and_is_evaluated(name: str, grid: str | None, settings: tuple[str, ...], tmp_path: Path) -> None:
    if settings:
        pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    recipe = tiny(name, *settings)
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    assert run.recipe.title == f"{name}-debug"
    grid = grid or str(Grid.parse(recipe.evaluation.grid or "", ("count",)).cells()[0][0][1])
    records = run.evaluate(grid, count=2).records
    cells = {str(record["cell"]) for record in records}
    assert len(cells) == len(Grid.parse(grid, recipe.task.axes()).cells())
    kind = "labels" if name.startswith("counting") else "numbers" if name.startswith("number") else "correct"
    assert all(kind in record and 0 < record["count"] <= 2 for record in records)
    if grid == "51":
        assert records[0]["labels"]["max_training_labels"] == 50


def test_the_bibliography_has_each_paper_once_with_title_authors_and_year() -> None:
    entries = list(BIBTEX_BY_LINK.values())
    text = Path(papers.__file__).with_suffix(".bib").read_text(encoding="utf-8")
    assert len(entries) == text.count("\n@") == text.count("\n}") > 70
    for entry in entries:
        assert entry.count("{") == entry.count("}")
        assert [len(re.findall(rf"^  {name} *= ", entry, re.M)) for name in ("title", "author", "year", "url")] == [
            1
        ] * 4
        assert max(map(len, entry.splitlines())) < 80


def test_a_loss_is_understood_by_its_name_in_pytorch_too() -> None:
    recipe = numerate.recipe("addition_abacus", "loss=NumberTokenLoss(weight=2)")
    assert recipe == numerate.recipe("addition_abacus", "objective.loss=NumberToken(weight=2)")
    assert numerate.recipe("addition_abacus", "loss=CrossEntropyLoss") == numerate.recipe("addition_abacus")
