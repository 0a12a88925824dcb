"""Numbers as the bits of a floating-point number, one token per bit."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from numerate.config import setting
from numerate.errors import UserError
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.text_number_formats import (
    TEN,
    Meaning,
    NumberSymbols,
    TextNumberFormat,
    as_decimal,
    carried,
)
from numerate.vocabulary import TEXT

BITS = ("[BIT0]", "[BIT1]")
"""The tokens of the bits 0 and 1."""

_KINDS: dict[str, tuple[type[np.floating], str]] = {
    "float16": (np.float16, ">f2"),
    "float32": (np.float32, ">f4"),
    "float64": (np.float64, ">f8"),
}


@dataclass(frozen=True)
class IEEEBits(TextNumberFormat):
    """The bits of an IEEE 754 floating-point number, one token per bit: sign, exponent, fraction.

    -2 in float16 is `1 10000 0000000000`, with the tokens `[BIT0]` and `[BIT1]`. Kreitner et al. (2025),
    https://arxiv.org/abs/2510.06824, give a model these bits as one vector; here they are a sequence of tokens. The
    minus belongs to its number. A number without an exact round trip (more than 3, 6 or 15 digits in float16, float32
    and float64, or out of range) keeps its characters, one token per digit.
    """

    dtype: Literal["float16", "float32", "float64"] = setting("float32", "floating-point format")

    def __post_init__(self) -> None:
        if self.dtype not in _KINDS:
            raise UserError(f"dtype: {self.dtype!r} is none of: {', '.join(_KINDS)}")

    @property
    def pattern(self) -> re.Pattern[str]:
        return found_numbers.SIGNED

    @property
    def bits(self) -> int:
        """The number of tokens of a number."""
        return np.finfo(_KINDS[self.dtype][0]).bits

    def symbols(self) -> tuple[str, ...]:
        return (*TEN, *BITS)

    def write(self, found: Sequence[str]) -> NumberSymbols:
        kind, stored = _KINDS[self.dtype]
        values, beyond = carried(found, kind)
        bits = np.unpackbits(values.astype(stored).view(np.uint8))
        return NumberSymbols(10 + bits.astype(np.int64), np.full(len(found), self.bits), beyond=beyond)

    def spell(self, number: str) -> list[str]:
        kind, stored = _KINDS[self.dtype]
        with np.errstate(over="ignore"):
            value = kind(float(number.replace(",", "")))
        if not np.isfinite(value) or found_numbers.value_of(as_decimal(value)) != found_numbers.value_of(number):
            raise UserError(f"number_format: {number} is not a number that {self.dtype} holds")
        return [BITS[int(bit)] for byte in np.array(value, stored).tobytes() for bit in f"{byte:08b}"]

    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        """The numbers separated by spaces; leftover bits and non-finite numbers as they are."""
        texts = []
        for start in range(0, len(symbols), self.bits):
            part = symbols[start : start + self.bits]
            number = self._number(part)
            texts.append("".join(part) if number is None else number)
        return " ".join(texts)

    def _number(self, symbols: Sequence[str]) -> str | None:
        if len(symbols) < self.bits or not set(symbols) <= set(BITS):
            return None
        packed = np.packbits([symbol == BITS[1] for symbol in symbols])
        kind, stored = _KINDS[self.dtype]
        value = kind(packed.view(stored)[0])
        return as_decimal(value) if np.isfinite(value) else None

    def meaning(self, symbol: str) -> Meaning:
        return Meaning(TEXT)
