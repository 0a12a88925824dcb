"""Rotary position embeddings (RoPE)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from numerate.config import setting
from numerate.errors import UserError
from numerate.positions.position import Position, Rotation
from numerate.positions.position_ids import PositionIds, Sequential


@dataclass(frozen=True)
class Rotary(Position):
    """Rotary position embeddings (RoPE).

    Angles are position x base^(-2i / head width): Su et al. (2021), https://arxiv.org/abs/2104.09864.

    Component i is paired with i + head_width / 2, as in GPT-NeoX and Llama, not with its neighbour as in the paper; the
    two differ by a permutation of components. With `partial_rotary_factor=0.5` only the first half of each head is
    rotated.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    base: float = setting(10000.0, "base of the frequencies (theta)")
    partial_rotary_factor: float = setting(1.0, "share of each head's dimensions that is rotated")

    def __post_init__(self) -> None:
        if self.base <= 1:
            raise UserError(f"base: {self.base} gives no rotation; a number above 1 is right, 10000 is usual")
        if not 0 < self.partial_rotary_factor <= 1:
            raise UserError(
                f"partial_rotary_factor: {self.partial_rotary_factor} is not a share; above 0 up to 1 is right"
            )

    def build_attention(self, heads: int, head_width: int) -> Rotation:
        return HalfSplitRotation(head_width, self.base, self.partial_rotary_factor)


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
            raise UserError(
                f"partial_rotary_factor: {turned} of {head_width} components would be turned; an even number is needed"
            )
        self.turned, self.whole = turned, turned == head_width
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

    def pairs(self, places: Int[Tensor, "#rows time"], heads: int) -> Complex[Tensor, "#rows time numbers"]:
        """The factors for `split_and_turned`, head after head: a complex number for each pair."""
        cosines, sines = self.prepare(places)
        half = self.turned // 2
        turns = torch.complex(cosines[:, 0, :, :half], sines[:, 0, :, half:].contiguous())
        return turns.repeat(1, 1, heads)

    def neighbours(self, weight: Float[Tensor, "all read"]) -> Float[Tensor, "all read"]:
        """Permutes the rows of a query or key projection so that components rotated together are neighbours.

        Products of queries and keys do not change.
        """
        return torch.unflatten(weight, 0, (-1, 2, self.turned // 2)).transpose(1, 2).flatten(0, 2)


def split_and_turned(
    made: Float[Tensor, "rows time all"], turns: Complex[Tensor, "#rows time numbers"], sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """Splits vectors into parts of these sizes; the first parts, as far as there are `turns`, are rotated.

    Faster on a CPU: one pass over the rotated parts, and one gradient for all parts.
    """
    found: tuple[Tensor, ...] = _SplitAndTurned.apply(made, turns, *sizes)  # type: ignore[no-untyped-call]
    return found


class _SplitAndTurned(Function):
    @staticmethod
    def forward(made: Tensor, turns: Tensor, *sizes: int) -> tuple[Tensor, ...]:
        count = 2 * turns.shape[-1]
        turned = torch.view_as_real(_complex(made[..., :count]) * turns).flatten(-2)
        parts, start = [], 0
        for size in sizes:
            parts.append(turned.narrow(-1, start, size) if start < count else made.narrow(-1, start, size))
            start += size
        return tuple(parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        made, turns, *ctx.sizes = inputs
        ctx.shape = made.shape
        ctx.save_for_backward(turns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (turns,) = ctx.saved_tensors
        found, start, back = gradients[0].new_empty(ctx.shape), 0, turns.conj().resolve_conj()
        for size, gradient in zip(ctx.sizes, gradients, strict=True):
            into = found.narrow(-1, start, size)
            if start < 2 * turns.shape[-1]:
                now = back[..., start // 2 : (start + size) // 2]
                torch.mul(_complex(gradient), now, out=_complex(into))
            else:
                into.copy_(gradient)
            start += size
        return found, *(None,) * (1 + len(ctx.sizes))


def _complex(x: Float[Tensor, "rows time all"]) -> Complex[Tensor, "rows time half"]:
    """Pairs of neighbours as complex numbers: a view where contiguous."""
    x = x if x.stride(-1) == 1 and all(size % 2 == 0 for size in x.stride()[:-1]) else x.contiguous()
    return torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)))
