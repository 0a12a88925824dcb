"""Significance tests for the difference of two measurements. All are two-sided.

A p-value is the probability of a difference at least this large under the null hypothesis. It says nothing about the
size of the difference, so report an interval as well. With few seeds no p-value can be small: see `min_p_value`.
scipy.stats, which computes them, takes a second to import and is imported when a test is made.
"""

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from numerate.errors import UserError
from numerate.evaluation.intervals import FloatArray, check_counts, check_values

MAX_PERMUTATIONS = 200_000
"""Permutation tests enumerate up to this many assignments; beyond it they sample as many."""


def fisher_exact(first: tuple[int, int], second: tuple[int, int]) -> float:
    """The p-value of Fisher's exact test for two success rates, each given as (successes, trials).

    For independent trials, such as the numbers of seeds of two recipes that solve a task. Fisher (1935), "The logic of
    inductive inference", https://doi.org/10.2307/2342435. With three seeds each, 3 of 3 against 0 of 3 is still p =
    0.1: few seeds cannot show much.

    >>> round(fisher_exact((3, 3), (0, 3)), 3)
    0.1

    Raises `UserError` for counts that cannot be.
    """
    from scipy import stats

    check_counts([first[0], second[0]], [first[1], second[1]], whole=True)
    table = [[successes, trials - successes] for successes, trials in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


def mcnemar_test(first: ArrayLike, second: ArrayLike) -> float:
    """The p-value of the exact form of McNemar's test: whether two models answer the same questions equally well. It is
    the sign test on the questions that only one of them answers correctly.

    McNemar (1947), https://doi.org/10.1007/BF02295996; Dietterich (1998), https://doi.org/10.1162/089976698300017197,
    recommends it for two models that were each trained once. `first` and `second` say for each question whether the
    answer was correct, in the same order; without questions it is 1. Two models, not two recipes: another seed may
    reverse the result.

    >>> round(mcnemar_test([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]), 5)
    0.03125

    Raises `UserError` for values other than 0 and 1, and for lists of different lengths.
    """
    from scipy import stats

    if np.size(first) == np.size(second) == 0:
        return 1.0
    one, two = _check_pairs(first, second, "mcnemar_test")
    check_counts([one, two], np.ones((2, len(one))), whole=True)
    wins, losses = int(np.sum(one > two)), int(np.sum(one < two))
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def paired_permutation_test(first: Sequence[float], second: Sequence[float], *key: object) -> float:
    """The p-value of the sign-flip permutation test: whether the means of paired values differ, such as the scores of
    two recipes with the same seeds.

    If both values of a pair come from the same distribution, their difference has either sign with equal probability:
    the p-value is the fraction of all sign assignments whose mean difference is at least as far from 0. Fisher (1935),
    "The design of experiments", section 21; Dror et al. (2018), https://aclanthology.org/P18-1128, recommend it. Exact
    up to 17 pairs (`MAX_PERMUTATIONS`); beyond, sign assignments are sampled as a pure function of the values and
    `key`, including the observed one (Phipson and Smyth, 2010, https://arxiv.org/abs/1603.05766). Five pairs cannot go
    below 2 / 2**5 = 0.06.

    >>> paired_permutation_test([0.9, 0.8, 0.7, 0.9, 0.8], [0.1, 0.3, 0.2, 0.1, 0.2])
    0.0625

    Raises `UserError` without pairs, for two lists of different lengths, and for values that are no numbers.
    """
    one, two = _check_pairs(first, second, "paired_permutation_test")
    return _permutation_p_value([one - two], "samples", *key)


def permutation_test(first: Sequence[float], second: Sequence[float], *key: object) -> float:
    """The p-value of the permutation test: whether the means of two independent samples differ, such as the scores of
    two recipes with different seeds.

    It is the fraction of all splits of the values into groups of these sizes whose means are at least as far apart.
    Pitman (1937), https://doi.org/10.2307/2984124. Exact up to `MAX_PERMUTATIONS` splits; beyond, splits are sampled as
    a pure function of the values and `key`. Five against five can reach 2 / 252 = 0.008. A sample of one value shows
    nothing: p is 1.

    >>> round(permutation_test([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]), 3)
    0.1

    Raises `UserError` for a sample without values, and for values that are no numbers.
    """
    return _permutation_p_value([check_values(one, "permutation_test") for one in (first, second)], "independent", *key)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values of several tests, in the given order: the probability that any of the differences with an
    adjusted p-value below 0.05 is a false positive is at most 0.05, for any dependence between the tests.

    Holm (1979), https://www.jstor.org/stable/4615733: the smallest is multiplied by the number of tests, the next by
    one less and so on, none falls below one before it, and none exceeds 1.

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
    check_counts([first, second], [second if paired else first, first if paired else second], least=1)
    if paired:
        return float(min(1.0, 2.0 * 0.5**first))
    # Samples of equal size can be exchanged without changing the size of the difference.
    return min(1.0, (2 if first == second else 1) / comb(first + second, first))


def probability_of_improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability that a seed of the first is better than a seed of the second; ties count half.

    Agarwal et al. (2021), section 4, https://arxiv.org/abs/2108.13264; the U of Mann and Whitney (1947),
    https://doi.org/10.1214/aoms/1177730491, divided by the number of pairs. 0.5 means no difference. For several tasks,
    average over the tasks.

    >>> probability_of_improvement([0.9, 0.8], [0.1, 0.8])
    0.875

    Raises `UserError` for a sample without values, and for values that are no numbers.
    """
    one, two = (check_values(values, "probability_of_improvement") for values in (first, second))
    return float(np.mean((one[:, None] > two) + 0.5 * (one[:, None] == two)))


def _check_pairs(first: ArrayLike, second: ArrayLike, caller: str) -> tuple[FloatArray, FloatArray]:
    one, two = check_values(first, caller), check_values(second, caller)
    if len(one) != len(two):
        raise UserError(f"{caller}: must be given pairs, not {len(one)} and {len(two)} values")
    return one, two


def _permutation_p_value(samples: Sequence[FloatArray], permutation_type: str, *key: object) -> float:
    """The share of permutations whose mean, or difference of two means, is at least as far from 0."""
    from scipy import stats

    from numerate.tasks.counter_rng import random_key

    if min(map(len, samples)) < 2:
        return 1.0
    largest = max(float(np.abs(sample).max()) for sample in samples) or 1.0

    def distance(*means_of: FloatArray, axis: int) -> FloatArray:
        means = [sample.mean(axis=axis) for sample in means_of]
        return np.asarray(np.abs(means[0] - means[1] if len(means) == 2 else means[0]))

    found = stats.permutation_test(
        [sample / largest for sample in samples],  # ties are differences below 1e-14, so values must be at most 1
        distance,
        permutation_type=permutation_type,
        alternative="greater",
        n_resamples=MAX_PERMUTATIONS,
        batch=4096,
        rng=np.random.default_rng(random_key("permutation", *key)),
    )
    return float(found.pvalue)
