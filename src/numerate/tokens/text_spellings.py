"""How numbers in texts become tokens beside those of somebody else's tokenizer."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.tokens import found_numbers
from numerate.vocabulary import DIGIT, NUMBER, POINT, TEXT

Codes = NDArray[np.int64]
"""Symbols by their index in `TextNumberFormat.symbols()`."""


class NumberSymbols(NamedTuple):
    """Numbers as symbols, one number after the other.

    `codes` int64 `[symbols]`; `counts` int64 `[numbers]`: how many of them each number has; `values` float32
    `[numbers]`: the number itself, None for a spelling whose tokens carry none; `beyond` bool `[numbers]`: those that
    the spelling cannot write, whose other entries mean nothing.
    """

    codes: Codes
    counts: NDArray[np.int64]
    values: NDArray[np.float32] | None = None
    beyond: NDArray[np.bool_] | None = None


class Meaning(NamedTuple):
    """What a symbol is to a vocabulary: its kind, its value, and the power of ten that it stands for (-1000: none)."""

    kind: int
    value: float = np.nan
    significance: int = -1000


class TextNumberFormat(ABC):
    """How the numbers in a text are written as symbols. All else in it is left to the tokenizer.

    `write` does it for many numbers, `spell` for one, and they agree; `read` is the way back. A number that a spelling
    cannot write (`beyond`) keeps its characters, one token a digit, so that nothing is lost.
    """

    carries: ClassVar[bool] = False
    """Whether tokens carry the number itself, so that rows have values."""

    @property
    @abstractmethod
    def pattern(self) -> re.Pattern[str] | None:
        """What is a number in a text; None where numbers are left to the tokenizer as well."""

    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """All symbols that it may write. The first ten are the digits, unless it leaves numbers to the tokenizer."""

    @abstractmethod
    def write(self, found: Sequence[str]) -> NumberSymbols:
        """The symbols of numbers as they were found in texts."""

    @abstractmethod
    def spell(self, number: str) -> list[str]:
        """The symbols of one number as it stands in a text. Raises `UserError` for one that it cannot write."""

    @abstractmethod
    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        """The text of symbols that stand one behind the other, with the values that they carry."""

    def meaning(self, symbol: str) -> Meaning:
        """What one of its symbols is. Unless a spelling says, a digit is a digit and all else is text."""
        return Meaning(DIGIT, float(symbol)) if symbol in TEN else Meaning(TEXT)

    def between(self, marked: str, mark: str) -> str:
        """The text between numbers, where each number is one `mark`; as it is, unless a spelling changes it."""
        return marked


TEN = tuple("0123456789")


@dataclass(frozen=True)
class AsIs(TextNumberFormat):
    """Numbers as the tokenizer itself writes them: `2019` may be one token, or `20` and `19`."""

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
    """One token a digit, the letters around it untouched: `a12.5b` is `a 1 2 . 5 b`.

    Nothing is parsed, so nothing is lost: signs, points, thousands and powers of ten are texts of the tokenizer. The
    same rule for a tokenizer of one's own is `numerate.tokens.subwords.per_digit`. The published one (Zausinger et al.,
    2025, https://arxiv.org/abs/2411.02083) splits the letters of a piece that has a digit, too.
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

    Groups of three are how Llama 3 and GPT-4 write numbers, from the left; from the right they stand for the same
    powers of ten in every number, which helps in sums (Singh and Strouse, 2024, https://arxiv.org/abs/2402.14903). The
    digits behind a point are always cut from the left. Every group of 1 to `group_size` digits is a token, new where
    the tokenizer has it not. Nothing is parsed, so nothing is lost, zeros in front included.
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
    """One token `[NUM]` per number, which carries the number itself: xVal.

    The model multiplies the token's embedding by the number, and a head of its own says numbers (Golkar et al., 2023,
    https://arxiv.org/abs/2310.02989). `x = -15.67` is `x = [NUM]` with the value -15.67. Values are float32, which has
    6 decimal digits: a number that it would read back as another (1e39, 123456789) keeps its characters, one token a
    digit. With `round_to_float32` only what is beyond its range does, and 123456789 is 123456792: for models that are
    to say every number by their head.

    `published=True` finds numbers as the published number token loss does (https://arxiv.org/abs/2411.02083): a minus
    is text, `1,000` is two numbers, `.5` is a point and 5, `1e5` is 1, e and 5, a comma between two numbers is deleted,
    and every number is rounded to float32; one that is not finite there keeps its characters even so.
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
"""The token that stands for a number whose value is beside it."""


def numbers_read(symbols: Sequence[str], values: Sequence[float] | None) -> str:
    """What `[NUM]` tokens carry, with a space between them; the tokens themselves where they carry nothing.

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
    """Numbers as floating-point ones, and which of them those do not hold: they would be read back as others.

    >>> carried(["1,000", "-15.67", "123456789"])
    (array([ 1.0000000e+03, -1.5670000e+01,  1.2345679e+08], dtype=float32), array([False, False,  True]))
    """
    exact = np.fromiter((float(found_numbers.bare(text)) for text in found), np.float64, len(found))
    with np.errstate(over="ignore"):
        values = exact.astype(kind)
    # What has so few digits survives any floating-point format and back; only the others are looked at one by one.
    held = np.finfo(kind)
    short = sizes_of(found) <= held.precision
    if "e" in (joined := "".join(found)) or "E" in joined:
        short &= np.fromiter(("e" not in text and "E" not in text for text in found), np.bool_, len(found))
    beyond = np.zeros(len(found), np.bool_)
    for place in np.flatnonzero(~short | (np.abs(exact) >= held.max)).tolist():
        said = as_decimal(values[place])
        beyond[place] = said == "inf" or found_numbers.value_of(said) != found_numbers.value_of(found[place])
    return values, beyond


def as_decimal(value: float | np.floating) -> str:
    """The shortest decimal that is read as this number in its format, float32 for a Python one, without a power of ten.

    >>> as_decimal(float(np.float32(15.67))), as_decimal(5.0), as_decimal(np.float64(-1e-3))
    ('15.67', '5', '-0.001')
    """
    number = value if isinstance(value, np.floating) else np.float32(value)
    if not np.isfinite(number):
        return "inf"
    return np.format_float_positional(number, unique=True, trim="-")


def characters_of(found: Sequence[str]) -> NDArray[np.uint8]:
    """The ASCII characters of texts, one text behind the other."""
    return np.frombuffer("".join(found).encode("ascii"), dtype=np.uint8)


def digits_of(found: Sequence[str]) -> Codes:
    """The digits of texts of digits, one text behind the other."""
    return characters_of(found).astype(np.int64) - ord("0")


def sizes_of(found: Sequence[str]) -> NDArray[np.int64]:
    """How many characters each text has."""
    return np.fromiter(map(len, found), np.int64, len(found))
