"""Figures of the statistics of rows, in the style of reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.reports.colour import COLORMAP_LIGHT, SERIES, colormap, format_hex_color, text_color
from numerate.reports.figures import MAX_WIDTH_INCHES, figure_style, new_figure, save_figure
from numerate.reports.grid import axis_label, tick_step
from numerate.text.data.statistics import MAX_MULTIPLICITY, Histogram, Statistics

_FIRST_COLOR, _SECOND_COLOR, _THIRD_COLOR = SERIES[0], SERIES[2], SERIES[1]
_MOST_SYMBOLS = 60


def save_figures(statistics: Statistics, folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes the non-empty figures, in each format, to a folder, and returns their paths.

    `lengths` (rows, operands, answers), `pairs` (rows and the share of repeated questions by pair of sizes), `carries`
    (the longest chain of each sum), `repeats` (how often questions stand there) and `characters`.
    """
    figures = {
        "lengths": plot_lengths(statistics),
        "pairs": plot_pairs(statistics) if statistics.rows_per_pair else None,
        "carries": plot_carries(statistics) if statistics.carry_chain_lengths.total else None,
        "repeats": plot_repeats(statistics),
        "characters": plot_characters(statistics),
    }
    return [
        save_figure(figure, Path(folder) / f"{name}.{extension}")
        for name, figure in figures.items()
        if figure is not None
        for extension in formats
    ]


def plot_lengths(statistics: Statistics) -> Any:
    """How long rows, operands and answers are."""
    histograms = [
        (statistics.row_lengths, "row, tokens with its end", _FIRST_COLOR),
        (statistics.operand_digits, "operand, digits", _SECOND_COLOR),
        (statistics.answer_lengths, "answer, tokens", _THIRD_COLOR),
    ]
    histograms = [one for one in histograms if one[0].total]
    with figure_style():
        figure = new_figure(min(MAX_WIDTH_INCHES, 0.4 + 2.7 * len(histograms)), 2.3)
        panels = figure.subplots(1, len(histograms), squeeze=False)[0]
        for axes, (histogram, label, color) in zip(panels, histograms, strict=True):
            _draw_bars(axes, histogram, color)
            axes.set(xlabel=label)
            axes.set_title(f"median {histogram.median()}, {histogram.min()} to {histogram.max()}")
        panels[0].set_ylabel("share, %")
    return figure


def plot_carries(statistics: Statistics) -> Any:
    """The longest chain of carries of each sum, on a logarithmic scale: long chains are rare."""
    with figure_style():
        figure = new_figure(3.7, 2.5)
        axes = figure.subplots()
        _draw_bars(axes, statistics.carry_chain_lengths, _FIRST_COLOR, logarithmic=True)
        axes.set(xlabel="longest carry chain of a sum, places", ylabel="share of sums, %")
        axes.set_title(
            f"mean {statistics.carry_chain_lengths.mean():.2f}, longest {statistics.carry_chain_lengths.max()}"
        )
    return figure


def plot_repeats(statistics: Statistics) -> Any:
    """How many questions stand there once, twice, ...; both axes logarithmic where there are many."""
    with figure_style():
        figure = new_figure(3.7, 2.5)
        axes = figure.subplots()
        multiplicities = np.flatnonzero(statistics.multiplicities.counts)
        is_logarithmic = statistics.max_multiplicity > 12
        if is_logarithmic:
            axes.vlines(
                multiplicities,
                0.5,
                statistics.multiplicities.counts[multiplicities],
                color=_FIRST_COLOR,
                linewidth=0.7,
                alpha=0.45,
            )
            axes.plot(
                multiplicities,
                statistics.multiplicities.counts[multiplicities],
                "o",
                color=_FIRST_COLOR,
                markersize=2.8,
                markeredgewidth=0,
            )
            axes.set_xscale("log")
            axes.set_xlim(0.8, 1.3 * multiplicities[-1])
            ticks = [value for power in (1, 10, 100, 1000) for value in (power, 2 * power, 5 * power)]
            axes.set_xticks([value for value in ticks if value <= multiplicities[-1]])
            axes.minorticks_off()
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            axes.bar(multiplicities, statistics.multiplicities.counts[multiplicities], color=_FIRST_COLOR, width=0.8)
            axes.set_xticks(range(1, max(2, statistics.max_multiplicity) + 1))
        axes.set_yscale("log")
        axes.set_ylim(0.5, 2.2 * statistics.multiplicities.counts.max())
        last = f" ({MAX_MULTIPLICITY} and more at the end)" if statistics.max_multiplicity > MAX_MULTIPLICITY else ""
        axes.set(xlabel=f"occurrences of a question{last}", ylabel="different questions")
        axes.set_title(
            f"{_format_percent(statistics.num_repeated / statistics.num_rows)} of {statistics.num_rows:,} rows repeat "
            "a question"
        )
        _draw_grid_lines(axes)
    return figure


def plot_characters(statistics: Statistics) -> Any:
    """The share of each of the most frequent symbols, in the order of the vocabulary."""
    total = sum(statistics.symbol_counts.values())
    most_frequent = set(
        sorted(statistics.symbol_counts, key=lambda symbol: -statistics.symbol_counts[symbol])[:_MOST_SYMBOLS]
    )
    counts = {symbol: count for symbol, count in statistics.symbol_counts.items() if symbol in most_frequent}
    with figure_style():
        figure = new_figure(min(MAX_WIDTH_INCHES, 1.2 + 0.19 * len(counts)), 2.4)
        axes = figure.subplots()
        positions = range(len(counts))
        colours = [_FIRST_COLOR if symbol.isdigit() else _SECOND_COLOR for symbol in counts]
        axes.bar(positions, [100 * count / total for count in counts.values()], color=colours, width=0.8)
        names = {" ": "\u2423", "$": r"\$"}  # a space would be nothing, a dollar begins a formula
        axes.set_xticks(positions, [names.get(symbol, symbol) for symbol in counts])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.8, len(counts) - 0.2)
        num_omitted = len(statistics.symbol_counts) - len(counts)
        axes.set(
            ylabel="share of characters, %",
            xlabel=f"character; {num_omitted} rarer ones omitted" if num_omitted else "character",
        )
        _draw_grid_lines(axes)
    return figure


def plot_pairs(statistics: Statistics) -> Any:
    """Rows by their two sizes, and which share of them repeats a question."""
    repeated_percent = {
        pair: 100 * (1 - statistics.distinct_per_pair.get(pair, 0) / count)
        for pair, count in statistics.rows_per_pair.items()
    }
    names = tuple(axis_label(axis) for axis in statistics.axes or ("first", "second"))
    with figure_style():
        figure = new_figure(7.0, 3.2)
        left, right = figure.subplots(1, 2)
        rows: dict[tuple[int, int], float] = {pair: float(count) for pair, count in statistics.rows_per_pair.items()}
        _draw_heat_map(figure, left, rows, "rows", names, max(rows.values()))
        _draw_heat_map(figure, right, repeated_percent, "rows that repeat a question, %", names, 100.0)
    return figure


def _draw_heat_map(
    figure: Any, axes: Any, values: Mapping[tuple[int, int], float], title: str, names: Sequence[str], max_value: float
) -> None:
    low, high = ([min(pair[side] for pair in values), max(pair[side] for pair in values)] for side in (0, 1))
    down, across = low[1] - low[0] + 1, high[1] - high[0] + 1
    picture = np.ones((down, across, 3))
    show_values = max(down, across) <= 10
    for (i, j), value in values.items():
        cell_color = colormap(value / max_value if max_value else 0.0)
        picture[i - low[0], j - high[0]] = [part / 255 for part in cell_color]
        if show_values:
            label = _format_short(value)
            size = 6.5 if len(label) < 5 else 5.0
            axes.text(
                j - high[0],
                i - low[0],
                label,
                ha="center",
                va="center",
                fontsize=size,
                color=format_hex_color(text_color(cell_color)),
            )
    axes.imshow(picture, aspect="equal" if 0.5 <= down / across <= 2 else "auto", interpolation="nearest")
    for (first, last), set_ticks in ((low, axes.set_yticks), (high, axes.set_xticks)):
        tick_spacing = 1 if last - first < 12 else tick_step(last - first + 1, 10)
        multiples = [
            value for value in range(first, last + 1) if value % tick_spacing == 0 and value - first > tick_spacing / 2
        ]
        ticks = [first, *multiples] if tick_spacing > 1 else range(first, last + 1)
        set_ticks([value - first for value in ticks], [str(value) for value in ticks])
    axes.set(ylabel=names[0], xlabel=names[1])
    axes.set_title(title)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _draw_color_bar(axes, max_value)


def _draw_color_bar(axes: Any, max_value: float) -> None:
    """A color bar from 0 to `max_value`."""
    color_bar = axes.inset_axes((1.03, 0.0, 0.035, 1.0))
    steps = np.linspace(1.0, 0.0, 128)
    colours: NDArray[np.float64] = (
        np.array([[colormap(float(step), COLORMAP_LIGHT)] for step in steps], dtype=np.float64) / 255
    )
    color_bar.imshow(colours, aspect="auto", extent=(0, 1, 0, max_value or 1.0), interpolation="bilinear")
    color_bar.set_xticks([])
    color_bar.yaxis.tick_right()
    color_bar.yaxis.set_major_formatter(lambda value, _: _format_short(value))
    color_bar.tick_params(length=2)
    for spine in color_bar.spines.values():
        spine.set_visible(False)


def _draw_bars(axes: Any, histogram: Histogram, colour: str, *, logarithmic: bool = False) -> None:
    """Shares of a histogram in per cent, one bar per number; many numbers as an area without gaps."""
    low, high = histogram.min(), histogram.max()
    values = np.arange(low, high + 1)
    shares = 100.0 * histogram.counts[low : high + 1] / histogram.total
    if len(values) <= 80:
        axes.bar(values, shares, width=0.8, color=colour, linewidth=0)
    else:
        axes.stairs(shares, np.append(values, high + 1) - 0.5, fill=True, color=colour)
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(0.5 * shares[shares > 0].min(), 2.0 * shares.max())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(low - 0.8, high + 0.8)
    tick_spacing = 1 if len(values) <= 12 else tick_step(len(values), 8)
    axes.set_xticks([value for value in range(low, high + 1) if value % tick_spacing == 0] or [low])
    _draw_grid_lines(axes)


def _draw_grid_lines(axes: Any) -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def _format_percent(share: float) -> str:
    percent = 100 * share
    return "none" if not percent else f"{percent:.1f} %" if percent >= 0.95 else f"{percent:.2g} %"


def _format_short(value: float) -> str:
    """A number in few letters: 50,000 is "50k", 1,234,567 is "1.2M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}" if value / size < 100 else f"{value / size:.0f}{letter}"
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"
