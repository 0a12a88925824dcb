"""Estimated cost of the cells of a grid, by which grids are cut into pieces of about equal cost."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.grid import Cell
from numerate.tasks.counter_rng import CounterRNG, key

COST_DRAWS = 8
"""Questions from which the cost of a cell is estimated."""

ANCHORS = 12
"""Sizes of each axis at which the cost of a large grid is estimated."""

FEW = 256
"""Up to so many cells are each estimated by themselves."""


class RowSize(NamedTuple):
    """The size of a question of a cell: `time`, the tokens of its longest row, and `targets`, those of its answer."""

    time: float
    targets: float


def reading(exam: EvaluationData, cell: Cell) -> RowSize:
    """The size of a question of a cell, estimated from a few that are drawn under a key of their own.

    A function of the cell, the task and its tokenizer alone, so that the pieces of a grid are the same on every
    machine, for whatever answers a task has.
    """
    task = exam.task.pinned(**dict(cell)) if cell else exam.task
    draws = CounterRNG(key("cost"))
    drawn = task.draw(draws, np.arange(COST_DRAWS))
    if drawn.chance is None:
        drawn = replace(drawn, chance=draws.words(len(drawn)))
    rows = exam.tokenizer.rows(drawn, exam.vocabulary)
    return RowSize(float(rows.lengths.max()), float(rows.target_mask.sum(1).max()))


def readings(exam: EvaluationData, cells: Sequence[Cell]) -> dict[Cell, RowSize]:
    """`reading` of many cells at once: 10,000 in a tenth of a second.

    Where there are many, it is estimated at up to `ANCHORS` sizes of each axis and interpolated linearly, as the rows
    of a sum or a list nearly are. Still a function of the cells, the task and its tokenizer alone.
    """
    if not cells or exam.task.cells() is not None:
        return {cell: reading(exam, cell) for cell in cells}
    names = [axis for axis, _ in cells[0]]
    sizes = np.array([[size for _, size in cell] for cell in cells]).reshape(len(cells), len(names))
    anchors = [_anchors(np.unique(own)) for own in sizes.T]
    if len(cells) <= max(FEW, prod(map(len, anchors))):
        return {cell: reading(exam, cell) for cell in cells}
    sizes_at = [
        reading(exam, tuple(zip(names, place, strict=True))) for place in product(*map(np.ndarray.tolist, anchors))
    ]
    table = np.array(sizes_at).reshape(*map(len, anchors), 2)
    found = np.zeros((len(cells), 2))
    between = [_between(own, axis) for own, axis in zip(anchors, sizes.T, strict=True)]
    for corner in product((0, 1), repeat=len(names)):
        ends = [(near[up], share if up else 1 - share) for up, (*near, share) in zip(corner, between, strict=True)]
        found += np.prod([share for _, share in ends], axis=0)[:, None] * table[tuple(at for at, _ in ends)]
    return {cell: RowSize(*row) for cell, row in zip(cells, found.tolist(), strict=True)}


def _anchors(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Up to `ANCHORS` of the sizes, evenly from the first to the last."""
    return sizes[np.unique(np.linspace(0, len(sizes) - 1, ANCHORS).round().astype(np.int64))]


def _between(
    anchors: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The places of the anchors below and above each size, and how far it is from one to the other, from 0 to 1."""
    above = np.clip(np.searchsorted(anchors, sizes), min(1, len(anchors) - 1), None)
    below = np.maximum(above - 1, 0)
    return below, above, (sizes - anchors[below]) / np.maximum(anchors[above] - anchors[below], 1)


def cost(exam: EvaluationData, cell: Cell, count: int = 1) -> float:
    """What a cell costs in one pass: the tokens of its longest row, for each question. Only ratios matter."""
    return count * reading(exam, cell).time
