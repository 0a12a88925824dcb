"""Questions with answers in files of text: JSON lines, columns with tabs between them, a line for each.

A file is memory-mapped; the starts of its lines are found once (4 bytes each), and records are read on access by a
`RecordReader`, whose settings are part of the fingerprint.
"""

import warnings
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.contents import sha256_of
from numerate.tasks.texts import Example
from numerate.text.tasks.fetched_files import refuse_edited
from numerate.text.tasks.file_sources import FileSource, WholeFile, characters_of, of_hashes
from numerate.text.tasks.readers import BYTE_ORDER_MARK, LONGEST, RecordReader, TwoLines, checked, decoded

_CHUNK = 1 << 22
_CHECKED = 1 << 26
"""Files of up to this many bytes are read when they are opened, so that broken lines are found at once."""

_HELD = 1 << 23
"""Files of up to this many bytes are cached when they are read."""

_SAMPLES = 5
_BYTES = np.uint64(8)


SKIPPING = "With skip_invalid=true such records are left out and counted"


class LineFile(FileSource):
    """The records of a file of lines.

    With `skip_bad` unreadable records are left out, and a warning has their number and the first one. Otherwise they
    raise `UserError` with file and line: at once in files of up to 64 MB, on access in larger ones.
    """

    @property
    def place(self) -> str:
        return str(self.path)

    def __init__(self, path: Path, reader: RecordReader, skip_bad: bool = False) -> None:
        self.path, self.reader, self._skip_bad = path, reader, skip_bad
        self._bad, self._reason = 0, ""
        self._held: list[Example] | None = None
        size = path.stat().st_size
        self._bytes: NDArray[np.uint8] = np.memmap(path, np.uint8, "r") if size else np.zeros(0, dtype=np.uint8)
        self._view = self._bytes.data
        self._starts = line_starts(self._bytes)
        lines = len(self._starts) - 1
        self._first: NDArray[np.int64] | None = None
        if reader.lines == 1:
            short = np.flatnonzero(np.diff(self._starts) < 3)
            blank = short[[not self._record(line, 1).strip() for line in short.tolist()]]
            if len(blank) or reader.head():
                self._first = np.delete(np.arange(lines), np.union1d(blank, np.arange(min(reader.head(), lines))))
        else:
            while lines and not self._record(lines - 1, 1).strip():
                lines -= 1
            if lines % reader.lines:
                self._refuse(lines - 1, f"is the last line, without the {reader.lines} that each question has")
            self._first = np.arange(0, lines - lines % reader.lines, reader.lines)
        self.count = lines if self._first is None else len(self._first)
        if (skip_bad or size <= _CHECKED) and not self._is_whole():
            self._check()
        if self._bad:
            warnings.warn(left_out(self._bad, self._reason), stacklevel=2)

    def _is_whole(self) -> bool:
        """Whether nothing can be wrong with two lines each: ASCII without NUL, and each line begins with a character
        that is seen and is not too long."""
        if not isinstance(self.reader, TwoLines) or not self.count:
            return False
        starts = self._starts[: 1 + 2 * self.count]
        if int(np.diff(starts).max()) > LONGEST // 2 or int(self._bytes[starts[:-1]].min()) <= ord(" "):
            return False
        used = self._bytes[: int(starts[-1])]
        return int(used.min()) > 0 and int(used.max()) < 128

    def _check(self) -> None:
        """Reads every record once."""
        good = np.ones(self.count, dtype=np.bool_)
        held: list[Example] = []
        for row in range(self.count):
            try:
                one = self._example(row)
                if len(self._bytes) <= _HELD:
                    held.append(one)
            except ValueError as error:
                self._refuse(self._line(row), str(error))
                good[row] = False
        if not good.all():
            self._first = np.flatnonzero(good) if self._first is None else self._first[good]
            self.count = len(self._first)
        if len(held) == self.count:
            self._held = held

    def _refuse(self, line: int, reason: str) -> None:
        """Counts a record that cannot be read. Raises `UserError` where none may be."""
        message = f"{self.path}, line {line + 1}: {reason}"
        if not self._skip_bad:
            raise UserError(f"{message}. {SKIPPING}")
        self._bad, self._reason = self._bad + 1, self._reason or message

    def _line(self, row: int) -> int:
        return row if self._first is None else int(self._first[row])

    def _record(self, line: int, lines: int) -> bytes:
        return bytes(self._view[int(self._starts[line]) : int(self._starts[line + lines])])

    def _example(self, row: int) -> Example:
        if self._held is not None:
            return self._held[row]
        text = decoded(self._record(self._line(row), self.reader.lines))
        text = text.removeprefix(BYTE_ORDER_MARK) if self._line(row) == 0 else text
        return checked(self.reader.example(text.rstrip("\r\n")), answered=self.reader.answered)

    def pairs(self, rows: NDArray[np.int64]) -> list[Example]:
        found = []
        for row in rows.tolist():
            try:
                found.append(self._example(row))
            except ValueError as error:
                raise UserError(f"{self.where(row)}: {error}") from error
        return found

    def where(self, row: int) -> str:
        return f"{self.path}, line {self._line(row) + 1}"

    @cached_property
    def fingerprint(self) -> str:
        return of_hashes([sha256_of(self.path), repr(self.reader), str(self._skip_bad)])

    @property
    def sizes(self) -> NDArray[np.int64]:
        first = np.arange(self.count) if self._first is None else self._first
        return self._starts[first + self.reader.lines].astype(np.int64) - self._starts[first].astype(np.int64)

    def characters(self) -> frozenset[str]:
        if not self.reader.plain:
            return characters_of(self.pairs(np.arange(self.count)))
        used = np.zeros(256, dtype=np.bool_)
        for start in range(0, len(self._bytes), _CHUNK):
            used[self._bytes[start : start + _CHUNK]] = True
        if used[128:].any():
            with open(self.path, encoding="utf-8-sig", errors="ignore") as file:
                found = frozenset().union(*(frozenset(text) for text in iter(lambda: file.read(_CHUNK), "")))
        else:
            found = frozenset(map(chr, np.flatnonzero(used).tolist()))
        return found - frozenset("\r\n\t")

    def matching(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        found = np.zeros(self.count, dtype=np.bool_)
        for row in self._likely(questions).tolist():
            found[row] = self._example(row).question in questions
        return found

    def _likely(self, questions: frozenset[str]) -> NDArray[np.int64]:
        """The records whose question may be one of these: of large files few, by some of their bytes."""
        if not isinstance(self.reader, TwoLines) or not self.count:
            return np.arange(self.count)
        first = np.arange(self.count) if self._first is None else self._first
        starts = self._starts[first].astype(np.int64)
        lengths = self._starts[first + 1].astype(np.int64) - 1 - starts
        ends = self._bytes[np.maximum(starts + lengths - 1, starts)], self._bytes[starts]
        spaced = (ends[0] <= ord(" ")) | (ends[1] <= ord(" ")) | (ends[1] == BOM_UTF8[0])
        return np.flatnonzero(spaced | np.isin(_sampled(self._bytes, starts, lengths), _keys_of(questions)))

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def skipped(self) -> int:
        return self._bad


def line_starts(content: NDArray[np.uint8]) -> NDArray[np.unsignedinteger[Any]]:
    """Where each line begins, and the end of the last.

    >>> line_starts(np.frombuffer(b"ab\\nc", dtype=np.uint8)).tolist()
    [0, 3, 4]
    """
    kind = np.uint32 if len(content) < 1 << 32 else np.uint64
    found = [np.zeros(1, dtype=kind)]
    for start in range(0, len(content), _CHUNK):
        found.append((np.flatnonzero(content[start : start + _CHUNK] == ord("\n")) + (start + 1)).astype(kind))
    if len(content) and content[-1] != ord("\n"):
        found.append(np.array([len(content)], dtype=kind))
    return np.concatenate(found)


def _sampled(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of the length of each text and of five times eight of its bytes: equal for equal texts, whatever stands
    around them."""
    if not len(starts):
        return np.zeros(0, dtype=np.uint64)
    if len(content) < 8:
        content = np.pad(content, (0, 8 - len(content)))
    windows: NDArray[np.uint64] = np.ndarray((len(content) - 7,), "<u8", content.data, 0, (1,))
    total = lengths.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    kept = np.where(lengths >= 8, np.uint64(2**64 - 1), _low_bytes(lengths))
    for sample in range(_SAMPLES):
        at = starts + np.maximum(lengths - 8, 0) * sample // (_SAMPLES - 1)
        inside = np.minimum(at, len(windows) - 1)
        words = windows[inside] >> (_BYTES * (at - inside).astype(np.uint64))
        total = (total ^ (words & kept)) * np.uint64(0xBF58476D1CE4E5B9)
        total ^= total >> np.uint64(29)
    return total


def _low_bytes(lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (np.uint64(1) << (_BYTES * np.clip(lengths, 0, 7).astype(np.uint64))) - np.uint64(1)


def _keys_of(questions: Iterable[str]) -> NDArray[np.uint64]:
    texts = [question.encode() for question in questions]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    content = np.frombuffer(b"".join(texts) + bytes(8), dtype=np.uint8)
    return _sampled(content, np.cumsum(lengths) - lengths, lengths)


def left_out(count: int, first: str) -> str:
    """The warning for unreadable records."""
    return f"{count:,} record{'s' * (count > 1)} left out, which cannot be read; the first: {first}"


def stamp(path: Path) -> tuple[str, int, int]:
    """What tells whether a file is still the same: its path, size and time of change. Raises `UserError` where it is
    not there."""
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if not path.is_file():
        raise UserError(f"{path}: is no file")
    return str(path), found.st_size, found.st_mtime_ns


def open_lines(path: Path, reader: RecordReader, skip_bad: bool = False) -> LineFile:
    """A file of lines, opened once as long as it does not change. Raises `UserError` for one without any record."""
    return _opened(stamp(path), reader, skip_bad)


@lru_cache(maxsize=256)
def _opened(stamp: tuple[str, int, int], reader: RecordReader, skip_bad: bool) -> LineFile:
    refuse_edited(Path(stamp[0]))
    found = LineFile(Path(stamp[0]), reader, skip_bad)
    if not found.count:
        raise UserError(f"{stamp[0]}: has no question that can be read")
    return found


def read_whole(
    path: Path,
    parse: Callable[[bytes], Iterable[tuple[int, Example | ValueError]]],
    skip_bad: bool = False,
    *,
    answered: bool = True,
) -> WholeFile:
    """A file that is read as a whole. `parse` gives each question with its line, or in its place what is wrong with it.
    Unless they are `answered` an answer may be empty.

    Raises `UserError` with file and line for one that cannot be read (with `skip_bad` a warning says how many there
    are), and for a file without any.
    """
    refuse_edited(path)
    found: list[tuple[int, Example]] = []
    wrong: list[tuple[int, ValueError]] = []
    for line, one in parse(path.read_bytes().removeprefix(BOM_UTF8)):
        try:
            if isinstance(one, ValueError):
                raise one
            found.append((line, checked(one, answered=answered)))
        except ValueError as error:
            if not skip_bad:
                raise UserError(f"{path}, line {line}: {error}. {SKIPPING}") from error
            wrong.append((line, error))
    if wrong:
        warnings.warn(left_out(len(wrong), f"{path}, line {wrong[0][0]}: {wrong[0][1]}"), stacklevel=2)
    if not found:
        raise UserError(f"{path}: has no question that can be read")
    parser = f"{parse.__module__}.{getattr(parse, '__qualname__', repr(parse))}"
    name = of_hashes([sha256_of(path), parser, str(skip_bad)])
    return WholeFile(path, tuple(one for _, one in found), tuple(line for line, _ in found), name, len(wrong))
