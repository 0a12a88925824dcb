"""Cross-entropy over what is asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE, Batch, Output
from numerate.config import setting
from numerate.losses.loss import Loss, LossPart
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Negative log-probability of what must be said, in nats, over the places where something is asked.

    `over="tokens"` is the mean over asked tokens: long answers weigh more. `over="examples"` is the mean over examples
    of each one's own mean: every example weighs the same.
    """

    over: Literal["tokens", "examples"] = setting("tokens", "what the mean is taken over")

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return CrossEntropyPart(self.over == "examples")


class CrossEntropyPart(LossPart):
    """The loss behind `CrossEntropy`; its only term is `cross_entropy`."""

    weights: Mapping[str, float] = {"cross_entropy": 1.0}

    def __init__(self, per_example: bool) -> None:
        super().__init__()
        self.per_example = per_example

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["examples" if self.per_example else "tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_of(output)
        logits = output.logits.float()
        if self.per_example:
            return {"cross_entropy": sum_of_means(logits, targets)}
        return {"cross_entropy": cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")}


def sum_of_means(
    logits: Float[Tensor, "rows places vocabulary"], targets: Int[Tensor, "rows places"]
) -> Float[Tensor, ""]:
    """The sum over rows of each row's mean; a row that is asked nothing adds nothing."""
    each = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    asked = (targets != IGNORE).sum(1)
    return (each.sum(1) / asked.clamp(min=1)).sum()
