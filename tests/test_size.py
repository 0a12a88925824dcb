"""The code base stays within its budgets: a change that needs more raises one in `benchmarks/budgets.toml`, and why."""

import importlib.util
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).parents[1] / "benchmarks" / "size.py"


def opened() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_folder_is_within_its_budget_and_has_one() -> None:
    size = opened()
    found, budgets = {name: one._asdict() for name, one in size.sizes()}, size.budgets()
    assert found.keys() == budgets.keys()
    assert found["source"]["lines"] > found["core"]["lines"] > 10_000
    over = [
        f"{name}: {found[name][column]} {column}, budget {limit}"
        for name, limits in budgets.items()
        for column, limit in limits.items()
        if found[name][column] > limit
    ]
    assert not over, "\n".join(over)
