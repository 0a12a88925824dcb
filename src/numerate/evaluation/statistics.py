"""All statistics, and when to use which.

Two kinds of uncertainty are kept apart. *Questions*: another draw of questions would give the same model another score.
*Seeds*: another seed would give another model. All proportions are fractions from 0 to 1, all intervals of 95 %.

| Question | data | function |
|---|---|---|
| how well a model was measured | one cell | `wilson_interval`; with guaranteed coverage Clopper and Pearson's (below) |
| the same | a region of cells | `region_mean` |
| how far two models are apart | one seed each | `paired_difference` on the same questions |
| how often training succeeds | seeds | `success_rate`; `fisher_exact` tests two of them |
| what a typical seed gives | seeds | `interquartile_mean`, or the median |
| how uncertain that is | five seeds or more | `stratified_bootstrap_interval`, also over several tasks |
| whether two recipes differ | the same seeds | `paired_permutation_test`; over unlike tasks `scipy.stats.wilcoxon` |
| the same | different seeds | `permutation_test`, and `probability_of_improvement` for how often |
| any of several differences | several tests | `holm` of their p-values |
| whether seeds are enough | before training | `min_p_value` |
| combined curves | seeds | `seed_band` |

A p-value says nothing about the size of the difference, so report an interval as well. With few seeds no p-value can be
small: see `min_p_value`. All tests are two-sided.

scipy.stats computes the tests, and is imported when one is made, since that takes a second. It also has Clopper and
Pearson's interval, `scipy.stats.binomtest(correct, count).proportion_ci()`. It lacks Wilson's interval of arrays and of
fractional counts, the interquartile mean, and Holm's correction.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerate.errors import UserError

FloatArray = NDArray[np.float64]

LEVEL = 0.95
"""The confidence level of all intervals."""

Z = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)
"""The normal quantile of the level: 1.96."""

MAX_PERMUTATIONS = 200_000
"""Permutation tests enumerate up to this many assignments; beyond it they sample as many."""

MAX_RESAMPLED_VALUES = 20_000_000
"""The bootstrap of many questions resamples less often, to hold at most this many at a time."""

_TIE_TOLERANCE = 1e-12  # differences of means within this fraction of the largest value are equal: they are rounded


@dataclass(frozen=True)
class Proportion:
    """A proportion with its interval: `value` between `low` and `high`, from `count` observations."""

    value: float
    low: float
    high: float
    count: int


def wilson_interval(correct: ArrayLike, count: ArrayLike) -> tuple[Any, Any]:
    """Score interval of a proportion, Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953, equation (3).

    It has a positive width at the ends: 100 correct of 100 gives (0.963, 1.0); a count of 0 gives (0, 1). Counts may be
    fractional. Numbers in, numbers out; arrays in, arrays out.

    >>> tuple(round(bound, 3) for bound in wilson_interval(99, 100))
    (0.946, 0.998)

    Raises `UserError` for counts that cannot be (more correct than counted).
    """
    k, n = _check_counts(correct, count)
    trials = np.maximum(n, 1.0)
    share = k / trials
    scale = 1.0 + Z**2 / trials
    centre = (share + Z**2 / (2.0 * trials)) / scale
    half = Z * np.sqrt(share * (1.0 - share) / trials + Z**2 / (4.0 * trials**2)) / scale
    # At the ends the bound is 0 or 1 exactly; rounding would leave 1e-17.
    low = np.where((n == 0) | (k == 0), 0.0, np.maximum(centre - half, 0.0))
    high = np.where((n == 0) | (k == n), 1.0, np.minimum(centre + half, 1.0))
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def region_mean(cells: Sequence[tuple[int, int]], num_repeats: int = 1) -> Proportion:
    """The mean accuracy over cells with equal weights, with an interval for the sampling of questions.

    `cells` are (correct, count) pairs. The interval is Wilson's for the effective count with the same uncertainty of
    the mean, (number of cells)^2 / sum(1 / count): with equal counts the pooled one. If each question was repeated
    (`num_repeats`, e.g. for position offsets), the interval is as wide as for one repetition.

    >>> region_mean([(100, 100), (50, 100)]).value
    0.75

    Raises `UserError` without cells, or for a cell with count 0.
    """
    _check_counts([correct for correct, _ in cells], [count for _, count in cells], least=1)
    # Exact, as sums of rounded shares fall just below 0.99; equal counts are added as whole numbers, which is quicker.
    by_count: Counter[int] = Counter()
    for correct, count in cells:
        by_count[int(count)] += int(correct)
    value = float(sum(Fraction(correct, count) for count, correct in by_count.items()) / len(cells))
    effective_count = np.float64(len(cells) ** 2 / sum(1.0 / count for _, count in cells) / num_repeats)
    low, high = wilson_interval((value * effective_count).clip(0, effective_count), effective_count)
    return Proportion(value, float(low), float(high), sum(count for _, count in cells))


def success_rate(values: Sequence[float], threshold: float) -> Proportion:
    """The fraction of seeds that reach a threshold, with Wilson's interval for the sampling of seeds.

    >>> rate = success_rate([1.0, 0.995, 0.2], threshold=0.99)
    >>> round(rate.value, 3), round(rate.low, 3), round(rate.high, 3)
    (0.667, 0.208, 0.939)

    Raises `UserError` without values, and for values or a threshold that are no finite numbers.
    """
    sample, least = _check_values(values, "success_rate"), _check_values([threshold], "the threshold")
    successes = int(np.sum(sample >= least))
    return Proportion(successes / len(sample), *wilson_interval(successes, len(sample)), len(sample))


def interquartile_mean(values: ArrayLike) -> Any:
    """The mean of the middle half; values at the boundary count partially. Agarwal et al. (2021), section 4,
    https://arxiv.org/abs/2108.13264, recommend it over the mean and the median for few runs.

    Over the last axis: a number for one dimension, otherwise an array with the mean of each row.

    >>> interquartile_mean([0.0, 0.4, 0.6, 1.0])
    0.5

    Raises `UserError` without values, and unless all are finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    _check_values(sample.ravel(), "the interquartile mean")
    edges = np.arange(sample.shape[-1] + 1) / sample.shape[-1]
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    found = np.sum(inside * np.sort(sample, axis=-1), axis=-1) / 0.5
    return float(found) if sample.ndim == 1 else found


def stratified_bootstrap_interval(
    strata: Sequence[Sequence[float]],
    *key: object,
    statistic: Callable[[FloatArray], FloatArray] = interquartile_mean,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap of a statistic over all values of one or more strata, resampling within each stratum.

    Efron (1979), https://doi.org/10.1214/aos/1176344552; Agarwal et al. (2021), section 4,
    https://arxiv.org/abs/2108.13264. A stratum is a task or a variant; its values are those of its seeds. `statistic`
    takes an array [resamples, all values] and gives one number for each row. A pure function of the values and `key`.

    Cells of a grid must not be strata: the same model answers them, and the interval would be too narrow, as it is with
    few strata of fewer than about five seeds.

    >>> strata = [[0.1, 0.3], [0.9, 0.9]]
    >>> low, high = stratified_bootstrap_interval(strata, "key", statistic=lambda rows: rows.mean(axis=-1))
    >>> round(low, 3), round(high, 3)
    (0.5, 0.6)

    Raises `UserError` without strata, and for a stratum without values.
    """
    from numerate.tasks import counter_rng

    samples = [_check_values(values, "the bootstrap") for values in (strata or [[]])]
    rng = counter_rng.CounterRNG(counter_rng.random_key("stratified bootstrap", *key))
    resampled = [sample[rng.integers(len(sample), (resamples, len(sample)), np.int64)] for sample in samples]
    statistics = statistic(np.concatenate(resampled, axis=1))
    low, high = np.quantile(statistics, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    return float(low), float(high)


def seed_band(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], FloatArray, FloatArray, FloatArray]:
    """The steps that the curves (steps, values) of several seeds have in common, with the median, minimum and maximum
    at each.

    >>> steps, median, low, high = seed_band([([1, 2], [0.2, 0.8]), ([1, 2, 3], [0.4, 0.6, 0.9])])
    >>> steps, [round(float(value), 2) for value in median]
    ([1, 2], [0.3, 0.7])

    Raises `UserError` without curves.
    """
    _check_values([len(values) for _, values in curves], "the band")
    curve_values = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    steps = sorted(set.intersection(*map(set, curve_values)))
    table = np.array([[curve[step] for step in steps] for curve in curve_values], dtype=np.float64)
    return steps, np.median(table, axis=0), table.min(axis=0), table.max(axis=0)


def fisher_exact(first: tuple[int, int], second: tuple[int, int]) -> float:
    """The p-value of Fisher's exact test for two success rates, each given as (successes, trials).

    Fisher (1935), "The logic of inductive inference", https://doi.org/10.2307/2342435.

    >>> round(fisher_exact((3, 3), (0, 3)), 3)
    0.1

    Raises `UserError` for counts that cannot be.
    """
    from scipy import stats

    _check_counts([first[0], second[0]], [first[1], second[1]])
    table = [[successes, trials - successes] for successes, trials in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


def paired_permutation_test(first: Sequence[float], second: Sequence[float], *key: object) -> float:
    """The p-value of the sign-flip permutation test: whether the means of paired values differ, such as the scores of
    two recipes with the same seeds.

    It is the fraction of all assignments of signs to the differences whose mean is at least as far from 0: Fisher
    (1935), "The design of experiments", section 21. Exact up to 17 pairs (`MAX_PERMUTATIONS`); beyond, sign assignments
    are sampled as a pure function of the values and `key`, including the observed one (Phipson and Smyth, 2010,
    https://arxiv.org/abs/1603.05766).

    >>> paired_permutation_test([0.9, 0.8, 0.7, 0.9, 0.8], [0.1, 0.3, 0.2, 0.1, 0.2])
    0.0625

    Raises `UserError` without pairs, for two lists of different lengths, and for values that are no numbers.
    """
    one, two = _check_pairs(first, second, "paired_permutation_test")
    return _permutation_p_value([one - two], "samples", *key)


class PairedDifference(NamedTuple):
    """The mean of first - second over pairs; in how many the first is higher and lower, and the sign test on these."""

    value: float
    low: float
    high: float
    num_higher: int
    num_lower: int
    p_value: float


def paired_difference(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """The difference of two models over the same questions, each with one score per question.

    The interval of right and wrong answers (1 and 0) is the adjusted one of Agresti and Min (2005),
    https://doi.org/10.1002/sim.1781; of other scores it is a percentile bootstrap over questions. The test is the sign
    test on the questions with different scores: of right and wrong answers the exact form of McNemar's (1947),
    https://doi.org/10.1007/BF02295996. The models are given: another training may differ by more.

    >>> found = paired_difference([1, 1, 1, 0, 1, 0], [0, 0, 1, 1, 0, 0])
    >>> round(found.value, 3), found.num_higher, found.num_lower, found.p_value
    (0.333, 3, 1, 0.625)

    Raises `UserError` without pairs, for two lists of different lengths, and for values that are no numbers.
    """
    from scipy import stats

    one, two = _check_pairs(first, second, "paired_difference")
    differences, count = one - two, len(one)
    num_higher, num_lower = int((differences > 0).sum()), int((differences < 0).sum())
    if np.isin(differences, (-1, 0, 1)).all():
        center = (num_higher - num_lower) / (count + 2)
        variance = ((num_higher + num_lower + 1) / (count + 2) - center**2) / (count + 2)
        half = Z * variance**0.5
        low, high = max(-1.0, center - half), min(1.0, center + half)
    else:
        low, high = stratified_bootstrap_interval(
            [differences.tolist()],
            "paired difference",
            statistic=lambda rows: rows.mean(axis=-1),
            resamples=max(200, min(2000, MAX_RESAMPLED_VALUES // count)),
        )
    p_value = float(stats.binomtest(num_higher, num_higher + num_lower).pvalue) if num_higher + num_lower else 1.0
    return PairedDifference(float(differences.mean()), low, high, num_higher, num_lower, p_value)


def permutation_test(first: Sequence[float], second: Sequence[float], *key: object) -> float:
    """The p-value of the permutation test: whether the means of two independent samples differ, such as the scores of
    two recipes with different seeds.

    It is the fraction of all splits into groups of these sizes whose means are at least as far apart: Pitman (1937),
    https://doi.org/10.2307/2984124. Exact up to `MAX_PERMUTATIONS` splits; beyond, splits are sampled.

    >>> round(permutation_test([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]), 3)
    0.1

    Raises `UserError` for a sample without values, and for values that are no numbers.
    """
    samples = [_check_values(values, "permutation_test") for values in (first, second)]
    return _permutation_p_value(samples, "independent", *key)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values of several tests, in the given order, for any dependence between them. Holm (1979),
    https://www.jstor.org/stable/4615733.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Raises `UserError` for a p-value outside 0 to 1.
    """
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise UserError(f"holm: p-values must be between 0 and 1, not {list(p_values)}")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        adjusted[i] = highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
    return adjusted


def min_p_value(first: int, second: int, *, paired: bool = False) -> float:
    """The smallest possible p-value of a permutation test or Fisher's test with these sample sizes.

    >>> min_p_value(3, 3), round(min_p_value(5, 5), 4), min_p_value(5, 5, paired=True)
    (0.1, 0.0079, 0.0625)

    Raises `UserError` for empty samples, and for paired samples of different sizes.
    """
    if min(first, second) < 1 or (paired and first != second):
        raise UserError(f"min_p_value: sizes must be at least 1, and equal for pairs, not {first} and {second}")
    if paired:
        return float(min(1.0, 2.0 * 0.5**first))
    # Samples of equal size can be exchanged without changing the size of the difference.
    return min(1.0, (2 if first == second else 1) / comb(first + second, first))


def probability_of_improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability that a seed of the first is better than a seed of the second; ties count half.

    Agarwal et al. (2021), section 4, https://arxiv.org/abs/2108.13264; the U of Mann and Whitney (1947),
    https://doi.org/10.1214/aoms/1177730491, divided by the number of pairs. 0.5 means no difference.

    >>> probability_of_improvement([0.9, 0.8], [0.1, 0.8])
    0.875

    Raises `UserError` for a sample without values, and for values that are no numbers.
    """
    one, two = (_check_values(values, "probability_of_improvement") for values in (first, second))
    return float(np.mean((one[:, None] > two) + 0.5 * (one[:, None] == two)))


def _check_pairs(first: ArrayLike, second: ArrayLike, caller: str) -> tuple[FloatArray, FloatArray]:
    one, two = _check_values(first, caller), _check_values(second, caller)
    if len(one) != len(two):
        raise UserError(f"{caller}: must be given pairs, not {len(one)} and {len(two)} values")
    return one, two


def _permutation_p_value(samples: Sequence[FloatArray], permutation_type: str, *key: object) -> float:
    """The share of permutations whose mean, or difference of two means, is at least as far from 0. Ties are counted
    here: scipy's own tolerance is relative to the statistic, which rounding exceeds if values differ little."""
    from scipy import stats

    from numerate.tasks.counter_rng import random_key

    pooled = np.concatenate(samples)
    tolerance = _TIE_TOLERANCE * np.abs(pooled).max()
    if len(samples) == 2:  # so that a group's mean alone is as extreme as the difference of both
        samples = [sample - pooled.mean() for sample in samples]
    values = np.abs(np.concatenate(samples))
    if (smaller := min(samples, key=len)).size == 1:  # which scipy refuses
        return float(np.mean(values >= np.abs(smaller) - tolerance))

    def distance(*means_of: FloatArray, axis: int) -> FloatArray:
        means = [sample.mean(axis=axis) for sample in means_of]
        return np.asarray(np.abs(means[0] - means[1] if len(means) == 2 else means[0]))

    found = stats.permutation_test(
        samples,
        distance,
        permutation_type=permutation_type,
        n_resamples=MAX_PERMUTATIONS,
        batch=4096,
        rng=np.random.default_rng(random_key("permutation", *key)),
    )
    num_extreme = int(np.sum(found.null_distribution >= found.statistic - tolerance))
    num_permutations = 2 ** len(values) if len(samples) == 1 else comb(len(values), len(samples[0]))
    is_sampled = num_permutations > MAX_PERMUTATIONS
    return (num_extreme + is_sampled) / (len(found.null_distribution) + is_sampled)


def _check_values(values: ArrayLike, caller: str) -> FloatArray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.all(np.isfinite(sample)):
        raise UserError(f"{caller}: needs one value per seed, each a finite number, not {sample.tolist()}")
    return sample


def _check_counts(correct: ArrayLike, count: ArrayLike, *, least: int = 0) -> tuple[FloatArray, FloatArray]:
    k, n = np.asarray(correct, dtype=np.float64), np.asarray(count, dtype=np.float64)
    if not n.size or not np.all((k >= 0) & (k <= n) & np.isfinite(n) & (n >= least)):
        what = f"between 0 and the count, which must be finite and at least {least}"
        raise UserError(f"correct: must be {what}, not {k} of {n}")
    return k, n
