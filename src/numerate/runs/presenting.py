"""What `numerate.results` makes of runs: pages and figures. It stands above runs, and is imported by name when a run, a
study or a tracker asks for one."""

from importlib import import_module
from pathlib import Path
from typing import Any


def of_results(name: str) -> Any:
    """A module of `numerate.results`, such as its figures."""
    return import_module(f"numerate.results.{name}")


def write_run_page(folder: Path) -> Path:
    """Writes `report.html` into the folder of a run and returns its path."""
    return Path(of_results("page").write_run_page(folder))


def write_study_page(folder: Path, question: str, states: Sequence[RunState]) -> Path:
    """Writes `report.html` and `figure.png` of runs into the folder of their study; returns the path of the page."""
    return Path(of_results("page").write_study_page(folder, question, states))
