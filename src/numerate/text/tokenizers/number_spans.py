"""Finds and parses numbers in texts. Number formats and metrics use the same rules; docs/number-formats.md has it as a
table.

Numbers are integers, decimals (`3.14`, `.5`), thousands (`1,000`, `12,345,678`) and powers of ten (`1e5`, `2.5E-3`) in
ASCII digits. With signs, a minus (Unicode's too) belongs to a number if it directly precedes the digits and follows
nothing that could be subtracted from: `-5`, `2*-5` and `5 - -3` have a negative number, `5-3`, `5 - 3`, `- 5`, `x-5`
and `(1)-5` have not. A plus never belongs to a number. A point starts a number unless it follows a word, a closing
bracket or a point: `.5`, but not `x.5`, which is 5.

Anything else falls into its runs of digits, with the text between: `3.14.15` is 3, 14 and 15; `1,0000` is 1 and 0000;
`a1e5` is 1 and 5; `5,3` is 5 and 3. Digits of other scripts (`٣`) are text.
"""

import re
from decimal import Decimal

MINUS = "\N{MINUS SIGN}"
"""Unicode's minus, which is one like `-`."""

# Each pattern starts with a character set, which `re` searches quickly; lookbehinds therefore follow the first
# character.
_INTEGER = r"(?:(?<=[1-9])(?<![0-9],[0-9])[0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])|[0-9]*)"
_DECIMAL = rf"(?<=[0-9])(?<!(?<!\.)\.[0-9]){_INTEGER}\.[0-9]+(?!\.?[0-9])"
_LEADING_POINT = r"(?<=\.)(?<![\w)\]}.]\.)[0-9]+(?!\.?[0-9])"
_MANTISSA = rf"(?:{_DECIMAL}|{_LEADING_POINT}|(?<=[0-9]){_INTEGER})"
_EXPONENT = rf"[eE][+\-{MINUS}]?[0-9]{{1,3}}(?!\w|\.[0-9])"
_NUMBER = rf"(?:(?<![^\W0-9][0-9.]){_MANTISSA}{_EXPONENT}|{_MANTISSA})"
_MINUS = rf"(?<=[-{MINUS}])(?<![\w)\]}}%.][-{MINUS}])"

UNSIGNED_NUMBER = re.compile(rf"[.0-9]{_NUMBER}")
"""A number without its sign."""

SIGNED_NUMBER = re.compile(rf"[-{MINUS}.0-9](?:{_MINUS}[.0-9]{_NUMBER}|(?<=[.0-9]){_NUMBER})")
"""A number with its minus, if it has one."""

PUBLISHED_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
"""A number as in the published number token loss: no sign, no `.5`, no power of ten, no thousands."""

DIGIT_RUN = re.compile(r"[0-9]+")
"""A run of digits."""


def parse_decimal(number: str) -> Decimal:
    """The exact value of a found number.

    >>> parse_decimal("1,000.50"), parse_decimal("-2.5e3"), parse_decimal(".5")
    (Decimal('1000.50'), Decimal('-2.5E+3'), Decimal('0.5'))
    """
    return Decimal(strip_thousands_separators(number))


def strip_thousands_separators(number: str) -> str:
    """A found number without thousands separators, and with an ASCII minus.

    >>> strip_thousands_separators("\N{MINUS SIGN}1,000.50")
    '-1000.50'
    """
    return number.replace(",", "").replace(MINUS, "-")


def to_plain_notation(number: str) -> str:
    """A found number without thousands separators and exponent.

    >>> [to_plain_notation(text) for text in ("1,000", "2.50e3", "007", ".5")]
    ['1000', '2500', '7', '0.5']
    """
    return format(parse_decimal(number), "f")
