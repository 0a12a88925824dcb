"""Rows of token ids: chunks of a corpus for language modeling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.counter_rng import mix_bits


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Chunks of tokens, each with the token behind it.

    - `ids` int64 `[rows, time + 1]`, 0 behind what a row has.
    - `lengths` int64 `[rows]`: the inputs of row r are `ids[r, :lengths[r]]`, and their targets
      `ids[r, 1 : lengths[r] + 1]`.

    >>> rows = TokenRows(np.array([[1, 7, 9], [1, 8, 0]]), np.array([2, 1]))
    >>> rows.take(slice(1, 2)).ids.tolist()
    [[1, 8]]
    """

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: "NDArray[Any] | slice") -> "TokenRows":
        """These rows, in this order, cut to the longest of them."""
        lengths = self.lengths[rows]
        return TokenRows(self.ids[rows, : int(lengths.max(initial=-1)) + 1], lengths)

    @staticmethod
    def concatenate(blocks: "Sequence[TokenRows]") -> "TokenRows":
        """One block after the other, as wide as the widest."""
        if len(blocks) == 1:
            return blocks[0]
        ids = np.zeros((sum(map(len, blocks)), max((block.ids.shape[1] for block in blocks), default=0)), np.int64)
        row = 0
        for block in blocks:
            ids[row : row + len(block), : block.ids.shape[1]] = block.ids
            row += len(block)
        return TokenRows(ids, np.concatenate([block.lengths for block in blocks]))

    def hashes(self) -> NDArray[np.uint64]:
        """A 64-bit hash of the tokens of each row; zeros behind them do not change it."""
        is_token = np.arange(self.ids.shape[1]) <= self.lengths[:, None]
        position_keys = np.arange(1, self.ids.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = mix_bits(self.ids.astype(np.uint64) + position_keys)
        return mix_bits(np.where(is_token, words, np.uint64(0)).sum(axis=1, dtype=np.uint64))
