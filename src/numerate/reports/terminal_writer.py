"""Content in a terminal: tables, notes, heat maps in color or as numbers, charts as tables of bars with intervals."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from textwrap import fill

from numerate.reports.colour import BORDER_DARK, RGB, SERIES_DARK, TerminalStyle, parse_hex_color, text_color
from numerate.reports.content import Bullets, Content, Heading, Note, without_empty_blocks
from numerate.reports.figure import Chart, Figure, HeatCell, HeatMap
from numerate.reports.grid import format_integer_percent, format_interval, format_percent
from numerate.reports.table import TextTable, side_by_side, text_table, text_width

PERCENT_WIDTH, TENTH_WIDTH = 4, 2
"""Columns of the terminal that a cell takes with a number of per cents, and with a tenth or a color alone."""

MAX_LINE = 118
"""The length of lines of prose."""

GREY: RGB = (128, 134, 146)
_FRAME = parse_hex_color(BORDER_DARK)
_CHARACTERS = {
    True: {"bar": "┃", "rule": "━", "zero": "·", "top": "┏┓", "bottom": "┗┛"},
    False: {"bar": "|", "rule": "-", "zero": ".", "top": "++", "bottom": "++"},
}


def content_text(content: Content, style: TerminalStyle | None = None) -> str:
    """Tables, figures, notes and lists below each other, each with its caption; other blocks, and what is folded on a
    page, are left out."""
    texts = []
    for block in without_empty_blocks(content):
        if isinstance(block, TextTable):
            texts += [block.to_text(), filled(block.caption)]
        elif isinstance(block, Figure) and (drawing := figure_text(block, style)):
            texts += [drawing, filled(block.notes)]
        elif isinstance(block, Heading | Note):
            texts.append(filled(block.text))
        elif isinstance(block, Bullets):
            texts.append("\n".join(map(filled, block.items)))
    return "\n\n".join(filter(None, texts))


def filled(text: str) -> str:
    """Prose in lines of a terminal."""
    return fill(text, MAX_LINE, break_on_hyphens=False)


def figure_text(figure: Figure, style: TerminalStyle | None = None) -> str:
    """The heat maps of a figure side by side with their legend; where it has none its charts, if these fit."""
    style = style or TerminalStyle()
    if figure.maps:
        blocks = [heat_map_text(one, style) for one in figure.maps]
        return side_by_side(blocks, style.width) + "\n" + legend_text(style, figure.maps)
    charts = [chart_text(chart, style) for chart in figure.charts if chart.series]
    return "\n\n".join(text for text in charts if max(map(text_width, text.splitlines())) <= max(style.width, 100))


def heat_map_text(heat_map: HeatMap, style: TerminalStyle | None = None) -> str:
    """A map as text, no wider than the terminal, per cents in the cells, the border of what was trained around it.

    Where three digits a cell do not fit, cells are colors alone, or without colors tenths; where these do not fit
    either, each number is the per cent of several neighboring cells, which all weigh the same. The title says so.

    The first axis runs down and the second across. A cell with nothing right shows a dot where there is no color,
    cells that were not evaluated stay empty.
    """
    return _TerminalMap(heat_map, style or TerminalStyle()).text()


class _TerminalMap:
    """A map as it fits into a terminal, where each of its cells takes `cell_width` columns."""

    def __init__(self, heat_map: HeatMap, style: TerminalStyle) -> None:
        self.style, self.marks = style, _CHARACTERS[style.unicode]
        self.margin = 1 + max((len(str(row)) for row in heat_map.rows if heat_map.row_axis), default=0)
        room = style.width - self.margin - 2
        self.map, self.cell_width = heat_map, PERCENT_WIDTH
        if PERCENT_WIDTH * len(heat_map.columns) > room >= TENTH_WIDTH * len(heat_map.columns):
            self.cell_width = TENTH_WIDTH
            self.map = _with_title(heat_map, "" if style.num_colors else "in tenths")
        elif PERCENT_WIDTH * len(heat_map.columns) > room:
            self.map = _bin_cells(heat_map, -(-len(heat_map.columns) // max(1, room // PERCENT_WIDTH)))

    def text(self) -> str:
        lines = [self.style.colorize(self.map.title, bold=True)] if self.map.title else []
        lines.append(" " * (self.margin + 1) + self._column_labels())
        for i, row in enumerate(self.map.rows):
            has_label = self.cell_width == PERCENT_WIDTH or i in (0, len(self.map.rows) - 1) or (i + 1) % 5 == 0
            label = str(row) if self.map.row_axis and has_label else ""
            lines += [*self._rule(i, "top"), label.rjust(self.margin) + self._row(i), *self._rule(i, "bottom")]
        return "\n".join([*lines, " " * (self.margin + 1) + self.style.colorize(self.map.axes_label, foreground=GREY)])

    def _column_labels(self) -> str:
        if self.cell_width == PERCENT_WIDTH:
            return "".join(str(column).rjust(3) + " " for column in self.map.columns).rstrip()
        line = ""
        for j, column in enumerate(self.map.columns):
            # Only every fifth label is written, and only where the one before leaves room.
            if (j == 0 or (j + 1) % 5 == 0) and len(line) <= j * self.cell_width:
                line = line.ljust(j * self.cell_width) + str(column)
        return line

    def _row(self, i: int) -> str:
        bar = self.style.colorize(self.marks["bar"], foreground=_FRAME)
        text = bar if self.map.has_border(i, 0, "left") else " "
        for j in range(len(self.map.columns)):
            background, body = self._cell(i, j)
            color = text_color(background) if background and body.strip() != "0" else GREY
            text += self.style.colorize(body, foreground=color, background=background)
            has_bar = self.map.has_border(i, j, "right") or self.map.has_border(i, j + 1, "left")
            text += bar if has_bar else self.style.colorize(" ", background=background)
        return text if self.style.num_colors else text.rstrip()

    def _cell(self, i: int, j: int) -> tuple[RGB | None, str]:
        """The color of a cell and its text."""
        cell, room = self.map.cells.get((self.map.rows[i], self.map.columns[j])), self.cell_width - 1
        if cell is None:
            return None, " " * room
        if self.style.num_colors:
            return self.style.colormap(cell.fraction), cell.text.rjust(room) if room > 1 else " "
        tenth = "#" if cell.fraction == 1 else str(int(10 * cell.fraction))
        return None, (self.marks["zero"] if cell.fraction == 0 else cell.text if room > 1 else tenth).rjust(room)

    def _rule(self, i: int, side: str) -> list[str]:
        """The horizontal border above or below a row, where there is one."""
        edges = [self.map.has_border(i, j, side) for j in range(len(self.map.columns))]
        if not any(edges):
            return []
        line = [" "] * (len(edges) * self.cell_width + 1)
        for there, run in groupby(range(len(edges)), key=lambda j: edges[j]):
            if there:
                inside = list(run)
                first, last = inside[0] * self.cell_width, (inside[-1] + 1) * self.cell_width
                rule = self.marks["rule"] * (last - first - 1)
                line[first : last + 1] = [self.marks[side][0], *rule, self.marks[side][1]]
        return [" " * self.margin + self.style.colorize("".join(line).rstrip(), foreground=_FRAME)]


def _with_title(heat_map: HeatMap, note: str) -> HeatMap:
    return replace(heat_map, title=", ".join(filter(None, (heat_map.title, note))))


def _bin_cells(heat_map: HeatMap, size: int) -> HeatMap:
    """A map whose cells are the means of `size` x `size` cells, by the first row and column of these."""
    high = size if heat_map.row_axis else 1
    binned = {}
    for i in range(0, len(heat_map.rows), high):
        for j in range(0, len(heat_map.columns), size):
            places = [(row, column) for row in heat_map.rows[i : i + high] for column in heat_map.columns[j : j + size]]
            cells = [heat_map.cells[place] for place in places if place in heat_map.cells]
            if cells:
                mean = fmean(cell.fraction for cell in cells)
                is_trained = all(cell.is_trained for cell in cells)
                binned[places[0]] = HeatCell(mean, format_integer_percent(mean), is_trained=is_trained)
    binned_map = replace(heat_map, rows=heat_map.rows[::high], columns=heat_map.columns[::size], cells=binned)
    return _with_title(binned_map, f"means of {high} x {size} cells")


def legend_text(style: TerminalStyle | None = None, maps: Iterable[HeatMap] = ()) -> str:
    """What the colors and marks of these heat maps mean, in one line; without maps all that there are."""
    style = style or TerminalStyle()
    marks = _CHARACTERS[style.unicode]
    fitted = [_TerminalMap(one, style) for one in maps]
    has_frame = not fitted or any(cell.is_trained for one in fitted for cell in one.map.cells.values())
    frame = f"   {style.colorize('{0} {0}'.format(marks['bar']), foreground=_FRAME)} in distribution" * has_frame
    if style.num_colors:
        colors = [(share, style.colormap(share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        scale = (style.colorize(f" {s * 100:.0f} ", foreground=text_color(c), background=c) for s, c in colors)
        return f"{''.join(scale)}  % correct{frame}"
    widths = {one.cell_width for one in fitted} or {PERCENT_WIDTH}
    tenths = f"in tenths: 4 is 40-49 % correct, 0 under 10 %, # 100 %, {marks['zero']} none"
    parts = [f"% correct, {marks['zero']} is 0"] * (PERCENT_WIDTH in widths) + [tenths] * (TENTH_WIDTH in widths)
    return f"{'; '.join(parts)}{frame}"


def chart_text(chart: Chart, style: TerminalStyle | None = None) -> str:
    """A chart of proportions as a table with bars: per x and series the value with its interval. Trained x are
    marked."""
    style = style or TerminalStyle()
    header = [chart.x_label, *(name for line in chart.series for name in (line.label, "% [interval]"))]
    first, last = chart.trained_range or (1, 0)
    rows = []
    for x in sorted({x for line in chart.series for x in line.x}):
        row = [f"{x:g}{' in distribution' if first <= x <= last else ''}"]
        for line in chart.series:
            at = list(line.x).index(x) if x in line.x else None
            if at is None:
                row += ["", ""]
                continue
            low, high = (line.y if ends is None else ends for ends in (line.low, line.high))
            color = parse_hex_color(SERIES_DARK[(line.style.color or 0) % len(SERIES_DARK)])
            row += [
                style.colorize(_bar(line.y[at], low[at], high[at], style), foreground=color),
                f"{format_percent(line.y[at])} {format_interval(low[at], high[at])}",
            ]
        rows.append(row)
    return text_table(header, rows)


def _bar(value: float, low: float, high: float, style: TerminalStyle, width: int = 20) -> str:
    """A proportion as a bar, its interval as a line over the bar's end."""
    full, line, empty = ("█", "─", " ") if style.unicode else ("#", "-", " ")
    end, start, stop = round(value * width), int(low * width), -int(-high * width // 1)
    return "".join(full if i < end else line if start <= i < stop else empty for i in range(width))
