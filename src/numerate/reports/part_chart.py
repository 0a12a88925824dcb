"""Charts of named parts such as modules: for each part a point with its interval per group.

Parts have no order, so no line joins them; trained parts are apart from the others.
"""

from collections.abc import Mapping, Sequence

from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.colour import Style, assign_styles
from numerate.reports.figure import Axis, Figure, Mark, PointChart, PointRow
from numerate.reports.grid import span_text
from numerate.reports.groups import Group, charted_metrics, named_cells, part_axis, region_labels
from numerate.reports.limits import MAX_POINT_GROUPS, groups_to_draw, left_out_note
from numerate.reports.metrics import MetricKey, is_proportion, metric_title


def part_figure(tasks: Mapping[str, Sequence[Group]]) -> Figure:
    """A panel for each charted metric with a row for each part; several tasks below each other. No panels if nothing
    was evaluated."""
    panels: dict[str, list[PointChart]] = {}
    largest: Sequence[Group] = ()
    notes = ""
    for name, groups in tasks.items():
        drawn = groups_to_draw([group for group in groups if group.evaluated_cells], MAX_POINT_GROUPS)
        if drawn:
            metrics = charted_metrics(drawn)
            panels[name] = [_chart(drawn, metric, name * (metric == metrics[0])) for metric in metrics]
            if len(drawn) > len(largest):
                largest = drawn
                notes = " ".join(filter(None, [_caption(drawn), left_out_note(groups, drawn)]))
    columns = max(map(len, panels.values()), default=1)
    blank = [PointChart("", (), Axis.percent(""))] * columns
    rows = [panel for row in panels.values() for panel in [*row, *blank][:columns]]
    entries = list(assign_styles([group.label for group in largest]).items())
    return Figure(rows, columns, entries, caption=notes)


def _chart(groups: Sequence[Group], metric: str, title: str) -> PointChart:
    """One metric: for each region its parts, and last their mean."""
    styles = assign_styles([group.label for group in groups])
    words, rows = region_labels(groups), []
    for region, parts in named_cells(groups).items():
        lines = [(name, key, metric) for key, name in parts]
        if len(parts) > 1:
            lines.append((f"mean of {part_axis(groups)}s", MetricKey(region), f"{metric}{CELL_MEAN_SUFFIX}"))
        for name, key, what in lines:
            marks = [_mark(group, key, what, name, styles[group.label]) for group in groups]
            marks = [mark for mark in marks if mark.value is not None]
            is_trained = region == "in_distribution"
            rows.append(
                PointRow(name, marks, heading=words[region], is_trained=is_trained, is_summary=key.cell is None)
            )
    if is_proportion(metric):
        return PointChart(title, rows, Axis.percent(metric_title(metric)))
    values = [x for row in rows for mark in row.marks for x in (mark.value or 0.0, *mark.seeds, *(mark.interval or ()))]
    return PointChart(
        title, rows, Axis.linear(metric_title(metric), min([0.0, *values]), 1.03 * max([0.0, *values]) or 1.0)
    )


def _mark(group: Group, key: MetricKey, metric: str, name: str, style: Style) -> Mark:
    found = group.metric_estimate(key, metric)
    if not found.values:
        return Mark(style)
    tip = f"{group.label}\n{name}\n{metric_title(metric)}: {group.metric_text(key, metric)}"
    seeds = found.values if len(found.values) > 1 else ()
    return Mark(style, found.median, found.interval, seeds=seeds, tooltip=tip)


def _caption(groups: Sequence[Group]) -> str:
    cells = [cell for group in groups for cells in group.evaluated_cells for cell in cells]
    count = span_text(cell.count // cell.repeats for cell in cells)
    counts = {len(group.evaluated_cells) for group in groups}
    what = (
        "one seed; lines are 95 % intervals about these questions"
        if counts == {1}
        else f"points are medians of {span_text(counts)} seeds, lines run from the lowest to the highest, "
        "upright marks are single seeds"
    )
    methods = " and ".join(sorted({cell.method for cell in cells}))
    names = " and ".join(sorted({cell.checkpoint for cell in cells}))
    return f"{count} questions of each {part_axis(groups)}, {methods}, {names} checkpoint; {what}."
