"""Estimated cost of the cells of a grid, used to split grids into shards of about equal cost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.grid import STRATUM, Cell
from numerate.tasks.counter_rng import CounterRNG, random_key

NUM_COST_SAMPLES = 8
"""Questions from which the cost of a cell is estimated."""

NUM_ANCHORS = 12
"""Sizes of each axis at which the cost of a grid is estimated."""


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

    A cell of a grid has that of the nearest of at most `NUM_ANCHORS` sizes of each axis: a function of the cells, the
    task and the tokenizer. Those of strata, and of tasks that enumerate their cells, are each estimated.
    """
    plain = [cell for cell in cells if STRATUM not in dict(cell)]
    places = {cell: cell for cell in cells}
    if len(plain) > 1 and evaluation_data.task.cells() is None:
        axes = [axis for axis, _ in plain[0]]
        sizes = np.array([[size for _, size in cell] for cell in plain])
        nearest = [_nearest_anchors(axis_sizes).tolist() for axis_sizes in sizes.T]
        places |= {cell: tuple(zip(axes, place, strict=True)) for cell, *place in zip(plain, *nearest, strict=True)}
    measured = {place: row_size(evaluation_data, place) for place in dict.fromkeys(places.values())}
    return {cell: measured[place] for cell, place in places.items()}


def _nearest_anchors(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nearest to each size of up to `NUM_ANCHORS` sizes, evenly from the first to the last."""
    distinct = np.unique(sizes)
    anchors = distinct[np.unique(np.linspace(0, len(distinct) - 1, NUM_ANCHORS).round().astype(np.int64))]
    return np.asarray(anchors[np.abs(anchors[:, None] - sizes).argmin(0)])
