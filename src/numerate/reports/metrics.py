"""Metrics of answers in each region and cell: of labels, numbers and texts, and the scores of a kind of evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

from numerate.evaluation.answer_metrics import (
    ANSWER_METRICS,
    PROPORTION_METRICS,
    base_metric,
    is_answer_metric,
    pooled_metrics,
)
from numerate.evaluation.labels import METRICS, LabelCounts, Metric
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.grid import cells_by_region, format_percent, held_out_cells
from numerate.reports.records import Cell

EXACT_MATCH = "exact_match"
"""The name of exact match, among all metrics."""

METRIC_LABELS = {str(name): title for name, title in METRICS.items()} | ANSWER_METRICS
"""Each metric with its name in reports; the scores of a kind of evaluation have their own name."""

COLUMN_LABELS = {
    "exact_match": "exact match",
    "ood_accuracy": "unseen counts",
    "accuracy": "all labels",
    "last_label": "last label",
    "correct_prefix": "correct prefix",
}
"""Short names of metrics in the header of a table; others have their own name there."""

METRIC_ORDER = (
    *METRICS,
    *("log_mae", "bleu", "number_accuracy", "within_1e-2", "missing", "invalid", "clipped", "mae", "mape"),
    *("median_error", "r2", "log_r2", "pearson", "spearman"),
    *("token_accuracy", "rouge1", "rouge2", "rougeL", "perplexity", "ended"),
)
"""The metrics of a page, in order; the scores of a kind of evaluation are last."""

MAIN_METRICS = (EXACT_MATCH, "log_mae", "bleu")
"""The main metrics: the first two of these that were computed."""


@dataclass(frozen=True)
class MetricKey:
    """One cell of a region by its coordinates, or the whole region (None)."""

    region: str
    cell: tuple[int, ...] | None = None


SeedMetrics = Mapping[MetricKey, Mapping[str, float | None]]
"""The metrics of one seed; those of a region over all its questions and, with `CELL_MEAN_SUFFIX`, as means over cells.

`.low`, `.high` and `.baseline` behind the name of a metric are the ends of its 95 % interval and its baseline."""


def metrics_of_cells(cells: Sequence[Cell], single_cells: Sequence[Cell] = ()) -> SeedMetrics:
    """The metrics of the cells of one seed by region, and those of single cells. Regions leave out cells that may
    overlap with training, unless all do."""
    inside: dict[MetricKey, Sequence[Cell]] = {
        MetricKey(region): held_out_cells(known) for region, known in cells_by_region(cells).items()
    }
    for cell in single_cells:
        inside[MetricKey(cell.region, tuple(cell.coordinates.values()))] = [cell]
    return {key: _pooled_metrics(scored, key.region) for key, scored in inside.items()}


def _pooled_metrics(cells: Sequence[Cell], region: str) -> dict[str, float | None]:
    repeats = cells[0].repeats
    found: dict[str, float | None] = {}

    def add(name: str, correct: float, scored: Sequence[Cell]) -> None:
        count = sum(cell.count for cell in scored)
        low, high = wilson_interval(correct / repeats, count / repeats)
        found.update({name: correct / count, f"{name}.low": float(low), f"{name}.high": float(high)})

    add(EXACT_MATCH, sum(cell.correct for cell in cells), cells)
    labels = [cell.labels for cell in cells if cell.labels is not None]
    if len(labels) == len(cells):
        found |= _label_metrics(LabelCounts.merge(labels), region)
    else:
        found[f"{EXACT_MATCH}{CELL_MEAN_SUFFIX}"] = fmean(cell.accuracy for cell in cells)
    for name in dict.fromkeys(name for cell in cells for name in cell.scores):
        scored = [cell for cell in cells if name in cell.scores]
        add(name, sum(cell.scores[name] for cell in scored), scored)
    return found | pooled_metrics([cell.numbers for cell in cells], [cell.texts for cell in cells])


def _label_metrics(labels: LabelCounts, region: str) -> dict[str, float | None]:
    """All metrics of labels, beyond training with their baselines."""
    is_trained = region == "in_distribution"
    found: dict[str, float | None] = {}
    for name in METRICS:
        score = labels.score_with_interval(name)
        if score is not None and (name, is_trained) != ("ood_accuracy", True):
            found |= {name: score.value, f"{name}.low": score.low, f"{name}.high": score.high}
            found |= {} if is_trained else {f"{name}.baseline": labels.baseline(name)}
    return found


def is_proportion(metric: str) -> bool:
    return base_metric(metric) not in ANSWER_METRICS or base_metric(metric) in PROPORTION_METRICS


def format_metric(metric: str, value: float | None, *, with_unit: bool = False) -> str:
    """A number as text: proportions in per cent, others with four digits; "" for None."""
    if value is None:
        return ""
    if is_proportion(metric):
        return f"{format_percent(value)}{' %' * with_unit}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def metric_title(metric: str) -> str:
    """`"Numbers right, %"`."""
    words = METRIC_LABELS.get(base_metric(metric), metric)
    return f"{words[:1].upper()}{words[1:]}" + ", %" * is_proportion(metric)


def split_metric(name: str | None) -> tuple[Metric | None, str | None]:
    """A metric name as (label metric or exact match, metric of numbers or texts); one is None. An unknown name is
    returned as the first, to be refused later."""
    return (None, name) if is_answer_metric(name) else (cast(Metric | None, name), None)
