"""Whole numbers as rows of decimal digits, eight to a machine word.

A number is a row of bytes, units first, zeros behind its last digit. Eight bytes read as one little-endian 64-bit word,
so that a carry moves from byte to byte as in ordinary addition, and one numpy pass adds eight digits of every row.
The width of a row is a multiple of eight.
"""

import numpy as np
from numpy.typing import NDArray

Digits = NDArray[np.uint8]

_SIXES = np.uint64(0xF6F6F6F6F6F6F6F6)
_TOPS = np.uint64(0x8080808080808080)
_SIX = np.uint64(0xF6)
_SEVEN, _LAST = np.uint64(7), np.uint64(63)


def width(columns: int) -> int:
    """The width of rows that hold numbers of so many digits: `width(21)` is 24."""
    return -(-columns // 8) * 8


def masks(low: int, high: int, width: int) -> Digits:
    """Row i has 1 in its first `low + i` columns and 0 in the others; rows for `low` .. `high`."""
    return (np.arange(width) < np.arange(low, high + 1)[:, None]).view(np.uint8)


def parse(text: str, width: int) -> Digits:
    """The row of a number as a person writes it: `parse("0123", 8)` is `[3, 2, 1, 0, 0, 0, 0, 0]`."""
    row = np.zeros(width, dtype=np.uint8)
    row[: len(text)] = np.frombuffer(text.encode()[::-1], dtype=np.uint8) - ord("0")
    return row


def length(digits: Digits) -> NDArray[np.int64]:
    """How many digits the number of each row has, zero having one."""
    found = digits != 0
    beyond = np.argmax(found[..., ::-1], axis=-1)
    return np.where(found.any(axis=-1), digits.shape[-1] - beyond, 1).astype(np.int64)


def add(first: Digits, second: Digits, out: Digits) -> None:
    """Writes first + second to `out`; all `[rows, width]`, and the sum must have at most `width` digits.

    246 is added to every byte with the two digits and the carry: a byte then overflows exactly when its digits make ten
    or more, which hands the carry on and leaves the right digit. The bytes that did not overflow have their top bit
    set, and give the 246 back.
    """
    first_words, second_words, sums = (rows.view("<u8") for rows in (first, second, out))
    carry: NDArray[np.uint64] | None = None
    for place in range(sums.shape[1]):
        total = first_words[:, place] + second_words[:, place]
        total += _SIXES
        if carry is not None:
            total += carry
        kept = total & _TOPS
        kept >>= _SEVEN
        if place + 1 < sums.shape[1]:
            carry = total >> _LAST
            carry ^= np.uint64(1)
        kept *= _SIX
        np.subtract(total, kept, out=sums[:, place])
