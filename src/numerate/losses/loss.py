"""Losses return sums, not means: the divisors are known before the forward pass, and only the trainer divides.

Thus micro-batches, accumulated or distributed over processes, give the gradient of the full batch. (The mean of the
means of micro-batches would differ by a few thousandths if answers differ in length.)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from numerate.batch import Batch, Output
from numerate.config import Spec
from numerate.vocabulary import Vocabulary


class LossModule(nn.Module, ABC):
    """The nn.Module of a loss: named terms, each a sum with its own count."""

    weights: Mapping[str, float]
    """The factor of each term in the total."""

    def required_digit_order(self) -> Literal["normal", "reversed"] | None:
        """The order in which it reads the digits of numbers in answers; None if that is of no importance."""
        return None

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """The divisor of each term for this (micro-)batch, which depends on nothing else."""

    @abstractmethod
    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """The sum of each term over this (micro-)batch, in nats, computed at least in float32."""


class Loss(Spec, ABC):
    """The spec of a loss: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> LossModule:
        """Builds the loss for a vocabulary (number losses need the values of its tokens)."""
