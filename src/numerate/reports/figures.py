"""Figures for papers and trackers by matplotlib, with the Agg backend and without pyplot.

Every function returns a `matplotlib.figure.Figure`, sized in inches for a page; `save` writes it as PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError
from numerate.evaluation.labels import METRICS
from numerate.reports.charts import FLOOR_DASHES, SHAPES, Chart, ChartLine, Style
from numerate.reports.colour import FRAME, LIGHT, SERIES, hexadecimal, ink, ramp
from numerate.reports.drawing import MOST_NUMBERS, axes_of, power
from numerate.reports.grid import PlotGrid, axis_words, percent, tick_step, whole_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUIET = "#63666f"
MARKERS = dict(zip(SHAPES, "osD^vP", strict=True))
FORMATS = ("png", "svg", "pdf")
WIDTH = 7.2
"""Maximum width of a figure in inches."""

MAP = 2.7
"""Maximum side of a heat map in inches."""

SMALLEST = 3.6
"""Minimum font size of numbers in cells, in points; smaller ones are left out."""

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "numerate",
    "pdf.fonttype": 42,
}


@contextmanager
def styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def blank(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def heat_maps(grids: Sequence[PlotGrid], *, columns: int = 3) -> Figure:
    """Heat maps side by side on one scale, per cents in the cells, the border of the training region in red.

    Raises `UserError` without grids.
    """
    if not grids:
        raise UserError("grids: nothing to draw; evaluate the run first")
    strips = all(not grid.row_axis for grid in grids)
    across = 1 if strips else min(columns, len(grids))
    down = -(-len(grids) // across)
    side = 6.0 if strips else _side(across)
    with styled():
        more = 0.14 * (max(len(_titled(grid, "", side)) for grid in grids) - 1)
        high = (0.85 if strips else side + 0.4) + more
        figure = blank(6.4, 0.6 + high * down) if strips else blank(0.9 + (side + 0.2) * across, high * down)
        table = figure.subplots(down, across, squeeze=False)
        for i, axes in enumerate(table.flat):
            if i < len(grids):
                _draw_map(axes, grids[i], side, first=i % across == 0)
            else:
                axes.set_axis_off()
        _scale(figure, list(table.flat))
    return figure


def _side(across: int) -> float:
    """The width of one of `across` maps in inches."""
    return min(MAP, (WIDTH - 0.9) / across - 0.2)


def charts_figure(charts: Sequence[Chart], *, columns: int = 3, note: str = "") -> Figure:
    """Charts side by side, above each its title and its notes, above all the `note`; one legend below all if it is the
    same for all.

    Raises `UserError` where there is nothing to draw.
    """
    charts = [chart for chart in charts if any(len(line.x) for line in chart.lines)]
    if not charts:
        raise UserError("curves: no cell has all axes equal; evaluate on grid=equal:1:18, for example")
    across = min(columns, len(charts))
    down = -(-len(charts) // across)
    width = 5.4 if across == 1 else WIDTH / across
    legends = [chart.legend() for chart in charts]
    common = max(legends, key=len)
    shared = all(set(one) <= set(common) for one in legends)
    deep = 0.0 if shared else max(_deep(one, width) for one in legends)
    height = min(3.1, 0.6 + 0.7 * width) + 0.12 * max(len(_lines_above(chart, width)) for chart in charts) + deep
    with styled():
        figure = blank(width * across, height * down + (_deep(common, width * across) if shared else 0))
        table = figure.subplots(down, across, squeeze=False)
        for axes in table.flat[len(charts) :]:
            axes.set_axis_off()
        for axes, chart, entries in zip(table.flat, charts, legends, strict=False):
            draw_chart(axes, chart)
            lines, lifted = _lines_above(chart, width), 9 * (chart.trained is not None)
            notes = "\n".join(lines)
            axes.annotate(notes, (0, 1), (0, 4 + lifted), **_ABOVE, fontsize=6.5, color=QUIET)
            if len(charts) > 1 or chart.title:
                over = (0, 4 + lifted + 8.5 * len(lines))
                axes.annotate(chart.title, (0, 1), over, **_ABOVE, fontsize=9)
            if not shared and entries:
                beside = _beside([text for text, _ in entries], width)
                axes.legend(*_handles(entries, charts), loc="upper left", bbox_to_anchor=(-0.02, -0.18), ncols=beside)
        for row in table:
            for before, axes in pairwise(row):
                if before.get_ylabel() == axes.get_ylabel():
                    axes.yaxis.label.set_visible(False)
        if shared:
            below(figure, common, charts)
        note_above(figure, note)
    return figure


def note_above(figure: Figure, text: str) -> None:
    """Small print above all panels."""
    if text:
        wrapped = "\n".join(wrap(text, int(18 * figure.get_figwidth())))
        figure.suptitle(wrapped, fontsize=6.5, color=QUIET, x=0.01, ha="left")


_ABOVE: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}


def _lines_above(chart: Chart, width: float) -> list[str]:
    return [part for note in chart.notes for part in wrap(note, int(19 * width))]


def comparison(grids: Mapping[str, PlotGrid], chart: Chart) -> Figure:
    """The figure of a study: a heat map per label, and all of them along the diagonal, beside a single map or below
    several, with the notes of the chart.

    Raises `UserError` without grids.
    """
    if not grids:
        raise UserError("grids: nothing to draw; evaluate the runs first")
    count = len(grids)
    across = count if count <= 3 else 2 if count == 4 else 3
    down = -(-count // across)
    alone, entries = count == 1, chart.legend()
    side = _side(across)
    deep = _deep(entries, WIDTH) + 0.15 * len(chart.notes)
    with styled():
        figure = blank(WIDTH, 3.1 + deep if alone else (side + 0.45) * down + 2.6 + deep)
        if alone:
            panels = list(figure.subplots(1, 2, width_ratios=[1.0, 1.3]))
        else:
            cells = figure.add_gridspec(down + 1, across, height_ratios=[side] * down + [2.2])
            panels = [figure.add_subplot(cells[i // across, i % across]) for i in range(count)]
            panels.append(figure.add_subplot(cells[down, :]))
        for i, (label, grid) in enumerate(grids.items()):
            _draw_map(panels[i], grid, side, first=i % across == 0, title=label)
        _scale(figure, panels[:count])
        draw_chart(panels[-1], chart)
        panels[-1].set_title(chart.title)
        for letter, axes in zip("abcdefghijklmnop", panels, strict=False):
            above = chart.trained is not None and axes is panels[-1]
            axes.set_title(letter, loc="left", fontweight="bold", pad=15 if above else 6)
        below(figure, entries, [chart])
        note_above(figure, "; ".join(note.rstrip(".") for note in chart.notes))
    return figure


def draw_chart(axes: Axes, chart: Chart) -> None:
    """A chart without its title, notes and legend, with the axes of its SVG."""
    (low_x, high_x), (low_y, high_y), ticks_x, ticks_y = axes_of(chart)
    scale = 100.0 if chart.shares else 1.0
    if chart.trained:
        edge = chart.trained[1] + 0.5
        axes.axvspan(chart.trained[0] - 0.5, edge, color="#f0efe9", linewidth=0, zorder=0)
        axes.axvline(edge, color=FRAME, linewidth=1.1, zorder=1)
        # Above the axes, where no data are: left of the border, or right of it where there is no room.
        room = (edge - low_x) / (high_x - low_x) > 0.018 * len(chart.region)
        text = chart.region if room else f"\N{LEFTWARDS ARROW} {chart.region}"
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right"}
        place |= {} if room else {"ha": "left"}
        axes.annotate(text, (edge, 1), (0, 3), **place, color=FRAME, fontsize=7)
    bands = 0.11 if len(chart.series) > 3 else 0.2
    for line in chart.lines:
        _draw_line(axes, line, scale, bands)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_xlim(low_x, high_x)
    axes.set_xticks(ticks_x)
    if chart.log:
        axes.set(yscale="log", ylim=(10.0**low_y, 10.0**high_y))
        axes.set_yticks([10.0**tick for tick in ticks_y], [power(tick) for tick in ticks_y], minor=False)
        axes.minorticks_off()
    else:
        spare = 3.0 if chart.shares else 0.0
        axes.set_ylim(scale * low_y - spare, scale * high_y + spare)
        axes.set_yticks([scale * tick for tick in ticks_y])
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def _draw_line(axes: Axes, line: ChartLine, scale: float, band: float) -> None:
    x, y = list(line.x), [scale * value for value in line.y]
    if line.floor:
        axes.plot(x, y, color=QUIET, linestyle=(0, FLOOR_DASHES), linewidth=1, zorder=1.5, label="_floor")
        axes.text(x[-1], y[-1] + 1.5, f"floor {percent(line.y[-1])} %", color=QUIET, fontsize=6.5, ha="right")
        return
    if line.low is not None and line.high is not None:
        low, high = ([scale * value for value in values] for values in (line.low, line.high))
        axes.fill_between(x, low, high, color=_colour(line.style), alpha=band, linewidth=0)
    for values in line.each:
        axes.plot(x, [scale * value for value in values], color=_colour(line.style), linewidth=0.4, alpha=0.7)
    dots = len(x) == 1 or (line.dots and len(x) <= MOST_NUMBERS)
    axes.plot(x, y, label=line.label, **_drawn(line.style, dots=dots))


def _colour(style: Style) -> str:
    return "#1c1e24" if style.colour is None else SERIES[style.colour]


def _drawn(style: Style, *, dots: bool, lines: bool = True) -> dict[str, Any]:
    """The matplotlib options of a style."""
    marker = MARKERS[SHAPES[style.shape or 0]] if dots and (style.shape is not None or not lines) else ""
    dashes: Any = (0, style.dashes) if style.dashes else "-"
    options = {"color": _colour(style), "marker": marker, "markersize": 3.2}
    return options | ({"linestyle": dashes, "linewidth": 1.3} if lines else {"linestyle": ""})


Entries = Sequence[tuple[str, Style]]
"""The entries of a legend."""


def below(figure: Figure, entries: Entries, charts: Sequence[Chart] = ()) -> None:
    """One legend below all panels: of marks, and of the lines of charts."""
    if len(entries) > 1:
        beside = _beside([text for text, _ in entries], figure.get_figwidth())
        figure.legend(*_handles(entries, charts), loc="outside lower center", ncols=beside)


def _handles(entries: Entries, charts: Sequence[Chart]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    dots = not charts or any(line.dots for chart in charts for line in chart.series)
    lines = bool(charts)
    return [Line2D([], [], **_drawn(style, dots=dots, lines=lines)) for _, style in entries], [
        text for text, _ in entries
    ]


def _beside(labels: Sequence[str], inches: float) -> int:
    """The columns of a legend: a letter is about 0.06 inches wide, a handle half an inch."""
    columns = max(1, int(inches / (0.55 + 0.062 * max(map(len, labels)))))
    return -(-len(labels) // -(-len(labels) // columns))


def _deep(entries: Entries, inches: float) -> float:
    """How many inches a legend is high."""
    labels = [text for text, _ in entries]
    return 0.08 + 0.17 * -(-len(labels) // _beside(labels, inches)) if len(labels) > 1 else 0.0


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure by its suffix, .png (300 dpi), .svg or .pdf, without a timestamp.

    Raises `UserError` for another suffix.
    """
    path = Path(path)
    kind = refuse_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with styled():
        figure.savefig(path, dpi=300, metadata=dated[kind])
    return path


def refuse_ending(path: str | Path) -> str:
    """The kind of file that a path names. Raises `UserError` for one that figures are not written as."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise UserError(
            f"{path}: figures are written as {', '.join(FORMATS)}; for example {path.with_suffix('.svg').name}"
        )
    return kind


def _draw_map(axes: Axes, grid: PlotGrid, side: float, *, first: bool, title: str = "") -> None:
    """A map that is `side` inches wide, below its title in as many lines as that takes."""
    rows, columns = len(grid.rows), len(grid.columns)
    picture = np.ones((rows, columns, 3))
    size = min(7.0, 0.36 * 72 * side / columns)
    for i, row in enumerate(grid.rows):
        for j, column in enumerate(grid.columns):
            point = grid.points.get((row, column))
            if point is None:
                continue
            paper = ramp(point.value)
            picture[i, j] = [part / 255 for part in paper]
            if size >= SMALLEST:
                # Zeros are pale, so that the other cells stand out.
                front = "#a9a79c" if point.value == 0 else hexadecimal(ink(paper))
                axes.text(j, i, whole_percent(point.value), ha="center", va="center", fontsize=size, color=front)
    axes.imshow(picture, aspect="equal" if grid.row_axis else "auto", interpolation="nearest")
    if grid.row_axis and rows != columns:
        axes.set_anchor("N")
    for i in range(rows):
        for j in range(columns):
            for end in ("top", "left", "bottom", "right"):
                if grid.edge(i, j, end):
                    _edge(axes, i, j, end)
    _ticks(axes, grid, side / columns)
    axes.set_title("\n".join(_titled(grid, title, side)))
    axes.set_xlabel(axis_words(grid.column_axis))
    if first and grid.row_axis:
        axes.set_ylabel(axis_words(grid.row_axis))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def _titled(grid: PlotGrid, title: str, side: float) -> list[str]:
    """The title of a map `side` inches wide, in lines that fit above it."""
    words = METRICS[next((point.metric for point in grid.points.values()), "exact")]
    return wrap(title or grid.title or f"{words}, %", int(14 * side))


def _edge(axes: Axes, i: int, j: int, side: str) -> None:
    ends = {
        "top": ((j - 0.5, j + 0.5), (i - 0.5, i - 0.5)),
        "bottom": ((j - 0.5, j + 0.5), (i + 0.5, i + 0.5)),
        "left": ((j - 0.5, j - 0.5), (i - 0.5, i + 0.5)),
        "right": ((j + 0.5, j + 0.5), (i - 0.5, i + 0.5)),
    }
    axes.plot(*ends[side], color=FRAME, linewidth=1.6, solid_capstyle="projecting", clip_on=False, zorder=5)


def _ticks(axes: Axes, grid: PlotGrid, cell: float) -> None:
    """Labels of rows and columns, so many that none touches the next; a cell is `cell` inches wide and high."""
    wide = 0.06 + 0.075 * max(len(str(value)) for value in grid.columns)
    for values, place, room in ((grid.columns, axes.set_xticks, wide), (grid.rows, axes.set_yticks, 0.13)):
        every = tick_step(len(values), max(1, int(cell * len(values) / room)))
        at = [i for i, value in enumerate(values) if i == 0 or value % every == 0]
        place(at, [str(values[i]) for i in at])
    if not grid.row_axis:
        axes.set_yticks([])


def _scale(figure: Figure, panels: list[Axes]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colours = LinearSegmentedColormap.from_list("numerate", list(LIGHT))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 100), colours), ax=panels, fraction=0.035, pad=0.015, aspect=30)
    bar.ax.set_title("%", fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)
