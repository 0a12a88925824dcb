"""Statistics against values worked out elsewhere: published tables, binomial sums, values written out by hand."""

import doctest
from math import comb

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.evaluation import comparisons, intervals, resampling, statistics
from numerate.evaluation.statistics import (
    binomial_tail,
    bootstrap_interval,
    clopper_pearson_interval,
    interquartile_mean,
    newcombe_interval,
    region_mean,
    seed_band,
    stratified_bootstrap_interval,
    success_rate,
    summarize_seeds,
    wilson_interval,
)


@pytest.mark.parametrize("module", [intervals, resampling, comparisons])
def test_the_examples_in_the_documentation_are_true(module):
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted > 5


def test_every_name_is_in_one_place_with_an_example_and_in_the_table_of_what_to_take():
    documented = statistics.__doc__
    for name in statistics.__all__:
        one = getattr(statistics, name)
        assert one.__doc__
        if callable(one) and not isinstance(one, type):
            assert ">>>" in one.__doc__, name
            assert "Raises `UserError`" in one.__doc__, name
            assert f"`{name}`" in documented or name in ("binomial_tail", "sign_test"), name


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
    assert wilson_interval(correct, count) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_wilson_solves_its_own_equation():
    """The bounds are the shares p at which the observed share is z standard errors of p away."""
    for bound in wilson_interval(37, 80):
        assert abs(37 / 80 - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / 80) ** 0.5, rel=1e-6)


def test_wilson_covers_the_truth_about_as_often_as_it_says():
    """By the exact binomial sum, at n = 100: never far under 95 % on average over shares."""
    low, high = wilson_interval(np.arange(101), np.full(101, 100))
    covers = []
    for share in np.linspace(0.02, 0.98, 49):
        mass = [comb(100, k) * share**k * (1 - share) ** (100 - k) for k in range(101)]
        covers.append(sum(m for m, a, b in zip(mass, low, high, strict=True) if a <= share <= b))
    assert 0.945 < np.mean(covers) < 0.96


def test_wilson_of_arrays_is_wilson_of_each():
    low, high = wilson_interval(np.array([0, 50, 100]), np.array([100, 100, 100]))
    assert [(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)] == [
        wilson_interval(0, 100),
        wilson_interval(50, 100),
        wilson_interval(100, 100),
    ]


def test_wilson_never_leaves_the_unit_interval_and_says_nothing_about_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 3)[0] == 0.0
    assert wilson_interval(3, 3)[1] == 1.0


def test_a_higher_level_is_wider():
    assert (
        wilson_interval(50, 100, level=0.99)[0] < wilson_interval(50, 100)[0] < wilson_interval(50, 100, level=0.5)[0]
    )


@pytest.mark.parametrize(("level", "most"), [(0.5, 10**5), (0.95, 10**7), (0.999, 10**7)])
def test_the_exact_interval_agrees_with_the_beta_quantiles_of_scipy(level, most):
    beta = pytest.importorskip("scipy.stats", reason="scipy is the one to agree with").beta
    pairs = np.array(
        [
            (k, n)
            for n in (1, 2, 3, 15, 16, 17, 100, 4321, most)
            for k in sorted({0, 1, 2, n // 10, n // 2, n - n // 3, n - 1, n})
            if 0 <= k <= n
        ]
    )
    correct, count = pairs.T
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        expected_low = np.where(correct == 0, 0.0, beta.ppf(tail, correct, count - correct + 1))
        expected_high = np.where(correct == count, 1.0, beta.isf(tail, correct + 1, count - correct))
    low, high = clopper_pearson_interval(correct, count, level)
    np.testing.assert_allclose(low, expected_low, rtol=1e-9, atol=0)
    np.testing.assert_allclose(high, expected_high, rtol=1e-9, atol=0)
    np.testing.assert_allclose(low, expected_low, rtol=0, atol=1e-12)
    np.testing.assert_allclose(high, expected_high, rtol=0, atol=1e-12)


def test_the_exact_interval_of_a_number_is_that_of_scipys_test():
    binomtest = pytest.importorskip("scipy.stats", reason="scipy is the one to agree with").binomtest
    for correct, count in ((0, 7), (3, 7), (7, 7), (99, 100), (512, 2000)):
        expected = binomtest(correct, count).proportion_ci(0.95, method="exact")
        assert clopper_pearson_interval(correct, count) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert isinstance(clopper_pearson_interval(3, 7)[0], float)
    assert clopper_pearson_interval(0, 0) == (0.0, 1.0)
    low, high = clopper_pearson_interval(np.array([[1, 2], [3, 0]]), 4)
    assert low.shape == high.shape == (2, 2)
    assert (low[1, 0], high[1, 0]) == pytest.approx(clopper_pearson_interval(3, 4), abs=1e-12)


def test_the_exact_interval_agrees_with_published_ones():
    """Newcombe (1998), table I, method 5."""
    for correct, count, low, high in ((81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (1, 29, 0.0009, 0.1776)):
        assert clopper_pearson_interval(correct, count) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
    assert clopper_pearson_interval(0, 20)[1] == pytest.approx(1 - 0.025 ** (1 / 20), abs=1e-14)


def test_the_exact_interval_covers_the_truth_at_least_as_often_as_it_says():
    """By the exact binomial sum, at every share; Wilson's does not, which is the difference between them."""
    covers = {}
    for interval in (clopper_pearson_interval, wilson_interval):
        low, high = interval(np.arange(31), np.full(31, 30))
        covers[interval] = [
            sum(comb(30, k) * p**k * (1 - p) ** (30 - k) for k in range(31) if low[k] <= p <= high[k])
            for p in np.linspace(0.001, 0.999, 997)
        ]
    assert min(covers[clopper_pearson_interval]) >= 0.95
    assert min(covers[wilson_interval]) < 0.9


def test_a_binomial_tail_is_that_of_scipy():
    binom = pytest.importorskip("scipy.stats", reason="scipy is the one to agree with").binom
    for successes, count, share in (
        (5, 10, 0.5),
        (1, 5, 0.2),
        (3, 10, 0.9),
        (501_000, 10**6, 0.5),
        (9_999, 10_000, 0.5),
    ):
        expected = binom.sf(successes - 1, count, share)
        assert binomial_tail(successes, count, share) == pytest.approx(expected, rel=1e-11, abs=1e-300)
    assert binomial_tail(0, 9, 0.3) == 1.0
    assert (binomial_tail(1, 9, 0.0), binomial_tail(9, 9, 1.0)) == (0.0, 1.0)
    with pytest.raises(UserError, match=r"probability: must be between 0 and 1, not 1\.5"):
        binomial_tail(1, 2, 1.5)


@pytest.mark.parametrize("interval", [wilson_interval, clopper_pearson_interval])
@pytest.mark.parametrize(("correct", "count"), [(5, 4), (-1, 4), (float("nan"), 4)])
def test_counts_that_cannot_be_have_no_interval(interval, correct, count):
    with pytest.raises(UserError, match="between 0 and the count"):
        interval(correct, count)
    with pytest.raises(UserError, match=r"level=0\.95"):
        interval(1, 2, 95)


def test_an_exact_interval_is_of_whole_counts():
    with pytest.raises(UserError, match="needs integer counts"):
        clopper_pearson_interval(np.array([1.5]), np.array([2.0]))


def test_the_mean_of_a_region_with_equal_counts_has_the_pooled_interval():
    mean = region_mean([(98, 100), (50, 100), (100, 100)])
    assert mean.value == pytest.approx(248 / 300)
    assert (mean.low, mean.high) == pytest.approx(wilson_interval(248, 300))
    assert mean.count == 300


def test_every_cell_of_a_region_weighs_the_same_whatever_its_count():
    mean = region_mean([(10, 10), (0, 1000)])
    assert mean.value == 0.5
    few = 2**2 / (1 / 10 + 1 / 1000)
    assert (mean.low, mean.high) == pytest.approx(wilson_interval(few / 2, few))


def test_a_region_that_is_all_right_reaches_one_and_not_beyond():
    mean = region_mean([(7, 7), (9, 9), (11, 11)])
    assert (mean.value, mean.high) == (1.0, 1.0)
    assert mean.low < 1.0


def test_a_region_without_cells_or_questions_is_refused():
    with pytest.raises(UserError, match="cells: must contain at least one"):
        region_mean([])
    with pytest.raises(UserError, match="every count must be at least 1"):
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
    gap = newcombe_interval(first, second)
    assert (gap.low, gap.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_of_a_count_of_0_there_is_no_difference():
    with pytest.raises(UserError, match="every count must be at least 1"):
        newcombe_interval((0, 0), (1, 2))


def test_the_spread_of_seeds_is_their_median_extremes_and_quartiles():
    spread = summarize_seeds([0.1, 0.9, 0.5, 0.3])
    assert (spread.lowest, spread.median, spread.highest, spread.count) == (0.1, 0.4, 0.9, 4)
    assert (spread.lower_quartile, spread.upper_quartile) == pytest.approx((0.25, 0.6))
    assert summarize_seeds([0.7]).median == 0.7


def test_the_success_rate_counts_the_seeds_that_reach_the_threshold_exactly():
    rate = success_rate([0.99, 0.9899, 1.0, 0.0], threshold=0.99)
    assert rate.value == 0.5
    assert (rate.low, rate.high) == wilson_interval(2, 4)


def test_the_interquartile_mean_weighs_values_on_the_border_in_part():
    # Of five values a quarter is 1.25 values: (0.75 * 1 + 2 + 0.75 * 3) / 2.5.
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 0.0]) == pytest.approx(2.0)
    assert interquartile_mean([0.0, 1.0, 2.0, 3.0, 8.0, 9.0]) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 8) / 3)


def test_the_interquartile_mean_of_rows_is_that_of_each():
    rows = np.array([[100.0, 1.0, 2.0, 3.0, 0.0], [5.0, 5.0, 5.0, 5.0, 6.0]])
    assert interquartile_mean(rows).tolist() == [interquartile_mean(row.tolist()) for row in rows]


def test_the_interquartile_mean_of_a_multiple_of_four_is_a_trimmed_mean():
    trim_mean = pytest.importorskip("scipy.stats", reason="scipy is the one to agree with").trim_mean
    values = [((7 * i) % 40) ** 2 / 1600 for i in range(40)]
    assert interquartile_mean(values) == pytest.approx(trim_mean(values, 0.25), rel=1e-12)


def mean_of_rows(rows):
    return rows.mean(axis=-1)


def median_of_rows(rows):
    return np.median(rows, axis=-1)


def test_a_stratified_bootstrap_of_one_stratum_is_the_one_of_scipy_within_chance():
    bootstrap = pytest.importorskip("scipy.stats", reason="scipy is the one to agree with").bootstrap
    values = [(i * 37 % 101) / 100 for i in range(25)]
    for statistic in (mean_of_rows, interquartile_mean):
        expected = bootstrap(
            (values,), lambda rows, axis, s=statistic: s(rows), method="percentile", n_resamples=20_000, rng=1
        ).confidence_interval
        found = stratified_bootstrap_interval([values], "one", statistic=statistic, resamples=20_000)
        # A percentile of 20,000 draws is known to about 2 % of the standard error, which is 0.06.
        assert found == pytest.approx((expected.low, expected.high), abs=0.008)


def test_a_stratified_bootstrap_agrees_with_all_ways_to_draw_written_out():
    """Two strata of two values: sixteen equally likely draws; the quartiles of their means."""
    strata = [[0.0, 1.0], [2.0, 6.0]]
    means = sorted((a + b + c + d) / 4 for a in strata[0] for b in strata[0] for c in strata[1] for d in strata[1])
    assert means[4] < means[11]
    low, high = stratified_bootstrap_interval(strata, "all", statistic=mean_of_rows, level=0.6, resamples=40_000)
    expected = np.quantile(np.repeat(means, 2500), [0.2, 0.8])
    assert (low, high) == pytest.approx(tuple(expected), abs=1e-12)


def test_a_stratified_bootstrap_draws_within_strata_and_never_between():
    """Every task gives every seed the same: no draw of seeds changes anything, though the tasks differ widely."""
    assert stratified_bootstrap_interval([[0.0] * 5, [1.0] * 5], "tasks", statistic=mean_of_rows) == (0.5, 0.5)
    low, high = stratified_bootstrap_interval([[0.0] * 5 + [1.0] * 5], "one task", statistic=mean_of_rows)
    assert low < 0.3
    assert high > 0.7
    assert stratified_bootstrap_interval([[0.25]], "one seed") == (0.25, 0.25)


def test_a_stratified_bootstrap_is_a_function_of_its_key_and_of_the_values():
    strata = [[0.1, 0.4, 0.9], [0.2, 0.3, 0.35, 0.6]]
    first = stratified_bootstrap_interval(strata, "study", 1, statistic=mean_of_rows)
    assert first == stratified_bootstrap_interval(strata, "study", 1, statistic=mean_of_rows)
    assert first != stratified_bootstrap_interval(strata, "study", 2, statistic=mean_of_rows)
    assert stratified_bootstrap_interval(strata, "study", statistic=median_of_rows, level=0.5)[0] >= 0.2


@pytest.mark.parametrize("strata", [[], [[0.5], []], [[float("nan")]]])
def test_a_stratum_of_nothing_is_refused(strata):
    with pytest.raises(UserError, match=r"must contain one|needs one|finite"):
        stratified_bootstrap_interval(strata)


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
    band = seed_band([([0, 1, 2], [0.0, 0.5, 1.0]), ([2, 1], [0.6, 0.1]), ([1, 2, 9], [0.3, 0.8, 1.0])])
    assert band.steps.tolist() == [1.0, 2.0]
    assert band.median.tolist() == [0.3, 0.8]
    assert band.low.tolist() == [0.1, 0.6]
    assert band.high.tolist() == [0.5, 1.0]
    assert band.count == 3


def test_seeds_without_a_common_step_give_an_empty_band():
    assert seed_band([([1], [0.5]), ([2], [0.5])]).steps.size == 0


@pytest.mark.parametrize(
    "summary", [summarize_seeds, lambda v: success_rate(v, 0.9), bootstrap_interval, seed_band, interquartile_mean]
)
def test_nothing_has_no_statistics(summary):
    with pytest.raises(UserError, match=r"(needs|must contain) one"):
        summary([])


@pytest.mark.parametrize("interval", [wilson_interval, clopper_pearson_interval])
def test_an_endless_count_is_refused_at_once(interval):
    with pytest.raises(UserError, match=r"^count: must be finite, not inf"):
        interval(1, float("inf"))


@pytest.mark.parametrize("count", [(1.5, 2), (1, 2.5), (1, float("inf")), (float("nan"), 2)])
def test_a_difference_of_what_was_not_counted_is_refused(count):
    with pytest.raises(UserError, match="must be integers"):
        newcombe_interval(count, (1, 2))
    with pytest.raises(UserError, match="must be integers"):
        newcombe_interval((1, 2), count)


def test_a_seed_without_a_number_neither_succeeds_nor_fails():
    with pytest.raises(UserError, match="each must be a finite number"):
        success_rate([1.0, float("nan")], 0.9)
    with pytest.raises(UserError, match=r"^threshold: must be a finite number .*, not nan"):
        success_rate([1.0], float("nan"))
