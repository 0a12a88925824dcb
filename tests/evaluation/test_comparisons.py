"""Tests of differences against scipy, against all ways written out, and against published values."""

from itertools import combinations, product

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.evaluation import comparisons
from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    mcnemar_test,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
    sign_test,
    wilcoxon_signed_rank,
)

WHY = "scipy is the one to agree with"


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ((3, 3), (1, 3), 0.40),
        ((5, 5), (2, 5), 1 / 6),
        ((5, 5), (0, 5), 2 / 252),
        ((10, 10), (5, 10), 0.0325),
        ((2, 4), (2, 4), 1.0),
        ((0, 0), (3, 5), 1.0),
    ],
)
def test_fishers_exact_p_agrees_with_tables_in_both_orders(first, second, p):
    assert fisher_exact(first, second) == pytest.approx(p, abs=5e-4)
    assert fisher_exact(second, first) == fisher_exact(first, second)


def test_fishers_exact_p_is_that_of_scipy_for_every_small_table():
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    for tries, others in ((1, 1), (3, 3), (5, 5), (5, 8), (7, 3)):
        for hits, more in product(range(tries + 1), range(others + 1)):
            expected = scipy.fisher_exact([[hits, tries - hits], [more, others - more]]).pvalue
            assert fisher_exact((hits, tries), (more, others)) == pytest.approx(expected, rel=1e-10), (hits, more)
    for hits, more in ((40, 55), (10, 90), (33, 34)):
        expected = scipy.fisher_exact([[hits, 100 - hits], [more, 90 - more]]).pvalue
        assert fisher_exact((hits, 100), (more, 90)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("first", "second"), [((4, 3), (1, 3)), ((1, 3), (-1, 3))])
def test_successes_that_cannot_be_are_refused(first, second):
    with pytest.raises(UserError, match="successes must be between 0 and the number of trials"):
        fisher_exact(first, second)


def test_a_sign_test_is_twice_the_tail_of_a_fair_coin():
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    for wins, losses in ((0, 0), (5, 0), (0, 5), (3, 3), (4, 3), (60, 40), (505_000, 495_000)):
        expected = scipy.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-9)
        assert sign_test(losses, wins) == sign_test(wins, losses)
    with pytest.raises(UserError, match="wins and losses must be at least 0"):
        sign_test(-1, 3)


def test_mcnemar_looks_only_at_the_questions_that_one_has_right_and_the_other_wrong():
    first = [1] * 8 + [0] * 2 + [1] * 90
    second = [0] * 8 + [1] * 2 + [1] * 90
    assert mcnemar_test(first, second) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar_test(np.array(first, dtype=bool)[:10], np.array(second, dtype=bool)[:10]) == mcnemar_test(
        first, second
    )
    assert mcnemar_test([1, 0, 1], [1, 0, 1]) == 1.0
    with pytest.raises(UserError, match="3 and 2 answers"):
        mcnemar_test([1, 0, 1], [1, 0])
    with pytest.raises(UserError, match=r"correct .* or wrong"):
        mcnemar_test([0.5], [1])


def test_a_paired_permutation_goes_through_all_signs_written_out():
    first, second = [0.9, 0.2, 0.7, 0.4, 0.65], [0.5, 0.3, 0.1, 0.35, 0.2]
    gaps = np.subtract(first, second)
    sums = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in product((1, -1), repeat=5)]
    expected = sum(value >= abs(gaps.sum()) - 1e-9 for value in sums) / 32
    assert paired_permutation_test(first, second) == expected
    assert paired_permutation_test(second, first) == expected


def test_a_paired_permutation_is_the_one_of_scipy():
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    for count in (2, 4, 9):
        first, second = ([((i + 1) * factor % 23) / 23 for i in range(count)] for factor in (7, 5))
        expected = scipy.permutation_test(
            (first, second), lambda a, b: np.mean(a) - np.mean(b), permutation_type="samples", n_resamples=10**6
        ).pvalue
        assert paired_permutation_test(first, second) == pytest.approx(min(expected, 1.0), rel=1e-12)


def test_equal_differences_count_as_equal_whatever_their_last_digits():
    """0.3 - 0.1 and 0.8 - 0.6 differ in floating point; one sign flipped either way is the same sum."""
    assert paired_permutation_test([0.3, 0.8, 0.5], [0.1, 0.6, 0.7]) == 1.0
    assert paired_permutation_test([0.3, 0.8, 0.5], [0.1, 0.6, 0.3]) == 0.25
    assert permutation_test([0.1 + 0.2, 0.5], [0.3, 0.5]) == 1.0
    assert wilcoxon_signed_rank([0.3, 0.8, 0.5], [0.1, 0.6, 0.7]) == 1.0


def test_beyond_twenty_pairs_signs_are_drawn_as_a_function_of_the_key():
    rng = np.random.default_rng(0)
    first = rng.random(24)
    second = first + rng.normal(0.1, 0.3, 24)
    drawn = paired_permutation_test(first.tolist(), second.tolist(), "key", resamples=20_000)
    assert drawn == paired_permutation_test(first.tolist(), second.tolist(), "key", resamples=20_000)
    assert drawn != paired_permutation_test(first.tolist(), second.tolist(), "other key", resamples=20_000)
    gaps = first - second
    left, right = (np.array([np.dot(s, g) for s in product((1, -1), repeat=12)]) for g in (gaps[:12], gaps[12:]))
    order = np.sort(right)
    least = abs(gaps.sum()) - 1e-9
    more = np.searchsorted(order, least - left, side="left")
    less = np.searchsorted(order, -least - left, side="right")
    exact = (np.sum(len(order) - more) + np.sum(less)) / 2**24
    assert drawn == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 20_000) ** 0.5)
    assert 0 < paired_permutation_test([1.0] * 30, [0.0] * 30, resamples=999) <= 2 / 1000


def test_a_permutation_goes_through_all_splits():
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    for one, two in (([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]), ([0.5, 0.9, 0.1, 0.4], [0.45, 0.9]), ([0.3], [0.1, 0.2, 0.9])):
        both = one + two
        middle = sum(both) * len(one) / len(both)
        sums = [abs(sum(split) - middle) for split in combinations(both, len(one))]
        expected = sum(value >= abs(sum(one) - middle) - 1e-9 for value in sums) / len(sums)
        assert permutation_test(one, two) == expected
        if len(one) == len(two):  # where the distribution has two sides alike, scipy's doubled tail is this one
            found = scipy.permutation_test((one, two), lambda a, b: np.mean(a) - np.mean(b), n_resamples=10**6).pvalue
            assert permutation_test(one, two) == pytest.approx(found)


def test_a_permutation_of_many_is_drawn_as_a_function_of_the_key():
    rng = np.random.default_rng(1)
    one, two = rng.random(30).tolist(), (rng.random(25) + 0.12).tolist()
    drawn = permutation_test(one, two, "key", resamples=20_000)
    assert drawn == permutation_test(one, two, "key", resamples=20_000)
    assert drawn != permutation_test(one, two, "other", resamples=20_000)
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    expected = scipy.ttest_ind(one, two).pvalue  # near the permutation's for values as regular as these
    assert drawn == pytest.approx(expected, abs=0.02)


def test_the_signed_rank_is_that_of_scipy_where_nothing_is_tied():
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    rng = np.random.default_rng(2)
    for count in (1, 2, 5, 10, 25, 60):
        first, second = rng.random(count), rng.random(count) + 0.1
        expected = scipy.wilcoxon(first, second, method="exact").pvalue
        assert wilcoxon_signed_rank(first.tolist(), second.tolist()) == pytest.approx(expected, rel=1e-9)


def test_the_signed_rank_with_ties_is_that_of_all_signs_written_out():
    first, second = [0.5, 0.6, 0.4, 0.9, 0.3, 0.2], [0.4, 0.7, 0.1, 0.6, 0.3, 0.6]
    ranks = [1.5, 1.5, 3.5, 3.5, 5.0]  # of 0.1, 0.1, 0.3, 0.3, 0.4; the fifth pair is equal
    seen = 1.5 + 3.5 + 3.5
    sums = [sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in product((0, 1), repeat=5)]
    middle = sum(ranks) / 2
    expected = sum(abs(value - middle) >= abs(seen - middle) for value in sums) / 32
    assert wilcoxon_signed_rank(first, second) == pytest.approx(expected)


@pytest.mark.parametrize("decimals", [16, 1])  # without ties, and with many
def test_the_signed_rank_of_very_many_pairs_is_that_of_the_normal_curve(decimals):
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    rng = np.random.default_rng(4)
    gaps = np.round(rng.normal(0.06, 1.0, 3000), decimals)
    expected = scipy.wilcoxon(gaps, correction=True, method="asymptotic").pvalue
    assert wilcoxon_signed_rank(gaps.tolist(), [0.0] * len(gaps)) == pytest.approx(expected, rel=1e-9)


def test_where_the_signed_rank_goes_over_to_the_normal_curve_the_two_agree(monkeypatch):
    gaps = np.random.default_rng(5).normal(0.1, 1.0, 400).tolist()
    exact = wilcoxon_signed_rank(gaps, [0.0] * 400)
    monkeypatch.setattr(comparisons, "MAX_EXACT_RANKS", 100)
    assert wilcoxon_signed_rank(gaps, [0.0] * 400) == pytest.approx(exact, abs=1e-3)
    assert wilcoxon_signed_rank([1.0, -1.0] * 200, [0.0] * 400) == 1.0


@pytest.mark.parametrize("test", [paired_permutation_test, wilcoxon_signed_rank])
def test_what_makes_no_pairs_is_refused(test):
    with pytest.raises(UserError, match="must be given pairs, not 2 and 1 values"):
        test([0.1, 0.2], [0.3])
    with pytest.raises(UserError, match="needs one value per seed"):
        test([], [])
    with pytest.raises(UserError, match="finite number"):
        test([float("nan")], [0.1])


@pytest.mark.parametrize("test", [permutation_test, probability_of_improvement])
def test_a_sample_of_nothing_is_refused(test):
    with pytest.raises(UserError, match="needs one value per seed"):
        test([0.1], [])


def test_holm_multiplies_the_smallest_most_and_never_turns_the_order_round():
    # Written out: 0.01 * 4 = 0.04; 0.013 * 3 = 0.039, not below 0.04; 0.03 * 2 = 0.06; 0.8 * 1.
    assert holm([0.8, 0.01, 0.03, 0.013]) == pytest.approx([0.8, 0.04, 0.06, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match="p-values must be between 0 and 1"):
            holm([0.5, p])


def test_the_smallest_p_is_reached_by_the_largest_difference():
    for one, two in ((1, 1), (2, 3), (3, 3), (5, 5), (4, 6)):
        assert min_p_value(one, two) == pytest.approx(permutation_test([1.0] * one, [0.0] * two))
        assert min_p_value(one, two) == pytest.approx(fisher_exact((one, one), (0, two)))
    for pairs in (1, 3, 6):
        assert min_p_value(pairs, pairs, paired=True) == paired_permutation_test([1.0] * pairs, [0.0] * pairs)
    with pytest.raises(UserError, match="equal numbers for pairs"):
        min_p_value(3, 4, paired=True)


def test_the_probability_of_improvement_is_mann_whitneys_u_by_the_number_of_pairs():
    scipy = pytest.importorskip("scipy.stats", reason=WHY)
    one, two = [0.9, 0.5, 0.5, 1.0], [0.5, 0.2, 0.95]
    expected = scipy.mannwhitneyu(one, two).statistic / 12
    assert probability_of_improvement(one, two) == pytest.approx(expected)
    assert probability_of_improvement(two, one) == pytest.approx(1 - expected)
    assert probability_of_improvement([0.5], [0.5]) == 0.5
