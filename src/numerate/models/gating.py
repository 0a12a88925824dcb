"""Gated activations with a fused gradient."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import silu


def gated_activation(
    hidden: Float[Tensor, "*positions both"], activation: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*positions half"]:
    """activation(first half) times the second half: Shazeer (2020), https://arxiv.org/abs/2002.05202.

    With SiLU, 1 and 3 give 0.731 x 3 = 2.193. On a CPU, with SiLU, the gradients of both halves are written into one
    tensor instead of being concatenated; the numbers are the same.
    """
    gate, value = hidden.chunk(2, dim=-1)
    is_unfused = activation is not silu or hidden.device.type != "cpu" or not hidden.requires_grad
    if is_unfused or torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(hidden):
        return activation(gate) * value
    output: Tensor = _SwiGLU.apply(hidden)  # type: ignore[no-untyped-call]
    return output


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        gate, value = hidden.chunk(2, dim=-1)
        activated_gate = silu(gate)
        ctx.save_for_backward(hidden, activated_gate)
        return activated_gate * value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        hidden, activated_gate = ctx.saved_tensors
        gate, value = hidden.chunk(2, dim=-1)
        grad_hidden = torch.empty_like(hidden)
        grad_gate, grad_value = grad_hidden.chunk(2, dim=-1)
        torch.ops.aten.silu_backward.grad_input(grad_output * value, gate, grad_input=grad_gate)
        torch.mul(grad_output, activated_gate, out=grad_value)
        return grad_hidden
