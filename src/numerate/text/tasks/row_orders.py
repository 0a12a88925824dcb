"""The order in which the rows of files come: pass after pass, each in an order that is a function of its name."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.counter_rng import CounterRNG, key, mix


def shuffled(places: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """Where each of these places goes in an order of 0 .. count - 1 that is a function of the key, without holding it.

    A Feistel network of eight rounds over the next power of four, walked until it ends below `count` (Black and Rogaway
    2002, "Ciphers with arbitrary finite domains", https://doi.org/10.1007/3-540-45760-7_9).

    >>> sorted(shuffled(np.arange(10), 10, key("a")).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = CounterRNG(key).words(8)
    found = places.astype(np.uint64)
    moving = np.arange(len(found))
    while len(moving):
        left, right = found[moving] >> half, found[moving] & mask
        for word in rounds:
            left, right = right, left ^ (mix(right + word) & mask)
        found[moving] = left << half | right
        moving = moving[found[moving] >= np.uint64(count)]
    return found.astype(np.int64)


def in_order(index: NDArray[np.int64], count: int, name: Sequence[object]) -> NDArray[np.int64]:
    """The row of `count` at each index: pass after pass over all of them, each in an order of its own.

    >>> sorted(in_order(np.arange(4), 4, ("any",)).tolist())
    [0, 1, 2, 3]
    """
    passes, places = np.divmod(index, count)
    rows = np.empty_like(places)
    for turn in np.unique(passes).tolist():
        chosen = passes == turn
        rows[chosen] = shuffled(places[chosen], count, key(*name, turn))
    return rows


def chances(index: NDArray[np.int64], split: str, seed: int) -> NDArray[np.uint64]:
    """The `chance` of the example at each index of a split."""
    (word,) = CounterRNG(key("chance", split, seed)).words(1)
    return mix(mix(index.astype(np.uint64) + word) ^ word)
