"""Rows of words with a label each: `65 a a` with . 66 67, as `numerate data write` writes them.

They become columns of token ids and of labels, which are made once (`build_columns`).
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.contents import file_sha256
from numerate.tasks.questions import EMPTY
from numerate.text.tasks.columns import AnyColumns, build_columns, cached_folder
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.ragged_rows import RaggedRows
from numerate.text.tasks.row_files import RowFile, rows_per_block
from numerate.text.tasks.text_files import combine_hashes
from numerate.vocabulary import SPECIAL_TOKENS

NO_LABEL = "."
"""The text of a missing label."""

_NUM_CHECKED_ROWS = 1000
_MAX_WORDS = 1 << 15
_NUM_SPECIAL = len(SPECIAL_TOKENS)


class LabeledRows(NamedTuple):
    """Rows of words and labels as indices into the file's words, int16 `[rows, width]`, `EMPTY` for none."""

    symbols: NDArray[np.int16]
    labels: NDArray[np.int16]


class LabeledFile:
    """Rows of words with a label each, read by index. `words` are all words and labels that rows may have, in the order
    of their ids from 4 on; a label 0 is none."""

    def __init__(self, words: Iterable[str], ids: RaggedRows, labels: RaggedRows, files: tuple[Path, ...]) -> None:
        self.words, self._ids, self._labels, self._files = tuple(words), ids, labels, files
        self.count, self.longest = len(ids), ids.max_length()

    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""
        return self._files

    def read(self, rows: NDArray[np.int64]) -> LabeledRows:
        """The rows with these indices."""
        ids, labels = (column.padded(rows)[0].astype(np.int64) for column in (self._ids, self._labels))
        symbols, targets = (
            np.where(part < _NUM_SPECIAL, EMPTY, part - _NUM_SPECIAL).astype(np.int16) for part in (ids, labels)
        )
        return LabeledRows(symbols, targets)


def open_labeled_text(rows: RowFile, separator: str | None = None, words: tuple[str, ...] = ()) -> LabeledFile:
    """Lines of text: words, a tab, and as many labels. `separator` separates them, a space or nothing; None: detected
    from the first 1,000 rows. `words` is the vocabulary; empty: that of the file, numbers first, by their size, then
    the other words in the order in which they come.

    Raises `UserError` with the file and line of a row that is none.
    """
    if separator is None:
        separator = " " if any(" " in rows.text(row) for row in range(min(rows.count, _NUM_CHECKED_ROWS))) else ""
    key = combine_hashes([*map(file_sha256, rows.files()), separator, *words])
    folder = cached_folder("labels", key, rows.files())
    dtypes = {"ids": np.uint16, "labels": np.uint16, "offsets": np.int64}
    head, columns = build_columns(partial(_read_text, rows, separator, words), dtypes, folder)
    ids, labels = (RaggedRows(columns["offsets"], columns[name]) for name in ("ids", "labels"))
    return LabeledFile(head["words"], ids, labels, rows.files())


def _read_text(rows: RowFile, separator: str, words: tuple[str, ...], columns: AnyColumns) -> dict[str, Any]:
    """Writes lines of text as columns."""
    words = words or _scan_words(rows, separator)
    ids, num_tokens = {word: number for number, word in enumerate(words, _NUM_SPECIAL)} | {NO_LABEL: 0}, 0
    columns.append("offsets", np.zeros(1, np.int64))
    for start in range(0, rows.count, rows_per_block(rows.longest)):
        lines = _read_lines(rows, separator, start)
        for column, name in enumerate(("ids", "labels")):
            columns.append(name, np.array([ids[word] for line in lines for word in line[column]], np.uint16))
        ends = num_tokens + np.array([len(line[0]) for line in lines]).cumsum()
        columns.append("offsets", ends)
        num_tokens = int(ends[-1])
    return {"words": list(words)}


def _scan_words(rows: RowFile, separator: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for start in range(0, rows.count, rows_per_block(rows.longest)):
        for words, labels in _read_lines(rows, separator, start):
            found.update(dict.fromkeys(words))
            found.update(dict.fromkeys(label for label in labels if label != NO_LABEL))
    if len(found) > _MAX_WORDS:
        raise file_error(rows.files()[0], f"has {len(found)} different words, which is too many")
    numbers = {word for word in found if word.isascii() and word.isdigit()}
    in_order = sorted(numbers, key=lambda word: (int(word), word))
    return (*in_order, *(word for word in found if word not in numbers))


def _read_lines(rows: RowFile, separator: str, start: int) -> list[tuple[list[str], list[str]]]:
    """The words and labels of a block of rows."""
    indices = np.arange(start, min(start + rows_per_block(rows.longest), rows.count))
    codes, lengths = rows.read(indices)
    result = []
    for row, line, length in zip(indices.tolist(), codes, lengths.tolist(), strict=True):
        text = "".join(map(chr, line[:length].tolist()))
        parts = [part.split(separator) if separator else [*part] for part in text.split("\t")]
        if (
            len(parts) != 2
            or not parts[0]
            or len(parts[0]) != len(parts[1])
            or not all(map(all, parts))
            or NO_LABEL in parts[0]
        ):
            raise file_error(
                rows.location(row), f"{text!r} must be words, a tab and one label per word (a dot for none)"
            )
        result.append((parts[0], parts[1]))
    return result


def is_labeled_line(text: str) -> bool:
    """Whether a line of text is words with labels behind a tab, and no question with an answer behind an equals sign.

    >>> is_labeled_line("65 a a\\t. 66 67"), is_labeled_line("12+9=21")
    (True, False)
    """
    return text.count("\t") == 1 and "=" not in text
