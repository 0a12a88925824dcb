"""Promises of the notebooks in examples/: they run from beginning to end, and have the results of a run in them."""

import re
from importlib import import_module
from pathlib import Path

import nbformat
import pytest

TOP = Path(__file__).parents[1]
NOTEBOOKS = sorted((TOP / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_and_shows_what_it_stores(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may differ by machine, and after a tenth of the steps; which cells have outputs of which kind may not."""
    monkeypatch.syspath_prepend(TOP / "tools")
    stored = nbformat.read(path, as_version=4)
    assert kinds_of_outputs(import_module("notebooks").execute(path, shorter=10)) == kinds_of_outputs(stored)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_stores_results_and_no_noise(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert any(kinds_of_outputs(notebook))
    assert path.stat().st_size < 300_000
    assert not any(output.get("name") == "stderr" for cell in notebook.cells for output in cell.get("outputs", []))
    assert not any(cell.metadata for cell in notebook.cells), "timings"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


def kinds_of_outputs(notebook: nbformat.NotebookNode) -> list[list[tuple[str, ...]]]:
    """Of each cell, the kinds of its outputs."""
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    return [[(one.output_type, *sorted(one.get("data", {}))) for one in each] for each in outputs]
