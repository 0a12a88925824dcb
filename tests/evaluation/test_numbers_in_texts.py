"""Promises of numbers in texts: what is read is exactly what was written, and nothing is read wrongly in silence."""

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cases import case
from numerate.evaluation.numbers_in_texts import (
    MAX_DIGITS,
    ExactNumber,
    all_numbers,
    answer_number,
    correct_number,
    last_number,
    parse_entire_text,
)
from numerate.text.tokenizers import number_spans as found_numbers


def valid_numbers(text: str) -> list[ExactNumber]:
    """All valid numbers of a text, in order."""
    return [found.value for found in all_numbers(text) if found.value is not None]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("21", "21"),
        ("so it is -12.50.", "-12.5"),
        ("+5 -.7", "-0.7"),
        ("about 1,000", "1000"),
        ("12,345,678.90 EUR", "12345678.9"),
        ("1e5", "1e5"),
        ("2.5E-3", "0.0025"),
        ("1e\N{MINUS SIGN}2", "0.01"),
        ("\N{MINUS SIGN}7", "-7"),
        ("5-3", "3"),
        ("5 - 3", "3"),
        ("x-3", "3"),
        ("(2)-3", "3"),
        ("3*-2", "-2"),
        ("x = -3", "-3"),
        ("10--3", "-3"),
        ("- 3", "3"),
        ("x.5", "5"),
        ("a1e5", "5"),
        ("so.-3", "3"),
        ("- 3 apples and 4", "4"),
        ("-$1,250.75", "-1250.75"),
        ("$-2", "-2"),
        ("7, 1, 2", "2"),
        ("5.", "5"),
        ("5, and", "5"),
        ("5km", "5"),
        ("3rd", "3"),
        ("1e", "1"),
        ("007", "7"),
        ("-0", "0"),
        ("#### 18", "18"),
        ("wait...7", "7"),
        ("\N{ARABIC-INDIC DIGIT THREE} then 4", "4"),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str) -> None:
    assert last_number(text).value == Decimal(number)


@pytest.mark.parametrize(
    ("text", "number"), [("-1/4", Fraction(-1, 4)), ("x = 2/6", Fraction(1, 3)), ("(7/2)", Fraction(7, 2))]
)
def test_a_quotient_is_exact_and_equal_to_the_decimal_that_it_is(text: str, number: Fraction) -> None:
    assert last_number(text).value == number
    assert last_number("1/4").value == last_number("0.25").value
    assert last_number("1/3").value != last_number("0.3333333333333333").value


@pytest.mark.parametrize("text", ["", "twelve", "no. e-", "\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT FIVE}"])
def test_a_text_without_a_number_misses_one(text: str) -> None:
    assert last_number(text).missing


READ = r"""
70000|70{,}000|70\,000|70\!000|70,\!000|70\ 000|70~000|70\u00a0000|70\u202f000|70\u2009000|70\u2007000|\$70{,}000|70,000
-5|-\$5|\$-5|-$5$|-$ 5|\u20135|x = \u22125|\boxed{-5}|is\boxed{-5}|-5\%|**-5**|-5\text{ m}^2|-5^\circ|-5\,\mathrm{km}
1/2|\frac{1}{2}|\frac12|\dfrac{1}2|\tfrac 1{2}|\u00bd|$\frac{1}{2}$|\(\displaystyle\frac{1}{2}\)|**1/2**|2 / 4|1\u20442
-1/2|-\frac{1}{2}|\frac{-1}{2}|-\u00bd|{-\frac{1}{2}}|\left(-\frac{1}{2}\right)|\u20131/2
15/4|3 3/4|3\frac{3}{4}|3\,\frac34|3\u00be|3 \u00be|3\u00a03/4|3 and 3/4|3.75
-7/2|-3 1/2|-3\frac{1}{2}|\u22123\u00bd|-\$3 1/2
1500000|1.5 \times 10^6|1.5 \cdot 10^{6}|1.5\times10^{6}|1.5 x 10^6|1.5*10^6|1.5*10**6|1.5 \u00d7 10\u2076|1.5e6
1/1000|10^{-3}|1 \times 10^{-3}|10\u207b\u00b3
5|5\u20135|pages 3\u20135|(5)|5^{\text{th}}|5 cm\u00b2|5 cm^2|<extra_id_0> 5<extra_id_1>|in 2019 5
none|1.2.3|1,2|1,0000|0,123|1,00,000|1.000,5|1/0|3 5/4|12/25/2020|2e3.5|4 and then 5,6|1e99999|1e0001
none|18 000|1 234 567|70, 000|1'000|1_000|18  000|3:30|3-1/2|x/2|2^3|2\sqrt{3}|5\pi|\pm 5|0.\overline{3}|100/(5)|3.5 1/2
none|\frac{x}{2}|\frac{2 \cdot 1}{2}|\frac{48}{\pi}|\frac{1}{\frac{1}{2}}|\binom{5}{2}|1010_{2}|1/2 1/2|1e3 x 10^6
"""
WITH_UNIT = r"5.|5%|5 %|5\%|$5|5 dollars|5 (apples)|5 km/h|5 cm^2|5~\text{cm}|5\mathrm{~cm}|5^\circ|20/4 cups|5km|**5**"
TEXTS = (
    r"-3*x + 5|x=5|A7|3, 5, 7|12:30|10/12/2020|5x|5 x|2*h|5ab|2(ab)|5\pi|18 000|no. 5|5 million|5 and a half|5 to ten"
)


def test_latex_and_typography_are_read_as_meant_and_of_what_is_ambiguous_no_part_is_the_number() -> None:
    for line in re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), READ).split("\n")[1:-1]:
        number, *texts = line.split("|")
        for text in texts:
            with case(text):
                expected = None if number == "none" else Fraction(number)
                assert last_number(f"The total is {text}.")[:2] == (expected, expected is None)


def test_a_correct_answer_with_a_unit_is_a_number_and_no_other_text_is() -> None:
    for text in [*WITH_UNIT.split("|"), *TEXTS.split("|")]:
        with case(text):
            expected = None if text in TEXTS.split("|") else 5
            assert correct_number(text) == correct_number(f"So it is 6.\n#### {text}") == expected


@pytest.mark.parametrize("piece", ["9", " ", "{", "^{", "\\boxed{", "\\frac{", "####\n", "<a", "ab ", "5 (", "1."])
def test_long_texts_are_read_too(piece: str) -> None:
    text = f"5 {piece * (100_000 // len(piece))}="
    assert answer_number(text) == answer_number(text, "boxed{(.*?)}")
    assert correct_number(text) is None


def test_all_numbers_in_order() -> None:
    assert valid_numbers("-3 + 1,000 = 997, not 1.2.3 nor 5-3 nor 2/8") == [-3, 1000, 997, 5, 3, Fraction(1, 4)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 975 ", Decimal(975)),
        ("-1.5", Decimal("-1.5")),
        ("1/3", Fraction(1, 3)),
        *((text, None) for text in ("9 7", "x", "=5", "5=", "1.2.3", "", "1,2")),
    ],
)
def test_a_text_is_a_number_as_a_whole_or_not_at_all(text: str, number: ExactNumber | None) -> None:
    assert parse_entire_text(text) == number


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**60), max_value=10**60))
@example(Decimal(-(10**45 + 1)))
@example(Decimal("-0.00000000000000000000000000000000000000012345678901234567890123456789012345"))
def test_whatever_is_written_is_read_exactly(number: Decimal) -> None:
    """In full, with thousands separated, and with an exponent; 28 digits, as decimals usually have, are not the end."""
    for text in (f"{number:f}", f"{number}", f"the answer is {number:,f}."):
        assert last_number(text).value == number, text


@given(st.text(alphabet="0123456789.,-+eE/ x$\N{MINUS SIGN}", max_size=40))
def test_every_text_has_a_number_or_is_missing_it_or_invalid(text: str) -> None:
    found = last_number(text)
    assert sum((found.value is not None, found.invalid, found.missing)) == 1
    assert found.missing == (not any(character in "0123456789" for character in text))
    whole = parse_entire_text(text)
    assert whole is None or whole == found.value


@settings(max_examples=1000, deadline=None)
@given(st.text(alphabet="0123159.,-+eEx\u00e9_ )%\N{MINUS SIGN}", max_size=16))
@example("- 5")
@example("x.5 a1e5 5 - 3 \N{MINUS SIGN}5 \u00e9-5 1e\N{MINUS SIGN}2 5.-3")
def test_numbers_are_read_by_the_rule_by_which_they_are_spelled(text: str) -> None:
    found = [match[0] for match in found_numbers.SIGNED_NUMBER.finditer(text)]
    if not any(one.invalid for one in all_numbers(text)):
        assert valid_numbers(text) == [found_numbers.parse_decimal(one) for one in found]
    else:
        assert len(found) > len(valid_numbers(text))


def test_a_number_of_more_digits_than_any_answer_has_is_invalid() -> None:
    assert last_number("9" * MAX_DIGITS).value == Decimal("9" * MAX_DIGITS)
    for text in ("9" * (MAX_DIGITS + 1), "1e1000", "1e-1000", "1e999999999999"):
        assert last_number(text).invalid, text


def test_spaces_signs_and_fractions_of_other_kinds_lose_no_part_of_a_number() -> None:
    for text in ("18\t000", "18\u2003000", "18   000", r"\frac{3}{4+1}", r"\frac{\pi}{2}"):
        assert answer_number(text).value is None, text
    for text in ("-(3)", r"-\left(3\right)", r"-\,3", "\u207b3", "\uff0d3", "\u20103"):
        assert answer_number(text).value == -3, text
    assert answer_number(r"70\, 000").value == 70_000
    assert answer_number("1.5 * 10 ** 6").value == 1_500_000
    assert correct_number("1~½") == answer_number("1~½").value == Fraction(3, 2)
    assert [correct_number(text) for text in ("5 dozen", "5 bn", "5 lakh")] == [None] * 3
