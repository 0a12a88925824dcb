"""Questions with answers in files of text: JSON lines, columns with tabs between them, a line for each.

A file is memory-mapped; the starts of its lines are found once (4 bytes each), and records are read on access by a
`RecordReader`, whose settings are part of the fingerprint.
"""

import warnings
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.contents import file_sha256
from numerate.tasks.texts import Example
from numerate.text.tasks.fetched_files import check_unmodified
from numerate.text.tasks.file_sources import FileSource, ParsedFile, combine_hashes
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.mapped_lines import MappedLines
from numerate.text.tasks.readers import (
    MAX_CHARACTERS,
    RecordReader,
    TwoLines,
    check_example,
    decode_utf8,
)

_CHUNK_SIZE = 1 << 22
_MAX_CHECKED_BYTES = 1 << 26
"""Files of up to this many bytes are read when they are opened, so that broken lines are found at once."""

_MAX_CACHED_BYTES = 1 << 23
"""Files of up to this many bytes are cached when they are read."""

_NUM_HASH_SAMPLES = 5
_BITS_PER_BYTE = np.uint64(8)


class InvalidRecords:
    """The records of a file that cannot be read: counted with `skip_invalid`, else refused."""

    def __init__(self, path: Path, skip_invalid: bool) -> None:
        self.path, self._skip_invalid, self.count, self._first = path, skip_invalid, 0, ""

    def add(self, line: int, problem: str) -> None:
        """Counts a record by the number of its line, from 1 on. Raises `UserError` where none may be left out."""
        if not self._skip_invalid:
            hint = "With skip_invalid=true such records are left out and counted"
            raise file_error(self.path, f"{problem}. {hint}", line)
        self.count += 1
        self._first = self._first or str(file_error(self.path, problem, line))

    def warn(self) -> None:
        """Warns of their number and the first one, if there are any."""
        if self.count:
            records = f"{self.count:,} record{'s' * (self.count > 1)}"
            warnings.warn(f"{records} skipped as invalid; the first: {self._first}", stacklevel=3)


class LineFile(FileSource):
    """The records of a file of lines.

    With `skip_invalid` unreadable records are left out, and a warning has their number and the first one. Otherwise
    they raise `UserError` with file and line: at once in files of up to 64 MB, on access in larger ones.
    """

    @property
    def description(self) -> str:
        return str(self.path)

    def __init__(self, path: Path, reader: RecordReader, skip_invalid: bool = False) -> None:
        self.path, self.reader, self._skip_invalid = path, reader, skip_invalid
        self._invalid = InvalidRecords(path, skip_invalid)
        self._cached_examples: list[Example] | None = None
        self._lines = MappedLines(path)
        lines = len(self._lines)
        self._record_lines: NDArray[np.int64] | None = None
        if reader.lines_per_record == 1:
            short = np.flatnonzero(np.diff(self._lines.starts) < 3)
            blank = short[[not self._lines.read(line).strip() for line in short.tolist()]]
            if len(blank) or reader.num_header_lines:
                header = np.arange(min(reader.num_header_lines, lines))
                self._record_lines = np.delete(np.arange(lines), np.union1d(blank, header))
        else:
            while lines and not self._lines.read(lines - 1).strip():
                lines -= 1
            if lines % reader.lines_per_record:
                self._invalid.add(lines, f"is incomplete: each record must have {reader.lines_per_record} lines")
            self._record_lines = np.arange(0, lines - lines % reader.lines_per_record, reader.lines_per_record)
        self.num_examples = lines if self._record_lines is None else len(self._record_lines)
        if (skip_invalid or len(self._lines.bytes) <= _MAX_CHECKED_BYTES) and not self._is_trivially_valid():
            self._check_records()
        self.num_skipped = self._invalid.count
        self._invalid.warn()

    def _is_trivially_valid(self) -> bool:
        """Whether nothing can be wrong with two lines each: ASCII without NUL, and each line begins with a character
        that is seen and is not too long."""
        if not isinstance(self.reader, TwoLines) or not self.num_examples:
            return False
        starts = self._lines.starts[: 1 + 2 * self.num_examples]
        if int(np.diff(starts).max()) > MAX_CHARACTERS // 2 or int(self._lines.bytes[starts[:-1]].min()) <= ord(" "):
            return False
        return self._lines.is_ascii and not self._lines.used_bytes[0]

    def _check_records(self) -> None:
        """Reads every record once."""
        is_valid = np.ones(self.num_examples, dtype=np.bool_)
        examples: list[Example] = []
        for row in range(self.num_examples):
            try:
                example = self._read_example(row)
                if len(self._lines.bytes) <= _MAX_CACHED_BYTES:
                    examples.append(example)
            except ValueError as error:
                self._invalid.add(self._line_index(row) + 1, str(error))
                is_valid[row] = False
        if not is_valid.all():
            self._record_lines = (
                np.flatnonzero(is_valid) if self._record_lines is None else self._record_lines[is_valid]
            )
            self.num_examples = len(self._record_lines)
        if len(examples) == self.num_examples:
            self._cached_examples = examples

    def _line_index(self, row: int) -> int:
        return row if self._record_lines is None else int(self._record_lines[row])

    def _read_example(self, row: int) -> Example:
        if self._cached_examples is not None:
            return self._cached_examples[row]
        text = decode_utf8(self._lines.read(self._line_index(row), self.reader.lines_per_record))
        return check_example(self.reader.example(text.rstrip("\r\n")), requires_answer=self.reader.requires_answer)

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        examples = []
        for row in rows.tolist():
            try:
                examples.append(self._read_example(row))
            except ValueError as error:
                raise file_error(self.location(row), str(error)) from error
        return examples

    def location(self, row: int) -> str:
        return f"{self.path}, line {self._line_index(row) + 1}"

    @cached_property
    def fingerprint(self) -> str:
        return combine_hashes([file_sha256(self.path), repr(self.reader), str(self._skip_invalid)])

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        starts = self._lines.starts.astype(np.int64)
        first = np.arange(self.num_examples) if self._record_lines is None else self._record_lines
        return starts[first + self.reader.lines_per_record] - starts[first]

    def used_characters(self) -> frozenset[str]:
        if not self.reader.preserves_characters:
            return super().used_characters()
        if self._lines.is_ascii:
            result = frozenset(map(chr, np.flatnonzero(self._lines.used_bytes).tolist()))
        else:
            with open(self.path, encoding="utf-8-sig", errors="ignore") as file:
                result = frozenset().union(*(frozenset(text) for text in iter(lambda: file.read(_CHUNK_SIZE), "")))
        return result - frozenset("\r\n\t")

    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        mask = np.zeros(self.num_examples, dtype=np.bool_)
        for row in self._candidate_rows(questions).tolist():
            mask[row] = self._read_example(row).question in questions
        return mask

    def _candidate_rows(self, questions: frozenset[str]) -> NDArray[np.int64]:
        """The records whose question may be one of these: of large files few, by some of their bytes."""
        if not isinstance(self.reader, TwoLines) or not self.num_examples:
            return np.arange(self.num_examples)
        first = np.arange(self.num_examples) if self._record_lines is None else self._record_lines
        content, starts = self._lines.bytes, self._lines.starts[first].astype(np.int64)
        lengths = self._lines.starts[first + 1].astype(np.int64) - 1 - starts
        ends = content[np.maximum(starts + lengths - 1, starts)], content[starts]
        has_outer_whitespace = (ends[0] <= ord(" ")) | (ends[1] <= ord(" "))
        return np.flatnonzero(
            has_outer_whitespace | np.isin(_sampled_hashes(content, starts, lengths), _question_hashes(questions))
        )

    def files(self) -> tuple[Path, ...]:
        return (self.path,)


def _sampled_hashes(
    content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """A hash of the length of each text and of five times eight of its bytes: equal for equal texts, whatever stands
    around them."""
    if not len(starts):
        return np.zeros(0, dtype=np.uint64)
    if len(content) < 8:
        content = np.pad(content, (0, 8 - len(content)))
    windows: NDArray[np.uint64] = np.ndarray((len(content) - 7,), "<u8", content.data, 0, (1,))
    hashes = lengths.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    byte_mask = np.where(lengths >= 8, np.uint64(2**64 - 1), _low_byte_masks(lengths))
    for sample in range(_NUM_HASH_SAMPLES):
        positions = starts + np.maximum(lengths - 8, 0) * sample // (_NUM_HASH_SAMPLES - 1)
        window_indices = np.minimum(positions, len(windows) - 1)
        words = windows[window_indices] >> (_BITS_PER_BYTE * (positions - window_indices).astype(np.uint64))
        hashes = (hashes ^ (words & byte_mask)) * np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _low_byte_masks(lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (np.uint64(1) << (_BITS_PER_BYTE * np.clip(lengths, 0, 7).astype(np.uint64))) - np.uint64(1)


def _question_hashes(questions: Iterable[str]) -> NDArray[np.uint64]:
    texts = [question.encode() for question in questions]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    content = np.frombuffer(b"".join(texts) + bytes(8), dtype=np.uint8)
    return _sampled_hashes(content, np.cumsum(lengths) - lengths, lengths)


def file_stamp(path: Path) -> tuple[str, int, int]:
    """What tells whether a file is still the same: its path, size and time of change. Raises `UserError` where it is
    not there."""
    try:
        stat = path.stat()
    except OSError as error:
        raise file_error(path, f"cannot be read ({error.strerror})") from error
    if not path.is_file():
        raise file_error(path, "must be a file")
    return str(path), stat.st_size, stat.st_mtime_ns


def open_line_file(path: Path, reader: RecordReader, skip_invalid: bool = False) -> LineFile:
    """A file of lines, opened once as long as it does not change. Raises `UserError` for one without any record."""
    return _open_cached(file_stamp(path), reader, skip_invalid)


@lru_cache(maxsize=256)
def _open_cached(stamp: tuple[str, int, int], reader: RecordReader, skip_invalid: bool) -> LineFile:
    check_unmodified(Path(stamp[0]))
    line_file = LineFile(Path(stamp[0]), reader, skip_invalid)
    if not line_file.num_examples:
        raise file_error(stamp[0], "has no question that can be read")
    return line_file


def parse_file(
    path: Path,
    parse: Callable[[bytes], Iterable[tuple[int, Example | ValueError]]],
    skip_invalid: bool = False,
    *,
    requires_answer: bool = True,
) -> ParsedFile:
    """A file that is read as a whole. `parse` gives each question with its line, or in its place what is wrong with it.
    Unless they are `requires_answer` an answer may be empty.

    Raises `UserError` with file and line for one that cannot be read (with `skip_invalid` a warning says how many there
    are), and for a file without any.
    """
    check_unmodified(path)
    parsed: list[tuple[int, Example]] = []
    invalid = InvalidRecords(path, skip_invalid)
    for line, result in parse(path.read_bytes().removeprefix(BOM_UTF8)):
        try:
            if isinstance(result, ValueError):
                raise result
            parsed.append((line, check_example(result, requires_answer=requires_answer)))
        except ValueError as error:
            invalid.add(line, str(error))
    invalid.warn()
    if not parsed:
        raise file_error(path, "has no question that can be read")
    name = combine_hashes([file_sha256(path), repr(parse), str(skip_invalid)])
    return ParsedFile(path, parsed, name, invalid.count)
