"""What `numerate.results` makes of runs: pages, tables, figures. It stands above runs, and is imported on request."""

from importlib import import_module
from pathlib import Path
from typing import Any


def of_results(name: str) -> Any:
    """A module of `numerate.results`, such as its figures."""
    return import_module(f"numerate.results.{name}")


def write_study_page(folder: Path, question: str, states: Sequence[RunState]) -> Path:
    """Writes `report.html` and `figure.png` of runs into the folder of their study; returns the path of the page."""
    return Path(of_results("page").write_study_page(folder, question, states))
