"""Number formats for texts: how the numbers in a text become tokens beside those of a subword tokenizer."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.vocabulary import DIGIT, NUMBER, POINT, TEXT

SymbolIndices = NDArray[np.int64]
"""Symbols by their index in `TextNumberFormat.symbols()`."""


class NumberSymbols(NamedTuple):
    """Numbers as symbols, concatenated.

    `symbol_indices` int64 `[symbols]`; `num_symbols` int64 `[numbers]`: how many symbols each number has;
    `number_values` float32 `[numbers]`: the number itself, None if tokens carry no values; `unrepresentable_mask` bool
    `[numbers]`: numbers that the format cannot represent, whose other entries are meaningless.
    """

    symbol_indices: SymbolIndices
    num_symbols: NDArray[np.int64]
    number_values: NDArray[np.float32] | None = None
    unrepresentable_mask: NDArray[np.bool_] | None = None


class SymbolInfo(NamedTuple):
    """A symbol's kind, value, and power of ten (-1000: none) in a vocabulary."""

    kind: int
    value: float = np.nan
    significance: int = -1000


class TextNumberFormat(Spec, ABC):
    """How the numbers in a text are written as symbols. All other text is left to the tokenizer.

    `format_numbers` converts many numbers; `decode_symbols` is the inverse. A number that a format cannot represent
    keeps its characters, one token per digit, so that nothing is lost.
    """

    has_number_values: ClassVar[bool] = False
    """Whether tokens carry the number as a value."""

    @property
    @abstractmethod
    def pattern(self) -> re.Pattern[str] | None:
        """Matches a number in a text; None if numbers are left to the tokenizer too."""

    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """All its symbols. The first ten are the digits, unless it leaves numbers to the tokenizer."""

    @abstractmethod
    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        """The symbols of numbers found in texts."""

    def format_number(self, number: str) -> list[str]:
        """The symbols of one number of a text. Raises `UserError` for one that it cannot represent."""
        formatted, symbols = self.format_numbers([number]), self.symbols()
        if formatted.unrepresentable_mask is not None and formatted.unrepresentable_mask[0]:
            raise UserError(f"number_format: {type(self).__name__} cannot represent {number}")
        return [symbols[i] for i in formatted.symbol_indices.tolist()]

    def decode_symbols(self, symbols: Sequence[str], number_values: Sequence[float] | None = None) -> str:
        """The text of consecutive symbols, with the values that they carry; by default, they are the text."""
        return "".join(symbols)

    def symbol_info(self, symbol: str) -> SymbolInfo:
        """The meaning of one of its symbols: by default, digits are digits and all else is text."""
        return SymbolInfo(DIGIT, float(symbol)) if symbol in DIGIT_SYMBOLS else SymbolInfo(TEXT)

    def normalize_separators(self, text: str, placeholder: str) -> str:
        """The text between numbers, each number being one `placeholder`; unchanged by default."""
        return text


DIGIT_SYMBOLS = tuple("0123456789")


@dataclass(frozen=True)
class AsIs(TextNumberFormat):
    """Numbers as the tokenizer itself splits them: `2019` may be one token, or `20` and `19`.

    With `number_answers` an answer that is a number is one token `[NUM]`, which carries it as with `XVal`.
    """

    pattern: ClassVar[None] = None

    number_answers: bool = setting(
        False, "whether an answer that is a number is one token with its value, for a regression head"
    )

    @property
    def has_number_values(self) -> bool:  # type: ignore[override]
        return self.number_answers

    def symbols(self) -> tuple[str, ...]:
        return (NUMBER_TOKEN,) * self.number_answers

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        raise UserError("number_format: AsIs does not format numbers")

    def decode_symbols(self, symbols: Sequence[str], number_values: Sequence[float] | None = None) -> str:
        return decode_number_tokens(symbols, number_values)

    def symbol_info(self, symbol: str) -> SymbolInfo:
        return SymbolInfo(NUMBER)


@dataclass(frozen=True)
class PerDigit(TextNumberFormat):
    """One token per digit, other text unchanged: `a12.5b` is `a 1 2 . 5 b`.

    Numbers are not parsed, so nothing is lost: signs, points, thousands and powers of ten are left to the tokenizer.
    `numerate.text.tokenizers.subwords.split_digits` does the same to any tokenizer. The published version (Zausinger et
    al., 2025, https://arxiv.org/abs/2411.02083) also splits the letters of a piece that has a digit.
    """

    pattern: ClassVar[re.Pattern[str]] = found_numbers.DIGIT_RUN

    def symbols(self) -> tuple[str, ...]:
        return DIGIT_SYMBOLS

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        return NumberSymbols(concatenated_digits(numbers), text_lengths(numbers))


@dataclass(frozen=True)
class Groups(TextNumberFormat):
    """One token per group of digits, cut from the left or from the right: 12345 is `123 45` or `12 345`.

    Llama 3 and GPT-4 use groups of three from the left; from the right a group has the same powers of ten in every
    number, which helps in sums (Singh and Strouse, 2024, https://arxiv.org/abs/2402.14903). Digits after the decimal
    point are always grouped from the left. Every group of 1 to `group_size` digits is a token, added if the tokenizer
    has it not. Numbers are not parsed, so nothing is lost, leading zeros included.
    """

    group_size: int = setting(3, "digits per group, 1 to 5", at_least=1, at_most=5)
    group_from: Literal["left", "right"] = setting("left", "where grouping starts")

    pattern: ClassVar[re.Pattern[str]] = re.compile(r"(?<=[0-9])\.[0-9]+|[0-9]+")

    def symbols(self) -> tuple[str, ...]:
        groups = [f"{value:0{size}}" for size in range(1, self.group_size + 1) for value in range(10**size)]
        return (*groups, ".")

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        lengths = text_lengths(numbers)
        number_index = np.repeat(np.arange(len(numbers)), lengths)
        character_index = np.arange(len(number_index)) - np.repeat(lengths.cumsum() - lengths, lengths)
        characters = concatenated_characters(numbers)
        is_fraction = np.fromiter((text[0] == "." for text in numbers), np.bool_, len(numbers))[number_index]
        first_group_size = (lengths[number_index] % self.group_size) * (~is_fraction & (self.group_from == "right"))
        offset = character_index - is_fraction - first_group_size
        is_group_start = (
            (offset % self.group_size == 0) | (character_index == 0) | (is_fraction & (character_index == 1))
        )
        group_starts = np.flatnonzero(is_group_start)
        group_sizes = np.diff(np.append(group_starts, len(number_index)))
        digits = np.where(characters == ord("."), 0, characters.astype(np.int64) - ord("0"))
        exponents = np.repeat(group_starts + group_sizes, group_sizes) - 1 - np.arange(len(number_index))
        group_values = np.add.reduceat(digits * 10**exponents, group_starts) if len(group_starts) else digits
        symbol_indices = group_values + (10**group_sizes - 10) // 9
        symbol_indices[characters[group_starts] == ord(".")] = (10 ** (self.group_size + 1) - 10) // 9
        return NumberSymbols(symbol_indices, np.bincount(number_index[group_starts], minlength=len(numbers)))

    def symbol_info(self, symbol: str) -> SymbolInfo:
        if symbol == ".":
            return SymbolInfo(POINT)
        return SymbolInfo(DIGIT if len(symbol) == 1 else NUMBER, float(symbol))


@dataclass(frozen=True)
class XVal(TextNumberFormat):
    """xVal: one token `[NUM]` per number, which carries the number as a value.

    The model multiplies the token's embedding by the number, and a separate head predicts numbers (Golkar et al., 2023,
    https://arxiv.org/abs/2310.02989). `x = -15.67` is `x = [NUM]` with the value -15.67. Values are float32, which has
    6 decimal digits: a number without an exact round trip (1e39, 123456789) keeps its characters, one token per digit.
    With `round_to_float32` only numbers out of range do, and 123456789 is 123456792: for models whose head predicts
    every number.

    `published=True` finds numbers as the published number token loss does (https://arxiv.org/abs/2411.02083): a minus
    is text, `1,000` is two numbers, `.5` is a point and 5, `1e5` is 1, e and 5, a comma between two numbers is deleted,
    and every number is rounded to float32; one that is not finite then keeps its characters.
    """

    has_number_values: ClassVar[bool] = True

    include_sign: bool = setting(True, "whether a minus is part of its number; false: it is text")
    published: bool = setting(False, "find numbers as the published code does: no sign, thousands, powers of ten")
    round_to_float32: bool = setting(False, "whether numbers with more digits than float32 are rounded")

    @property
    def pattern(self) -> re.Pattern[str]:
        if self.published:
            return found_numbers.PUBLISHED_NUMBER
        return found_numbers.SIGNED_NUMBER if self.include_sign else found_numbers.UNSIGNED_NUMBER

    def symbols(self) -> tuple[str, ...]:
        return (*DIGIT_SYMBOLS, NUMBER_TOKEN)

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        number_values, unrepresentable_mask = parse_floats(numbers)
        if self.published or self.round_to_float32:
            unrepresentable_mask = ~np.isfinite(number_values)
        return NumberSymbols(
            np.full(len(numbers), 10), np.ones(len(numbers), np.int64), number_values, unrepresentable_mask
        )

    def decode_symbols(self, symbols: Sequence[str], number_values: Sequence[float] | None = None) -> str:
        return decode_number_tokens(symbols, number_values)

    def symbol_info(self, symbol: str) -> SymbolInfo:
        return SymbolInfo(NUMBER if symbol == NUMBER_TOKEN else TEXT)

    def normalize_separators(self, text: str, placeholder: str) -> str:
        return re.sub(f"(?<={placeholder}), ?(?={placeholder})", "", text) if self.published else text


NUMBER_TOKEN = "[NUM]"
"""The token of a number that is carried as a value."""


def decode_number_tokens(symbols: Sequence[str], number_values: Sequence[float] | None) -> str:
    """The values of `[NUM]` tokens, separated by spaces; the tokens themselves without values.

    >>> decode_number_tokens(["[NUM]", "[NUM]"], [1.0, -2.5])
    '1 -2.5'
    """
    if number_values is None:
        return " ".join(symbols)
    pairs = zip(symbols, number_values, strict=True)
    return " ".join(format_float(value) if symbol == NUMBER_TOKEN else symbol for symbol, value in pairs)


def parse_floats(
    numbers: Sequence[str], dtype: type[np.floating] = np.float32
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Numbers as floating point, and which of them have no exact round trip.

    >>> parse_floats(["1,000", "-15.67", "123456789"])
    (array([ 1.0000000e+03, -1.5670000e+01,  1.2345679e+08], dtype=float32), array([False, False,  True]))
    """
    float64_values = np.fromiter(
        (float(found_numbers.strip_thousands_separators(text)) for text in numbers), np.float64, len(numbers)
    )
    with np.errstate(over="ignore"):
        values = float64_values.astype(dtype)
    # Numbers of few digits always have an exact round trip; only the others are checked one by one.
    limits = np.finfo(dtype)
    is_short = text_lengths(numbers) <= limits.precision
    if "e" in (joined := "".join(numbers)) or "E" in joined:
        is_short &= np.fromiter(("e" not in text and "E" not in text for text in numbers), np.bool_, len(numbers))
    inexact_mask = np.zeros(len(numbers), np.bool_)
    for i in np.flatnonzero(~is_short | (np.abs(float64_values) >= limits.max)).tolist():
        shortest = format_float(values[i])
        inexact_mask[i] = shortest == "inf" or found_numbers.parse_decimal(shortest) != found_numbers.parse_decimal(
            numbers[i]
        )
    return values, inexact_mask


def format_float(value: float | np.floating) -> str:
    """The shortest decimal without exponent that rounds to this number in its dtype (float32 for a Python float).

    >>> [format_float(value) for value in (float(np.float32(15.67)), 5.0, -1e-3)]
    ['15.67', '5', '-0.001']
    """
    number = value if isinstance(value, np.floating) else np.float32(value)
    if not np.isfinite(number):
        return "inf"
    return np.format_float_positional(number, unique=True, trim="-")


def concatenated_characters(texts: Sequence[str]) -> NDArray[np.uint8]:
    """The ASCII characters of texts, concatenated."""
    return np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)


def concatenated_digits(texts: Sequence[str]) -> SymbolIndices:
    """The digits of texts of digits, concatenated."""
    return concatenated_characters(texts).astype(np.int64) - ord("0")


def text_lengths(texts: Sequence[str]) -> NDArray[np.int64]:
    """The length of each text."""
    return np.fromiter(map(len, texts), np.int64, len(texts))
