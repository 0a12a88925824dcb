"""Losses from hidden states and a head in chunks, without the logits of all positions in memory.

Logits of 128 rows x 512 positions x 32,000 tokens are 8.4 GB in float32, and cross-entropy by autograd keeps three such
tensors. Here logits are computed for a few hundred rows at a time, turned in place into their own gradient, and
multiplied at once into the gradients of hidden states and head. Memory is one chunk, and the gradients of hidden states
and head. Wijmans et al. (2024), https://arxiv.org/abs/2411.09009, measure what that saves; their kernel computes the
logits twice instead.

A loss may have several sums. As their incoming gradients are unknown in the forward pass, the gradients of each sum are
kept by themselves. Positions without a label cost nothing on a CPU: their rows are left out before the first product. A
second backward through the same graph computes everything again; the gradient has no derivative, and raises an error
with `create_graph=True`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from numerate.errors import UserError
from numerate.kernels.fused_number_loss import (
    find_target_rows,
    needs_gradient,
    once_differentiable,
)
from numerate.kernels.number_loss import compute_dtype
from numerate.kernels.number_table import can_read_values

CHUNK_LOGITS = {"cpu": 2**23}
"""Number of logits computed at a time, by device: 32 MB of float32, enough rows for fast products."""
DEFAULT_CHUNK_LOGITS = 2**27

MIN_CHUNKED_LOGITS = 2**22
"""If there are at least this many logits, losses compute them in chunks: 16 MB of float32, of which autograd would keep
three."""


class ChunkSum(NamedTuple):
    """The sum of a loss over the rows of a chunk, and its gradient by logits: of some rows only (None: all of them),
    and of the columns `HeadLoss.columns`. None: no gradient is needed."""

    total: Tensor
    slope: Tensor | None
    rows: Tensor | None = None


class HeadLoss(ABC):
    """A loss of logits, computed a chunk of rows at a time."""

    num_sums: ClassVar[int]
    transposes_head: ClassVar[bool] = False
    """Whether the gradient of the head is summed as [width, vocabulary], by the other of two equal products."""

    @abstractmethod
    def sums(
        self, logits: Tensor, target_mask: Tensor, row_tensors: list[Tensor | None], wants_slopes: bool
    ) -> list[ChunkSum]:
        """Its sums over a chunk of logits, which is overwritten, with what `chunked_sums` was given of these rows."""

    def columns(self, number: int) -> Tensor | None:
        """The tokens whose logits have a gradient of the sum of this number; None: all."""
        return None


def linear_head_or_none(head: Any) -> nn.Linear | None:
    """The head, if it is an `nn.Linear`: no subclass, no hooks, no weights sharded over processes."""
    if type(head) is not nn.Linear or type(head.weight) not in (nn.Parameter, Tensor):
        return None
    return None if head._forward_hooks or head._forward_pre_hooks or head._backward_hooks else head


def autocast_head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden states and a head in the type in which their product is computed. Raises `UserError` for a head of another
    width, and for two types without autocast."""
    if hidden.shape[-1] != weight.shape[-1]:
        raise UserError(f"weight: a head for width {weight.shape[-1]}, and hidden states have {hidden.shape[-1]}")
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if hidden.dtype != weight.dtype:
        raise UserError(
            f"weight: must have the dtype of the hidden states, {hidden.dtype}, not {weight.dtype}; or use autocast"
        )
    return hidden, weight, bias


def chunked_sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    loss: HeadLoss,
    target_mask: Tensor,
    *row_tensors: Tensor | None,
) -> tuple[Tensor, ...]:
    """The sums of a loss from hidden states [..., width] and a head, with what the loss is given of each position."""
    rows = (None if one is None else one.flatten() for one in (target_mask, *row_tensors))
    needs_hidden_gradient, needs_head_gradient = needs_gradient(hidden), needs_gradient(weight) or needs_gradient(bias)
    given = (hidden.flatten(0, -2), weight, bias, loss, needs_hidden_gradient, needs_head_gradient, *rows)
    found: tuple[Tensor, ...] = ChunkedHeadFunction.apply(*given)  # type: ignore[no-untyped-call]
    return found[: loss.num_sums]


class HeadGradients(NamedTuple):
    """The gradients of one sum by hidden states [rows, width], head [columns, width] (or transposed) and bias; empty
    where not needed."""

    hidden: Tensor
    head: Tensor
    bias: Tensor

    def add(self, slope: Tensor, x: Tensor, weight: Tensor, rows: Tensor, transposes_head: bool) -> None:
        """Adds a gradient by logits of the rows `rows`, whose hidden states are x."""
        cast_slope = slope.to(x.dtype)
        if self.hidden.numel():
            self.hidden.index_copy_(0, rows, (cast_slope @ weight).to(self.hidden.dtype))
        if self.head.numel():
            factors = (x.T, cast_slope) if transposes_head else (cast_slope.T, x)
            if cast_slope.dtype == self.head.dtype:
                self.head.addmm_(*factors)
            else:
                self.head.add_(factors[0] @ factors[1])
        if self.bias.numel():
            self.bias.add_(slope.sum(0, dtype=self.bias.dtype))


class ChunkedHeadFunction(torch.autograd.Function):
    """Hidden states [rows, width] and a head to the sums; what else it returns belongs to its backward."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        sums, gradients = _sums_and_gradients(*given)
        return *sums, *(tensor for gradient in gradients for tensor in gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.settings = inputs[3:6]
        gradients = output[ctx.settings[0].num_sums :]
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:3], *inputs[6:])
        ctx.gradients = gradients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, row_tensors, (loss, *needed) = ctx.saved_tensors[:3], ctx.saved_tensors[3:], ctx.settings
        saved, ctx.gradients = ctx.gradients, None  # given away: the buffers become the gradients
        if saved is None:
            gradients = _sums_and_gradients(*inputs, loss, *needed, *row_tensors)[1]
        else:
            gradients = [HeadGradients(*saved[3 * number : 3 * number + 3]) for number in range(loss.num_sums)]
        zero = gradients[0].hidden.new_zeros(())
        factors = [zero if grad is None else grad for grad in grad_outputs[: loss.num_sums]]

        def combined(which: int) -> Tensor:
            """The gradient by the input `which`, of all sums together."""
            total = gradients[0][which].mul_(factors[0])
            for number, gradient in enumerate(gradients[1:], start=1):
                columns, own = loss.columns(number), gradient[which].mul_(factors[number])
                if which == 0 or columns is None:
                    total.add_(own)
                else:
                    total.index_add_(0, columns, own)
            if which == 1 and loss.transposes_head:
                total = total.T
            return total.to(inputs[which].dtype).contiguous()

        needs_hidden_gradient, needs_head_gradient = needed
        return (
            combined(0) if needs_hidden_gradient else None,
            combined(1) if needs_head_gradient else None,
            combined(2) if needs_head_gradient and inputs[2] is not None else None,
            *[None] * (3 + len(row_tensors)),
        )


def _sums_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    loss: HeadLoss,
    needs_hidden_gradient: bool,
    needs_head_gradient: bool,
    target_mask: Tensor,
    *row_tensors: Tensor | None,
) -> tuple[list[Tensor], list[HeadGradients]]:
    """The sums and the gradients of each, a chunk of rows at a time."""
    (vocabulary, width), dtype = weight.shape, compute_dtype(hidden.dtype)

    def zeros(wanted: bool, *shape: int) -> Tensor:
        return hidden.new_zeros(shape if wanted else (0,), dtype=dtype)

    gradients = []
    for number in range(loss.num_sums):
        columns = loss.columns(number)
        height = vocabulary if columns is None else len(columns)
        gradients.append(
            HeadGradients(
                zeros(needs_hidden_gradient, len(hidden), width),
                zeros(needs_head_gradient, *((width, height) if loss.transposes_head else (height, width))),
                zeros(needs_head_gradient and bias is not None, height),
            )
        )
    rows = find_target_rows(target_mask)
    chunk_size = max(1, CHUNK_LOGITS.get(hidden.device.type, DEFAULT_CHUNK_LOGITS) // vocabulary)
    buffer = hidden.new_empty((min(chunk_size, len(rows)), vocabulary))
    sums = [hidden.new_zeros((), dtype=dtype) for _ in gradients]
    for start in range(0, len(rows), chunk_size):
        chunk_rows = rows[start : start + chunk_size]
        x, mask, logits = hidden[chunk_rows], target_mask[chunk_rows], buffer[: len(chunk_rows)]
        if not can_read_values(x):  # there the target rows are all rows, which may hold anything
            x = torch.where(mask[:, None], x, 0)
        if bias is None:
            torch.mm(x, weight.T, out=logits)
        else:
            torch.addmm(bias, x, weight.T, out=logits)
        chunk_tensors = [None if one is None else one[chunk_rows] for one in row_tensors]
        found = loss.sums(logits, mask, chunk_tensors, needs_hidden_gradient or needs_head_gradient)
        for number, (total, slope, some) in enumerate(found):
            sums[number] = sums[number] + total
            if slope is not None:
                columns = loss.columns(number)
                own_weight = weight if columns is None else weight[columns]
                of_rows = (x, chunk_rows) if some is None else (x[some], chunk_rows[some])
                gradients[number].add(slope, of_rows[0], own_weight, of_rows[1], loss.transposes_head)
    return sums, gradients
