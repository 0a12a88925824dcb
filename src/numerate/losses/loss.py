"""A loss gives sums, not means: what they are divided by is known before any forward, and only the trainer divides.

So a batch cut into parts, accumulated or spread over processes, gives the gradient of the whole batch. (The mean of
the means of unequal parts is a different number: off by a few thousandths where answers differ in length.)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from numerate.batch import Batch, Output
from numerate.vocabulary import Vocabulary


class LossPart(nn.Module, ABC):
    """A loss at work: terms by name, each a sum with a count of its own."""

    weights: Mapping[str, float]
    """Per term: its factor in the total."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Per term: what its sum is divided by, for this part of a batch. A function of the batch alone."""

    @abstractmethod
    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """Per term: the sum over this part of a batch, in nats, computed in float32 at least."""


class Loss(ABC):
    """The description of a loss in a recipe: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> LossPart:
        """The loss for one vocabulary (a number loss needs to know which tokens have which values)."""
