"""Losses return sums, not means: their divisors are known before the forward pass, and only the trainer divides.

So micro-batches, accumulated or distributed over processes, give the gradient of the full batch. (The mean of
the means of unequal parts is a different number: off by a few thousandths where answers differ in length.)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from numerate.batch import Batch, Output
from numerate.vocabulary import Vocabulary


class LossModule(nn.Module, ABC):
    """The nn.Module of a loss: named terms, each a sum with its own count."""

    weights: Mapping[str, float]
    """The factor of each term in the total."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """The divisor of each term, for this part of a batch. A function of the batch alone."""

    @abstractmethod
    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """The sum of each term over this part of a batch, in nats, computed in float32 at least."""


class Loss(ABC):
    """The spec of a loss: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> LossModule:
        """The loss for one vocabulary (a number loss needs to know which tokens have which values)."""
