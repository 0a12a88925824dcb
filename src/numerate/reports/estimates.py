"""Estimates over seeds by region: median, interquartile mean and its interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.statistics import Proportion, interquartile_mean, stratified_bootstrap, success_rate
from numerate.reports.grid import REGIONS, Region, bracket, percent
from numerate.reports.groups import CONVERGED, Group

Floats = NDArray[np.float64]

FEW = 5
"""With fewer seeds a bootstrap interval is much too narrow; the lowest and the highest seed are shown instead."""


@dataclass(frozen=True)
class Estimate:
    """One number from several seeds. `values` are those of the seeds that count, `missed` those of seeds that did not
    converge and do not count."""

    values: tuple[float, ...]
    missed: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return median(self.values)

    @cached_property
    def middle(self) -> float:
        """The interquartile mean, kept among the values where rounding would put it a last digit outside."""
        return min(max(interquartile_mean(self.values), min(self.values)), max(self.values))

    @property
    def enough(self) -> bool:
        """Whether there are enough seeds for an interval."""
        return len(self.values) >= FEW

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the interquartile mean over seeds; their range where they are few.

        It is deterministic in the values."""
        return self._interval(lambda rows: interquartile_mean(rows))

    @cached_property
    def median_interval(self) -> tuple[float, float]:
        return self._interval(lambda rows: np.asarray(np.median(rows, axis=-1), dtype=np.float64))

    def _interval(self, statistic: Callable[[Floats], Floats]) -> tuple[float, float]:
        if not self.enough:
            return min(self.values), max(self.values)
        return stratified_bootstrap([self.values], "report", statistic=statistic)

    @property
    def words(self) -> str:
        """`97.2 [93.1, 99]`, with few seeds `97.2, 93.1 to 99`, with one `97.2, one seed`; in per cent."""
        if not self.values:
            return "none converged" if self.missed else ""
        low, high = self.interval
        if self.enough:
            return f"{percent(self.middle)} {bracket(low, high)}"
        if len(self.values) == 1:
            return f"{percent(self.middle)}, one seed"
        return f"{percent(self.middle)}, {percent(low)} to {percent(high)}"


@dataclass(frozen=True)
class Seeds:
    """The seeds of one group: how many converged (None where that was not measured), and the estimates by region."""

    group: Group
    counted: Group
    converged: Proportion | None
    regions: dict[str, Estimate]

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def count(self) -> int:
        """How many seeds were evaluated."""
        return len(self.group.evaluated)

    @property
    def converged_text(self) -> str:
        """`4/5`: the seeds that converged of all."""
        if self.converged is None:
            return ""
        return f"{round(self.converged.value * self.converged.count)}/{self.converged.count}"


def seeds_of(group: Group) -> Seeds:
    """The estimates of a group: over all seeds in distribution, and over the converged ones out of distribution."""
    counted = group.converged
    inside = {id(run) for run in counted.runs}
    found = [(id(run) in inside, means) for run, means in group.measured]
    trained = [one["in_distribution"].share.value for _, one in found if "in_distribution" in one and not group.parts]
    names = [name for name in REGIONS if any(name in one for _, one in found)]
    by_region = {name: _estimate(name, found) for name in names}
    return Seeds(group, counted, success_rate(trained, CONVERGED) if trained else None, by_region)


def _estimate(name: str, found: Sequence[tuple[bool, dict[str, Region]]]) -> Estimate:
    values = [(counts or name == "in_distribution", one[name].share.value) for counts, one in found if name in one]
    return Estimate(
        tuple(value for counts, value in values if counts), tuple(value for counts, value in values if not counts)
    )
