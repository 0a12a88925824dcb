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

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Proportion:
    """A share with its interval: `value` between `low` and `high`, measured on `count` things."""

    value: float
    low: float
    high: float
    count: int


@overload
def wilson(correct: int, count: int, level: float = 0.95) -> tuple[float, float]: ...
@overload
def wilson(correct: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]: ...
def wilson(
    correct: ArrayLike | int, count: ArrayLike | int, level: float = 0.95
) -> tuple[float | Floats, float | Floats]:
    """Score interval of a share, Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953, equation (3).

    It stays inside 0 to 1 and is honest at the ends, where the textbook interval has no width: 100 right of 100 gives
    (0.963, 1.0), not (1, 1). A count of 0 gives (0, 1). Numbers in, numbers out; arrays in, arrays out.

    >>> tuple(round(bound, 3) for bound in wilson(99, 100))
    (0.946, 0.998)

    Raises `UserError` for counts that cannot be (more correct than counted) and for a level outside 0 to 1.
    """
    z = NormalDist().inv_cdf((1.0 + checked_level(level)) / 2.0)
    k, n = _counts(correct, count)
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
def clopper_pearson(correct: int, count: int, level: float = 0.95) -> tuple[float, float]: ...
@overload
def clopper_pearson(correct: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]: ...
def clopper_pearson(
    correct: ArrayLike | int, count: ArrayLike | int, level: float = 0.95
) -> tuple[float | Floats, float | Floats]:
    """Exact interval of a share, Clopper and Pearson (1934), https://doi.org/10.1093/biomet/26.4.404.

    The shares under which neither so many right nor so few have a probability below (1 - level) / 2. It covers the
    true share at least as often as it says whatever that share is, and for that is wider than Wilson's, which covers
    about as often as it says on average; Brown, Cai and DasGupta (2001), https://doi.org/10.1214/ss/1009213286, advise
    Wilson's for common use. Take this one where a claim must hold for certain. Numbers in, numbers out; arrays in,
    arrays out. A count of 0 gives (0, 1). Right to 1e-12 for counts up to 10 million.

    >>> tuple(round(bound, 4) for bound in clopper_pearson(99, 100))
    (0.9455, 0.9997)
    >>> tuple(round(bound, 3) for bound in clopper_pearson(0, 3))
    (0.0, 0.708)

    Raises `UserError` for counts that cannot be or are not whole, and for a level outside 0 to 1.
    """
    checked_level(level)
    k, n = np.broadcast_arrays(*_counts(correct, count))
    if np.any(k != np.floor(k)) or np.any(n != np.floor(n)):
        raise UserError("correct: an exact interval is of whole counts; give the number of correct answers and of all")
    tail = (1.0 - level) / 2.0
    # With right and wrong exchanged the upper bound is the lower one of the other side, so both are found in log odds.
    low = _expit(_lower_log_odds(k.ravel(), n.ravel(), tail))
    high = _expit(-_lower_log_odds((n - k).ravel(), n.ravel(), tail))
    if k.ndim == 0:
        return float(low[0]), float(high[0])
    return low.reshape(k.shape), high.reshape(k.shape)


def binomial_tail(successes: int, count: int, share: float) -> float:
    """The probability of at least so many successes in `count` tries that each succeed with probability `share`.

    >>> binomial_tail(2, 2, 0.5), round(binomial_tail(8, 10, 0.5), 4)
    (0.25, 0.0547)

    Raises `UserError` for counts that cannot be and for a share outside 0 to 1.
    """
    k, n = _counts(successes, count)
    if not 0.0 <= share <= 1.0:
        raise UserError(f"share: {share} is no probability; it lies between 0 and 1")
    if successes <= 0:
        return 1.0
    if share in (0.0, 1.0):
        return share
    if successes < count * share:  # the longer side: one minus the other tail
        return 1.0 - binomial_tail(count - successes + 1, count, 1.0 - share)
    return float(np.exp(_log_tail(k[None], n[None], np.array([log(share / (1.0 - share))]))[0][0]))


def region_mean(cells: Sequence[tuple[int, int]], level: float = 0.95, repeats: int = 1) -> Proportion:
    """The mean over cells of the share right, every cell weighing the same, with an interval about the questions.

    `cells` are (correct, count) pairs. With equal counts the mean is the pooled share and its interval the pooled
    Wilson interval. With unequal counts the interval is Wilson's for the count that would leave a mean of equal
    weights as uncertain, (number of cells)^2 / sum(1 / count). Cells differ in difficulty, which a pooled interval
    does not use: it is therefore a little too wide, never too narrow, when counts are equal. Where each question was
    repeated (`repeats`, such as position offsets), the interval is as wide as for one.

    >>> region_mean([(100, 100), (50, 100)]).value
    0.75

    Raises `UserError` without cells, or for a cell with count 0.
    """
    if not cells:
        raise UserError("cells: a mean over no cells; give at least one (correct, count)")
    if any(count < 1 for _, count in cells):
        raise UserError("cells: a cell with count 0 has no share; leave it out")
    # Exact, so that a mean of 0.99 compares as 0.99: sums of rounded shares fall just below. Equal counts are added
    # as whole numbers first, which for ten thousand cells is a hundred times quicker than adding fractions.
    by_count: dict[int, int] = {}
    for correct, count in cells:
        by_count[int(count)] = by_count.get(int(count), 0) + int(correct)
    value = float(sum(Fraction(correct, count) for count, correct in by_count.items()) / len(cells))
    effective = len(cells) ** 2 / sum(1.0 / count for _, count in cells) / repeats
    low, high = wilson(np.float64(value * effective).clip(0, effective), np.float64(effective), level)
    return Proportion(value, float(low), float(high), sum(count for _, count in cells))


def difference(first: tuple[int, int], second: tuple[int, int], level: float = 0.95) -> Proportion:
    """How much higher the first share is than the second, each (correct, count), with Newcombe's interval.

    The hybrid score interval, method 10 of Newcombe (1998),
    https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I. The two are taken as independent;
    of two models on the same questions it is a little too wide, and `mcnemar` is the test.

    >>> gap = difference((56, 70), (48, 80))
    >>> round(gap.value, 4), round(gap.low, 4), round(gap.high, 4)
    (0.2, 0.0524, 0.3339)

    Raises `UserError` for counts that cannot be or are not whole, and for a count of 0.
    """
    if not all(np.isfinite(number) and number == np.floor(number) for number in (*first, *second)):
        raise UserError(f"difference: {first} and {second}: give whole numbers, (correct, count)")
    if first[1] < 1 or second[1] < 1:
        raise UserError(f"difference: {first} and {second}: a count of 0 has no share to compare")
    one, two = first[0] / first[1], second[0] / second[1]
    low_one, high_one = wilson(*first, level)
    low_two, high_two = wilson(*second, level)
    value = one - two
    low = value - sqrt((one - low_one) ** 2 + (high_two - two) ** 2)
    high = value + sqrt((high_one - one) ** 2 + (two - low_two) ** 2)
    return Proportion(value, low, high, first[1] + second[1])


def success_rate(values: Sequence[float], threshold: float, level: float = 0.95) -> Proportion:
    """The share of seeds that reach a threshold, with Wilson's interval about the seeds.

    >>> rate = success_rate([1.0, 0.995, 0.2], threshold=0.99)
    >>> round(rate.value, 3), round(rate.low, 3), round(rate.high, 3)
    (0.667, 0.208, 0.939)

    Raises `UserError` without values, and for values or a threshold that are no finite numbers.
    """
    if len(values) == 0:
        raise UserError("values: the success rate of nothing; give one value per seed")
    if not np.all(np.isfinite(values)):
        raise UserError(f"values: the success rate of {list(values)}; each must be a finite number")
    if not np.isfinite(threshold):
        raise UserError(f"threshold: {threshold} is none; give a finite number, as 0.99")
    reached = sum(value >= threshold for value in values)
    low, high = wilson(reached, len(values), level)
    return Proportion(reached / len(values), low, high, len(values))


def checked_level(level: float) -> float:
    """A level of confidence as it is. Raises `UserError` for one that does not lie between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise UserError(f"level: {level} is no level; it lies between 0 and 1, for example level=0.95")
    return level


def _counts(correct: ArrayLike, count: ArrayLike) -> tuple[Floats, Floats]:
    k, n = np.asarray(correct, dtype=np.float64), np.asarray(count, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n)):
        raise UserError(f"correct: {k} of {n} cannot be; it lies between 0 and the count")
    if not np.all(np.isfinite(n)):
        raise UserError(f"count: {n} is no count; give a finite number")
    return k, n


def _expit(log_odds: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-log_odds)), dtype=np.float64)


def _lower_log_odds(correct: Floats, count: Floats, tail: float) -> Floats:
    """The log odds of the share under which at least `correct` of `count` has the probability `tail`.

    By Newton's method on the logarithm of the probability, which in the log odds rises and is concave (its slope is the
    mean beyond `correct` less the mean of all, and a binomial cut off varies less than a whole one). From any start the
    second value is therefore at or below the root, and the rest climbs to it.
    """
    found = np.full(correct.shape, -np.inf)
    inner = (correct > 0) & (correct < count)
    whole = (correct > 0) & (correct == count)
    # All right: the probability is share ** count.
    found[whole] = -np.log(np.expm1(-log(tail) / count[whole]))
    k, n = correct[inner], count[inner]
    at = np.log(k / (n + 1.0 - k))
    for _ in range(30):
        value, slope = _log_tail(k, n, at)
        step = (log(tail) - value) / slope
        at = at + step
        if not step.size or np.max(np.abs(step)) < 1e-12:
            break
    found[inner] = at
    return found


def _log_tail(k: Floats, n: Floats, log_odds: Floats) -> tuple[Floats, Floats]:
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
            part = -(a + m) * (a + b + m) * p / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            part = m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 + part * d
        d = 1.0 / np.where(np.abs(d) < tiny, tiny, d)
        c = 1.0 + part / c
        c = np.where(np.abs(c) < tiny, tiny, c)
        fraction = fraction * c * d
        if not p.size or np.max(np.abs(c * d - 1.0)) < 1e-15:
            break
    ratio = q / fraction
    return _log_mass(k, n, p, q) + np.log(ratio), k * q / ratio


def _log_mass(k: Floats, n: Floats, p: Floats, q: Floats) -> Floats:
    """The logarithm of the binomial probability of k of n, by Loader (2000), "Fast and accurate computation of binomial
    probabilities": deviances and the errors of Stirling's formula, where logarithms of factorials would cancel."""
    above = np.where(p < 0.5, k - n * p, n * q - (n - k))  # from the smaller of p and q, which is rounded less
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = (
            _stirling(n)
            - _stirling(k)
            - _stirling(n - k)
            - _deviance(k, n * p, above)
            - _deviance(n - k, n * q, -above)
            + 0.5 * np.log(n / (2.0 * PI * k * (n - k)))
        )
    return np.where(k == n, n * np.log(p), inside)


_FACTORIALS = np.array([0.0] + [log(factorial(n)) - (n + 0.5) * log(n) + n - 0.5 * log(2 * PI) for n in range(1, 16)])


def _stirling(n: Floats) -> Floats:
    """log(n!) less Stirling's formula, for whole n above 0."""
    m = np.maximum(n, 1.0)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / m**2) / m**2) / m**2) / m**2) / m
    return np.where(n < 16, _FACTORIALS[np.minimum(n, 15).astype(np.int64)], series)


def _deviance(x: Floats, mean: Floats, above: Floats) -> Floats:
    """x log(x / mean) - above without cancellation near the mean, where `above` is x - mean."""
    v = above / (x + mean)
    total, term = above * v, 2.0 * x * v
    for j in range(1, 40):
        term = term * v**2
        total = total + term / (2 * j + 1)
    far = x * np.log(x / mean) - above
    return np.where(np.abs(v) < 0.3, total, far)
