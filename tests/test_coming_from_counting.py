"""Promises of docs/coming-from-inductive-counting.md: every command in a middle column runs, every setting is one."""

from pathlib import Path

import pytest
import torch

import numerate
from numerate.config import override
from numerate.published.counting_names import published_tasks
from numerate.recipes.preset import debug
from numerate.runs.train import train
from pages import Page, in_small, run_here, stand_in, told

torch.set_num_threads(1)

PAGE = Page("coming-from-inductive-counting.md")

TINY = {
    "train": "preset=debug training.steps=1 training.batch_size=2 evaluation.validation_examples=1",
    "run": "preset=debug training.steps=1 training.batch_size=2 evaluation.validation_examples=1 "
    "evaluation.examples_per_cell=2 workers=1",
    "evaluate": "grid=50+51 count=2",
}
"""What is added to a command, so that it is done in a moment."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one in it, of a task with an auxiliary one, trained for a moment and evaluated."""
    runs = tmp_path_factory.mktemp("in_distribution")
    recipe = debug(numerate.recipe("counting_samesymbol_plain3_addbigram_rope"))
    tiny = [
        "training.steps=2",
        "training.checkpoint_every=1",
        "evaluation.validation_examples=2",
        "model.hidden_size=16",
    ]
    train(override(recipe, tiny), runs_dir=runs, quiet=True).run.evaluate("50:51", count=2)
    return runs


@pytest.fixture
def folder(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, from where `latest` is the trained run."""
    return stand_in(tmp_path, trained, monkeypatch)


@pytest.mark.parametrize("line", PAGE.commands())
@pytest.mark.slow
def test_a_command_of_the_page_runs(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(in_small(line, TINY), folder, capsys)


def test_every_checkpoint_of_a_run_is_evaluated(trained: Path) -> None:
    results = numerate.load("latest", trained).evaluate("50", count=2, checkpoint="all")
    assert {record["step"] for record in results} == {1, 2}


def test_every_published_task_stands_on_the_page() -> None:
    shown = {text for section, theirs, _ in PAGE.rows if section == "Tasks and data" for text in told(theirs)}
    assert set(published_tasks()) <= shown


def test_every_published_model_stands_on_the_page() -> None:
    from numerate.recipes.inductive_counting import MODELS

    shown = PAGE.shown_recipes()
    assert {model for model in MODELS for name in shown if name.endswith(f"_{model}")} == set(MODELS)
