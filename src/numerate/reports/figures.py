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
from numerate.reports.colour import BORDER, COLORMAP_LIGHT, SERIES, colormap, format_hex_color, text_color
from numerate.reports.drawing import MAX_NUMBER_COLUMNS, chart_axes, power_of_ten
from numerate.reports.figure import BASELINE_DASHES, MARKER_SHAPES, Chart, ChartLine, Style
from numerate.reports.grid import PlotGrid, axis_label, format_integer_percent, format_percent, tick_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#63666f"
MATPLOTLIB_MARKERS = dict(zip(MARKER_SHAPES, "osD^vP", strict=True))
FORMATS = ("png", "svg", "pdf")
MAX_WIDTH_INCHES = 7.2
"""Maximum width of a figure in inches."""

MAX_MAP_INCHES = 2.7
"""Maximum side of a heat map in inches."""

MIN_FONT_SIZE = 3.6
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
def figure_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
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
        raise UserError("grids: must not be empty; evaluate the run first")
    is_single_row = all(not grid.row_axis for grid in grids)
    num_columns = 1 if is_single_row else min(columns, len(grids))
    num_rows = -(-len(grids) // num_columns)
    side = 6.0 if is_single_row else _map_inches(num_columns)
    with figure_style():
        title_height = 0.14 * (max(len(_title_lines(grid, "", side)) for grid in grids) - 1)
        map_height = (0.85 if is_single_row else side + 0.4) + title_height
        figure = (
            new_figure(6.4, 0.6 + map_height * num_rows)
            if is_single_row
            else new_figure(0.9 + (side + 0.2) * num_columns, map_height * num_rows)
        )
        table = figure.subplots(num_rows, num_columns, squeeze=False)
        for i, axes in enumerate(table.flat):
            if i < len(grids):
                _draw_map(axes, grids[i], side, first=i % num_columns == 0)
            else:
                axes.set_axis_off()
        _add_colorbar(figure, list(table.flat))
    return figure


def _map_inches(num_columns: int) -> float:
    """The width of one of `num_columns` maps in inches."""
    return min(MAX_MAP_INCHES, (MAX_WIDTH_INCHES - 0.9) / num_columns - 0.2)


def charts_figure(charts: Sequence[Chart], *, columns: int = 3, note: str = "") -> Figure:
    """Charts side by side, above each its title and its notes, above all the `note`; one legend below all if it is the
    same for all.

    Raises `UserError` if there is nothing to draw.
    """
    charts = [chart for chart in charts if any(len(line.x) for line in chart.lines)]
    if not charts:
        raise UserError("curves: needs cells with equal axes; evaluate with grid=diagonal:1:18, for example")
    num_columns = min(columns, len(charts))
    num_rows = -(-len(charts) // num_columns)
    width = 5.4 if num_columns == 1 else MAX_WIDTH_INCHES / num_columns
    legends = [chart.legend_entries() for chart in charts]
    longest_legend = max(legends, key=len)
    has_shared_legend = all(set(one) <= set(longest_legend) for one in legends)
    legend_height = 0.0 if has_shared_legend else max(_legend_height(one, width) for one in legends)
    height = (
        min(3.1, 0.6 + 0.7 * width) + 0.12 * max(len(_wrapped_notes(chart, width)) for chart in charts) + legend_height
    )
    with figure_style():
        figure = new_figure(
            width * num_columns,
            height * num_rows + (_legend_height(longest_legend, width * num_columns) if has_shared_legend else 0),
        )
        table = figure.subplots(num_rows, num_columns, squeeze=False)
        for axes in table.flat[len(charts) :]:
            axes.set_axis_off()
        for axes, chart, entries in zip(table.flat, charts, legends, strict=False):
            draw_chart(axes, chart)
            lines, offset = _wrapped_notes(chart, width), 9 * (chart.trained_range is not None)
            notes = "\n".join(lines)
            axes.annotate(notes, (0, 1), (0, 4 + offset), **_ANNOTATION_OPTIONS, fontsize=6.5, color=GREY)
            if len(charts) > 1 or chart.title:
                over = (0, 4 + offset + 8.5 * len(lines))
                axes.annotate(chart.title, (0, 1), over, **_ANNOTATION_OPTIONS, fontsize=9)
            if not has_shared_legend and entries:
                beside = _legend_columns([text for text, _ in entries], width)
                axes.legend(*_handles(entries, charts), loc="upper left", bbox_to_anchor=(-0.02, -0.18), ncols=beside)
        for row in table:
            for before, axes in pairwise(row):
                if before.get_ylabel() == axes.get_ylabel():
                    axes.yaxis.label.set_visible(False)
        if has_shared_legend:
            add_legend_below(figure, longest_legend, charts)
        add_note_above(figure, note)
    return figure


def add_note_above(figure: Figure, text: str) -> None:
    """Small print above all panels."""
    if text:
        wrapped = "\n".join(wrap(text, int(18 * figure.get_figwidth())))
        figure.suptitle(wrapped, fontsize=6.5, color=GREY, x=0.01, ha="left")


_ANNOTATION_OPTIONS: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}


def _wrapped_notes(chart: Chart, width: float) -> list[str]:
    return [part for note in chart.notes for part in wrap(note, int(19 * width))]


def comparison_figure(grids: Mapping[str, PlotGrid], chart: Chart) -> Figure:
    """The figure of a study: a heat map per label, and all of them along the diagonal, beside a single map or below
    several, with the notes of the chart.

    Raises `UserError` without grids.
    """
    if not grids:
        raise UserError("grids: nothing to draw; evaluate the runs first")
    count = len(grids)
    num_columns = count if count <= 3 else 2 if count == 4 else 3
    num_rows = -(-count // num_columns)
    is_single, entries = count == 1, chart.legend_entries()
    side = _map_inches(num_columns)
    legend_height = _legend_height(entries, MAX_WIDTH_INCHES) + 0.15 * len(chart.notes)
    with figure_style():
        figure = new_figure(
            MAX_WIDTH_INCHES, 3.1 + legend_height if is_single else (side + 0.45) * num_rows + 2.6 + legend_height
        )
        if is_single:
            panels = list(figure.subplots(1, 2, width_ratios=[1.0, 1.3]))
        else:
            cells = figure.add_gridspec(num_rows + 1, num_columns, height_ratios=[side] * num_rows + [2.2])
            panels = [figure.add_subplot(cells[i // num_columns, i % num_columns]) for i in range(count)]
            panels.append(figure.add_subplot(cells[num_rows, :]))
        for i, (label, grid) in enumerate(grids.items()):
            _draw_map(panels[i], grid, side, first=i % num_columns == 0, title=label)
        _add_colorbar(figure, panels[:count])
        draw_chart(panels[-1], chart)
        panels[-1].set_title(chart.title)
        for letter, axes in zip("abcdefghijklmnop", panels, strict=False):
            above = chart.trained_range is not None and axes is panels[-1]
            axes.set_title(letter, loc="left", fontweight="bold", pad=15 if above else 6)
        add_legend_below(figure, entries, [chart])
        add_note_above(figure, "; ".join(note.rstrip(".") for note in chart.notes))
    return figure


def draw_chart(axes: Axes, chart: Chart) -> None:
    """A chart without its title, notes and legend, with the axes of its SVG."""
    (low_x, high_x), (low_y, high_y), ticks_x, ticks_y = chart_axes(chart)
    scale = 100.0 if chart.is_percent else 1.0
    if chart.trained_range:
        edge = chart.trained_range[1] + 0.5
        axes.axvspan(chart.trained_range[0] - 0.5, edge, color="#f0efe9", linewidth=0, zorder=0)
        axes.axvline(edge, color=BORDER, linewidth=1.1, zorder=1)
        # Above the axes, where no data are: left of the border, or right of it where there is no room.
        room = (edge - low_x) / (high_x - low_x) > 0.018 * len(chart.trained_range_label)
        text = chart.trained_range_label if room else f"\N{LEFTWARDS ARROW} {chart.trained_range_label}"
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right"}
        place |= {} if room else {"ha": "left"}
        axes.annotate(text, (edge, 1), (0, 3), **place, color=BORDER, fontsize=7)
    bands = 0.11 if len(chart.series) > 3 else 0.2
    for line in chart.lines:
        _draw_line(axes, line, scale, bands)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_xlim(low_x, high_x)
    axes.set_xticks(ticks_x)
    if chart.is_log:
        axes.set(yscale="log", ylim=(10.0**low_y, 10.0**high_y))
        axes.set_yticks([10.0**tick for tick in ticks_y], [power_of_ten(tick) for tick in ticks_y], minor=False)
        axes.minorticks_off()
    else:
        margin = 3.0 if chart.is_percent else 0.0
        axes.set_ylim(scale * low_y - margin, scale * high_y + margin)
        axes.set_yticks([scale * tick for tick in ticks_y])
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def _draw_line(axes: Axes, line: ChartLine, scale: float, band: float) -> None:
    x, y = list(line.x), [scale * value for value in line.y]
    if line.is_baseline:
        axes.plot(x, y, color=GREY, linestyle=(0, BASELINE_DASHES), linewidth=1, zorder=1.5, label="_baseline")
        axes.text(x[-1], y[-1] + 1.5, f"baseline {format_percent(line.y[-1])} %", color=GREY, fontsize=6.5, ha="right")
        return
    if line.low is not None and line.high is not None:
        low, high = ([scale * value for value in values] for values in (line.low, line.high))
        axes.fill_between(x, low, high, color=_color(line.style), alpha=band, linewidth=0)
    for values in line.seed_lines:
        axes.plot(x, [scale * value for value in values], color=_color(line.style), linewidth=0.4, alpha=0.7)
    dots = len(x) == 1 or (line.has_markers and len(x) <= MAX_NUMBER_COLUMNS)
    axes.plot(x, y, label=line.label, **_line_options(line.style, dots=dots))


def _color(style: Style) -> str:
    return "#1c1e24" if style.color is None else SERIES[style.color]


def _line_options(style: Style, *, dots: bool, lines: bool = True) -> dict[str, Any]:
    """The matplotlib options of a style."""
    marker = (
        MATPLOTLIB_MARKERS[MARKER_SHAPES[style.marker or 0]] if dots and (style.marker is not None or not lines) else ""
    )
    dashes: Any = (0, style.dashes) if style.dashes else "-"
    options = {"color": _color(style), "marker": marker, "markersize": 3.2}
    return options | ({"linestyle": dashes, "linewidth": 1.3} if lines else {"linestyle": ""})


LegendEntries = Sequence[tuple[str, Style]]
"""The entries of a legend."""


def add_legend_below(figure: Figure, entries: LegendEntries, charts: Sequence[Chart] = ()) -> None:
    """One legend below all panels: of marks, and of the lines of charts."""
    if len(entries) > 1:
        beside = _legend_columns([text for text, _ in entries], figure.get_figwidth())
        figure.legend(*_handles(entries, charts), loc="outside lower center", ncols=beside)


def _handles(entries: LegendEntries, charts: Sequence[Chart]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    dots = not charts or any(line.has_markers for chart in charts for line in chart.series)
    lines = bool(charts)
    return [Line2D([], [], **_line_options(style, dots=dots, lines=lines)) for _, style in entries], [
        text for text, _ in entries
    ]


def _legend_columns(labels: Sequence[str], inches: float) -> int:
    """The columns of a legend: a letter is about 0.06 inches wide, a handle half an inch."""
    columns = max(1, int(inches / (0.55 + 0.062 * max(map(len, labels)))))
    return -(-len(labels) // -(-len(labels) // columns))


def _legend_height(entries: LegendEntries, inches: float) -> float:
    """How many inches a legend is high."""
    labels = [text for text, _ in entries]
    return 0.08 + 0.17 * -(-len(labels) // _legend_columns(labels, inches)) if len(labels) > 1 else 0.0


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a figure by its suffix, .png (300 dpi), .svg or .pdf, without a timestamp.

    Raises `UserError` for another suffix.
    """
    path = Path(path)
    kind = check_figure_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with figure_style():
        figure.savefig(path, dpi=300, metadata=metadata[kind])
    return path


def check_figure_suffix(path: str | Path) -> str:
    """The kind of file that a path names. Raises `UserError` for one that figures are not written as."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise UserError(
            f"{path}: the suffix must be one of {', '.join(FORMATS)}; for example {path.with_suffix('.svg').name}"
        )
    return kind


def _draw_map(axes: Axes, grid: PlotGrid, side: float, *, first: bool, title: str = "") -> None:
    """A map that is `side` inches wide, below its title in as many lines as that takes."""
    rows, columns = len(grid.rows), len(grid.columns)
    pixels = np.ones((rows, columns, 3))
    size = min(7.0, 0.36 * 72 * side / columns)
    for i, row in enumerate(grid.rows):
        for j, column in enumerate(grid.columns):
            point = grid.points.get((row, column))
            if point is None:
                continue
            background = colormap(point.score)
            pixels[i, j] = [part / 255 for part in background]
            if size >= MIN_FONT_SIZE:
                # Zeros are pale, so that the other cells stand out.
                front = "#a9a79c" if point.score == 0 else format_hex_color(text_color(background))
                axes.text(
                    j, i, format_integer_percent(point.score), ha="center", va="center", fontsize=size, color=front
                )
    axes.imshow(pixels, aspect="equal" if grid.row_axis else "auto", interpolation="nearest")
    if grid.row_axis and rows != columns:
        axes.set_anchor("N")
    for i in range(rows):
        for j in range(columns):
            for end in ("top", "left", "bottom", "right"):
                if grid.has_border(i, j, end):
                    _draw_border(axes, i, j, end)
    _set_ticks(axes, grid, side / columns)
    axes.set_title("\n".join(_title_lines(grid, title, side)))
    axes.set_xlabel(axis_label(grid.column_axis))
    if first and grid.row_axis:
        axes.set_ylabel(axis_label(grid.row_axis))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def _title_lines(grid: PlotGrid, title: str, side: float) -> list[str]:
    """The title of a map `side` inches wide, in lines that fit above it."""
    words = METRICS[next((point.metric for point in grid.points.values()), "exact_match")]
    return wrap(title or grid.title or f"{words}, %", int(14 * side))


def _draw_border(axes: Axes, i: int, j: int, side: str) -> None:
    ends = {
        "top": ((j - 0.5, j + 0.5), (i - 0.5, i - 0.5)),
        "bottom": ((j - 0.5, j + 0.5), (i + 0.5, i + 0.5)),
        "left": ((j - 0.5, j - 0.5), (i - 0.5, i + 0.5)),
        "right": ((j + 0.5, j + 0.5), (i - 0.5, i + 0.5)),
    }
    axes.plot(*ends[side], color=BORDER, linewidth=1.6, solid_capstyle="projecting", clip_on=False, zorder=5)


def _set_ticks(axes: Axes, grid: PlotGrid, cell: float) -> None:
    """Labels of rows and columns, so many that none touches the next; a cell is `cell` inches wide and high."""
    wide = 0.06 + 0.075 * max(len(str(value)) for value in grid.columns)
    for values, place, room in ((grid.columns, axes.set_xticks, wide), (grid.rows, axes.set_yticks, 0.13)):
        every = tick_step(len(values), max(1, int(cell * len(values) / room)))
        at = [i for i, value in enumerate(values) if i == 0 or value % every == 0]
        place(at, [str(values[i]) for i in at])
    if not grid.row_axis:
        axes.set_yticks([])


def _add_colorbar(figure: Figure, panels: list[Axes]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colors = LinearSegmentedColormap.from_list("numerate", list(COLORMAP_LIGHT))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 100), colors), ax=panels, fraction=0.035, pad=0.015, aspect=30)
    bar.ax.set_title("%", fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)
