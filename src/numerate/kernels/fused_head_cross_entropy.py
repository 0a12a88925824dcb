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
from numerate.kernels.fused_number_loss import find_target_rows, needs_gradient, once_differentiable, vmap_sequentially
from numerate.kernels.number_loss import compute_dtype

CHUNK_LOGITS = {"cpu": 2**23}
"""Number of logits computed at a time, by device: 32 MB of float32, enough rows for fast products."""
DEFAULT_CHUNK_LOGITS = 2**27

MIN_CHUNKED_LOGITS = 2**22
"""If there are at least this many logits, they are computed in chunks: 16 MB of float32, of which autograd would keep
three."""


def linear_head_or_none(head: Any) -> nn.Linear | None:
    """The head, if it is an `nn.Linear` without hooks; else None."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks or head._backward_hooks:
        return None
    return head


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


def linear_cross_entropy(
    hidden: Float[Tensor, "*positions width"],
    weight: Float[Tensor, "vocabulary width"],
    labels: Int[Tensor, "*positions"],
    *,
    bias: Float[Tensor, " vocabulary"] | None = None,
    label_smoothing: float = 0.0,
    weights: Float[Tensor, "*positions"] | None = None,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """The sum over positions of `weights` (1 if None) times the cross-entropy of `hidden @ weight.T + bias`, in nats.

    Under autocast products are computed in its type, as by the head itself. Inside a compiled graph it is the plain
    form, which the compiler fuses. Raises `UserError` for labels of another shape than the hidden states, for a head of
    another width, and for two float types without autocast.

    >>> linear_cross_entropy(torch.zeros(1, 3, 8), torch.ones(4, 8), torch.tensor([[0, 3, -100]]))  # 2 x log 4
    tensor(2.7726)
    """
    if hidden.shape[:-1] != labels.shape:
        raise UserError(f"labels: of shape {tuple(labels.shape)}, and hidden states at {tuple(hidden.shape[:-1])}")
    hidden, weight, bias = autocast_head(hidden, weight, bias)
    labels, hidden_rows = labels.flatten().long(), hidden.flatten(0, -2)
    if weights is not None:
        weights = weights.flatten().to(compute_dtype(hidden.dtype))
    if torch.compiler.is_compiling():
        logits = linear(hidden_rows, weight, bias).to(compute_dtype(hidden.dtype))
        losses = cross_entropy(
            logits, labels, reduction="none", label_smoothing=label_smoothing, ignore_index=ignore_index
        )
        return losses.sum() if weights is None else (losses * weights).sum()
    target_mask = labels != ignore_index
    loss_sum: Tensor = LinearCrossEntropyFunction.apply(  # type: ignore[no-untyped-call]
        hidden_rows,
        weight,
        bias,
        labels,
        target_mask,
        weights,
        label_smoothing,
        needs_gradient(hidden),
        needs_gradient(weight) or needs_gradient(bias),
    )[0]
    return loss_sum


class HeadInputs(NamedTuple):
    """The inputs, in rows: hidden states, the head, labels, which of them are targets, and the weight of each."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    target_mask: Tensor
    weights: Tensor | None


class HeadGradients(NamedTuple):
    """The gradients of the sum by hidden states [rows, width], head [width, vocabulary] and bias. Empty: not needed."""

    hidden: Tensor
    head: Tensor
    bias: Tensor


class LinearCrossEntropyFunction(torch.autograd.Function):
    """Hidden states [rows, width] and a head to the sum; what else it returns belongs to its backward."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target_mask: Tensor,
        weights: Tensor | None,
        label_smoothing: float,
        needs_hidden_gradient: bool,
        needs_head_gradient: bool,
    ) -> tuple[Tensor, ...]:
        loss_sum, gradients = _sum_and_gradients(
            HeadInputs(hidden, weight, bias, labels, target_mask, weights),
            label_smoothing,
            needs_hidden_gradient,
            needs_head_gradient,
        )
        return loss_sum, *gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, *gradients = output
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:6])
        ctx.settings = inputs[6:]
        ctx.slopes = gradients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, (_, needs_hidden_gradient, needs_head_gradient) = HeadInputs(*ctx.saved_tensors), ctx.settings
        saved_gradients, ctx.slopes = ctx.slopes, None  # given away: the buffers become the gradients
        gradients = (
            _sum_and_gradients(inputs, *ctx.settings)[1] if saved_gradients is None else HeadGradients(*saved_gradients)
        )
        grad_inputs: list[Tensor | None] = [None] * 9
        if (grad_output := grad_outputs[0]) is None:
            return tuple(grad_inputs)
        if needs_hidden_gradient:
            grad_inputs[0] = gradients.hidden.mul_(grad_output).to(inputs.hidden.dtype)
        if needs_head_gradient:
            grad_inputs[1] = gradients.head.mul_(grad_output).T.to(inputs.weight.dtype).contiguous()
            if inputs.bias is not None:
                grad_inputs[2] = gradients.bias.mul_(grad_output).to(inputs.bias.dtype)
        return tuple(grad_inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Processes the members one after the other, since their rows are separate batches."""
        return vmap_sequentially(LinearCrossEntropyFunction, info, in_dims, args, 1)


def _sum_and_gradients(
    inputs: HeadInputs, label_smoothing: float, needs_hidden_gradient: bool, needs_head_gradient: bool
) -> tuple[Tensor, HeadGradients]:
    """The sum and its gradients, a chunk of rows at a time. Positions without a label cost nothing on a CPU."""
    hidden, (vocabulary, width) = inputs.hidden, inputs.weight.shape
    dtype = compute_dtype(hidden.dtype)

    def zeros(wanted: bool, *shape: int) -> Tensor:
        return hidden.new_zeros(shape if wanted else (0,), dtype=dtype)

    gradients = HeadGradients(
        zeros(needs_hidden_gradient, len(hidden), width),
        zeros(needs_head_gradient, width, vocabulary),
        zeros(needs_head_gradient and inputs.bias is not None, vocabulary),
    )
    rows = find_target_rows(inputs.target_mask)
    chunk_size = max(1, CHUNK_LOGITS.get(hidden.device.type, DEFAULT_CHUNK_LOGITS) // vocabulary)
    buffer = hidden.new_empty((min(chunk_size, len(rows)), vocabulary))
    loss_sum = hidden.new_zeros((), dtype=dtype)
    for start in range(0, len(rows), chunk_size):
        chunk_rows = rows[start : start + chunk_size]
        loss_sum = loss_sum + _chunk_sum(buffer[: len(chunk_rows)], inputs, chunk_rows, label_smoothing, gradients)
    return loss_sum, gradients


def _chunk_sum(
    buffer: Tensor, inputs: HeadInputs, rows: Tensor, label_smoothing: float, gradients: HeadGradients
) -> Tensor:
    """The sum of the rows `rows`; their gradients are added to `gradients`."""
    x, target_mask = inputs.hidden[rows], inputs.target_mask[rows]
    labels = torch.where(target_mask, inputs.labels[rows], 0)[:, None]
    if inputs.bias is None:
        torch.mm(x, inputs.weight.T, out=buffer)
    else:
        torch.addmm(inputs.bias, x, inputs.weight.T, out=buffer)
    dtype, vocabulary = compute_dtype(x.dtype), buffer.shape[1]
    if buffer.dtype == dtype:
        log_probs = torch.log_softmax(buffer, -1, out=buffer)
    else:
        log_probs = torch.log_softmax(buffer, -1, dtype=dtype)
    losses = -log_probs.gather(1, labels)[:, 0]
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * log_probs.mean(-1)
    weights = target_mask.to(dtype) if inputs.weights is None else torch.where(target_mask, inputs.weights[rows], 0)
    loss_sum = torch.where(target_mask, losses, 0).mul_(weights).sum()  # positions without a target may hold anything
    if not any(logit_gradient.numel() for logit_gradient in gradients):
        return loss_sum
    slope = log_probs.exp_()
    slope.scatter_add_(1, labels, torch.full_like(labels, -(1 - label_smoothing), dtype=dtype))
    if label_smoothing:
        slope.sub_(label_smoothing / vocabulary)
    if inputs.weights is not None:
        slope.mul_(weights[:, None])
    if slope.device.type != "cpu":  # there the target rows are all rows
        slope.masked_fill_(~target_mask[:, None], 0)
        x = torch.where(target_mask[:, None], x, 0)
    cast_gradient = slope.to(x.dtype)
    if gradients.hidden.numel():
        gradients.hidden.index_copy_(0, rows, (cast_gradient @ inputs.weight).to(dtype))
    if gradients.head.numel():
        if cast_gradient.dtype == dtype:
            gradients.head.addmm_(x.T, cast_gradient)
        else:
            gradients.head.add_(x.T @ cast_gradient)
    if gradients.bias.numel():
        gradients.bias.add_(slope.sum(0))
    return loss_sum
