"""Selective counting: the label of every item is the number of earlier items of its kind."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from string import ascii_lowercase, digits
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.compositions import Compositions
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.counting import HELPER_CHOICES, MAX_NUMBER, insert_helpers, insert_prefix, prefix_conflicts
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.starts import CountTask
from numerate.tasks.task import can_be_split, check_question


@dataclass(frozen=True)
class SelectiveCounting(CountTask):
    """Selective counting: each item is counted among those of its kind, `7 5 7 7` has the labels 0 0 1 2.

    Chang and Bisk (2024), "Language Models Need Inductive Biases to Count Inductively",
    https://arxiv.org/abs/2405.20131. The label is the number of earlier items of the same kind; with `inclusive` the
    item itself counts too (`b b a b` has 1 2 1 3), and with `modulus=4` labels are remainders. Items are digits or
    letters; digits share their tokens with the labels. `prefix` and `helper` are as in `Counting`.

    A list of c items has at most `max_count` of each kind. The counts of the kinds are sampled by `composition`, and
    their order uniformly:

    - "any": every combination of counts with sum c, including zeros, is equally likely (`counting_selective_10items2`).
    - "even": so too, but most of those are rejected that have hardly any of one kind: above two of each kind on
      average, with probability .9995, .985, .8, .2 where the rarest kind comes 0, 1, 2, 3 times; above half of all
      that there may be, with .99, .5, .2 where the most frequent kind comes 0, 1, 2 times less than `max_count`
      (`counting_selective_10items` and `..2bos`).
    - "pairs": of two kinds, every pair of one or more a and any number of b is equally likely, over all trained
      lengths at once, so that a length comes as often as it has pairs (`counting_selective`).

    Otherwise lengths alternate, each equally often. The grid axis is `count`, the length of the list; a cell sets
    `eval_count`. One list in ten is held out by its hash; lengths, or pairs, with fewer than 4,000 lists have none.
    """

    num_symbols: int = setting(10, "number of different symbols", at_least=2)
    symbols: Literal["digits", "letters"] = setting("digits", "what the symbols are: digits or letters")
    count: int | Span = setting(Span(1, 50), "length of the lists in training", at_least=1)
    max_count: int | None = setting(
        10, "largest count of one symbol in a list; null: any", at_least=1, at_most=MAX_NUMBER
    )
    composition: Literal["any", "even", "pairs"] = setting("any", "distribution of the counts of the symbols")
    inclusive: bool = setting(False, "whether an item counts itself too")
    modulus: int | None = setting(
        None, "labels are counts modulo this number; null: plain counts", at_least=2, at_most=MAX_NUMBER
    )
    prefix: str = setting("", "a text before every sequence, such as <bos>, without a label")
    helper: Literal["none", "blank", "pad"] = setting(
        "none", "helper token after each item, at which its count is predicted"
    )
    eval_count: int | Span | None = setting(
        None, "lengths of evaluated questions, set by a cell of a grid; null: count", at_least=1
    )

    def conflicts(self) -> Iterator[str]:
        if self.num_symbols > len(_SYMBOL_TEXTS[self.symbols]):
            yield (
                f"num_symbols: must be from 2 to {len(_SYMBOL_TEXTS[self.symbols])} with symbols={self.symbols}, not "
                f"{self.num_symbols}"
            )
        if self.max_count is None and (self.modulus is None or self.composition == "even"):
            yield "max_count: must be set to bound the labels, such as the published 10"
        if self.composition == "pairs" and (self.num_symbols != 2 or self.max_count is None):
            yield "composition: 'pairs' requires num_symbols=2 and a max_count (50 in the paper)"
        yield from prefix_conflicts(self.prefix, self._symbol_texts, "<bos> is")
        for name, span in (("count", Span.from_value(self.count)), ("eval_count", self.eval_span)):
            if span.high > self.max_possible_count:
                why = "the longest list there is"
                if self.max_count is not None and self.max_possible_count == self.num_symbols * self.max_count:
                    why = f"which is what {self.num_symbols} kinds have together with max_count={self.max_count}"
                yield f"{name}: a list of {span.high} has more than {self.max_possible_count} items, {why}"

    @property
    def max_possible_count(self) -> int:
        return MAX_NUMBER if self.max_count is None else min(self.num_symbols * self.max_count, MAX_NUMBER)

    @property
    def _symbol_texts(self) -> tuple[str, ...]:
        return tuple(_SYMBOL_TEXTS[self.symbols][: self.num_symbols])

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        if self.composition == "pairs":
            pairs = _list_pairs(self.eval_span, self.max_count or 0)
            parts = pairs[indices % len(pairs)]
        else:
            parts = self._draw_symbol_counts(rng, self.eval_span.low + indices % len(self.eval_span))
        return self.build_rows(self._shuffle(rng, parts), parts.sum(axis=1))

    def _draw_symbol_counts(self, rng: CounterRNG, count: NDArray[np.int64]) -> NDArray[np.int64]:
        """The count of each kind, `[rows, kinds]`."""
        max_count, largest = self.max_count or self.eval_span.high, self.eval_span.high
        if self.composition == "any":
            return Compositions(self.num_symbols, max_count, largest).draw(rng, count)
        max_total = self.num_symbols * max_count
        parts = np.zeros((len(count), self.num_symbols), dtype=np.int64)
        is_short, is_long = count <= 2 * self.num_symbols, 2 * count > max_total
        for chosen, keep_probabilities, gaps in (
            (is_short, (), False),
            (~is_short & ~is_long, EVEN_KEEP_PROBABILITIES, False),
            (~is_short & is_long, EVEN_GAP_KEEP_PROBABILITIES, True),
        ):
            row = np.flatnonzero(chosen)
            if len(row):
                total = max_total - count[row] if gaps else count[row]
                found = Compositions(self.num_symbols, max_count, max_total, keep_probabilities).draw(rng, total)
                parts[row] = max_count - found if gaps else found
        return parts

    def _shuffle(self, rng: CounterRNG, symbol_counts: NDArray[np.int64]) -> NDArray[np.int16]:
        """Lists with these counts of the kinds in random order, `[rows, positions]`, padded with `EMPTY`."""
        rows, width = len(symbol_counts), self.eval_span.high
        ends, positions = symbol_counts.cumsum(axis=1).astype(np.int16), np.arange(width, dtype=np.int16)
        symbol_indices = np.zeros((rows, width), dtype=np.uint8)
        for end in ends.T[:-1]:
            symbol_indices += positions >= end[:, None]
        # Random upper bits, then the kind: sorting gives a random order of the kinds.
        keys = (
            rng.random_half_words(rows * width).reshape(rows, width).astype(np.uint64) << np.uint64(16) | symbol_indices
        )
        is_present = positions < ends[:, -1:]
        keys[~is_present] = np.uint64(2**64 - 1)
        keys.sort(axis=1)
        shuffled: NDArray[np.int16] = np.where(is_present, (keys & np.uint64(0xFF)).astype(np.int16), EMPTY).astype(
            np.int16
        )
        return shuffled

    def build_rows(self, symbol_indices: NDArray[np.int16], count: NDArray[np.int64]) -> Questions:
        """Questions with labels, from lists of kinds (from 0) padded with `EMPTY`."""
        counts = _occurrences(symbol_indices, self.num_symbols)
        if self.inclusive:
            counts += 1
        if self.modulus is not None:
            counts %= self.modulus
        alphabet = self.alphabet()
        alphabet_indices = np.array([alphabet.index(kind) for kind in self._symbol_texts], dtype=np.int16)
        is_present = symbol_indices >= 0
        symbols, labels = (
            np.where(is_present, alphabet_indices[np.maximum(symbol_indices, 0)], EMPTY),
            np.where(is_present, counts, EMPTY),
        )
        if self.helper != "none":
            symbols, labels = insert_helpers(symbols, labels, alphabet.index(HELPER_CHOICES[self.helper]))
        if self.prefix:
            symbols, labels = insert_prefix(symbols, labels, alphabet.index(self.prefix))
        no_numbers = Numbers.empty(len(symbol_indices))
        return Questions(
            alphabet, symbols.astype(np.int16), no_numbers, labels=labels.astype(np.int16), metadata={"count": count}
        )

    def num_questions(self) -> int | None:
        """Number of distinct lists; None if `max_count` is below the length of a list."""
        if self.max_count is not None and self.eval_span.high > self.max_count:
            return None
        return sum(int(self.num_symbols**count) - (self.composition == "pairs") for count in self.eval_span)

    def is_held_out(self, split: str) -> bool:
        if split == "train":
            return False
        all_splittable = self.composition != "pairs" and self.eval_span.low >= self._min_splittable_length
        return all_splittable or self.eval_span.low > Span.from_value(self.count).high

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        count = questions.metadata["count"]
        if self.composition != "pairs":
            return np.asarray(count >= self._min_splittable_length)
        first = (questions.symbols == questions.alphabet.index(self._symbol_texts[0])).sum(axis=1)
        found: NDArray[np.bool_] = _splittable_pairs(int(count.max(initial=0)))[count, first]
        return found

    @property
    def _min_splittable_length(self) -> int:
        """The smallest length of which lists can be held out."""
        return next(count for count in range(1, 99) if can_be_split(self.num_symbols**count))

    def alphabet(self) -> tuple[str, ...]:
        """The labels from 0, the kinds, the prefix and the helper."""
        top = (self.max_count or 0) - (not self.inclusive) if self.modulus is None else self.modulus - 1
        texts = (*map(str, range(top + 1)), *self._symbol_texts, self.prefix, HELPER_CHOICES[self.helper])
        return tuple(dict.fromkeys(text for text in texts if text))

    def longest_questions(self) -> Questions:
        listed = np.arange(self.eval_span.high) % self.num_symbols
        return self.build_rows(listed.astype(np.int16)[None], np.array([self.eval_span.high]))

    def parse_question(self, text: str) -> Questions:
        """Parses `7 5 7 7`; prefix and helpers may be omitted.

        Raises `UserError` for a list that this task cannot have.
        """
        pieces = [piece for piece in text.split() if piece != HELPER_CHOICES[self.helper]]
        pieces = pieces[1:] if self.prefix and pieces[:1] == [self.prefix] else pieces
        is_question = pieces and all(piece in self._symbol_texts for piece in pieces)
        check_question(is_question, text, " ".join(self._symbol_texts[kind] for kind in (1, 0, 1, 1)))
        max_occurrences = max(pieces.count(kind) for kind in self._symbol_texts)
        if max_occurrences > (self.max_count or MAX_NUMBER):
            raise UserError(
                f"question: one symbol occurs {max_occurrences} times; it must occur at most {self.max_count} times"
            )
        symbol_indices = np.array([[self._symbol_texts.index(piece) for piece in pieces]], dtype=np.int16)
        return self.build_rows(symbol_indices, np.array([len(pieces)]))


EVEN_KEEP_PROBABILITIES = (1 - 0.9995, 1 - 0.985, 1 - 0.8, 1 - 0.2)
"""The fraction of lists that is kept if the rarest kind occurs 0, 1, 2, 3 times; others are all kept."""

EVEN_GAP_KEEP_PROBABILITIES = (1 - 0.99, 1 - 0.5, 1 - 0.2)
"""The fraction that is kept if the most frequent kind occurs 0, 1, 2 times less than the maximum; others are all
kept."""

_SYMBOL_TEXTS = {"digits": digits, "letters": ascii_lowercase}


def _occurrences(symbol_indices: NDArray[np.int16], items: int) -> NDArray[np.int16]:
    """The number of earlier items of the same kind at each position; undefined after the end of a row."""
    rows, width = symbol_indices.shape
    kinds = np.ascontiguousarray(np.where(symbol_indices >= 0, symbol_indices, items).T).astype(np.int64)
    kinds += np.arange(rows) * (items + 1)
    occurrences_so_far, occurrences = (
        np.zeros(rows * (items + 1), dtype=np.int16),
        np.empty((width, rows), dtype=np.int16),
    )
    for place in range(width):
        occurrences[place] = occurrences_so_far[kinds[place]]
        occurrences_so_far[kinds[place]] = occurrences[place] + 1
    return np.ascontiguousarray(occurrences.T)


@lru_cache(maxsize=32)
def _list_pairs(lengths: Span, max_count: int) -> NDArray[np.int64]:
    """All counts of a and b, with at least one a, of lists with these lengths: `[pairs, 2]`."""
    first, second = np.meshgrid(np.arange(1, max_count + 1), np.arange(max_count + 1), indexing="ij")
    pairs = np.stack([first.reshape(-1), second.reshape(-1)], axis=1)
    total = pairs.sum(axis=1)
    found: NDArray[np.int64] = pairs[(total >= lengths.low) & (total <= lengths.high)]
    return found


@lru_cache(maxsize=8)
def _splittable_pairs(max_length: int) -> NDArray[np.bool_]:
    """Per length and number of a, whether there are enough permutations to hold some out."""
    table = np.zeros((max_length + 1, max_length + 1), dtype=np.bool_)
    for count in range(max_length + 1):
        table[count, : count + 1] = [can_be_split(comb(count, first)) for first in range(count + 1)]
    return table
