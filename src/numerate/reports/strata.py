"""Strata as a table, by kind and size: questions that uniformly drawn ones almost never are."""

from collections.abc import Sequence

from numerate.reports.grid import Estimate, Point, axis_label, format_percent, stratum_size
from numerate.reports.table import TextTable

_LABELS = {
    "nines_plus_one": "99...9 + 1",
    "one_plus_nines": "1 + 99...9",
    "complement": "a + (10^n - a)",
    "nines_plus_nines": "99...9 + 99...9",
    "power_minus_one": "10...0 - 1",
    "power_minus_number": "10...0 - a",
    "power_minus_nines": "10...0 - 99...9",
    "nines_times_nine": "99...9 x 9",
    "nine_times_nines": "9 x 99...9",
    "nines_times_nines": "99...9 x 99...9",
    "one_and_n": "1 {} n digits",
    "n_and_one": "n {} 1 digits",
    "half_and_n": "n/2 {} n digits",
    "n_and_half": "n {} n/2 digits",
    "carries": "",  # named by its longest carry chain
}


def stratum_label(point: Point, axes: Sequence[str], operator: str | None = None) -> str:
    """The kind of questions of a stratum in words: "99...9 + 1", "1 + n digits", "longest carry chain 7"."""
    name = str(point.stratum)
    named = _LABELS[name].format(operator or "and") if name in _LABELS else name.replace("_", " ")
    return ", ".join(filter(None, (named, *(f"{axis_label(axis)} {size}" for axis, size in _further(point, axes)))))


def points_table(points: Sequence[Point], axes: Sequence[str], operator: str | None = None) -> TextTable:
    """The table of the strata of one run, without a caption."""
    rows: dict[str, dict[int, Point]] = {}
    order = {name: i for i, name in enumerate(_LABELS)}
    for point in sorted(points, key=lambda one: (order.get(one.stratum or "", len(order)), _further(one, axes))):
        rows.setdefault(stratum_label(point, axes, operator), {})[stratum_size(point, axes)] = point
    sizes = sorted({size for row in rows.values() for size in row})
    return TextTable(
        ["questions", *(f"{_SIZE}{size:,}" for size in sizes)],
        [[name, *(_score_text(row[size]) if size in row else "" for size in sizes)] for name, row in rows.items()],
    )


_SIZE = "n = "


def _further(point: Point, axes: Sequence[str]) -> list[tuple[str, int]]:
    """The settings of a cell besides the axes of the grid, such as the longest carry chain."""
    return [(axis, size) for axis, size in point.coordinates.items() if axis not in axes]


def _score_text(point: Point) -> str:
    text = Estimate((point.score,), (point.low, point.high)).text(format_percent)
    return f"{text}\nmay be in training" if point.overlaps_training else text
