"""Questions with answers in files of text: JSON lines, columns with tabs between them, a line for each.

A file is read once by an `ExampleReader`; its questions are kept as columns, in memory for a small file, else in
`$NUMERATE_CACHE/examples`, else `~/.cache/numerate/examples`, which may be deleted at any time. An entry is named by a
hash of the file's content and the settings of its reader.
"""

import hashlib
import warnings
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.contents import file_sha256
from numerate.tasks.texts import Example, TextSource
from numerate.text.tasks.columns import AnyColumns, Columns, build_columns, cached_folder
from numerate.text.tasks.fetched_files import check_unmodified
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.mapped_lines import MappedLines
from numerate.text.tasks.ragged_rows import PartIndex
from numerate.text.tasks.readers import ExampleReader, check_pair

_DTYPES = {"text": np.uint8, "starts": np.int64, "lines": np.uint32, "sizes": np.uint32, "hashes": np.uint32}
_CHUNK_EXAMPLES = 1 << 10
_CHUNK_CHARACTERS = 1 << 22


class StoredExamples:
    """The questions of a file with their answers.

    Columns: `text` has each question and behind it its answer, in UTF-8, which begin at `starts[2 * row]` and
    `starts[2 * row + 1]`; `lines` has the line of each question, from 1 on, `sizes` the bytes of question and answer,
    and `hashes` the CRC-32 of the question.
    """

    def __init__(self, path: Path, fingerprint: str, columns: Columns) -> None:
        self.path, self.fingerprint, self._columns = path, fingerprint, columns.arrays
        self.num_examples = len(columns.arrays["lines"])
        self.record_sizes: NDArray[np.uint32] = columns.arrays["sizes"]
        self.num_skipped: int = columns.head["skipped"]
        """Number of records that could not be read and are left out."""
        self.used_characters: frozenset[str] = frozenset(columns.head["characters"])
        """Every character of questions and answers, perhaps with more."""

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        text = self._columns["text"].data
        bounds = self._columns["starts"][2 * rows[:, None] + np.arange(3)].tolist()
        return [Example(str(text[a:b], "utf-8"), str(text[b:c], "utf-8")) for a, b, c in bounds]

    def location(self, row: int) -> str:
        return f"{self.path}, line {int(self._columns['lines'][row])}"

    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        """Of each record, whether its question is one of these."""
        hashes = np.fromiter((zlib.crc32(text.encode()) for text in questions), np.uint32, len(questions))
        mask = np.isin(self._columns["hashes"], hashes)
        candidates = np.flatnonzero(mask)
        mask[candidates] = [example.question in questions for example in self.read_examples(candidates)]
        return mask


class FileSource(TextSource):
    """The questions of a file, or of several under one index, one after the other; what is too long of them is cut as
    `truncation_side` says."""

    def __init__(self, parts: Sequence[StoredExamples], truncation_side: Literal["left", "right"] = "right") -> None:
        self.parts, self.truncation_side = tuple(parts), truncation_side
        self._index = PartIndex(part.num_examples for part in parts)
        self.num_examples = self._index.count
        self.num_skipped = sum(part.num_skipped for part in parts)

    @property
    def description(self) -> str:
        return ", ".join(str(part.path) for part in self.parts)

    @cached_property
    def fingerprint(self) -> str:
        if len(self.parts) == 1:
            return self.parts[0].fingerprint
        return combine_hashes([part.fingerprint for part in self.parts])

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        if len(self.parts) == 1:
            return self.parts[0].read_examples(rows)
        example_at: dict[int, Example] = {}
        for part, positions, local in self._index.groups(rows):
            example_at.update(zip(positions.tolist(), self.parts[part].read_examples(local), strict=True))
        return [example_at[position] for position in range(len(rows))]

    def location(self, row: int) -> str:
        part, local = self._index.locate(row)
        return self.parts[part].location(local)

    def record_sizes(self) -> NDArray[np.uint32]:
        """Approximate number of bytes of each record."""
        return np.concatenate([part.record_sizes for part in self.parts])

    def used_characters(self) -> frozenset[str]:
        """Every character of questions and answers, perhaps with more."""
        return frozenset().union(*(part.used_characters for part in self.parts))

    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        """Of each record, whether its question is one of these."""
        return np.concatenate([part.question_mask(questions) for part in self.parts])

    def files(self) -> tuple[Path, ...]:
        return tuple(part.path for part in self.parts)


def combine_hashes(parts: Iterable[str]) -> str:
    """One hash of several texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


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


def open_examples(path: Path, reader: ExampleReader, skip_invalid: bool = False) -> StoredExamples:
    """The questions of a file, opened once as long as it does not change.

    Raises `UserError` with file and line for a record that cannot be read (with `skip_invalid` they are left out, and a
    warning has their number and the first one), and for a file without any question; `OperationalError` if the cache
    folder cannot be written.
    """
    return _open_cached(file_stamp(path), reader, skip_invalid)


@lru_cache(maxsize=256)
def _open_cached(stamp: tuple[str, int, int], reader: ExampleReader, skip_invalid: bool) -> StoredExamples:
    path = Path(stamp[0])
    check_unmodified(path)
    fingerprint = combine_hashes(["readers 2", file_sha256(path), repr(reader), str(skip_invalid)])
    folder = cached_folder("examples", fingerprint, [path])
    columns = build_columns(partial(_read_file, path, reader, skip_invalid), _DTYPES, folder)
    stored = StoredExamples(path, fingerprint, columns)
    if (count := stored.num_skipped) > 0:
        first = file_error(path, columns.head["first_problem"], columns.head["first_invalid_line"])
        warnings.warn(f"{count:,} record{'s' * (count > 1)} skipped as invalid; the first: {first}", stacklevel=3)
    if not stored.num_examples:
        raise file_error(path, "has no question that can be read")
    return stored


def _read_file(path: Path, reader: ExampleReader, skip_invalid: bool, columns: AnyColumns) -> dict[str, Any]:
    """Writes the columns of `StoredExamples`."""
    lines, num_bytes = MappedLines(path), 0
    characters: set[str] = _file_characters(path, lines) if reader.preserves_characters else set()
    invalid: list[tuple[int, str]] = []
    columns.append("starts", np.zeros(1, np.int64))
    pairs = reader.pairs(lines)
    while chunk := list(islice(pairs, _CHUNK_EXAMPLES)):
        texts: list[str] = []
        encoded: list[bytes] = []
        line_numbers: list[int] = []
        for line, pair in chunk:
            try:
                if isinstance(pair, ValueError):
                    raise pair
                check_pair(*pair, requires_answer=reader.requires_answer)
                encoded += (pair[0].encode(), pair[1].encode())
            except ValueError as error:
                if not skip_invalid:
                    hint = "With task.skip_invalid=true such records are left out and counted"
                    raise file_error(path, f"{error}. {hint}", line) from error
                invalid.append((line, str(error)))
                continue
            texts += pair
            line_numbers.append(line)
        if not reader.preserves_characters:
            characters.update("".join(texts))
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        columns.append("text", np.frombuffer(b"".join(encoded), np.uint8))
        columns.append("starts", num_bytes + lengths.cumsum())
        columns.append("lines", np.array(line_numbers, np.uint32))
        columns.append("sizes", (lengths[0::2] + lengths[1::2]).astype(np.uint32))
        columns.append("hashes", np.fromiter(map(zlib.crc32, encoded[0::2]), np.uint32, len(line_numbers)))
        num_bytes += int(lengths.sum())
    line, problem = invalid[0] if invalid else (0, "")
    head = {"skipped": len(invalid), "first_invalid_line": line, "first_problem": problem}
    return {"characters": "".join(sorted(characters)), **head}


def _file_characters(path: Path, lines: MappedLines) -> set[str]:
    """Every character of a file but tabs and line ends."""
    if lines.is_ascii:
        characters = set(map(chr, np.flatnonzero(lines.used_bytes).tolist()))
    else:
        with open(path, encoding="utf-8-sig", errors="ignore") as file:
            characters = set().union(*map(set, iter(lambda: file.read(_CHUNK_CHARACTERS), "")))
    return characters - {*"\r\n\t"}
