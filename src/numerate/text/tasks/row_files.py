"""Rows of text in files, by their index: lines of text, and tokenized folders of Hugging Face `datasets`.

A file is never read as a whole: lines are found once, tokens stay on the disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.mapped_lines import MappedLines
from numerate.text.tasks.ragged_rows import PartIndex, RaggedRows
from numerate.text.tasks.readers import MAX_CHARACTERS
from numerate.vocabulary import BOS, EOS, PAD, PUBLISHED_SYMBOLS, UNK

VOCABULARIES = {name: "0123456789" + "".join(texts) for name, texts in PUBLISHED_SYMBOLS.items()}
"""The characters of the published vocabularies, in the order of their ids from 4 on: 19, 121 and 118 ids in all."""

UNKNOWN_TOKEN_ERROR = "holds [UNK]; the word or character that its vocabulary did not have is lost"
_MAX_LENGTH = f"a row has at most {MAX_CHARACTERS:,} characters"


class CharacterRows(NamedTuple):
    """Rows as code points `[rows, width]` (0 behind each row's end), and how many characters each has."""

    codes: NDArray[Any]
    lengths: NDArray[np.int64]


def rows_per_block(longest: int) -> int:
    """How many rows are read at once: fewer where one is long, so that memory does not grow with it."""
    return max(1, min(1 << 15, (1 << 25) // max(1, longest)))


class RowFile(ABC):
    """Rows of text that are read by their index."""

    count: int

    longest: int
    """No row has more characters."""

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        """The rows with these indices."""

    @abstractmethod
    def location(self, row: int) -> str:
        """The file and line of a row, for people."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""

    @abstractmethod
    def alphabet(self) -> str:
        """Every character that rows may have, sorted."""

    def text(self, row: int) -> str:
        """One row as text."""
        codes, lengths = self.read(np.array([row]))
        return "".join(map(chr, codes[0, : lengths[0]].tolist()))


class ConcatenatedRowFiles(RowFile):
    """Several files, one after the other."""

    def __init__(self, files: Sequence[RowFile]) -> None:
        self._files, self._index = files, PartIndex(part.count for part in files)
        self.count, self.longest = self._index.count, max(part.longest for part in files)

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        groups = [(positions, self._files[part].read(local)) for part, positions, local in self._index.groups(rows)]
        width = max((read.codes.shape[1] for _, read in groups), default=0)
        codes = np.zeros((len(rows), width), dtype=np.result_type(np.uint8, *(read.codes for _, read in groups)))
        lengths = np.zeros(len(rows), dtype=np.int64)
        for positions, read in groups:
            codes[positions, : read.codes.shape[1]] = read.codes
            lengths[positions] = read.lengths
        return CharacterRows(codes, lengths)

    def location(self, row: int) -> str:
        part, local = self._index.locate(row)
        return self._files[part].location(local)

    def files(self) -> tuple[Path, ...]:
        return tuple(path for part in self._files for path in part.files())

    def alphabet(self) -> str:
        return "".join(sorted({character for part in self._files for character in part.alphabet()}))


class TextFile(RowFile):
    """A text file in UTF-8 with a row per line; blank lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.path, self._lines = path, MappedLines(path)
        used = self._lines.used_bytes
        self._has_carriage_returns = bool(used[ord("\r")])
        sizes = np.diff(self._lines.starts)
        sizes[: len(sizes) - (self._lines.bytes[-1] != ord("\n"))] -= 1
        self.longest = self._check_lines(sizes, bool(used[0]))
        short = np.flatnonzero(sizes <= self._has_carriage_returns)
        blank = short[np.equal(*self._bounds(short))]
        self._row_lines = np.delete(np.arange(len(sizes)), blank) if len(blank) else None
        self.count = len(sizes) - len(blank)

    def _check_lines(self, sizes: NDArray[Any], has_nul: bool) -> int:
        """The bytes of the longest line. Raises `UserError` for one that is too long, and for one with NUL."""
        longest = int(sizes.max(initial=0))
        # A character has up to four bytes.
        if longest > (MAX_CHARACTERS if self._lines.is_ascii else 4 * MAX_CHARACTERS):
            raise file_error(self.path, f"has {longest:,} bytes; {_MAX_LENGTH}", int(sizes.argmax()) + 1)
        if has_nul:
            line = int(np.searchsorted(self._lines.starts, int((self._lines.bytes == 0).argmax()), side="right"))
            raise file_error(self.path, "has the character NUL, which no text has; is the file damaged?", line)
        return longest

    def _bounds(self, lines: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where these lines begin, and where they end before what ends them."""
        content, starts = self._lines.bytes, self._lines.starts[lines].astype(np.int64)
        ends = self._lines.starts[lines + 1].astype(np.int64)
        for end in ("\n", "\r") if self._has_carriage_returns else ("\n",):
            ends = ends - ((ends > starts) & (content[ends - 1] == ord(end)))
        return starts, ends

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        starts, ends = self._bounds(rows if self._row_lines is None else self._row_lines[rows])
        if not self._lines.is_ascii:
            return self._read_utf8(rows, starts, ends)
        content = self._lines.bytes
        lengths = ends - starts
        width = int(lengths.max(initial=0))
        words = -(-width // 8)
        codes = np.zeros((len(rows), 8 * words), dtype=np.uint8)
        # Eight bytes at a time, from wherever a row begins; the few rows too near to the end of the file byte by byte.
        fitting_rows = np.flatnonzero(starts + 8 * words <= len(content))
        windows: NDArray[np.uint64] = np.ndarray((max(0, len(content) - 7),), "<u8", content.data, 0, (1,))
        for word in range(words):
            codes.view("<u8")[fitting_rows, word] = windows[starts[fitting_rows] + 8 * word]
        for row in np.flatnonzero(starts + 8 * words > len(content)).tolist():
            codes[row, : lengths[row]] = content[starts[row] : ends[row]]
        codes *= np.arange(8 * words) < lengths[:, None]
        return CharacterRows(codes[:, :width], lengths)

    def _read_utf8(self, rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> CharacterRows:
        texts = []
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            try:
                texts.append(self._lines.bytes[start:end].tobytes().decode())
            except UnicodeDecodeError as error:
                raise file_error(self.location(row), f"is no text in UTF-8 ({error.reason})") from error
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        if int(lengths.max(initial=0)) > MAX_CHARACTERS:
            where = self.location(int(rows[lengths.argmax()]))
            raise file_error(where, f"has {int(lengths.max()):,} characters; {_MAX_LENGTH}")
        codes = np.zeros((len(texts), int(lengths.max(initial=0))), dtype=np.uint32)
        is_character = np.arange(codes.shape[1]) < lengths[:, None]
        codes[is_character] = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        return CharacterRows(codes, lengths)

    def location(self, row: int) -> str:
        return f"{self.path}, line {(row if self._row_lines is None else int(self._row_lines[row])) + 1}"

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def alphabet(self) -> str:
        if self._lines.is_ascii:
            return "".join(chr(i) for i in np.flatnonzero(self._lines.used_bytes) if chr(i) not in "\r\n")
        used = np.zeros(0x110000, dtype=np.bool_)
        size = rows_per_block(self.longest)
        for start in range(0, self.count, size):
            used[self.read(np.arange(start, min(start + size, self.count))).codes.reshape(-1)] = True
        return "".join(chr(i) for i in np.flatnonzero(used) if i)


class TokenFile(RowFile):
    """Rows of token ids, each symbol one character. A row ends at its first [EOS], or before its last padding.

    An id 0 inside a row is a space, as the published tokenizer writes it; what was [UNK] is lost, and refused.
    """

    def __init__(self, path: Path, ids: RaggedRows, symbols: str, vocabulary_name: str) -> None:
        self.path, self._ids, self.vocabulary_name = path, ids, vocabulary_name
        self._symbols = symbols
        plain = symbols.isascii()
        self._code_points = np.array([ord(" "), 0, 0, 0, *map(ord, symbols)], dtype=np.uint8 if plain else np.uint32)
        self.count, self.longest = len(ids), ids.max_length()
        if self.longest > MAX_CHARACTERS:
            raise file_error(path, f"has a row of {self.longest:,} ids; {_MAX_LENGTH}")

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        return self._decode(self._ids.padded(rows)[0].astype(np.int64), rows)

    def _decode(self, ids: NDArray[np.int64], rows: NDArray[np.int64]) -> CharacterRows:
        if not ids.size:
            return CharacterRows(ids.astype(np.uint32), np.zeros(len(rows), dtype=np.int64))
        is_out_of_range = (ids < 0) | (ids >= len(self._code_points))
        if is_out_of_range.any():
            row = int(is_out_of_range.any(axis=1).argmax())
            others = ", ".join(name for name in VOCABULARIES if name != self.vocabulary_name)
            raise file_error(
                self.location(int(rows[row])),
                f"the id {int(ids[row][is_out_of_range[row]][0])} is none of the {len(self._code_points)} of "
                f"vocabulary {self.vocabulary_name}; others are: {others}",
            )
        has_unknown = (ids == UNK).any(axis=1)
        if has_unknown.any():
            raise file_error(self.location(int(rows[has_unknown.argmax()])), UNKNOWN_TOKEN_ERROR)
        has_bos = ids[:, 0] == BOS
        if has_bos.any():
            ids = np.where(has_bos[:, None], np.pad(ids[:, 1:], ((0, 0), (0, 1))), ids)
        is_eos = ids == EOS
        last = ids.shape[1] - (ids[:, ::-1] != PAD).argmax(axis=1)
        last = np.where((ids != PAD).any(axis=1), last, 0)
        lengths = np.where(is_eos.any(axis=1), is_eos.argmax(axis=1), last).astype(np.int64)
        width = int(lengths.max(initial=0))
        return CharacterRows(self._code_points[ids[:, :width]] * (np.arange(width) < lengths[:, None]), lengths)

    def location(self, row: int) -> str:
        return f"{self.path}, row {row}"

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def alphabet(self) -> str:
        return "".join(sorted(self._symbols))
