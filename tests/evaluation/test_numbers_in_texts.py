"""Promises of numbers in texts: what is read is exactly what was written, and nothing is read wrongly in silence."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numerate.evaluation.numbers_in_texts import (
    MAX_DIGITS,
    ExactNumber,
    _parse_numbers,
    last_number,
    parse_entire_text,
)
from numerate.text.tokenizers import number_spans as found_numbers


def all_numbers(text: str) -> list[ExactNumber]:
    """All valid numbers of a text, in order."""
    return [found.value for found in _parse_numbers(text) if found.value is not None]


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
        ("12/25/2020", "2020"),
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


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3",
        "1,2",
        "1,0000",
        "0,123",
        "1,00,000",
        "1.000,5",
        "1/0",
        "3 1/2",
        "2e3.5",
        "4 and then 5,6",
        "1e99999",
        "1e0001",
    ],
)
def test_what_nobody_can_read_for_certain_is_invalid(text: str) -> None:
    found = last_number(text)
    assert found.invalid
    assert found.value is None
    assert not found.missing


@pytest.mark.parametrize("text", ["", "twelve", "no. e-", "\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT FIVE}"])
def test_a_text_without_a_number_misses_one(text: str) -> None:
    assert last_number(text).missing


def test_all_numbers_in_order() -> None:
    assert all_numbers("-3 + 1,000 = 997, not 1.2.3 nor 5-3 nor 2/8") == [-3, 1000, 997, 5, 3, Fraction(1, 4)]


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
    if not any(one.invalid for one in _parse_numbers(text)):
        assert all_numbers(text) == [found_numbers.parse_decimal(one) for one in found]
    else:
        assert len(found) > len(all_numbers(text))


def test_a_number_of_more_digits_than_any_answer_has_is_invalid() -> None:
    assert last_number("9" * MAX_DIGITS).value == Decimal("9" * MAX_DIGITS)
    for text in ("9" * (MAX_DIGITS + 1), "1e1000", "1e-1000", "1e999999999999"):
        assert last_number(text).invalid, text
