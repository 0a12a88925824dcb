"""Exact counts of repeated questions, in constant memory."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NUM_PARTITIONS = 64
_SHIFT = np.uint64(58)


class DuplicateCounts(NamedTuple):
    """`num_distinct`: how many different questions there are. `distinct_per_cell`: of them, per cell.
    `multiplicity_histogram[n]`: how many questions occur exactly n times (more than 1,000 counts as 1,000).
    `max_multiplicity`: the largest n."""

    num_distinct: int
    distinct_per_cell: NDArray[np.int64]
    multiplicity_histogram: NDArray[np.int64]
    max_multiplicity: int


class DuplicateCounter:
    """Counts equal 64-bit hashes, each with the number of its cell.

    `max_in_memory` of them are kept in memory (12 bytes each); beyond that they go to files below a temporary folder,
    64 of them by the first bits, which are counted one after the other. That two different questions are taken for one
    has a probability of rows^2 / 2^65: one in 90,000 for 20 million rows.

    >>> with DuplicateCounter() as counter:
    ...     counter.add(np.array([7, 9, 7], dtype=np.uint64), np.array([0, 0, 0]))
    ...     counts = counter.counts()
    >>> counts.num_distinct, counts.multiplicity_histogram.tolist()
    (2, [0, 1, 1])
    """

    def __init__(self, max_in_memory: int = 1 << 22) -> None:
        self._max_in_memory = max_in_memory
        self._hashes: list[NDArray[np.uint64]] = []
        self._cells: list[NDArray[np.uint32]] = []
        self._count = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "DuplicateCounter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, hashes: NDArray[np.uint64], cells: NDArray[Any]) -> None:
        """Notes hashes and the cell, from 0 on, of each."""
        self._hashes.append(hashes)
        self._cells.append(cells.astype(np.uint32))
        self._count += len(hashes)
        if self._count >= self._max_in_memory:
            self._write_partitions()

    def counts(self) -> DuplicateCounts:
        """What was found among all that was added."""
        if self._folder is None:
            return _count_duplicates(_concatenate(self._hashes, np.uint64), _concatenate(self._cells, np.uint32))
        self._write_partitions()
        folder = Path(self._folder.name)
        num_distinct = max_multiplicity = 0
        cells, times = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for partition in range(_NUM_PARTITIONS):
            if (folder / f"{partition}.hashes").is_file():
                hashes = np.fromfile(folder / f"{partition}.hashes", np.uint64)
                partial = _count_duplicates(hashes, np.fromfile(folder / f"{partition}.cells", np.uint32))
                num_distinct, max_multiplicity = (
                    num_distinct + partial.num_distinct,
                    max(max_multiplicity, partial.max_multiplicity),
                )
                cells, times = (
                    _padded_sum(cells, partial.distinct_per_cell),
                    _padded_sum(times, partial.multiplicity_histogram),
                )
        return DuplicateCounts(num_distinct, cells, times, max_multiplicity)

    def _write_partitions(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="numerate-repeats-")
        hashes, cells = _concatenate(self._hashes, np.uint64), _concatenate(self._cells, np.uint32)
        partitions = (hashes >> _SHIFT).astype(np.uint8)
        order = np.argsort(partitions, kind="stable")
        edges = np.searchsorted(partitions[order], np.arange(_NUM_PARTITIONS + 1))
        for part in range(_NUM_PARTITIONS):
            selected = order[edges[part] : edges[part + 1]]
            if len(selected):
                for name, values in (("hashes", hashes[selected]), ("cells", cells[selected])):
                    with open(Path(self._folder.name) / f"{part}.{name}", "ab") as file:
                        file.write(values.tobytes())
        self._hashes, self._cells, self._count = [], [], 0


MAX_MULTIPLICITY = 1000
"""Larger multiplicities are counted as this one."""


def _count_duplicates(hashes: NDArray[np.uint64], cells: NDArray[np.uint32]) -> DuplicateCounts:
    if not len(hashes):
        return DuplicateCounts(0, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    times = np.diff(np.append(starts, len(ordered)))
    return DuplicateCounts(
        len(starts),
        np.bincount(cells[order[starts]]),
        np.bincount(np.minimum(times, MAX_MULTIPLICITY)),
        int(times.max()),
    )


def _concatenate(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _padded_sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two arrays of which one may be longer."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
