"""Losses of number heads: xVal, and regression."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from numerate.batch import Batch, Output
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.fused_number_loss import cross_entropy_and_token_logits
from numerate.losses.loss import Loss, LossModule
from numerate.vocabulary import Vocabulary

NumberScale = Literal["ln", "number"]

NUMBER_TOKEN = "[NUM]"
"""The token in place of a number, which the number head predicts."""


@dataclass(frozen=True)
class XValLoss(Loss):
    """xVal: cross-entropy of tokens + squared error of the number head at [NUM], Golkar et al. (2023).

    https://arxiv.org/abs/2310.02989. At target tokens [NUM] the number head predicts the number. By default both are
    compared on the fixed scale sign(x) ln(1 + |x|), as in the published training of the encoder with number inputs.

    `published` is the loss that Zausinger et al. (2025) trained T5 with, (cross-entropy + number loss) / 2, after
    standardizing predictions and labels by their joint mean and standard deviation (unbiased, + 1e-6). It therefore
    depends on the rest of the batch, and the loss of micro-batches differs from that of the full batch; with a single
    number it is always 2. It requires a head that predicts numbers, not logarithms.

    Raises `UserError` for a vocabulary without [NUM], a batch without number values, or a model without a number head;
    and with `published` for a head that predicts logarithms, because the squares of its numbers overflow float32.
    """

    weight: float = setting(1.0, "weight of the number loss; cross-entropy has weight 1", at_least=0)
    scale: NumberScale = setting(
        "ln", "scale on which numbers are compared: as they are (number), or sign(x) ln(1 + |x|) (ln)"
    )
    published: bool = setting(
        False, "whether to use the published loss: numbers standardized over the batch, both losses halved"
    )
    number_token: str = setting(NUMBER_TOKEN, "the number token")

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return XValLossModule(self, _number_token_id(self.number_token, vocabulary))


@dataclass(frozen=True)
class Regression(Loss):
    """Squared error of a regression head, which predicts the whole answer as one number.

    The number is the first target [NUM] of a row. `scale="ln"` compares sign(x) ln(1 + |x|). A baseline of Zausinger et
    al. (2025), https://arxiv.org/abs/2411.02083. Rows without a number contribute nothing. Raises `UserError` as
    `XValLoss` does.
    """

    scale: NumberScale = setting(
        "number", "scale on which numbers are compared: as they are (number), or sign(x) ln(1 + |x|) (ln)"
    )
    number_token: str = setting(NUMBER_TOKEN, "the number token")

    def build(self, vocabulary: Vocabulary) -> LossModule:
        return RegressionModule(self, _number_token_id(self.number_token, vocabulary))


class XValLossModule(LossModule):
    """The module of `XValLoss`: `number` is a sum over numbers."""

    def __init__(self, spec: XValLoss, token_id: int) -> None:
        super().__init__()
        self.spec, self.token_id = spec, token_id
        factor = 0.5 if spec.published else 1.0
        self.weights: Mapping[str, float] = {"cross_entropy": factor, "number": factor * spec.weight}

    def counts(self, batch: Batch) -> dict[str, int]:
        num_numbers = int((batch.targets == self.token_id).sum())
        _check_number_values(num_numbers, batch)
        return {"cross_entropy": batch.counts["tokens"], "number": num_numbers}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_for(output)
        no_ids = targets.new_zeros(0, dtype=torch.int64)
        cross_entropy, _, _ = cross_entropy_and_token_logits(output.logits, targets, no_ids)
        mask = targets == self.token_id
        if batch.target_number_values is None:
            return {"cross_entropy": cross_entropy, "number": cross_entropy * 0}
        target_numbers = torch.where(mask, _target_number_values(output, batch), 0)
        if self.spec.published:
            if output.unscale is not None:
                raise UserError(
                    "objective.loss.published: must be false for a head that predicts logarithms; use "
                    "model.number_head.scale=number"
                )
            predictions = torch.where(mask, predicted_numbers(output, "number"), 0)
            return {
                "cross_entropy": cross_entropy,
                "number": standardized_error(predictions, target_numbers.to(predictions.dtype), mask),
            }
        predictions = torch.where(mask, predicted_numbers(output, self.spec.scale), 0)
        errors = (predictions - to_scale(target_numbers.to(predictions.dtype), self.spec.scale)).square()
        return {"cross_entropy": cross_entropy, "number": torch.where(mask, errors, 0).sum()}


class RegressionModule(LossModule):
    """The module of `Regression`; its only term is `number`, a sum over rows with a number."""

    weights: Mapping[str, float] = {"number": 1.0}

    def __init__(self, spec: Regression, token_id: int) -> None:
        super().__init__()
        self.spec, self.token_id = spec, token_id

    def counts(self, batch: Batch) -> dict[str, int]:
        num_rows = int((batch.targets == self.token_id).any(1).sum())
        _check_number_values(num_rows, batch)
        return {"number": num_rows}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        mask = batch.targets_for(output) == self.token_id
        mask = mask & (mask.long().cumsum(1) == 1)
        if batch.target_number_values is None:
            return {"number": output.hidden_states.float().sum() * 0}
        predictions = torch.where(mask, predicted_numbers(output, self.spec.scale), 0)
        target_numbers = torch.where(mask, _target_number_values(output, batch), 0).to(predictions.dtype)
        errors = (predictions - to_scale(target_numbers, self.spec.scale)).square()
        return {"number": torch.where(mask, errors, 0).sum()}


def to_scale(numbers: Float[Tensor, "*positions"], scale: NumberScale) -> Float[Tensor, "*positions"]:
    """Numbers unchanged, or as sign(x) ln(1 + |x|): 54 becomes 4.007."""
    return numbers.sign() * numbers.abs().log1p() if scale == "ln" else numbers


def predicted_numbers(output: Output, scale: NumberScale) -> Float[Tensor, "rows positions"]:
    """The predictions of the number head on this scale, at least in float32. Raises `UserError` if there is none."""
    numbers = output.scaled_numbers
    if numbers is None:
        raise UserError("model: must have a number head for this loss; set model.number_head=NumberHead")
    numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
    if output.unscale is not None:
        return numbers if scale == "ln" else numbers.sign() * numbers.abs().expm1()
    return to_scale(numbers, scale)


def standardized_error(
    predictions: Float[Tensor, "*positions"], targets: Float[Tensor, "*positions"], mask: Bool[Tensor, "*positions"]
) -> Float[Tensor, ""]:
    """The sum over numbers of the squared error in joint z-scores: the published number loss x the count of numbers.

    A single number always gives 2, no number 0.
    """
    num_numbers = mask.sum()
    num_values = (2 * num_numbers).clamp(min=1)
    # Squares of 20-digit numbers overflow float32: divide by the largest first, which does not change z-scores.
    magnitudes = (one.detach().abs().where(mask, 0).flatten() for one in (predictions, targets))
    max_magnitude = torch.cat([*magnitudes, predictions.new_ones(1)]).amax()
    predictions, targets = predictions / max_magnitude, targets / max_magnitude
    mean = (predictions + targets).sum() / num_values
    variance = torch.where(mask, (predictions - mean).square() + (targets - mean).square(), 0).sum() / (
        num_values - 1
    ).clamp(min=1)
    deviation = torch.where(variance > 0, variance, 1).sqrt() * (variance > 0) + 1e-6 / max_magnitude
    return ((predictions - targets) / deviation).square().sum()


def _target_number_values(output: Output, batch: Batch) -> Float[Tensor, "rows positions"]:
    """The numbers of the targets that an output covers."""
    assert batch.target_number_values is not None
    return (
        batch.target_number_values
        if output.target_positions is None
        else torch.take_along_dim(batch.target_number_values, output.target_positions, 1)
    )


def _check_number_values(num_numbers: int, batch: Batch) -> None:
    if num_numbers and batch.target_number_values is None:
        raise UserError("objective.loss: requires a tokenizer with number values; use number_format=XVal")


def _number_token_id(token: str, vocabulary: Vocabulary) -> int:
    if token not in vocabulary.token_to_id:
        raise UserError(
            f"objective.loss.number_token: must be a token of the vocabulary, not {token}; XVal has [NUM], and "
            "AsIs(number_answers=true) for answers alone (tokenizer.number_format=)"
        )
    return vocabulary.token_to_id[token]
