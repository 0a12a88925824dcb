"""Metrics of answers in each region and cell of a group: over all questions, and as the mean over cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import cast

from numerate.errors import UserError
from numerate.evaluation.answer_metrics import (
    ANSWER_METRICS,
    PROPORTION_METRICS,
    available_metrics,
    base_metric,
    is_answer_metric,
    pooled_metrics,
)
from numerate.evaluation.labels import Metric
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.grid import (
    ALL_REGION_LABELS,
    REGION_LABELS,
    cell_label,
    cells_by_region,
    format_percent,
    held_out_cells,
)
from numerate.reports.groups import Group
from numerate.reports.records import Cell

EXACT_MATCH = "exact_match"
"""The name of exact match, among the metrics of numbers and texts."""

METRIC_LABELS = {EXACT_MATCH: "exact match", **ANSWER_METRICS}
"""Each metric with its name in reports."""

METRIC_ORDER = (
    *(EXACT_MATCH, "log_mae", "bleu", "number_accuracy", "within_1e-2", "missing", "invalid", "clipped", "mae"),
    *("median_error", "r2", "log_r2", "pearson", "spearman"),
    *("token_accuracy", "rouge1", "rouge2", "rougeL", "perplexity", "ended"),
)
"""The metrics of a page, in order."""

CHARTED_METRICS = (EXACT_MATCH, "log_mae", "bleu")
"""The metrics with a chart: the first two of these that were computed."""

CHECKPOINTS = ("final", "best")
SAME_CHECKPOINT = "final = best"


@dataclass(frozen=True)
class MetricKey:
    """One cell of a region by its coordinates, or the whole region (None)."""

    region: str
    cell: tuple[int, ...] | None = None


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
        has_cells = self.group.has_unordered_cells or len(self.group.runs) == 1
        return [(seed, metrics_of_cells(cells, with_cells=has_cells)) for seed, cells in each if cells]

    def values_by_seed(self, key: MetricKey, metric: str) -> dict[int | None, float]:
        """One metric of each seed that has it."""
        found = ((seed, metrics.get(key, {}).get(metric)) for seed, metrics in self.metrics_by_seed)
        return {seed: value for seed, value in found if value is not None}

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

    def text(self, key: MetricKey, metric: str) -> str:
        """The median over seeds with its interval: `12.5 [10, 15]`; empty if there is none."""
        values, ends = self.values(key, metric), self.interval(key, metric)
        if not values:
            return ""
        texts = [format_metric(metric, value) for value in (median(values), *(ends or ()))]
        return f"{texts[0]} [{', '.join(texts[1:])}]" if ends else texts[0]


def metrics_of_cells(cells: Sequence[Cell], *, with_cells: bool = True) -> SeedMetrics:
    """The metrics of the cells of one seed, by region and cell. Regions leave out cells that may overlap with
    training, unless all do."""
    inside: dict[MetricKey, Sequence[Cell]] = {
        MetricKey(region): held_out_cells(known) for region, known in cells_by_region(cells).items()
    }
    for cell in cells if with_cells else ():
        inside[MetricKey(cell.region, tuple(cell.coordinates.values()))] = [cell]
    return {key: _pooled_metrics(scored) for key, scored in inside.items()}


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


def named_cells(groups: Sequence[Group]) -> dict[str, list[tuple[MetricKey, str]]]:
    """The evaluated cells with their names, by region, in the order of their coordinates."""
    found: dict[MetricKey, str] = {}
    for group in groups:
        for cell in (cell for run in group.runs for cell in run.cells):
            key = MetricKey(cell.region, tuple(cell.coordinates.values()))
            found.setdefault(key, cell_label(cell.coordinates, group.operator, cell.names))
    by_region = {
        name: sorted((key for key in found if key.region == name), key=lambda key: key.cell or ())
        for name in REGION_LABELS
    }
    return {name: [(key, found[key]) for key in keys] for name, keys in by_region.items() if keys}


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


def format_metric(metric: str, value: float | None, *, with_unit: bool = False) -> str:
    """A number as text: proportions in per cent, others with four digits; "" for None."""
    if value is None:
        return ""
    if is_proportion(metric):
        return f"{format_percent(value)}{' %' * with_unit}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def metric_title(metric: str) -> str:
    """`"Numbers right, %"`."""
    words = METRIC_LABELS[base_metric(metric)]
    return f"{words[:1].upper()}{words[1:]}" + ", %" * is_proportion(metric)


def split_metric(name: str | None) -> tuple[Metric | None, str | None]:
    """A metric name as (label metric or exact match, metric of numbers or texts); one is None. An unknown name is
    returned as the first, to be refused later."""
    return (None, name) if is_answer_metric(name) else (cast(Metric | None, name), None)


def check_has_metric(groups: Sequence[Group], metric: str | None) -> None:
    """Raises `UserError` for a group whose records do not have a metric of numbers or texts; nothing for None."""
    for group in groups if metric is not None else ():
        one = GroupAtCheckpoint(group, "")
        if not any(one.values(MetricKey(region), str(metric)) for region in ALL_REGION_LABELS):
            raise UserError(f"metric: {group.label} has no {metric}; numerate evaluate RUN method=decoding computes it")
