"""Cross-entropy over what is asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE, Batch, Output
from numerate.config import setting
from numerate.errors import Mistake
from numerate.losses.loss import Loss, LossPart
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Negative log-probability of what must be said, in nats, over the places where something is asked.

    `over="tokens"` is the mean over asked tokens: long answers weigh more. `over="examples"` is the mean over examples
    of each one's own mean: every example weighs the same.

    `smoothing=0.1` asks for probability 0.9 of what must be said, and spreads 0.1 over the whole vocabulary: label
    smoothing, Szegedy et al. (2016), https://arxiv.org/abs/1512.00567, section 7. So the loss of what is right goes on
    saying how right it is; its least is no longer 0. Raises `Mistake` for a share that is none.
    """

    over: Literal["tokens", "examples"] = setting("tokens", "what the mean is taken over")
    smoothing: float = setting(0.0, "share of the probability that is asked of the whole vocabulary alike", later=True)

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise Mistake(f"smoothing: {self.smoothing} is not a share; from 0 (none) to below 1 is right")

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return CrossEntropyPart(self.over == "examples", self.smoothing)


class CrossEntropyPart(LossPart):
    """The loss behind `CrossEntropy`; its only term is `cross_entropy`."""

    weights: Mapping[str, float] = {"cross_entropy": 1.0}

    def __init__(self, per_example: bool, smoothing: float = 0.0) -> None:
        super().__init__()
        self.per_example, self.smoothing = per_example, smoothing

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["examples" if self.per_example else "tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_of(output)
        logits = output.logits.float()
        if self.per_example:
            return {"cross_entropy": sum_of_means(logits, targets, self.smoothing)}
        flat, smoothing = logits.flatten(0, 1), self.smoothing
        return {"cross_entropy": cross_entropy(flat, targets.flatten(), reduction="sum", label_smoothing=smoothing)}


def sum_of_means(
    logits: Float[Tensor, "rows places vocabulary"], targets: Int[Tensor, "rows places"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The sum over rows of each row's mean; a row that is asked nothing adds nothing."""
    each = cross_entropy(logits.transpose(1, 2), targets, reduction="none", label_smoothing=smoothing)
    asked = (targets != IGNORE).sum(1)
    return (each.sum(1) / asked.clamp(min=1)).sum()
