"""Sorting of labeled numbers."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks import decimals
from numerate.tasks.counter_rng import CounterRNG, mix_bits
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.task import Task, can_be_split, check_question
from numerate.vocabulary import ITEM_LABELS

MAX_DIGITS = 1_000
"""Longer numbers are an error, since they are probably a typo."""

_COMMA, _COLON, _EQUALS = range(len(ITEM_LABELS), len(ITEM_LABELS) + 3)
_ALPHABET = (*ITEM_LABELS, ",", ":", "=")


@dataclass(frozen=True)
class Sorting(Task):
    """Sorting: labels in the order of their numbers, `A:21,B:7,C:9=` is `B,C,A`.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399.
    Sorting is stable. Labels are consecutive characters of a cycle of 99, starting at a random one. (The published
    generator takes them from 102, two of which, `,` and `:`, are also separators, so that a third of its longest lists
    is ambiguous; its vocabulary for sorting has these 99.)

    A list has `items` numbers; each has 1 to `digits` digits, with equal probability, and is uniform over the numbers
    with exactly that many digits, excluding zero. With `lengths="cycle"` the pair of an example is its index modulo the
    number of pairs: with `digits=Span(1, 2)` and `items=Span(1, 2)` the examples 0, 1, 2, 3 have 1 item of 1 digit, 2
    of 1, 1 of up to 2, 2 of up to 2.

    A question is identified by its numbers in order, whatever their labels. If there are fewer than 4,000 lists with a
    given length and largest number of digits, they are not held out; since lists of larger `digits` may be among them,
    no cell with at most three items is held out.
    """

    digits: int | Span = setting(
        Span(1, 10), "most digits that a number of the list may have", at_least=1, at_most=MAX_DIGITS
    )
    items: int | Span = setting(Span(1, 10), "length of the list", at_least=1, at_most=len(ITEM_LABELS))
    lengths: Literal["cycle", "uniform"] = setting(
        "cycle", "how digits and items are drawn: all pairs in turn (cycle), or uniformly (uniform)"
    )

    @property
    def digit_and_item_spans(self) -> tuple[Span, Span]:
        """The largest number of digits in a list, and its number of items."""
        return Span.from_value(self.digits), Span.from_value(self.items)

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        rows = len(indices)
        digits, items = self.digit_and_item_spans
        if self.lengths == "cycle":
            pair = indices % (len(digits) * len(items))
            max_digits, num_items = digits.low + pair // len(items), items.low + pair % len(items)
        else:
            max_digits = digits.low + rng.integers(len(digits), (rows,))
            num_items = items.low + rng.integers(len(items), (rows,))
        is_present = np.arange(items.high) < num_items[:, None]
        lengths = np.where(is_present, 1 + rng.integers(max_digits[:, None], (rows, items.high)), 1)
        width = decimals.row_width(digits.high)
        numbers = rng.random_digits(rows * items.high, width).reshape(rows, items.high, width)
        numbers *= decimals.length_masks(0, digits.high, width).take(lengths * is_present, axis=0)
        leading_digits = rng.integers(9, (rows, items.high), np.uint8) + np.uint8(1)
        np.put_along_axis(numbers, lengths[..., None] - 1, (leading_digits * is_present)[..., None], axis=2)
        labels = (rng.integers(len(ITEM_LABELS), (rows, 1)) + np.arange(items.high)) % len(ITEM_LABELS)
        return _build_questions(numbers, lengths, labels, max_digits, num_items)

    def longest_questions(self) -> Questions:
        """The maximum number of items with the maximum number of digits, which is rare."""
        digits, items = (np.array([span.high]) for span in self.digit_and_item_spans)
        numbers = np.zeros((1, int(items[0]), decimals.row_width(int(digits[0]))), dtype=np.uint8)
        numbers[:, :, : digits[0]] = 9
        lengths = np.broadcast_to(digits, (1, int(items[0])))
        return _build_questions(numbers, lengths, np.arange(items[0])[None], digits, items)

    def axes(self) -> tuple[str, ...]:
        return ("digits", "items")

    def ood_validation_task(self) -> "Sorting | None":
        """Longer numbers and lists than in training, by up to 20 %; None if there are not enough labels."""
        digits, items = (Span(span.high + 1, span.high + max(1, span.high // 5)) for span in self.digit_and_item_spans)
        if items.low > len(ITEM_LABELS):
            return None
        return replace(self, digits=digits, items=Span(items.low, min(items.high, len(ITEM_LABELS))))

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the numbers in order, without their labels."""
        hashes = questions.numbers.hashes()
        positions = np.arange(hashes.shape[1], dtype=np.uint64)
        position_hashes = mix_bits(hashes + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
        is_present = positions < _num_items(questions).astype(np.uint64)[:, None]
        return mix_bits(np.where(is_present, position_hashes, np.uint64(0)).sum(axis=1, dtype=np.uint64))

    def num_questions(self) -> int:
        digits, items = self.digit_and_item_spans
        numbers: int = 10**digits.high - 1
        return sum(numbers**count for count in items)

    def is_held_out(self, split: str) -> bool:
        digits, items = self.digit_and_item_spans
        return split != "train" and all(
            _cell_can_be_split(most, count)
            for most in range(1, min(digits.high, _MAX_SMALL_SIZE) + 1)
            for count in range(items.low, min(items.high, _MAX_SMALL_SIZE) + 1)
        )

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        longest = np.minimum(questions.numbers.lengths.max(axis=1, initial=1), _MAX_SMALL_SIZE) - 1
        items = np.minimum(_num_items(questions), _MAX_SMALL_SIZE) - 1
        mask: NDArray[np.bool_] = _SPLITTABLE[longest, items]
        return mask

    def alphabet(self) -> tuple[str, ...]:
        return _ALPHABET

    def parse_question(self, text: str) -> Questions:
        pieces = text.strip().removesuffix("=").split(",")
        pairs = [piece.strip().partition(":") for piece in pieces]
        names, number_texts = [name.strip() for name, _, _ in pairs], [value.strip() for _, _, value in pairs]
        are_numbers = all(value.isascii() and value.isdigit() for value in number_texts)
        check_question(are_numbers, text, "A:21,B:7,C:9=")
        for name in names:
            if len(name) != 1 or name not in ITEM_LABELS:
                raise UserError(f"question: a label must be one character of {ITEM_LABELS}, not {name!r}")
        if len(set(names)) < len(names):
            raise UserError(f"question: labels must be distinct, not {' '.join(names)}")
        number_texts = [value.lstrip("0") or "0" for value in number_texts]
        max_digits = max(map(len, number_texts))
        if max_digits > MAX_DIGITS:
            raise UserError(f"question: numbers must have at most {MAX_DIGITS} digits, not {max_digits}")
        width = decimals.row_width(max_digits)
        return _build_questions(
            np.stack([decimals.parse_digits(value, width) for value in number_texts])[None],
            np.array([[len(value) for value in number_texts]]),
            np.array([[ITEM_LABELS.index(name) for name in names]]),
            np.array([max_digits]),
            np.array([len(names)]),
        )


_MAX_SMALL_SIZE = 5
"""Lists with this many items, or with a number of this many digits, can always be split."""


def _build_questions(
    numbers: decimals.Digits,
    lengths: NDArray[np.int64],
    labels: NDArray[np.int64],
    max_digits: NDArray[np.int64],
    num_items: NDArray[np.int64],
) -> Questions:
    """Lists of the first `num_items` of these numbers (rows x items x width, units first) with these labels.

    A row has the elements of `items` items, `A : 21 ,` each (the last ends with `=`), then the labels of the answer;
    shorter lists are padded with `EMPTY`.
    """
    rows, items = lengths.shape
    is_present = np.arange(items) < num_items[:, None]
    symbols = np.full((rows, 6 * items), EMPTY, dtype=np.int16)
    prompt, answer = symbols[:, : 4 * items].reshape(rows, items, 4), symbols[:, 4 * items :].reshape(rows, items, 2)
    is_last = np.arange(items) == num_items[:, None] - 1
    prompt[..., 0] = np.where(is_present, labels, EMPTY)
    prompt[..., 1] = np.where(is_present, _COLON, EMPTY)
    prompt[..., 2] = np.where(is_present, -1 - np.arange(items), EMPTY)
    prompt[..., 3] = np.where(is_last, _EQUALS, np.where(is_present, _COMMA, EMPTY))
    answer[..., 0] = np.where(is_present, np.take_along_axis(labels, _sorted_order(numbers, is_present), axis=1), EMPTY)
    answer[..., 1] = np.where(is_present & ~is_last, _COMMA, EMPTY)
    return Questions(
        _ALPHABET,
        symbols,
        Numbers(numbers[..., ::-1], lengths),
        np.broadcast_to(np.int64(4 * items), (rows,)),
        metadata={"digits": max_digits, "items": num_items},
    )


def _num_items(questions: Questions) -> NDArray[np.int64]:
    """Number of items of each list: its colons."""
    colon = questions.alphabet.index(":")
    num_items: NDArray[np.int64] = (questions.symbols == colon).sum(axis=1, dtype=np.int64)
    return num_items


def _sorted_order(numbers: decimals.Digits, is_present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The item indices of each row in ascending order (stable), with missing items last.

    Eight digits, units first, form a word that sorts like the number.
    """
    words = numbers.view("<u8")
    first = np.where(is_present, words[..., -1], np.uint64(2**64 - 1))
    if words.shape[2] == 1:
        return np.argsort(first, axis=1, kind="stable")
    return np.lexsort((*np.moveaxis(words[..., :-1], 2, 0), first), axis=1)


def _cell_can_be_split(digits: int, items: int) -> bool:
    """Whether there are enough lists with this many items whose longest number has this many digits."""
    numbers: int = 10**digits - 1
    return can_be_split(numbers**items - (10 ** (digits - 1) - 1) ** items)


_SPLITTABLE = np.array(
    [
        [_cell_can_be_split(digits, items) for items in range(1, _MAX_SMALL_SIZE + 1)]
        for digits in range(1, _MAX_SMALL_SIZE + 1)
    ]
)
"""Whether lists of i + 1 digits and j + 1 items can be split."""
