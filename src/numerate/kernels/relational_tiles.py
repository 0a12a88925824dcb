"""Sizes of the tiles of the Triton kernels of relational attention."""

from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    heads: int
    queries: int
    keys: int
    stages: int


def padded_width(width: int) -> int:
    """The width in the kernels: a power of two, at least 16, which matrix products need."""
    return max(16, 1 << (width - 1).bit_length())


def select_tiles(dtype: torch.dtype, width: int, relation_width: int, limit: int) -> Tiles | None:
    return Tiles(4, 32, 32, 1)
