"""Where relational attention runs by its Triton kernel (`relational_triton`)."""

import os
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.relational import Activation, RelationalHeads, Variant

KERNEL_ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "gelu", "silu")
"""Elementwise activations of relations: a softmax of relations would need its own running sum."""


def unsupported_feature(heads: RelationalHeads, variant: Variant, activation: Activation) -> str | None:
    """The feature that the kernel does not support, in words; None if all are supported."""
    for feature, is_used in (
        (f"the variant {variant}", variant != "relational"),
        (f"the activation {activation}", activation not in KERNEL_ACTIVATIONS),
        ("blocked keys", heads.visible is not None and heads.bias is None),
        ("attention biases", heads.bias is not None),
        ("symbols by distance", heads.symbols is None),
        ("dropout of attention weights", bool(heads.dropout) or heads.dropout_mask is not None),
    ):
        if is_used:
            return feature
    return None


def should_use_kernel(heads: RelationalHeads, activation: Activation) -> bool:
    """Whether to use the kernel for what it supports: if `can_run_kernel`, with enough shared memory, unless
    relations have no activation and the total width of values is at most 128."""
    assert heads.relation_keys is not None
    _, relations, _, relation_width = heads.relation_keys.shape
    is_narrow = activation == "identity" and heads.queries.shape[-1] + relations * relation_width <= 128
    return (
        not is_narrow
        and can_run_kernel(heads)
        and shared_memory_shortage(heads, max_shared_memory(heads.queries.device)) is None
    )


SHARED_MEMORY_BYTES = {
    4: {16: {16: 106_496, 32: 131_072, 64: 180_224}, 32: {16: 155_648, 32: 180_224, 64: 229_376}},
    2: {
        16: {16: 55_296, 32: 67_584, 64: 92_160, 128: 141_312},
        32: {16: 79_872, 32: 92_160, 64: 116_736, 128: 165_888},
        64: {16: 129_024, 32: 141_312, 64: 165_888, 128: 215_040},
        128: {16: 227_328},
    },
}
"""Bytes of shared memory per program of the kernel, by element size, head width and relation width (both rounded up to
a power of two, at least 16): the maximum over the forward pass and both kernels of the backward pass, for 4 heads and 4
relations. Measured by compiling ahead of time with Triton 3.7.1; the same for compute capabilities 8.0, 9.0 and 12.0.
All other widths up to 256 need more than an H100 has (232,448; an A100 166,912, consumer cards 101,376).
"""


def max_shared_memory(device: torch.device) -> int:
    """Bytes of shared memory available to one program on a CUDA device; 0 if PyTorch does not report it (ROCm)."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def shared_memory_shortage(heads: RelationalHeads, limit: int) -> str | None:
    """Why the kernel cannot be launched with `limit` bytes of shared memory per program; None if it can."""
    assert heads.relation_keys is not None
    x, widths = heads.queries, (heads.queries.shape[-1], heads.relation_keys.shape[-1])
    width, relation_width = (max(16, 1 << (size - 1).bit_length()) for size in widths)
    needed = SHARED_MEMORY_BYTES.get(x.element_size(), {}).get(width, {}).get(relation_width)
    if needed is not None and needed <= limit:
        return None
    bytes_needed = "too much" if needed is None else f"{needed:,} bytes of"
    return (
        f"head width {widths[0]} and relation width {widths[1]} in {str(x.dtype).removeprefix('torch.')} need "
        f"{bytes_needed} shared memory; this device has {limit:,} bytes"
    )


def can_run_kernel(heads: RelationalHeads) -> bool:
    """Whether the kernel can run: on a CUDA device, with Triton installed, and not under torch.vmap."""
    x = heads.queries
    is_vmapped = not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x)
    return x.is_cuda and not is_vmapped and find_spec("triton") is not None


def kernel_relational_attention(
    heads: RelationalHeads, variant: Variant, activation: Activation
) -> Float[Tensor, "rows heads query head_width"]:
    """`relational.reference_attention` for whole rows by the kernel, whose sums are in at least float32.

    Raises `UserError` where it cannot run, and for what it does not support, see `unsupported_feature`.
    """
    if (reason := _reason_against(heads, variant, activation)) is not None:
        raise UserError(f"model.mixer.backend: triton {reason}")
    from numerate.kernels.relational_triton import attended_symbols_and_relations

    assert heads.relation_proj is not None
    output, attended_relations = attended_symbols_and_relations(heads, activation)
    return output + attended_relations @ heads.relation_proj.mT


def _reason_against(heads: RelationalHeads, variant: Variant, activation: Activation) -> str | None:
    """Why the kernel cannot compute these heads, and what can; None if it can."""
    if (feature := unsupported_feature(heads, variant, activation)) is not None:
        return f"does not support {feature}; use auto or chunks"
    if find_spec("triton") is None:
        return "needs the package triton, which is installed with PyTorch for CUDA; use auto"
    if not heads.queries.is_cuda:
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if is_interpreted else f"needs a CUDA device, not {heads.queries.device.type}; use auto"
    shortage = shared_memory_shortage(heads, max_shared_memory(heads.queries.device))
    return None if shortage is None else f"cannot run: {shortage}; use auto or chunks"
