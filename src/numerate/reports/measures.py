"""What groups show by measure: of each part and of each region, over all questions and as the mean over cells."""

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
"""Every measure with the words that reports use."""

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
"""The measures that pages have, of those that there are."""

DRAWN = (EXACT, "log_mae", "bleu")
"""The measures that have a chart: the first two that there are."""

CHECKPOINTS = ("final", "best")
SAME = "final = best"


@dataclass(frozen=True)
class MeasureKey:
    """What a number is of: one part of a region by its number, or where that is None the whole region."""

    region: str
    part: int | None = None


Told = Mapping[MeasureKey, Mapping[str, float | None]]
"""The measures of one seed by place; of a region under both of their names, pooled and as means over cells."""


@dataclass(frozen=True)
class GroupAtCheckpoint:
    """A group at one checkpoint, or at `SAME` where these are the same step in every seed."""

    group: Group
    checkpoint: str

    @cached_property
    def seeds(self) -> list[tuple[int | None, Told]]:
        """What each seed shows that was evaluated there."""
        each = [(run.seed, self.group.recorded(run)) for run in self.group.runs]
        return [(seed, told_of(cells)) for seed, cells in each if cells]

    def values(self, place: MeasureKey, measure: str) -> list[float]:
        """A measure there, seed by seed."""
        found = (told.get(place, {}).get(measure) for _, told in self.seeds)
        return [value for value in found if value is not None]

    def interval(self, place: MeasureKey, measure: str) -> tuple[float, float] | None:
        """From the lowest to the highest seed; of a single one the 95 % interval about its questions, where the measure
        has one."""
        values = self.values(place, measure)
        if len(values) > 1:
            return min(values), max(values)
        ends = [self.values(place, f"{measure}.{end}") for end in ("low", "high")]
        return (ends[0][0], ends[1][0]) if values and all(ends) else None


def told_of(cells: Sequence[Cell]) -> Told:
    """The measures of the cells of one seed. In regions cells that training may have met are left out, unless there are
    no others."""
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
    """Each group at its final and at its best checkpoint, once where these are the same; one whose checkpoint is said
    at that alone, and one that was evaluated at neither as its reports are."""
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
    """The parts that groups were asked, by region and with their names, in the order of their numbers."""
    found: dict[MeasureKey, str] = {}
    for group in groups:
        for cell in (cell for run in group.runs for cell in run.cells):
            ((axis, size),) = cell.at.items()
            found.setdefault(MeasureKey(cell.region, size), cell.names.get(axis) or f"{axis_words(axis)} {size}")
    regions = {name: [place for place in found if place.region == name] for name in REGIONS}
    return {
        name: [(place, found[place]) for place in sorted(places, key=lambda one: one.part or 0)]
        for name, places in regions.items()
        if places
    }


def measures_there(several: Sequence[GroupAtCheckpoint]) -> list[str]:
    """Which measures there are."""
    told = [measures for one in several for _, each in one.seeds for measures in each.values()]
    return told_in(ORDER, told)


def measures_drawn(several: Sequence[GroupAtCheckpoint]) -> list[str]:
    """Which of them have a chart."""
    there = measures_there(several)
    return [name for name in DRAWN if name in there][:2]


def is_share(measure: str) -> bool:
    return base(measure) == EXACT or base(measure) in SHARES


def measure_text(measure: str, value: float) -> str:
    """A number as the tables have it: shares in per cent, of which the head of the table tells."""
    if is_share(measure):
        return percent(value)
    size = abs(value)
    if size >= 1e9:
        return f"{value:.2e}"
    places = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 0.005 or not size else 3
    text = f"{value:,.{places}f}"
    return text if float(text.replace(",", "")) else text.removeprefix("-")


def title_of(measure: str) -> str:
    """`"Numbers right, %"`."""
    words = WORDS[base(measure)]
    return f"{words[:1].upper()}{words[1:]}" + ", %" * is_share(measure)


def told_text(one: GroupAtCheckpoint, place: MeasureKey, measure: str) -> tuple[str, str]:
    """The median of the seeds and its interval as texts: `("12.5", "[10, 15]")`; empty where there is none."""
    values: list[Any] = one.values(place, measure)
    if not values:
        return "", ""
    span = one.interval(place, measure)
    ends = "" if span is None else f"[{measure_text(measure, span[0])}, {measure_text(measure, span[1])}]"
    return measure_text(measure, median(values)), ends
