"""Parses numbers in texts exactly, in particular the last number of a text.

Numbers are defined in `numerate.text.tokenizers.number_spans`, which tokenizers also use. For answers there are further
rules:

| text | its last number |
|---|---|
| `so it is -12.50.` | -12.5 |
| `-1/4` | -1/4, exactly |
| `-$2`, `$-2` | -2 |
| `1,2`, `1.2.3`, `1,0000`, `1/0`, `3 1/2` | none: invalid, because ambiguous |
| `twelve`, an empty text | none: missing |

A point or comma after a number is punctuation.
"""

import re
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

ExactNumber = Decimal | Fraction
"""An exact number: a fraction if written as a quotient, otherwise a decimal. Both types compare equal by value."""

MAX_DIGITS = 1000
"""Numbers with more digits, or a larger exponent, are invalid, which bounds the sums of squares."""

_MINUS = "-\N{MINUS SIGN}"
_CANDIDATE = re.compile(
    r"(?:(?<![\w)\]}%.])(?P<sign>[+\-\N{MINUS SIGN}]))?(?P<currency>[$€£¥]?)"
    r"(?:(?P<named>(?<=[^\W0-9]))|)(?:(?P<point>(?<=\.)(?<!\.\.))|)(?P<body>(?:[0-9]+|(?<![\w)\]}.])\.[0-9]+)(?:[.,][0-9]+)*)"
    r"(?(named)|(?:[eE](?P<exponent>[+\-\N{MINUS SIGN}]?[0-9]+)(?!\w))?)"
    r"(?P<more>(?:[.,][0-9]+)*)"
)
_DECIMAL = re.compile(r"(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?:\.[0-9]+)?|\.[0-9]+")
_BEFORE_QUOTIENT = frozenset("=:($€£¥\"'[{,~≈")


class ParsedNumber(NamedTuple):
    """The result of parsing the end of a text: a number, no number (`missing`), or a malformed one (`invalid`)."""

    value: ExactNumber | None
    invalid: bool = False

    @property
    def missing(self) -> bool:
        return self.value is None and not self.invalid


def last_number(text: str) -> ParsedNumber:
    """The last number of a text.

    >>> last_number("5-3 is 2, not 1,000.5").value
    Decimal('1000.5')
    >>> last_number("version 1.2.3").invalid, last_number("none").missing
    (True, True)
    """
    return next(iter(deque(_parse_numbers(text), maxlen=1)), ParsedNumber(None))


def parse_entire_text(text: str) -> ExactNumber | None:
    """Parses a text that is a number as a whole, except for surrounding spaces; None for any other text.

    >>> parse_entire_text(" 975 "), parse_entire_text("9 7 5"), parse_entire_text("x=5")
    (Decimal('975'), None, None)
    """
    text = text.strip()
    matches = list(_CANDIDATE.finditer(text))
    if not matches or matches[0].start() or matches[-1].end() != len(text) or len(matches) > 2:
        return None
    numbers = list(_parse_numbers(text))
    return numbers[0].value if len(numbers) == 1 else None


def _parse_numbers(text: str) -> Iterator[ParsedNumber]:
    matches = list(_CANDIDATE.finditer(text))
    index = 0
    while index < len(matches):
        match, value = matches[index], _value(matches[index])
        divisor = _divisor(matches, index, text)
        index += 1
        if divisor is None:
            yield ParsedNumber(value, invalid=value is None)
            continue
        index += 1
        divisor_value = _value(divisor)
        is_mixed_number = re.search(r"[0-9]\s+$", text[: match.start()]) is not None
        if value is None or not divisor_value or is_mixed_number:
            yield ParsedNumber(None, invalid=True)
        else:
            yield ParsedNumber(Fraction(value) / Fraction(divisor_value))


def _value(match: re.Match[str]) -> Decimal | None:
    """The number of a candidate; None if it is invalid."""
    body, exponent = match["body"], (match["exponent"] or "0").replace("\N{MINUS SIGN}", "-")
    if match["more"] or (match["point"] is not None and "." in body) or _DECIMAL.fullmatch(body) is None:
        return None
    if len(body) > MAX_DIGITS or len(exponent.lstrip("+-")) > 3 or abs(int(exponent)) + len(body) > MAX_DIGITS:
        return None
    value = Decimal(f"{body.replace(',', '')}e{exponent}")
    return value.copy_negate() if match["sign"] in tuple(_MINUS) else value


def _divisor(matches: list[re.Match[str]], index: int, text: str) -> re.Match[str] | None:
    """The divisor of the number at a position, if the two are a quotient: `1/4`, not `12/25/2020`."""
    if index + 1 >= len(matches):
        return None
    one, other = matches[index], matches[index + 1]
    if text[one.end() : other.start()] != "/" or other["sign"] or other["currency"]:
        return None
    before = text[one.start() - 1] if one.start() else " "
    is_standalone = before.isspace() or before in _BEFORE_QUOTIENT
    return other if is_standalone and text[other.end() : other.end() + 1] != "/" else None
