"""Closed-form gradients of the token-level losses, shared by the fused implementations.

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

from numerate.kernels.number_loss import TEXT_FACTOR, NumberDistance
from numerate.kernels.number_table import NumberTable


class LossSlopes(NamedTuple):
    """The number loss at some positions, and its derivative by logits: `row` x softmax, and more at number tokens."""

    losses: Float[Tensor, " places"]
    columns: Float[Tensor, "places numbers"]
    row: Float[Tensor, " places"] | None


def slopes(
    measure: NumberDistance,
    columns: Float[Tensor, "places numbers"],
    lse: Float[Tensor, " places"],
    table: NumberTable,
    index: Int[Tensor, " places"],
) -> LossSlopes:
    """Losses and derivatives from the logits of the number tokens and the log-sum-exp of the whole vocabulary."""
    p, dtype = columns.softmax(-1), columns.dtype
    cost, losses = _costs(measure, p, table, index, dtype)
    beyond = cost - (p * cost).sum(-1, keepdim=True)
    if not measure.reweigh:
        return LossSlopes(losses, p * beyond, None)
    mass = (columns.logsumexp(-1) - lse).exp()
    text = TEXT_FACTOR * measure.worst(table)
    over = losses - text
    q = (columns - lse[:, None]).exp()
    return LossSlopes(mass * losses + text * (1 - mass), q * (beyond + over[:, None]), -over * mass)


def _costs(
    measure: NumberDistance, p: Tensor, table: NumberTable, index: Tensor, dtype: torch.dtype
) -> tuple[Float[Tensor, "places numbers"], Float[Tensor, " places"]]:
    """The derivative of the loss by each probability, and the loss."""
    if measure.kind == "was":
        far = measure.distances(table, index).to(dtype)
        return far, (p * far).sum(-1)
    if measure.kind == "was-cdf":
        gaps = measure.gaps(table).to(dtype)
        ahead = (p - measure.targets(table, index).to(dtype))[:, table.order].cumsum(-1)
        behind = (gaps * ahead.sign()).flip(-1).cumsum(-1).flip(-1)
        return behind[:, table.order.argsort()], (ahead.abs() * gaps).sum(-1)
    away = (table.values - table.values[index][:, None]).to(dtype)
    off = (p * away).sum(-1)
    if measure.kind == "mse":
        slope, losses = 2 * off, off * off
    elif measure.kind == "mae":
        slope, losses = off.sign(), off.abs()
    else:
        slope, losses = off.clamp(-1, 1), torch.where(off.abs() <= 1, 0.5 * off * off, off.abs() - 0.5)
    return slope[:, None] * away, losses
