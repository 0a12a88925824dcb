"""The selective scan of Mamba over whole rows, with a handwritten gradient."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from numerate.kernels.operators import as_operator

SAVE_INTERVAL = 4
"""The forward pass saves every n-th state; the backward pass recomputes those in between."""

MIN_ELEMENTS = {"cpu": 2**14, "cuda": 2**20}
"""Numbers in one operation from which on its work outweighs the call: rows are cut into chunks up to there."""


def selective_scan(
    dt: Float[Tensor, "rows time channels"],
    inputs: Float[Tensor, "rows time channels"],
    B: Float[Tensor, "rows time state"],
    C: Float[Tensor, "rows time state"],
    A: Float[Tensor, "state channels"],
    allow_neg_eigval: bool = False,
    num_chunks: int | None = None,
) -> tuple[Float[Tensor, "rows time channels"], Float[Tensor, "rows state channels"]]:
    """The outputs of a diagonal recurrence at all times, and its last state.

    With h = 0 before the first time, at every time and for every channel c and state n:

        a = exp(dt[c] A[n, c]), or 2 a - 1 if `allow_neg_eigval`
        h[n, c] = a h[n, c] + inputs[c] B[n]
        output[c] = sum over n of C[n] h[n, c]

    Where dt and an input are 0 the state does not change. `scan_step` is one step of it.

    The states of all times are never in memory at once: forward keeps each `SAVE_INTERVAL`th, backward recomputes the
    others. The loop over times has operations over all rows, states and channels. Where these are small, rows are cut
    into `num_chunks` that are scanned in parallel, twice: from 0, for the state that each passes on, then from the
    state passed to it (Blelloch's two-level scan, 1990, https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf). By default as
    many as pay.
    """
    with torch.autocast(dt.device.type, enabled=False):
        dtype = A.dtype
        tensors = (part.to(dtype) for part in (dt, inputs, B, C))
        args = (*tensors, A[None], allow_neg_eigval, num_chunks, torch.is_grad_enabled())
        output, final_state, *_ = _apply_selective_scan(*args)
    return output, final_state


def scan_step(
    dt: Float[Tensor, "rows channels"],
    inputs: Float[Tensor, "rows channels"],
    B: Float[Tensor, "rows state"],
    C: Float[Tensor, "rows state"],
    A: Float[Tensor, "state channels"],
    state: Float[Tensor, "rows state channels"],
    allow_neg_eigval: bool,
) -> tuple[Float[Tensor, "rows channels"], Float[Tensor, "rows state channels"]]:
    """One step of the recurrence: the output, and the new state."""
    kept = torch.exp(dt[:, None] * A)
    if allow_neg_eigval:
        kept = 2 * kept - 1
    state = kept * state + inputs[:, None] * B[:, :, None]
    return torch.einsum("rn,rnc->rc", C, state), state


class _SelectiveScan(torch.autograd.Function):
    """`selective_scan`, with its gradient. Inside, a chunk of a row is a row of its own, and times are outermost.

    Decays are 1 x state x channels. Tensors for backward are outputs too, as `setup_context` requires.
    """

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *tensors, decay, signed, num_chunks, keep = given
        chunks = _resolve_num_chunks(num_chunks, tensors[0], decay)
        rows, time, _ = tensors[0].shape
        parts = [_split_chunks(part, chunks) for part in tensors]
        scan = _ChunkScan(parts, decay, signed, chunks)
        start, whole = decay.new_zeros(rows * chunks, *decay.shape[1:]), decay.new_empty(0)
        if chunks > 1:
            ends, whole = scan.final_states()
            start = _carry_states(ends, whole, start[:rows], range(chunks))
        output, kept, last = scan.outputs(start, keep)
        return _join_chunks(output, chunks, time), last[rows * (chunks - 1) :], kept, whole, *parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        decay, ctx.signed, ctx.num_chunks, _ = inputs[4:]
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(decay, *output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor, by_last: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        decay, kept, whole, *parts = ctx.saved_tensors
        time, chunks = by_output.shape[1], _resolve_num_chunks(ctx.num_chunks, by_output, decay)
        with torch.autocast(by_output.device.type, enabled=False):
            scan = _ChunkScan(parts, decay, ctx.signed, chunks)
            by_output, by_state = _split_chunks(by_output, chunks), by_last.clone()
            if chunks > 1:
                own = scan.initial_state_gradients(by_output)
                by_state = _carry_states(own, whole, by_last, range(chunks - 1, -1, -1))
            *by_parts, by_decay = scan.gradients(by_output, kept, by_state)
        by_decay = by_decay.view(chunks, len(decay), -1, *decay.shape[1:]).sum((0, 2))
        return (*(_join_chunks(part, chunks, time) for part in by_parts), by_decay, None, None, None)


def _resolve_num_chunks(num_chunks: int | None, x: Float[Tensor, "rows time channels"], decay: Tensor) -> int:
    rows, time, _ = x.shape
    if num_chunks is None:
        min_elements = MIN_ELEMENTS.get(x.device.type, MIN_ELEMENTS["cuda"])
        num_chunks = max(1, min(math.isqrt(time), min_elements // (rows * decay.numel())))
    return min(num_chunks, time)


_apply_selective_scan = as_operator(_SelectiveScan)


class _ChunkScan:
    """The loops over times. Everything is length x rows x ...; the buffers of the loops are used again and again.

    Powers are those of 2, whose exponential is the quickest. What is called e below is exp(...), twice that if
    `allow_neg_eigval`, when the decay is e - 1: in both cases e is also the derivative of the decay by the exponent.
    """

    def __init__(self, parts: Sequence[Tensor], decay: Tensor, signed: bool, chunks: int) -> None:
        dt, inputs, B, C = parts
        self.dt, self.inputs = (part[:, :, None].unbind() for part in (dt, inputs))
        self.B, self.C = (part[:, :, :, None].unbind() for part in (B, C))
        self.num_times, self.size = len(dt), (dt.shape[1], *decay.shape[1:])
        if len(decay) > 1:
            decay = decay.repeat_interleave(dt.shape[1] // chunks // len(decay), 0).repeat(chunks, 1, 1)
        self.A, self.log2_decay, self.allow_neg_eigval = decay, decay * math.log2(math.e), signed

    def final_states(self) -> tuple[Tensor, Tensor]:
        """The state behind the last time if it was 0 before the first, and the product of all decays."""
        state, whole = self.log2_decay.new_zeros(self.size), self.log2_decay.new_ones(self.size)
        e = torch.empty_like(state)
        for time in range(self.num_times):
            a = self._decay(self._e(time, e))
            state.mul_(a).addcmul_(self.inputs[time], self.B[time])
            whole.mul_(a)
        return state, whole

    def initial_state_gradients(self, by_output: Tensor) -> Tensor:
        """The gradient by the state before the first time if that by the state behind the last was 0."""
        by_state = self.log2_decay.new_zeros(self.size)
        e = torch.empty_like(by_state)
        for time in range(self.num_times - 1, -1, -1):
            by_state.addcmul_(by_output[time, :, None], self.C[time]).mul_(self._decay(self._e(time, e)))
        return by_state

    def outputs(self, state: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs from `state` on, the states before each `SAVE_INTERVAL`th time if `keep`, and the last state."""
        output = state.new_empty(self.num_times, self.size[0], 1, self.size[2])
        kept = state.new_empty(-(-self.num_times // SAVE_INTERVAL) if keep else 0, *self.size)
        state, e = state.clone(), torch.empty_like(state)
        for time in range(self.num_times):
            if keep and time % SAVE_INTERVAL == 0:
                kept[time // SAVE_INTERVAL].copy_(state)
            state.mul_(self._decay(self._e(time, e))).addcmul_(self.inputs[time], self.B[time])
            torch.bmm(self.C[time].mT, state, out=output[time])
        return output[:, :, 0], kept, state

    def gradients(self, grad_output: Tensor, saved_states: Tensor, grad_state: Tensor) -> tuple[Tensor, ...]:
        """Gradients by dt, inputs, B, C and each row's decay, from those by outputs and last state."""
        rows, states, channels = self.size
        grad_dt, grad_inputs = (grad_state.new_empty(self.num_times, rows, 1, channels) for _ in range(2))
        grad_B, grad_C = (grad_state.new_empty(self.num_times, rows, states, 1) for _ in range(2))
        grad_A = torch.zeros_like(grad_state)
        grad_outputs = grad_output[:, :, None].unbind()
        e, decayed_states = (grad_state.new_empty(SAVE_INTERVAL, *self.size) for _ in range(2))
        buffers = torch.empty_like(grad_state), torch.empty_like(grad_state)
        for start in range((self.num_times - 1) // SAVE_INTERVAL * SAVE_INTERVAL, -1, -SAVE_INTERVAL):
            state = saved_states[start // SAVE_INTERVAL]
            times = range(start, min(start + SAVE_INTERVAL, self.num_times))
            for offset, time in enumerate(times):
                new_state = buffers[offset % 2]
                torch.mul(state, self._e(time, e[offset]), out=decayed_states[offset])
                if self.allow_neg_eigval:
                    torch.sub(decayed_states[offset], state, out=new_state).addcmul_(self.inputs[time], self.B[time])
                else:
                    torch.addcmul(decayed_states[offset], self.inputs[time], self.B[time], out=new_state)
                torch.bmm(new_state, grad_outputs[time].mT, out=grad_C[time])
                state = new_state
            for time in reversed(times):
                offset = time - start
                grad_state.addcmul_(grad_outputs[time], self.C[time])
                torch.bmm(self.B[time].mT, grad_state, out=grad_inputs[time])
                torch.bmm(grad_state, self.inputs[time].mT, out=grad_B[time])
                grad_exponent = decayed_states[offset].mul_(grad_state)
                grad_A.addcmul_(grad_exponent, self.dt[time])
                torch.sum(grad_exponent.mul_(self.A), 1, keepdim=True, out=grad_dt[time])
                grad_state.mul_(self._decay(e[offset]))
        return grad_dt[:, :, 0], grad_inputs[:, :, 0], grad_B[..., 0], grad_C[..., 0], grad_A

    def _e(self, time: int, out: Tensor) -> Tensor:
        torch.mul(self.dt[time], self.log2_decay, out=out)
        return out.add_(1).exp2_() if self.allow_neg_eigval else out.exp2_()

    def _decay(self, e: Tensor) -> Tensor:
        """The decay in the place of e."""
        return e.sub_(1) if self.allow_neg_eigval else e


def _carry_states(own: Tensor, whole: Tensor, first: Tensor, order: Sequence[int]) -> Tensor:
    """The state passed to each chunk by those before it in this order: own and whole are (chunks x rows) x ..."""
    handed, own, whole = (torch.empty_like(own), own, whole)
    cut = [part.view(len(order), -1, *part.shape[1:]) for part in (handed, own, whole)]
    for chunk in order:
        cut[0][chunk] = first
        first = torch.addcmul(cut[1][chunk], cut[2][chunk], first)
    return handed


def _split_chunks(x: Tensor, chunks: int) -> Tensor:
    """Rows x time x ... as length x (chunks x rows) x ..., with zeros at the end of what does not divide."""
    rows, time, size = x.shape
    length = -(-time // chunks)
    x = pad(x, (0, 0, 0, length * chunks - time)) if time < length * chunks else x
    return x.view(rows, chunks, length, size).permute(2, 1, 0, 3).reshape(length, chunks * rows, size)


def _join_chunks(x: Tensor, chunks: int, time: int) -> Tensor:
    """The inverse of `_split_chunks`."""
    length, rows, size = x.shape
    x = x.view(length, chunks, rows // chunks, size).permute(2, 1, 0, 3)
    return x.reshape(rows // chunks, chunks * length, size)[:, :time]
