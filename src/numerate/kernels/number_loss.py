"""Reference implementation of the number token losses, against which the fused ones are tested.

To cross-entropy, with target `7`, `8` is as wrong as `apple`. A number token loss uses the probabilities p renormalized
over the number tokens, and the values v of these tokens: Zausinger et al. (2025), "Regress, Don't Guess",
https://arxiv.org/abs/2411.02083. With y the value that the label has,

- `mse`, `mae`, `huber`: (sum p v - y)², |sum p v - y|, and Huber's loss of it with delta 1;
- `was`: sum p |v - y|, the Wasserstein-1 distance to a target that is one token;
- `was-cdf`: the sum over neighboring values of |CDF of p - CDF of the target| x the gap between them, the same
  distance to any target. (The published code uses 1 for every gap: `unit_spacing`.)

Everything is computed at least in float32, and in float64 for float64.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.errors import UserError, check_choice
from numerate.kernels.number_table import NumberTokenTable, can_read_values

LossFunction = Literal["was", "was-cdf", "mse", "mae", "huber"]
LOSS_FUNCTIONS: tuple[LossFunction, ...] = ("was", "was-cdf", "mse", "mae", "huber")

TEXT_FACTOR = 1.01
"""The loss of a text token relative to the largest number loss, in the published reweighing."""

SMOOTHING_EPSILON = 1e-8
"""Added to the denominator of Gaussian targets, as published."""


def warn_number_term_dominates(number_term: float, cross_entropy: float, period: str, suggestion: str) -> list[str]:
    """A warning if a number term, times its weight, is above cross-entropy; otherwise none.

    >>> warn_number_term_dominates(1.5, 0.5, "the first 10 batches", "a lower weight")[0]
    'number term 1.5, cross-entropy 0.5 (means over the first 10 batches): 75 % of the loss; use a lower weight'
    """
    if not number_term > cross_entropy:
        return []
    percentage = f"{100 * number_term / (number_term + cross_entropy):.0f} % of the loss"
    return [
        f"number term {number_term:.3g}, cross-entropy {cross_entropy:.3g} (means over {period}): {percentage}; use "
        f"{suggestion}"
    ]


@dataclass(frozen=True)
class NumberDistance:
    """The settings of a number token loss, and the distance of probabilities from the target that they define.

    - `gaussian_sigma` spreads the target over the number tokens, g ~ exp(-((v - y) / sigma)² / 2), normalized with
      1e-8 in the denominator; 0: no spread. It applies to cross-entropy and `was-cdf`.
    - `reweigh` includes the probability m of number tokens in the whole vocabulary: L becomes m L + 1.01 D (1 - m),
      with D the largest possible loss.
    - `squash_factor=s` (`was` only): distances range from 1 (the closest other value) to s (the farthest).
    - `unit_spacing` uses 1 for the gaps between neighboring values.
    """

    loss_function: LossFunction = "was"
    gaussian_sigma: float | None = None
    reweigh: bool = False
    squash_factor: float | None = None
    unit_spacing: bool = False

    def __post_init__(self) -> None:
        check_choice("loss_function", self.loss_function, LOSS_FUNCTIONS)
        if (problem := self._problem()) is not None:
            raise UserError(problem)

    def _problem(self) -> str | None:
        """What is wrong with the settings, if anything."""
        if self.gaussian_sigma is not None and not 0 <= self.gaussian_sigma < float("inf"):
            return f"gaussian_sigma: must be at least 0 and finite, not {self.gaussian_sigma}"
        if self.squash_factor is not None and not 1 < self.squash_factor < float("inf"):
            return f"squash_factor: must be above 1 and finite, not {self.squash_factor}"
        if self.squash_factor is not None and self.loss_function != "was":
            return f"squash_factor: must be null for loss_function={self.loss_function}; only 'was' has one"
        return None

    @property
    def has_smooth_targets(self) -> bool:
        """Whether targets are spread over the number tokens."""
        return bool(self.gaussian_sigma)

    def distances(
        self, table: NumberTokenTable, number_indices: Int[Tensor, " positions"]
    ) -> Float[Tensor, "positions numbers"]:
        """The cost of each number token for `was`, given the label `number_indices`; float64."""
        distances = (table.values - table.values[number_indices][:, None]).abs()
        if self.squash_factor is None:
            return distances
        distance_range = table.max_distance - table.min_distance
        scale = (self.squash_factor - 1) / distance_range if distance_range > 0 else 0.0
        return torch.where(distances == 0, 0.0, 1 + (distances - table.min_distance) * scale)

    def target_probabilities(
        self, table: NumberTokenTable, number_indices: Int[Tensor, " positions"]
    ) -> Float[Tensor, "positions numbers"]:
        """The target probability of each number token, given the label `number_indices`; float64."""
        if not self.gaussian_sigma:
            is_label = torch.arange(table.count, device=number_indices.device) == number_indices[:, None]
            return is_label.to(table.values.dtype)
        scaled_differences = (table.values - table.values[number_indices][:, None]) / self.gaussian_sigma
        densities = (-0.5 * scaled_differences * scaled_differences).exp()
        return densities / (densities.sum(-1, keepdim=True) + SMOOTHING_EPSILON)

    def value_gaps(self, table: NumberTokenTable) -> Float[Tensor, " numbers"]:
        """The distance from each value to the next one, in ascending order; 0 after the last."""
        sorted_values = table.values[table.value_order]
        if self.unit_spacing:
            return torch.ones_like(sorted_values)
        return torch.cat([sorted_values.diff(), sorted_values.new_zeros(1)])

    def max_loss(self, table: NumberTokenTable) -> float:
        """The largest possible number loss."""
        if self.loss_function == "mse":
            return table.max_distance**2
        if self.loss_function == "huber":
            return 0.5 * table.max_distance**2 if table.max_distance <= 1 else table.max_distance - 0.5
        if self.loss_function == "was" and self.squash_factor is not None:
            return self.squash_factor if table.max_distance > table.min_distance else 1.0
        if self.loss_function == "was-cdf" and self.unit_spacing:
            return float(table.count - 1)
        return table.max_distance

    def losses(
        self,
        number_logits: Float[Tensor, "positions numbers"],
        lse: Float[Tensor, " positions"],
        table: NumberTokenTable,
        number_indices: Int[Tensor, " positions"],
    ) -> Float[Tensor, " positions"]:
        """The loss at each position, from the logits of number tokens and the log-sum-exp of the whole vocabulary."""
        p, dtype = number_logits.softmax(-1), number_logits.dtype
        if self.loss_function == "was":
            losses = (p * self.distances(table, number_indices).to(dtype)).sum(-1)
        elif self.loss_function == "was-cdf":
            cdf_differences = (p - self.target_probabilities(table, number_indices).to(dtype))[
                :, table.value_order
            ].cumsum(-1)
            losses = (cdf_differences.abs() * self.value_gaps(table).to(dtype)).sum(-1)
        else:
            expected_difference = (p * (table.values - table.values[number_indices][:, None]).to(dtype)).sum(-1)
            losses = difference_loss(self.loss_function, expected_difference)
        if not self.reweigh:
            return losses
        number_mass = (number_logits.logsumexp(-1) - lse).exp()
        return number_mass * losses + TEXT_FACTOR * self.max_loss(table) * (1 - number_mass)


def difference_loss(loss_function: str, difference: Float[Tensor, "*positions"]) -> Float[Tensor, "*positions"]:
    """The square, the absolute value, or Huber's loss of a difference."""
    if loss_function == "mse":
        return difference * difference
    if loss_function == "mae":
        return difference.abs()
    return torch.where(difference.abs() <= 1, 0.5 * difference * difference, difference.abs() - 0.5)


class LossSums(NamedTuple):
    """Two sums and their divisors. Without a number token the number loss is 0, but still attached to the graph."""

    cross_entropy: Float[Tensor, ""]
    number_loss: Float[Tensor, ""]
    num_labels: Int[Tensor, ""]
    total_number_weight: Float[Tensor, ""]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which losses are computed: float32 at least."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def number_indices_and_weights(
    labels: Int[Tensor, "*positions"],
    table: NumberTokenTable,
    loss_weights: Float[Tensor, "*positions"] | None,
    quantity_mask: Bool[Tensor, "*positions"] | None,
    ignore_index: int,
    dtype: torch.dtype,
) -> tuple[Int[Tensor, "*positions"], Float[Tensor, "*positions"]]:
    """The number token index of each label (-1: no number loss), and the weight of its loss.

    Raises `UserError` for weights of numbers that are negative or not finite, if checking is cheap (on a CPU).
    """
    number_indices = torch.where(labels == ignore_index, -1, table.number_indices(labels))
    if quantity_mask is not None:
        number_indices = torch.where(quantity_mask, number_indices, -1)
    number_mask = number_indices >= 0
    if loss_weights is not None and can_read_values(loss_weights):
        invalid_mask = number_mask & ~((loss_weights >= 0) & loss_weights.isfinite())
        if bool(invalid_mask.any()):
            first_invalid = loss_weights.expand(number_mask.shape)[invalid_mask][0].item()
            raise UserError(f"loss_weights: must be at least 0 and finite, not {first_invalid}")
    weights = number_mask.to(dtype) if loss_weights is None else torch.where(number_mask, loss_weights, 0).to(dtype)
    return number_indices, weights


def token_losses(
    logits: Float[Tensor, "*positions vocabulary"],
    labels: Int[Tensor, "*positions"],
    table: NumberTokenTable,
    number_distance: NumberDistance,
    *,
    quantity_mask: Bool[Tensor, "*positions"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float[Tensor, "*positions"], Float[Tensor, "*positions"]]:
    """Cross-entropy and number loss at every position, 0 if there is none."""
    dtype = compute_dtype(logits.dtype)
    flat_logits = logits.to(dtype).flatten(0, -2)
    flat_labels = labels.flatten()
    number_indices, weights = number_indices_and_weights(
        flat_labels, table, None, None if quantity_mask is None else quantity_mask.flatten(), ignore_index, dtype
    )
    target_mask, safe_number_indices = flat_labels != ignore_index, number_indices.clamp(min=0)
    lse = flat_logits.logsumexp(-1)
    number_logits = flat_logits[:, table.ids]
    label_logits = flat_logits.gather(-1, torch.where(target_mask, flat_labels, 0)[:, None])[:, 0]
    cross_entropies = lse - label_logits
    if number_distance.has_smooth_targets:
        target_probabilities = number_distance.target_probabilities(table, safe_number_indices).to(dtype)
        negative_log_probs = torch.where(
            target_probabilities > 0, lse[:, None] - number_logits, 0
        )  # a target may be 0 where a logit is -inf
        cross_entropies = torch.where(
            number_indices >= 0, (target_probabilities * negative_log_probs).sum(-1), cross_entropies
        )
    cross_entropies = torch.where(target_mask, cross_entropies, 0)
    number_losses = torch.where(weights > 0, number_distance.losses(number_logits, lse, table, safe_number_indices), 0)
    return cross_entropies.view(labels.shape), number_losses.view(labels.shape)


def reference_loss_sums(
    logits: Float[Tensor, "*positions vocabulary"],
    labels: Int[Tensor, "*positions"],
    table: NumberTokenTable,
    number_distance: NumberDistance,
    *,
    loss_weights: Float[Tensor, "*positions"] | None = None,
    quantity_mask: Bool[Tensor, "*positions"] | None = None,
    ignore_index: int = -100,
) -> LossSums:
    """The sums of cross-entropy and number loss over all positions, by autograd: the reference for the fused
    implementations."""
    table.check_logits_and_labels(logits.shape[-1], labels, ignore_index)
    cross_entropies, number_losses = token_losses(
        logits, labels, table, number_distance, quantity_mask=quantity_mask, ignore_index=ignore_index
    )
    _, weights = number_indices_and_weights(
        labels, table, loss_weights, quantity_mask, ignore_index, number_losses.dtype
    )
    return LossSums(
        cross_entropies.sum(), (weights * number_losses).sum(), (labels != ignore_index).sum(), weights.sum()
    )
