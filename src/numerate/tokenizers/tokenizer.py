"""Tokenizers: from questions to rows of token ids, and back to text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import mix
from numerate.tasks.questions import EMPTY, Example, Questions
from numerate.tasks.task import Task
from numerate.tokenizers import insertion
from numerate.tokenizers.number_formats import Digits, Ids, NumberFormat, id_type
from numerate.vocabulary import BEGIN, END, PAD, PUBLISHED, UNKNOWN, Vocabulary

DEFAULT_TEXTS = ("+", "-", "x", "=", " ", ".")
"""The first texts of every character vocabulary, so that ids 0 to 18 are the published ones."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Tokenized questions, the input of a layout.

    - `ids` uint8, uint16 or int32 `[rows, time]`, padded with PAD; `lengths` int64 `[rows]`.
    - `target_mask` bool `[rows, time]`: the tokens of the answer including its [EOS]; with `labels`, the positions that
      have a label.
    - `labels` `[rows, time]`: the label of each position, None if answers are continuations.
    - `values` float32 `[rows, time]`: the number that a token carries, None if tokens carry none.
    - `vocabulary`: the vocabulary of the ids, if known.
    """

    ids: Ids
    lengths: NDArray[np.int64]
    target_mask: NDArray[np.bool_]
    labels: Ids | None = None
    values: NDArray[np.float32] | None = None
    vocabulary: Vocabulary | None = None

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def take(self, rows: NDArray[Any] | slice) -> "Rows":
        """These rows in this order, truncated to the longest of them."""
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        return Rows(
            self.ids[rows, :longest],
            lengths,
            self.target_mask[rows, :longest],
            None if self.labels is None else self.labels[rows, :longest],
            None if self.values is None else self.values[rows, :longest],
            self.vocabulary,
        )


class Tokenizer(ABC):
    """How questions become tokens. The vocabulary belongs to the task and is passed as an argument."""

    unique: ClassVar[bool] = True
    """Whether an answer has exactly one tokenization, so that exact match can be computed from one forward pass."""

    between: ClassVar[str] = ""
    """The separator between tokens in a text: none, or the space of a word tokenizer."""

    @abstractmethod
    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary for a task, or for texts."""

    @abstractmethod
    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        """The questions with their answers as rows of ids."""

    @abstractmethod
    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        """The ids of a text as the model sees it; unknown tokens become [UNK]."""

    @abstractmethod
    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        """The text of ids, without the text of [PAD], [BOS] and [EOS]."""

    def decode_with_values(self, ids: Sequence[int], values: Sequence[float], vocabulary: Vocabulary) -> str:
        """The text of ids that may carry numbers; the same as `decode` if tokens carry none."""
        return self.decode(ids, vocabulary)

    def coverage_warnings(self, task: Task, number_ids: frozenset[int]) -> list[str]:
        """Warns where many digits of a task's answers are not in the tokens `number_ids`; only subwords miss any."""
        return []

    def fingerprint(self) -> str | None:
        """A hash of the tokenizer file; None if there is none. Raises `UserError` if the file is missing."""
        return None


@dataclass(frozen=True)
class Characters(Tokenizer):
    """Character-level tokenizer, as in the published arithmetic systems, with numbers in `number_format`.

    12 + 9 = 21 becomes `2 1 + 9 = 1 2 [EOS]` with the default number format. A space is a token of its own (id 18); the
    published code turns it into padding. The vocabulary has what the task needs and starts like the published one;
    `vocabulary="pad"`, `"index"` and `"sort"` are the published ones, with 19, 121 and 118 ids (McLeish et al., 2024,
    https://arxiv.org/abs/2405.17399). So are these two options:

    `space_probability=0.1` inserts random spaces before characters of question and answer: one with this probability,
    another with a tenth of it, then a hundredth, and so on. They are a function of the question's `chance` and are
    targets too: evaluate with `space_probability=0`, as they cannot be predicted.

    `interleave_operands` alternates the digits of the two operands and drops the operator: 12 + 34 = 46 is read as `1 3
    2 4 =` (here with normal digit order). Both need the same number of digits: see `Digits(min_digits=...)`.
    """

    number_format: NumberFormat = setting(Digits(), "how numbers are tokenized")
    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")
    vocabulary: Literal["default", "pad", "index", "sort"] = setting(
        "default", "the default vocabulary, or a published one with 19, 121 or 118 tokens", later=True
    )
    space_probability: float = setting(0.0, "probability of a space before a character", later=True)
    interleave_operands: bool = setting(
        False, "whether the digits of the two operands alternate, without an operator", later=True
    )

    def __post_init__(self) -> None:
        if self.vocabulary not in ("default", *PUBLISHED):
            raise UserError(f"vocabulary: {self.vocabulary!r} is none of: default, {', '.join(PUBLISHED)}")
        if not 0 <= self.space_probability <= 1:
            raise UserError(f"space_probability: {self.space_probability} is no probability; 0 to 1 are")
        if isinstance(self.number_format, Digits) and self.number_format.index_hints:
            if self.vocabulary in ("pad", "sort"):
                raise UserError(
                    f"vocabulary: the published vocabulary {self.vocabulary!r} has no index hints; 'index' and "
                    f"'default' have"
                )
            if self.interleave_operands:
                raise UserError(
                    "interleave_operands: operands with index hints cannot alternate; leave one of the two out"
                )

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary for a task, or for texts. Raises `UserError` for a task with characters that are not in the
        published vocabulary; in texts these are unknown."""
        texts = task.alphabet() if isinstance(task, Task) else task
        if self.vocabulary != "default":
            published = Vocabulary.published(self.vocabulary)
            missing = {character for text in texts for character in text} - set(published.ids)
            if missing and isinstance(task, Task):
                raise UserError(
                    f"vocabulary: the published vocabulary {self.vocabulary!r} has no "
                    f"{' '.join(sorted(missing))}, which "
                    f"{type(task).__name__} needs; 'default' has whatever a task needs"
                )
            return published
        return Vocabulary.of(
            [*DEFAULT_TEXTS, *self.number_format.texts(), *(character for text in texts for character in text)]
        )

    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        if not isinstance(questions, Questions):
            questions = Questions.of_texts(questions)
        questions = questions.in_pieces()
        if any(len(text) != 1 for text in questions.alphabet):
            questions = _by_character(questions)
        rows = _Writer(questions, self.number_format, vocabulary, self.add_bos_token, self.interleave_operands).rows()
        rows = replace(rows, vocabulary=vocabulary)
        if not self.space_probability or questions.chance is None:
            return rows
        return _with_blanks(rows, questions.chance, self.space_probability, vocabulary.ids[" "], self.add_bos_token)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        return [vocabulary.ids.get(character, UNKNOWN) for character in text]

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        silent = (PAD, BEGIN, END)
        return "".join(vocabulary.symbols[i] for i in map(int, ids) if i not in silent)


def blanks_before(chance: NDArray[np.uint64], time: int, share: float) -> NDArray[np.int64]:
    """The number of spaces before each of `time` characters of every row, rows x time, a function of its `chance`.

    One with probability `share`, a second then with `share / 10`, a third then with `share / 100`.
    """
    characters = np.arange(1, time + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    drawn = mix(chance[:, None] + characters) >> np.uint64(11)
    count = np.zeros(drawn.shape, dtype=np.int64)
    most, once_more = share, share
    while most * 2**53 >= 1:
        count += drawn < np.uint64(most * 2**53)
        once_more /= 10
        most *= once_more
    return count


def _with_blanks(rows: Rows, chance: NDArray[np.uint64], share: float, blank: int, begin: bool) -> Rows:
    """Rows with spaces inserted before their characters; those before the answer belong to it."""
    time = rows.ids.shape[1]
    before = blanks_before(chance, time, share)
    if begin:
        before = np.concatenate([np.zeros_like(before[:, :1]), before[:, :-1]], axis=1)
    if rows.labels is None:
        before[np.arange(len(rows)), rows.lengths - 1] = 0  # the end is no character
    to, lengths = insertion.places(rows.lengths, before)
    columns = int(lengths.max(initial=0))
    positions = np.arange(columns)
    inside = positions < lengths[:, None]
    taken = insertion.moved(np.ones_like(rows.target_mask), to, columns)
    ids = insertion.moved(rows.ids, to, columns)
    ids[inside & ~taken] = blank
    if rows.labels is not None:
        target_mask = insertion.moved(rows.target_mask, to, columns)
        labels = insertion.moved(rows.labels, to, columns)
        return Rows(ids, lengths, target_mask, labels, vocabulary=rows.vocabulary)
    question = (np.arange(time) < rows.lengths[:, None]) & ~rows.target_mask
    ends = np.where(question, to, -1).max(axis=1, initial=-1)
    return Rows(ids, lengths, inside & (positions > ends[:, None]), vocabulary=rows.vocabulary)


def _by_character(questions: Questions) -> Questions:
    """The same questions with a single-character alphabet; a label belongs to the last character of its piece."""
    alphabet = tuple(dict.fromkeys(character for text in questions.alphabet for character in text))
    widest = max(1, *map(len, questions.alphabet))
    table = np.full((len(questions.alphabet) + 1, widest), EMPTY, dtype=np.int16)
    for i, text in enumerate(questions.alphabet):
        table[i, widest - len(text) :] = [alphabet.index(character) for character in text]
    symbols = table[np.maximum(questions.symbols, -1)]
    special = questions.symbols < 0
    symbols[special, -1] = questions.symbols[special]
    labels: NDArray[np.int16] | None = None
    if questions.labels is not None:
        names = [questions.alphabet[i] for i in np.unique(questions.labels[questions.labels >= 0])]
        for text in names:
            if len(text) != 1:
                raise UserError(f"tokenizer: the label {text!r} is no single character, and a label is one token")
        at_end = np.full(symbols.shape, EMPTY, dtype=np.int16)
        at_end[..., -1] = np.where(questions.labels >= 0, table[np.maximum(questions.labels, -1), -1], EMPTY)
        labels = at_end.reshape(len(at_end), symbols.shape[1] * widest)
    return replace(
        questions,
        alphabet=alphabet,
        symbols=symbols.reshape(len(symbols), symbols.shape[1] * widest),
        labels=labels,
        prompt_length=None if questions.prompt_length is None else questions.prompt_length * widest,
    )


class _Writer:
    """Writes the rows of one block piece by piece, from left to right, all rows at once.

    Numbers are copied in words of eight bytes. The last word may extend past the number's end with zeros, which the
    next piece overwrites; rows therefore have room for one more number after the longest.
    """

    def __init__(
        self, questions: Questions, number_format: NumberFormat, vocabulary: Vocabulary, begin: bool, interleave: bool
    ) -> None:
        self.questions, self.begin = questions, int(begin)
        self.type = np.dtype(id_type(vocabulary))
        self.text_ids = np.array([vocabulary.ids.get(text, UNKNOWN) for text in questions.alphabet], dtype=self.type)
        symbols, slots = _slots(questions)
        self.number_ids = [
            number_format.write(questions.numbers, slot, vocabulary, answer=answer, chance=questions.chance)
            for slot, answer in slots
        ]
        if interleave:
            symbols = self._interleaved(symbols)
        # Without numbers every piece is one token.
        self.plain = None if self.number_ids else symbols
        self.columns = [_Column.of(symbols[:, piece]) for piece in range(symbols.shape[1] if self.number_ids else 0)]

    def _interleaved(self, symbols: NDArray[np.int16]) -> NDArray[np.int16]:
        """The operands merged into one number of alternating digits, without the operator."""
        operands = symbols.shape[1] > 2 and bool(((symbols[:, [0, 2]] == (-1, -2)).all(1) & (symbols[:, 1] >= 0)).all())
        if not operands:
            raise UserError(
                "interleave_operands: only questions of two operands with an operator between them can alternate"
            )
        (first, lengths), (second, others) = self.number_ids[:2]
        unequal = np.flatnonzero(lengths != others)
        if len(unequal):
            raise UserError(
                f"interleave_operands: operands of {lengths[unequal[0]]} and {others[unequal[0]]} digits would be "
                "ambiguous; give them as many with tokenizer.number_format.min_digits"
            )
        columns = min(first.shape[1], second.shape[1])
        both = np.stack([first[:, :columns], second[:, :columns]], axis=2).reshape(len(first), 2 * columns)
        self.number_ids[0] = both, lengths + others
        return np.concatenate([symbols[:, :1], np.full((len(symbols), 2), EMPTY, np.int16), symbols[:, 3:]], axis=1)

    def rows(self) -> Rows:
        labels = self.questions.labels
        starts, lengths = self._starts()
        if labels is None:
            lengths = lengths + 1
        longest = int(lengths.max(initial=0))
        count = len(lengths)
        spare = max((ids.shape[1] for ids, _ in self.number_ids), default=0) + 8
        written = np.zeros((count, longest + spare), dtype=self.type)
        if self.begin:
            written[:, 0] = BEGIN
        self._write(written, starts)
        ids = written[:, :longest]
        if labels is None:
            ids[np.arange(count), lengths - 1] = END
            first = self._prompt_ends(starts, lengths)
            # The narrowest integers that hold a position: this compares every token of the block.
            narrow = np.int16 if longest < 2**15 else np.int64
            positions = np.arange(longest, dtype=narrow)
            target_mask = np.greater_equal(positions, first.astype(narrow)[:, None])
            target_mask &= np.less(positions, lengths.astype(narrow)[:, None])
            return Rows(ids, lengths, target_mask)
        ends = np.stack([*starts[1:], lengths], axis=1)
        row, piece = np.nonzero(labels >= 0)
        place = ends[row, piece] - 1
        target_mask = np.zeros(ids.shape, dtype=np.bool_)
        target_mask[row, place] = True
        label_ids = np.zeros_like(ids)
        label_ids[row, place] = self.text_ids[labels[row, piece]]
        return Rows(ids, lengths, target_mask, label_ids)

    def _starts(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Where each piece starts in each row, and where each row ends."""
        place = np.full(len(self.questions), self.begin, dtype=np.int64)
        if self.plain is not None:
            ends = place[:, None] + (self.plain >= 0).cumsum(axis=1, dtype=np.int64)
            return [place, *ends.T[:-1]][: ends.shape[1]], ends[:, -1] if ends.shape[1] else place
        starts = []
        for column in self.columns:
            starts.append(place)
            if column.alike is None:
                sizes = (column.symbols >= 0).astype(np.int64)
                for slot in column.slots:
                    sizes += np.where(column.symbols == -1 - slot, self.number_ids[slot][1], 0)
                place = place + sizes
            elif column.alike >= 0:
                place = place + 1
            elif column.alike != EMPTY:
                place = place + self.number_ids[-1 - column.alike][1]
        return starts, place

    def _write(self, written: Ids, starts: list[NDArray[np.int64]]) -> None:
        if self.plain is not None:
            row, piece = np.nonzero(self.plain >= 0)
            written[row, np.stack(starts, axis=1)[row, piece]] = self.text_ids[self.plain[row, piece]]
            return
        flat = written.reshape(-1)
        # Eight bytes from every position on: a view without alignment.
        windows: NDArray[np.uint64] = np.ndarray(
            (max(0, flat.size - 8 // self.type.itemsize + 1),), "<u8", flat.data, 0, (self.type.itemsize,)
        )
        base = np.arange(len(written)) * written.shape[1]
        for column, start in zip(self.columns, starts, strict=True):
            at = base + start
            if column.alike is None:
                texts = column.symbols >= 0
                flat[at[texts]] = self.text_ids[column.symbols[texts]]
                for slot in column.slots:
                    here = column.symbols == -1 - slot
                    self._place(windows, at[here], self.number_ids[slot][0][here])
            elif column.alike >= 0:
                flat[at] = self.text_ids[column.alike]
            elif column.alike != EMPTY:
                self._place(windows, at, self.number_ids[-1 - column.alike][0])

    def _place(self, windows: NDArray[np.uint64], at: NDArray[np.int64], ids: Ids) -> None:
        words = np.ascontiguousarray(ids).view("<u8")
        for word in range(words.shape[1]):
            windows[at] = words[:, word]
            at = at + 8 // self.type.itemsize

    def _prompt_ends(self, starts: list[NDArray[np.int64]], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the answer of each row starts."""
        prompt = self.questions.prompt_length
        if prompt is None:
            raise ValueError("questions have either labels or a prompt")
        if not len(prompt):
            return ends
        places = [*starts, ends - 1]
        alike = _alike(prompt)
        return places[alike] if alike is not None else np.stack(places, axis=1)[np.arange(len(prompt)), prompt]


@dataclass(frozen=True, eq=False)
class _Column:
    """One piece of every row: its symbols, the common one (None if they differ), and the slots among them."""

    symbols: NDArray[np.int16]
    alike: int | None
    slots: tuple[int, ...] = ()

    @classmethod
    def of(cls, symbols: NDArray[np.int16]) -> "_Column":
        alike = _alike(symbols)
        if alike is not None:
            return cls(symbols, alike)
        negative = symbols[(symbols < 0) & (symbols > EMPTY)]
        if len(negative) and (negative == negative[0]).all():
            negative = negative[:1]
        return cls(symbols, None, tuple(-1 - int(symbol) for symbol in np.unique(negative)))


def _slots(questions: Questions) -> tuple[NDArray[np.int16], list[tuple[int, bool]]]:
    """The symbols, and the number slots with whether each is in the answer. A slot in both question and answer becomes
    two, the answer's being appended."""
    symbols, prompt = questions.symbols, questions.prompt_length
    count = questions.numbers.lengths.shape[1]
    if prompt is None or not count or not len(symbols):
        return symbols, [(slot, False) for slot in range(count)]
    shown = symbols[:1] if symbols.strides[0] == 0 and prompt.strides[0] == 0 else symbols
    alike = _alike(prompt)
    if alike is not None:
        before, behind = shown[:, :alike], shown[:, alike:]
    else:
        answer_mask = np.arange(shown.shape[1]) >= prompt[:, None]
        before, behind = shown[~answer_mask], shown[answer_mask]
    in_answer, in_question = (set(np.unique(part[(part < 0) & (part > EMPTY)]).tolist()) for part in (behind, before))
    slots = [(slot, -1 - slot in in_answer - in_question) for slot in range(count)]
    if both := in_answer & in_question:
        positions = np.arange(symbols.shape[1]) >= prompt[:, None]
        symbols = symbols.copy()
        for symbol in sorted(both, reverse=True):
            symbols[positions & (questions.symbols == symbol)] = -1 - len(slots)
            slots.append((-1 - symbol, True))
    return symbols, slots


def _alike(column: NDArray[Any]) -> int | None:
    """The single value of a column, None if there are several."""
    if not len(column):
        return EMPTY
    return int(column[0]) if column.strides[0] == 0 or bool((column == column[0]).all()) else None
