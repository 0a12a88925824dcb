"""Charts of named parts such as modules: for each part a point with its interval per group.

Parts have no order, so no line joins them; trained parts are separate from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import median
from typing import TYPE_CHECKING

from numerate.errors import UserError
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.colour import BORDER, SERIES
from numerate.reports.drawing import axis_ticks, color_class, legend_html, marker_svg
from numerate.reports.figure import MARKER_SHAPES, Style, assign_styles, legend_entries
from numerate.reports.figures import (
    GREY,
    MATPLOTLIB_MARKERS,
    MAX_WIDTH_INCHES,
    add_legend_below,
    add_note_above,
    figure_style,
    new_figure,
)
from numerate.reports.groups import Group, part_axis, region_labels
from numerate.reports.limits import MAX_POINT_GROUPS, groups_to_draw, left_out_note
from numerate.reports.metrics import (
    EXACT_MATCH,
    GroupAtCheckpoint,
    MetricKey,
    charted_metrics,
    format_median,
    groups_at_checkpoints,
    is_proportion,
    metric_title,
    named_parts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 158, 14, 6, 44
_MAX_NAME_CHARACTERS = 22


def wrap_name(name: str, max_characters: int = _MAX_NAME_CHARACTERS) -> list[str]:
    """Wraps a name at `max_characters` characters, after `_` and at spaces.

    >>> wrap_name("arithmetic__add_sub_multiple_longer")
    ['arithmetic__add_sub_', 'multiple_longer']
    """
    pieces = name.replace("_", "_\0").replace(" ", " \0").split("\0")
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > max_characters:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines if line.strip()]


class _ChartRows:
    """The rows of a chart: for each region its parts, and last their mean."""

    def __init__(self, groups: Sequence[Group], metric: str) -> None:
        styled = assign_styles([group.label for group in groups])
        self.styled_groups = [(one, styled[one.group.label]) for one in _groups_to_draw(groups)]
        """Sorted by colour."""
        self.styled_groups.sort(key=lambda pair: (pair[1].color or 0, pair[1].marker or 0))
        words, axis = region_labels(groups), part_axis(groups)
        self.regions: list[tuple[str, list[tuple[str, MetricKey, str]]]] = []
        for region, parts in named_parts(groups).items():
            lines = [(name, key, metric) for key, name in parts]
            mean = (f"mean of {axis}s", MetricKey(region), f"{metric}{CELL_MEAN_SUFFIX}")
            self.regions.append((words[region], lines + ([mean] if len(parts) > 1 else [])))

    def axis_range(self, metric: str) -> tuple[float, float]:
        """The range of the axis, including 0."""
        if is_proportion(metric):
            return 0.0, 1.0
        found = [
            value
            for one, _ in self.styled_groups
            for _, lines in self.regions
            for _, key, name in lines
            for value in one.values(key, name)
        ]
        return min([0.0, *found]), 1.03 * max([0.0, *found]) or 1.0


def _groups_to_draw(groups: Sequence[Group]) -> list[GroupAtCheckpoint]:
    return [
        one for one in groups_at_checkpoints(groups) if one.metrics_by_seed and one.checkpoint != "best"
    ] or groups_at_checkpoints(groups)


def part_charts(groups: Sequence[Group]) -> str:
    """The charts of a page with their key, side by side where there is room; "" if nothing was evaluated."""
    drawn_groups = groups_to_draw(groups, MAX_POINT_GROUPS)
    groups_at_checkpoint = _groups_to_draw(drawn_groups)
    if not any(one.metrics_by_seed for one in groups_at_checkpoint):
        return ""
    panels = [
        f"<figure><h3>{escape(metric_title(metric))}</h3>{part_chart(drawn_groups, metric)}</figure>"
        for metric in charted_metrics(groups_at_checkpoint)
    ]
    entries = legend_html(legend_entries([group.label for group in drawn_groups]), show_markers=True, show_lines=False)
    caption = escape(
        " ".join(filter(None, [_caption(groups_at_checkpoint, groups), left_out_note(groups, drawn_groups)]))
    )
    return f'{entries}<div class="panels wide">{"".join(panels)}</div><figcaption>{caption}</figcaption>'


def _caption(several: Sequence[GroupAtCheckpoint], groups: Sequence[Group]) -> str:
    cells = [cell for one in several for cells in one.group.evaluated_cells for cell in cells]
    sizes = sorted({cell.count // cell.repeats for cell in cells})
    count = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    counts = sorted({len(one.metrics_by_seed) for one in several})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = (
        "one seed; lines are 95 % intervals about these questions"
        if counts == [1]
        else f"points are medians of {number} seeds, lines run from the lowest to the highest, upright marks are "
        "single seeds"
    )
    methods = " and ".join(sorted({cell.method for cell in cells}))
    names = " and ".join(sorted({cells[0].checkpoint for one in several for cells in one.group.evaluated_cells}))
    return f"{count} questions of each {part_axis(groups)}, {methods}, {names} checkpoint; {what}."


def part_chart(groups: Sequence[Group], metric: str) -> str:
    """One metric of all groups as SVG."""
    lines = _ChartRows(groups, metric)
    count = len(lines.styled_groups)
    row_height = 12.0 if count <= 6 else 9.0
    low, high = lines.axis_range(metric)

    def x(value: float) -> float:
        return _LEFT + (min(max(value, low), high) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts: list[str] = []
    y = float(_TOP)
    for number, (title, region_rows) in enumerate(lines.regions):
        begin = y
        parts.append(f'<text class="region" x="{_LEFT}" y="{y + 14:.1f}">{escape(title)}</text>')
        y += 22
        for i, (name, key, what) in enumerate(region_rows):
            label = wrap_name(name)
            height = max(count * row_height, 15.0 * len(label)) + 10
            if i:
                parts.append(f'<line class="grid" x1="6" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            kind = ' class="whole"' * (key.part is None)
            for j, text in enumerate(label):
                at = y + height / 2 + 4 + 15 * (j - (len(label) - 1) / 2)
                parts.append(f'<text{kind} x="{_LEFT - 10}" y="{at:.1f}" text-anchor="end">{escape(text)}</text>')
            first = y + height / 2 - row_height * (count - 1) / 2
            for j, (one, style) in enumerate(lines.styled_groups):
                parts.append(_point_svg(one, key, what, name, x, first + j * row_height, style))
            y += height
        if number == 0:
            box = f'x="{_LEFT}" y="{begin:.1f}" width="{_WIDTH - _LEFT - _RIGHT}" height="{y - begin:.1f}"'
            parts.insert(0, f'<rect class="inside" {box}/>')
        if number + 1 < len(lines.regions):
            parts.append(f'<line class="limit" x1="6" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            y += 4
    bottom, scale = y, []
    for tick in axis_ticks(low, high) if not is_proportion(metric) else [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]:
        text = f"{100 * tick:.0f}" if is_proportion(metric) else f"{tick:g}"
        scale.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom:.1f}"/>')
        scale.append(f'<text x="{x(tick):.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{text}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    title = f'<text x="{middle:.0f}" y="{bottom + 36:.1f}" text-anchor="middle">{escape(metric_title(metric))}</text>'
    ordered_parts = parts[:1] + scale + parts[1:]
    size = f'viewBox="0 0 {_WIDTH} {bottom + _BOTTOM:.0f}"'
    name = f"{metric_title(metric)} by {part_axis(groups)}"
    return (
        f'<svg class="chart parts" {size} role="img" aria-label="{escape(name)}">{"".join(ordered_parts)}{title}</svg>'
    )


def _point_svg(
    one: GroupAtCheckpoint,
    key: MetricKey,
    metric: str,
    name: str,
    x: Callable[[float], float],
    y: float,
    style: Style,
) -> str:
    values = one.values(key, metric)
    if not values:
        return ""
    parts, span = [], one.interval(key, metric)
    if span is not None:
        parts.append(f'<line class="bar" x1="{x(span[0]):.1f}" x2="{x(span[1]):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for value in values if len(values) > 1 else ():
        parts.append(f'<line class="each" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{y - 4:.1f}" y2="{y + 4:.1f}"/>')
    parts.append(marker_svg(x(median(values)), y, style))
    text = " ".join(filter(None, format_median(one, key, metric)))
    tip = f"{one.group.label}\n{name}\n{metric_title(metric)}: {text}"
    return f'<g class="{color_class(style)}"><title>{escape(tip)}</title>{"".join(parts)}</g>'


def part_figure(tasks: Mapping[str, Sequence[Group]]) -> Figure:
    """The charts for a paper, of several tasks below each other. Raises `UserError` if nothing was evaluated."""
    groups_by_task = {
        name: groups_to_draw(groups, MAX_POINT_GROUPS)
        for name, groups in tasks.items()
        if any(g.evaluated_cells for g in groups)
    }
    if not groups_by_task:
        raise UserError("plot: nothing to draw; evaluate the runs first")
    metrics = {name: charted_metrics(_groups_to_draw(groups)) for name, groups in groups_by_task.items()}
    heights = {name: _figure_height(groups) for name, groups in groups_by_task.items()}
    across = max(map(len, metrics.values()))
    largest_task = max(groups_by_task.values(), key=len)
    entries = legend_entries([group.label for group in largest_task])
    with figure_style():
        figure = new_figure(
            min(MAX_WIDTH_INCHES, 1.6 + 2.7 * across), sum(heights.values()) + 0.25 + 0.2 * (len(entries) > 1)
        )
        table = figure.subplots(len(groups_by_task), across, squeeze=False, height_ratios=list(heights.values()))
        for row, (name, groups) in zip(table, groups_by_task.items(), strict=True):
            for i, axes in enumerate(row):
                if i < len(metrics[name]):
                    _draw_panel(axes, groups, metrics[name][i], first=i == 0)
                else:
                    axes.set_axis_off()
            if len(groups_by_task) > 1:
                row[0].set_title(name, loc="left", fontsize=8, fontweight="bold")
        add_legend_below(figure, entries)
        add_note_above(figure, _caption(_groups_to_draw(largest_task), largest_task))
    return figure


def _figure_height(groups: Sequence[Group]) -> float:
    lines = _ChartRows(groups, EXACT_MATCH)
    return 0.75 + sum(max(0.26, 0.075 * len(lines.styled_groups) + 0.08) for _, inside in lines.regions for _ in inside)


def _draw_panel(axes: Axes, groups: Sequence[Group], metric: str, *, first: bool) -> None:
    lines = _ChartRows(groups, metric)
    count = len(lines.styled_groups)
    scale = 100.0 if is_proportion(metric) else 1.0
    step, y = 0.8 / max(count, 4), 0.0
    ys, labels = [], []
    for number, (title, inside) in enumerate(lines.regions):
        begin = y
        for i, (name, key, what) in enumerate(inside):
            if i:
                axes.axhline(y - 0.5, color="#e2dfd6", linewidth=0.5, zorder=0.5)
            for j, (one, style) in enumerate(lines.styled_groups):
                _draw_point(axes, one, key, what, y + step * (j - (count - 1) / 2), style, scale)
            ys.append(y)
            labels.append("\n".join(wrap_name(name)))
            y += 1
        if number == 0:
            axes.axhspan(begin - 0.5, y - 0.5, color="#f0efe9", linewidth=0, zorder=0)
        if number + 1 < len(lines.regions):
            axes.axhline(y - 0.5, color=BORDER, linewidth=1.1, zorder=1)
        if first:
            transform, color = axes.get_yaxis_transform(), BORDER if number == 0 else GREY
            axes.text(-0.02, begin - 0.42, title, transform=transform, ha="right", va="top", fontsize=6, color=color)
    axes.set_ylim(y - 0.5, -0.5)
    axes.set_yticks(ys, labels if first else [""] * len(ys), fontsize=6.5)
    low, high = lines.axis_range(metric)
    axes.set_xlim((-3, 103) if is_proportion(metric) else (low - 0.02 * (high - low), high + 0.04 * (high - low)))
    axes.set_xlabel(metric_title(metric))
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _draw_point(
    axes: Axes, one: GroupAtCheckpoint, key: MetricKey, metric: str, y: float, style: Style, scale: float
) -> None:
    values = [scale * value for value in one.values(key, metric)]
    if not values:
        return
    color, span = SERIES[style.color or 0], one.interval(key, metric)
    if span is not None:
        axes.plot([scale * span[0], scale * span[1]], [y, y], color=color, linewidth=1.4, alpha=0.45)
    if len(values) > 1:
        axes.plot(values, [y] * len(values), "|", color=color, markersize=3.4, markeredgewidth=0.7)
    axes.plot(
        [median(values)],
        [y],
        MATPLOTLIB_MARKERS[MARKER_SHAPES[style.marker or 0]],
        color=color,
        markersize=3.4,
        linestyle="",
    )
