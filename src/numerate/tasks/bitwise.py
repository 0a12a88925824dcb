"""Positional OR of two bit strings; the few questions are enumerated, not sampled."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.arithmetic import OperandTask
from numerate.tasks.counter_rng import CounterRNG, mix_bits, random_key
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.task import match_question

MAX_DIGITS = 250
"""All pairs of lengths up to this have five million questions, which can still be enumerated quickly."""

QuestionRows = NDArray[np.int64]
"""Questions as numbers, `[rows, 3]`: the lengths of the first and second operand, and the position of the 1."""


@dataclass(frozen=True)
class BitwiseOr(OperandTask):
    """Positional OR of two bit strings with a single 1: `0000+01=` is `0100`.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399,
    "positional or variant". The 1 is in the shorter operand, and the other operand is all zeros; for operands of equal
    length either may have it (chosen at random in the paper, here by a hash of length and position, so that the set is
    fixed). The answer has the length of the longer operand, and its 1 is at the same position from the left as in the
    question. Bits are text, not numbers: they are written from the left in every number format.

    The questions are enumerated: sum of min(i, j) over all lengths, 2,870 for 1 to 20 bits each. Each training epoch
    uses every question once, in a new order; evaluation samples without replacement. With `max_examples=100` training
    has 100 of those of `digits` x `digits` (the published `--max`), the same for every seed, and the other splits have
    those that are not among them in either order of the operands. Without it training has all of them, and only greater
    lengths are new. Validation and test have the same questions: there are too few for separate splits.
    """

    operator: str = setting("+", "the character between the operands")
    digits: int | Span = setting(
        Span(1, 20), "number of bits of the operands in training", at_least=1, at_most=MAX_DIGITS
    )
    first_digits: int | Span | None = setting(
        None, "number of bits of the first operand; null: digits", at_least=1, at_most=MAX_DIGITS
    )
    second_digits: int | Span | None = setting(
        None, "number of bits of the second operand; null: digits", at_least=1, at_most=MAX_DIGITS
    )
    max_examples: int | None = setting(
        None, "number of training examples, out of digits x digits; null: all", at_least=1
    )

    def conflicts(self) -> Iterator[str]:
        if len(self.operator) != 1 or self.operator in "0123456789=":
            yield f"operator: {self.operator!r} must be one character other than a digit or '='"
        space = _count_questions(Span.from_value(self.digits), Span.from_value(self.digits))
        if self.max_examples is not None and self.max_examples > space:
            yield (
                f"max_examples: must be at most {space}, the number of questions with digits={self.digits}, not "
                f"{self.max_examples}"
            )

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        """Samples with replacement. (`examples` instead enumerates the questions of a split in epochs.)"""
        all_rows = _list_questions(*self.operand_spans)
        return self._build_questions(all_rows[rng.integers(len(all_rows), (len(indices),))])

    def _draw_block(self, split: str, seed: int, block_index: int, block_size: int) -> Questions:
        """Epochs over the questions of the split, each in a different order."""
        split_rows = self._rows_in_split(split)
        if not len(split_rows):
            raise UserError(
                f"split: none of the {self.max_examples or 'trained'} questions of digits={self.digits} has "
                f"these lengths, so "
                "that there is nothing to train on; widen first_digits and second_digits"
            )
        index = np.arange(block_index * block_size, (block_index + 1) * block_size)
        row_indices = np.empty(block_size, dtype=np.int64)
        for epoch in range(int(index[0]) // len(split_rows), int(index[-1]) // len(split_rows) + 1):
            order = CounterRNG(random_key(self, split, seed, "turn", epoch)).permutation(len(split_rows))
            is_in_epoch = index // len(split_rows) == epoch
            row_indices[is_in_epoch] = order[index[is_in_epoch] % len(split_rows)]
        random_bits = CounterRNG(random_key(self, split, seed, "chance", block_index)).random_words(block_size)
        return replace(self._build_questions(split_rows[row_indices]), random_bits=random_bits)

    def all_questions(self, split: str = "test") -> Questions | None:
        """Every question of a split once, for each pair of lengths with the positions from the left; None above 20,000.

        >>> from numerate.tasks.plain import format_question
        >>> questions = BitwiseOr(first_digits=4, second_digits=2).all_questions()
        >>> [format_question(questions, row) for row in (0, 1)]
        [('0000+10=', '1000'), ('0000+01=', '0100')]
        """
        split_rows = self._rows_in_split(split)
        if len(split_rows) > _MAX_LISTED_QUESTIONS:
            return None
        return replace(
            self._build_questions(split_rows),
            random_bits=CounterRNG(random_key(self, split, "whole")).random_words(len(split_rows)),
        )

    def _rows_in_split(self, split: str) -> QuestionRows:
        """The questions of a split: for training its subset, for other splits the remaining ones, or all if none
        remain."""
        all_rows = _list_questions(*self.operand_spans)
        if split == "train":
            return all_rows[self._is_trained(all_rows)]
        is_trained = self._is_trained_in_either_order(all_rows)
        return all_rows if bool(is_trained.all()) else all_rows[~is_trained]

    def _is_trained(self, rows: QuestionRows) -> NDArray[np.bool_]:
        """Which of these questions are among those of training."""
        digits = Span.from_value(self.digits)
        if self.max_examples is None:
            return _are_in_span(rows[:, :2], digits)
        return np.isin(_question_codes(rows), _question_codes(_training_subset(digits, self.max_examples)))

    def _is_trained_in_either_order(self, rows: QuestionRows) -> NDArray[np.bool_]:
        """Which of these questions occur in training, in either order of the operands."""
        return self._is_trained(rows) | self._is_trained(rows[:, [1, 0, 2]])

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the lengths and the position of the 1: `0000+01=` and `01+0000=` are the same question."""
        lengths = np.sort(np.stack([questions.metadata[axis] for axis in self.axes()], axis=1), axis=1).astype(
            np.uint64
        )
        assert questions.prompt_lengths is not None, "answers are continuations"
        ones = questions.symbols == questions.alphabet.index("1")
        ones &= np.arange(ones.shape[1]) >= questions.prompt_lengths[:, None]
        place = (ones.argmax(axis=1) - questions.prompt_lengths).astype(np.uint64)
        return mix_bits(lengths[:, 0] << np.uint64(40) | lengths[:, 1] << np.uint64(20) | place)

    def ood_validation_task(self) -> Self | None:
        """As of sums; None if those questions would be too long."""
        longest = max(span.high for span in self.operand_spans)
        return None if longest + max(1, longest // 5) > MAX_DIGITS else super().ood_validation_task()

    def num_questions(self) -> int:
        return _count_questions(*self.operand_spans)

    def is_held_out(self, split: str) -> bool:
        return split != "train" and not bool(
            self._is_trained_in_either_order(_list_questions(*self.operand_spans)).all()
        )

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        """Whether the cell of each question has questions that do not occur in training."""
        lengths = np.stack([questions.metadata[axis] for axis in self.axes()], axis=1)
        if self.max_examples is None:
            return ~_are_in_span(lengths, Span.from_value(self.digits))
        training_rows = _training_subset(Span.from_value(self.digits), self.max_examples)
        known_rows = np.unique(np.concatenate([training_rows, training_rows[:, [1, 0, 2]]]), axis=0)
        known_per_cell = np.bincount(_cell_codes(known_rows), minlength=(MAX_DIGITS + 1) ** 2)
        return np.asarray(known_per_cell[_cell_codes(lengths)] < lengths.min(axis=1))

    def alphabet(self) -> tuple[str, ...]:
        return ("0", "1", self.operator, "=")

    def parse_question(self, text: str) -> Questions:
        pattern = rf"\s*([01]+)\s*{re.escape(self.operator)}\s*([01]+)\s*=?\s*"
        match = match_question(pattern, text, f"0000{self.operator}01=")
        first, second = match[1], match[2]
        operand_with_one = first if "1" in first else second
        if (first + second).count("1") != 1 or len(operand_with_one) > min(len(first), len(second)):
            raise UserError(
                f"question: must have exactly one 1, in the shorter operand, as in 0000{self.operator}01=, not {text!r}"
            )
        row = np.array([[len(first), len(second), operand_with_one.index("1")]])
        return self._build_questions(row, np.array([operand_with_one is first]))

    def _build_questions(self, rows: QuestionRows, in_first: NDArray[np.bool_] | None = None) -> Questions:
        """Writes enumerated questions as text; `in_first` says which operand has the 1; None: chosen by the hash."""
        first, second, one_position = rows.T
        if in_first is None:
            coin = (
                mix_bits(first.astype(np.uint64) << np.uint64(32) | one_position.astype(np.uint64)) & np.uint64(1) == 1
            )
            in_first = (first < second) | (first == second) & coin
        longer = np.maximum(first, second)
        pieces = [
            _bit_symbols(first, np.where(in_first, one_position, -1)),
            np.full((len(rows), 1), 2, dtype=np.int16),
            _bit_symbols(second, np.where(in_first, -1, one_position)),
            np.full((len(rows), 1), 3, dtype=np.int16),
            _bit_symbols(longer, one_position),
        ]
        prompt = sum(piece.shape[1] for piece in pieces[:4])
        return Questions(
            self.alphabet(),
            np.concatenate(pieces, axis=1),
            Numbers.empty(len(rows)),
            np.broadcast_to(np.int64(prompt), (len(rows),)),
            metadata={"first_digits": first, "second_digits": second},
        )


_MAX_LISTED_QUESTIONS = 20_000


def _count_questions(first: Span, second: Span) -> int:
    return sum(min(i, j) for i in first for j in second)


@lru_cache(maxsize=8)
def _list_questions(first: Span, second: Span) -> QuestionRows:
    """All questions with operands of these lengths, in the order of the lengths and of the places."""
    lengths = np.array([(i, j) for i in first for j in second], dtype=np.int64)
    counts = lengths.min(axis=1)
    rows = np.empty((int(counts.sum()), 3), dtype=np.int64)
    rows[:, :2] = lengths.repeat(counts, axis=0)
    rows[:, 2] = np.arange(len(rows)) - (counts.cumsum() - counts).repeat(counts)
    return rows


@lru_cache(maxsize=8)
def _training_subset(digits: Span, max_examples: int) -> QuestionRows:
    """The questions of a training set of `max_examples`, in the order of `_list_questions`."""
    all_rows = _list_questions(digits, digits)
    return all_rows[
        np.sort(CounterRNG(random_key("positional or", digits, max_examples)).permutation(len(all_rows))[:max_examples])
    ]


def _are_in_span(lengths: NDArray[np.int64], span: Span) -> NDArray[np.bool_]:
    """Whether both lengths of a row are in the span."""
    return np.asarray(((lengths >= span.low) & (lengths <= span.high)).all(axis=1))


def _cell_codes(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A distinct code for each pair of lengths."""
    return np.asarray(rows[:, 0] * (MAX_DIGITS + 1) + rows[:, 1])


def _question_codes(rows: QuestionRows) -> NDArray[np.int64]:
    """A distinct code for each question."""
    return np.asarray(_cell_codes(rows) * (MAX_DIGITS + 1) + rows[:, 2])


def _bit_symbols(lengths: NDArray[np.int64], one_position: NDArray[np.int64]) -> NDArray[np.int16]:
    """Strings of 0 of these lengths, with a 1 at each nonnegative position; `EMPTY` after them."""
    columns = np.arange(int(lengths.max(initial=0)))
    bits: NDArray[np.int16] = np.where(columns < lengths[:, None], columns == one_position[:, None], EMPTY).astype(
        np.int16
    )
    return bits
