"""Tasks whose difficulty is a count; the start numbers of counts, and which of them are held out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG, mix_bits, random_key
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task

Cells = NDArray[np.int64]
"""Counts with their starts, `[rows, 2]`: `[[c, k], ...]` counts c symbols starting from k."""


@dataclass(frozen=True)
class Starts:
    """The starts k of a count c: the numbers of `span` for which c + k is at most `max_number`.

    With `end`, only the start with c + k = end; counts without such a start keep all.

    >>> Starts(Span(1, 50), max_number=100).span_of_count(60)
    Span(low=1, high=40)
    >>> Starts(Span(1, 50), max_number=100, end=51).span_of_count(20)
    Span(low=31, high=31)
    """

    span: Span
    max_number: int
    end: int | None = None

    def span_of_count(self, count: int) -> Span | None:
        """The starts of a count; None if it has none."""
        low, width = self.bounds(np.array([count]))
        return Span(int(low[0]), int(low[0] + width[0]) - 1) if width[0] else None

    def bounds(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per count, its smallest start and its number of starts."""
        low = np.full_like(counts, self.span.low)
        high = np.minimum(self.span.high, self.max_number - counts)
        if self.end is not None:
            required_start = self.end - counts
            is_possible = (required_start >= low) & (required_start <= high)
            low, high = np.where(is_possible, required_start, low), np.where(is_possible, required_start, high)
        return low, np.maximum(high - low + 1, 0)

    def max_count(self) -> int:
        """The largest count that has a start."""
        return self.max_number - self.span.low

    def cells(self, counts: Span) -> Cells:
        """All starts of these counts, smaller counts and smaller starts first."""
        count = np.arange(counts.low, counts.high + 1)
        low, width = self.bounds(count)
        cells = np.empty((int(width.sum()), 2), dtype=np.int64)
        cells[:, 0] = count.repeat(width)
        cells[:, 1] = np.arange(len(cells)) + (low - (width.cumsum() - width)).repeat(width)
        return cells

    def end_conflicts(self, counts: Span) -> Iterator[str]:
        """The error that none of these counts can end at `end`, if so."""
        if self.end is None:
            return
        if not 1 <= self.end <= self.max_number:
            yield f"end: must be from 1 to max_number={self.max_number}, not {self.end}"
        low, high = self.span.low + counts.low, self.span.high + counts.high
        if not low <= self.end <= high:
            yield (
                f"end: no count of {counts} from a start of {self.span} ends at {self.end}; "
                f"{low} to {min(high, self.max_number)} can be reached"
            )

    def conflicts(self, counts: Span) -> Iterator[str]:
        """The error of counts without a start, if so."""
        larger = f"or set max_number={counts.high + self.span.low}"
        if self.max_count() < 1:
            yield (
                f"starts: must be at most {self.max_number - 1} with max_number={self.max_number}, not "
                f"{self.span.low}; {larger}"
            )
        elif counts.high > self.max_count():
            yield (
                f"count: must be at most {self.max_count()} with starts from {self.span.low} and "
                f"max_number={self.max_number}, not {counts.high}; {larger}"
            )


def ood_counts(training_span: Span, max_count: int) -> Span | None:
    """Counts above the trained ones, by up to 20 %, as far as they exist: 51 to 60 for 1 to 50."""
    bounds = (training_span.high + 1, min(training_span.high + max(1, training_span.high // 5), max_count))
    return Span(*bounds) if bounds[0] <= bounds[1] else None


def feasible_cells(training_span: Span, max_count: int) -> list[tuple[int, ...]] | None:
    """The existing counts, if a grid up to twice the trained ones would exceed them; otherwise None."""
    return None if max_count >= 2 * training_span.high else [(count,) for count in range(1, max_count + 1)]


@lru_cache(maxsize=32)
def held_out_splits(counts: Span, starts: Starts, num_held_out: int) -> NDArray[np.int8]:
    """Per count and start, 0 for training, 1 for test, 2 for validation: `[counts.high + 1, starts.most + 1]`.

    For each count, the `num_held_out` starts with the smallest hashes are held out, a third of them for validation. For
    a count with at most `num_held_out` starts none is held out.
    """
    split = np.zeros((counts.high + 1, starts.max_number + 1), dtype=np.int8)
    num_test = num_held_out - max(1, num_held_out // 3)
    for count in counts if num_held_out else ():
        span = starts.span_of_count(count)
        if span is None or len(span) <= num_held_out:
            continue
        numbers = np.arange(span.low, span.high + 1)
        held_out_starts = numbers[
            np.argsort(cell_hashes(np.full_like(numbers, count), numbers), kind="stable")[:num_held_out]
        ]
        split[count, held_out_starts] = np.where(np.arange(num_held_out) < num_test, 1, 2)
    return split


def numbers_in(alphabet: Sequence[str]) -> NDArray[np.int64]:
    """The number that each text of an alphabet is; -1 for other texts."""
    return np.array([int(text) if text.isdecimal() else -1 for text in alphabet])


def cell_hashes(
    counts: NDArray[np.int64], starts: NDArray[np.int64], side: NDArray[np.int64] | int = 0
) -> NDArray[np.uint64]:
    """A 64-bit hash of each count with its start and the kind of its row."""
    packed = (counts.astype(np.uint64) << np.uint64(32)) + (starts.astype(np.uint64) << np.uint64(2))
    return mix_bits(packed + np.asarray(side).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))


def move_into_splits(hashes: NDArray[np.uint64], split: NDArray[np.int8]) -> NDArray[np.uint64]:
    """Maps the hashes into the hash intervals of the given splits."""
    intervals = [SPLITS[name] for name in ("train", "test", "validation")]
    low = np.array([np.ceil(one * 2.0**32) for one, _ in intervals], dtype=np.uint64)[split]
    width = np.array([np.floor(other * 2.0**32) for _, other in intervals], dtype=np.uint64)[split] - low
    half = np.uint64(32)
    return (low + ((hashes >> half) * width >> half) << half) | (hashes & np.uint64(0xFFFFFFFF))


class CountTask(Task, ABC):
    """A task with one axis, the `count`. A cell of a grid sets `eval_count`, not the counts of training."""

    count: int | Span
    eval_count: int | Span | None

    @property
    @abstractmethod
    def max_possible_count(self) -> int:
        """The largest count that the other settings allow."""

    def _list_questions(self, split: str) -> Questions | None:
        """Every question of a split; None if there are too many."""
        return None

    def all_questions(self, split: str = "test") -> Questions | None:
        if split == "ood_validation":
            ood_task = self.ood_validation_task()
            return None if ood_task is None else ood_task.all_questions()
        if (questions := self._list_questions(split)) is None:
            return None
        rng = CounterRNG(random_key(self, split, "whole"))
        return replace(questions, random_bits=rng.random_words(len(questions)))

    @property
    def eval_span(self) -> Span:
        """The counts to evaluate."""
        return Span.from_value(self.count if self.eval_count is None else self.eval_count)

    def at_cell(self, **cell: Any) -> Self:
        """The same task with fields fixed; `count` sets `eval_count`, not the counts of training."""
        return super().at_cell(**{"eval_count" if name == "count" else name: value for name, value in cell.items()})

    def data_warnings(self) -> list[str]:
        if self.eval_count is not None:
            raise UserError(
                f"task.eval_count: must be null in a recipe, not {self.eval_count}: an evaluation sets it from its "
                "grid (evaluation.grid), and the counts of training are task.count"
            )
        return super().data_warnings()

    def axes(self) -> tuple[str, ...]:
        return ("count",)

    def training_spans(self) -> dict[str, Span]:
        return {"count": self.eval_span}

    def max_training_labels(self) -> int:
        """The largest number of labels of a training row."""
        return Span.from_value(self.count).high

    def ood_validation_task(self) -> Self | None:
        """Counts above the trained ones, by up to 20 %: 1 to 50 are followed by 51 to 60; None if there are none."""
        counts = ood_counts(self.eval_span, self.max_possible_count)
        return None if counts is None else replace(self, eval_count=counts)  # type: ignore[type-var]

    def cells(self) -> list[tuple[int, ...]] | None:
        return feasible_cells(Span.from_value(self.count), self.max_possible_count)
