"""Statistics of rows: lengths, carry chains, repeated questions, characters. One pass in constant memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.questions import EMPTY, Questions
from numerate.text.data.repeats import MOST, Repeats
from numerate.text.data.source import Source
from numerate.tokenizers.tokenizer import Rows
from numerate.vocabulary import END, PAD, Vocabulary

_SIDE = 1 << 12
"""Pairs of lengths are counted separately up to this length."""


@dataclass(eq=False)
class Histogram:
    """Counts of non-negative integers."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, values: NDArray[Any]) -> None:
        if len(values):
            found = np.bincount(values.astype(np.int64, copy=False))
            total = np.zeros(max(len(found), len(self.counts)), dtype=np.int64)
            total[: len(self.counts)] = self.counts
            total[: len(found)] += found
            self.counts = total

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def low(self) -> int:
        return int(np.flatnonzero(self.counts)[0]) if self.count else 0

    def high(self) -> int:
        return int(np.flatnonzero(self.counts)[-1]) if self.count else 0

    def mean(self) -> float:
        return float((self.counts * np.arange(len(self.counts))).sum() / max(1, self.count))

    def median(self) -> int:
        """The lower median."""
        return int(np.searchsorted(np.cumsum(self.counts), self.count / 2)) if self.count else 0

    def tree(self) -> dict[str, Any]:
        """As data for JSON: extremes, median, mean and counts."""
        there = np.flatnonzero(self.counts).tolist()
        found = {"low": self.low(), "median": self.median(), "mean": round(self.mean(), 4), "high": self.high()}
        return found | {"counts": {str(value): int(self.counts[value]) for value in there}}


@dataclass(eq=False)
class Statistics:
    """Statistics of rows.

    - `rows`: their tokens, [EOS] among them; `answers`: the tokens of the answer without it; `operands`: the digits of
      every number in a question.
    - `carries`: of each addition of two numbers, the longest carry chain in digits (999 + 1 has 3).
    - `pairs`: rows by the two sizes of `axes`; `distinct_pairs`: different questions among them; `{(i, j): count}`.
    - `distinct`: different questions; `times`: how many of them stand 1, 2, ... times; `most`: the largest such number.
    - `characters`: how often each symbol comes.
    """

    name: str
    rows: Histogram = field(default_factory=Histogram)
    operands: Histogram = field(default_factory=Histogram)
    answers: Histogram = field(default_factory=Histogram)
    carries: Histogram = field(default_factory=Histogram)
    axes: tuple[str, str] | None = None
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    distinct_pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    distinct: int = 0
    times: Histogram = field(default_factory=Histogram)
    most: int = 0
    characters: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.rows.count

    @property
    def repeated(self) -> int:
        """Rows that repeat an earlier question."""
        return self.count - self.distinct

    def tree(self) -> dict[str, Any]:
        """As data for JSON."""
        return {
            "source": self.name,
            "rows": self.count,
            "row_tokens": self.rows.tree(),
            "operand_digits": self.operands.tree(),
            "answer_tokens": self.answers.tree(),
            "longest_carry_chain": self.carries.tree(),
            "questions": {
                "distinct": self.distinct,
                "repeated": self.repeated,
                "most": self.most,
                "times": self.times.tree()["counts"],
            },
            "pairs": {
                "axes": list(self.axes or ()),
                "rows": [[*pair, count] for pair, count in sorted(self.pairs.items())],
                "distinct": [[*pair, count] for pair, count in sorted(self.distinct_pairs.items())],
            },
            "characters": self.characters,
        }


def statistics(source: Source, on_progress: Callable[[int], None] | None = None) -> Statistics:
    """The statistics of a source, in one pass. `on_progress` gets the number of rows done after each block.

    Raises `UserError` for a row that cannot be read.
    """
    found = Statistics(source.name)
    vocabulary = source.vocabulary
    symbols = np.zeros(vocabulary.size, dtype=np.int64)
    cells = Histogram()
    with Repeats() as repeats:
        for questions, rows in source.blocks():
            found.rows.add(rows.lengths)
            symbols += np.bincount(rows.ids.reshape(-1), minlength=vocabulary.size)
            sizes, axes = _sizes(questions, rows, vocabulary, source.task.axes())
            if rows.labels is None:
                found.answers.add(rows.target_mask.sum(axis=1) - 1)
            found.operands.add(_operands(questions, rows, vocabulary))
            found.carries.add(_carries(questions))
            if sizes is None:
                cell = np.zeros(len(rows), dtype=np.int64)
            else:
                found.axes = axes
                cell = 1 + np.minimum(sizes[:, 0], _SIDE - 1) * _SIDE + np.minimum(sizes[:, 1], _SIDE - 1)
            cells.add(cell)
            repeats.add(questions.hashes(), cell)
            if on_progress is not None:
                on_progress(found.count)
        counts = repeats.counts()
    found.distinct, found.most = counts.distinct, counts.most
    found.times = Histogram(counts.times)
    if found.axes is not None:
        found.pairs = _pairs(cells.counts)
        found.distinct_pairs = _pairs(counts.cells)
    symbols[[PAD, END]] = 0
    found.characters = {vocabulary.symbols[i]: int(symbols[i]) for i in np.flatnonzero(symbols)}
    if not found.count:
        raise UserError(f"{source.name}: has no rows")
    return found


def _pairs(counts: NDArray[np.int64]) -> dict[tuple[int, int], int]:
    return {divmod(int(cell) - 1, _SIDE): int(counts[cell]) for cell in np.flatnonzero(counts) if cell}


def _sizes(
    questions: Questions, rows: Rows, vocabulary: Vocabulary, axes: tuple[str, ...]
) -> tuple[NDArray[np.int64] | None, tuple[str, str] | None]:
    """The two sizes of each question: those on the axes of its task, or the lengths of its two runs of digits."""
    names = axes if len(axes) == 2 and set(axes) <= set(questions.facts) else tuple(questions.facts)
    if len(names) == 2 and all(questions.facts[name].dtype.kind in "iu" for name in names):
        sizes = np.stack([questions.facts[name] for name in names], axis=1).astype(np.int64)
        return sizes, (names[0], names[1])
    runs, owner = _runs(rows, vocabulary)
    each = np.bincount(owner, minlength=len(rows))
    if len(rows) and questions.labels is None and (each == 2).all():
        return runs.reshape(-1, 2), ("first_digits", "second_digits")
    return None, None


def _operands(questions: Questions, rows: Rows, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """The digits of every number in the questions, without zeros in front; of text, of every run of digits."""
    slots = questions.numbers.lengths.shape[1]
    if not slots or questions.prompt_length is None:
        return _runs(rows, vocabulary)[0]
    in_question = np.arange(questions.symbols.shape[1]) < questions.prompt_length[:, None]
    there = np.stack([((questions.symbols == -1 - slot) & in_question).any(axis=1) for slot in range(slots)], axis=1)
    lengths: NDArray[np.int64] = questions.numbers.lengths[there]
    return lengths


def _runs(rows: Rows, vocabulary: Vocabulary) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The length of every run of digits before the answers, row by row, and which row each is in."""
    if rows.labels is not None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    before = np.arange(rows.ids.shape[1]) < rows.target_mask.argmax(axis=1)[:, None]
    digit = np.pad(vocabulary.is_digit[rows.ids] & before, ((0, 0), (1, 1))).astype(np.int8)
    change = np.diff(digit, axis=1)
    owner, begin = np.nonzero(change == 1)
    return np.nonzero(change == -1)[1] - begin, owner


def _carries(questions: Questions) -> NDArray[np.int64]:
    """The longest chain of carries of each sum of two whole numbers; nothing where questions are no sums."""
    numbers = questions.numbers
    if "+" not in questions.alphabet or numbers.lengths.shape[1] != 3 or numbers.point is not None:
        return np.zeros(0, dtype=np.int64)
    symbols = questions.symbols
    plus = (symbols == questions.alphabet.index("+")).any(axis=1)
    texts = [text for text in questions.alphabet if text in "-x*/" and text]
    others = np.isin(symbols, [questions.alphabet.index(text) for text in texts])
    sums = plus & ~others.any(axis=1) & (symbols[:, 0] != EMPTY)
    if numbers.negative is not None:
        sums &= ~numbers.negative.any(axis=1)
    longest: NDArray[np.int64] = chains(numbers.units_first[:, 0], numbers.units_first[:, 1])[sums]
    return longest


def chains(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The longest carry chain of first + second, `[rows, columns]`, units first.

    >>> chains(np.array([[9, 9, 9]], dtype=np.uint8), np.array([[1, 0, 0]], dtype=np.uint8)).tolist()
    [3]
    """
    run = np.zeros(len(first), dtype=np.int64)
    longest = np.zeros(len(first), dtype=np.int64)
    carry = np.zeros(len(first), dtype=np.bool_)
    for ours, theirs in zip(np.ascontiguousarray(first.T), np.ascontiguousarray(second.T), strict=True):
        carry = ours + theirs + carry > 9
        run = (run + 1) * carry
        np.maximum(longest, run, out=longest)
    return longest


__all__ = ["MOST", "Histogram", "Statistics", "chains", "statistics"]
