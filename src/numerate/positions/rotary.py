"""Rotary positions: queries and keys are turned by angles that grow with their places."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from numerate.config import setting
from numerate.errors import Mistake
from numerate.positions.numbering import Numbering, Sequential
from numerate.positions.position import Position, Rotation


@dataclass(frozen=True)
class Rotary(Position):
    """Queries and keys turned by angles that grow with the place (RoPE).

    By place x base^(-2i / head width): Su et al. (2021), https://arxiv.org/abs/2104.09864.

    The halves of a head are paired (component i with i + head_width / 2), as GPT-NeoX and Llama do, not neighbours as
    the paper draws it; the two differ by a fixed reordering of components. With `share=0.5` only the first half of
    each head is turned.
    """

    numbering: Numbering = setting(Sequential(), "which number each place gets")
    base: float = setting(10000.0, "the slowest pair turns once in about 2 pi times this many places")
    share: float = setting(1.0, "the share of each head that is turned, from 0 (none) to 1 (all)")

    def __post_init__(self) -> None:
        if self.base <= 1:
            raise Mistake(f"base: {self.base} gives no rotation; a number above 1 is right, 10000 is usual")
        if not 0 < self.share <= 1:
            raise Mistake(f"share: {self.share} is not a share; above 0 up to 1 is right")

    def build_attention(self, heads: int, head_width: int) -> Rotation:
        return HalfSplitRotation(head_width, self.base, self.share)


class HalfSplitRotation(Rotation):
    """The rotation behind `Rotary`.

    >>> turn = HalfSplitRotation(4, base=10000.0, share=1.0)
    >>> q = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    >>> turn.turn(q, turn.prepare(torch.tensor([[0]]))).flatten().tolist()
    [1.0, 0.0, 0.0, 0.0]
    """

    rates: Tensor

    def __init__(self, head_width: int, base: float, share: float) -> None:
        super().__init__()
        turned = int(head_width * share)
        if turned % 2 or turned == 0:
            raise Mistake(f"share: {turned} of {head_width} components would be turned; an even number is needed")
        self.turned = turned
        exponents = torch.arange(0, turned, 2, dtype=torch.float64) / turned
        self.register_buffer("rates", (base**-exponents).float(), persistent=False)

    def prepare(self, places: Int[Tensor, "#rows time"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (rows or 1) x 1 x time x turned; the sine's first half carries its minus sign."""
        angles = places[:, None, :, None].float() * self.rates
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat([cosines, cosines], dim=-1), torch.cat([-sines, sines], dim=-1)

    def turn(
        self, x: Float[Tensor, "rows heads time head_width"], prepared: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "rows heads time head_width"]:
        cosines, sines = (part.to(x.dtype) for part in prepared)
        if self.turned == x.shape[-1]:
            return torch.addcmul(x * cosines, x.roll(self.turned // 2, dims=-1), sines)
        turned, kept = x[..., : self.turned], x[..., self.turned :]
        turned = torch.addcmul(turned * cosines, turned.roll(self.turned // 2, dims=-1), sines)
        return torch.cat([turned, kept], dim=-1)
