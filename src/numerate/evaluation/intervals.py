"""Confidence intervals of proportions, which are fractions from 0 to 1."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import hypot
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerate.errors import UserError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Proportion:
    """A proportion with its interval: `value` between `low` and `high`, from `count` observations."""

    value: float
    low: float
    high: float
    count: int


def wilson_interval(correct: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[Any, Any]:
    """Score interval of a proportion, Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953, equation (3).

    It stays within 0 to 1 and has a positive width at the ends, unlike the normal approximation: 100 correct of 100
    gives (0.963, 1.0), not (1, 1). A count of 0 gives (0, 1). Counts may be fractional. Numbers in, numbers out; arrays
    in, arrays out.

    >>> tuple(round(bound, 3) for bound in wilson_interval(99, 100))
    (0.946, 0.998)

    Raises `UserError` for counts that cannot be (more correct than counted) and for a level outside 0 to 1.
    """
    k, n = check_counts(correct, count, level)
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    trials = np.maximum(n, 1.0)
    share = k / trials
    scale = 1.0 + z**2 / trials
    centre = (share + z**2 / (2.0 * trials)) / scale
    half = z * np.sqrt(share * (1.0 - share) / trials + z**2 / (4.0 * trials**2)) / scale
    # At the ends the bound is 0 or 1 exactly; rounding would leave 1e-17.
    low = np.where((n == 0) | (k == 0), 0.0, np.maximum(centre - half, 0.0))
    high = np.where((n == 0) | (k == n), 1.0, np.minimum(centre + half, 1.0))
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def clopper_pearson_interval(correct: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[Any, Any]:
    """Exact interval of a proportion, Clopper and Pearson (1934), https://doi.org/10.1093/biomet/26.4.404.

    Its coverage is at least `level` for every proportion; it is therefore wider than Wilson's, whose coverage is about
    `level` on average; Brown, Cai and DasGupta (2001), https://doi.org/10.1214/ss/1009213286, recommend Wilson's for
    general use. Numbers in, numbers out; arrays in, arrays out. A count of 0 gives (0, 1).

    >>> tuple(round(bound, 4) for bound in clopper_pearson_interval(99, 100))
    (0.9455, 0.9997)

    Raises `UserError` for counts that cannot be or are not whole, and for a level outside 0 to 1.
    """
    from scipy import special

    k, n = np.broadcast_arrays(*check_counts(correct, count, level, whole=True))
    tail = (1.0 - level) / 2.0
    low = np.where(k == 0, 0.0, special.betaincinv(np.maximum(k, 1), n - k + 1, tail))
    high = np.where(k == n, 1.0, special.betainccinv(k + 1, np.maximum(n - k, 1), tail))
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def region_mean(cells: Sequence[tuple[int, int]], level: float = 0.95, num_repeats: int = 1) -> Proportion:
    """The mean accuracy over cells with equal weights, with an interval for the sampling of questions.

    `cells` are (correct, count) pairs. With equal counts the mean is the pooled share and its interval the pooled
    Wilson interval. With unequal counts the interval is Wilson's for the effective count with the same uncertainty of
    the mean, (number of cells)^2 / sum(1 / count). Cells differ in difficulty, which a pooled interval does not use: it
    is therefore a little too wide, never too narrow, when counts are equal. If each question was repeated
    (`num_repeats`, e.g. for position offsets), the interval is as wide as for one repetition.

    >>> region_mean([(100, 100), (50, 100)]).value
    0.75

    Raises `UserError` without cells, or for a cell with count 0.
    """
    check_counts([correct for correct, _ in cells], [count for _, count in cells], level, least=1)
    # Exact, so that a mean of 0.99 compares as 0.99: sums of rounded shares fall just below. Equal counts are added
    # as whole numbers first, which for ten thousand cells is a hundred times quicker than adding fractions.
    by_count: Counter[int] = Counter()
    for correct, count in cells:
        by_count[int(count)] += int(correct)
    value = float(sum(Fraction(correct, count) for count, correct in by_count.items()) / len(cells))
    effective_count = np.float64(len(cells) ** 2 / sum(1.0 / count for _, count in cells) / num_repeats)
    low, high = wilson_interval((value * effective_count).clip(0, effective_count), effective_count, level)
    return Proportion(value, float(low), float(high), sum(count for _, count in cells))


def newcombe_interval(first: tuple[int, int], second: tuple[int, int], level: float = 0.95) -> Proportion:
    """The difference of two proportions, each given as (correct, count), with Newcombe's interval.

    The hybrid score interval, method 10 of Newcombe (1998),
    https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I. The samples are assumed to be
    independent; for two models on the same questions it is slightly too wide, and `mcnemar_test` is the test.

    >>> gap = newcombe_interval((56, 70), (48, 80))
    >>> round(gap.value, 4), round(gap.low, 4), round(gap.high, 4)
    (0.2, 0.0524, 0.3339)

    Raises `UserError` for counts that cannot be or are not whole, and for a count of 0.
    """
    k, n = check_counts([first[0], second[0]], [first[1], second[1]], level, whole=True, least=1)
    (one, two), (low, high) = (k / n).tolist(), wilson_interval(k, n, level)
    below, above = hypot(one - low[0], high[1] - two), hypot(high[0] - one, two - low[1])
    return Proportion(one - two, one - two - below, one - two + above, first[1] + second[1])


def success_rate(values: Sequence[float], threshold: float, level: float = 0.95) -> Proportion:
    """The fraction of seeds that reach a threshold, with Wilson's interval for the sampling of seeds.

    >>> rate = success_rate([1.0, 0.995, 0.2], threshold=0.99)
    >>> round(rate.value, 3), round(rate.low, 3), round(rate.high, 3)
    (0.667, 0.208, 0.939)

    Raises `UserError` without values, and for values or a threshold that are no finite numbers.
    """
    sample, least = check_values(values, "success_rate"), check_values([threshold], "the threshold")
    successes = int(np.sum(sample >= least))
    return Proportion(successes / len(sample), *wilson_interval(successes, len(sample), level), len(sample))


def check_values(values: ArrayLike, caller: str) -> FloatArray:
    """Converts one value per seed to an array. Raises `UserError` without values, and unless all are finite."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.all(np.isfinite(sample)):
        raise UserError(f"{caller}: needs one value per seed, each a finite number, not {sample.tolist()}")
    return sample


def check_level(level: float) -> float:
    """Returns a confidence level. Raises `UserError` unless it is between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise UserError(f"level: must be between 0 and 1, for example level=0.95, not {level}")
    return level


def check_counts(
    correct: ArrayLike, count: ArrayLike, level: float = 0.95, *, whole: bool = False, least: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Converts counts to arrays. Raises `UserError` for more correct than counted, and for counts below `least`."""
    check_level(level)
    k, n = np.asarray(correct, dtype=np.float64), np.asarray(count, dtype=np.float64)
    is_valid = (k >= 0) & (k <= n) & np.isfinite(n) & (n >= least)
    if whole:
        is_valid &= (k == np.floor(k)) & (n == np.floor(n))
    if not np.all(is_valid) or not n.size:
        kind = f"{'integers, ' * whole}between 0 and the count, which must be finite and at least {least}"
        raise UserError(f"correct: must be {kind}, not {k} of {n}")
    return k, n
