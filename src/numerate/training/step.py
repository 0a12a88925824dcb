"""What a training step reads, and the loss that it differentiates."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepSize:
    """What a step reads: examples, tokens without and with padding, and its floating-point operations."""

    examples: int
    tokens: int
    total_tokens: int
    flops: int


def weighted_loss(
    loss_sums: Mapping[str, Tensor], divisors: Mapping[str, int], weights: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to differentiate, and the metrics to log: the loss, and each of its terms if there are several."""
    means = {term: value / divisors[term] for term, value in loss_sums.items()}
    weighted = (mean if weights[term] == 1 else weights[term] * mean for term, mean in means.items())
    loss = reduce(torch.add, weighted)
    terms = {f"loss_{term}": mean.detach() for term, mean in means.items()} if len(means) > 1 else {}
    return loss, {"loss": loss.detach(), **terms}
