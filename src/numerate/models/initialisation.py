"""Named initialisations. They touch only parameters that no part claims for itself."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, nn

from numerate.config import setting
from numerate.errors import Mistake


class Initialisation(ABC):
    """Draws the weights of linear maps and embeddings; biases are 0, norms are left at 1 and 0."""

    @abstractmethod
    def linear(self, weight: torch.Tensor, outward: bool, layers: int, generator: Generator) -> None:
        """Fills a linear map's weight (out x in). `outward` maps write to the residual stream."""

    @abstractmethod
    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        """Fills a table of vectors (entries x width)."""

    def apply(
        self,
        model: nn.Module,
        claimed: set[str],
        outward: Sequence[nn.Linear],
        generator: Generator,
        shared: Sequence[nn.Module] = (),
    ) -> None:
        """Goes through the modules in their order; `claimed` are full parameter names, `shared` modules whose weight
        is another's (a tied head), which are left to that one."""
        layers = max(1, len(outward))
        with torch.no_grad():
            for name, module in model.named_modules():
                free = f"{name}.weight" not in claimed and module not in shared
                if isinstance(module, nn.Linear):
                    if free:
                        self.linear(module.weight, module in outward, layers, generator)
                    if module.bias is not None and f"{name}.bias" not in claimed:
                        module.bias.zero_()
                elif isinstance(module, nn.Embedding) and free:
                    self.embedding(module.weight, generator)


@dataclass(frozen=True)
class FanIn(Initialisation):
    """Linear weights N(0, 1/fan_in), residual outputs scaled down, embeddings N(0, 1).

    With weights of standard deviation 0.02 at width 128 the carry of an addition is not learned in any short budget.
    """

    outward: float = setting(0.5, "factor on the linear maps that write to the residual stream")
    embeddings: float = setting(1.0, "standard deviation of embeddings")

    def __post_init__(self) -> None:
        for name in ("outward", "embeddings"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Mistake(f"{name}: {getattr(self, name)} is no width of a distribution; 0 or more is right")

    def linear(self, weight: torch.Tensor, outward: bool, layers: int, generator: Generator) -> None:
        scale = self.outward if outward else 1.0
        weight.normal_(std=scale * weight.shape[1] ** -0.5, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.embeddings, generator=generator)


@dataclass(frozen=True)
class Normal(Initialisation):
    """All weights N(0, deviation^2), residual outputs divided by the root of their number: GPT-2's."""

    deviation: float = setting(0.02, "standard deviation of all weights")

    def __post_init__(self) -> None:
        if self.deviation <= 0:
            raise Mistake(f"deviation: {self.deviation} would make all weights equal; 0.02 is usual")

    def linear(self, weight: torch.Tensor, outward: bool, layers: int, generator: Generator) -> None:
        scale = layers**-0.5 if outward else 1.0
        weight.normal_(std=scale * self.deviation, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.deviation, generator=generator)


@dataclass(frozen=True)
class Xavier(Initialisation):
    """Linear weights N(0, 2/(fan_in + fan_out)), Glorot and Bengio (2010); embeddings N(0, 1/width)."""

    def linear(self, weight: torch.Tensor, outward: bool, layers: int, generator: Generator) -> None:
        nn.init.xavier_normal_(weight, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
