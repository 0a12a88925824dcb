"""Cross-entropy and a number token loss from hidden states and a head in chunks, without all logits in memory.

Logits are computed for a few hundred rows at a time, turned into their own gradient in place, and multiplied at once
into the gradients of hidden states and head. Memory is one chunk, and one gradient of the size of the head (two when
reweighing). As the incoming gradients of the two sums are unknown in the forward pass, each sum's part is kept by
itself: the number loss affects the rows of few tokens, and when reweighing it multiplies few rows a second time.

Positions without a label cost nothing: their rows are left out before the first product (on a CPU).
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.kernels.fused_head_cross_entropy import autocast_head
from numerate.kernels.fused_number_loss import (
    find_number_rows,
    find_target_rows,
    needs_gradient,
    once_differentiable,
    vmap_sequentially,
)
from numerate.kernels.number_loss import (
    LossFunction,
    LossSums,
    NumberDistance,
    compute_dtype,
    number_indices_and_weights,
)
from numerate.kernels.number_loss_gradients import number_loss_gradients
from numerate.kernels.number_table import NumberTokenTable

CHUNK_LOGITS = {"cpu": 2**23}
"""Number of logits computed at a time, by device: 32 MB of float32, enough rows for fast products."""
DEFAULT_CHUNK_LOGITS = 2**27


def linear_cross_entropy_and_number_loss(
    hidden: Float[Tensor, "*positions width"],
    weight: Float[Tensor, "vocabulary width"],
    labels: Int[Tensor, "*positions"],
    table: NumberTokenTable,
    *,
    bias: Float[Tensor, " vocabulary"] | None = None,
    loss_function: LossFunction = "was",
    gaussian_sigma: float | None = None,
    reweigh: bool = False,
    squash_factor: float | None = None,
    unit_spacing: bool = False,
    loss_weights: Float[Tensor, "*positions"] | None = None,
    quantity_mask: Bool[Tensor, "*positions"] | None = None,
    ignore_index: int = -100,
) -> LossSums:
    """As `cross_entropy_and_number_loss` of the logits `hidden @ weight.T + bias`, which are never in memory
    at once.

    Under autocast products are computed in its type, as by the head itself. Raises `UserError` as there.
    """
    number_distance = NumberDistance(loss_function, gaussian_sigma, reweigh, squash_factor, unit_spacing)
    table.check_same_shape(hidden.shape[:-1], labels.shape)
    table.check_logits_and_labels(weight.shape[0], labels, ignore_index)
    hidden, weight, bias = autocast_head(hidden, weight, bias)
    number_indices, weights = number_indices_and_weights(
        labels, table, loss_weights, quantity_mask, ignore_index, compute_dtype(hidden.dtype)
    )
    target_mask = labels != ignore_index
    cross_entropy, number_loss, *_ = LinearCrossEntropyAndNumberLossFunction.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2),
        weight,
        bias,
        labels.flatten().long(),
        target_mask.flatten(),
        number_indices.flatten(),
        weights.flatten(),
        table,
        number_distance,
        needs_gradient(hidden),
        needs_gradient(weight) or needs_gradient(bias),
    )
    return LossSums(cross_entropy, number_loss, target_mask.sum(), weights.sum())


class LossGradients(NamedTuple):
    """The gradients of the two sums, each by itself: by hidden states, by the head, and by its bias. Empty: none.

    `number_head` and `number_bias` have a row per number token, or, reweighed, per token of the vocabulary.
    """

    hidden: Tensor
    head: Tensor
    bias: Tensor
    number_hidden: Tensor
    number_head: Tensor
    number_bias: Tensor


class NumberLossInputs(NamedTuple):
    """What is read, in rows: hidden states, the head, labels, and which of them have which number loss."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    target_mask: Tensor
    number_indices: Tensor
    weights: Tensor


class LinearCrossEntropyAndNumberLossFunction(torch.autograd.Function):
    """Hidden states [rows, width] and a head to the two sums; what else it returns belongs to its backward."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target_mask: Tensor,
        number_indices: Tensor,
        weights: Tensor,
        table: NumberTokenTable,
        number_distance: NumberDistance,
        needs_hidden_gradient: bool,
        needs_head_gradient: bool,
    ) -> tuple[Tensor, ...]:
        inputs = NumberLossInputs(hidden, weight, bias, labels, target_mask, number_indices, weights)
        cross_entropy, number_loss, gradients = _sums_and_gradients(
            inputs, table, number_distance, needs_hidden_gradient, needs_head_gradient
        )
        return cross_entropy, number_loss, *gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, _, *gradients = output
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:7])
        ctx.settings = inputs[7:]
        ctx.parts = gradients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, (table, _, needs_hidden_gradient, needs_head_gradient) = (
            NumberLossInputs(*ctx.saved_tensors),
            ctx.settings,
        )
        saved_gradients, ctx.parts = ctx.parts, None  # given away: the buffers become the gradients
        gradients = (
            _sums_and_gradients(inputs, *ctx.settings)[2]
            if saved_gradients is None
            else LossGradients(*saved_gradients)
        )
        grad_cross_entropy, grad_number_loss = (
            gradients.hidden.new_zeros(()) if g is None else g for g in grad_outputs[:2]
        )

        def combine_gradients(own: Tensor, others: Tensor, like: Tensor) -> Tensor:
            own = own.mul_(grad_cross_entropy)
            if len(others) == len(own):
                own.add_(others.mul_(grad_number_loss))
            else:
                own.index_add_(0, table.ids, others.mul_(grad_number_loss))
            return own.to(like.dtype)

        grad_inputs: list[Tensor | None] = [None] * 11
        if needs_hidden_gradient:
            grad_inputs[0] = combine_gradients(gradients.hidden, gradients.number_hidden, inputs.hidden)
        if needs_head_gradient:
            grad_inputs[1] = combine_gradients(gradients.head, gradients.number_head, inputs.weight)
            if inputs.bias is not None:
                grad_inputs[2] = combine_gradients(gradients.bias, gradients.number_bias, inputs.bias)
        return tuple(grad_inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Processes the members one after the other, since their rows are separate batches."""
        return vmap_sequentially(LinearCrossEntropyAndNumberLossFunction, info, in_dims, args, 2)


def _sums_and_gradients(
    inputs: NumberLossInputs,
    table: NumberTokenTable,
    number_distance: NumberDistance,
    needs_hidden_gradient: bool,
    needs_head_gradient: bool,
) -> tuple[Tensor, Tensor, LossGradients]:
    """The two sums and their gradients, a chunk of rows at a time."""
    hidden, (vocabulary, width) = inputs.hidden, inputs.weight.shape
    dtype, num_number_rows = compute_dtype(hidden.dtype), vocabulary if number_distance.reweigh else table.count

    def zeros(wanted: bool, *shape: int) -> Tensor:
        return hidden.new_zeros(shape if wanted else (0,), dtype=dtype)

    needs_bias_gradient = needs_head_gradient and inputs.bias is not None
    gradients = LossGradients(
        zeros(needs_hidden_gradient, len(hidden), width),
        zeros(needs_head_gradient, vocabulary, width),
        zeros(needs_bias_gradient, vocabulary),
        zeros(needs_hidden_gradient, len(hidden), width),
        zeros(needs_head_gradient, num_number_rows, width),
        zeros(needs_bias_gradient, num_number_rows),
    )
    rows = find_target_rows(inputs.target_mask)
    chunk_size = max(1, CHUNK_LOGITS.get(hidden.device.type, DEFAULT_CHUNK_LOGITS) // vocabulary)
    buffer = hidden.new_empty((min(chunk_size, len(rows)), vocabulary))
    cross_entropy, number_loss = (hidden.new_zeros((), dtype=dtype) for _ in range(2))
    for start in range(0, len(rows), chunk_size):
        chunk_rows = rows[start : start + chunk_size]
        chunk_sums = _chunk_sums(buffer[: len(chunk_rows)], inputs, chunk_rows, table, number_distance, gradients)
        cross_entropy, number_loss = cross_entropy + chunk_sums[0], number_loss + chunk_sums[1]
    return cross_entropy, number_loss, gradients


def _chunk_sums(
    buffer: Tensor,
    inputs: NumberLossInputs,
    rows: Tensor,
    table: NumberTokenTable,
    number_distance: NumberDistance,
    gradients: LossGradients,
) -> tuple[Tensor, Tensor]:
    """The sums of the rows `rows`; their gradients are added to `gradients`."""
    x, target_mask, number_indices, weights = (
        inputs.hidden[rows],
        inputs.target_mask[rows],
        inputs.number_indices[rows],
        inputs.weights[rows],
    )
    if inputs.bias is None:
        torch.mm(x, inputs.weight.T, out=buffer)
    else:
        torch.addmm(inputs.bias, x, inputs.weight.T, out=buffer)
    probabilities = buffer.to(compute_dtype(x.dtype))  # of float32 and float64 the buffer itself
    safe_labels = torch.where(target_mask, inputs.labels[rows], 0)[:, None]
    number_rows_in_chunk = find_number_rows(number_indices)
    has_number, safe_number_indices = (
        number_indices[number_rows_in_chunk] >= 0,
        number_indices[number_rows_in_chunk].clamp(min=0),
    )
    number_logits, label_logits = (
        probabilities[number_rows_in_chunk[:, None], table.ids],
        probabilities.gather(1, safe_labels)[:, 0],
    )
    max_logits = probabilities.amax(-1, keepdim=True)
    # What is smaller than e^-60 of the largest adds nothing, and as a denormal number would slow the products down.
    exp_sums = probabilities.sub_(max_logits).clamp_(min=-60).exp_().sum(-1, keepdim=True)
    lse = (max_logits + exp_sums.log())[:, 0]
    cross_entropies = torch.where(target_mask, lse - label_logits, 0)
    number_gradients = number_loss_gradients(
        number_distance, number_logits, lse[number_rows_in_chunk], table, safe_number_indices
    )
    row_weights = torch.where(has_number, weights[number_rows_in_chunk], 0)
    target_probabilities = torch.where(
        has_number[:, None], number_distance.target_probabilities(table, safe_number_indices).to(probabilities.dtype), 0
    )
    if number_distance.has_smooth_targets:
        smoothed_cross_entropies = (
            target_probabilities
            * torch.where(target_probabilities > 0, lse[number_rows_in_chunk][:, None] - number_logits, 0)
        ).sum(-1)
        cross_entropies = cross_entropies.index_copy(
            0,
            number_rows_in_chunk,
            torch.where(has_number, smoothed_cross_entropies, cross_entropies[number_rows_in_chunk]),
        )
    sums = cross_entropies.sum(), (row_weights * number_gradients.losses).sum()
    if not (gradients.hidden.numel() or gradients.head.numel()):
        return sums
    probabilities.mul_(torch.where(target_mask[:, None], 1 / exp_sums, 0))
    number_logit_gradient = row_weights[:, None] * number_gradients.number_gradients
    if number_gradients.softmax_scale is None:
        _add_linear_gradients(
            number_logit_gradient,
            x[number_rows_in_chunk],
            inputs.weight[table.ids],
            rows[number_rows_in_chunk],
            *gradients[3:],
        )
    else:
        logit_gradient = probabilities[number_rows_in_chunk] * (row_weights * number_gradients.softmax_scale)[:, None]
        logit_gradient[:, table.ids] += number_logit_gradient
        _add_linear_gradients(
            logit_gradient, x[number_rows_in_chunk], inputs.weight, rows[number_rows_in_chunk], *gradients[3:]
        )
    one_hot_mask = target_mask
    if number_distance.has_smooth_targets:
        probabilities[number_rows_in_chunk] *= torch.where(has_number, target_probabilities.sum(-1), 1)[:, None]
        probabilities.index_put_(
            (number_rows_in_chunk[:, None], table.ids[None]), -target_probabilities, accumulate=True
        )
        one_hot_mask = target_mask & (number_indices < 0)
    probabilities.scatter_add_(1, safe_labels, -one_hot_mask.to(probabilities.dtype)[:, None])
    _add_linear_gradients(probabilities, x, inputs.weight, rows, *gradients[:3])
    return sums


def _add_linear_gradients(
    logit_gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    hidden_gradient: Tensor,
    head_gradient: Tensor,
    bias_gradient: Tensor,
) -> None:
    """Adds a gradient by logits to those by hidden states (rows `rows`), head and bias, where they are wanted."""
    cast_gradient = logit_gradient.to(x.dtype)
    if hidden_gradient.numel():
        hidden_gradient.index_add_(0, rows, (cast_gradient @ weight).to(hidden_gradient.dtype))
    if head_gradient.numel() and cast_gradient.dtype == head_gradient.dtype:
        head_gradient.addmm_(cast_gradient.T, x)
    elif head_gradient.numel():
        head_gradient.add_(cast_gradient.T @ x)
    if bias_gradient.numel():
        bias_gradient.add_(logit_gradient.sum(0))
