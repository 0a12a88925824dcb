"""Elements of report pages: heat maps as tables with tooltips, charts and strips as SVG, tables, legends."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from urllib.parse import quote

from numerate.evaluation.labels import METRICS
from numerate.reports.charts import FLOOR_DASHES, SHAPES, Chart, ChartLine, Style
from numerate.reports.grid import (
    PlotGrid,
    Point,
    axis_words,
    bracket,
    length_ticks,
    percent,
    place_words,
    tick_step,
    whole_percent,
)
from numerate.reports.limits import MOST_ROWS, MOST_VALUES

MOST_NUMBERS = 24
"""Maps with more columns than this show colours only; the numbers stay on hover."""

_SIDES = {"top": "t", "bottom": "b", "left": "s", "right": "e"}
_WIDTH, _HEIGHT = 390, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 16, 22, 42


def tip(point: Point, operator: str | None = None) -> str:
    """The tooltip of a cell: position, share, interval or seeds, and whether it may overlap with training."""
    lines = [place_words(point.at, operator, point.names)]
    if len(point.each) == 1:
        lines.append(f"{percent(point.value)} % right {bracket(point.low, point.high)}")
        exact = point.metric == "exact"
        lines.append(f"{round(point.value * point.count)} of {point.count} questions" if exact else _rows(point))
    else:
        lines.append(f"median {percent(point.value)} %, seeds {bracket(point.low, point.high)}")
        several = len(point.each) > MOST_VALUES
        seeds = f"{len(point.each)} seeds" if several else "each: " + ", ".join(percent(share) for share in point.each)
        lines.append(seeds)
    if point.floor is not None:
        lines.append(f"floor {percent(point.floor)} %")
    if point.note and point.value < 1:
        lines.append(point.note)
    if point.seen:
        lines.append("too few questions to hold any out: training may have met these")
    return "\n".join(lines)


def _rows(point: Point) -> str:
    return f"{METRICS[point.metric]}, {point.count} row{'s' * (point.count != 1)}"


def heat_map(grid: PlotGrid, operator: str | None = None, *, numbers: bool = True) -> str:
    """A grid as an HTML table; the style sheet has the colours."""
    sparse = len(grid.columns) > MOST_NUMBERS
    every = tick_step(len(grid.columns), 10) if sparse else 1
    every = every if numbers else max(every, 5)
    numbers = numbers and len(grid.columns) <= MOST_NUMBERS
    small = len(grid.columns) + 1

    def label(value: int) -> str:
        return str(value) if value % every == 0 or value == grid.columns[0] else ""

    head = "".join(f'<th scope="col">{label(column)}</th>' for column in grid.columns)
    rows = []
    for i, row in enumerate(grid.rows):
        cells = "".join(_cell(grid, i, j, operator, numbers) for j in range(len(grid.columns)))
        rows.append(f'<tr><th scope="row">{label(row) if grid.row_axis else ""}</th>{cells}</tr>')
    kind, widths = ("map sparse", "<col>") if sparse else ("map", "")
    table_tag = f'<table class="{kind}" style="--n:{small}">{widths}'
    caption = f'<p class="axis">{escape(map_axes(grid))}</p>'
    return f'<div class="map-box">{table_tag}<tr><th></th>{head}</tr>{"".join(rows)}</table>{caption}</div>'


def map_axes(grid: PlotGrid) -> str:
    """The axes of a map in words."""
    if (grid.row_axis, grid.column_axis) == ("first_digits", "second_digits"):
        return "digits of the first (down) and second number"
    down = f"{axis_words(grid.row_axis)} (down), " if grid.row_axis else ""
    return down + axis_words(grid.column_axis) + (" (across)" if down else "")


def _cell(grid: PlotGrid, i: int, j: int, operator: str | None, numbers: bool) -> str:
    point = grid.points.get((grid.rows[i], grid.columns[j]))
    if point is None:
        return '<td class="off"></td>'
    classes = [f"p{round(100 * point.value)}"]
    classes += [letter for side, letter in _SIDES.items() if grid.edge(i, j, side)]
    classes += ["none"] * (point.value == 0) + ["seen"] * point.seen + ["far"] * (2 * j >= len(grid.columns))
    text = whole_percent(point.value) if numbers else ""
    return f'<td class="{" ".join(classes)}" data-tip="{escape(tip(point, operator))}">{text}</td>'


def scale(*, seen: bool) -> str:
    """The key of heat maps: the ramp, the border of what was trained, and what a dotted underline is."""
    marks = "<span><u>99</u> too few questions to hold any out</span>" if seen else ""
    return f'<p class="scale"><span>0 %<i></i>100 % right</span><span><b></b>in distribution</span>{marks}</p>'


def axes_of(chart: Chart) -> tuple[tuple[float, float], tuple[float, float], list[float], list[float]]:
    """The ends of both axes and their ticks, x before y; those of a logarithmic axis as powers of ten."""
    lines = [line for line in chart.lines if len(line.x)]
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in (*line.y, *(line.low or ()), *(line.high or ())) if y > 0 or not chart.log]
    low_x, high_x = (min(xs) - 0.5, max(xs) + 0.5) if chart.lengths else (min(0.0, *xs), max(xs))
    even = chart.lengths and max(xs) - min(xs) < 2 * len(set(xs))  # a few lengths far away leave no room for all others
    ticks_x = length_ticks(xs, 13) if even else ticks(low_x, high_x)
    if chart.shares:
        low_y, high_y, ticks_y = 0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    elif chart.log:
        low_y, high_y = float(floor(log10(min(ys)))), float(ceil(log10(max(ys)) + 1e-9))
        ticks_y = [float(power) for power in range(int(low_y), int(high_y) + 1)]
    elif chart.zoom:
        late = [y for line in lines for x, y in zip(line.x, line.y, strict=True) if x >= low_x + (high_x - low_x) / 10]
        low_y, high_y = min(ys), max(late, default=max(ys))
        spare = 0.04 * (high_y - low_y) or 0.5
        low_y, high_y = low_y - spare, high_y + spare
        ticks_y = ticks(low_y, high_y)
    else:
        low_y, high_y = min(0.0, *ys), max(ys) or 1.0
        ticks_y = ticks(low_y, high_y)
    return (low_x, high_x if high_x > low_x else low_x + 1.0), (low_y, high_y), ticks_x, ticks_y


def chart_svg(chart: Chart) -> str:
    """A chart as SVG with its legend below; "" without lines to draw."""
    lines = [line for line in chart.lines if len(line.x)]
    if not lines:
        return ""
    (low_x, high_x), (low_y, high_y), ticks_x, ticks_y = axes_of(chart)

    def to_x(x: float) -> float:
        return _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)

    def to_y(y: float) -> float:
        at = log10(max(y, 1e-300)) if chart.log else y
        at = min(max(at, low_y), high_y)
        return _HEIGHT - _BOTTOM - (at - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    top, bottom = _TOP, _HEIGHT - _BOTTOM
    name = escape(f"{chart.y_label} by {chart.x_label}")
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">']
    if chart.trained:
        left, right = to_x(max(chart.trained[0] - 0.5, low_x)), to_x(chart.trained[1] + 0.5)
        parts.append(
            f'<rect class="inside" x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{bottom - top}"/>'
        )
    for tick in ticks_y:
        y = to_y(10**tick if chart.log else tick)
        text = f"{100 * tick:.0f}" if chart.shares else power(tick) if chart.log else f"{tick:g}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in ticks_x:
        parts.append(f'<text x="{to_x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<line class="axis-line" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    if chart.trained:
        edge = to_x(chart.trained[1] + 0.5)
        parts.append(f'<line class="limit" x1="{edge:.1f}" x2="{edge:.1f}" y1="{top - 4}" y2="{bottom}"/>')
        # Above the axes, where no data are: left of the border, or right of it where there is no room.
        room = edge - _LEFT > 7 * len(chart.region)
        text = chart.region if room else f"\N{LEFTWARDS ARROW} {chart.region}"
        place = f'x="{edge - 4:.1f}" text-anchor="end"' if room else f'x="{edge + 4:.1f}" text-anchor="start"'
        parts.append(f'<text class="limit-text" y="{top - 6}" {place}>{escape(text)}</text>')
    parts += [_drawn(line, to_x, to_y) for line in lines]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">{escape(chart.x_label)}</text>')
    turned = f'transform="translate(11 {(top + bottom) / 2:.0f}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(chart.y_label)}</text></svg>')
    entries = chart.legend()
    floors = [(line.label, None) for line in lines if line.floor] if entries else []
    return "".join(parts) + legend_html([*entries, *floors], dots=any(line.dots for line in lines))


def panels(charts: Sequence[Chart]) -> str:
    """Charts side by side as HTML, each under its title; "" where there is nothing to draw."""
    drawn = [(chart.title, chart_svg(chart)) for chart in charts]
    figures = [f"<figure><h3>{escape(title)}</h3>{drawing}</figure>" for title, drawing in drawn if drawing]
    return f'<div class="panels">{"".join(figures)}</div>' if figures else ""


def _drawn(line: ChartLine, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    at = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, line.y, strict=True)]
    dash = _dash(FLOOR_DASHES if line.floor else line.style.dashes)
    parts = []
    if line.low is not None and line.high is not None:
        upper = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
        lower = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, line.low, strict=True)]
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>')
    for values in line.each:
        thin = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in zip(line.x, values, strict=True))
        parts.append(f'<polyline class="seed" points="{thin}"/>')
    parts.append(f'<polyline class="line"{dash} points="{" ".join(at)}"/>')
    if line.dots or len(at) == 1:  # a single measurement has no line
        for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
            if len(line.x) <= MOST_NUMBERS:
                parts.append(dot(to_x(x), to_y(y), line.style))
            if line.tips is not None:
                where = f'cx="{to_x(x):.1f}" cy="{to_y(y):.1f}"'
                parts.append(f'<circle class="target" {where} r="11"><title>{escape(line.tips[i])}</title></circle>')
    return f'<g class="{colour_class(None if line.floor else line.style)}">{"".join(parts)}</g>'


def _dash(dashes: Sequence[float]) -> str:
    return f' stroke-dasharray="{" ".join(f"{2.2 * part:g}" for part in dashes)}"' if dashes else ""


def colour_class(style: Style | None) -> str:
    """The class that gives a series its colour; that of a floor, or of what has none in a legend."""
    return "floor" if style is None else "neutral" if style.colour is None else f"c{style.colour}"


def dot(x: float, y: float, style: Style) -> str:
    """The marker of a series, by colour and shape."""
    shape = SHAPES[style.shape or 0]
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


def legend_html(entries: Sequence[tuple[str, Style | None]], *, dots: bool, lines: bool = True) -> str:
    """A legend as HTML, of lines, of dots, or of both; an entry without a style is a floor."""
    items = []
    for text, style in entries:
        wide = 36 if lines else 12
        dash = _dash(FLOOR_DASHES if style is None else style.dashes)
        line = f'<line class="line" x1="1" x2="35" y1="6" y2="6"{dash}/>' if lines else ""
        shaped = style is not None and (style.shape is not None or not lines)
        point = dot(wide / 2, 6, style) if dots and style is not None and shaped else ""
        drawn = f'<svg viewBox="0 0 {wide} 12" aria-hidden="true">{line}{point}</svg>'
        items.append(f'<li class="{colour_class(style)}{"" if lines else " point"}">{drawn}{escape(text)}</li>')
    return f'<ul class="key">{"".join(items)}</ul>' if len(items) > 1 else ""


def mark(style: Style) -> str:
    """The mark of a series by itself, in a line of text."""
    return f'<svg class="mark {colour_class(style)}" viewBox="0 0 12 12" aria-hidden="true">{dot(6, 6, style)}</svg>'


def wrapping(text: str, behind: str = "_") -> str:
    """A name as HTML that may be broken behind a letter."""
    return escape(text).replace(behind, f"{behind}<wbr>")


def strip(
    middle: float | None,
    interval: tuple[float, float] | None,
    *,
    colour: int = 0,
    solid: bool = True,
    tick: float | None = None,
    each: Sequence[float] = (),
    missed: Sequence[float] = (),
    name: str = "",
) -> str:
    """One row of a forest plot as SVG, shares from 0 to 1: a dot in the `middle`, a line over the `interval` (thick
    where `solid`), an upright line at `tick`, below them a mark for `each` seed and a cross for each `missed`."""

    def x(share: float) -> str:
        return f"{_strip_x(share):.1f}"

    parts = [f'<line class="grid" x1="{x(share)}" x2="{x(share)}" y1="0" y2="26"/>' for share in _QUARTERS]
    parts += [f'<path class="missed" d="M{x(v)} 17m-3 0l6 6m0 -6l-6 6"/>' for v in missed]
    parts += [f'<line class="each" x1="{x(v)}" x2="{x(v)}" y1="17" y2="24"/>' for v in each]
    if interval is not None:
        kind = "bar" if solid else "span"
        parts.append(f'<line class="{kind}" x1="{x(interval[0])}" x2="{x(interval[1])}" y1="8" y2="8"/>')
    if tick is not None:
        parts.append(f'<line class="tick" x1="{x(tick)}" x2="{x(tick)}" y1="2" y2="14"/>')
    if middle is not None:
        parts.append(f'<circle class="dot" cx="{x(middle)}" cy="8" r="4"/>')
    return (
        f'<svg class="strip c{colour}" viewBox="0 0 {_STRIP} 26" role="img" aria-label="{escape(name)}">'
        f"<title>{escape(name)}</title>{''.join(parts)}</svg>"
    )


def strip_axis() -> str:
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


def ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from low to high."""
    span = (high - low) or 1.0
    step = 10.0 ** floor(log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    return [step * i for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def power(tick: float) -> str:
    """A power of ten as text: `power(-3)` is "10⁻³"."""
    return "1" if tick == 0 else "10" + f"{tick:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), mono: Sequence[int] = ()
) -> str:
    """A table; the columns in `numbers` to the right, those in `mono` in fixed width. Cells are HTML already."""

    def mark(i: int) -> str:
        classes = ["num"] * (i in numbers) + ["mono"] * (i in mono)
        return f' class="{" ".join(classes)}"' if classes else ""

    head = "".join(f"<th{mark(i)}>{cell}</th>" for i, cell in enumerate(header))
    body = "".join(
        "<tr>" + "".join(f"<td{mark(i)}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table class="data"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(body: str, rows: int, summary: str) -> str:
    """A long table folded under its summary; a shorter one as it is."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if rows > MOST_ROWS else body


def facts(pairs: Mapping[str, str]) -> str:
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
