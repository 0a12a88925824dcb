"""Reference implementation of the number token losses, against which the fused ones are tested.

To cross-entropy, with target `7`, `8` is as wrong as `apple`. A number token loss looks at the probabilities p of the
number tokens among themselves, and at the values v of those tokens: Zausinger et al. (2025), "Regress, Don't Guess",
https://arxiv.org/abs/2411.02083. With y the value that the label has,

- `mse`, `mae`, `huber`: (sum p v - y)², |sum p v - y|, and Huber's loss of it with delta 1;
- `was`: sum p |v - y|, the Wasserstein-1 distance to a target that is one token;
- `was-cdf`: the sum over neighbouring values of |CDF of p - CDF of the target| x the gap between them, the same
  distance to any target. (The published code takes every gap for 1: `unit_gaps`.)

All of it is computed in float32 at least, in float64 for float64.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.number_table import NumberTable, traced

Kind = Literal["was", "was-cdf", "mse", "mae", "huber"]
KINDS: tuple[Kind, ...] = ("was", "was-cdf", "mse", "mae", "huber")

TEXT_FACTOR = 1.01
"""How much more than the worst number a text costs, in the published reweighing."""

EPSILON = 1e-8
"""What the published smoother adds to the sum that it divides by."""


def outweighs(number: float, cross_entropy: float, over: str, remedy: str) -> list[str]:
    """A warning where a number term, times its weight, is above cross-entropy; nothing elsewhere.

    >>> outweighs(1.5, 0.5, "the first 10 batches", "a lower weight")[0]
    'number term 1.5, cross-entropy 0.5 (means over the first 10 batches): 75 % of the loss; use a lower weight'
    """
    if not number > cross_entropy:
        return []
    share = f"{100 * number / (number + cross_entropy):.0f} % of the loss"
    return [f"number term {number:.3g}, cross-entropy {cross_entropy:.3g} (means over {over}): {share}; use {remedy}"]


@dataclass(frozen=True)
class NumberDistance:
    """How far the probabilities of number tokens are from the right one: the settings of a number token loss.

    - `gaussian_sigma` spreads the target over the number tokens, g ~ exp(-((v - y) / sigma)² / 2), normalised with
      1e-8 in the denominator; 0 is no spread. Cross-entropy takes it, and so does `was-cdf`.
    - `reweigh` brings in the mass m that the whole vocabulary gives to number tokens: L becomes m L + 1.01 D (1 - m),
      with D the largest loss there is.
    - `squash=s` (`was` alone): distances run from 1 (the closest other value) to s (the farthest).
    - `unit_gaps` takes the gaps between neighbouring values for 1.
    """

    kind: Kind = "was"
    gaussian_sigma: float | None = None
    reweigh: bool = False
    squash: float | None = None
    unit_gaps: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"kind: {self.kind!r} is no number token loss; there are: {', '.join(KINDS)}")
        if self.gaussian_sigma is not None and not 0 <= self.gaussian_sigma < float("inf"):
            raise UserError(f"gaussian_sigma: {self.gaussian_sigma} is no width; 0 (none) or more is right")
        if self.squash is not None and not 1 < self.squash < float("inf"):
            raise UserError(f"squash: {self.squash} makes all numbers alike; more than 1 is right")
        if self.squash is not None and self.kind != "was":
            raise UserError(f"squash: {self.kind} has no distances to squash; kind='was' has")

    @property
    def smooth(self) -> bool:
        """Whether targets are spread over the number tokens."""
        return bool(self.gaussian_sigma)

    def distances(self, table: NumberTable, index: Int[Tensor, " places"]) -> Float[Tensor, "places numbers"]:
        """The cost of each number token for `was` where the label is number token `index`; float64."""
        far = (table.values - table.values[index][:, None]).abs()
        if self.squash is None:
            return far
        room = table.spread - table.closest
        scale = (self.squash - 1) / room if room > 0 else 0.0
        return torch.where(far == 0, 0.0, 1 + (far - table.closest) * scale)

    def targets(self, table: NumberTable, index: Int[Tensor, " places"]) -> Float[Tensor, "places numbers"]:
        """How much of the target each number token is where the label is number token `index`; float64."""
        if not self.gaussian_sigma:
            own = torch.arange(table.count, device=index.device) == index[:, None]
            return own.to(table.values.dtype)
        far = (table.values - table.values[index][:, None]) / self.gaussian_sigma
        spread = (-0.5 * far * far).exp()
        return spread / (spread.sum(-1, keepdim=True) + EPSILON)

    def gaps(self, table: NumberTable) -> Float[Tensor, " numbers"]:
        """The distance from each value to the next one, in ascending order; 0 after the last."""
        ordered = table.values[table.order]
        if self.unit_gaps:
            return torch.ones_like(ordered)
        return torch.cat([ordered.diff(), ordered.new_zeros(1)])

    def worst(self, table: NumberTable) -> float:
        """The largest loss that a number token can have."""
        if self.kind == "mse":
            return table.spread**2
        if self.kind == "huber":
            return 0.5 * table.spread**2 if table.spread <= 1 else table.spread - 0.5
        if self.kind == "was" and self.squash is not None:
            return self.squash if table.spread > table.closest else 1.0
        if self.kind == "was-cdf" and self.unit_gaps:
            return float(table.count - 1)
        return table.spread

    def losses(
        self,
        columns: Float[Tensor, "places numbers"],
        lse: Float[Tensor, " places"],
        table: NumberTable,
        index: Int[Tensor, " places"],
    ) -> Float[Tensor, " places"]:
        """The loss at each position, from the logits of number tokens and the log-sum-exp of the whole vocabulary."""
        p, dtype = columns.softmax(-1), columns.dtype
        if self.kind == "was":
            each = (p * self.distances(table, index).to(dtype)).sum(-1)
        elif self.kind == "was-cdf":
            ahead = (p - self.targets(table, index).to(dtype))[:, table.order].cumsum(-1)
            each = (ahead.abs() * self.gaps(table).to(dtype)).sum(-1)
        else:
            off = (p * (table.values - table.values[index][:, None]).to(dtype)).sum(-1)
            each = of_difference(self.kind, off)
        if not self.reweigh:
            return each
        mass = (columns.logsumexp(-1) - lse).exp()
        return mass * each + TEXT_FACTOR * self.worst(table) * (1 - mass)


def of_difference(kind: str, off: Float[Tensor, "*places"]) -> Float[Tensor, "*places"]:
    """The square, the absolute value, or Huber's loss of a difference."""
    if kind == "mse":
        return off * off
    if kind == "mae":
        return off.abs()
    return torch.where(off.abs() <= 1, 0.5 * off * off, off.abs() - 0.5)


class LossSums(NamedTuple):
    """Two sums, and what a mean divides each by. Without a number token the second pair is 0, and still attached."""

    cross_entropy: Float[Tensor, ""]
    number: Float[Tensor, ""]
    labels: Int[Tensor, ""]
    numbers: Float[Tensor, ""]


def work_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which losses are computed: float32 at least."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def weights_of(
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    loss_weights: Float[Tensor, "*places"] | None,
    quantity: Bool[Tensor, "*places"] | None,
    ignore_index: int,
    dtype: torch.dtype,
) -> tuple[Int[Tensor, "*places"], Float[Tensor, "*places"]]:
    """Which number token each label is, -1 where it has no number loss, and how much that loss counts.

    Raises `UserError` for weights of numbers that are negative or not finite, where looking is cheap (on a CPU).
    """
    index = torch.where(labels == ignore_index, -1, table.of_labels(labels))
    if quantity is not None:
        index = torch.where(quantity, index, -1)
    there = index >= 0
    if loss_weights is not None and loss_weights.device.type == "cpu" and not (traced(loss_weights) or traced(there)):
        wrong = there & ~((loss_weights >= 0) & loss_weights.isfinite())
        if bool(wrong.any()):
            first = loss_weights.expand(there.shape)[wrong][0].item()
            raise UserError(f"loss_weights: {first} cannot weigh a place; finite ones from 0 on can")
    weights = there.to(dtype) if loss_weights is None else torch.where(there, loss_weights, 0).to(dtype)
    return index, weights


def losses_of_tokens(
    logits: Float[Tensor, "*places vocabulary"],
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    measure: NumberDistance,
    *,
    quantity: Bool[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float[Tensor, "*places"], Float[Tensor, "*places"]]:
    """Cross-entropy and number loss at every position, 0 where there is none."""
    dtype = work_type(logits.dtype)
    z = logits.to(dtype).flatten(0, -2)
    flat = labels.flatten()
    index, weights = weights_of(
        flat, table, None, None if quantity is None else quantity.flatten(), ignore_index, dtype
    )
    target_positions, safe = flat != ignore_index, index.clamp(min=0)
    lse = z.logsumexp(-1)
    columns = z[:, table.ids]
    right = z.gather(-1, torch.where(target_positions, flat, 0)[:, None])[:, 0]
    entropies = lse - right
    if measure.smooth:
        spread = measure.targets(table, safe).to(dtype)
        far = torch.where(spread > 0, lse[:, None] - columns, 0)  # a target may be 0 where a logit is -inf
        entropies = torch.where(index >= 0, (spread * far).sum(-1), entropies)
    entropies = torch.where(target_positions, entropies, 0)
    numbers = torch.where(weights > 0, measure.losses(columns, lse, table, safe), 0)
    return entropies.view(labels.shape), numbers.view(labels.shape)


def plain_sums(
    logits: Float[Tensor, "*places vocabulary"],
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    measure: NumberDistance,
    *,
    loss_weights: Float[Tensor, "*places"] | None = None,
    quantity: Bool[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
) -> LossSums:
    """The sums of cross-entropy and number loss over all positions, by autograd: the reference of the fused forms."""
    table.check(logits.shape[-1], labels, ignore_index)
    entropies, numbers = losses_of_tokens(logits, labels, table, measure, quantity=quantity, ignore_index=ignore_index)
    _, weights = weights_of(labels, table, loss_weights, quantity, ignore_index, numbers.dtype)
    return LossSums(entropies.sum(), (weights * numbers).sum(), (labels != ignore_index).sum(), weights.sum())


def number_token_loss(
    logits: Float[Tensor, "*places vocabulary"],
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    *,
    kind: Kind = "was",
    gaussian_sigma: float | None = None,
    reweigh: bool = False,
    squash: float | None = None,
    unit_gaps: bool = False,
    loss_weights: Float[Tensor, "*places"] | None = None,
    quantity: Bool[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """The number loss alone. Labels are not shifted: the logits at a position are compared with the label there.

    `mean` divides by the sum of the weights (1 each without `loss_weights`), and is 0, attached, without a number;
    `none` has the shape of `labels`, with 0 where there is no number. `quantity` is False at digits that name
    something instead of counting it (`Figure 3`): they have no number loss. Raises `UserError` for what cannot be.
    """
    if reduction not in ("mean", "sum", "none"):
        raise UserError(f"reduction: {reduction!r} is none; 'mean', 'sum' and 'none' are")
    measure = NumberDistance(kind, gaussian_sigma, reweigh, squash, unit_gaps)
    table.check(logits.shape[-1], labels, ignore_index)
    _, numbers = losses_of_tokens(logits, labels, table, measure, quantity=quantity, ignore_index=ignore_index)
    _, weights = weights_of(labels, table, loss_weights, quantity, ignore_index, numbers.dtype)
    if reduction == "none":
        return weights * numbers
    total = (weights * numbers).sum()
    if reduction == "sum":
        return total
    count = weights.sum()
    return total / torch.where(count > 0, count, 1)


def smoothed_cross_entropy(
    logits: Float[Tensor, "*places vocabulary"],
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    *,
    sigma: float = 1.0,
    quantity: Bool[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """Cross-entropy whose targets at number tokens are spread over their neighbours, and plain at all others.

    `mean` divides by the number of labels. With `sigma=0` it is plain cross-entropy.
    """
    if reduction not in ("mean", "sum", "none"):
        raise UserError(f"reduction: {reduction!r} is none; 'mean', 'sum' and 'none' are")
    measure = NumberDistance("was-cdf", gaussian_sigma=sigma)
    table.check(logits.shape[-1], labels, ignore_index)
    entropies, _ = losses_of_tokens(logits, labels, table, measure, quantity=quantity, ignore_index=ignore_index)
    if reduction == "none":
        return entropies
    total = entropies.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).sum().clamp(min=1)
