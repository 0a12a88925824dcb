"""Sources of rows: a task that generates them, or files; read block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numerate.config import setting
from numerate.errors import UserError, did_you_mean
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.row_files import rows_at_once
from numerate.tokenizers.tokenizer import Characters, Rows, Tokenizer
from numerate.vocabulary import Vocabulary

BLOCK = 1 << 15
"""Rows per block."""


@dataclass(frozen=True)
class TaskWithTokenizer:
    """A task and its tokenizer, as set by `task.digits=1:5 tokenizer.number_format.digit_order=normal`."""

    task: Task = setting(Arithmetic(), "the task that generates questions with answers")
    tokenizer: Tokenizer = setting(Characters(), "turns text into token ids")


@dataclass(frozen=True)
class Source:
    """Rows 0 .. count - 1 of a split of a task, or of a file in the file's own order (`split` is then None).

    `name` is as given by the user. With `whole` the rows are all questions of the split, each once, in the order of the
    task, and only the tokenizer samples.
    """

    name: str
    task: Task
    tokenizer: Tokenizer
    count: int
    split: str | None = "train"
    seed: int = 0
    whole: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"count: {self.count} rows are none; 1 or more is right")
        if self.split is None and not isinstance(self.task, ExampleFile):
            raise UserError("split: only the rows of a file have an order of their own")
        if self.split is not None and self.split not in SPLITS:
            names = ", ".join(SPLITS)
            raise UserError(f"split: there is no {self.split!r}; there are: {names}.{did_you_mean(self.split, SPLITS)}")

    @classmethod
    def of_file(cls, path: str | Path, configured: TaskWithTokenizer, count: int | None = None) -> "Source":
        """The first `count` rows of a file, or all."""
        total = configured.task.space() or 0
        return cls(
            str(path), configured.task, configured.tokenizer, total if count is None else min(count, total), None
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.build_vocabulary(self.task)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Questions, Rows]]:
        """The rows in order, at most `size` at a time: as questions, and as token ids. Long rows of a file come in
        smaller blocks."""
        vocabulary = self.vocabulary
        listed = self.task.whole(self.split or "train") if self.whole else None
        if isinstance(self.task, ExampleFile):
            size = min(size, rows_at_once(self.task.rows.longest))
        for start in range(0, self.count, size):
            count = min(size, self.count - start)
            if self.split is None and isinstance(self.task, ExampleFile):
                questions = self.task.questions(np.arange(start, start + count))
            elif listed is not None:
                questions = listed.take(slice(start, start + count))
            else:
                questions = self.task.examples(self.split or "train", self.seed, start, count)
            yield questions, self.tokenizer.rows(questions, vocabulary)
