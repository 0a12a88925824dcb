"""Statistics over seeds: medians, interquartile means, ranges over steps, and bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from numerate.evaluation.intervals import FloatArray, check_level, check_values


@dataclass(frozen=True, eq=False)
class SeedBand:
    """Curves of several seeds combined: the median, minimum and maximum at each of `steps`."""

    steps: FloatArray
    median: FloatArray
    low: FloatArray
    high: FloatArray
    count: int


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

    Raises `UserError` without values, and unless all are finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    check_values(sample.ravel(), "the interquartile mean")
    edges = np.arange(sample.shape[-1] + 1) / sample.shape[-1]
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    found = np.sum(inside * np.sort(sample, axis=-1), axis=-1) / 0.5
    return float(found) if sample.ndim == 1 else np.asarray(found, dtype=np.float64)


def stratified_bootstrap_interval(
    strata: Sequence[Sequence[float]],
    *key: object,
    statistic: Callable[[FloatArray], FloatArray] = interquartile_mean,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap of a statistic over all values of one or more strata, resampling within each stratum.

    Efron (1979), https://doi.org/10.1214/aos/1176344552; Agarwal et al. (2021), section 4,
    https://arxiv.org/abs/2108.13264. A stratum is a task or a variant, and is not resampled itself; its values are
    those of its seeds. `statistic` takes an array [resamples, all values] and gives one number for each row:
    `interquartile_mean`, or `lambda rows: np.median(rows, axis=-1)`. A pure function of the values and of `key`.

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

    samples = [check_values(values, "the bootstrap") for values in (strata or [[]])]
    check_level(level)
    rng = counter_rng.CounterRNG(counter_rng.random_key("stratified bootstrap", *key))
    resampled = [sample[rng.integers(len(sample), (resamples, len(sample)), np.int64)] for sample in samples]
    statistics = statistic(np.concatenate(resampled, axis=1))
    low, high = np.quantile(statistics, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def seed_band(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> SeedBand:
    """Combines the curves (steps, values) of several seeds, over the steps that all of them have.

    >>> band = seed_band([([1, 2], [0.2, 0.8]), ([1, 2, 3], [0.4, 0.6, 0.9])])
    >>> band.steps.tolist(), [round(float(value), 2) for value in band.median]
    ([1.0, 2.0], [0.3, 0.7])

    Raises `UserError` without curves.
    """
    check_values([len(values) for _, values in curves], "the band")
    curve_values = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    steps = sorted(set.intersection(*map(set, curve_values)))
    table = np.array([[curve[step] for step in steps] for curve in curve_values], dtype=np.float64)
    table = table.reshape(len(curves), -1)
    return SeedBand(
        np.asarray(steps, np.float64), np.median(table, axis=0), table.min(axis=0), table.max(axis=0), len(curves)
    )
