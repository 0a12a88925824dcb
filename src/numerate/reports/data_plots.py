"""Figures of the statistics of rows, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.reports.colour import COLORMAP_LIGHT, SERIES
from numerate.reports.matplotlib_writer import figure_style, new_drawing, write_drawing
from numerate.text.data.statistics import Histogram, Statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_figures(statistics: Statistics, folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes the non-empty figures, in each format, to a folder, and returns their paths.

    `lengths` (rows, operands, answers), `carries` (the longest chain of each sum) and `pairs` (rows and the share of
    repeated questions by pair of sizes).
    """
    lengths = {
        "row, tokens with its end": statistics.row_lengths,
        "operand, digits": statistics.operand_digits,
        "answer, tokens": statistics.answer_lengths,
    }
    lengths = {label: histogram for label, histogram in lengths.items() if histogram.total}
    chains = statistics.carry_chain_lengths
    num_panels = {
        "lengths": len(lengths),
        "carries": int(chains.total > 0),
        "pairs": 2 * bool(statistics.rows_per_pair),
    }
    paths = []
    for name, count in num_panels.items():
        if not count:
            continue
        with figure_style():
            drawing = new_drawing(2.4 * count + 0.8 * (count == 1), 2.4)
            panels = drawing.subplots(1, count, squeeze=False)[0]
            if name == "lengths":
                for axes, (label, histogram), color in zip(panels, lengths.items(), SERIES, strict=False):
                    _draw_histogram(axes, histogram, label, "share, %", color)
            elif name == "carries":
                _draw_histogram(
                    panels[0], chains, "longest carry chain of a sum, places", "share of sums, %", SERIES[0]
                )
                panels[0].set_yscale("log")
            else:
                _draw_pairs(panels, statistics)
        paths += [write_drawing(drawing, Path(folder) / f"{name}.{extension}") for extension in formats]
    return paths


def _draw_histogram(axes: Axes, histogram: Histogram, x_label: str, y_label: str, color: str) -> None:
    """Shares of a histogram in per cent, one bar per number."""
    low, high = histogram.min(), histogram.max()
    axes.bar(range(low, high + 1), 100 * histogram.counts[low : high + 1] / histogram.total, color=color)
    axes.set(xlabel=x_label, ylabel=y_label, title=f"median {histogram.median()}, {low} to {high}")


def _draw_pairs(panels: Any, statistics: Statistics) -> None:
    """Rows by their two sizes, and which share of them repeats a question."""
    from matplotlib.colors import LinearSegmentedColormap

    counts = statistics.rows_per_pair
    repeated = {pair: 100 * (1 - statistics.distinct_per_pair.get(pair, 0) / count) for pair, count in counts.items()}
    (low, first), (high, last) = (tuple(map(end, zip(*counts, strict=True))) for end in (min, max))
    colors = LinearSegmentedColormap.from_list("numerate", list(COLORMAP_LIGHT))
    titled: list[tuple[str, Mapping[tuple[int, int], float]]] = [("rows", counts)]
    titled.append(("rows that repeat a question, %", repeated))
    for axes, (title, values) in zip(panels, titled, strict=True):
        image = np.full((high - low + 1, last - first + 1), np.nan)
        for (row, column), value in values.items():
            image[row - low, column - first] = value
        shown = axes.imshow(image, cmap=colors, vmin=0, extent=(first - 0.5, last + 0.5, high + 0.5, low - 0.5))
        axes.figure.colorbar(shown, ax=axes, fraction=0.046)
        down, across = statistics.axes or ("first", "second")
        axes.set(title=title, xlabel=across, ylabel=down)
