"""Blocks of questions as arrays, from tasks to tokenizers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.counter_rng import mix_bits
from numerate.tasks.texts import Example as Example
from numerate.tasks.texts import Texts, TextSource
from numerate.tasks.token_rows import TokenRows as TokenRows

EMPTY = -1000
"""A missing symbol or label."""

LANGUAGE_MODELING_TOKENIZER_ERROR = (
    "tokenizer: language modeling data is already tokenized; the tokenizer must be TokenIds and the layout NextToken"
)
"""The error for language modeling with a tokenizer other than `TokenIds`."""

RowSelection = NDArray[Any] | slice
"""A selection of rows of a block: indices, a mask, or a slice."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of a block of questions, `slots` of them in each.

    - `digits` uint8 `[rows, slots, columns]`, most significant first, units in the last column, with leading zeros.
    - `lengths` int64 `[rows, slots]`: number of digits (without leading zeros; zero has one).
    - `negative` bool `[rows, slots]`; None if no number is negative.
    - `decimal_places` int64 `[rows, slots]`: digits after the decimal point; None if all are integers.

    Stored units first (`digits` is a reversed view), as carries and most number formats need them.
    """

    digits: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    negative: NDArray[np.bool_] | None = None
    decimal_places: NDArray[np.int64] | None = None

    @classmethod
    def empty(cls, rows: int) -> "Numbers":
        """For questions without number slots."""
        return cls(np.zeros((rows, 0, 1), dtype=np.uint8), np.zeros((rows, 0), dtype=np.int64))

    @property
    def units_first(self) -> NDArray[np.uint8]:
        """The digits with the units in column 0."""
        return self.digits[..., ::-1]

    def take(self, rows: RowSelection) -> "Numbers":
        return Numbers(
            self.units_first[rows][..., ::-1],
            self.lengths[rows],
            None if self.negative is None else self.negative[rows],
            None if self.decimal_places is None else self.decimal_places[rows],
        )

    def hashes(self, slots: int | None = None) -> NDArray[np.uint64]:
        """A 64-bit hash of each of the first `slots` numbers, `[rows, slots]`; it does not depend on leading zeros."""
        digits = self.units_first[:, :slots]
        padding = -digits.shape[-1] % 8
        if padding:
            digits = np.pad(digits, ((0, 0), (0, 0), (0, padding)))
        words = np.ascontiguousarray(digits).view("<u8")
        total = np.zeros(words.shape[:2], dtype=np.uint64)
        for word_index, factor in enumerate(_odd_constants(words.shape[2])):
            total += words[:, :, word_index] * factor
        if self.negative is not None:
            total ^= self.negative[:, :slots] * np.uint64(0x5851F42D4C957F2D)
        if self.decimal_places is not None:
            total += self.decimal_places[:, :slots].astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
        return mix_bits(total)


@dataclass(frozen=True, eq=False)
class Questions:
    """A block of questions before tokenization: numbers are slots, everything else is indices into an alphabet of
    strings.

    - `symbols` int16 `[rows, elements]`: `alphabet[s]` for s >= 0, number slot k for s = -1-k, `EMPTY` after the end.
    - `prompt_lengths` int64 `[rows]`: number of elements of the question; the others are the answer. None for per-token
      labels.
    - `labels` int16 `[rows, elements]`: index into the alphabet of the label of each element, `EMPTY` for none; None if
      answers are continuations.
    - `metadata`: per question, the values by which results are grouped, such as `first_digits`.
    - `random_bits` uint64 `[rows]`: a random word of each question, for random choices of a number format or a
      tokenizer (the start of index hints, blanks); None if the question was not sampled.
    - `texts`: questions and answers as texts, for subword tokenizers, without symbols and numbers;
      `split_into_characters` converts them. None for all other questions.
    - `tokens`: chunks of text as token ids, for `TokenIds`, without symbols, numbers and answers: every token
      is a target. None for all other questions.

    12 + 9 = 21 has the alphabet `("+", "=")`, the symbols `[-1, 0, -2, 1, -3]`, and a prompt of 4 elements.
    """

    alphabet: tuple[str, ...]
    symbols: NDArray[np.int16]
    numbers: Numbers
    prompt_lengths: NDArray[np.int64] | None = None
    labels: NDArray[np.int16] | None = None
    metadata: dict[str, NDArray[Any]] = field(default_factory=dict)
    random_bits: NDArray[np.uint64] | None = None
    texts: Texts | None = None
    tokens: TokenRows | None = None

    def __len__(self) -> int:
        return int(self.symbols.shape[0])

    def is_same(self, other: "Questions") -> bool:
        """Whether both are the same questions with the same answers and metadata, in the same order."""
        names = ("symbols", "prompt_lengths", "labels")
        pairs: list[tuple[Any, Any]] = [(getattr(self, name), getattr(other, name)) for name in names]
        pairs += [(self.numbers.lengths, other.numbers.lengths), (self.numbers.digits, other.numbers.digits)]
        pairs += [(values, other.metadata.get(name)) for name, values in self.metadata.items()]
        is_equal = self.alphabet == other.alphabet and all(np.array_equal(one, two) for one, two in pairs)
        return is_equal and np.array_equal(self.hashes(), other.hashes())

    @property
    def has_numbers(self) -> bool:
        """Whether they have number slots. Digits elsewhere are text, which has no number format."""
        return bool(self.numbers.lengths.shape[1])

    @classmethod
    def from_source(
        cls, source: TextSource, rows: NDArray[np.int64], metadata: dict[str, NDArray[Any]] | None = None
    ) -> "Questions":
        """The questions with these indices of a text source, read lazily."""
        no_symbols, zero_lengths = np.zeros((len(rows), 0), dtype=np.int16), np.zeros(len(rows), dtype=np.int64)
        return cls(
            (),
            no_symbols,
            Numbers.empty(len(rows)),
            zero_lengths,
            metadata=metadata or {},
            texts=Texts.from_source(source, rows),
        )

    @classmethod
    def from_tokens(cls, rows: TokenRows, metadata: dict[str, NDArray[Any]] | None = None) -> "Questions":
        """Chunks of text, of which every token is a target."""
        no_symbols, zero_lengths = np.zeros((len(rows), 0), dtype=np.int16), np.zeros(len(rows), dtype=np.int64)
        return cls((), no_symbols, Numbers.empty(len(rows)), zero_lengths, metadata=metadata or {}, tokens=rows)

    def split_into_characters(self) -> "Questions":
        """The same questions with one element per character of their texts; unchanged without texts.

        Raises `UserError` for language modeling, whose chunks are token ids."""
        if self.tokens is not None:
            raise UserError(LANGUAGE_MODELING_TOKENIZER_ERROR)
        if self.texts is None:
            return self
        return replace(
            Questions.from_examples(self.texts.read_examples()), metadata=self.metadata, random_bits=self.random_bits
        )

    def take(self, rows: RowSelection) -> "Questions":
        """These rows, in this order."""
        return replace(
            self,
            symbols=_select_rows(self.symbols, rows),
            numbers=self.numbers.take(rows),
            prompt_lengths=None if self.prompt_lengths is None else _select_rows(self.prompt_lengths, rows),
            labels=None if self.labels is None else self.labels[rows],
            metadata={name: values[rows] for name, values in self.metadata.items()},
            random_bits=None if self.random_bits is None else self.random_bits[rows],
            texts=None if self.texts is None else self.texts.take(rows),
            tokens=None if self.tokens is None else self.tokens.take(rows),
        )

    @staticmethod
    def concatenate(blocks: "Sequence[Questions]") -> "Questions":
        """Concatenates blocks. Alphabets are merged; missing columns are filled. Raises `ValueError` without blocks, or
        if they differ in metadata or kind of answer."""
        first = blocks[0]
        if len(blocks) == 1:
            return first
        if any(set(block.metadata) != set(first.metadata) for block in blocks):
            raise ValueError("blocks must have the same metadata to be concatenated")
        if any((block.labels is None) != (first.labels is None) for block in blocks):
            raise ValueError("questions with labels and questions with continuations cannot be concatenated")
        tokens = [block.tokens for block in blocks if block.tokens is not None]
        if tokens and len(tokens) < len(blocks):
            raise ValueError("chunks of tokens and questions cannot be concatenated")
        texts = [block.texts for block in blocks if block.texts is not None]
        if texts and len(texts) < len(blocks):
            return Questions.concatenate([block.split_into_characters() for block in blocks])
        alphabet = tuple(dict.fromkeys(text for block in blocks for text in block.alphabet))
        return Questions(
            alphabet,
            _concatenate_symbols([_remap_symbols(block.symbols, block.alphabet, alphabet) for block in blocks]),
            _concatenate_numbers([block.numbers for block in blocks]),
            _concatenate_prompt_lengths([block.prompt_lengths for block in blocks]),
            None
            if first.labels is None
            else _concatenate_symbols(
                [_remap_symbols(b.labels, b.alphabet, alphabet) for b in blocks if b.labels is not None]
            ),
            {name: np.concatenate([block.metadata[name] for block in blocks]) for name in first.metadata},
            _concatenate_random_bits(blocks),
            Texts.concatenate(texts) if texts else None,
            TokenRows.concatenate(tokens) if tokens else None,
        )

    @staticmethod
    def from_examples(examples: Sequence[Example]) -> "Questions":
        """Free text, one element per character, with the metadata that all examples share."""
        texts = [example.question + example.answer for example in examples]
        alphabet = tuple(sorted(set("".join(texts))))
        ids = {character: i for i, character in enumerate(alphabet)}
        symbols = np.full((len(texts), max(map(len, texts), default=0)), EMPTY, dtype=np.int16)
        for row, text in enumerate(texts):
            symbols[row, : len(text)] = [ids[character] for character in text]
        prompt_lengths = np.array([len(example.question) for example in examples], dtype=np.int64)
        common_names = (
            [name for name in examples[0].metadata if all(name in one.metadata for one in examples)] if examples else []
        )
        metadata = {name: np.array([one.metadata[name] for one in examples], dtype=np.int64) for name in common_names}
        return Questions(alphabet, symbols, Numbers.empty(len(texts)), prompt_lengths, metadata=metadata)

    def hashes(self) -> NDArray[np.uint64]:
        """A 64-bit hash of each question without its answer: of its strings and numbers, in order. It ignores `EMPTY`
        elements."""
        if self.tokens is not None:
            return self.tokens.hashes()
        if self.texts is not None:
            return np.array([text_hash(pair.question) for pair in self.texts.read_examples()], dtype=np.uint64)
        pieces = np.arange(self.symbols.shape[1])
        is_prompt = self.symbols != EMPTY
        if self.prompt_lengths is not None:
            is_prompt &= pieces < self.prompt_lengths[:, None]
        texts = np.array([*(text_hash(text) for text in self.alphabet), 0], dtype=np.uint64)
        values = texts[np.maximum(self.symbols, -1)]
        numbers = self.numbers.hashes()
        for slot in range(numbers.shape[1]):
            values = np.where(self.symbols == -1 - slot, numbers[:, slot, None], values)
        position_hashes = mix_bits(values + is_prompt.cumsum(axis=1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return mix_bits(np.where(is_prompt, position_hashes, np.uint64(0)).sum(axis=1, dtype=np.uint64))


def text_hash(text: str) -> int:
    """A 64-bit hash of a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _odd_constants(count: int) -> NDArray[np.uint64]:
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mix_bits(steps) | np.uint64(1)


def _select_rows(array: NDArray[Any], rows: RowSelection) -> NDArray[Any]:
    """`array[rows]`; a broadcast row stays a broadcast view."""
    if array.strides[0] == 0 and array.shape[0]:
        count = np.empty(array.shape[0], dtype=np.bool_)[rows].shape[0]
        return np.broadcast_to(array[:1], (count, *array.shape[1:]))
    return array[rows]


def _remap_symbols(symbols: NDArray[np.int16], old: tuple[str, ...], new: tuple[str, ...]) -> NDArray[np.int16]:
    if old == new:
        return symbols
    table = np.array([*(new.index(text) for text in old), 0], dtype=np.int16)
    return np.where(symbols >= 0, table[np.maximum(symbols, -1)], symbols)


def _concatenate_symbols(parts: Sequence[NDArray[np.int16]]) -> NDArray[np.int16]:
    columns = max(part.shape[1] for part in parts)
    first = parts[0][:1]
    if all(part.strides[0] == 0 and part.shape[0] and np.array_equal(part[:1], first) for part in parts):
        return np.broadcast_to(first, (sum(len(part) for part in parts), columns))
    result = np.full((sum(len(part) for part in parts), columns), EMPTY, dtype=np.int16)
    row = 0
    for part in parts:
        result[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return result


def _concatenate_prompt_lengths(parts: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    arrays = [part for part in parts if part is not None]
    if len(arrays) != len(parts):
        return None
    if all(part.strides[0] == 0 and part.shape[0] and part[0] == arrays[0][0] for part in arrays):
        return np.broadcast_to(arrays[0][:1], (sum(len(part) for part in arrays),))
    return np.concatenate(arrays)


def _concatenate_random_bits(blocks: Sequence[Questions]) -> NDArray[np.uint64] | None:
    """Concatenates random bits; 0 for blocks without, None if no block has any."""
    if all(block.random_bits is None for block in blocks):
        return None
    return np.concatenate(
        [np.zeros(len(block), dtype=np.uint64) if block.random_bits is None else block.random_bits for block in blocks]
    )


def _concatenate_numbers(parts: Sequence[Numbers]) -> Numbers:
    slots, columns = (max(part.digits.shape[axis] for part in parts) for axis in (1, 2))
    rows = sum(len(part.digits) for part in parts)
    if all(part.digits.shape[1:] == (slots, columns) for part in parts):
        digits = np.concatenate([part.units_first for part in parts])
    else:
        digits = np.zeros((rows, slots, columns), dtype=np.uint8)
        row = 0
        for part in parts:
            _, num_slots, num_columns = part.digits.shape
            digits[row : row + len(part.digits), :num_slots, :num_columns] = part.units_first
            row += len(part.digits)

    def joined(name: str, fill: int) -> Any:
        arrays = [getattr(part, name) for part in parts]
        if all(array is None for array in arrays):
            return None
        dtype = next(array.dtype for array in arrays if array is not None)
        filled = [
            np.full((len(part.digits), slots), fill, dtype=dtype) if array is None else _pad_slots(array, slots, fill)
            for part, array in zip(parts, arrays, strict=True)
        ]
        return np.concatenate(filled)

    return Numbers(digits[..., ::-1], joined("lengths", 1), joined("negative", 0), joined("decimal_places", 0))


def _pad_slots(array: NDArray[Any], slots: int, fill: int) -> NDArray[Any]:
    return (
        array if array.shape[1] == slots else np.pad(array, ((0, 0), (0, slots - array.shape[1])), constant_values=fill)
    )
