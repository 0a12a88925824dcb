"""Promises of docs/coming-from-arithmetic.md: every command in a middle column runs, every setting is one."""

from pathlib import Path

import pytest
import torch

import numerate
from numerate.config import override
from numerate.evaluation.grid import Grid
from numerate.recipes.abacus import ROWS
from numerate.recipes.preset import debug
from numerate.runs.train import train
from numerate.tasks.arithmetic import Arithmetic
from pages import Page, in_small, run_here, stand_in

torch.set_num_threads(1)

PAGE = Page("coming-from-arithmetic.md")

TINY = {
    "train": "preset=debug training.steps=1 training.shuffle_window=1 evaluation.validation_examples=1",
    "run": "preset=debug training.steps=1 training.shuffle_window=1 evaluation.validation_examples=1 workers=1",
    "evaluate": "grid=1:2x1:2 count=2",
    "data": "count=20",
}
"""What is added to a command, so that it is done in a moment."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one in it, trained for a moment and evaluated."""
    runs = tmp_path_factory.mktemp("in_distribution")
    recipe = numerate.recipe("addition_lt_abacus_4x4")
    tiny = ["training.steps=2", "evaluation.validation_examples=2", "evaluation.grid=1:2x1:2"]
    train(override(debug(recipe), tiny), runs_dir=runs, quiet=True).run.evaluate(count=2)
    return runs


@pytest.fixture
def folder(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for the rows of a file, from where `latest` is the trained run."""
    (tmp_path / "sums").mkdir()
    sums = [f"{str(i)[::-1]}+{str(7 * i)[::-1]}={str(8 * i)[::-1]}\n" for i in range(10, 60)]
    (tmp_path / "sums" / "rows.txt").write_text("".join(sums))
    return stand_in(tmp_path, trained, monkeypatch)


def made_small(line: str) -> list[str]:
    """The words of a command as on the page, with what makes it small."""
    more = {"run": ["evaluation.grid=1:1x1:1", "evaluation.examples_per_cell=2"], "data": ["out=written"]}
    line = line.replace(" out=sums", "")  # a folder of the fixture
    return in_small(line, TINY, more.get(line.split()[0], []))


@pytest.mark.parametrize("line", PAGE.commands())
@pytest.mark.slow
def test_a_command_of_the_page_runs(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(made_small(line), folder, capsys)


def test_grids_of_the_page_are_grids() -> None:
    axes = Arithmetic().axes()
    grids = [word[5:] for line in PAGE.commands() for word in line.split() if word.startswith("grid=")]
    assert len(grids) > 10
    assert all(Grid.parse(text, axes).cells() for text in grids)


def test_every_published_recipe_stands_on_the_page() -> None:
    published = {name for name, row in ROWS.items() if row.base == "abacus_paper.published"}
    assert published <= PAGE.shown_recipes()
