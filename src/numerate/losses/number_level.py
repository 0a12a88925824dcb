"""Number-level losses: the error of the expected number against the target number.

A token-level loss takes each digit by itself. Here the expected values of a number's digits are summed with their
powers of ten, and compared with the number: a wrong first digit costs what it is worth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import Batch, Output
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.fused_number_loss import entropy_and_columns
from numerate.kernels.number_loss import TEXT_FACTOR
from numerate.kernels.number_table import NumberTable
from numerate.losses.loss import Loss, LossPart
from numerate.losses.number_tokens import number_table
from numerate.losses.runs import Notation, Runs, runs
from numerate.vocabulary import Vocabulary

PUBLISHED_EPSILON = float(torch.finfo(torch.float32).eps)


@dataclass(frozen=True)
class NumberLevel(Loss):
    """Cross-entropy + a number-level loss: the relative error of the expected number.

    The expected number is the sum of the expected values of its digits x 10^place, times the expected sign where the
    vocabulary has a minus. The loss is |expected - target| / max(|target|, 1), which has a gradient at target 0. Digits
    are compared before they are summed, and scaled by the number's own size, so that the thirtieth digit still counts.
    Decimal points, thousands and tokens of several digits are read as in `runs`. After the number-level loss of ntloss
    (https://github.com/AI4SD/number-token-loss); scale and sign are ours.

    `published="yes"` is ntloss 0.3.2: |expected - target| / (|expected| + |target|), without the sign; a point ends a
    number, or with "float_level" is skipped, so that 12.34 is read as 1234. At 0 it has no gradient.

    `reweigh` includes the probability of number tokens in the whole vocabulary, as in token-level losses; the largest
    loss counts as 1. Published, it is that at a number's first digit; otherwise the mean over its digits.
    """

    weight: float = setting(0.3, "weight of the number loss; cross-entropy has weight 1")
    number_tokens: Literal["digits", "numbers"] = setting(
        "digits", "which tokens have a numeric value: digits, or all numbers"
    )
    digit_order: Literal["normal", "reversed"] = setting(
        "normal", "which digit comes first: normal (most significant) or reversed"
    )
    reweigh: bool = setting(False, "whether probability mass on text tokens at number positions is penalized")
    published: Literal["no", "yes", "float_level"] = setting("no", "the loss as in ntloss 0.3.2, or its `float_level`")

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise UserError(f"weight: {self.weight} is no factor; 0 or more is right")
        if self.digit_order not in ("normal", "reversed"):
            raise UserError(f"digit_order: {self.digit_order!r} is neither 'normal' nor 'reversed'")
        if self.published not in ("no", "yes", "float_level"):
            raise UserError(f"published: {self.published!r} is none of 'no', 'yes', 'float_level'")

    def build(self, vocabulary: Vocabulary) -> LossPart:
        return NumberLevelPart(self, vocabulary)


class NumberLevelPart(LossPart):
    """The part behind `NumberLevel`: `number` is a sum over whole numbers."""

    def __init__(self, spec: NumberLevel, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec, self.published = spec, spec.published != "no"
        self.join_points = spec.published == "float_level"
        self.table = number_table(vocabulary, spec.number_tokens)
        self.notation = Notation.of_vocabulary(vocabulary, spec.digit_order)
        self.weights: Mapping[str, float] = {"cross_entropy": 1.0, "number": spec.weight}

    def counts(self, batch: Batch) -> dict[str, int]:
        found = number_runs(batch.targets, self.table, self.notation, self.published, self.join_points)
        return {"cross_entropy": batch.counts["tokens"], "number": int(found.starts.sum())}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        spec, logits, targets = self.spec, output.logits, batch.targets_of(output)
        self.table.check(logits.shape[-1], targets)
        ids = torch.cat(
            [self.table.ids, torch.tensor(self.notation.minus, dtype=torch.int64, device=self.table.ids.device)]
        )
        entropy, columns, lse = entropy_and_columns(logits, targets, ids)
        each = losses_of_numbers(
            _everywhere(columns, output, batch),
            _everywhere(lse[..., None], output, batch)[..., 0],
            batch.targets,
            self.table,
            self.notation,
            reweigh=spec.reweigh,
            published=self.published,
            join_points=self.join_points,
        )
        return {"cross_entropy": entropy, "number": each.sum()}


def number_level_loss(
    logits: Float[Tensor, "rows time vocabulary"],
    labels: Int[Tensor, "rows time"],
    table: NumberTable,
    notation: Notation = Notation(),
    *,
    reweigh: bool = False,
    published: bool = False,
    join_points: bool = False,
    quantity: Bool[Tensor, "rows time"] | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """The loss of whole numbers alone (see `NumberLevel`), at each number's first digit.

    `mean` is over numbers, and 0, attached, without any; `none` is 0 where no number starts.
    """
    if reduction not in ("mean", "sum", "none"):
        raise UserError(f"reduction: {reduction!r} is none; 'mean', 'sum' and 'none' are")
    table.check(logits.shape[-1], labels, ignore_index)
    ids = torch.cat([table.ids, torch.tensor(notation.minus, dtype=torch.int64, device=table.ids.device)])
    _, columns, lse = entropy_and_columns(logits, labels, ids, ignore_index=ignore_index)
    each = losses_of_numbers(
        columns,
        lse,
        labels,
        table,
        notation,
        reweigh=reweigh,
        published=published,
        join_points=join_points,
        quantity=quantity,
        ignore_index=ignore_index,
    )
    if reduction == "none":
        return each
    found = number_runs(labels, table, notation, published, join_points, quantity, ignore_index)
    return each.sum() if reduction == "sum" else each.sum() / found.starts.sum().clamp(min=1)


def number_runs(
    labels: Int[Tensor, "rows time"],
    table: NumberTable,
    notation: Notation,
    published: bool,
    join_points: bool,
    quantity: Bool[Tensor, "rows time"] | None = None,
    ignore_index: int = -100,
) -> Runs:
    """The numbers in rows of labels, as the loss or its published form reads them."""
    index = torch.where(labels == ignore_index, -1, table.of_labels(labels))
    if quantity is not None:
        index = torch.where(quantity, index, -1)
    if published:
        notation = Notation(point=notation.point if join_points else (), first=notation.first)
    return runs(labels, index, table, notation)


def losses_of_numbers(
    columns: Float[Tensor, "rows time tokens"],
    lse: Float[Tensor, "rows time"],
    labels: Int[Tensor, "rows time"],
    table: NumberTable,
    notation: Notation,
    *,
    reweigh: bool = False,
    published: bool = False,
    join_points: bool = False,
    quantity: Bool[Tensor, "rows time"] | None = None,
    ignore_index: int = -100,
) -> Float[Tensor, "rows time"]:
    """The loss of each number at its first digit, 0 elsewhere.

    `columns` are the logits of the number tokens, and behind them of the minus signs, if any. Everything is divided by
    the number's largest power of ten, and digits are compared before they are summed.
    """
    found = number_runs(labels, table, notation, published, join_points, quantity, ignore_index)
    count, dtype = table.count, columns.dtype
    values = table.values.to(dtype)
    p = columns[..., :count].softmax(-1)
    right = torch.where(found.there, values[torch.where(found.there, table.of_labels(labels), 0)], 0)
    errors = torch.where(found.there, (p * (values - right[..., None])).sum(-1), 0)
    exponent = found.exponent
    if published and join_points:  # points are skipped: as many places as there are digits
        exponent = exponent - _lowest(found)
        found = found._replace(top=torch.where(found.there, found.top - _lowest(found), 0))
    scale = torch.where(found.there, 10.0 ** (exponent - found.top).to(dtype), 0)
    y, error = found.total(right * scale), found.total(errors * scale)
    unit = 10.0 ** -torch.where(found.starts, found.top, 0).to(dtype)  # what 1 is, scaled
    if published:
        each = error.abs() / ((y + error).abs() + y.abs() + PUBLISHED_EPSILON * unit)
    else:
        signs = columns[..., count:]
        if signs.shape[-1]:
            y, error = _signed(columns, signs, found, y, error)
        each = error.abs() / y.abs().maximum(unit)
    if reweigh:
        mass = (columns[..., :count].logsumexp(-1) - lse).exp()
        if not published:
            mass = found.total(mass) / found.total(torch.ones_like(mass)).clamp(min=1)
        each = mass * each + TEXT_FACTOR * (1 - mass)
    return torch.where(found.starts, each, 0)


def _everywhere(each: Float[Tensor, "rows places tokens"], output: Output, batch: Batch) -> Tensor:
    """Values at the target positions of an output, scattered to all positions of the rows, with 0 elsewhere."""
    if output.target_positions is None:
        return each
    rows, time = batch.targets.shape
    places = output.target_positions[..., None].expand_as(each)
    return each.new_zeros(rows, time, each.shape[-1]).scatter(1, places, each)


def _lowest(found: Runs) -> Int[Tensor, "rows time"]:
    """The smallest exponent of each number, at all its places."""
    far = torch.where(found.there, found.exponent, 0)
    least = torch.zeros_like(far).scatter_reduce(1, found.start, far, "amin", include_self=True)
    return least.gather(1, found.start)


def _signed(columns: Tensor, signs: Tensor, found: Runs, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Number and error with their signs. The expected sign is 1 - 2 x the probability of a minus, among minus and
    number tokens, at the sign, or at the start of a number without one."""
    minus = (signs.logsumexp(-1) - columns.logsumexp(-1)).exp()
    at_sign = torch.cat([minus[:, :1], minus[:, :-1]], dim=1)  # one place before
    chance = torch.where(found.negative, at_sign, minus)
    sign = torch.where(found.negative, -1.0, 1.0).to(y.dtype)
    expected = 1 - 2 * chance
    return sign * y, sign * error + (expected - sign) * (y + error)
