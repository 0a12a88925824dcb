"""Parses numbers in texts, and those of answers, exactly. What is ambiguous, such as `18 000`, is no number.

Numbers are defined in `numerate.text.tokenizers.number_spans`; docs/metrics.md has the further rules for answers.
"""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple
from unicodedata import normalize

ExactNumber = Decimal | Fraction
"""An exact number: a fraction if written as a quotient, otherwise a decimal. Both types compare equal by value."""

MAX_DIGITS = 1000
"""Numbers with more digits, or a larger exponent, are invalid, which bounds the sums of squares."""

ANSWER_PATTERN = r"####\s*(.*)"
"""The marker in the solutions of GSM8K, with the rest of its line or, after nothing, the next one."""

_MARKER = re.compile(r"\(\.[*+]\)\$?$")
_IN_BRACES = re.compile(r"((?s:.*?))\\?\{\((?:\.|\[[^\]]+\])[*+]\??\)\\?\}")

SPECIAL_TOKEN = r"<(?:0x[0-9A-F]{2}|[|\uff5c]?/?[A-Za-z][\w\u2581.-]{0,60}[|\uff5c]?)>"
"""The name of a token that is no text: `<extra_id_0>`, `<|reserved_special_token_5|>`, `</s>`."""

_SIGNS = str.maketrans("\N{MINUS SIGN}\N{EN DASH}\u2010\u2011\ufe63\uff0d\N{FRACTION SLASH}", "------/")
_COMMANDS = dict.fromkeys(("left", "right", "displaystyle"), "") | dict.fromkeys(("sqrt", "overline", "bar"), "√")
_COMMANDS |= {"times": "*", "cdot": "*", "circ": "°", "pi": "π", "pm": "±", "approx": "≈", "quad": " "}
_TEXT_COMMAND = r"\\(?:text|math|operatorname|mbox|boxed|fbox)[a-z]*\s*(?=\{)"
_NUMERATOR, _DENOMINATOR = (rf"\s*(?:\{{\s*({sign}[0-9][0-9.,]*+)\s*\}}|([0-9]))" for sign in ("-?", ""))
_PLAIN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (rf"{SPECIAL_TOKEN}|\\\\|\\[()\[\]{{}}]|(?<=\w){_TEXT_COMMAND}", " "),
    (rf"\\!|{_TEXT_COMMAND}", ""),
    (r"[\t\u2002-\u2006]", " "),
    (r"\s*\\[,:; ]\s*(?=[0-9])|\\[,:; ]|(?<=[0-9])~(?=[0-9¼-¾⅐-⅞])|~(?=[A-Za-z\\{])|[\u2007-\u200a\u202f]", "\xa0"),
    (rf"\\({'|'.join(_COMMANDS)})(?![A-Za-z])", lambda m: _COMMANDS[m[1]]),
    (r"\\([$%])|\{([.,\xa0])\}", r"\1\2"),
    (r"(?<=[0-9])(?=\\[dtc]?frac|[¼-¾⅐-⅞])", " "),
    (rf"\\[dtc]?frac{_NUMERATOR}{_DENOMINATOR}", lambda m: f"{m[1] or m[2]}/{m[3] or m[4]} "),
    (r"[¼-¾⅐-⅞]", lambda m: f"{normalize('NFKC', m[0])} ".translate(_SIGNS)),
    (r"⁻(?=[0-9])", "-"),
    (r"[⁺⁻]?[⁰¹²³⁴-⁹]+", lambda m: f"^{normalize('NFKC', m[0])}".translate(_SIGNS)),
    (r"(?<=[0-9]) ?\*\* ?(?=[-0-9])", "^"),
    (r"\\[dtc]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}", "1/0 "),  # of other things than numbers, which is no number
    (r"(?<![\w)\]}])-(?:\xa0(?=[0-9.])|\(([0-9][0-9.,]*)\))", r"-\1"),
    (r"\}\s*\{", ")/("),  # the line of a fraction that has not numbers alone
    (r"(?<=[0-9])\{|\}(?=[0-9])", " "),
    (r"[{}]", ""),
    (r"(?<=[^\W0-9_])\^\(?[-+]?[0-9]+\)?|\^(?=°|st|nd|rd|th)", ""),  # exponents of units
)
"""What is replaced by what, in this order. A no-break space stands for all spaces that may separate thousands."""

_CURRENCY = r"[$\xa2\xa3\xa5\u20a0-\u20cf]"
_CANDIDATE = re.compile(
    rf"(?:(?<![\w)\]}}%.])(?P<sign>[+-]))?(?:(?P<currency>{_CURRENCY})[ \xa0]?)?"
    r"(?:(?P<named>(?<=[^\W0-9]))|)(?:(?P<point>(?<=\.)(?<!\.\.))|)"
    r"(?P<body>(?:[1-9][0-9]{0,2}(?:(?:[ ,'\u2019_\xa0]|,? +(?=0))[0-9]{3}(?![0-9]))+|[0-9]+"
    r"|(?<![\w)\]}.])\.[0-9]+)(?:[.,][0-9]+)*)"
    r"(?(named)|(?:[eE](?P<exponent>[+-]?[0-9]+)(?!\w))?)"
    r"(?:(?P<times>[ \xa0]{0,3}[x*\xd7·⋅][ \xa0]{0,3}10)?[ \xa0]?\^[ \xa0]?\(?(?P<power>[+-]?[0-9]+)\)?)?"
    r"(?P<more>(?:[.,][0-9]+|\xa0[0-9]{3}(?![0-9]))*)"
)
_DECIMAL = re.compile(r"(?:[0-9]+|[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:\xa0[0-9]{3})+))(?:\.[0-9]+)?|\.[0-9]+")
_JOINER = re.compile(r" ?/ ?|[:_]")
_BEFORE_QUOTIENT = re.compile(r"(?:^|[\s=:($€£¥\"'\[{,~≈]|\*\*)$")
_PART_BEFORE = re.compile(r"(?:[√^±][ \xa0]?|/)\(?$")
_PART_AFTER = re.compile(r"[ \xa0]?[√π^]|\)*/[(√π]")
_WHOLE = re.compile(rf"-?{_CURRENCY}?[0-9,\xa0]+")
_NO_UNIT = (
    "and|or|to|by|plus|minus|times|half|dozen|score|hundred|thousand|lakh|crore|[mbtr]+illion|[bm]n|infinity|i|pi|sqrt|sin|"
    "cos|tan|log|ln|mod|base"
)
_UNIT = (
    rf"(?!.*\b(?i:{_NO_UNIT})\b) ?(?:%|°[CF]?|{_CURRENCY})?"
    r"(?:(?:(?i:st|nd|rd|th|[ckm]m|[km]g|ml|lbs?|oz|ft|hrs?|min|[ap]m)|[^\W\d_]{4,}| (?:[^\W\d_]{2,}|[^\W\d_xyzkKMB]))"
    r"(?:[ /.·'\u2019-]{1,3}[^\W\d_]+)*)?(?: \((?=[^()]*[^\W\d_]{2})[^()\d=+*^<>]*\))?[ .]*"
)


class ParsedNumber(NamedTuple):
    """The result of parsing the end of a text: a number, no number (`missing`), or a malformed one (`invalid`)."""

    value: ExactNumber | None
    invalid: bool = False
    start: int = 0
    end: int = 0

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
    return next(reversed(all_numbers(text)), ParsedNumber(None))


def parse_entire_text(text: str, *, with_unit: bool = False) -> ExactNumber | None:
    """Parses a text that is a number as a whole, except for surrounding spaces and a unit; None for any other text.

    >>> parse_entire_text(" 975 "), parse_entire_text("9 7 5"), parse_entire_text("x=5")
    (Decimal('975'), None, None)
    >>> [parse_entire_text(text, with_unit=True) for text in ("50%", "9 (apples)", "2 km and 3", "5x")]
    [Decimal('50'), Decimal('9'), None, None]
    """
    text = plain_text(text).strip(" \n*$" if with_unit else None)
    first = next(iter(_numbers(text)), ParsedNumber(None))
    rest = re.sub(r"\s+", " ", text[first.end :])
    return first.value if first.start == 0 and re.fullmatch(_UNIT if with_unit else "", rest) else None


def correct_number(text: str, pattern: str = ANSWER_PATTERN) -> ExactNumber | None:
    """The number that a correct answer is, perhaps with a unit; None for one that is compared as text."""
    return parse_entire_text(extract_answer(text, pattern), with_unit=True)


def answer_number(text: str, pattern: str = ANSWER_PATTERN) -> ParsedNumber:
    """The number of a generated answer: after a marker, a pattern that ends in `(.*)`, the first one of the first that
    has one; of another pattern the only one, or the only one after `=`. Without an answer, the last one of the text.

    >>> answer_number("#### 72 (48 + 24)").value, answer_number(r"\\boxed{x = 5}, not 6", "boxed{(.*?)}").value
    (Decimal('72'), Decimal('5'))
    """
    for answer in find_answers(text, pattern):
        numbers = all_numbers(answer)
        if not _MARKER.search(pattern):
            numbers = all_numbers(answer.rpartition("=")[2]) or numbers
            return numbers[0] if len(numbers) == 1 else ParsedNumber(None, invalid=bool(numbers))
        if numbers:
            return numbers[0]
    return last_number(text)


def extract_answer(text: str, pattern: str = ANSWER_PATTERN) -> str:
    """The answer in a text; the whole text where there is none."""
    return next(find_answers(text, pattern), text.strip())


def find_answers(text: str, pattern: str) -> Iterator[str]:
    """What a pattern finds and is not empty: of a marker from the first on, of another pattern from the last on. Braces
    around its group, as in `boxed{(.*?)}`, are balanced."""
    is_marker, opened, closing = _MARKER.search(pattern), list[int](), dict[int, int]()
    if in_braces := _IN_BRACES.fullmatch(pattern):
        for match in re.finditer(r"\\.|[{}]", text):
            if match[0] == "{":
                opened.append(match.end())
            elif match[0] == "}" and opened:
                closing[opened.pop()] = match.start()
        starts = [match.end() for match in re.finditer(in_braces[1] + r"\{", text)]
        spans = [(start, closing[start]) for start in starts if start in closing]
    else:
        matches = re.finditer(pattern or "$^", text)
        spans = [match.span(match.re.groups and 1) for match in matches if not is_marker or match[0].count("\n") < 2]
    for start, end in spans if is_marker else reversed(spans):
        if answer := text[start:end].strip():
            yield answer


def plain_text(text: str) -> str:
    """A text with its LaTeX and typography in plain notation: `-\\$5` is `-$5`, `3½` is `3 1/2`."""
    if not text.isascii() or any(character in text for character in "\\{<^~*\t("):
        text = text.translate(_SIGNS)
        for pattern, replacement in _PLAIN:
            text = re.sub(pattern, replacement, text)
    return text


def all_numbers(text: str) -> list[ParsedNumber]:
    """The numbers of a text, also those that are invalid. Numbers that `/`, `:` or `_` joins are one."""
    return _numbers(plain_text(text))


def _numbers(text: str) -> list[ParsedNumber]:
    """Those of a text in plain notation."""
    groups: list[list[re.Match[str]]] = []
    for match in _CANDIDATE.finditer(text):
        if groups and _JOINER.fullmatch(text, groups[-1][-1].end(), match.start()):
            groups[-1].append(match)
        else:
            groups.append([match])
    found: list[ParsedNumber] = []
    for group in groups:
        value, start, end = _group_value(group, text), group[0].start(), group[-1].end()
        gap = text[found[-1].end : start] if found and len(group) > 1 else ""
        whole = found[-1].value if gap and _WHOLE.fullmatch(text, found[-1].start, found[-1].end) else None
        is_mixed = whole is not None and value is not None and 0 < value < 1
        if gap and (not gap.strip(" \xa0") or (gap == " and " and is_mixed)):  # `3 1/2`, perhaps invalid as `3 5/4`
            start = found.pop().start
            part = Fraction(value or 0) * (-1 if text[start] == "-" else 1)
            value = Fraction(whole or 0) + part if is_mixed else None
        found.append(ParsedNumber(value, value is None, start, end))
    return found


def _group_value(group: list[re.Match[str]], text: str) -> ExactNumber | None:
    """The value of a number, or of a quotient: `1/4`, not `12/25/2020`, `3:30`, `x/2` and `√2`."""
    one, other, values = group[0], group[-1], [_value(match) for match in group]
    before = text[max(0, one.start() - 3) : one.start()]
    if _PART_BEFORE.search(before) or _PART_AFTER.match(text, other.end()):
        return None
    if len(group) == 1:
        return values[0]
    is_quotient = len(group) == 2 and "/" in text[one.end() : other.start()] and _BEFORE_QUOTIENT.search(before)
    if not is_quotient or other["sign"] or other["currency"] or other["power"] or values[0] is None or not values[1]:
        return None
    return Fraction(values[0]) / Fraction(values[1])


def _value(match: re.Match[str]) -> Decimal | None:
    """The number of a candidate; None if it is invalid."""
    body, exponent = match["body"], match["exponent"] or match["power"] or "0"
    if match["power"] and (match["exponent"] or not match["times"]):
        body = "1" if body == "10" and not match["exponent"] else ""
    if match["more"] or (match["point"] is not None and "." in body) or _DECIMAL.fullmatch(body) is None:
        return None
    if len(body) > MAX_DIGITS or len(exponent.lstrip("+-")) > 3 or abs(int(exponent)) + len(body) > MAX_DIGITS:
        return None
    value = Decimal(f"{body.replace(',', '')}e{exponent}".replace("\xa0", ""))
    return value.copy_negate() if match["sign"] == "-" else value
