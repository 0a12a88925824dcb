"""Heat maps in a terminal, in color or as numbers."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from numerate.reports.colour import BORDER_DARK, COLORMAP_DARK, RGB, colormap, parse_hex_color, text_color
from numerate.reports.figure import HeatMap
from numerate.terminal import output_width, raw_stream

NUMBER_WIDTH, COLOR_WIDTH = 4, 2
"""Columns of the terminal that a cell takes with a number of per cents, and as a color alone."""

GREY: RGB = (128, 134, 146)
_FRAME = parse_hex_color(BORDER_DARK)


@dataclass(frozen=True)
class TerminalStyle:
    """What a terminal can show: its colors as rich names them (None, 256, truecolor), and columns: of drawings, and of
    lines of text and tables, which are whole with None."""

    colors: str | None = None
    width: int = 100
    line_width: int | None = None

    @classmethod
    def from_stream(cls, stream: Any) -> "TerminalStyle":
        """Looks at a stream and the environment (TERM, COLORTERM, NO_COLOR, FORCE_COLOR, COLUMNS) as rich does."""
        from rich.console import Console

        console = Console(file=raw_stream(stream))
        colors = None if console.no_color else console.color_system
        return cls(colors, shutil.get_terminal_size((100, 24)).columns, output_width(stream))

    def colorize(
        self, text: str, *, foreground: RGB | None = None, background: RGB | None = None, bold: bool = False
    ) -> str:
        """Text with escape codes for its colors; without them where the terminal shows none."""
        if self.colors is None or not text:
            return text
        from rich.color import Color, ColorSystem
        from rich.style import Style

        color, bgcolor = (rgb and Color.from_rgb(*rgb) for rgb in (foreground, background))
        system = ColorSystem.TRUECOLOR if self.colors == "truecolor" else ColorSystem.EIGHT_BIT
        return Style(color=color, bgcolor=bgcolor, bold=bold or None).render(text, color_system=system)


def heat_map_text(heat_map: HeatMap, style: TerminalStyle) -> str:
    """A map as text, no wider than the terminal, per cents in the cells, the border of what was trained around it.

    Where numbers do not fit, cells are colors alone; where these do not fit either, or there are none, only every n-th
    row and column is shown, and the title says so. The first axis runs down and the second across. A cell with nothing
    right shows a dot where there is no color, cells that were not evaluated stay empty.
    """
    margin = 1 + max((len(str(row)) for row in heat_map.rows if heat_map.row_axis), default=0)
    room, count = style.width - margin - 2, len(heat_map.columns)
    width = COLOR_WIDTH if style.colors and NUMBER_WIDTH * count > room >= COLOR_WIDTH * count else NUMBER_WIDTH
    step = -(-width * count // max(room, width))
    if step > 1:
        rows = heat_map.rows[::step] if heat_map.row_axis else heat_map.rows
        title = ", ".join(filter(None, (heat_map.title, f"one of {step} rows and columns")))
        heat_map = replace(heat_map, title=title, rows=rows, columns=heat_map.columns[::step])
    lines = [style.colorize(heat_map.title, bold=True)] if heat_map.title else []
    lines.append(" " * (margin + 1) + _column_labels(heat_map.columns, width))
    for i, row in enumerate(heat_map.rows):
        has_label = width == NUMBER_WIDTH or i in (0, len(heat_map.rows) - 1) or (i + 1) % 5 == 0
        label = str(row) if heat_map.row_axis and has_label else ""
        lines += _rule(heat_map, i, "top", width, margin, style)
        lines.append(label.rjust(margin) + _row(heat_map, i, width, style))
        lines += _rule(heat_map, i, "bottom", width, margin, style)
    return "\n".join([*lines, " " * (margin + 1) + style.colorize(heat_map.axes_label, foreground=GREY)])


def _column_labels(columns: Sequence[int], width: int) -> str:
    """The label of every column; where cells are narrow every fifth, if the one before leaves room."""
    line = ""
    for j, column in enumerate(columns):
        if width == NUMBER_WIDTH:
            line += f"{column:>3} "
        elif (j == 0 or (j + 1) % 5 == 0) and len(line) <= j * width:
            line = line.ljust(j * width) + str(column)
    return line.rstrip()


def _row(heat_map: HeatMap, i: int, width: int, style: TerminalStyle) -> str:
    bar = style.colorize("┃", foreground=_FRAME)
    text = bar if heat_map.has_border(i, 0, "left") else " "
    for j, column in enumerate(heat_map.columns):
        cell, background = heat_map.cells.get((heat_map.rows[i], column)), None
        body = "" if cell is None or width == COLOR_WIDTH else cell.text
        if cell is not None and style.colors:
            background = colormap(cell.fraction, COLORMAP_DARK)
        elif body == "0":
            body = "·"
        color = text_color(background) if background and body != "0" else GREY
        text += style.colorize(body.rjust(width - 1), foreground=color, background=background)
        has_bar = heat_map.has_border(i, j, "right") or heat_map.has_border(i, j + 1, "left")
        text += bar if has_bar else style.colorize(" ", background=background)
    return text if style.colors else text.rstrip()


def _rule(heat_map: HeatMap, i: int, side: str, width: int, margin: int, style: TerminalStyle) -> list[str]:
    """The horizontal border above or below a row, where there is one."""
    edges = [heat_map.has_border(i, j, side) for j in range(len(heat_map.columns))]
    line = [" "] * (len(edges) * width + 1)
    for is_edge, run in groupby(range(len(edges)), key=edges.__getitem__):
        if is_edge:
            first, *_, last = [*run] * 2
            left, right = "┏┓" if side == "top" else "┗┛"
            line[first * width : (last + 1) * width + 1] = [left, *"━" * ((last + 1 - first) * width - 1), right]
    return [" " * margin + style.colorize("".join(line).rstrip(), foreground=_FRAME)] if any(edges) else []


def legend_text(style: TerminalStyle, maps: Sequence[HeatMap]) -> str:
    """What the colors and marks of heat maps mean, in one line."""
    has_frame = any(cell.is_trained for one in maps for cell in one.cells.values())
    frame = f"   {style.colorize('┃ ┃', foreground=_FRAME)} in distribution" * has_frame
    if style.colors is None:
        return f"% correct, · is 0{frame}"
    colors = [(share, colormap(share, COLORMAP_DARK)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    scale = (style.colorize(f" {s * 100:.0f} ", foreground=text_color(c), background=c) for s, c in colors)
    return f"{''.join(scale)}  % correct{frame}"
