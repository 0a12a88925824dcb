"""Token mixers, each over whole rows and one token at a time with an explicit state.

`Mixer` is the spec (settings only, as stored in a recipe); its `build` makes the `TokenMixer`, an `nn.Module`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.config import Spec
from numerate.errors import UserError
from numerate.positions.position import Position


@dataclass
class Context:
    """The context of a mixer's input.

    - `lengths`: real tokens per row so far. `blocked_keys`: True at keys masked for all queries.
    - `position_ids`: for each positional encoding of the model, those so far (first dimension 1 if all rows have the
      same).
    - `input_embeddings`: the input embeddings. `residual`: the residual stream before the norm of the mixer, in this
      block.
    - `cache_position`: in a decoding step, the position of the newest token in each row; None over whole rows.
    - `cached_length`: in a decoding step, the number of cached positions in use (the longest row so far).
    - `capacity`: in a prefill, the maximum length of a row.
    - `forward_cache`: values that layers share within one forward pass, such as the cosines of rotary embeddings.
    """

    lengths: Int[Tensor, " rows"]
    position_ids: tuple[Tensor, ...]
    input_embeddings: Tensor | None = None
    residual: Tensor | None = None
    blocked_keys: Bool[Tensor, "rows time"] | None = None
    cache_position: Int[Tensor, " rows"] | None = None
    cached_length: int = 0
    capacity: int = 0
    forward_cache: dict[Any, Any] = field(default_factory=dict)


class RowIndependentState:
    """A part of a state without a row dimension, such as weights that are packed once per generation
    for speed: reordering rows leaves it unchanged."""


class TokenMixer(nn.Module, ABC):
    """A layer's token mixer. `forward` and `step` compute the same function (tested for every mixer).

    It is causal, rows are independent, and padding on the right changes nothing (tested too).
    """

    @abstractmethod
    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        """Mixes whole rows."""

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets width"]:
        """`forward` at some positions of each row only. Mixers that can skip the computation at other positions
        override it."""
        return gather_positions(self(x, context), target_positions)

    @abstractmethod
    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Any]:
        """`forward`, and the state after each row's last real token."""

    @abstractmethod
    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: Any) -> tuple[Tensor, Any]:
        """One more token per row, and the state after it."""

    def attention_maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        """The attention weights of `forward`, by `MapKind` such as "attention": rows x heads x query x key. Empty for a
        mixer without attention."""
        return {}

    def self_initialized_parameters(self) -> set[str]:
        """Names of parameters that the mixer initializes itself, so that the model's initialization skips them: by
        default all but those of linear layers and embeddings."""
        return names_outside_linear_layers(self)

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Parameters with other options than the model's default: (factor of the learning rate, whether weight decay
        applies)."""
        return {}

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        """Linear layers that pack several projections of equal size, by name, with the role of each projection:
        `{"qkv_proj": ("queries", "keys", "values")}`. Some initializations draw the projections separately."""
        return {}

    def fan_in_by_layer(self) -> Mapping[str, int]:
        """Linear layers, by name, with their fan-in if it is not the input width, for initializations."""
        return {}

    def output_projections(self) -> Sequence[nn.Linear]:
        """The linear layers that write to the residual stream, which initializations scale down."""
        return ()

    @abstractmethod
    def flops(self, time: int) -> int:
        """Floating-point operations of one forward pass over one row of this length."""


def names_outside_linear_layers(module: nn.Module) -> set[str]:
    """The names of all parameters but those of linear layers and embeddings."""
    layers = [name for name, part in module.named_modules() if isinstance(part, nn.Linear | nn.Embedding)]
    return {name for name, _ in module.named_parameters() if name.rpartition(".")[0] not in layers}


class Mixer(Spec, ABC):
    """The spec of a mixer: a frozen dataclass that builds one layer's `TokenMixer`."""

    @abstractmethod
    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> TokenMixer:
        """The mixer of layer `layer` (from 0) of `depth`. `positions` are the model's, in the order of
        `Context.position_ids`; a mixer uses those that act inside attention. Raises `UserError` for impossible
        settings."""

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        """The mixers of all layers; overridden where layers share modules."""
        return [self.build(width, layer, depth, positions) for layer in range(depth)]

    def small(self) -> "Mixer":
        """The same for a small model of width 32, for `preset=debug`."""
        return self

    def has_attention(self) -> bool:
        """Whether it has attention, for positions that act inside attention."""
        return False


def check_no_blocked_keys(context: Context, mixer_name: str) -> None:
    """Raises `UserError` for blocked keys, which a recurrent layer does not support."""
    if context.blocked_keys is not None:
        raise UserError(f"model.mixer: {mixer_name} does not support blocked keys; use Attention")


def check_divides(setting: str, value: int, size: int, size_name: str = "hidden_size", advice: str = "") -> None:
    """Raises `UserError`, with the possible values, for a setting of the mixer that does not divide a size."""
    if size % value:
        divisors = [one for one in range(1, min(size, 4 * value) + 1) if size % one == 0]
        raise UserError(
            f"model.mixer.{setting}: must divide {size_name}={size}, not {value}; possible values: "
            f"{', '.join(map(str, divisors))}{advice}"
        )


def check_output_width(hidden_size: int, width: int, has_projection: bool) -> None:
    """Raises `UserError` for a mixer without output projection whose hidden size is not the model's."""
    if not has_projection and hidden_size != width:
        raise UserError(
            f"model.mixer.hidden_size: must equal the model's width {width} without an output projection, not "
            f"{hidden_size}; use hidden_size={width} or output_projection=true"
        )


def gather_positions(
    x: Float[Tensor, "rows time width"], target_positions: Int[Tensor, "rows targets"]
) -> Float[Tensor, "rows targets width"]:
    """The hidden states at some positions of each row."""
    return x[torch.arange(x.shape[0], device=x.device)[:, None], target_positions]
