"""Grids of cells: the same task with fields fixed, strata among them, and how to split a grid into shards."""

import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

from numerate.config import Span
from numerate.errors import UserError, did_you_mean
from numerate.tasks.task import Task

T = TypeVar("T")

Cell = tuple[tuple[str, Any], ...]
"""One cell: each axis with its value, such as `(("first_digits", 3), ("second_digits", 4))`; of a stratum also its name
as `stratum`, and further settings of the task."""

STRATUM = "stratum"
"""The entry of a cell that names its stratum."""

MAX_CHOSEN = 11
"""As many cells per size has a stratum with a further axis, such as the longest carry chain."""

REGIONS = ("in_distribution", "ood_validation", "ood_test", "100+", "below")
"""The regions of a grid, in the order of reports: see `cell_region`."""

OOD_REGIONS = ("ood_validation", "ood_test", "100+")
"""The regions of sizes above those of training."""

MAX_OOD_TEST_SIZE = 100
"""Cells larger than training with an axis above this form a separate region, `100+`: McLeish et al. (2024),
https://arxiv.org/abs/2405.17399, report equal lengths above 100 separately from the 100 x 100 grid."""

NAMED_GRIDS = {
    "large": "1:23x1:23",
    "ood_only": "24:30x1:30+1:23x24:30",
    "up_to_40": "31:40x1:40+1:30x31:40",
    "up_to_50": "41:50x1:50+1:40x41:50",
    "big": "1:100x1:100",
    "extended": "diagonal:101:160+diagonal:200:1000:100",
    "pos_arth": "1:25x1:25",
    "pos_arth_ood": "26:40x1:40+1:25x26:40",
    "mul": "1:25x1:25",
    "sort": "1:30x1:30",
}
"""The grids of the published evaluation of Abacus, by the names of its options: each has the cells that the previous
one lacks. A name can be part of a grid: `large+ood_only+up_to_40`."""

GOLDEN_RATIO = (5**0.5 - 1) / 2

MAX_CELLS = 1_000_000
"""Grids with more cells are an error."""


@dataclass(frozen=True)
class GridPart:
    """A rectangle of cells: every combination of the values of each axis; with `is_diagonal` only the cells whose axes
    all have the same value."""

    values: tuple[range, ...]
    is_diagonal: bool = False

    def cells(self, axes: Sequence[str]) -> Iterable[Cell]:
        points: Iterable[tuple[int, ...]] = itertools.product(*self.values)
        if self.is_diagonal:
            points = ((value,) * len(self.values) for value in self.values[0])
        return (tuple(zip(axes, point, strict=True)) for point in points)

    def corners(self, axes: Sequence[str], end: int) -> Iterable[Cell]:
        """The largest cell (`end=-1`), or the smallest (0)."""
        return [tuple(zip(axes, (values[end] for values in self.values), strict=True))]

    def __len__(self) -> int:
        return len(self.values[0]) if self.is_diagonal else prod(map(len, self.values))

    def __str__(self) -> str:
        first, *_ = texts = [_format_range(values) for values in self.values]
        return f"diagonal:{first}" if self.is_diagonal else "x".join(texts)


@dataclass(frozen=True)
class StratumPart:
    """The cells of a stratum of a task (`Task.strata`) at each size."""

    name: str
    sizes: range
    cells_by_size: tuple[tuple[Cell, ...], ...]

    def cells(self, axes: Sequence[str]) -> Iterable[Cell]:
        return itertools.chain.from_iterable(self.cells_by_size)

    def corners(self, axes: Sequence[str], end: int) -> Iterable[Cell]:
        """The cells of the largest size (`end=-1`), or of the smallest (0)."""
        return self.cells_by_size[end]

    def __len__(self) -> int:
        return sum(map(len, self.cells_by_size))

    def __str__(self) -> str:
        return f"{self.name}:{_format_range(self.sizes)}"


@dataclass(frozen=True)
class Grid:
    """Cells of some axes: one rectangle, or several parts joined by `+`.

    >>> grid = Grid.parse("1:2x1:3", ("first_digits", "second_digits"))
    >>> len(grid.cells()), dict(grid.cells()[0])
    (6, {'first_digits': 1, 'second_digits': 1})
    >>> [tuple(dict(cell).values()) for cell in Grid.parse("diagonal:200:600:200+7x1", grid.axes).cells()]
    [(200, 200), (400, 400), (600, 600), (7, 1)]
    """

    axes: tuple[str, ...]
    parts: tuple[GridPart | StratumPart, ...]

    @classmethod
    def parse(cls, text: str, axes: Sequence[str], task: Task | None = None) -> "Grid":
        """From `11:20x1:30` (low:high per axis, inclusive; a single number for a single value).

        - A text with one span on a task of several axes means that span on each: `1:12` is `1:12x1:12`.
        - `low:high:step` takes every step-th value from low on: `1:100:5x1:100:5`.
        - `diagonal:101:160` ties all axes to one value: the cells 101+101, 102+102, ...; `diagonal:200:1000:100` has a
          step.
        - Several parts are joined by `+`: `1:20x1:20+diagonal:101:160`. A cell that is in two of them is evaluated
          once. (Not by a comma, which makes a sweep of several recipes.)
        - The published tiers have names (`NAMED_GRIDS`): `large`, `ood_only`, `up_to_40`, ..., `extended`.
        - `cascade:1000`, `uneven:100:1000:100` and `carries:20` are strata of the `task` (`Task.strata`) at these
          sizes: questions that uniformly drawn ones almost never are. `carries:20` has the longest carry chains 0, 2,
          ..., 20.

        Raises `UserError` for any other text.
        """
        texts = _split_parts(text)
        if task is not None and (name := next((one for one in task.strata(20) if one in map(str.strip, texts)), None)):
            raise UserError(f"grid: {name!r} needs the length of its operands, as in {name}:20")
        parts: tuple[GridPart | StratumPart, ...] = tuple(
            _parse_stratum(part, text, axes, task) if _is_stratum(part) else _parse_part(part, text, axes)
            for part in map(str.strip, texts)
        )
        if (count := sum(map(len, parts))) > MAX_CELLS:
            raise UserError(f"grid: must have at most {MAX_CELLS:,} cells, not {count:,} as {text!r}")
        return cls(tuple(axes), parts)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The lowest and the highest value of each axis, without strata."""
        rectangles = [part for part in self.parts if isinstance(part, GridPart)]
        columns = [[part.values[axis] for part in rectangles] for axis in range(len(self.axes))]
        return tuple(Span(min(v[0] for v in column), max(v[-1] for v in column)) for column in columns)

    def cells(self) -> list[Cell]:
        """Every cell once, in order."""
        return list(dict.fromkeys(cell for part in self.parts for cell in part.cells(self.axes)))

    def corners(self, *, smallest: bool = False) -> list[Cell]:
        """The largest cell of each part, to check that position embeddings are large enough; or the smallest."""
        end = 0 if smallest else -1
        return list(dict.fromkeys(cell for part in self.parts for cell in part.corners(self.axes, end)))

    @classmethod
    def from_points(cls, points: Iterable[tuple[int, ...]], axes: Sequence[str]) -> "Grid":
        """The grid of these cells only; neighbors along the last axis are merged into one part.

        >>> str(Grid.from_points([(4,), (5,), (8,)], ("length",)))
        '4:5+8'
        """
        parts: list[GridPart] = []
        for *leading, last in sorted(points):
            leading_values, begin = tuple(range(value, value + 1) for value in leading), last
            if parts and parts[-1].values[:-1] == leading_values and parts[-1].values[-1].stop == last:
                begin = parts.pop().values[-1].start
            parts.append(GridPart((*leading_values, range(begin, last + 1))))
        return cls(tuple(axes), tuple(parts))

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def matches_axes(text: str, axes: Sequence[str]) -> bool:
    """Whether each part of a grid has one span, or one span per axis.

    >>> matches_axes("1:12", ("test",)), matches_axes("1:12x1:12", ("test",))
    (True, False)
    """
    parts = (part for part in _split_parts(text) if not _is_stratum(part))
    return all(len(re.split(r"[x\u00d7]", part)) in (1, len(axes)) for part in parts)


def _split_parts(text: str) -> list[str]:
    return [part for name in text.split("+") for part in NAMED_GRIDS.get(name.strip(), name).split("+")]


def _is_stratum(text: str) -> bool:
    return re.match(r"\s*(?!diagonal:)[a-zA-Z]\w*\s*:", text) is not None


def _parse_stratum(text: str, grid_text: str, axes: Sequence[str], task: Task | None) -> StratumPart:
    """`cascade:100:1000:100`, of one span."""
    name, span = (part.strip() for part in text.split(":", 1))
    sizes = _parse_values(span, grid_text, ("",))
    cells_by_size = []
    for size in sizes:
        strata = {} if task is None else task.strata(size)
        if name not in strata:
            what, known = "the task" if task is None else type(task).__name__, ", ".join(strata) or "none"
            raise UserError(
                f"grid: {what} has no stratum {name!r}; it has {known}." + did_you_mean(name, [*strata, "diagonal"])
            )
        cells_by_size.append(tuple(_choose(strata[name], axes)))
        if not cells_by_size[-1]:
            raise UserError(f"grid: {text!r} selects none of the questions of {name}:{size}")
    return StratumPart(name, sizes, tuple(cells_by_size))


def _choose(cells: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[Cell]:
    """A few of many cells from the lowest to the highest value of their further axis; all cells if they have none."""
    if len(cells) > MAX_CHOSEN and all(cell.keys() - {*axes, STRATUM} for cell in cells):
        cells = [cells[round(i * (len(cells) - 1) / (MAX_CHOSEN - 1))] for i in range(MAX_CHOSEN)]
    return [tuple(cell.items()) for cell in cells]


def _parse_part(text: str, grid_text: str, axes: Sequence[str]) -> GridPart:
    is_diagonal = text.startswith("diagonal:")
    texts = [part.strip() for part in re.split(r"[x\u00d7]", text.removeprefix("diagonal:"))]
    if is_diagonal and len(texts) > 1:
        raise UserError(f"grid: {text!r} ties all axes to one value, so it has one span: diagonal:101:160")
    texts = texts * len(axes) if len(texts) == 1 else texts
    if not axes:
        raise UserError(f"grid: must be null, not {grid_text!r}: the task has no sizes")
    if len(texts) != len(axes):
        raise UserError(
            f"grid: {grid_text!r} has {len(texts)} axes, the task has {len(axes)}: {', '.join(axes)}; "
            f"use e.g. {'x'.join(['1:12'] * len(axes))}, or null for the default grid"
        )
    return GridPart(tuple(_parse_values(part, grid_text, axes) for part in texts), is_diagonal)


def _parse_values(text: str, grid_text: str, axes: Sequence[str]) -> range:
    """The values of one axis: `3`, `1:5`, or `200:1000:100` with a step."""
    example = "x".join(["1:12"] * len(axes))
    step_match = re.fullmatch(r"(.*:.*):\s*([0-9]{1,9})\s*", text)
    try:
        span, step = Span.parse(step_match[1] if step_match else text), int(step_match[2]) if step_match else 1
    except UserError as error:
        suggestion = did_you_mean(text, NAMED_GRIDS) if re.fullmatch(r"[a-z][a-z_0-9]*", text) else ""
        joining = f"; parts are joined by +, as in {example}+diagonal:20:40" if "," in grid_text else ""
        raise UserError(f"grid: {error} (use e.g. {example}{joining}).{suggestion}") from error
    if not (span.low >= 0 and span.high <= MAX_CELLS and step >= 1):
        raise UserError(f"grid: {grid_text!r}: sizes must be from 0 to {MAX_CELLS:,}, and steps 1 or more")
    return range(span.low, span.high + 1, step)


def _format_range(values: range) -> str:
    if len(values) == 1:
        return str(values[0])
    return f"{values[0]}:{values[-1]}" + (f":{values.step}" if values.step > 1 else "")


def cell_entries(cell: Cell) -> dict[str, Any]:
    """The entries of a record that say which cell it is: `cell`, and `stratum` for one of a stratum.

    >>> cell_entries((("first_digits", 9), ("second_digits", 1), ("stratum", "nines_plus_one")))
    {'cell': {'first_digits': 9, 'second_digits': 1}, 'stratum': 'nines_plus_one'}
    """
    sizes = dict(cell)
    stratum = sizes.pop(STRATUM, None)
    return {"cell": sizes, **({} if stratum is None else {STRATUM: stratum})}


def cell_region(
    cell: Mapping[str, int], training_spans: Mapping[str, Span], validation_spans: Mapping[str, Span] | None
) -> str:
    """The region of a cell: `in_distribution`, the sizes of training; `ood_validation`, sizes just above training, on
    which the best checkpoint is selected; `ood_test`, larger sizes (`100+` if an axis is above 100); and `below`, sizes
    smaller than all trained ones."""
    if all(cell[axis] in span for axis, span in training_spans.items()):
        return "in_distribution"
    if validation_spans is not None and all(cell[axis] in span for axis, span in validation_spans.items()):
        return "ood_validation"
    if any(cell[axis] > span.high for axis, span in training_spans.items()):
        return "100+" if max(cell.values()) > MAX_OOD_TEST_SIZE else "ood_test"
    return "below"


def shard(cells: Iterable[Cell], shard_index: int, num_shards: int, cost: Callable[[Cell], float]) -> list[Cell]:
    """The cells of shard `shard_index` (from 1) of `num_shards` shards of about equal cost.

    Starting with the most expensive cell, each is added to the cheapest shard so far: every cell is in exactly one
    shard, and the shards depend only on the cells. The cells of a shard are in the order of the grid.
    """
    if not 1 <= shard_index <= num_shards:
        last = f"{num_shards}/{num_shards}"
        raise UserError(f"shard: must be from 1/{num_shards} to {last}, not {shard_index}/{num_shards}")
    costs = {cell: cost(cell) for cell in cells}
    shard_by_cell, heap = {}, [(0.0, number) for number in range(1, num_shards + 1)]
    for cell in sorted(costs, key=lambda cell: -costs[cell]):
        shard_cost, shard_by_cell[cell] = heap[0]
        heapq.heapreplace(heap, (shard_cost + costs[cell], shard_by_cell[cell]))
    return [cell for cell in costs if shard_by_cell[cell] == shard_index]


def interleave_by_cost(items: Sequence[T], cost: Callable[[T], float]) -> list[T]:
    """The items in an order in which every range has both expensive and cheap ones, so that errors in the cost
    estimates affect all ranges equally.

    The item with rank r by cost is placed at the fractional part of r times the golden ratio, which is equidistributed
    (Weyl 1916, https://doi.org/10.1007/BF01475864).
    """
    ranked = sorted(items, key=lambda item: -cost(item))
    return [ranked[rank] for rank in sorted(range(len(ranked)), key=lambda rank: rank * GOLDEN_RATIO % 1.0)]


def split_by_cost(costs: Sequence[float], num_ranges: int) -> list[range]:
    """At most `num_ranges` consecutive, nonempty ranges of about equal cost.

    >>> split_by_cost([1.0, 1.0, 2.0, 1.0, 1.0], 3)
    [range(0, 2), range(2, 3), range(3, 5)]
    """
    total, cost_before = sum(costs), 0.0
    bounds: dict[int, list[int]] = {}
    for index, item_cost in enumerate(costs):
        number = min(int((cost_before + item_cost / 2) / total * num_ranges), num_ranges - 1)
        bounds.setdefault(number, []).append(index)
        cost_before += item_cost
    return [range(indices[0], indices[-1] + 1) for indices in bounds.values()]


def parse_shard(text: str) -> tuple[int, int]:
    """Parses `2/4`, the second of four shards, as `(2, 4)`. Raises `UserError` for any other text."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match:
        raise UserError(f"shard: must have the form 1/4, not {text!r}")
    return int(match[1]), int(match[2])
