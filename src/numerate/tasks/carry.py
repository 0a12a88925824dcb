"""Pairs of operands whose sum has no carry, sampled digit by digit, without rejection."""

import numpy as np
from numpy.typing import NDArray

from numerate.tasks import decimals
from numerate.tasks.counter_rng import CounterRNG

_ABSENT, _FREE, _LEADING = range(3)
"""The role of a column in an operand: absent, any digit, or the leading digit, which is not 0."""


def _pair_table() -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """For each of the nine combinations of roles: the number of digit pairs with a sum below ten, and the pairs."""
    choices = {_ABSENT: range(1), _FREE: range(10), _LEADING: range(1, 10)}
    pairs_by_combination = [
        [(x, y) for x in choices[i] for y in choices[j] if x + y < 10] for i in choices for j in choices
    ]
    table = np.zeros((9, max(map(len, pairs_by_combination)), 2), dtype=np.uint8)
    for combination, pairs in enumerate(pairs_by_combination):
        table[combination, : len(pairs)] = pairs
    return np.array([len(pairs) for pairs in pairs_by_combination]), table


_COUNTS, _PAIRS = _pair_table()


def draw_operands(
    rng: CounterRNG, lengths: NDArray[np.int64], width: int, may_be_zero: NDArray[np.bool_]
) -> decimals.Digits:
    """Digits `[rows, 2, width]`, units first, of operands with these `lengths` `[rows, 2]`, in which digits at the same
    position add up to less than ten. The leading digit of an operand is not 0, unless `may_be_zero`.

    All such pairs have the same probability, since without carries the columns are independent.
    """
    rows, columns = len(lengths), int(lengths.max(initial=0))
    column_index = np.arange(columns)
    is_digit = column_index < lengths[:, :, None]
    is_leading = (column_index == lengths[:, :, None] - 1) & ~may_be_zero[:, :, None]
    state = is_digit.astype(np.int64) + is_leading
    combination = state[:, 0] * 3 + state[:, 1]
    pair_indices = rng.integers(_COUNTS[combination], (rows, columns))
    digits = np.zeros((rows, 2, width), dtype=np.uint8)
    digits[:, :, :columns] = _PAIRS[combination, pair_indices].transpose(0, 2, 1)
    return digits


def count_pairs(first: int, second: int, may_be_zero: tuple[bool, bool] = (False, False)) -> int:
    """Number of pairs of operands with these numbers of digits that have no carry: `count(1, 1)` is 36 of 81, from 1+1
    to 8+1."""
    total = 1
    for column_index in range(max(first, second)):
        states = [
            _ABSENT if column_index >= digits else _LEADING if column_index == digits - 1 and not is_free else _FREE
            for digits, is_free in zip((first, second), may_be_zero, strict=True)
        ]
        total *= int(_COUNTS[states[0] * 3 + states[1]])
    return total
