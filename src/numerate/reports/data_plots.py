"""Figures of the statistics of rows, in the style of reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from numerate.reports.colour import Style
from numerate.reports.figure import Chart, ChartLine, Figure, HeatCell, HeatMap, format_short
from numerate.reports.grid import tick_step
from numerate.reports.matplotlib_writer import save_figure
from numerate.text.data.statistics import MAX_MULTIPLICITY, Histogram, Statistics

_FIRST, _SECOND, _THIRD = Style(0, 0), Style(2, 0), Style(1, 0)
_MOST_SYMBOLS = 60


def save_figures(statistics: Statistics, folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes the non-empty figures, in each format, to a folder, and returns their paths.

    `lengths` (rows, operands, answers), `pairs` (rows and the share of repeated questions by pair of sizes), `carries`
    (the longest chain of each sum), `repeats` (how often questions stand there) and `characters`.
    """
    figures = {
        "lengths": lengths_figure(statistics),
        "pairs": pairs_figure(statistics) if statistics.rows_per_pair else None,
        "carries": carries_figure(statistics) if statistics.carry_chain_lengths.total else None,
        "repeats": repeats_figure(statistics),
        "characters": characters_figure(statistics),
    }
    return [
        save_figure(figure, Path(folder) / f"{name}.{extension}")
        for name, figure in figures.items()
        if figure is not None
        for extension in formats
    ]


def lengths_figure(statistics: Statistics) -> Figure:
    """How long rows, operands and answers are."""
    histograms = [
        (statistics.row_lengths, "row, tokens with its end", _FIRST),
        (statistics.operand_digits, "operand, digits", _SECOND),
        (statistics.answer_lengths, "answer, tokens", _THIRD),
    ]
    charts = []
    for histogram, label, style in histograms:
        if histogram.total:
            title = f"median {histogram.median()}, {histogram.min()} to {histogram.max()}"
            charts.append(_histogram_chart(histogram, title, label, "share, %", style))
    return Figure(charts)


def carries_figure(statistics: Statistics) -> Figure:
    """The longest chain of carries of each sum, on a logarithmic scale: long chains are rare."""
    lengths = statistics.carry_chain_lengths
    title = f"mean {lengths.mean():.2f}, longest {lengths.max()}"
    label = "longest carry chain of a sum, places"
    return Figure([_histogram_chart(lengths, title, label, "share of sums, %", _FIRST, is_log=True)])


def repeats_figure(statistics: Statistics) -> Figure:
    """How many questions stand there once, twice, ...; both axes logarithmic where there are many."""
    counts = statistics.multiplicities.counts
    times = np.flatnonzero(counts)
    are_many = statistics.max_multiplicity > 12
    last = f" ({MAX_MULTIPLICITY} and more at the end)" if statistics.max_multiplicity > MAX_MULTIPLICITY else ""
    repeated = _format_percent(statistics.num_repeated / statistics.num_rows)
    return Figure(
        [
            Chart(
                f"{repeated} of {statistics.num_rows:,} rows repeat a question",
                [ChartLine("", times.tolist(), counts[times].tolist(), is_bars=True)],
                f"occurrences of a question{last}",
                "different questions",
                is_log=True,
                is_log_x=are_many,
                has_integer_ticks=True,
            )
        ]
    )


def characters_figure(statistics: Statistics) -> Figure:
    """The share of each of the most frequent symbols, in the order of the vocabulary."""
    total = sum(statistics.symbol_counts.values())
    most = set(sorted(statistics.symbol_counts, key=lambda one: -statistics.symbol_counts[one])[:_MOST_SYMBOLS])
    symbols = [symbol for symbol in statistics.symbol_counts if symbol in most]
    lines = []
    for style, are_digits in ((_FIRST, True), (_SECOND, False)):
        at = [i for i, symbol in enumerate(symbols) if symbol.isdigit() == are_digits]
        shares = [100 * statistics.symbol_counts[symbols[i]] / total for i in at]
        lines.append(ChartLine("digits" if are_digits else "others", at, shares, style=style, is_bars=True))
    omitted = len(statistics.symbol_counts) - len(symbols)
    label = f"character; {omitted} rarer ones omitted" if omitted else "character"
    ticks = [(i, symbol.replace(" ", "\N{OPEN BOX}")) for i, symbol in enumerate(symbols)]
    lines = [line for line in lines if line.x]
    return Figure([Chart("", lines, label, "share of characters, %", has_integer_ticks=True, x_ticks=ticks)])


def pairs_figure(statistics: Statistics) -> Figure:
    """Rows by their two sizes, and which share of them repeats a question."""
    rows = {pair: float(count) for pair, count in statistics.rows_per_pair.items()}
    repeated = {pair: 100 * (1 - statistics.distinct_per_pair.get(pair, 0) / count) for pair, count in rows.items()}
    axes = statistics.axes or ("first", "second")
    maps = [("rows", rows, max(rows.values())), ("rows that repeat a question, %", repeated, 100.0)]
    return Figure([_heat_map(title, values, axes, scale) for title, values, scale in maps], columns=2)


def _heat_map(title: str, values: Mapping[tuple[int, int], float], axes: Sequence[str], scale: float) -> HeatMap:
    down, across = (range(min(sizes), max(sizes) + 1) for sizes in zip(*values, strict=True))
    has_numbers = max(len(down), len(across)) <= 10
    cells = {
        pair: HeatCell(value / scale if scale else 0.0, format_short(value) if has_numbers else "")
        for pair, value in values.items()
    }
    return HeatMap(title, axes[0], axes[1], down, across, cells, scale=scale or 1.0)


def _histogram_chart(
    histogram: Histogram, title: str, x_label: str, y_label: str, style: Style, *, is_log: bool = False
) -> Chart:
    """Shares of a histogram in per cent, one bar per number."""
    low, high = histogram.min(), histogram.max()
    shares = 100.0 * histogram.counts[low : high + 1] / histogram.total
    line = ChartLine("", list(range(low, high + 1)), shares.tolist(), style=style, is_bars=True)
    step = 1 if high - low < 12 else tick_step(high - low + 1, 8)
    ticks = [(x, str(x)) for x in range(low, high + 1) if x % step == 0] or [(low, str(low))]
    return Chart(title, [line], x_label, y_label, is_log=is_log, has_integer_ticks=True, x_ticks=ticks)


def _format_percent(share: float) -> str:
    percent = 100 * share
    return "none" if not percent else f"{percent:.1f} %" if percent >= 0.95 else f"{percent:.2g} %"
