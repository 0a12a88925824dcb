"""Elements of report pages: heat maps as tables with tooltips, charts and strips as SVG, tables, legends."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from urllib.parse import quote

from numerate.evaluation.labels import METRICS
from numerate.reports.figure import BASELINE_DASHES, MARKER_SHAPES, Chart, ChartLine, Style
from numerate.reports.grid import (
    PlotGrid,
    Point,
    axis_label,
    cell_label,
    format_integer_percent,
    format_interval,
    format_percent,
    length_ticks,
    tick_step,
)
from numerate.reports.limits import MAX_TOOLTIP_SEEDS, MAX_UNFOLDED_ROWS

MAX_NUMBER_COLUMNS = 24
"""Maps with more columns than this show colors only; the numbers stay on hover."""

_SIDES = {"top": "t", "bottom": "b", "left": "s", "right": "e"}
_WIDTH, _HEIGHT = 390, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 16, 22, 42


def tooltip(point: Point, operator: str | None = None) -> str:
    """The tooltip of a cell: position, share, interval or seeds, and whether it may overlap with training."""
    lines = [cell_label(point.coordinates, operator, point.names)]
    if len(point.seed_scores) == 1:
        lines.append(f"{format_percent(point.score)} % correct {format_interval(point.low, point.high)}")
        exact = point.metric == "exact_match"
        lines.append(f"{round(point.score * point.count)} of {point.count} questions" if exact else _rows(point))
    else:
        lines.append(f"median {format_percent(point.score)} %, seeds {format_interval(point.low, point.high)}")
        several = len(point.seed_scores) > MAX_TOOLTIP_SEEDS
        seeds = (
            f"{len(point.seed_scores)} seeds"
            if several
            else "each: " + ", ".join(format_percent(share) for share in point.seed_scores)
        )
        lines.append(seeds)
    if point.baseline is not None:
        lines.append(f"baseline {format_percent(point.baseline)} %")
    if point.note and point.score < 1:
        lines.append(point.note)
    if point.overlaps_training:
        lines.append("too few questions to hold any out: may overlap with training")
    return "\n".join(lines)


def _rows(point: Point) -> str:
    return f"{METRICS[point.metric]}, {point.count} row{'s' * (point.count != 1)}"


def heat_map(grid: PlotGrid, operator: str | None = None, *, show_numbers: bool = True) -> str:
    """A grid as an HTML table; the style sheet has the colours."""
    has_many_columns = len(grid.columns) > MAX_NUMBER_COLUMNS
    label_step = tick_step(len(grid.columns), 10) if has_many_columns else 1
    label_step = label_step if show_numbers else max(label_step, 5)
    show_numbers = show_numbers and len(grid.columns) <= MAX_NUMBER_COLUMNS
    num_table_columns = len(grid.columns) + 1

    def label(value: int) -> str:
        return str(value) if value % label_step == 0 or value == grid.columns[0] else ""

    head = "".join(f'<th scope="col">{label(column)}</th>' for column in grid.columns)
    rows = []
    for i, row in enumerate(grid.rows):
        cells = "".join(_cell(grid, i, j, operator, show_numbers) for j in range(len(grid.columns)))
        rows.append(f'<tr><th scope="row">{label(row) if grid.row_axis else ""}</th>{cells}</tr>')
    kind, widths = ("map sparse", "<col>") if has_many_columns else ("map", "")
    table_tag = f'<table class="{kind}" style="--n:{num_table_columns}">{widths}'
    caption = f'<p class="axis">{escape(map_axes_label(grid))}</p>'
    return f'<div class="map-box">{table_tag}<tr><th></th>{head}</tr>{"".join(rows)}</table>{caption}</div>'


def map_axes_label(grid: PlotGrid) -> str:
    """The axes of a map in words."""
    if (grid.row_axis, grid.column_axis) == ("first_digits", "second_digits"):
        return "digits of the first (down) and second number"
    down = f"{axis_label(grid.row_axis)} (down), " if grid.row_axis else ""
    return down + axis_label(grid.column_axis) + (" (across)" if down else "")


def _cell(grid: PlotGrid, i: int, j: int, operator: str | None, numbers: bool) -> str:
    point = grid.points.get((grid.rows[i], grid.columns[j]))
    if point is None:
        return '<td class="off"></td>'
    classes = [f"p{round(100 * point.score)}"]
    classes += [letter for side, letter in _SIDES.items() if grid.has_border(i, j, side)]
    classes += (
        ["none"] * (point.score == 0) + ["seen"] * point.overlaps_training + ["far"] * (2 * j >= len(grid.columns))
    )
    text = format_integer_percent(point.score) if numbers else ""
    return f'<td class="{" ".join(classes)}" data-tip="{escape(tooltip(point, operator))}">{text}</td>'


def colormap_legend(*, has_overlap: bool) -> str:
    """The key of heat maps: the ramp, the border of what was trained, and what a dotted underline is."""
    marks = "<span><u>99</u> too few questions to hold any out</span>" if has_overlap else ""
    return f'<p class="scale"><span>0 %<i></i>100 % correct</span><span><b></b>in distribution</span>{marks}</p>'


def chart_axes(chart: Chart) -> tuple[tuple[float, float], tuple[float, float], list[float], list[float]]:
    """The ends of both axes and their ticks, x before y; those of a logarithmic axis as powers of ten."""
    lines = [line for line in chart.lines if len(line.x)]
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in (*line.y, *(line.low or ()), *(line.high or ())) if y > 0 or not chart.is_log]
    low_x, high_x = (min(xs) - 0.5, max(xs) + 0.5) if chart.has_integer_ticks else (min(0.0, *xs), max(xs))
    use_length_ticks = chart.has_integer_ticks and max(xs) - min(xs) < 2 * len(
        set(xs)
    )  # a few lengths far away leave no room for all others
    ticks_x = length_ticks(xs, 13) if use_length_ticks else axis_ticks(low_x, high_x)
    if chart.is_percent:
        low_y, high_y, ticks_y = 0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    elif chart.is_log:
        low_y, high_y = float(floor(log10(min(ys)))), float(ceil(log10(max(ys)) + 1e-9))
        ticks_y = [float(power) for power in range(int(low_y), int(high_y) + 1)]
    elif chart.zooms_to_data:
        late = [y for line in lines for x, y in zip(line.x, line.y, strict=True) if x >= low_x + (high_x - low_x) / 10]
        low_y, high_y = min(ys), max(late, default=max(ys))
        margin = 0.04 * (high_y - low_y) or 0.5
        low_y, high_y = low_y - margin, high_y + margin
        ticks_y = axis_ticks(low_y, high_y)
    else:
        low_y, high_y = min(0.0, *ys), max(ys) or 1.0
        ticks_y = axis_ticks(low_y, high_y)
    return (low_x, high_x if high_x > low_x else low_x + 1.0), (low_y, high_y), ticks_x, ticks_y


def chart_svg(chart: Chart) -> str:
    """A chart as SVG with its legend below; "" without lines to draw."""
    lines = [line for line in chart.lines if len(line.x)]
    if not lines:
        return ""
    (low_x, high_x), (low_y, high_y), ticks_x, ticks_y = chart_axes(chart)

    def to_x(x: float) -> float:
        return _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)

    def to_y(y: float) -> float:
        at = log10(max(y, 1e-300)) if chart.is_log else y
        at = min(max(at, low_y), high_y)
        return _HEIGHT - _BOTTOM - (at - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    top, bottom = _TOP, _HEIGHT - _BOTTOM
    name = escape(f"{chart.y_label} by {chart.x_label}")
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">']
    if chart.trained_range:
        left, right = to_x(max(chart.trained_range[0] - 0.5, low_x)), to_x(chart.trained_range[1] + 0.5)
        parts.append(
            f'<rect class="inside" x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{bottom - top}"/>'
        )
    for tick in ticks_y:
        y = to_y(10**tick if chart.is_log else tick)
        text = f"{100 * tick:.0f}" if chart.is_percent else power_of_ten(tick) if chart.is_log else f"{tick:g}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in ticks_x:
        parts.append(f'<text x="{to_x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<line class="axis-line" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    if chart.trained_range:
        edge = to_x(chart.trained_range[1] + 0.5)
        parts.append(f'<line class="limit" x1="{edge:.1f}" x2="{edge:.1f}" y1="{top - 4}" y2="{bottom}"/>')
        # Above the axes, where no data are: left of the border, or right of it where there is no room.
        fits_left = edge - _LEFT > 7 * len(chart.trained_range_label)
        text = chart.trained_range_label if fits_left else f"\N{LEFTWARDS ARROW} {chart.trained_range_label}"
        place = f'x="{edge - 4:.1f}" text-anchor="end"' if fits_left else f'x="{edge + 4:.1f}" text-anchor="start"'
        parts.append(f'<text class="limit-text" y="{top - 6}" {place}>{escape(text)}</text>')
    parts += [_line_svg(line, to_x, to_y) for line in lines]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">{escape(chart.x_label)}</text>')
    rotation = f'transform="translate(11 {(top + bottom) / 2:.0f}) rotate(-90)"'
    parts.append(f'<text {rotation} text-anchor="middle">{escape(chart.y_label)}</text></svg>')
    entries = chart.legend_entries()
    baselines = [(line.label, None) for line in lines if line.is_baseline] if entries else []
    return "".join(parts) + legend_html([*entries, *baselines], show_markers=any(line.has_markers for line in lines))


def panels(charts: Sequence[Chart]) -> str:
    """Charts side by side as HTML, each under its title; "" if there is nothing to draw."""
    drawn = [(chart.title, chart_svg(chart)) for chart in charts]
    figures = [f"<figure><h3>{escape(title)}</h3>{drawing}</figure>" for title, drawing in drawn if drawing]
    return f'<div class="panels">{"".join(figures)}</div>' if figures else ""


def _line_svg(line: ChartLine, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    points = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, line.y, strict=True)]
    dash = _dash(BASELINE_DASHES if line.is_baseline else line.style.dashes)
    parts = []
    if line.low is not None and line.high is not None:
        upper = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
        lower = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, line.low, strict=True)]
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>')
    for values in line.seed_lines:
        thin = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, values, strict=True))
        parts.append(f'<polyline class="seed" points="{thin}"/>')
    parts.append(f'<polyline class="line"{dash} points="{" ".join(points)}"/>')
    if line.has_markers or len(points) == 1:  # a single measurement has no line
        for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
            if len(line.x) <= MAX_NUMBER_COLUMNS:
                parts.append(marker_svg(to_x(x), to_y(y), line.style))
            if line.tooltips is not None:
                where = f'cx="{to_x(x):.1f}" cy="{to_y(y):.1f}"'
                parts.append(
                    f'<circle class="target" {where} r="11"><title>{escape(line.tooltips[i])}</title></circle>'
                )
    return f'<g class="{color_class(None if line.is_baseline else line.style)}">{"".join(parts)}</g>'


def _dash(dashes: Sequence[float]) -> str:
    return f' stroke-dasharray="{" ".join(f"{2.2 * part:g}" for part in dashes)}"' if dashes else ""


def color_class(style: Style | None) -> str:
    """The class that gives a series its color; that of a baseline, or of what has none in a legend."""
    return "baseline" if style is None else "neutral" if style.color is None else f"c{style.color}"


def marker_svg(x: float, y: float, style: Style) -> str:
    """The marker of a series, by color and shape."""
    shape = MARKER_SHAPES[style.marker or 0]
    if shape == "circle":
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    corners = " ".join(f"{x + right:.1f},{y + down:.1f}" for right, down in _CORNERS[shape])
    return f'<polygon class="dot" points="{corners}"/>'


_CORNERS = {
    "square": ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
    "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    "triangle": ((0, -5), (5, 4), (-5, 4)),
    "triangle down": ((0, 5), (5, -4), (-5, -4)),
    "plus": (
        *((-1.5, -4.5), (1.5, -4.5), (1.5, -1.5), (4.5, -1.5), (4.5, 1.5), (1.5, 1.5)),
        *((1.5, 4.5), (-1.5, 4.5), (-1.5, 1.5), (-4.5, 1.5), (-4.5, -1.5), (-1.5, -1.5)),
    ),
}


def legend_html(entries: Sequence[tuple[str, Style | None]], *, show_markers: bool, show_lines: bool = True) -> str:
    """A legend as HTML, of lines, of dots, or of both; an entry without a style is a baseline."""
    items = []
    for text, style in entries:
        wide = 36 if show_lines else 12
        dash = _dash(BASELINE_DASHES if style is None else style.dashes)
        line = f'<line class="line" x1="1" x2="35" y1="6" y2="6"{dash}/>' if show_lines else ""
        shaped = style is not None and (style.marker is not None or not show_lines)
        point = marker_svg(wide / 2, 6, style) if show_markers and style is not None and shaped else ""
        drawn = f'<svg viewBox="0 0 {wide} 12" aria-hidden="true">{line}{point}</svg>'
        items.append(f'<li class="{color_class(style)}{"" if show_lines else " point"}">{drawn}{escape(text)}</li>')
    return f'<ul class="key">{"".join(items)}</ul>' if len(items) > 1 else ""


def inline_marker(style: Style) -> str:
    """The mark of a series by itself, in a line of text."""
    return (
        f'<svg class="mark {color_class(style)}" viewBox="0 0 12 12" aria-hidden="true">{marker_svg(6, 6, style)}</svg>'
    )


def breakable_html(text: str, separator: str = "_") -> str:
    """A name as HTML that may be broken behind a letter."""
    return escape(text).replace(separator, f"{separator}<wbr>")


def strip_plot(
    center: float | None,
    interval: tuple[float, float] | None,
    *,
    color: int = 0,
    is_thick: bool = True,
    tick: float | None = None,
    seed_values: Sequence[float] = (),
    unconverged_values: Sequence[float] = (),
    label: str = "",
) -> str:
    """One row of a forest plot as SVG, shares from 0 to 1: a dot in the `center`, a line over the `interval` (thick
    where `is_thick`), an upright line at `tick`, below them a mark for `seed_values` seed and a cross for each
    `unconverged_values`."""

    def x(share: float) -> str:
        return f"{_strip_x(share):.1f}"

    parts = [f'<line class="grid" x1="{x(share)}" x2="{x(share)}" y1="0" y2="26"/>' for share in _QUARTERS]
    parts += [f'<path class="missed" d="M{x(v)} 17m-3 0l6 6m0 -6l-6 6"/>' for v in unconverged_values]
    parts += [f'<line class="each" x1="{x(v)}" x2="{x(v)}" y1="17" y2="24"/>' for v in seed_values]
    if interval is not None:
        kind = "bar" if is_thick else "span"
        parts.append(f'<line class="{kind}" x1="{x(interval[0])}" x2="{x(interval[1])}" y1="8" y2="8"/>')
    if tick is not None:
        parts.append(f'<line class="tick" x1="{x(tick)}" x2="{x(tick)}" y1="2" y2="14"/>')
    if center is not None:
        parts.append(f'<circle class="dot" cx="{x(center)}" cy="8" r="4"/>')
    return (
        f'<svg class="strip c{color}" viewBox="0 0 {_STRIP} 26" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )


def strip_plot_axis() -> str:
    """The axis below a column of strips."""
    texts = "".join(
        f'<text x="{_strip_x(share):.1f}" y="11" text-anchor="middle">{100 * share:.0f}</text>'
        for share in _QUARTERS[::2]
    )
    return f'<svg class="strip" viewBox="0 0 {_STRIP} 14" aria-hidden="true">{texts}</svg>'


_STRIP = 180
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _strip_x(share: float) -> float:
    return 9 + share * (_STRIP - 18)


def axis_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from low to high."""
    span = (high - low) or 1.0
    step = 10.0 ** floor(log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    return [step * i for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def power_of_ten(tick: float) -> str:
    """A power of ten as text: `power(-3)` is "10⁻³"."""
    return "1" if tick == 0 else "10" + f"{tick:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    number_columns: Sequence[int] = (),
    monospace_columns: Sequence[int] = (),
) -> str:
    """A table; the columns in `number_columns` to the right, those in `monospace_columns` in fixed width. Cells are
    HTML already."""

    def mark(i: int) -> str:
        classes = ["num"] * (i in number_columns) + ["mono"] * (i in monospace_columns)
        return f' class="{" ".join(classes)}"' if classes else ""

    head = "".join(f"<th{mark(i)}>{cell}</th>" for i, cell in enumerate(header))
    body = "".join(
        "<tr>" + "".join(f"<td{mark(i)}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table class="data"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def collapsible(body: str, rows: int, summary: str) -> str:
    """A long table folded under its summary; a shorter one as it is."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if rows > MAX_UNFOLDED_ROWS else body


def metadata_list(pairs: Mapping[str, str]) -> str:
    """A row of figures with their names, values as HTML."""
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escape(k)}</dt><dd>{v}</dd></div>" for k, v in pairs.items())
        + "</dl>"
    )


def csv_link(name: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A link that saves numbers as CSV, the data inside the page."""
    text = "\n".join(",".join(str(cell) for cell in row) for row in [header, *rows]) + "\n"
    data = quote(text, safe=",")
    return f'<a download="{escape(name)}" href="data:text/csv;charset=utf-8,{data}">the numbers as CSV</a>'
