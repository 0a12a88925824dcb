"""Estimates over seeds by region: median, interquartile mean and its interval."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.statistics import Proportion, interquartile_mean, stratified_bootstrap_interval, success_rate
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group

FloatArray = NDArray[np.float64]

MIN_SEEDS = 5
"""With fewer seeds a bootstrap interval is much too narrow; the lowest and the highest seed are shown instead."""


@dataclass(frozen=True)
class Estimate:
    """One number from several seeds. `values` are those of the seeds that count, `unconverged_values` those of seeds
    that did not converge and do not count."""

    values: tuple[float, ...]
    unconverged_values: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return median(self.values)

    @cached_property
    def iqm(self) -> float:
        """The interquartile mean, kept among the values where rounding would put it a last digit outside."""
        return min(max(interquartile_mean(self.values), min(self.values)), max(self.values))

    @property
    def has_enough_seeds(self) -> bool:
        """Whether there are enough seeds for an interval."""
        return len(self.values) >= MIN_SEEDS

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the interquartile mean over seeds, deterministic in the values; their range
        where they are few."""
        return self._interval(interquartile_mean)

    @cached_property
    def median_interval(self) -> tuple[float, float]:
        return self._interval(lambda rows: np.asarray(np.median(rows, axis=-1), dtype=np.float64))

    def _interval(self, statistic: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
        if not self.has_enough_seeds:
            return min(self.values), max(self.values)
        return stratified_bootstrap_interval([self.values], "report", statistic=statistic)

    @property
    def text(self) -> str:
        """`97.2 [93.1, 99]`, with few seeds `97.2, 93.1 to 99`, with one `97.2, one seed`; in per cent."""
        if not self.values:
            return "none converged" if self.unconverged_values else ""
        if self.has_enough_seeds:
            return f"{format_percent(self.iqm)} {format_interval(*self.interval)}"
        ends = " to ".join(map(format_percent, self.interval)) if len(self.values) > 1 else "one seed"
        return f"{format_percent(self.iqm)}, {ends}"


@dataclass(frozen=True)
class GroupEstimates:
    """The seeds of one group: how many converged (None if that was not measured), and the estimates by region."""

    group: Group
    converged_group: Group
    convergence_rate: Proportion | None
    regions: dict[str, Estimate]

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def num_seeds(self) -> int:
        """How many seeds were evaluated."""
        return len(self.group.evaluated_cells)

    @property
    def converged_text(self) -> str:
        """`4/5`: the seeds that converged of all."""
        rate = self.convergence_rate
        return "" if rate is None else f"{round(rate.value * rate.count)}/{rate.count}"


def estimate_group(group: Group) -> GroupEstimates:
    """The estimates of a group: over all seeds in distribution, and over the converged ones out of distribution."""
    converged = group.converged_group
    trained = [share for _, share in group.in_distribution_scores]
    regions: dict[str, Estimate] = {}
    for name in REGION_LABELS:
        scores = [(run, found[name].score.value) for run, found in group.region_scores_by_run if name in found]
        counts = [name == "in_distribution" or run in converged.runs for run, _ in scores]
        values = tuple(value for (_, value), count in zip(scores, counts, strict=True) if count)
        others = tuple(value for (_, value), count in zip(scores, counts, strict=True) if not count)
        regions |= {name: Estimate(values, others)} if scores else {}
    return GroupEstimates(group, converged, success_rate(trained, CONVERGENCE_THRESHOLD) if trained else None, regions)
