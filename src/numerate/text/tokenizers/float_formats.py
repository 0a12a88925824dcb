"""Numbers as floats: one token with the value (FoNE), or one token per bit (IEEE 754)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from numerate.config import setting
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.text_number_formats import (
    DIGIT_SYMBOLS,
    NUMBER_TOKEN,
    NumberSymbols,
    SymbolInfo,
    TextNumberFormat,
    decode_number_tokens,
    format_float,
    parse_floats,
)
from numerate.vocabulary import NUMBER, TEXT

BIT_SYMBOLS = ("[BIT0]", "[BIT1]")
"""The tokens of the bits 0 and 1."""

_DTYPES: dict[str, tuple[type[np.floating], str]] = {
    "float16": (np.float16, ">f2"),
    "float32": (np.float32, ">f4"),
    "float64": (np.float64, ">f8"),
}


@dataclass(frozen=True)
class FoNE(TextNumberFormat):
    """FoNE: one token `[NUM]` per number, which carries the number as a value for Fourier number embeddings.

    A number x is embedded as the cosines and sines of 2 pi x / 10^i, two entries per digit, from which each digit can
    be predicted (Zhou et al., 2025, https://arxiv.org/abs/2502.09741): see `FoNEEmbedding`, with as many digits. The
    sign stays text. A number with more digits before or after the point, or with more than float32 holds (6, and some
    with 7 or 8), keeps its characters, one token per digit.
    """

    has_number_values: ClassVar[bool] = True

    integer_digits: int = setting(5, "digits before the decimal point", at_least=1)
    fraction_digits: int = setting(5, "digits after the decimal point", at_least=0)

    @property
    def pattern(self) -> re.Pattern[str]:
        return found_numbers.UNSIGNED_NUMBER

    def symbols(self) -> tuple[str, ...]:
        return (*DIGIT_SYMBOLS, NUMBER_TOKEN)

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        number_values, inexact_mask = parse_floats(numbers)
        ones = np.ones(len(numbers), np.int64)
        return NumberSymbols(
            10 * ones,
            ones,
            number_values,
            inexact_mask | np.fromiter(map(self._has_too_many_digits, numbers), np.bool_, len(numbers)),
        )

    def _has_too_many_digits(self, number: str) -> bool:
        integer_part, _, fraction_part = (
            number if number.isdigit() else found_numbers.to_plain_notation(number)
        ).partition(".")
        return (
            len(integer_part.lstrip("0")) > self.integer_digits or len(fraction_part.rstrip("0")) > self.fraction_digits
        )

    def decode_symbols(self, symbols: Sequence[str], number_values: Sequence[float] | None = None) -> str:
        return decode_number_tokens(symbols, number_values)

    def symbol_info(self, symbol: str) -> SymbolInfo:
        return SymbolInfo(NUMBER if symbol == NUMBER_TOKEN else TEXT)


@dataclass(frozen=True)
class IEEEBits(TextNumberFormat):
    """The bits of an IEEE 754 floating-point number, one token per bit: sign, exponent, fraction.

    -2 in float16 is `1 10000 0000000000`, with the tokens `[BIT0]` and `[BIT1]`. Kreitner et al. (2025),
    https://arxiv.org/abs/2510.06824, give a model these bits as one vector; here they are a sequence of tokens. The
    minus belongs to its number. A number without an exact round trip (more than 3, 6 or 15 digits in float16, float32
    and float64, or out of range) keeps its characters, one token per digit.
    """

    dtype: Literal["float16", "float32", "float64"] = setting("float32", "floating-point format")

    @property
    def pattern(self) -> re.Pattern[str]:
        return found_numbers.SIGNED_NUMBER

    @property
    def num_bits(self) -> int:
        """The number of tokens of a number."""
        return np.finfo(_DTYPES[self.dtype][0]).bits

    def symbols(self) -> tuple[str, ...]:
        return (*DIGIT_SYMBOLS, *BIT_SYMBOLS)

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        dtype, big_endian = _DTYPES[self.dtype]
        values, inexact_mask = parse_floats(numbers, dtype)
        bits = np.unpackbits(values.astype(big_endian).view(np.uint8))
        return NumberSymbols(
            10 + bits.astype(np.int64), np.full(len(numbers), self.num_bits), unrepresentable_mask=inexact_mask
        )

    def decode_symbols(self, symbols: Sequence[str], number_values: Sequence[float] | None = None) -> str:
        """The numbers separated by spaces; leftover bits and non-finite numbers as they are."""
        texts = []
        for start in range(0, len(symbols), self.num_bits):
            bit_symbols = symbols[start : start + self.num_bits]
            number = self._decode_bits(bit_symbols)
            texts.append("".join(bit_symbols) if number is None else number)
        return " ".join(texts)

    def _decode_bits(self, symbols: Sequence[str]) -> str | None:
        if len(symbols) < self.num_bits or not set(symbols) <= set(BIT_SYMBOLS):
            return None
        packed = np.packbits([symbol == BIT_SYMBOLS[1] for symbol in symbols])
        dtype, big_endian = _DTYPES[self.dtype]
        value = dtype(packed.view(big_endian)[0])
        return format_float(value) if np.isfinite(value) else None

    def symbol_info(self, symbol: str) -> SymbolInfo:
        return SymbolInfo(TEXT)
