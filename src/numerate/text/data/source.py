"""Sources of rows: a task that generates them, or files; read block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numerate.errors import UserError, check_choice, check_positive
from numerate.tasks.task import SPLITS, Task
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.row_files import rows_per_block
from numerate.tokenizers.tokenizer import Characters, TokenizedExamples, Tokenizer
from numerate.vocabulary import Vocabulary

BLOCK_ROWS = 1 << 15
"""Rows per block."""


@dataclass(frozen=True)
class RowSource:
    """Rows 0 .. count - 1 of a split of a task, or of a file in the file's own order (`split` is then None).

    `name` is as given by the user. With `each_once` the rows are all questions of the split, each once, in the order of
    the task, and only the tokenizer samples.
    """

    name: str
    task: Task
    tokenizer: Tokenizer
    count: int
    split: str | None = "train"
    seed: int = 0
    each_once: bool = False

    def __post_init__(self) -> None:
        check_positive("count", self.count)
        if self.split is None and not isinstance(self.task, ExampleFile):
            raise UserError("split: must be set unless the task is a file")
        if self.split is not None:
            check_choice("split", self.split, SPLITS)

    @classmethod
    def from_file(
        cls, path: str | Path, task: Task, tokenizer: Tokenizer | None = None, count: int | None = None
    ) -> "RowSource":
        """The first `count` rows of a file, or all; by default of characters."""
        num_rows = task.num_questions() or 0
        return cls(
            str(path), task, tokenizer or Characters(), num_rows if count is None else min(count, num_rows), None
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.build_vocabulary(self.task)

    def read_blocks(self, size: int = BLOCK_ROWS) -> Iterator[TokenizedExamples]:
        """The rows in order, at most `size` at a time, as token ids. Long rows of a file come in smaller blocks."""
        vocabulary = self.vocabulary
        all_questions = self.task.all_questions(self.split or "train") if self.each_once else None
        if isinstance(self.task, ExampleFile):
            size = min(size, rows_per_block(self.task.row_file.longest))
        for start in range(0, self.count, size):
            count = min(size, self.count - start)
            if self.split is None and isinstance(self.task, ExampleFile):
                questions = self.task.questions(np.arange(start, start + count))
            elif all_questions is not None:
                questions = all_questions.take(slice(start, start + count))
            else:
                questions = self.task.examples(self.split or "train", self.seed, start, count)
            yield self.tokenizer.encode_examples(questions, vocabulary)
