"""Heat maps of grids in a terminal: colored cells where it shows colors, numbers alone where it does not."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from numerate.reports.colour import BORDER_DARK, RGB, TerminalStyle, parse_hex_color, text_color
from numerate.reports.grid import PlotGrid, axis_label, format_integer_percent

_BORDER_CHARACTERS = {True: {"bar": "┃", "rule": "━", "zero": "·"}, False: {"bar": "|", "rule": "-", "zero": "."}}
_CORNERS = {"top": ("┏", "┓"), "bottom": ("┗", "┛")}
PERCENT_WIDTH, TENTH_WIDTH = 4, 2
"""Columns of the terminal that a cell takes with a number of per cents, and with a tenth or a color alone."""
GREY: RGB = (128, 134, 146)


def terminal_heat_map(grid: PlotGrid, style: TerminalStyle | None = None) -> str:
    """A grid as text, no wider than the terminal, per cents in the cells, the border of what was trained around it.

    Where three digits a cell do not fit, cells are colors alone, or without colors tenths; where these do not fit
    either, each number is the per cent of several neighboring cells, which all weigh the same. The title says so.

    The first axis runs down and the second across. A cell with nothing right shows a dot where there is no color,
    cells that were not evaluated stay empty.
    """
    style = style or TerminalStyle()
    grid, cell_width = _fit_to_terminal(grid, style)
    margin = _label_width(grid)
    lines = [style.colorize(grid.title, bold=True)] if grid.title else []
    lines.append(" " * (margin + 1) + _columns(grid, cell_width))
    for i, row in enumerate(grid.rows):
        lines += _horizontal_border(grid, i, "top", cell_width, margin, style)
        label = (
            str(row).rjust(margin) if grid.row_axis and _has_row_label(i, len(grid.rows), cell_width) else " " * margin
        )
        lines.append(label + _row(grid, i, cell_width, style))
        lines += _horizontal_border(grid, i, "bottom", cell_width, margin, style)
    lines.append(" " * (margin + 1) + style.colorize(_axes_label(grid), foreground=GREY))
    return "\n".join(lines)


def _fit_to_terminal(grid: PlotGrid, style: TerminalStyle) -> tuple[PlotGrid, int]:
    """A grid as it fits into the terminal, and how many columns of that each of its cells takes."""
    room = style.width - _label_width(grid) - 2
    if PERCENT_WIDTH * len(grid.columns) <= room:
        return grid, PERCENT_WIDTH
    if TENTH_WIDTH * len(grid.columns) <= room:
        unit = "" if style.num_colors else "in tenths"
        return replace(grid, title=", ".join(filter(None, (grid.title, unit)))), TENTH_WIDTH
    each = -(-len(grid.columns) // max(1, room // PERCENT_WIDTH))
    return _bin_cells(grid, each), PERCENT_WIDTH


def _bin_cells(grid: PlotGrid, bin_size: int) -> PlotGrid:
    """A grid whose cells are the means of `bin_size` x `bin_size` cells, by the first row and column of these."""
    high = bin_size if grid.row_axis else 1
    found = {}
    for i in range(0, len(grid.rows), high):
        for j in range(0, len(grid.columns), bin_size):
            members = [(row, column) for row in grid.rows[i : i + high] for column in grid.columns[j : j + bin_size]]
            inside = [grid.points[place] for place in members if place in grid.points]
            if inside:
                regions = {point.region for point in inside}
                region = inside[0].region if len(regions) == 1 else ""
                found[members[0]] = replace(inside[0], score=fmean(point.score for point in inside), region=region)
    title = ", ".join(filter(None, (grid.title, f"means of {high} x {bin_size} cells")))
    return replace(grid, rows=grid.rows[::high], columns=grid.columns[::bin_size], points=found, title=title)


def _label_width(grid: PlotGrid) -> int:
    return max((len(str(row)) for row in grid.rows), default=1) + 1 if grid.row_axis else 1


def terminal_legend(style: TerminalStyle | None = None, grids: Iterable[PlotGrid] = ()) -> str:
    """What the colors and marks of heat maps of these grids mean, in one line; without grids all that there are."""
    style = style or TerminalStyle()
    marks = _BORDER_CHARACTERS[style.unicode]
    fitted = [_fit_to_terminal(grid, style) for grid in grids]
    framed = not fitted or any(_has_border(grid) for grid, _ in fitted)
    frame = (
        f"   {style.colorize('{0} {0}'.format(marks['bar']), foreground=parse_hex_color(BORDER_DARK))} in distribution"
        * framed
    )
    if style.num_colors:
        shares = (0.0, 0.25, 0.5, 0.75, 1.0)
        scale = "".join(
            style.colorize(f" {s * 100:.0f} ", foreground=text_color(style.colormap(s)), background=style.colormap(s))
            for s in shares
        )
        return f"{scale}  % correct{frame}"
    widths = {wide for _, wide in fitted} or {PERCENT_WIDTH}
    tenths = f"in tenths: 4 is 40-49 % correct, 0 under 10 %, # 100 %, {marks['zero']} none"
    parts = [f"% correct, {marks['zero']} is 0"] * (PERCENT_WIDTH in widths) + [tenths] * (TENTH_WIDTH in widths)
    return f"{'; '.join(parts)}{frame}"


def _has_border(grid: PlotGrid) -> bool:
    """Whether any of its cells are inside of the border."""
    return any(point.region == "in_distribution" for point in grid.points.values())


def _axes_label(grid: PlotGrid) -> str:
    if (grid.row_axis, grid.column_axis) == ("first_digits", "second_digits"):
        return "digits of the first (down), second (across)"
    across = f"across: {axis_label(grid.column_axis)}"
    return f"down: {axis_label(grid.row_axis)}, {across}" if grid.row_axis else across


def _has_row_label(i: int, count: int, wide: int) -> bool:
    return wide == PERCENT_WIDTH or i == 0 or i == count - 1 or (i + 1) % 5 == 0


def _columns(grid: PlotGrid, wide: int) -> str:
    if wide == PERCENT_WIDTH:
        return "".join(str(column).rjust(3) + " " for column in grid.columns).rstrip()
    line = ""
    for j, column in enumerate(grid.columns):
        # Only every fifth label is written, and only where the one before leaves room.
        if (j == 0 or (j + 1) % 5 == 0) and len(line) <= j * wide:
            line = line.ljust(j * wide) + str(column)
    return line


def _row(grid: PlotGrid, i: int, wide: int, look: TerminalStyle) -> str:
    marks = _BORDER_CHARACTERS[look.unicode]
    bar = parse_hex_color(BORDER_DARK)
    text = look.colorize(marks["bar"], foreground=bar) if grid.has_border(i, 0, "left") else " "
    for j in range(len(grid.columns)):
        paper, body = _cell(grid, i, j, wide, look)
        text += look.colorize(
            body, foreground=text_color(paper) if paper and body.strip() != "0" else GREY, background=paper
        )
        framed = grid.has_border(i, j, "right") or (j + 1 < len(grid.columns) and grid.has_border(i, j + 1, "left"))
        text += look.colorize(marks["bar"], foreground=bar) if framed else look.colorize(" ", background=paper)
    return text if look.num_colors else text.rstrip()


def _cell(grid: PlotGrid, i: int, j: int, wide: int, look: TerminalStyle) -> tuple[RGB | None, str]:
    point = grid.points.get((grid.rows[i], grid.columns[j]))
    room = wide - 1
    if point is None:
        return None, " " * room
    if look.num_colors:
        body = format_integer_percent(point.score).rjust(room) if room > 1 else " "
        return look.colormap(point.score), body
    if room > 1:
        return None, (
            format_integer_percent(point.score) if point.score > 0 else _BORDER_CHARACTERS[look.unicode]["zero"]
        ).rjust(room)
    tenth = "#" if point.score == 1 else str(int(10 * point.score))
    return None, tenth if point.score > 0 else _BORDER_CHARACTERS[look.unicode]["zero"]


def _horizontal_border(grid: PlotGrid, i: int, side: str, wide: int, margin: int, look: TerminalStyle) -> list[str]:
    """The horizontal border above or below a row, where there is one."""
    edges = [grid.has_border(i, j, side) for j in range(len(grid.columns))]
    if not any(edges):
        return []
    marks = _BORDER_CHARACTERS[look.unicode]
    start, end = _CORNERS[side] if look.unicode else ("+", "+")
    line = [" "] * (len(edges) * wide + 1)
    for there, run in groupby(range(len(edges)), key=lambda j: edges[j]):
        if there:
            inside = list(run)
            first, last = inside[0] * wide, (inside[-1] + 1) * wide
            line[first : last + 1] = [start, *marks["rule"] * (last - first - 1), end]
    return [" " * margin + look.colorize("".join(line).rstrip(), foreground=parse_hex_color(BORDER_DARK))]
