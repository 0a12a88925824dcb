"""Heat maps of grids in a terminal: coloured cells where it shows colours, numbers alone where it does not."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from numerate.reports.colour import FRAME_DARK, Colour, TerminalStyle, ink, rgb
from numerate.reports.grid import PlotGrid, axis_words, whole_percent

_FRAME = {True: {"bar": "┃", "rule": "━", "zero": "·"}, False: {"bar": "|", "rule": "-", "zero": "."}}
_CORNERS = {"top": ("┏", "┓"), "bottom": ("┗", "┛")}
PER_CENT, TENTHS = 4, 2
"""Columns of the terminal that a cell takes with a number of per cents, and with a tenth or a colour alone."""
QUIET: Colour = (128, 134, 146)


def heat_map(grid: PlotGrid, look: TerminalStyle | None = None) -> str:
    """A grid as text, no wider than the terminal, per cents in the cells, the border of what was trained around it.

    Where three digits a cell do not fit, cells are colours alone, or without colours tenths; where these do not fit
    either, each number is the per cent of several neighbouring cells, which all weigh the same. The title says so.

    The first axis runs down and the second across. A cell with nothing right shows a dot where there is no colour,
    cells that were not evaluated stay empty.
    """
    look = look or TerminalStyle()
    grid, wide = _fitted(grid, look)
    margin = _margin(grid)
    lines = [look.paint(grid.title, bold=True)] if grid.title else []
    lines.append(" " * (margin + 1) + _columns(grid, wide))
    for i, row in enumerate(grid.rows):
        lines += _rule(grid, i, "top", wide, margin, look)
        label = str(row).rjust(margin) if grid.row_axis and _labelled(i, len(grid.rows), wide) else " " * margin
        lines.append(label + _row(grid, i, wide, look))
        lines += _rule(grid, i, "bottom", wide, margin, look)
    lines.append(" " * (margin + 1) + look.paint(_axes(grid), front=QUIET))
    return "\n".join(lines)


def _fitted(grid: PlotGrid, look: TerminalStyle) -> tuple[PlotGrid, int]:
    """A grid as it fits into the terminal, and how many columns of that each of its cells takes."""
    room = look.width - _margin(grid) - 2
    if PER_CENT * len(grid.columns) <= room:
        return grid, PER_CENT
    if TENTHS * len(grid.columns) <= room:
        unit = "" if look.colours else "in tenths"
        return replace(grid, title=", ".join(filter(None, (grid.title, unit)))), TENTHS
    each = -(-len(grid.columns) // max(1, room // PER_CENT))
    return _binned(grid, each), PER_CENT


def _binned(grid: PlotGrid, each: int) -> PlotGrid:
    """A grid whose cells are the means of `each` x `each` cells, by the first row and column of these."""
    high = each if grid.row_axis else 1
    found = {}
    for i in range(0, len(grid.rows), high):
        for j in range(0, len(grid.columns), each):
            members = [(row, column) for row in grid.rows[i : i + high] for column in grid.columns[j : j + each]]
            inside = [grid.points[place] for place in members if place in grid.points]
            if inside:
                regions = {point.region for point in inside}
                region = inside[0].region if len(regions) == 1 else ""
                found[members[0]] = replace(inside[0], value=fmean(point.value for point in inside), region=region)
    title = ", ".join(filter(None, (grid.title, f"means of {high} x {each} cells")))
    return replace(grid, rows=grid.rows[::high], columns=grid.columns[::each], points=found, title=title)


def _margin(grid: PlotGrid) -> int:
    return max((len(str(row)) for row in grid.rows), default=1) + 1 if grid.row_axis else 1


def legend(look: TerminalStyle | None = None, grids: Iterable[PlotGrid] = ()) -> str:
    """What the colours and marks of heat maps of these grids mean, in one line; without grids all that there are."""
    look = look or TerminalStyle()
    marks = _FRAME[look.unicode]
    fitted = [_fitted(grid, look) for grid in grids]
    framed = not fitted or any(_framed(grid) for grid, _ in fitted)
    frame = f"   {look.paint('{0} {0}'.format(marks['bar']), front=rgb(FRAME_DARK))} in distribution" * framed
    if look.colours:
        shares = (0.0, 0.25, 0.5, 0.75, 1.0)
        scale = "".join(look.paint(f" {s * 100:.0f} ", front=ink(look.ramp(s)), back=look.ramp(s)) for s in shares)
        return f"{scale}  % right{frame}"
    widths = {wide for _, wide in fitted} or {PER_CENT}
    tenths = f"in tenths: 4 is 40-49 % right, 0 under 10 %, # 100 %, {marks['zero']} none"
    parts = [f"% right, {marks['zero']} is 0"] * (PER_CENT in widths) + [tenths] * (TENTHS in widths)
    return f"{'; '.join(parts)}{frame}"


def _framed(grid: PlotGrid) -> bool:
    """Whether any of its cells are inside of the border."""
    return any(point.region == "in_distribution" for point in grid.points.values())


def _axes(grid: PlotGrid) -> str:
    if (grid.row_axis, grid.column_axis) == ("first_digits", "second_digits"):
        return "digits of the first (down), second (across)"
    across = f"across: {axis_words(grid.column_axis)}"
    return f"down: {axis_words(grid.row_axis)}, {across}" if grid.row_axis else across


def _labelled(i: int, count: int, wide: int) -> bool:
    return wide == PER_CENT or i == 0 or i == count - 1 or (i + 1) % 5 == 0


def _columns(grid: PlotGrid, wide: int) -> str:
    if wide == PER_CENT:
        return "".join(str(column).rjust(3) + " " for column in grid.columns).rstrip()
    line = ""
    for j, column in enumerate(grid.columns):
        # Only every fifth label is written, and only where the one before leaves room.
        if (j == 0 or (j + 1) % 5 == 0) and len(line) <= j * wide:
            line = line.ljust(j * wide) + str(column)
    return line


def _row(grid: PlotGrid, i: int, wide: int, look: TerminalStyle) -> str:
    marks = _FRAME[look.unicode]
    bar = rgb(FRAME_DARK)
    text = look.paint(marks["bar"], front=bar) if grid.edge(i, 0, "left") else " "
    for j in range(len(grid.columns)):
        paper, body = _cell(grid, i, j, wide, look)
        text += look.paint(body, front=ink(paper) if paper and body.strip() != "0" else QUIET, back=paper)
        framed = grid.edge(i, j, "right") or (j + 1 < len(grid.columns) and grid.edge(i, j + 1, "left"))
        text += look.paint(marks["bar"], front=bar) if framed else look.paint(" ", back=paper)
    return text if look.colours else text.rstrip()


def _cell(grid: PlotGrid, i: int, j: int, wide: int, look: TerminalStyle) -> tuple[Colour | None, str]:
    point = grid.points.get((grid.rows[i], grid.columns[j]))
    room = wide - 1
    if point is None:
        return None, " " * room
    if look.colours:
        body = whole_percent(point.value).rjust(room) if room > 1 else " "
        return look.ramp(point.value), body
    if room > 1:
        return None, (whole_percent(point.value) if point.value > 0 else _FRAME[look.unicode]["zero"]).rjust(room)
    tenth = "#" if point.value == 1 else str(int(10 * point.value))
    return None, tenth if point.value > 0 else _FRAME[look.unicode]["zero"]


def _rule(grid: PlotGrid, i: int, side: str, wide: int, margin: int, look: TerminalStyle) -> list[str]:
    """The horizontal border above or below a row, where there is one."""
    edges = [grid.edge(i, j, side) for j in range(len(grid.columns))]
    if not any(edges):
        return []
    marks = _FRAME[look.unicode]
    start, end = _CORNERS[side] if look.unicode else ("+", "+")
    line = [" "] * (len(edges) * wide + 1)
    for there, run in groupby(range(len(edges)), key=lambda j: edges[j]):
        if there:
            inside = list(run)
            first, last = inside[0] * wide, (inside[-1] + 1) * wide
            line[first : last + 1] = [start, *marks["rule"] * (last - first - 1), end]
    return [" " * margin + look.paint("".join(line).rstrip(), front=rgb(FRAME_DARK))]
