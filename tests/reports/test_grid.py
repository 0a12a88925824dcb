"""Cells in their places, regions and their means, percentages that hide nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.reports.figure import heat_maps
from numerate.reports.grid import (
    aggregate_seeds,
    cell_label,
    diagonal_points,
    format_integer_percent,
    format_interval,
    format_percent,
    length_ticks,
    range_label,
    score_regions,
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


def test_the_diagonal_holds_equal_lengths_in_order():
    cells = [cell({"a": a, "b": b}) for a in (3, 2, 1) for b in (1, 2, 3)]
    assert list(diagonal_points(aggregate_seeds([cells]))) == [1, 2, 3]


def test_seen_cells_are_not_counted_in_a_region_unless_all_are():
    mixed = score_regions([cell({"n": 1}, 100, overlaps_training=True), cell({"n": 2}, 50)])["in_distribution"]
    assert (mixed.score.value, mixed.num_cells, mixed.num_excluded_cells, mixed.all_cells_overlap_training) == (
        0.5,
        1,
        1,
        False,
    )
    alone = score_regions([cell({"n": 1}, 100, overlaps_training=True)])["in_distribution"]
    assert (alone.score.value, alone.num_cells, alone.all_cells_overlap_training) == (1.0, 1, True)


def test_all_ood_joins_the_regions_out_of_distribution():
    regions = {6: "ood_validation", 7: "ood_test", 120: "100+"}
    found = score_regions([cell({"n": n}, 100 - n % 60, region=region) for n, region in regions.items()])
    assert list(found) == ["ood_validation", "ood_test", "100+", "ood"]
    assert [one.score.value for one in found.values()] == [0.94, 0.93, 1.0, pytest.approx(2.87 / 3)]


@given(st.floats(0, 1))
def test_only_all_and_nothing_read_100_and_0(share):
    assert (format_percent(share) == "100") == (format_integer_percent(share) == "100") == (share == 1)
    assert (format_percent(share) == "0") == (format_integer_percent(share) == "0") == (share == 0)


def test_cells_and_spans_in_words():
    assert cell_label({"first_digits": 8, "second_digits": 9}, "+") == "8+9 digits"
    assert cell_label({"digits": 6}) == "6 digits"
    assert cell_label({"length": 40}) == "length 40"
    assert range_label(
        [cell({"first_digits": 1, "second_digits": 5}), cell({"first_digits": 5, "second_digits": 1})]
    ) == ("1 to 5 digits")
    assert range_label([cell({"length": 3}), cell({"length": 9})]) == "length 3 to 9"
    assert format_interval(0.856, 1.0) == "[85.6, 100]"


@pytest.mark.parametrize(
    ("lengths", "ticks"),
    [
        (range(1, 9), range(1, 9)),
        (range(1, 31), [1, *range(2, 31, 2)]),
        (range(19, 201), range(20, 201, 20)),
        ([*range(1, 100), *range(100, 201, 5)], [1, *range(20, 201, 20)]),
        (range(1, 20, 2), range(1, 20, 2)),
        ([4], [4]),
    ],
)
def test_ticks_are_round_lengths_that_have_room(lengths, ticks):
    assert list(length_ticks(lengths, 15)) == list(ticks)
