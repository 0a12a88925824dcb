"""Writing rows to a folder as text and as token ids, with a header that describes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import to_tree
from numerate.errors import UserError, check_choice
from numerate.text.data.new_folder import atomic_folder, check_not_existing
from numerate.text.data.source import RowSource
from numerate.text.tasks.columns import ColumnWriter
from numerate.text.tasks.stored_rows import FORMAT
from numerate.tokenizers.number_formats import id_dtype
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.training.provenance import versions
from numerate.vocabulary import BOS, EOS, PAD, Vocabulary

FORMATS = ("text", "memmap", "both")


def write_rows(
    source: RowSource,
    out: str | Path,
    format: Literal["text", "memmap", "both"] = "both",
    on_progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes the rows of a source to a new folder and returns it.

    `rows.txt` has a row per line as the model sees it (`321+654=975`; words with spaces between them, `65 a a`; where a
    task has a label per token, its labels behind a tab, a dot where there is none); the memmap is what
    `open_rows` and `ExampleFile` read. `head.json` says what they are and has the sha256 of each file. Memory does not
    grow with the count. The folder appears under its name when all is written; `on_progress` gets the number of rows
    after each block.

    Raises `UserError` for a folder that is there already, or where none may be written.
    """
    out = Path(out)
    check_choice("format", format, FORMATS)
    check_not_existing(out)
    vocabulary = source.vocabulary
    if format != "memmap" and (
        symbols_with_newline := [symbol for symbol in vocabulary.tokens if set(symbol) & set("\r\n")]
    ):
        raise UserError(f"format: {symbols_with_newline[0]!r} contains a line break; format must be memmap")
    with atomic_folder(out) as temporary, ColumnWriter(temporary) as columns:
        _write_columns(source, vocabulary, columns, format, on_progress)
    return out


def _write_columns(
    source: RowSource,
    vocabulary: Vocabulary,
    columns: ColumnWriter,
    format: str,
    on_progress: Callable[[int], None] | None,
) -> None:
    num_rows = num_tokens = longest = 0
    dtype = np.dtype(id_dtype(vocabulary)).newbyteorder("<")
    if format != "text":
        columns.append("offsets.bin", np.zeros(1, dtype="<i8"))
    for _, rows in source.read_blocks():
        is_token = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
        if format != "memmap":
            columns.append("rows.txt", format_lines(rows, vocabulary, source.tokenizer.separator))
        if format != "text":
            columns.append("ids.bin", rows.ids[is_token].astype(dtype, copy=False))
            columns.append("offsets.bin", (num_tokens + np.cumsum(rows.lengths)).astype("<i8"))
            if rows.labels is None:
                columns.append("answers.bin", rows.target_mask.argmax(axis=1).astype("<i4"))
            else:
                columns.append("labels.bin", rows.labels[is_token].astype(dtype, copy=False))
        num_rows += len(rows)
        num_tokens += int(rows.lengths.sum())
        longest = max(longest, int(rows.lengths.max(initial=0)))
        if on_progress is not None:
            on_progress(num_rows)
    columns.write_head(
        {
            "format": FORMAT,
            "rows": num_rows,
            "tokens": num_tokens,
            "longest": longest,
            "ids": str(dtype),
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
