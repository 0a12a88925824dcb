"""Figures of the statistics of rows, in the style of reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.reports.colour import LIGHT, SERIES, hexadecimal, ink, ramp
from numerate.reports.figures import WIDTH, blank, save, styled
from numerate.reports.grid import axis_words, tick_step
from numerate.text.data.statistics import MOST, Histogram, Statistics

_BAR, _SECOND, _THIRD = SERIES[0], SERIES[2], SERIES[1]
_MOST_SYMBOLS = 60


def draw(found: Statistics, folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes the non-empty figures, in each format, to a folder, and returns their paths.

    `lengths` (rows, operands, answers), `pairs` (rows and the share of repeated questions by pair of sizes), `carries`
    (the longest chain of each sum), `repeats` (how often questions stand there) and `characters`.
    """
    figures = {
        "lengths": lengths(found),
        "pairs": pairs(found) if found.pairs else None,
        "carries": carries(found) if found.carries.count else None,
        "repeats": repeats(found),
        "characters": characters(found),
    }
    return [
        save(figure, Path(folder) / f"{name}.{kind}")
        for name, figure in figures.items()
        if figure is not None
        for kind in formats
    ]


def lengths(found: Statistics) -> Any:
    """How long rows, operands and answers are."""
    shown = [
        (found.rows, "row, tokens with its end", _BAR),
        (found.operands, "operand, digits", _SECOND),
        (found.answers, "answer, tokens", _THIRD),
    ]
    shown = [one for one in shown if one[0].count]
    with styled():
        figure = blank(min(WIDTH, 0.4 + 2.7 * len(shown)), 2.3)
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, (histogram, words, colour) in zip(panels, shown, strict=True):
            _bars(axes, histogram, colour)
            axes.set(xlabel=words)
            axes.set_title(f"median {histogram.median()}, {histogram.low()} to {histogram.high()}")
        panels[0].set_ylabel("share, %")
    return figure


def carries(found: Statistics) -> Any:
    """The longest chain of carries of each sum, on a logarithmic scale: long chains are rare."""
    with styled():
        figure = blank(3.7, 2.5)
        axes = figure.subplots()
        _bars(axes, found.carries, _BAR, logarithmic=True)
        axes.set(xlabel="longest carry chain of a sum, places", ylabel="share of sums, %")
        axes.set_title(f"mean {found.carries.mean():.2f}, longest {found.carries.high()}")
    return figure


def repeats(found: Statistics) -> Any:
    """How many questions stand there once, twice, ...; both axes logarithmic where there are many."""
    with styled():
        figure = blank(3.7, 2.5)
        axes = figure.subplots()
        there = np.flatnonzero(found.times.counts)
        many = found.most > 12
        if many:
            axes.vlines(there, 0.5, found.times.counts[there], color=_BAR, linewidth=0.7, alpha=0.45)
            axes.plot(there, found.times.counts[there], "o", color=_BAR, markersize=2.8, markeredgewidth=0)
            axes.set_xscale("log")
            axes.set_xlim(0.8, 1.3 * there[-1])
            ticks = [value for power in (1, 10, 100, 1000) for value in (power, 2 * power, 5 * power)]
            axes.set_xticks([value for value in ticks if value <= there[-1]])
            axes.minorticks_off()
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            axes.bar(there, found.times.counts[there], color=_BAR, width=0.8)
            axes.set_xticks(range(1, max(2, found.most) + 1))
        axes.set_yscale("log")
        axes.set_ylim(0.5, 2.2 * found.times.counts.max())
        last = f" ({MOST} and more at the end)" if found.most > MOST else ""
        axes.set(xlabel=f"times that a question is there{last}", ylabel="different questions")
        axes.set_title(f"{_percent(found.repeated / found.count)} of {found.count:,} rows repeat a question")
        _rule(axes)
    return figure


def characters(found: Statistics) -> Any:
    """The share of each of the most frequent symbols, in the order of the vocabulary."""
    total = sum(found.characters.values())
    often = set(sorted(found.characters, key=lambda symbol: -found.characters[symbol])[:_MOST_SYMBOLS])
    shown = {symbol: count for symbol, count in found.characters.items() if symbol in often}
    with styled():
        figure = blank(min(WIDTH, 1.2 + 0.19 * len(shown)), 2.4)
        axes = figure.subplots()
        positions = range(len(shown))
        colours = [_BAR if symbol.isdigit() else _SECOND for symbol in shown]
        axes.bar(positions, [100 * count / total for count in shown.values()], color=colours, width=0.8)
        names = {" ": "\u2423", "$": r"\$"}  # a space would be nothing, a dollar begins a formula
        axes.set_xticks(positions, [names.get(symbol, symbol) for symbol in shown])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.8, len(shown) - 0.2)
        more = len(found.characters) - len(shown)
        axes.set(
            ylabel="share of characters, %",
            xlabel=f"character; {more} rarer ones are left out" if more else "character",
        )
        _rule(axes)
    return figure


def pairs(found: Statistics) -> Any:
    """Rows by their two sizes, and which share of them repeats a question."""
    share = {pair: 100 * (1 - found.distinct_pairs.get(pair, 0) / count) for pair, count in found.pairs.items()}
    names = tuple(axis_words(axis) for axis in found.axes or ("first", "second"))
    with styled():
        figure = blank(7.0, 3.2)
        left, right = figure.subplots(1, 2)
        rows: dict[tuple[int, int], float] = {pair: float(count) for pair, count in found.pairs.items()}
        _map(figure, left, rows, "rows", names, max(rows.values()))
        _map(figure, right, share, "rows that repeat a question, %", names, 100.0)
    return figure


def _map(
    figure: Any, axes: Any, values: Mapping[tuple[int, int], float], title: str, names: Sequence[str], top: float
) -> None:
    low, high = ([min(pair[side] for pair in values), max(pair[side] for pair in values)] for side in (0, 1))
    down, across = low[1] - low[0] + 1, high[1] - high[0] + 1
    picture = np.ones((down, across, 3))
    small = max(down, across) <= 10
    for (i, j), value in values.items():
        paper = ramp(value / top if top else 0.0)
        picture[i - low[0], j - high[0]] = [part / 255 for part in paper]
        if small:
            words = _short(value)
            size = 6.5 if len(words) < 5 else 5.0
            axes.text(
                j - high[0], i - low[0], words, ha="center", va="center", fontsize=size, color=hexadecimal(ink(paper))
            )
    axes.imshow(picture, aspect="equal" if 0.5 <= down / across <= 2 else "auto", interpolation="nearest")
    for (first, last), set_ticks in ((low, axes.set_yticks), (high, axes.set_xticks)):
        every = 1 if last - first < 12 else tick_step(last - first + 1, 10)
        multiples = [value for value in range(first, last + 1) if value % every == 0 and value - first > every / 2]
        at = [first, *multiples] if every > 1 else range(first, last + 1)
        set_ticks([value - first for value in at], [str(value) for value in at])
    axes.set(ylabel=names[0], xlabel=names[1])
    axes.set_title(title)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _scale(axes, top)


def _scale(axes: Any, top: float) -> None:
    """A strip with the colours from 0 to `top` beside a map."""
    strip = axes.inset_axes((1.03, 0.0, 0.035, 1.0))
    steps = np.linspace(1.0, 0.0, 128)
    colours: NDArray[np.float64] = np.array([[ramp(float(step), LIGHT)] for step in steps], dtype=np.float64) / 255
    strip.imshow(colours, aspect="auto", extent=(0, 1, 0, top or 1.0), interpolation="bilinear")
    strip.set_xticks([])
    strip.yaxis.tick_right()
    strip.yaxis.set_major_formatter(lambda value, _: _short(value))
    strip.tick_params(length=2)
    for spine in strip.spines.values():
        spine.set_visible(False)


def _bars(axes: Any, histogram: Histogram, colour: str, *, logarithmic: bool = False) -> None:
    """Shares of a histogram in per cent, one bar per number; many numbers as an area without gaps."""
    low, high = histogram.low(), histogram.high()
    values = np.arange(low, high + 1)
    shares = 100.0 * histogram.counts[low : high + 1] / histogram.count
    if len(values) <= 80:
        axes.bar(values, shares, width=0.8, color=colour, linewidth=0)
    else:
        axes.stairs(shares, np.append(values, high + 1) - 0.5, fill=True, color=colour)
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(0.5 * shares[shares > 0].min(), 2.0 * shares.max())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(low - 0.8, high + 0.8)
    every = 1 if len(values) <= 12 else tick_step(len(values), 8)
    axes.set_xticks([value for value in range(low, high + 1) if value % every == 0] or [low])
    _rule(axes)


def _rule(axes: Any) -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def _percent(share: float) -> str:
    percent = 100 * share
    return "none" if not percent else f"{percent:.1f} %" if percent >= 0.95 else f"{percent:.2g} %"


def _short(value: float) -> str:
    """A number in few letters: 50,000 is "50k", 1,234,567 is "1.2M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}" if value / size < 100 else f"{value / size:.0f}{letter}"
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"
