"""Tiled relational attention with an online softmax: the algorithm of the CUDA kernel, also in plain PyTorch.

Each block of queries loops over the blocks of its visible keys, for all heads at once. Scores are computed per head and
relations once for all heads; the running sums are rescaled whenever the maximum score grows, as in FlashAttention (Dao
et al., 2022, https://arxiv.org/abs/2205.14135), including the heads x relations weighted sums of relations of each
query. Only one tile of pairs is in memory at a time. The backward pass recomputes each tile from the log-sum-exp of the
queries.
"""

import os
from importlib.util import find_spec
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from numerate.errors import UserError
from numerate.kernels.relational import (
    ACTIVATION_FUNCTIONS,
    Activation,
    RelationalHeads,
    RelationalInputs,
    RelationalOutputs,
    Variant,
    sum_over_groups,
)
from numerate.kernels.token_shift import disable_compile

TileBackend = Literal["tiles", "triton"]

TILE_SIZE = 64
"""Number of queries and of keys per tile of the PyTorch implementation."""

TILED_ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "gelu", "silu")
"""Elementwise activations of relations: a softmax of relations would need its own running sum."""


def unsupported_feature(heads: RelationalHeads, variant: Variant, activation: Activation) -> str | None:
    """The feature that tiles do not support, in words; None if all are supported."""
    for feature, is_used in (
        (f"the variant {variant}", variant != "relational"),
        (f"the activation {activation}", activation not in TILED_ACTIVATIONS),
        ("blocked keys", heads.visible is not None and heads.bias is None),
        ("attention biases", heads.bias is not None),
        ("symbols by distance", heads.symbols is None),
        ("dropout of attention weights", bool(heads.dropout) or heads.dropout_mask is not None),
    ):
        if is_used:
            return feature
    return None


def should_use_kernel(heads: RelationalHeads, activation: Activation) -> bool:
    """Whether to use the kernel for what tiles support: if `can_run_kernel`, with enough shared memory, unless
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


def _reason_against(
    heads: RelationalHeads, variant: Variant, activation: Activation, backend: TileBackend
) -> str | None:
    """Why a backend cannot compute these heads, and what can; None if it can."""
    if (feature := unsupported_feature(heads, variant, activation)) is not None:
        return f"{backend} does not support {feature}; use auto or chunks"
    if backend == "triton" and find_spec("triton") is None:
        return (
            "triton needs the package triton, which is installed with PyTorch for CUDA; use auto, or tiles for the "
            "same algorithm in PyTorch"
        )
    if backend == "triton" and not heads.queries.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"triton needs a CUDA device, not {heads.queries.device.type}; use auto"
    limit = max_shared_memory(heads.queries.device) if backend == "triton" and heads.queries.is_cuda else None
    shortage = None if limit is None else shared_memory_shortage(heads, limit)
    return None if shortage is None else f"triton: {shortage}; use auto or chunks"


def tiled_relational_attention(
    heads: RelationalHeads, variant: Variant, activation: Activation, backend: TileBackend
) -> Float[Tensor, "rows heads query head_width"]:
    """`relational.reference_attention` for whole rows, tile by tile.

    Raises `UserError` for what is not supported, see `unsupported_feature`.
    """
    if (reason := _reason_against(heads, variant, activation, backend)) is not None:
        raise UserError(f"model.mixer.backend: {reason}")
    assert heads.symbols is not None
    assert heads.relation_queries is not None
    assert heads.relation_keys is not None
    assert heads.relation_proj is not None
    tensors = (heads.queries, heads.keys, heads.symbols, heads.relation_queries, heads.relation_keys)
    inputs = RelationalInputs(*(x.to(heads.queries.dtype) for x in tensors))
    output, attended_relations = attended_symbols_and_relations(inputs, activation, backend)
    return output + attended_relations @ heads.relation_proj.mT


@disable_compile
def attended_symbols_and_relations(
    inputs: RelationalInputs, activation: Activation, backend: TileBackend = "tiles"
) -> tuple[Tensor, Tensor]:
    """The weighted sums of symbols, rows x heads x time x width, and of relations, rows x heads x time x relations:
    with causal attention, without masked keys or biases. Sums are accumulated in at least float32."""
    inputs = inputs._replace(symbols=inputs.symbols.expand(len(inputs.queries), -1, -1, -1))
    outputs: tuple[Tensor, ...] = _TiledAttention.apply(*inputs, activation, backend)  # type: ignore[no-untyped-call]
    return outputs[0], outputs[1]


class _TiledAttention(Function):
    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        *tensors, activation, backend = args
        inputs = RelationalInputs(*tensors)
        if backend == "tiles":
            return forward(inputs, activation)
        from numerate.kernels import relational_triton

        return relational_triton.forward(inputs, activation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        *tensors, ctx.activation, ctx.backend = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_symbols: Tensor, grad_relations: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        inputs, outputs = RelationalInputs(*ctx.saved_tensors[:5]), RelationalOutputs(*ctx.saved_tensors[5:])
        # The gradient of a softmax: weight x (gradient of the weight - row_dot), row_dot as `delta` in FlashAttention.
        row_dot = (_upcast(grad_symbols) * _upcast(outputs.symbols)).sum(-1)
        row_dot = row_dot + (_upcast(grad_relations) * _upcast(outputs.relations)).sum(-1)
        arguments = (inputs, outputs.logsumexp, row_dot, grad_symbols, grad_relations, ctx.activation)
        if ctx.backend == "tiles":
            return (*backward(*arguments), None, None)
        from numerate.kernels import relational_triton

        return (*relational_triton.backward(*arguments), None, None)


def _upcast(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def forward(inputs: RelationalInputs, activation: Activation) -> RelationalOutputs:
    """The forward pass by tiles, in PyTorch."""
    heads_inputs = _repeat_kv(inputs)
    rows, heads, time, _ = heads_inputs.queries.shape
    scale, relation_scale = heads_inputs.queries.shape[-1] ** -0.5, heads_inputs.relation_queries.shape[-1] ** -0.5
    symbols = torch.empty_like(heads_inputs.queries)
    relations = heads_inputs.queries.new_empty(rows, heads, time, inputs.relation_keys.shape[1])
    logsumexp = heads_inputs.queries.new_empty(rows, heads, time)
    for block_start in range(0, time, TILE_SIZE):
        block = slice(block_start, min(block_start + TILE_SIZE, time))
        num_queries = block.stop - block_start
        row_max = logsumexp.new_full((rows, heads, num_queries), float("-inf"))
        row_sum, symbol_sums = torch.zeros_like(row_max), torch.zeros_like(symbols[:, :, block])
        relation_sums = torch.zeros_like(relations[:, :, block])
        for key_start in range(0, block.stop, TILE_SIZE):
            key_block = slice(key_start, min(key_start + TILE_SIZE, block.stop))
            scores = (heads_inputs.queries[:, :, block] @ heads_inputs.keys[:, :, key_block].mT) * scale
            scores = scores.masked_fill(~_causal_mask(block, key_block, scores), float("-inf"))
            new_max = torch.maximum(row_max, scores.amax(-1))
            weights, rescale = (scores - new_max[..., None]).exp(), (row_max - new_max).exp()
            activated_relations = ACTIVATION_FUNCTIONS[activation](
                (heads_inputs.relation_queries[:, :, block] @ heads_inputs.relation_keys[:, :, key_block].mT)
                * relation_scale
            )
            row_sum = row_sum * rescale + weights.sum(-1)
            symbol_sums = symbol_sums * rescale[..., None] + weights @ heads_inputs.symbols[:, :, key_block]
            relation_sums = relation_sums * rescale[..., None] + torch.einsum(
                "bhqk,blqk->bhql", weights, activated_relations
            )
            row_max = new_max
        symbols[:, :, block] = symbol_sums / row_sum[..., None]
        relations[:, :, block] = relation_sums / row_sum[..., None]
        logsumexp[:, :, block] = row_max + row_sum.log()
    dtype = inputs.queries.dtype
    return RelationalOutputs(symbols.to(dtype), relations.to(dtype), logsumexp)


def backward(
    inputs: RelationalInputs,
    logsumexp: Float[Tensor, "rows heads time"],
    row_dot: Float[Tensor, "rows heads time"],
    grad_symbols: Float[Tensor, "rows heads time width"],
    grad_relations: Float[Tensor, "rows heads time relations"],
    activation: Activation,
) -> RelationalInputs:
    """The gradients of the inputs; `row_dot` is, for each query, the dot product of its attention weights and their
    gradients."""
    heads_inputs, gradients = _repeat_kv(inputs), RelationalInputs(*(torch.zeros_like(x) for x in _repeat_kv(inputs)))
    grad_symbols, grad_relations = _upcast(grad_symbols), _upcast(grad_relations)
    time, scale, relation_scale = (
        heads_inputs.keys.shape[2],
        heads_inputs.keys.shape[-1] ** -0.5,
        heads_inputs.relation_keys.shape[-1] ** -0.5,
    )
    for block_start in range(0, time, TILE_SIZE):
        block = slice(block_start, min(block_start + TILE_SIZE, time))
        for key_start in range(0, block.stop, TILE_SIZE):
            key_block = slice(key_start, min(key_start + TILE_SIZE, block.stop))
            scores = (heads_inputs.queries[:, :, block] @ heads_inputs.keys[:, :, key_block].mT) * scale
            weights = (scores - logsumexp[:, :, block, None]).exp() * _causal_mask(block, key_block, scores)
            relation_scores = (
                heads_inputs.relation_queries[:, :, block] @ heads_inputs.relation_keys[:, :, key_block].mT
            ) * relation_scale
            activated_relations, derivative = _activation_and_derivative(relation_scores, activation)
            block_grad_symbols, block_grad_relations = grad_symbols[:, :, block], grad_relations[:, :, block]
            grad_weights = block_grad_symbols @ heads_inputs.symbols[:, :, key_block].mT
            grad_weights += torch.einsum("bhql,blqk->bhqk", block_grad_relations, activated_relations)
            grad_scores = weights * (grad_weights - row_dot[:, :, block, None]) * scale
            grad_relation_scores = (
                torch.einsum("bhql,bhqk->blqk", block_grad_relations, weights) * derivative * relation_scale
            )
            gradients.queries[:, :, block] += grad_scores @ heads_inputs.keys[:, :, key_block]
            gradients.keys[:, :, key_block] += grad_scores.mT @ heads_inputs.queries[:, :, block]
            gradients.symbols[:, :, key_block] += weights.mT @ block_grad_symbols
            gradients.relation_queries[:, :, block] += (
                grad_relation_scores @ heads_inputs.relation_keys[:, :, key_block]
            )
            gradients.relation_keys[:, :, key_block] += (
                grad_relation_scores.mT @ heads_inputs.relation_queries[:, :, block]
            )
    return RelationalInputs(*(sum_over_groups(gradient, x) for gradient, x in zip(gradients, inputs, strict=True)))


def _repeat_kv(inputs: RelationalInputs) -> RelationalInputs:
    """Repeats keys and symbols for each head; all tensors in at least float32."""
    heads = inputs.queries.shape[1]
    keys, symbols = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (inputs.keys, inputs.symbols))
    return RelationalInputs(*(_upcast(x) for x in inputs._replace(keys=keys, symbols=symbols)))


def _causal_mask(query_block: slice, key_block: slice, like: Tensor) -> Tensor:
    query, key = (torch.arange(block.start, block.stop, device=like.device) for block in (query_block, key_block))
    return key <= query[:, None]


def _activation_and_derivative(scores: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """The activated relations and the derivative of the activation."""
    with torch.enable_grad():
        scores = scores.detach().requires_grad_()
        relations = ACTIVATION_FUNCTIONS[activation](scores)
        (derivative,) = torch.autograd.grad(relations.sum(), scores)
    return relations.detach(), derivative
