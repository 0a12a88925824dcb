"""Promises of number formats for texts: batches equal single numbers, and what is written is read back."""

import re
import struct
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import published_case
from numerate.errors import UserError
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.float_formats import FoNE, IEEEBits
from numerate.text.tokenizers.regression_transformer import RegressionTransformer, parse_numbers, round_decimal
from numerate.text.tokenizers.text_number_formats import (
    Groups,
    PerDigit,
    TextNumberFormat,
    XVal,
    format_float,
    parse_floats,
)
from numerate.vocabulary import DIGIT, NUMBER, POINT, TEXT

BITS = [IEEEBits(), IEEEBits("float16"), IEEEBits("float64")]
PARSED: list[TextNumberFormat] = [RegressionTransformer(), XVal(), XVal(include_sign=False), FoNE(), *BITS]
GROUPS = [Groups(), Groups(3, "right"), Groups(1), Groups(2, "right"), Groups(4, "left")]
KEPT: list[TextNumberFormat] = [PerDigit(), *GROUPS]
EVERY = [*PARSED, *KEPT, RegressionTransformer(published=True), XVal(published=True)]

NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.integers(0, 10**30).map(str),
    st.decimals(0, 10**6, places=3).map(lambda number: format(number, "f")),
    st.from_regex(r"[0-9]{1,9}\.[0-9]{1,16}", fullmatch=True),
    st.from_regex(r"-?\.[0-9]{1,6}", fullmatch=True),
    st.from_regex(r"[1-9][0-9]{0,2}(,[0-9]{3}){1,3}", fullmatch=True),
    st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{1,4})?[eE][+-]?[0-9]{1,2}", fullmatch=True),
    st.integers(-(10**6), 0).map(str),
)


case = partial(published_case, file="number_token_loss.json")


def found_in(text: str, number_format: TextNumberFormat) -> list[str]:
    assert number_format.pattern is not None
    return number_format.pattern.findall(text)


def symbols_of(text: str, number_format: TextNumberFormat) -> list[list[str]]:
    return [number_format.format_number(number) for number in found_in(text, number_format)]


# What is a number ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unsigned", "signed"),
    [
        ("a12b", ["12"], ["12"]),
        ("3.14.15", ["3", "14", "15"], ["3", "14", "15"]),
        ("it is 3.14.", ["3.14"], ["3.14"]),
        ("1,000", ["1,000"], ["1,000"]),
        ("1,000,000.50 or 999,9999", ["1,000,000.50", "999", "9999"], ["1,000,000.50", "999", "9999"]),
        ("1, 2, 3 and 0,123", ["1", "2", "3", "0", "123"], ["1", "2", "3", "0", "123"]),
        ("12,1,000", ["12", "1", "000"], ["12", "1", "000"]),
        ("-5", ["5"], ["-5"]),
        ("5-3", ["5", "3"], ["5", "3"]),
        ("5 - -3 and 2*-4", ["5", "3", "2", "4"], ["5", "-3", "2", "-4"]),
        ("x-5, (1)-5, 5%-5", ["5", "1", "5", "5", "5"], ["5", "1", "5", "5", "5"]),
        ("+5", ["5"], ["5"]),
        ("1e5, 2.5E-3, -1e2", ["1e5", "2.5E-3", "1e2"], ["1e5", "2.5E-3", "-1e2"]),
        ("a1e5, 1e5x, 2e", ["1", "5", "1", "5", "2"], ["1", "5", "1", "5", "2"]),
        (".5 and -.5 but x.5", [".5", ".5", "5"], [".5", "-.5", "5"]),
        ("...5.6, 7...8", ["5.6", "7", "8"], ["5.6", "7", "8"]),
        ("\u0663 \uff11 x\u00b2 \u22125 \u00e9-5", ["5", "5"], ["\u22125", "5"]),
        ("- 5 and 3 - 5", ["5", "3", "5"], ["5", "3", "5"]),
        ("1e\u22122", ["1e\u22122"], ["1e\u22122"]),
        ("12:05", ["12", "05"], ["12", "05"]),
        ("none", [], []),
    ],
)
def test_numbers_are_found_as_documented(text: str, unsigned: list[str], signed: list[str]) -> None:
    assert found_numbers.UNSIGNED_NUMBER.findall(text) == unsigned
    assert found_numbers.SIGNED_NUMBER.findall(text) == signed


_WHOLE = r"(?:(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])|[0-9]+)"
_ANY = rf"(?:(?<!(?<!\.)\.){_WHOLE}\.[0-9]+(?!\.?[0-9])|(?<![\w)\]}}.])\.[0-9]+(?!\.?[0-9])|{_WHOLE})"
_PLAIN = rf"(?:(?<![^\W0-9]){_ANY}[eE][+\-\u2212]?[0-9]{{1,3}}(?!\w|\.[0-9])|{_ANY})"
PLAIN = {"UNSIGNED_NUMBER": re.compile(_PLAIN), "SIGNED_NUMBER": re.compile(rf"(?:(?<![\w)\]}}%.])[-\u2212])?{_PLAIN}")}
"""The patterns in their natural form, with lookbehinds before the number."""


@settings(max_examples=500, deadline=None)
@given(text=st.text(alphabet="0123159.,-+eE a)0\n%\u2212\u00e9", max_size=20))
def test_the_quick_patterns_find_what_the_plain_ones_find(text: str) -> None:
    for name, plain in PLAIN.items():
        assert getattr(found_numbers, name).findall(text) == plain.findall(text)


@given(text=st.text(alphabet="0123159.,-+eE a)", max_size=20))
def test_every_digit_of_a_text_belongs_to_exactly_one_number(text: str) -> None:
    for pattern in (found_numbers.UNSIGNED_NUMBER, found_numbers.SIGNED_NUMBER, found_numbers.PUBLISHED_NUMBER):
        rest = pattern.sub("|", text)
        assert not re.search("[0-9]", rest)


# Many at once, and one by one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number_format", EVERY, ids=repr)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(NUMBERS, max_size=6))
def test_many_numbers_are_written_as_each_is_alone(number_format: TextNumberFormat, texts: list[str]) -> None:
    found = [number for text in texts for number in found_in(text, number_format)]
    written = number_format.format_numbers(found)
    codes = np.split(written.symbol_indices, written.num_symbols.cumsum())[:-1] if found else []
    assert len(written.num_symbols) == len(found)
    names = number_format.symbols()
    for place, number in enumerate(found):
        if written.unrepresentable_mask is not None and written.unrepresentable_mask[place]:
            with pytest.raises(UserError, match=r"^number_format: \w+ cannot represent "):
                number_format.format_number(number)
        else:
            assert [names[code] for code in codes[place]] == number_format.format_number(number)


@pytest.mark.parametrize("number_format", PARSED, ids=repr)
@settings(max_examples=150, deadline=None)
@given(text=NUMBERS)
def test_a_number_is_read_back_as_it_was(number_format: TextNumberFormat, text: str) -> None:
    for number in found_in(text, number_format):
        written = number_format.format_numbers([number])
        if written.unrepresentable_mask is not None and written.unrepresentable_mask[0]:
            continue
        symbols = number_format.format_number(number)
        values = None if written.number_values is None else [float(written.number_values[0])] * len(symbols)
        wanted = found_numbers.parse_decimal(number)
        if isinstance(number_format, RegressionTransformer):
            wanted = Decimal(round_decimal(number))
            assert abs(wanted - found_numbers.parse_decimal(number)) <= Decimal("5e-13")
        assert Decimal(number_format.decode_symbols(symbols, values)) == wanted


@pytest.mark.parametrize("number_format", EVERY, ids=repr)
def test_symbols_are_different_and_begin_with_the_digits(number_format: TextNumberFormat) -> None:
    symbols = number_format.symbols()
    assert symbols[:10] == tuple("0123456789")
    assert len(set(symbols)) == len(symbols)


# Groups --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number_format", "text", "groups"),
    [
        (Groups(3, "left"), "12345", ["123", "45"]),
        (Groups(3, "right"), "12345", ["12", "345"]),
        (Groups(3, "right"), "1234567", ["1", "234", "567"]),
        (Groups(3, "right"), "123456", ["123", "456"]),
        (Groups(2, "right"), "007", ["0", "07"]),
        (Groups(3, "right"), "12345.6789", ["12", "345", ".", "678", "9"]),
        (Groups(3, "left"), "12345.6789", ["123", "45", ".", "678", "9"]),
        (PerDigit(), "12.50", ["1", "2", "5", "0"]),
    ],
)
def test_groups_are_cut_by_hand(number_format: TextNumberFormat, text: str, groups: list[str]) -> None:
    assert [*chain.from_iterable(symbols_of(text, number_format))] == groups


def test_a_group_has_its_value() -> None:
    assert Groups().symbol_info("012")[:2] == (NUMBER, 12.0)
    assert Groups().symbol_info("7")[:2] == (DIGIT, 7.0)
    assert Groups().symbol_info(".")[0] == POINT


# The regression transformer ------------------------------------------------------------------------------------------


def test_the_regression_transformer_writes_the_published_tokens(shared: Path) -> None:
    published = RegressionTransformer(published=True)
    known = case(shared, name="rt_number_tokens")
    for text, expected in zip(known["inputs"], known["expected"], strict=True):
        assert [*chain.from_iterable(symbols_of(text, published))] == expected, text


def test_its_320_tokens_mean_a_digit_and_a_power_of_ten(shared: Path) -> None:
    ours = RegressionTransformer()
    assert len(ours.symbols()) == 330
    for symbol, expected in case(shared, name="rt_token_values")["expected"].items():
        kind, digit, order = ours.symbol_info(symbol)
        assert (kind, digit) == (DIGIT, expected["ignore_order"])
        assert digit * 10.0**order == pytest.approx(expected["value"])
    assert ours.symbol_info("5") == (TEXT, pytest.approx(np.nan, nan_ok=True), -1000)


@pytest.mark.parametrize(
    ("symbols", "numbers", "invalid"),
    [
        ("", [], 0),
        ("_5_1_ _4_0_", ["54"], 0),
        ("_5_0_ _5_-1_", ["5.5"], 0),
        ("_5_2_", ["500"], 1),
        ("_5_2_ _3_0_", ["503"], 1),
        ("_5_0_ _3_-2_", ["5.03"], 1),
        ("_5_0_ _3_0_", ["5", "3"], 0),
        ("_5_0_ _3_1_", ["5", "30"], 1),
        ("_1_1_ _2_0_ _5_-1_ _7_0_ _0_0_", ["12.5", "7", "0"], 0),
        ("_5_-1_", ["0.5"], 0),
        ("_9_19_ _1_-12_", ["90000000000000000000.000000000001"], 1),
    ],
)
def test_tokens_are_read_as_numbers_and_those_that_are_none_counted(
    symbols: str, numbers: list[str], invalid: int
) -> None:
    assert parse_numbers(symbols.split()) == ([Decimal(number) for number in numbers], invalid)
    assert RegressionTransformer().decode_symbols(symbols.split()) == " ".join(numbers)


def test_a_token_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="'54' must be a token of the Regression Transformer"):
        parse_numbers(["_5_1_", "54"])


# xVal ----------------------------------------------------------------------------------------------------------------


def template(text: str, number_format: XVal) -> tuple[str, list[float]]:
    assert number_format.pattern is not None
    values = number_format.format_numbers(found_in(text, number_format)).number_values
    assert values is not None
    return number_format.normalize_separators(number_format.pattern.sub("\ue000", text), "\ue000").replace(
        "\ue000", "[NUM]"
    ), values.tolist()


def test_xval_takes_out_the_published_numbers(shared: Path) -> None:
    known = case(shared, name="xval_extract")
    for text, expected in zip(known["inputs"], known["expected"], strict=True):
        found, numbers = template(text, XVal(published=True))
        assert found == expected["template"]
        assert numbers == pytest.approx(expected["numbers"], rel=1e-6)


def test_what_float32_does_not_hold_is_beyond_xval() -> None:
    texts = ["16777216", "16777217", "0.1", "0.123456", "0.12345678", "1e38", "1e39", "1e-50", "5.00000000000000000001"]
    values, beyond = parse_floats(texts)
    assert beyond.tolist() == [False, True, False, False, False, False, True, True, True]
    for text, value in zip(texts, values, strict=True):
        if np.isfinite(value):
            assert np.float32(format_float(value)) == value, text


# IEEE bits, FoNE -----------------------------------------------------------------------------------------------------


def test_bits_are_those_of_the_machine() -> None:
    for number in ("0", "1", "-2", "0.15625", "65504", "1e-3"):
        bits = "".join(symbol[4] for symbol in IEEEBits("float64").format_number(number))
        assert int(bits, 2) == int.from_bytes(struct.pack(">d", float(number)), "big")
    assert "".join(symbol[4] for symbol in IEEEBits("float16").format_number("-2")) == "1100000000000000"


def test_bits_that_are_no_number_are_read_as_they_are() -> None:
    ours = IEEEBits("float16")
    two = ours.format_number("2")
    assert ours.decode_symbols([*two, *two]) == "2 2"
    assert ours.decode_symbols([*two, "[BIT1]"]) == "2 [BIT1]"
    assert ours.decode_symbols(["[BIT1]"] * 16) == "[BIT1]" * 16  # not a number in IEEE 754 either


def test_fone_has_as_many_digits_as_it_was_given() -> None:
    written = FoNE(integer_digits=2, fraction_digits=1).format_numbers(
        ["12", "123", "1.5", "1.25", "007", "1.50", "1e1", "1e2"]
    )
    assert written.unrepresentable_mask is not None
    assert written.unrepresentable_mask.tolist() == [False, True, False, True, False, False, False, True]
    assert FoNE().decode_symbols(["[NUM]"], [float(np.float32(12.5))]) == "12.5"


def test_xval_rounds_to_float32_with_round_to_float32() -> None:
    found = ["123456789", "-0.1234567891", "1e400"]
    assert XVal().format_numbers(found).unrepresentable_mask.tolist() == [True, True, True]  # type: ignore[union-attr]
    written = XVal(round_to_float32=True).format_numbers(found)
    assert written.unrepresentable_mask.tolist() == [False, False, True]  # type: ignore[union-attr]
    assert written.number_values.tolist()[:2] == [123456792.0, float(np.float32(-0.1234567891))]  # type: ignore[union-attr]
    assert XVal(round_to_float32=True).format_number("123456789") == ["[NUM]"]
