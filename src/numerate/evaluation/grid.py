"""Grids of cells: the same task with fields pinned, and how to cut a grid into pieces of equal cost."""

import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from numerate.config import Span
from numerate.errors import UserError, did_you_mean

T = TypeVar("T")

Cell = tuple[tuple[str, int], ...]
"""One cell: each axis with its value, such as `(("first_digits", 3), ("second_digits", 4))`."""

FAR = 100
"""Cells beyond training with an axis above this are a region of their own, `100+`: McLeish et al. (2024),
https://arxiv.org/abs/2405.17399, report equal lengths from 101 on apart from the 100 x 100 grid."""

NAMED = {
    "large": "1:23x1:23",
    "ood_only": "24:30x1:30+1:23x24:30",
    "up_to_40": "31:40x1:40+1:30x31:40",
    "up_to_50": "41:50x1:50+1:40x41:50",
    "big": "1:100x1:100",
    "extended": "equal:101:160+equal:200:1000:100",
    "pos_arth": "1:25x1:25",
    "pos_arth_ood": "26:40x1:40+1:25x26:40",
    "mul": "1:25x1:25",
    "sort": "1:30x1:30",
}
"""The grids that the published evaluation of Abacus goes through, by the names of its switches: each tier holds the
cells that the one before does not. A name is a part of a grid like any other: `large+ood_only+up_to_40`."""

GOLDEN = (5**0.5 - 1) / 2

MOST_CELLS = 1_000_000
"""More cells than this are taken for a slip of the pen."""


@dataclass(frozen=True)
class GridPart:
    """A rectangle of cells: every combination of the values of each axis; or, where `tied`, its diagonal, all axes
    having the same value."""

    values: tuple[range, ...]
    tied: bool = False

    def places(self) -> Iterable[tuple[int, ...]]:
        if self.tied:
            return ((value,) * len(self.values) for value in self.values[0])
        return itertools.product(*self.values)

    def __len__(self) -> int:
        return len(self.values[0]) if self.tied else prod(map(len, self.values))

    def __str__(self) -> str:
        return f"equal:{_text(self.values[0])}" if self.tied else "x".join(map(_text, self.values))


@dataclass(frozen=True)
class Grid:
    """Cells of some axes: one rectangle, or several parts joined by `+`.

    >>> grid = Grid.parse("1:2x1:3", ("first_digits", "second_digits"))
    >>> len(grid.cells()), dict(grid.cells()[0])
    (6, {'first_digits': 1, 'second_digits': 1})
    >>> [tuple(dict(cell).values()) for cell in Grid.parse("equal:200:600:200+7x1", grid.axes).cells()]
    [(200, 200), (400, 400), (600, 600), (7, 1)]
    """

    axes: tuple[str, ...]
    parts: tuple[GridPart, ...]

    @classmethod
    def parse(cls, text: str, axes: Sequence[str]) -> "Grid":
        """From `11:20x1:30` (low:high per axis, both included; a single number for a single value).

        - A text with one span on a task of several axes means that span on each: `1:12` is `1:12x1:12`.
        - `low:high:step` takes every step-th value from low on: `1:100:5x1:100:5`.
        - `equal:101:160` ties all axes to one value: the cells 101+101, 102+102, ...; `equal:200:1000:100` with a step.
        - Several parts are joined by `+`: `1:20x1:20+equal:101:160`. A cell that is in two of them is evaluated
          once. (Not by a comma, which makes a sweep of several recipes.)
        - The published tiers have names (`NAMED`): `large`, `ood_only`, `up_to_40`, ..., `extended`.

        Raises `UserError` for any other text.
        """
        texts = [part for name in text.split("+") for part in NAMED.get(name.strip(), name).split("+")]
        return cls(tuple(axes), tuple(_part(part.strip(), text, axes) for part in texts))._sized(text)

    def _sized(self, text: str) -> "Grid":
        count = sum(len(part) for part in self.parts)
        if count > MOST_CELLS:
            raise UserError(f"grid: {text!r} has {count:,} cells; at most {MOST_CELLS:,} are evaluated at once")
        return self

    @property
    def spans(self) -> tuple[Span, ...]:
        """The lowest and the highest value of each axis."""
        columns = [[part.values[axis] for part in self.parts] for axis in range(len(self.axes))]
        return tuple(Span(min(v[0] for v in column), max(v[-1] for v in column)) for column in columns)

    def cells(self) -> list[Cell]:
        """Every cell once, in order."""
        places = dict.fromkeys(place for part in self.parts for place in part.places())
        return [tuple(zip(self.axes, place, strict=True)) for place in places]

    def corners(self) -> list[Cell]:
        """The largest cell of each part: what the tables of a model are checked against."""
        found = [tuple(zip(self.axes, (v[-1] for v in part.values), strict=True)) for part in self.parts]
        return list(dict.fromkeys(found))

    @classmethod
    def of(cls, places: Iterable[tuple[int, ...]], axes: Sequence[str]) -> "Grid":
        """The grid of these cells alone, neighbours along the last axis as one part.

        >>> str(Grid.of([(4,), (5,), (8,)], ("length",)))
        '4:5+8'
        """
        parts: list[GridPart] = []
        for *before, last in sorted(places):
            fixed, begin = tuple(range(value, value + 1) for value in before), last
            if parts and parts[-1].values[:-1] == fixed and parts[-1].values[-1].stop == last:
                begin = parts.pop().values[-1].start
            parts.append(GridPart((*fixed, range(begin, last + 1))))
        return cls(tuple(axes), tuple(parts))

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def fits(text: str, axes: Sequence[str]) -> bool:
    """Whether each part of a grid has one span for all axes, or as many as there are.

    >>> fits("1:12", ("test",)), fits("1:12x1:12", ("test",))
    (True, False)
    """
    parts = "+".join(NAMED.get(name.strip(), name) for name in text.split("+")).split("+")
    return all(len(re.split(r"[x\u00d7]", part)) in (1, len(axes)) for part in parts)


def _part(text: str, whole: str, axes: Sequence[str]) -> GridPart:
    tied = text.startswith("equal:")
    texts = [part.strip() for part in re.split(r"[x\u00d7]", text.removeprefix("equal:"))]
    if tied and len(texts) > 1:
        raise UserError(f"grid: {text!r} ties all axes to one value, so it has one span: equal:101:160")
    if len(texts) == 1:
        texts = texts * len(axes)
    if len(texts) != len(axes):
        raise UserError(
            f"grid: {whole!r} has {len(texts)} axes, the task has {len(axes)}: {', '.join(axes)}; "
            f"a grid of it reads like {'x'.join(['1:12'] * len(axes))}, and null stands for the default one"
        )
    return GridPart(tuple(_values(part, whole, axes) for part in texts), tied)


def _values(text: str, whole: str, axes: Sequence[str]) -> range:
    """The values of one axis: `3`, `1:5`, or `200:1000:100` with a step."""
    example = "x".join(["1:12"] * len(axes))
    stepped = re.fullmatch(r"(.*:.*):\s*([0-9]{1,9})\s*", text)
    try:
        span = Span.parse(stepped[1] if stepped else text)
    except UserError as error:
        if "," in whole:
            raise UserError(f"grid: {whole!r}: parts are joined by +, as in {example}+equal:20:40") from error
        near = did_you_mean(text, NAMED) if re.fullmatch(r"[a-z][a-z_0-9]*", text) else ""
        raise UserError(f"grid: {error} (a grid reads like {example}).{near}") from error
    step = int(stepped[2]) if stepped else 1
    if span.high > MOST_CELLS:
        raise UserError(f"grid: {whole!r} has a size above {MOST_CELLS:,}, which nothing is that long")
    if span.low < 0:
        raise UserError(f"grid: {whole!r} has a negative size")
    if step < 1:
        raise UserError(f"grid: {whole!r} has a step of 0; 1:100:5 takes every fifth value")
    return range(span.low, span.high + 1, step)


def _text(values: range) -> str:
    if len(values) == 1:
        return str(values[0])
    return f"{values[0]}:{values[-1]}" + (f":{values.step}" if values.step > 1 else "")


def region(cell: Mapping[str, int], trained: Mapping[str, Span], validation: Mapping[str, Span] | None) -> str:
    """The region of a cell: `in_distribution`, the sizes of training; `ood_validation`, the band just beyond, on which
    the best checkpoint is chosen; `ood_test`, everything further (`100+` where an axis is above 100); and `below`, what
    is smaller than anything trained."""
    if all(cell[axis] in span for axis, span in trained.items()):
        return "in_distribution"
    if validation is not None and all(cell[axis] in span for axis, span in validation.items()):
        return "ood_validation"
    if any(cell[axis] > span.high for axis, span in trained.items()):
        return "100+" if max(cell.values()) > FAR else "ood_test"
    return "below"


def shard(cells: Iterable[Cell], number: int, of: int, cost: Callable[[Cell], float]) -> list[Cell]:
    """The cells of piece `number` (from 1) of `of` pieces that cost about the same.

    The most expensive cell first, each is added to the cheapest piece so far: every cell is in exactly one piece, and
    the pieces are a function of the cells alone. The cells of a piece come in the grid's order.
    """
    if not 1 <= number <= of:
        raise UserError(f"shard: {number}/{of} is no piece; 1/{of} to {of}/{of} are")
    order = {cell: place for place, cell in enumerate(cells)}
    costs = {cell: cost(cell) for cell in order}
    pieces: list[list[Cell]] = [[] for _ in range(of)]
    cheapest = [(0.0, piece) for piece in range(of)]
    for cell in sorted(order, key=lambda cell: (-costs[cell], order[cell])):
        so_far, piece = cheapest[0]
        pieces[piece].append(cell)
        heapq.heapreplace(cheapest, (so_far + costs[cell], piece))
    return sorted(pieces[number - 1], key=lambda cell: order[cell])


def mixed(items: Sequence[T], cost: Callable[[T], float]) -> list[T]:
    """The items in an order in which every stretch has expensive and cheap ones alike: if costs of one kind are
    estimated too high or too low, all stretches are affected alike.

    By rank r of their costs, at the fraction of r times the golden ratio, whose values in any interval are spread
    evenly over r (Weyl 1916, https://doi.org/10.1007/BF01475864).
    """
    ranked = sorted(items, key=lambda item: -cost(item))
    return [ranked[rank] for rank in sorted(range(len(ranked)), key=lambda rank: rank * GOLDEN % 1.0)]


def cut(costs: Sequence[float], pieces: int) -> list[range]:
    """Consecutive stretches of about equal cost, at most `pieces` of them, none empty.

    >>> cut([1.0, 1.0, 2.0, 1.0, 1.0], 3)
    [range(0, 2), range(2, 3), range(3, 5)]
    """
    total, before = sum(costs), 0.0
    bounds: dict[int, list[int]] = {}
    for place, own in enumerate(costs):
        bounds.setdefault(min(int((before + own / 2) / total * pieces), pieces - 1), []).append(place)
        before += own
    return [range(places[0], places[-1] + 1) for places in bounds.values()]


def parse_shard(text: str) -> tuple[int, int]:
    """From `2/4`, the second of four pieces: `(2, 4)`. Raises `UserError` for any other text."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not found:
        raise UserError(f"shard: {text!r} is no piece; a piece reads like 1/4")
    return int(found[1]), int(found[2])
