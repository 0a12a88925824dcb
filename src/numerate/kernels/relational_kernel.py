"""Where relational attention runs by its Triton kernel (`relational_triton`)."""

import os
import warnings
from functools import lru_cache

from jaxtyping import Float
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.gpu import has_triton, is_before_ampere, matmul_precision, max_shared_memory
from numerate.kernels.relational import Activation, RelationalHeads, Variant
from numerate.kernels.relational_tiles import select_tiles

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
    """Whether to use the kernel for what it supports: if `can_run_kernel`, with tiles that fit the device, unless
    relations have no activation and the total width of values is at most 128. Warns once where no tiles fit."""
    assert heads.relation_keys is not None
    _, relations, _, relation_width = heads.relation_keys.shape
    is_narrow = activation == "identity" and heads.queries.shape[-1] + relations * relation_width <= 128
    if is_narrow or not can_run_kernel(heads):
        return False
    if (problem := tiles_problem(heads)) is not None:
        _warn_no_tiles(problem)
    return problem is None


@lru_cache
def _warn_no_tiles(problem: str) -> None:
    warnings.warn(f"relational attention runs in torch, not by its Triton kernel: {problem}", stacklevel=5)


def tiles_problem(heads: RelationalHeads) -> str | None:
    """Why the kernel does not run for these widths on this device; None if it does."""
    assert heads.relation_keys is not None
    x, relation_width = heads.queries, heads.relation_keys.shape[-1]
    if is_before_ampere(x.device):
        return "this device has a compute capability below 8.0"
    limit, precision = max_shared_memory(x.device), matmul_precision(x.dtype)
    if select_tiles(x.dtype, x.shape[-1], relation_width, limit, precision) is not None:
        return None
    advice = " (training.tf32=true or training.precision=bf16 need less)" if precision == "tf32x3" else ""
    return (
        f"head width {x.shape[-1]} and relation width {relation_width} in {str(x.dtype).removeprefix('torch.')} do not "
        f"fit the registers, or the {limit:,} bytes of shared memory, of this device{advice}"
    )


def can_run_kernel(heads: RelationalHeads) -> bool:
    """Whether the kernel can run: on a CUDA device, with Triton."""
    return heads.queries.is_cuda and has_triton()


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
    if not has_triton():
        return "needs the package triton, which is installed with PyTorch for CUDA, and a C compiler; use auto"
    if not heads.queries.is_cuda:
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if is_interpreted else f"needs a CUDA device, not {heads.queries.device.type}; use auto"
    problem = tiles_problem(heads)
    return None if problem is None else f"cannot run: {problem}; use auto or chunks"
