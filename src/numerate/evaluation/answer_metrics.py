"""All metrics of number and text answers: by name, of records, and over several cells."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from numerate.evaluation.number_metrics import NUMBER_METRICS, NumberScores
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.evaluation.text_metrics import TEXT_METRICS, TextScores

_METRICS = NUMBER_METRICS | TEXT_METRICS

ANSWER_METRICS = {name: metric.title for name, metric in _METRICS.items()}
"""Every metric with its name in reports."""

PROPORTION_METRICS = frozenset(name for name, metric in _METRICS.items() if metric.is_proportion)
"""The metrics that are fractions from 0 to 1, displayed in percent."""

LOWER_IS_BETTER = frozenset(name for name, metric in _METRICS.items() if metric.lower_is_better)

METRIC_NAMES = (*ANSWER_METRICS, *(f"{name}{CELL_MEAN_SUFFIX}" for name in ANSWER_METRICS))
"""The names of all metrics: pooled over all questions, and as the mean over modules (cells)."""


def base_metric(name: str) -> str:
    """The metric of a name, without `CELL_MEAN_SUFFIX`."""
    return name.removesuffix(CELL_MEAN_SUFFIX)


def pooled_metrics(
    numbers: Iterable[NumberScores | None], texts: Iterable[TextScores | None] = ()
) -> dict[str, float | None]:
    """Every metric of several cells twice: over all questions, `log_mae`, and as the mean over the cells that have it,
    equally weighted, `log_mae (mean of modules)`; for number answers, text answers or both, {} for neither.

    Those with a 95 % interval (`NumberScores.intervals`) have `number_accuracy.low`, `number_accuracy.high` and so on.
    """
    metrics: dict[str, float | None] = {}
    if cells := [scores for scores in numbers if scores is not None and scores.count]:
        whole = NumberScores.merge(cells)
        metrics = whole.metrics() | _cell_means(cells) | whole.intervals()
    if text_cells := [scores for scores in texts if scores is not None and scores.count]:
        metrics |= TextScores.merge(text_cells).metrics() | _cell_means(text_cells)
    return metrics


def _cell_means(cells: Sequence[NumberScores] | Sequence[TextScores]) -> dict[str, float | None]:
    by_cell = [scores.metrics() for scores in cells]
    found = {name: [value for metrics in by_cell if (value := metrics[name]) is not None] for name in by_cell[0]}
    return {f"{name}{CELL_MEAN_SUFFIX}": fmean(values) if values else None for name, values in found.items()}


def own_scores(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a line or record of a kind of evaluation that counts no answers, without the entries that all
    have."""
    shared = ("step", "position_offset", "cells", "count", "seed", "evaluation_seed")
    return {
        name: value
        for name, value in line.items()
        if name not in shared and isinstance(value, int | float) and not isinstance(value, bool)
    }
