"""Number-level losses: the error of the expected number against the target number.

A token-level loss compares each digit separately. Here the expected values of a number's digits, times their powers of
ten, are summed and compared with the number: a wrong digit costs as much as its place value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from numerate.batch import Batch, Output
from numerate.config import setting
from numerate.kernels.fused_number_loss import cross_entropy_and_token_logits
from numerate.kernels.number_loss import TEXT_FACTOR
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.loss import Loss, LossModule
from numerate.losses.number_spans import NumberNotation, NumberSpans, find_number_spans, number_table
from numerate.vocabulary import Vocabulary

PUBLISHED_EPSILON = float(torch.finfo(torch.float32).eps)


@dataclass(frozen=True)
class NumberLevel(Loss):
    """Cross-entropy + a number-level loss: the relative error of the expected number.

    The expected number is the sum of the expected values of its digits x 10^place, times the expected sign if the
    vocabulary has a minus. The loss is |expected - target| / max(|target|, 1), which has a gradient at target 0. Digits
    are compared before they are summed, and scaled by the size of the number, so that even the thirtieth digit counts.
    Decimal points, thousands separators and tokens of several digits are handled as in `numerate.losses.number_spans`.
    Based on the number-level loss of ntloss (https://github.com/AI4SD/number-token-loss); the scale and the sign are
    additions.

    `published="yes"` is ntloss 0.3.2: |expected - target| / (|expected| + |target|), without the sign; a decimal point
    ends a number, or is skipped with "float_level", so that 12.34 is read as 1234. At target 0 it has no gradient.

    `reweigh` includes the probability of number tokens in the whole vocabulary, as in token-level losses, with 1 as the
    largest loss. With `published` it is the probability at the first digit of a number; otherwise the mean over its
    digits.
    """

    weight: float = setting(0.3, "weight of the number loss; cross-entropy has weight 1", at_least=0)
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens count as numbers: single digits, or also tokens of several digits (numbers)"
    )
    digit_order: Literal["normal", "reversed"] = setting(
        "normal", "digit order of the answers, which must be that of the tokenizer"
    )
    reweigh: bool = setting(False, "whether probability mass on text tokens at number positions is penalized")
    published: Literal["no", "yes", "float_level"] = setting("no", "the loss as in ntloss 0.3.2, or its `float_level`")

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return NumberLevelModule(self, vocabulary)


class NumberLevelModule(LossModule):
    """The module of `NumberLevel`: `number` is a sum over whole numbers."""

    def __init__(self, spec: NumberLevel, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec, self.published = spec, spec.published != "no"
        self.join_points = spec.published == "float_level"
        self.table = number_table(vocabulary, spec.number_tokens, joins_all=self.published)
        self.notation = NumberNotation.from_vocabulary(vocabulary, spec.digit_order)
        self.weights: Mapping[str, float] = {"cross_entropy": 1.0, "number": spec.weight}
        self.table.read_logits_of(self.notation.minus_ids)

    def required_digit_order(self) -> Literal["normal", "reversed"]:
        return self.spec.digit_order

    def counts(self, batch: Batch) -> dict[str, int]:
        table = self.table.on(batch.targets.device)
        spans = label_number_spans(batch.targets, table, self.notation, self.published, self.join_points)
        return {"cross_entropy": batch.counts["tokens"], "number": int(spans.start_mask.sum())}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        spec, logits, targets = self.spec, output.logits, batch.targets_for(output)
        self.table.check_logits_and_labels(logits.shape[-1], targets)
        cross_entropy, token_logits, lse = cross_entropy_and_token_logits(logits, targets, self.table.logit_ids)
        losses = number_losses(
            _scatter_to_all_positions(token_logits, output, batch),
            _scatter_to_all_positions(lse[..., None], output, batch)[..., 0],
            batch.targets,
            self.table,
            self.notation,
            reweigh=spec.reweigh,
            published=self.published,
            join_points=self.join_points,
        )
        return {"cross_entropy": cross_entropy, "number": losses.sum()}


def label_number_spans(
    labels: Int[Tensor, "rows time"],
    table: NumberTokenTable,
    notation: NumberNotation,
    published: bool,
    join_points: bool,
) -> NumberSpans:
    """The numbers in rows of labels, as defined by the loss or its published form."""
    if published:
        points = notation.point_ids if join_points else ()
        notation = NumberNotation((), points, (), notation.digit_order, joins_points=join_points)
    return find_number_spans(labels, table.number_indices(labels), table, notation)


def number_losses(
    token_logits: Float[Tensor, "rows time tokens"],
    lse: Float[Tensor, "rows time"],
    labels: Int[Tensor, "rows time"],
    table: NumberTokenTable,
    notation: NumberNotation,
    *,
    reweigh: bool = False,
    published: bool = False,
    join_points: bool = False,
) -> Float[Tensor, "rows time"]:
    """The loss of each number at its first digit, 0 elsewhere.

    `token_logits` are the logits of the number tokens, followed by those of the minus signs, if any. Everything is
    divided by the largest power of ten of the number, and digits are compared before they are summed.
    """
    spans = label_number_spans(labels, table, notation, published, join_points)
    num_number_tokens, dtype = table.count, token_logits.dtype
    values = table.values.to(dtype)
    p = token_logits[..., :num_number_tokens].softmax(-1)
    label_values = torch.where(
        spans.number_mask, values[torch.where(spans.number_mask, table.number_indices(labels), 0)], 0
    )
    errors = torch.where(spans.number_mask, (p * (values - label_values[..., None])).sum(-1), 0)
    scale = torch.where(spans.number_mask, 10.0 ** (spans.exponents - spans.max_exponents).to(dtype), 0)
    target, error = spans.sum_per_number(label_values * scale), spans.sum_per_number(errors * scale)
    scaled_one = 10.0 ** -torch.where(spans.start_mask, spans.max_exponents, 0).to(dtype)  # 1 on this scale
    if published:
        losses = error.abs() / ((target + error).abs() + target.abs() + PUBLISHED_EPSILON * scaled_one)
    else:
        minus_logits = token_logits[..., num_number_tokens:]
        if minus_logits.shape[-1]:
            target, error = _apply_expected_sign(token_logits, minus_logits, spans, target, error)
        losses = error.abs() / target.abs().maximum(scaled_one)
    if reweigh:
        number_mass = (token_logits[..., :num_number_tokens].logsumexp(-1) - lse).exp()
        if not published:
            number_mass = spans.sum_per_number(number_mass) / spans.sum_per_number(torch.ones_like(number_mass)).clamp(
                min=1
            )
        losses = number_mass * losses + TEXT_FACTOR * (1 - number_mass)
    return torch.where(spans.start_mask, losses, 0)


def _scatter_to_all_positions(values: Float[Tensor, "rows positions tokens"], output: Output, batch: Batch) -> Tensor:
    """Values at the target positions of an output, scattered to all positions of the rows, with 0 elsewhere."""
    if output.target_positions is None:
        return values
    rows, time = batch.targets.shape
    positions = output.target_positions[..., None].expand_as(values)
    return values.new_zeros(rows, time, values.shape[-1]).scatter(1, positions, values)


def _apply_expected_sign(
    token_logits: Tensor, minus_logits: Tensor, spans: NumberSpans, target: Tensor, error: Tensor
) -> tuple[Tensor, Tensor]:
    """Target and error with their signs. The expected sign is 1 - 2 x the probability of a minus (among minus and
    number tokens) at the position of the sign, or at the start of a number without a sign."""
    minus_probabilities = (minus_logits.logsumexp(-1) - token_logits.logsumexp(-1)).exp()
    preceding_probabilities = torch.cat(
        [minus_probabilities[:, :1], minus_probabilities[:, :-1]], dim=1
    )  # at the preceding position
    sign_probabilities = torch.where(spans.negative_mask, preceding_probabilities, minus_probabilities)
    sign = torch.where(spans.negative_mask, -1.0, 1.0).to(target.dtype)
    expected_sign = 1 - 2 * sign_probabilities
    return sign * target, sign * error + (expected_sign - sign) * (target + error)
