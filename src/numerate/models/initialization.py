"""Weight initializations. They skip parameters that a module initializes itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, nn

from numerate.config import Spec, setting


@dataclass(frozen=True)
class LayerRole:
    """The role of a linear layer in its model.

    - `is_residual_output`: it writes to the residual stream, as `num_residual_outputs` maps do.
    - `effective_depth`: number of blocks that a token passes, layers x loops.
    - `component`: `queries`, `keys` or `values` of attention; of a gated feed-forward `gate` and `gated`, the two that
      are multiplied, and `fed`, its output. Empty for all other layers, and if an initialization does not need it.
    - `fan_in`: the number of inputs of each output, if it is not the width of the weight.
    """

    is_residual_output: bool = False
    num_residual_outputs: int = 1
    effective_depth: int = 1
    component: str = ""
    fan_in: int | None = None


GATED_FEED_FORWARD = ("gate", "gated", "fed")
"""The components of a gated feed-forward network."""


class Initialization(Spec, ABC):
    """Initializes linear layers and embeddings; biases are 0 unless it initializes them, norms stay at 1 and 0."""

    def splits_packed(self, components: Sequence[str]) -> bool:
        """Whether maps that lie in one matrix (queries, keys and values) are drawn one by one, each as itself."""
        return False

    @abstractmethod
    def init_linear(self, weight: torch.Tensor, role: LayerRole, generator: Generator) -> None:
        """Fills a linear map's weight (out x in)."""

    @abstractmethod
    def init_embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        """Fills a table of vectors (entries x width)."""

    def init_bias(self, bias: torch.Tensor, fan_in: int, generator: Generator) -> None:
        """Initializes the bias of a linear layer with this fan-in."""
        bias.zero_()

    def apply(
        self,
        model: nn.Module,
        skipped_parameters: set[str],
        output_projections: Sequence[nn.Linear],
        generator: Generator,
        tied_modules: Sequence[nn.Module] = (),
        packed_projections: Mapping[str, Sequence[str]] | None = None,
        effective_depth: int = 1,
        fan_in_by_layer: Mapping[str, int] | None = None,
    ) -> None:
        """Initializes the modules in their order.

        `skipped_parameters` are full parameter names, `tied_modules` modules that share their weight with another one
        (a tied head), which are skipped. `packed_projections` are the full names of linear layers that pack several
        projections of equal size, with the role of each; `effective_depth` is layers x loops; `fan_in_by_layer` are the
        fan-ins of layers for which it is not the input width.
        """
        default_role = LayerRole(num_residual_outputs=max(1, len(output_projections)), effective_depth=effective_depth)
        with torch.no_grad():
            for name, module in model.named_modules():
                is_initialized_here = f"{name}.weight" not in skipped_parameters and module not in tied_modules
                if isinstance(module, nn.Linear):
                    if is_initialized_here:
                        role = replace(
                            default_role,
                            is_residual_output=module in output_projections,
                            fan_in=(fan_in_by_layer or {}).get(name),
                        )
                        components = (packed_projections or {}).get(name, ("",))
                        components = components if self.splits_packed(components) else ("",)
                        for chunk, component in zip(module.weight.chunk(len(components)), components, strict=True):
                            self.init_linear(chunk, replace(role, component=component), generator)
                    if module.bias is not None and f"{name}.bias" not in skipped_parameters:
                        self.init_bias(module.bias, module.in_features, generator)
                elif isinstance(module, nn.Embedding) and is_initialized_here:
                    self.init_embedding(module.weight, generator)


@dataclass(frozen=True)
class FanIn(Initialization):
    """Linear weights N(0, 1/fan_in), residual outputs scaled down, embeddings N(0, 1).

    With weights of standard deviation 0.02 at width 128 the carry of an addition is not learned in any short budget.
    """

    residual_scale: float = setting(0.5, "factor on projections that write to the residual stream", at_least=0)
    embedding_std: float = setting(1.0, "standard deviation of embeddings", at_least=0)

    def init_linear(self, weight: torch.Tensor, role: LayerRole, generator: Generator) -> None:
        scale = self.residual_scale if role.is_residual_output else 1.0
        weight.normal_(std=scale * weight.shape[1] ** -0.5, generator=generator)

    def init_embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.embedding_std, generator=generator)


@dataclass(frozen=True)
class Normal(Initialization):
    """All weights N(0, deviation^2), residual outputs divided by the root of their number: GPT-2's.

    With `residual_count="blocks"` that number is twice that of the blocks, however many maps write in each: so does
    dual attention as published (https://github.com/Awni00/abstract_transformer), which has an output map for each kind
    of heads. There, too, it is not the output of a gated feed-forward that is divided but the map beside its gate:
    `scaled_projection="gated"`.
    """

    std: float = setting(0.02, "standard deviation of all weights", above=0)
    residual_count: Literal["maps", "blocks"] = setting(
        "maps",
        "n in 1 / sqrt(n): all projections that write to the residual stream (maps), or two per block (blocks)",
    )
    scaled_projection: Literal["out", "gated"] = setting(
        "out",
        "projection of a gated feed-forward network that is scaled: down projection (out), up projection (gated)",
    )

    def splits_packed(self, components: Sequence[str]) -> bool:
        return self.scaled_projection == "gated" and set(components) <= set(GATED_FEED_FORWARD)

    def init_linear(self, weight: torch.Tensor, role: LayerRole, generator: Generator) -> None:
        count = role.num_residual_outputs if self.residual_count == "maps" else 2 * role.effective_depth
        is_scaled_down = role.component == "gated" if role.component in GATED_FEED_FORWARD else role.is_residual_output
        weight.normal_(std=self.std * (count**-0.5 if is_scaled_down else 1.0), generator=generator)

    def init_embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=self.std, generator=generator)


@dataclass(frozen=True)
class Xavier(Initialization):
    """Linear weights N(0, 2/(fan_in + fan_out)), Glorot and Bengio (2010); embeddings N(0, 1/width)."""

    def init_linear(self, weight: torch.Tensor, role: LayerRole, generator: Generator) -> None:
        nn.init.xavier_normal_(weight, generator=generator)

    def init_embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True)
class DeepNorm(Initialization):
    """Smaller with depth: Xavier's normal times (8 x layers x loops)^(-1/4), except for queries and keys.

    Wang et al. (2022), https://arxiv.org/abs/2203.00555, for decoders, without its factor on the residual stream; made
    for post-norm. Queries and keys are only compared, so they keep Xavier's N(0, 2/(fan_in + fan_out)); values, output
    maps, feed-forwards and all other linear maps are made smaller, 0.30 times for 16 layers. Each of queries, keys and
    values counts as a map of its own, for every kind of attention and position. Embeddings are N(0, 1/width).
    """

    def splits_packed(self, components: Sequence[str]) -> bool:
        return not set(components) & set(GATED_FEED_FORWARD)

    def init_linear(self, weight: torch.Tensor, role: LayerRole, generator: Generator) -> None:
        gain = 1.0 if role.component in ("queries", "keys") else (8 * role.effective_depth) ** -0.25
        nn.init.xavier_normal_(weight, gain=gain, generator=generator)

    def init_embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True)
class TorchDefault(Initialization):
    """PyTorch's default initialization: linear weights and biases U(-b, b), b = 1/root of fan_in; embeddings N(0, 1).

    Of the published numbers of dual attention on Tiny Stories: Altabaa and Lafferty (2024),
    https://arxiv.org/abs/2405.16727, in the code of May 2024. The maps of relations there count as reading the width of
    a head times the number of relations.

    With 64 inputs all weights and biases of a linear map lie between -1/8 and 1/8.
    """

    def init_linear(self, weight: torch.Tensor, role: LayerRole, generator: Generator) -> None:
        bound = (role.fan_in or weight.shape[1]) ** -0.5
        weight.uniform_(-bound, bound, generator=generator)

    def init_embedding(self, weight: torch.Tensor, generator: Generator) -> None:
        weight.normal_(generator=generator)

    def init_bias(self, bias: torch.Tensor, fan_in: int, generator: Generator) -> None:
        bias.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
