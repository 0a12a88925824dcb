"""Promises of every number format: writing blocks, writing one number and reading it back agree."""

from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate import tokenizers
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Numbers
from numerate.tokenizers.number_formats import Digits, NumberFormat, first_hint_index
from numerate.vocabulary import INDEX_HINTS, Vocabulary

EVERY = [getattr(tokenizers, name)() for name in tokenizers.CATALOGUE["NumberFormat"]]
EVERY += [Digits(order, zeros) for order, zeros in product(("reversed", "normal"), (0, 1, 9))]  # type: ignore[arg-type]
EVERY += [
    Digits("answer_reversed"),
    Digits("normal", 1, 2, 31),
    Digits(min_digits=40),
    Digits(index_hints=True),
    Digits("normal", index_hints=True),
    Digits("answer_reversed", 1, 0, 33, index_hints=True),
]
every_format = pytest.mark.parametrize("number_format", EVERY, ids=repr)

VOCABULARY = Vocabulary.with_digits(Digits().extra_symbols())

whole = st.integers(0, 10**30).map(Decimal)
pointed = st.tuples(st.integers(0, 10**12), st.integers(0, 15)).map(lambda pair: Decimal(f"{pair[0]}e-{pair[1]}"))
signed = st.tuples(st.integers(0, 10**12), st.sampled_from([1, -1])).map(lambda pair: Decimal(pair[0] * pair[1]))
mixed = st.tuples(pointed, st.sampled_from([1, -1])).map(lambda pair: pair[0].copy_sign(pair[1]))


def block(numbers: list[Decimal], columns: int = 40) -> Numbers:
    """One slot per row, digit by digit."""
    texts = [format(number.copy_abs(), "f").replace(".", "") for number in numbers]
    points = [max(0, -int(number.as_tuple().exponent)) for number in numbers]
    digits = [[[int(d) for d in text.zfill(columns)]] for text in texts]
    return Numbers(
        np.array(digits, dtype=np.uint8),
        np.array([[len(text.lstrip("0") or "0")] for text in texts]),
        np.array([[number < 0] for number in numbers]) if any(number < 0 for number in numbers) else None,
        np.array([[point] for point in points]) if any(points) else None,
    )


@every_format
@settings(max_examples=25, deadline=None)
@given(numbers=st.one_of(*(st.lists(kind, min_size=1, max_size=12) for kind in (whole, pointed, signed, mixed))))
def test_a_written_block_is_its_numbers_spelled_one_by_one(number_format: NumberFormat, numbers: list[Decimal]) -> None:
    vocabulary = Vocabulary.with_digits(number_format.extra_symbols())
    chance = CounterRNG(1).random_words(len(numbers))
    for answer in (False, True):
        ids, lengths = number_format.encode_numbers(block(numbers), 0, vocabulary, is_answer=answer, random_bits=chance)
        assert ids.shape[1] % 8 == 0
        assert ids.dtype == np.uint8
        for number, row, length, word in zip(numbers, ids, lengths, chance, strict=True):
            written = [vocabulary.tokens[i] for i in row[:length]]
            assert written == number_format.format_number(number, is_answer=answer, random_bits=int(word))
            assert not row[length:].any()


@every_format
@given(number=st.one_of(whole, pointed, signed, mixed), answer=st.booleans(), chance=st.integers(0, 2**64 - 1))
def test_what_is_spelled_is_read_back(number_format: NumberFormat, number: Decimal, answer: bool, chance: int) -> None:
    symbols = number_format.format_number(number, is_answer=answer, random_bits=chance)
    assert number_format.parse_number(symbols, is_answer=answer) == number
    text = "".join(symbols)
    plain = format(number if number else number.copy_abs(), "f")
    assert number_format.normalize_numbers(f"{text}={text}", is_answer=answer) == f"{plain}={plain}"


@every_format
@pytest.mark.parametrize("text", ["", "-", ".", "1.2.3", "--1", "1-2", "1+2", "٣", ".5.", "1.-"])
def test_what_is_no_number_is_read_as_none(number_format: NumberFormat, text: str) -> None:
    for order in (text, text[::-1]):
        if order != "-.1" or not getattr(number_format, "index_hints", False):  # there the point is a hint
            assert number_format.parse_number(list(order)) is None
    assert number_format.parse_number(["1", "[EOS]"]) is None
    assert number_format.parse_number(["12"]) is None


def test_numbers_are_written_as_the_examples_say() -> None:
    spelled = {
        ("reversed", 0): ["321", "7-", "5.1", "0"],
        ("normal", 0): ["123", "-7", "1.5", "0"],
        ("reversed", 2): ["32100", "700-", "5.100", "000"],
        ("normal", 2): ["00123", "-007", "001.5", "000"],
    }
    for (order, zeros), expected in spelled.items():
        number_format = Digits(order, zeros)  # type: ignore[arg-type]
        assert ["".join(number_format.format_number(Decimal(n))) for n in ("123", "-7", "1.5", "0")] == expected
        assert "".join(number_format.format_number(123)) == expected[0]


def test_question_and_answer_may_be_spelled_differently() -> None:
    def both(number_format: Digits, number: int) -> tuple[str, str]:
        return "".join(number_format.format_number(number)), "".join(
            number_format.format_number(number, is_answer=True)
        )

    assert both(Digits("answer_reversed"), -123) == ("-123", "321-")
    assert both(Digits("normal", leading_zeros=2, answer_leading_zeros=3), 7) == ("007", "0007")
    assert both(Digits("normal", leading_zeros=2), 7) == ("007", "007")
    assert both(Digits(min_digits=4), 12) == ("2100", "21")
    assert both(Digits("normal", leading_zeros=1, min_digits=4), 123) == ("00123", "0123")


def test_a_number_that_does_not_fit_into_its_places_is_refused() -> None:
    number_format = Digits(min_digits=4)
    assert "".join(number_format.format_number(12345, is_answer=True)) == "54321"
    for write in (
        lambda: number_format.format_number(12345),
        lambda: number_format.encode_numbers(block([Decimal(12345)]), 0, VOCABULARY),
    ):
        with pytest.raises(UserError, match=r"^min_digits: must be at least 5, .* not 4; .*min_digits=5"):
            write()


def test_hints_are_the_same_for_the_same_power_of_ten_in_a_circle() -> None:
    chance = (INDEX_HINTS.index("a") << 64) // 102 + 2**33  # the letter that the units get
    assert "".join(Digits(index_hints=True).format_number(321, random_bits=chance)) == "a1b2c3"
    assert "".join(Digits("normal", index_hints=True).format_number(1321, random_bits=chance)) == "d1c3b2a1"
    assert "".join(Digits("normal", index_hints=True).format_number(Decimal("-21.5"), random_bits=chance)) == "-b2a1.Z5"
    assert "".join(Digits(index_hints=True).format_number(13, random_bits=2**64 - 1)) == "ω3A1"
    long = Digits(index_hints=True).format_number(10**120)[::2]
    assert "".join(long[:102]) == INDEX_HINTS
    assert long[102] == "A"
    starts = np.bincount(first_hint_index(CounterRNG(1).random_words(102_000)), minlength=102)
    assert np.abs(starts - 1000).max() < 5 * 1000**0.5


def test_numbers_in_a_text_are_turned_back_with_their_signs() -> None:
    assert Digits().normalize_numbers("7-=31") == "-7=13"
    assert Digits("answer_reversed").normalize_numbers("-13", is_answer=False) == "-13"
    assert Digits("answer_reversed").normalize_numbers("31-", is_answer=True) == "-13"
    assert Digits(index_hints=True).normalize_numbers("a3b1-,c") == "-13,c"
    assert Digits(index_hints=True).normalize_numbers("3b1") == "31"  # what has no hint of its own stays as it is
