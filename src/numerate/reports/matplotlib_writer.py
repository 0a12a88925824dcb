"""Figures as files for papers and trackers by matplotlib, with the Agg backend and without pyplot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numerate.errors import UserError, check_choice
from numerate.reports.colour import (
    BASELINE_DASHES,
    BORDER,
    COLORMAP_LIGHT,
    MARKER_SHAPES,
    SERIES,
    LegendEntry,
    Style,
    colormap,
    format_hex_color,
    text_color,
)
from numerate.reports.figure import Axis, Chart, ChartLine, Figure, HeatMap, Mark, Panel, PointChart
from numerate.reports.grid import axis_label, format_percent, tick_step
from numerate.reports.output_files import check_output_file, write_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

GREY, SHADE, GRID = "#63666f", "#f0efe9", "#dddddd"
MARKERS = dict(zip(MARKER_SHAPES, "osD^vP", strict=True))
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Suffixes of files with their metadata, which has no time."""


class Size(NamedTuple):
    """The width of a figure in inches, the narrowest panel, and dots per inch of a PNG."""

    width: float
    panel_width: float
    dpi: int


SIZES = {"column": Size(3.4, 3.4, 300), "page": Size(7.2, 2.2, 300), "slide": Size(5.6, 2.6, 500)}
"""Letters have 8 points in all of them: as wide as a column of a paper, as its page, or with larger letters in relation
to the figure, for a slide."""

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
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "numerate",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}


@contextmanager
def figure_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_drawing(width: float, height: float) -> MatplotlibFigure:
    """An empty figure of matplotlib, of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as MatplotlibFigure

    drawing = MatplotlibFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def save_figure(figure: Figure, path: str | Path, size: str = "page") -> Path:
    """Writes a figure by its suffix, .png (300 dpi), .svg or .pdf, without a timestamp, and returns the path.

    `size` is one of `SIZES`. Raises `UserError` for another suffix or size, and for a figure without panels.
    """
    check_figure_path(path)
    check_choice("size", size, SIZES)
    return write_drawing(draw_figure(figure, SIZES[size]), path, SIZES[size].dpi)


def write_drawing(drawing: MatplotlibFigure, path: str | Path, dpi: int = 300) -> Path:
    """Writes a figure of matplotlib in the same way."""
    kind, content = check_figure_path(path), io.BytesIO()
    with figure_style():
        drawing.savefig(content, format=kind, dpi=dpi, metadata=FORMATS[kind])
    return write_output(path, content.getvalue())


def check_figure_path(path: str | Path) -> str:
    """The kind of file that a path names. Raises `UserError` for one that figures are not written as, and for an
    existing file that is no figure of this kind."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise UserError(
            f"{path}: the suffix must be one of {', '.join(FORMATS)}; for example {path.with_suffix('.svg').name}"
        )
    check_output_file(path, kind)
    return kind


def draw_figure(figure: Figure, size: Size = SIZES["page"]) -> MatplotlibFigure:
    """A figure as one of matplotlib, sized in inches for a page. Raises `UserError` for one without panels."""
    panels = figure.drawn_panels
    if not panels:
        raise UserError("figure: nothing to draw; evaluate the runs first")
    columns = min(figure.columns, len(panels), int(size.width / size.panel_width))
    are_maps = all(isinstance(panel, HeatMap) and panel.row_axis for panel in panels)
    width = size.width if columns > 1 or figure.point_charts else min(size.width, 3.6 if are_maps else 5.4)
    panel_width = (width - 1.6 * bool(figure.point_charts)) / columns
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    legend = [(_wrapped(text, width - 0.6, 7.5), style) for text, style in figure.shared_legend or ()]
    legend_columns, legend_height = _legend_size(legend, width)
    notes = [line for note in figure.notes.split("\n") for line in wrap(note, int(18 * width))]
    heights = [
        max(_height(panel, panel_width, has_legend=figure.shared_legend is None) for panel in row) for row in rows
    ]
    with figure_style():
        drawing = new_drawing(width, sum(heights) + legend_height + 0.12 * len(notes))
        every: Any = drawing.subplots(len(rows), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
        drawn = []
        for i, (panel, axes) in enumerate(zip_longest(panels, every.flat)):
            if panel is None:
                axes.remove()
                continue
            drawn.append((panel, axes))
            _draw_panel(axes, panel, panel_width, is_first=i % columns == 0)
            axes.set_title(_wrapped(panel.title, panel_width, 9), pad=_title_pad(panel))
            if i % columns and axes.get_ylabel() == drawn[i - 1][1].get_ylabel():
                axes.yaxis.label.set_visible(False)
            if isinstance(panel, Chart) and figure.shared_legend is None:
                entries = [(_wrapped(text, panel_width - 0.6, 7.5), style) for text, style in panel.legend_entries()]
                place: Any = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.18)}
                axes.legend(*_handles(figure, entries), **place, ncols=_legend_size(entries, panel_width)[0])
        _add_colorbar(drawing, [axes for panel, axes in drawn if isinstance(panel, HeatMap)])
        if len(legend) > 1:
            drawing.legend(*_handles(figure, legend), loc="outside lower center", ncols=legend_columns)
        if notes:
            drawing.suptitle("\n".join(notes), fontsize=6.5, color=GREY, x=0.01, ha="left")
    return drawing


def _height(panel: Panel, width: float, *, has_legend: bool) -> float:
    """The height of a panel in inches."""
    title = 0.14 * _wrapped(panel.title, width, 9).count("\n")
    if isinstance(panel, HeatMap):
        # A map that is as wide as the figure leaves no room for its labels and the color bar.
        side = min(width, 3.0) if width < 3 else min(width - 0.6, 3.0)
        return (side + 0.3 if panel.row_axis else 0.85) + title
    if isinstance(panel, PointChart):
        return 0.85 + 0.3 * len(panel.rows) + title
    return min(3.1, 0.6 + 0.7 * width) + _legend_size(panel.legend_entries(), width)[1] * has_legend + title


def _draw_panel(axes: Axes, panel: Panel, width: float, *, is_first: bool) -> None:
    if isinstance(panel, HeatMap):
        _draw_map(axes, panel, (min(width, 3.0) if panel.row_axis else width) - 0.6, is_first=is_first)
    elif isinstance(panel, PointChart):
        _draw_points(axes, panel, is_first=is_first)
        axes.set_xlabel(_wrapped(panel.axis.label, width, 8))
    else:
        _draw_chart(axes, panel)


def _handles(figure: Figure, entries: Sequence[LegendEntry]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    has_markers = any(line.has_markers for chart in figure.charts for line in chart.series)
    lines = [Line2D([], [], **_line_options(style, has_markers)) for _, style in entries]
    return lines, [text for text, _ in entries]


def _legend_size(entries: Sequence[LegendEntry], inches: float) -> tuple[int, float]:
    """The columns of a legend and its height in inches: a letter is about 0.06 inches wide, a handle half an inch."""
    if len(entries) < 2:
        return 1, 0.0
    lines = [text.split("\n") for text, _ in entries]
    columns = max(1, int(inches / (0.55 + 0.062 * max(len(line) for one in lines for line in one))))
    return columns, 0.08 + (0.05 + 0.12 * max(map(len, lines))) * -(-len(entries) // columns)


def _add_colorbar(drawing: MatplotlibFigure, maps: Sequence[Axes]) -> None:
    """One color bar for all maps."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    if maps:
        colors = LinearSegmentedColormap.from_list("numerate", list(COLORMAP_LIGHT))
        bar = drawing.colorbar(
            ScalarMappable(Normalize(0, 100), colors), ax=list(maps), fraction=0.035, pad=0.015, aspect=30
        )
        bar.ax.set_title("%", fontsize=8)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2)


def _draw_chart(axes: Axes, chart: Chart) -> None:
    """A chart without its title, notes and legend."""
    x_axis, y_axis = chart.x_axis, chart.y_axis
    place: Any
    if chart.trained_range:
        edge = chart.trained_range[1] + 0.5
        axes.axvspan(chart.trained_range[0] - 0.5, edge, color=SHADE, linewidth=0, zorder=0)
        axes.axvline(edge, color=BORDER, linewidth=1.1, zorder=1)
        # Above the axes, where no data are: left of the border, or right of it where there is no room.
        fits = x_axis.fraction(edge) > 0.018 * len(chart.trained_range_label)
        text = chart.trained_range_label if fits else f"\N{LEFTWARDS ARROW} {chart.trained_range_label}"
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(text, (edge, 1), (0, 3), **place, ha="right" if fits else "left", color=BORDER, fontsize=7)
    for x, text in chart.reference_lines:
        axes.axvline(x, color=GREY, linestyle=":", linewidth=0.9, zorder=1)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "rotation": 90}
        axes.annotate(text, (x, 0), (-2, 4), **place, ha="right", va="bottom", color=GREY, fontsize=6.5)
    for line in chart.drawn_lines:
        _draw_line(axes, line, band_opacity=0.11 if len(chart.series) > 3 else 0.2)
    xscale, yscale = ("log" if axis.is_log else "linear" for axis in (x_axis, y_axis))
    axes.set(xlabel=x_axis.label, ylabel=y_axis.label, xscale=xscale, yscale=yscale)
    axes.set(xlim=_limits(x_axis, 0.015), ylim=_limits(y_axis, 0.03))
    axes.set_xticks([x for x, _ in x_axis.ticks], [text for _, text in x_axis.ticks], minor=False)
    axes.set_yticks([y for y, _ in y_axis.ticks], [text for _, text in y_axis.ticks], minor=False)
    axes.minorticks_off()
    axes.grid(axis="y")


def _limits(axis: Axis, margin: float) -> tuple[float, float]:
    """The ends of an axis with a margin, as a share of its span, so that no marker at an end is cut."""
    if axis.is_log:
        factor = (axis.high / axis.low) ** margin
        return axis.low / factor, axis.high * factor
    span = axis.high - axis.low
    return axis.low - margin * span, axis.high + margin * span


def _title_pad(panel: Panel) -> int:
    """The points between a panel and its title, with room for the name of the trained range."""
    return 15 if isinstance(panel, Chart) and panel.trained_range is not None else 6


def _draw_line(axes: Axes, line: ChartLine, *, band_opacity: float) -> None:
    color = SERIES[line.style.color]
    if line.is_baseline:
        axes.plot(
            line.x, line.y, color=GREY, linestyle=(0, BASELINE_DASHES), linewidth=1, zorder=1.5, label="_baseline"
        )
        text = f"baseline {format_percent(line.y[-1])} %"
        axes.text(line.x[-1], line.y[-1] + 0.015, text, color=GREY, fontsize=6.5, ha="right")
        return
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=band_opacity, linewidth=0)
    for values in line.seed_lines:
        axes.plot(line.x, values, color=color, linewidth=0.4, alpha=0.7)
    axes.plot(line.x, line.y, label=line.label, **_line_options(line.style, line.is_marked))


def _draw_points(axes: Axes, chart: PointChart, *, is_first: bool) -> None:
    """Rows of points with intervals; labels of rows in the first column alone."""
    labels = ["\n".join(wrap_name(f"{row.label} ({row.note})" if row.note else row.label)) for row in chart.rows]
    for i, row in enumerate(chart.rows):
        if row.mark is not None:
            _draw_mark(axes, row.mark, i)
    margin = 0.03 * (chart.axis.high - chart.axis.low)
    axes.set(xlim=(chart.axis.low - margin, chart.axis.high + margin), ylim=(len(labels) - 0.4, -0.6))
    axes.set_xticks([x for x, _ in chart.axis.ticks], [text for _, text in chart.axis.ticks])
    axes.set_yticks(range(len(labels)), labels if is_first else [""] * len(labels), fontsize=6.5)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_mark(axes: Axes, mark: Mark, y: float) -> None:
    color = SERIES[mark.style.color]
    if mark.interval is not None:
        thick: Any = {"linewidth": 1.8, "alpha": 0.5} if mark.is_reliable else {"linewidth": 0.7}
        axes.plot(mark.interval, [y, y], color=color, **thick)
    if mark.median is not None:
        axes.plot([mark.median] * 2, [y - 0.17, y + 0.17], color=color, linewidth=0.9)
    for values, marker, shade in ((mark.unconverged_seeds, "x", "#8a8d95"), (mark.seeds, "|", color)):
        axes.plot(values, [y + 0.27] * len(values), marker, color=shade, markersize=3.4, markeredgewidth=0.7)
    if mark.value is not None:
        shape = MARKERS[MARKER_SHAPES[mark.style.marker]]
        axes.plot([mark.value], [y], shape, color=color, markersize=3.6, linestyle="")


def _draw_map(axes: Axes, heat_map: HeatMap, side: float, *, is_first: bool) -> None:
    """A map about `side` inches wide, numbers in the cells where there is room, the border of training in red."""
    rows, columns = heat_map.rows, heat_map.columns
    pixels = np.ones((len(rows), len(columns), 3))
    room = min(7.0, 0.36 * 72 * side / len(columns))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            cell = heat_map.cells.get((row, column))
            if cell is None:
                continue
            background = colormap(cell.fraction)
            pixels[i, j] = [part / 255 for part in background]
            size = room * min(1.0, 3.5 / max(len(cell.text), 1))
            if size >= MIN_FONT_SIZE:
                # Zeros are pale, so that the other cells stand out.
                color = "#a9a79c" if cell.fraction == 0 else format_hex_color(text_color(background))
                axes.text(j, i, cell.text, ha="center", va="center", fontsize=size, color=color)
            for end, (x, y) in _BORDERS.items():
                if heat_map.has_border(i, j, end):
                    line: Any = {"linewidth": 1.6, "solid_capstyle": "projecting", "clip_on": False, "zorder": 5}
                    axes.plot([j + part for part in x], [i + part for part in y], color=BORDER, **line)
    is_square = bool(heat_map.row_axis) and 0.5 <= len(rows) / len(columns) <= 2
    axes.imshow(pixels, aspect="equal" if is_square else "auto", interpolation="nearest")
    # So many labels of rows and columns that none touches the next; a cell is as high as wide.
    wide = 0.06 + 0.075 * max(len(str(value)) for value in columns)
    for values, set_ticks, room in ((columns, axes.set_xticks, wide), (rows, axes.set_yticks, 0.13)):
        every = tick_step(len(values), max(1, int(side / len(columns) * len(values) / room)))
        at = [i for i, value in enumerate(values) if i == 0 or value % every == 0]
        set_ticks(at, [str(values[i]) for i in at])
    axes.set_xlabel(axis_label(heat_map.column_axis))
    if heat_map.row_axis:
        axes.set_ylabel(axis_label(heat_map.row_axis) if is_first else "")
    else:
        axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


_BORDERS = {
    "top": ((-0.5, 0.5), (-0.5, -0.5)),
    "bottom": ((-0.5, 0.5), (0.5, 0.5)),
    "left": ((-0.5, -0.5), (-0.5, 0.5)),
    "right": ((0.5, 0.5), (-0.5, 0.5)),
}
"""The ends of the sides of a cell, x and y."""


def wrap_name(name: str, max_characters: int = 22) -> list[str]:
    """Wraps a name at `max_characters` characters, after `_` and at spaces.

    >>> wrap_name("arithmetic__add_sub_multiple_longer")
    ['arithmetic__add_sub_', 'multiple_longer']
    """
    lines = [""]
    for piece in name.replace("_", "_\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > max_characters:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines if line.strip()]


def _line_options(style: Style, has_markers: bool) -> dict[str, Any]:
    """The matplotlib options of a style."""
    marker = MARKERS[MARKER_SHAPES[style.marker]] if has_markers else ""
    options = {"color": SERIES[style.color], "marker": marker, "markersize": 3.2, "linewidth": 1.3}
    return options | {"linestyle": (0, style.dashes) if style.dashes else "-"}


def _wrapped(text: str, inches: float, points: float) -> str:
    """A text in lines that fit into a width, broken at spaces and behind underscores, and inside of longer words."""
    most = max(8, int(140 * inches / points))
    return "\n".join(part for line in wrap_name(text, most) for part in wrap(line, most))
