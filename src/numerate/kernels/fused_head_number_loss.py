"""Cross-entropy and a number token loss from hidden states and a head in chunks (`chunked_head`).

The number loss affects the rows of few tokens, and few columns of their logits; when reweighing, it multiplies these
rows a second time.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.kernels.chunked_head import ChunkSum, HeadLoss, autocast_head, chunked_sums
from numerate.kernels.fused_number_loss import find_number_rows
from numerate.kernels.number_loss import (
    LossFunction,
    LossSums,
    NumberDistance,
    compute_dtype,
    number_indices_and_weights,
)
from numerate.kernels.number_loss_gradients import number_loss_gradients
from numerate.kernels.number_table import NumberTokenTable


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
    target_mask, loss = labels != ignore_index, NumberLossSums(table, number_distance)
    cross_entropy, number_loss = chunked_sums(
        hidden, weight, bias, loss, target_mask, labels.long(), number_indices, weights
    )
    return LossSums(cross_entropy, number_loss, target_mask.sum(), weights.sum())


@dataclass(frozen=True)
class NumberLossSums(HeadLoss):
    """The sums of cross-entropy and of a number loss, given labels, indices of number tokens and weights."""

    table: NumberTokenTable
    number_distance: NumberDistance
    num_sums = 2

    def columns(self, number: int) -> Tensor | None:
        return None if number == 0 or self.number_distance.reweigh else self.table.ids

    def sums(
        self, logits: Tensor, target_mask: Tensor, row_tensors: list[Tensor | None], wants_slopes: bool
    ) -> list[ChunkSum]:
        labels, number_indices, weights = (one for one in row_tensors if one is not None)
        table, number_distance = self.table, self.number_distance
        probabilities = logits.to(compute_dtype(logits.dtype))  # of float32 and float64 the buffer itself
        safe_labels = torch.where(target_mask, labels, 0)[:, None]
        number_rows = find_number_rows(number_indices)
        has_number, safe_number_indices = number_indices[number_rows] >= 0, number_indices[number_rows].clamp(min=0)
        number_logits = probabilities[number_rows[:, None], table.ids]
        label_logits = probabilities.gather(1, safe_labels)[:, 0]
        max_logits = probabilities.amax(-1, keepdim=True)
        # What is smaller than e^-60 of the largest adds nothing, and as a denormal number would slow the products down.
        exp_sums = probabilities.sub_(max_logits).clamp_(min=-60).exp_().sum(-1, keepdim=True)
        lse = (max_logits + exp_sums.log())[:, 0]
        cross_entropies = torch.where(target_mask, lse - label_logits, 0)
        number_gradients = number_loss_gradients(
            number_distance, number_logits, lse[number_rows], table, safe_number_indices
        )
        row_weights = torch.where(has_number, weights[number_rows], 0)
        target_probabilities = torch.where(
            has_number[:, None],
            number_distance.target_probabilities(table, safe_number_indices).to(probabilities.dtype),
            0,
        )
        if number_distance.has_smooth_targets:
            negative_log_probs = torch.where(target_probabilities > 0, lse[number_rows][:, None] - number_logits, 0)
            smoothed = (target_probabilities * negative_log_probs).sum(-1)
            cross_entropies = cross_entropies.index_copy(
                0, number_rows, torch.where(has_number, smoothed, cross_entropies[number_rows])
            )
        number_losses = torch.where(has_number, row_weights * number_gradients.losses, 0)
        totals = cross_entropies.sum(), number_losses.sum()
        if not wants_slopes:
            return [ChunkSum(total, None) for total in totals]
        probabilities.mul_(torch.where(target_mask[:, None], 1 / exp_sums, 0))
        number_slope = torch.where(has_number[:, None], row_weights[:, None] * number_gradients.number_gradients, 0)
        if number_gradients.softmax_scale is not None:
            softmax_scale = torch.where(has_number, row_weights * number_gradients.softmax_scale, 0)
            slope = probabilities[number_rows] * softmax_scale[:, None]
            slope[:, table.ids] += number_slope
            number_slope = slope
        one_hot_mask = target_mask
        if number_distance.has_smooth_targets:
            probabilities[number_rows] *= torch.where(has_number, target_probabilities.sum(-1), 1)[:, None]
            probabilities.index_put_((number_rows[:, None], table.ids[None]), -target_probabilities, accumulate=True)
            one_hot_mask = target_mask & (number_indices < 0)
        probabilities.scatter_add_(1, safe_labels, -one_hot_mask.to(probabilities.dtype)[:, None])
        return [ChunkSum(totals[0], probabilities), ChunkSum(totals[1], number_slope, number_rows)]
