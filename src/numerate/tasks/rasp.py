"""Counting from one number to another, as a stream of such tasks with next-token prediction."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG, key
from numerate.tasks.counting import MOST_NUMBER
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.starts import cell_hashes, feasible, next_counts
from numerate.tasks.task import Task

_BEGIN, _FIRST, _LAST, _GO, _COUNTED = range(5)
"""The places of a block: `<sos>`, the two numbers, `<`, and the first of those counted."""

FEWEST = 400
"""The fewest different streams: the smallest split has ten of them. Of fewer it may have none."""


@dataclass(frozen=True)
class RaspCounting(Task):
    """Counting from one number to another, in a stream: `<sos> 3 5 < 3 4 5 <eos> <sos> 60 61 < 60 61 <eos> ...`.

    Zhou et al. (2023), "What Algorithms can Transformers Learn?", https://arxiv.org/abs/2310.16028, as Chang and Bisk
    (2024), https://arxiv.org/abs/2405.20131, train it: the label at a token is the next token, so that the prompt of
    each block is a target too. Two numbers a < b are drawn from 0 to `max_number`, b - a + 1 of them in `count`; such
    blocks are concatenated until there are more than `sequence_length` tokens, where the row is cut: the inputs are all
    but the last token, the targets all but the first. With `targets="determined"` a and b, which are random, are no
    targets.

    The axis of a grid is `count`, how many numbers are counted. A cell is one block by itself, of numbers from 1 on as
    in the published test, with determined targets; OOD validation is a stream of longer blocks.
    """

    count: int | Span = setting(Span(2, 50), "number of steps per block in training")
    max_number: int = setting(155, "largest number")
    sequence_length: int = setting(256, "tokens per row, cut from the stream")
    targets: Literal["all", "determined"] = setting("all", "whether the random numbers of a prompt are targets too")
    packed: bool = setting(True, "whether a row is cut from a stream of blocks, or is one block")
    eval_count: int | Span | None = setting(None, "counts to evaluate instead, trained or not; null: count")

    def __post_init__(self) -> None:
        if self.targets not in ("all", "determined"):
            raise UserError(f"targets: {self.targets!r} is neither 'all' nor 'determined'")
        if not 2 <= self.max_number <= MOST_NUMBER:
            raise UserError(f"max_number: {self.max_number} is not from 2 to {MOST_NUMBER}")
        if not 8 <= self.sequence_length <= MOST_NUMBER:
            raise UserError(
                f"sequence_length: rows of {self.sequence_length} tokens are not from 8 to {MOST_NUMBER}; 256 is "
                f"published"
            )
        for name, span in (("count", Span.of(self.count)), ("eval_count", self._counts)):
            if span.low < 2 or span.high > self.max_number:
                raise UserError(f"{name}: from one number to another are 2 to {self.max_number} numbers, not {span}")
        if self.packed and not self._streams_are_many(self._counts, self.sequence_length):
            name, reason = (
                ("count" if self.eval_count is None else "eval_count"),
                "smaller counts, a wider span or packed=false are right",
            )
            if self.sequence_length < self._counts.high + 5:
                name, reason = "sequence_length", f"{self._counts.high + 5} tokens hold a block, and 256 are published"
            raise UserError(
                f"{name}: there are too few different streams of {self.sequence_length} tokens with blocks of "
                f"{self._counts} "
                f"numbers to hold any out; {reason}"
            )

    def _streams_are_many(self, counts: Span, length: int) -> bool:
        """Whether every split has some of the different streams, by the blocks of which both numbers are seen."""
        pairs, seen = len(_pairs(counts, 0, self.max_number)), 1 + (length - 3) // (counts.high + 5)
        return bool(min(pairs, FEWEST) ** min(seen, FEWEST) >= FEWEST)

    @property
    def _counts(self) -> Span:
        return Span.of(self.count if self.eval_count is None else self.eval_count)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        rows = len(index)
        if not self.packed:
            pairs = _pairs(self._counts, 1, self.max_number)
            return self.blocks(pairs[draws.below(len(pairs), (rows,))])
        pairs = _pairs(self._counts, 0, self.max_number)
        most = -(-(self.sequence_length + 1) // (self._counts.low + 5))
        chosen = pairs[draws.below(len(pairs), (rows, most))]
        length = chosen[..., 1] - chosen[..., 0] + 6
        end = np.minimum(length.cumsum(axis=1), self.sequence_length)
        begin = np.concatenate([np.zeros((rows, 1), dtype=np.int64), end[:, :-1]], axis=1)
        here = (end - begin).reshape(-1)
        flat = chosen.reshape(-1, 2).repeat(here, axis=0).reshape(rows, self.sequence_length, 2)
        within = np.arange(self.sequence_length) - begin.reshape(-1).repeat(here).reshape(rows, self.sequence_length)
        tokens = self._tokens(flat[..., 0], flat[..., 1], within)
        labels = self._labels(tokens[:, 1:], within[:, 1:])
        largest = np.where(end > begin, length - 5, 0).max(axis=1)
        none = Numbers.none(rows)
        return Questions(self.alphabet(), tokens[:, :-1], none, labels=labels, facts={"count": largest})

    def blocks(self, pairs: NDArray[np.int64]) -> Questions:
        """One block a row, of these pairs of numbers, `[rows, 2]`.

        >>> plain_text(RaspCounting(packed=False, targets="determined").blocks(np.array([[3, 5]])), 0)
        ('<sos> 3 5 < 3 4 5', '. . < 3 4 5 <eos>')
        """
        count = pairs[:, 1] - pairs[:, 0] + 1
        within = np.tile(np.arange(max(self._counts.high, int(count.max(initial=2))) + 5), (len(pairs), 1))
        tokens = self._tokens(pairs[:, :1], pairs[:, 1:], within)
        there = within < count[:, None] + 5
        labels = np.where(there[:, 1:], self._labels(tokens[:, 1:], within[:, 1:]), EMPTY).astype(np.int16)
        symbols = np.where(there[:, 1:], tokens[:, :-1], EMPTY).astype(np.int16)
        return Questions(self.alphabet(), symbols, Numbers.none(len(pairs)), labels=labels, facts={"count": count})

    def _tokens(
        self, first: NDArray[np.int64], last: NDArray[np.int64], within: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        """The tokens at these places within blocks from `first` to `last`."""
        go, end, begin = (self.max_number + 1 + i for i in range(3))
        counted = first + within - _COUNTED
        tokens = np.where(counted <= last, counted, end)
        for place, token in ((_BEGIN, begin), (_FIRST, first), (_LAST, last), (_GO, go)):
            tokens = np.where(within == place, token, tokens)
        return tokens.astype(np.int16)

    def _labels(self, tokens: NDArray[np.int16], within: NDArray[np.int64]) -> NDArray[np.int16]:
        if self.targets == "all":
            return tokens
        known = (within != _FIRST) & (within != _LAST)
        return np.where(known, tokens, EMPTY).astype(np.int16)

    def pinned(self, **cell: Any) -> Self:
        """The same with fields pinned; `count` makes it one block of that many numbers with determined targets."""
        if "count" not in cell:
            return super().pinned(**cell)
        rest = {name: value for name, value in cell.items() if name != "count"}
        return super().pinned(**{**rest, "eval_count": cell["count"], "packed": False, "targets": "determined"})

    def axes(self) -> tuple[str, ...]:
        return ("count",)

    def trained(self) -> dict[str, Span]:
        return {"count": self._counts}

    def trained_labels(self) -> int:
        """The most places of a cell that training has had: `<` and the numbers of its longest block. (A row of the
        stream has several blocks.)"""
        return Span.of(self.count).high + 1

    def beyond(self) -> "RaspCounting | None":
        """The counts after the trained ones, a fifth more, with determined targets; None if there are none, or too few
        for a stream."""
        band = next_counts(self._counts, self.max_number)
        if band is None or (self.packed and not self._streams_are_many(band, self.sequence_length)):
            return None
        return replace(self, eval_count=band, targets="determined")

    def cells(self) -> list[tuple[int, ...]] | None:
        found = feasible(Span.of(self.count), self.max_number)
        return None if found is None else found[1:]

    def space(self) -> int | None:
        """How many blocks there are; None for a stream of them."""
        return None if self.packed else len(_pairs(self._counts, 1, self.max_number))

    def whole(self, split: str = "test") -> Questions | None:
        """Every block once, by its first and then by its second number; None for a stream."""
        if split == "beyond-development":
            band = self.beyond()
            return None if band is None else band.whole()
        if self.packed:
            return None
        pairs = _pairs(self._counts, 1, self.max_number)
        return replace(self.blocks(pairs), chance=CounterRNG(key(self, split, "whole")).words(len(pairs)))

    def canonical(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the whole row; of a block, of its numbers."""
        if self.packed:
            return questions.hashes()
        table = np.array([int(text) if text.isdecimal() else -1 for text in questions.alphabet])
        return cell_hashes(questions.facts["count"], table[questions.symbols[:, 1]])

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        """Rows of a stream are held out by a hash; each block of the trained counts is in some row of training."""
        return np.full(len(questions), self.packed)

    def held_out(self, split: str) -> bool:
        return split != "train" and (self.packed or self._counts.low > Span.of(self.count).high)

    def alphabet(self) -> tuple[str, ...]:
        return (*map(str, range(self.max_number + 1)), "<", "<eos>", "<sos>")

    def longest(self) -> Questions | None:
        return None if self.packed else self.blocks(np.array([[1, self._counts.high]]))

    def read(self, text: str) -> Questions:
        """From `3 5`, or `<sos> 3 5 <`: one block. Raises `UserError` for anything else."""
        found = re.fullmatch(r"\s*(?:<sos>\s+)?(\d+)\s+(\d+)\s*(?:<\s*)?", text)
        if found is None:
            raise UserError(f"question: {text!r} is no question of this task; it reads like 3 5")
        first, last = int(found[1]), int(found[2])
        if not first < last <= self.max_number:
            raise UserError(f"question: {first} to {last} does not go upwards and to at most {self.max_number}")
        return replace(self, packed=False, targets="determined").blocks(np.array([[first, last]]))


@lru_cache(maxsize=32)
def _pairs(counts: Span, low: int, most: int) -> NDArray[np.int64]:
    """All pairs of numbers from `low` to `most` with so many numbers from the first to the second, in order."""
    first = np.arange(low, most + 1)
    nearest = first + counts.low - 1
    width = np.clip(np.minimum(first + counts.high - 1, most) - nearest + 1, 0, None)
    pairs = np.empty((int(width.sum()), 2), dtype=np.int64)
    pairs[:, 0] = first.repeat(width)
    pairs[:, 1] = np.arange(len(pairs)) + (nearest - (width.cumsum() - width)).repeat(width)
    return pairs
