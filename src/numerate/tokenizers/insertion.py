"""Inserts new tokens between the tokens of rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def positions_after_insertion(
    lengths: NDArray[np.int64], num_inserted: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The new positions of tokens after inserting `num_inserted[row, time]` tokens before each, and the new row
    lengths.

    Tokens beyond a row's length have the position -1.

    >>> positions_after_insertion(np.array([2]), np.array([[1, 0, 3]]))
    (array([[ 1,  2, -1]]), array([3]))
    """
    time = np.arange(num_inserted.shape[1])
    valid_mask = time < lengths[:, None]
    cumulative_inserted = np.where(valid_mask, num_inserted, 0).cumsum(axis=1, dtype=np.int64)
    total = cumulative_inserted[:, -1] if num_inserted.shape[1] else np.zeros(len(lengths), dtype=np.int64)
    return np.where(valid_mask, time + cumulative_inserted, -1), lengths + total


def scatter_tokens(values: NDArray[Any], new_positions: NDArray[np.int64], new_length: int) -> NDArray[Any]:
    """Rows of length `new_length` with the values at their new positions, and zeros elsewhere."""
    scattered = np.zeros((len(values), new_length), dtype=values.dtype)
    rows, time = np.nonzero(new_positions >= 0)
    scattered[rows, new_positions[rows, time]] = values[rows, time]
    return scattered
