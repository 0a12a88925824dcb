"""Gated activations with a fused gradient."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import silu


def gated(
    hidden: Float[Tensor, "*places both"], activation: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*places half"]:
    """activation(first half) times the second half: Shazeer (2020), https://arxiv.org/abs/2002.05202.

    With SiLU, 1 and 3 give 0.731 x 3 = 2.193. On a CPU, with SiLU, the gradients of both halves are written into one
    tensor instead of being concatenated; the numbers are the same.
    """
    gate, value = hidden.chunk(2, dim=-1)
    plainly = activation is not silu or hidden.device.type != "cpu" or not hidden.requires_grad
    if plainly or torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(hidden):
        return activation(gate) * value
    found: Tensor = _SwiGLU.apply(hidden)  # type: ignore[no-untyped-call]
    return found


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        gate, value = hidden.chunk(2, dim=-1)
        opened = silu(gate)
        ctx.save_for_backward(hidden, opened)
        return opened * value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        hidden, opened = ctx.saved_tensors
        gate, value = hidden.chunk(2, dim=-1)
        found = torch.empty_like(hidden)
        of_gate, of_value = found.chunk(2, dim=-1)
        torch.ops.aten.silu_backward.grad_input(gradient * value, gate, grad_input=of_gate)
        torch.mul(gradient, opened, out=of_value)
        return found
