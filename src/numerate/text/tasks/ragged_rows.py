"""Rows of different lengths in one array, and rows of several parts under one index."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Rows in one array, perhaps memory-mapped: row i is `values[starts[i] : starts[i + 1]]`.

    >>> rows = RaggedRows(np.array([0, 2, 5]), np.array([7, 8, 4, 5, 6]))
    >>> rows.padded(np.array([1, 0]))[0].tolist()
    [[4, 5, 6], [7, 8, 0]]
    """

    starts: NDArray[Any]
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def max_length(self) -> int:
        """The length of the longest row."""
        return int(np.diff(self.starts).max(initial=0))

    def padded(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The rows with these indices as `[rows, width]`, 0 after the end of each, and their lengths."""
        starts = self.starts[rows].astype(np.int64)
        lengths = self.starts[rows + 1].astype(np.int64) - starts
        columns = np.arange(int(lengths.max(initial=0)))
        is_value = columns < lengths[:, None]
        return self.values[np.where(is_value, starts[:, None] + columns, 0)] * is_value, lengths


class PartIndex:
    """One index over the rows of several parts, one part after the other.

    >>> PartIndex([3, 2]).locate(4)
    (1, 1)
    """

    def __init__(self, counts: Iterable[int]) -> None:
        self.ends = np.cumsum([0, *counts], dtype=np.int64)[1:]
        self.starts = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        self.count = int(self.ends[-1]) if len(self.ends) else 0

    def locate(self, row: int) -> tuple[int, int]:
        """The part of a row, and its index there."""
        part = int(np.searchsorted(self.ends, row, side="right"))
        return part, row - int(self.starts[part])

    def groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """For each part with any of these rows: its number, the positions of its rows among these, and their indices
        there."""
        parts = np.searchsorted(self.ends, rows, side="right")
        order = np.argsort(parts, kind="stable")
        for positions in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1) if len(rows) else ():
            part = int(parts[positions[0]])
            yield part, positions, rows[positions] - self.starts[part]
