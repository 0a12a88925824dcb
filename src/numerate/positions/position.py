"""Positional encodings: how position ids are used, on the input or inside attention."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.config import Spec
from numerate.kernels.constants import Constants
from numerate.positions.position_ids import PositionIds


class Position(Spec, ABC):
    """The spec of a positional encoding, with its `position_ids`. It acts on the input or inside attention, not
    both."""

    position_ids: PositionIds

    accepts_fractions: ClassVar[bool] = False
    """Whether it takes fractional position ids, such as those of `Zooming`."""

    def build_input(self, width: int) -> "InputPosition | None":
        """The module that acts on the input embeddings, or None for an encoding that acts inside attention."""
        return None

    def build_attention(self, heads: int, head_width: int) -> "Rotation | AttentionBias | ContextualBias | None":
        """The module that acts inside one layer's attention, or None for an encoding that acts on the input."""
        return None

    def is_shared_across_layers(self) -> bool:
        """Whether all layers of a model share one module inside attention."""
        return False

    def position_limit(self) -> int | None:
        """Maximum number of positions, None for no limit."""
        return None


class InputPosition(Constants, ABC):
    """Changes the input embeddings by their position ids (integers unless the encoding accepts fractions)."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "rows time width"], position_ids: Int[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]: ...

    def self_initialized_parameters(self) -> set[str]:
        """Names of parameters with their own initialization, which the model's initialization skips."""
        return set()


def inverse_frequencies(size: int, base: float) -> Float[Tensor, " frequencies"]:
    """`base ** (-i / size)` for every even i below `size`, rounded to float32."""
    return (base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)).float()


class Rotation(Constants, ABC):
    """Rotates queries and keys by their positions."""

    @abstractmethod
    def compute_cos_sin(self, position_ids: Int[Tensor, "#rows time"]) -> Any:
        """Values that depend on the position ids only: computed once per forward pass and shared by layers with the
        same rotation."""

    @abstractmethod
    def rotate(
        self, x: Float[Tensor, "rows heads time head_width"], cos_sin: Any
    ) -> Float[Tensor, "rows heads time head_width"]: ...


class AttentionBias(Constants, ABC):
    """An attention bias that depends on the positions of query and key."""

    @abstractmethod
    def compute_bias(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]: ...

    def reachable_keys(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Bool[Tensor, " key"] | None:
        """Mask of the keys that can have any weight for one of these queries, in one of the rows; None if all can. The
        others are left out where attention is computed in blocks of queries."""
        return None


class ContextualBias(nn.Module, ABC):
    """An attention bias that depends on the contents of queries and keys."""

    @abstractmethod
    def compute_bias(
        self,
        queries: Float[Tensor, "rows heads query head_width"],
        keys: Float[Tensor, "rows heads key head_width"],
        attn_mask: Bool[Tensor, "#rows 1 query key"],
    ) -> Float[Tensor, "rows heads query key"]:
        """The bias added to the scores; `attn_mask` is True for visible keys."""

    @abstractmethod
    def flops(self, heads: int, time: int) -> int:
        """Floating-point operations of its matrix products for one row of this length."""
