"""Training objectives: which forwards are made for a batch, and which loss sums they give."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from numerate.batch import Batch, Loops, Model, StepContext
from numerate.config import setting
from numerate.errors import UserError
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.loss import Loss
from numerate.positions.counter import drawn
from numerate.vocabulary import Vocabulary


class ObjectivePart(nn.Module, ABC):
    """The module of an objective. What it draws depends on (seed, step), never on the rank."""

    weights: Mapping[str, float]

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Per term: what its sum is divided by, for this part of a batch, known before the forward."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, draw: StepContext) -> dict[str, Tensor]:
        """Per term: the sum over this part of a batch. The batch's tokens have been placed."""

    def form(self, model: Model, draw: StepContext) -> Hashable:
        """A key of the forwards of a step, whatever the weights and tokens: runs with equal keys can be stacked. By
        default no two runs have equal keys."""
        return draw

    def flops(self, model: Model, batch: Batch, draw: StepContext | None = None) -> int:
        """Floating-point operations of a step on this part of a batch, padding included: a forward, and a backward that
        costs twice as much. With `draw` those of that step, without it the expectation over steps."""
        rows, time = batch.tokens.ids.shape
        source = 0 if batch.source is None else model.source_flops(rows, time, batch.source.ids.shape[1])
        return 3 * (model.flops(rows, time) + source)


class Objective(ABC):
    """The description of an objective in a recipe: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> ObjectivePart: ...


@dataclass(frozen=True)
class Supervised(Objective):
    """One forward and one loss on the target positions."""

    loss: Loss = setting(CrossEntropy(), "which loss")
    targets_only: bool = setting(True, "compute the end of the last block and the output head at target positions only")

    def build(self, vocabulary: Vocabulary) -> ObjectivePart:
        return SupervisedPart(self, vocabulary)


class SupervisedPart(ObjectivePart):
    """The module of `Supervised`."""

    def __init__(self, spec: Supervised, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.loss = spec.loss.build(vocabulary)
        self.targets_only = spec.targets_only
        self.weights = self.loss.weights

    def counts(self, batch: Batch) -> dict[str, int]:
        return self.loss.counts(batch)

    def form(self, model: Model, draw: StepContext) -> Hashable:
        return None

    def forward(self, model: nn.Module, batch: Batch, draw: StepContext) -> dict[str, Tensor]:
        output = model(batch.tokens, batch.source, target_positions=batch.fewer if self.targets_only else None)
        terms: dict[str, Tensor] = self.loss(output, batch)
        return terms


@dataclass(frozen=True)
class Progressive(Objective):
    """Progressive loss for looped models: how many loops run, and how many of them with a gradient, is drawn per step.

    Bansal et al. (2022), https://arxiv.org/abs/2202.05826; as in McLeish et al. (2024),
    https://arxiv.org/abs/2405.17399. The loss is (1 - alpha) x L_max + alpha x L_prog. With R loops of the backbone, at
    most b of them with a gradient (b = max(R // 2, 1) unless given),

    - L_prog is the loss after n loops without a gradient and k with one, where n is uniform on 0 .. R - 1, then k
      uniform on 1 .. min(R - n, b);
    - L_max is the loss after R - b loops without a gradient and b with one.

    What is drawn depends on (seed, step) alone, so that all processes and all parts of a step draw alike. A backbone
    without a loop has R = 1: the objective is then `Supervised`. With R = 16 the default draws 11.1 loops on average,
    3.6 of them with a gradient.

    `throttle="described"` divides the gradient of the backbone's parameters, and of no others, by the number of loops
    with a gradient (k, or b in L_max), inside each forward: exact up to rounding however gradients are then summed.
    `throttle="published"` is what the published code does under that name: the whole loss times (1 + min(R / 4, b / 2))
    / b, that is 1.25, 1.5, 1, 0.75 and 0.625 for R = 1, 2, 4, 8 and 16.

    >>> Progressive(alpha=0.5, throttle="described")
    """

    loss: Loss = setting(CrossEntropy(), "which loss")
    alpha: float = setting(1.0, "weight of the loss after a random number of loops; the rest is after all loops")
    max_grad_loops: int | None = setting(None, "largest number of loops with gradient; null: half")
    throttle: Literal["none", "described", "published"] = setting(
        "none", "described: divide the backbone's gradient by its loops; published: a factor on the loss"
    )
    targets_only: bool = setting(True, "compute the end of the last block and the output head at target positions only")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UserError(
                f"alpha: {self.alpha} is not a share; from 0 (all loops only) to 1 (drawn loops only) is right"
            )
        if self.max_grad_loops is not None and self.max_grad_loops < 1:
            raise UserError(f"max_grad_loops: with {self.max_grad_loops} loops nothing learns; 1 or more, or null")

    def build(self, vocabulary: Vocabulary) -> "ProgressivePart":
        return ProgressivePart(self, vocabulary)

    def most(self, loops: int) -> int:
        """How many of `loops` have a gradient at most."""
        return min(self.max_grad_loops or max(loops // 2, 1), loops)

    def some(self, loops: int, draw: StepContext) -> tuple[int, int]:
        """The loops without and with a gradient of one step."""
        nothing = torch.zeros(1, dtype=torch.long)
        without = int(drawn(draw, nothing, loops, salt=0x20))
        return without, 1 + int(drawn(draw, nothing, min(loops - without, self.most(loops)), salt=0x21))

    def factor(self, loops: int) -> float:
        """What the loss is multiplied by."""
        most = self.most(loops)
        return (1 + min(loops / 4, most / 2)) / most if self.throttle == "published" else 1.0


class ProgressivePart(ObjectivePart):
    """The module of `Progressive`."""

    def __init__(self, spec: Progressive, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.spec = spec
        self.loss = spec.loss.build(vocabulary)
        self.weights = self.loss.weights

    def counts(self, batch: Batch) -> dict[str, int]:
        return self.loss.counts(batch)

    def form(self, model: Model, draw: StepContext) -> Hashable:
        return tuple(self._forwards(model.loops(), draw))

    def forward(self, model: nn.Module, batch: Batch, draw: StepContext) -> dict[str, Tensor]:
        target_positions, all_loops = batch.fewer if self.spec.targets_only else None, loops_of(model)
        factor, terms = self.spec.factor(all_loops), dict[str, Tensor]()
        for share, loops in self._forwards(all_loops, draw):
            divided = Loops(*loops, divided=self.spec.throttle == "described")
            output = model(batch.tokens, batch.source, target_positions=target_positions, loops=divided)
            for term, value in self.loss(output, batch).items():
                part = value if share * factor == 1.0 else share * factor * value
                terms[term] = terms[term] + part if term in terms else part
        return terms

    def flops(self, model: Model, batch: Batch, draw: StepContext | None = None) -> int:
        rows, time = batch.tokens.ids.shape
        all_loops, one = model.loops(), model.flops(rows, time, 1)
        if all_loops == 1:
            return 3 * one
        each = model.flops(rows, time, 2) - one
        made: Sequence[tuple[float, float]] = self._expected(all_loops)
        if draw is not None:
            made = [loops for _, loops in self._forwards(all_loops, draw)]
        # A forward of all loops, and twice as much back through those with a gradient.
        return round(sum(3 * one + each * (without + 3 * (learning - 1)) for without, learning in made))

    def _forwards(self, loops: int, draw: StepContext) -> list[tuple[float, tuple[int, int]]]:
        """The forwards of a step: the share of each in the loss, and its loops without and with a gradient."""
        alpha, most = self.spec.alpha, self.spec.most(loops)
        if loops == 1:
            return [(1.0, (0, 1))]
        made = [(1 - alpha, (loops - most, most)), (alpha, self.spec.some(loops, draw))]
        return [forward for forward in made if forward[0] > 0]

    def _expected(self, loops: int) -> list[tuple[float, float]]:
        """The loops without and with a gradient of each forward, on average over all steps."""
        most, alpha = self.spec.most(loops), self.spec.alpha
        mean = sum(1 + min(loops - without, most) for without in range(loops)) / (2 * loops)
        return [(loops - most, most)] * (alpha < 1) + [((loops - 1) / 2, mean)] * (alpha > 0)


def loops_of(model: nn.Module) -> int:
    """How often a model loops by default, be it compiled or wrapped for many processes."""
    while not isinstance(model, Model):
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if inner is None:
            return 1
        model = inner
    return model.loops()
