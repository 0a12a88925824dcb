"""Confidence intervals of proportions, which are fractions from 0 to 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import factorial, log, sqrt
from math import pi as PI
from statistics import NormalDist
from typing import overload

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


@overload
def wilson_interval(correct: int, count: int, level: float = 0.95) -> tuple[float, float]: ...
@overload
def wilson_interval(correct: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]: ...
def wilson_interval(
    correct: ArrayLike | int, count: ArrayLike | int, level: float = 0.95
) -> tuple[float | FloatArray, float | FloatArray]:
    """Score interval of a proportion, Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953, equation (3).

    It stays within 0 to 1 and has a positive width at the ends, unlike the normal approximation: 100 correct of 100
    gives (0.963, 1.0), not (1, 1). A count of 0 gives (0, 1). Numbers in, numbers out; arrays in, arrays out.

    >>> tuple(round(bound, 3) for bound in wilson_interval(99, 100))
    (0.946, 0.998)

    Raises `UserError` for counts that cannot be (more correct than counted) and for a level outside 0 to 1.
    """
    z = NormalDist().inv_cdf((1.0 + check_level(level)) / 2.0)
    k, n = _check_counts(correct, count)
    trials = np.maximum(n, 1.0)
    share = k / trials
    scale = 1.0 + z**2 / trials
    centre = (share + z**2 / (2.0 * trials)) / scale
    half = z * np.sqrt(share * (1.0 - share) / trials + z**2 / (4.0 * trials**2)) / scale
    # At the ends the bound is 0 or 1 exactly; rounding would leave 1e-17.
    low = np.where((n == 0) | (k == 0), 0.0, np.maximum(centre - half, 0.0))
    high = np.where((n == 0) | (k == n), 1.0, np.minimum(centre + half, 1.0))
    if low.ndim == 0:
        return float(low), float(high)
    return low, high


@overload
def clopper_pearson_interval(correct: int, count: int, level: float = 0.95) -> tuple[float, float]: ...
@overload
def clopper_pearson_interval(
    correct: ArrayLike, count: ArrayLike, level: float = 0.95
) -> tuple[FloatArray, FloatArray]: ...
def clopper_pearson_interval(
    correct: ArrayLike | int, count: ArrayLike | int, level: float = 0.95
) -> tuple[float | FloatArray, float | FloatArray]:
    """Exact interval of a proportion, Clopper and Pearson (1934), https://doi.org/10.1093/biomet/26.4.404.

    The proportions under which both tails of the observed count have at least probability (1 - level) / 2. Its coverage
    is at least `level` for every proportion; it is therefore wider than Wilson's, whose coverage is about `level` on
    average; Brown, Cai and DasGupta (2001), https://doi.org/10.1214/ss/1009213286, recommend Wilson's for general use.
    Use this one if the coverage must be guaranteed. Numbers in, numbers out; arrays in, arrays out. A count of 0 gives
    (0, 1). Accurate to 1e-12 for counts up to 10 million.

    >>> tuple(round(bound, 4) for bound in clopper_pearson_interval(99, 100))
    (0.9455, 0.9997)
    >>> tuple(round(bound, 3) for bound in clopper_pearson_interval(0, 3))
    (0.0, 0.708)

    Raises `UserError` for counts that cannot be or are not whole, and for a level outside 0 to 1.
    """
    check_level(level)
    k, n = np.broadcast_arrays(*_check_counts(correct, count))
    if np.any(k != np.floor(k)) or np.any(n != np.floor(n)):
        raise UserError("correct: an exact interval needs integer counts: the number of correct answers and the total")
    tail = (1.0 - level) / 2.0
    # By symmetry the upper bound is the lower bound for the wrong answers; both are computed in log odds.
    low = _expit(_lower_log_odds(k.ravel(), n.ravel(), tail))
    high = _expit(-_lower_log_odds((n - k).ravel(), n.ravel(), tail))
    if k.ndim == 0:
        return float(low[0]), float(high[0])
    return low.reshape(k.shape), high.reshape(k.shape)


def binomial_tail(successes: int, count: int, probability: float) -> float:
    """The probability of at least `successes` successes in `count` trials with success probability `probability`.

    >>> binomial_tail(2, 2, 0.5), round(binomial_tail(8, 10, 0.5), 4)
    (0.25, 0.0547)

    Raises `UserError` for impossible counts and for a probability outside 0 to 1.
    """
    k, n = _check_counts(successes, count)
    if not 0.0 <= probability <= 1.0:
        raise UserError(f"probability: must be between 0 and 1, not {probability}")
    if successes <= 0:
        return 1.0
    if probability in (0.0, 1.0):
        return probability
    if successes < count * probability:  # the longer tail: one minus the other one
        return 1.0 - binomial_tail(count - successes + 1, count, 1.0 - probability)
    return float(np.exp(_log_tail(k[None], n[None], np.array([log(probability / (1.0 - probability))]))[0][0]))


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
    if not cells:
        raise UserError("cells: must contain at least one (correct, count)")
    if any(count < 1 for _, count in cells):
        raise UserError("cells: every count must be at least 1")
    # Exact, so that a mean of 0.99 compares as 0.99: sums of rounded shares fall just below. Equal counts are added
    # as whole numbers first, which for ten thousand cells is a hundred times quicker than adding fractions.
    by_count: dict[int, int] = {}
    for correct, count in cells:
        by_count[int(count)] = by_count.get(int(count), 0) + int(correct)
    value = float(sum(Fraction(correct, count) for count, correct in by_count.items()) / len(cells))
    effective_count = len(cells) ** 2 / sum(1.0 / count for _, count in cells) / num_repeats
    low, high = wilson_interval(
        np.float64(value * effective_count).clip(0, effective_count), np.float64(effective_count), level
    )
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
    if not all(np.isfinite(number) and number == np.floor(number) for number in (*first, *second)):
        raise UserError(f"newcombe_interval: {first} and {second} must be integers (correct, count)")
    if first[1] < 1 or second[1] < 1:
        raise UserError(f"newcombe_interval: {first} and {second}: every count must be at least 1")
    first_proportion, second_proportion = first[0] / first[1], second[0] / second[1]
    low_one, high_one = wilson_interval(*first, level)
    low_two, high_two = wilson_interval(*second, level)
    value = first_proportion - second_proportion
    low = value - sqrt((first_proportion - low_one) ** 2 + (high_two - second_proportion) ** 2)
    high = value + sqrt((high_one - first_proportion) ** 2 + (second_proportion - low_two) ** 2)
    return Proportion(value, low, high, first[1] + second[1])


def success_rate(values: Sequence[float], threshold: float, level: float = 0.95) -> Proportion:
    """The fraction of seeds that reach a threshold, with Wilson's interval for the sampling of seeds.

    >>> rate = success_rate([1.0, 0.995, 0.2], threshold=0.99)
    >>> round(rate.value, 3), round(rate.low, 3), round(rate.high, 3)
    (0.667, 0.208, 0.939)

    Raises `UserError` without values, and for values or a threshold that are no finite numbers.
    """
    if len(values) == 0:
        raise UserError("values: must contain one value per seed")
    if not np.all(np.isfinite(values)):
        raise UserError(f"values: {list(values)}: each must be a finite number")
    if not np.isfinite(threshold):
        raise UserError(f"threshold: must be a finite number such as 0.99, not {threshold}")
    num_successes = sum(value >= threshold for value in values)
    low, high = wilson_interval(num_successes, len(values), level)
    return Proportion(num_successes / len(values), low, high, len(values))


def check_level(level: float) -> float:
    """Returns a confidence level. Raises `UserError` unless it is between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise UserError(f"level: must be between 0 and 1, for example level=0.95, not {level}")
    return level


def _check_counts(correct: ArrayLike, count: ArrayLike) -> tuple[FloatArray, FloatArray]:
    k, n = np.asarray(correct, dtype=np.float64), np.asarray(count, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n)):
        raise UserError(f"correct: must be between 0 and the count, not {k} of {n}")
    if not np.all(np.isfinite(n)):
        raise UserError(f"count: must be finite, not {n}")
    return k, n


def _expit(log_odds: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-log_odds)), dtype=np.float64)


def _lower_log_odds(correct: FloatArray, count: FloatArray, tail: float) -> FloatArray:
    """The log odds of the proportion under which at least `correct` of `count` has the probability `tail`.

    By Newton's method on the logarithm of the probability, which in the log odds rises and is concave (its slope is the
    mean beyond `correct` less the mean of all, and a binomial cut off varies less than a whole one). From any start the
    second value is therefore at or below the root, and the rest climbs to it.
    """
    log_odds = np.full(correct.shape, -np.inf)
    inner = (correct > 0) & (correct < count)
    all_correct = (correct > 0) & (correct == count)
    # All right: the probability is share ** count.
    log_odds[all_correct] = -np.log(np.expm1(-log(tail) / count[all_correct]))
    k, n = correct[inner], count[inner]
    estimate = np.log(k / (n + 1.0 - k))
    for _ in range(30):
        value, slope = _log_tail(k, n, estimate)
        step = (log(tail) - value) / slope
        estimate = estimate + step
        if not step.size or np.max(np.abs(step)) < 1e-12:
            break
    log_odds[inner] = estimate
    return log_odds


def _log_tail(k: FloatArray, n: FloatArray, log_odds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The logarithm of the probability of at least k of n (k from 1 to n), and its slope in the log odds.

    The tail is the probability of k itself times 1 + the ratios of what follows, a hypergeometric sum that is found as
    the continued fraction of the incomplete beta function, https://dlmf.nist.gov/8.17.E22, by Lentz's method.
    """
    p, q = _expit(log_odds), _expit(-log_odds)
    a, b = k, n - k + 1.0
    tiny = 1e-300
    c, d, fraction = np.ones_like(p), np.zeros_like(p), np.ones_like(p)
    for i in range(1, 100_000):
        m = i // 2
        if i % 2:
            coefficient = -(a + m) * (a + b + m) * p / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 + coefficient * d
        d = 1.0 / np.where(np.abs(d) < tiny, tiny, d)
        c = 1.0 + coefficient / c
        c = np.where(np.abs(c) < tiny, tiny, c)
        fraction = fraction * c * d
        if not p.size or np.max(np.abs(c * d - 1.0)) < 1e-15:
            break
    ratio = q / fraction
    return _log_pmf(k, n, p, q) + np.log(ratio), k * q / ratio


def _log_pmf(k: FloatArray, n: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    """The logarithm of the binomial probability of k of n, by Loader (2000), "Fast and accurate computation of binomial
    probabilities": deviances and the errors of Stirling's formula, where logarithms of factorials would cancel."""
    deviation = np.where(p < 0.5, k - n * p, n * q - (n - k))  # from the smaller of p and q, which is rounded less
    with np.errstate(divide="ignore", invalid="ignore"):
        log_pmf = (
            _stirling_error(n)
            - _stirling_error(k)
            - _stirling_error(n - k)
            - _deviance(k, n * p, deviation)
            - _deviance(n - k, n * q, -deviation)
            + 0.5 * np.log(n / (2.0 * PI * k * (n - k)))
        )
    return np.where(k == n, n * np.log(p), log_pmf)


_STIRLING_ERRORS = np.array(
    [0.0] + [log(factorial(n)) - (n + 0.5) * log(n) + n - 0.5 * log(2 * PI) for n in range(1, 16)]
)


def _stirling_error(n: FloatArray) -> FloatArray:
    """log(n!) less Stirling's formula, for whole n above 0."""
    m = np.maximum(n, 1.0)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / m**2) / m**2) / m**2) / m**2) / m
    return np.where(n < 16, _STIRLING_ERRORS[np.minimum(n, 15).astype(np.int64)], series)


def _deviance(x: FloatArray, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """x log(x / mean) - above without cancellation near the mean, where `deviation` is x - mean."""
    v = deviation / (x + mean)
    total, term = deviation * v, 2.0 * x * v
    for j in range(1, 40):
        term = term * v**2
        total = total + term / (2 * j + 1)
    direct = x * np.log(x / mean) - deviation
    return np.where(np.abs(v) < 0.3, total, direct)
