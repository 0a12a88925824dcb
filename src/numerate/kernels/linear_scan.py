"""The diagonal linear recurrence h_t = a_t h_{t-1} + b_t over whole rows, real or complex."""

import math
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor
from torch.autograd.function import once_differentiable

from numerate.kernels.operators import as_operator

MIN_SEQUENTIAL_SIZE = 2048
"""Real numbers per position above which the work on a position exceeds its overhead on a CPU. Positions are then
processed one by one, which touches each number once; a second level would touch it three times. Measured at 16 to 512
positions."""


def linear_scan(
    a: Inexact[Tensor, "#rows #time channels"],
    b: Inexact[Tensor, "rows time channels"],
) -> Inexact[Tensor, "rows time channels"]:
    """All h_t of h_t = a_t h_{t-1} + b_t, with h_0 = 0.

    >>> linear_scan(torch.full((1, 3, 1), 0.5), torch.ones(1, 3, 1)).flatten().tolist()
    [1.0, 1.5, 1.75]

    Two levels (Blelloch, 1990, "Prefix sums and their applications"): the positions of all chunks are processed in
    parallel, one after the other, then the chunks one after the other. That is about 2 root(2 time) operations one
    after the other instead of `time`, forwards and backwards, and nothing is ever divided by a product of `a`. Only `a`
    and h are kept for the gradient. An `a` that is the same for all places or rows may have 1 there. Half precision is
    added up in fp32, and comes back so.

    The floor is to read a and b and write h: 12 bytes in fp32 and 2 operations for each number, and 24 bytes and 6
    operations backwards. At 32 rows x 50 places x 64 channels that is 0.03 ms; here it is 0.15 ms on one core, most of
    it the starting of 50 operations.
    """
    kept = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    (found,) = _apply_scan(a.to(kept), b.to(kept))
    return found  # type: ignore[no-any-return]


class _Scan(torch.autograd.Function):
    """Its gradient is the same recurrence from the end: g_t = dh_t + conj(a_{t+1}) g_{t+1}; then db = g, da_t =
    g_t conj(h_{t-1})."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> tuple[Tensor]:
        return (_scan(a, b),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor]) -> None:
        ctx.save_for_backward(inputs[0], *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        a, h = ctx.saved_tensors
        a = a.conj().resolve_conj()
        g = _scan(a, gradient, reverse=True)
        of_a = None
        if ctx.needs_input_grad[0]:
            of_a = torch.empty_like(g)
            torch.mul(g[:, 1:], h[:, :-1].conj(), out=of_a[:, 1:])
            of_a[:, 0] = 0
            of_a = of_a.sum_to_size(a.shape)
        return of_a, g


_apply_scan = as_operator(_Scan)


def _scan(a: Tensor, b: Tensor, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t from the first position on; reversed, h_t = a_{t+1} h_{t+1} + b_t from the last one."""
    time, size = b.shape[1], _chunk_size(b)
    h = _padded(b, time if size is None else size)
    order = -1 if reverse else 1
    if size is None:
        states, factors = h.unbind(1)[::order], a.expand(-1, time, -1).unbind(1)[1:][::order]
        for place, factor in enumerate(factors):
            states[place + 1].addcmul_(factor, states[place])
        return h
    if reverse and a.shape[1] > 1:
        a = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], dim=1)
    chunks, products = _split_chunks(h, size), _copy_chunks(a, size)
    states, factors = chunks.unbind(2)[::order], products.unbind(2)[::order]
    for place in range(1, size):
        states[place].addcmul_(factors[place], states[place - 1])
        factors[place].mul_(factors[place - 1])
    products = products.expand(-1, chunks.shape[1], -1, -1)
    last = 0 if reverse else size - 1
    ends, decays = chunks[:, :, last].unbind(1)[::order], products[:, :, last].unbind(1)[::order]
    for chunk in range(1, len(ends)):
        ends[chunk].addcmul_(decays[chunk], ends[chunk - 1])
    if reverse:
        chunks[:, :-1, 1:].addcmul_(products[:, :-1, 1:], chunks[:, 1:, :1])
    else:
        chunks[:, 1:, :-1].addcmul_(products[:, 1:, :-1], chunks[:, :-1, -1:])
    return h[:, :time]


def _chunk_size(b: Tensor) -> int | None:
    """Positions per chunk of two levels; None if one level is faster."""
    rows, time, channels = b.shape
    numbers = rows * channels * (2 if b.is_complex() else 1)
    if time <= 16 or (b.device.type == "cpu" and numbers >= MIN_SEQUENTIAL_SIZE):
        return None
    return max(2, round(math.sqrt(time / 2)))


def _padded(x: Tensor, size: int) -> Tensor:
    """A copy, with zeros at its end up to a multiple of the size."""
    rows, time, channels = x.shape
    if time % size == 0:
        return x.clone(memory_format=torch.contiguous_format)
    padded = x.new_empty(rows, -(-time // size) * size, channels)
    padded[:, :time] = x
    padded[:, time:] = 0
    return padded


def _split_chunks(x: Tensor, size: int) -> Tensor:
    """As rows x chunks x size x channels."""
    return x.view(x.shape[0], -1, size, x.shape[2])


def _copy_chunks(a: Tensor, size: int) -> Tensor:
    """A copy as rows x chunks x size x channels; one chunk stands for all where all places have the same."""
    if a.shape[1] == 1:
        return a[:, :, None].repeat(1, 1, size, 1)
    return _split_chunks(_padded(a, size), size)
