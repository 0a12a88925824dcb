"""Integer arithmetic with two operands, sampled by operand length."""

import re
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks import carry, decimals, strata
from numerate.tasks.counter_rng import CounterRNG, mix_bits, random_key
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


CascadeName = Literal[
    "nines_plus_one",
    "one_plus_nines",
    "complement",
    "nines_plus_nines",
    "power_minus_one",
    "power_minus_number",
    "power_minus_nines",
    "nines_times_nine",
    "nine_times_nines",
    "nines_times_nines",
]
"""The names of `strata.CASCADES`."""


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

    def strata(self, size: int) -> dict[str, list[dict[str, Any]]]:
        """`uneven`: 1 + n, n + 1, n/2 + n and n + n/2 digits."""
        return {"uneven": [self._stratum(name, *lengths) for name, lengths in strata.uneven_lengths(size).items()]}

    def _stratum(self, name: str, first: int, second: int, **more: int) -> dict[str, Any]:
        return {**dict(zip(self.axes(), (first, second), strict=True)), **more, "stratum": name}

    def at_cell(self, **cell: Any) -> Self:
        """The strata `uneven` and `carries` are cells that other settings define; their names are only names."""
        if cell.get("stratum") in _NAMES_ONLY:
            del cell["stratum"]
        return super().at_cell(**cell)


_NAMES_ONLY = {*strata.uneven_lengths(1), "carries"}


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

    `stratum` and `longest_carry_chain` restrict the questions to kinds that are almost never drawn at random: with
    `Arithmetic(stratum="complement", digits=4)` a question is 1234+8766=10000.
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
    stratum: CascadeName | None = setting(
        None, "only questions of this kind, such as 99...9 + 1 for the longer length of operands", key_name=""
    )
    longest_carry_chain: int | None = setting(
        None,
        "only questions whose longest carry chain (of differences: of borrows) has this many columns",
        at_least=0,
        key_name="",
    )

    def conflicts(self) -> Iterator[str]:
        if self.no_carry and self.operator != "+":
            yield f"no_carry: must be false for operator {self.operator!r}; only sums have carries"
        first, second = self.operand_spans
        if self.stratum is not None:
            known = [name for name, cascade in strata.CASCADES.items() if cascade.operator == self.operator]
            if self.stratum not in known:
                yield f"stratum: must be {', '.join(known)} or null for {self.operator!r}, not {self.stratum}"
            elif max(first.low, second.low) < (least := strata.CASCADES[self.stratum].min_digits):
                yield f"stratum: {self.stratum} must have an operand of {least} digits or more"
            if self.no_carry or self.longest_carry_chain is not None:
                yield f"stratum: must be null with no_carry or longest_carry_chain, not {self.stratum}"
        if self.longest_carry_chain is not None:
            if self.operator == "x" or self.no_carry:
                yield "longest_carry_chain: must be null for products, and with no_carry"
            elif len(first) > 1 or first != second:
                yield "longest_carry_chain: must be null unless both operands have one length, such as digits=20"
            elif self.longest_carry_chain > (limit := carry.max_chain(self.operator, first.low)):
                yield (
                    f"longest_carry_chain: must be at most {limit} for {first.low} {self.operator} {first.low} digits, "
                    f"not {self.longest_carry_chain}"
                )

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
        longest = max(first_span.high, second_span.high)
        width = self._width(*((first_span.high, second_span.high) if self.stratum is None else (longest, longest)))
        numbers = np.empty((rows, 3, width), dtype=np.uint8)
        if self.stratum is not None:
            numbers[:, :2] = strata.draw_cascade(rng, self.stratum, operand_lengths.max(axis=1), width)
        elif self.longest_carry_chain is not None:
            chain = self.longest_carry_chain
            numbers[:, :2] = carry.draw_operands_with_chain(rng, self.operator, rows, first_span.low, chain, width)
        elif self.no_carry:
            may_be_zero = (operand_lengths == 1) & self.include_zero | (self.lengths == "value")
            numbers[:, :2] = carry.draw_operands(rng, operand_lengths, width, may_be_zero)
        else:
            self._draw_digits(rng, operand_lengths, numbers)
        if self.lengths == "value" or self.stratum is not None:
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

    def ood_validation_task(self) -> Self | None:
        """As of other tasks with operands; none with a `longest_carry_chain`, which is of one length."""
        return super().ood_validation_task() if self.longest_carry_chain is None else None

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

    def strata(self, size: int) -> dict[str, list[dict[str, Any]]]:
        """`uneven`; `cascade`, in which every column carries (`numerate.tasks.strata.CASCADES`); and `carries`, by the
        longest carry chain of operands of `size` digits, not of products."""
        found = super().strata(size)
        if not self.no_carry:
            found["cascade"] = [
                self._stratum(name, *cascade.lengths(size))
                for name, cascade in strata.CASCADES.items()
                if cascade.operator == self.operator and size >= cascade.min_digits
            ]
        if not self.no_carry and self.operator != "x":
            chains = range(carry.max_chain(self.operator, size) + 1)
            found["carries"] = [self._stratum("carries", size, size, longest_carry_chain=chain) for chain in chains]
        return found

    def question_facts(self, questions: Questions) -> dict[str, NDArray[np.int64]]:
        """`carries`, the number of columns that carry, and `longest_carry_chain`, the most of them in a row; of
        differences those that borrow, when the smaller operand is subtracted."""
        first, second = questions.numbers.units_first[:, 0], questions.numbers.units_first[:, 1]
        if questions.numbers.negative is not None:
            is_negative = questions.numbers.negative[:, 2, None]
            first, second = np.where(is_negative, second, first), np.where(is_negative, first, second)
        carries = carry.column_carries(first, second, self.operator)
        return {"carries": carries.sum(axis=1), "longest_carry_chain": carry.longest_chains(carries)}

    def all_questions(self, split: str = "test") -> Questions | None:
        """The question of a stratum that has a single one, such as 999 + 1."""
        if self.num_questions() != 1:
            return None
        rng = CounterRNG(random_key(self, split, "whole"))
        return replace(self.draw(rng, np.arange(1)), random_bits=rng.random_words(1))

    def num_questions(self) -> int | None:
        first, second = self.operand_spans
        if self.stratum is not None:
            lengths = range(max(first.low, second.low), max(first.high, second.high) + 1)
            return sum(strata.count_cascade(self.stratum, digits) for digits in lengths)
        if self.longest_carry_chain is not None:
            return carry.count_pairs_with_chain(self.operator, first.low, self.longest_carry_chain)
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
        if self._is_stratum:
            return super().is_held_out(split)
        return split != "train" and not self.unsplit_cells()

    @property
    def _is_stratum(self) -> bool:
        return self.stratum is not None or self.longest_carry_chain is not None

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        if self._is_stratum:
            return super().splittable_mask(questions)
        if self.lengths == "value":
            first, second = self.operand_spans
            return np.full(len(questions), can_be_split(self._num_cell_questions(first.high, second.high)))
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
