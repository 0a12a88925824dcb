"""Statistics over seeds: medians, interquartile means, ranges over steps, and bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from numerate.errors import UserError
from numerate.evaluation.intervals import FloatArray, check_level


@dataclass(frozen=True)
class SeedSummary:
    """Summary over seeds: median, extremes, quartiles, and their number."""

    median: float
    lowest: float
    highest: float
    lower_quartile: float
    upper_quartile: float
    count: int


@dataclass(frozen=True, eq=False)
class SeedBand:
    """Curves of several seeds combined: the median, minimum and maximum at each of `steps`."""

    steps: FloatArray
    median: FloatArray
    low: FloatArray
    high: FloatArray
    count: int


def summarize_seeds(values: Sequence[float]) -> SeedSummary:
    """Median, extremes and quartiles (linearly interpolated) over seeds.

    >>> summarize_seeds([0.9, 0.1, 0.5]).median
    0.5

    Raises `UserError` without values, and for values that are not finite numbers.
    """
    sample = check_values(values, "the spread")
    lower, middle, upper = np.quantile(sample, [0.25, 0.5, 0.75])
    return SeedSummary(float(middle), float(sample.min()), float(sample.max()), float(lower), float(upper), len(sample))


@overload
def interquartile_mean(values: Sequence[float]) -> float: ...
@overload
def interquartile_mean(values: FloatArray) -> FloatArray: ...
def interquartile_mean(values: Sequence[float] | FloatArray) -> float | FloatArray:
    """The mean of the middle half; values at the boundary count partially. Agarwal et al. (2021), section 4,
    https://arxiv.org/abs/2108.13264, recommend it over the mean and the median for few runs.

    Over the last axis: an array of more than one dimension gives one mean for each row. Where the number of values is
    no multiple of four, a trimmed mean that drops whole values (as in rliable) differs a little.

    >>> interquartile_mean([0.0, 0.4, 0.6, 1.0])
    0.5

    Raises `UserError` without values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise UserError("values: must contain one value per seed")
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

    With fewer than about five values it is too narrow; prefer the extremes then. Every bound of an odd-sized sample's
    median is one of the values.

    >>> bootstrap_interval([0.3, 0.3, 0.3], "any key")
    (0.3, 0.3)

    Raises `UserError` without values, and for a level outside 0 to 1.
    """
    from numerate.tasks import counter_rng

    sample = check_values(values, "the bootstrap")
    check_level(level)
    indices = counter_rng.CounterRNG(counter_rng.random_key("bootstrap", *key)).integers(
        len(sample), (resamples, len(sample)), np.int64
    )
    statistics = np.array([statistic(row) for row in sample[indices].tolist()])
    return _percentile_interval(statistics, level)


def stratified_bootstrap_interval(
    strata: Sequence[Sequence[float]],
    *key: object,
    statistic: Callable[[FloatArray], FloatArray] = interquartile_mean,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Bootstrap interval of a statistic over all values of several strata, resampling within each stratum.

    A stratum is not resampled itself: a task, or a variant; its values are those of its seeds. Agarwal et al. (2021),
    section 4, https://arxiv.org/abs/2108.13264; the bounds are percentiles. `statistic` takes an array [resamples, all
    values] and gives one number for each row: `interquartile_mean`, or `lambda rows: np.median(rows, axis=-1)`. A pure
    function of the values and of `key`.

    Only separately trained models are independent: cells of a grid must not be strata, since the same model answers
    them, which would make the interval too narrow. All values have equal weight, so a stratum with more seeds has more
    weight. With few strata of fewer than about five seeds the interval is too narrow.

    >>> strata = [[0.1, 0.3], [0.9, 0.9]]
    >>> low, high = stratified_bootstrap_interval(strata, "key", statistic=lambda rows: rows.mean(axis=-1))
    >>> round(low, 3), round(high, 3)
    (0.5, 0.6)

    Raises `UserError` without strata, for a stratum without values, and for a level outside 0 to 1.
    """
    from numerate.tasks import counter_rng

    if len(strata) == 0:
        raise UserError("strata: must contain one list of values per stratum")
    samples = [check_values(values, "the bootstrap") for values in strata]
    check_level(level)
    rng = counter_rng.CounterRNG(counter_rng.random_key("stratified bootstrap", *key))
    resampled = [sample[rng.integers(len(sample), (resamples, len(sample)), np.int64)] for sample in samples]
    return _percentile_interval(statistic(np.concatenate(resampled, axis=1)), level)


def seed_band(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> SeedBand:
    """Combines the curves (steps, values) of several seeds, over the steps that all of them have.

    >>> band = seed_band([([1, 2], [0.2, 0.8]), ([1, 2, 3], [0.4, 0.6, 0.9])])
    >>> band.steps.tolist(), [round(float(value), 2) for value in band.median]
    ([1.0, 2.0], [0.3, 0.7])

    Raises `UserError` without curves.
    """
    if not curves:
        raise UserError("curves: must contain one (steps, values) pair per seed")
    curve_values = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    shared_steps = sorted(set.intersection(*(set(curve) for curve in curve_values)))
    table = np.array([[curve[step] for step in shared_steps] for curve in curve_values], dtype=np.float64).reshape(
        len(curve_values), -1
    )
    steps = np.asarray(shared_steps, dtype=np.float64)
    return SeedBand(steps, np.median(table, axis=0), table.min(axis=0), table.max(axis=0), len(curve_values))


def check_values(values: ArrayLike, caller: str) -> FloatArray:
    """Converts one value per seed to an array. Raises `UserError` without values, and unless all are finite."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size == 0:
        raise UserError(f"values: {caller} needs one value per seed")
    if not np.all(np.isfinite(sample)):
        raise UserError(f"values: {caller} of {sample.tolist()}; each must be a finite number")
    return sample


def _percentile_interval(samples: FloatArray, level: float) -> tuple[float, float]:
    low, high = np.quantile(samples, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
