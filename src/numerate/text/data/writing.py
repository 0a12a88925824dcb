"""Writing rows to a folder as text, with a head that describes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.config import to_tree
from numerate.errors import UserError
from numerate.text.data.new_folder import atomic_folder, check_not_existing
from numerate.text.data.source import RowSource
from numerate.text.tasks.columns import ColumnWriter
from numerate.text.tasks.row_file_formats import WRITTEN_FILE, WRITTEN_FORMAT
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.training.provenance import versions
from numerate.vocabulary import BOS, EOS, PAD, Vocabulary


def write_rows(source: RowSource, out: str | Path, on_progress: Callable[[int], None] | None = None) -> Path:
    """Writes the rows of a source to a new folder and returns it.

    `rows.txt` has a row per line as the model sees it (`321+654=975`; words with spaces between them, `65 a a`; where a
    task has a label per token, its labels behind a tab, a dot where there is none). `head.json` says what they are and
    has the sha256 of the file; `ExampleFile` reads both. Memory does not grow with the count. The folder appears under
    its name when all is written; `on_progress` gets the number of rows after each block.

        write_rows(RowSource("sums", Arithmetic(digits=2), Characters(), count=1000), "sums")
        open("sums/rows.txt").readline()  # '02+51=53\n', which is 20+15=35

    Raises `UserError` for a folder that is there already, or where none may be written, and for tokens that contain
    line breaks.
    """
    out = Path(out)
    check_not_existing(out)
    vocabulary = source.vocabulary
    if symbols := [symbol for symbol in vocabulary.tokens if set(symbol) & set("\r\n")]:
        raise UserError(
            f"{source.name}: its token {symbols[0]!r} contains a line break, so rows are no lines of text; "
            "--as published writes the files of a paper"
        )
    with atomic_folder(out) as temporary, ColumnWriter(temporary) as columns:
        _write(source, vocabulary, columns, on_progress)
    return out


def _write(
    source: RowSource, vocabulary: Vocabulary, columns: ColumnWriter, on_progress: Callable[[int], None] | None
) -> None:
    num_rows = num_tokens = longest = 0
    has_labels = False
    for rows in source.read_blocks():
        columns.append(WRITTEN_FILE, format_lines(rows, vocabulary, source.tokenizer.separator))
        has_labels |= rows.labels is not None
        num_rows += len(rows)
        num_tokens += int(rows.lengths.sum())
        longest = max(longest, int(rows.lengths.max(initial=0)))
        if on_progress is not None:
            on_progress(num_rows)
    columns.write_head(
        {
            "format": WRITTEN_FORMAT,
            "rows": num_rows,
            "tokens": num_tokens,
            "longest": longest,
            "labels": has_labels,
            "vocabulary": list(vocabulary.tokens),
            "between": source.tokenizer.separator,
            "source": source.name,
            "task": to_tree(source.task),
            "tokenizer": to_tree(source.tokenizer),
            "split": source.split,
            "seed": source.seed,
            "each_once": source.each_once,
            "versions": versions(),
        }
    )


def format_lines(rows: TokenizedExamples, vocabulary: Vocabulary, separator: str = "") -> bytes:
    """The rows as lines of text in UTF-8, with `separator` between the tokens."""
    is_token = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
    is_special = np.isin(rows.ids, (PAD, BOS, EOS)) | ~is_token
    if (
        separator
        or rows.labels is not None
        or any(len(symbol) != 1 for symbol in _used_symbols(rows.ids, ~is_special, vocabulary))
    ):
        return "".join(_format_line(rows, row, vocabulary, separator) + "\n" for row in range(len(rows))).encode()
    symbols = [symbol if len(symbol) == 1 else "\0" for symbol in vocabulary.tokens]
    is_ascii = all(symbol.isascii() for symbol in symbols)
    table = np.array(list(map(ord, symbols)), dtype=np.uint8 if is_ascii else "<u4")
    codes = np.full((len(rows), rows.ids.shape[1] + 1), ord("\n"), dtype=table.dtype)
    codes[:, :-1] = table[rows.ids]
    keep_mask = np.concatenate([~is_special, np.ones((len(rows), 1), dtype=np.bool_)], axis=1)
    line: bytes = codes[keep_mask].tobytes()
    return line if is_ascii else line.decode("utf-32-le").encode()


def _used_symbols(ids: NDArray[Any], mask: NDArray[np.bool_], vocabulary: Vocabulary) -> list[str]:
    counts = np.bincount(ids[mask].astype(np.int64), minlength=vocabulary.size)
    return [vocabulary.tokens[i] for i in np.flatnonzero(counts)]


def _format_line(rows: TokenizedExamples, row: int, vocabulary: Vocabulary, separator: str) -> str:
    ids = rows.ids[row, : rows.lengths[row]].tolist()
    columns = [at for at, i in enumerate(ids) if i not in (PAD, BOS, EOS)]
    text = separator.join(vocabulary.tokens[ids[at]] for at in columns)
    if rows.labels is None:
        return text
    labels = rows.labels[row, columns].tolist()
    return text + "\t" + separator.join(vocabulary.tokens[label] if label else "." for label in labels)
