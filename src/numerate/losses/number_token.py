"""Cross-entropy with a number token loss, and cross-entropy with targets spread over neighboring numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, Output
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.chunked_head import MIN_CHUNKED_LOGITS, linear_head_or_none
from numerate.kernels.fused_head_number_loss import linear_cross_entropy_and_number_loss
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss
from numerate.kernels.number_loss import LossFunction, LossSums, NumberDistance, reference_loss_sums
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.loss import Loss, LossModule
from numerate.losses.number_spans import NumberNotation, number_table, place_value_weights
from numerate.vocabulary import Vocabulary

FusedMode = Literal["auto", "head", "logits", "none"]


@dataclass(frozen=True)
class NumberToken(Loss):
    """Cross-entropy + `weight` x a number token loss (NTL): Zausinger et al. (2025), https://arxiv.org/abs/2411.02083.

    At positions whose target is a number token, the error is computed from the probabilities renormalized over all
    number tokens: `loss_function="was"` is the Wasserstein-1 distance (sum p |v - y|), `was-cdf` the same from
    cumulative probabilities, `mse`, `mae` and `huber` use the expected value. `numerate.kernels.number_loss` has the
    definitions.

    `mean_over="number_tokens"` divides the number loss by their count, as published: the rarer numbers are, the more
    each of them weighs relative to other tokens. `mean_over="tokens"` divides it by the count of all target tokens, so
    that `weight` is the weight of one number token's loss relative to one token's cross-entropy. Both counts are over
    the global batch, however it is split.

    `digit_weight_ratio=10` gives each digit ten times the weight of the next less significant one, with mean 1 in each
    number; 1 weights all digits equally, as published. `gaussian_sigma` spreads the targets of cross-entropy (and of
    `was-cdf`) over neighboring numbers. `reweigh` penalizes the probability of text tokens, as the package ntloss does
    by default and the paper does not: while a model assigns little probability to numbers, there is almost no gradient
    between the number tokens. `squash_factor=2` (`was`) rescales distances so that the largest is only twice the
    smallest.

    `fused` selects the implementation, with the same result up to rounding: from hidden states and the output
    projection without materializing the logits ("head", for a linear head), from logits in one pass ("logits"), or
    unfused ("none")."""

    loss_function: LossFunction = setting(
        "was",
        "was (NTL-WAS): Wasserstein-1 distance to the target; was-cdf: by cumulative probabilities; mse, mae, huber",
    )
    weight: float = setting(0.3, "weight of the number loss; cross-entropy has weight 1", at_least=0)
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens count as numbers: single digits, or also tokens of several digits (numbers)"
    )
    mean_over: Literal["number_tokens", "tokens"] = setting(
        "number_tokens",
        "denominator of the number loss: target number tokens (number_tokens), or all target tokens (tokens)",
    )
    reweigh: bool = setting(False, "whether probability mass on text tokens at number positions is penalized")
    squash_factor: float | None = setting(
        None, "ratio of the largest to the smallest distance between different numbers; null: unchanged", above=1
    )
    digit_weight_ratio: float = setting(
        1.0, "weight of a digit relative to the next less significant one; 1: equal weights", above=0
    )
    digit_order: Literal["normal", "reversed"] = setting(
        "normal", "with digit_weight_ratio: digit order of the answers, which must be that of the tokenizer"
    )
    gaussian_sigma: float | None = setting(
        None, "standard deviation of Gaussian-smoothed targets; null: one-hot targets", at_least=0
    )
    unit_spacing: bool = setting(False, "was-cdf: treat neighboring values as 1 apart, as in the paper's code")
    fused: FusedMode = setting(
        "auto",
        "implementation, same result up to rounding: without storing logits (head), in one pass (logits), none, auto",
    )

    def conflicts(self) -> Iterator[str]:
        if self.squash_factor is not None and self.loss_function != "was":
            yield f"squash_factor: must be null for loss_function={self.loss_function}; only 'was' has one"

    def number_distance(self) -> NumberDistance:
        """The distance between numbers. Raises `UserError` for invalid settings."""
        return NumberDistance(
            self.loss_function, self.gaussian_sigma, self.reweigh, self.squash_factor, self.unit_spacing
        )

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return NumberTokenModule(self, vocabulary)


@dataclass(frozen=True)
class GaussianCrossEntropy(Loss):
    """Cross-entropy whose targets at number tokens are spread over neighboring numbers by a Gaussian.

    The target probability of number token j is exp(-((v_j - y) / sigma)² / 2), divided by the sum over all of them (+
    1e-8); all other tokens have the same targets as in plain cross-entropy. `sigma=0` is plain cross-entropy. One of
    the baselines of Zausinger et al. (2025), https://arxiv.org/abs/2411.02083; combined with a number token loss:
    `NumberToken("was-cdf", gaussian_sigma=1)`."""

    sigma: float = setting(
        1.0, "standard deviation of the smoothed targets, in units of the values; 0: one-hot", at_least=0
    )
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens count as numbers: single digits, or also tokens of several digits (numbers)"
    )
    fused: FusedMode = setting(
        "auto",
        "implementation, same result up to rounding: without storing logits (head), in one pass (logits), none, auto",
    )

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return GaussianCrossEntropyModule(self, vocabulary)


class NumberTokenModule(LossModule):
    """The module of `NumberToken`: `cross_entropy` is a sum over labels, `number` one over number tokens."""

    def __init__(self, spec: NumberToken, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec, self.number_distance = spec, spec.number_distance()
        self.table = number_table(vocabulary, spec.number_tokens)
        self.notation = NumberNotation.from_vocabulary(vocabulary, spec.digit_order)
        self.weights: Mapping[str, float] = {"cross_entropy": 1.0, "number": spec.weight}

    def required_digit_order(self) -> Literal["normal", "reversed"] | None:
        return None if self.spec.digit_weight_ratio == 1 else self.spec.digit_order

    def counts(self, batch: Batch) -> dict[str, int]:
        tokens = batch.counts["tokens"]
        if self.spec.mean_over == "tokens":
            return {"cross_entropy": tokens, "number": tokens}
        return {"cross_entropy": tokens, "number": self.table.count_numbers(batch.targets)}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        weights = None
        if self.spec.digit_weight_ratio != 1:
            weights = place_value_weights(batch.targets, self.table, self.notation, self.spec.digit_weight_ratio)
            if output.target_positions is not None:
                weights = torch.take_along_dim(weights, output.target_positions, dim=1)
        sums = compute_loss_sums(output, batch, self.table, self.number_distance, self.spec.fused, weights)
        return {"cross_entropy": sums.cross_entropy, "number": sums.number_loss}


class GaussianCrossEntropyModule(LossModule):
    """The module of `GaussianCrossEntropy`; its only term is `cross_entropy`."""

    weights: Mapping[str, float] = {"cross_entropy": 1.0}

    def __init__(self, spec: GaussianCrossEntropy, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec, self.number_distance = spec, NumberDistance("was", gaussian_sigma=spec.sigma)
        self.table = number_table(vocabulary, spec.number_tokens)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        return {
            "cross_entropy": compute_loss_sums(
                output, batch, self.table, self.number_distance, self.spec.fused
            ).cross_entropy
        }


def compute_loss_sums(
    output: Output,
    batch: Batch,
    table: NumberTokenTable,
    number_distance: NumberDistance,
    fused: FusedMode = "auto",
    loss_weights: Tensor | None = None,
) -> LossSums:
    """The sums of cross-entropy and number loss of an output, computed by the implementation that `fused` selects."""
    targets = batch.targets_for(output)
    head = linear_head_or_none(output.lm_head)
    if fused == "head" and head is None:
        raise UserError("fused: must be 'auto', 'logits' or 'none' for a model whose head is not an nn.Linear")
    loss_kwargs: dict[str, Any] = {"loss_weights": loss_weights, "ignore_index": IGNORE_INDEX}
    if fused != "none":
        loss_kwargs |= vars(number_distance)
    if head is not None and (
        fused == "head" or (fused == "auto" and targets.numel() * len(head.weight) >= MIN_CHUNKED_LOGITS)
    ):
        return linear_cross_entropy_and_number_loss(
            output.hidden_states, head.weight, targets, table, bias=head.bias, **loss_kwargs
        )
    if fused == "none":
        return reference_loss_sums(output.logits, targets, table, number_distance, **loss_kwargs)
    return cross_entropy_and_number_loss(output.logits, targets, table, **loss_kwargs)
