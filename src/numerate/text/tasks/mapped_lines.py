"""The lines of a file in memory that the operating system maps, found once and read by number."""

from codecs import BOM_UTF8
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 22
_CHUNK_RECORDS = 1 << 12
_FIRST_BYTES_OF_SPACES = (0xC2, 0xE1, 0xE2, 0xE3)  # of those beyond ASCII, in UTF-8


class MappedLines:
    """The lines of a file: its `bytes` (uint8, memory-mapped), and `starts`, where each line begins, and the end of the
    last: 4 bytes a line, 8 in files of 4 GB and more. A byte order mark is in no line."""

    def __init__(self, path: Path) -> None:
        self.bytes: NDArray[np.uint8] = (
            np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, dtype=np.uint8)
        )
        self.starts = line_starts(self.bytes)
        if self.bytes[: len(BOM_UTF8)].tobytes() == BOM_UTF8:
            self.starts[0] = len(BOM_UTF8)
        self._view = self.bytes.data

    def __len__(self) -> int:
        return len(self.starts) - 1

    def read(self, line: int, count: int = 1) -> bytes:
        """A line, or `count` from it on, with what ends them."""
        return bytes(self._view[int(self.starts[line]) : int(self.starts[line + count])])

    def records(self, first: int, end: int, count: int = 1) -> Iterator[tuple[int, bytes]]:
        """Each `count` lines from `first` to `end`, with the number of the first of them."""
        view = self.bytes.data
        for begin in range(first, end, _CHUNK_RECORDS * count):
            bounds = self.starts[begin : min(begin + _CHUNK_RECORDS * count, end) + 1 : count].tolist()
            for number, (start, stop) in enumerate(pairwise(bounds)):
                yield begin + number * count, bytes(view[start:stop])

    @cached_property
    def blank_lines(self) -> NDArray[np.int64]:
        """The lines of white space alone."""
        first = self.bytes.take(self.starts[:-1], mode="clip")
        candidates = np.flatnonzero((first <= ord(" ")) | np.isin(first, _FIRST_BYTES_OF_SPACES)).tolist()
        blank = [line for line in candidates if not self.read(line).decode(errors="replace").strip()]
        return np.array(blank, dtype=np.int64)

    def select(self, lines: NDArray[np.int64]) -> "MappedLines":
        """These lines, each with those behind it that are left out."""
        selected = copy(self)
        selected.starts = self.starts[np.append(lines, len(self))]
        return selected

    @cached_property
    def used_bytes(self) -> NDArray[np.bool_]:
        """Of each value of a byte, whether any line has it."""
        found = b""
        for start in range(int(self.starts[0]), len(self.bytes), _CHUNK_BYTES):
            found += bytes({*self.bytes[start : start + _CHUNK_BYTES].tobytes().translate(None, found)})
        return np.isin(np.arange(256), [*found])

    @property
    def is_ascii(self) -> bool:
        return not self.used_bytes[128:].any()


def line_starts(content: NDArray[np.uint8]) -> NDArray[np.unsignedinteger[Any]]:
    """Where each line begins, and the end of the last.

    >>> line_starts(np.frombuffer(b"ab\\nc", dtype=np.uint8)).tolist()
    [0, 3, 4]
    """
    kind = np.uint32 if len(content) < 1 << 32 else np.uint64
    found = [np.zeros(1, dtype=kind)]
    for start in range(0, len(content), _CHUNK_BYTES):
        found.append((np.flatnonzero(content[start : start + _CHUNK_BYTES] == ord("\n")) + (start + 1)).astype(kind))
    if len(content) and content[-1] != ord("\n"):
        found.append(np.array([len(content)], dtype=kind))
    return np.concatenate(found)
