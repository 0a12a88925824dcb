"""Rows of token ids in a folder that `numerate data write` wrote: `head.json`, and a file for each column."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.text.tasks.columns import HEAD_FILE, open_column, read_verified_head
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.ragged_rows import RaggedRows
from numerate.vocabulary import BOS, EOS, PAD

FORMAT = "numerate rows 1"
"""What the head of a folder says that it is."""

ROW_FILE_NAMES = ("rows.txt", "ids.bin", "offsets.bin", "answers.bin", "labels.bin")
"""The files that a head tells of."""


def find_written_folder(place: Path) -> Path | None:
    """The folder with a head that a path means, or that the file there is of; None where there is none."""
    folder = place.parent if place.name in ROW_FILE_NAMES else place
    return folder if (folder / HEAD_FILE).is_file() else None


def existing_files(folder: Path) -> list[Path]:
    """The head of a folder and the files beside it that a head may tell of."""
    return [file for name in (HEAD_FILE, *ROW_FILE_NAMES) if (file := folder / name).is_file()]


def read_verified_metadata(folder: Path) -> dict[str, Any]:
    """What the head of a folder says, where its files are as they were written. Raises `UserError` otherwise, and for
    what `numerate data write` did not write."""
    metadata = read_verified_head(folder, FORMAT, ROW_FILE_NAMES)
    if np.dtype(metadata["ids"]).kind != "u":
        raise file_error(folder / HEAD_FILE, f"ids must be unsigned integers, not {metadata['ids']}")
    return metadata


def open_rows(folder: str | Path) -> "StoredRows":
    """Opens a folder that `numerate data write` wrote as a memmap.

    `numerate data write Arithmetic out=sums count=1M format=both`, then:

        rows = open_rows("sums")
        len(rows)  # 1000000
        rows[7].tolist()  # ids of row 7, its [EOS] = 3 among them: [10, 14, 12, 6, 7, 17, 8, 7, 7, 3]
        rows.text(7)  # '6+823=433'
        rows.metadata["seed"], rows.symbols[10]  # (0, '6')
        torch.tensor(rows[7], dtype=torch.long)  # as input of any model

    Rows are read lazily; several processes may open the same folder. The files are plain, so any
    program can read them: `ids.bin` has the ids of all rows one after the other (type `head["ids"]`, uint8 or uint16),
    row i from `offsets.bin`[i] to `offsets.bin`[i + 1] (int64), all little-endian; `head.json` has the vocabulary.

    Raises `UserError` for a folder that is none of these, or that was written as text alone or is not complete.
    """
    return StoredRows(Path(folder), read_verified_metadata(Path(folder)))


class StoredRows:
    """The rows of a folder: `rows[i]` are the token ids of row i, a view of the file.

    - `metadata`: what was written (task, tokenizer, split, seed, versions, sha256 of every file).
    - `symbols`: the text of each id. `ids`, `offsets`: the files as arrays; `rows`: the ids of each row.
    """

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self.folder, self.metadata = folder, metadata
        files = metadata["files"]
        if "ids.bin" not in files:
            raise file_error(folder, "was written as text only; format=memmap or format=both also writes token ids")
        self.symbols: tuple[str, ...] = tuple(metadata["vocabulary"])
        self.ids: NDArray[Any] = open_column(folder / "ids.bin", metadata["ids"])
        self.offsets: NDArray[np.int64] = open_column(folder / "offsets.bin", "<i8")
        self.rows = RaggedRows(self.offsets, self.ids)
        self._answer_starts = open_column(folder / "answers.bin", "<i4") if "answers.bin" in files else None
        self._labels = open_column(folder / "labels.bin", metadata["ids"]) if "labels.bin" in files else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.rows[row]

    def answer(self, row: int) -> NDArray[Any]:
        """The ids of a row's answer, its [EOS] among them. Raises `UserError` where rows have labels instead."""
        if self._answer_starts is None:
            raise file_error(self.folder, "its rows have a label per token, not an answer after the question")
        return self[row][int(self._answer_starts[row]) :]

    def labels(self, row: int) -> NDArray[Any]:
        """The label of each token of a row, 0 where there is none. Raises `UserError` where rows have answers."""
        return self.ragged_labels()[row]

    def ragged_labels(self) -> RaggedRows:
        """The labels of all rows. Raises `UserError` where rows have answers."""
        if self._labels is None:
            raise file_error(self.folder, "its rows have an answer after the question, not labels")
        return RaggedRows(self.offsets, self._labels)

    def text(self, row: int) -> str:
        """A row as text, without that of [PAD], [BOS] and [EOS]."""
        separator: str = self.metadata.get("between", "")
        return separator.join(self.symbols[i] for i in self[row].tolist() if i not in (PAD, BOS, EOS))
