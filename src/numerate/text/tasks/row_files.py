"""Rows of text in files, by their index: lines of text, and tokenised folders of Hugging Face `datasets` or of ours.

A file is never read as a whole: lines are found once (8 bytes per row are kept), tokens stay on the disk. pyarrow alone
reads what `save_to_disk` writes, which are plain Arrow streams with two small JSON files beside; `datasets` would bring
pandas, dill and a network client for nothing more.
"""

import json
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, did_you_mean
from numerate.text.tasks.readers import LONGEST
from numerate.text.tasks.row_heads import HEAD, checked_head, files_of, written_folder
from numerate.text.tasks.text_files import stamp
from numerate.vocabulary import BEGIN, END, PAD, PUBLISHED, UNKNOWN

VOCABULARIES = {name: "0123456789" + "".join(texts) for name, texts in PUBLISHED.items()}
"""The characters of the published vocabularies, in the order of their ids from 4 on: 19, 121 and 118 ids in all."""

_FIRST = 4
_CHUNK = 1 << 22


class CharacterRows(NamedTuple):
    """Rows as code points `[rows, width]` (0 behind each row's end), and how many characters each has."""

    codes: NDArray[Any]
    lengths: NDArray[np.int64]


def rows_at_once(longest: int) -> int:
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
    def where(self, row: int) -> str:
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


def open_row_file(path: str | Path, split: str = "all", vocabulary: str = "pad") -> RowFile:
    """Opens a text file, a folder of `*.txt`, a folder that `datasets` saved, or one that `numerate data write` wrote.

    `split` chooses one of a saved DatasetDict ("all": all of them); `vocabulary` names the ids of its tokens. Where a
    folder has both text and `hf_tokenized_dataset`, the text is taken for split "all". Raises `UserError` for anything
    else, for a folder without rows, and for a split that there is not.
    """
    place = Path(path)
    if vocabulary not in VOCABULARIES:
        names = ", ".join(VOCABULARIES)
        near = did_you_mean(vocabulary, VOCABULARIES)
        raise UserError(f"vocabulary: there is no {vocabulary!r}; there are: {names}.{near}")
    if not place.exists():
        raise UserError(f"path: {place} is not there; a text file with a row per line, or a folder of rows, is right")
    return _opened(place, tuple(map(stamp, _files(place, split))), vocabulary)


def _files(place: Path, split: str) -> list[Path]:
    """The files that hold the rows."""
    if (folder := written_folder(place)) is not None:
        texts = files_of(folder)
    elif place.is_file():
        texts = [place]
    elif (place / "state.json").is_file():
        texts = _arrow_files(place)
    elif (place / "dataset_dict.json").is_file():
        return _of_splits(place, split)
    else:
        texts = sorted(place.glob("*.txt"))
        tokenised = place / "hf_tokenized_dataset"
        if tokenised.is_dir() and (split != "all" or not texts):
            return _files(tokenised, split)
        if not texts:
            raise UserError(
                f"path: {place} holds no rows: no *.txt, no saved dataset, nothing of `numerate data write`"
            )
    if split != "all":
        raise UserError(f"split: {place} is not divided into splits, so there is no {split!r}; split=all is right")
    return texts


def _of_splits(place: Path, split: str) -> list[Path]:
    known = _json(place / "dataset_dict.json").get("splits") or []
    if split != "all" and split not in known:
        raise UserError(
            f"split: {place} has no {split!r}; there are: {', '.join(known)}, and all.{did_you_mean(split, known)}"
        )
    return [file for name in (known if split == "all" else [split]) for file in _arrow_files(place / name)]


def _arrow_files(place: Path) -> list[Path]:
    state = _json(place / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise UserError(f"path: {place} is an index into another dataset; save it after flatten_indices()")
    return [place / item["filename"] for item in state.get("_data_files") or []]


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"path: {file} cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"path: {file} is not what `datasets` or `numerate data write` writes")
    return found


@lru_cache(maxsize=8)
def _opened(place: Path, stamps: tuple[tuple[str, int, int], ...], vocabulary: str) -> RowFile:
    files: list[RowFile] = []
    if (folder := written_folder(place)) is not None:
        files.append(_of_ours(folder))
    else:
        for name, size, _ in stamps:
            file = Path(name)
            if file.suffix == ".arrow":
                files.append(TokenFile(file, _arrow_pieces(file), VOCABULARIES[vocabulary], vocabulary))
            elif size:
                files.append(TextFile(file))
    files = [file for file in files if file.count]
    if not files:
        raise UserError(f"path: {place} holds no rows")
    return files[0] if len(files) == 1 else RowFiles(files)


class RowFiles(RowFile):
    """Several files, one after the other."""

    def __init__(self, parts: Sequence[RowFile]) -> None:
        self._parts = parts
        self._ends = np.cumsum([part.count for part in parts])
        self.count = int(self._ends[-1])
        self.longest = max(part.longest for part in parts)

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        which = np.searchsorted(self._ends, rows, side="right")
        found = []
        for number in np.unique(which).tolist():
            chosen = np.flatnonzero(which == number)
            found.append((chosen, self._parts[number].read(rows[chosen] - self._begin(number))))
        width = max((part.codes.shape[1] for _, part in found), default=0)
        codes = np.zeros((len(rows), width), dtype=np.result_type(np.uint8, *(part.codes for _, part in found)))
        lengths = np.zeros(len(rows), dtype=np.int64)
        for chosen, part in found:
            codes[chosen, : part.codes.shape[1]] = part.codes
            lengths[chosen] = part.lengths
        return CharacterRows(codes, lengths)

    def _begin(self, number: int) -> int:
        return int(self._ends[number]) - self._parts[number].count

    def where(self, row: int) -> str:
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._parts[number].where(row - self._begin(number))

    def files(self) -> tuple[Path, ...]:
        return tuple(path for part in self._parts for path in part.files())

    def alphabet(self) -> str:
        return "".join(sorted({character for part in self._parts for character in part.alphabet()}))


class TextFile(RowFile):
    """A text file in UTF-8 with a row per line; blank lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        begin = len(BOM_UTF8) if self._bytes[: len(BOM_UTF8)].tobytes() == BOM_UTF8 else 0
        found, used = [], np.zeros(256, dtype=np.bool_)
        for start in range(begin, len(self._bytes), _CHUNK):
            chunk = self._bytes[start : start + _CHUNK]
            found.append(np.flatnonzero(chunk == ord("\n")) + start)
            used[chunk] = True
        breaks = np.concatenate(found)
        if not len(breaks) or breaks[-1] != len(self._bytes) - 1:
            breaks = np.append(breaks, len(self._bytes))
        self._starts = np.concatenate([np.array([begin], dtype=np.int64), breaks + 1])
        self._returns = bool(used[ord("\r")])
        self._plain = not used[128:].any()
        self._used = used
        blank = np.diff(self._starts) == 1
        if self._returns:
            blank |= (np.diff(self._starts) == 2) & (self._bytes[self._starts[:-1]] == ord("\r"))
        self._lines = np.flatnonzero(~blank) if blank.any() else None
        self.count = len(self._starts) - 1 if self._lines is None else len(self._lines)
        self.longest = self._checked(bool(used[0]))

    def _checked(self, nul: bool) -> int:
        """The bytes of the longest line. Raises `UserError` for one that is too long, and for one with NUL."""
        sizes = np.diff(self._starts) - 1
        longest = int(sizes.max(initial=0))
        if longest > (LONGEST if self._plain else 4 * LONGEST):  # a character has up to four bytes
            raise UserError(
                f"{self.path}, line {int(sizes.argmax()) + 1}: has {longest:,} bytes; a row has at most {LONGEST:,} "
                "characters"
            )
        if nul:
            line = int(np.searchsorted(self._starts, int((self._bytes == 0).argmax()), side="right"))
            raise UserError(f"{self.path}, line {line}: has the character NUL, which no text has; is the file damaged?")
        return longest

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        lines = rows if self._lines is None else self._lines[rows]
        starts, ends = self._starts[lines], self._starts[lines + 1] - 1
        if self._returns:
            ends = ends - (self._bytes[np.maximum(ends - 1, starts)] == ord("\r"))
        if not self._plain:
            return self._decoded(rows, starts, ends)
        lengths = ends - starts
        width = int(lengths.max(initial=0))
        words = -(-width // 8)
        codes = np.zeros((len(rows), 8 * words), dtype=np.uint8)
        # Eight bytes at a time, from wherever a row begins; the few rows too near to the end of the file byte by byte.
        inside = np.flatnonzero(starts + 8 * words <= len(self._bytes))
        windows: NDArray[np.uint64] = np.ndarray((max(0, len(self._bytes) - 7),), "<u8", self._bytes.data, 0, (1,))
        for word in range(words):
            codes.view("<u8")[inside, word] = windows[starts[inside] + 8 * word]
        for row in np.flatnonzero(starts + 8 * words > len(self._bytes)).tolist():
            codes[row, : lengths[row]] = self._bytes[starts[row] : ends[row]]
        codes *= np.arange(8 * words) < lengths[:, None]
        return CharacterRows(codes[:, :width], lengths)

    def _decoded(self, rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> CharacterRows:
        texts = []
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            try:
                texts.append(self._bytes[start:end].tobytes().decode())
            except UnicodeDecodeError as error:
                raise UserError(f"{self.where(row)}: is no text in UTF-8 ({error.reason})") from error
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        if int(lengths.max(initial=0)) > LONGEST:
            where = self.where(int(rows[lengths.argmax()]))
            raise UserError(f"{where}: has {int(lengths.max()):,} characters; a row has at most {LONGEST:,}")
        codes = np.zeros((len(texts), int(lengths.max(initial=0))), dtype=np.uint32)
        there = np.arange(codes.shape[1]) < lengths[:, None]
        codes[there] = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        return CharacterRows(codes, lengths)

    def where(self, row: int) -> str:
        return f"{self.path}, line {(row if self._lines is None else int(self._lines[row])) + 1}"

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def alphabet(self) -> str:
        if self._plain:
            return "".join(chr(i) for i in np.flatnonzero(self._used) if chr(i) not in "\r\n")
        used = np.zeros(0x110000, dtype=np.bool_)
        size = rows_at_once(self.longest)
        for start in range(0, self.count, size):
            used[self.read(np.arange(start, min(start + size, self.count))).codes.reshape(-1)] = True
        return "".join(chr(i) for i in np.flatnonzero(used) if i)


class TokenRun(NamedTuple):
    """Tokens of consecutive rows: row i has `ids[starts[i]:starts[i + 1]]`."""

    starts: NDArray[Any]
    ids: NDArray[Any]


class TokenFile(RowFile):
    """Rows of token ids, each symbol one character. A row ends at its first [EOS], or before its last padding.

    An id 0 inside a row is a space, as the published tokenizer writes it; what was [UNK] is lost, and refused.
    """

    def __init__(self, path: Path, pieces: Sequence[TokenRun], symbols: str, name: str) -> None:
        self.path, self.pieces, self.name = path, pieces, name
        self._symbols = symbols
        plain = symbols.isascii()
        self._table = np.array([ord(" "), 0, 0, 0, *map(ord, symbols)], dtype=np.uint8 if plain else np.uint32)
        self._ends = np.cumsum([len(piece.starts) - 1 for piece in pieces], dtype=np.int64)
        self.count = int(self._ends[-1]) if len(pieces) else 0
        self.longest = max((int(np.diff(piece.starts).max(initial=0)) for piece in pieces), default=0)
        if self.longest > LONGEST:
            raise UserError(f"{path}: has a row of {self.longest:,} ids; a row has at most {LONGEST:,}")

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        which = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(which, kind="stable")
        parts = []
        for chosen in np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(rows) else []:
            number = int(which[chosen[0]])
            piece = self.pieces[number]
            local = rows[chosen] - (int(self._ends[number]) - (len(piece.starts) - 1))
            starts = piece.starts[local].astype(np.int64)
            parts.append((chosen, piece, starts, piece.starts[local + 1].astype(np.int64) - starts))
        ids = np.zeros((len(rows), max((int(part[3].max()) for part in parts), default=0)), dtype=np.int64)
        columns = np.arange(ids.shape[1])
        for chosen, piece, starts, lengths in parts:
            there = columns < lengths[:, None]
            ids[chosen] = piece.ids[np.where(there, starts[:, None] + columns, starts[:, None])] * there
        return self._characters(ids, rows)

    def _characters(self, ids: NDArray[np.int64], rows: NDArray[np.int64]) -> CharacterRows:
        if not ids.size:
            return CharacterRows(ids.astype(np.uint32), np.zeros(len(rows), dtype=np.int64))
        wrong = (ids < 0) | (ids >= len(self._table))
        if wrong.any():
            row = int(wrong.any(axis=1).argmax())
            others = ", ".join(name for name in VOCABULARIES if name != self.name)
            raise UserError(
                f"{self.where(int(rows[row]))}: the id {int(ids[row][wrong[row]][0])} is none of the "
                f"{len(self._table)} of vocabulary {self.name}; others are: {others}"
            )
        lost = (ids == UNKNOWN).any(axis=1)
        if lost.any():
            where = self.where(int(rows[lost.argmax()]))
            raise UserError(f"{where}: holds [UNK], a character that its vocabulary had not; what it was is lost")
        begun = ids[:, 0] == BEGIN
        if begun.any():
            ids = np.where(begun[:, None], np.pad(ids[:, 1:], ((0, 0), (0, 1))), ids)
        ended = ids == END
        last = ids.shape[1] - (ids[:, ::-1] != PAD).argmax(axis=1)
        last = np.where((ids != PAD).any(axis=1), last, 0)
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1), last).astype(np.int64)
        width = int(lengths.max(initial=0))
        return CharacterRows(self._table[ids[:, :width]] * (np.arange(width) < lengths[:, None]), lengths)

    def where(self, row: int) -> str:
        return f"{self.path}, row {row}"

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def alphabet(self) -> str:
        return "".join(sorted(self._symbols))


def _arrow_pieces(file: Path) -> list[TokenRun]:
    """The `input_ids` of every record batch, left on the disk."""
    try:
        import pyarrow as arrow
    except ImportError as error:
        raise UserError(f"path: {file} is Arrow, which pyarrow reads: pip install 'numerate[data]'") from error
    try:
        source = arrow.memory_map(str(file))
        batches = list(arrow.ipc.open_stream(source))
    except (arrow.ArrowInvalid, OSError) as error:
        raise UserError(
            f"path: {file} is no Arrow stream as `datasets` saves it ({str(error).splitlines()[0]})"
        ) from error
    pieces = []
    for batch in batches:
        if "input_ids" not in batch.schema.names:
            raise UserError(f"path: {file} has no column input_ids; it has: {', '.join(batch.schema.names)}")
        column = batch.column("input_ids")
        if column.null_count or not hasattr(column, "offsets"):
            raise UserError(f"path: {file}: the column input_ids is no list of token ids per row, but {column.type}")
        try:
            column.validate(full=True)
        except arrow.ArrowInvalid as error:
            raise UserError(f"path: {file} is damaged ({str(error).splitlines()[0]}); save it anew") from error
        pieces.append(TokenRun(column.offsets.to_numpy(), column.values.to_numpy()))
    return pieces


def _of_ours(folder: Path) -> RowFile:
    """What `numerate data write` wrote. Raises `UserError` where it is not as it was written."""
    header = checked_head(folder)
    if "rows.txt" in header["files"]:
        return TextFile(folder / "rows.txt")
    symbols = header["vocabulary"][_FIRST:]
    if any(len(symbol) != 1 for symbol in symbols):
        raise UserError(f"path: {folder} has tokens of several characters; format=text can be read instead")
    ids = np.memmap(folder / "ids.bin", dtype=header["ids"], mode="r")
    starts = np.memmap(folder / "offsets.bin", dtype="<i8", mode="r")
    return TokenFile(folder / "ids.bin", [TokenRun(starts, ids)], "".join(symbols), HEAD)
