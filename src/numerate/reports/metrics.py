"""Metrics of number and text answers as text."""

from numerate.evaluation.answer_metrics import ANSWER_METRICS, PROPORTION_METRICS, base_metric
from numerate.reports.grid import format_percent


def is_proportion(metric: str) -> bool:
    return base_metric(metric) not in ANSWER_METRICS or base_metric(metric) in PROPORTION_METRICS


def format_metric(metric: str, value: float | None, *, with_unit: bool = False) -> str:
    """A number as text: proportions in per cent, others with four digits; "" for None."""
    if value is None:
        return ""
    if is_proportion(metric):
        return f"{format_percent(value)}{' %' * with_unit}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
