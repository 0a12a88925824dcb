"""Cross-entropy with a number token loss, and cross-entropy with targets spread over neighbouring numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from numerate.batch import IGNORE, Batch, Output
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.fused_head_number_loss import head_cross_entropy_and_number
from numerate.kernels.fused_number_loss import cross_entropy_and_number
from numerate.kernels.number_loss import Kind, LossSums, NumberDistance, plain_sums
from numerate.kernels.number_table import NumberTable
from numerate.losses.loss import Loss, LossPart
from numerate.losses.number_tokens import number_table
from numerate.losses.runs import Notation, place_weights
from numerate.vocabulary import Vocabulary

Fusing = Literal["auto", "head", "logits", "none"]

LARGE = 2**22
"""From how many logits on `fused="auto"` makes them in chunks: 16 MB of float32."""


@dataclass(frozen=True)
class NumberToken(Loss):
    """Cross-entropy + `weight` x a number token loss: Zausinger et al. (2025), https://arxiv.org/abs/2411.02083.

    At target number tokens, the error is computed from the probabilities of all number tokens among themselves:
    `loss_function="was"` is the Wasserstein-1 distance (sum p |v - y|), `was-cdf` the same from cumulative
    probabilities, `mse`, `mae` and `huber` use the expected value. `numerate.kernels.number_loss` has the definitions.

    `mean_over="number tokens"` divides the number loss by their count, as published: the rarer numbers are, the more
    each weighs against other tokens. `mean_over="labels"` divides it by the count of all target tokens, so that
    `weight` is one number token's share against one token's cross-entropy. Both counts are of the whole batch, however
    it is cut.

    `digit_weight_ratio=10` lets a digit weigh ten times as much as the digit behind it, 1 on average in each number; 1
    treats all alike, as published. `gaussian_sigma` spreads the targets of cross-entropy (and of `was-cdf`) over
    neighbouring numbers. `reweigh` charges the probability that goes to text, as the package ntloss does by default and
    the paper does not: before a model has learned to predict numbers at all, it leaves hardly any gradient between
    them. `squash_factor=2` (`was`) makes the farthest number only twice as wrong as the nearest.

    `fused` is how it is computed, with the same result up to rounding: from hidden states and head without holding
    the logits ("head", where the head is one linear map), from logits in one pass ("logits"), written out ("none").
    """

    loss_function: Kind = setting("was", "distance between predicted and target number: was, was-cdf, mse, mae, huber")
    weight: float = setting(0.3, "weight of the number loss; cross-entropy has weight 1")
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens have a numeric value: digits, or all numbers"
    )
    mean_over: Literal["number tokens", "labels"] = setting("number tokens", "what the number loss is averaged over")
    reweigh: bool = setting(False, "whether probability mass on text tokens at number positions is penalized")
    squash_factor: float | None = setting(
        None, "largest over smallest distance between different numbers; null: as they are"
    )
    digit_weight_ratio: float = setting(1.0, "weight of a digit relative to the next less significant one")
    digit_order: Literal["normal", "reversed"] = setting(
        "normal", "which digit comes first: normal (most significant) or reversed"
    )
    gaussian_sigma: float | None = setting(
        None, "standard deviation of Gaussian-smoothed targets; null: one-hot targets"
    )
    unit_spacing: bool = setting(False, "was-cdf: treat neighboring values as 1 apart, as published")
    fused: Fusing = setting("auto", "implementation: auto, head, logits, none")

    def __post_init__(self) -> None:
        if self.squash_factor is not None and not 1 < self.squash_factor < float("inf"):
            raise UserError(f"squash_factor: {self.squash_factor} makes all numbers alike; more than 1 is right")
        if self.squash_factor is not None and self.loss_function != "was":
            raise UserError(f"squash_factor: {self.loss_function} has no distances to squash; loss_function=was has")
        self.measure()
        if not 0 <= self.weight < float("inf"):
            raise UserError(f"weight: {self.weight} is no factor; 0.3 is the paper's, 0 leaves cross-entropy alone")
        if self.mean_over not in ("number tokens", "labels"):
            raise UserError(f"mean_over: {self.mean_over!r} is neither 'number tokens' nor 'labels'")
        if not 0 < self.digit_weight_ratio < float("inf"):
            raise UserError(
                f"digit_weight_ratio: {self.digit_weight_ratio} is no weight; 1 (all digits alike) to 10 is usual"
            )
        if self.digit_order not in ("normal", "reversed"):
            raise UserError(f"digit_order: {self.digit_order!r} is neither 'normal' nor 'reversed'")
        if self.fused not in ("auto", "head", "logits", "none"):
            raise UserError(f"fused: {self.fused!r} is none of 'auto', 'head', 'logits', 'none'")

    def measure(self) -> NumberDistance:
        """What it compares numbers by. Raises `UserError` for settings that cannot be."""
        return NumberDistance(
            self.loss_function, self.gaussian_sigma, self.reweigh, self.squash_factor, self.unit_spacing
        )

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return NumberTokenPart(self, vocabulary)


@dataclass(frozen=True)
class GaussianCrossEntropy(Loss):
    """Cross-entropy whose targets at number tokens are spread over neighbouring numbers by a Gaussian.

    Of number token j it asks exp(-((v_j - y) / sigma)² / 2), divided by the sum of all (+ 1e-8); of all other tokens
    what plain cross-entropy asks. `sigma=0` is plain cross-entropy. One of the baselines of Zausinger et al. (2025),
    https://arxiv.org/abs/2411.02083; with a number token loss beside it: `NumberToken("was-cdf",
    gaussian_sigma=1)`.
    """

    sigma: float = setting(1.0, "standard deviation of the smoothed targets, in units of the values; 0: one-hot")
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens have a numeric value: digits, or all numbers"
    )
    fused: Fusing = setting("auto", "implementation: auto, head, logits, none")

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < float("inf"):
            raise UserError(f"sigma: {self.sigma} is no width; 0 (none) or more is right")
        if self.fused not in ("auto", "head", "logits", "none"):
            raise UserError(f"fused: {self.fused!r} is none of 'auto', 'head', 'logits', 'none'")

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return GaussianPart(self, vocabulary)


class NumberTokenPart(LossPart):
    """The part behind `NumberToken`: `cross_entropy` is a sum over labels, `number` one over number tokens."""

    def __init__(self, spec: NumberToken, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec, self.measure = spec, spec.measure()
        self.table = number_table(vocabulary, spec.number_tokens)
        self.notation = Notation.of_vocabulary(vocabulary, spec.digit_order)
        self.weights: Mapping[str, float] = {"cross_entropy": 1.0, "number": spec.weight}

    def counts(self, batch: Batch) -> dict[str, int]:
        tokens = batch.counts["tokens"]
        if self.spec.mean_over == "labels":
            return {"cross_entropy": tokens, "number": tokens}
        return {"cross_entropy": tokens, "number": int((self.table.of_labels(batch.targets) >= 0).sum())}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        weights = None
        if self.spec.digit_weight_ratio != 1:
            weights = place_weights(batch.targets, self.table, self.notation, self.spec.digit_weight_ratio)
            if output.target_positions is not None:
                weights = torch.take_along_dim(weights, output.target_positions, dim=1)
        found = sums_of(output, batch, self.table, self.measure, self.spec.fused, weights)
        return {"cross_entropy": found.cross_entropy, "number": found.number}


class GaussianPart(LossPart):
    """The part behind `GaussianCrossEntropy`; its only term is `cross_entropy`."""

    weights: Mapping[str, float] = {"cross_entropy": 1.0}

    def __init__(self, spec: GaussianCrossEntropy, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec, self.measure = spec, NumberDistance("was", gaussian_sigma=spec.sigma)
        self.table = number_table(vocabulary, spec.number_tokens)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        return {"cross_entropy": sums_of(output, batch, self.table, self.measure, self.spec.fused).cross_entropy}


def sums_of(
    output: Output,
    batch: Batch,
    table: NumberTable,
    measure: NumberDistance,
    fused: Fusing = "auto",
    loss_weights: Tensor | None = None,
) -> LossSums:
    """The two sums of an output, computed as set by `fused` and where the model allows it."""
    targets = batch.targets_of(output)
    head = _linear(output.head)
    if fused == "head" and head is None:
        raise UserError("fused: this model's head is not one linear map; 'auto', 'logits' and 'none' are right for it")
    given: dict[str, Any] = {"loss_weights": loss_weights, "ignore_index": IGNORE}
    if fused != "none":
        given |= {
            "kind": measure.kind,
            "gaussian_sigma": measure.gaussian_sigma,
            "reweigh": measure.reweigh,
            "squash": measure.squash,
            "unit_gaps": measure.unit_gaps,
        }
    if head is not None and (fused == "head" or (fused == "auto" and targets.numel() * len(head.weight) >= LARGE)):
        return head_cross_entropy_and_number(output.hidden, head.weight, targets, table, bias=head.bias, **given)
    if fused == "none":
        return plain_sums(output.logits, targets, table, measure, **given)
    return cross_entropy_and_number(output.logits, targets, table, **given)


def _linear(head: object) -> nn.Linear | None:
    """The head, if it is an `nn.Linear`: no subclass, no hooks, no weights sharded over processes."""
    if type(head) is not nn.Linear or type(head.weight) not in (nn.Parameter, Tensor):
        return None
    return None if head._forward_hooks or head._forward_pre_hooks else head
