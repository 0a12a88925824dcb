"""Estimated cost of the cells of a grid, used to split grids into shards of about equal cost."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.grid import STRATUM, Cell
from numerate.tasks.counter_rng import CounterRNG, random_key

NUM_COST_SAMPLES = 8
"""Questions from which the cost of a cell is estimated."""

NUM_ANCHORS = 12
"""Sizes of each axis at which the cost of a large grid is estimated."""

MAX_EXACT_CELLS = 256
"""Up to this many cells are estimated individually."""


class RowSize(NamedTuple):
    """The size of the questions of a cell: `time`, the number of tokens of the longest row, and `targets`, of its
    answer."""

    time: float
    targets: float


def row_size(evaluation_data: EvaluationData, cell: Cell) -> RowSize:
    """The size of a question of a cell, estimated from a few that are drawn under a key of their own.

    A function of the cell, the task and its tokenizer alone, so that the pieces of a grid are the same on every
    machine, for whatever answers a task has.
    """
    task = evaluation_data.task.at_cell(**dict(cell)) if cell else evaluation_data.task
    draws = CounterRNG(random_key("cost"))
    questions = task.draw(draws, np.arange(NUM_COST_SAMPLES))
    if questions.random_bits is None:
        questions = replace(questions, random_bits=draws.random_words(len(questions)))
    rows = evaluation_data.tokenizer.encode_examples(questions, evaluation_data.vocabulary)
    return RowSize(float(rows.lengths.max()), float(rows.target_mask.sum(1).max()))


def row_sizes(evaluation_data: EvaluationData, cells: Sequence[Cell]) -> dict[Cell, RowSize]:
    """`row_size` of many cells at once: 10,000 in a tenth of a second.

    For many cells, it is computed at up to `NUM_ANCHORS` sizes of each axis and interpolated linearly, since row
    lengths of sums and lists are nearly linear. It depends only on the cells, the task and the tokenizer.
    """
    if strata := [cell for cell in cells if STRATUM in dict(cell)]:
        rest = [cell for cell in cells if STRATUM not in dict(cell)]
        found = {cell: row_size(evaluation_data, cell) for cell in strata} | row_sizes(evaluation_data, rest)
        return {cell: found[cell] for cell in cells}
    if len(cells) <= MAX_EXACT_CELLS or evaluation_data.task.cells() is not None:
        return {cell: row_size(evaluation_data, cell) for cell in cells}
    axes = [axis for axis, _ in cells[0]]
    sizes = np.array([[size for _, size in cell] for cell in cells]).reshape(len(cells), len(axes))
    anchors = [_anchors(np.unique(axis_sizes)) for axis_sizes in sizes.T]
    if len(cells) <= prod(map(len, anchors)):
        return {cell: row_size(evaluation_data, cell) for cell in cells}
    places = product(*map(np.ndarray.tolist, anchors))
    table = np.array([row_size(evaluation_data, tuple(zip(axes, place, strict=True))) for place in places])
    table = table.reshape(*map(len, anchors), 2)
    interpolated = np.zeros((len(cells), 2))
    neighbors = [_interpolation_weights(own, axis) for own, axis in zip(anchors, sizes.T, strict=True)]
    for corner in product((0, 1), repeat=len(axes)):
        index = tuple(near[up] for up, (*near, _) in zip(corner, neighbors, strict=True))
        shares = [share if up else 1 - share for up, (*_, share) in zip(corner, neighbors, strict=True)]
        interpolated += np.prod(shares, axis=0)[:, None] * table[index]
    return {cell: RowSize(*row) for cell, row in zip(cells, interpolated.tolist(), strict=True)}


def _anchors(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Up to `NUM_ANCHORS` of the sizes, evenly from the first to the last."""
    return sizes[np.unique(np.linspace(0, len(sizes) - 1, NUM_ANCHORS).round().astype(np.int64))]


def _interpolation_weights(
    anchors: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The indices of the anchors below and above each size, and its relative position between them, from 0 to 1."""
    above = np.clip(np.searchsorted(anchors, sizes), min(1, len(anchors) - 1), None)
    below = np.maximum(above - 1, 0)
    return below, above, (sizes - anchors[below]) / np.maximum(anchors[above] - anchors[below], 1)
