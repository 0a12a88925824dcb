"""Inserts new tokens between the tokens of rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def places(lengths: NDArray[np.int64], before: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The new columns of tokens after inserting `before[row, time]` tokens before each, and the new row lengths.

    Tokens beyond a row's length have the column -1.

    >>> places(np.array([2]), np.array([[1, 0, 3]]))
    (array([[ 1,  2, -1]]), array([3]))
    """
    time = np.arange(before.shape[1])
    inside = time < lengths[:, None]
    added = np.where(inside, before, 0).cumsum(axis=1, dtype=np.int64)
    total = added[:, -1] if before.shape[1] else np.zeros(len(lengths), dtype=np.int64)
    return np.where(inside, time + added, -1), lengths + total


def moved(values: NDArray[Any], to: NDArray[np.int64], columns: int) -> NDArray[Any]:
    """Rows of `columns` columns with the values at their new columns, and zeros elsewhere."""
    wide = np.zeros((len(values), columns), dtype=values.dtype)
    rows, time = np.nonzero(to >= 0)
    wide[rows, to[rows, time]] = values[rows, time]
    return wide
