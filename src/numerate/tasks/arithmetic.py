"""Integer arithmetic with two operands, sampled by operand length."""

import re
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks import carry, decimals
from numerate.tasks.counter_rng import CounterRNG, mix_bits
from numerate.tasks.questions import Numbers, Questions
from numerate.tasks.task import Task, can_be_split, match_question

MAX_DIGITS = 10_000
"""Longer numbers are an error, since they are probably a typo."""


@dataclass(frozen=True)
class Operator:
    """The arithmetic of an operator: `max_answer_digits(first, second)` is the maximum number of digits of the answer
    for operands with these numbers of digits; `solve(first, second, out)` writes the answers, all `[rows, width]` as in
    `decimals`, and returns the mask of negative ones (None if none can be negative)."""

    commutative: bool
    max_answer_digits: Callable[[int, int], int]
    solve: Callable[[decimals.Digits, decimals.Digits, decimals.Digits], NDArray[np.bool_] | None]


OPERATORS = {
    "+": Operator(True, lambda first, second: max(first, second) + 1, decimals.add),
    "-": Operator(False, lambda first, second: max(first, second), decimals.subtract),
    "x": Operator(True, lambda first, second: first + second, decimals.multiply),
}


class OperandTask(Task, ABC):
    """A task with two operands, whose axes are their numbers of digits."""

    digits: int | Span
    first_digits: int | Span | None
    second_digits: int | Span | None

    @property
    def operand_spans(self) -> tuple[Span, Span]:
        """The lengths of the first and of the second operand."""
        first = self.digits if self.first_digits is None else self.first_digits
        second = self.digits if self.second_digits is None else self.second_digits
        return Span.from_value(first), Span.from_value(second)

    def axes(self) -> tuple[str, ...]:
        return ("first_digits", "second_digits")

    def training_spans(self) -> dict[str, Span]:
        return dict(zip(self.axes(), self.operand_spans, strict=True))

    def ood_validation_task(self) -> Self | None:
        """Both operands are longer than in training, by up to 20 %: `Span(1, 20)` is followed by `Span(21, 24)`."""
        first, second = (Span(span.high + 1, span.high + max(1, span.high // 5)) for span in self.operand_spans)
        return replace(self, first_digits=first, second_digits=second)  # type: ignore[type-var]


@dataclass(frozen=True)
class Arithmetic(OperandTask):
    """Integer addition, subtraction or multiplication: `12+9=` is `21`, `9-12=` is `-3`, `12x9=` is `108`.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399.
    As in their sampler, by default all pairs of operand lengths are equally frequent, and each operand is uniform over
    the numbers with exactly that many digits, excluding zero. An example has the pair at its index modulo the number of
    pairs: with `digits=Span(1, 2)`, the examples 0, 1, 2, 3 have the lengths 1+1, 1+2, 2+1, 2+2.

    `lengths="value"` is their other sampler: each operand is uniform from 0 to 10^n - 1, where n is its maximum number
    of digits, so that nine in ten have exactly n digits. The metadata `first_digits`, `second_digits` are then the
    lengths of the sampled numbers. Exact lengths are `Arithmetic().at_cell(first_digits=3, second_digits=4)`.

    A question and its mirror image (3+4, 4+3) belong to the same split, so that no test question occurs in training
    with its operands exchanged; for subtraction they are two questions. Cells with fewer than 4,000 questions (1+1, 1+2
    and 2+1 digits; without carries 2+2 as well) are seen, not held out. `lengths="value"` has one cell, all of it.
    """

    operator: Literal["+", "-", "x"] = setting("+", "the operator")
    digits: int | Span = setting(Span(1, 20), "number of digits of the operands", at_least=1, at_most=MAX_DIGITS)
    first_digits: int | Span | None = setting(
        None, "number of digits of the first operand; null: digits", at_least=1, at_most=MAX_DIGITS
    )
    second_digits: int | Span | None = setting(
        None, "number of digits of the second operand; null: digits", at_least=1, at_most=MAX_DIGITS
    )
    lengths: Literal["cycle", "uniform", "value"] = setting(
        "cycle",
        "numbers of digits: all pairs in turn (cycle), drawn (uniform), or operands uniform below 10^digits (value)",
    )
    include_zero: bool = setting(False, "whether one-digit numbers include 0")
    no_carry: bool = setting(False, "only sums without carries")

    def conflicts(self) -> Iterator[str]:
        if self.no_carry and self.operator != "+":
            yield f"no_carry: must be false for operator {self.operator!r}; only sums have carries"

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        rows = len(indices)
        first_span, second_span = self.operand_spans
        operand_lengths = np.empty((rows, 2), dtype=np.int64)
        if self.lengths == "cycle":
            pair = indices % (len(first_span) * len(second_span))
            np.floor_divide(pair, len(second_span), out=operand_lengths[:, 0])
            np.remainder(pair, len(second_span), out=operand_lengths[:, 1])
            operand_lengths += (first_span.low, second_span.low)
        elif self.lengths == "uniform":
            operand_lengths[:, 0] = rng.integers(len(first_span), (rows,))
            operand_lengths[:, 1] = rng.integers(len(second_span), (rows,))
            operand_lengths += (first_span.low, second_span.low)
        else:
            operand_lengths[:] = first_span.high, second_span.high
        width = self._width(first_span.high, second_span.high)
        numbers = np.empty((rows, 3, width), dtype=np.uint8)
        if self.no_carry:
            may_be_zero = (operand_lengths == 1) & self.include_zero | (self.lengths == "value")
            numbers[:, :2] = carry.draw_operands(rng, operand_lengths, width, may_be_zero)
        else:
            self._draw_digits(rng, operand_lengths, numbers)
        if self.lengths == "value":
            operand_lengths = decimals.num_digits(numbers[:, :2])
        return self._build_questions(numbers, operand_lengths)

    def _draw_digits(self, rng: CounterRNG, operand_lengths: NDArray[np.int64], numbers: NDArray[np.uint8]) -> None:
        """Writes digits of operands with these lengths into the first two numbers of each row."""
        rows, _, width = numbers.shape
        low, high = min(span.low for span in self.operand_spans), max(span.high for span in self.operand_spans)
        words = numbers.view("<u8")
        random_words = rng.random_digits(2 * rows, width).view("<u8").reshape(rows, 2, -1)
        length_mask = (
            (decimals.length_masks(low, high, width) * np.uint8(255)).view("<u8").take(operand_lengths - low, axis=0)
        )
        np.bitwise_and(random_words, length_mask, out=words[:, :2])
        if self.lengths == "value":
            return
        if self.include_zero:
            is_single_digit = operand_lengths == 1
            leading_digits = (
                rng.integers(np.where(is_single_digit, 10, 9), (rows, 2), np.uint8) + np.uint8(1) - is_single_digit
            )
        else:
            leading_digits = rng.integers(9, (rows, 2), np.uint8) + np.uint8(1)
        row_offsets = np.arange(rows)[:, None] * (3 * width) + (-1, width - 1)
        numbers.reshape(-1)[row_offsets + operand_lengths] = leading_digits

    def _width(self, first: int, second: int) -> int:
        return decimals.row_width(max(first, second, OPERATORS[self.operator].max_answer_digits(first, second)))

    def _build_questions(self, numbers: NDArray[np.uint8], operand_lengths: NDArray[np.int64]) -> Questions:
        """Computes the answer of each row from its two operands, and builds the questions."""
        rows = len(numbers)
        is_negative = OPERATORS[self.operator].solve(numbers[:, 0], numbers[:, 1], numbers[:, 2])
        negative: NDArray[np.bool_] | None = None
        if is_negative is not None:
            negative = np.zeros((rows, 3), dtype=np.bool_)
            negative[:, 2] = is_negative
        lengths = np.empty((rows, 3), dtype=np.int64)
        lengths[:, :2] = operand_lengths
        lengths[:, 2] = decimals.num_digits(numbers[:, 2])
        return Questions(
            (self.operator, "="),
            np.broadcast_to(np.array([-1, 0, -2, 1, -3], dtype=np.int16), (rows, 5)),
            Numbers(numbers[..., ::-1], lengths, negative),
            np.broadcast_to(np.int64(4), (rows,)),
            metadata={"first_digits": lengths[:, 0], "second_digits": lengths[:, 1]},
        )

    def longest_questions(self) -> Questions | None:
        """The largest operands, or for subtraction those of the longest negative difference: a final carry is rare."""
        if self.no_carry:
            return None
        first, second = (span.high for span in self.operand_spans)
        is_negative_difference = self.operator == "-" and second >= first
        return self.parse_question(
            f"{'1' + '0' * (first - 1) if is_negative_difference else '9' * first}{self.operator}{'9' * second}="
        )

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the two operands, independent of their order if the operator is commutative."""
        hashes = questions.numbers.hashes(2)
        if not OPERATORS[self.operator].commutative:
            hashes[:, 1] *= np.uint64(0x2545F4914F6CDD1D)
        return mix_bits(hashes[:, 0] + hashes[:, 1])

    def num_questions(self) -> int:
        first, second = self.operand_spans
        if self.lengths == "value":
            return self._num_cell_questions(first.high, second.high)
        if self.no_carry:
            return sum(self._num_cell_questions(i, j) for i in first for j in second)
        counts = [sum(_count_numbers(digits, self.include_zero) for digits in span) for span in (first, second)]
        return counts[0] * counts[1]

    def _num_cell_questions(self, first: int, second: int) -> int:
        """Number of questions of the cell with these numbers of digits."""
        if self.lengths == "value":
            return carry.count_pairs(first, second, (True, True)) if self.no_carry else 10 ** (first + second)
        return _count_questions(first, second, self.include_zero, self.no_carry)

    def unsplit_cells(self) -> list[dict[str, int]]:
        """The cells that are too small to be split, so that all of their questions may occur in training."""
        spans = self.operand_spans
        if self.lengths == "value":
            spans = Span.from_value(spans[0].high), Span.from_value(spans[1].high)
        first, second = (range(span.low, min(span.high, _MAX_SMALL_DIGITS) + 1) for span in spans)
        return [
            {"first_digits": i, "second_digits": j}
            for i in first
            for j in second
            if not can_be_split(self._num_cell_questions(i, j))
        ]

    def is_held_out(self, split: str) -> bool:
        return split != "train" and not self.unsplit_cells()

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        if self.lengths == "value":
            return np.full(len(questions), can_be_split(self.num_questions()))
        cells = np.minimum(questions.numbers.lengths[:, :2], _MAX_SMALL_DIGITS) - 1
        mask: NDArray[np.bool_] = _splittable_cells(self.include_zero, self.no_carry)[
            cells[:, 0] * _MAX_SMALL_DIGITS + cells[:, 1]
        ]
        return mask

    def alphabet(self) -> tuple[str, ...]:
        return (self.operator, "=")

    def parse_question(self, text: str) -> Questions:
        pattern = rf"\s*([0-9]+)\s*{re.escape(self.operator)}\s*([0-9]+)\s*=?\s*"
        match = match_question(pattern, text, f"12{self.operator}9=")
        first, second = (match[i].lstrip("0") or "0" for i in (1, 2))
        if max(len(first), len(second)) > MAX_DIGITS:
            raise UserError(f"question: numbers must have at most {MAX_DIGITS} digits")
        if self.no_carry and any(int(x) + int(y) > 9 for x, y in zip(first[::-1], second[::-1], strict=False)):
            raise UserError(f"question: must be a sum without a carry (no_carry=true), not {text!r}")
        width = self._width(len(first), len(second))
        numbers = np.zeros((1, 3, width), dtype=np.uint8)
        numbers[0, 0], numbers[0, 1] = decimals.parse_digits(first, width), decimals.parse_digits(second, width)
        return self._build_questions(numbers, np.array([[len(first), len(second)]]))


_MAX_SMALL_DIGITS = 5
"""Cells with an operand of at least this many digits are always large enough to be split."""


def _count_numbers(digits: int, include_zero: bool) -> int:
    """Number of integers with this many digits."""
    numbers: int = 9 * 10 ** (digits - 1)
    return numbers + (digits == 1 and include_zero)


def _count_questions(first: int, second: int, include_zero: bool, no_carry: bool) -> int:
    """Number of questions whose operands have these numbers of digits."""
    if no_carry:
        return carry.count_pairs(first, second, (include_zero and first == 1, include_zero and second == 1))
    return _count_numbers(first, include_zero) * _count_numbers(second, include_zero)


@lru_cache
def _splittable_cells(include_zero: bool, no_carry: bool) -> NDArray[np.bool_]:
    """Whether the cell of i + 1 and j + 1 digits can be split, at i * _SMALL + j."""
    sizes = Span(1, _MAX_SMALL_DIGITS)
    return np.array(
        [can_be_split(_count_questions(first, second, include_zero, no_carry)) for first in sizes for second in sizes]
    )
