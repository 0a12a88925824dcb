"""Integers as rows of decimal digits, eight per 64-bit word.

A number is a row of bytes, units first, padded with zeros. Eight bytes are one little-endian 64-bit word, so that
carries propagate between bytes, and one numpy operation adds eight digits of every row. The width of a row is a
multiple of eight.
"""

import numpy as np
from numpy.typing import NDArray

Digits = NDArray[np.uint8]

_SIXES = np.uint64(0xF6F6F6F6F6F6F6F6)
_TOPS = np.uint64(0x8080808080808080)
_SIX = np.uint64(0xF6)
_SEVEN, _LAST = np.uint64(7), np.uint64(63)
_LIMB = np.uint64(10**8)


def row_width(columns: int) -> int:
    """The width of rows for numbers with this many digits: `row_width(21)` is 24."""
    return -(-columns // 8) * 8


def length_masks(low: int, high: int, width: int) -> Digits:
    """Row i has 1 in its first `low + i` columns and 0 in the others; rows for `low` .. `high`."""
    return (np.arange(width) < np.arange(low, high + 1)[:, None]).view(np.uint8)


def parse_digits(text: str, width: int) -> Digits:
    """The row of a number in plain notation: `parse_digits("0123", 8)` is `[3, 2, 1, 0, 0, 0, 0, 0]`."""
    row = np.zeros(width, dtype=np.uint8)
    row[: len(text)] = np.frombuffer(text.encode()[::-1], dtype=np.uint8) - ord("0")
    return row


def num_digits(digits: Digits) -> NDArray[np.int64]:
    """Number of digits of each row; zero has one."""
    is_nonzero = digits != 0
    num_trailing_zeros = np.argmax(is_nonzero[..., ::-1], axis=-1)
    return np.where(is_nonzero.any(axis=-1), digits.shape[-1] - num_trailing_zeros, 1).astype(np.int64)


def add(first: Digits, second: Digits, out: Digits) -> None:
    """Writes first + second to `out`; all `[rows, width]`, and the sum must have at most `width` digits.

    246 is added to every byte with the two digits and the carry: a byte then overflows exactly if its digits add up to
    ten or more, which propagates the carry and leaves the correct digit. Bytes that did not overflow have their top bit
    set, and 246 is subtracted from them again.
    """
    first_words, second_words, sums = (rows.view("<u8") for rows in (first, second, out))
    carry: NDArray[np.uint64] | None = None
    for word_index in range(sums.shape[1]):
        total = first_words[:, word_index] + second_words[:, word_index]
        total += _SIXES
        if carry is not None:
            total += carry
        correction = total & _TOPS
        correction >>= _SEVEN
        if word_index + 1 < sums.shape[1]:
            carry = total >> _LAST
            carry ^= np.uint64(1)
        correction *= _SIX
        np.subtract(total, correction, out=sums[:, word_index])


def is_less(first: Digits, second: Digits) -> NDArray[np.bool_]:
    """Per row, whether first < second; words compare like their eight digits, since the last byte is the most
    significant."""
    first_words, second_words = first.view("<u8"), second.view("<u8")
    less = first_words[:, 0] < second_words[:, 0]
    for place in range(1, first_words.shape[1]):
        first_word, second_word = first_words[:, place], second_words[:, place]
        less = (first_word < second_word) | ((first_word == second_word) & less)
    return less


def subtract(first: Digits, second: Digits, out: Digits) -> NDArray[np.bool_]:
    """Writes |first - second| to `out`, and returns the mask of negative differences.

    Subtracts the smaller from the larger, eight digits at once as in `add`: a byte that borrows is 246 too large and
    has its top bit set.

    >>> out = np.zeros((1, 8), dtype=np.uint8)
    >>> subtract(parse_digits("7", 8)[None], parse_digits("12", 8)[None], out).tolist(), out[0, :2].tolist()
    ([True], [5, 0])
    """
    negative = is_less(first, second)
    first_words, second_words, differences = (rows.view("<u8") for rows in (first, second, out))
    borrow: NDArray[np.uint64] | None = None
    for word_index in range(differences.shape[1]):
        first_word, second_word = first_words[:, word_index], second_words[:, word_index]
        difference = np.where(negative, second_word, first_word)
        difference -= np.where(negative, first_word, second_word)
        if borrow is not None:
            difference -= borrow
        correction = difference & _TOPS
        borrow = difference >> _LAST
        correction >>= _SEVEN
        correction *= _SIX
        np.subtract(difference, correction, out=differences[:, word_index])
    return negative


def multiply(first: Digits, second: Digits, out: Digits) -> None:
    """Writes first x second to `out`, which may be wider than the two; the product must have at most its width.

    Long multiplication with limbs of eight digits: products of two limbs are below 10**16, and 64 bits hold the sum of
    1,844 of them, enough for numbers of 14,000 digits.
    """
    first_limbs, second_limbs = pack_limbs(first), pack_limbs(second)
    first_limbs, second_limbs = (
        first_limbs[: _num_used_limbs(first_limbs)],
        second_limbs[: _num_used_limbs(second_limbs)],
    )
    num_limbs = out.shape[1] // 8
    sums = np.zeros((max(num_limbs, len(first_limbs) + len(second_limbs)), len(out)), dtype=np.uint64)
    for limb_index, limb in enumerate(first_limbs):
        sums[limb_index : limb_index + len(second_limbs)] += limb * second_limbs
    words = out.view("<u8")
    carry: NDArray[np.uint64] | None = None
    for limb_index in range(num_limbs):
        total = sums[limb_index]
        if carry is not None:
            total += carry
        carry = total // _LIMB
        total -= carry * _LIMB
        words[:, limb_index] = unpack_limbs(total)


def pack_limbs(digits: Digits) -> NDArray[np.uint64]:
    """Packs eight digits into one number: uint64 `[width // 8, rows]`, units first.

    Combines neighbors, then pairs, then groups of four: a byte plus ten times the next one is below 100, and so on.
    """
    words = digits.view("<u8").T
    words = (words + (words >> np.uint64(8)) * np.uint64(10)) & np.uint64(0x00FF00FF00FF00FF)
    words = (words + (words >> np.uint64(16)) * np.uint64(100)) & np.uint64(0x0000FFFF0000FFFF)
    joined: NDArray[np.uint64] = (words + (words >> np.uint64(32)) * np.uint64(10_000)) & np.uint64(0xFFFFFFFF)
    return joined


def unpack_limbs(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The inverse of `pack_limbs`: numbers below 10**8 as words of eight digits, units in the lowest byte.

    Both divisions are by multiplication and shift, for several lanes at once: 10,486 / 2**20 is a hundredth up to
    43,698, and 103 / 2**10 a tenth up to 178.
    """
    high = numbers // np.uint64(10_000)
    words = numbers - high * np.uint64(10_000) | high << np.uint64(32)
    high = words * np.uint64(10_486) >> np.uint64(20) & np.uint64(0x0000007F0000007F)
    words = words - high * np.uint64(100) | high << np.uint64(16)
    high = words * np.uint64(103) >> np.uint64(10) & np.uint64(0x000F000F000F000F)
    digits: NDArray[np.uint64] = words - high * np.uint64(10) | high << np.uint64(8)
    return digits


def _num_used_limbs(limbs: NDArray[np.uint64]) -> int:
    """Number of limbs that are nonzero in any row; at least one."""
    nonzero_limbs = np.flatnonzero(limbs.any(axis=1))
    return int(nonzero_limbs[-1]) + 1 if len(nonzero_limbs) else 1
