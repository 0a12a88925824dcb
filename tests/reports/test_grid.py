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
    tick_step,
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


def square(high, trained):
    return [
        cell({"a": a, "b": b}, region="in_distribution" if max(a, b) <= trained else "ood_test")
        for a in range(1, high + 1)
        for b in range(1, high + 1)
    ]


def test_the_first_axis_runs_down_and_the_second_across():
    (grid,) = heat_maps(aggregate_seeds([[cell({"a": 2, "b": 7}), cell({"a": 4, "b": 6})]]))
    assert (grid.row_axis, grid.rows, grid.column_axis, grid.columns) == ("a", [2, 4], "b", [6, 7])
    assert set(grid.cells) == {(2, 7), (4, 6)}


def test_a_third_axis_makes_one_grid_per_value():
    found = heat_maps(aggregate_seeds([[cell({"a": 1, "b": 1, "carry": c}) for c in (3, 0)]]))
    assert [grid.title for grid in found] == ["carry 0", "carry 3"]


def test_a_single_axis_makes_one_row():
    (grid,) = heat_maps(aggregate_seeds([[cell({"length": n}) for n in (3, 1, 2)]]))
    assert (grid.row_axis, grid.rows, grid.columns) == ("", [0], [1, 2, 3])


def test_the_border_runs_around_what_was_trained_and_nowhere_else():
    (grid,) = heat_maps(aggregate_seeds([square(4, trained=2)]))
    edges = {
        (i, j, s)
        for i in range(4)
        for j in range(4)
        for s in ("top", "left", "bottom", "right")
        if grid.has_border(i, j, s)
    }
    assert edges == {
        (0, 0, "top"), (0, 1, "top"), (0, 0, "left"), (1, 0, "left"),
        (1, 0, "bottom"), (1, 1, "bottom"), (0, 1, "right"), (1, 1, "right"),
    }  # fmt: skip


def test_several_seeds_give_the_median_and_the_extremes():
    (point,) = aggregate_seeds([[cell({"n": 1}, correct)] for correct in (90, 10, 30)])
    assert (point.score, point.low, point.high, point.seed_scores) == (0.3, 0.1, 0.9, (0.9, 0.1, 0.3))


def test_one_seed_keeps_the_interval_over_its_questions():
    (point,) = aggregate_seeds([[cell({"n": 1})]])
    assert (point.score, point.low, point.high) == (0.5, 0.4, 0.6)


def test_cells_that_one_seed_lacks_are_left_out():
    assert [p.coordinates for p in aggregate_seeds([[cell({"n": 1}), cell({"n": 2})], [cell({"n": 2})]])] == [{"n": 2}]


def test_the_diagonal_holds_equal_lengths_in_order():
    assert list(diagonal_points(aggregate_seeds([list(reversed(square(3, 1)))]))) == [1, 2, 3]


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
    found = score_regions([cell({"n": 6}, 80, region="ood_validation"), cell({"n": 7}, 20, region="ood_test")])
    assert list(found) == ["ood_validation", "ood_test", "ood"]
    assert found["ood"].score.value == 0.5


@given(st.floats(0, 1))
def test_only_all_and_nothing_read_100_and_0(share):
    assert (format_percent(share) == "100") == (format_integer_percent(share) == "100") == (share == 1)
    assert (format_percent(share) == "0") == (format_integer_percent(share) == "0") == (share == 0)


@pytest.mark.parametrize(
    ("share", "text"), [(0.905, "90.5"), (0.9, "90"), (0.9996, "99.96"), (0.0004, "0.04"), (1.0, "100"), (0.5, "50")]
)
def test_percentages_are_as_short_as_is_honest(share, text):
    assert format_percent(share) == text


@pytest.mark.parametrize(("count", "step"), [(1, 1), (10, 1), (12, 2), (40, 5), (100, 10), (101, 20), (999, 100)])
def test_labels_stand_at_round_steps_and_never_crowd(count, step):
    assert tick_step(count, 10) == step


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
