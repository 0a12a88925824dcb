"""Random integer compositions: nonnegative integers with a given sum, sampled exactly, without rejection."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.counter_rng import CounterRNG


@dataclass(frozen=True)
class Compositions:
    """All ways to write a total as an ordered sum of `num_parts` integers from 0 to `max_part`.

    The weight of a way is the entry of `keep_probabilities` for its smallest number, or 1 beyond the end of
    `keep_probabilities`. Numbers are sampled in order, by the weights of the remaining ways, so that none is rejected.
    """

    num_parts: int
    max_part: int
    max_total: int
    """The largest total."""
    keep_probabilities: tuple[float, ...] = ()

    def draw(self, rng: CounterRNG, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples one way for each total, `[rows, num_parts]`. Raises `ValueError` for a total without any."""
        rows, ways = len(totals), _way_tables(self)[-1]
        remaining, parts = totals.copy(), np.zeros((rows, self.num_parts), dtype=np.int64)
        smallest = np.full(rows, ways.shape[1] - 1)
        if rows and not (ways[totals, smallest] > 0).all():
            raise ValueError("no numbers add up to a total")
        uniform = (rng.random_words(rows * self.num_parts) >> np.uint64(11)).astype(np.float64) / 2.0**53
        for part in range(self.num_parts):
            cumulative_ways = _cumulative_ways(self, self.num_parts - 1 - part)[remaining, smallest]
            thresholds = uniform[part * rows : (part + 1) * rows] * cumulative_ways[:, -1]
            parts[:, part] = (cumulative_ways <= thresholds[:, None]).sum(axis=1)
            remaining -= parts[:, part]
            smallest = np.minimum(smallest, parts[:, part])
        return parts


@lru_cache(maxsize=32)
def _way_tables(compositions: Compositions) -> list[NDArray[np.float64]]:
    """For 0, 1, ... parts: the ways per total and smallest number so far, `[largest + 1, smallest]`. The last of the
    smallest stands for all that are kept fully."""
    smallest = np.arange(min(len(compositions.keep_probabilities), compositions.max_part) + 1)
    tables = [np.zeros((compositions.max_total + 1, len(smallest)))]
    tables[0][0] = [
        compositions.keep_probabilities[x] if x < len(compositions.keep_probabilities) else 1.0 for x in smallest
    ]
    for _ in range(compositions.num_parts):
        table = np.zeros_like(tables[0])
        for x in range(min(compositions.max_part, compositions.max_total) + 1):
            table[x:] += tables[-1][: compositions.max_total + 1 - x, np.minimum(smallest, x)]
        tables.append(table)
    return tables


@lru_cache(maxsize=256)
def _cumulative_ways(compositions: Compositions, num_parts: int) -> NDArray[np.float64]:
    """Ways with the next number at most x, per total left and smallest number so far: `[largest + 1, smallest, x]`,
    where `num_parts` more numbers follow."""
    table = _way_tables(compositions)[num_parts]
    sizes, smallest = table.shape
    choices = np.arange(min(compositions.max_part, compositions.max_total) + 1)
    remaining = np.arange(sizes)[:, None, None] - choices
    ways = table[np.maximum(remaining, 0), np.minimum(np.arange(smallest)[:, None], choices)]
    cumulative: NDArray[np.float64] = np.where(remaining >= 0, ways, 0.0).cumsum(axis=2)
    return cumulative
