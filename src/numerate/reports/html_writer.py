"""Content as HTML: tables and notes, charts and points as SVG, heat maps as tables or pictures, with hover tips.

The markup is in `templates/content.html` and `templates/figure.html`; colors, light and dark, are classes of the style
sheet of pages.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import BytesIO

from markupsafe import Markup

from numerate.reports.colour import BASELINE_DASHES, COLORMAP_DARK, COLORMAP_LIGHT, Style, colormap
from numerate.reports.content import Content, without_empty_blocks
from numerate.reports.figure import MAX_NUMBER_COLUMNS, Axis, Chart, Figure, HeatMap, Panel, PointChart
from numerate.reports.grid import tick_step
from numerate.reports.html import fill

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 390, 330, 50, 16, 22, 42
_STRIP = 180
_SIDES = {"top": "t", "bottom": "b", "left": "s", "right": "e"}
_BORDER_PATHS = {"top": (0, 0, "h1"), "bottom": (0, 1, "h1"), "left": (0, 0, "v1"), "right": (1, 0, "v1")}
_MARKERS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "m-3.6-3.6h7.2v7.2h-7.2z",
    "m0-5l5 5-5 5-5-5z",
    "m0-5l5 9h-10z",
    "m0 5l5-9h-10z",
    "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)
"""The outlines of `MARKER_SHAPES` around the middle."""


def to_html(content: Content) -> Markup:
    """Blocks of content as HTML, without empty tables and figures."""
    return Markup(fill("content.html", content=without_empty_blocks(content), draw_figure=_figure_html))


def _figure_html(figure: Figure) -> Markup:
    """A figure with its legends and its caption."""
    panels = [panel for panel in figure.drawn_panels if not isinstance(panel, PointChart)]
    cells = [cell for one in figure.maps for cell in one.cells.values()]
    has_trained, has_overlap = any(one.is_trained for one in cells), any(one.overlaps_training for one in cells)
    return _fill("figure", figure=figure, panels=panels, has_trained=has_trained, has_overlap=has_overlap)


def chart_svg(chart: Chart) -> Markup:
    """A chart as SVG with its legend below; "" without lines to draw."""
    if not chart.drawn_lines:
        return Markup("")
    left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
    x, y = _scale(chart.x_axis, left, right), _scale(chart.y_axis, bottom, top)

    def points(xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{x(a)},{y(b)}" for a, b in zip(xs, ys, strict=True))

    limit = None
    if chart.trained_range is not None:
        # The label is above the axes, where no data are: left of the border, or right of it where there is no room.
        edge, label = chart.trained_range[1] + 0.5, chart.trained_range_label
        fits = float(x(edge)) - left > 7 * len(label)
        limit = {
            "start": float(x(chart.trained_range[0] - 0.5)),
            "edge": float(x(edge)),
            "text": label if fits else f"\N{LEFTWARDS ARROW} {label}",
            "shift": -4 if fits else 4,
            "anchor": "end" if fits else "start",
        }
    entries = chart.legend_entries()
    entries += [(line.label, None) for line in chart.drawn_lines if line.is_baseline] if entries else []
    box = {"width": _WIDTH, "height": _HEIGHT, "left": left, "right": right, "top": top, "bottom": bottom}
    return _fill("chart", chart=chart, x=x, y=y, points=points, limit=limit, entries=entries, **box)


def points_html(charts: Sequence[PointChart]) -> Markup:
    """Charts of points as one table: a row of labels, and a strip of each chart beside it."""
    rows = [(row[0], [*row]) for row in zip(*(chart.rows for chart in charts), strict=True)]
    x = [_scale(chart.axis, 9, _STRIP - 9) for chart in charts]
    return _fill("points", charts=charts, rows=rows, x=x, width=_STRIP)


def heat_map_html(heat_map: HeatMap) -> Markup:
    """A map as a table with tips, numbers in the cells where there is room; or as a picture."""
    if heat_map.as_image:
        pictures = {"light": _png(heat_map, COLORMAP_LIGHT), "dark": _png(heat_map, COLORMAP_DARK)}
        return _fill("map_image", heat_map=heat_map, border="".join(_border_path(heat_map)), pictures=pictures)
    is_sparse = len(heat_map.columns) > MAX_NUMBER_COLUMNS
    step = tick_step(len(heat_map.columns), 10) if is_sparse else 1

    def label(value: int) -> str:
        return str(value) if value % step == 0 or value == heat_map.columns[0] else ""

    def classes(i: int, j: int) -> str:
        cell = heat_map.cells[heat_map.rows[i], heat_map.columns[j]]
        names = [f"p{round(100 * cell.fraction)}"]
        names += [letter for side, letter in _SIDES.items() if heat_map.has_border(i, j, side)]
        names += ["none"] * (cell.fraction == 0) + ["seen"] * cell.overlaps_training
        return " ".join(names + ["far"] * (2 * j >= len(heat_map.columns)))

    return _fill("heat_map", heat_map=heat_map, is_sparse=is_sparse, label=label, classes=classes)


def inline_marker(style: Style) -> Markup:
    """The mark of a series by itself, in a line of text."""
    return _fill("inline_marker", style=style)


def breakable_html(text: str) -> Markup:
    """A name as HTML that may be broken behind an underscore."""
    return Markup("_<wbr>").join(text.split("_"))


def _fill(drawing: str, **values: object) -> Markup:
    """One of the drawings of `templates/figure.html`."""
    found = fill(
        "figure.html",
        drawing=drawing,
        breakable=breakable_html,
        color_class=_color_class,
        dashes=_dashes,
        draw_panel=_panel_html,
        inline_marker=inline_marker,
        markers=_MARKERS,
        points_html=points_html,
        **values,
    )
    return Markup(found.strip())


def _panel_html(panel: Panel) -> Markup:
    return (
        heat_map_html(panel)
        if isinstance(panel, HeatMap)
        else chart_svg(panel)
        if isinstance(panel, Chart)
        else Markup("")
    )


def _scale(axis: Axis, start: float, end: float) -> Callable[[float], str]:
    """Where a value of an axis is drawn from `start` to `end`."""
    return lambda value: f"{start + axis.fraction(value) * (end - start):.1f}"


def _color_class(style: Style | None) -> str:
    """The class that gives a series, or a baseline, its color."""
    return "baseline" if style is None else f"c{style.color}"


def _dashes(style: Style | None) -> str:
    return " ".join(f"{2.2 * part:g}" for part in (BASELINE_DASHES if style is None else style.dashes))


def _border_path(heat_map: HeatMap) -> Iterator[str]:
    for i in range(len(heat_map.rows)):
        for j in range(len(heat_map.columns)):
            for side, (right, down, line) in _BORDER_PATHS.items():
                if heat_map.has_border(i, j, side):
                    yield f"M{j + right} {i + down}{line}"


def _png(heat_map: HeatMap, stops: tuple[str, ...]) -> str:
    """A picture with one pixel a cell as PNG in base64; cells that were not evaluated are transparent."""
    from PIL import Image

    cells = (heat_map.cells.get((row, column)) for row in heat_map.rows for column in heat_map.columns)
    image = Image.new("P", (len(heat_map.columns), len(heat_map.rows)))
    image.putdata([0 if cell is None else 1 + round(100 * cell.fraction) for cell in cells])
    image.putpalette(_palette(stops))
    file = BytesIO()
    image.save(file, "PNG", transparency=0)
    return b64encode(file.getvalue()).decode()


@cache
def _palette(stops: tuple[str, ...]) -> list[int]:
    """The colors of 0 (none) and of p + 1 for p per cent."""
    return [part for color in ((0, 0, 0), *(colormap(p / 100, stops) for p in range(101))) for part in color]
