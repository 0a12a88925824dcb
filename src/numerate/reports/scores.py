"""The scores that a kind of evaluation adds to exact match, by region."""

from html import escape

from numerate.evaluation.statistics import wilson_interval
from numerate.reports.drawing import html_table
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.reports.groups import Group


def score_table(group: Group) -> str:
    """A row per region and a column per score, in percent over all held-out questions; "" without scores."""
    cells = [cell for run in group.runs for cell in group.recorded_cells(run) if cell.scores]
    names = list(dict.fromkeys(name for cell in cells for name in cell.scores))
    rows = []
    for region, label in REGION_LABELS.items():
        own = [cell for cell in cells if cell.region == region]
        own = [cell for cell in own if not cell.overlaps_training] or own
        if count := sum(cell.count for cell in own):
            totals = [sum(cell.scores.get(name, 0.0) for cell in own) for name in names]
            rows.append([escape(label), *(_share_text(total, count) for total in totals), f"{count:,}"])
    header = ["region", *(f"{escape(name)}, %" for name in names), "questions"]
    return html_table(header, rows, number_columns=range(1, len(header))) if rows else ""


def _share_text(total: float, count: int) -> str:
    low, high = wilson_interval(total, count)
    return f"{format_percent(total / count)} {format_interval(float(low), float(high))}"
