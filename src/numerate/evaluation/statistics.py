"""Intervals: how far a measured share may be from the true one, and how far seeds are from each other.

Two kinds of doubt are kept apart everywhere. *Questions*: another draw of questions would give the same model another
score (`wilson`, `region_mean`, `difference`). *Seeds*: another seed would give another model (`median_spread`,
`success_rate`, `fisher_exact`, `bootstrap_interval`, `seeds_band`). An interval of the first kind says nothing about
the second. All shares are fractions from 0 to 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, sqrt
from statistics import NormalDist, median
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerate.errors import Mistake

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """A share with its interval: `value` between `low` and `high`, measured on `count` things."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Spread:
    """What several seeds gave: the median, the extremes, the quartiles, and how many there were."""

    median: float
    lowest: float
    highest: float
    lower_quartile: float
    upper_quartile: float
    count: int


@dataclass(frozen=True, eq=False)
class Band:
    """Curves of several seeds as one: at each of `steps` the median, the lowest and the highest."""

    steps: Floats
    median: Floats
    low: Floats
    high: Floats
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
    (0.963, 1.0), not (1, 1). Nothing asked gives (0, 1). Numbers in, numbers out; arrays in, arrays out.

    >>> tuple(round(bound, 3) for bound in wilson(99, 100))
    (0.946, 0.998)

    Raises `Mistake` for counts that cannot be (more right than asked) and for a level outside 0 to 1.
    """
    z = _normal(level)
    right, asked = np.asarray(correct, dtype=np.float64), np.asarray(count, dtype=np.float64)
    if np.any(right < 0) or np.any(right > asked):
        raise Mistake(f"correct: {right} of {asked} cannot be; it lies between 0 and the count")
    trials = np.maximum(asked, 1.0)
    share = right / trials
    scale = 1.0 + z**2 / trials
    centre = (share + z**2 / (2.0 * trials)) / scale
    half = z * np.sqrt(share * (1.0 - share) / trials + z**2 / (4.0 * trials**2)) / scale
    # At the ends the bound is 0 or 1 exactly; rounding would leave 1e-17.
    low = np.where((asked == 0) | (right == 0), 0.0, np.maximum(centre - half, 0.0))
    high = np.where((asked == 0) | (right == asked), 1.0, np.minimum(centre + half, 1.0))
    if low.ndim == 0:
        return float(low), float(high)
    return low, high


def region_mean(cells: Sequence[tuple[int, int]], level: float = 0.95) -> Share:
    """The mean over cells of the share right, every cell weighing the same, with an interval about the questions.

    `cells` are (correct, count) pairs. With equal counts the mean is the pooled share and its interval the pooled
    Wilson interval. With unequal counts the interval is Wilson's for the count that would leave a mean of equal
    weights as uncertain, (number of cells)^2 / sum(1 / count). Cells differ in difficulty, which a pooled interval
    does not use: it is therefore a little too wide, never too narrow, when counts are equal.

    >>> region_mean([(100, 100), (50, 100)]).value
    0.75

    Raises `Mistake` without cells, or for a cell where nothing was asked.
    """
    if not cells:
        raise Mistake("cells: a mean over no cells; give at least one (correct, count)")
    if any(count < 1 for _, count in cells):
        raise Mistake("cells: a cell where nothing was asked has no share; leave it out")
    # Exact, so that a mean of 0.99 compares as 0.99: sums of rounded shares fall just below.
    value = float(sum(Fraction(int(correct), int(count)) for correct, count in cells) / len(cells))
    effective = len(cells) ** 2 / sum(1.0 / count for _, count in cells)
    low, high = wilson(np.float64(value * effective).clip(0, effective), np.float64(effective), level)
    return Share(value, float(low), float(high), sum(count for _, count in cells))


def difference(first: tuple[int, int], second: tuple[int, int], level: float = 0.95) -> Share:
    """How much higher the first share is than the second, each (correct, count), with Newcombe's interval.

    The hybrid score interval, method 10 of Newcombe (1998),
    https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I. The two are taken as independent.

    >>> gap = difference((56, 70), (48, 80))
    >>> round(gap.value, 4), round(gap.low, 4), round(gap.high, 4)
    (0.2, 0.0524, 0.3339)
    """
    one, two = first[0] / first[1], second[0] / second[1]
    low_one, high_one = wilson(*first, level)
    low_two, high_two = wilson(*second, level)
    value = one - two
    low = value - sqrt((one - low_one) ** 2 + (high_two - two) ** 2)
    high = value + sqrt((high_one - one) ** 2 + (two - low_two) ** 2)
    return Share(value, low, high, first[1] + second[1])


def median_spread(values: Sequence[float]) -> Spread:
    """Median, extremes and quartiles (linear between neighbours) of what several seeds gave.

    >>> median_spread([0.9, 0.1, 0.5]).median
    0.5

    Raises `Mistake` without values.
    """
    if not values:
        raise Mistake("values: the spread of nothing; give one value per seed")
    lower, middle, upper = np.quantile(np.asarray(values, dtype=np.float64), [0.25, 0.5, 0.75])
    return Spread(float(middle), min(values), max(values), float(lower), float(upper), len(values))


def success_rate(values: Sequence[float], threshold: float, level: float = 0.95) -> Share:
    """The share of seeds that reach a threshold, with Wilson's interval about the seeds.

    >>> rate = success_rate([1.0, 0.995, 0.2], threshold=0.99)
    >>> round(rate.value, 3), round(rate.low, 3), round(rate.high, 3)
    (0.667, 0.208, 0.939)

    Raises `Mistake` without values.
    """
    if not values:
        raise Mistake("values: the success rate of nothing; give one value per seed")
    reached = sum(value >= threshold for value in values)
    low, high = wilson(reached, len(values), level)
    return Share(reached / len(values), low, high, len(values))


def fisher_exact(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Two-sided p of two success counts, each (successes, tries), by Fisher's exact test.

    With three seeds each, 3 of 3 against 0 of 3 is still p = 0.1: few seeds cannot show much.

    >>> round(fisher_exact((3, 3), (0, 3)), 3)
    0.1
    """
    tries, others, successes = first[1], second[1], first[0] + second[0]
    total = comb(tries + others, successes)
    ways = {
        hits: comb(tries, hits) * comb(others, successes - hits)
        for hits in range(max(0, successes - others), min(tries, successes) + 1)
    }
    return sum(way for way in ways.values() if way <= ways[first[0]]) / total


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half; values on the border count in part. Agarwal et al. (2021),
    https://arxiv.org/abs/2108.13264, recommend it over the mean and the median for few runs.

    >>> interquartile_mean([0.0, 0.4, 0.6, 1.0])
    0.5
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    edges = np.arange(len(ordered) + 1) / len(ordered)
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return float(np.sum(inside * ordered) / 0.5)


def bootstrap_interval(
    values: Sequence[float],
    *key: object,
    statistic: Callable[[Sequence[float]], float] = median,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap of a statistic over seeds: a pure function of the values and of `key`.

    With fewer than about five values it is too narrow, and with one it has no width: prefer the extremes there.
    Every bound of an odd-sized sample's median is one of the values.

    Raises `Mistake` without values.
    """
    from numerate.tasks import draws

    if not values:
        raise Mistake("values: the bootstrap of nothing; give one value per seed")
    _normal(level)
    drawn = draws.Draws(draws.key("bootstrap", *key)).below(len(values), (resamples, len(values)), np.int64)
    sample = np.asarray(values, dtype=np.float64)[drawn]
    found = np.array([statistic(row.tolist()) for row in sample])
    low, high = np.quantile(found, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def seeds_band(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Band:
    """Several seeds' (steps, values) as one band, over the steps that every curve has.

    >>> band = seeds_band([([1, 2], [0.2, 0.8]), ([1, 2, 3], [0.4, 0.6, 0.9])])
    >>> band.steps.tolist(), [round(float(value), 2) for value in band.median]
    ([1.0, 2.0], [0.3, 0.7])

    Raises `Mistake` without curves.
    """
    if not curves:
        raise Mistake("curves: a band of no curves; give one (steps, values) per seed")
    each = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    shared = sorted(set.intersection(*(set(curve) for curve in each)))
    table = np.array([[curve[step] for step in shared] for curve in each], dtype=np.float64).reshape(len(each), -1)
    steps = np.asarray(shared, dtype=np.float64)
    return Band(steps, np.median(table, axis=0), table.min(axis=0), table.max(axis=0), len(each))


def _normal(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise Mistake(f"level: {level} is no level; it lies between 0 and 1, for example level=0.95")
    return NormalDist().inv_cdf((1.0 + level) / 2.0)
