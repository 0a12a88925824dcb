"""The code base stays within its budgets: a change that needs more raises one in `benchmarks/budgets.toml`, and why."""

from pathlib import Path

from import_file import import_file


def test_every_folder_is_within_its_budget_and_has_one() -> None:
    size = import_file(Path(__file__).parents[1] / "benchmarks" / "size.py")
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
