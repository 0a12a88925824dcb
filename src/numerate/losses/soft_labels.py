"""Losses on number tokens that compare their probabilities with a soft target, or each probability separately."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from numerate.batch import Batch, Output
from numerate.config import setting
from numerate.kernels.fused_number_loss import cross_entropy_and_token_logits
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.loss import Loss, LossModule
from numerate.losses.number_spans import number_table
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class SoftLabels(Loss):
    """Cross-entropy + a loss on number tokens with soft targets (DIST2) or separate binary targets (DEL).

    With p the probabilities renormalized over the number tokens, v their values and y that of the label:

    - `dist2`: KL(g || p) with g ~ exp(-(v - y)² / temperature). Chung et al. (2025), "Teaching Metric Distance to
      Discrete Autoregressive Language Models", https://arxiv.org/abs/2503.02379.
    - `del`: the mean over number tokens of p_j x the binary cross-entropy of the logit of token j (target: whether it
      is the label). Zheng et al. (2026), "DEL: Digit Entropy Loss", https://arxiv.org/abs/2605.20369, following the
      published code (https://github.com/PolyU-VCLab/DEL). It determines the absolute level of the logits.

    Deviations from the papers: any values, not only digits; no weights by place value (DEL weights each digit by its
    place, and includes the decimal point); the default weight of `dist2`. The default weight 0.1 is that of DEL.
    """

    loss_function: Literal["dist2", "del"] = setting(
        "dist2", "dist2: KL divergence to a soft target; del: binary cross-entropies"
    )
    weight: float = setting(0.1, "weight of the number loss; cross-entropy has weight 1", at_least=0)
    temperature: float = setting(1.0, "dist2: temperature of the soft target, in squared units of the values", above=0)
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens count as numbers: single digits, or also tokens of several digits (numbers)"
    )

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return SoftLabelsModule(self, vocabulary)


class SoftLabelsModule(LossModule):
    """The module of `SoftLabels`: `number` is a sum over number tokens."""

    def __init__(self, spec: SoftLabels, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec = spec
        self.table = number_table(vocabulary, spec.number_tokens)
        self.weights: Mapping[str, float] = {"cross_entropy": 1.0, "number": spec.weight}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cross_entropy": batch.counts["tokens"], "number": self.table.count_numbers(batch.targets)}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        logits, targets = output.logits, batch.targets_for(output)
        self.table.check_logits_and_labels(logits.shape[-1], targets)
        cross_entropy, number_logits, _ = cross_entropy_and_token_logits(logits, targets, self.table.ids)
        number_indices = self.table.number_indices(targets)
        safe_number_indices = number_indices.clamp(min=0)
        if self.spec.loss_function == "dist2":
            losses = dist2_loss(number_logits, self.table, safe_number_indices, self.spec.temperature)
        else:
            losses = digit_entropy_loss(number_logits, self.table, safe_number_indices)
        return {"cross_entropy": cross_entropy, "number": torch.where(number_indices >= 0, losses, 0).sum()}


def dist2_loss(
    number_logits: Float[Tensor, "*positions numbers"],
    table: NumberTokenTable,
    number_indices: Int[Tensor, "*positions"],
    temperature: float,
) -> Float[Tensor, "*positions"]:
    """KL(g || p) at each position, g ~ exp(-(v - y)² / temperature); the label is number token `number_indices`."""
    target_log_probs = (
        (-(table.values - table.values[number_indices][..., None]).square() / temperature)
        .log_softmax(-1)
        .to(number_logits.dtype)
    )
    return (target_log_probs.exp() * (target_log_probs - number_logits.log_softmax(-1))).sum(-1)


def digit_entropy_loss(
    number_logits: Float[Tensor, "*positions numbers"],
    table: NumberTokenTable,
    number_indices: Int[Tensor, "*positions"],
) -> Float[Tensor, "*positions"]:
    """The mean over number tokens of p x binary cross-entropy; the label is number token `number_indices`."""
    is_label = torch.arange(table.count, device=number_logits.device) == number_indices[..., None]
    binary_cross_entropy = -torch.where(is_label, logsigmoid(number_logits), logsigmoid(-number_logits))
    return (number_logits.softmax(-1) * binary_cross_entropy).mean(-1)
