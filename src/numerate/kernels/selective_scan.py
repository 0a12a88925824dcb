"""The selective scan of Mamba over whole rows, with a handwritten gradient."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from numerate.kernels.token_shift import uncompiled

KEPT = 4
"""Every so many times the forward keeps the state; the backward computes those between again."""

WORTHWHILE = {"cpu": 2**14, "cuda": 2**20}
"""Numbers in one operation from which on its work outweighs the call: rows are cut into chunks up to there."""


@uncompiled
def selective_scan(
    rates: Float[Tensor, "rows time channels"],
    inputs: Float[Tensor, "rows time channels"],
    inward: Float[Tensor, "rows time state"],
    outward: Float[Tensor, "rows time state"],
    decay: Float[Tensor, "state channels"],
    signed: bool = False,
    chunks: int | None = None,
) -> tuple[Float[Tensor, "rows time channels"], Float[Tensor, "rows state channels"]]:
    """The outputs of a diagonal recurrence at all times, and its last state.

    With h = 0 before the first time, at every time and for every channel c and state n:

        a = exp(rates[c] decay[n, c]), or 2 a - 1 if `signed`
        h[n, c] = a h[n, c] + inputs[c] inward[n]
        output[c] = sum over n of outward[n] h[n, c]

    Where a rate and an input are 0 the state does not change. `recurrent` is the same, step by step.

    The states of all times are never in memory at once: forward keeps each `KEPT`th, backward recomputes the others.
    The loop over times has operations over all rows, states and channels. Where these are small, rows are cut into
    `chunks` that are scanned in parallel, twice: from 0, for the state that each passes on, then from the state passed
    to it (Blelloch's two-level scan, 1990, https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf). By default as many as pay.
    """
    time = rates.shape[1]
    if chunks is None:
        worth = WORTHWHILE.get(rates.device.type, WORTHWHILE["cuda"])
        chunks = max(1, min(math.isqrt(time), worth // (len(rates) * decay.numel())))
    with torch.autocast(rates.device.type, enabled=False):
        widest = decay.dtype
        parts = (part.to(widest) for part in (rates, inputs, inward, outward))
        given = (*parts, decay[None], signed, min(chunks, time), torch.is_grad_enabled())
        output, last, *_ = _Scan.apply(*given)  # type: ignore[no-untyped-call]
    return output, last


def recurrent(
    rates: Float[Tensor, "rows time channels"],
    inputs: Float[Tensor, "rows time channels"],
    inward: Float[Tensor, "rows time state"],
    outward: Float[Tensor, "rows time state"],
    decay: Float[Tensor, "state channels"],
    signed: bool = False,
) -> tuple[Float[Tensor, "rows time channels"], Float[Tensor, "rows state channels"]]:
    """`selective_scan` step by step."""
    state = decay.new_zeros(len(rates), *decay.shape)
    outputs = []
    for time in range(rates.shape[1]):
        one, state = advance(rates[:, time], inputs[:, time], inward[:, time], outward[:, time], decay, state, signed)
        outputs.append(one)
    return torch.stack(outputs, dim=1), state


def advance(
    rates: Float[Tensor, "rows channels"],
    inputs: Float[Tensor, "rows channels"],
    inward: Float[Tensor, "rows state"],
    outward: Float[Tensor, "rows state"],
    decay: Float[Tensor, "state channels"],
    state: Float[Tensor, "rows state channels"],
    signed: bool,
) -> tuple[Float[Tensor, "rows channels"], Float[Tensor, "rows state channels"]]:
    """One step of the recurrence: the output, and the new state."""
    kept = torch.exp(rates[:, None] * decay)
    if signed:
        kept = 2 * kept - 1
    state = kept * state + inputs[:, None] * inward[:, :, None]
    return torch.einsum("rn,rnc->rc", outward, state), state


class _Scan(torch.autograd.Function):
    """`selective_scan`, with its gradient. Inside, a chunk of a row is a row of its own, and times are outermost.

    Decays are groups x state x channels, with equally many rows per group: stacked models are scanned as one. Tensors
    for backward are outputs too, as torch.vmap requires.
    """

    @staticmethod
    def forward(
        rates: Tensor,
        inputs: Tensor,
        inward: Tensor,
        outward: Tensor,
        decay: Tensor,
        signed: bool,
        chunks: int,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        rows, time, _ = rates.shape
        parts = (_cut(rates, chunks), _cut(inputs, chunks), _cut(inward, chunks), _cut(outward, chunks))
        scan = _Chunks(*parts, decay, signed, chunks)
        start, whole = decay.new_zeros(rows * chunks, *decay.shape[1:]), decay.new_empty(0)
        if chunks > 1:
            ends, whole = scan.ends()
            start = _handed(ends, whole, start[:rows], range(chunks))
        output, kept, last = scan.outputs(start, keep)
        return _joined(output, chunks, time), last[rows * (chunks - 1) :], kept, whole, *parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        decay, ctx.signed, ctx.chunks, _ = inputs[4:]
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(decay, *output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor, by_last: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        decay, kept, whole, *parts = ctx.saved_tensors
        time, chunks = by_output.shape[1], ctx.chunks
        with torch.autocast(by_output.device.type, enabled=False):
            rates, inputs, inward, outward = parts
            scan = _Chunks(rates, inputs, inward, outward, decay, ctx.signed, chunks)
            by_output, by_state = _cut(by_output, chunks), by_last.clone()
            if chunks > 1:
                by_state = _handed(scan.beginnings(by_output), whole, by_last, range(chunks - 1, -1, -1))
            *by_parts, by_decay = scan.gradients(by_output, kept, by_state)
        by_decay = by_decay.view(chunks, len(decay), -1, *decay.shape[1:]).sum((0, 2))
        return (*(_joined(part, chunks, time) for part in by_parts), by_decay, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Models that are stacked are groups of rows."""
        size = info.batch_size
        *parts, decay = (
            part.expand(size, *part.shape) if axis is None else part.movedim(axis, 0)
            for part, axis in zip(given[:5], in_dims[:5], strict=True)
        )
        signed, chunks, keep = given[5:]
        merged = (part.flatten(0, 1) for part in (*parts, decay))
        output, last, *more = _Scan.apply(  # type: ignore[no-untyped-call]
            *merged, signed, max(1, chunks // size), keep
        )
        found = (output.unflatten(0, (size, -1)), last.unflatten(0, (size, -1)), *more)
        return found, (0, 0, *(None for _ in more))


class _Chunks:
    """The loops over times. Everything is length x rows x ...; the buffers of the loops are used again and again.

    Powers are those of 2, whose exponential is the quickest. What is called e below is exp(...), twice that if
    `signed`, when the decay is e - 1: in both cases e is also the derivative of the decay by the exponent.
    """

    def __init__(
        self,
        rates: Tensor,
        inputs: Tensor,
        inward: Tensor,
        outward: Tensor,
        decay: Tensor,
        signed: bool,
        chunks: int,
    ) -> None:
        self.rates, self.inputs = (part[:, :, None].unbind() for part in (rates, inputs))
        self.inward, self.outward = (part[:, :, :, None].unbind() for part in (inward, outward))
        self.times, self.size = len(rates), (rates.shape[1], *decay.shape[1:])
        if len(decay) > 1:
            decay = decay.repeat_interleave(rates.shape[1] // chunks // len(decay), 0).repeat(chunks, 1, 1)
        self.decay, self.powers, self.signed = decay, decay * math.log2(math.e), signed

    def ends(self) -> tuple[Tensor, Tensor]:
        """The state behind the last time if it was 0 before the first, and the product of all decays."""
        state, whole = self.powers.new_zeros(self.size), self.powers.new_ones(self.size)
        e = torch.empty_like(state)
        for time in range(self.times):
            a = self._decay(self._e(time, e))
            state.mul_(a).addcmul_(self.inputs[time], self.inward[time])
            whole.mul_(a)
        return state, whole

    def beginnings(self, by_output: Tensor) -> Tensor:
        """The gradient by the state before the first time if that by the state behind the last was 0."""
        by_state = self.powers.new_zeros(self.size)
        e = torch.empty_like(by_state)
        for time in range(self.times - 1, -1, -1):
            by_state.addcmul_(by_output[time, :, None], self.outward[time]).mul_(self._decay(self._e(time, e)))
        return by_state

    def outputs(self, state: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs from `state` on, the states before each `KEPT`th time if `keep`, and the last state."""
        output = state.new_empty(self.times, self.size[0], 1, self.size[2])
        kept = state.new_empty(-(-self.times // KEPT) if keep else 0, *self.size)
        state, e = state.clone(), torch.empty_like(state)
        for time in range(self.times):
            if keep and time % KEPT == 0:
                kept[time // KEPT].copy_(state)
            state.mul_(self._decay(self._e(time, e))).addcmul_(self.inputs[time], self.inward[time])
            torch.bmm(self.outward[time].mT, state, out=output[time])
        return output[:, :, 0], kept, state

    def gradients(self, by_output: Tensor, kept: Tensor, by_state: Tensor) -> tuple[Tensor, ...]:
        """Gradients by rates, inputs, inward, outward and each row's decay, from those by outputs and last state."""
        rows, states, channels = self.size
        by_rates, by_inputs = (by_state.new_empty(self.times, rows, 1, channels) for _ in range(2))
        by_inward, by_outward = (by_state.new_empty(self.times, rows, states, 1) for _ in range(2))
        by_decay = torch.zeros_like(by_state)
        by_states = by_output[:, :, None].unbind()
        e, moved = (by_state.new_empty(KEPT, *self.size) for _ in range(2))
        spare = torch.empty_like(by_state), torch.empty_like(by_state)
        for first in range((self.times - 1) // KEPT * KEPT, -1, -KEPT):
            state = kept[first // KEPT]
            times = range(first, min(first + KEPT, self.times))
            for place, time in enumerate(times):
                after = spare[place % 2]
                torch.mul(state, self._e(time, e[place]), out=moved[place])
                if self.signed:
                    torch.sub(moved[place], state, out=after).addcmul_(self.inputs[time], self.inward[time])
                else:
                    torch.addcmul(moved[place], self.inputs[time], self.inward[time], out=after)
                torch.bmm(after, by_states[time].mT, out=by_outward[time])
                state = after
            for time in reversed(times):
                place = time - first
                by_state.addcmul_(by_states[time], self.outward[time])
                torch.bmm(self.inward[time].mT, by_state, out=by_inputs[time])
                torch.bmm(by_state, self.inputs[time].mT, out=by_inward[time])
                by_exponent = moved[place].mul_(by_state)
                by_decay.addcmul_(by_exponent, self.rates[time])
                torch.sum(by_exponent.mul_(self.decay), 1, keepdim=True, out=by_rates[time])
                by_state.mul_(self._decay(e[place]))
        return by_rates[:, :, 0], by_inputs[:, :, 0], by_inward[..., 0], by_outward[..., 0], by_decay

    def _e(self, time: int, out: Tensor) -> Tensor:
        torch.mul(self.rates[time], self.powers, out=out)
        return out.add_(1).exp2_() if self.signed else out.exp2_()

    def _decay(self, e: Tensor) -> Tensor:
        """The decay in the place of e."""
        return e.sub_(1) if self.signed else e


def _handed(own: Tensor, whole: Tensor, first: Tensor, order: Sequence[int]) -> Tensor:
    """The state passed to each chunk by those before it in this order: own and whole are (chunks x rows) x ..."""
    handed, own, whole = (torch.empty_like(own), own, whole)
    cut = [part.view(len(order), -1, *part.shape[1:]) for part in (handed, own, whole)]
    for chunk in order:
        cut[0][chunk] = first
        first = torch.addcmul(cut[1][chunk], cut[2][chunk], first)
    return handed


def _cut(x: Tensor, chunks: int) -> Tensor:
    """Rows x time x ... as length x (chunks x rows) x ..., with zeros at the end of what does not divide."""
    rows, time, size = x.shape
    length = -(-time // chunks)
    x = pad(x, (0, 0, 0, length * chunks - time)) if time < length * chunks else x
    return x.view(rows, chunks, length, size).permute(2, 1, 0, 3).reshape(length, chunks * rows, size)


def _joined(x: Tensor, chunks: int, time: int) -> Tensor:
    """The inverse of `_cut`."""
    length, rows, size = x.shape
    x = x.view(length, chunks, rows // chunks, size).permute(2, 1, 0, 3)
    return x.reshape(rows // chunks, chunks * length, size)[:, :time]
