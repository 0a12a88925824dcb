"""Grids, diagonals and regions of cells, of one run or over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from numerate.evaluation.labels import Labels, Metric
from numerate.evaluation.statistics import Proportion, region_mean
from numerate.reports.records import Cell

REGIONS = {
    "in_distribution": "in distribution",
    "ood_validation": "OOD validation",
    "ood_test": "OOD test",
    "100+": "100+",
}
"""The regions of an evaluation, nearest to training first, with their names in reports."""

OOD = "ood"
REGION_WORDS = {**REGIONS, OOD: "all OOD"}
"""`REGIONS`, and all of them that are out of distribution together."""

REGIONS_EXPLAINED = (
    "In distribution: the sizes of training. OOD validation: the band just beyond (out of distribution), on which the "
    "best checkpoint is chosen. OOD test: everything further."
)


DIGITS = ("first_digits", "second_digits")

PARTS = ("module", "test")
"""Axes whose sizes number parts without an order: modules, test sets."""


@dataclass(frozen=True)
class Point:
    """One cell over seeds.

    With one seed `low` to `high` is the Wilson interval over its questions; with several, `value` is the median of the
    seeds and `low` to `high` their range. `each` holds the accuracy of every seed. `floor` is the score of memorising,
    or of one constant answer, the highest of the seeds; None in distribution and for other tasks.
    """

    at: Mapping[str, int]
    value: float
    low: float
    high: float
    each: tuple[float, ...]
    count: int
    region: str
    seen: bool
    note: str = ""
    metric: Metric = "exact"
    floor: float | None = None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlotGrid:
    """Points by row and column. A grid of one axis has a single row, its `row_axis` is ""."""

    row_axis: str
    column_axis: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    points: Mapping[tuple[int, int], Point]
    title: str = ""

    def trained(self, row: int, column: int) -> bool:
        point = self.points.get((row, column))
        return point is not None and point.region == "in_distribution"

    def edge(self, i: int, j: int, side: str) -> bool:
        """Whether the border of the training region runs along a side ("top", "left", "bottom", "right") of row i,
        column j (indices, not values)."""
        step_i, step_j = {"top": (-1, 0), "left": (0, -1), "bottom": (1, 0), "right": (0, 1)}[side]
        other = (i + step_i, j + step_j)
        inside = 0 <= other[0] < len(self.rows) and 0 <= other[1] < len(self.columns)
        beside = inside and self.trained(self.rows[other[0]], self.columns[other[1]])
        return self.trained(self.rows[i], self.columns[j]) and not beside


@dataclass(frozen=True)
class Region:
    """The mean over the cells of a region, without "seen" ones (which may overlap with training) unless all are.

    A metric of labels is over all labels, or rows, of the region with equal weight; `labels` has the other metrics, and
    `floor` is the score of memorising, None in distribution and for other tasks."""

    name: str
    share: Proportion
    cells: int
    seen_left_out: int
    only_seen: bool
    weakest: Cell
    floor: float | None = None
    labels: Labels | None = None


def points(seeds: Sequence[Sequence[Cell]]) -> list[Point]:
    """Joins the cells of several seeds, each seed a list of cells; cells that some seed lacks are left out."""
    tables = [{tuple(sorted(cell.at.items())): cell for cell in cells} for cells in seeds]
    joined = []
    for place, cell in tables[0].items() if tables else ():
        if not all(place in table for table in tables):
            continue
        same = [table[place] for table in tables]
        each = tuple(one.accuracy for one in same)
        low, high = (cell.low, cell.high) if len(same) == 1 else (min(each), max(each))
        joined.append(
            Point(
                at=cell.at,
                value=median(each),
                low=low,
                high=high,
                each=each,
                count=cell.count // cell.repeats,
                region=cell.region,
                seen=cell.seen,
                note=_first_wrong(same),
                metric=cell.metric,
                floor=max((one.floor for one in same if one.floor is not None), default=None),
                names=cell.names,
            )
        )
    return joined


def _first_wrong(cells: Sequence[Cell]) -> str:
    """The most frequent first wrong token of an answer, in words, counted from 1."""
    wrong = [cell.first_wrong for cell in cells if cell.first_wrong]
    if not wrong:
        return ""
    counts = [sum(times[i] for times in wrong if i < len(times)) for i in range(max(len(times) for times in wrong))]
    if not any(counts):
        return ""
    at = counts.index(max(counts))
    return f"wrong answers first go wrong mostly at token {at + 1} ({100 * counts[at] / sum(counts):.0f} % of them)"


def grids(found: Sequence[Point], title: str = "") -> list[PlotGrid]:
    """The grids of points: one for one or two axes, else one per combination of the further axes.

    The first axis runs down and the second across, as in the published heat maps. Points with all axes equal that are
    alone in their row and column (equal lengths, `equal:101:160`) make a strip of one row instead of a map.
    """
    if not found:
        return []
    axes = tuple(found[0].at)
    tied = _tied(found) if len(axes) == 2 else []
    if tied:
        alone = {next(iter(point.at.values())) for point in tied}
        others = [point for point in found if not alone & set(point.at.values())]
        strip = {(0, next(iter(point.at.values()))): point for point in tied}
        columns = tuple(sorted(column for _, column in strip))
        words = "digits of each number" if axes == DIGITS else f"{axis_words(axes[0])} = {axis_words(axes[1])}"
        return [*grids(others, title), PlotGrid("", words, (0,), columns, strip, title)]
    row_axis, column_axis = ("", axes[0]) if len(axes) == 1 else axes[:2]
    slices: dict[tuple[tuple[str, int], ...], dict[tuple[int, int], Point]] = {}
    for point in found:
        rest = tuple((axis, point.at[axis]) for axis in axes[2:])
        slices.setdefault(rest, {})[(point.at[row_axis] if row_axis else 0, point.at[column_axis])] = point
    return [
        PlotGrid(
            row_axis,
            column_axis,
            tuple(sorted({row for row, _ in table})),
            tuple(sorted({column for _, column in table})),
            table,
            ", ".join([title] * bool(title) + [f"{axis_words(axis)} {value}" for axis, value in rest]),
        )
        for rest, table in sorted(slices.items())
    ]


def _tied(found: Sequence[Point]) -> list[Point]:
    """The points of two equal values whose row and column have no other point, where there are several."""
    used: dict[int, int] = {}
    for point in found:
        for value in set(point.at.values()):
            used[value] = used.get(value, 0) + 1
    alone = [point for point in found if len(set(point.at.values())) == 1 and used[next(iter(point.at.values()))] == 1]
    return alone if len(alone) > 1 else []


def diagonal(found: Iterable[Point]) -> dict[int, Point]:
    """The points where all axes agree (n+n digits; every point, where there is one axis), by n, ascending."""
    along = {next(iter(point.at.values())): point for point in found if len(set(point.at.values())) == 1}
    return dict(sorted(along.items()))


CLEAR = 0.5
"""The part of the range above the floor that a share must exceed to count as clearly above it."""


def above(share: float, floor: float | None) -> bool:
    """Whether a share is clearly above the score of memorising: by at least half of the range above the floor.

    At a floor of 98 % that is from 99 % on; at a floor of 100 % never.
    """
    return floor is None or (floor < 1 and share - floor >= CLEAR * (1 - floor))


def floors_along(several: Iterable[Mapping[int, Point]]) -> dict[int, tuple[float, float]]:
    """By length the lowest and the highest floor of several diagonals; in distribution there is none."""
    found: dict[int, list[float]] = {}
    for along in several:
        for n, point in along.items():
            if point.floor is not None:
                found.setdefault(n, []).append(point.floor)
    return {n: (min(floors), max(floors)) for n, floors in sorted(found.items())}


def floor_curve(several: Sequence[Mapping[int, Point]]) -> tuple[list[float], list[float]]:
    """The floor as a line by length, x and y: 1 up to the last trained one, then the floor of each. Empty where
    groups have different floors, or none, and where no trained length was evaluated."""
    known = floors_along(several)
    trained = [n for along in several for n, point in along.items() if point.region == "in_distribution"]
    if not known or not trained or any(low != high for low, high in known.values()):
        return [], []
    x, y = [float(min(trained)), max(trained) + 0.5], [1.0, 1.0]
    for n, (floor, _) in known.items():
        x.append(float(n))
        y.append(floor)
    return x, y


def regions(cells: Sequence[Cell]) -> dict[str, Region]:
    """The evaluated regions, nearest to training first, each with its mean; `OOD` is the mean of several
    out-of-distribution ones."""
    groups = {name: [cell for cell in cells if cell.region == name] for name in REGIONS}
    untrained = [groups[name] for name in REGIONS if name != "in_distribution" and groups[name]]
    if len(untrained) > 1:
        groups[OOD] = [cell for cells in untrained for cell in cells]
    return {name: _region(name, inside) for name, inside in groups.items() if inside}


def _region(name: str, inside: Sequence[Cell]) -> Region:
    held_out = [cell for cell in inside if not cell.seen]
    scored = held_out or inside
    several = [cell.labels for cell in scored if cell.labels is not None]
    labels = Labels.together(several) if len(several) == len(scored) else None
    metric = scored[0].metric if labels is None else labels.measured_by(scored[0].metric, name)
    share = None if labels is None or metric == "exact" else labels.measured(metric)
    return Region(
        name=name,
        share=share or region_mean([(int(cell.correct), cell.count) for cell in scored], repeats=scored[0].repeats),
        cells=len(scored),
        seen_left_out=len(inside) - len(scored),
        only_seen=not held_out,
        weakest=min(scored, key=lambda cell: (cell.accuracy, [-n for n in cell.at.values()])),
        floor=labels.floor(metric) if labels is not None and name != "in_distribution" else None,
        labels=labels,
    )


def place_words(at: Mapping[str, int], operator: str | None = None, names: Mapping[str, str] | None = None) -> str:
    """A cell in words: `{"first_digits": 3, "second_digits": 4}` is "3+4 digits", `{"length": 9}` is "length 9"; of
    sizes with names the names."""
    values = list(at.values())
    if names:
        return ", ".join(names.get(axis) or f"{axis_words(axis)} {value}" for axis, value in at.items())
    if tuple(at) == ("first_digits", "second_digits"):
        return f"{values[0]}{operator or ' and '}{values[1]} digits"
    if tuple(at) == ("digits",):
        return f"{values[0]} digits"
    return ", ".join(f"{axis_words(axis)} {value}" for axis, value in at.items())


def are_parts(cells: Iterable[Point | Cell]) -> bool:
    """Whether cells are named parts, or of an axis in `PARTS`, and so have no length."""
    each = list(cells)
    return bool(each) and all(len(one.at) == 1 and (bool(one.names) or next(iter(one.at)) in PARTS) for one in each)


def axis_words(axis: str) -> str:
    """The label of an axis: "first_digits" is "digits of the first number", "length" stays "length"."""
    order = {"first_digits": "first", "second_digits": "second"}
    return f"digits of the {order[axis]} number" if axis in order else axis.replace("_", " ")


def span_words(cells: Iterable[Point | Cell]) -> str:
    """The range of cells in words: "1 to 5 digits"; "" where it is empty."""
    inside = list(cells)
    if not inside:
        return ""
    spans = {axis: sorted({cell.at[axis] for cell in inside}) for axis in inside[0].at}
    texts = {axis: f"{seen[0]} to {seen[-1]}" if len(seen) > 1 else f"{seen[0]}" for axis, seen in spans.items()}
    digits = all(axis.endswith("digits") for axis in spans)
    if digits and len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} digits"
    return ", ".join(f"{axis_words(axis)} {text}" for axis, text in texts.items())


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage: 0.9996 is "99.96", 0.905 is "90.5"; only exactly 0 and 1 are "0" and "100"."""
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}"
    for decimals in range(digits, 7):
        text = f"{100 * share:.{decimals}f}"
        if 0.0 < float(text) < 100.0:
            return text.rstrip("0").rstrip(".") if "." in text else text
    return "<0.0001" if share < 0.5 else ">99.9999"


def whole_percent(share: float) -> str:
    """A percentage without decimals for cells of a map: only exactly 1 is "100" and 0 is "0"; 0.996 is "99"."""
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}"
    return str(min(max(round(100 * share), 1), 99))


def tick_step(count: int, most: int) -> int:
    """The step between labels for at most about `most` of them: 1, 2, 5, 10, 20, 50, ..."""
    steps = (factor * int(10**power) for power in range(9) for factor in (1, 2, 5))
    return next(step for step in steps if count <= most * step)


def length_ticks(lengths: Iterable[float], most: int) -> list[float]:
    """The lengths with a label on an axis, about `most` at most: the first one, and round ones.

    >>> length_ticks([*range(1, 60), *range(60, 201, 5)], 15)
    [1, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200]
    """
    found = sorted(set(lengths))
    room = max(len(found), found[-1] - found[0] + 1)
    for every in (factor * 10**power for power in range(9) for factor in (1, 2, 5)):
        kept = [n for n in found if n % every == 0]
        if all((after - n) * most >= room for n, after in pairwise(kept)):
            break
    near = kept and 0 < 2 * (kept[0] - found[0]) < every
    return kept if near or found[0] in kept else [found[0], *kept]


def bracket(low: float, high: float, digits: int = 1) -> str:
    """An interval in per cent: "[85.6, 93.8]"."""
    return f"[{percent(low, digits)}, {percent(high, digits)}]"
