"""How many of each kind a list has: whole numbers that add up to its length, drawn exactly, without trying."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.counter_rng import CounterRNG


@dataclass(frozen=True)
class Compositions:
    """All ways to write a total as `parts` numbers in order, each from 0 to `most`, zeros included.

    A way counts as often as `kept` says at its smallest number, or fully where that is beyond the end of `kept`. Drawn
    from the number of ways that are left after each choice, so that no draw is ever thrown away.

    >>> Compositions(parts=2, most=2, largest=4).ways(3)  # 1+2 and 2+1
    2.0
    """

    parts: int
    most: int
    largest: int
    """The largest total."""
    kept: tuple[float, ...] = ()

    def ways(self, total: int) -> float:
        """How many ways there are, each counted as it is kept."""
        return float(_tables(self)[-1][total, -1])

    def draw(self, draws: CounterRNG, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        """One way for each total, `[rows, parts]`. Raises `ValueError` for a total that has none."""
        rows, ways = len(totals), _tables(self)[-1]
        left, found = totals.copy(), np.zeros((rows, self.parts), dtype=np.int64)
        smallest = np.full(rows, ways.shape[1] - 1)
        if rows and not (ways[totals, smallest] > 0).all():
            raise ValueError("a total that no numbers add up to")
        uniform = (draws.words(rows * self.parts) >> np.uint64(11)).astype(np.float64) / 2.0**53
        for part in range(self.parts):
            below = _cumulative(self, self.parts - 1 - part)[left, smallest]
            wanted = uniform[part * rows : (part + 1) * rows] * below[:, -1]
            found[:, part] = (below <= wanted[:, None]).sum(axis=1)
            left -= found[:, part]
            smallest = np.minimum(smallest, found[:, part])
        return found


@lru_cache(maxsize=32)
def _tables(of: Compositions) -> list[NDArray[np.float64]]:
    """For 0, 1, ... parts: the ways per total and smallest number so far, `[largest + 1, smallest]`. The last of the
    smallest stands for all that are kept fully."""
    smallest = np.arange(min(len(of.kept), of.most) + 1)
    tables = [np.zeros((of.largest + 1, len(smallest)))]
    tables[0][0] = [of.kept[x] if x < len(of.kept) else 1.0 for x in smallest]
    for _ in range(of.parts):
        table = np.zeros_like(tables[0])
        for x in range(min(of.most, of.largest) + 1):
            table[x:] += tables[-1][: of.largest + 1 - x, np.minimum(smallest, x)]
        tables.append(table)
    return tables


@lru_cache(maxsize=256)
def _cumulative(of: Compositions, parts: int) -> NDArray[np.float64]:
    """Ways with the next number at most x, per total left and smallest number so far: `[largest + 1, smallest, x]`,
    where `parts` more numbers follow."""
    table = _tables(of)[parts]
    sizes, smallest = table.shape
    choices = np.arange(min(of.most, of.largest) + 1)
    left = np.arange(sizes)[:, None, None] - choices
    ways = table[np.maximum(left, 0), np.minimum(np.arange(smallest)[:, None], choices)]
    cumulative: NDArray[np.float64] = np.where(left >= 0, ways, 0.0).cumsum(axis=2)
    return cumulative
