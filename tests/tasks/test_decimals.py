"""Arithmetic eight digits at a time is arithmetic."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from numerate.tasks import decimals


def rows(numbers: list[int], width: int) -> np.ndarray:
    return np.stack([decimals.parse_digits(str(number), width) for number in numbers])


def values(digits: np.ndarray) -> list[int]:
    return [sum(int(digit) * 10**place for place, digit in enumerate(row)) for row in digits]


@given(st.lists(st.tuples(st.integers(0, 10**40), st.integers(0, 10**40)), min_size=1, max_size=20))
def test_sums_are_right(pairs: list[tuple[int, int]]) -> None:
    first, second = (rows([pair[i] for pair in pairs], 48) for i in (0, 1))
    out = np.full_like(first, 77)
    decimals.add(first, second, out)
    assert values(out) == [a + b for a, b in pairs]
    assert out.max() <= 9


def test_a_carry_runs_through_every_word() -> None:
    numbers = [10**n - 1 for n in (1, 7, 8, 9, 16, 24, 999)]
    first, second = rows(numbers, 1000), rows([1] * len(numbers), 1000)
    out = np.empty_like(first)
    decimals.add(first, second, out)
    assert values(out) == [number + 1 for number in numbers]
    assert decimals.num_digits(out).tolist() == [2, 8, 9, 10, 17, 25, 1000]


def test_rows_that_are_slices_of_a_larger_array_are_added_too() -> None:
    block = np.zeros((2, 3, 8), dtype=np.uint8)
    block[:, 0], block[:, 1] = rows([95, 5], 8), rows([7, 5], 8)
    decimals.add(block[:, 0], block[:, 1], block[:, 2])
    assert values(block[:, 2]) == [102, 10]


def test_lengths_count_no_zeros_in_front_and_one_for_zero() -> None:
    assert decimals.num_digits(rows([0, 7, 10, 900], 8)).tolist() == [1, 1, 2, 3]
    assert [decimals.row_width(n) for n in (1, 8, 9, 21)] == [8, 8, 16, 24]


@given(st.lists(st.tuples(st.integers(0, 10**40), st.integers(0, 10**40)), min_size=1, max_size=20))
def test_differences_are_right_and_say_their_sign(pairs: list[tuple[int, int]]) -> None:
    pairs = [*pairs, (pairs[0][0], pairs[0][0]), (10**40, 10**39), (10**16, 1), (1, 10**16)]
    first, second = (rows([pair[i] for pair in pairs], 48) for i in (0, 1))
    out = np.full_like(first, 77)
    negative = decimals.subtract(first, second, out)
    assert [-value if below else value for value, below in zip(values(out), negative, strict=True)] == [
        a - b for a, b in pairs
    ]
    assert negative.tolist() == [a < b for a, b in pairs]
    assert out.max() <= 9


@given(st.lists(st.tuples(st.integers(0, 10**40), st.integers(0, 10**70)), min_size=1, max_size=20))
def test_products_are_right(pairs: list[tuple[int, int]]) -> None:
    first, second = (rows([pair[i] for pair in pairs], 112) for i in (0, 1))
    out = np.full_like(first, 77)
    decimals.multiply(first, second, out)
    assert values(out) == [a * b for a, b in pairs]
    assert out.max() <= 9


def test_the_largest_products_that_are_allowed_do_not_overflow() -> None:
    for digits in (8, 100, 10_000):
        nines = decimals.parse_digits("9" * digits, decimals.row_width(2 * digits))[None]
        out = np.empty_like(nines)
        decimals.multiply(nines, nines, out)
        found = "".join(map(str, out[0, : 2 * digits][::-1]))  # (10^n - 1)^2 = 10^2n - 2 10^n + 1
        assert found == "9" * (digits - 1) + "8" + "0" * (digits - 1) + "1"
