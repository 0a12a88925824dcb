"""Rows of text in files, by their index: lines of text, and tokenized folders of Hugging Face `datasets` or of
`numerate data write`.

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

from numerate.config import Spec
from numerate.errors import UserError, check_choice
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.readers import MAX_CHARACTERS
from numerate.text.tasks.row_heads import METADATA_FILE, existing_files, find_written_folder, read_verified_metadata
from numerate.text.tasks.text_files import file_stamp
from numerate.vocabulary import BOS, EOS, PAD, PUBLISHED_SYMBOLS, UNK

VOCABULARIES = {name: "0123456789" + "".join(texts) for name, texts in PUBLISHED_SYMBOLS.items()}
"""The characters of the published vocabularies, in the order of their ids from 4 on: 19, 121 and 118 ids in all."""

UNKNOWN_TOKEN_ERROR = "holds [UNK]; the word or character that its vocabulary did not have is lost"
_ROWS = "a text file with one row per line, or a folder of *.txt, of a saved dataset or of `numerate data write`"
_MAX_LENGTH = f"a row has at most {MAX_CHARACTERS:,} characters"
_NUM_SPECIAL_IDS = 4
_CHUNK_BYTES = 1 << 22


class CharacterRows(NamedTuple):
    """Rows as code points `[rows, width]` (0 behind each row's end), and how many characters each has."""

    codes: NDArray[Any]
    lengths: NDArray[np.int64]


def rows_per_block(longest: int) -> int:
    """How many rows are read at once: fewer where one is long, so that memory does not grow with it."""
    return max(1, min(1 << 15, (1 << 25) // max(1, longest)))


class RowFile(Spec, ABC):
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


def open_row_file(path: str | Path, split: str = "all", vocabulary: str = "pad") -> RowFile:
    """Opens a text file, a folder of `*.txt`, a folder that `datasets` saved, or one that `numerate data write` wrote.

    `split` chooses one of a saved DatasetDict ("all": all of them); `vocabulary` names the ids of its tokens. Where a
    folder has both text and `hf_tokenized_dataset`, the text is taken for split "all". Raises `UserError` for anything
    else, for a folder without rows, and for a split that there is not.
    """
    resolved_path = Path(path)
    check_choice("vocabulary", vocabulary, VOCABULARIES)
    if not resolved_path.exists():
        raise file_error(resolved_path, f"does not exist; must be {_ROWS}")
    return _open_cached(resolved_path, tuple(map(file_stamp, _row_paths(resolved_path, split))), vocabulary)


def _row_paths(path: Path, split: str) -> list[Path]:
    """The files that hold the rows."""
    if (folder := find_written_folder(path)) is not None:
        paths = existing_files(folder)
    elif path.is_file():
        paths = [path]
    elif (path / "state.json").is_file():
        paths = _arrow_paths(path)
    elif (path / "dataset_dict.json").is_file():
        return _split_paths(path, split)
    else:
        paths = sorted(path.glob("*.txt"))
        tokenised = path / "hf_tokenized_dataset"
        if tokenised.is_dir() and (split != "all" or not paths):
            return _row_paths(tokenised, split)
        if not paths:
            raise file_error(path, f"holds no rows; must be {_ROWS}")
    if split != "all":
        raise UserError(f"split: {path} has no splits; split must be all, not {split!r}")
    return paths


def _split_paths(path: Path, split: str) -> list[Path]:
    split_names = _read_json(path / "dataset_dict.json").get("splits") or []
    check_choice("split", split, [*split_names, "all"])
    return [file for name in (split_names if split == "all" else [split]) for file in _arrow_paths(path / name)]


def _arrow_paths(path: Path) -> list[Path]:
    state = _read_json(path / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise file_error(path, "is an index into another dataset; save it after flatten_indices()")
    return [path / item["filename"] for item in state.get("_data_files") or []]


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise file_error(file, f"cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise file_error(file, "is not what `datasets` or `numerate data write` writes")
    return content


@lru_cache(maxsize=8)
def _open_cached(path: Path, stamps: tuple[tuple[str, int, int], ...], vocabulary: str) -> RowFile:
    files: list[RowFile] = []
    if (folder := find_written_folder(path)) is not None:
        files.append(_open_written_folder(folder))
    else:
        for name, size, _ in stamps:
            file = Path(name)
            if file.suffix == ".arrow":
                files.append(TokenFile(file, _read_arrow_runs(file), VOCABULARIES[vocabulary], vocabulary))
            elif size:
                files.append(TextFile(file))
    files = [file for file in files if file.count]
    if not files:
        raise file_error(path, "holds no rows")
    return files[0] if len(files) == 1 else ConcatenatedRowFiles(files)


class ConcatenatedRowFiles(RowFile):
    """Several files, one after the other."""

    def __init__(self, files: Sequence[RowFile]) -> None:
        self._files = files
        self._file_ends = np.cumsum([part.count for part in files])
        self.count = int(self._file_ends[-1])
        self.longest = max(part.longest for part in files)

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        file_index = np.searchsorted(self._file_ends, rows, side="right")
        blocks = []
        for number in np.unique(file_index).tolist():
            positions = np.flatnonzero(file_index == number)
            blocks.append((positions, self._files[number].read(rows[positions] - self._file_start(number))))
        width = max((part.codes.shape[1] for _, part in blocks), default=0)
        codes = np.zeros((len(rows), width), dtype=np.result_type(np.uint8, *(part.codes for _, part in blocks)))
        lengths = np.zeros(len(rows), dtype=np.int64)
        for positions, part in blocks:
            codes[positions, : part.codes.shape[1]] = part.codes
            lengths[positions] = part.lengths
        return CharacterRows(codes, lengths)

    def _file_start(self, number: int) -> int:
        return int(self._file_ends[number]) - self._files[number].count

    def location(self, row: int) -> str:
        number = int(np.searchsorted(self._file_ends, row, side="right"))
        return self._files[number].location(row - self._file_start(number))

    def files(self) -> tuple[Path, ...]:
        return tuple(path for part in self._files for path in part.files())

    def alphabet(self) -> str:
        return "".join(sorted({character for part in self._files for character in part.alphabet()}))


class TextFile(RowFile):
    """A text file in UTF-8 with a row per line; blank lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        start_of_text = len(BOM_UTF8) if self._bytes[: len(BOM_UTF8)].tobytes() == BOM_UTF8 else 0
        newline_positions, used = [], np.zeros(256, dtype=np.bool_)
        for start in range(start_of_text, len(self._bytes), _CHUNK_BYTES):
            chunk = self._bytes[start : start + _CHUNK_BYTES]
            newline_positions.append(np.flatnonzero(chunk == ord("\n")) + start)
            used[chunk] = True
        breaks = np.concatenate(newline_positions)
        if not len(breaks) or breaks[-1] != len(self._bytes) - 1:
            breaks = np.append(breaks, len(self._bytes))
        self._starts = np.concatenate([np.array([start_of_text], dtype=np.int64), breaks + 1])
        self._has_carriage_returns = bool(used[ord("\r")])
        self._is_ascii = not used[128:].any()
        self._used_bytes = used
        blank = np.diff(self._starts) == 1
        if self._has_carriage_returns:
            blank |= (np.diff(self._starts) == 2) & (self._bytes[self._starts[:-1]] == ord("\r"))
        self._lines = np.flatnonzero(~blank) if blank.any() else None
        self.count = len(self._starts) - 1 if self._lines is None else len(self._lines)
        self.longest = self._check_lines(bool(used[0]))

    def _check_lines(self, has_nul: bool) -> int:
        """The bytes of the longest line. Raises `UserError` for one that is too long, and for one with NUL."""
        sizes = np.diff(self._starts) - 1
        longest = int(sizes.max(initial=0))
        if longest > (MAX_CHARACTERS if self._is_ascii else 4 * MAX_CHARACTERS):  # a character has up to four bytes
            raise file_error(self.path, f"has {longest:,} bytes; {_MAX_LENGTH}", int(sizes.argmax()) + 1)
        if has_nul:
            line = int(np.searchsorted(self._starts, int((self._bytes == 0).argmax()), side="right"))
            raise file_error(self.path, "has the character NUL, which no text has; is the file damaged?", line)
        return longest

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        lines = rows if self._lines is None else self._lines[rows]
        starts, ends = self._starts[lines], self._starts[lines + 1] - 1
        if self._has_carriage_returns:
            ends = ends - (self._bytes[np.maximum(ends - 1, starts)] == ord("\r"))
        if not self._is_ascii:
            return self._read_utf8(rows, starts, ends)
        lengths = ends - starts
        width = int(lengths.max(initial=0))
        words = -(-width // 8)
        codes = np.zeros((len(rows), 8 * words), dtype=np.uint8)
        # Eight bytes at a time, from wherever a row begins; the few rows too near to the end of the file byte by byte.
        fitting_rows = np.flatnonzero(starts + 8 * words <= len(self._bytes))
        windows: NDArray[np.uint64] = np.ndarray((max(0, len(self._bytes) - 7),), "<u8", self._bytes.data, 0, (1,))
        for word in range(words):
            codes.view("<u8")[fitting_rows, word] = windows[starts[fitting_rows] + 8 * word]
        for row in np.flatnonzero(starts + 8 * words > len(self._bytes)).tolist():
            codes[row, : lengths[row]] = self._bytes[starts[row] : ends[row]]
        codes *= np.arange(8 * words) < lengths[:, None]
        return CharacterRows(codes[:, :width], lengths)

    def _read_utf8(self, rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> CharacterRows:
        texts = []
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            try:
                texts.append(self._bytes[start:end].tobytes().decode())
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
        return f"{self.path}, line {(row if self._lines is None else int(self._lines[row])) + 1}"

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def alphabet(self) -> str:
        if self._is_ascii:
            return "".join(chr(i) for i in np.flatnonzero(self._used_bytes) if chr(i) not in "\r\n")
        used = np.zeros(0x110000, dtype=np.bool_)
        size = rows_per_block(self.longest)
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

    def __init__(self, path: Path, runs: Sequence[TokenRun], symbols: str, vocabulary_name: str) -> None:
        self.path, self.runs, self.vocabulary_name = path, runs, vocabulary_name
        self._symbols = symbols
        plain = symbols.isascii()
        self._code_points = np.array([ord(" "), 0, 0, 0, *map(ord, symbols)], dtype=np.uint8 if plain else np.uint32)
        self._run_ends = np.cumsum([len(piece.starts) - 1 for piece in runs], dtype=np.int64)
        self.count = int(self._run_ends[-1]) if len(runs) else 0
        self.longest = max((int(np.diff(piece.starts).max(initial=0)) for piece in runs), default=0)
        if self.longest > MAX_CHARACTERS:
            raise file_error(path, f"has a row of {self.longest:,} ids; {_MAX_LENGTH}")

    def read(self, rows: NDArray[np.int64]) -> CharacterRows:
        run_index = np.searchsorted(self._run_ends, rows, side="right")
        order = np.argsort(run_index, kind="stable")
        pieces = []
        for positions in np.split(order, np.flatnonzero(np.diff(run_index[order])) + 1) if len(rows) else []:
            number = int(run_index[positions[0]])
            piece = self.runs[number]
            local = rows[positions] - (int(self._run_ends[number]) - (len(piece.starts) - 1))
            starts = piece.starts[local].astype(np.int64)
            pieces.append((positions, piece, starts, piece.starts[local + 1].astype(np.int64) - starts))
        ids = np.zeros((len(rows), max((int(part[3].max()) for part in pieces), default=0)), dtype=np.int64)
        columns = np.arange(ids.shape[1])
        for positions, piece, starts, lengths in pieces:
            is_token = columns < lengths[:, None]
            ids[positions] = piece.ids[np.where(is_token, starts[:, None] + columns, starts[:, None])] * is_token
        return self._decode(ids, rows)

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


def _read_arrow_runs(file: Path) -> list[TokenRun]:
    """The `input_ids` of every record batch, left on the disk."""
    try:
        import pyarrow as arrow
    except ImportError as error:
        raise file_error(file, "is Arrow, which pyarrow reads: pip install 'numerate[data]'") from error
    try:
        source = arrow.memory_map(str(file))
        batches = list(arrow.ipc.open_stream(source))
    except (arrow.ArrowInvalid, OSError) as error:
        raise file_error(file, f"is no Arrow stream as `datasets` saves it ({str(error).splitlines()[0]})") from error
    runs = []
    for batch in batches:
        if "input_ids" not in batch.schema.names:
            raise file_error(file, f"has no column input_ids; it has: {', '.join(batch.schema.names)}")
        column = batch.column("input_ids")
        if column.null_count or not hasattr(column, "offsets"):
            raise file_error(file, f"the column input_ids is no list of token ids per row, but {column.type}")
        try:
            column.validate(full=True)
        except arrow.ArrowInvalid as error:
            raise file_error(file, f"is damaged ({str(error).splitlines()[0]}); save it anew") from error
        runs.append(TokenRun(column.offsets.to_numpy(), column.values.to_numpy()))
    return runs


def _open_written_folder(folder: Path) -> RowFile:
    """What `numerate data write` wrote. Raises `UserError` where it is not as it was written."""
    metadata = read_verified_metadata(folder)
    if "rows.txt" in metadata["files"]:
        return TextFile(folder / "rows.txt")
    symbols = metadata["vocabulary"][_NUM_SPECIAL_IDS:]
    if any(len(symbol) != 1 for symbol in symbols):
        raise file_error(folder, "has tokens of several characters; format=text can be read instead")
    ids = np.memmap(folder / "ids.bin", dtype=metadata["ids"], mode="r")
    starts = np.memmap(folder / "offsets.bin", dtype="<i8", mode="r")
    return TokenFile(folder / "ids.bin", [TokenRun(starts, ids)], "".join(symbols), METADATA_FILE)
