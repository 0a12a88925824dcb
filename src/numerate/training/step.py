"""The training step: its parts in order, and the loss that it differentiates."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepSize:
    """What a step reads: examples, tokens without and with padding, and its floating-point operations."""

    examples: int
    tokens: int
    total_tokens: int
    flops: int


class TrainingStep(ABC):
    """Optimizer steps of one run (`Trainer`), or of several at once (`numerate.stacking`).

    Learning rates, sizes and gradient norms are those of each run.
    """

    def take_step(self, learning_rates: Sequence[float]) -> None:
        """One optimizer step. Nothing is counted if it fails."""
        batches, sizes = self.next_batches()
        self.compute_gradients(batches)
        self.update_weights(learning_rates)
        self.count_step(sizes)

    @abstractmethod
    def next_batches(self) -> tuple[Any, Sequence[StepSize]]:
        """The batches of a step, as `compute_gradients` reads them, and their sizes."""

    @abstractmethod
    def compute_gradients(self, batches: Any) -> None:
        """Forward and backward passes of these batches, with `weighted_loss`."""

    @abstractmethod
    def update_weights(self, learning_rates: Sequence[float]) -> None:
        """Clips the gradients and updates the weights."""

    @abstractmethod
    def count_step(self, sizes: Sequence[StepSize]) -> None:
        """Updates the counters after a step."""


def weighted_loss(
    loss_sums: Mapping[str, Tensor], divisors: Mapping[str, int | Tensor], weights: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to differentiate, and the metrics to log: the loss, and each of its terms if there are several."""
    means = {term: value / divisors[term] for term, value in loss_sums.items()}
    weighted = (mean if weights[term] == 1 else weights[term] * mean for term, mean in means.items())
    loss = reduce(torch.add, weighted)
    terms = {f"loss_{term}": mean.detach() for term, mean in means.items()} if len(means) > 1 else {}
    return loss, {"loss": loss.detach(), **terms}
