"""Triton kernels of relational attention with an online softmax, one program per block of a row.

Each block of queries loops over the blocks of its visible keys, for several heads at once. Scores are computed per head
and relations once for all heads; the running sums are rescaled whenever the maximum score grows, as in FlashAttention
(Dao et al., 2022, https://arxiv.org/abs/2205.14135), including the heads x relations weighted sums of relations of each
query. Only one tile of pairs is in memory at a time. The backward pass recomputes each tile from the log-sum-exp of the
queries.

A program handles a block of queries (in the second kernel of the backward pass, of keys) of one row, for up to
`MAX_HEADS` heads and `MAX_RELATIONS` relations; if there are more of either, other programs compute them, and recompute
scores and relations. Besides the weighted sums of symbols it keeps heads x relations numbers for each query. Gradients
to which several programs contribute are written separately and then added, so that results are deterministic. Products
are accumulated in float32; matrix units receive tiles in the dtype of the inputs (float32 without rounding to TF32).

The kernels support causal `relational` attention with elementwise activations of relations, without masked keys,
attention biases, dropout, or symbols by distance; other backends support those (`relational_fast.select_backend`).
Importing this module needs the package `triton`, which is installed with PyTorch for CUDA; with TRITON_INTERPRET=1 the
kernels run on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM102  (one condition is known to the compiler, the other is not)
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from numerate.kernels.relational import Activation, RelationalHeads
from numerate.kernels.token_shift import disable_compile

MAX_HEADS, MAX_RELATIONS, TILE_SIZE = 4, 4, 32
"""The maximum number of heads and of relations per program, and the number of queries and of keys per tile. 4 x 4 x 32
x 32 products of weights and relations are 128 for each of 128 threads. Not tuned: no GPU was available.
`relational_kernel.SHARED_MEMORY_BYTES` was measured for these values."""


@triton.jit
def _load_tile(base, head_stride, time_stride, head, heads, position, time, channel, width):
    """Loads heads (or relations) x positions x channels; 0 outside the tensor."""
    offsets = head[:, None, None] * head_stride + position[None, :, None] * time_stride + channel[None, None, :]
    mask = (head < heads)[:, None, None] & (position < time)[None, :, None] & (channel < width)[None, None, :]
    return tl.load(base + offsets, mask=mask, other=0.0)


@triton.jit
def _store_tile(base, values, head, heads, position, time, channel, width):
    """Stores heads (or relations) x positions x channels in a contiguous tensor."""
    offsets = (head[:, None, None] * time + position[None, :, None]) * width + channel[None, None, :]
    mask = (head < heads)[:, None, None] & (position < time)[None, :, None] & (channel < width)[None, None, :]
    tl.store(base + offsets, values, mask=mask)


@triton.jit
def _load_line(base, head, heads, position, time):
    """Loads one number per head and position from a contiguous tensor."""
    mask = (head < heads)[:, None] & (position < time)[None, :]
    return tl.load(base + head[:, None] * time + position[None, :], mask=mask, other=0.0)


@triton.jit
def _matmul_transposed(a, b):
    """a @ b.mT for each head or relation."""
    return tl.dot(a, tl.permute(b, (0, 2, 1)), input_precision="ieee")


@triton.jit
def _activation(x, ACTIVATION: tl.constexpr):
    y = x
    if ACTIVATION == "relu":
        y = tl.maximum(x, 0.0)
    if ACTIVATION == "sigmoid":
        y = 1 / (1 + tl.exp(-x))
    if ACTIVATION == "tanh":
        y = 2 / (1 + tl.exp(-2 * x)) - 1
    if ACTIVATION == "silu":
        y = x / (1 + tl.exp(-x))
    if ACTIVATION == "gelu":  # x (1 + tanh u) / 2 is x sigmoid(2 u)
        y = x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    return y


@triton.jit
def _activation_derivative(x, y, ACTIVATION: tl.constexpr):
    """The derivative of the activation at x, where its value is y."""
    slope = x * 0 + 1
    if ACTIVATION == "relu":
        slope = tl.where(x > 0, 1.0, 0.0)
    if ACTIVATION == "sigmoid":
        slope = y * (1 - y)
    if ACTIVATION == "tanh":
        slope = 1 - y * y
    if ACTIVATION == "silu":
        share = 1 / (1 + tl.exp(-x))
        slope = share + y * (1 - share)
    if ACTIVATION == "gelu":
        share = 1 / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
        slope = share + y * (1 - share) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    return slope


@triton.jit
def _forward(
    queries, keys, symbols, relation_queries, relation_keys, output, relation_output, logsumexp,
    q_stride_r, q_stride_h, q_stride_t, k_stride_r, k_stride_h, k_stride_t, s_stride_r, s_stride_h, s_stride_t,
    rq_stride_r, rq_stride_h, rq_stride_t, rk_stride_r, rk_stride_h, rk_stride_t,
    time, heads, relations, width, relation_width, scale, relation_scale,
    GROUP: tl.constexpr, HEADS: tl.constexpr, RELATIONS: tl.constexpr,
    WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    num_relation_splits = tl.cdiv(relations, RELATIONS)
    head = tl.program_id(2) // num_relation_splits * HEADS + tl.arange(0, HEADS)
    relation = tl.program_id(2) % num_relation_splits * RELATIONS + tl.arange(0, RELATIONS)
    query = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channel, relation_channel = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    q = _load_tile(queries + row * q_stride_r, q_stride_h, q_stride_t, head, heads, query, time, channel, width)
    a = _load_tile(
        relation_queries + row * rq_stride_r, rq_stride_h, rq_stride_t,
        relation, relations, query, time, relation_channel, relation_width,
    )  # fmt: skip
    row_max = tl.full([HEADS, TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([HEADS, TILE], tl.float32)
    symbol_sums = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    relation_sums = tl.zeros([HEADS, RELATIONS, TILE], tl.float32)
    num_groups = heads // GROUP
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * TILE, time), TILE):
        key = start + tl.arange(0, TILE)
        k = _load_tile(
            keys + row * k_stride_r, k_stride_h, k_stride_t, head // GROUP, num_groups, key, time, channel, width
        )
        s = _load_tile(
            symbols + row * s_stride_r, s_stride_h, s_stride_t, head // GROUP, num_groups, key, time, channel, width
        )
        b = _load_tile(
            relation_keys + row * rk_stride_r, rk_stride_h, rk_stride_t,
            relation, relations, key, time, relation_channel, relation_width,
        )  # fmt: skip
        visible = (key[None, :] <= query[:, None]) & (key < time)[None, :]
        scores = tl.where(visible[None, :, :], _matmul_transposed(q, k) * scale, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 2))
        weights = tl.exp(scores - new_max[:, :, None])
        rescale = tl.exp(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 2)
        symbol_sums = symbol_sums * rescale[:, :, None] + tl.dot(weights.to(s.dtype), s, input_precision="ieee")
        r = _activation(_matmul_transposed(a, b) * relation_scale, ACTIVATION)
        relation_sums = relation_sums * rescale[:, None, :] + tl.sum(weights[:, None, :, :] * r[None, :, :, :], 3)
        row_max = new_max
    if tl.program_id(2) % num_relation_splits == 0:
        _store_tile(
            output + row * heads * time * width, (symbol_sums / row_sum[:, :, None]).to(output.dtype.element_ty),
            head, heads, query, time, channel, width,
        )  # fmt: skip
        mask = (head < heads)[:, None] & (query < time)[None, :]
        offsets = logsumexp + row * heads * time + head[:, None] * time + query[None, :]
        tl.store(offsets, row_max + tl.log(row_sum), mask=mask)
    relation_values = (relation_sums / row_sum[:, None, :]).to(relation_output.dtype.element_ty)
    offsets = ((row * heads + head)[:, None, None] * time + query[None, None, :]) * relations + relation[None, :, None]
    mask = (head < heads)[:, None, None] & (relation < relations)[None, :, None] & (query < time)[None, None, :]
    tl.store(relation_output + offsets, relation_values, mask=mask)


@triton.jit
def _backward(
    queries, keys, symbols, relation_queries, relation_keys, logsumexp, row_dot,
    grad_symbol_output, grad_relation_output, grad_head_ptr, grad_symbols_ptr, grad_relation_ptr,
    q_stride_r, q_stride_h, q_stride_t, k_stride_r, k_stride_h, k_stride_t, s_stride_r, s_stride_h, s_stride_t,
    rq_stride_r, rq_stride_h, rq_stride_t, rk_stride_r, rk_stride_h, rk_stride_t,
    time, heads, relations, width, relation_width, scale, relation_scale, rows,
    GROUP: tl.constexpr, HEADS: tl.constexpr, RELATIONS: tl.constexpr,
    WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
    OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries and relation queries; with `OF_KEYS`, of keys, symbols and relation keys."""
    row = tl.program_id(1).to(tl.int64)
    num_relation_splits = tl.cdiv(relations, RELATIONS)
    head_block, relation_block = tl.program_id(2) // num_relation_splits, tl.program_id(2) % num_relation_splits
    head, relation = head_block * HEADS + tl.arange(0, HEADS), relation_block * RELATIONS + tl.arange(0, RELATIONS)
    block_start = tl.program_id(0) * TILE
    channel, relation_channel = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    grad_heads = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    grad_symbols = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    grad_relations = tl.zeros([RELATIONS, TILE, RELATION_WIDTH], tl.float32)
    num_groups = heads // GROUP
    # A query block loops over key blocks up to its own, a key block over query blocks from its own on.
    first_start, end = 0, tl.minimum(block_start + TILE, time)
    if OF_KEYS:
        first_start, end = block_start, time
    for start in range(first_start, end, TILE):
        query = (start if OF_KEYS else block_start) + tl.arange(0, TILE)
        key = (block_start if OF_KEYS else start) + tl.arange(0, TILE)
        q = _load_tile(queries + row * q_stride_r, q_stride_h, q_stride_t, head, heads, query, time, channel, width)
        k = _load_tile(
            keys + row * k_stride_r, k_stride_h, k_stride_t, head // GROUP, num_groups, key, time, channel, width
        )
        s = _load_tile(
            symbols + row * s_stride_r, s_stride_h, s_stride_t, head // GROUP, num_groups, key, time, channel, width
        )
        a = _load_tile(
            relation_queries + row * rq_stride_r, rq_stride_h, rq_stride_t,
            relation, relations, query, time, relation_channel, relation_width,
        )  # fmt: skip
        b = _load_tile(
            relation_keys + row * rk_stride_r, rk_stride_h, rk_stride_t,
            relation, relations, key, time, relation_channel, relation_width,
        )  # fmt: skip
        g_base = grad_symbol_output + row * heads * time * width
        g = _load_tile(g_base, time * width, width, head, heads, query, time, channel, width)
        offsets = ((row * heads + head)[:, None, None] * time + query[None, None, :]) * relations + relation[
            None, :, None
        ]
        mask = (head < heads)[:, None, None] & (relation < relations)[None, :, None] & (query < time)[None, None, :]
        f = tl.load(grad_relation_output + offsets, mask=mask, other=0.0).to(tl.float32)
        visible = (key[None, :] <= query[:, None]) & (query < time)[:, None]
        row_logsumexp = _load_line(logsumexp + row * heads * time, head, heads, query, time)
        scores = tl.where(
            visible[None, :, :], _matmul_transposed(q, k) * scale - row_logsumexp[:, :, None], float("-inf")
        )
        weights = tl.exp(scores)
        x = _matmul_transposed(a, b) * relation_scale
        r = _activation(x, ACTIVATION)
        grad_weights = tl.sum(f[:, :, :, None] * r[None, :, :, :], 1)
        # Only the programs of the first block of relations add the terms of symbols and of row_dot.
        row_dots = _load_line(row_dot + row * heads * time, head, heads, query, time)
        grad_weights += tl.where(relation_block == 0, 1.0, 0.0) * (_matmul_transposed(g, s) - row_dots[:, :, None])
        grad_scores = (weights * grad_weights * scale).to(q.dtype)
        grad_relation_scores = tl.sum(f[:, :, :, None] * weights[:, None, :, :], 0)
        grad_relation_scores = (grad_relation_scores * _activation_derivative(x, r, ACTIVATION) * relation_scale).to(
            a.dtype
        )
        if OF_KEYS:
            grad_heads += tl.dot(tl.permute(grad_scores, (0, 2, 1)), q, input_precision="ieee")
            grad_symbols += tl.dot(tl.permute(weights.to(g.dtype), (0, 2, 1)), g, input_precision="ieee")
            grad_relations += tl.dot(tl.permute(grad_relation_scores, (0, 2, 1)), a, input_precision="ieee")
        else:
            grad_heads += tl.dot(grad_scores, k, input_precision="ieee")
            grad_relations += tl.dot(grad_relation_scores, b, input_precision="ieee")
    time_index = block_start + tl.arange(0, TILE)
    head_base = grad_head_ptr + (relation_block * rows + row) * heads * time * width
    _store_tile(head_base, grad_heads, head, heads, time_index, time, channel, width)
    if OF_KEYS:
        if relation_block == 0:
            symbol_base = grad_symbols_ptr + row * heads * time * width
            _store_tile(symbol_base, grad_symbols, head, heads, time_index, time, channel, width)
    relation_base = grad_relation_ptr + (head_block * rows + row) * relations * time * relation_width
    _store_tile(relation_base, grad_relations, relation, relations, time_index, time, relation_channel, relation_width)


class RelationalInputs(NamedTuple):
    """The inputs of the kernels; consecutive heads share the keys and symbols of a group."""

    queries: Float[Tensor, "rows heads time width"]
    keys: Float[Tensor, "rows groups time width"]
    symbols: Float[Tensor, "rows groups time width"]
    relation_queries: Float[Tensor, "rows relations time relation_width"]
    relation_keys: Float[Tensor, "rows relations time relation_width"]


@disable_compile
def attended_symbols_and_relations(heads: RelationalHeads, activation: Activation) -> tuple[Tensor, Tensor]:
    """The weighted sums of symbols, rows x heads x time x width, and of relations, rows x heads x time x relations."""
    assert heads.symbols is not None
    symbols = heads.symbols.expand(len(heads.queries), -1, -1, -1)
    tensors = (heads.queries, heads.keys, symbols, heads.relation_queries, heads.relation_keys)
    inputs = (x.to(heads.queries.dtype) for x in tensors if x is not None)
    output, relations, _ = _RelationalAttention.apply(*inputs, activation)
    return output, relations


class _RelationalAttention(Function):
    """The weighted sums, and the log-sum-exp of each query's scores for the backward pass."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        inputs, activation = RelationalInputs(*map(_contiguous_last_dim, args[:-1])), args[-1]
        rows, heads, time, _ = inputs.queries.shape
        output = torch.empty_like(inputs.queries, memory_format=torch.contiguous_format)
        attended_relations = output.new_empty(rows, heads, time, inputs.relation_keys.shape[1])
        logsumexp = torch.empty(rows, heads, time, dtype=torch.float32, device=output.device)
        sizes = _constexpr_sizes(inputs, activation)
        _forward[_launch_grid(inputs, sizes)](
            *inputs, output, attended_relations, logsumexp, *_strides(inputs), *_scalar_arguments(inputs), **sizes
        )
        return output, attended_relations, logsumexp

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        *tensors, ctx.activation = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_symbols: Tensor, grad_relations: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, symbol_output, relation_output, logsumexp = ctx.saved_tensors
        inputs = RelationalInputs(*map(_contiguous_last_dim, tensors))
        # The gradient of a softmax: weight x (gradient of the weight - row_dot), row_dot as `delta` in FlashAttention.
        row_dot = (grad_symbols.float() * symbol_output.float()).sum(-1)
        row_dot = row_dot + (grad_relations.float() * relation_output.float()).sum(-1)
        rows, time = inputs.queries.shape[0], inputs.queries.shape[2]
        sizes = _constexpr_sizes(inputs, ctx.activation)
        grid = _launch_grid(inputs, sizes)
        num_relation_splits = triton.cdiv(inputs.relation_keys.shape[1], sizes["RELATIONS"])

        def empty_gradients(copies: int, like: Tensor) -> Tensor:
            shape = (copies, rows, like.shape[1], time, like.shape[3])
            return torch.empty(shape, dtype=torch.float32, device=logsumexp.device)

        grad_queries, grad_keys = (empty_gradients(num_relation_splits, inputs.queries) for _ in range(2))
        grad_symbol_inputs = empty_gradients(1, inputs.queries)
        grad_relation_queries, grad_relation_keys = (
            empty_gradients(grid[2] // num_relation_splits, inputs.relation_keys) for _ in range(2)
        )
        saved = (logsumexp, row_dot.contiguous(), grad_symbols.contiguous(), grad_relations.contiguous())
        for for_keys, targets in (
            (False, (grad_queries, grad_symbol_inputs, grad_relation_queries)),
            (True, (grad_keys, grad_symbol_inputs, grad_relation_keys)),
        ):
            numbers = (*_strides(inputs), *_scalar_arguments(inputs), rows)
            _backward[grid](*inputs, *saved, *targets, *numbers, **sizes, OF_KEYS=for_keys)
        gradients = (grad_queries, grad_keys, grad_symbol_inputs, grad_relation_queries, grad_relation_keys)
        return *(_sum_copies(*pair) for pair in zip(gradients, inputs, strict=True)), None


def _sum_copies(
    gradient: Float[Tensor, "copies rows heads time width"], like: Float[Tensor, "rows groups time width"]
) -> Float[Tensor, "rows groups time width"]:
    """Sums what several programs wrote, and the gradients of the heads of each group."""
    total = gradient[0] if len(gradient) == 1 else gradient.sum(0)
    if total.shape[1] != like.shape[1]:
        total = torch.unflatten(total, 1, (like.shape[1], -1)).sum(2)
    return total.to(like.dtype)


def _contiguous_last_dim(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _constexpr_sizes(inputs: RelationalInputs, activation: Activation) -> dict[str, Any]:
    """The compile-time constants of the kernels: powers of two, at least 16 for dimensions of matrix products."""
    heads, relations = inputs.queries.shape[1], inputs.relation_keys.shape[1]
    return {
        "GROUP": heads // inputs.keys.shape[1],
        "HEADS": min(MAX_HEADS, triton.next_power_of_2(heads)),
        "RELATIONS": min(MAX_RELATIONS, triton.next_power_of_2(relations)),
        "WIDTH": max(16, triton.next_power_of_2(inputs.queries.shape[-1])),
        "RELATION_WIDTH": max(16, triton.next_power_of_2(inputs.relation_keys.shape[-1])),
        "TILE": TILE_SIZE,
        "ACTIVATION": activation,
    }


def _launch_grid(inputs: RelationalInputs, sizes: dict[str, Any]) -> tuple[int, int, int]:
    """Number of blocks per row, rows, and blocks of heads x blocks of relations."""
    rows, heads, time, _ = inputs.queries.shape
    num_blocks = triton.cdiv(heads, sizes["HEADS"]) * triton.cdiv(inputs.relation_keys.shape[1], sizes["RELATIONS"])
    return triton.cdiv(time, TILE_SIZE), rows, num_blocks


def _strides(inputs: RelationalInputs) -> tuple[int, ...]:
    return tuple(size for x in inputs for size in x.stride()[:3])


def _scalar_arguments(inputs: RelationalInputs) -> tuple[float, ...]:
    _, heads, time, width = inputs.queries.shape
    _, relations, _, relation_width = inputs.relation_keys.shape
    return time, heads, relations, width, relation_width, width**-0.5, relation_width**-0.5
