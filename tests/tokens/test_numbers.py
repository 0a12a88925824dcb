"""Promises of every spelling of numbers: writing blocks, spelling one number and reading it back agree."""

from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate import tokens
from numerate.errors import Mistake
from numerate.tasks.questions import Numbers
from numerate.tokens.numbers import Digits, NumberSpelling
from numerate.vocabulary import Vocabulary

EVERY = [getattr(tokens, name)() for name in tokens.CATALOGUE["NumberSpelling"]]
EVERY += [Digits(order, zeros) for order, zeros in product(("reversed", "normal"), (0, 1, 9))]  # type: ignore[arg-type]
every_spelling = pytest.mark.parametrize("spelling", EVERY, ids=repr)

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


@every_spelling
@settings(max_examples=25, deadline=None)
@given(numbers=st.one_of(*(st.lists(kind, min_size=1, max_size=12) for kind in (whole, pointed, signed, mixed))))
def test_a_written_block_is_its_numbers_spelled_one_by_one(spelling: NumberSpelling, numbers: list[Decimal]) -> None:
    vocabulary = Vocabulary.of(spelling.texts())
    ids, lengths = spelling.write(block(numbers), 0, vocabulary)
    assert ids.shape[1] % 8 == 0
    assert ids.dtype == np.uint8
    for number, row, length in zip(numbers, ids, lengths, strict=True):
        assert [vocabulary.symbols[i] for i in row[:length]] == spelling.spell(number)
        assert not row[length:].any()


@every_spelling
@given(number=st.one_of(whole, pointed, signed, mixed))
def test_what_is_spelled_is_read_back(spelling: NumberSpelling, number: Decimal) -> None:
    assert spelling.read(spelling.spell(number)) == number


@every_spelling
@pytest.mark.parametrize("text", ["", "-", ".", "1.2.3", "--1", "1-2", "1+2", "٣", ".5.", "1.-"])
def test_what_is_no_number_is_read_as_none(spelling: NumberSpelling, text: str) -> None:
    for order in (text, text[::-1]):
        assert spelling.read(list(order)) is None
    assert spelling.read(["1", "[EOS]"]) is None
    assert spelling.read(["12"]) is None


def test_numbers_are_written_as_the_examples_say() -> None:
    spelled = {
        ("reversed", 0): ["321", "7-", "5.1", "0"],
        ("normal", 0): ["123", "-7", "1.5", "0"],
        ("reversed", 2): ["32100", "700-", "5.100", "000"],
        ("normal", 2): ["00123", "-007", "001.5", "000"],
    }
    for (order, zeros), expected in spelled.items():
        spelling = Digits(order, zeros)  # type: ignore[arg-type]
        assert ["".join(spelling.spell(Decimal(n))) for n in ("123", "-7", "1.5", "0")] == expected
        assert "".join(spelling.spell(123)) == expected[0]


def test_a_large_vocabulary_takes_wider_ids() -> None:
    vocabulary = Vocabulary.of([chr(500 + i) for i in range(300)])
    ids, lengths = Digits().write(block([Decimal(120)]), 0, vocabulary)
    assert ids.dtype == np.uint16
    assert ids[0, : lengths[0]].tolist() == [4, 6, 5]


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(Mistake, match=r"^order: 'backwards' is neither"):
        Digits("backwards")  # type: ignore[arg-type]
    with pytest.raises(Mistake, match=r"^leading_zeros: -1 zeros"):
        Digits(leading_zeros=-1)
