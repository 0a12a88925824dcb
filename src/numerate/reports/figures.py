"""Figures for papers and trackers, by matplotlib: the one file that imports it. Agg through objects, no pyplot.

Every function returns a `matplotlib.figure.Figure`, sized in inches for a page; `save` writes it as PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import Mistake
from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import seeds_band
from numerate.reports.colour import FRAME, LIGHT, SERIES, hexadecimal, ink, ramp
from numerate.reports.grid import Grid, Point, axis_words, floor_curve, length_ticks, percent, tick_step, whole_percent
from numerate.reports.records import Records, split_measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_QUIET = "#63666f"
_NO_DIAGONAL = "curves: no cell has all axes equal; evaluate on grid=equal:1:18, for example"
MARKERS = "osD^vP"
LINES = ("-", (0, (5, 1.5)), "-.", ":", (0, (3, 1, 1, 1)), "-")
FORMATS = ("png", "svg", "pdf")
MOST_NUMBERS = 24
"""Grids with more columns than this are drawn without numbers in the cells."""

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


def heat_maps(grids: Sequence[Grid], *, columns: int = 3) -> Figure:
    """Heat maps side by side on one scale, per cents in the cells, the border of what was trained in red.

    Raises `Mistake` without grids.
    """
    if not grids:
        raise Mistake("grids: nothing to draw; evaluate the run first")
    strips = all(not grid.row_axis for grid in grids)
    across = 1 if strips else min(columns, len(grids))
    down = -(-len(grids) // across)
    with styled():
        figure = blank(6.4, 0.6 + 0.85 * down) if strips else blank(0.7 + 3.1 * across, 0.5 + 3.0 * down)
        table = figure.subplots(down, across, squeeze=False)
        for i, axes in enumerate(table.flat):
            if i < len(grids):
                _draw_map(axes, grids[i], first=i % across == 0)
            else:
                axes.set_axis_off()
        _scale(figure, list(table.flat))
    return figure


def length_curves(
    series: Mapping[str, Mapping[int, Point]],
    *,
    axis: str = "n",
    notes: Sequence[str] = (),
) -> Figure:
    """Share right along the diagonal of grids, one line per label, the interval as a band, trained lengths shaded.

    What the bands are, and of how many seeds, stands above with the `notes`, and the name of a single line. Where
    memorising what was trained gives something by itself, it is drawn dashed: all of it, and the floor of each point
    beyond.
    Raises `Mistake` without cells of equal sizes.
    """
    series = {label: along for label, along in series.items() if along}
    if not series:
        raise Mistake(_NO_DIAGONAL)
    with styled():
        figure = blank(4.8, 3.1 + 0.17 * _lines(list(series), 4.8))
        axes = figure.subplots()
        _draw_lengths(axes, series, axis)
        if len(series) > 1:
            _legend(figure, axes)
        name = [next(iter(series))] if len(series) == 1 else []
        _above(axes, [*name, _doubt(series), *notes])
    return figure


def comparison(
    grids: Mapping[str, Grid], diagonals: Mapping[str, Mapping[int, Point]], notes: Sequence[str] = ()
) -> Figure:
    """The figure of a study: a heat map per label, then all of them along the diagonal with their intervals, and below
    them the `notes`.

    Raises `Mistake` without grids.
    """
    if not grids:
        raise Mistake("grids: nothing to draw; evaluate the runs first")
    maps = list(grids.values())
    with styled():
        figure = blank(2.75 * len(maps) + 3.3, 3.1)
        panels = figure.subplots(1, len(maps) + 1, width_ratios=[1.0] * len(maps) + [1.05], squeeze=False)[0]
        for i, (label, grid) in enumerate(grids.items()):
            _draw_map(panels[i], grid, first=i == 0, title=label)
        _scale(figure, list(panels[: len(maps)]))
        _draw_lengths(panels[-1], diagonals, along_words(maps[0]), title="by length")
        if len(diagonals) > 1:
            _legend(figure, panels[-1])
        for letter, axes in zip("abcdefghijklmnop", panels, strict=False):
            axes.set_title(letter, loc="left", fontweight="bold")
        if notes:
            figure.suptitle(" ".join(notes), fontsize=6, color=_QUIET, x=0.995, ha="right")
    return figure


@dataclass(frozen=True)
class Panel:
    """Curves by length with what is said of them, as `length_curves` takes it."""

    title: str
    series: Mapping[str, Mapping[int, Point]]
    axis: str = "n"
    notes: Sequence[str] = ()


def length_panels(panels: Sequence[Panel], *, columns: int = 3) -> Figure:
    """A panel of curves by length for each task, its name and what the bands are above it, its legend below.

    Raises `Mistake` where none has cells of equal sizes.
    """
    filled = [
        replace(panel, series={label: along for label, along in panel.series.items() if along}) for panel in panels
    ]
    filled = [panel for panel in filled if panel.series]
    if not filled:
        raise Mistake(_NO_DIAGONAL)
    width, across = 3.6, min(columns, len(filled))
    down = -(-len(filled) // across)
    deep = max(_lines(list(panel.series), width) for panel in filled)
    with styled():
        figure = blank(width * across, (3.1 + 0.17 * deep) * down)
        table = figure.subplots(down, across, squeeze=False)
        for axes in table.flat[len(filled) :]:
            axes.set_axis_off()
        for axes, panel in zip(table.flat, filled, strict=False):
            _draw_lengths(axes, panel.series, panel.axis)
            told = _above(axes, [_doubt(panel.series), *panel.notes], letters=72)
            title, over = "\n".join(wrap(panel.title, 48)), (0, 6 + 8 * told)
            axes.annotate(title, (0, 1), over, xycoords="axes fraction", textcoords="offset points", fontsize=9)
            beside = -(-len(panel.series) // _lines(list(panel.series), width))
            axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), ncols=beside, handlelength=2.8)
    return figure


def training_curves(runs: Mapping[str, Sequence[Records]]) -> Figure:
    """Loss by step (logarithmic), and exact match on the development sets by step, per label; of labels their accuracy.

    One seed: exact match carries the interval over its questions; several: the median with lowest and highest.
    """
    return training_panels({"": runs})


def training_panels(tasks: Mapping[str, Mapping[str, Sequence[Records]]]) -> Figure:
    """The same with a row for each task, by its name."""
    width = 6.6 if len(tasks) == 1 else 3.3
    lines = [_lines(list(runs), width) for runs in tasks.values()]
    with styled():
        figure = blank(6.6, (2.6 + 0.17 * max(lines)) * len(tasks))
        table = figure.subplots(len(tasks), 2, squeeze=False)
        for (name, runs), (loss, exact) in zip(tasks.items(), table, strict=True):
            _draw_training(loss, exact, runs)
            if len(tasks) > 1:
                told = loss.get_title()
                loss.set_title("\n".join(filter(None, (name, told))), fontsize=7.5, color=_QUIET)
                beside = -(-len(runs) // _lines(list(runs), width))
                if loss.get_legend_handles_labels()[0]:
                    loss.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.2), ncols=beside, handlelength=2.8)
            elif len(runs) > 1:
                _legend(figure, loss)
    return figure


def _draw_training(loss: Axes, exact: Axes, runs: Mapping[str, Sequence[Records]]) -> None:
    words = METRICS["exact"]
    for i, (label, seeds) in enumerate(runs.items()):
        colour = SERIES[i % len(SERIES)]
        _band(loss, [_series(run.training(), "loss") for run in seeds], colour, "-", label)
        for name, line in (("development", "-"), ("beyond-development", "--")):
            what = split_measure([run.split(name) for run in seeds])
            words = METRICS[what] if what != "exact" else words
            curves = [_series(run.split(name), what) for run in seeds if run.split(name)]
            _band(exact, curves, colour, line, label, scale=100.0)
            if len(seeds) == 1 and curves and what == "exact":
                lines = seeds[0].split(name)
                low, high = ([100.0 * row.get(key, row["exact"]) for row in lines] for key in ("low", "high"))
                exact.fill_between([row["step"] for row in lines], low, high, color=colour, alpha=0.18, linewidth=0)
    loss.set(xlabel="step", ylabel="loss, nats per token", yscale="log")
    exact.set(xlabel="step", ylabel=f"{words}, %", ylim=(-3, 103))
    for axes in (loss, exact):
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
    exact.set_title("solid: in distribution, dashed: OOD validation", fontsize=7.5, color=_QUIET)
    several = any(len(seeds) > 1 for seeds in runs.values())
    loss.set_title("medians, lowest to highest seed" if several else "", fontsize=7.5, color=_QUIET)


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as its name ends, .png (300 dpi), .svg or .pdf, without the time of day in it.

    Raises `Mistake` for another ending.
    """
    path = Path(path)
    kind = refuse_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with styled():
        figure.savefig(path, dpi=300, metadata=dated[kind])
    return path


def refuse_ending(path: str | Path) -> str:
    """The kind of file that a path names. Raises `Mistake` for one that figures are not written as."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise Mistake(
            f"{path}: figures are written as {', '.join(FORMATS)}; for example {path.with_suffix('.svg').name}"
        )
    return kind


def _doubt(series: Mapping[str, Mapping[int, Point]]) -> str:
    """What the bands of curves are."""
    points = [point for along in series.values() for point in along.values()]
    seeds = sorted({len(point.each) for point in points})
    asked = sorted({point.count for point in points})
    what = "questions" if all(point.metric == "exact" for point in points) else "rows"
    questions = f"{asked[0]} {what}" if len(asked) == 1 else f"{asked[0]} to {asked[-1]} {what}"
    if seeds == [1]:
        return f"one seed; bands: 95 % Wilson intervals, {questions} per length"
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    thin = " thin lines: single seeds;" * (len(series) <= len(SERIES))
    return f"medians of {number} seeds; bands: lowest to highest;{thin} {questions} each"


def _above(axes: Axes, lines: Sequence[str], letters: int = 96) -> int:
    """Small lines above a panel, long ones wrapped; returns how many there are."""
    wrapped = [part for line in lines for part in wrap(line, letters)]
    axes.set_title("\n".join(wrapped), fontsize=6, color=_QUIET, loc="left")
    return len(wrapped)


def _draw_map(axes: Axes, grid: Grid, *, first: bool, title: str = "") -> None:
    rows, columns = len(grid.rows), len(grid.columns)
    picture = np.ones((rows, columns, 3))
    size = 5.8 if columns <= 12 else max(2.4, 5.8 * 12 / columns)
    for i, row in enumerate(grid.rows):
        for j, column in enumerate(grid.columns):
            point = grid.points.get((row, column))
            if point is None:
                continue
            paper = ramp(point.value)
            picture[i, j] = [part / 255 for part in paper]
            if columns <= MOST_NUMBERS:
                # Nothing right is said quietly, so that the shape of what works is seen first.
                front = "#a9a79c" if point.value == 0 else hexadecimal(ink(paper))
                axes.text(j, i, whole_percent(point.value), ha="center", va="center", fontsize=size, color=front)
    axes.imshow(picture, aspect="equal" if grid.row_axis else "auto", interpolation="nearest")
    if grid.row_axis and rows != columns:
        axes.set_anchor("N")
    for i in range(rows):
        for j in range(columns):
            for side in ("top", "left", "bottom", "right"):
                if grid.edge(i, j, side):
                    _edge(axes, i, j, side)
    _ticks(axes, grid)
    words = METRICS[next((point.metric for point in grid.points.values()), "exact")]
    axes.set_title(title or grid.title or f"{words}, %")
    axes.set_xlabel(axis_words(grid.column_axis))
    if first and grid.row_axis:
        axes.set_ylabel(axis_words(grid.row_axis))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def _edge(axes: Axes, i: int, j: int, side: str) -> None:
    ends = {
        "top": ((j - 0.5, j + 0.5), (i - 0.5, i - 0.5)),
        "bottom": ((j - 0.5, j + 0.5), (i + 0.5, i + 0.5)),
        "left": ((j - 0.5, j - 0.5), (i - 0.5, i + 0.5)),
        "right": ((j + 0.5, j + 0.5), (i - 0.5, i + 0.5)),
    }
    axes.plot(*ends[side], color=FRAME, linewidth=1.6, solid_capstyle="projecting", clip_on=False, zorder=5)


def _ticks(axes: Axes, grid: Grid) -> None:
    for values, place in ((grid.columns, axes.set_xticks), (grid.rows, axes.set_yticks)):
        every = 1 if len(values) <= MOST_NUMBERS else tick_step(len(values), 10)
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


def _legend(figure: Figure, axes: Axes) -> None:
    """One legend below all panels, in as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    columns = -(-len(labels) // _lines(labels, figure.get_figwidth()))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.8, columnspacing=1.4)


def _lines(labels: Sequence[str], inches: float) -> int:
    """How many lines a legend of these labels takes: a letter is about 0.06 inches wide, a handle half an inch."""
    columns = max(1, int(inches / (0.5 + 0.062 * max(map(len, labels)))))
    return -(-len(labels) // columns)


def along_words(grid: Grid) -> str:
    """What the lengths along the diagonal of a grid are."""
    digits = (grid.row_axis, grid.column_axis) == ("first_digits", "second_digits")
    return (
        "n, digits of each number"
        if digits
        else "n, along the diagonal"
        if grid.row_axis
        else axis_words(grid.column_axis)
    )


def _draw_lengths(
    axes: Axes,
    series: Mapping[str, Mapping[int, Point]],
    axis: str,
    title: str = "",
) -> None:
    lengths = sorted({n for along in series.values() for n in along})
    trained = sorted(
        {n for along in series.values() for n, point in along.items() if point.region == "in_distribution"}
    )
    if trained:
        axes.axvspan(trained[0] - 0.5, trained[-1] + 0.5, color="#f0efe9", linewidth=0, zorder=0)
        axes.axvline(trained[-1] + 0.5, color=FRAME, linewidth=1.1, zorder=1)
        narrow = 20 * (trained[-1] + 1 - lengths[0]) < lengths[-1] + 1 - lengths[0]  # no room before the border
        place, side = (trained[-1] + 0.65, "left") if narrow else (trained[-1] + 0.35, "right")
        axes.text(place, 4, "in distribution", color=FRAME, fontsize=7, ha=side, va="bottom", rotation=90)
    across, floors = floor_curve(list(series.values()))
    if across:
        heights = [100 * floor for floor in floors]
        axes.plot(across, heights, color=_QUIET, linestyle=(0, (1.5, 2)), linewidth=1, zorder=1.5)
        told = f"floor {percent(floors[-1])} %"
        axes.text(across[-1], heights[-1] + 1.5, told, color=_QUIET, fontsize=6.5, ha="right")
    for i, (label, along) in enumerate(series.items()):
        # From the seventh on colours come again, with another marker and another line than the first time.
        again = i // len(SERIES)
        colour, marker = SERIES[i % len(SERIES)], MARKERS[(i + again) % len(MARKERS)]
        steps = list(along)
        low, high = ([100 * getattr(along[n], name) for n in steps] for name in ("low", "high"))
        values = [100 * along[n].value for n in steps]
        many = len(series) > 3
        axes.fill_between(steps, low, high, color=colour, alpha=0.11 if many else 0.2, linewidth=0)
        seeds = min((len(point.each) for point in along.values()), default=0)
        for seed in range(seeds if seeds > 1 and len(series) <= len(SERIES) else 0):
            shares = [100 * along[n].each[seed] for n in steps]
            axes.plot(steps, shares, color=colour, linewidth=0.4, alpha=0.4 if many else 0.7)
        line = LINES[(i + again) % len(LINES)]
        marker = marker if len(steps) <= MOST_NUMBERS else ""
        axes.plot(
            steps, values, color=colour, marker=marker, markersize=3.2, linewidth=1.3, linestyle=line, label=label
        )
    found = {point.metric for along in series.values() for point in along.values()}
    words = METRICS[found.pop()] if len(found) == 1 else "share right"
    axes.set(xlabel=axis, ylabel=f"{words}, %", ylim=(-3, 103))
    if lengths:
        from matplotlib.ticker import MaxNLocator

        if lengths[-1] - lengths[0] < 2 * len(lengths):
            axes.set_xticks(length_ticks(lengths, 13))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlim(lengths[0] - 0.5, lengths[-1] + 0.5)
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_title(title)


def _series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    kept = {float(line["step"]): float(line[name]) for line in lines if line.get(name) is not None}
    return list(kept), list(kept.values())


def _band(axes: Axes, curves: list[Any], colour: str, line: Any, label: str, scale: float = 1.0) -> None:
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return
    band = seeds_band(curves)
    axes.plot(band.steps, scale * band.median, color=colour, linestyle=line, linewidth=1.2, label=label)
    if band.count > 1:
        axes.fill_between(band.steps, scale * band.low, scale * band.high, color=colour, alpha=0.18, linewidth=0)
