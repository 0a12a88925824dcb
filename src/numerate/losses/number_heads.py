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
from numerate.kernels.fused_number_loss import entropy_and_columns
from numerate.losses.loss import Loss, LossPart
from numerate.vocabulary import Vocabulary

Scale = Literal["ln", "number"]

NUMBER_TOKEN = "[NUM]"
"""The token that stands for a number, which the number head predicts."""


@dataclass(frozen=True)
class XValLoss(Loss):
    """xVal: cross-entropy of tokens + squared error of the number head at [NUM], Golkar et al. (2023).

    https://arxiv.org/abs/2310.02989. At target tokens [NUM] the number head predicts the number. By default both are
    compared as sign(x) ln(1 + |x|), which is fixed: the published training of the encoder with number inputs did so.

    `published` is what Zausinger et al. (2025) trained with T5, (cross-entropy + number loss) / 2: predictions and
    labels are first shifted and divided by the mean and deviation of both together (unbiased, + 1e-6). So it depends on
    what else is in a batch, and a batch cut into parts is not the whole one; with one number it is always 2. It is for
    a head that predicts numbers themselves.

    Raises `UserError` for a vocabulary without [NUM], a batch without values, or a model without a number head; and
    with `published` for a head that predicts logarithms, as squares of its numbers overflow float32.
    """

    weight: float = setting(1.0, "weight of the number loss; cross-entropy has weight 1")
    scale: Scale = setting("ln", "scale on which numbers are compared; ln is sign(x) ln(1 + |x|)")
    published: bool = setting(
        False, "as published: numbers divided by the standard deviation of the batch, both losses halved"
    )
    token: str = setting(NUMBER_TOKEN, "the number token")

    def __post_init__(self) -> None:
        _refuse(self.scale, self.weight)

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return XValLossPart(self, _id(self.token, vocabulary))


@dataclass(frozen=True)
class Regression(Loss):
    """Squared error of a regression head, whose one number is the answer.

    The number is the first target [NUM] of a row. `scale="ln"` compares sign(x) ln(1 + |x|). A baseline of
    Zausinger et al. (2025), https://arxiv.org/abs/2411.02083. A row without a number adds nothing. Raises `UserError`
    as `XVal` does.
    """

    scale: Scale = setting("number", "scale on which numbers are compared; ln is sign(x) ln(1 + |x|)")
    token: str = setting(NUMBER_TOKEN, "the number token")

    def __post_init__(self) -> None:
        _refuse(self.scale, 1.0)

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return RegressionPart(self, _id(self.token, vocabulary))


class XValLossPart(LossPart):
    """The part behind `XVal`: `number` is a sum over numbers."""

    def __init__(self, spec: XValLoss, token: int) -> None:
        super().__init__()
        self.spec, self.token = spec, token
        half = 0.5 if spec.published else 1.0
        self.weights: Mapping[str, float] = {"cross_entropy": half, "number": half * spec.weight}
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64), persistent=False)

    def counts(self, batch: Batch) -> dict[str, int]:
        numbers = int((batch.targets == self.token).sum())
        _refuse_without_values(numbers, batch)
        return {"cross_entropy": batch.counts["tokens"], "number": numbers}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_of(output)
        ids: Tensor = self.ids  # type: ignore[assignment]
        entropy, _, _ = entropy_and_columns(output.logits, targets, ids)
        mask = targets == self.token
        if batch.target_values is None:
            return {"cross_entropy": entropy, "number": entropy * 0}
        numbers = torch.where(mask, _values(output, batch), 0)
        if self.spec.published:
            if _predicts_logarithms(output):
                raise UserError(
                    "objective.loss.published: it compares numbers themselves, and this head predicts logarithms; "
                    "model.number_head.scale=number is right with it"
                )
            predictions = torch.where(mask, numbers_on(output, "number"), 0)
            return {
                "cross_entropy": entropy,
                "number": standardised_error(predictions, numbers.to(predictions.dtype), mask),
            }
        predictions = torch.where(mask, numbers_on(output, self.spec.scale), 0)
        errors = (predictions - on_scale(numbers.to(predictions.dtype), self.spec.scale)).square()
        return {"cross_entropy": entropy, "number": torch.where(mask, errors, 0).sum()}


class RegressionPart(LossPart):
    """The part behind `Regression`; its only term is `number`, a sum over rows with a number."""

    weights: Mapping[str, float] = {"number": 1.0}

    def __init__(self, spec: Regression, token: int) -> None:
        super().__init__()
        self.spec, self.token = spec, token

    def counts(self, batch: Batch) -> dict[str, int]:
        rows = int((batch.targets == self.token).any(1).sum())
        _refuse_without_values(rows, batch)
        return {"number": rows}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        mask = batch.targets_of(output) == self.token
        mask = mask & (mask.long().cumsum(1) == 1)
        if batch.target_values is None:
            return {"number": output.hidden.float().sum() * 0}
        predictions = torch.where(mask, numbers_on(output, self.spec.scale), 0)
        numbers = torch.where(mask, _values(output, batch), 0).to(predictions.dtype)
        errors = (predictions - on_scale(numbers, self.spec.scale)).square()
        return {"number": torch.where(mask, errors, 0).sum()}


def on_scale(numbers: Float[Tensor, "*places"], scale: Scale) -> Float[Tensor, "*places"]:
    """Numbers as they are, or as sign(x) ln(1 + |x|): 54 is 4.007."""
    return numbers.sign() * numbers.abs().log1p() if scale == "ln" else numbers


def numbers_on(output: Output, scale: Scale) -> Float[Tensor, "rows places"]:
    """The number head's predictions on this scale, in float32 at least. Raises `UserError` for a model without one."""
    numbers = output.numbers
    if numbers is None:
        raise UserError("model: it has no number head, which this loss trains; give it one, as number_head=NumberHead")
    numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
    if _predicts_logarithms(output):
        return numbers if scale == "ln" else numbers.sign() * numbers.abs().expm1()
    return on_scale(numbers, scale)


def _predicts_logarithms(output: Output) -> bool:
    """Whether a number head predicts sign(x) ln(1 + |x|): its inverse then maps 1 to e - 1."""
    return output.unscaled is not None and abs(float(output.unscaled(torch.ones(()))) - 1) > 0.5


def standardised_error(
    predictions: Float[Tensor, "*places"], targets: Float[Tensor, "*places"], mask: Bool[Tensor, "*places"]
) -> Float[Tensor, ""]:
    """The sum over numbers of the squared error in joint z-scores: the published number loss x the count of numbers.

    A single number always gives 2; none gives 0.
    """
    count = mask.sum()
    both = (2 * count).clamp(min=1)
    # Squares of numbers of 20 digits overflow float32: all are first divided by the largest, which keeps z-scores.
    parts = (one.detach().abs().where(mask, 0).flatten() for one in (predictions, targets))
    unit = torch.cat([*parts, predictions.new_ones(1)]).amax()
    predictions, targets = predictions / unit, targets / unit
    mean = (predictions + targets).sum() / both
    spread = torch.where(mask, (predictions - mean).square() + (targets - mean).square(), 0).sum() / (both - 1).clamp(
        min=1
    )
    deviation = torch.where(spread > 0, spread, 1).sqrt() * (spread > 0) + 1e-6 / unit
    return ((predictions - targets) / deviation).square().sum()


def _values(output: Output, batch: Batch) -> Float[Tensor, "rows places"]:
    """The numbers of the targets that an output covers."""
    assert batch.target_values is not None
    return (
        batch.target_values
        if output.target_positions is None
        else torch.take_along_dim(batch.target_values, output.target_positions, 1)
    )


def _refuse(scale: str, weight: float) -> None:
    if scale not in ("ln", "number"):
        raise UserError(f"scale: {scale!r} is neither 'ln' nor 'number'")
    if not 0 <= weight < float("inf"):
        raise UserError(f"weight: {weight} is no factor; 0 or more is right")


def _refuse_without_values(numbers: int, batch: Batch) -> None:
    if numbers and batch.target_values is None:
        raise UserError(
            "loss: tokens stand for numbers here, but the tokenizer gives no values; the number format XVal does"
        )


def _id(token: str, vocabulary: Vocabulary) -> int:
    if token not in vocabulary.ids:
        raise UserError(
            f"loss.token: the tokenizer has no {token}, which stands for a number; the number format XVal has [NUM]"
        )
    return vocabulary.ids[token]
