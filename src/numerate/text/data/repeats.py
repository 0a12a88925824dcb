"""Exact counts of repeated questions, in constant memory."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PARTS = 64
_SHIFT = np.uint64(58)


class Counts(NamedTuple):
    """`distinct`: how many different questions there are. `cells`: of them, per cell. `times`: at n, how many questions
    stand there exactly n times (what stands more than 1,000 times counts as 1,000). `most`: the largest n."""

    distinct: int
    cells: NDArray[np.int64]
    times: NDArray[np.int64]
    most: int


class Repeats:
    """Counts equal 64-bit hashes, each with the number of its cell.

    `held` of them are kept in memory (12 bytes each); beyond that they go to files below a temporary folder, 64 of them
    by the first bits, which are counted one after the other. That two different questions are taken for one has a
    probability of rows^2 / 2^65: one in 90,000 for 20 million rows.

    >>> with Repeats() as repeats:
    ...     repeats.add(np.array([7, 9, 7], dtype=np.uint64), np.array([0, 0, 0]))
    ...     counts = repeats.counts()
    >>> counts.distinct, counts.times.tolist()
    (2, [0, 1, 1])
    """

    def __init__(self, held: int = 1 << 22) -> None:
        self._held = held
        self._hashes: list[NDArray[np.uint64]] = []
        self._cells: list[NDArray[np.uint32]] = []
        self._count = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Repeats":
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
        if self._count >= self._held:
            self._spill()

    def counts(self) -> Counts:
        """What was found among all that was added."""
        if self._folder is None:
            return _counted(_joined(self._hashes, np.uint64), _joined(self._cells, np.uint32))
        self._spill()
        folder = Path(self._folder.name)
        distinct = most = 0
        cells, times = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for part in range(_PARTS):
            if (folder / f"{part}.hashes").is_file():
                hashes = np.fromfile(folder / f"{part}.hashes", np.uint64)
                found = _counted(hashes, np.fromfile(folder / f"{part}.cells", np.uint32))
                distinct, most = distinct + found.distinct, max(most, found.most)
                cells, times = _sum(cells, found.cells), _sum(times, found.times)
        return Counts(distinct, cells, times, most)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="numerate-repeats-")
        hashes, cells = _joined(self._hashes, np.uint64), _joined(self._cells, np.uint32)
        which = (hashes >> _SHIFT).astype(np.uint8)
        order = np.argsort(which, kind="stable")
        edges = np.searchsorted(which[order], np.arange(_PARTS + 1))
        for part in range(_PARTS):
            chosen = order[edges[part] : edges[part + 1]]
            if len(chosen):
                for name, values in (("hashes", hashes[chosen]), ("cells", cells[chosen])):
                    with open(Path(self._folder.name) / f"{part}.{name}", "ab") as file:
                        file.write(values.tobytes())
        self._hashes, self._cells, self._count = [], [], 0


MOST = 1000
"""Questions that stand more often than this are counted as standing so often."""


def _counted(hashes: NDArray[np.uint64], cells: NDArray[np.uint32]) -> Counts:
    if not len(hashes):
        return Counts(0, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    times = np.diff(np.append(begins, len(ordered)))
    return Counts(
        len(begins),
        np.bincount(cells[order[begins]]),
        np.bincount(np.minimum(times, MOST)),
        int(times.max()),
    )


def _joined(parts: list[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two arrays of which one may be longer."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
