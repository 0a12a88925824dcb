"""Named initialisations. They touch only parameters that no part claims for itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, nn

from numerate.config import setting
from numerate.errors import Mistake


@dataclass(frozen=True)
class Role:
    """What a linear map is for in its model.

    - `outward`: it writes to the residual stream, as `writers` maps do.
    - `depth`: how many blocks a token passes, layers x turns.
    - `makes`: `queries`, `keys` or `values` of attention; empty for all other maps.
    """

    outward: bool = False
    writers: int = 1
    depth: int = 1
    makes: str = ""


class Initialisation(ABC):
    """Draws the weights of linear maps and embeddings; biases are 0, norms are left at 1 and 0."""

    apart: ClassVar[bool] = False
    """Whether maps that lie in one matrix (queries, keys and values) are drawn one by one, each as itself."""

    @abstractmethod
    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        """Fills a linear map's weight (out x in)."""

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
        fused: Mapping[str, Sequence[str]] | None = None,
        depth: int = 1,
    ) -> None:
        """Goes through the modules in their order.

        `claimed` are full parameter names, `shared` modules whose weight is another's (a tied head), which are left to
        that one. `fused` are the full names of linear maps that are several of one size, one above the other, with what
        each makes; `depth` is layers x turns.
        """
        anywhere = Role(writers=max(1, len(outward)), depth=depth)
        with torch.no_grad():
            for name, module in model.named_modules():
                free = f"{name}.weight" not in claimed and module not in shared
                if isinstance(module, nn.Linear):
                    if free:
                        role = replace(anywhere, outward=module in outward)
                        makes = (fused or {}).get(name, ("",)) if self.apart else ("",)
                        for piece, made in zip(module.weight.chunk(len(makes)), makes, strict=True):
                            self.linear(piece, replace(role, makes=made), generator)
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

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        scale = self.outward if role.outward else 1.0
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

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        scale = role.writers**-0.5 if role.outward else 1.0
        weight.normal_(std=scale * self.deviation, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.deviation, generator=generator)


@dataclass(frozen=True)
class Xavier(Initialisation):
    """Linear weights N(0, 2/(fan_in + fan_out)), Glorot and Bengio (2010); embeddings N(0, 1/width)."""

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        nn.init.xavier_normal_(weight, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True)
class DeepNorm(Initialisation):
    """Smaller with depth: Xavier's normal times (8 x layers x turns)^(-1/4), but queries and keys as they are.

    Wang et al. (2022), https://arxiv.org/abs/2203.00555, for decoders, without its factor on the residual stream; made
    for post-norm. Queries and keys are only compared, so they keep Xavier's N(0, 2/(fan_in + fan_out)); values, output
    maps, feed-forwards and all other linear maps are made smaller, 0.30 times for 16 layers. Each of queries, keys and
    values counts as a map of its own, for every kind of attention and position. Embeddings are N(0, 1/width).
    """

    apart: ClassVar[bool] = True

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        gain = 1.0 if role.makes in ("queries", "keys") else (8 * role.depth) ** -0.25
        nn.init.xavier_normal_(weight, gain=gain, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
