"""Files of rows with a label per word: `65 a a` with . 66 67, as `numerate data write` writes them.

Rows are token ids (`ids.bin` beside `labels.bin`) or lines of text, with the labels after a tab, a dot for no label.
Token ids are memory-mapped; lines are scanned once for their words.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.config import Spec
from numerate.tasks.questions import EMPTY
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.row_files import UNKNOWN_TOKEN_ERROR, RowFile, rows_per_block
from numerate.text.tasks.stored_rows import StoredRows
from numerate.vocabulary import SPECIAL_TOKENS, UNK

NO_LABEL = "."
"""The text of a missing label."""

_NUM_CHECKED_ROWS = 1000
_MAX_WORDS = 1 << 15


class LabeledRows(NamedTuple):
    """Rows of words and labels as indices into the file's words, int16 `[rows, width]`, `EMPTY` for none."""

    symbols: NDArray[np.int16]
    labels: NDArray[np.int16]


class LabeledFile(Spec, ABC):
    """Rows of words with a label each, read by index."""

    count: int

    longest: int
    """No row has more words and labels."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """Every word and label that rows may have."""

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> LabeledRows:
        """The rows with these indices."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""


class LabeledTokenFile(LabeledFile):
    """The token ids of a folder that `numerate data write` wrote.

    Raises `UserError` for a row whose words are lost.
    """

    def __init__(self, stored: StoredRows) -> None:
        self._ids, self._labels, self._words = (
            stored.ragged_ids(),
            stored.ragged_labels(),
            stored.symbols[len(SPECIAL_TOKENS) :],
        )
        self.path = stored.folder / "ids.bin"
        self.count, self.longest = len(self._ids), self._ids.max_length()

    @property
    def words(self) -> tuple[str, ...]:
        return self._words

    def files(self) -> tuple[Path, ...]:
        return (self.path, self.path.with_name("labels.bin"))

    def read(self, rows: NDArray[np.int64]) -> LabeledRows:
        ids, labels = (column.padded(rows)[0].astype(np.int64) for column in (self._ids, self._labels))
        has_unknown = (ids == UNK).any(axis=1)
        if has_unknown.any():
            raise file_error(f"{self.path}, row {int(rows[has_unknown.argmax()])}", UNKNOWN_TOKEN_ERROR)
        num_special = len(SPECIAL_TOKENS)
        if ids.shape[1] and (ids[:, 0] < num_special).any():
            # A leading special token such as [BOS] is no word; the tokenizer adds it again.
            has_leading_special = ids[:, :1] < num_special
            ids, labels = (
                np.where(has_leading_special, np.pad(part[:, 1:], ((0, 0), (0, 1))), part) for part in (ids, labels)
            )
        symbols, targets = (
            np.where(part < num_special, EMPTY, part - num_special).astype(np.int16) for part in (ids, labels)
        )
        return LabeledRows(symbols, targets)


class LabeledTextFile(LabeledFile):
    """Lines of text: words, a tab, and as many labels. `separator` separates them, a space or nothing; None: detected
    from the first 1,000 rows. `words` is the vocabulary; empty: collected from the file.

    Raises `UserError` with the file and line of a row that is none.
    """

    def __init__(self, rows: RowFile, separator: str | None = None, words: tuple[str, ...] = ()) -> None:
        self._rows, self.count, self.longest, self._vocabulary = rows, rows.count, rows.longest, words
        if separator is None:
            separator = " " if any(" " in rows.text(row) for row in range(min(self.count, _NUM_CHECKED_ROWS))) else ""
        self.separator = separator

    @property
    def words(self) -> tuple[str, ...]:
        return self._vocabulary or self._scan_words

    def files(self) -> tuple[Path, ...]:
        return self._rows.files()

    @cached_property
    def _scan_words(self) -> tuple[str, ...]:
        """Numbers first, by their size, then the other words in the order in which they come."""
        words_in_order: dict[str, None] = {}
        size = rows_per_block(self.longest)
        for start in range(0, self.count, size):
            for words, labels in self._read_lines(np.arange(start, min(start + size, self.count))):
                words_in_order.update(dict.fromkeys(words))
                words_in_order.update(dict.fromkeys(label for label in labels if label != NO_LABEL))
        if len(words_in_order) > _MAX_WORDS:
            raise file_error(self.files()[0], f"has {len(words_in_order)} different words, which is too many")
        numbers = [word for word in words_in_order if word.isascii() and word.isdigit()]
        return (
            *sorted(numbers, key=lambda word: (int(word), word)),
            *(word for word in words_in_order if word not in numbers),
        )

    @cached_property
    def _word_indices(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)} | {NO_LABEL: EMPTY}

    def read(self, rows: NDArray[np.int64]) -> LabeledRows:
        lines, numbers = self._read_lines(rows), self._word_indices
        width = max((len(words) for words, _ in lines), default=0)
        symbols = np.full((len(rows), width), EMPTY, dtype=np.int16)
        labels = symbols.copy()
        for row, (words, targets) in enumerate(lines):
            symbols[row, : len(words)] = [numbers[word] for word in words]
            labels[row, : len(targets)] = [numbers[label] for label in targets]
        return LabeledRows(symbols, labels)

    def _read_lines(self, rows: NDArray[np.int64]) -> list[tuple[list[str], list[str]]]:
        codes, lengths = self._rows.read(rows)
        result = []
        for row, line, length in zip(rows.tolist(), codes, lengths.tolist(), strict=True):
            text = "".join(map(chr, line[:length].tolist()))
            parts = [part.split(self.separator) if self.separator else [*part] for part in text.split("\t")]
            if (
                len(parts) != 2
                or not parts[0]
                or len(parts[0]) != len(parts[1])
                or not all(map(all, parts))
                or NO_LABEL in parts[0]
            ):
                raise file_error(
                    self._rows.location(row), f"{text!r} must be words, a tab and one label per word (a dot for none)"
                )
            result.append((parts[0], parts[1]))
        return result


def is_labeled_line(text: str) -> bool:
    """Whether a line of text is words with labels behind a tab, and no question with an answer behind an equals sign.

    >>> is_labeled_line("65 a a\\t. 66 67"), is_labeled_line("12+9=21")
    (True, False)
    """
    return text.count("\t") == 1 and "=" not in text
