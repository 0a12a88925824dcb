"""Losses of models that say numbers beside tokens: xVal, and regression."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from numerate.batch import Batch, Output
from numerate.config import setting
from numerate.errors import UserError
from numerate.losses.fused import entropy_and_columns
from numerate.losses.loss import Loss, LossPart
from numerate.vocabulary import Vocabulary

Scale = Literal["ln", "number"]

NUMBER_TOKEN = "[NUM]"
"""The token that stands for a number, which the number head says."""


@dataclass(frozen=True)
class XValLoss(Loss):
    """Cross-entropy of tokens + squared error of the numbers behind [NUM]: Golkar et al. (2023), xVal.

    https://arxiv.org/abs/2310.02989. Where [NUM] must be said, the number head must say the number. By default both are
    compared as sign(x) ln(1 + |x|), which is fixed: the published training of the encoder with number inputs did so.

    `published` is what Zausinger et al. (2025) trained with T5, (cross-entropy + number loss) / 2: predictions and
    labels are first shifted and divided by the mean and deviation of both together (unbiased, + 1e-6). So it depends on
    what else is in a batch, and a batch cut into parts is not the whole one; with one number it is always 2. It is for
    a head that says numbers themselves.

    Raises `UserError` for a vocabulary without [NUM], a batch without values, or a model without a number head; and
    with `published` for a head that says logarithms, whose numbers soon have no squares in float32.
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
    """Squared error of the one number that answers a question, and nothing else: a regression head.

    The number is the first [NUM] that is asked in a row. `scale="ln"` compares sign(x) ln(1 + |x|). A baseline of
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
        here = targets == self.token
        if batch.target_values is None:
            return {"cross_entropy": entropy, "number": entropy * 0}
        right = torch.where(here, _values(output, batch), 0)
        if self.spec.published:
            if _says_logarithms(output):
                raise UserError(
                    "objective.loss.published: it compares numbers themselves, and this head says their logarithms; "
                    "model.number_head.scale=number is right beside it"
                )
            said = torch.where(here, said_on(output, "number"), 0)
            return {"cross_entropy": entropy, "number": standardised_error(said, right.to(said.dtype), here)}
        said = torch.where(here, said_on(output, self.spec.scale), 0)
        each = (said - on_scale(right.to(said.dtype), self.spec.scale)).square()
        return {"cross_entropy": entropy, "number": torch.where(here, each, 0).sum()}


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
        here = batch.targets_of(output) == self.token
        here = here & (here.long().cumsum(1) == 1)
        if batch.target_values is None:
            return {"number": output.hidden.float().sum() * 0}
        said = torch.where(here, said_on(output, self.spec.scale), 0)
        right = torch.where(here, _values(output, batch), 0).to(said.dtype)
        each = (said - on_scale(right, self.spec.scale)).square()
        return {"number": torch.where(here, each, 0).sum()}


def on_scale(numbers: Float[Tensor, "*places"], scale: Scale) -> Float[Tensor, "*places"]:
    """Numbers as they are, or as sign(x) ln(1 + |x|): 54 is 4.007."""
    return numbers.sign() * numbers.abs().log1p() if scale == "ln" else numbers


def said_on(output: Output, scale: Scale) -> Float[Tensor, "rows places"]:
    """What the number head says, on this scale, in float32 at least. Raises `UserError` for a model without one."""
    numbers = output.numbers
    if numbers is None:
        raise UserError("model: it has no number head, which this loss trains; give it one, as number_head=NumberHead")
    numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
    if _says_logarithms(output):
        return numbers if scale == "ln" else numbers.sign() * numbers.abs().expm1()
    return on_scale(numbers, scale)


def _says_logarithms(output: Output) -> bool:
    """Whether what a number head says is already sign(x) ln(1 + |x|): its way back makes e - 1 of 1."""
    return output.unscaled is not None and abs(float(output.unscaled(torch.ones(()))) - 1) > 0.5


def standardised_error(
    said: Float[Tensor, "*places"], right: Float[Tensor, "*places"], here: Bool[Tensor, "*places"]
) -> Float[Tensor, ""]:
    """The sum over numbers of the squared error in joint z-scores: the published number loss x the count of numbers.

    One number only gives 2, whatever it is; none gives 0.
    """
    count = here.sum()
    both = (2 * count).clamp(min=1)
    # Numbers of 20 digits have no squares in float32, so that all are first divided by the largest: z-scores stay.
    parts = (one.detach().abs().where(here, 0).flatten() for one in (said, right))
    unit = torch.cat([*parts, said.new_ones(1)]).amax()
    said, right = said / unit, right / unit
    mean = (said + right).sum() / both
    spread = torch.where(here, (said - mean).square() + (right - mean).square(), 0).sum() / (both - 1).clamp(min=1)
    deviation = torch.where(spread > 0, spread, 1).sqrt() * (spread > 0) + 1e-6 / unit
    return ((said - right) / deviation).square().sum()


def _values(output: Output, batch: Batch) -> Float[Tensor, "rows places"]:
    """The numbers behind the targets that an output covers."""
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
            "loss: tokens stand for numbers here, but the tokenizer gives no values; the spelling XVal does"
        )


def _id(token: str, vocabulary: Vocabulary) -> int:
    if token not in vocabulary.ids:
        raise UserError(
            f"loss.token: the tokenizer has no {token}, which stands for a number; the spelling XVal has [NUM]"
        )
    return vocabulary.ids[token]
