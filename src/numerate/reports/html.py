"""Writes pages as HTML: templates filled by Jinja2, one style sheet, everything in one file without scripts."""

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from numerate.reports.colour import (
    BORDER,
    BORDER_DARK,
    COLORMAP_DARK,
    COLORMAP_LIGHT,
    SERIES,
    SERIES_DARK,
    colormap,
    format_hex_color,
    text_color,
)
from numerate.reports.limits import MAX_UNFOLDED_ROWS

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_UNBROKEN = 16
"""Letters of a cell that stays on one line, such as the name of a region."""

_INTERVAL = re.compile(r"\s(\[[^\[\]]*\])$")


def page(title: str, body: str) -> str:
    """A complete, self-contained page around a body of HTML, without scripts other than those of the body."""
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
    found.filters |= {"cell": cell_html, "kind": lambda block: type(block).__name__, "unbroken": _unbroken}
    found.globals["max_rows"] = MAX_UNFOLDED_ROWS
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


@cache
def style() -> str:
    """All rules of a page: `assets/page.css`, the colors of series, and those of the cells of heat maps."""
    sheet = files("numerate.reports").joinpath("assets/page.css").read_text(encoding="utf-8")
    light, dark = f"--frame:{BORDER};", f"--frame:{BORDER_DARK};"
    light, dark = light + _ramp(COLORMAP_LIGHT), dark + _ramp(COLORMAP_DARK)
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


def _ramp(stops: tuple[str, ...]) -> str:
    return f"--ramp:linear-gradient(90deg,{','.join(stops)});"
