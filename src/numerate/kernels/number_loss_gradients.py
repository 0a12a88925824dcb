"""The gradients of the number token losses by the logits, in closed form.

With q the softmax over the whole vocabulary, p that over the n number tokens, t the target and m the mass that q gives
to number tokens, and c the derivative of the number loss L by p, the derivatives by the logits are

- cross-entropy: q - t, with t one token or spread over the number tokens;
- the number loss: p (c - sum p c) at number tokens and nothing elsewhere. c is |v - y| for `was`, f'(sum p v - y) v for
  a function f of the expectation, and for `was-cdf` at the k-th value the sum over gaps from k on of gap x the sign of
  CDF of p - CDF of t;
- reweighed, R = m L + a (1 - m): at every token -(L - a) m q, and at number tokens q (c - sum p c + L - a) more.

So everything but n columns of few rows is a softmax row times one number.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from numerate.kernels.number_loss import TEXT_FACTOR, NumberDistance, difference_loss
from numerate.kernels.number_table import NumberTokenTable


class NumberLossGradients(NamedTuple):
    """The number loss at some positions, and its derivative by logits: `softmax_scale` x softmax, and more at number
    tokens."""

    losses: Float[Tensor, " positions"]
    number_gradients: Float[Tensor, "positions numbers"]
    softmax_scale: Float[Tensor, " positions"] | None


def number_loss_gradients(
    number_distance: NumberDistance,
    number_logits: Float[Tensor, "positions numbers"],
    lse: Float[Tensor, " positions"],
    table: NumberTokenTable,
    number_indices: Int[Tensor, " positions"],
) -> NumberLossGradients:
    """Losses and derivatives from the logits of the number tokens and the log-sum-exp of the whole vocabulary."""
    p, dtype = number_logits.softmax(-1), number_logits.dtype
    cost_gradients, losses = _gradients_and_losses(number_distance, p, table, number_indices, dtype)
    centered_gradients = cost_gradients - (p * cost_gradients).sum(-1, keepdim=True)
    if not number_distance.reweigh:
        return NumberLossGradients(losses, p * centered_gradients, None)
    number_mass = (number_logits.logsumexp(-1) - lse).exp()
    text_loss = TEXT_FACTOR * number_distance.max_loss(table)
    excess_loss = losses - text_loss
    q = (number_logits - lse[:, None]).exp()
    return NumberLossGradients(
        number_mass * losses + text_loss * (1 - number_mass),
        q * (centered_gradients + excess_loss[:, None]),
        -excess_loss * number_mass,
    )


def _gradients_and_losses(
    number_distance: NumberDistance, p: Tensor, table: NumberTokenTable, number_indices: Tensor, dtype: torch.dtype
) -> tuple[Float[Tensor, "positions numbers"], Float[Tensor, " positions"]]:
    """The derivative of the loss by each probability, and the loss."""
    if number_distance.loss_function == "was":
        distances = number_distance.distances(table, number_indices).to(dtype)
        return distances, (p * distances).sum(-1)
    if number_distance.loss_function == "was-cdf":
        gaps = number_distance.value_gaps(table).to(dtype)
        cdf_differences = (p - number_distance.target_probabilities(table, number_indices).to(dtype))[
            :, table.value_order
        ].cumsum(-1)
        reversed_cumsum = (gaps * cdf_differences.sign()).flip(-1).cumsum(-1).flip(-1)
        return reversed_cumsum[:, table.value_order.argsort()], (cdf_differences.abs() * gaps).sum(-1)
    value_differences = (table.values - table.values[number_indices][:, None]).to(dtype)
    expected_difference = (p * value_differences).sum(-1)
    if number_distance.loss_function == "mse":
        derivative = 2 * expected_difference
    elif number_distance.loss_function == "mae":
        derivative = expected_difference.sign()
    else:
        derivative = expected_difference.clamp(-1, 1)
    losses = difference_loss(number_distance.loss_function, expected_difference)
    return derivative[:, None] * value_differences, losses
