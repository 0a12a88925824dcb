"""What seeds give: medians, interquartile means, bands, and how far another draw of seeds might have moved them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from numerate.errors import UserError
from numerate.evaluation.intervals import Floats, checked_level


@dataclass(frozen=True)
class SeedSpread:
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


def median_spread(values: Sequence[float]) -> SeedSpread:
    """Median, extremes and quartiles (linear between neighbours) of what several seeds gave.

    >>> median_spread([0.9, 0.1, 0.5]).median
    0.5

    Raises `UserError` without values, and for values that are no numbers.
    """
    sample = checked_values(values, "the spread")
    lower, middle, upper = np.quantile(sample, [0.25, 0.5, 0.75])
    return SeedSpread(float(middle), float(sample.min()), float(sample.max()), float(lower), float(upper), len(sample))


@overload
def interquartile_mean(values: Sequence[float]) -> float: ...
@overload
def interquartile_mean(values: Floats) -> Floats: ...
def interquartile_mean(values: Sequence[float] | Floats) -> float | Floats:
    """The mean of the middle half; values on the border count in part. Agarwal et al. (2021), section 4,
    https://arxiv.org/abs/2108.13264, recommend it over the mean and the median for few runs.

    Over the last axis: an array of more than one dimension gives one mean for each row. Where the number of values is
    no multiple of four, a trimmed mean that drops whole values (as in rliable) differs a little.

    >>> interquartile_mean([0.0, 0.4, 0.6, 1.0])
    0.5

    Raises `UserError` without values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise UserError("values: the interquartile mean of nothing; give one value per seed")
    ordered = np.sort(sample, axis=-1)
    edges = np.arange(ordered.shape[-1] + 1) / ordered.shape[-1]
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    found = np.sum(inside * ordered, axis=-1) / 0.5
    return float(found) if sample.ndim == 1 else np.asarray(found, dtype=np.float64)


def bootstrap_interval(
    values: Sequence[float],
    *key: object,
    statistic: Callable[[Sequence[float]], float] = median,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap of a statistic over seeds: a pure function of the values and of `key`. Efron (1979),
    https://doi.org/10.1214/aos/1176344552.

    With fewer than about five values it is too narrow, and with one it has no width: prefer the extremes there.
    Every bound of an odd-sized sample's median is one of the values.

    >>> bootstrap_interval([0.3, 0.3, 0.3], "any key")
    (0.3, 0.3)

    Raises `UserError` without values, and for a level outside 0 to 1.
    """
    from numerate.tasks import counter_rng

    sample = checked_values(values, "the bootstrap")
    checked_level(level)
    drawn = counter_rng.CounterRNG(counter_rng.key("bootstrap", *key)).below(
        len(sample), (resamples, len(sample)), np.int64
    )
    found = np.array([statistic(row) for row in sample[drawn].tolist()])
    return _percentiles(found, level)


def stratified_bootstrap(
    strata: Sequence[Sequence[float]],
    *key: object,
    statistic: Callable[[Floats], Floats] = interquartile_mean,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Interval of a statistic over all values of several strata, seeds drawn anew within each stratum by itself.

    A stratum is what is held fixed and not drawn: a task, or a variant; its values are those of its seeds. Agarwal et
    al. (2021), section 4, https://arxiv.org/abs/2108.13264; the bounds are percentiles. `statistic` takes an array
    [resamples, all values] and gives one number for each row: `interquartile_mean`, or
    `lambda rows: np.median(rows, axis=-1)`. A pure function of the values and of `key`.

    Only what was trained separately is a seed of its own: the cells of a grid are answered by the same model, and as
    strata would make the interval too narrow. Every value weighs the same, so a stratum with more seeds weighs more.
    With fewer than about five seeds in each of few strata it is too narrow.

    >>> low, high = stratified_bootstrap([[0.1, 0.3], [0.9, 0.9]], "key", statistic=lambda rows: rows.mean(axis=-1))
    >>> round(low, 3), round(high, 3)
    (0.5, 0.6)

    Raises `UserError` without strata, for a stratum without values, and for a level outside 0 to 1.
    """
    from numerate.tasks import counter_rng

    if len(strata) == 0:
        raise UserError("strata: the bootstrap of nothing; give one list of values per stratum")
    samples = [checked_values(values, "the bootstrap") for values in strata]
    checked_level(level)
    source = counter_rng.CounterRNG(counter_rng.key("stratified bootstrap", *key))
    drawn = [sample[source.below(len(sample), (resamples, len(sample)), np.int64)] for sample in samples]
    return _percentiles(statistic(np.concatenate(drawn, axis=1)), level)


def seeds_band(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Band:
    """Several seeds' (steps, values) as one band, over the steps that every curve has.

    >>> band = seeds_band([([1, 2], [0.2, 0.8]), ([1, 2, 3], [0.4, 0.6, 0.9])])
    >>> band.steps.tolist(), [round(float(value), 2) for value in band.median]
    ([1.0, 2.0], [0.3, 0.7])

    Raises `UserError` without curves.
    """
    if not curves:
        raise UserError("curves: a band of no curves; give one (steps, values) per seed")
    each = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    shared = sorted(set.intersection(*(set(curve) for curve in each)))
    table = np.array([[curve[step] for step in shared] for curve in each], dtype=np.float64).reshape(len(each), -1)
    steps = np.asarray(shared, dtype=np.float64)
    return Band(steps, np.median(table, axis=0), table.min(axis=0), table.max(axis=0), len(each))


def checked_values(values: ArrayLike, what: str) -> Floats:
    """One number per seed as an array. Raises `UserError` without any, and for what is no finite number."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size == 0:
        raise UserError(f"values: {what} of nothing; give one value per seed")
    if not np.all(np.isfinite(sample)):
        raise UserError(f"values: {what} of {sample.tolist()}; each must be a finite number")
    return sample


def _percentiles(found: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(found, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
