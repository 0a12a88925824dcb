"""Sorting of labelled numbers."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks import decimals
from numerate.tasks.counter_rng import CounterRNG, mix
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.task import Task, large_enough
from numerate.vocabulary import LABELS

_COMMA, _COLON, _EQUALS = range(len(LABELS), len(LABELS) + 3)
_ALPHABET = (*LABELS, ",", ":", "=")


@dataclass(frozen=True)
class Sorting(Task):
    """Sorting: labels in the order of their numbers, `A:21,B:7,C:9=` is `B,C,A`.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399.
    Sorting is stable. Labels are consecutive characters of a circle of 99, from a random one on. (The published
    generator takes them from 102, two of which, `,` and `:`, are also separators, so that a third of its longest lists
    is ambiguous; its vocabulary for sorting has these 99.)

    A list has `items` numbers; each has 1 to `digits` digits, every length equally often, and is uniform among the
    numbers with exactly that many digits, without zero. With `lengths="cycle"` the pair of an example is its index
    modulo the number of pairs: with `digits=Span(1, 2)` and `items=Span(1, 2)` the examples 0, 1, 2, 3 have 1 item of 1
    digit, 2 of 1, 1 of up to 2, 2 of up to 2.

    A question is identified by its numbers in order, whatever their labels. If there are fewer than 4,000 lists with a
    given length and largest number of digits, they are seen in training, not held out; a list of larger `digits` may be
    one of them, so that every cell with at most three items is seen.
    """

    digits: int | Span = setting(Span(1, 10), "largest number of digits")
    items: int | Span = setting(Span(1, 10), "length of the list")
    lengths: Literal["cycle", "uniform"] = setting(
        "cycle", "distribution of lengths: all pairs in turn (cycle), or uniform"
    )

    def __post_init__(self) -> None:
        if self.lengths not in ("cycle", "uniform"):
            raise UserError(f"lengths: {self.lengths!r} is neither 'cycle' nor 'uniform'")
        digits, items = self.spans
        if digits.low < 1:
            raise UserError(f"digits: a number has at least 1 digit, not {digits.low}")
        if digits.high > MOST_DIGITS:
            raise UserError(f"digits: numbers of {digits.high} digits are too long; up to {MOST_DIGITS} are right")
        if items.low < 1:
            raise UserError(f"items: a list has at least 1 item, not {items.low}")
        if items.high > len(LABELS):
            raise UserError(f"items: {items.high} items have no labels of their own; there are {len(LABELS)} labels")

    @property
    def spans(self) -> tuple[Span, Span]:
        """The most digits of a list, and its number of items."""
        return Span.of(self.digits), Span.of(self.items)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        rows = len(index)
        digits, items = self.spans
        if self.lengths == "cycle":
            pair = index % (len(digits) * len(items))
            most, count = digits.low + pair // len(items), items.low + pair % len(items)
        else:
            most = digits.low + draws.below(len(digits), (rows,))
            count = items.low + draws.below(len(items), (rows,))
        there = np.arange(items.high) < count[:, None]
        lengths = np.where(there, 1 + draws.below(most[:, None], (rows, items.high)), 1)
        width = decimals.width(digits.high)
        numbers = draws.digits(rows * items.high, width).reshape(rows, items.high, width)
        numbers *= decimals.masks(0, digits.high, width).take(lengths * there, axis=0)
        leading = draws.below(9, (rows, items.high), np.uint8) + np.uint8(1)
        np.put_along_axis(numbers, lengths[..., None] - 1, (leading * there)[..., None], axis=2)
        labels = (draws.below(len(LABELS), (rows, 1)) + np.arange(items.high)) % len(LABELS)
        return _questions(numbers, lengths, labels, most, count)

    def longest(self) -> Questions:
        """The most items with the most digits, which is hardly ever drawn."""
        digits, items = (np.array([span.high]) for span in self.spans)
        numbers = np.zeros((1, int(items[0]), decimals.width(int(digits[0]))), dtype=np.uint8)
        numbers[:, :, : digits[0]] = 9
        lengths = np.broadcast_to(digits, (1, int(items[0])))
        return _questions(numbers, lengths, np.arange(items[0])[None], digits, items)

    def axes(self) -> tuple[str, ...]:
        return ("digits", "items")

    def beyond(self) -> "Sorting | None":
        """Longer numbers and more of them than trained, by a fifth; None if labels run out."""
        digits, items = (Span(span.high + 1, span.high + max(1, span.high // 5)) for span in self.spans)
        if items.low > len(LABELS):
            return None
        return replace(self, digits=digits, items=Span(items.low, min(items.high, len(LABELS))))

    def canonical(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the numbers in order, without their labels."""
        hashes = questions.numbers.hashes()
        places = np.arange(hashes.shape[1], dtype=np.uint64)
        placed = mix(hashes + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
        there = places < _items(questions).astype(np.uint64)[:, None]
        return mix(np.where(there, placed, np.uint64(0)).sum(axis=1, dtype=np.uint64))

    def space(self) -> int:
        digits, items = self.spans
        numbers: int = 10**digits.high - 1
        return sum(numbers**count for count in items)

    def held_out(self, split: str) -> bool:
        digits, items = self.spans
        return split != "train" and all(
            _can_be_divided(most, count)
            for most in range(1, min(digits.high, _SMALL) + 1)
            for count in range(items.low, min(items.high, _SMALL) + 1)
        )

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        longest = np.minimum(questions.numbers.lengths.max(axis=1, initial=1), _SMALL) - 1
        items = np.minimum(_items(questions), _SMALL) - 1
        divided: NDArray[np.bool_] = _DIVIDED[longest, items]
        return divided

    def alphabet(self) -> tuple[str, ...]:
        return _ALPHABET

    def read(self, text: str) -> Questions:
        pieces = text.strip().removesuffix("=").split(",")
        pairs = [piece.strip().partition(":") for piece in pieces]
        names, values = [name.strip() for name, _, _ in pairs], [value.strip() for _, _, value in pairs]
        if not all(value.isascii() and value.isdigit() for value in values):
            raise UserError(f"question: {text!r} is no question of this task; it reads like A:21,B:7,C:9=")
        for name in names:
            if len(name) != 1 or name not in LABELS:
                raise UserError(f"question: {name!r} is no label; a label is one character of {LABELS}")
        if len(set(names)) < len(names):
            raise UserError(f"question: the labels {' '.join(names)} are not all different")
        values = [value.lstrip("0") or "0" for value in values]
        most = max(map(len, values))
        if most > MOST_DIGITS:
            raise UserError(f"question: a number of {most} digits is too long; up to {MOST_DIGITS} are right")
        width = decimals.width(most)
        return _questions(
            np.stack([decimals.parse(value, width) for value in values])[None],
            np.array([[len(value) for value in values]]),
            np.array([[LABELS.index(name) for name in names]]),
            np.array([most]),
            np.array([len(names)]),
        )


MOST_DIGITS = 1_000
"""Longer numbers are refused as a likely typo."""

_SMALL = 5
"""Lists of so many items, or with so long a number, can be divided whatever else they are."""


def _questions(
    numbers: decimals.Digits,
    lengths: NDArray[np.int64],
    labels: NDArray[np.int64],
    most: NDArray[np.int64],
    count: NDArray[np.int64],
) -> Questions:
    """Lists of the first `count` of these numbers (rows x items x width, units first) under these labels.

    A row has the pieces of `items` items, `A : 21 ,` each (the last ends with `=`), then the labels of the answer;
    shorter lists are padded with `EMPTY`.
    """
    rows, items = lengths.shape
    there = np.arange(items) < count[:, None]
    symbols = np.full((rows, 6 * items), EMPTY, dtype=np.int16)
    prompt, answer = symbols[:, : 4 * items].reshape(rows, items, 4), symbols[:, 4 * items :].reshape(rows, items, 2)
    last = np.arange(items) == count[:, None] - 1
    prompt[..., 0] = np.where(there, labels, EMPTY)
    prompt[..., 1] = np.where(there, _COLON, EMPTY)
    prompt[..., 2] = np.where(there, -1 - np.arange(items), EMPTY)
    prompt[..., 3] = np.where(last, _EQUALS, np.where(there, _COMMA, EMPTY))
    answer[..., 0] = np.where(there, np.take_along_axis(labels, _order(numbers, there), axis=1), EMPTY)
    answer[..., 1] = np.where(there & ~last, _COMMA, EMPTY)
    return Questions(
        _ALPHABET,
        symbols,
        Numbers(numbers[..., ::-1], lengths),
        np.broadcast_to(np.int64(4 * items), (rows,)),
        facts={"digits": most, "items": count},
    )


def _items(questions: Questions) -> NDArray[np.int64]:
    """How many items each list has: as many as colons."""
    colon = questions.alphabet.index(":")
    items: NDArray[np.int64] = (questions.symbols == colon).sum(axis=1, dtype=np.int64)
    return items


def _order(numbers: decimals.Digits, there: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The items of each row from the smallest on, equal ones as they stand, those that are not there at the end.

    Digits, units first, make words that stand in the order of their numbers, eight digits each.
    """
    words = numbers.view("<u8")
    first = np.where(there, words[..., -1], np.uint64(2**64 - 1))
    if words.shape[2] == 1:
        return np.argsort(first, axis=1, kind="stable")
    return np.lexsort((*np.moveaxis(words[..., :-1], 2, 0), first), axis=1)


def _can_be_divided(digits: int, items: int) -> bool:
    """Whether there are enough lists of so many items whose longest number has so many digits."""
    numbers: int = 10**digits - 1
    return large_enough(numbers**items - (10 ** (digits - 1) - 1) ** items)


_DIVIDED = np.array(
    [[_can_be_divided(digits, items) for items in range(1, _SMALL + 1)] for digits in range(1, _SMALL + 1)]
)
"""Whether lists of i + 1 digits and j + 1 items can be divided."""
