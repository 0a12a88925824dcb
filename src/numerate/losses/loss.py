"""Losses return sums, not means: their divisors are known before the forward pass, and only the trainer divides.

So a batch cut into parts, accumulated or spread over processes, gives the gradient of the whole batch. (The mean of
the means of unequal parts is a different number: off by a few thousandths where answers differ in length.)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from numerate.batch import Batch, Output
from numerate.vocabulary import Vocabulary


class LossPart(nn.Module, ABC):
    """The module of a loss: terms by name, each a sum with a count of its own."""

    weights: Mapping[str, float]
    """The factor of each term in the total."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """The divisor of each term, for this part of a batch. A function of the batch alone."""

    @abstractmethod
    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """The sum of each term over this part of a batch, in nats, computed in float32 at least."""


class Loss(ABC):
    """The description of a loss in a recipe: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> LossPart:
        """The loss for one vocabulary (a number loss needs to know which tokens have which values)."""
