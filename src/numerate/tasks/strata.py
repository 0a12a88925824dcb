"""Questions with two operands that are almost never drawn at random: carries through all columns, unequal lengths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.tasks import decimals
from numerate.tasks.counter_rng import CounterRNG

_LEADING_DIGITS = {"number": 9, "small number": 8}
"""Drawn operands, with the number of their leading digits from 1: of a + (10^n - a) both have n digits if a begins with
at most 8."""


class Cascade(NamedTuple):
    """Operands of which each column carries: the kind of each operand (`_draw_operand`), by the operator."""

    operator: str
    first: str
    second: str

    @property
    def is_drawn(self) -> bool:
        """Whether there are several questions of a length."""
        return not _LEADING_DIGITS.keys().isdisjoint(self)

    @property
    def min_digits(self) -> int:
        """The fewest digits of the longest operand."""
        return 2 if self.first == "power" else 1

    def lengths(self, digits: int) -> tuple[int, int]:
        """Numbers of digits of the operands, if the longest has `digits`."""
        lengths = {"one": 1, "nine": 1, "power": digits}
        short = digits - (self.first == "power")
        return lengths.get(self.first, short), lengths.get(self.second, short)


CASCADES = {
    "nines_plus_one": Cascade("+", "nines", "one"),
    "one_plus_nines": Cascade("+", "one", "nines"),
    "complement": Cascade("+", "small number", "complement"),
    "nines_plus_nines": Cascade("+", "nines", "nines"),
    "power_minus_one": Cascade("-", "power", "one"),
    "power_minus_number": Cascade("-", "power", "number"),
    "power_minus_nines": Cascade("-", "power", "nines"),
    "nines_times_nine": Cascade("x", "nines", "nine"),
    "nine_times_nines": Cascade("x", "nine", "nines"),
    "nines_times_nines": Cascade("x", "nines", "nines"),
}
"""For operands of n digits: 99...9 + 1, 1 + 99...9, a + (10^n - a), 99...9 + 99...9; 10^(n-1) - 1, 10^(n-1) - a,
10^(n-1) - 99...9, where a and 99...9 have n - 1 digits; 99...9 x 9, 9 x 99...9, 99...9 x 99...9."""


def draw_cascade(rng: CounterRNG, name: str, digits: NDArray[np.int64], width: int) -> decimals.Digits:
    """Operands `[rows, 2, width]`, units first, of a cascade whose longest operand has `digits` `[rows]`."""
    cascade = CASCADES[name]
    short = digits - (cascade.first == "power")
    kinds = (cascade.first, cascade.second)
    operands = np.stack([_draw_operand(rng, kind, digits if kind == "power" else short, width) for kind in kinds], 1)
    if cascade.second == "complement":  # 10^n - a, as the nines' complement and 1
        operands[:, 1] -= operands[:, 0]
        decimals.add(operands[:, 1].copy(), _draw_operand(rng, "one", digits, width), operands[:, 1])
    return operands


def _draw_operand(rng: CounterRNG, kind: str, digits: NDArray[np.int64], width: int) -> decimals.Digits:
    """Rows of one operand with this many digits; a `complement` is still nines."""
    rows = np.zeros((len(digits), width), dtype=np.uint8)
    if kind in ("one", "nine"):
        rows[:, 0] = 1 if kind == "one" else 9
    elif kind == "power":
        _set_leading_digits(rows, digits, np.uint8(1))
    else:
        rows[:] = rng.random_digits(*rows.shape) if kind in _LEADING_DIGITS else 9
        rows *= np.arange(width) < digits[:, None]
        if kind in _LEADING_DIGITS:
            rows[:, 0] = 1 + rng.integers(9, digits.shape, np.uint8)  # else the last columns do not carry
            _set_leading_digits(rows, digits, 1 + rng.integers(_LEADING_DIGITS[kind], digits.shape, np.uint8))
    return rows


def _set_leading_digits(rows: decimals.Digits, digits: NDArray[np.int64], values: NDArray[np.uint8] | np.uint8) -> None:
    rows[np.arange(len(rows)), digits - 1] = values


def count_cascade(name: str, digits: int) -> int:
    """Number of questions of a cascade whose longest operand has this many digits."""
    cascade = CASCADES[name]
    if not cascade.is_drawn:
        return 1
    leading, length = (8, digits) if cascade.second == "complement" else (9, digits - 1)
    return leading if length == 1 else leading * 10 ** (length - 2) * 9


def uneven_lengths(digits: int) -> dict[str, tuple[int, int]]:
    """The numbers of digits of operands of unequal length, of which the longer one has `digits`.

    >>> uneven_lengths(7)
    {'one_and_n': (1, 7), 'n_and_one': (7, 1), 'half_and_n': (3, 7), 'n_and_half': (7, 3)}
    """
    half = max(1, digits // 2)
    pairs = {"one": (1, digits), "half": (half, digits)}
    return {
        name: lengths
        for short, (low, high) in pairs.items()
        for name, lengths in ((f"{short}_and_n", (low, high)), (f"n_and_{short}", (high, low)))
    }
