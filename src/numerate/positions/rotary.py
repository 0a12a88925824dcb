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
from numerate.positions.position import Position, Rotation, inverse_frequencies
from numerate.positions.position_ids import PositionIds, Sequential


@dataclass(frozen=True)
class Rotary(Position):
    """Rotary position embeddings (RoPE).

    Angles are position x base^(-2i / head width): Su et al. (2021), https://arxiv.org/abs/2104.09864.

    Component i is paired with i + head_width / 2, as in GPT-NeoX and Llama, not with its neighbor as in the paper; the
    two differ by a permutation of components. With `partial_rotary_factor=0.5` only the first half of each head is
    rotated.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    base: float = setting(10000.0, "base of the frequencies (theta)", above=1)
    partial_rotary_factor: float = setting(1.0, "share of each head's dimensions that is rotated", above=0, at_most=1)

    def build_attention(self, heads: int, head_width: int) -> Rotation:
        return HalfSplitRotation(head_width, self.base, self.partial_rotary_factor)


class HalfSplitRotation(Rotation):
    """The module of `Rotary`.

    >>> rotation = HalfSplitRotation(4, base=10000.0, partial_rotary_factor=1.0)
    >>> q = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    >>> rotation.rotate(q, rotation.compute_cos_sin(torch.tensor([[1]]))).flatten()
    tensor([0.5403, 0.0000, 0.8415, 0.0000])
    """

    inv_freq: Tensor

    def __init__(self, head_width: int, base: float, partial_rotary_factor: float) -> None:
        super().__init__()
        rotary_dim = int(head_width * partial_rotary_factor)
        if rotary_dim % 2 or rotary_dim == 0:
            raise UserError(
                f"partial_rotary_factor: the number of rotated components must be even and positive, not {rotary_dim} "
                f"of {head_width}"
            )
        self.rotary_dim, self.rotates_all_dims = rotary_dim, rotary_dim == head_width
        self.register_constant("inv_freq", lambda: inverse_frequencies(rotary_dim, base))

    def compute_cos_sin(self, position_ids: Int[Tensor, "#rows time"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (rows or 1) x 1 x time x rotary_dim; the sine's first half carries its minus sign."""
        angles = position_ids[:, None, :, None].float() * self.inv_freq
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat([cosines, cosines], dim=-1), torch.cat([-sines, sines], dim=-1)

    def rotate(
        self, x: Float[Tensor, "rows heads time head_width"], cos_sin: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "rows heads time head_width"]:
        cosines, sines = (part.to(x.dtype) for part in cos_sin)
        if self.rotary_dim == x.shape[-1]:
            return torch.addcmul(x * cosines, x.roll(self.rotary_dim // 2, dims=-1), sines)
        rotated, unrotated = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        rotated = torch.addcmul(rotated * cosines, rotated.roll(self.rotary_dim // 2, dims=-1), sines)
        return torch.cat([rotated, unrotated], dim=-1)

    def complex_factors(
        self, position_ids: Int[Tensor, "#rows time"], num_heads: int
    ) -> Complex[Tensor, "#rows time numbers"]:
        """The factors for `split_and_rotate`, head after head: a complex number for each pair."""
        cosines, sines = self.compute_cos_sin(position_ids)
        half = self.rotary_dim // 2
        factors = torch.complex(cosines[:, 0, :, :half], sines[:, 0, :, half:].contiguous())
        return factors.repeat(1, 1, num_heads)

    def interleave_halves(self, weight: Float[Tensor, "all read"]) -> Float[Tensor, "all read"]:
        """Permutes the rows of a query or key projection so that components rotated together are adjacent.

        Products of queries and keys do not change.
        """
        return torch.unflatten(weight, 0, (-1, 2, self.rotary_dim // 2)).transpose(1, 2).flatten(0, 2)


def split_and_rotate(
    projected: Float[Tensor, "rows time all"], factors: Complex[Tensor, "#rows time numbers"], sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """Splits vectors into parts of these sizes; the first parts, as far as there are `factors`, are rotated.

    Faster on a CPU: one pass over the rotated parts, and one gradient for all parts.
    """
    outputs: tuple[Tensor, ...] = _SplitAndRotate.apply(projected, factors, *sizes)  # type: ignore[no-untyped-call]
    return outputs


class _SplitAndRotate(Function):
    @staticmethod
    def forward(projected: Tensor, factors: Tensor, *sizes: int) -> tuple[Tensor, ...]:
        num_rotated = 2 * factors.shape[-1]
        rotated = torch.view_as_real(_view_as_complex(projected[..., :num_rotated]) * factors).flatten(-2)
        outputs, start = [], 0
        for size in sizes:
            outputs.append(
                rotated.narrow(-1, start, size) if start < num_rotated else projected.narrow(-1, start, size)
            )
            start += size
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        projected, factors, *ctx.sizes = inputs
        ctx.shape = projected.shape
        ctx.save_for_backward(factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (factors,) = ctx.saved_tensors
        grad_input, start, conj_factors = grad_outputs[0].new_empty(ctx.shape), 0, factors.conj().resolve_conj()
        for size, grad_output in zip(ctx.sizes, grad_outputs, strict=True):
            grad_slice = grad_input.narrow(-1, start, size)
            if start < 2 * factors.shape[-1]:
                factor_slice = conj_factors[..., start // 2 : (start + size) // 2]
                torch.mul(_view_as_complex(grad_output), factor_slice, out=_view_as_complex(grad_slice))
            else:
                grad_slice.copy_(grad_output)
            start += size
        return grad_input, *(None,) * (1 + len(ctx.sizes))


def _view_as_complex(x: Float[Tensor, "rows time all"]) -> Complex[Tensor, "rows time half"]:
    """Adjacent pairs as complex numbers: a view where contiguous."""
    x = x if x.stride(-1) == 1 and all(size % 2 == 0 for size in x.stride()[:-1]) else x.contiguous()
    return torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)))
