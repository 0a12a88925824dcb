"""Metrics of each part and region of a group: over all questions, and as the mean over cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from numerate.evaluation.answer_metrics import METRICS, SHARES, base, pooled, told_in
from numerate.evaluation.intervals import wilson
from numerate.evaluation.sums import BY_MODULE
from numerate.reports.grid import REGIONS, axis_words, percent
from numerate.reports.groups import Group
from numerate.reports.records import Cell

EXACT = "exact"
"""Exact match, beside the metrics of numbers and texts."""

WORDS = {EXACT: "exact match", **METRICS}
"""Each metric with its name in reports."""

ORDER = (
    EXACT,
    "log_mae",
    "bleu",
    "number_accuracy",
    "within_1e-2",
    "missing",
    "invalid",
    "clipped",
    "mae",
    "median_error",
    "r2",
    "log_r2",
    "pearson",
    "spearman",
    "token_accuracy",
    "rouge1",
    "rouge2",
    "rougeL",
    "perplexity",
    "ended",
)
"""The metrics of a page, in order."""

DRAWN = (EXACT, "log_mae", "bleu")
"""The metrics with a chart: the first two of these that were computed."""

CHECKPOINTS = ("final", "best")
SAME = "final = best"


@dataclass(frozen=True)
class MeasureKey:
    """One part of a region by its number, or the whole region (None)."""

    region: str
    part: int | None = None


SeedMeasures = Mapping[MeasureKey, Mapping[str, float | None]]
"""The metrics of one seed; of a region both pooled and as means over cells."""


@dataclass(frozen=True)
class GroupAtCheckpoint:
    """A group at one checkpoint, or at `SAME` where these are the same step in every seed."""

    group: Group
    checkpoint: str

    @cached_property
    def seeds(self) -> list[tuple[int | None, SeedMeasures]]:
        """The metrics of each evaluated seed."""
        each = [(run.seed, self.group.recorded(run)) for run in self.group.runs]
        return [(seed, measures_of(cells)) for seed, cells in each if cells]

    def values(self, key: MeasureKey, measure: str) -> list[float]:
        """One metric, seed by seed."""
        found = (measures.get(key, {}).get(measure) for _, measures in self.seeds)
        return [value for value in found if value is not None]

    def interval(self, key: MeasureKey, measure: str) -> tuple[float, float] | None:
        """The range of the seeds; of one seed the 95 % interval over its questions, where the metric has one."""
        values = self.values(key, measure)
        if len(values) > 1:
            return min(values), max(values)
        ends = [self.values(key, f"{measure}.{end}") for end in ("low", "high")]
        return (ends[0][0], ends[1][0]) if values and all(ends) else None


def measures_of(cells: Sequence[Cell]) -> SeedMeasures:
    """The metrics of the cells of one seed. Regions leave out cells that may overlap with training, unless all do."""
    found: dict[MeasureKey, Mapping[str, float | None]] = {}
    for region in REGIONS:
        inside = [cell for cell in cells if cell.region == region]
        scored = [cell for cell in inside if not cell.seen] or inside
        if scored:
            found[MeasureKey(region)] = _measures(scored)
    for cell in cells:
        if len(cell.at) == 1:
            found[MeasureKey(cell.region, next(iter(cell.at.values())))] = _measures([cell])
    return found


def _measures(cells: Sequence[Cell]) -> dict[str, float | None]:
    correct, count = sum(cell.correct for cell in cells), sum(cell.count for cell in cells)
    repeats = cells[0].repeats
    low, high = wilson(correct / repeats, count / repeats)
    exact = {EXACT: correct / count, f"{EXACT}{BY_MODULE}": fmean(cell.accuracy for cell in cells)}
    exact |= {f"{EXACT}.low": float(low), f"{EXACT}.high": float(high)}
    return exact | pooled([cell.numbers for cell in cells], [cell.texts for cell in cells])


def shown(groups: Sequence[Group]) -> list[GroupAtCheckpoint]:
    """Each group at its final and best checkpoints, once where they are the same step; at `group.checkpoint` alone
    where that is set, and at the evaluated one where neither was evaluated."""
    found = []
    for group in groups:
        if group.checkpoint is not None:
            found.append(GroupAtCheckpoint(group, group.checkpoint))
            continue
        named = [one for one in CHECKPOINTS if any(cell.checkpoint == one for run in group.runs for cell in run.cells)]
        if len(named) == 2 and all(_same_step(group, run) for run in range(len(group.runs))):
            found.append(GroupAtCheckpoint(group, SAME))
        elif named:
            found += [GroupAtCheckpoint(replace(group, checkpoint=one), one) for one in named]
        elif group.evaluated:
            found.append(GroupAtCheckpoint(group, group.evaluated[0][0].checkpoint))
    return found


def _same_step(group: Group, run: int) -> bool:
    steps = {name: {step for one, step in group.runs[run].checkpoints() if one == name} for name in CHECKPOINTS}
    return steps["final"] == steps["best"]


def parts_of(groups: Sequence[Group]) -> dict[str, list[tuple[MeasureKey, str]]]:
    """The evaluated parts with their names, by region, in the order of their numbers."""
    found: dict[MeasureKey, str] = {}
    for group in groups:
        for cell in (cell for run in group.runs for cell in run.cells):
            ((axis, size),) = cell.at.items()
            found.setdefault(MeasureKey(cell.region, size), cell.names.get(axis) or f"{axis_words(axis)} {size}")
    regions = {name: [key for key in found if key.region == name] for name in REGIONS}
    return {
        name: [(key, found[key]) for key in sorted(keys, key=lambda one: one.part or 0)]
        for name, keys in regions.items()
        if keys
    }


def measures_there(several: Sequence[GroupAtCheckpoint]) -> list[str]:
    """Which metrics were computed."""
    known = [measures for one in several for _, each in one.seeds for measures in each.values()]
    return told_in(ORDER, known)


def measures_drawn(several: Sequence[GroupAtCheckpoint]) -> list[str]:
    """Which of them have a chart."""
    there = measures_there(several)
    return [name for name in DRAWN if name in there][:2]


def is_share(measure: str) -> bool:
    return base(measure) == EXACT or base(measure) in SHARES


def measure_text(measure: str, value: float) -> str:
    """A number as in tables; shares in per cent, without the sign."""
    if is_share(measure):
        return percent(value)
    size = abs(value)
    if size >= 1e9:
        return f"{value:.2e}"
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 0.005 or not size else 3
    text = f"{value:,.{decimals}f}"
    return text if float(text.replace(",", "")) else text.removeprefix("-")


def title_of(measure: str) -> str:
    """`"Numbers right, %"`."""
    words = WORDS[base(measure)]
    return f"{words[:1].upper()}{words[1:]}" + ", %" * is_share(measure)


def median_texts(one: GroupAtCheckpoint, key: MeasureKey, measure: str) -> tuple[str, str]:
    """The median over seeds and its interval as texts: `("12.5", "[10, 15]")`; empty where there is none."""
    values: list[Any] = one.values(key, measure)
    if not values:
        return "", ""
    span = one.interval(key, measure)
    ends = "" if span is None else f"[{measure_text(measure, span[0])}, {measure_text(measure, span[1])}]"
    return measure_text(measure, median(values)), ends
