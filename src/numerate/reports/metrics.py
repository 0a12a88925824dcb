"""Metrics of each part and region of a group: over all questions, and as the mean over cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from numerate.evaluation.answer_metrics import (
    ANSWER_METRICS,
    PROPORTION_METRICS,
    available_metrics,
    base_metric,
    pooled_metrics,
)
from numerate.evaluation.intervals import wilson_interval
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.grid import REGION_LABELS, axis_label, format_percent
from numerate.reports.groups import Group
from numerate.reports.records import Cell

EXACT_MATCH = "exact_match"
"""The name of exact match, among the metrics of numbers and texts."""

METRIC_LABELS = {EXACT_MATCH: "exact match", **ANSWER_METRICS}
"""Each metric with its name in reports."""

NUMBER_METRICS: tuple[str, ...] = (
    "number_accuracy",
    "within_1e-2",
    "missing",
    "invalid",
    "clipped",
    "mae",
    "median_error",
    "r2",
)
NUMBER_METRICS += ("log_r2", "pearson", "spearman")
TEXT_METRICS = ("token_accuracy", "rouge1", "rouge2", "rougeL", "perplexity", "ended")

METRIC_ORDER = (EXACT_MATCH, "log_mae", "bleu", *NUMBER_METRICS, *TEXT_METRICS)
"""The metrics of a page, in order."""

CHARTED_METRICS = (EXACT_MATCH, "log_mae", "bleu")
"""The metrics with a chart: the first two of these that were computed."""

CHECKPOINTS = ("final", "best")
SAME_CHECKPOINT = "final = best"


@dataclass(frozen=True)
class MetricKey:
    """One part of a region by its number, or the whole region (None)."""

    region: str
    part: int | None = None


SeedMetrics = Mapping[MetricKey, Mapping[str, float | None]]
"""The metrics of one seed; of a region both pooled and as means over cells."""


@dataclass(frozen=True)
class GroupAtCheckpoint:
    """A group at one checkpoint, or at `SAME_CHECKPOINT` where these are the same step in every seed."""

    group: Group
    checkpoint: str

    @cached_property
    def metrics_by_seed(self) -> list[tuple[int | None, SeedMetrics]]:
        """The metrics of each evaluated seed."""
        each = [(run.seed, self.group.recorded_cells(run)) for run in self.group.runs]
        return [(seed, metrics_of_cells(cells)) for seed, cells in each if cells]

    def values(self, key: MetricKey, metric: str) -> list[float]:
        """One metric, seed by seed."""
        found = (metrics.get(key, {}).get(metric) for _, metrics in self.metrics_by_seed)
        return [value for value in found if value is not None]

    def interval(self, key: MetricKey, metric: str) -> tuple[float, float] | None:
        """The range of the seeds; of one seed the 95 % interval over its questions, where the metric has one."""
        values = self.values(key, metric)
        if len(values) > 1:
            return min(values), max(values)
        ends = [self.values(key, f"{metric}.{end}") for end in ("low", "high")]
        return (ends[0][0], ends[1][0]) if values and all(ends) else None


def metrics_of_cells(cells: Sequence[Cell]) -> SeedMetrics:
    """The metrics of the cells of one seed. Regions leave out cells that may overlap with training, unless all do."""
    inside: dict[MetricKey, Sequence[Cell]] = {}
    for region in REGION_LABELS:
        inside[MetricKey(region)] = known = [cell for cell in cells if cell.region == region]
        inside[MetricKey(region)] = [cell for cell in known if not cell.overlaps_training] or known
    for cell in cells:
        if len(cell.coordinates) == 1:
            inside[MetricKey(cell.region, next(iter(cell.coordinates.values())))] = [cell]
    return {key: _pooled_metrics(scored) for key, scored in inside.items() if scored}


def _pooled_metrics(cells: Sequence[Cell]) -> dict[str, float | None]:
    correct, count = sum(cell.correct for cell in cells), sum(cell.count for cell in cells)
    low, high = wilson_interval(correct / cells[0].repeats, count / cells[0].repeats)
    exact = {EXACT_MATCH: correct / count, f"{EXACT_MATCH}{CELL_MEAN_SUFFIX}": fmean(cell.accuracy for cell in cells)}
    exact |= {f"{EXACT_MATCH}.low": float(low), f"{EXACT_MATCH}.high": float(high)}
    return exact | pooled_metrics([cell.numbers for cell in cells], [cell.texts for cell in cells])


def groups_at_checkpoints(groups: Sequence[Group]) -> list[GroupAtCheckpoint]:
    """Each group at its final and best checkpoints, once if they are the same step; at `group.checkpoint` alone
    where that is set, and at the evaluated one where neither was evaluated."""
    result = []
    for group in groups:
        each = [set(run.checkpoints()) for run in group.runs]
        steps = {name: [{step for one, step in known if one == name} for known in each] for name in CHECKPOINTS}
        named = [name for name in CHECKPOINTS if any(steps[name])]
        if group.checkpoint is not None:
            result.append(GroupAtCheckpoint(group, group.checkpoint))
        elif len(named) == 2 and steps["final"] == steps["best"]:
            result.append(GroupAtCheckpoint(group, SAME_CHECKPOINT))
        elif named:
            result += [GroupAtCheckpoint(replace(group, checkpoint=name), name) for name in named]
        elif group.evaluated_cells:
            result.append(GroupAtCheckpoint(group, group.evaluated_cells[0][0].checkpoint))
    return result


def named_parts(groups: Sequence[Group]) -> dict[str, list[tuple[MetricKey, str]]]:
    """The evaluated parts with their names, by region, in the order of their numbers."""
    found: dict[tuple[str, int], str] = {}
    for cell in (cell for group in groups for run in group.runs for cell in run.cells):
        ((axis, size),) = cell.coordinates.items()
        found.setdefault((cell.region, size), cell.names.get(axis) or f"{axis_label(axis)} {size}")
    by_region = {name: sorted(key for key in found if key[0] == name) for name in REGION_LABELS}
    return {name: [(MetricKey(*key), found[key]) for key in keys] for name, keys in by_region.items() if keys}


def computed_metrics(several: Sequence[GroupAtCheckpoint]) -> list[str]:
    """Which metrics were computed."""
    known = [metrics for one in several for _, each in one.metrics_by_seed for metrics in each.values()]
    return available_metrics(METRIC_ORDER, known)


def charted_metrics(several: Sequence[GroupAtCheckpoint]) -> list[str]:
    """Which of them have a chart."""
    there = computed_metrics(several)
    return [name for name in CHARTED_METRICS if name in there][:2]


def is_proportion(metric: str) -> bool:
    return base_metric(metric) == EXACT_MATCH or base_metric(metric) in PROPORTION_METRICS


def format_metric(metric: str, value: float) -> str:
    """A number as in tables; shares in per cent, without the sign."""
    if is_proportion(metric):
        return format_percent(value)
    size = abs(value)
    if size >= 1e9:
        return f"{value:.2e}"
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 0.005 or not size else 3
    text = f"{value:,.{decimals}f}"
    return text if float(text.replace(",", "")) else text.removeprefix("-")


def metric_title(metric: str) -> str:
    """`"Numbers right, %"`."""
    words = METRIC_LABELS[base_metric(metric)]
    return f"{words[:1].upper()}{words[1:]}" + ", %" * is_proportion(metric)


def format_median(group: GroupAtCheckpoint, key: MetricKey, metric: str) -> tuple[str, str]:
    """The median over seeds and its interval as texts: `("12.5", "[10, 15]")`; empty if there is none."""
    values: list[Any] = group.values(key, metric)
    if not values:
        return "", ""
    span = group.interval(key, metric)
    ends = "" if span is None else f"[{format_metric(metric, span[0])}, {format_metric(metric, span[1])}]"
    return format_metric(metric, median(values)), ends
