"""What `numerate.results` makes of runs: pages and figures. It stands above runs, and is imported by name when a run, a
study or a tracker asks for one."""

from importlib import import_module
from typing import Any


def of_results(name: str) -> Any:
    """A module of `numerate.results`, such as its figures."""
    return import_module(f"numerate.results.{name}")
