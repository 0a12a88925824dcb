"""Number formats for texts: how the numbers in a text become tokens beside those of a subword tokenizer."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.vocabulary import DIGIT, NUMBER, POINT, TEXT

Codes = NDArray[np.int64]
"""Symbols by their index in `TextNumberFormat.symbols()`."""


class NumberSymbols(NamedTuple):
    """Numbers as symbols, concatenated.

    `codes` int64 `[symbols]`; `counts` int64 `[numbers]`: how many symbols each number has; `values` float32
    `[numbers]`: the number itself, None if tokens carry no values; `beyond` bool `[numbers]`: numbers that the format
    cannot represent, whose other entries are meaningless.
    """

    codes: Codes
    counts: NDArray[np.int64]
    values: NDArray[np.float32] | None = None
    beyond: NDArray[np.bool_] | None = None


class Meaning(NamedTuple):
    """A symbol's kind, value, and power of ten (-1000: none) in a vocabulary."""

    kind: int
    value: float = np.nan
    significance: int = -1000


class TextNumberFormat(ABC):
    """How the numbers in a text are written as symbols. All other text is left to the tokenizer.

    `write` converts many numbers, `spell` one, with equal results; `read` is the inverse. A number that a format cannot
    represent (`beyond`) keeps its characters, one token per digit, so that nothing is lost.
    """

    carries: ClassVar[bool] = False
    """Whether tokens carry the number as a value."""

    @property
    @abstractmethod
    def pattern(self) -> re.Pattern[str] | None:
        """Matches a number in a text; None if numbers are left to the tokenizer too."""

    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """All its symbols. The first ten are the digits, unless it leaves numbers to the tokenizer."""

    @abstractmethod
    def write(self, found: Sequence[str]) -> NumberSymbols:
        """The symbols of numbers found in texts."""

    @abstractmethod
    def spell(self, number: str) -> list[str]:
        """The symbols of one number of a text. Raises `UserError` for one that it cannot represent."""

    @abstractmethod
    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        """The text of consecutive symbols, with the values that they carry."""

    def meaning(self, symbol: str) -> Meaning:
        """The meaning of one of its symbols: by default, digits are digits and all else is text."""
        return Meaning(DIGIT, float(symbol)) if symbol in TEN else Meaning(TEXT)

    def between(self, marked: str, mark: str) -> str:
        """The text between numbers, each number being one `mark`; unchanged by default."""
        return marked


TEN = tuple("0123456789")


@dataclass(frozen=True)
class AsIs(TextNumberFormat):
    """Numbers as the tokenizer itself splits them: `2019` may be one token, or `20` and `19`."""

    pattern: ClassVar[None] = None

    def symbols(self) -> tuple[str, ...]:
        return ()

    def write(self, found: Sequence[str]) -> NumberSymbols:
        raise UserError("number_format: AsIs leaves numbers to the tokenizer and writes none")

    def spell(self, number: str) -> list[str]:
        raise UserError("number_format: AsIs leaves numbers to the tokenizer and writes none")

    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        return "".join(symbols)


@dataclass(frozen=True)
class PerDigit(TextNumberFormat):
    """One token per digit, other text unchanged: `a12.5b` is `a 1 2 . 5 b`.

    Numbers are not parsed, so nothing is lost: signs, points, thousands and powers of ten are left to the tokenizer.
    `numerate.text.tokenizers.subwords.per_digit` does the same to any tokenizer. The published version (Zausinger et
    al., 2025, https://arxiv.org/abs/2411.02083) also splits the letters of a piece that has a digit.
    """

    pattern: ClassVar[re.Pattern[str]] = found_numbers.DIGITS

    def symbols(self) -> tuple[str, ...]:
        return TEN

    def write(self, found: Sequence[str]) -> NumberSymbols:
        return NumberSymbols(digits_of(found), sizes_of(found))

    def spell(self, number: str) -> list[str]:
        return [*number]

    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        return "".join(symbols)


@dataclass(frozen=True)
class Groups(TextNumberFormat):
    """One token per group of digits, cut from the left or from the right: 12345 is `123 45` or `12 345`.

    Llama 3 and GPT-4 use groups of three from the left; from the right a group has the same powers of ten in every
    number, which helps in sums (Singh and Strouse, 2024, https://arxiv.org/abs/2402.14903). Digits after the decimal
    point are always grouped from the left. Every group of 1 to `group_size` digits is a token, added if the tokenizer
    has it not. Numbers are not parsed, so nothing is lost, leading zeros included.
    """

    group_size: int = setting(3, "digits per group, 1 to 5")
    side: Literal["left", "right"] = setting("left", "where grouping starts")

    pattern: ClassVar[re.Pattern[str]] = re.compile(r"(?<=[0-9])\.[0-9]+|[0-9]+")

    def __post_init__(self) -> None:
        if not 1 <= self.group_size <= 5:
            raise UserError(f"group_size: groups of {self.group_size} digits cannot be; 1 to 5 digits can")
        if self.side not in ("left", "right"):
            raise UserError(f"side: {self.side!r} is neither 'left' nor 'right'")

    def symbols(self) -> tuple[str, ...]:
        groups = [f"{value:0{size}}" for size in range(1, self.group_size + 1) for value in range(10**size)]
        return (*groups, ".")

    def write(self, found: Sequence[str]) -> NumberSymbols:
        lengths = sizes_of(found)
        number = np.repeat(np.arange(len(found)), lengths)
        place = np.arange(len(number)) - np.repeat(lengths.cumsum() - lengths, lengths)
        written = characters_of(found)
        fraction = np.fromiter((text[0] == "." for text in found), np.bool_, len(found))[number]
        first = (lengths[number] % self.group_size) * (~fraction & (self.side == "right"))
        behind = place - fraction - first
        starts = (behind % self.group_size == 0) | (place == 0) | (fraction & (place == 1))
        begins = np.flatnonzero(starts)
        sizes = np.diff(np.append(begins, len(number)))
        digit = np.where(written == ord("."), 0, written.astype(np.int64) - ord("0"))
        power = np.repeat(begins + sizes, sizes) - 1 - np.arange(len(number))
        values = np.add.reduceat(digit * 10**power, begins) if len(begins) else digit
        codes = values + (10**sizes - 10) // 9
        codes[written[begins] == ord(".")] = (10 ** (self.group_size + 1) - 10) // 9
        return NumberSymbols(codes, np.bincount(number[begins], minlength=len(found)))

    def spell(self, number: str) -> list[str]:
        point, digits = (["."], number[1:]) if number.startswith(".") else ([], number)
        first = len(digits) % self.group_size if self.side == "right" and not point else 0
        rest = [digits[i : i + self.group_size] for i in range(first, len(digits), self.group_size)]
        return [*point, *filter(None, [digits[:first]]), *rest]

    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        return "".join(symbols)

    def meaning(self, symbol: str) -> Meaning:
        if symbol == ".":
            return Meaning(POINT)
        return Meaning(DIGIT if len(symbol) == 1 else NUMBER, float(symbol))


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

    carries: ClassVar[bool] = True

    sign: bool = setting(True, "whether a minus belongs to its number; false: it is text")
    published: bool = setting(False, "find numbers as the published code does: no sign, thousands, powers of ten")
    round_to_float32: bool = setting(False, "whether numbers with more digits than float32 are rounded", later=True)

    @property
    def pattern(self) -> re.Pattern[str]:
        if self.published:
            return found_numbers.PUBLISHED
        return found_numbers.SIGNED if self.sign else found_numbers.UNSIGNED

    def symbols(self) -> tuple[str, ...]:
        return (*TEN, NUM)

    def write(self, found: Sequence[str]) -> NumberSymbols:
        values, beyond = carried(found)
        if self.published or self.round_to_float32:
            beyond = ~np.isfinite(values)
        return NumberSymbols(np.full(len(found), 10), np.ones(len(found), np.int64), values, beyond)

    def spell(self, number: str) -> list[str]:
        if self.write([number]).beyond[0]:  # type: ignore[index]
            raise UserError(f"number_format: {number} is not a number that float32 holds, which xVal's values are")
        return [NUM]

    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        return numbers_read(symbols, values)

    def meaning(self, symbol: str) -> Meaning:
        return Meaning(NUMBER if symbol == NUM else TEXT)

    def between(self, marked: str, mark: str) -> str:
        return re.sub(f"(?<={mark}), ?(?={mark})", "", marked) if self.published else marked


NUM = "[NUM]"
"""The token of a number that is carried as a value."""


def numbers_read(symbols: Sequence[str], values: Sequence[float] | None) -> str:
    """The values of `[NUM]` tokens, separated by spaces; the tokens themselves without values.

    >>> numbers_read(["[NUM]", "[NUM]"], [1.0, -2.5])
    '1 -2.5'
    """
    if values is None:
        return " ".join(symbols)
    each = zip(symbols, values, strict=True)
    return " ".join(as_decimal(value) if symbol == NUM else symbol for symbol, value in each)


def carried(
    found: Sequence[str], kind: type[np.floating] = np.float32
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Numbers as floating point, and which of them have no exact round trip.

    >>> carried(["1,000", "-15.67", "123456789"])
    (array([ 1.0000000e+03, -1.5670000e+01,  1.2345679e+08], dtype=float32), array([False, False,  True]))
    """
    exact = np.fromiter((float(found_numbers.bare(text)) for text in found), np.float64, len(found))
    with np.errstate(over="ignore"):
        values = exact.astype(kind)
    # Numbers of few digits always have an exact round trip; only the others are checked one by one.
    limits = np.finfo(kind)
    short = sizes_of(found) <= limits.precision
    if "e" in (joined := "".join(found)) or "E" in joined:
        short &= np.fromiter(("e" not in text and "E" not in text for text in found), np.bool_, len(found))
    beyond = np.zeros(len(found), np.bool_)
    for place in np.flatnonzero(~short | (np.abs(exact) >= limits.max)).tolist():
        shortest = as_decimal(values[place])
        beyond[place] = shortest == "inf" or found_numbers.value_of(shortest) != found_numbers.value_of(found[place])
    return values, beyond


def as_decimal(value: float | np.floating) -> str:
    """The shortest decimal without exponent that rounds to this number in its dtype (float32 for a Python float).

    >>> as_decimal(float(np.float32(15.67))), as_decimal(5.0), as_decimal(np.float64(-1e-3))
    ('15.67', '5', '-0.001')
    """
    number = value if isinstance(value, np.floating) else np.float32(value)
    if not np.isfinite(number):
        return "inf"
    return np.format_float_positional(number, unique=True, trim="-")


def characters_of(found: Sequence[str]) -> NDArray[np.uint8]:
    """The ASCII characters of texts, concatenated."""
    return np.frombuffer("".join(found).encode("ascii"), dtype=np.uint8)


def digits_of(found: Sequence[str]) -> Codes:
    """The digits of texts of digits, concatenated."""
    return characters_of(found).astype(np.int64) - ord("0")


def sizes_of(found: Sequence[str]) -> NDArray[np.int64]:
    """The length of each text."""
    return np.fromiter(map(len, found), np.int64, len(found))
