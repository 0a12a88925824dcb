"""Tests of differences against all ways written out, and against published values."""

import random
from itertools import combinations, product
from statistics import fmean

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
)


def test_fishers_exact_p_agrees_with_tables_in_both_orders_and_refuses_successes_that_cannot_be():
    for first, second, p in (((10, 10), (5, 10), 0.0325), ((5, 5), (0, 5), 2 / 252), ((0, 0), (3, 5), 1.0)):
        assert fisher_exact(first, second) == pytest.approx(p, abs=5e-4) == fisher_exact(second, first)
    with pytest.raises(UserError, match="must be between 0 and the count"):
        fisher_exact((4, 3), (1, 3))


def test_splits_that_are_equal_but_for_rounding_count_as_equal_however_small_the_differences_are():
    """Losses and accuracies far from 0 that differ little, against fractions."""
    rng = random.Random(0)
    for _ in range(60):
        base, size = rng.choice((50, 95, 320)), rng.randint(2, 4)
        first, second = ([100 * base + rng.randint(0, 9) for _ in range(size)] for _ in range(2))
        pooled, values = first + second, ([value / 1e4 for value in group] for group in (first, second))
        far = abs(sum(first) - sum(second))
        splits = [abs(2 * sum(split) - sum(pooled)) >= far for split in combinations(pooled, size)]
        signs = [
            abs(sum(sign * (a - b) for sign, a, b in zip(signs, first, second, strict=True))) >= far
            for signs in product((1, -1), repeat=size)
        ]
        one, two = values
        assert permutation_test(one, two) == pytest.approx(fmean(splits), abs=1e-12)
        assert paired_permutation_test(one, two) == pytest.approx(fmean(signs), abs=1e-12)


def test_samples_of_one_value_or_of_different_sizes_are_compared():
    assert permutation_test([0.9, 0.8, 0.7], [0.6, 0.75]) == 0.4
    assert permutation_test([0.9], [0.1, 0.2, 0.3]) == 0.25
    assert paired_permutation_test([0.3], [0.1]) == 1.0


def test_beyond_seventeen_pairs_signs_are_drawn_as_a_function_of_the_key():
    rng = np.random.default_rng(0)
    first = rng.random(24)
    second = first + rng.normal(0.1, 0.3, 24)
    drawn = paired_permutation_test(first.tolist(), second.tolist(), "key")
    assert drawn == paired_permutation_test(first.tolist(), second.tolist(), "key")
    assert drawn != paired_permutation_test(first.tolist(), second.tolist(), "other key")
    gaps = first - second
    left, right = (np.array([np.dot(s, g) for s in product((1, -1), repeat=12)]) for g in (gaps[:12], gaps[12:]))
    order = np.sort(right)
    least = abs(gaps.sum()) - 1e-9
    more = np.searchsorted(order, least - left, side="left")
    less = np.searchsorted(order, -least - left, side="right")
    exact = (np.sum(len(order) - more) + np.sum(less)) / 2**24
    assert drawn == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 200_000) ** 0.5)


def test_a_permutation_of_many_is_drawn_as_a_function_of_the_key():
    from scipy import stats

    rng = np.random.default_rng(1)
    one, two = rng.random(30).tolist(), (rng.random(25) + 0.12).tolist()
    drawn = permutation_test(one, two, "key")
    assert drawn == permutation_test(one, two, "key")
    assert drawn != permutation_test(one, two, "other")
    assert drawn == pytest.approx(stats.ttest_ind(one, two).pvalue, abs=0.02)  # near it for values as regular as these


def test_what_makes_no_pairs_or_no_sample_is_refused():
    with pytest.raises(UserError, match="must be given pairs, not 2 and 1 values"):
        paired_permutation_test([0.1, 0.2], [0.3])
    for test in (paired_permutation_test, permutation_test, probability_of_improvement):
        for values in ([], [float("nan")]):
            with pytest.raises(UserError, match="needs one value per seed, each a finite number"):
                test([0.1], values)


def test_holm_multiplies_the_smallest_most_and_never_turns_the_order_round():
    # Written out: 0.01 * 4 = 0.04; 0.013 * 3 = 0.039, not below 0.04; 0.03 * 2 = 0.06; 0.8 * 1.
    assert holm([0.8, 0.01, 0.03, 0.013]) == pytest.approx([0.8, 0.04, 0.06, 0.04])
    assert (holm([0.6, 0.7]), holm([0.2]), holm([])) == ([1.0, 1.0], [0.2], [])
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match="p-values must be between 0 and 1"):
            holm([0.5, p])


def test_the_smallest_p_is_reached_by_the_largest_difference():
    for one, two in ((2, 3), (3, 3), (5, 5), (4, 6)):
        assert min_p_value(one, two) == pytest.approx(permutation_test([1.0] * one, [0.0] * two))
        assert min_p_value(one, two) == pytest.approx(fisher_exact((one, one), (0, two)))
    for pairs in (1, 3, 6):
        assert min_p_value(pairs, pairs, paired=True) == paired_permutation_test([1.0] * pairs, [0.0] * pairs)
    for one, two, paired in ((3, 4, True), (0, 3, False)):
        with pytest.raises(UserError, match="sizes must be at least 1"):
            min_p_value(one, two, paired=paired)


def test_the_probability_of_improvement_is_mann_whitneys_u_by_the_number_of_pairs():
    from scipy import stats

    one, two = [0.9, 0.5, 0.5, 1.0], [0.5, 0.2, 0.95]
    expected = stats.mannwhitneyu(one, two).statistic / 12
    assert probability_of_improvement(one, two) == pytest.approx(expected)
    assert probability_of_improvement(two, one) == pytest.approx(1 - expected)
    assert probability_of_improvement([0.5], [0.5]) == 0.5
