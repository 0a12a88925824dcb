"""Content as HTML: tables and notes, charts and points as SVG, heat maps as tables or pictures, with hover tips.

Everything of a page is in one file, without scripts. The markup is in `templates/`;
colors, light and dark, are classes of the style sheet.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from numerate.reports.colour import (
    BASELINE_DASHES,
    BORDER,
    BORDER_DARK,
    COLORMAP_DARK,
    COLORMAP_LIGHT,
    SERIES,
    SERIES_DARK,
    Style,
    colormap,
    format_hex_color,
    text_color,
)
from numerate.reports.content import Content, without_empty_blocks
from numerate.reports.figure import MAX_NUMBER_COLUMNS, Axis, Chart, HeatMap
from numerate.reports.grid import tick_step
from numerate.reports.limits import MAX_UNFOLDED_ROWS

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_UNBROKEN = 16
"""Letters of a cell that stays on one line, such as the name of a region."""

_CHART = {"width": 390, "height": 330, "left": 50, "right": 374, "top": 22, "bottom": 288}
"""The size of a chart and where its axes are."""

_SIDES = {"top": ("t", 0, 0, "h1"), "bottom": ("b", 0, 1, "h1"), "left": ("s", 0, 0, "v1"), "right": ("e", 1, 0, "v1")}
"""Of each side of a cell its class, and its line as a path: the offset of the start, and where it goes."""

_MARKERS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "m-3.6-3.6h7.2v7.2h-7.2z",
    "m0-5l5 5-5 5-5-5z",
    "m0-5l5 9h-10z",
    "m0 5l5-9h-10z",
    "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)
"""The outlines of `MARKER_SHAPES` around the middle."""

_INTERVAL = re.compile(r"\s(\[[^\[\]]*\])$")


def to_html(content: Content) -> Markup:
    """Blocks of content as HTML, without empty tables and figures."""
    return Markup(fill("content.html", content=without_empty_blocks(content)))


def page(title: str, body: str) -> str:
    """A complete, self-contained page around a body of HTML, without scripts."""
    return fill("page.html", title=title, body=Markup(body), style=Markup(style()))


def frame(page: str) -> str:
    """A page in an iframe, for a notebook."""
    return str(Markup('<iframe srcdoc="{}" style="width:100%;height:800px;border:0"></iframe>').format(page))


def fill(name: str, **values: object) -> str:
    """A template of `templates/`, filled; texts are escaped."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only a page needs it

    found = Environment(
        loader=PackageLoader("numerate.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"cell": cell_html, "kind": lambda one: type(one).__name__, "unbroken": _unbroken}
    found.filters["list_values"] = lambda mapping: list(mapping.values())
    functions = (_border_path, _cell_classes, _color_class, _dashes, _label_step, _picture, _points, _scale, _trained)
    found.globals |= {one.__name__.removeprefix("_"): one for one in functions}
    found.globals |= {"max_rows": MAX_UNFOLDED_ROWS, "markers": _MARKERS, "box": _CHART}
    return found


def cell_html(text: str) -> Markup:
    """A cell of a table: an interval at the end of its first line is grey, and so are its further lines.

    >>> cell_html("90.5 [85.6, 93.8]")
    Markup('90.5 <span class="quiet">[85.6, 93.8]</span>')
    """
    if isinstance(text, Markup):
        return text
    first, *others = text.split("\n")
    first = first.replace(" ", "\N{NO-BREAK SPACE}") if len(first) <= MAX_UNBROKEN else first
    quiet = Markup('<span class="quiet">{}</span>')
    found = _INTERVAL.search(first)
    shown = escape(first[: found.start() + 1]) + quiet.format(found[1]) if found else escape(first)
    return shown + Markup("").join(Markup("<br>") + quiet.format(line) for line in others)


def _unbroken(text: str) -> str:
    """A text without line breaks inside intervals and percentages."""
    text = re.sub(r"\[([\d.]+), ([\d.]+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", text)
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _scale(axis: Axis, start: float, end: float) -> Callable[[float], str]:
    """Where a value of an axis is drawn from `start` to `end`."""
    return lambda value: f"{start + axis.fraction(value) * (end - start):.1f}"


def _points(x: Callable[[float], str], y: Callable[[float], str], xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{x(a)},{y(b)}" for a, b in zip(xs, ys, strict=True))


def _trained(chart: Chart, x: Callable[[float], str]) -> dict[str, object] | None:
    """Where what was trained is shaded, and its name above the axes: left of the border, or right of it."""
    if chart.trained_range is None:
        return None
    edge, label = x(chart.trained_range[1] + 0.5), chart.trained_range_label
    fits = float(edge) - _CHART["left"] > 7 * len(label)
    found = {"start": float(x(chart.trained_range[0] - 0.5)), "edge": float(edge)}
    if fits:
        return found | {"text": label, "shift": -4, "anchor": "end"}
    return found | {"text": f"\N{LEFTWARDS ARROW} {label}", "shift": 4, "anchor": "start"}


def _color_class(style: Style | None) -> str:
    """The class that gives a series, or a baseline, its color."""
    return "baseline" if style is None else f"c{style.color}"


def _dashes(style: Style | None) -> str:
    return " ".join(f"{2.2 * part:g}" for part in (BASELINE_DASHES if style is None else style.dashes))


def _label_step(heat_map: HeatMap) -> int:
    """The step between the labels of columns and rows; above 1 there is no room for numbers in cells."""
    return tick_step(len(heat_map.columns), 10) if len(heat_map.columns) > MAX_NUMBER_COLUMNS else 1


def _cell_classes(heat_map: HeatMap, i: int, j: int) -> str:
    cell = heat_map.cells[heat_map.rows[i], heat_map.columns[j]]
    names = [f"p{round(100 * cell.fraction)}"]
    names += [letter for side, (letter, *_) in _SIDES.items() if heat_map.has_border(i, j, side)]
    names += ["none"] * (cell.fraction == 0) + ["seen"] * cell.overlaps_training
    return " ".join(names + ["far"] * (2 * j >= len(heat_map.columns)))


def _border_path(heat_map: HeatMap) -> str:
    return "".join(
        f"M{j + right} {i + down}{line}"
        for i in range(len(heat_map.rows))
        for j in range(len(heat_map.columns))
        for side, (_, right, down, line) in _SIDES.items()
        if heat_map.has_border(i, j, side)
    )


def _picture(heat_map: HeatMap, theme: str) -> str:
    """A picture with one pixel a cell as PNG in base64; cells that were not evaluated are transparent."""
    from PIL import Image

    colors = [colormap(percent / 100, COLORMAP_DARK if theme == "dark" else COLORMAP_LIGHT) for percent in range(101)]
    cells = (heat_map.cells.get((row, column)) for row in heat_map.rows for column in heat_map.columns)
    image = Image.new("RGBA", (len(heat_map.columns), len(heat_map.rows)))
    image.putdata([(0, 0, 0, 0) if cell is None else (*colors[round(100 * cell.fraction)], 255) for cell in cells])
    file = BytesIO()
    image.save(file, "PNG")
    return b64encode(file.getvalue()).decode()


@cache
def style() -> str:
    """All rules of a page: `assets/page.css`, the colors of series, and those of the cells of heat maps."""
    sheet = files("numerate.reports").joinpath("assets/page.css").read_text(encoding="utf-8")
    light, dark = (
        f"--frame:{border};--ramp:linear-gradient(90deg,{','.join(stops)});"
        for border, stops in ((BORDER, COLORMAP_LIGHT), (BORDER_DARK, COLORMAP_DARK))
    )
    series, series_dark = (
        "".join(f".c{i}{{--c:{color}}}" for i, color in enumerate(colors)) for colors in (SERIES, SERIES_DARK)
    )
    cells = "".join(map(_cell_colors, range(101)))
    return (
        f":root{{{light}}}{series}{cells}\n{sheet}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}{series_dark}}}"
    )


def _cell_colors(percent: int) -> str:
    """The colors of the cells of a heat map that have so many per cent: their own, light and dark, and the ink's."""
    light, dark = colormap(percent / 100, COLORMAP_LIGHT), colormap(percent / 100, COLORMAP_DARK)
    names = zip("ldij", (light, dark, text_color(light), text_color(dark)), strict=True)
    return f".p{percent}{{{';'.join(f'--{name}:{format_hex_color(color)}' for name, color in names)}}}"
