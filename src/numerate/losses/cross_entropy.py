"""Cross-entropy over the targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE_INDEX, Batch, Output
from numerate.config import setting
from numerate.kernels.chunked_head import MIN_CHUNKED_LOGITS, linear_head_or_none
from numerate.kernels.fused_head_cross_entropy import linear_cross_entropy
from numerate.losses.loss import Loss, LossModule
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy: negative log-probability of the target tokens, in nats.

    `mean_over="tokens"` is the mean over target tokens: long answers weigh more. `mean_over="examples"` averages the
    means of the examples: all examples are weighted equally.

    `label_smoothing=0.1` gives the target probability 0.9 and spreads 0.1 over the whole vocabulary (Szegedy et al.,
    2016, https://arxiv.org/abs/1512.00567, section 7). The minimum of the loss is then above 0. Raises `UserError` for
    invalid values.

    Large numbers of logits, as in language modeling, are computed in chunks, which changes only rounding: see
    `numerate.kernels.fused_head_cross_entropy`.
    """

    mean_over: Literal["tokens", "examples"] = setting(
        "tokens", "average over all target tokens (tokens), or over the means of the examples (examples)"
    )
    label_smoothing: float = setting(
        0.0, "label smoothing: fraction of the target probability spread over the whole vocabulary", at_least=0, below=1
    )
    fused: Literal["auto", "always", "never"] = setting(
        "auto", "computing logits in chunks, to save memory: always, never, or if there are many (auto)"
    )

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return CrossEntropyModule(self.mean_over == "examples", self.label_smoothing, self.fused)


class CrossEntropyModule(LossModule):
    """The module of `CrossEntropy`; its only term is `cross_entropy`."""

    weights: Mapping[str, float] = {"cross_entropy": 1.0}

    def __init__(self, per_example: bool, label_smoothing: float = 0.0, fused: str = "auto") -> None:
        super().__init__()
        self.per_example, self.label_smoothing, self.fused = per_example, label_smoothing, fused

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["examples" if self.per_example else "tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_for(output)
        if (head := self._chunked_head(output)) is not None:
            target_mask = targets != IGNORE_INDEX
            weights = (
                (1 / target_mask.sum(1, keepdim=True).clamp(min=1)).expand(target_mask.shape)
                if self.per_example
                else None
            )
            loss = linear_cross_entropy(
                output.hidden_states,
                head.weight,
                targets,
                bias=head.bias,
                label_smoothing=self.label_smoothing,
                weights=weights,
            )
            return {"cross_entropy": loss}
        logits = output.logits.float()
        if self.per_example:
            return {"cross_entropy": sum_of_example_means(logits, targets, self.label_smoothing)}
        flat_logits, label_smoothing = logits.flatten(0, 1), self.label_smoothing
        return {
            "cross_entropy": cross_entropy(
                flat_logits, targets.flatten(), reduction="sum", label_smoothing=label_smoothing
            )
        }

    def _chunked_head(self, output: Output) -> nn.Linear | None:
        """The head, if its logits are computed in chunks."""
        head = None if self.fused == "never" else linear_head_or_none(output.lm_head)
        if head is None or self.fused == "always":
            return head
        return head if output.hidden_states.shape[:-1].numel() * head.out_features >= MIN_CHUNKED_LOGITS else None


def sum_of_example_means(
    logits: Float[Tensor, "rows positions vocabulary"],
    targets: Int[Tensor, "rows positions"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """The sum over rows of the mean loss of each row; 0 for rows without targets."""
    losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none", label_smoothing=label_smoothing)
    num_targets = (targets != IGNORE_INDEX).sum(1)
    return (losses.sum(1) / num_targets.clamp(min=1)).sum()
