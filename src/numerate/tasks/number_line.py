"""Auxiliary tasks of counting: the successor of each number, and the sum of two."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.counting import HELPER_CHOICES, MAX_LISTED_QUESTIONS, MAX_NUMBER, insert_helpers
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.starts import Cells, CountTask, Starts, cell_hashes, numbers_in
from numerate.tasks.task import check_question

FILLER_CHOICES = {"none": "", "blank": "<b>", "null": "<null>"}
"""The tokens that replace all but the first number of a line."""


class _StartAndCountTask(CountTask, ABC):
    """A task whose rows count on from a start number: all pairs of count and start are equally frequent. Nothing is
    held out: every row up to the trained counts occurs in training."""

    @property
    @abstractmethod
    def allowed_starts(self) -> Starts:
        """The starts of each count."""

    @abstractmethod
    def build_rows(self, count: NDArray[np.int64], start: NDArray[np.int64]) -> Questions:
        """The rows of these counts and starts."""

    @property
    def max_possible_count(self) -> int:
        return self.allowed_starts.max_count()

    def conflicts(self) -> Iterator[str]:
        for counts in (Span.from_value(self.count), self.eval_span):
            yield from self.allowed_starts.conflicts(counts)
        yield from self.allowed_starts.end_conflicts(Span.from_value(self.count))

    def _cells(self) -> Cells:
        return self.allowed_starts.cells(self.eval_span)

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        cells = self._cells()
        return self.build_rows(*cells[rng.integers(len(cells), (len(indices),))].T)

    def _list_questions(self, split: str) -> Questions | None:
        """Every row, smaller counts and smaller starts first; None for more than 20,000."""
        cells = self._cells()
        return None if len(cells) > MAX_LISTED_QUESTIONS else self.build_rows(*cells.T)

    def num_questions(self) -> int:
        return len(self._cells())

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of count and start."""
        return cell_hashes(questions.metadata["count"], numbers_in(questions.alphabet)[questions.symbols[:, 0]])

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        return np.zeros(len(questions), dtype=np.bool_)

    def is_held_out(self, split: str) -> bool:
        return split != "train" and self.eval_span.low > Span.from_value(self.count).high


@dataclass(frozen=True)
class NumberLine(_StartAndCountTask):
    """Consecutive numbers, each labeled with its successor: `1 2 3` has the labels 2 3 4.

    The auxiliary tasks of Chang and Bisk (2024), https://arxiv.org/abs/2405.20131. With a `filler` only the first
    number is shown, and is a label too: `1 <b> <b>` has 1 2 3. A line has `count` steps from one of `starts` to at most
    `max_number`; `end=100` keeps the lines that end there, for counts that have one. Published are `starts=1, count=99`
    (addbigram), the same with a filler (addbigram_blkseq, addbigram_nullseq), and `starts=1:50, count=50:99, end=100`
    with one (addbigram_shiftedblkseq, addbigram_shiftednullseq).
    """

    count: int | Span = setting(Span(1, 50), "number of steps in training", at_least=1)
    starts: int | Span = setting(1, "start numbers", at_least=0)
    max_number: int = setting(
        100, "largest number that counting may reach, and the largest in the vocabulary", at_least=1, at_most=MAX_NUMBER
    )
    end: int | None = setting(None, "number at which counting ends; null: any")
    filler: Literal["none", "blank", "null"] = setting("none", "what replaces all numbers but the first: <b>, <null>")
    eval_count: int | Span | None = setting(
        None, "counts instead of `count`, set by the evaluation from its grid; leave it null in a recipe", at_least=1
    )

    @property
    def allowed_starts(self) -> Starts:
        return Starts(Span.from_value(self.starts), self.max_number, self.end)

    def build_rows(self, count: NDArray[np.int64], start: NDArray[np.int64]) -> Questions:
        has_filler = self.filler != "none"
        positions = np.arange(self.eval_span.high + has_filler)
        is_present = positions < (count + has_filler)[:, None]
        line = start[:, None] + positions
        alphabet = self.alphabet()
        inputs = np.where(positions == 0, line, alphabet.index(FILLER_CHOICES[self.filler])) if has_filler else line
        symbols, labels = (
            np.where(is_present, part, EMPTY).astype(np.int16) for part in (inputs, line + (not has_filler))
        )
        return Questions(alphabet, symbols, Numbers.empty(len(count)), labels=labels, metadata={"count": count})

    def max_training_labels(self) -> int:
        """The largest number of labels of a training row."""
        return Span.from_value(self.count).high + (self.filler != "none")

    def alphabet(self) -> tuple[str, ...]:
        return (*map(str, range(self.max_number + 1)), *(text for text in (FILLER_CHOICES[self.filler],) if text))

    def longest_questions(self) -> Questions:
        count = np.array([self.eval_span.high])
        return self.build_rows(count, self.allowed_starts.bounds(count)[0])

    def parse_question(self, text: str) -> Questions:
        """Parses `7 8 9`, or `7 <b> <b>` with a filler. Raises `UserError` for any other text."""
        pieces, filler = text.split(), FILLER_CHOICES[self.filler]
        first = int(pieces[0]) if pieces and pieces[0].isdecimal() else -1
        expected_pieces = [pieces[0], *[filler] * (len(pieces) - 1)] if filler and pieces else []
        expected_pieces = expected_pieces or list(map(str, range(first, first + len(pieces))))
        count = len(pieces) - bool(filler)
        is_question = first >= 0 and count >= 1 and pieces == expected_pieces
        check_question(is_question, text, f"7 {filler or 8} {filler or 9}")
        if first + count > self.max_number:
            raise UserError(f"question: the last label must be at most max_number={self.max_number}")
        return replace(self, eval_count=count).build_rows(np.array([count]), np.array([first]))


@dataclass(frozen=True)
class AdditionTable(_StartAndCountTask):
    """Addition table: the label of the second number is the sum, `65 3` has the labels 65 68.

    The auxiliary tasks of Chang and Bisk (2024), https://arxiv.org/abs/2405.20131: all pairs from 1 on whose sum is at
    most 100 (`count=1:99`, `max_number=100`; 4,950 of them). The first is from `starts`, the second is the `count`,
    like the start and the number of symbols in `Counting`. With `helper="pad"`, `65 <pad> 3 <pad>` has . 65 . 68.
    """

    count: int | Span = setting(Span(1, 50), "second numbers in training", at_least=1)
    starts: int | Span = setting(Span(1, 99), "first numbers", at_least=0)
    max_number: int = setting(
        100, "largest sum, and the largest number in the vocabulary", at_least=1, at_most=MAX_NUMBER
    )
    helper: Literal["none", "blank", "pad"] = setting(
        "none", "helper token after each number, at which the label is predicted"
    )
    eval_count: int | Span | None = setting(
        None, "second numbers of evaluated questions, set by a cell of a grid; null: count", at_least=1
    )

    @property
    def allowed_starts(self) -> Starts:
        return Starts(Span.from_value(self.starts), self.max_number)

    def build_rows(self, count: NDArray[np.int64], start: NDArray[np.int64]) -> Questions:
        alphabet = self.alphabet()
        symbols, labels = np.stack([start, count], axis=1), np.stack([start, start + count], axis=1)
        if self.helper != "none":
            symbols, labels = insert_helpers(symbols, labels, alphabet.index(HELPER_CHOICES[self.helper]))
        no_numbers = Numbers.empty(len(count))
        return Questions(
            alphabet, symbols.astype(np.int16), no_numbers, labels=labels.astype(np.int16), metadata={"count": count}
        )

    def max_training_labels(self) -> int:
        """The largest number of labels of a training row."""
        return 2

    def alphabet(self) -> tuple[str, ...]:
        return (*map(str, range(self.max_number + 1)), *(text for text in (HELPER_CHOICES[self.helper],) if text))

    def parse_question(self, text: str) -> Questions:
        """Parses `65 3`; helpers may be omitted. Raises `UserError` for any other text."""
        pieces = [piece for piece in text.split() if piece != HELPER_CHOICES[self.helper]]
        is_question = len(pieces) == 2 and all(piece.isdecimal() for piece in pieces) and int(pieces[1]) >= 1
        check_question(is_question, text, "65 3")
        start, count = map(int, pieces)
        if start + count > self.max_number:
            raise UserError(f"question: the sum must be at most max_number={self.max_number}")
        return self.build_rows(np.array([count]), np.array([start]))
