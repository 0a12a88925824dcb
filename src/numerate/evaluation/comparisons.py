"""Significance tests for the difference of two measurements. All are two-sided.

A p-value is the probability of a difference at least this large under the null hypothesis. It says nothing about the
size of the difference, so report an interval as well. With few seeds no p-value can be small: see `min_p_value`.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import comb, erfc, sqrt

import numpy as np
from numpy.typing import ArrayLike

from numerate.errors import UserError
from numerate.evaluation.intervals import FloatArray, binomial_tail
from numerate.evaluation.resampling import check_values

MAX_EXACT_PAIRS = 20
"""Up to this many pairs, `paired_permutation_test` enumerates all 2 ** pairs signs; beyond it samples them."""

MAX_EXACT_SPLITS = 200_000
"""Up to this many splits of the values into two groups, `permutation_test` enumerates all; beyond it samples them."""

MAX_EXACT_RANKS = 500
"""Up to this many pairs, `wilcoxon_signed_rank` is exact; beyond it uses the normal approximation."""

TIE_TOLERANCE = 1e-12
"""Relative tolerance within which two differences are equal, since sums depend on the order of their terms."""


def fisher_exact(first: tuple[int, int], second: tuple[int, int]) -> float:
    """The p-value of Fisher's exact test for two success rates, each given as (successes, trials).

    For independent trials, such as the numbers of seeds of two recipes that solve a task. Fisher (1935), "The logic of
    inductive inference", https://doi.org/10.2307/2342435: the total probability of all tables with the same margins
    that are no more likely than the observed one, in integer arithmetic, so that ties are exact. With three seeds each,
    3 of 3 against 0 of 3 is still p = 0.1: few seeds cannot show much.

    >>> round(fisher_exact((3, 3), (0, 3)), 3)
    0.1

    Raises `UserError` for counts that cannot be.
    """
    for successes, tries in (first, second):
        if not 0 <= successes <= tries:
            raise UserError(
                f"fisher_exact: successes must be between 0 and the number of trials, not {successes} of {tries}"
            )
    tries, second_tries, successes = first[1], second[1], first[0] + second[0]
    min_hits, max_hits = max(0, successes - second_tries), min(tries, successes)
    table_counts = [comb(tries, min_hits) * comb(second_tries, successes - min_hits)]
    for hits in range(min_hits, max_hits):
        table_counts.append(
            table_counts[-1]
            * (tries - hits)
            * (successes - hits)
            // ((hits + 1) * (second_tries - successes + hits + 1))
        )
    observed = table_counts[first[0] - min_hits]
    return float(Fraction(sum(way for way in table_counts if way <= observed), comb(tries + second_tries, successes)))


def sign_test(wins: int, losses: int) -> float:
    """The p-value of the exact sign test: whether the first of a pair wins more often than the second. Ties are
    excluded. Arbuthnot (1710), https://doi.org/10.1098/rstl.1710.0011; Conover (1999), "Practical nonparametric
    statistics", section 3.4.

    >>> sign_test(5, 0), sign_test(3, 3)
    (0.0625, 1.0)

    Raises `UserError` for counts below 0.
    """
    if wins < 0 or losses < 0:
        raise UserError(f"sign_test: wins and losses must be at least 0, not {wins} and {losses}")
    return min(1.0, 2.0 * binomial_tail(max(wins, losses), wins + losses, 0.5)) if wins + losses else 1.0


def mcnemar_test(first: ArrayLike, second: ArrayLike) -> float:
    """The p-value of the exact form of McNemar's test: whether two models answer the same questions equally well. It is
    the sign test on the questions that only one of them answers correctly.

    McNemar (1947), https://doi.org/10.1007/BF02295996; Dietterich (1998), https://doi.org/10.1162/089976698300017197,
    recommends it for two models that were each trained once. `first` and `second` say for each question whether the
    answer was correct, in the same order. Two models, not two recipes: another seed may reverse the result.

    >>> round(mcnemar_test([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]), 5)
    0.03125

    Raises `UserError` for values other than 0 and 1, and for lists of different lengths.
    """
    first_correct, second_correct = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if first_correct.shape != second_correct.shape or first_correct.ndim != 1:
        raise UserError(
            f"mcnemar_test: {first_correct.size} and {second_correct.size} answers; give those to the same "
            "questions, in the same order"
        )
    if not np.all(np.isin(first_correct, (0, 1)) & np.isin(second_correct, (0, 1))):
        raise UserError("mcnemar_test: each answer must be correct (True, 1) or wrong (False, 0)")
    return sign_test(int(np.sum(first_correct > second_correct)), int(np.sum(first_correct < second_correct)))


def paired_permutation_test(
    first: Sequence[float], second: Sequence[float], *key: object, resamples: int = 100_000
) -> float:
    """The p-value of the sign-flip permutation test: whether the means of paired values differ, such as the scores of
    two recipes with the same seeds.

    If both values of a pair come from the same distribution, their difference has either sign with equal probability:
    the p-value is the fraction of all sign assignments whose mean difference is at least as far from 0. Fisher (1935),
    "The design of experiments", section 21; Dror et al. (2018), https://aclanthology.org/P18-1128, recommend it. Exact
    up to `MAX_EXACT_PAIRS` pairs; beyond, `resamples` sign assignments are sampled as a pure function of the values and
    `key`, including the observed one (Phipson and Smyth, 2010, https://arxiv.org/abs/1603.05766). Five pairs cannot go
    below 2 / 2**5 = 0.06.

    >>> paired_permutation_test([0.9, 0.8, 0.7, 0.9, 0.8], [0.1, 0.3, 0.2, 0.1, 0.2])
    0.0625

    Raises `UserError` without pairs, for two lists of different lengths, and for values that are no numbers.
    """
    differences = _paired_differences("paired_permutation_test", first, second)
    observed, tolerance = abs(float(np.sum(differences))), TIE_TOLERANCE * float(np.sum(np.abs(differences)))
    if len(differences) <= MAX_EXACT_PAIRS:
        sums = differences[:1]  # the first sign is fixed: the other half of the sums is symmetric
        for gap in differences[1:]:
            sums = np.concatenate([sums + gap, sums - gap])
        return float(np.mean(np.abs(sums) >= observed - tolerance))
    from numerate.tasks import counter_rng

    rng, hits = counter_rng.CounterRNG(counter_rng.random_key("paired permutation", *key)), 0
    for start in range(0, resamples, 4096):
        signs = 2 * rng.integers(2, (min(4096, resamples - start), len(differences)), np.int64) - 1
        hits += int(np.sum(np.abs(signs @ differences) >= observed - tolerance))
    return (hits + 1) / (resamples + 1)


def permutation_test(first: Sequence[float], second: Sequence[float], *key: object, resamples: int = 100_000) -> float:
    """The p-value of the permutation test: whether the means of two independent samples differ, such as the scores of
    two recipes with different seeds.

    It is the fraction of all splits of the values into groups of these sizes whose means are at least as far apart.
    Pitman (1937), https://doi.org/10.2307/2984124. Exact up to `MAX_EXACT_SPLITS` splits; beyond, `resamples` splits
    are sampled as a pure function of the values and `key`. Five against five can reach 2 / 252 = 0.008.

    >>> round(permutation_test([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]), 3)
    0.1

    Raises `UserError` for a sample without values, and for values that are no numbers.
    """
    from itertools import combinations

    first_values, second_values = check_values(first, "permutation_test"), check_values(second, "permutation_test")
    pooled = np.concatenate([first_values, second_values])
    total, count = float(np.sum(pooled)), len(first_values)
    expected = total * count / len(pooled)
    observed, tolerance = abs(float(np.sum(first_values)) - expected), TIE_TOLERANCE * float(np.sum(np.abs(pooled)))
    if comb(len(pooled), count) <= MAX_EXACT_SPLITS:
        chosen = np.array(list(combinations(range(len(pooled)), count)))
        return float(np.mean(np.abs(pooled[chosen].sum(axis=1) - expected) >= observed - tolerance))
    from numerate.tasks import counter_rng

    rng, hits = counter_rng.CounterRNG(counter_rng.random_key("permutation", *key)), 0
    for start in range(0, resamples, 4096):
        rows = min(4096, resamples - start)
        order = np.argsort(rng.random_words(rows * len(pooled)).reshape(rows, -1), axis=1, kind="stable")
        hits += int(np.sum(np.abs(pooled[order[:, :count]].sum(axis=1) - expected) >= observed - tolerance))
    return (hits + 1) / (resamples + 1)


def wilcoxon_signed_rank(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of Wilcoxon's signed-rank test: whether paired values differ, by the ranks of their differences.

    For pairs whose differences have no common scale, such as two recipes over several tasks (Demšar, 2006,
    https://jmlr.org/papers/v7/demsar06a.html); for seeds of one task `paired_permutation_test` uses more information.
    Wilcoxon (1945), https://doi.org/10.2307/3001968: ties are excluded, equal differences get their mean rank, and the
    p-value is exact for these ranks. For more than `MAX_EXACT_RANKS` differing pairs it is the normal approximation,
    with the variance for tied ranks and a continuity correction: Conover (1999), "Practical nonparametric statistics",
    section 5.7. It is then accurate to about 0.001.

    >>> wilcoxon_signed_rank([0.9, 0.8, 0.7, 0.9, 0.8], [0.1, 0.3, 0.2, 0.1, 0.2])
    0.0625

    Raises `UserError` without pairs, for two lists of different lengths, and for values that are no numbers.
    """
    differences = _paired_differences("wilcoxon_signed_rank", first, second)
    tolerance = TIE_TOLERANCE * float(np.max(np.abs(np.concatenate([np.asarray(first), np.asarray(second)]))))
    differences = differences[np.abs(differences) > tolerance]
    if not len(differences):
        return 1.0
    ranks = _doubled_ranks(np.abs(differences), tolerance)
    total, positive = int(np.sum(ranks)), int(np.sum(ranks[differences > 0]))
    if len(ranks) > MAX_EXACT_RANKS:
        # In integers: the deviation of the rank sum, minus the continuity correction, in standard deviations.
        statistic = max(0.0, abs(2 * positive - total) / 2.0 - 1.0)
        return erfc(statistic / (0.5 * float(np.linalg.norm(ranks.astype(np.float64))) * sqrt(2.0)))
    probabilities = np.zeros(total + 1)  # of each sum of the ranks that are positive
    probabilities[0] = 1.0
    for rank in ranks.tolist():
        probabilities[rank:] = 0.5 * (probabilities[rank:] + probabilities[: len(probabilities) - rank])
        probabilities[:rank] *= 0.5
    smaller_sum = min(positive, total - positive)
    return min(1.0, 2.0 * float(np.sum(probabilities[: smaller_sum + 1])))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values of several tests, in the given order: the probability that any of the differences with an
    adjusted p-value below 0.05 is a false positive is at most 0.05, for any dependence between the tests.

    Holm (1979), https://www.jstor.org/stable/4615733: the smallest is multiplied by the number of tests, the next by
    one less and so on, none falls below one before it, and none exceeds 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Raises `UserError` for a p-value outside 0 to 1.
    """
    for p in p_values:
        if not 0.0 <= p <= 1.0:
            raise UserError(f"holm: p-values must be between 0 and 1, not {p}")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def min_p_value(first: int, second: int, *, paired: bool = False) -> float:
    """The smallest possible p-value of a permutation test or Fisher's test with these sample sizes.

    >>> min_p_value(3, 3), round(min_p_value(5, 5), 4), min_p_value(5, 5, paired=True)
    (0.1, 0.0079, 0.0625)

    Raises `UserError` for empty samples, and for paired samples of different sizes.
    """
    if min(first, second) < 1 or (paired and first != second):
        raise UserError(
            f"min_p_value: {first} and {second} values; give at least one each, and equal numbers for pairs"
        )
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
    one = check_values(first, "probability_of_improvement")
    two = check_values(second, "probability_of_improvement")
    return float(np.mean((one[:, None] > two) + 0.5 * (one[:, None] == two)))


def _paired_differences(caller: str, first: Sequence[float], second: Sequence[float]) -> FloatArray:
    one, two = check_values(first, caller), check_values(second, caller)
    if len(one) != len(two):
        raise UserError(f"{caller}: must be given pairs, not {len(one)} and {len(two)} values")
    return one - two


def _doubled_ranks(values: FloatArray, tie: float) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Twice the rank of each value, with the mean rank for ties: `[3, 1, 1]` is `[6, 3, 3]`."""
    order = np.argsort(values, kind="stable")
    starts = np.concatenate([[True], np.diff(values[order]) > tie])
    tie_group = np.cumsum(starts) - 1
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(values)) - 1
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = (first + last + 2)[tie_group]
    return ranks
