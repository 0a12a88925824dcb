"""Position embeddings: added to the input embeddings, or in place of one feature."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from numerate.config import setting
from numerate.errors import UserError
from numerate.positions.position import InputPosition, Position, inverse_frequencies
from numerate.positions.position_ids import PositionIds, Sequential


@dataclass(frozen=True)
class Learned(Position):
    """Learned position embeddings, added to the token embeddings.

    Gehring et al. (2017), https://arxiv.org/abs/1705.03122.

    With `DigitIndex` it is the Abacus embedding: `Learned(position_ids=DigitIndex(max_offset=100))`.

    They are initialized like token embeddings, or with `initialization="sinusoidal"` as those of `Sinusoidal`; `frozen`
    ones are not trained. (The published counting code has both, but a later initialization overwrites the sinusoids:
    its frozen vectors are `Learned(frozen=True)`, noise.)
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    max_position_embeddings: int = setting(512, "number of learned position embeddings", at_least=1)
    initialization: Literal["normal", "sinusoidal"] = setting(
        "normal", "initialization: as the token embeddings (normal), or sinusoidal"
    )
    frozen: bool = setting(False, "whether the embeddings are not trained")

    def build_input(self, width: int) -> InputPosition:
        return LearnedEmbedding(self.max_position_embeddings, width, self.initialization, self.frozen)

    def position_limit(self) -> int:
        return self.max_position_embeddings


class LearnedEmbedding(InputPosition):
    """The module of `Learned`."""

    def __init__(
        self,
        num_embeddings: int,
        width: int,
        initialization: Literal["normal", "sinusoidal"] = "normal",
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_embeddings, width)
        self.is_sinusoidal_init = initialization == "sinusoidal"
        if self.is_sinusoidal_init:
            sinusoids = SinusoidalEmbedding(width, 10000.0, 1.0)
            with torch.no_grad():
                self.embedding.weight.copy_(
                    sinusoids(torch.zeros(1, num_embeddings, width), torch.arange(num_embeddings)[None])[0]
                )
        self.embedding.weight.requires_grad_(not frozen)

    def forward(
        self, x: Float[Tensor, "rows time width"], position_ids: Int[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]:
        embeddings: Tensor = self.embedding(position_ids)
        return x + embeddings

    def self_initialized_parameters(self) -> set[str]:
        return {"embedding.weight"} if self.is_sinusoidal_init else set()


@dataclass(frozen=True)
class Sinusoidal(Position):
    """Sinusoidal position embeddings, added to the token embeddings.

    Vaswani et al. (2017), https://arxiv.org/abs/1706.03762.

    Component 2i is sin(position / base^(2i / width)), component 2i + 1 the cosine. Positions have no limit.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    base: float = setting(10000.0, "base of the wavelengths (theta)", above=1)
    scale: float = setting(1.0, "factor on the embeddings")

    def build_input(self, width: int) -> InputPosition:
        return SinusoidalEmbedding(width, self.base, self.scale)


@dataclass(frozen=True)
class ScaledSinusoidal(Position):
    """Sinusoidal position embeddings times one learned factor, initially 1/sqrt(width).

    Initially they are no larger than an embedding of variance 1/width. Used by the published arithmetic system (McLeish
    et al., 2024, https://arxiv.org/abs/2405.17399) and before by Hua et al. (2022), https://arxiv.org/abs/2202.10447.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    base: float = setting(10000.0, "base of the wavelengths (theta)", above=1)

    def build_input(self, width: int) -> InputPosition:
        return SinusoidalEmbedding(width, self.base, nn.Parameter(torch.full((1,), width**-0.5)))


class SinusoidalEmbedding(InputPosition):
    """The module of `Sinusoidal` and `ScaledSinusoidal`; a `scale` that is a parameter is learned."""

    inv_freq: Tensor

    def __init__(self, width: int, base: float, scale: float | nn.Parameter) -> None:
        super().__init__()
        if width % 2:
            raise UserError(f"hidden_size: must be even for Sinusoidal (sines are paired with cosines), not {width}")
        self.scale = scale
        self.register_constant("inv_freq", lambda: inverse_frequencies(width, base))

    def forward(
        self, x: Float[Tensor, "rows time width"], position_ids: Int[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]:
        angles = position_ids[..., None].float() * self.inv_freq
        sinusoids = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return x + (self.scale * sinusoids).to(x.dtype)


@dataclass(frozen=True)
class Scalar(Position):
    """Scalar positional encoding (SPE): the position from 0 to 1 as the last feature of the embedding.

    Chang and Bisk (2024), https://arxiv.org/abs/2405.20131: the token embedding has one feature less, and position /
    `max_positions` is appended. (Here the embedding keeps the unused feature, one number per token.) With `Zooming` it
    is the fraction itself. Position 32 of 128 is 0.25.
    """

    accepts_fractions: ClassVar[bool] = True

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    max_positions: int = setting(128, "number of positions, by which a position is divided", at_least=1)

    def build_input(self, width: int) -> InputPosition:
        return PositionFeature(self.max_positions if self.position_ids.is_integer else 1, width)


class PositionFeature(InputPosition):
    """The module of `Scalar`."""

    def __init__(self, max_positions: int, width: int) -> None:
        super().__init__()
        if width < 2:
            raise UserError(f"hidden_size: must be 2 or more for Scalar, which uses one feature, not {width}")
        self.max_positions = max_positions

    def forward(
        self, x: Float[Tensor, "rows time width"], position_ids: Num[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]:
        # Divided before it is rounded: bfloat16 cannot represent 257.
        fractions = (position_ids / self.max_positions).to(x.dtype)
        return torch.cat([x[..., :-1], fractions.expand(x.shape[:2])[..., None]], dim=-1)
