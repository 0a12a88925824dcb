"""Selective counting: the label of every item is the number of earlier items of its kind."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from string import ascii_lowercase, digits
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.compositions import Compositions
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.counting import HELPERS, MOST_NUMBER, check_begin, check_modulus
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.starts import feasible, next_counts
from numerate.tasks.task import Task, large_enough


@dataclass(frozen=True)
class SelectiveCounting(Task):
    """Selective counting: each item is counted among those of its kind, `7 5 7 7` has the labels 0 0 1 2.

    Chang and Bisk (2024), "Language Models Need Inductive Biases to Count Inductively",
    https://arxiv.org/abs/2405.20131. The label is how many of the kind came before; with `inclusive` the item itself
    counts too (`b b a b` has 1 2 1 3), and with `modulus=4` labels are remainders. Items are digits or letters; digits
    share their texts with the labels. `prefix` and `helper` are as in `Counting`.

    A list of c items has at most `max_count` of each kind. How many of each it has is drawn by `composition`, and their
    order uniformly:

    - "any": every way to make c of them, zeros included, is equally likely (`counting_selective_10items2`).
    - "even": so too, but most of those are rejected that have hardly any of one kind: above two of each kind on
      average, with probability .9995, .985, .8, .2 where the rarest kind comes 0, 1, 2, 3 times; above half of all
      that there may be, with .99, .5, .2 where the most frequent kind comes 0, 1, 2 times less than `max_count`
      (`counting_selective_10items` and `..2bos`).
    - "pairs": of two kinds, every pair of one or more a and any number of b is equally likely, over all trained
      lengths at once, so that a length comes as often as it has pairs (`counting_selective`).

    Otherwise lengths alternate, each equally often. The grid axis is `count`, the length of the list; a cell sets
    `eval_count`. One list in ten is held out by its hash; lengths, or pairs, with fewer than 4,000 lists have none.
    """

    num_symbols: int = setting(10, "number of different symbols")
    symbols: Literal["digits", "letters"] = setting("digits", "what the symbols are: digits or letters")
    count: int | Span = setting(Span(1, 50), "length of the lists in training")
    max_count: int | None = setting(10, "largest count of one symbol in a list; null: any")
    composition: Literal["any", "even", "pairs"] = setting("any", "how often each symbol occurs in a list")
    inclusive: bool = setting(False, "whether an item counts itself too")
    modulus: int | None = setting(None, "counts are modulo this; null: they are not")
    prefix: str = setting("", "a text before every sequence, such as <bos>, without a label")
    helper: Literal["none", "blank", "pad"] = setting(
        "none", "helper token behind each item, at which its count is predicted"
    )
    eval_count: int | Span | None = setting(None, "lengths to evaluate instead, trained or not; null: count")

    def __post_init__(self) -> None:
        for name, known in (("symbols", tuple(_TEXTS)), ("helper", tuple(HELPERS)), ("composition", COMPOSITION)):
            if getattr(self, name) not in known:
                raise UserError(f"{name}: there is no {getattr(self, name)!r}; there are: {', '.join(known)}")
        if not 2 <= self.num_symbols <= len(_TEXTS[self.symbols]):
            raise UserError(
                f"num_symbols: there are 2 to {len(_TEXTS[self.symbols])} kinds of {self.symbols}, not "
                f"{self.num_symbols}"
            )
        if self.max_count is not None and not 1 <= self.max_count <= MOST_NUMBER:
            raise UserError(f"max_count: {self.max_count} is not from 1 to {MOST_NUMBER}")
        check_modulus(self.modulus)
        if self.max_count is None and (self.modulus is None or self.composition == "even"):
            raise UserError("max_count: labels need a largest count, such as the published 10")
        if self.composition == "pairs" and (self.num_symbols != 2 or self.max_count is None):
            raise UserError(
                "composition: pairs are of two kinds and have a most; num_symbols=2 and max_count=50 are published"
            )
        check_begin(self.prefix, self._kinds, "<bos> is")
        for name, span in (("count", Span.of(self.count)), ("eval_count", self.eval_span)):
            if span.low < 1:
                raise UserError(f"{name}: {span.low} items are no list; 1 or more is right")
            if span.high > self._furthest:
                why = "the longest list there is"
                if self.max_count is not None and self._furthest == self.num_symbols * self.max_count:
                    why = f"which is what {self.num_symbols} kinds have together with max_count={self.max_count}"
                raise UserError(f"{name}: a list of {span.high} has more than {self._furthest} items, {why}")

    @property
    def eval_span(self) -> Span:
        """The lengths to evaluate."""
        return Span.of(self.count if self.eval_count is None else self.eval_count)

    @property
    def _furthest(self) -> int:
        return MOST_NUMBER if self.max_count is None else min(self.num_symbols * self.max_count, MOST_NUMBER)

    @property
    def _kinds(self) -> tuple[str, ...]:
        return tuple(_TEXTS[self.symbols][: self.num_symbols])

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        if self.composition == "pairs":
            pairs = _pairs(self.eval_span, self.max_count or 0)
            parts = pairs[index % len(pairs)]
        else:
            parts = self._parts(draws, self.eval_span.low + index % len(self.eval_span))
        return self.rows(self._shuffled(draws, parts), parts.sum(axis=1))

    def _parts(self, draws: CounterRNG, count: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of each kind, `[rows, items]`."""
        most, largest = self.max_count or self.eval_span.high, self.eval_span.high
        if self.composition == "any":
            return Compositions(self.num_symbols, most, largest).draw(draws, count)
        full = self.num_symbols * most
        parts = np.zeros((len(count), self.num_symbols), dtype=np.int64)
        few, many = count <= 2 * self.num_symbols, 2 * count > full
        for chosen, kept, gaps in ((few, (), False), (~few & ~many, EVEN, False), (~few & many, EVEN_GAPS, True)):
            row = np.flatnonzero(chosen)
            if len(row):
                total = full - count[row] if gaps else count[row]
                found = Compositions(self.num_symbols, most, full, kept).draw(draws, total)
                parts[row] = most - found if gaps else found
        return parts

    def _shuffled(self, draws: CounterRNG, parts: NDArray[np.int64]) -> NDArray[np.int16]:
        """Lists of so many of each kind in random order, `[rows, places]`, `EMPTY` behind the end of each."""
        rows, width = len(parts), self.eval_span.high
        ends, place = parts.cumsum(axis=1).astype(np.int16), np.arange(width, dtype=np.int16)
        listed = np.zeros((rows, width), dtype=np.uint8)
        for end in ends.T[:-1]:
            listed += place >= end[:, None]
        # Random upper bits, then the kind: sorting gives a random order of the kinds.
        keys = draws.halves(rows * width).reshape(rows, width).astype(np.uint64) << np.uint64(16) | listed
        there = place < ends[:, -1:]
        keys[~there] = np.uint64(2**64 - 1)
        keys.sort(axis=1)
        shuffled: NDArray[np.int16] = np.where(there, (keys & np.uint64(0xFF)).astype(np.int16), EMPTY).astype(np.int16)
        return shuffled

    def rows(self, listed: NDArray[np.int16], count: NDArray[np.int64]) -> Questions:
        """Lists of kinds, numbered from 0, `EMPTY` behind the end of each, as questions with their labels."""
        counts = _occurrences(listed, self.num_symbols)
        if self.inclusive:
            counts += 1
        if self.modulus is not None:
            counts %= self.modulus
        alphabet = self.alphabet()
        names = np.array([alphabet.index(kind) for kind in self._kinds], dtype=np.int16)
        there = listed >= 0
        symbols, labels = np.where(there, names[np.maximum(listed, 0)], EMPTY), np.where(there, counts, EMPTY)
        if self.helper != "none":
            helper = np.where(there, alphabet.index(HELPERS[self.helper]), EMPTY)
            symbols = np.stack([symbols, helper], axis=2).reshape(len(listed), -1)
            labels = np.stack([np.full_like(labels, EMPTY), labels], axis=2).reshape(len(listed), -1)
        if self.prefix:
            symbols, labels = (np.pad(part, ((0, 0), (1, 0)), constant_values=EMPTY) for part in (symbols, labels))
            symbols[:, 0] = alphabet.index(self.prefix)
        none = Numbers.none(len(listed))
        return Questions(
            alphabet, symbols.astype(np.int16), none, labels=labels.astype(np.int16), facts={"count": count}
        )

    def pinned(self, **cell: Any) -> Self:
        """The same with fields pinned; `count` sets what is evaluated, not what is trained."""
        found = super().pinned(**cell)
        return replace(found, count=self.count, eval_count=cell["count"]) if "count" in cell else found

    def axes(self) -> tuple[str, ...]:
        return ("count",)

    def trained(self) -> dict[str, Span]:
        return {"count": self.eval_span}

    def trained_labels(self) -> int:
        """The most labels of a training row."""
        return Span.of(self.count).high

    def beyond(self) -> "SelectiveCounting | None":
        """The lengths after the trained ones, a fifth more: 1 to 50 are followed by 51 to 60."""
        band = next_counts(self.eval_span, self._furthest)
        return None if band is None else replace(self, eval_count=band)

    def cells(self) -> list[tuple[int, ...]] | None:
        return feasible(Span.of(self.count), self._furthest)

    def space(self) -> int | None:
        """How many different lists there are; None where lists may not have as many of one kind as they are long."""
        if self.max_count is not None and self.eval_span.high > self.max_count:
            return None
        return sum(int(self.num_symbols**count) - (self.composition == "pairs") for count in self.eval_span)

    def held_out(self, split: str) -> bool:
        if split == "train":
            return False
        every = self.composition != "pairs" and self.eval_span.low >= self._few
        return every or self.eval_span.low > Span.of(self.count).high

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        count = questions.facts["count"]
        if self.composition != "pairs":
            return np.asarray(count >= self._few)
        first = (questions.symbols == questions.alphabet.index(self._kinds[0])).sum(axis=1)
        found: NDArray[np.bool_] = _many_orders(int(count.max(initial=0)))[count, first]
        return found

    @property
    def _few(self) -> int:
        """The shortest lists that can be held out."""
        return next(count for count in range(1, 99) if large_enough(self.num_symbols**count))

    def alphabet(self) -> tuple[str, ...]:
        """The labels from 0 on, the kinds, prefix and helper."""
        top = (self.max_count or 0) - (not self.inclusive) if self.modulus is None else self.modulus - 1
        texts = (*map(str, range(top + 1)), *self._kinds, self.prefix, HELPERS[self.helper])
        return tuple(dict.fromkeys(text for text in texts if text))

    def longest(self) -> Questions:
        listed = np.arange(self.eval_span.high) % self.num_symbols
        return self.rows(listed.astype(np.int16)[None], np.array([self.eval_span.high]))

    def read(self, text: str) -> Questions:
        """From `7 5 7 7`; prefix and helpers may be left out.

        Raises `UserError` for a list that this task never has.
        """
        pieces = [piece for piece in text.split() if piece != HELPERS[self.helper]]
        pieces = pieces[1:] if self.prefix and pieces[:1] == [self.prefix] else pieces
        if not pieces or any(piece not in self._kinds for piece in pieces):
            example = " ".join(self._kinds[kind] for kind in (1, 0, 1, 1))
            raise UserError(f"question: {text!r} is no question of this task; it reads like {example}")
        often = max(pieces.count(kind) for kind in self._kinds)
        if often > (self.max_count or MOST_NUMBER):
            raise UserError(f"question: one kind comes {often} times, and at most {self.max_count} are right")
        listed = np.array([[self._kinds.index(piece) for piece in pieces]], dtype=np.int16)
        return self.rows(listed, np.array([len(pieces)]))


COMPOSITION = ("any", "even", "pairs")

EVEN = (1 - 0.9995, 1 - 0.985, 1 - 0.8, 1 - 0.2)
"""The share of lists that is kept where the rarest kind comes 0, 1, 2, 3 times; of others, all."""

EVEN_GAPS = (1 - 0.99, 1 - 0.5, 1 - 0.2)
"""The share that is kept where the most frequent kind comes 0, 1, 2 times less than it may; of others, all."""

_TEXTS = {"digits": digits, "letters": ascii_lowercase}


def _occurrences(listed: NDArray[np.int16], items: int) -> NDArray[np.int16]:
    """At each position, how often its kind came before in the row; undefined after the end of a row."""
    rows, width = listed.shape
    kinds = np.ascontiguousarray(np.where(listed >= 0, listed, items).T).astype(np.int64)
    kinds += np.arange(rows) * (items + 1)
    came, found = np.zeros(rows * (items + 1), dtype=np.int16), np.empty((width, rows), dtype=np.int16)
    for place in range(width):
        found[place] = came[kinds[place]]
        came[kinds[place]] = found[place] + 1
    return np.ascontiguousarray(found.T)


@lru_cache(maxsize=32)
def _pairs(lengths: Span, most: int) -> NDArray[np.int64]:
    """All numbers of a and b, at least one a, that make a list of one of these lengths: `[pairs, 2]`."""
    first, second = np.meshgrid(np.arange(1, most + 1), np.arange(most + 1), indexing="ij")
    pairs = np.stack([first.reshape(-1), second.reshape(-1)], axis=1)
    total = pairs.sum(axis=1)
    found: NDArray[np.int64] = pairs[(total >= lengths.low) & (total <= lengths.high)]
    return found


@lru_cache(maxsize=8)
def _many_orders(longest: int) -> NDArray[np.bool_]:
    """Per length and number of a, whether there are enough orders to hold some out."""
    table = np.zeros((longest + 1, longest + 1), dtype=np.bool_)
    for count in range(longest + 1):
        table[count, : count + 1] = [large_enough(comb(count, first)) for first in range(count + 1)]
    return table
