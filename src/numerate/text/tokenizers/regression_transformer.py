"""Number tokens of the Regression Transformer: a digit with its power of ten."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np

from numerate.config import setting
from numerate.errors import UserError
from numerate.number_tables import ORDERS, digit_and_order
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.text_number_formats import (
    TEN,
    Meaning,
    NumberSymbols,
    TextNumberFormat,
    characters_of,
    sizes_of,
)
from numerate.vocabulary import DIGIT, TEXT

_DECIMALS = -ORDERS.start
_LONGEST = ORDERS.stop


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
        return found_numbers.PUBLISHED if self.published else found_numbers.UNSIGNED

    def symbols(self) -> tuple[str, ...]:
        return (*TEN, *(f"_{digit}_{order}_" for digit in range(10) for order in ORDERS))

    def write(self, found: Sequence[str]) -> NumberSymbols:
        texts = [*map(rounded, found)]
        sizes = sizes_of(texts)
        whole = np.fromiter((len(text.partition(".")[0]) for text in texts), np.int64, len(texts))
        number = np.repeat(np.arange(len(texts)), sizes)
        place = np.arange(len(number)) - np.repeat(sizes.cumsum() - sizes, sizes)
        written = characters_of(texts).astype(np.int64)
        before = whole[number]
        order = before - place - (place < before)
        codes = 10 + (written - ord("0")) * len(ORDERS) + order + _DECIMALS
        return NumberSymbols(codes[place != before], sizes - (sizes > whole), beyond=whole > _LONGEST)

    def spell(self, number: str) -> list[str]:
        whole, _, fraction = rounded(number).partition(".")
        if len(whole) > _LONGEST:
            raise UserError(
                f"number_format: {number} has {len(whole)} digits before the point; there are tokens for 20"
            )
        orders = range(len(whole) - 1, -1 - len(fraction), -1)
        return [f"_{digit}_{order}_" for digit, order in zip(whole + fraction, orders, strict=True)]

    def read(self, symbols: Sequence[str], values: Sequence[float] | None = None) -> str:
        numbers, _ = read_numbers(symbols)
        return " ".join(map(as_text, numbers))

    def meaning(self, symbol: str) -> Meaning:
        """A digit with its power of ten; the value is the digit's own."""
        known = digit_and_order(symbol)
        return Meaning(TEXT) if known is None else Meaning(DIGIT, float(known[0]), known[1])


def rounded(written: str) -> str:
    """The decimal to be written: rounded half up to 12 decimals, without leading and trailing zeros.

    >>> rounded("007"), rounded("12.50"), rounded("13.8703074063376"), rounded("1,000"), rounded("0.00")
    ('7', '12.5', '13.870307406338', '1000', '0')
    """
    if written.isdigit():
        return written.lstrip("0") or "0"
    whole, _, fraction = written.partition(".")
    if not (whole.isdigit() and fraction.isdigit() and len(fraction) <= _DECIMALS):
        exact = found_numbers.value_of(written)
        context = Context(prec=len(written) + 1100)  # powers of ten have at most three digits
        nearest = exact.quantize(Decimal(1).scaleb(-_DECIMALS), ROUND_HALF_UP, context)
        whole, _, fraction = format(nearest, "f").partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def read_numbers(symbols: Sequence[str]) -> tuple[list[Decimal], int]:
    """The numbers of tokens, and how many of them are invalid.

    A number ends where the next token does not have a smaller power of ten. It is invalid if it skips a power or ends
    above the units; skipped powers have the digit 0. Raises `UserError` for any other token.

    >>> read_numbers(["_5_1_", "_4_0_", "_2_-1_", "_3_2_", "_1_0_"])
    ([Decimal('54.2'), Decimal('301')], 1)
    """
    numbers: list[list[tuple[int, int]]] = []
    for symbol in symbols:
        known = digit_and_order(symbol)
        if known is None:
            raise UserError(f"number_format: {symbol!r} is no token of the regression transformer, such as _5_2_")
        if not numbers or known[1] >= numbers[-1][-1][1]:
            numbers.append([])
        numbers[-1].append(known)
    invalid = sum(
        orders[-1] > 0 or orders[0] - orders[-1] != len(orders) - 1
        for orders in ([order for _, order in number] for number in numbers)
    )
    exact = Context(prec=len(ORDERS) + 1)
    values = []
    for number in numbers:
        value = Decimal(0)
        for digit, order in number:
            value = exact.add(value, Decimal(digit).scaleb(order))
        values.append(value)
    return values, invalid


def as_text(number: Decimal) -> str:
    """A number in plain notation without trailing zeros.

    >>> as_text(Decimal("54.20")), as_text(Decimal("300"))
    ('54.2', '300')
    """
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
