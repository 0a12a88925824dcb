"""Questions from files of rows: data of other systems, or of `numerate data write`."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.config.path_names import shortest_unique_names
from numerate.errors import UserError
from numerate.tasks.arithmetic import OPERATORS, Arithmetic
from numerate.tasks.counter_rng import mix_bits
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.labelled_files import LabeledFile
from numerate.text.tasks.row_file_formats import open_row_file
from numerate.text.tasks.row_files import RowFile, rows_per_block
from numerate.text.tasks.row_questions import commutative_hashes, detect_digit_order, read_questions
from numerate.text.tasks.text_task import RowTask

_MAX_CHARACTERS_IN_MEMORY = 1 << 28
"""The most characters of rows that are in memory at once."""


@dataclass(frozen=True)
class ExampleFile(RowTask):
    """Rows of a file such as `321+654=975`, split at the equals sign into question and answer.

    `path` is a text file with a row per line, a folder of `*.txt`, a folder that Hugging Face `datasets` saved (tokens
    of the published vocabularies; needs `pip install 'numerate[data]'`), or what `numerate data write` wrote. Rows that
    have a label per word behind a tab instead, `65 a a` and . 66 67, are questions with labels.

    In rows that are sums, differences or products, numbers are number slots, which a tokenizer may write differently;
    `digit_order` is their order in the file, and "auto" takes the order in which the answers of the first 1,000 rows
    are correct. Every other file, and one with leading zeros, is text, character by character.

    A grid has the lengths of the two numbers as axes if the file has rows for each pair of them, otherwise the length
    of the question.

    Every row comes once in each pass, in an order that is a function of (seed, split, pass), so that a file needs no
    shuffling. One row in ten is held out by a hash of its question, the same as in the task `Arithmetic`, so repeated
    questions are never in two splits. This is decided for the whole file: a cell of a grid has its held-out rows; where
    there are none, all its rows, which training may contain. A file of which fewer than 10 rows would be left for the
    test or for validation is seen as a whole by every split.

    `numerate evaluate latest task.path=other.txt` evaluates on the rows of another file, except those whose question
    the run was trained on.

    With a file of the three lines 321+654=975, 9+1=01 and 21+9=12:

        task = ExampleFile(path="sums.txt")
        task.num_questions(), task.alphabet()  # (3, ('+', '='))
    """

    order_name: ClassVar[str] = "written"
    default_grid_in_distribution: ClassVar[bool] = True

    path: str | None = setting(None, "file or folder of examples")
    split: str = setting("all", "split of a saved DatasetDict: train, test ..., or all")
    vocabulary: Literal["pad", "index", "sort"] = setting("pad", "published vocabulary of a tokenized folder")
    digit_order: Literal["auto", "reversed", "normal", "answer_reversed", "text"] = setting(
        "auto", "digit order in the file; auto: the one in which its answers are correct, else text"
    )
    first_digits: int | Span | None = setting(None, "only sums whose first number has this many digits; null: all")
    second_digits: int | Span | None = setting(None, "only sums whose second number has this many digits; null: all")
    question_length: int | Span | None = setting(
        None, "only questions of so many characters, '=' included (words, where they have labels); null: all"
    )
    training_task: Task | None = setting(
        None, "the training task, when an evaluation uses another file; set by task.path="
    )

    @property
    def row_file(self) -> RowFile | LabeledFile:
        """The rows of the file. Raises `UserError` where there are none."""
        if self.path is None:
            raise UserError("task.path: must be set: a file with one row per line, or a folder of rows (path=rows.txt)")
        return open_row_file(self.path, self.split, self.vocabulary)

    def files(self) -> dict[str, Path]:
        return shortest_unique_names(self.row_file.files())

    def with_path(self, path: str) -> "ExampleFile":
        """The rows of another file, of every size, for a model that was trained on these."""
        training_task = self if self.training_task is None else self.training_task
        return replace(self._without_size_filters(), path=path, training_task=training_task)

    def row_questions(self, split: str | None, rows: NDArray[np.int64]) -> Questions:
        row_indices = self._row_indices(split)
        return self.questions(rows if row_indices is None else row_indices[rows].astype(np.int64))

    def questions(self, rows: NDArray[np.int64]) -> Questions:
        """The rows with these indices, in the order of the file. Raises `UserError` with the file and line of a row
        that does not read like the others."""
        return read_questions(self.row_file, rows, self.digit_order)

    def all_questions(self, split: str = "test") -> Questions | None:
        """Every different question of a split once, in the order of the file; None for more than 65,536 rows, or
        where they are long."""
        row_indices = self._row_indices(split)
        rows = np.arange(self.row_file.count) if row_indices is None else row_indices.astype(np.int64)
        if len(rows) > 1 << 16 or len(rows) * self.row_file.longest > _MAX_CHARACTERS_IN_MEMORY:
            return None
        questions = self.questions(rows)
        _, first_occurrence = np.unique(questions.hashes(), return_index=True)
        return questions.take(np.sort(first_occurrence))

    def num_rows(self, split: str | None) -> int:
        row_indices = self._row_indices(split)
        return self.row_file.count if row_indices is None else len(row_indices)

    def _row_indices(self, split: str | None) -> NDArray[np.uint32] | None:
        """The rows of a split (None: of all) that have the sizes wanted; None for every row of the file. Where a split
        has none of them, all of them: they are seen. Raises `UserError` where the file has none."""
        size_filters = {name: Span.from_value(size) for name in SIZE_AXES if (size := getattr(self, name)) is not None}
        if not size_filters and split is None:
            return None
        scan = self._file_scan
        split_or_none = split if scan.has_held_out_rows else None
        return (
            _select_rows(scan, tuple(size_filters.items()), split_or_none, str(self.path))
            if size_filters or split_or_none
            else None
        )

    def _without_size_filters(self) -> "ExampleFile":
        """The same without any size wanted."""
        return replace(self, first_digits=None, second_digits=None, question_length=None)

    @property
    def _file_scan(self) -> "_FileScan":
        return _FileScan.cached(self.row_file, self._without_size_filters())

    def is_held_out(self, split: str) -> bool:
        if split in ("train", "ood_validation") or not (scan := self._file_scan).has_held_out_rows:
            return False
        return bool((scan.split_index[self._row_indices(split)] == list(SPLITS).index(split)).all())

    def axes(self) -> tuple[str, ...]:
        return self._file_scan.axes

    def training_spans(self) -> dict[str, Span]:
        scan = self._file_scan
        row_indices = self._row_indices(None)
        sizes = {name: scan.sizes[name] if row_indices is None else scan.sizes[name][row_indices] for name in scan.axes}
        return {name: Span(int(values.min()), int(values.max())) for name, values in sizes.items()}

    def cells(self) -> list[tuple[int, ...]]:
        """The sizes of the rows of its file along the axes, each once: also those longer than the training rows, which
        an evaluation may include.

        Of questions of 8, 4 and 5 characters these are [(4,), (5,), (8,)].
        """
        scan = self._file_scan
        row_indices = self.at_cell(**dict.fromkeys(scan.axes))._row_indices(None)
        sizes = np.stack(
            [scan.sizes[name] if row_indices is None else scan.sizes[name][row_indices] for name in scan.axes], axis=1
        )
        return [tuple(cell) for cell in np.unique(sizes, axis=0).tolist()]

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """As in `Arithmetic` where rows are sums: 3+4 and 4+3 are one question. So are rows of digits on either side of
        a plus or times that are read as text, such as 0000+01= and 01+0000=. Otherwise a hash of the text."""
        if questions.numbers.lengths.shape[1] != 3:
            operators = {*questions.alphabet} - {*"0123456789="}
            is_commutative = questions.labels is None and len(operators) == 1 and operators <= {"+", "x"}
            return commutative_hashes(questions, operators.pop()) if is_commutative else questions.hashes()
        hashes = questions.numbers.hashes(2)
        if questions.alphabet[0] == "-":
            hashes[:, 1] *= np.uint64(0x2545F4914F6CDD1D)
        return mix_bits(hashes[:, 0] + hashes[:, 1])

    def num_questions(self) -> int:
        return self.num_rows(None)

    def alphabet(self) -> tuple[str, ...]:
        if self.training_task is not None:
            return self._check_alphabet(self.training_task.alphabet())
        row_file = self.row_file
        order, sign = detect_digit_order(row_file, self.digit_order)
        if isinstance(row_file, LabeledFile):
            return row_file.words
        return tuple(row_file.alphabet()) if order == "text" else (sign, "=")

    def _check_alphabet(self, training_alphabet: tuple[str, ...]) -> tuple[str, ...]:
        """What the model reads. Raises `UserError` where this file has anything else."""
        other = [text for text in replace(self, training_task=None).alphabet() if text not in training_alphabet]
        if other:
            listing = ", ".join(map(repr, other[:5]))
            raise file_error(str(self.path), f"has {listing}{' ...' * (len(other) > 5)}, which no row of training has")
        return training_alphabet

    def parse_question(self, text: str) -> Questions:
        """A sum as a person types it, whatever the order of the file. Raises `UserError` where rows are no sums, or of
        an operator that no other task can work out."""
        _, sign = detect_digit_order(self.row_file, self.digit_order)
        if sign not in OPERATORS:
            raise UserError("question: the answers of these rows are stored, not computed; only sums can be read")
        return Arithmetic(operator=sign).parse_question(text)  # type: ignore[arg-type]


MIN_SPLIT_ROWS = 10
"""The rows that test and validation have at least, or else every split is the whole file."""

SIZE_AXES = ("first_digits", "second_digits", "question_length")
"""The sizes of rows, which are grid axes."""


class _FileScan:
    """What one pass over all rows of a file finds: the split of each by the hash of its question, and its sizes."""

    def __init__(self, rows: RowFile | LabeledFile, task: ExampleFile) -> None:
        self.split_index = np.full(rows.count, -1, dtype=np.int8)
        training_hashes = None if task.training_task is None else _training_question_hashes(task.training_task)
        self.sizes: dict[str, NDArray[np.uint16]] = {}
        size = rows_per_block(rows.longest)
        for start in range(0, rows.count, size):
            block = slice(start, min(start + size, rows.count))
            questions = task.questions(np.arange(block.start, block.stop))
            hashes = task.question_hashes(questions)
            fraction = (hashes >> np.uint64(32)).astype(np.float64) / 2.0**32
            for number, (name, (low, high)) in enumerate(SPLITS.items()):
                if training_hashes is None:
                    self.split_index[block][(fraction >= low) & (fraction < high)] = number
                elif name in ("test", "train"):
                    self.split_index[block][np.isin(hashes, training_hashes) == (name == "train")] = number
            for axis, values in questions.metadata.items():
                sizes = self.sizes.setdefault(axis, np.zeros(rows.count, dtype=np.uint16))
                sizes[block] = np.minimum(values, 2**16 - 1)
        rows_per_split = np.bincount(self.split_index[self.split_index >= 0], minlength=len(SPLITS))
        held_out_splits = ("test", "validation") if training_hashes is None else ("test",)
        min_rows = MIN_SPLIT_ROWS if training_hashes is None else 1
        self.has_held_out_rows = all(rows_per_split[list(SPLITS).index(name)] >= min_rows for name in held_out_splits)
        self.axes: tuple[str, ...] = SIZE_AXES[:2] if self._has_every_pair() else SIZE_AXES[2:]
        if task.training_task is not None:
            self.axes = task.training_task.axes()
            if not self.sizes.keys() >= set(self.axes):
                raise file_error(str(task.path), "its rows are no sums of two numbers, as those of training are")

    @staticmethod
    @lru_cache(maxsize=4)
    def cached(rows: RowFile | LabeledFile, task: ExampleFile) -> "_FileScan":
        return _FileScan(rows, task)

    def _has_every_pair(self) -> bool:
        if SIZE_AXES[0] not in self.sizes:
            return False
        first, second = (self.sizes[name].astype(np.int64) for name in SIZE_AXES[:2])
        pairs = (int(first.max() - first.min()) + 1) * (int(second.max() - second.min()) + 1)
        return len(np.unique(first << 16 | second)) == pairs


def _training_question_hashes(task: Task) -> NDArray[np.uint64]:
    """The hashes of all questions that a task of rows is trained on."""
    assert isinstance(task, ExampleFile), "rows of files are evaluated for a model that was trained on rows of files"
    row_indices = task._row_indices("train")
    rows = np.arange(task.row_file.count) if row_indices is None else row_indices.astype(np.int64)
    size = rows_per_block(task.row_file.longest)
    return np.concatenate([task.question_hashes(task.questions(rows[i : i + size])) for i in range(0, len(rows), size)])


@lru_cache(maxsize=32)
def _select_rows(
    scan: _FileScan, size_filters: tuple[tuple[str, Span], ...], split: str | None, path: str
) -> NDArray[np.uint32]:
    mask = np.ones(len(scan.split_index), dtype=np.bool_)
    for name, span in size_filters:
        if name not in scan.sizes:
            raise file_error(path, f"its rows are text, not sums of two numbers; use question_length, not {name}")
        mask &= (scan.sizes[name] >= span.low) & (scan.sizes[name] <= span.high)
    if not mask.any():
        cell = ", ".join(f"{name}={span if len(span) > 1 else span.low}" for name, span in size_filters)
        raise file_error(path, f"no row has {cell}")
    if split is not None and (mask_in_split := mask & (scan.split_index == list(SPLITS).index(split))).any():
        mask = mask_in_split
    return np.flatnonzero(mask).astype(np.uint32)
