"""Statistics of rows in one pass: lengths, carry chains, repeated questions, characters; at most 50 bytes a row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.tasks import carry
from numerate.tasks.questions import EMPTY, Questions
from numerate.text.data.source import RowSource
from numerate.text.tasks.input_errors import file_error
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.vocabulary import EOS, PAD, Vocabulary

MAX_MULTIPLICITY = 1000
"""Larger multiplicities are counted as this one."""

_MAX_PAIR_LENGTH = 1 << 12
"""Pairs of lengths are counted separately up to this length."""


@dataclass(eq=False)
class Histogram:
    """Counts of non-negative integers."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, values: NDArray[Any]) -> None:
        if len(values):
            new_counts = np.bincount(values.astype(np.int64, copy=False))
            summed = np.zeros(max(len(new_counts), len(self.counts)), dtype=np.int64)
            summed[: len(self.counts)] = self.counts
            summed[: len(new_counts)] += new_counts
            self.counts = summed

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def min(self) -> int:
        return int(np.flatnonzero(self.counts)[0]) if self.total else 0

    def max(self) -> int:
        return int(np.flatnonzero(self.counts)[-1]) if self.total else 0

    def mean(self) -> float:
        return float((self.counts * np.arange(len(self.counts))).sum() / max(1, self.total))

    def median(self) -> int:
        """The lower median."""
        return int(np.searchsorted(np.cumsum(self.counts), self.total / 2)) if self.total else 0

    def to_dict(self) -> dict[str, Any]:
        """As data for JSON: extremes, median, mean and counts."""
        present = np.flatnonzero(self.counts).tolist()
        summary = {"low": self.min(), "median": self.median(), "mean": round(self.mean(), 4), "high": self.max()}
        return summary | {"counts": {str(value): int(self.counts[value]) for value in present}}


@dataclass(eq=False)
class Statistics:
    """Statistics of rows.

    - `row_lengths`: their tokens, [EOS] among them; `answer_lengths`: the tokens of the answer without it;
      `operand_digits`: the digits of every number in a question.
    - `carry_chain_lengths`: of each addition of two numbers, the longest carry chain in digits (999 + 1 has 3).
    - `rows_per_pair`: rows by the two sizes of `axes`; `distinct_per_pair`: different questions among them; `{(i, j):
      num_rows}`.
    - `num_distinct`: different questions; `multiplicities`: how many of them stand 1, 2, ... times; `max_multiplicity`:
      the largest such number.
    - `symbol_counts`: how often each symbol comes.
    """

    name: str
    row_lengths: Histogram = field(default_factory=Histogram)
    operand_digits: Histogram = field(default_factory=Histogram)
    answer_lengths: Histogram = field(default_factory=Histogram)
    carry_chain_lengths: Histogram = field(default_factory=Histogram)
    axes: tuple[str, str] | None = None
    rows_per_pair: dict[tuple[int, int], int] = field(default_factory=dict)
    distinct_per_pair: dict[tuple[int, int], int] = field(default_factory=dict)
    num_distinct: int = 0
    multiplicities: Histogram = field(default_factory=Histogram)
    max_multiplicity: int = 0
    symbol_counts: dict[str, int] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.row_lengths.total

    @property
    def num_repeated(self) -> int:
        """Rows that repeat an earlier question."""
        return self.num_rows - self.num_distinct

    def to_dict(self) -> dict[str, Any]:
        """As data for JSON."""
        return {
            "source": self.name,
            "rows": self.num_rows,
            "row_tokens": self.row_lengths.to_dict(),
            "operand_digits": self.operand_digits.to_dict(),
            "answer_tokens": self.answer_lengths.to_dict(),
            "longest_carry_chain": self.carry_chain_lengths.to_dict(),
            "questions": {
                "distinct": self.num_distinct,
                "repeated": self.num_repeated,
                "most": self.max_multiplicity,
                "times": self.multiplicities.to_dict()["counts"],
            },
            "pairs": {
                "axes": list(self.axes or ()),
                "rows": [[*pair, count] for pair, count in sorted(self.rows_per_pair.items())],
                "distinct": [[*pair, count] for pair, count in sorted(self.distinct_per_pair.items())],
            },
            "characters": self.symbol_counts,
        }


def compute_statistics(source: RowSource, on_progress: Callable[[int], None] | None = None) -> Statistics:
    """The statistics of a source, in one pass. `on_progress` gets the number of rows done after each block.

    Raises `UserError` for a row that cannot be read.
    """
    result = Statistics(source.name)
    vocabulary = source.vocabulary
    id_counts = np.zeros(vocabulary.size, dtype=np.int64)
    all_hashes, all_cells = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.uint32)]
    for questions, rows in source.read_blocks():
        result.row_lengths.add(rows.lengths)
        id_counts += np.bincount(rows.ids.reshape(-1), minlength=vocabulary.size)
        sizes, axes = _question_sizes(questions, rows, vocabulary, source.task.axes())
        if rows.labels is None:
            result.answer_lengths.add(rows.target_mask.sum(axis=1) - 1)
        result.operand_digits.add(_operand_digits(questions, rows, vocabulary))
        result.carry_chain_lengths.add(_carry_chains(questions))
        if sizes is None:
            cell_of_row = np.zeros(len(rows), dtype=np.int64)
        else:
            result.axes = axes
            cell_of_row = 1 + np.minimum(sizes, _MAX_PAIR_LENGTH - 1) @ np.array([_MAX_PAIR_LENGTH, 1])
        all_hashes.append(questions.hashes())
        all_cells.append(cell_of_row.astype(np.uint32))
        if on_progress is not None:
            on_progress(result.num_rows)
    # Two different questions have one hash with a probability of rows^2 / 2^65: 1 in 90,000 for 20 million rows.
    distinct, first_row, times = np.unique(np.concatenate(all_hashes), return_index=True, return_counts=True)
    result.num_distinct, result.max_multiplicity = len(distinct), int(times.max(initial=0))
    result.multiplicities.add(np.minimum(times, MAX_MULTIPLICITY))
    if result.axes is not None:
        cells = np.concatenate(all_cells)
        result.rows_per_pair, result.distinct_per_pair = _counts_per_pair(cells), _counts_per_pair(cells[first_row])
    id_counts[[PAD, EOS]] = 0
    result.symbol_counts = {vocabulary.tokens[i]: int(id_counts[i]) for i in np.flatnonzero(id_counts)}
    if not result.num_rows:
        raise file_error(source.name, "has no rows")
    return result


def _counts_per_pair(cells: NDArray[np.uint32]) -> dict[tuple[int, int], int]:
    pairs = zip(*(found.tolist() for found in np.unique(cells, return_counts=True)), strict=True)
    return {divmod(cell - 1, _MAX_PAIR_LENGTH): count for cell, count in pairs if cell}


def _question_sizes(
    questions: Questions, rows: TokenizedExamples, vocabulary: Vocabulary, axes: tuple[str, ...]
) -> tuple[NDArray[np.int64] | None, tuple[str, str] | None]:
    """The two sizes of each question: those on the axes of its task, or the lengths of its two runs of digits."""
    names = axes if len(axes) == 2 and set(axes) <= set(questions.metadata) else tuple(questions.metadata)
    if len(names) == 2 and all(questions.metadata[name].dtype.kind in "iu" for name in names):
        sizes = np.stack([questions.metadata[name] for name in names], axis=1).astype(np.int64)
        return sizes, (names[0], names[1])
    run_lengths, row_of_run = _digit_runs(rows, vocabulary)
    runs_per_row = np.bincount(row_of_run, minlength=len(rows))
    if len(rows) and questions.labels is None and (runs_per_row == 2).all():
        return run_lengths.reshape(-1, 2), ("first_digits", "second_digits")
    return None, None


def _operand_digits(questions: Questions, rows: TokenizedExamples, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """The digits of every number in the questions, without zeros in front; of text, of every run of digits."""
    slots = questions.numbers.lengths.shape[1]
    if not slots or questions.prompt_lengths is None:
        return _digit_runs(rows, vocabulary)[0]
    in_question = np.arange(questions.symbols.shape[1]) < questions.prompt_lengths[:, None]
    is_in_question = np.stack(
        [((questions.symbols == -1 - slot) & in_question).any(axis=1) for slot in range(slots)], axis=1
    )
    lengths: NDArray[np.int64] = questions.numbers.lengths[is_in_question]
    return lengths


def _digit_runs(rows: TokenizedExamples, vocabulary: Vocabulary) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The length of every run of digits before the answers, row by row, and which row each is in."""
    if rows.labels is not None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    before = np.arange(rows.ids.shape[1]) < rows.target_mask.argmax(axis=1)[:, None]
    digit = np.pad(vocabulary.is_digit[rows.ids] & before, ((0, 0), (1, 1))).astype(np.int8)
    change = np.diff(digit, axis=1)
    row_of_run, starts = np.nonzero(change == 1)
    return np.nonzero(change == -1)[1] - starts, row_of_run


def _carry_chains(questions: Questions) -> NDArray[np.int64]:
    """The longest chain of carries of each sum of two whole numbers; nothing where questions are no sums."""
    numbers = questions.numbers
    if "+" not in questions.alphabet or numbers.lengths.shape[1] != 3 or numbers.decimal_places is not None:
        return np.zeros(0, dtype=np.int64)
    symbols = questions.symbols
    plus = (symbols == questions.alphabet.index("+")).any(axis=1)
    texts = [text for text in questions.alphabet if text in "-x*/" and text]
    has_other_operator = np.isin(symbols, [questions.alphabet.index(text) for text in texts])
    is_sum = plus & ~has_other_operator.any(axis=1) & (symbols[:, 0] != EMPTY)
    if numbers.negative is not None:
        is_sum &= ~numbers.negative.any(axis=1)
    operands = numbers.units_first[is_sum]
    return carry.longest_chains(carry.column_carries(operands[:, 0], operands[:, 1], "+"))
