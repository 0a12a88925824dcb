"""Cross-entropy over the targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE, Batch, Output
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.fused_head_cross_entropy import LARGE, head_cross_entropy, plain_head
from numerate.losses.loss import Loss, LossPart
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy: negative log-probability of the target tokens, in nats.

    `mean_over="tokens"` is the mean over target tokens: long answers weigh more. `mean_over="examples"` is the mean
    over examples of each one's own mean: every example weighs the same.

    `label_smoothing=0.1` gives the target probability 0.9, and spreads 0.1 over the whole vocabulary: label smoothing,
    Szegedy et al. (2016), https://arxiv.org/abs/1512.00567, section 7. The minimum of the loss is then above 0. Raises
    `UserError` for a share that is none.

    Millions of logits, as of texts, are never in memory at once: see `numerate.kernels.fused_head_cross_entropy`. The
    loss is the same but for rounding.
    """

    mean_over: Literal["tokens", "examples"] = setting("tokens", "what the loss is averaged over")
    label_smoothing: float = setting(
        0.0, "label smoothing: share of the target probability spread over the whole vocabulary", later=True
    )
    fused: Literal["auto", "always", "never"] = setting(
        "auto", "compute logits in chunks, never all at once; auto: for large vocabularies", later=True
    )

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"label_smoothing: {self.label_smoothing} is not a share; from 0 (none) to below 1 is right"
            )

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return CrossEntropyPart(self.mean_over == "examples", self.label_smoothing, self.fused)


class CrossEntropyPart(LossPart):
    """The loss behind `CrossEntropy`; its only term is `cross_entropy`."""

    weights: Mapping[str, float] = {"cross_entropy": 1.0}

    def __init__(self, per_example: bool, smoothing: float = 0.0, fused: str = "auto") -> None:
        super().__init__()
        self.per_example, self.smoothing, self.fused = per_example, smoothing, fused

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["examples" if self.per_example else "tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_of(output)
        if (head := self._in_chunks(output)) is not None:
            own = targets != IGNORE
            weights = (1 / own.sum(1, keepdim=True).clamp(min=1)).expand(own.shape) if self.per_example else None
            found = head_cross_entropy(
                output.hidden, head.weight, targets, bias=head.bias, smoothing=self.smoothing, weights=weights
            )
            return {"cross_entropy": found}
        logits = output.logits.float()
        if self.per_example:
            return {"cross_entropy": sum_of_means(logits, targets, self.smoothing)}
        flat, smoothing = logits.flatten(0, 1), self.smoothing
        return {"cross_entropy": cross_entropy(flat, targets.flatten(), reduction="sum", label_smoothing=smoothing)}

    def _in_chunks(self, output: Output) -> nn.Linear | None:
        """The head, where its logits are made in chunks."""
        head = None if self.fused == "never" else plain_head(output.head)
        if head is None or self.fused == "always":
            return head
        return head if output.hidden.shape[:-1].numel() * head.out_features >= LARGE else None


def sum_of_means(
    logits: Float[Tensor, "rows places vocabulary"], targets: Int[Tensor, "rows places"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The sum over rows of each row's mean; a row without targets adds nothing."""
    each = cross_entropy(logits.transpose(1, 2), targets, reduction="none", label_smoothing=smoothing)
    target_positions = (targets != IGNORE).sum(1)
    return (each.sum(1) / target_positions.clamp(min=1)).sum()
