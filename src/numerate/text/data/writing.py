"""Writing rows to a folder as text and as token ids, with a header that describes them."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import to_tree
from numerate.errors import UserError, did_you_mean
from numerate.text.data.new_folder import new_folder, refuse_taken
from numerate.text.data.source import Source
from numerate.text.tasks.row_heads import FORMAT, HEAD, head_bytes
from numerate.tokenizers.number_formats import id_type
from numerate.tokenizers.tokenizer import Rows
from numerate.training import disk
from numerate.training.provenance import versions
from numerate.vocabulary import BEGIN, END, PAD, Vocabulary

FORMATS = ("text", "memmap", "both")


def write(
    source: Source,
    out: str | Path,
    format: Literal["text", "memmap", "both"] = "both",
    on_progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes the rows of a source to a new folder and returns it.

    `rows.txt` has a row per line as the model sees it (`321+654=975`; words with spaces between them, `65 a a`; where a
    task has a label per token, its labels behind a tab, a dot where there is none); the memmap is what `open_rows`
    reads. `head.json` says what they are and has the sha256 of each file. Memory does not grow with the count. The
    folder appears under its name when all is written; `on_progress` gets the number of rows after each block.

    Raises `UserError` for a folder that is there already, or where none may be written.
    """
    out = Path(out)
    if format not in FORMATS:
        raise UserError(
            f"format: there is no {format!r}; there are: {', '.join(FORMATS)}.{did_you_mean(format, FORMATS)}"
        )
    refuse_taken(out)
    vocabulary = source.vocabulary
    if format != "memmap" and (clash := [symbol for symbol in vocabulary.symbols if set(symbol) & set("\r\n")]):
        raise UserError(f"format: {clash[0]!r} would break a line of text; format=memmap is right")
    with new_folder(out) as beside:
        _write(source, vocabulary, beside, format, on_progress)
    return out


def _write(
    source: Source, vocabulary: Vocabulary, folder: Path, format: str, on_progress: Callable[[int], None] | None
) -> None:
    files: dict[str, _File] = {}
    rows_written = tokens = longest = 0
    kind = np.dtype(id_type(vocabulary)).newbyteorder("<")
    with contextlib.ExitStack() as open_files:

        def put(name: str, content: bytes | memoryview) -> None:
            if name not in files:
                files[name] = open_files.enter_context(contextlib.closing(_File(folder / name)))
            files[name].write(content)

        if format != "text":
            put("offsets.bin", np.zeros(1, dtype="<i8").tobytes())
        for _, rows in source.blocks():
            real = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
            if format != "memmap":
                put("rows.txt", text_lines(rows, vocabulary, source.tokenizer.between))
            if format != "text":
                put("ids.bin", rows.ids[real].astype(kind, copy=False).tobytes())
                put("offsets.bin", (tokens + np.cumsum(rows.lengths)).astype("<i8").tobytes())
                if rows.labels is None:
                    put("answers.bin", rows.target_mask.argmax(axis=1).astype("<i4").tobytes())
                else:
                    put("labels.bin", rows.labels[real].astype(kind, copy=False).tobytes())
            rows_written += len(rows)
            tokens += int(rows.lengths.sum())
            longest = max(longest, int(rows.lengths.max(initial=0)))
            if on_progress is not None:
                on_progress(rows_written)
    head = {
        "format": FORMAT,
        "rows": rows_written,
        "tokens": tokens,
        "longest": longest,
        "ids": str(kind),
        "vocabulary": list(vocabulary.symbols),
        "between": source.tokenizer.between,
        "source": source.name,
        "task": to_tree(source.task),
        "tokenizer": to_tree(source.tokenizer),
        "split": source.split,
        "seed": source.seed,
        "each_once": source.whole,
        "versions": versions(),
        "files": {name: {"bytes": file.size, "sha256": file.sum.hexdigest()} for name, file in sorted(files.items())},
    }
    disk.replace(folder / HEAD, head_bytes(head))


class _File:
    """A file with its size and hash so far."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "xb", buffering=0)  # noqa: SIM115 (closed by whoever opens it)
        self.sum, self.size = hashlib.sha256(), 0

    def write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        self.sum.update(view)
        self.size += len(view)
        while len(view):
            view = view[self._file.write(view) :]

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def text_lines(rows: Rows, vocabulary: Vocabulary, between: str = "") -> bytes:
    """The rows as lines of text in UTF-8, with `between` between the tokens."""
    valid = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
    hidden = np.isin(rows.ids, (PAD, BEGIN, END)) | ~valid
    if between or rows.labels is not None or any(len(symbol) != 1 for symbol in _used(rows.ids, ~hidden, vocabulary)):
        return "".join(_line(rows, row, vocabulary, between) + "\n" for row in range(len(rows))).encode()
    symbols = [symbol if len(symbol) == 1 else "\0" for symbol in vocabulary.symbols]
    plain = all(symbol.isascii() for symbol in symbols)
    table = np.array(list(map(ord, symbols)), dtype=np.uint8 if plain else "<u4")
    codes = np.full((len(rows), rows.ids.shape[1] + 1), ord("\n"), dtype=table.dtype)
    codes[:, :-1] = table[rows.ids]
    kept = np.concatenate([~hidden, np.ones((len(rows), 1), dtype=np.bool_)], axis=1)
    line: bytes = codes[kept].tobytes()
    return line if plain else line.decode("utf-32-le").encode()


def _used(ids: NDArray[Any], shown: NDArray[np.bool_], vocabulary: Vocabulary) -> list[str]:
    counts = np.bincount(ids[shown].astype(np.int64), minlength=vocabulary.size)
    return [vocabulary.symbols[i] for i in np.flatnonzero(counts)]


def _line(rows: Rows, row: int, vocabulary: Vocabulary, between: str) -> str:
    ids = rows.ids[row, : rows.lengths[row]].tolist()
    shown = [at for at, i in enumerate(ids) if i not in (PAD, BEGIN, END)]
    text = between.join(vocabulary.symbols[ids[at]] for at in shown)
    if rows.labels is None:
        return text
    labels = rows.labels[row, shown].tolist()
    return text + "\t" + between.join(vocabulary.symbols[label] if label else "." for label in labels)
