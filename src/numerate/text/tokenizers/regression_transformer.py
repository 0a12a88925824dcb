"""Number tokens of the Regression Transformer: a digit with its power of ten."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np

from numerate.config import setting
from numerate.errors import UserError
from numerate.number_tables import EXPONENTS, digit_and_exponent
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.text_number_formats import (
    DIGIT_SYMBOLS,
    NumberSymbols,
    SymbolInfo,
    TextNumberFormat,
    concatenated_characters,
    text_lengths,
)
from numerate.vocabulary import DIGIT, TEXT

_MAX_DECIMALS = -EXPONENTS.start
_MAX_INTEGER_DIGITS = EXPONENTS.stop


@dataclass(frozen=True)
class RegressionTransformer(TextNumberFormat):
    """Regression Transformer: one token per digit with its power of ten, 54.2 is `_5_1_ _4_0_ _2_-1_`.

    320 tokens, the digits 0 to 9 with the powers -12 to 19 (Born and Manica, 2023, https://arxiv.org/abs/2202.01338, in
    the form of https://arxiv.org/abs/2411.02083). A number is rounded half up to 12 decimals and loses its leading and
    trailing zeros: `12.50` is `_1_1_ _2_0_ _5_-1_`, `007` is `_7_0_`. Its sign stays text. A number of more than 20
    digits before the point keeps its characters, one token per digit.

    `published=True` finds numbers as the published code does: `1,000` is 1 and 0, `.5` is a point and 5, `1e5` is 1, e
    and 5.
    """

    published: bool = setting(False, "find numbers as the published code does: no thousands, `.5`, powers of ten")

    @property
    def pattern(self) -> re.Pattern[str]:
        return found_numbers.PUBLISHED_NUMBER if self.published else found_numbers.UNSIGNED_NUMBER

    def symbols(self) -> tuple[str, ...]:
        return (*DIGIT_SYMBOLS, *(f"_{digit}_{order}_" for digit in range(10) for order in EXPONENTS))

    def format_numbers(self, numbers: Sequence[str]) -> NumberSymbols:
        rounded_numbers = [*map(round_decimal, numbers)]
        lengths = text_lengths(rounded_numbers)
        integer_lengths = np.fromiter(
            (len(text.partition(".")[0]) for text in rounded_numbers), np.int64, len(rounded_numbers)
        )
        number_index = np.repeat(np.arange(len(rounded_numbers)), lengths)
        character_index = np.arange(len(number_index)) - np.repeat(lengths.cumsum() - lengths, lengths)
        characters = concatenated_characters(rounded_numbers).astype(np.int64)
        num_integer_digits = integer_lengths[number_index]
        order = num_integer_digits - character_index - (character_index < num_integer_digits)
        symbol_indices = 10 + (characters - ord("0")) * len(EXPONENTS) + order + _MAX_DECIMALS
        return NumberSymbols(
            symbol_indices[character_index != num_integer_digits],
            lengths - (lengths > integer_lengths),
            unrepresentable_mask=integer_lengths > _MAX_INTEGER_DIGITS,
        )

    def decode_symbols(self, symbols: Sequence[str], number_values: Sequence[float] | None = None) -> str:
        numbers, _ = parse_numbers(symbols)
        return " ".join(map(format_decimal, numbers))

    def symbol_info(self, symbol: str) -> SymbolInfo:
        """A digit with its power of ten; the value is the digit's own."""
        digit_order = digit_and_exponent(symbol)
        return SymbolInfo(TEXT) if digit_order is None else SymbolInfo(DIGIT, float(digit_order[0]), digit_order[1])


def round_decimal(text: str) -> str:
    """The decimal to be written: rounded half up to 12 decimals, without leading and trailing zeros.

    >>> [round_decimal(text) for text in ("007", "12.50", "13.8703074063376", "1,000", "0.00")]
    ['7', '12.5', '13.870307406338', '1000', '0']
    """
    if text.isdigit():
        return text.lstrip("0") or "0"
    integer_part, _, fraction_part = text.partition(".")
    if not (integer_part.isdigit() and fraction_part.isdigit() and len(fraction_part) <= _MAX_DECIMALS):
        value = found_numbers.parse_decimal(text)
        context = Context(prec=len(text) + 1100)  # powers of ten have at most three digits
        rounded_value = value.quantize(Decimal(1).scaleb(-_MAX_DECIMALS), ROUND_HALF_UP, context)
        integer_part, _, fraction_part = format(rounded_value, "f").partition(".")
    integer_part, fraction_part = integer_part.lstrip("0") or "0", fraction_part.rstrip("0")
    return f"{integer_part}.{fraction_part}" if fraction_part else integer_part


def parse_numbers(symbols: Sequence[str]) -> tuple[list[Decimal], int]:
    """The numbers of tokens, and how many of them are invalid.

    A number ends where the next token does not have a smaller power of ten. It is invalid if it skips a power or ends
    above the units; skipped powers have the digit 0. Raises `UserError` for any other token.

    >>> parse_numbers(["_5_1_", "_4_0_", "_2_-1_", "_3_2_", "_1_0_"])
    ([Decimal('54.2'), Decimal('301')], 1)
    """
    numbers: list[list[tuple[int, int]]] = []
    for symbol in symbols:
        digit_order = digit_and_exponent(symbol)
        if digit_order is None:
            raise UserError(f"number_format: {symbol!r} must be a token of the Regression Transformer such as _5_2_")
        if not numbers or digit_order[1] >= numbers[-1][-1][1]:
            numbers.append([])
        numbers[-1].append(digit_order)
    num_invalid = sum(
        orders[-1] > 0 or orders[0] - orders[-1] != len(orders) - 1
        for orders in ([order for _, order in number] for number in numbers)
    )
    context = Context(prec=len(EXPONENTS) + 1)
    values = []
    for number in numbers:
        value = Decimal(0)
        for digit, order in number:
            value = context.add(value, Decimal(digit).scaleb(order))
        values.append(value)
    return values, num_invalid


def format_decimal(number: Decimal) -> str:
    """A number in plain notation without trailing zeros.

    >>> format_decimal(Decimal("54.20")), format_decimal(Decimal("300"))
    ('54.2', '300')
    """
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
