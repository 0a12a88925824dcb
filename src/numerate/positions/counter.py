"""Random numbers without a generator: a hash of (seed, step, row), the same for every rank, worker and device."""

import torch
from jaxtyping import Int
from torch import Tensor

from numerate.batch import StepContext

_GOLDEN_RATIO = 0x9E3779B97F4A7C15


def random_integers(
    step_context: StepContext, row_keys: Int[Tensor, " rows"], high: int | Int[Tensor, " rows"], salt: int = 0
) -> Int[Tensor, " rows"]:
    """One integer from 0 to high - 1 per row, uniform to within high / 2^32; each row may have its own `high`.

    A function of (seed, step, row, salt) only, so a row draws the same number whatever batch,
    micro-batch or rank it is in. The mixing is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014,
    https://doi.org/10.1145/2660193.2660195), applied twice.

    >>> step_context = StepContext(seed=0, step=3)
    >>> random_integers(step_context, torch.tensor([5, 6]), 100).tolist()
    [70, 64]
    >>> random_integers(step_context, torch.tensor([6]), 100).tolist()  # the same number in another batch
    [64]
    """
    key = _hash_key(step_context, salt)
    return (
        ((_splitmix64(_splitmix64(row_keys.long() * _to_int64(_GOLDEN_RATIO) + key))) >> 32) & 0xFFFFFFFF
    ) * high >> 32


def random_uint32(
    step_context: StepContext, row_keys: Int[Tensor, " rows"], count: int, salt: int = 0
) -> Int[Tensor, "rows count"]:
    """`count` integers from 0 to 2^32 - 1 per row, independent of each other: the same hash with consecutive counters.

    >>> random_uint32(StepContext(seed=0, step=3), torch.tensor([5]), 8).shape
    torch.Size([1, 8])
    """
    row_hashes = _splitmix64(_splitmix64(row_keys.long() * _to_int64(_GOLDEN_RATIO) + _hash_key(step_context, salt)))
    counters = torch.arange(1, count + 1, device=row_keys.device) * _to_int64(_GOLDEN_RATIO)
    return (_splitmix64(row_hashes[:, None] + counters) >> 32) & 0xFFFFFFFF


def _hash_key(step_context: StepContext, salt: int = 0) -> int:
    """The hash of (seed, step, salt) that rows are counted on from, as a signed number of 64 bits."""
    if step_context.step is None:
        raise ValueError("evaluation draws no random numbers: position ids take one of their fixed offsets")
    return _to_int64(
        _splitmix64_int(
            _splitmix64_int(_to_uint64(step_context.seed * _GOLDEN_RATIO + salt))
            + _to_uint64(step_context.step * _GOLDEN_RATIO)
        )
    )


def _to_uint64(number: int) -> int:
    return number & 0xFFFFFFFFFFFFFFFF


def _to_int64(number: int) -> int:
    number = _to_uint64(number)
    return number - (1 << 64) if number >> 63 else number


def _splitmix64_int(z: int) -> int:
    z = _to_uint64(z)
    z = _to_uint64((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9)
    z = _to_uint64((z ^ (z >> 27)) * 0x94D049BB133111EB)
    return z ^ (z >> 31)


def _splitmix64(z: Tensor) -> Tensor:
    z = (z ^ _logical_right_shift(z, 30)) * _to_int64(0xBF58476D1CE4E5B9)
    z = (z ^ _logical_right_shift(z, 27)) * _to_int64(0x94D049BB133111EB)
    return z ^ _logical_right_shift(z, 31)


def _logical_right_shift(z: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: torch's is arithmetic on signed numbers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
