"""Grids of cells: the same task with fields fixed, strata among them, and how to split a grid into shards."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeVar

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

OOD_REGIONS = ("ood_validation", "ood_test", "100+")
"""The regions of sizes above those of training."""

REGIONS = ("in_distribution", *OOD_REGIONS, "below")
"""The regions of a grid, in the order of reports: see `cell_region`."""

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
"""The grids of the published evaluation of Abacus, by the names of its options, which can be parts of a grid."""

MAX_CELLS = 1_000_000
"""A part of a grid with more cells is an error."""


class GridPart(NamedTuple):
    """Cells of a grid with their text; `first` and `last` are those of the smallest and of the largest size."""

    text: str
    cells: tuple[Cell, ...]
    first: tuple[Cell, ...]
    last: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    """Cells of some axes: one rectangle, or several parts joined by `+`.

    >>> grid = Grid.parse("1:2x1:3", ("first_digits", "second_digits"))
    >>> len(grid.cells()), dict(grid.cells()[0])
    (6, {'first_digits': 1, 'second_digits': 1})
    >>> [tuple(dict(cell).values()) for cell in Grid.parse("diagonal:200:600:200+7x1", ("a", "b")).cells()]
    [(200, 200), (400, 400), (600, 600), (7, 1)]
    """

    parts: tuple[GridPart, ...]

    @classmethod
    def parse(cls, text: str, axes: Sequence[str], task: Task | None = None) -> "Grid":
        """From `11:20x1:30` (low:high per axis, inclusive; a single number for a single value).

        - A text with one span on a task of several axes means that span on each: `1:12` is `1:12x1:12`.
        - `low:high:step` takes every step-th value from low on: `1:100:5x1:100:5`.
        - `diagonal:101:160` ties all axes to one value: the cells 101+101, 102+102, ...
        - Several parts are joined by `+`: `1:20x1:20+diagonal:101:160`; a cell that is in two is evaluated once.
        - The published tiers have names (`NAMED_GRIDS`): `large`, `ood_only`, `up_to_40`, ..., `extended`.
        - `cascade:1000` and `uneven:100:1000:100` are strata of the `task` (`Task.strata`) at these sizes.

        Raises `UserError` for any other text.
        """
        if not axes:
            raise UserError(f"grid: must be null, not {text!r}: the task has no sizes")
        texts = [part.strip() for name in text.split("+") for part in NAMED_GRIDS.get(name.strip(), name).split("+")]
        return cls(tuple(_parse_part(part, axes, task) for part in texts))

    def cells(self) -> list[Cell]:
        """Every cell once, in order."""
        return list(dict.fromkeys(cell for part in self.parts for cell in part.cells))

    def corners(self, *, smallest: bool = False) -> list[Cell]:
        """The largest cells of each part, to check that position embeddings are large enough; or the smallest."""
        return list(dict.fromkeys(cell for part in self.parts for cell in (part.first if smallest else part.last)))

    @classmethod
    def from_points(cls, points: Iterable[tuple[int, ...]], axes: Sequence[str]) -> "Grid":
        """The grid of these cells only; neighbors along the last axis are merged into one part.

        >>> str(Grid.from_points([(4,), (5,), (8,)], ("length",)))
        '4:5+8'
        """
        spans: list[tuple[list[int], range]] = []
        for *leading, last in sorted(points):
            first = last
            if spans and (spans[-1][0], spans[-1][1].stop) == (leading, last):
                first = spans.pop()[1].start
            spans.append((leading, range(first, last + 1)))
        texts = ("x".join([*map(str, leading), _format_range(values)]) for leading, values in spans)
        return cls.parse("+".join(texts), axes)

    def __str__(self) -> str:
        return "+".join(part.text for part in self.parts)


def _parse_part(text: str, axes: Sequence[str], task: Task | None) -> GridPart:
    """A rectangle, `1:12x1:12`, a diagonal, `diagonal:1:12`, or a stratum, `cascade:100:1000:100`."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if colon and re.fullmatch(r"[a-zA-Z]\w*", name):
        values = _parse_values(rest, text, axes)
        if name == "diagonal":
            layers: list[tuple[Cell, ...]] = [(tuple((axis, value) for axis in axes),) for value in values]
        elif (total := sum(values)) > MAX_CELLS:  # a stratum may have as many cells as its size
            raise UserError(f"grid: the sizes of {text!r} must add up to at most {MAX_CELLS:,}, not {total:,}")
        else:
            layers = [_stratum(name, size, axes, task) for size in values]
        cells = tuple(cell for layer in layers for cell in layer)
        return GridPart(f"{name}:{_format_range(values)}", cells, layers[0], layers[-1])
    texts = re.split(r"[x\u00d7]", text)
    texts = texts * len(axes) if len(texts) == 1 else texts
    if len(texts) != len(axes):
        raise UserError(
            f"grid: {text!r} has {len(texts)} axes, the task has {len(axes)}: {', '.join(axes)}; "
            f"use e.g. {'x'.join(['1:12'] * len(axes))}, or null for the default grid"
        )
    spans = [_parse_values(part, text, axes) for part in texts]
    if (count := prod(map(len, spans))) > MAX_CELLS:
        raise UserError(f"grid: must have at most {MAX_CELLS:,} cells, not {count:,} as {text!r}")
    cells = tuple(tuple(zip(axes, point, strict=True)) for point in itertools.product(*spans))
    return GridPart("x".join(map(_format_range, spans)), cells, cells[:1], cells[-1:])


def _stratum(name: str, size: int, axes: Sequence[str], task: Task | None) -> tuple[Cell, ...]:
    """The cells of a stratum at a size; of many with a further axis a few from its lowest to its highest value."""
    strata = {} if task is None else task.strata(size)
    if name not in strata:
        what, hint = type(task).__name__ if task else "the task", did_you_mean(name, [*strata, "diagonal"])
        raise UserError(f"grid: {what} has no stratum {name!r}; it has {', '.join(strata) or 'none'}.{hint}")
    cells = strata[name]
    if not cells:
        raise UserError(f"grid: {name}:{size} selects none of the questions of {type(task).__name__}")
    if len(cells) > MAX_CHOSEN and all(cell.keys() - {*axes, STRATUM} for cell in cells):
        cells = [cells[round(i * (len(cells) - 1) / (MAX_CHOSEN - 1))] for i in range(MAX_CHOSEN)]
    return tuple(tuple(cell.items()) for cell in cells)


def _parse_values(text: str, part: str, axes: Sequence[str]) -> range:
    """The values of one axis: `3`, `1:5`, or `200:1000:100` with a step."""
    step_match = re.fullmatch(r"(.*:.*):\s*([0-9]{1,9})\s*", text)
    try:
        span, step = Span.parse(step_match[1] if step_match else text), int(step_match[2]) if step_match else 1
    except UserError as error:
        example = "x".join(["1:12"] * len(axes))
        hint = f"use e.g. {example}; parts are joined by +, as in {example}+diagonal:20:40+cascade:20"
        raise UserError(f"grid: {error} ({hint}).{did_you_mean(part, NAMED_GRIDS)}") from error
    if not (span.low >= 0 and span.high <= MAX_CELLS and step >= 1):
        raise UserError(f"grid: {part!r}: sizes must be from 0 to {MAX_CELLS:,}, and steps 1 or more")
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
    """The region of a cell: the sizes of training, sizes just above, on which the best checkpoint is selected, larger
    sizes (`100+` if an axis is above 100), and `below`, sizes smaller than all trained ones."""
    if all(cell[axis] in span for axis, span in training_spans.items()):
        return "in_distribution"
    if validation_spans is not None and all(cell[axis] in span for axis, span in validation_spans.items()):
        return "ood_validation"
    if any(cell[axis] > span.high for axis, span in training_spans.items()):
        return "100+" if max(cell.values()) > MAX_OOD_TEST_SIZE else "ood_test"
    return "below"


def deal_by_size(items: Iterable[T], num_shards: int, size: Callable[[T], float]) -> list[list[T]]:
    """The items in shards of about equal cost: dealt from the largest to the smallest, there and back.

    >>> deal_by_size([1, 2, 3, 4, 5, 6], 3, size=float)
    [[6, 1], [5, 2], [4, 3]]
    """
    shards: list[list[T]] = [[] for _ in range(num_shards)]
    for place, item in enumerate(sorted(items, key=lambda item: -size(item))):
        at = place % (2 * num_shards)
        shards[min(at, 2 * num_shards - 1 - at)].append(item)
    return shards


def parse_shard(text: str) -> tuple[int, int]:
    """Parses `2/4`, the second of four shards, as `(2, 4)`. Raises `UserError` for any other text."""
    match = re.fullmatch(r"\s*([0-9]{1,9})/([0-9]{1,9})\s*", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"shard: must be from 1/4 to 4/4, for example, not {text!r}")
    return int(match[1]), int(match[2])
