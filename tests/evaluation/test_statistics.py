"""Statistics against values worked out elsewhere: published tables, scipy, binomial sums, by hand."""

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.evaluation import statistics
from numerate.evaluation.statistics import (
    interquartile_mean,
    region_mean,
    seed_band,
    stratified_bootstrap_interval,
    success_rate,
    wilson_interval,
)


def test_every_function_has_an_example_and_is_in_the_table_of_what_to_take():
    functions = [one for one in vars(statistics).values() if getattr(one, "__module__", "") == statistics.__name__]
    public = [one for one in functions if not isinstance(one, type) and not one.__name__.startswith("_")]
    assert len(public) > 10
    for one in public:
        assert ">>>" in one.__doc__, one
        assert "Raises `UserError`" in one.__doc__, one
        assert f"`{one.__name__}`" in statistics.__doc__, one


# Proportions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    [
        (99, 100, 0.9455, 0.9982),
        (100, 100, 0.9630, 1.0),
        (990, 1000, 0.9817, 0.9946),
        (0, 100, 0.0, 0.0370),
        (81, 263, 0.2553, 0.3662),  # Newcombe (1998), table I: method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_agrees_with_published_intervals(correct, count, low, high):
    assert wilson_interval(correct, count) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_wilson_of_arrays_is_wilson_of_each_within_the_unit_interval():
    low, high = wilson_interval(np.array([0, 50, 100]), np.array([100, 100, 100]))
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [wilson_interval(k, 100) for k in (0, 50, 100)]
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert (wilson_interval(0, 3)[0], wilson_interval(3, 3)[1]) == (0.0, 1.0)


@pytest.mark.parametrize(("correct", "count"), [(5, 4), (-1, 4), (float("nan"), 4), (1, float("inf"))])
def test_counts_that_cannot_be_have_no_interval(correct, count):
    with pytest.raises(UserError, match="between 0 and the count"):
        wilson_interval(correct, count)


def test_the_mean_of_a_region_with_equal_counts_has_the_pooled_interval():
    mean = region_mean([(98, 100), (50, 100), (100, 100)])
    assert mean.value == pytest.approx(248 / 300)
    assert (mean.low, mean.high) == pytest.approx(wilson_interval(248, 300))
    assert mean.count == 300


def test_every_cell_of_a_region_weighs_the_same_whatever_its_count():
    mean, few = region_mean([(10, 10), (0, 1000)]), 2**2 / (1 / 10 + 1 / 1000)
    assert mean.value == 0.5
    assert (mean.low, mean.high) == pytest.approx(wilson_interval(few / 2, few))
    whole = region_mean([(7, 7), (9, 9), (11, 11)])
    assert (whole.value, whole.high) == (1.0, 1.0)
    assert whole.low < 1.0
    for cells in ([], [(0, 0)]):
        with pytest.raises(UserError, match="at least 1"):
            region_mean(cells)


# Seeds --------------------------------------------------------------------------------------------------------------


def test_the_success_rate_counts_the_seeds_that_reach_the_threshold_exactly():
    rate = success_rate([0.99, 0.9899, 1.0, 0.0], threshold=0.99)
    assert (rate.value, rate.count) == (0.5, 4)
    assert (rate.low, rate.high) == wilson_interval(2, 4)


def test_the_interquartile_mean_weighs_values_on_the_border_in_part():
    from scipy import stats

    # Of five values a quarter is 1.25 values: (0.75 * 1 + 2 + 0.75 * 3) / 2.5.
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 0.0]) == pytest.approx(2.0)
    assert interquartile_mean([0.0, 1.0, 2.0, 3.0, 8.0, 9.0]) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 8) / 3)
    rows = np.array([[100.0, 1.0, 2.0, 3.0, 0.0], [5.0, 5.0, 5.0, 5.0, 6.0]])
    assert interquartile_mean(rows).tolist() == [interquartile_mean(row.tolist()) for row in rows]
    values = [((7 * i) % 40) ** 2 / 1600 for i in range(40)]
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-12)


def mean_of_rows(rows):
    return rows.mean(axis=-1)


def test_a_bootstrap_of_one_stratum_is_the_one_of_scipy_within_chance():
    from scipy import stats

    values = [(i * 37 % 101) / 100 for i in range(25)]
    for statistic in (mean_of_rows, interquartile_mean):
        expected = stats.bootstrap(
            (values,), lambda rows, axis, s=statistic: s(rows), method="percentile", n_resamples=20_000, rng=1
        ).confidence_interval
        found = stratified_bootstrap_interval([values], "one", statistic=statistic, resamples=20_000)
        # A percentile of 20,000 draws is known to about 2 % of the standard error, which is 0.06.
        assert found == pytest.approx((expected.low, expected.high), abs=0.008)


def test_a_stratified_bootstrap_draws_within_strata_and_never_between():
    """Every task gives every seed the same: no draw of seeds changes anything, though the tasks differ widely."""
    assert stratified_bootstrap_interval([[0.0] * 5, [1.0] * 5], "tasks", statistic=mean_of_rows) == (0.5, 0.5)
    low, high = stratified_bootstrap_interval([[0.0] * 5 + [1.0] * 5], "one task", statistic=mean_of_rows)
    assert low < 0.3 < 0.7 < high
    assert stratified_bootstrap_interval([[0.25]], "one seed") == (0.25, 0.25)


def test_a_stratified_bootstrap_is_a_function_of_its_key_and_of_the_values():
    strata = [[0.1, 0.4, 0.9], [0.2, 0.3, 0.35, 0.6]]
    first = stratified_bootstrap_interval(strata, "study", 1, statistic=mean_of_rows)
    assert first == stratified_bootstrap_interval(strata, "study", 1, statistic=mean_of_rows)
    assert first != stratified_bootstrap_interval(strata, "study", 2, statistic=mean_of_rows)


def test_a_band_runs_over_the_steps_that_all_seeds_have():
    band = seed_band([([0, 1, 2], [0.0, 0.5, 1.0]), ([2, 1], [0.6, 0.1]), ([1, 2, 9], [0.3, 0.8, 1.0])])
    assert [*map(list, band)] == [[1, 2], [0.3, 0.8], [0.1, 0.6], [0.5, 1.0]]
    assert seed_band([([1], [0.5]), ([2], [0.5])])[0] == []


def test_nothing_and_what_is_no_number_have_no_statistics():
    for summary in (seed_band, interquartile_mean, stratified_bootstrap_interval, lambda v: success_rate(v, 0.9)):
        with pytest.raises(UserError, match="needs one value per seed"):
            summary([])
    for values in ([0.5], []), [[float("nan")]]:
        with pytest.raises(UserError, match="each a finite number"):
            stratified_bootstrap_interval(values)
    for values, threshold in (([1.0, float("nan")], 0.9), ([1.0], float("nan"))):
        with pytest.raises(UserError, match="each a finite number"):
            success_rate(values, threshold)
