"""Cross-entropy from hidden states and a head in chunks, without the logits of all positions in memory.

Logits of 128 rows x 512 positions x 32,000 tokens are 8.4 GB in float32, and cross-entropy by autograd keeps three such
tensors. Here logits are computed for a few hundred rows at a time, turned in place into their own gradient, and
multiplied at once into the gradients of hidden states and head. Memory is one chunk, and the gradients of hidden states
and head. Wijmans et al. (2024), https://arxiv.org/abs/2411.09009, measure what that saves; their kernel computes the
logits twice instead.

The softmax is taken in float32 at least. A second backward through the same graph computes everything again; the
gradient has no derivative, and raises an error with `create_graph=True`.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from numerate.errors import UserError
from numerate.kernels.fused_number_loss import each_member, learns, once, target_rows
from numerate.kernels.number_loss import work_type

CHUNK = {"cpu": 2**23}
"""How many logits are computed at a time, by device: 32 MB of float32, enough rows for fast products."""
CHUNK_ELSEWHERE = 2**27

LARGE = 2**22
"""From so many logits on they are computed in chunks: 16 MB of float32, of which autograd would keep three."""


def plain_head(head: Any) -> nn.Linear | None:
    """The head, if it is an `nn.Linear` without hooks; else None."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks or head._backward_hooks:
        return None
    return head


def head_cross_entropy(
    hidden: Float[Tensor, "*places width"],
    weight: Float[Tensor, "vocabulary width"],
    labels: Int[Tensor, "*places"],
    *,
    bias: Float[Tensor, " vocabulary"] | None = None,
    smoothing: float = 0.0,
    weights: Float[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """The sum over positions of `weights` (1 if None) times the cross-entropy of `hidden @ weight.T + bias`, in nats.

    Under autocast products are computed in its type, as by the head itself. Inside a compiled graph it is the plain
    form, which the compiler fuses. Raises `UserError` for labels of another shape than the hidden states, for a head of
    another width, and for two float types without autocast.

    >>> head_cross_entropy(torch.zeros(1, 3, 8), torch.ones(4, 8), torch.tensor([[0, 3, -100]]))  # 2 x log 4
    tensor(2.7726)
    """
    if hidden.shape[:-1] != labels.shape:
        raise UserError(f"labels: of shape {tuple(labels.shape)}, and hidden states at {tuple(hidden.shape[:-1])}")
    if hidden.shape[-1] != weight.shape[-1]:
        raise UserError(f"weight: a head for width {weight.shape[-1]}, and hidden states have {hidden.shape[-1]}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        to = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(to), weight.to(to), None if bias is None else bias.to(to)
    if hidden.dtype != weight.dtype:
        raise UserError(
            f"weight: {weight.dtype}, and hidden states are {hidden.dtype}; one type, or autocast, is right"
        )
    labels, rows = labels.flatten().long(), hidden.flatten(0, -2)
    if weights is not None:
        weights = weights.flatten().to(work_type(hidden.dtype))
    if torch.compiler.is_compiling():
        logits = linear(rows, weight, bias).to(work_type(hidden.dtype))
        each = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=ignore_index)
        return each.sum() if weights is None else (each * weights).sum()
    target_positions = labels != ignore_index
    found: Tensor = HeadCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, bias, labels, target_positions, weights, smoothing, learns(hidden), learns(weight) or learns(bias)
    )[0]
    return found


class HeadInputs(NamedTuple):
    """The inputs, in rows: hidden states, the head, labels, which of them are targets, and the weight of each."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    targets_mask: Tensor
    weights: Tensor | None


class HeadGradients(NamedTuple):
    """The gradients of the sum by hidden states [rows, width], head [width, vocabulary] and bias. Empty: not needed."""

    hidden: Tensor
    head: Tensor
    bias: Tensor


class HeadCrossEntropy(torch.autograd.Function):
    """Hidden states [rows, width] and a head to the sum; what else it returns belongs to its backward."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target_positions: Tensor,
        weights: Tensor | None,
        smoothing: float,
        by_hidden: bool,
        by_head: bool,
    ) -> tuple[Tensor, ...]:
        total, slopes = _walk(
            HeadInputs(hidden, weight, bias, labels, target_positions, weights), smoothing, by_hidden, by_head
        )
        return total, *slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, *slopes = output
        ctx.mark_non_differentiable(*slopes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:6])
        ctx.settings = inputs[6:]
        ctx.slopes = slopes

    @staticmethod
    @once
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        given, (_, by_hidden, by_head) = HeadInputs(*ctx.saved_tensors), ctx.settings
        held, ctx.slopes = ctx.slopes, None  # given away: the buffers become the gradients
        slopes = _walk(given, *ctx.settings)[1] if held is None else HeadGradients(*held)
        found: list[Tensor | None] = [None] * 9
        if (total := incoming[0]) is None:
            return tuple(found)
        if by_hidden:
            found[0] = slopes.hidden.mul_(total).to(given.hidden.dtype)
        if by_head:
            found[1] = slopes.head.mul_(total).T.to(given.weight.dtype).contiguous()
            if given.bias is not None:
                found[2] = slopes.bias.mul_(total).to(given.bias.dtype)
        return tuple(found)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """One after the other: a member's rows are a batch of their own."""
        return each_member(HeadCrossEntropy, info, in_dims, args, 1)


def _walk(given: HeadInputs, smoothing: float, by_hidden: bool, by_head: bool) -> tuple[Tensor, HeadGradients]:
    """The sum and its gradients, a chunk of rows at a time. Places without a label cost nothing on a CPU."""
    hidden, (vocabulary, width) = given.hidden, given.weight.shape
    dtype = work_type(hidden.dtype)

    def zeros(wanted: bool, *shape: int) -> Tensor:
        return hidden.new_zeros(shape if wanted else (0,), dtype=dtype)

    slopes = HeadGradients(
        zeros(by_hidden, len(hidden), width),
        zeros(by_head, width, vocabulary),
        zeros(by_head and given.bias is not None, vocabulary),
    )
    rows = target_rows(given.targets_mask)
    chunk = max(1, CHUNK.get(hidden.device.type, CHUNK_ELSEWHERE) // vocabulary)
    buffer = hidden.new_empty((min(chunk, len(rows)), vocabulary))
    total = hidden.new_zeros((), dtype=dtype)
    for first in range(0, len(rows), chunk):
        own = rows[first : first + chunk]
        total = total + _chunk(buffer[: len(own)], given, own, smoothing, slopes)
    return total, slopes


def _chunk(buffer: Tensor, given: HeadInputs, own: Tensor, smoothing: float, slopes: HeadGradients) -> Tensor:
    """The sum of the rows `own`; their gradients are added to `slopes`."""
    x, target_positions = given.hidden[own], given.targets_mask[own]
    right = torch.where(target_positions, given.labels[own], 0)[:, None]
    if given.bias is None:
        torch.mm(x, given.weight.T, out=buffer)
    else:
        torch.addmm(given.bias, x, given.weight.T, out=buffer)
    work, vocabulary = work_type(x.dtype), buffer.shape[1]
    if buffer.dtype == work:
        logs = torch.log_softmax(buffer, -1, out=buffer)
    else:
        logs = torch.log_softmax(buffer, -1, dtype=work)
    losses = -logs.gather(1, right)[:, 0]
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * logs.mean(-1)
    weights = (
        target_positions.to(work) if given.weights is None else torch.where(target_positions, given.weights[own], 0)
    )
    total = torch.where(target_positions, losses, 0).mul_(weights).sum()  # positions without a target may hold anything
    if not any(slope.numel() for slope in slopes):
        return total
    slope = logs.exp_()
    slope.scatter_add_(1, right, torch.full_like(right, -(1 - smoothing), dtype=work))
    if smoothing:
        slope.sub_(smoothing / vocabulary)
    if given.weights is not None:
        slope.mul_(weights[:, None])
    if slope.device.type != "cpu":  # there the target rows are all rows
        slope.masked_fill_(~target_positions[:, None], 0)
        x = torch.where(target_positions[:, None], x, 0)
    typed = slope.to(x.dtype)
    if slopes.hidden.numel():
        slopes.hidden.index_copy_(0, own, (typed @ given.weight).to(work))
    if slopes.head.numel():
        if typed.dtype == work:
            slopes.head.addmm_(x.T, typed)
        else:
            slopes.head.add_(x.T @ typed)
    if slopes.bias.numel():
        slopes.bias.add_(slope.sum(0))
    return total
