"""The scores that a kind of evaluation adds to exact match, by region."""

from collections.abc import Sequence

from numerate.evaluation.statistics import wilson_interval
from numerate.reports.content import Content
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.reports.groups import Group
from numerate.reports.table import TextTable


def scores_content(groups: Sequence[Group]) -> Content:
    """A row per group and region and a column per score, in percent over all held-out questions; nothing without
    scores."""
    rows = []
    cells_of = [[cell for run in group.runs for cell in group.recorded_cells(run) if cell.scores] for group in groups]
    names = list(dict.fromkeys(name for cells in cells_of for cell in cells for name in cell.scores))
    for group, cells in zip(groups, cells_of, strict=True):
        for region, label in REGION_LABELS.items():
            own = [cell for cell in cells if cell.region == region]
            own = [cell for cell in own if not cell.overlaps_training] or own
            if count := sum(cell.count for cell in own):
                totals = [sum(cell.scores.get(name, 0.0) for cell in own) for name in names]
                rows.append([group.label, label, *(_share_text(total, count) for total in totals), f"{count:,}"])
    return [TextTable(["run", "region", *(f"{name}, %" for name in names), "questions"], rows)] if rows else []


def _share_text(total: float, count: int) -> str:
    low, high = wilson_interval(total, count)
    return f"{format_percent(total / count)} {format_interval(float(low), float(high))}"
