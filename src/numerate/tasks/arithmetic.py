"""Integer arithmetic with two operands, sampled by operand length."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError, did_you_mean
from numerate.tasks import carry, decimals
from numerate.tasks.counter_rng import CounterRNG, mix
from numerate.tasks.questions import Numbers, Questions
from numerate.tasks.task import Task, large_enough


@dataclass(frozen=True)
class Operator:
    """How an operator answers: `answer_digits(first, second)` is the most digits that the answer to operands of so many
    digits has; `solve(first, second, out)` writes the answers, all `[rows, width]` as in `decimals`, and returns where
    they are negative (None where none ever is)."""

    commutative: bool
    answer_digits: Callable[[int, int], int]
    solve: Callable[[decimals.Digits, decimals.Digits, decimals.Digits], NDArray[np.bool_] | None]


OPERATORS = {
    "+": Operator(True, lambda first, second: max(first, second) + 1, decimals.add),
    "-": Operator(False, lambda first, second: max(first, second), decimals.subtract),
    "x": Operator(True, lambda first, second: first + second, decimals.multiply),
}


@dataclass(frozen=True)
class Arithmetic(Task):
    """Integer addition, subtraction or multiplication: `12+9=` is `21`, `9-12=` is `-3`, `12x9=` is `108`.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399.
    Their sampler draws every pair of operand lengths equally often, and each operand uniformly from the numbers with
    exactly so many digits, without zero; so do the defaults here. The place of a pair in the cycle is its index modulo
    the number of pairs: with `digits=Span(1, 2)`, the examples 0, 1, 2, 3 have the lengths 1+1, 1+2, 2+1, 2+2.

    `lengths="value"` is their other sampler: each operand uniform from 0 to 10^n - 1, n the most digits that it may
    have, so that nine in ten have exactly n. The facts `first_digits`, `second_digits` are then those of the numbers
    that came. Exact lengths are a pinned task: `Arithmetic().pinned(first_digits=3, second_digits=4)`.

    A question and its mirror image (3+4, 4+3) belong to the same split, so that no test question was trained on with
    its operands exchanged; those of a subtraction are two questions. Cells with fewer than 4,000 questions (1+1, 1+2
    and 2+1 digits; without carries 2+2 as well) are seen, not held out. `lengths="value"` has one cell, all of it.
    """

    operator: str = setting("+", "the operator")
    digits: int | Span = setting(Span(1, 20), "number of digits of the operands")
    first_digits: int | Span | None = setting(None, "number of digits of the first operand; null: digits")
    second_digits: int | Span | None = setting(None, "number of digits of the second operand; null: digits")
    lengths: Literal["cycle", "uniform", "value"] = setting(
        "cycle",
        "distribution of lengths: all pairs in turn (cycle), uniform, or operands uniform below 10^digits (value)",
    )
    include_zero: bool = setting(False, "whether 0 is among the numbers of one digit")
    no_carry: bool = setting(False, "only sums without carries", later=True)

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise UserError(
                f"operator: there is no {self.operator!r}; there are: {', '.join(OPERATORS)}."
                + did_you_mean(self.operator, OPERATORS)
            )
        if self.lengths not in ("cycle", "uniform", "value"):
            raise UserError(f"lengths: {self.lengths!r} is neither 'cycle' nor 'uniform' nor 'value'")
        if self.no_carry and self.operator != "+":
            raise UserError(f"no_carry: only sums have carries; with operator {self.operator!r} leave it false")
        for name in ("digits", "first_digits", "second_digits"):
            value = getattr(self, name)
            if value is not None and Span.of(value).low < 1:
                raise UserError(f"{name}: a number has at least 1 digit, not {Span.of(value).low}")
            if value is not None and Span.of(value).high > MOST_DIGITS:
                raise UserError(
                    f"{name}: numbers of {Span.of(value).high} digits are too long; up to {MOST_DIGITS} are right"
                )

    @property
    def spans(self) -> tuple[Span, Span]:
        """The lengths of the first and of the second operand."""
        first = self.digits if self.first_digits is None else self.first_digits
        second = self.digits if self.second_digits is None else self.second_digits
        return Span.of(first), Span.of(second)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        rows = len(index)
        first_span, second_span = self.spans
        operands = np.empty((rows, 2), dtype=np.int64)
        if self.lengths == "cycle":
            pair = index % (len(first_span) * len(second_span))
            np.floor_divide(pair, len(second_span), out=operands[:, 0])
            np.remainder(pair, len(second_span), out=operands[:, 1])
            operands += (first_span.low, second_span.low)
        elif self.lengths == "uniform":
            operands[:, 0] = draws.below(len(first_span), (rows,))
            operands[:, 1] = draws.below(len(second_span), (rows,))
            operands += (first_span.low, second_span.low)
        else:
            operands[:] = first_span.high, second_span.high
        width = self._width(first_span.high, second_span.high)
        numbers = np.empty((rows, 3, width), dtype=np.uint8)
        if self.no_carry:
            free = (operands == 1) & self.include_zero | (self.lengths == "value")
            numbers[:, :2] = carry.operands(draws, operands, width, free)
        else:
            self._draw_digits(draws, operands, numbers)
        if self.lengths == "value":
            operands = decimals.length(numbers[:, :2])
        return self._questions(numbers, operands)

    def _draw_digits(self, draws: CounterRNG, operands: NDArray[np.int64], numbers: NDArray[np.uint8]) -> None:
        """Writes digits of operands with these lengths into the first two numbers of each row."""
        rows, _, width = numbers.shape
        low, high = min(span.low for span in self.spans), max(span.high for span in self.spans)
        words = numbers.view("<u8")
        drawn = draws.digits(2 * rows, width).view("<u8").reshape(rows, 2, -1)
        kept = (decimals.masks(low, high, width) * np.uint8(255)).view("<u8").take(operands - low, axis=0)
        np.bitwise_and(drawn, kept, out=words[:, :2])
        if self.lengths == "value":
            return
        if self.include_zero:
            single = operands == 1
            leading = draws.below(np.where(single, 10, 9), (rows, 2), np.uint8) + np.uint8(1) - single
        else:
            leading = draws.below(9, (rows, 2), np.uint8) + np.uint8(1)
        starts = np.arange(rows)[:, None] * (3 * width) + (-1, width - 1)
        numbers.reshape(-1)[starts + operands] = leading

    def _width(self, first: int, second: int) -> int:
        return decimals.width(max(first, second, OPERATORS[self.operator].answer_digits(first, second)))

    def _questions(self, numbers: NDArray[np.uint8], operands: NDArray[np.int64]) -> Questions:
        """Works out the third number of each row, given the first two with their lengths, and says what is what."""
        rows = len(numbers)
        below_zero = OPERATORS[self.operator].solve(numbers[:, 0], numbers[:, 1], numbers[:, 2])
        negative: NDArray[np.bool_] | None = None
        if below_zero is not None:
            negative = np.zeros((rows, 3), dtype=np.bool_)
            negative[:, 2] = below_zero
        lengths = np.empty((rows, 3), dtype=np.int64)
        lengths[:, :2] = operands
        lengths[:, 2] = decimals.length(numbers[:, 2])
        return Questions(
            (self.operator, "="),
            np.broadcast_to(np.array([-1, 0, -2, 1, -3], dtype=np.int16), (rows, 5)),
            Numbers(numbers[..., ::-1], lengths, negative),
            np.broadcast_to(np.int64(4), (rows,)),
            facts={"first_digits": lengths[:, 0], "second_digits": lengths[:, 1]},
        )

    def longest(self) -> Questions | None:
        """The largest operands, or for a difference those of the longest negative one: a last carry is seldom drawn."""
        if self.no_carry:
            return None
        first, second = (span.high for span in self.spans)
        low = self.operator == "-" and second >= first
        return self.read(f"{'1' + '0' * (first - 1) if low else '9' * first}{self.operator}{'9' * second}=")

    def axes(self) -> tuple[str, ...]:
        return ("first_digits", "second_digits")

    def trained(self) -> dict[str, Span]:
        return dict(zip(self.axes(), self.spans, strict=True))

    def beyond(self) -> "Arithmetic":
        """Both operands longer than any trained: `Span(1, 20)` is followed by `Span(21, 24)`, 20 % more."""
        first, second = (Span(span.high + 1, span.high + max(1, span.high // 5)) for span in self.spans)
        return replace(self, first_digits=first, second_digits=second)

    def canonical(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the two operands; for a commutative operator their order does not count."""
        hashes = questions.numbers.hashes(2)
        if not OPERATORS[self.operator].commutative:
            hashes[:, 1] *= np.uint64(0x2545F4914F6CDD1D)
        return mix(hashes[:, 0] + hashes[:, 1])

    def space(self) -> int:
        first, second = self.spans
        if self.lengths == "value":
            return self._questions_of(first.high, second.high)
        if self.no_carry:
            return sum(self._questions_of(i, j) for i in first for j in second)
        counts = [sum(_choices(digits, self.include_zero) for digits in span) for span in (first, second)]
        return counts[0] * counts[1]

    def _questions_of(self, first: int, second: int) -> int:
        """How many questions the cell of so many digits has."""
        if self.lengths == "value":
            return carry.count(first, second, (True, True)) if self.no_carry else 10 ** (first + second)
        return _cell(first, second, self.include_zero, self.no_carry)

    def seen_cells(self) -> list[dict[str, int]]:
        """The cells that are too small to be divided, so that no question of theirs is new to training."""
        spans = self.spans
        if self.lengths == "value":
            spans = Span.of(spans[0].high), Span.of(spans[1].high)
        first, second = (range(span.low, min(span.high, _SMALL) + 1) for span in spans)
        return [
            {"first_digits": i, "second_digits": j}
            for i in first
            for j in second
            if not large_enough(self._questions_of(i, j))
        ]

    def held_out(self, split: str) -> bool:
        return split != "train" and not self.seen_cells()

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        if self.lengths == "value":
            return np.full(len(questions), large_enough(self.space()))
        cells = np.minimum(questions.numbers.lengths[:, :2], _SMALL) - 1
        large: NDArray[np.bool_] = _large_cells(self.include_zero, self.no_carry)[cells[:, 0] * _SMALL + cells[:, 1]]
        return large

    def alphabet(self) -> tuple[str, ...]:
        return (self.operator, "=")

    def read(self, text: str) -> Questions:
        found = re.fullmatch(rf"\s*([0-9]+)\s*{re.escape(self.operator)}\s*([0-9]+)\s*=?\s*", text)
        if found is None:
            raise UserError(f"question: {text!r} is no question of this task; it reads like 12{self.operator}9=")
        first, second = (found[i].lstrip("0") or "0" for i in (1, 2))
        if max(len(first), len(second)) > MOST_DIGITS:
            raise UserError(f"question: its numbers have more than {MOST_DIGITS} digits, which is too long")
        if self.no_carry and any(int(x) + int(y) > 9 for x, y in zip(first[::-1], second[::-1], strict=False)):
            raise UserError(f"question: {text!r} has a carry, and this task (no_carry) has sums without any")
        width = self._width(len(first), len(second))
        numbers = np.zeros((1, 3, width), dtype=np.uint8)
        numbers[0, 0], numbers[0, 1] = decimals.parse(first, width), decimals.parse(second, width)
        return self._questions(numbers, np.array([[len(first), len(second)]]))


MOST_DIGITS = 10_000
"""Longer numbers are refused as a likely typo."""

_SMALL = 5
"""Cells with an operand of so many digits are large enough whatever the other is."""


def _choices(digits: int, zero: bool) -> int:
    """How many numbers have so many digits."""
    numbers: int = 9 * 10 ** (digits - 1)
    return numbers + (digits == 1 and zero)


def _cell(first: int, second: int, zero: bool, no_carry: bool) -> int:
    """How many questions have operands of so many digits."""
    if no_carry:
        return carry.count(first, second, (zero and first == 1, zero and second == 1))
    return _choices(first, zero) * _choices(second, zero)


@lru_cache
def _large_cells(zero: bool, no_carry: bool) -> NDArray[np.bool_]:
    """Whether the cell of i + 1 and j + 1 digits can be divided, at i * _SMALL + j."""
    sizes = Span(1, _SMALL)
    return np.array([large_enough(_cell(first, second, zero, no_carry)) for first in sizes for second in sizes])
