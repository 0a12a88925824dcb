"""From questions to rows of token ids, and back to text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import Mistake
from numerate.tasks.questions import EMPTY, Example, Questions
from numerate.tasks.task import Task
from numerate.tokens.numbers import Digits, Ids, NumberSpelling, id_type
from numerate.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary

HOUSE_TEXTS = ("+", "-", "x", "=", " ", ".")
"""The texts that stand first in every vocabulary of characters, so that ids 0 to 18 are the published ones."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Questions as token ids: all that a layout ever sees.

    - `ids` uint8 or uint16 `[rows, time]`, PAD behind each row's end; `lengths` int64 `[rows]`.
    - `asked` bool `[rows, time]`: the tokens that are the answer, its [EOS] among them; with `labels`, the places where
      a label is to be said.
    - `labels` `[rows, time]`: what is to be said at each place, None where answers are continuations.
    - `values` float32 `[rows, time]`: the number that a token carries, None where tokens carry none.
    """

    ids: Ids
    lengths: NDArray[np.int64]
    asked: NDArray[np.bool_]
    labels: Ids | None = None
    values: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def take(self, rows: NDArray[Any] | slice) -> "Rows":
        """These rows, in this order, cut to the longest of them."""
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        return Rows(
            self.ids[rows, :longest],
            lengths,
            self.asked[rows, :longest],
            None if self.labels is None else self.labels[rows, :longest],
            None if self.values is None else self.values[rows, :longest],
        )


class Tokenizer(ABC):
    """How questions become tokens. It holds no vocabulary: that belongs to the task and is passed along."""

    unique: ClassVar[bool] = True
    """Whether an answer has exactly one tokenisation, so that exact match may be read off one forward."""

    @abstractmethod
    def vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary for a task, or for texts."""

    @abstractmethod
    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        """The questions with their answers as rows of ids."""

    @abstractmethod
    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        """The ids of a text as the model sees it; what the vocabulary does not hold becomes [UNK]."""

    @abstractmethod
    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        """The text of ids, without the text of [PAD], [BOS] and [EOS]."""


@dataclass(frozen=True)
class Characters(Tokenizer):
    """One token per character, as in the published arithmetic systems; numbers as `numbers` spells them.

    12 + 9 = 21 becomes `2 1 + 9 = 1 2 [EOS]` with the default spelling. A space is a token of its own (id 18): the
    published code turns it into padding.
    """

    numbers: NumberSpelling = setting(Digits(), "how numbers are spelled")
    begin: bool = setting(False, "whether every row begins with [BOS]")

    def vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        texts = task.alphabet() if isinstance(task, Task) else task
        return Vocabulary.of(
            [*HOUSE_TEXTS, *self.numbers.texts(), *(character for text in texts for character in text)]
        )

    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        if not isinstance(questions, Questions):
            questions = Questions.of_texts(questions)
        if any(len(text) != 1 for text in questions.alphabet):
            questions = _by_character(questions)
        return _Writer(questions, self.numbers, vocabulary, self.begin).rows()

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        return [vocabulary.ids.get(character, UNKNOWN) for character in text]

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        silent = (PAD, BEGIN, END)
        return "".join(vocabulary.symbols[i] for i in map(int, ids) if i not in silent)


def _by_character(questions: Questions) -> Questions:
    """The same questions with an alphabet of single characters; a label belongs to the last one of its piece."""
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
        said = [questions.alphabet[i] for i in np.unique(questions.labels[questions.labels >= 0])]
        for text in said:
            if len(text) != 1:
                raise Mistake(f"tokenizer: the label {text!r} is no single character, and a label is one token")
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
    """Writes the rows of one block, piece by piece from the left, every row at its own place.

    A number is moved eight bytes at a time. Its last word may reach past its end, with zeros, over what is written
    later: so rows are written from left to right, with room for one number more behind the longest.
    """

    def __init__(self, questions: Questions, spelling: NumberSpelling, vocabulary: Vocabulary, begin: bool) -> None:
        self.questions, self.begin = questions, int(begin)
        self.type = np.dtype(id_type(vocabulary))
        self.text_ids = np.array([vocabulary.ids.get(text, UNKNOWN) for text in questions.alphabet], dtype=self.type)
        slots = range(questions.numbers.lengths.shape[1])
        self.spelled = [spelling.write(questions.numbers, slot, vocabulary) for slot in slots]

    def rows(self) -> Rows:
        labels = self.questions.labels
        starts, lengths = self._starts()
        if labels is None:
            lengths = lengths + 1
        longest = int(lengths.max(initial=0))
        count = len(lengths)
        spare = max((ids.shape[1] for ids, _ in self.spelled), default=0) + 8
        written = np.zeros((count, longest + spare), dtype=self.type)
        if self.begin:
            written[:, 0] = BEGIN
        self._write(written, starts)
        ids = written[:, :longest]
        if labels is None:
            ids[np.arange(count), lengths - 1] = END
            first = self._prompt_ends(starts, lengths)
            # The narrowest integers that hold a place: this comparison is over every token of the block.
            narrow = np.int16 if longest < 2**15 else np.int64
            places = np.arange(longest, dtype=narrow)
            asked = np.greater_equal(places, first.astype(narrow)[:, None])
            asked &= np.less(places, lengths.astype(narrow)[:, None])
            return Rows(ids, lengths, asked)
        ends = np.stack([*starts[1:], lengths], axis=1)
        row, piece = np.nonzero(labels >= 0)
        place = ends[row, piece] - 1
        asked = np.zeros(ids.shape, dtype=np.bool_)
        asked[row, place] = True
        said = np.zeros_like(ids)
        said[row, place] = self.text_ids[labels[row, piece]]
        return Rows(ids, lengths, asked, said)

    def _starts(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Where each piece begins in each row, and where each row ends."""
        symbols = self.questions.symbols
        place = np.full(len(symbols), self.begin, dtype=np.int64)
        starts = []
        for piece in range(symbols.shape[1]):
            starts.append(place)
            column = symbols[:, piece]
            alike = _alike(column)
            if alike is None:
                sizes = (column >= 0).astype(np.int64)
                for slot, (_, lengths) in enumerate(self.spelled):
                    sizes += np.where(column == -1 - slot, lengths, 0)
                place = place + sizes
            elif alike >= 0:
                place = place + 1
            elif alike != EMPTY:
                place = place + self.spelled[-1 - alike][1]
        return starts, place

    def _write(self, written: Ids, starts: list[NDArray[np.int64]]) -> None:
        flat = written.reshape(-1)
        # Eight bytes from every place on: a view that no number needs to be aligned for.
        windows: NDArray[np.uint64] = np.ndarray(
            (max(0, flat.size - 8 // self.type.itemsize + 1),), "<u8", flat.data, 0, (self.type.itemsize,)
        )
        base = np.arange(len(written)) * written.shape[1]
        for piece, start in enumerate(starts):
            column, at = self.questions.symbols[:, piece], base + start
            alike = _alike(column)
            if alike is None:
                texts = column >= 0
                flat[at[texts]] = self.text_ids[column[texts]]
                for slot, (ids, _) in enumerate(self.spelled):
                    here = column == -1 - slot
                    self._place(windows, at[here], ids[here])
            elif alike >= 0:
                flat[at] = self.text_ids[alike]
            elif alike != EMPTY:
                self._place(windows, at, self.spelled[-1 - alike][0])

    def _place(self, windows: NDArray[np.uint64], at: NDArray[np.int64], ids: Ids) -> None:
        words = np.ascontiguousarray(ids).view("<u8")
        for word in range(words.shape[1]):
            windows[at] = words[:, word]
            at = at + 8 // self.type.itemsize

    def _prompt_ends(self, starts: list[NDArray[np.int64]], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the answer of each row begins."""
        prompt = self.questions.prompt_length
        if prompt is None:
            raise ValueError("questions have either labels or a prompt")
        if not len(prompt):
            return ends
        places = [*starts, ends - 1]
        alike = _alike(prompt)
        return places[alike] if alike is not None else np.stack(places, axis=1)[np.arange(len(prompt)), prompt]


def _alike(column: NDArray[Any]) -> int | None:
    """The one value of a column, None where there are several."""
    if not len(column):
        return EMPTY
    return int(column[0]) if column.strides[0] == 0 or bool((column == column[0]).all()) else None
