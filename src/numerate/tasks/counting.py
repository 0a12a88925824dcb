"""Counting symbols: the label of every symbol is the number of symbols so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.starts import (
    CountTask,
    Starts,
    cell_hashes,
    held_out_splits,
    move_into_splits,
    numbers_in,
)
from numerate.tasks.task import can_be_split, check_question
from numerate.vocabulary import SPECIAL_TOKENS

MAX_NUMBER = 10_000
"""Vocabularies with more numbers are an error, since they are probably a typo."""

HELPER_CHOICES = {"none": "", "blank": "<blk>", "pad": "<pad>"}
"""The helper token after each symbol that carries its label, instead of the symbol itself."""

MAX_COUNT = 100_000
"""Longer rows are an error, since they are probably a typo."""

MAX_LISTED_QUESTIONS = 20_000
"""Cells with more questions are sampled, not enumerated."""


@dataclass(frozen=True)
class Counting(CountTask):
    """Counting with a label per symbol: `a a a` has the labels 1 2 3.

    Chang and Bisk (2024), "Language Models Need Inductive Biases to Count Inductively",
    https://arxiv.org/abs/2405.20131. Every number is one token of the vocabulary, so that 51 is unrelated to 5 and 1.
    Labels are never inputs. With k = 65, the row of three symbols is

    - `a a a` with 1 2 3, where `start_number="none"`;
    - `65 a a a` with . 66 67 68 (`"before"`, a shifted start, which has no label itself);
    - `a a a 65` with 1 2 3 68 (`"after"`, an addend); and one or the other, equally often (`"both"`).
    - `0 a a a` with . 1 2 3 (`prefix="0"`), and `a <pad> a <pad>` with . 1 . 2 (`helper="pad"`). A start has a helper
      labeled with itself: `65 <pad> a <pad>` has . 65 . 66; an addend has none.
    - With `modulus=10` the eleventh is 1 again and the tenth is 10, never 0.

    A count c is drawn uniformly from `count`, then a start k uniformly from `starts` with c + k at most `max_number`;
    the vocabulary has the numbers up to `max_number`. With `end=51` each count has only the start that ends there
    (counts without one keep all starts).

    The grid axis is `count`; a cell sets `eval_count`, trained or not. With `held_out_starts=6` six starts of each
    trained count are held out, four for test and two for validation: 300 in the published ranges, as published, but
    chosen by a hash. (A held-out `65 a a a` is still a prefix of trained longer rows.) If letters are random and no
    starts are held out, rows of three or more are held out by their letters. All other rows up to the trained counts
    may occur in training; longer ones do not.

    Deviations: an evaluation uses each question of a cell once if it has at most as many as requested; larger cells are
    sampled with replacement. Of the published test files some have only rows that end at the largest number
    (`shiftedstart3__tr..`, `shiftedstart4`) or many copies, and that of modulus 13 starts at a trained count;
    `numerate data write NAME as=published` writes those.
    """

    symbol: Literal["same", "different"] = setting(
        "same", "what is counted: letters `a` (same), or random letters (different)"
    )
    count: int | Span = setting(Span(1, 50), "number of symbols to count in training", at_least=1)
    start_number: Literal["none", "before", "after", "both"] = setting(
        "none",
        "position of the start number: before (counting starts there), after (it is added), either (both), or none",
    )
    starts: int | Span = setting(Span(1, 99), "range of start numbers; unused with start_number=none", at_least=0)
    max_number: int = setting(
        100, "largest number that counting may reach, and the largest in the vocabulary", at_least=1, at_most=MAX_NUMBER
    )
    end: int | None = setting(
        None, "number at which counting ends, so that each count has only one start number; null: any"
    )
    modulus: int | None = setting(
        None, "counting restarts at 1 after this number; null: it does not restart", at_least=2, at_most=MAX_NUMBER
    )
    prefix: str = setting("", "a text before every sequence, such as 0 or <bos>, without a label")
    helper: Literal["none", "blank", "pad"] = setting(
        "none", "helper token after each symbol, <blk> (blank) or <pad> (pad), at which its count is predicted"
    )
    held_out_starts: int = setting(
        0, "start numbers of each trained count held out for test and validation; 0: none", at_least=0
    )
    eval_count: int | Span | None = setting(
        None, "counts instead of `count`, set by the evaluation from its grid; leave it null in a recipe", at_least=1
    )

    def conflicts(self) -> Iterator[str]:
        if self.modulus is not None and self.start_number != "none":
            yield "modulus: must be null unless start_number=none"
        yield from prefix_conflicts(self.prefix, ascii_lowercase, "0 and <bos> are")
        if self.held_out_starts == 1:
            yield "held_out_starts: must be 0 or at least 2, so that test and validation have one each, not 1"
        for counts in (Span.from_value(self.count), self.eval_span):
            yield from self.allowed_starts.conflicts(counts)
        yield from Starts(Span.from_value(self.starts), self.max_number, self.end).end_conflicts(
            Span.from_value(self.count)
        )

    @property
    def allowed_starts(self) -> Starts:
        """The starts of each count; without numbers every count starts from 0."""
        if self.start_number == "none":
            return Starts(Span(0, 0), self.max_number if self.modulus is None else MAX_COUNT)
        return Starts(Span.from_value(self.starts), self.max_number, self.end)

    @property
    def max_possible_count(self) -> int:
        return self.allowed_starts.max_count()

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        rows = len(indices)
        if self._is_held_out_by_letters:
            # Cyclically, so that holding out some letters does not change the distribution of lengths.
            count = self.eval_span.low + indices % len(self.eval_span)
        else:
            count = self.eval_span.low + rng.integers(len(self.eval_span), (rows,))
        min_start, num_starts = self.allowed_starts.bounds(count)
        start = min_start + (rng.integers(num_starts, (rows,)) if self.start_number != "none" else 0)
        before = rng.integers(2, (rows,)) == 0 if self.start_number == "both" else self._before_mask(rows)
        letters = None
        if self.symbol == "different":
            letters = rng.integers(len(ascii_lowercase), (rows, self.eval_span.high), np.int16)
        return self.build_rows(count, start, before, letters, self.eval_span.high)

    def build_rows(
        self,
        count: NDArray[np.int64],
        start: NDArray[np.int64],
        before: NDArray[np.bool_],
        letters: NDArray[np.int16] | None = None,
        max_count: int | None = None,
    ) -> Questions:
        """Builds rows with these counts and starts, the start first where `before` is true, padded to
        `longest_questions` symbols.

        >>> from numerate.tasks.plain import format_question
        >>> questions = Counting(start_number="before").build_rows(np.array([2]), np.array([65]), np.array([True]))
        >>> format_question(questions, 0)
        ('65 a a', '. 66 67')
        """
        alphabet, has_helper = self.alphabet(), self.helper != "none"
        max_count = int(count.max(initial=0)) if max_count is None else max_count
        has_number_before = self.start_number in ("before", "both")
        shifts = before[:, None] if self.start_number == "both" else before[:1, None]  # otherwise all rows are alike
        offsets = np.arange(max_count + has_number_before) - shifts  # places into the counted symbols
        is_symbol = (offsets >= 0) & (offsets < count[:, None])
        counts = (offsets if self.modulus is None else offsets % self.modulus) + 1
        if has_number_before:
            counts = counts + (start * before)[:, None]
        symbol_ids: Any = alphabet.index("a")
        if letters is not None:
            symbol_ids = symbol_ids + np.take_along_axis(letters, np.clip(offsets, 0, letters.shape[1] - 1), axis=1)
        symbols, labels = (np.where(is_symbol, part, EMPTY).astype(np.int16) for part in (symbol_ids, counts))
        if has_number_before:
            symbols[:, 0] = np.where(before, start, symbols[:, 0])
            labels[:, 0] = np.where(before, start if has_helper else EMPTY, labels[:, 0])
        if has_helper:
            symbols, labels = insert_helpers(symbols, labels, alphabet.index(HELPER_CHOICES[self.helper]))
        if self.start_number == "after":
            symbols, labels = (np.pad(part, ((0, 0), (0, 1)), constant_values=EMPTY) for part in (symbols, labels))
        if self.start_number in ("after", "both"):
            row = np.flatnonzero(~before)
            last = count[row] * (1 + has_helper)
            symbols[row, last], labels[row, last] = start[row], (start + count)[row]
        if self.prefix:
            symbols, labels = insert_prefix(symbols, labels, alphabet.index(self.prefix))
        return Questions(alphabet, symbols, Numbers.empty(len(count)), labels=labels, metadata={"count": count})

    def _before_mask(self, rows: int) -> NDArray[np.bool_]:
        return np.full(rows, self.start_number != "after" and self.start_number != "none")

    @property
    def _is_held_out_by_letters(self) -> bool:
        """Whether rows are held out by their letters."""
        return self.symbol == "different" and (not self.held_out_starts or self.start_number == "none")

    def max_training_labels(self) -> int:
        """The most labels of a training row, a start's helper included. (An addend's sum does not count: at the next
        position a longer row has a count that was never trained.)"""
        return Span.from_value(self.count).high + (self.start_number in ("before", "both") and self.helper != "none")

    def num_questions(self) -> int:
        counts = np.arange(self.eval_span.low, self.eval_span.high + 1)
        _, width = self.allowed_starts.bounds(counts)
        num_sides = 2 if self.start_number == "both" else 1
        letters = len(ascii_lowercase) if self.symbol == "different" else 1
        return sum(
            num_sides * int(starts) * letters**count for count, starts in zip(counts.tolist(), width, strict=True)
        )

    def _list_questions(self, split: str) -> Questions | None:
        """Every question of a split, smaller counts and smaller starts first; None for random letters, or for more than
        20,000.

        >>> from numerate.tasks.plain import format_question
        >>> questions = Counting(eval_count=Span(2, 3)).all_questions()
        >>> [format_question(questions, row) for row in (0, 1)]
        [('a a', '1 2'), ('a a a', '1 2 3')]
        """
        if self.symbol == "different":
            return None
        counts = np.arange(self.eval_span.low, self.eval_span.high + 1)
        if int(self.allowed_starts.bounds(counts)[1].sum()) > MAX_LISTED_QUESTIONS:
            return None
        cells = self.allowed_starts.cells(self.eval_span)
        count, start = cells.T
        is_in_split = self._split_indices(count, start) == (_SPLIT_NAMES.index(split) if split in _SPLIT_NAMES else 0)
        is_in_split_or_unsplit = is_in_split | ~self._has_held_out_starts(count)
        return self._build_rows_on_all_sides(count[is_in_split_or_unsplit], start[is_in_split_or_unsplit])

    def _build_rows_on_all_sides(self, count: NDArray[np.int64], start: NDArray[np.int64]) -> Questions:
        """These rows; with `start_number="both"`, each with the number behind the symbols, then in front."""
        if self.start_number != "both":
            return self.build_rows(count, start, self._before_mask(len(count)))
        before = np.tile(np.array([False, True]), len(count))
        return self.build_rows(count.repeat(2), start.repeat(2), before)

    def _split_indices(self, count: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.int8]:
        """0 for rows of training, 1 for those held out for test, 2 for validation."""
        if not self.held_out_starts:
            return np.zeros(len(count), dtype=np.int8)
        table = held_out_splits(Span.from_value(self.count), self.allowed_starts, self.held_out_starts)
        known = (count < table.shape[0]) & (start >= 0) & (start < table.shape[1])
        return np.where(known, table[count * known, start * known], 0).astype(np.int8)

    def _has_held_out_starts(self, count: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether starts of these counts are held out."""
        span, (_, width) = Span.from_value(self.count), self.allowed_starts.bounds(count)
        return (count >= span.low) & (count <= span.high) & (width > self.held_out_starts) & (self.held_out_starts > 0)

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the count, the start and its position, and of the letters if rows are held out by letters."""
        if self._is_held_out_by_letters:
            return questions.hashes()
        count, (start, kind) = questions.metadata["count"], self._starts_and_sides(questions)
        return move_into_splits(cell_hashes(count, start, kind), self._split_indices(count, start))

    def _starts_and_sides(self, questions: Questions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The start of each row, and 1 if it comes first."""
        rows = len(questions)
        if self.start_number == "none":
            return np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        table = numbers_in(questions.alphabet)
        first, tokens_per_symbol = int(bool(self.prefix)), 1 + (self.helper != "none")
        numbers_before = table[questions.symbols[:, first]]
        if self.start_number == "before":
            return numbers_before, np.ones(rows, dtype=np.int64)
        last = np.minimum(first + tokens_per_symbol * questions.metadata["count"], questions.symbols.shape[1] - 1)
        start = np.where(numbers_before >= 0, numbers_before, table[questions.symbols[np.arange(rows), last]])
        return start, (numbers_before >= 0).astype(np.int64)

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        count = questions.metadata["count"]
        if self._is_held_out_by_letters:
            return np.asarray(count >= MIN_HELD_OUT_LETTERS)
        return self._has_held_out_starts(count)

    def is_held_out(self, split: str) -> bool:
        trained = Span.from_value(self.count)
        if split == "train":
            return False
        if self.eval_span.low > trained.high:
            return True
        if self._is_held_out_by_letters:
            return self.eval_span.low >= MIN_HELD_OUT_LETTERS
        return bool(
            self._has_held_out_starts(np.arange(self.eval_span.low, min(self.eval_span.high, trained.high) + 1)).all()
        )

    def alphabet(self) -> tuple[str, ...]:
        """The numbers from 0, the prefix, the helper and the letters, as far as used."""
        numbers = map(str, range((self.max_number if self.modulus is None else self.modulus) + 1))
        letters = ascii_lowercase if self.symbol == "different" else "a"
        texts = (*numbers, self.prefix, HELPER_CHOICES[self.helper], *letters)
        return tuple(dict.fromkeys(text for text in texts if text))

    def longest_questions(self) -> Questions:
        count, letters = np.array([self.eval_span.high]), None
        low, _ = self.allowed_starts.bounds(count)
        if self.symbol == "different":
            letters = np.zeros((1, self.eval_span.high), dtype=np.int16)
        return self.build_rows(count, low, self._before_mask(1), letters)

    def parse_question(self, text: str) -> Questions:
        """Parses `65 a a a`; prefix and helpers may be omitted.

        Raises `UserError` for a row that this task cannot have.
        """
        pieces = [piece for piece in text.split() if piece != HELPER_CHOICES[self.helper]]
        has_extra_number = sum(piece.isdecimal() for piece in pieces) > (self.start_number != "none")
        if self.prefix and pieces[:1] == [self.prefix] and (has_extra_number or not self.prefix.isdecimal()):
            pieces = pieces[1:]
        before = self.start_number in ("before", "both") and bool(pieces) and pieces[0].isdecimal()
        number = "" if self.start_number == "none" or not pieces else pieces.pop(0 if before else -1)
        valid_letters = ascii_lowercase if self.symbol == "different" else "a"
        has_number = (self.start_number != "none") == number.isdecimal() and before >= (self.start_number == "before")
        is_question = pieces and all(piece in valid_letters for piece in pieces) and has_number
        check_question(is_question, text, self._example_text())
        count, start = len(pieces), int(number or 0)
        if self.modulus is None and start + count > self.max_number:
            raise UserError(f"question: counting must not exceed max_number={self.max_number}; {start} + {count} does")
        letters = None
        if self.symbol == "different":
            letters = np.array([[valid_letters.index(piece) for piece in pieces]], dtype=np.int16)
        return self.build_rows(np.array([count]), np.array([start]), np.array([before]), letters)

    def _example_text(self) -> str:
        return {"none": "a a a", "before": "5 a a a", "after": "a a a 5", "both": "5 a a a or a a a 5"}[
            self.start_number
        ]


def insert_helpers(symbols: NDArray[Any], labels: NDArray[Any], helper: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows with a helper after each symbol, which carries the label of the symbol."""
    helpers = np.where(symbols == EMPTY, symbols, symbols.dtype.type(helper))
    return (
        np.stack([symbols, helpers], axis=2).reshape(len(symbols), -1),
        np.stack([np.full_like(labels, EMPTY), labels], axis=2).reshape(len(labels), -1),
    )


def insert_prefix(symbols: NDArray[Any], labels: NDArray[Any], prefix: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows with a prefix in front, which has no label."""
    return (
        np.pad(symbols, ((0, 0), (1, 0)), constant_values=prefix),
        np.pad(labels, ((0, 0), (1, 0)), constant_values=EMPTY),
    )


def prefix_conflicts(prefix: str, symbols: Sequence[str], advice: str) -> Iterator[str]:
    """The errors of an unsuitable prefix: several words, or a symbol, helper or special token; `advice` ends them."""
    if prefix and prefix.split() != [prefix]:
        yield f"prefix: {prefix!r} must be one word without spaces; {advice}"
    if prefix and prefix in (*symbols, *HELPER_CHOICES.values()):
        yield f"prefix: {prefix!r} is also a symbol or a helper; {advice}"
    if prefix in SPECIAL_TOKENS:
        yield f"prefix: {prefix} is a special token, which tokenizer.add_bos_token=true adds; {advice}"


MIN_HELD_OUT_LETTERS = next(count for count in range(1, 9) if can_be_split(len(ascii_lowercase) ** count))
"""Rows with fewer random letters are too few to hold any out."""

_SPLIT_NAMES = ("train", "test", "validation")
