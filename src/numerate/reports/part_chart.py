"""Charts of named parts such as modules: for each part a point with its interval per group.

Parts have no order, so no line joins them; trained parts are separate from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import median
from typing import TYPE_CHECKING

from numerate.errors import UserError
from numerate.evaluation.sums import BY_MODULE
from numerate.reports.charts import SHAPES, Style, legend, styles
from numerate.reports.colour import FRAME, SERIES
from numerate.reports.drawing import colour_class, dot, legend_html, ticks
from numerate.reports.figures import MARKERS, QUIET, WIDTH, below, blank, note_above, styled
from numerate.reports.groups import Group, part_axis, region_words
from numerate.reports.limits import MOST_POINTS, drawn, left_out
from numerate.reports.measures import (
    EXACT,
    GroupAtCheckpoint,
    MeasureKey,
    is_share,
    measures_drawn,
    median_texts,
    parts_of,
    shown,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 158, 14, 6, 44
_LETTERS = 22


def wrapped(name: str, letters: int = _LETTERS) -> list[str]:
    """Wraps a name at `letters` characters, after `_` and at spaces.

    >>> wrapped("arithmetic__add_sub_multiple_longer")
    ['arithmetic__add_sub_', 'multiple_longer']
    """
    pieces = name.replace("_", "_\0").replace(" ", " \0").split("\0")
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > letters:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines if line.strip()]


class _Lines:
    """The rows of a chart: for each region its parts, and last their mean."""

    def __init__(self, groups: Sequence[Group], measure: str) -> None:
        styled = styles([group.label for group in groups])
        self.several = [(one, styled[one.group.label]) for one in _drawn(groups)]
        """Sorted by colour."""
        self.several.sort(key=lambda pair: (pair[1].colour or 0, pair[1].shape or 0))
        words, axis = region_words(groups), part_axis(groups)
        self.regions: list[tuple[str, list[tuple[str, MeasureKey, str]]]] = []
        for region, parts in parts_of(groups).items():
            lines = [(name, key, measure) for key, name in parts]
            mean = (f"mean of {axis}s", MeasureKey(region), f"{measure}{BY_MODULE}")
            self.regions.append((words[region], lines + ([mean] if len(parts) > 1 else [])))

    def span(self, measure: str) -> tuple[float, float]:
        """The range of the axis, including 0."""
        if is_share(measure):
            return 0.0, 1.0
        found = [
            value
            for one, _ in self.several
            for _, lines in self.regions
            for _, key, name in lines
            for value in one.values(key, name)
        ]
        return min([0.0, *found]), 1.03 * max([0.0, *found]) or 1.0


def _drawn(groups: Sequence[Group]) -> list[GroupAtCheckpoint]:
    return [one for one in shown(groups) if one.seeds and one.checkpoint != "best"] or shown(groups)


def part_charts(groups: Sequence[Group]) -> str:
    """The charts of a page with their key, side by side where there is room; "" where nothing was evaluated."""
    those = drawn(groups, MOST_POINTS)
    several = _drawn(those)
    if not any(one.seeds for one in several):
        return ""
    panels = [
        f"<figure><h3>{escape(title_of(measure))}</h3>{part_chart(those, measure)}</figure>"
        for measure in measures_drawn(several)
    ]
    entries = legend_html(legend([group.label for group in those]), dots=True, lines=False)
    caption = escape(" ".join(filter(None, [_caption(several, groups), left_out(groups, those)])))
    return f'{entries}<div class="panels wide">{"".join(panels)}</div><figcaption>{caption}</figcaption>'


def _caption(several: Sequence[GroupAtCheckpoint], groups: Sequence[Group]) -> str:
    cells = [cell for one in several for cells in one.group.evaluated for cell in cells]
    sizes = sorted({cell.count // cell.repeats for cell in cells})
    count = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    counts = sorted({len(one.seeds) for one in several})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = (
        "one seed; lines are 95 % intervals about these questions"
        if counts == [1]
        else f"points are medians of {number} seeds, lines run from the lowest to the highest, upright marks are "
        "single seeds"
    )
    methods = " and ".join(sorted({cell.method for cell in cells}))
    names = " and ".join(sorted({cells[0].checkpoint for one in several for cells in one.group.evaluated}))
    return f"{count} questions of each {part_axis(groups)}, {methods}, {names} checkpoint; {what}."


def part_chart(groups: Sequence[Group], measure: str) -> str:
    """One measure of all groups as SVG."""
    lines = _Lines(groups, measure)
    count = len(lines.several)
    pitch = 12.0 if count <= 6 else 9.0
    low, high = lines.span(measure)

    def x(value: float) -> float:
        return _LEFT + (min(max(value, low), high) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts: list[str] = []
    y = float(_TOP)
    for number, (title, inside) in enumerate(lines.regions):
        begin = y
        parts.append(f'<text class="region" x="{_LEFT}" y="{y + 14:.1f}">{escape(title)}</text>')
        y += 22
        for i, (name, key, what) in enumerate(inside):
            label = wrapped(name)
            height = max(count * pitch, 15.0 * len(label)) + 10
            if i:
                parts.append(f'<line class="grid" x1="6" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            kind = ' class="whole"' * (key.part is None)
            for j, text in enumerate(label):
                at = y + height / 2 + 4 + 15 * (j - (len(label) - 1) / 2)
                parts.append(f'<text{kind} x="{_LEFT - 10}" y="{at:.1f}" text-anchor="end">{escape(text)}</text>')
            first = y + height / 2 - pitch * (count - 1) / 2
            for j, (one, style) in enumerate(lines.several):
                parts.append(_point(one, key, what, name, x, first + j * pitch, style))
            y += height
        if number == 0:
            box = f'x="{_LEFT}" y="{begin:.1f}" width="{_WIDTH - _LEFT - _RIGHT}" height="{y - begin:.1f}"'
            parts.insert(0, f'<rect class="inside" {box}/>')
        if number + 1 < len(lines.regions):
            parts.append(f'<line class="limit" x1="6" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            y += 4
    bottom, scale = y, []
    for tick in ticks(low, high) if not is_share(measure) else [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]:
        text = f"{100 * tick:.0f}" if is_share(measure) else f"{tick:g}"
        scale.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom:.1f}"/>')
        scale.append(f'<text x="{x(tick):.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{text}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    title = f'<text x="{middle:.0f}" y="{bottom + 36:.1f}" text-anchor="middle">{escape(title_of(measure))}</text>'
    inside_first = parts[:1] + scale + parts[1:]
    size = f'viewBox="0 0 {_WIDTH} {bottom + _BOTTOM:.0f}"'
    name = f"{title_of(measure)} by {part_axis(groups)}"
    return (
        f'<svg class="chart parts" {size} role="img" aria-label="{escape(name)}">{"".join(inside_first)}{title}</svg>'
    )


def _point(
    one: GroupAtCheckpoint,
    key: MeasureKey,
    measure: str,
    name: str,
    x: Callable[[float], float],
    y: float,
    style: Style,
) -> str:
    values = one.values(key, measure)
    if not values:
        return ""
    parts, span = [], one.interval(key, measure)
    if span is not None:
        parts.append(f'<line class="bar" x1="{x(span[0]):.1f}" x2="{x(span[1]):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for value in values if len(values) > 1 else ():
        parts.append(f'<line class="each" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{y - 4:.1f}" y2="{y + 4:.1f}"/>')
    parts.append(dot(x(median(values)), y, style))
    text = " ".join(filter(None, median_texts(one, key, measure)))
    tip = f"{one.group.label}\n{name}\n{title_of(measure)}: {text}"
    return f'<g class="{colour_class(style)}"><title>{escape(tip)}</title>{"".join(parts)}</g>'


def part_figure(tasks: Mapping[str, Sequence[Group]]) -> Figure:
    """The charts for a paper, of several tasks below each other. Raises `UserError` where nothing was evaluated."""
    filled = {name: drawn(groups, MOST_POINTS) for name, groups in tasks.items() if any(g.evaluated for g in groups)}
    if not filled:
        raise UserError("plot: nothing to draw; evaluate the runs first")
    measures = {name: measures_drawn(_drawn(groups)) for name, groups in filled.items()}
    heights = {name: _inches(groups) for name, groups in filled.items()}
    across = max(map(len, measures.values()))
    most = max(filled.values(), key=len)
    entries = legend([group.label for group in most])
    with styled():
        figure = blank(min(WIDTH, 1.6 + 2.7 * across), sum(heights.values()) + 0.25 + 0.2 * (len(entries) > 1))
        table = figure.subplots(len(filled), across, squeeze=False, height_ratios=list(heights.values()))
        for row, (name, groups) in zip(table, filled.items(), strict=True):
            for i, axes in enumerate(row):
                if i < len(measures[name]):
                    _draw(axes, groups, measures[name][i], first=i == 0)
                else:
                    axes.set_axis_off()
            if len(filled) > 1:
                row[0].set_title(name, loc="left", fontsize=8, fontweight="bold")
        below(figure, entries)
        note_above(figure, _caption(_drawn(most), most))
    return figure


def _inches(groups: Sequence[Group]) -> float:
    lines = _Lines(groups, EXACT)
    return 0.75 + sum(max(0.26, 0.075 * len(lines.several) + 0.08) for _, inside in lines.regions for _ in inside)


def _draw(axes: Axes, groups: Sequence[Group], measure: str, *, first: bool) -> None:
    lines = _Lines(groups, measure)
    count = len(lines.several)
    scale = 100.0 if is_share(measure) else 1.0
    step, y = 0.8 / max(count, 4), 0.0
    ys, labels = [], []
    for number, (title, inside) in enumerate(lines.regions):
        begin = y
        for i, (name, key, what) in enumerate(inside):
            if i:
                axes.axhline(y - 0.5, color="#e2dfd6", linewidth=0.5, zorder=0.5)
            for j, (one, style) in enumerate(lines.several):
                _draw_point(axes, one, key, what, y + step * (j - (count - 1) / 2), style, scale)
            ys.append(y)
            labels.append("\n".join(wrapped(name)))
            y += 1
        if number == 0:
            axes.axhspan(begin - 0.5, y - 0.5, color="#f0efe9", linewidth=0, zorder=0)
        if number + 1 < len(lines.regions):
            axes.axhline(y - 0.5, color=FRAME, linewidth=1.1, zorder=1)
        if first:
            place_of, colour = axes.get_yaxis_transform(), FRAME if number == 0 else QUIET
            axes.text(-0.02, begin - 0.42, title, transform=place_of, ha="right", va="top", fontsize=6, color=colour)
    axes.set_ylim(y - 0.5, -0.5)
    axes.set_yticks(ys, labels if first else [""] * len(ys), fontsize=6.5)
    low, high = lines.span(measure)
    axes.set_xlim((-3, 103) if is_share(measure) else (low - 0.02 * (high - low), high + 0.04 * (high - low)))
    axes.set_xlabel(title_of(measure))
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _draw_point(
    axes: Axes, one: GroupAtCheckpoint, key: MeasureKey, measure: str, y: float, style: Style, scale: float
) -> None:
    values = [scale * value for value in one.values(key, measure)]
    if not values:
        return
    colour, span = SERIES[style.colour or 0], one.interval(key, measure)
    if span is not None:
        axes.plot([scale * span[0], scale * span[1]], [y, y], color=colour, linewidth=1.4, alpha=0.45)
    if len(values) > 1:
        axes.plot(values, [y] * len(values), "|", color=colour, markersize=3.4, markeredgewidth=0.7)
    axes.plot([median(values)], [y], MARKERS[SHAPES[style.shape or 0]], color=colour, markersize=3.4, linestyle="")
