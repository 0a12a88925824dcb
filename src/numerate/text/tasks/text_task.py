"""The bases of tasks over rows of files, and over text files: splits with files of their own, and named parts.

A part is what a test is divided into: a module of the mathematics dataset, a further test set. Parts have numbers from
1 on, which are the sizes of the task's axis; training uses the first parts; reports call those in distribution and the
others OOD test.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span
from numerate.config.path_names import shortest_unique_names
from numerate.errors import UserError, check_choice
from numerate.tasks.counter_rng import CounterRNG, mix_bits, permute, random_key, shuffled_indices
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task
from numerate.tasks.texts import Example, InMemorySource
from numerate.text.tasks.text_files import FileSource, StoredExamples, file_stamp

TruncationSide = Literal["left", "right"]

_MAX_LISTED_ROWS = 1 << 16
_NUM_LONGEST_ROWS = 4


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The questions of a split: rows of a source, and the number of the part that each belongs to."""

    source: FileSource
    rows: NDArray[np.uint32]
    part_numbers: NDArray[np.int16]

    @classmethod
    def from_files(
        cls,
        files: Sequence[StoredExamples],
        part_numbers: Sequence[int] | None = None,
        truncation_side: TruncationSide = "right",
    ) -> "SplitRows":
        """All rows of several files, each with its part, by default one part per file; `truncation_side` is what goes
        of questions that are too long."""
        numbers = np.arange(1, len(files) + 1) if part_numbers is None else np.array(part_numbers)
        part = np.repeat(numbers.astype(np.int16), [one.num_examples for one in files])
        return cls(FileSource(files, truncation_side), np.arange(len(part), dtype=np.uint32), part)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: NDArray[np.bool_] | NDArray[np.int64]) -> "SplitRows":
        return SplitRows(self.source, self.rows[indices], self.part_numbers[indices])

    def select_parts(self, parts: Span) -> "SplitRows":
        """The rows of these parts."""
        mask = (self.part_numbers >= parts.low) & (self.part_numbers <= parts.high)
        return self if mask.all() else self.take(mask)

    def questions(self, indices: NDArray[np.int64], axis: str) -> Questions:
        """The questions at these places of it."""
        facts = {axis: self.part_numbers[indices].astype(np.int64)}
        return Questions.from_source(self.source, self.rows[indices].astype(np.int64), facts)

    def texts(self) -> list[str]:
        """The text of every question."""
        return [pair.question for pair in self.source.read_examples(self.rows.astype(np.int64))]

    def drop_duplicates(self) -> "SplitRows":
        """Each question once, where it comes first."""
        first_index = {text: place for place, text in reversed([*enumerate(self.texts())])}
        return (
            self if len(first_index) == len(self) else self.take(np.array(sorted(first_index.values()), dtype=np.int64))
        )

    def longest_rows(self) -> NDArray[np.int64]:
        """The places of the longest rows in their files."""
        sizes = self.source.record_sizes()[self.rows]
        num_rows = min(_NUM_LONGEST_ROWS, len(sizes))
        return np.argpartition(sizes, len(sizes) - num_rows)[len(sizes) - num_rows :]


@dataclass(frozen=True, eq=False)
class DatasetSplits:
    """What the files of a task hold: the name of each part, how many of the first are trained on, and the splits.

    `num_duplicates_removed` is how many rows training has not, as their questions are in another split; `num_skipped`
    how many could not be read.
    """

    part_names: tuple[str, ...]
    num_trained_parts: int
    train: SplitRows
    validation: SplitRows
    test: SplitRows
    num_duplicates_removed: int = 0

    @classmethod
    def without_overlap(
        cls,
        part_names: Sequence[str],
        num_trained_parts: int,
        train: SplitRows,
        validation: SplitRows,
        test: SplitRows,
        keep_duplicates: bool,
    ) -> "DatasetSplits":
        """Splits that have no question in common: validation has each once, and no question of a test; training has
        none of either. With `keep_duplicates` they stay as they are."""
        if keep_duplicates:
            return cls(tuple(part_names), num_trained_parts, train, validation, test)
        test_questions = frozenset(test.texts())
        unique = validation.drop_duplicates()
        kept_validation = unique.take(np.array([text not in test_questions for text in unique.texts()], dtype=np.bool_))
        is_duplicate = train.source.question_mask(test_questions.union(kept_validation.texts()))[train.rows]
        kept_train = train.take(~is_duplicate)
        return cls(tuple(part_names), num_trained_parts, kept_train, kept_validation, test, int(is_duplicate.sum()))

    def get(self, name: str) -> SplitRows:
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    @property
    def sources(self) -> list[FileSource]:
        """What the splits are read from, each once."""
        return list({id(stock.source): stock.source for stock in (self.train, self.validation, self.test)}.values())

    @property
    def num_skipped(self) -> int:
        """How many records of the files could not be read and are left out."""
        return sum(source.num_skipped for source in self.sources)

    def summary(self) -> str:
        """The sizes of the splits, for people."""
        parts = [f"train {len(self.train):,}", f"validation {len(self.validation):,}"]
        for number, name in enumerate(self.part_names, start=1):
            parts.append(f"test {name} {int((self.test.part_numbers == number).sum()):,}")
        if self.num_duplicates_removed:
            parts.append(
                f"{self.num_duplicates_removed:,} rows removed from training, as their questions are in another split"
            )
        if self.num_skipped:
            parts.append(f"{self.num_skipped:,} invalid records skipped")
        return ", ".join(parts)


class RowTask(Task):
    """A task whose questions are rows of files: every row of a split once, then all again in another order."""

    has_ood_sizes: ClassVar[bool] = False

    order_name: ClassVar[str]
    """Part of the key of its orders."""

    @abstractmethod
    def num_rows(self, split: str | None) -> int:
        """Number of rows of a split; None: of all."""

    @abstractmethod
    def row_questions(self, split: str | None, rows: NDArray[np.int64]) -> Questions:
        """The questions of these rows of a split; None: of all."""

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        return self.shuffled_questions(None, indices, ("draw", rng.key))

    def shuffled_questions(
        self, split: str | None, index: NDArray[np.int64], key_parts: tuple[object, ...]
    ) -> Questions:
        """The questions at these indices of an order that is a function of `key_parts`."""
        return self.row_questions(split, shuffled_indices(index, self.num_rows(split), key_parts))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        check_choice("split", split, SPLITS)
        if split == "ood_validation":
            raise UserError("split: rows of files have no OOD validation ('ood_validation')")
        index = np.arange(start, start + count)
        questions = self.shuffled_questions(split, index, (self.order_name, split, seed))
        (word,) = CounterRNG(random_key("chance", split, seed)).random_words(1)
        return replace(questions, random_bits=mix_bits(mix_bits(index.astype(np.uint64) + word) ^ word))


class TextTask(RowTask):
    """Questions of files, every row once in each pass, in an order that is a function of (seed, split, pass).

    A task says which files it has and how they are split, and has a field named `axis` that selects the part. A part
    that is tested alone trains on what all the others train on. No question of a test or of validation is trained on.
    """

    order_name: ClassVar[str] = "texts"

    axis: ClassVar[str] = "test"
    """The field whose sizes are the numbers of the parts."""

    @abstractmethod
    def data_files(self) -> list[Path]:
        """The files that it reads. Raises `UserError` where one is missing, and says how to get it."""

    @abstractmethod
    def read_splits(self, files: Sequence[Path]) -> DatasetSplits:
        """The content of its files, whatever part is selected."""

    @property
    def splits(self) -> DatasetSplits:
        """The content of its files, read again only if they change. Raises `UserError` where one cannot be read."""
        stamps = tuple(map(file_stamp, self.data_files()))
        return _read_splits(self.at_cell(**{self.axis: None}), stamps)

    @property
    def _selected_parts(self) -> Span | None:
        """The parts that this task is limited to."""
        selected: int | Span | None = getattr(self, self.axis)
        if selected is None:
            return None
        names, span = self.splits.part_names, Span.from_value(selected)
        if span.low < 1 or span.high > len(names):
            listing = ", ".join(f"{number} {name}" for number, name in enumerate(names, start=1))
            raise UserError(f"{self.axis}: there is no {selected}; there are: {listing}")
        return span

    def _split_rows(self, split: str) -> SplitRows:
        splits, parts = self.splits, self._selected_parts
        split_rows = splits.get(split)
        if split == "test":
            return split_rows.select_parts(parts or Span(1, splits.num_trained_parts))
        in_parts = split_rows if parts is None else split_rows.select_parts(parts)
        rows = in_parts if len(in_parts) else split_rows
        if not len(rows):
            raise UserError(
                f"split: {type(self).__name__} has no question for {split!r} that is in no other split; use larger or "
                "other files, or keep_duplicates=true"
            )
        return rows

    def row_questions(self, split: str | None, rows: NDArray[np.int64]) -> Questions:
        return self._split_rows(split or "train").questions(rows, self.axis)

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        """Training rows of the selected part, or its test rows where training has none; for inspection only."""
        parts = self._selected_parts
        is_test_only = parts is not None and not len(self.splits.train.select_parts(parts))
        return self.shuffled_questions("test" if is_test_only else "train", indices, ("draw", rng.key))

    def all_questions(self, split: str = "test") -> Questions | None:
        """Every row of a split once, in the order of the files; None for more than 65,536."""
        if split == "ood_validation":
            return None
        stock = self._split_rows(split)
        return None if len(stock) > _MAX_LISTED_ROWS else stock.questions(np.arange(len(stock)), self.axis)

    def num_rows(self, split: str | None) -> int:
        return len(self._split_rows(split or "train"))

    def num_questions(self) -> int:
        """The rows of training, which are an epoch."""
        return len(self._split_rows("train"))

    def data_warnings(self) -> list[str]:
        """How many rows of its files are left out of training, and why; nothing where none is."""
        holdings = self.splits
        if not holdings.num_duplicates_removed:
            return []
        whole = len(holdings.train) + holdings.num_duplicates_removed
        keep = "; task.keep_duplicates=true keeps them, and then training has seen those questions" * hasattr(
            self, "keep_duplicates"
        )
        return [
            f"task: {holdings.num_duplicates_removed:,} of {whole:,} rows of training are left out, since their "
            f"question stands in validation or a test too{keep} ({holdings.summary()})"
        ]

    def is_held_out(self, split: str) -> bool:
        return split in ("test", "validation") and not getattr(self, "keep_duplicates", False)

    def axes(self) -> tuple[str, ...]:
        return (self.axis,)

    def training_spans(self) -> dict[str, Span]:
        return {self.axis: self._selected_parts or Span(1, self.splits.num_trained_parts)}

    def cells(self) -> list[tuple[int, ...]]:
        return [(number,) for number in self._selected_parts or Span(1, len(self.splits.part_names))]

    def cell_name(self, axis: str, size: int) -> str:
        names = self.splits.part_names
        return names[size - 1] if axis == self.axis and 0 < size <= len(names) else str(size)

    def longest_questions(self) -> Questions:
        """The longest rows in their files: of all trained parts, where one of those is selected."""
        parts, trained = self._selected_parts, Span(1, self.splits.num_trained_parts)
        if parts is None or parts.high <= trained.high:
            stocks = [self.splits.train, self.splits.validation, self.splits.test.select_parts(trained)]
        else:
            stocks = [self.splits.test.select_parts(parts)]
        return Questions.concatenate(
            [stock.questions(stock.longest_rows(), self.axis) for stock in stocks if len(stock)]
        )

    def alphabet(self) -> tuple[str, ...]:
        """Every character of all its files."""
        stocks = (self.splits.train, self.splits.validation, self.splits.test)
        sources = {id(stock.source): stock.source for stock in stocks if len(stock)}
        return tuple(sorted(frozenset().union(*(source.used_characters() for source in sources.values()))))

    def parse_question(self, text: str) -> Questions:
        """Any text as a question, with a training answer as a placeholder."""
        stock = self._split_rows("train")
        (first,) = stock.source.read_examples(stock.rows[:1].astype(np.int64))
        return question_from_text(text, first.answer, stock.source.truncation_side)

    def files(self) -> dict[str, Path]:
        return shortest_unique_names(path for source in self.splits.sources for path in source.files())

    def summary(self) -> str:
        """The sizes of its splits as they are, for people."""
        return self.splits.summary()


@lru_cache(maxsize=8)
def _read_splits(task: TextTask, stamps: tuple[tuple[str, int, int], ...]) -> DatasetSplits:
    return task.read_splits([Path(path) for path, _, _ in stamps])


def question_from_text(text: str, answer: str, truncation_side: TruncationSide = "right") -> Questions:
    """A text as a question, with an answer that serves as a placeholder.

    Raises `UserError` for one without a word."""
    if not text.strip():
        raise UserError("question: must not be empty")
    return Questions.from_source(
        InMemorySource((Example(text, answer),), truncation_side), np.zeros(1, dtype=np.int64), {}
    )


def split_indices(
    count: int, sizes: tuple[int, int], key_parts: Sequence[object]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of training and of validation: of an order of 0 .. count - 1 that is a function of the name, the first
    `sizes[0]` and the next `sizes[1]`, each set in the order of the file."""
    first, second = sizes
    validation_indices = permute(np.arange(first, min(count, first + second)), count, random_key(*key_parts))
    if first + second >= count:
        is_train = np.ones(count, dtype=np.bool_)
        is_train[validation_indices] = False
        return np.flatnonzero(is_train), np.sort(validation_indices)
    return np.sort(permute(np.arange(first), count, random_key(*key_parts))), np.sort(validation_indices)
