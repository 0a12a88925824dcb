"""Random numbers that depend only on their key.

A key is a hash of everything that should matter (seed, split, every field of the task, block). A `CounterRNG` returns
the words of numpy's Philox4x64-10 counter generator with that key: Salmon et al. (2011), "Parallel random numbers: as
easy as 1, 2, 3", https://doi.org/10.1145/2063384.2063405. Only its raw words are used, since numpy guarantees them, but
not the streams of its `Generator`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from numerate.config.settings import settings_in_key

_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)


def random_key(*values: Any) -> int:
    """A 128-bit key from plain values and specs: blake2b over their canonical JSON.

    A spec is hashed with its class name and every field (see `settings_in_key`), so that a task with one field fixed
    has a different key. Raises `TypeError` for values without a canonical form.

    >>> random_key("train", 0) == random_key("train", 0), random_key("train", 0) == random_key("train", "0")
    (True, False)
    """
    text = json.dumps(_to_plain_data(values), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def _to_plain_data(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        name, settings = settings_in_key(value)
        return {"kind": name} | {key: _to_plain_data(setting) for key, setting in settings.items()}
    if isinstance(value, tuple | list):
        return [_to_plain_data(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _to_plain_data(item) for name, item in value.items()}
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"a key must consist of plain values and specs, not {type(value).__name__}")


class CounterRNG:
    """The random numbers of one key, in order. Two `CounterRNG` with the same key return the same numbers.

    >>> CounterRNG(random_key("a")).integers(10, (3,)).tolist()
    [1, 3, 9]
    """

    def __init__(self, key: int) -> None:
        self.key = key
        halves = np.array([key & (2**64 - 1), key >> 64 & (2**64 - 1)], dtype=np.uint64)
        self._philox = np.random.Philox(key=halves, counter=0)

    def random_words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` raw 64-bit words."""
        return np.asarray(self._philox.random_raw(count), dtype=np.uint64)

    def random_half_words(self, count: int) -> NDArray[np.uint32]:
        """The next `count` 32-bit halves of words, the low half first. The rest of the last word is discarded."""
        return self.random_words((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]

    def integers(
        self, bound: int | NDArray[np.int64], shape: tuple[int, ...], dtype: DTypeLike = np.int64
    ) -> NDArray[Any]:
        """Integers from 0 to `bound - 1`; `bound` is one number or an array that broadcasts to `shape`.

        By multiplication and shift, from a 32-bit half for bounds up to 65,536 and from a whole word above. The
        probabilities of two values differ by at most one part in 65,536 (bound 65,536; one in 4e8 for bound 10), or one
        in 2**64 / bound beyond. Raises `ValueError` for a bound below 1.
        """
        bounds = np.asarray(bound)
        if bounds.size and int(bounds.min()) < 1:
            raise ValueError("below: the bound must be at least 1")
        count = int(np.prod(shape, dtype=np.int64))
        factor = bounds.astype(np.uint64)
        if not bounds.size or int(bounds.max()) <= 1 << 16:
            half_words = self.random_half_words(count).astype(np.uint64).reshape(shape)
            return (half_words * factor >> _SHIFT_32).astype(dtype)
        return _multiply_high(self.random_words(count).reshape(shape), factor).astype(dtype)

    def random_digits(self, rows: int, columns: int) -> NDArray[np.uint8]:
        """Decimal digits, uint8 `[rows, columns]`, four from each 32-bit half; `columns` must be a multiple of four.

        The probabilities of two groups of four differ by at most one part in 429,496.
        """
        half_words = self.random_half_words(rows * columns // 4).astype(np.uint64)
        half_words *= np.uint64(10_000)
        half_words >>= _SHIFT_32
        return _FOUR_DIGITS.take(half_words.view(np.int64)).view(np.uint8).reshape(rows, columns)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A permutation of 0 .. count-1: the indices sorted by one random word each (ties keep their order)."""
        return np.argsort(self.random_words(count), kind="stable").astype(np.int64)


def _multiply_high(words: NDArray[np.uint64], factor: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The upper 64 bits of the 128-bit products."""
    low, high = words & _LOW_32_BITS, words >> _SHIFT_32
    low_factor, high_factor = factor & _LOW_32_BITS, factor >> _SHIFT_32
    middle = high * low_factor + (low * low_factor >> _SHIFT_32)
    other = low * high_factor + (middle & _LOW_32_BITS)
    product: NDArray[np.uint64] = high * high_factor + (middle >> _SHIFT_32) + (other >> _SHIFT_32)
    return product


_FOUR_DIGITS = np.array([list(f"{n:04d}".encode()) for n in range(10_000)], dtype=np.uint8) - np.uint8(ord("0"))
_FOUR_DIGITS = np.ascontiguousarray(_FOUR_DIGITS).view("<u4").reshape(-1)
"""The four digits of every number below 10,000 as one 32-bit word, for `digits`."""


def mix_bits(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection in which every bit affects every other."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def permute(indices: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """The images of these indices under a permutation of 0 .. count - 1 that is a function of the key; no memory.

    A Feistel network of eight rounds over the next power of four, walked until it ends below `count` (Black and
    Rogaway, 2002, "Ciphers with arbitrary finite domains", https://doi.org/10.1007/3-540-45760-7_9).

    >>> sorted(permute(np.arange(10), 10, random_key("a")).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = CounterRNG(key).random_words(8)
    result = indices.astype(np.uint64)
    out_of_range = np.arange(len(result))
    while len(out_of_range):
        left, right = result[out_of_range] >> half, result[out_of_range] & mask
        for word in rounds:
            left, right = right, left ^ (mix_bits(right + word) & mask)
        result[out_of_range] = left << half | right
        out_of_range = out_of_range[result[out_of_range] >= np.uint64(count)]
    return result.astype(np.int64)


def shuffled_indices(index: NDArray[np.int64], count: int, key_parts: Sequence[object]) -> NDArray[np.int64]:
    """The number below `count` at each index: every number once in each epoch, shuffled anew in each.

    >>> sorted(shuffled_indices(np.arange(4), 4, ("any",)).tolist())
    [0, 1, 2, 3]
    """
    epochs, index_in_epoch = np.divmod(index, count)
    rows = np.empty_like(index_in_epoch)
    for epoch in np.unique(epochs).tolist():
        mask = epochs == epoch
        rows[mask] = permute(index_in_epoch[mask], count, random_key(*key_parts, epoch))
    return rows
