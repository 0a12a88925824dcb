"""A small run, trained once for a file of tests, and copies of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numerate.runs.run import Run, load
from numerate.runs.train import train
from small_runs import ADDING, copied


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `RECIPE` of a file of tests, which none of them changes."""
    recipe = getattr(request.module, "RECIPE", ADDING)
    return train(recipe, runs_dir=tmp_path_factory.mktemp("runs"), quiet=True).run.path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Callable[[str], Run]:
    """copy("name"): the run once more, in a folder of its own."""
    return lambda name: load(copied(trained, tmp_path / name) / trained.parent.name / trained.name)


@pytest.fixture
def run(copy: Callable[[str], Run]) -> Run:
    return copy("runs")
