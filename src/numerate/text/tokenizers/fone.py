"""FoNE (Fourier number embeddings): one token per number, embedded by waves whose periods are powers of ten."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
    parse_floats,
)
from numerate.vocabulary import NUMBER, TEXT


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
