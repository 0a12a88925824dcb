"""Curves in a terminal: a share along lengths with its interval, and sparklines of training."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log10

from numerate.reports.colour import SERIES_DARK, TerminalStyle, parse_hex_color
from numerate.reports.grid import Point, format_interval, format_percent
from numerate.reports.table import text_table

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=*#"


def sparkline(
    values: Sequence[float], style: TerminalStyle | None = None, *, width: int = 40, log: bool = False
) -> str:
    """Values as a line of blocks, lowest to highest; the mean of neighbors where there are more than `width`.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    style = style or TerminalStyle()
    shown = [log10(max(value, 1e-12)) for value in values] if log else list(values)
    if not shown:
        return ""
    count = min(width, len(shown))
    cuts = [len(shown) * i // count for i in range(count + 1)]
    means = [sum(shown[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    blocks = _BLOCKS if style.unicode else _PLAIN
    top = len(blocks) - 1
    return "".join(blocks[round(top * (m - low) / (high - low))] if high > low else blocks[0] for m in means)


def length_curve(
    points_by_label: Mapping[str, Mapping[int, Point]], style: TerminalStyle | None = None, *, axis: str = "n+n"
) -> str:
    """The diagonal of grids as a table with bars: per length and series the accuracy with its interval.

    `points_by_label` maps a label to points by length, as `diagonal` gives them. Trained lengths are marked.
    """
    style = style or TerminalStyle()
    lengths = sorted({length for points in points_by_label.values() for length in points})
    header = [axis, *(name for label in points_by_label for name in (label, "% [interval]"))]
    rows = []
    for length in lengths:
        inside = any(
            length in along and along[length].region == "in_distribution" for along in points_by_label.values()
        )
        row = [f"{length}{' in distribution' if inside else ''}"]
        for i, along in enumerate(points_by_label.values()):
            point = along.get(length)
            if point is None:
                row += ["", ""]
                continue
            color = parse_hex_color(SERIES_DARK[i % len(SERIES_DARK)])
            row += [
                _bar(point, style, color),
                f"{format_percent(point.score)} {format_interval(point.low, point.high)}",
            ]
        rows.append(row)
    return text_table(header, rows)


def _bar(point: Point, style: TerminalStyle, color: tuple[int, int, int], width: int = 20) -> str:
    """The share as a bar, its interval as a line over the bar's end."""
    full, line, empty = ("█", "─", " ") if style.unicode else ("#", "-", " ")
    end, low, high = round(point.score * width), int(point.low * width), -int(-point.high * width // 1)
    letters = [full if i < end else line if low <= i < high else empty for i in range(width)]
    return style.colorize("".join(letters), foreground=color)
