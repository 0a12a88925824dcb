"""The code base stays within the two caps of `benchmarks/budgets.toml`."""

from pathlib import Path

from import_file import import_file


def test_source_and_tests_have_at_most_the_lines_of_the_budgets() -> None:
    size = import_file(Path(__file__).parents[1] / "benchmarks" / "size.py")
    found, budgets = dict(size.sizes()), size.budgets()
    assert budgets.keys() == {"source", "tests"}
    assert found["source"].lines > found["core"].lines > 10_000
    assert {name: found[name].lines for name in budgets if found[name].lines > budgets[name]} == {}
