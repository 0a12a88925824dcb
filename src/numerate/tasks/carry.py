"""Pairs of operands whose sum has no carry, drawn digit by digit instead of by trial."""

import numpy as np
from numpy.typing import NDArray

from numerate.tasks import decimals
from numerate.tasks.counter_rng import CounterRNG

_ABSENT, _FREE, _LEADING = range(3)
"""What a column is to an operand: beyond its first digit, any digit, or its first digit, which is not 0."""


def _pairs() -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """For each of the nine combinations: how many pairs of digits make less than ten, and which."""
    choices = {_ABSENT: range(1), _FREE: range(10), _LEADING: range(1, 10)}
    found = [[(x, y) for x in choices[i] for y in choices[j] if x + y < 10] for i in choices for j in choices]
    table = np.zeros((9, max(map(len, found)), 2), dtype=np.uint8)
    for combination, pairs in enumerate(found):
        table[combination, : len(pairs)] = pairs
    return np.array([len(pairs) for pairs in found]), table


_COUNTS, _PAIRS = _pairs()


def operands(draws: CounterRNG, lengths: NDArray[np.int64], width: int, free: NDArray[np.bool_]) -> decimals.Digits:
    """Digits `[rows, 2, width]`, units first, of operands with these `lengths` `[rows, 2]`, of which no two digits of
    the same place make ten. The first digit of an operand is not 0 unless it is `free`.

    Every such pair comes equally often: the columns of a pair without carries know nothing of each other.
    """
    rows, columns = len(lengths), int(lengths.max(initial=0))
    place = np.arange(columns)
    inside = place < lengths[:, :, None]
    leading = (place == lengths[:, :, None] - 1) & ~free[:, :, None]
    state = inside.astype(np.int64) + leading
    combination = state[:, 0] * 3 + state[:, 1]
    which = draws.below(_COUNTS[combination], (rows, columns))
    digits = np.zeros((rows, 2, width), dtype=np.uint8)
    digits[:, :, :columns] = _PAIRS[combination, which].transpose(0, 2, 1)
    return digits


def count(first: int, second: int, free: tuple[bool, bool] = (False, False)) -> int:
    """How many pairs of operands with so many digits have no carry: `count(1, 1)` is 36 of 81, from 1+1 to 8+1."""
    total = 1
    for place in range(max(first, second)):
        states = [
            _ABSENT if place >= digits else _LEADING if place == digits - 1 and not is_free else _FREE
            for digits, is_free in zip((first, second), free, strict=True)
        ]
        total *= int(_COUNTS[states[0] * 3 + states[1]])
    return total
