"""An objective owns the forward pass: which forwards are made for a batch, and which sums come of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from numerate.batch import Batch, Draw
from numerate.config import setting
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.loss import Loss
from numerate.vocabulary import Vocabulary


class ObjectivePart(nn.Module, ABC):
    """An objective at work. What it draws depends on (seed, step), never on the rank."""

    weights: Mapping[str, float]

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Per term: what its sum is divided by, for this part of a batch, known before the forward."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, draw: Draw) -> dict[str, Tensor]:
        """Per term: the sum over this part of a batch. The batch's tokens have been placed."""


class Objective(ABC):
    """The description of an objective in a recipe: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> ObjectivePart: ...


@dataclass(frozen=True)
class Supervised(Objective):
    """One forward, one loss on what is asked."""

    loss: Loss = setting(CrossEntropy(), "how far off an output is")
    asked_only: bool = setting(True, "compute the last block's end and the head only where something is asked")

    def build(self, vocabulary: Vocabulary) -> ObjectivePart:
        return SupervisedPart(self, vocabulary)


class SupervisedPart(ObjectivePart):
    """The part behind `Supervised`."""

    def __init__(self, spec: Supervised, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.loss = spec.loss.build(vocabulary)
        self.asked_only = spec.asked_only
        self.weights = self.loss.weights

    def counts(self, batch: Batch) -> dict[str, int]:
        return self.loss.counts(batch)

    def forward(self, model: nn.Module, batch: Batch, draw: Draw) -> dict[str, Tensor]:
        output = model(batch.tokens, batch.source, asked=batch.asked if self.asked_only else None)
        terms: dict[str, Tensor] = self.loss(output, batch)
        return terms
