"""Promises of sums, differences and products."""

import hashlib
import operator
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Questions

spans = st.tuples(st.integers(1, 40), st.integers(0, 5)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


def values(questions: Questions) -> list[list[int]]:
    """The numbers of each row, read digit by digit."""
    rows = questions.numbers.digits.tolist()
    return [[int("".join(map(str, number))) for number in row] for row in rows]


RESULTS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "x": operator.mul}


@settings(max_examples=120, deadline=None)
@given(
    sign=st.sampled_from("+-x"),
    first=spans,
    second=spans,
    lengths=st.sampled_from(["cycle", "uniform", "value"]),
    zero=st.booleans(),
    split=st.sampled_from(["train", "test", "validation"]),
    seed=st.integers(0, 2**40),
    start=st.integers(0, 10**12),
)
def test_answers_are_right_and_operands_have_the_requested_lengths(
    sign: str, first: Span, second: Span, lengths: str, zero: bool, split: str, seed: int, start: int
) -> None:
    task = Arithmetic(sign, first_digits=first, second_digits=second, lengths=lengths, include_zero=zero)  # type: ignore[arg-type]
    drawn = task.examples(split, seed, start, 29)
    negative = drawn.numbers.negative
    for row, (a, b, size) in enumerate(values(drawn)):
        below_zero = negative is not None and bool(negative[row, 2])
        assert (-size if below_zero else size) == RESULTS[sign](a, b)
        assert negative is None or not negative[row, :2].any()
        assert drawn.numbers.lengths[row].tolist() == [len(str(a)), len(str(b)), len(str(size))]
        text = "".join(drawn.alphabet[symbol] if symbol >= 0 else str(symbol) for symbol in drawn.symbols[row])
        assert text == f"-1{sign}-2=-3"
        assert drawn.metadata["first_digits"][row] == len(str(a))
        assert drawn.metadata["second_digits"][row] == len(str(b))
        if lengths != "value":
            assert len(str(a)) in first
            assert len(str(b)) in second
            assert zero or (a and b)


def test_questions_of_every_operator_are_read() -> None:
    found = {
        text: values(Arithmetic(text[2]).parse_question(text))[0][2] for text in ("12-9=", "12x0=", "99x99", "00-0=")
    }
    assert found == {"12-9=": 3, "12x0=": 0, "99x99": 9801, "00-0=": 0}
    difference = Arithmetic("-").parse_question("9-12=")
    assert values(difference)[0][2] == 3
    assert difference.numbers.negative is not None
    assert difference.numbers.negative.tolist() == [[False, False, True]]
    with pytest.raises(UserError, match="at most 10000 digits"):
        Arithmetic("x").parse_question("1" * 10_001 + "x2=")


@pytest.mark.parametrize("zero", [False, True])
def test_sums_without_carries_come_all_and_equally_often(zero: bool) -> None:
    task = Arithmetic(first_digits=1, second_digits=2, no_carry=True, include_zero=zero)
    possible = {
        (a, b)
        for a in range(0 if zero else 1, 10)
        for b in range(10, 100)
        if all(int(x) + int(y) < 10 for x, y in zip(str(a)[::-1], str(b)[::-1], strict=False))
    }
    assert task.num_questions() == len(possible)
    drawn = task.draw(CounterRNG(1), np.arange(60_000))
    counts = Counter((a, b) for a, b, _ in values(drawn))
    assert set(counts) == possible
    usual = 60_000 / len(possible)
    assert max(abs(count - usual) for count in counts.values()) < 5 * usual**0.5


@given(first=st.integers(1, 30), second=st.integers(1, 30), lengths=st.sampled_from(["cycle", "value"]))
@settings(max_examples=30, deadline=None)
def test_no_digit_of_a_sum_without_carries_comes_from_ten(first: int, second: int, lengths: str) -> None:
    task = Arithmetic(first_digits=first, second_digits=second, no_carry=True, lengths=lengths)  # type: ignore[arg-type]
    digits = task.examples("train", 0, 0, 50).numbers.digits
    assert np.array_equal(digits[:, 0] + digits[:, 1], digits[:, 2])
    assert Arithmetic(digits=Span(1, 2), no_carry=True).unsplit_cells()[-1] == {"first_digits": 2, "second_digits": 2}


def test_the_value_of_an_operand_may_be_uniform_instead_of_its_length() -> None:
    task = Arithmetic(first_digits=2, second_digits=Span(1, 3), lengths="value")
    drawn = task.draw(CounterRNG(1), np.arange(40_000))
    counts = np.bincount([row[0] for row in values(drawn)], minlength=100)
    assert len(counts) == 100
    assert np.abs(counts - 400).max() < 5 * 400**0.5
    assert drawn.metadata["first_digits"].tolist() == [len(str(row[0])) for row in values(drawn)]
    assert (drawn.metadata["second_digits"] == 3).mean() == pytest.approx(0.9, abs=0.01)
    assert task.num_questions() == 100_000
    assert Arithmetic(digits=Span(1, 2)).num_questions() == 99 * 99
    assert task.is_held_out("test")
    assert not Arithmetic(digits=1, lengths="value").is_held_out("test")


def test_blocks_are_those_they_have_always_been() -> None:
    def digest(task: Arithmetic, split: str) -> str:
        drawn = task.examples(split, 1, 0, 300)
        return hashlib.sha256("".join(f"{a}+{b}={c};" for a, b, c in values(drawn)).encode()).hexdigest()[:16]

    assert digest(Arithmetic(), "train") == "0a283c3b0be90828"
    assert digest(Arithmetic(), "test") == "61626dbbaa28229b"
    assert digest(Arithmetic(), "ood_validation") == "beed951759e24669"
    assert digest(Arithmetic(digits=3), "validation") == "a855b1d2b7eb4e5e"
    assert digest(Arithmetic(lengths="uniform", include_zero=True, digits=Span(1, 5)), "train") == "08de35f721dcbb4f"


def test_every_pair_of_lengths_comes_equally_often_in_every_split() -> None:
    task = Arithmetic(first_digits=Span(1, 3), second_digits=Span(2, 5))
    for split in ("train", "test", "validation"):
        lengths = task.examples(split, 0, 0, 12 * 50).numbers.lengths
        assert set(Counter(map(tuple, lengths[:, :2].tolist())).values()) == {50}
    assert lengths[:4, :2].tolist() == [[1, 2], [1, 3], [1, 4], [1, 5]]


def test_operands_are_uniform_over_the_numbers_of_their_length() -> None:
    drawn = Arithmetic(digits=2).draw(CounterRNG(1), np.arange(90_000))
    for slot in (0, 1):
        counts = np.bincount([row[slot] for row in values(drawn)], minlength=100)
        assert counts[:10].sum() == 0
        assert np.abs(counts[10:] - 1000).max() < 5 * 1000**0.5


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_cells_of_a_grid_know_nothing_of_each_other(split: str) -> None:
    cells = [(8, 8), (8, 9), (9, 8), (9, 9)]
    digits = [
        Arithmetic().at_cell(first_digits=i, second_digits=j).examples(split, 0, 0, 1000).numbers.digits
        for i, j in cells
    ]
    units = np.array([cell[:, slot, -place] for cell in digits for slot in (0, 1) for place in (1, 2, 3)], dtype=float)
    assert np.abs(np.corrcoef(units) - np.eye(len(units))).max() < 0.15


def test_a_question_and_its_mirror_image_are_in_the_same_split_but_for_differences() -> None:
    for sign, alike in (("x", True), ("-", False), ("+", True)):
        task = Arithmetic(sign)
        one, other, third = (
            task.question_hashes(task.parse_question(text.replace("+", sign)))
            for text in ("123+45678=", "45678+123=", "123+45679=")
        )
        assert (one == other) == alike
        assert one != third
    assert one == task.question_hashes(Arithmetic(digits=Span(1, 90)).parse_question(" 000123 + 45678"))


def test_small_cells_are_seen_and_the_task_says_which() -> None:
    task = Arithmetic(digits=Span(1, 5))
    seen = [(cell["first_digits"], cell["second_digits"]) for cell in task.unsplit_cells()]
    assert seen == [(1, 1), (1, 2), (2, 1)]
    for i, j in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (5, 5)]:
        cell = task.at_cell(first_digits=i, second_digits=j)
        assert cell.is_held_out("test") == ((i, j) not in seen)
        assert not cell.is_held_out("train")
    drawn = task.examples("train", 0, 0, 25 * 160)
    by_cell = {tuple(row) for row in drawn.numbers.lengths[~task.splittable_mask(drawn), :2].tolist()}
    assert by_cell == set(seen)
    single = {(a, b) for a, b, _ in values(drawn) if a < 10 and b < 10}
    assert len(single) > 60  # of 81, in 160 draws, from the whole of the cell
    assert Arithmetic(digits=Span(7, 9)).unsplit_cells() == []


def test_ood_validation_is_a_fifth_longer_and_at_least_one_digit() -> None:
    assert Arithmetic().ood_validation_task().training_spans() == {
        "first_digits": Span(21, 24),
        "second_digits": Span(21, 24),
    }
    assert Arithmetic(digits=3).ood_validation_task().operand_spans == (Span(4, 4), Span(4, 4))
    lengths = Arithmetic(digits=Span(1, 5)).examples("ood_validation", 0, 0, 40).numbers.lengths
    assert set(lengths[:, :2].reshape(-1).tolist()) == {6}


def test_a_question_is_read_as_a_person_writes_it() -> None:
    task = Arithmetic()
    assert values(task.parse_question("321+654=")) == [[321, 654, 975]]
    assert values(task.parse_question(" 007 + 0")) == [[7, 0, 7]]
    assert task.parse_question("007+0=").numbers.lengths.tolist() == [[1, 1, 1]]
    for text in ("321-654=", "12+", "+9=", "1+2=3", "one+two", "", "٣+٤="):
        with pytest.raises(UserError, match=r"an example is 12\+9="):
            task.parse_question(text)


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"^no_carry: must be false .*only sums have carries"):
        Arithmetic("x", no_carry=True)
    with pytest.raises(UserError, match=r"sum without a carry"):
        Arithmetic(no_carry=True).parse_question("5+5=")


@pytest.mark.parametrize(
    ("operator", "first", "second", "answer"),
    [("+", 2, 3, 4), ("+", 1, 1, 2), ("x", 2, 3, 5), ("-", 2, 2, 3), ("-", 1, 3, 4), ("-", 3, 1, 3)],
)
def test_the_longest_question_has_the_longest_answer_of_all(
    operator: str, first: int, second: int, answer: int
) -> None:
    task = Arithmetic(operator, first_digits=Span(1, first), second_digits=Span(1, second))
    longest = task.longest_questions()
    assert longest is not None
    assert longest.numbers.lengths[0, :2].tolist() == [first, second]
    signed = 0 if longest.numbers.negative is None else int(longest.numbers.negative[0, 2])
    assert int(longest.numbers.lengths[0, 2]) + signed == answer
    every = [
        len(str({"+": i + j, "-": i - j, "x": i * j}[operator]))
        for i in range(10 ** (first - 1), 10**first)
        for j in range(10 ** (second - 1), 10**second, 1 if second < 3 else 7)
    ]
    assert max(every) == answer
