"""Training objectives: the forward passes for a batch, and the sums of their losses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from numerate.batch import Batch, Loops, Model, Output, StepContext
from numerate.config import Spec, setting
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.loss import Loss
from numerate.positions.counter import random_integers
from numerate.vocabulary import Vocabulary


class ObjectiveModule(nn.Module, ABC):
    """The module of an objective and its loss. Its random numbers depend on (seed, step), never on the rank."""

    def __init__(self, loss: Loss, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.loss = loss.build(vocabulary)
        self.weights: Mapping[str, float] = self.loss.weights
        self._compiled_loss: Callable[[Output, Batch], dict[str, Tensor]] | None = None

    def compile_loss(self) -> None:
        """Compiles the head and the loss, for training."""
        self._compiled_loss = torch.compile(self.loss.forward)

    def loss_sums(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """The sum of each term of the loss."""
        if self._compiled_loss is not None and torch.is_grad_enabled():
            return self._compiled_loss(output, batch)
        sums: dict[str, Tensor] = self.loss(output, batch)
        return sums

    def counts(self, batch: Batch) -> dict[str, int]:
        """The divisor of each term for this (micro-)batch, known before the forward pass."""
        return self.loss.counts(batch)

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, step_context: StepContext) -> dict[str, Tensor]:
        """The sum of each term over this (micro-)batch. The tokens of the batch have position ids."""

    def flops(self, model: Model, batch: Batch, step_context: StepContext | None = None) -> int:
        """Floating-point operations of training on this (micro-)batch, padding included: a forward pass, and a backward
        pass that costs twice as much. With `step_context` those of that step, without it the expectation over steps."""
        rows, time = batch.tokens.ids.shape
        source = 0 if batch.source is None else model.source_flops(rows, time, batch.source.ids.shape[1])
        return 3 * (model.flops(rows, time) + source)


class Objective(Spec, ABC):
    """The spec of an objective: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> ObjectiveModule: ...


@dataclass(frozen=True)
class Supervised(Objective):
    """One forward pass, and a loss on the target positions."""

    loss: Loss = setting(CrossEntropy(), "the loss")
    targets_only: bool = setting(
        True, "whether the last block's output and the head are computed at target positions only (faster)"
    )

    def build(self, vocabulary: Vocabulary) -> ObjectiveModule:
        return SupervisedModule(self, vocabulary)


class SupervisedModule(ObjectiveModule):
    """The module of `Supervised`."""

    def __init__(self, spec: Supervised, vocabulary: Vocabulary) -> None:
        super().__init__(spec.loss, vocabulary)
        self.targets_only = spec.targets_only

    def forward(self, model: nn.Module, batch: Batch, step_context: StepContext) -> dict[str, Tensor]:
        output = model(
            batch.tokens, batch.source, target_positions=batch.target_positions_or_none if self.targets_only else None
        )
        return self.loss_sums(output, batch)


@dataclass(frozen=True)
class Progressive(Objective):
    """Progressive loss for looped models: the number of loops with and without a gradient is drawn per step.

    Bansal et al. (2022), https://arxiv.org/abs/2202.05826; as in McLeish et al. (2024),
    https://arxiv.org/abs/2405.17399. The loss is (1 - alpha) x L_max + alpha x L_prog. With R loops of the backbone, at
    most b of them with a gradient (b = max(R // 2, 1) unless given),

    - L_prog is the loss after n loops without a gradient and k with one, where n is uniform on 0 .. R - 1, then k
      uniform on 1 .. min(R - n, b);
    - L_max is the loss after R - b loops without a gradient and b with one.

    The random numbers depend on (seed, step) only, so that all processes and micro-batches of a step use the same. A
    backbone without loops has R = 1: the objective is then `Supervised`.

    `throttle="described"` divides the gradient of the backbone's parameters, and of no others, by the number of loops
    with a gradient (k, or b in L_max) in each forward pass. `throttle="published"` does what the published code does:

    >>> [Progressive(throttle="published").loss_factor(loops) for loops in (1, 2, 4, 8, 16)]
    [1.25, 1.5, 1.0, 0.75, 0.625]
    """

    loss: Loss = setting(CrossEntropy(), "the loss")
    alpha: float = setting(
        1.0,
        "weight of the loss after a random number of loops; 1 - alpha: that of the loss after all loops",
        at_least=0,
        at_most=1,
    )
    max_grad_loops: int | None = setting(
        None, "largest number of loops with a gradient; null: half of the loops", at_least=1
    )
    throttle: Literal["none", "described", "published"] = setting(
        "none",
        "none; or the backbone's gradient divided by the loops (described in the paper), or a factor on the loss "
        "(published code)",
    )
    targets_only: bool = setting(
        True, "whether the last block's output and the head are computed at target positions only (faster)"
    )

    def build(self, vocabulary: Vocabulary) -> "ProgressiveModule":
        return ProgressiveModule(self, vocabulary)

    def resolve_max_grad_loops(self, loops: int) -> int:
        """The largest number of loops with a gradient, of `loops`."""
        return min(self.max_grad_loops or max(loops // 2, 1), loops)

    def sample_loops(self, loops: int, step_context: StepContext) -> tuple[int, int]:
        """The loops without and with a gradient of one step."""
        row_zero = torch.zeros(1, dtype=torch.long)
        no_grad_loops = int(random_integers(step_context, row_zero, loops, salt=0x20))
        most = min(loops - no_grad_loops, self.resolve_max_grad_loops(loops))
        return no_grad_loops, 1 + int(random_integers(step_context, row_zero, most, salt=0x21))

    def loss_factor(self, loops: int) -> float:
        """The factor on the loss."""
        max_grad_loops = self.resolve_max_grad_loops(loops)
        return (1 + min(loops / 4, max_grad_loops / 2)) / max_grad_loops if self.throttle == "published" else 1.0


class ProgressiveModule(ObjectiveModule):
    """The module of `Progressive`."""

    def __init__(self, spec: Progressive, vocabulary: Vocabulary) -> None:
        super().__init__(spec.loss, vocabulary)
        self.spec = spec

    def forward(self, model: nn.Module, batch: Batch, step_context: StepContext) -> dict[str, Tensor]:
        target_positions = batch.target_positions_or_none if self.spec.targets_only else None
        num_loops = default_loops(model)
        factor, loss_terms = self.spec.loss_factor(num_loops), dict[str, Tensor]()
        for weight, loops in self._forwards(num_loops, step_context):
            scaled_loops = Loops(*loops, average_gradients=self.spec.throttle == "described")
            output = model(batch.tokens, batch.source, target_positions=target_positions, loops=scaled_loops)
            for term, value in self.loss_sums(output, batch).items():
                weighted_value = value if weight * factor == 1.0 else weight * factor * value
                loss_terms[term] = loss_terms[term] + weighted_value if term in loss_terms else weighted_value
        return loss_terms

    def flops(self, model: Model, batch: Batch, step_context: StepContext | None = None) -> int:
        rows, time = batch.tokens.ids.shape
        num_loops, single_loop_flops = model.default_num_loops(), model.flops(rows, time, 1)
        if num_loops == 1:
            return 3 * single_loop_flops
        flops_per_loop = model.flops(rows, time, 2) - single_loop_flops
        loop_counts: Sequence[tuple[float, float]] = self._expected_loops(num_loops)
        if step_context is not None:
            loop_counts = [loops for _, loops in self._forwards(num_loops, step_context)]
        # A forward pass through all loops, and a backward pass, twice as expensive, through those with a gradient.
        num_loop_passes = (without + 3 * (with_gradient - 1) for without, with_gradient in loop_counts)
        return round(sum(3 * single_loop_flops + flops_per_loop * passes for passes in num_loop_passes))

    def _forwards(self, loops: int, step_context: StepContext) -> list[tuple[float, tuple[int, int]]]:
        """The forward passes of a step: the weight of each in the loss, and its loops without and with a gradient."""
        alpha, max_grad_loops = self.spec.alpha, self.spec.resolve_max_grad_loops(loops)
        if loops == 1:
            return [(1.0, (0, 1))]
        forwards = [
            (1 - alpha, (loops - max_grad_loops, max_grad_loops)),
            (alpha, self.spec.sample_loops(loops, step_context)),
        ]
        return [forward for forward in forwards if forward[0] > 0]

    def _expected_loops(self, loops: int) -> list[tuple[float, float]]:
        """The loops without and with a gradient of each forward pass, on average over all steps."""
        max_grad_loops, alpha = self.spec.resolve_max_grad_loops(loops), self.spec.alpha
        total = sum(1 + min(loops - no_grad_loops, max_grad_loops) for no_grad_loops in range(loops))
        by_alpha = [((loops - 1) / 2, total / (2 * loops))] * (alpha > 0)
        return [(loops - max_grad_loops, max_grad_loops)] * (alpha < 1) + by_alpha


def default_loops(model: nn.Module) -> int:
    """Default number of loops of a model, which may be compiled or wrapped."""
    while not isinstance(model, Model):
        wrapped = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if wrapped is None:
            return 1
        model = wrapped
    return model.default_num_loops()
