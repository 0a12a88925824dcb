"""Curves in a terminal: a share along lengths with its interval, and sparklines of training."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log10

from numerate.reports.colour import SERIES_DARK, TerminalStyle, rgb
from numerate.reports.grid import Point, bracket, percent
from numerate.reports.table import text_table

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=*#"


def sparkline(values: Sequence[float], look: TerminalStyle | None = None, *, width: int = 40, log: bool = False) -> str:
    """Values as a line of blocks, lowest to highest; the mean of neighbours where there are more than `width`.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    look = look or TerminalStyle()
    shown = [log10(max(value, 1e-12)) for value in values] if log else list(values)
    if not shown:
        return ""
    count = min(width, len(shown))
    cuts = [len(shown) * i // count for i in range(count + 1)]
    means = [sum(shown[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    blocks = _BLOCKS if look.unicode else _PLAIN
    top = len(blocks) - 1
    return "".join(blocks[round(top * (m - low) / (high - low))] if high > low else blocks[0] for m in means)


def length_curve(
    series: Mapping[str, Mapping[int, Point]], look: TerminalStyle | None = None, *, axis: str = "n+n"
) -> str:
    """The diagonal of grids as a table with bars: per length and series the share right with its interval.

    `series` maps a label to points by length, as `diagonal` gives them. Trained lengths are marked.
    """
    look = look or TerminalStyle()
    lengths = sorted({length for along in series.values() for length in along})
    header = [axis, *(name for label in series for name in (label, "% [interval]"))]
    rows = []
    for length in lengths:
        inside = any(length in along and along[length].region == "in_distribution" for along in series.values())
        row = [f"{length}{' in distribution' if inside else ''}"]
        for i, along in enumerate(series.values()):
            point = along.get(length)
            if point is None:
                row += ["", ""]
                continue
            colour = rgb(SERIES_DARK[i % len(SERIES_DARK)])
            row += [_bar(point, look, colour), f"{percent(point.value)} {bracket(point.low, point.high)}"]
        rows.append(row)
    return text_table(header, rows)


def _bar(point: Point, look: TerminalStyle, colour: tuple[int, int, int], width: int = 20) -> str:
    """The share as a bar, its interval as a line over the bar's end."""
    full, line, empty = ("█", "─", " ") if look.unicode else ("#", "-", " ")
    end, low, high = round(point.value * width), int(point.low * width), -int(-point.high * width // 1)
    letters = [full if i < end else line if low <= i < high else empty for i in range(width)]
    return look.paint("".join(letters), front=colour)
