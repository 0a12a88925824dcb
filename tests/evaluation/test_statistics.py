"""Statistics against values worked out elsewhere: published tables, binomial sums, values written out by hand."""

import doctest
from math import comb

import numpy as np
import pytest

from numerate.errors import Mistake
from numerate.evaluation import statistics
from numerate.evaluation.statistics import (
    bootstrap_interval,
    difference,
    fisher_exact,
    interquartile_mean,
    median_spread,
    region_mean,
    seeds_band,
    success_rate,
    wilson,
)


def test_the_examples_in_the_documentation_are_true():
    assert doctest.testmod(statistics).failed == 0
    assert doctest.testmod(statistics).attempted > 5


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    [
        (99, 100, 0.9455, 0.9982),
        (100, 100, 0.9630, 1.0),
        (990, 1000, 0.9817, 0.9946),
        (1000, 1000, 0.9962, 1.0),
        (0, 100, 0.0, 0.0370),
        (81, 263, 0.2553, 0.3662),  # Newcombe (1998), table I: method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_agrees_with_published_intervals(correct, count, low, high):
    assert wilson(correct, count) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_wilson_solves_its_own_equation():
    """The bounds are the shares p at which the observed share is z standard errors of p away."""
    for bound in wilson(37, 80):
        assert abs(37 / 80 - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / 80) ** 0.5, rel=1e-6)


def test_wilson_covers_the_truth_about_as_often_as_it_says():
    """By the exact binomial sum, at n = 100: never far under 95 % on average over shares."""
    low, high = wilson(np.arange(101), np.full(101, 100))
    covers = []
    for share in np.linspace(0.02, 0.98, 49):
        mass = [comb(100, k) * share**k * (1 - share) ** (100 - k) for k in range(101)]
        covers.append(sum(m for m, a, b in zip(mass, low, high, strict=True) if a <= share <= b))
    assert 0.945 < np.mean(covers) < 0.96


def test_wilson_of_arrays_is_wilson_of_each():
    low, high = wilson(np.array([0, 50, 100]), np.array([100, 100, 100]))
    assert [(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)] == [
        wilson(0, 100),
        wilson(50, 100),
        wilson(100, 100),
    ]


def test_wilson_never_leaves_the_unit_interval_and_says_nothing_about_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 3)[0] == 0.0
    assert wilson(3, 3)[1] == 1.0


def test_a_higher_level_is_wider():
    assert wilson(50, 100, level=0.99)[0] < wilson(50, 100)[0] < wilson(50, 100, level=0.5)[0]


@pytest.mark.parametrize(("correct", "count"), [(5, 4), (-1, 4)])
def test_counts_that_cannot_be_are_refused(correct, count):
    with pytest.raises(Mistake, match="between 0 and the count"):
        wilson(correct, count)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_that_is_none_is_refused(level):
    with pytest.raises(Mistake, match=r"level=0\.95"):
        wilson(1, 2, level)


def test_the_mean_of_a_region_with_equal_counts_has_the_pooled_interval():
    mean = region_mean([(98, 100), (50, 100), (100, 100)])
    assert mean.value == pytest.approx(248 / 300)
    assert (mean.low, mean.high) == pytest.approx(wilson(248, 300))
    assert mean.count == 300


def test_every_cell_of_a_region_weighs_the_same_whatever_its_count():
    mean = region_mean([(10, 10), (0, 1000)])
    assert mean.value == 0.5
    few = 2**2 / (1 / 10 + 1 / 1000)
    assert (mean.low, mean.high) == pytest.approx(wilson(few / 2, few))


def test_a_region_that_is_all_right_reaches_one_and_not_beyond():
    mean = region_mean([(7, 7), (9, 9), (11, 11)])
    assert (mean.value, mean.high) == (1.0, 1.0)
    assert mean.low < 1.0


def test_a_region_without_cells_or_questions_is_refused():
    with pytest.raises(Mistake, match="no cells"):
        region_mean([])
    with pytest.raises(Mistake, match="nothing was asked"):
        region_mean([(0, 0)])


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [  # Newcombe (1998), part II, table II, method 10
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_a_difference_agrees_with_published_intervals(first, second, low, high):
    gap = difference(first, second)
    assert (gap.low, gap.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_the_spread_of_seeds_is_their_median_extremes_and_quartiles():
    spread = median_spread([0.1, 0.9, 0.5, 0.3])
    assert (spread.lowest, spread.median, spread.highest, spread.count) == (0.1, 0.4, 0.9, 4)
    assert (spread.lower_quartile, spread.upper_quartile) == pytest.approx((0.25, 0.6))
    assert median_spread([0.7]).median == 0.7


def test_the_success_rate_counts_the_seeds_that_reach_the_threshold_exactly():
    rate = success_rate([0.99, 0.9899, 1.0, 0.0], threshold=0.99)
    assert rate.value == 0.5
    assert (rate.low, rate.high) == wilson(2, 4)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ((3, 3), (1, 3), 0.40),
        ((5, 5), (2, 5), 1 / 6),
        ((5, 5), (0, 5), 2 / 252),
        ((10, 10), (5, 10), 0.0325),
        ((2, 4), (2, 4), 1.0),
    ],
)
def test_fishers_exact_p_agrees_with_tables_in_both_orders(first, second, p):
    assert fisher_exact(first, second) == pytest.approx(p, abs=5e-4)
    assert fisher_exact(second, first) == fisher_exact(first, second)


def test_the_interquartile_mean_weighs_values_on_the_border_in_part():
    # Of five values a quarter is 1.25 values: (0.75 * 1 + 2 + 0.75 * 3) / 2.5.
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 0.0]) == pytest.approx(2.0)
    assert interquartile_mean([0.0, 1.0, 2.0, 3.0, 8.0, 9.0]) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 8) / 3)


def test_a_bootstrap_is_a_function_of_its_key_and_of_the_values():
    values = [0.1, 0.4, 0.5, 0.9, 0.95]
    assert bootstrap_interval(values, "study", 1) == bootstrap_interval(values, "study", 1)
    mean = {key: bootstrap_interval(values, key, statistic=lambda row: sum(row) / len(row)) for key in range(4)}
    assert len(set(mean.values())) > 1


def test_a_bootstrap_of_the_mean_has_about_the_width_that_theory_says():
    values = [i / 39 for i in range(40)]
    low, high = bootstrap_interval(values, "width", statistic=lambda row: sum(row) / len(row))
    assert high - low == pytest.approx(2 * 1.96 * np.std(values) / 40**0.5, rel=0.08)
    assert low < 0.5 < high


def test_a_bootstrap_of_equal_values_has_no_width():
    assert bootstrap_interval([0.3, 0.3, 0.3], "same") == (0.3, 0.3)


def test_a_band_runs_over_the_steps_that_all_seeds_have():
    band = seeds_band([([0, 1, 2], [0.0, 0.5, 1.0]), ([2, 1], [0.6, 0.1]), ([1, 2, 9], [0.3, 0.8, 1.0])])
    assert band.steps.tolist() == [1.0, 2.0]
    assert band.median.tolist() == [0.3, 0.8]
    assert band.low.tolist() == [0.1, 0.6]
    assert band.high.tolist() == [0.5, 1.0]
    assert band.count == 3


def test_seeds_without_a_common_step_give_an_empty_band():
    assert seeds_band([([1], [0.5]), ([2], [0.5])]).steps.size == 0


@pytest.mark.parametrize("summary", [median_spread, lambda v: success_rate(v, 0.9), bootstrap_interval, seeds_band])
def test_nothing_has_no_statistics(summary):
    with pytest.raises(Mistake, match="give one"):
        summary([])
