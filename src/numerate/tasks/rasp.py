"""Counting from one number to another, as a stream of such tasks with next-token prediction."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.counting import MAX_NUMBER
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.starts import CountTask, cell_hashes, numbers_in, ood_counts
from numerate.tasks.task import match_question

_BEGIN, _FIRST, _LAST, _SEPARATOR, _COUNTED = range(5)
"""Positions within a block: `<sos>`, the two numbers, `<`, and the first counted number."""

MIN_STREAMS = 400
"""The smallest number of distinct streams: the smallest split then has ten."""


@dataclass(frozen=True)
class RaspCounting(CountTask):
    """Counting from one number to another, in a stream: `<sos> 3 5 < 3 4 5 <eos> <sos> 60 61 < 60 61 <eos> ...`.

    Zhou et al. (2023), "What Algorithms can Transformers Learn?", https://arxiv.org/abs/2310.16028, as Chang and Bisk
    (2024), https://arxiv.org/abs/2405.20131, train it: the label at a token is the next token, so that the prompt of
    each block is a target too. Two numbers a < b are drawn from 0 to `max_number`, b - a + 1 of them in `count`; such
    blocks are concatenated until there are more than `sequence_length` tokens, where the row is cut: the inputs are all
    but the last token, the targets all but the first. With `targets="determined"` the random numbers a and b are not
    targets.

    The grid axis is `count`, the number of counted numbers. A cell is a single block of numbers from 1, as in the
    published test, with determined targets; OOD validation is a stream of longer blocks.
    """

    count: int | Span = setting(Span(2, 50), "number of steps per block in training", at_least=2)
    max_number: int = setting(155, "largest number", at_least=2, at_most=MAX_NUMBER)
    sequence_length: int = setting(256, "tokens per row, cut from the stream", at_least=8, at_most=MAX_NUMBER)
    targets: Literal["all", "determined"] = setting("all", "whether the random numbers of a prompt are targets too")
    packed: bool = setting(True, "whether a row is cut from a stream of blocks, or is one block")
    eval_count: int | Span | None = setting(
        None, "counts of evaluated questions, set by a cell of a grid; null: count", at_least=2
    )

    def conflicts(self) -> Iterator[str]:
        for name, span in (("count", Span.from_value(self.count)), ("eval_count", self.eval_span)):
            if span.high > self.max_number:
                yield f"{name}: must be from 2 to max_number={self.max_number}, not {span}"
        if self.packed and not self._has_enough_streams(self.eval_span, self.sequence_length):
            name, reason = (
                "count" if self.eval_count is None else "eval_count",
                "use smaller counts, a wider span or packed=false",
            )
            if self.sequence_length < self.eval_span.high + 5:
                name, reason = (
                    "sequence_length",
                    f"{self.eval_span.high + 5} tokens hold a block, and 256 are published",
                )
            yield (
                f"{name}: there are too few different streams of {self.sequence_length} tokens with blocks of "
                f"{self.eval_span} numbers to hold any out; {reason}"
            )

    def _has_enough_streams(self, counts: Span, length: int) -> bool:
        """Whether there are enough distinct streams for every split, by the number of their complete prompts."""
        pairs, num_visible_blocks = len(_list_pairs(counts, 0, self.max_number)), 1 + (length - 3) // (counts.high + 5)
        return bool(min(pairs, MIN_STREAMS) ** min(num_visible_blocks, MIN_STREAMS) >= MIN_STREAMS)

    @property
    def max_possible_count(self) -> int:
        return self.max_number

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        rows = len(indices)
        if not self.packed:
            pairs = _list_pairs(self.eval_span, 1, self.max_number)
            return self.build_blocks(pairs[rng.integers(len(pairs), (rows,))])
        pairs = _list_pairs(self.eval_span, 0, self.max_number)
        max_blocks = -(-(self.sequence_length + 1) // (self.eval_span.low + 5))
        row_pairs = pairs[rng.integers(len(pairs), (rows, max_blocks))]
        length = row_pairs[..., 1] - row_pairs[..., 0] + 6
        end = np.minimum(length.cumsum(axis=1), self.sequence_length)
        begin = np.concatenate([np.zeros((rows, 1), dtype=np.int64), end[:, :-1]], axis=1)
        block_lengths_in_row = (end - begin).reshape(-1)
        pair_per_token = (
            row_pairs.reshape(-1, 2).repeat(block_lengths_in_row, axis=0).reshape(rows, self.sequence_length, 2)
        )
        positions_in_block = np.arange(self.sequence_length) - begin.reshape(-1).repeat(block_lengths_in_row).reshape(
            rows, self.sequence_length
        )
        tokens = self._tokens(pair_per_token[..., 0], pair_per_token[..., 1], positions_in_block)
        labels = self._labels(tokens[:, 1:], positions_in_block[:, 1:])
        largest = np.where(end > begin, length - 5, 0).max(axis=1)
        no_numbers = Numbers.empty(rows)
        return Questions(self.alphabet(), tokens[:, :-1], no_numbers, labels=labels, metadata={"count": largest})

    def build_blocks(self, pairs: NDArray[np.int64]) -> Questions:
        """One block per row, for these pairs of numbers, `[rows, 2]`.

        >>> from numerate.tasks.plain import format_question
        >>> questions = RaspCounting(packed=False, targets="determined").build_blocks(np.array([[3, 5]]))
        >>> format_question(questions, 0)
        ('<sos> 3 5 < 3 4 5', '. . < 3 4 5 <eos>')
        """
        count = pairs[:, 1] - pairs[:, 0] + 1
        positions_in_block = np.tile(
            np.arange(max(self.eval_span.high, int(count.max(initial=2))) + 5), (len(pairs), 1)
        )
        tokens = self._tokens(pairs[:, :1], pairs[:, 1:], positions_in_block)
        is_present = positions_in_block < count[:, None] + 5
        labels = np.where(is_present[:, 1:], self._labels(tokens[:, 1:], positions_in_block[:, 1:]), EMPTY).astype(
            np.int16
        )
        symbols = np.where(is_present[:, 1:], tokens[:, :-1], EMPTY).astype(np.int16)
        return Questions(self.alphabet(), symbols, Numbers.empty(len(pairs)), labels=labels, metadata={"count": count})

    def _tokens(
        self, first: NDArray[np.int64], last: NDArray[np.int64], positions_in_block: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        """The tokens at these positions within blocks from `first` to `last`."""
        separator, end, begin = (self.max_number + 1 + i for i in range(3))
        counted_numbers = first + positions_in_block - _COUNTED
        tokens = np.where(counted_numbers <= last, counted_numbers, end)
        for place, token in ((_BEGIN, begin), (_FIRST, first), (_LAST, last), (_SEPARATOR, separator)):
            tokens = np.where(positions_in_block == place, token, tokens)
        return tokens.astype(np.int16)

    def _labels(self, tokens: NDArray[np.int16], positions_in_block: NDArray[np.int64]) -> NDArray[np.int16]:
        if self.targets == "all":
            return tokens
        is_determined = (positions_in_block != _FIRST) & (positions_in_block != _LAST)
        return np.where(is_determined, tokens, EMPTY).astype(np.int16)

    def at_cell(self, **cell: Any) -> Self:
        """The same task with fields fixed; with `count` rows are single blocks of that many numbers with determined
        targets."""
        if "count" in cell:
            cell |= {"packed": False, "targets": "determined"}
        return super().at_cell(**cell)

    def max_training_labels(self) -> int:
        """The most places of a cell that training has had: `<` and the numbers of its longest block. (A row of the
        stream has several blocks.)"""
        return Span.from_value(self.count).high + 1

    def ood_validation_task(self) -> Self | None:
        """Counts above the trained ones, by up to 20 %, with determined targets; None if there are none, or too few for
        a stream."""
        counts = ood_counts(self.eval_span, self.max_number)
        if counts is None or (self.packed and not self._has_enough_streams(counts, self.sequence_length)):
            return None
        return replace(self, eval_count=counts, targets="determined")

    def cells(self) -> list[tuple[int, ...]] | None:
        cells = super().cells()
        return None if cells is None else cells[1:]

    def num_questions(self) -> int | None:
        """Number of blocks; None for streams."""
        return None if self.packed else len(_list_pairs(self.eval_span, 1, self.max_number))

    def _list_questions(self, split: str) -> Questions | None:
        """Every block once, ordered by its first and second number; None for streams."""
        return None if self.packed else self.build_blocks(_list_pairs(self.eval_span, 1, self.max_number))

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the whole row; for blocks of the two numbers."""
        if self.packed:
            return questions.hashes()
        return cell_hashes(questions.metadata["count"], numbers_in(questions.alphabet)[questions.symbols[:, 1]])

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        """Rows of a stream are held out by a hash; every single block of the trained counts occurs in training."""
        return np.full(len(questions), self.packed)

    def is_held_out(self, split: str) -> bool:
        return split != "train" and (self.packed or self.eval_span.low > Span.from_value(self.count).high)

    def alphabet(self) -> tuple[str, ...]:
        return (*map(str, range(self.max_number + 1)), "<", "<eos>", "<sos>")

    def longest_questions(self) -> Questions | None:
        return None if self.packed else self.build_blocks(np.array([[1, self.eval_span.high]]))

    def parse_question(self, text: str) -> Questions:
        """Parses `3 5`, or `<sos> 3 5 <`, as one block. Raises `UserError` for any other text."""
        match = match_question(r"\s*(?:<sos>\s+)?(\d+)\s+(\d+)\s*(?:<\s*)?", text, "3 5")
        first, last = int(match[1]), int(match[2])
        if not first < last <= self.max_number:
            raise UserError(f"question: {first} to {last} must be increasing and at most {self.max_number}")
        return replace(self, packed=False, targets="determined").build_blocks(np.array([[first, last]]))


@lru_cache(maxsize=32)
def _list_pairs(counts: Span, low: int, max_number: int) -> NDArray[np.int64]:
    """All pairs of numbers from `low` to `max_number` with these counts from the first to the second, in order."""
    first = np.arange(low, max_number + 1)
    min_last = first + counts.low - 1
    width = np.clip(np.minimum(first + counts.high - 1, max_number) - min_last + 1, 0, None)
    pairs = np.empty((int(width.sum()), 2), dtype=np.int64)
    pairs[:, 0] = first.repeat(width)
    pairs[:, 1] = np.arange(len(pairs)) + (min_last - (width.cumsum() - width)).repeat(width)
    return pairs
