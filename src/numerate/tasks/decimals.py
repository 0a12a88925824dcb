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
_LIMB = np.uint64(10**8)


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


def compare(first: Digits, second: Digits) -> NDArray[np.bool_]:
    """Per row, whether first < second; a word is larger where its eight digits are, its last byte counting most."""
    first_words, second_words = first.view("<u8"), second.view("<u8")
    less = first_words[:, 0] < second_words[:, 0]
    for place in range(1, first_words.shape[1]):
        ours, theirs = first_words[:, place], second_words[:, place]
        less = (ours < theirs) | ((ours == theirs) & less)
    return less


def subtract(first: Digits, second: Digits, out: Digits) -> NDArray[np.bool_]:
    """Writes the distance of first and second to `out`, and returns where first - second is negative.

    The smaller is taken from the larger, as in `add` eight digits at once: a byte that borrows is 246 too large, and is
    known by its top bit.

    >>> out = np.zeros((1, 8), dtype=np.uint8)
    >>> subtract(parse("7", 8)[None], parse("12", 8)[None], out).tolist(), out[0, :2].tolist()
    ([True], [5, 0])
    """
    negative = compare(first, second)
    first_words, second_words, differences = (rows.view("<u8") for rows in (first, second, out))
    borrow: NDArray[np.uint64] | None = None
    for place in range(differences.shape[1]):
        ours, theirs = first_words[:, place], second_words[:, place]
        left = np.where(negative, theirs, ours)
        left -= np.where(negative, ours, theirs)
        if borrow is not None:
            left -= borrow
        borrowed = left & _TOPS
        borrow = left >> _LAST
        borrowed >>= _SEVEN
        borrowed *= _SIX
        np.subtract(left, borrowed, out=differences[:, place])
    return negative


def multiply(first: Digits, second: Digits, out: Digits) -> None:
    """Writes first x second to `out`, which may be wider than the two; the product must have at most its width.

    By hand, with eight digits as one: the products of two such limbs are below 10**16, and 64 bits hold the sum of
    1,844 of them, more than numbers of 14,000 digits ask for.
    """
    ours, theirs = packed(first), packed(second)
    ours, theirs = ours[: _used(ours)], theirs[: _used(theirs)]
    places = out.shape[1] // 8
    sums = np.zeros((max(places, len(ours) + len(theirs)), len(out)), dtype=np.uint64)
    for place, limb in enumerate(ours):
        sums[place : place + len(theirs)] += limb * theirs
    words = out.view("<u8")
    carry: NDArray[np.uint64] | None = None
    for place in range(places):
        total = sums[place]
        if carry is not None:
            total += carry
        carry = total // _LIMB
        total -= carry * _LIMB
        words[:, place] = unpacked(total)


def packed(digits: Digits) -> NDArray[np.uint64]:
    """Eight digits as one number: uint64 `[width // 8, rows]`, the units first.

    Neighbours are joined, then pairs, then fours: a byte and ten times the next one are below 100, and so on.
    """
    words = digits.view("<u8").T
    words = (words + (words >> np.uint64(8)) * np.uint64(10)) & np.uint64(0x00FF00FF00FF00FF)
    words = (words + (words >> np.uint64(16)) * np.uint64(100)) & np.uint64(0x0000FFFF0000FFFF)
    joined: NDArray[np.uint64] = (words + (words >> np.uint64(32)) * np.uint64(10_000)) & np.uint64(0xFFFFFFFF)
    return joined


def unpacked(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The way back of `packed`: numbers below 10**8 as words of eight digits, units in the lowest byte.

    Both quotients are of lanes side by side, by multiplication and shift: 10,486 / 2**20 is a hundredth up to 43,698,
    and 103 / 2**10 a tenth up to 178.
    """
    high = numbers // np.uint64(10_000)
    words = numbers - high * np.uint64(10_000) | high << np.uint64(32)
    high = words * np.uint64(10_486) >> np.uint64(20) & np.uint64(0x0000007F0000007F)
    words = words - high * np.uint64(100) | high << np.uint64(16)
    high = words * np.uint64(103) >> np.uint64(10) & np.uint64(0x000F000F000F000F)
    apart: NDArray[np.uint64] = words - high * np.uint64(10) | high << np.uint64(8)
    return apart


def _used(limbs: NDArray[np.uint64]) -> int:
    """How many limbs hold anything in any row, at least one."""
    found = np.flatnonzero(limbs.any(axis=1))
    return int(found[-1]) + 1 if len(found) else 1
