"""Grids of cells: the same task with fields pinned, and how to cut a grid into pieces of equal cost."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from numerate.config import Span
from numerate.errors import Mistake

Cell = tuple[tuple[str, int], ...]
"""One cell: each axis with its value, such as `(("first_digits", 3), ("second_digits", 4))`."""


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of some axes.

    >>> grid = Grid.parse("1:2x1:3", ("first_digits", "second_digits"))
    >>> len(grid.cells()), dict(grid.cells()[0])
    (6, {'first_digits': 1, 'second_digits': 1})
    """

    axes: tuple[str, ...]
    spans: tuple[Span, ...]

    @classmethod
    def parse(cls, text: str, axes: Sequence[str]) -> "Grid":
        """From `11:20x1:30` (low:high per axis, both included; a single number for a single value).

        A text with one span on a task of several axes means that span on each: `1:12` is `1:12x1:12`.
        """
        parts = [part.strip() for part in re.split(r"[x\u00d7]", text)]
        if len(parts) == 1:
            parts = parts * len(axes)
        if len(parts) != len(axes):
            raise Mistake(f"grid: {text!r} has {len(parts)} axes, the task has {len(axes)}: {', '.join(axes)}")
        try:
            spans = tuple(Span.parse(part) for part in parts)
        except Mistake as mistake:
            example = "x".join(["1:12"] * len(axes))
            raise Mistake(f"grid: {mistake} (a grid reads like {example})") from mistake
        if any(span.low < 0 for span in spans):
            raise Mistake(f"grid: {text!r} has a negative size")
        return cls(tuple(axes), spans)

    def cells(self) -> list[Cell]:
        return [tuple(zip(self.axes, values, strict=True)) for values in itertools.product(*self.spans)]

    def __str__(self) -> str:
        return "x".join(str(span) if len(span) > 1 else str(span.low) for span in self.spans)


def region(cell: Mapping[str, int], trained: Mapping[str, Span], band: Mapping[str, Span] | None) -> str:
    """Where a cell lies: `trained`; `band`, on which the best checkpoint is chosen; or `beyond`, the test."""
    if all(cell[axis] in span for axis, span in trained.items()):
        return "trained"
    if band is not None and all(cell[axis] in span for axis, span in band.items()):
        return "band"
    if any(cell[axis] > span.high for axis, span in trained.items()):
        return "beyond"
    return "below"


def shard(cells: Iterable[Cell], number: int, of: int, cost: Callable[[Cell], float]) -> list[Cell]:
    """The cells of piece `number` (from 1) of `of` pieces that cost about the same.

    The dearest cell goes first, each to the piece that has cost least so far: every cell is in exactly one piece, and
    the pieces are a function of the cells alone. The cells of a piece come in the grid's order.
    """
    if not 1 <= number <= of:
        raise Mistake(f"shard: {number}/{of} is no piece; 1/{of} to {of}/{of} are")
    order = {cell: place for place, cell in enumerate(cells)}
    pieces: list[list[Cell]] = [[] for _ in range(of)]
    costs = [0.0] * of
    for cell in sorted(order, key=lambda cell: (-cost(cell), order[cell])):
        cheapest = min(range(of), key=lambda piece: (costs[piece], piece))
        pieces[cheapest].append(cell)
        costs[cheapest] += cost(cell)
    return sorted(pieces[number - 1], key=lambda cell: order[cell])


def parse_shard(text: str) -> tuple[int, int]:
    """From `2/4`, the second of four pieces: `(2, 4)`. Raises `Mistake` for any other text."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not found:
        raise Mistake(f"shard: {text!r} is no piece; a piece reads like 1/4")
    return int(found[1]), int(found[2])
