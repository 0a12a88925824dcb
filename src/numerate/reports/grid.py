"""Cells of a grid as points, of one run or over seeds, and how they are written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median

from numerate.evaluation.labels import METRICS, Metric
from numerate.reports.records import Cell

REGION_LABELS = {
    "in_distribution": "in distribution",
    "ood_validation": "OOD validation",
    "ood_test": "OOD test",
    "100+": "100+",
}
"""The regions of an evaluation, nearest to training first, with their names in reports."""


DIGIT_AXES = ("first_digits", "second_digits")

PART_AXES = ("module", "test")
"""Axes whose sizes number parts without an order: modules, test sets."""


@dataclass(frozen=True)
class Point:
    """One cell over seeds.

    With one seed `low` to `high` is the Wilson interval over its questions; with several, `score` is the median of the
    seeds and `low` to `high` their range. `seed_scores` holds the accuracy of every seed. `baseline` is the score of
    memorizing, or of one constant answer, the highest of the seeds; None in distribution and for other tasks.
    """

    coordinates: Mapping[str, int]
    score: float
    low: float
    high: float
    seed_scores: tuple[float, ...]
    count: int
    region: str
    overlaps_training: bool
    note: str = ""
    metric: Metric = "exact_match"
    baseline: float | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    stratum: str | None = None

    @property
    def length(self) -> int:
        """The first coordinate, which is that of all axes on the diagonal."""
        return next(iter(self.coordinates.values()))


@dataclass(frozen=True)
class Estimate:
    """A number over seeds: the value of each and their range, or of a single one its 95 % interval, where it has one.

    `baseline` as in `Point`."""

    values: tuple[float, ...]
    single_seed_interval: tuple[float, float] | None = None
    baseline: float | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        return (min(self.values), max(self.values)) if len(self.values) > 1 else self.single_seed_interval

    def text(self, form: Callable[[float], str] | None = None, unit: str = "") -> str:
        """`90.5 [85.6, 93.8]`, in per cent without a `form`, with a unit behind the first number; "" without values."""
        form = form or format_percent
        ends = f" [{', '.join(map(form, self.interval))}]" if self.interval is not None else ""
        return f"{form(self.median)}{unit}{ends}" if self.values else ""


def aggregate_seeds(cells_by_seed: Sequence[Sequence[Cell]]) -> list[Point]:
    """Joins the cells of several seeds, each seed a list of cells; cells that some seed lacks are left out."""
    tables = [{cell.place: cell for cell in cells} for cells in cells_by_seed]
    joined = []
    for place, cell in tables[0].items() if tables else ():
        if not all(place in table for table in tables):
            continue
        same_cells = [table[place] for table in tables]
        accuracies = tuple(one.accuracy for one in same_cells)
        low, high = (cell.low, cell.high) if len(same_cells) == 1 else (min(accuracies), max(accuracies))
        joined.append(
            Point(
                coordinates=cell.coordinates,
                score=median(accuracies),
                low=low,
                high=high,
                seed_scores=accuracies,
                count=cell.count // cell.repeats,
                region=cell.region,
                overlaps_training=cell.overlaps_training,
                note=_first_error_note(same_cells),
                metric=cell.metric,
                baseline=max((one.baseline for one in same_cells if one.baseline is not None), default=None),
                names=cell.names,
                stratum=cell.stratum,
            )
        )
    return joined


def _first_error_note(cells: Sequence[Cell]) -> str:
    """The most frequent first wrong token of an answer, in words, counted from 1."""
    counts = [sum(column) for column in zip_longest(*(cell.first_error_counts or () for cell in cells), fillvalue=0)]
    if not any(counts):
        return ""
    share = f"{100 * max(counts) / sum(counts):.0f} % of them"
    return f"wrong answers first go wrong mostly at token {counts.index(max(counts)) + 1} ({share})"


def grid_axes(points: Iterable[Point]) -> tuple[str, ...]:
    """The axes of the grid of some points, without further axes of strata."""
    found = sorted(points, key=lambda point: point.stratum is not None)
    coordinates = tuple(found[0].coordinates) if found else ()
    return DIGIT_AXES if set(DIGIT_AXES) <= set(coordinates) else coordinates


def stratum_size(point: Point, axes: Sequence[str]) -> int:
    """The largest size of a cell along the axes of the grid, such as the length of the longest operand."""
    return max(point.coordinates[axis] for axis in axes)


def cell_label(
    coordinates: Mapping[str, int], operator: str | None = None, names: Mapping[str, str] | None = None
) -> str:
    """A cell in words: `{"first_digits": 3, "second_digits": 4}` is "3+4 digits", `{"length": 9}` is "length 9"; of
    sizes with names the names."""
    if not names and tuple(coordinates) in (DIGIT_AXES, ("digits",)):
        return f"{(operator or ' and ').join(f'{size:,}' for size in coordinates.values())} digits"
    return ", ".join((names or {}).get(axis) or f"{axis_label(axis)} {size}" for axis, size in coordinates.items())


def are_named_parts(cells: Iterable[Point | Cell]) -> bool:
    """Whether cells are named parts, or of an axis in `PART_AXES`, and so have no length."""
    cell_list = list(cells)
    return bool(cell_list) and all(
        len(one.coordinates) == 1 and (bool(one.names) or next(iter(one.coordinates)) in PART_AXES) for one in cell_list
    )


def axis_label(axis: str) -> str:
    """The label of an axis: "first_digits" is "digits of the first number", "length" stays "length"."""
    order = {"first_digits": "first", "second_digits": "second"}
    return f"digits of the {order[axis]} number" if axis in order else axis.replace("_", " ")


def metric_label(metric: Metric, cells: Iterable[Point | Cell]) -> str:
    """A metric of these cells in words. Where all are in distribution, no label is at a position beyond training, and
    the accuracy is that of all labels (`LabelCounts.effective_metric`)."""
    is_trained = all(cell.region == "in_distribution" for cell in cells)
    return METRICS["accuracy" if metric == "ood_accuracy" and is_trained else metric]


def format_percent(fraction: float, digits: int = 1) -> str:
    """A share as a percentage: 0.9996 is "99.96", 0.905 is "90.5"; only exactly 0 and 1 are "0" and "100"."""
    if fraction in (0.0, 1.0):
        return f"{100 * fraction:.0f}"
    for decimals in range(digits, 7):
        text = f"{100 * fraction:.{decimals}f}"
        if 0.0 < float(text) < 100.0:
            return text.rstrip("0").rstrip(".") if "." in text else text
    return "<0.0001" if fraction < 0.5 else ">99.9999"


def format_integer_percent(fraction: float) -> str:
    """A percentage without decimals for cells of a map: only exactly 1 is "100" and 0 is "0"; 0.996 is "99"."""
    if fraction in (0.0, 1.0):
        return f"{100 * fraction:.0f}"
    return str(min(max(round(100 * fraction), 1), 99))


def format_interval(low: float, high: float, digits: int = 1) -> str:
    """An interval in per cent: "[85.6, 93.8]"."""
    return f"[{format_percent(low, digits)}, {format_percent(high, digits)}]"


MAX_NAMES = 10
"""Names in one sentence."""


def join_names(names: Sequence[str], max_names: int = MAX_NAMES, separator: str = ", ") -> str:
    """Names as a phrase; beyond `max_names` the others are counted.

    >>> join_names(["a", "b", "c"]), join_names(["a", "b", "c", "d"], max_names=3)
    ('a, b and c', 'a, b and 2 others')
    """
    if len(names) > max_names:
        return f"{separator.join(names[: max_names - 1])} and {len(names) - max_names + 1} others"
    return names[0] if len(names) == 1 else f"{separator.join(names[:-1])} and {names[-1]}"


def number_text(value: float | None) -> str:
    """A number as text, four digits, or all before the point of one below 10^15."""
    return "" if value is None else f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:#.4g}"


def interval_text(low: float | None, high: float | None) -> str:
    """`[1.720, 1.739]`, four digits each; empty if there is none."""
    return "" if low is None or high is None else f"[{number_text(low)}, {number_text(high)}]"
