"""Cells in their places, regions and their means, percentages that hide nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.reports.figure import heat_maps
from numerate.reports.grid import (
    aggregate_seeds,
    format_integer_percent,
    format_percent,
)
from numerate.reports.records import Cell


def cell(at, correct=50, count=100, **more):
    return Cell(
        coordinates=at,
        correct=correct,
        count=count,
        low=0.4,
        high=0.6,
        region=more.pop("region", "in_distribution"),
        **more,
    )


def test_the_first_axis_runs_down_and_the_second_across_and_a_third_makes_one_grid_per_value():
    (grid,) = heat_maps(aggregate_seeds([[cell({"a": 2, "b": 7}), cell({"a": 4, "b": 6})]]))
    assert (grid.row_axis, grid.rows, grid.column_axis, grid.columns) == ("a", [2, 4], "b", [6, 7])
    assert set(grid.cells) == {(2, 7), (4, 6)}
    found = heat_maps(aggregate_seeds([[cell({"a": 1, "b": 1, "carry": c}) for c in (3, 0)]]))
    assert [grid.title for grid in found] == ["carry 0", "carry 3"]
    (grid,) = heat_maps(aggregate_seeds([[cell({"length": n}) for n in (3, 1, 2)]]))
    assert (grid.row_axis, grid.rows, grid.columns) == ("", [0], [1, 2, 3])


def test_several_seeds_give_the_median_and_the_extremes_of_the_cells_that_all_have():
    (point,) = aggregate_seeds([[cell({"n": 1}, correct)] for correct in (90, 10, 30)])
    assert (point.score, point.low, point.high, point.seed_scores) == (0.3, 0.1, 0.9, (0.9, 0.1, 0.3))
    (point,) = aggregate_seeds([[cell({"n": 1})]])
    assert (point.score, point.low, point.high) == (0.5, 0.4, 0.6), "of one seed the interval over its questions"
    assert [p.coordinates for p in aggregate_seeds([[cell({"n": 1}), cell({"n": 2})], [cell({"n": 2})]])] == [{"n": 2}]


@given(st.floats(0, 1))
def test_only_all_and_nothing_read_100_and_0(share):
    assert (format_percent(share) == "100") == (format_integer_percent(share) == "100") == (share == 1)
    assert (format_percent(share) == "0") == (format_integer_percent(share) == "0") == (share == 0)


@pytest.mark.parametrize(
    ("share", "text"), [(0.905, "90.5"), (0.9, "90"), (0.9996, "99.96"), (0.0004, "0.04"), (1.0, "100"), (0.5, "50")]
)
def test_percentages_are_as_short_as_is_honest(share, text):
    assert format_percent(share) == text
