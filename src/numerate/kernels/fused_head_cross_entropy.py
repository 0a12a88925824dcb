"""Cross-entropy from hidden states and a head in chunks (`chunked_head`). The softmax is taken in float32 at least."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from numerate.errors import UserError
from numerate.kernels.chunked_head import ChunkSum, HeadLoss, autocast_head, chunked_sums
from numerate.kernels.number_loss import compute_dtype
from numerate.kernels.number_table import can_read_values


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
    dtype, labels = compute_dtype(hidden.dtype), labels.long()
    if weights is not None:
        weights = weights.to(dtype)
    if torch.compiler.is_compiling():
        logits = linear(hidden, weight, bias).flatten(0, -2).to(dtype)
        losses = cross_entropy(
            logits, labels.flatten(), reduction="none", label_smoothing=label_smoothing, ignore_index=ignore_index
        )
        return losses.sum() if weights is None else (losses * weights.flatten()).sum()
    loss = CrossEntropySum(label_smoothing)
    return chunked_sums(hidden, weight, bias, loss, labels != ignore_index, labels, weights)[0]


@dataclass(frozen=True)
class CrossEntropySum(HeadLoss):
    """The sum of cross-entropy, given labels and, or None, weights."""

    label_smoothing: float
    num_sums, transposes_head = 1, True

    def sums(
        self, logits: Tensor, target_mask: Tensor, row_tensors: list[Tensor | None], wants_slopes: bool
    ) -> list[ChunkSum]:
        labels, row_weights = row_tensors
        assert labels is not None
        dtype, smoothing = compute_dtype(logits.dtype), self.label_smoothing
        labels = torch.where(target_mask, labels, 0)[:, None]
        if logits.dtype == dtype:
            log_probs = torch.log_softmax(logits, -1, out=logits)
        else:
            log_probs = torch.log_softmax(logits, -1, dtype=dtype)
        losses = -log_probs.gather(1, labels)[:, 0]
        if smoothing:
            losses = (1 - smoothing) * losses - smoothing * log_probs.mean(-1)
        weights = target_mask.to(dtype) if row_weights is None else torch.where(target_mask, row_weights, 0)
        total = torch.where(target_mask, losses, 0).mul_(weights).sum()  # positions without a target may hold anything
        if not wants_slopes:
            return [ChunkSum(total, None)]
        slope = log_probs.exp_()
        slope.scatter_add_(1, labels, torch.full_like(labels, -(1 - smoothing), dtype=dtype))
        if smoothing:
            slope.sub_(smoothing / logits.shape[1])
        if row_weights is not None:
            slope.mul_(weights[:, None])
        if not can_read_values(slope):  # there the target rows are all rows
            slope.masked_fill_(~target_mask[:, None], 0)
        return [ChunkSum(total, slope)]
