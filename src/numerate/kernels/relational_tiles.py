"""Sizes of the tiles of the Triton kernels of relational attention, by dtype, widths and the GPU's shared memory.

Chosen by compiling ahead of time (`make test-gpu-readiness`, docs/gpu.md), not by measuring: no GPU was available.
"""

from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    """How many heads (or relations) a program holds, of how many queries and keys at a time."""

    heads: int
    queries: int
    keys: int

    def shared_memory(self, width: int, dtype: torch.dtype) -> int:
        """An upper bound of the bytes that a program needs: for tiles of queries, keys, symbols and gradients, and two
        that are stored once more in another order, and 1 KiB for sums. `width` is the larger one of heads and
        relations."""
        return 6 * self.heads * max(self.queries, self.keys) * padded_width(width) * dtype.itemsize + 1024


def padded_width(width: int) -> int:
    """The width in the kernels: a power of two, at least 16, which matrix products need."""
    return max(16, 1 << (width - 1).bit_length())


def select_tiles(
    dtype: torch.dtype, width: int, relation_width: int, max_shared_memory: int, precision: str
) -> Tiles | None:
    """The largest tiles that fit shared memory, and with which few registers are spilled; None if none do.

    `precision` is that of `gpu.matmul_precision`: products of float32 that are split take more registers.

    >>> select_tiles(torch.bfloat16, 64, 64, 101_376, "ieee")  # a consumer card
    Tiles(heads=4, queries=32, keys=16)
    """
    widest = max(padded_width(width), padded_width(relation_width))
    if dtype.itemsize > 4 or widest > (64 if precision == "tf32x3" else 128):
        return None
    row_bytes = widest * dtype.itemsize
    queries, keys = (32, 32) if row_bytes <= 64 else (32, 16) if row_bytes <= 128 else (16, 16)
    choices = (Tiles(heads, queries, keys) for heads in (4, 2, 1))
    return next((tiles for tiles in choices if tiles.shared_memory(widest, dtype) <= max_shared_memory), None)
