"""Carries of sums, differences and products; pairs of operands with given carries, sampled without rejection."""

from functools import lru_cache
from math import exp

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


def column_carries(first: decimals.Digits, second: decimals.Digits, operator: str) -> NDArray[np.bool_]:
    """Which columns carry, bool `[rows, columns]`, of operands `[rows, columns]`, units first.

    A sum carries where its digits and the carry before add up to ten or more, a difference (of which the second operand
    must not be larger) where it borrows, and a product where the products of digits in the column and the carry before
    do.

    >>> column_carries(np.array([[9, 9, 1]], np.uint8), np.array([[1, 0, 0]], np.uint8), "+").tolist()
    [[True, True, False]]
    """
    x, y = first.astype(np.int64), second.astype(np.int64)
    columns = x.shape[1]
    if operator == "x":
        sums = np.zeros_like(x)
        for place in np.flatnonzero(second.any(axis=0)).tolist():
            sums[:, place:] += x[:, : columns - place] * y[:, place, None]
    else:
        sums = x + y if operator == "+" else 9 - x + y
    carry, carries = np.zeros(len(x), dtype=np.int64), np.empty((columns, len(x)), dtype=np.bool_)
    for place, column in enumerate(np.ascontiguousarray(sums.T)):
        carry = (column + carry) // 10
        carries[place] = carry > 0
    return carries.T


def longest_chains(carries: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The most consecutive columns that carry, of each row.

    >>> longest_chains(np.array([[True, True, False, True], [False, False, False, False]])).tolist()
    [2, 0]
    """
    places = np.arange(carries.shape[1])
    last_without = np.maximum.accumulate(np.where(carries, -1, places), axis=1)
    longest: NDArray[np.int64] = (places - last_without).max(axis=1, initial=0)
    return longest


@lru_cache(maxsize=4)
def _chain_probabilities(operator: str, digits: int, chain: int) -> tuple[NDArray[np.float64], float]:
    """The probability that a column carries, given the number of carries directly before it and whether `chain` of them
    were in a row already, `[columns, 2, chain + 1]`; and the logarithm of the number of pairs of operands.

    The logarithm of the number of ways to continue from each state is computed from the last column to the first.
    """
    ends = np.full((2, chain + 2), -np.inf)  # the last entry: one more carry than allowed
    ends[1, : chain + 1 if operator == "+" else 1] = 0.0
    probabilities = np.zeros((digits, 2, chain + 1))
    counts = np.log(np.maximum(_CHAIN_COUNTS[operator].reshape(2, 2, 2), 1e-300))
    has_carry = (np.arange(chain + 1) > 0).astype(np.int64)
    for column in reversed(range(digits)):
        without, with_carry = counts[int(column == digits - 1), has_carry].T
        carried = ends[:, 1:].copy()
        if chain:
            carried[0, chain - 1] = ends[1, chain]
        carried = with_carry + carried
        total = np.logaddexp(without + ends[:, :1], carried)
        is_possible = np.isfinite(total)
        probabilities[column][is_possible] = np.exp(carried[is_possible] - total[is_possible])
        ends[:, :-1] = total
    return probabilities, float(ends[int(chain == 0), 0])


def _chain_table(operator: str) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """As `_pair_table`, for each combination of role (free, leading), carry before and carry behind the column."""
    pairs_by_combination = [
        [
            (x, y)
            for x in range(lowest, 10)
            for y in range(lowest, 10)
            if (x + y + before > 9 if operator == "+" else x - y - before < 0) == bool(behind)
        ]
        for lowest in (0, 1)
        for before in (0, 1)
        for behind in (0, 1)
    ]
    table = np.zeros((8, max(map(len, pairs_by_combination)), 2), dtype=np.uint8)
    for combination, pairs in enumerate(pairs_by_combination):
        table[combination, : len(pairs)] = pairs
    return np.array([len(pairs) for pairs in pairs_by_combination]), table


_CHAIN_COUNTS = {operator: _chain_table(operator)[0] for operator in "+-"}
_CHAIN_PAIRS = {operator: _chain_table(operator)[1] for operator in "+-"}


def max_chain(operator: str, digits: int) -> int:
    """The longest carry chain of operands of this many digits: a difference never borrows in its last column."""
    return digits if operator == "+" else digits - 1


def draw_operands_with_chain(
    rng: CounterRNG, operator: str, rows: int, digits: int, chain: int, width: int
) -> decimals.Digits:
    """Digits `[rows, 2, width]`, units first, of operands of `digits` digits whose longest carry chain has `chain`
    columns: of sums, all such pairs have the same probability. Of differences, all pairs whose first operand is not
    smaller have; then they are exchanged in half of the rows."""
    probabilities, _ = _chain_probabilities(operator, digits, chain)
    chances = rng.random_half_words(rows * digits).reshape(digits, rows) / 2.0**32
    carries = np.zeros((digits + 1, rows), dtype=np.bool_)  # the first row: nothing is carried into the units
    run, is_reached = np.zeros(rows, dtype=np.int64), np.full(rows, int(chain == 0))
    for column in range(digits):
        carries[column + 1] = chances[column] < probabilities[column, is_reached, run]
        run = (run + 1) * carries[column + 1]
        is_reached |= run == chain
    combination = (carries[:-1] * 2 + carries[1:]).T.astype(np.int64)
    combination[:, -1] += 4
    pair_indices = rng.integers(_CHAIN_COUNTS[operator][combination], (rows, digits))
    operands = np.zeros((rows, 2, width), dtype=np.uint8)
    operands[:, :, :digits] = _CHAIN_PAIRS[operator][combination, pair_indices].transpose(0, 2, 1)
    if operator == "-":
        is_exchanged = rng.integers(2, (rows,)) == 1
        operands[is_exchanged] = operands[is_exchanged, ::-1]
    return operands


def count_pairs_with_chain(operator: str, digits: int, chain: int) -> int | None:
    """Number of pairs that `draw_operands_with_chain` draws from; None for more than 10**15.

    >>> count_pairs_with_chain("+", 1, 0), count_pairs_with_chain("+", 1, 1)
    (36, 45)
    """
    _, log_count = _chain_probabilities(operator, digits, chain)
    count = exp(min(log_count, 40.0))
    if count > 1e15:
        return None
    return round(count) if operator == "+" else 2 * round(count) - _num_equal_pairs(digits, chain)


def _num_equal_pairs(digits: int, chain: int) -> int:
    """Number of pairs of equal operands, whose difference has no borrow."""
    return 9 * 10 ** (digits - 1) if chain == 0 else 0
