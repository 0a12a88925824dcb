"""Named initialisations. They touch only parameters that no part claims for itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, nn

from numerate.config import setting
from numerate.errors import UserError


@dataclass(frozen=True)
class Role:
    """The role of a linear layer in its model.

    - `outward`: it writes to the residual stream, as `writers` maps do.
    - `depth`: number of blocks that a token passes, layers x loops.
    - `makes`: `queries`, `keys` or `values` of attention; of a gated feed-forward `gate` and `gated`, the two that are
      multiplied, and `fed`, its output. Empty for all other layers, and where an initialisation does not need it.
    - `reads`: how many numbers each of its outputs reads, where that is not the width of the weight.
    """

    outward: bool = False
    writers: int = 1
    depth: int = 1
    makes: str = ""
    reads: int | None = None


FED = ("gate", "gated", "fed")
"""What the maps of a gated feed-forward make."""


class Initialization(ABC):
    """Draws the weights of linear maps and embeddings; biases are 0 if it does not draw them, norms stay at 1 and 0."""

    def tells_apart(self, makes: Sequence[str]) -> bool:
        """Whether maps that lie in one matrix (queries, keys and values) are drawn one by one, each as itself."""
        return False

    @abstractmethod
    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        """Fills a linear map's weight (out x in)."""

    @abstractmethod
    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        """Fills a table of vectors (entries x width)."""

    def bias(self, bias: torch.Tensor, reads: int, generator: Generator) -> None:
        """Fills the bias of a linear map that reads so many numbers."""
        bias.zero_()

    def apply(
        self,
        model: nn.Module,
        claimed: set[str],
        outward: Sequence[nn.Linear],
        generator: Generator,
        shared: Sequence[nn.Module] = (),
        fused: Mapping[str, Sequence[str]] | None = None,
        depth: int = 1,
        reads: Mapping[str, int] | None = None,
    ) -> None:
        """Goes through the modules in their order.

        `claimed` are full parameter names, `shared` modules whose weight is another's (a tied head), which are left to
        that one. `fused` are the full names of linear maps that are several of one size, one above the other, with what
        each makes; `depth` is layers x turns; `reads` is how many numbers a map's outputs read, where its width is not.
        """
        anywhere = Role(writers=max(1, len(outward)), depth=depth)
        with torch.no_grad():
            for name, module in model.named_modules():
                free = f"{name}.weight" not in claimed and module not in shared
                if isinstance(module, nn.Linear):
                    if free:
                        role = replace(anywhere, outward=module in outward, reads=(reads or {}).get(name))
                        makes = (fused or {}).get(name, ("",))
                        makes = makes if self.tells_apart(makes) else ("",)
                        for piece, made in zip(module.weight.chunk(len(makes)), makes, strict=True):
                            self.linear(piece, replace(role, makes=made), generator)
                    if module.bias is not None and f"{name}.bias" not in claimed:
                        self.bias(module.bias, module.in_features, generator)
                elif isinstance(module, nn.Embedding) and free:
                    self.embedding(module.weight, generator)


@dataclass(frozen=True)
class FanIn(Initialization):
    """Linear weights N(0, 1/fan_in), residual outputs scaled down, embeddings N(0, 1).

    With weights of standard deviation 0.02 at width 128 the carry of an addition is not learned in any short budget.
    """

    residual_scale: float = setting(0.5, "factor on projections that write to the residual stream")
    embedding_std: float = setting(1.0, "standard deviation of embeddings")

    def __post_init__(self) -> None:
        for name in ("residual_scale", "embedding_std"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name}: {getattr(self, name)} is no width of a distribution; 0 or more is right")

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        scale = self.residual_scale if role.outward else 1.0
        weight.normal_(std=scale * weight.shape[1] ** -0.5, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.embedding_std, generator=generator)


@dataclass(frozen=True)
class Normal(Initialization):
    """All weights N(0, deviation^2), residual outputs divided by the root of their number: GPT-2's.

    With `residual_count="blocks"` that number is twice that of the blocks, however many maps write in each: so does
    dual attention as published (https://github.com/Awni00/abstract_transformer), which has an output map for each sort
    of heads. There, too, it is not the output of a gated feed-forward that is divided but the map beside its gate:
    `scaled_projection="gated"`.
    """

    std: float = setting(0.02, "standard deviation of all weights")
    residual_count: Literal["maps", "blocks"] = setting(
        "maps",
        "what scales residual projections: the number of projections that write (maps), or two per block",
        later=True,
    )
    scaled_projection: Literal["out", "gated"] = setting(
        "out",
        "which projection of a gated feed-forward network is scaled: its output (out) or the one beside the gate",
        later=True,
    )

    def __post_init__(self) -> None:
        if self.std <= 0:
            raise UserError(f"std: {self.std} would make all weights equal; 0.02 is usual")

    def tells_apart(self, makes: Sequence[str]) -> bool:
        return self.scaled_projection == "gated" and set(makes) <= set(FED)

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        count = role.writers if self.residual_count == "maps" else 2 * role.depth
        divided = role.makes == "gated" if role.makes in FED else role.outward
        weight.normal_(std=self.std * (count**-0.5 if divided else 1.0), generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.std, generator=generator)


@dataclass(frozen=True)
class Xavier(Initialization):
    """Linear weights N(0, 2/(fan_in + fan_out)), Glorot and Bengio (2010); embeddings N(0, 1/width)."""

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        nn.init.xavier_normal_(weight, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True)
class DeepNorm(Initialization):
    """Smaller with depth: Xavier's normal times (8 x layers x turns)^(-1/4), but queries and keys as they are.

    Wang et al. (2022), https://arxiv.org/abs/2203.00555, for decoders, without its factor on the residual stream; made
    for post-norm. Queries and keys are only compared, so they keep Xavier's N(0, 2/(fan_in + fan_out)); values, output
    maps, feed-forwards and all other linear maps are made smaller, 0.30 times for 16 layers. Each of queries, keys and
    values counts as a map of its own, for every kind of attention and position. Embeddings are N(0, 1/width).
    """

    def tells_apart(self, makes: Sequence[str]) -> bool:
        return not set(makes) & set(FED)

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        gain = 1.0 if role.makes in ("queries", "keys") else (8 * role.depth) ** -0.25
        nn.init.xavier_normal_(weight, gain=gain, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True)
class TorchDefault(Initialization):
    """As `torch.nn` draws its own layers: linear weights and biases U(-b, b), b = 1/root of fan_in; embeddings N(0, 1).

    Of the published numbers of dual attention on Tiny Stories: Altabaa and Lafferty (2024),
    https://arxiv.org/abs/2405.16727, in the code of May 2024. The maps of relations there count as reading the width of
    a head times the number of relations.

    With 64 inputs all weights and biases of a linear map lie between -1/8 and 1/8.
    """

    def linear(self, weight: torch.Tensor, role: Role, generator: Generator) -> None:
        bound = (role.reads or weight.shape[1]) ** -0.5
        weight.uniform_(-bound, bound, generator=generator)

    def embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(generator=generator)

    def bias(self, bias: torch.Tensor, reads: int, generator: Generator) -> None:
        bias.uniform_(-(reads**-0.5), reads**-0.5, generator=generator)
