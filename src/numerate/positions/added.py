"""Positions that are added to the embedded input."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.config import setting
from numerate.errors import Mistake
from numerate.positions.numbering import Numbering, Sequential
from numerate.positions.position import InputPosition, Position


@dataclass(frozen=True)
class Learned(Position):
    """One learned vector per place, added to the token's.

    Gehring et al. (2017), https://arxiv.org/abs/1705.03122.

    With `DigitIndex` it is the Abacus embedding: `Learned(numbering=DigitIndex(max_offset=100))`.
    """

    numbering: Numbering = setting(Sequential(), "which number each place gets")
    table: int = setting(512, "how many places there are vectors for")

    def __post_init__(self) -> None:
        if self.table < 1:
            raise Mistake(f"table: {self.table} places; 1 or more is right")

    def build_input(self, width: int) -> InputPosition:
        return LearnedTable(self.table, width)

    def size(self) -> int:
        return self.table


class LearnedTable(InputPosition):
    """The table behind `Learned`."""

    def __init__(self, table: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(table, width)

    def forward(
        self, x: Float[Tensor, "rows time width"], places: Int[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]:
        vectors: Tensor = self.vectors(places)
        return x + vectors


@dataclass(frozen=True)
class Sinusoidal(Position):
    """Sines and cosines of the place, added to the token's vector.

    Vaswani et al. (2017), https://arxiv.org/abs/1706.03762.

    Width 2i holds sin(place / base^(2i / width)), width 2i + 1 the cosine. There is no table, so no place is too far.
    """

    numbering: Numbering = setting(Sequential(), "which number each place gets")
    base: float = setting(10000.0, "the longest wave is 2 pi times this many places")
    scale: float = setting(1.0, "what the waves are multiplied by")

    def __post_init__(self) -> None:
        if self.base <= 1:
            raise Mistake(f"base: {self.base} gives no waves; a number above 1 is right, 10000 is usual")

    def build_input(self, width: int) -> InputPosition:
        return Waves(width, self.base, self.scale)


@dataclass(frozen=True)
class ScaledSinusoidal(Position):
    """Sines and cosines as in `Sinusoidal`, times one learned number that begins at 1 / root of the width.

    So the waves begin no larger than an embedding drawn with variance 1/width, and the model decides how much it reads
    of them; in the published arithmetic system (McLeish et al., 2024, https://arxiv.org/abs/2405.17399) and before in
    Hua et al. (2022), https://arxiv.org/abs/2202.10447.
    """

    numbering: Numbering = setting(Sequential(), "which number each place gets")
    base: float = setting(10000.0, "the longest wave is 2 pi times this many places")

    def __post_init__(self) -> None:
        if self.base <= 1:
            raise Mistake(f"base: {self.base} gives no waves; a number above 1 is right, 10000 is usual")

    def build_input(self, width: int) -> InputPosition:
        return Waves(width, self.base, nn.Parameter(torch.full((1,), width**-0.5)))


class Waves(InputPosition):
    """The waves behind `Sinusoidal` and `ScaledSinusoidal`; a `scale` that is a parameter is learned."""

    rates: Tensor

    def __init__(self, width: int, base: float, scale: float | nn.Parameter) -> None:
        super().__init__()
        if width % 2:
            raise Mistake(f"width: Sinusoidal pairs sines with cosines, so {width} must be even")
        self.scale = scale
        exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
        self.register_buffer("rates", (base**-exponents).float(), persistent=False)

    def forward(
        self, x: Float[Tensor, "rows time width"], places: Int[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]:
        angles = places[..., None].float() * self.rates
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return x + (self.scale * waves).to(x.dtype)
