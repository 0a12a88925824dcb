"""Random numbers without a generator: a hash of (seed, step, row), the same for every rank, worker and device."""

import torch
from jaxtyping import Int
from torch import Tensor

from numerate.batch import StepContext

_GOLDEN = 0x9E3779B97F4A7C15


def drawn(
    draw: StepContext, row: Int[Tensor, " rows"], bound: int | Int[Tensor, " rows"], salt: int = 0
) -> Int[Tensor, " rows"]:
    """One whole number from 0 to bound - 1 per row, uniform to within bound / 2^32; each row may have its own bound.

    A function of (draw.seed, draw.step, row, salt) and of nothing else, so a row draws the same number whatever batch,
    part or rank it stands in. The mixing is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014,
    https://doi.org/10.1145/2660193.2660195), applied twice.

    >>> drawn(StepContext(seed=0, step=3), torch.tensor([5, 6]), 100).tolist() == drawn(
    ...     StepContext(seed=0, step=3), torch.tensor([5, 6]), 100).tolist()
    True
    """
    return drawn_from(_starts(draw, salt, row), row, bound)


def drawn_from(
    start: int | Int[Tensor, "..."], row: Int[Tensor, " rows"], bound: int | Int[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """`drawn`, where `start_of` the draw and the salt is known already: one number, or one for each row."""
    return (((_mix(_mix(row.long() * _signed(_GOLDEN) + start))) >> 32) & 0xFFFFFFFF) * bound >> 32


def drawn_many(draw: StepContext, row: Int[Tensor, " rows"], count: int, salt: int = 0) -> Int[Tensor, "rows count"]:
    """`count` whole numbers from 0 to 2^32 - 1 per row, independent of each other: the same hash, counted on.

    >>> drawn_many(StepContext(seed=0, step=3), torch.tensor([5]), 8).shape
    torch.Size([1, 8])
    """
    rows = _mix(_mix(row.long() * _signed(_GOLDEN) + _starts(draw, salt, row)))
    slots = torch.arange(1, count + 1, device=row.device) * _signed(_GOLDEN)
    return (_mix(rows[:, None] + slots) >> 32) & 0xFFFFFFFF


def start_of(draw: StepContext, salt: int = 0) -> int:
    """The hash of (seed, step, salt) that rows are counted on from, as a signed number of 64 bits."""
    if draw.step is None:
        raise ValueError("an evaluation draws nothing: a numbering takes one of its fixed placements")
    return _signed(_mixed(_mixed(_wrapped(draw.seed * _GOLDEN + salt)) + _wrapped(draw.step * _GOLDEN)))


def _starts(draw: StepContext, salt: int, row: Tensor) -> int | Tensor:
    """Where the rows are counted on from; for those of several runs, one number for each row."""
    if not draw.several:
        return start_of(draw, salt)
    return torch.tensor([start_of(one, salt) for one in draw.several], device=row.device).repeat_interleave(draw.rows)


def _wrapped(number: int) -> int:
    return number & 0xFFFFFFFFFFFFFFFF


def _signed(number: int) -> int:
    number = _wrapped(number)
    return number - (1 << 64) if number >> 63 else number


def _mixed(z: int) -> int:
    z = _wrapped(z)
    z = _wrapped((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9)
    z = _wrapped((z ^ (z >> 27)) * 0x94D049BB133111EB)
    return z ^ (z >> 31)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: torch's is arithmetic on signed numbers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
