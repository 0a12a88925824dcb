"""Tokenizers: from questions to rows of token ids, and back to text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import mix_bits
from numerate.tasks.questions import EMPTY, Example, Questions
from numerate.tasks.task import Task
from numerate.tokenizers import insertion
from numerate.tokenizers.number_formats import Digits, Ids, NumberFormat, id_dtype
from numerate.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

DEFAULT_SYMBOLS = ("+", "-", "x", "=", " ", ".")
"""The first tokens of every character vocabulary, so that ids 0 to 18 are those of McLeish et al. (2024)."""


@dataclass(frozen=True, eq=False)
class TokenizedExamples:
    """Tokenized questions, from which a layout (`numerate.tokenizers.layout`) makes model inputs and targets.

    - `ids` uint8, uint16 or int32 `[rows, time]`, padded with PAD; `lengths` int64 `[rows]`.
    - `target_mask` bool `[rows, time]`: the tokens of the answer including its [EOS]; with `labels`, the positions that
      have a label.
    - `labels` `[rows, time]`: the label of each position, None if answers are continuations.
    - `number_values` float32 `[rows, time]`: the number that a token [NUM] carries (xVal), None without such tokens.
    - `vocabulary`: the vocabulary of the ids, if known.
    """

    ids: Ids
    lengths: NDArray[np.int64]
    target_mask: NDArray[np.bool_]
    labels: Ids | None = None
    number_values: NDArray[np.float32] | None = None
    vocabulary: Vocabulary | None = None

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def take(self, indices: NDArray[Any] | slice) -> "TokenizedExamples":
        """These rows in this order, truncated to the longest of them."""
        lengths = self.lengths[indices]
        longest = int(lengths.max(initial=0))
        return TokenizedExamples(
            self.ids[indices, :longest],
            lengths,
            self.target_mask[indices, :longest],
            None if self.labels is None else self.labels[indices, :longest],
            None if self.number_values is None else self.number_values[indices, :longest],
            self.vocabulary,
        )


class Tokenizer(Spec, ABC):
    """Converts questions to token ids and back. The vocabulary depends on the task and is passed as an argument."""

    has_unique_tokenization: ClassVar[bool] = True
    """Whether an answer has exactly one tokenization, so that exact match can be computed from one forward pass."""

    has_prompts: ClassVar[bool] = False
    """Whether a question becomes a prompt, which may have examples before it (`TextSource.few_shot_examples`)."""

    def stop_texts(self) -> tuple[str, ...]:
        """The texts with which the next question of a few-shot prompt begins, at which a generated answer ends."""
        return ()

    def max_question_length(self) -> int | None:
        """The tokens of a question beyond which it is truncated; None if none is."""
        return None

    separator: ClassVar[str] = ""
    """The separator between tokens in a text: none, or the space of a word tokenizer."""

    @abstractmethod
    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary for a task, or for texts."""

    @abstractmethod
    def encode_examples(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> TokenizedExamples:
        """The questions with their answers as rows of ids."""

    @abstractmethod
    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        """The ids of a text as the model sees it; unknown tokens become [UNK]."""

    @abstractmethod
    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        """The text of ids, without the text of [PAD], [BOS] and [EOS]."""

    def decode_with_number_values(
        self, ids: Sequence[int], number_values: Sequence[float] | None, vocabulary: Vocabulary
    ) -> str:
        """The text of ids that may carry numbers; the same as `decode` without values, or if tokens carry none."""
        return self.decode(ids, vocabulary)

    def coverage_warnings(self, task: Task, number_ids: frozenset[int]) -> list[str]:
        """Warnings if many digits of a task's answers belong to tokens outside `number_ids`; only subword tokenizers
        can have digits outside them."""
        return []

    def answer_digit_order(self, questions: Questions) -> Literal["normal", "reversed"] | None:
        """The order in which it writes the digits of numbers in answers; None if there are no such numbers, or if their
        order is that of the texts."""
        return None

    def fingerprint(self) -> str | None:
        """A hash of the tokenizer file; None if there is none. Raises `UserError` if the file is missing."""
        return None


@dataclass(frozen=True)
class Characters(Tokenizer):
    """Character-level tokenizer, as in McLeish et al. (2024), with numbers in `number_format`.

    12 + 9 = 21 becomes `2 1 + 9 = 1 2 [EOS]` with the default number format. "Published" means here: by McLeish et al.
    (2024), https://arxiv.org/abs/2405.17399. A space is a token of its own (id 18); the published code turns it into
    padding. The default vocabulary has what the task needs and starts like the published ones, `vocabulary="pad"`
    (digits and operators, 19 ids), `"index"` (these and index hints, 121) and `"sort"` (for sorting, 118). Two more
    options come from the paper's code:

    `space_probability=0.1` inserts random spaces before characters of question and answer: one with this probability,
    another with a tenth of it, then a hundredth, and so on. They are drawn from the question's
    `random_bits` and are targets too: evaluate with `space_probability=0`, as they cannot be predicted.

    `interleave_operands` alternates the digits of the two operands and drops the operator: 12 + 34 = 46 becomes
    `1 3 2 4 =` (here with normal digit order). Both need the same number of digits: see `Digits(min_digits=...)`.
    """

    number_format: NumberFormat = setting(Digits(), "how numbers are tokenized")
    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")
    vocabulary: Literal["default", "pad", "index", "sort"] = setting(
        "default",
        "default: what the task needs; McLeish et al. (2024): pad (operators), index (and index hints), sort (labels)",
    )
    space_probability: float = setting(0.0, "probability of a space before a character", at_least=0, at_most=1)
    interleave_operands: bool = setting(False, "whether the digits of the two operands alternate, without an operator")

    def conflicts(self) -> Iterator[str]:
        if isinstance(self.number_format, Digits) and self.number_format.index_hints:
            if self.vocabulary in ("pad", "sort"):
                yield (
                    f"vocabulary: the published vocabulary {self.vocabulary!r} has no index hints; vocabulary must be "
                    "'index' or 'default'"
                )
            if self.interleave_operands:
                yield "interleave_operands: must be false with index_hints"

    def answer_digit_order(self, questions: Questions) -> Literal["normal", "reversed"] | None:
        if not any(is_answer for _, is_answer in _number_slots(questions)[1]):
            return None
        digits = [symbol for symbol in self.number_format.format_number(12, is_answer=True) if symbol in ("1", "2")]
        return "normal" if digits == ["1", "2"] else "reversed" if digits == ["2", "1"] else None

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary for a task, or for texts. Raises `UserError` for a task with characters that are not in the
        published vocabulary; in texts these are unknown."""
        texts = task.alphabet() if isinstance(task, Task) else task
        if self.vocabulary != "default":
            published_vocabulary = Vocabulary.from_published(self.vocabulary)
            missing_characters = {character for text in texts for character in text} - set(
                published_vocabulary.token_to_id
            )
            if missing_characters and isinstance(task, Task):
                raise UserError(
                    f"vocabulary: the published vocabulary {self.vocabulary!r} has no "
                    f"{' '.join(sorted(missing_characters))}, which "
                    f"{type(task).__name__} needs; use 'default', which has all characters of the task"
                )
            return published_vocabulary
        return Vocabulary.with_digits(
            [
                *DEFAULT_SYMBOLS,
                *self.number_format.extra_symbols(),
                *(character for text in texts for character in text),
            ]
        )

    def encode_examples(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> TokenizedExamples:
        if not isinstance(questions, Questions):
            questions = Questions.from_examples(questions)
        questions = questions.split_into_characters()
        if any(len(text) != 1 for text in questions.alphabet):  # such as a word label of sorting
            questions = _split_alphabet(questions)
        symbols, slots = _number_slots(questions)
        number_ids = [
            self.number_format.encode_numbers(
                questions.numbers, slot, vocabulary, is_answer=is_answer, random_bits=questions.random_bits
            )
            for slot, is_answer in slots
        ]
        if self.interleave_operands:
            symbols = _interleave_operands(symbols, number_ids)
        text_ids = [vocabulary.token_to_id.get(text, UNK) for text in questions.alphabet]
        if number_ids:
            encoded = BlockEncoder(questions, symbols, text_ids, number_ids, vocabulary, self.add_bos_token).encode()
        else:
            encoded = encode_texts(questions, text_ids, vocabulary, self.add_bos_token)
        if not self.space_probability or questions.random_bits is None:
            return encoded
        return _insert_spaces(
            encoded, questions.random_bits, self.space_probability, vocabulary.token_to_id[" "], self.add_bos_token
        )

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        return [vocabulary.token_to_id.get(character, UNK) for character in text]

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        special_ids = (PAD, BOS, EOS)
        return "".join(vocabulary.tokens[i] for i in map(int, ids) if i not in special_ids)


def num_spaces_before(random_bits: NDArray[np.uint64], num_characters: int, probability: float) -> NDArray[np.int64]:
    """The number of spaces before each of `num_characters` characters of every row, rows x time, determined by its
    `random_bits` (`Questions.random_bits`: a random word that the task draws for each question).

    One with probability p; after it a second with p / 10; after that a third with p / 100.
    """
    character_keys = np.arange(1, num_characters + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    random_values = mix_bits(random_bits[:, None] + character_keys) >> np.uint64(11)
    num_spaces = np.zeros(random_values.shape, dtype=np.int64)
    cumulative_probability, next_probability = probability, probability
    while cumulative_probability * 2**53 >= 1:
        num_spaces += random_values < np.uint64(cumulative_probability * 2**53)
        next_probability /= 10
        cumulative_probability *= next_probability
    return num_spaces


def _insert_spaces(
    rows: TokenizedExamples, random_bits: NDArray[np.uint64], probability: float, space_id: int, has_bos: bool
) -> TokenizedExamples:
    """Rows with spaces inserted before their characters; those before the answer belong to it."""
    time = rows.ids.shape[1]
    num_spaces = num_spaces_before(random_bits, time, probability)
    if has_bos:
        num_spaces = np.concatenate([np.zeros_like(num_spaces[:, :1]), num_spaces[:, :-1]], axis=1)
    if rows.labels is None:
        num_spaces[np.arange(len(rows)), rows.lengths - 1] = 0  # the end token is not a character
    new_positions, lengths = insertion.positions_after_insertion(rows.lengths, num_spaces)
    new_length = int(lengths.max(initial=0))
    time_index = np.arange(new_length)
    valid_mask = time_index < lengths[:, None]
    original_mask = insertion.scatter_tokens(np.ones_like(rows.target_mask), new_positions, new_length)
    ids = insertion.scatter_tokens(rows.ids, new_positions, new_length)
    ids[valid_mask & ~original_mask] = space_id
    if rows.labels is not None:
        target_mask = insertion.scatter_tokens(rows.target_mask, new_positions, new_length)
        labels = insertion.scatter_tokens(rows.labels, new_positions, new_length)
        return TokenizedExamples(ids, lengths, target_mask, labels, vocabulary=rows.vocabulary)
    question_mask = (np.arange(time) < rows.lengths[:, None]) & ~rows.target_mask
    question_ends = np.where(question_mask, new_positions, -1).max(axis=1, initial=-1)
    return TokenizedExamples(
        ids, lengths, valid_mask & (time_index > question_ends[:, None]), vocabulary=rows.vocabulary
    )


def _split_alphabet(questions: Questions) -> Questions:
    """The same questions with a single-character alphabet; a label belongs to the last character of its text."""
    alphabet = tuple(dict.fromkeys(character for text in questions.alphabet for character in text))
    max_length = max(1, *map(len, questions.alphabet))
    character_table = np.full((len(questions.alphabet) + 1, max_length), EMPTY, dtype=np.int16)
    for i, text in enumerate(questions.alphabet):
        character_table[i, max_length - len(text) :] = [alphabet.index(character) for character in text]
    symbols = character_table[np.maximum(questions.symbols, -1)]
    special_mask = questions.symbols < 0
    symbols[special_mask, -1] = questions.symbols[special_mask]
    labels: NDArray[np.int16] | None = None
    if questions.labels is not None:
        label_texts = [questions.alphabet[i] for i in np.unique(questions.labels[questions.labels >= 0])]
        for text in label_texts:
            if len(text) != 1:
                raise UserError(f"tokenizer: a label must be a single character, not {text!r}")
        character_labels = np.full(symbols.shape, EMPTY, dtype=np.int16)
        character_labels[..., -1] = np.where(
            questions.labels >= 0, character_table[np.maximum(questions.labels, -1), -1], EMPTY
        )
        labels = character_labels.reshape(len(character_labels), symbols.shape[1] * max_length)
    return replace(
        questions,
        alphabet=alphabet,
        symbols=symbols.reshape(len(symbols), symbols.shape[1] * max_length),
        labels=labels,
        prompt_lengths=None if questions.prompt_lengths is None else questions.prompt_lengths * max_length,
    )


def encode_texts(
    questions: Questions, text_ids: Sequence[int], vocabulary: Vocabulary, add_bos_token: bool
) -> TokenizedExamples:
    """Encodes questions without numbers: every element is one token, or empty. See `BlockEncoder` for others."""
    symbols, labels, prompt_lengths = questions.symbols, questions.labels, questions.prompt_lengths
    is_token = symbols != EMPTY
    if prompt_lengths is not None:
        prompt_lengths = (is_token & (np.arange(symbols.shape[1]) < prompt_lengths[:, None])).sum(axis=1)
    if not bool((is_token[:, 1:] <= is_token[:, :-1]).all()):  # empty elements between tokens
        order = np.argsort(~is_token, axis=1, kind="stable")
        symbols = np.take_along_axis(symbols, order, axis=1)
        labels = None if labels is None else np.take_along_axis(labels, order, axis=1)
    bos, lengths = int(add_bos_token), is_token.sum(axis=1) + add_bos_token
    longest = int(lengths.max(initial=bos)) + (labels is None)
    id_table = np.array([*text_ids, PAD], dtype=id_dtype(vocabulary))  # EMPTY is at -1

    def to_ids(elements: NDArray[np.int16]) -> Ids:
        ids = np.full((len(elements), longest), PAD, dtype=id_table.dtype)
        written = elements[:, : longest - bos]
        ids[:, bos : bos + written.shape[1]] = id_table[np.maximum(written, -1)]
        return ids

    ids = to_ids(symbols)
    ids[:, :bos] = BOS
    if labels is not None:
        target_mask = np.zeros(ids.shape, dtype=np.bool_)
        target_mask[:, bos:] = labels[:, : longest - bos] >= 0
        return TokenizedExamples(ids, lengths, target_mask, to_ids(labels), vocabulary=vocabulary)
    assert prompt_lengths is not None  # questions have either labels or a prompt
    ids[np.arange(len(ids)), lengths] = EOS
    positions = np.arange(longest)
    target_mask = (positions >= bos + prompt_lengths[:, None]) & (positions <= lengths[:, None])
    return TokenizedExamples(ids, lengths + 1, target_mask, vocabulary=vocabulary)


class BlockEncoder:
    """Writes the rows of one block element by element, from left to right, all rows at once.

    An element is an entry of `Questions.symbols[row]` and becomes a text token or the tokens of a number: symbol
    s >= 0 is the text `alphabet[s]`, -1 - k is number slot k (the k-th number of the question, its digits still
    unformatted), `EMPTY` is nothing. 12 + 9 = 21 has the symbols `-1 0 -2 1 -3` with the alphabet `+ =`.

    Numbers are copied in words of eight bytes. The last word may extend past the number's end with zeros, which the
    next element overwrites; rows therefore have room for one more number after the longest.
    """

    def __init__(
        self,
        questions: Questions,
        symbols: NDArray[np.int16],
        text_ids: Sequence[int],
        number_ids: list[tuple[Ids, NDArray[np.int64]]],
        vocabulary: Vocabulary,
        add_bos_token: bool,
    ) -> None:
        self.questions, self.number_ids, self.vocabulary = questions, number_ids, vocabulary
        self.bos_length = int(add_bos_token)
        self.dtype = np.dtype(id_dtype(vocabulary))
        self.text_ids = np.array(text_ids, dtype=self.dtype)
        self.elements = [_Element.from_symbols(column) for column in symbols.T]

    def encode(self) -> TokenizedExamples:
        labels = self.questions.labels
        starts, lengths = self._element_starts()
        if labels is None:
            lengths = lengths + 1
        longest = int(lengths.max(initial=0))
        num_rows = len(lengths)
        num_extra_tokens = max(ids.shape[1] for ids, _ in self.number_ids) + 8
        padded_ids = np.zeros((num_rows, longest + num_extra_tokens), dtype=self.dtype)
        if self.bos_length:
            padded_ids[:, 0] = BOS
        self._write_elements(padded_ids, starts)
        ids = padded_ids[:, :longest]
        if labels is None:
            ids[np.arange(num_rows), lengths - 1] = EOS
            answer_starts = self._answer_starts(starts, lengths)
            # The smallest integer type for positions, since every token of the block is compared.
            position_dtype = np.int16 if longest < 2**15 else np.int64
            positions = np.arange(longest, dtype=position_dtype)
            target_mask = np.greater_equal(positions, answer_starts.astype(position_dtype)[:, None])
            target_mask &= np.less(positions, lengths.astype(position_dtype)[:, None])
            return TokenizedExamples(ids, lengths, target_mask, vocabulary=self.vocabulary)
        element_ends = np.stack([*starts[1:], lengths], axis=1)
        row, element_index = np.nonzero(labels >= 0)
        label_positions = element_ends[row, element_index] - 1
        target_mask = np.zeros(ids.shape, dtype=np.bool_)
        target_mask[row, label_positions] = True
        label_ids = np.zeros_like(ids)
        label_ids[row, label_positions] = self.text_ids[labels[row, element_index]]
        return TokenizedExamples(ids, lengths, target_mask, label_ids, vocabulary=self.vocabulary)

    def _element_starts(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The start of each element in each row, and the end of each row."""
        position = np.full(len(self.questions), self.bos_length, dtype=np.int64)
        starts = []
        for element in self.elements:
            starts.append(position)
            if element.common_symbol is None:
                element_lengths = (element.symbols >= 0).astype(np.int64)
                for slot in element.slots:
                    element_lengths += np.where(element.symbols == -1 - slot, self.number_ids[slot][1], 0)
                position = position + element_lengths
            elif element.common_symbol >= 0:
                position = position + 1
            elif element.common_symbol != EMPTY:
                position = position + self.number_ids[-1 - element.common_symbol][1]
        return starts, position

    def _write_elements(self, padded_ids: Ids, starts: list[NDArray[np.int64]]) -> None:
        flat_ids = padded_ids.reshape(-1)
        # Eight bytes from every position on: a view without alignment.
        windows: NDArray[np.uint64] = np.ndarray(
            (max(0, flat_ids.size - 8 // self.dtype.itemsize + 1),), "<u8", flat_ids.data, 0, (self.dtype.itemsize,)
        )
        row_offsets = np.arange(len(padded_ids)) * padded_ids.shape[1]
        for element, start in zip(self.elements, starts, strict=True):
            positions = row_offsets + start
            if element.common_symbol is None:
                text_mask = element.symbols >= 0
                flat_ids[positions[text_mask]] = self.text_ids[element.symbols[text_mask]]
                for slot in element.slots:
                    slot_mask = element.symbols == -1 - slot
                    self._copy_numbers(windows, positions[slot_mask], self.number_ids[slot][0][slot_mask])
            elif element.common_symbol >= 0:
                flat_ids[positions] = self.text_ids[element.common_symbol]
            elif element.common_symbol != EMPTY:
                self._copy_numbers(windows, positions, self.number_ids[-1 - element.common_symbol][0])

    def _copy_numbers(self, windows: NDArray[np.uint64], positions: NDArray[np.int64], ids: Ids) -> None:
        words = np.ascontiguousarray(ids).view("<u8")
        for word in range(words.shape[1]):
            windows[positions] = words[:, word]
            positions = positions + 8 // self.dtype.itemsize

    def _answer_starts(self, starts: list[NDArray[np.int64]], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the answer of each row starts."""
        prompt_lengths = self.questions.prompt_lengths
        if prompt_lengths is None:
            raise ValueError("questions have either labels or a prompt")
        if not len(prompt_lengths):
            return ends
        element_starts = [*starts, ends - 1]
        common_length = _common_value(prompt_lengths)
        return (
            element_starts[common_length]
            if common_length is not None
            else np.stack(element_starts, axis=1)[np.arange(len(prompt_lengths)), prompt_lengths]
        )


def _interleave_operands(
    symbols: NDArray[np.int16], number_ids: list[tuple[Ids, NDArray[np.int64]]]
) -> NDArray[np.int16]:
    """Merges the operands into the first number, with alternating digits; the symbols without the operator."""
    has_two_operands = symbols.shape[1] > 2 and bool(
        ((symbols[:, [0, 2]] == (-1, -2)).all(1) & (symbols[:, 1] >= 0)).all()
    )
    if not has_two_operands:
        raise UserError("interleave_operands: questions must have two operands with an operator between them")
    (first_ids, lengths), (second_ids, second_lengths) = number_ids[:2]
    unequal_rows = np.flatnonzero(lengths != second_lengths)
    if len(unequal_rows):
        raise UserError(
            f"interleave_operands: operands of {lengths[unequal_rows[0]]} and {second_lengths[unequal_rows[0]]} "
            "digits must have the same number of digits; set tokenizer.number_format.min_digits"
        )
    width = min(first_ids.shape[1], second_ids.shape[1])
    interleaved_ids = np.stack([first_ids[:, :width], second_ids[:, :width]], axis=2).reshape(len(first_ids), 2 * width)
    number_ids[0] = interleaved_ids, lengths + second_lengths
    return np.concatenate([symbols[:, :1], np.full((len(symbols), 2), EMPTY, np.int16), symbols[:, 3:]], axis=1)


@dataclass(frozen=True, eq=False)
class _Element:
    """One element of every row: its symbols (see `BlockEncoder`), the one that all rows share (None if they differ),
    and, if they differ, the number slots among them."""

    symbols: NDArray[np.int16]
    common_symbol: int | None
    slots: tuple[int, ...] = ()

    @classmethod
    def from_symbols(cls, symbols: NDArray[np.int16]) -> "_Element":
        common_symbol = _common_value(symbols)
        if common_symbol is not None:
            return cls(symbols, common_symbol)
        number_symbols = symbols[(symbols < 0) & (symbols > EMPTY)]
        if len(number_symbols) and (number_symbols == number_symbols[0]).all():
            number_symbols = number_symbols[:1]
        return cls(symbols, None, tuple(-1 - int(symbol) for symbol in np.unique(number_symbols)))


def _number_slots(questions: Questions) -> tuple[NDArray[np.int16], list[tuple[int, bool]]]:
    """The symbols, and the number slots with whether each is in the answer. A slot in both question and answer becomes
    two, the answer's being appended."""
    symbols, prompt_lengths = questions.symbols, questions.prompt_lengths
    num_slots = questions.numbers.lengths.shape[1]
    if prompt_lengths is None or not num_slots or not len(symbols):
        return symbols, [(slot, False) for slot in range(num_slots)]
    distinct_symbols = symbols[:1] if symbols.strides[0] == 0 and prompt_lengths.strides[0] == 0 else symbols
    common_length = _common_value(prompt_lengths)
    if common_length is not None:
        question_symbols, answer_symbols = distinct_symbols[:, :common_length], distinct_symbols[:, common_length:]
    else:
        answer_mask = np.arange(distinct_symbols.shape[1]) >= prompt_lengths[:, None]
        question_symbols, answer_symbols = distinct_symbols[~answer_mask], distinct_symbols[answer_mask]
    in_answer, in_question = (
        set(np.unique(part[(part < 0) & (part > EMPTY)]).tolist()) for part in (answer_symbols, question_symbols)
    )
    slots = [(slot, -1 - slot in in_answer - in_question) for slot in range(num_slots)]
    if shared_symbols := in_answer & in_question:
        in_answer_mask = np.arange(symbols.shape[1]) >= prompt_lengths[:, None]
        symbols = symbols.copy()
        for symbol in sorted(shared_symbols, reverse=True):
            symbols[in_answer_mask & (questions.symbols == symbol)] = -1 - len(slots)
            slots.append((-1 - symbol, True))
    return symbols, slots


def _common_value(values: NDArray[Any]) -> int | None:
    """The value that all entries share, None if they differ; EMPTY if there are none."""
    if not len(values):
        return EMPTY
    return int(values[0]) if values.strides[0] == 0 or bool((values == values[0]).all()) else None
