"""Reading the rows that `numerate data write` wrote, from the disk and without a copy."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.row_heads import read_verified_metadata
from numerate.vocabulary import BOS, EOS, PAD


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
    return StoredRows(Path(folder))


class StoredRows:
    """The rows of a folder: `rows[i]` are the token ids of row i, a view of the file.

    - `metadata`: what was written (task, tokenizer, split, seed, versions, sha256 of every file).
    - `symbols`: the text of each id. `ids`, `offsets`: the files as arrays.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = read_verified_metadata(folder)
        files = self.metadata["files"]
        if "ids.bin" not in files:
            raise file_error(folder, "was written as text only; format=memmap or format=both also writes token ids")
        self.symbols: tuple[str, ...] = tuple(self.metadata["vocabulary"])
        self.ids = self._open_array("ids.bin", self.metadata["ids"])
        self.offsets: NDArray[np.int64] = self._open_array("offsets.bin", "<i8")
        self._answer_starts = self._open_array("answers.bin", "<i4") if "answers.bin" in files else None
        self._labels = self._open_array("labels.bin", self.metadata["ids"]) if "labels.bin" in files else None

    def _open_array(self, name: str, dtype: str) -> NDArray[Any]:
        # Without rows a file is empty, which cannot be mapped.
        path = self.folder / name
        return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype=dtype)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        start, end = self._row_bounds(row)
        return self.ids[start:end]

    def answer(self, row: int) -> NDArray[Any]:
        """The ids of a row's answer, its [EOS] among them. Raises `UserError` where rows have labels instead."""
        if self._answer_starts is None:
            raise file_error(self.folder, "its rows have a label per token, not an answer after the question")
        start, end = self._row_bounds(row)
        return self.ids[start + int(self._answer_starts[row]) : end]

    def labels(self, row: int) -> NDArray[Any]:
        """The label of each token of a row, 0 where there is none. Raises `UserError` where rows have answers."""
        if self._labels is None:
            raise file_error(self.folder, "its rows have an answer after the question, not labels")
        start, end = self._row_bounds(row)
        return self._labels[start:end]

    def text(self, row: int) -> str:
        """A row as text, without that of [PAD], [BOS] and [EOS]."""
        separator: str = self.metadata.get("between", "")
        return separator.join(self.symbols[i] for i in self[row].tolist() if i not in (PAD, BOS, EOS))

    def _row_bounds(self, row: int) -> tuple[int, int]:
        index = row + len(self) if row < 0 else row
        if not 0 <= index < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return int(self.offsets[index]), int(self.offsets[index + 1])
