"""Accuracy on strata, by kind and size: questions that uniformly drawn ones almost never are."""

from collections.abc import Sequence

from numerate.reports.content import Content
from numerate.reports.grid import Estimate, Point, axis_label, format_percent, stratum_size
from numerate.reports.groups import Group
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


def strata_table(groups: Sequence[Group]) -> TextTable:
    """For each group and kind of questions the exact match at each size, with its interval; no rows without strata."""
    tables = [points_table(group.strata, group.axes, group.operator) for group in groups]
    header = [*dict.fromkeys(name for table in tables for name in table.header)]
    header = [*header[:1], *sorted(header[1:], key=lambda name: int(name.removeprefix(_SIZE).replace(",", "")))]
    rows = []
    for group, table in zip(groups, tables, strict=True):
        for row in table.rows:
            texts = dict(zip(table.header, row, strict=True))
            rows.append([*[group.label] * (len(groups) > 1), *(texts.get(name, "") for name in header)])
    points = [point for group in groups for point in group.strata]
    return TextTable([*["run"] * (len(groups) > 1), *header], rows, caption=_caption(points), style="tight")


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


def _caption(points: Sequence[Point]) -> str:
    counts = {point.count for point in points}
    is_study = any(len(point.seed_scores) > 1 for point in points)
    interval = ", median over seeds [range over seeds]" if is_study else " [95 % interval]"
    single = "; the only question of its kind and length is asked once" * (1 in counts)
    return (
        f"Exact match in per cent{interval}, on questions that uniformly drawn ones almost never are. n is the "
        f"length of the longest operand; questions per cell: at most {max(counts, default=0):,}{single}."
    )


def strata_content(groups: Sequence[Group]) -> Content:
    """The table of strata; empty if none were evaluated."""
    return [strata_table(groups)] if any(group.strata for group in groups) else []
