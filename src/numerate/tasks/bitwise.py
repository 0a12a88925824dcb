"""Positional OR of two bit strings; the few questions are listed, not sampled."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG, key, mix
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.task import Task

Listed = NDArray[np.int64]
"""Questions as numbers, `[rows, 3]`: the lengths of the first and of the second operand, and the place of the one."""


@dataclass(frozen=True)
class BitwiseOr(Task):
    """Positional OR of two bit strings with a single one between them: `0000+01=` is `0100`.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399,
    "positional or variant". The one stands in the shorter operand and the other one is all zeros; of two operands of
    equal length a coin says which (here a hash of length and place, so that the set is always the same). The answer is
    as long as the longer operand, its one as far from the left as in the question. Bits are texts, not numbers: they
    are written from the left in every number format.

    The questions are listed: sum of min(i, j) over all lengths, 2,870 for 1 to 20 bits each. Training goes through them
    in rounds, each once a round in an order of its own; so does evaluation, without replacement. With
    `max_examples=100` training has 100 of those of `digits` x `digits` (the published `--max`), the same for every
    seed, and the other splits have those that are not among them in either order of the operands. Without it training
    has them all, and only lengths beyond `digits` are new to it. Development and test ask the same questions: there are
    too few to keep some apart.
    """

    operator: str = setting("+", "the character between the operands")
    digits: int | Span = setting(Span(1, 20), "number of bits of the operands in training")
    first_digits: int | Span | None = setting(None, "number of bits of the first operand; null: digits")
    second_digits: int | Span | None = setting(None, "number of bits of the second operand; null: digits")
    max_examples: int | None = setting(None, "number of training examples, out of digits x digits; null: all")

    def __post_init__(self) -> None:
        if len(self.operator) != 1 or self.operator in "0123456789=":
            raise UserError(f"operator: {self.operator!r} is not one character that is neither a digit nor '='")
        for name in ("digits", "first_digits", "second_digits"):
            value = getattr(self, name)
            if value is not None and Span.of(value).low < 1:
                raise UserError(f"{name}: an operand has at least 1 bit, not {Span.of(value).low}")
            if value is not None and Span.of(value).high > MOST_DIGITS:
                raise UserError(
                    f"{name}: {Span.of(value).high} bits are too many to list; up to {MOST_DIGITS} are right"
                )
        if self.max_examples is not None and self.max_examples < 1:
            raise UserError(
                f"max_examples: {self.max_examples} questions teach nothing; 100 are published, null stands for all"
            )
        space = _count(Span.of(self.digits), Span.of(self.digits))
        if self.max_examples is not None and self.max_examples > space:
            raise UserError(
                f"max_examples: {self.max_examples} questions are more than the {space} that digits={self.digits} has"
            )

    @property
    def spans(self) -> tuple[Span, Span]:
        """The lengths of the first and of the second operand."""
        first = self.digits if self.first_digits is None else self.first_digits
        second = self.digits if self.second_digits is None else self.second_digits
        return Span.of(first), Span.of(second)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        """Any of its questions, with replacement. (Its splits are listed: `examples` goes through them in rounds.)"""
        every = _listed(*self.spans)
        return self._questions(every[draws.below(len(every), (len(index),))])

    def _block(self, split: str, seed: int, block: int, size: int) -> Questions:
        """Rounds through the questions of the split, each in an order of its own."""
        held = self._of_split(split)
        if not len(held):
            raise UserError(
                f"split: none of the {self.max_examples or 'trained'} questions of digits={self.digits} has "
                f"these lengths, so "
                "that there is nothing to train on; widen first_digits and second_digits"
            )
        index = np.arange(block * size, (block + 1) * size)
        chosen = np.empty(size, dtype=np.int64)
        for turn in range(int(index[0]) // len(held), int(index[-1]) // len(held) + 1):
            order = CounterRNG(key(self, split, seed, "turn", turn)).permutation(len(held))
            now = index // len(held) == turn
            chosen[now] = order[index[now] % len(held)]
        chance = CounterRNG(key(self, split, seed, "chance", block)).words(size)
        return replace(self._questions(held[chosen]), chance=chance)

    def whole(self, split: str = "test") -> Questions | None:
        """Every question of a split once, the places of each pair of lengths from the left; None above 20,000.

        >>> [plain_text(BitwiseOr(first_digits=4, second_digits=2).whole(), row) for row in (0, 1)]
        [('0000+10=', '1000'), ('0000+01=', '0100')]
        """
        held = self._of_split(split)
        if len(held) > _WHOLE:
            return None
        return replace(self._questions(held), chance=CounterRNG(key(self, split, "whole")).words(len(held)))

    def _of_split(self, split: str) -> Listed:
        """The questions of these lengths that a split has: training its own, the others the rest, or all if none is
        left."""
        every = _listed(*self.spans)
        if split == "train":
            return every[self._trained(every)]
        known = self._known(every)
        return every if bool(known.all()) else every[~known]

    def _trained(self, rows: Listed) -> NDArray[np.bool_]:
        """Which of these questions are among those of training."""
        digits = Span.of(self.digits)
        if self.max_examples is None:
            return _inside(rows[:, :2], digits)
        return np.isin(_codes(rows), _codes(_subset(digits, self.max_examples)))

    def _known(self, rows: Listed) -> NDArray[np.bool_]:
        """Which of these questions training has, with their operands in this order or in the other."""
        return self._trained(rows) | self._trained(rows[:, [1, 0, 2]])

    def canonical(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the lengths and of the place of the one: `0000+01=` and `01+0000=` are one question."""
        lengths = np.sort(np.stack([questions.facts[axis] for axis in self.axes()], axis=1), axis=1).astype(np.uint64)
        assert questions.prompt_length is not None, "answers are continuations"
        ones = questions.symbols == questions.alphabet.index("1")
        ones &= np.arange(ones.shape[1]) >= questions.prompt_length[:, None]
        place = (ones.argmax(axis=1) - questions.prompt_length).astype(np.uint64)
        return mix(lengths[:, 0] << np.uint64(40) | lengths[:, 1] << np.uint64(20) | place)

    def axes(self) -> tuple[str, ...]:
        return ("first_digits", "second_digits")

    def trained(self) -> dict[str, Span]:
        return dict(zip(self.axes(), self.spans, strict=True))

    def beyond(self) -> "BitwiseOr | None":
        """Both operands longer than any trained, by a fifth: 1 to 20 bits are followed by 21 to 24."""
        first, second = (Span(span.high + 1, span.high + max(1, span.high // 5)) for span in self.spans)
        if max(first.high, second.high) > MOST_DIGITS:
            return None
        return replace(self, first_digits=first, second_digits=second)

    def space(self) -> int:
        return _count(*self.spans)

    def held_out(self, split: str) -> bool:
        return split != "train" and not bool(self._known(_listed(*self.spans)).all())

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        """Whether the cell of each question has one that training has not."""
        lengths = np.stack([questions.facts[axis] for axis in self.axes()], axis=1)
        if self.max_examples is None:
            return ~_inside(lengths, Span.of(self.digits))
        trained = _subset(Span.of(self.digits), self.max_examples)
        known = np.unique(np.concatenate([trained, trained[:, [1, 0, 2]]]), axis=0)
        many = np.bincount(_cells(known), minlength=(MOST_DIGITS + 1) ** 2)
        return np.asarray(many[_cells(lengths)] < lengths.min(axis=1))

    def alphabet(self) -> tuple[str, ...]:
        return ("0", "1", self.operator, "=")

    def read(self, text: str) -> Questions:
        found = re.fullmatch(rf"\s*([01]+)\s*{re.escape(self.operator)}\s*([01]+)\s*=?\s*", text)
        if found is None:
            raise UserError(f"question: {text!r} is no question of this task; it reads like 0000{self.operator}01=")
        first, second = found[1], found[2]
        holder = first if "1" in first else second
        if (first + second).count("1") != 1 or len(holder) > min(len(first), len(second)):
            raise UserError(f"question: {text!r} has not one 1, in the shorter of the two; 0000{self.operator}01= has")
        row = np.array([[len(first), len(second), holder.index("1")]])
        return self._questions(row, np.array([holder is first]))

    def _questions(self, rows: Listed, in_first: NDArray[np.bool_] | None = None) -> Questions:
        """Writes listed questions as text; `in_first` says which operand has the one, unless a coin does."""
        first, second, place = rows.T
        if in_first is None:
            coin = mix(first.astype(np.uint64) << np.uint64(32) | place.astype(np.uint64)) & np.uint64(1) == 1
            in_first = (first < second) | (first == second) & coin
        longer = np.maximum(first, second)
        pieces = [
            _bits(first, np.where(in_first, place, -1)),
            np.full((len(rows), 1), 2, dtype=np.int16),
            _bits(second, np.where(in_first, -1, place)),
            np.full((len(rows), 1), 3, dtype=np.int16),
            _bits(longer, place),
        ]
        prompt = sum(piece.shape[1] for piece in pieces[:4])
        return Questions(
            self.alphabet(),
            np.concatenate(pieces, axis=1),
            Numbers.none(len(rows)),
            np.broadcast_to(np.int64(prompt), (len(rows),)),
            facts={"first_digits": first, "second_digits": second},
        )


MOST_DIGITS = 250
"""All pairs of lengths up to it make five million questions, which are still quickly listed."""

_WHOLE = 20_000


def _count(first: Span, second: Span) -> int:
    return sum(min(i, j) for i in first for j in second)


@lru_cache(maxsize=8)
def _listed(first: Span, second: Span) -> Listed:
    """All questions with operands of these lengths, in the order of the lengths and of the places."""
    lengths = np.array([(i, j) for i in first for j in second], dtype=np.int64)
    counts = lengths.min(axis=1)
    rows = np.empty((int(counts.sum()), 3), dtype=np.int64)
    rows[:, :2] = lengths.repeat(counts, axis=0)
    rows[:, 2] = np.arange(len(rows)) - (counts.cumsum() - counts).repeat(counts)
    return rows


@lru_cache(maxsize=8)
def _subset(digits: Span, most: int) -> Listed:
    """The questions of a training set of `most`, in the order in which all are listed."""
    every = _listed(digits, digits)
    return every[np.sort(CounterRNG(key("positional or", digits, most)).permutation(len(every))[:most])]


def _inside(lengths: NDArray[np.int64], span: Span) -> NDArray[np.bool_]:
    """Whether both lengths of a row are in the span."""
    return np.asarray(((lengths >= span.low) & (lengths <= span.high)).all(axis=1))


def _cells(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each pair of lengths."""
    return np.asarray(rows[:, 0] * (MOST_DIGITS + 1) + rows[:, 1])


def _codes(rows: Listed) -> NDArray[np.int64]:
    """One number for each question."""
    return np.asarray(_cells(rows) * (MOST_DIGITS + 1) + rows[:, 2])


def _bits(lengths: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int16]:
    """Symbols 0 of these lengths, with a 1 at a place where it is not negative; nothing behind them."""
    columns = np.arange(int(lengths.max(initial=0)))
    bits: NDArray[np.int16] = np.where(columns < lengths[:, None], columns == place[:, None], EMPTY).astype(np.int16)
    return bits
