"""Files of rows with a label per word: `65 a a` with . 66 67, as `numerate data write` writes them.

Rows are token ids (`ids.bin` beside `labels.bin`) or lines of text, with the labels after a tab, a dot for no label.
Token ids are memory-mapped; lines are scanned once for their words.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.questions import EMPTY
from numerate.text.tasks.row_files import RowFile, open_row_file, rows_at_once
from numerate.text.tasks.row_heads import checked_head, files_of, written_folder
from numerate.text.tasks.text_files import stamp
from numerate.vocabulary import SPECIALS, UNKNOWN

NOTHING = "."
"""The text of a missing label."""

_LOOKED_AT = 1000
_MOST_WORDS = 1 << 15


class Labelled(NamedTuple):
    """Rows of words and labels as indices into the file's words, int16 `[rows, width]`, `EMPTY` for none."""

    symbols: NDArray[np.int16]
    labels: NDArray[np.int16]


class LabelledFile(ABC):
    """Rows of words with a label each, read by index."""

    count: int

    longest: int
    """No row has more words and labels."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """Every word and label that rows may have."""

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> Labelled:
        """The rows with these indices."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""


class LabelledTokens(LabelledFile):
    """The token ids of a folder that `numerate data write` wrote; `head` is what its `head.json` says.

    Raises `UserError` for a row whose words are lost.
    """

    def __init__(self, folder: Path, head: Mapping[str, Any]) -> None:
        self.path, self._words = folder / "ids.bin", tuple(head["vocabulary"][len(SPECIALS) :])
        self._ids = np.memmap(self.path, dtype=head["ids"], mode="r")
        self._labels = np.memmap(folder / "labels.bin", dtype=head["ids"], mode="r")
        self._starts = np.memmap(folder / "offsets.bin", dtype="<i8", mode="r")
        self.count = len(self._starts) - 1
        self.longest = int(np.diff(self._starts).max(initial=0))

    @property
    def words(self) -> tuple[str, ...]:
        return self._words

    def files(self) -> tuple[Path, ...]:
        return (self.path, self.path.with_name("labels.bin"))

    def read(self, rows: NDArray[np.int64]) -> Labelled:
        starts = self._starts[rows]
        lengths = self._starts[rows + 1] - starts
        columns = np.arange(int(lengths.max(initial=0)))
        there = columns < lengths[:, None]
        places = np.where(there, starts[:, None] + columns, 0)
        ids, labels = (np.where(there, part[places], 0).astype(np.int64) for part in (self._ids, self._labels))
        lost = (ids == UNKNOWN).any(axis=1)
        if lost.any():
            raise UserError(
                f"{self.path}, row {int(rows[lost.argmax()])}: holds [UNK], a word that its vocabulary had not; "
                "what it was is lost"
            )
        special = len(SPECIALS)
        if len(columns) and (ids[:, 0] < special).any():
            # A leading special token such as [BOS] is no word; the tokenizer adds it again.
            begun = ids[:, :1] < special
            ids, labels = (
                np.where(begun, np.pad(part[:, 1:], ((0, 0), (0, 1))), part)[:, : len(columns)]
                for part in (ids, labels)
            )
        symbols, targets = (np.where(part < special, EMPTY, part - special).astype(np.int16) for part in (ids, labels))
        return Labelled(symbols, targets)


class LabelledText(LabelledFile):
    """Lines of text: words, a tab, and as many labels. `between` stands between them, a space or nothing; None: as the
    first 1,000 rows look. `words` are those that there are; none: those found.

    Raises `UserError` with the file and line of a row that is none.
    """

    def __init__(self, rows: RowFile, between: str | None = None, words: tuple[str, ...] = ()) -> None:
        self._rows, self.count, self.longest, self._given = rows, rows.count, rows.longest, words
        if between is None:
            between = " " if any(" " in rows.text(row) for row in range(min(self.count, _LOOKED_AT))) else ""
        self.between = between

    @property
    def words(self) -> tuple[str, ...]:
        return self._given or self._found

    def files(self) -> tuple[Path, ...]:
        return self._rows.files()

    @cached_property
    def _found(self) -> tuple[str, ...]:
        """Numbers first, by their size, then the other words in the order in which they come."""
        found: dict[str, None] = {}
        size = rows_at_once(self.longest)
        for start in range(0, self.count, size):
            for words, labels in self._lines(np.arange(start, min(start + size, self.count))):
                found.update(dict.fromkeys(words))
                found.update(dict.fromkeys(label for label in labels if label != NOTHING))
        if len(found) > _MOST_WORDS:
            raise UserError(
                f"path: {self._rows.where(0)}: the rows have {len(found)} different words, which is too many"
            )
        numbers = [word for word in found if word.isascii() and word.isdigit()]
        return (*sorted(numbers, key=lambda word: (int(word), word)), *(word for word in found if word not in numbers))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)} | {NOTHING: EMPTY}

    def read(self, rows: NDArray[np.int64]) -> Labelled:
        lines, numbers = self._lines(rows), self._numbers
        width = max((len(words) for words, _ in lines), default=0)
        symbols = np.full((len(rows), width), EMPTY, dtype=np.int16)
        labels = symbols.copy()
        for row, (words, targets) in enumerate(lines):
            symbols[row, : len(words)] = [numbers[word] for word in words]
            labels[row, : len(targets)] = [numbers[label] for label in targets]
        return Labelled(symbols, labels)

    def _lines(self, rows: NDArray[np.int64]) -> list[tuple[list[str], list[str]]]:
        codes, lengths = self._rows.read(rows)
        found = []
        for row, line, length in zip(rows.tolist(), codes, lengths.tolist(), strict=True):
            text = "".join(map(chr, line[:length].tolist()))
            parts = [part.split(self.between) if self.between else [*part] for part in text.split("\t")]
            if (
                len(parts) != 2
                or not parts[0]
                or len(parts[0]) != len(parts[1])
                or not all(map(all, parts))
                or NOTHING in parts[0]
            ):
                raise UserError(
                    f"{self._rows.where(row)}: {text!r} has not one label for each word; words, a tab and as many "
                    "labels are right, a dot for no label"
                )
            found.append((parts[0], parts[1]))
        return found


def is_labelled(text: str) -> bool:
    """Whether a line of text is words with labels behind a tab, and no question with an answer behind an equals sign.

    >>> is_labelled("65 a a\\t. 66 67"), is_labelled("12+9=21")
    (True, False)
    """
    return text.count("\t") == 1 and "=" not in text


def open_rows(path: str | Path, split: str = "all", vocabulary: str = "pad") -> RowFile | LabelledFile:
    """Opens rows of words with labels as such, and all others as `open_row_file` does, which says what `split` and
    `vocabulary` are.

    A folder of `numerate data write` with a label per word has `labels.bin`; text is so where its first line looks so.
    Raises `UserError` as `open_row_file` does, and for a folder that is not complete.
    """
    place = Path(path)
    if split == "all" and (folder := written_folder(place)) is not None:
        return _written(folder, tuple(map(stamp, files_of(folder))), vocabulary)
    rows = open_row_file(place, split, vocabulary)
    return _text(rows, None, ()) if is_labelled(rows.text(0)) else rows


@lru_cache(maxsize=8)
def _written(folder: Path, stamps: tuple[tuple[str, int, int], ...], vocabulary: str) -> RowFile | LabelledFile:
    head = checked_head(folder)
    if "labels.bin" in head["files"]:
        return LabelledTokens(folder, head)
    rows = open_row_file(folder, vocabulary=vocabulary)
    if not is_labelled(rows.text(0)):
        return rows
    return _text(rows, head["between"], tuple(head["vocabulary"][len(SPECIALS) :]))


@lru_cache(maxsize=8)
def _text(rows: RowFile, between: str | None, words: tuple[str, ...]) -> LabelledText:
    return LabelledText(rows, between, words)
