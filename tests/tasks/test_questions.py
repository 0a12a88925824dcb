"""Promises of blocks of questions."""

from dataclasses import replace

import numpy as np
import pytest

from numerate.tasks.counter_rng import mix_bits
from numerate.tasks.plain import format_question
from numerate.tasks.questions import EMPTY, Example, Numbers, Questions, text_hash


def numbers(*rows: list[int], columns: int = 4) -> Numbers:
    digits = [[[int(d) for d in str(n).zfill(columns)] for n in row] for row in rows]
    return Numbers(np.array(digits, dtype=np.uint8), np.array([[len(str(n)) for n in row] for row in rows]))


def sums(*rows: list[int], columns: int = 4) -> Questions:
    return Questions(
        ("+", "="),
        np.array([[-1, 0, -2, 1, -3]] * len(rows), dtype=np.int16),
        numbers(*rows, columns=columns),
        np.full(len(rows), 4),
        metadata={"first": np.array([row[0] for row in rows])},
    )


def shown(questions: Questions) -> list[str]:
    """Each question as text, by reading the arrays piece by piece."""
    texts = []
    for row, symbols in enumerate(questions.symbols):
        text = ""
        for symbol in symbols:
            if symbol >= 0:
                text += questions.alphabet[symbol]
            elif symbol != EMPTY:
                digits = questions.numbers.digits[row, -1 - symbol]
                text += "".join(map(str, digits[len(digits) - questions.numbers.lengths[row, -1 - symbol] :]))
        texts.append(text)
    return texts


def test_rows_are_taken_in_any_order() -> None:
    block = sums([1, 2, 3], [40, 50, 90], [999, 1, 1000])
    assert shown(block.take(np.array([2, 0, 0]))) == ["999+1=1000", "1+2=3", "1+2=3"]
    assert shown(block.take(np.array([False, True, False]))) == ["40+50=90"]
    assert shown(block.take(slice(1, None))) == ["40+50=90", "999+1=1000"]
    assert block.take(np.array([2, 0])).metadata["first"].tolist() == [999, 1]
    assert len(block.take(slice(0, 0))) == 0


def test_a_repeated_row_of_symbols_is_taken_right_too() -> None:
    block = sums([1, 2, 3], [40, 50, 90])
    lean = Questions(
        block.alphabet, np.broadcast_to(block.symbols[:1], (2, 5)), block.numbers, np.broadcast_to(np.int64(4), (2,))
    )
    for rows in (np.array([1, 1, 0]), np.array([True, False]), slice(1, 2), slice(0, 0)):
        taken = lean.take(rows)
        assert shown(taken) == shown(block.take(rows))
        assert len(taken.prompt_lengths) == len(taken)


def test_blocks_of_different_widths_and_alphabets_are_joined() -> None:
    one = sums([1, 2, 3])
    other = Questions(
        ("=", "-"),
        np.array([[-1, 1, -2, 0, -3, 0, EMPTY]], dtype=np.int16),
        numbers([700000, 2, 3], columns=9),
        np.array([4]),
        metadata={"first": np.array([700000])},
    )
    joined = Questions.concatenate([one, other, Questions.concatenate([other, one])])
    assert shown(joined) == ["1+2=3", "700000-2=3=", "700000-2=3=", "1+2=3"]
    assert joined.alphabet == ("+", "=", "-")
    assert joined.metadata["first"].tolist() == [1, 700000, 700000, 1]


def test_signs_and_points_survive_a_join_with_numbers_that_have_none() -> None:
    plain = numbers([5, 6])
    signed = Numbers(plain.digits, plain.lengths, np.array([[True, False]]), np.array([[1, 0]]))
    blocks = [Questions(("=",), np.array([[-1, 0, -2]], dtype=np.int16), n, np.array([2])) for n in (plain, signed)]
    joined = Questions.concatenate(blocks).numbers
    assert joined.negative is not None
    assert joined.decimal_places is not None
    assert joined.negative.tolist() == [[False, False], [True, False]]
    assert joined.decimal_places.tolist() == [[0, 0], [1, 0]]


def test_blocks_of_different_kinds_are_refused() -> None:
    one = sums([1, 2, 3])
    labelled = Questions(one.alphabet, one.symbols, one.numbers, labels=one.symbols, metadata=one.metadata)
    with pytest.raises(ValueError, match="labels"):
        Questions.concatenate([one, labelled])
    with pytest.raises(ValueError, match="metadata"):
        Questions.concatenate([one, Questions(one.alphabet, one.symbols, one.numbers, one.prompt_lengths)])


def test_a_hash_tells_questions_apart_but_not_their_answers_or_padding() -> None:
    hashes = sums([12, 9, 21], [1, 29, 30], [12, 9, 99], [9, 12, 21], [120, 9, 21]).hashes()
    assert hashes[0] == hashes[2]
    assert len(set(hashes.tolist())) == 4
    assert sums([12, 9, 21], columns=30).hashes()[0] == hashes[0]


def test_a_hash_counts_texts_signs_and_points() -> None:
    one = sums([12, 9, 21])
    minus = Questions(("-", "="), one.symbols, one.numbers, one.prompt_lengths)
    negative = Numbers(one.numbers.digits, one.numbers.lengths, np.array([[True, False, False]]))
    tenths = Numbers(one.numbers.digits, one.numbers.lengths, None, np.array([[1, 0, 0]]))
    others = [Questions(one.alphabet, one.symbols, n, one.prompt_lengths) for n in (negative, tenths)]
    assert len({int(q.hashes()[0]) for q in (one, minus, *others)}) == 4
    swapped = Questions(("=", "+"), np.array([[-1, 1, -2, 0, -3]], dtype=np.int16), one.numbers, one.prompt_lengths)
    assert swapped.hashes()[0] == one.hashes()[0]


def test_free_text_is_kept_character_by_character() -> None:
    block = Questions.from_examples([Example("2*7=", "14"), Example("say hi: ", "hi")])
    assert shown(block) == ["2*7=14", "say hi: hi"]
    assert block.prompt_lengths is not None
    assert block.prompt_lengths.tolist() == [4, 8]


def test_hashes_are_those_they_have_always_been() -> None:
    assert f"{text_hash('+'):016x}" == "109e03bb1e5a0426"
    # The first output of splitmix64 with seed 0, as its authors publish it.
    assert f"{int(mix_bits(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]):016x}" == "e220a8397b1dcdaf"
    assert f"{int(sums([12, 9, 21]).hashes()[0]):016x}" == "e6fe94378f76d0f5"


def test_a_question_keeps_its_chance_in_any_order_and_company() -> None:
    one = Questions.from_examples([Example("ab", "c"), Example("d", "e")])
    drawn = replace(one, random_bits=np.array([7, 8], dtype=np.uint64))
    assert drawn.take(np.array([1, 0])).random_bits.tolist() == [8, 7]  # type: ignore[union-attr]
    assert one.take(slice(0, 1)).random_bits is None
    assert Questions.concatenate([one, drawn, one]).random_bits.tolist() == [0, 0, 7, 8, 0, 0]  # type: ignore[union-attr]
    assert Questions.concatenate([one, one]).random_bits is None


def test_pieces_that_are_not_there_change_neither_hash_nor_text() -> None:
    gaps = Questions(
        ("a", "=", "b"),
        np.array([[0, EMPTY, EMPTY, -1, 1, EMPTY, 2], [0, -1, EMPTY, EMPTY, 1, 2, EMPTY]], dtype=np.int16),
        numbers([12], [12]),
        np.array([5, 5]),
    )
    assert gaps.hashes()[0] == gaps.hashes()[1]
    assert [format_question(gaps, row) for row in (0, 1)] == [("a12=", "b")] * 2
