"""All metrics of number and text answers: by name, of records, and over several cells."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numerate.errors import UserError, did_you_mean
from numerate.evaluation import number_metrics, text_metrics
from numerate.evaluation.intervals import wilson_interval
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.evaluation.text_metrics import TextScores

ANSWER_METRICS: dict[str, str] = {**number_metrics.NUMBER_METRICS, **text_metrics.TEXT_METRICS}
"""Every metric with its name in reports."""

PROPORTION_METRICS = frozenset(number_metrics.PROPORTION_METRICS) | {"token_accuracy", "ended"}
"""The metrics that are fractions from 0 to 1, displayed in percent."""

LOWER_IS_BETTER = frozenset(name for name in ANSWER_METRICS if "mae" in name or "mse" in name or "error" in name) | {
    "missing",
    "invalid",
    "clipped",
    "perplexity",
}

METRIC_NAMES = (*ANSWER_METRICS, *(f"{name}{CELL_MEAN_SUFFIX}" for name in ANSWER_METRICS))
"""The names of all metrics: pooled over all questions, and as the mean over modules (cells)."""


def available_metrics(names: Iterable[str], metrics_by_cell: Sequence[Mapping[str, float | None]]) -> list[str]:
    """The names of the metrics that have a value; `clipped` only if it is not 0."""
    values = {
        name: [value for metrics in metrics_by_cell if (value := metrics.get(name)) is not None] for name in names
    }
    return [
        name
        for name, metric_values in values.items()
        if (any(metric_values) if base_metric(name) == "clipped" else metric_values)
    ]


def base_metric(name: str) -> str:
    """The metric of a name, without `CELL_MEAN_SUFFIX`."""
    return name.removesuffix(CELL_MEAN_SUFFIX)


def check_metric(name: str) -> str:
    """A name of `NAMES`; raises `UserError` for any other."""
    if name not in METRIC_NAMES:
        hint = did_you_mean(name, METRIC_NAMES)
        raise UserError(
            f"metric: must be one of {', '.join(ANSWER_METRICS)}, each also with{CELL_MEAN_SUFFIX}, not {name!r}.{hint}"
        )
    return name


def is_answer_metric(name: str | None) -> bool:
    """Whether this is the name of a metric of number or text answers."""
    return name in METRIC_NAMES


def pooled_metrics(
    numbers: Iterable[NumberScores | None], texts: Iterable[TextScores | None]
) -> dict[str, float | None]:
    """Every metric of several cells under both of its names: for number answers, text answers or both; {} for neither.

    The share of exact numbers has Wilson's 95 % interval, `number_accuracy.low` and `number_accuracy.high`.
    """
    metrics: dict[str, float | None] = {}
    cells = [scores for scores in numbers if scores is not None and scores.count]
    if cells:
        metrics |= number_metrics.pooled_metrics(cells)
        low, high = wilson_interval(sum(scores.num_correct for scores in cells), sum(scores.count for scores in cells))
        metrics |= {"number_accuracy.low": float(low), "number_accuracy.high": float(high)}
    text_scores = [scores for scores in texts if scores is not None and scores.count]
    return metrics | (text_metrics.pooled_metrics(text_scores) if text_scores else {})


def metrics_from_records(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """`pooled_metrics` of the records of cells."""
    return pooled_metrics(map(NumberScores.from_record, records), map(TextScores.from_record, records))
