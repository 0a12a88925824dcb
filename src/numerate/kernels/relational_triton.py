"""Triton kernels of relational attention with an online softmax, one program per block of a row.

Each block of queries loops over the blocks of its visible keys, as in FlashAttention (Dao et al., 2022,
https://arxiv.org/abs/2205.14135): only one tile of pairs is in memory at a time, and the backward pass recomputes each
tile from the log-sum-exp of the queries. A program holds the attention weights of up to `Tiles.heads` heads for a tile
and loops over the relations, each of which it computes once for all of these heads. The kernel of the gradients of
relations has the roles exchanged: it holds up to `Tiles.heads` relations and loops over the heads.

Every number is written by one program, so that results are deterministic. Products are accumulated in float32; matrix
units receive tiles in the dtype of the inputs, float32 by `gpu.matmul_precision`. `relational_tiles` has the sizes of
tiles; `make test-gpu-readiness` compiles the kernels for GPUs that are not there (docs/gpu.md).

The kernels support causal `relational` attention with elementwise activations of relations, without masked keys,
attention biases, dropout, or symbols by distance; other backends support those (`relational_fast.select_backend`).
Importing this module needs the package `triton`, which is installed with PyTorch for CUDA; with TRITON_INTERPRET=1 the
kernels run on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from numerate.kernels.gpu import contiguous_last_dim, matmul_precision, max_shared_memory
from numerate.kernels.operators import as_operator, has_data
from numerate.kernels.relational import Activation, RelationalHeads
from numerate.kernels.relational_tiles import Tiles, padded_width, select_tiles

MAX_RELATIONS = 16
"""The maximum number of relations whose sums a program of the forward pass holds; others are for further programs."""


@triton.jit
def _load_heads(base, head_stride, time_stride, head, heads, position, time, channel, width):
    """Loads heads (or relations) x positions x channels; 0 outside the tensor."""
    offsets = head[:, None, None] * head_stride + position[None, :, None] * time_stride + channel[None, None, :]
    mask = (head < heads)[:, None, None] & (position < time)[None, :, None] & (channel < width)[None, None, :]
    return tl.load(base + offsets, mask=mask, other=0.0)


@triton.jit
def _load_head(base, time_stride, position, time, channel, width):
    """Loads positions x channels of one head (or relation); 0 outside the tensor."""
    offsets = position[:, None] * time_stride + channel[None, :]
    return tl.load(base + offsets, mask=(position < time)[:, None] & (channel < width)[None, :], other=0.0)


@triton.jit
def _load_numbers(base, head_stride, time_stride, head, heads, position, time):
    """Loads one number per head (or relation) and position."""
    mask = (head < heads)[:, None] & (position < time)[None, :]
    return tl.load(base + head[:, None] * head_stride + position[None, :] * time_stride, mask=mask, other=0.0)


@triton.jit
def _store_heads(base, values, head, heads, position, time, channel, width):
    """Stores heads (or relations) x positions x channels in a contiguous tensor."""
    offsets = (head[:, None, None] * time + position[None, :, None]) * width + channel[None, None, :]
    mask = (head < heads)[:, None, None] & (position < time)[None, :, None] & (channel < width)[None, None, :]
    tl.store(base + offsets, values, mask=mask)


@triton.jit
def _swap(x):
    """The transpose of the last two dimensions of heads x rows x columns."""
    return tl.permute(x, (0, 2, 1))


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
    a_stride_r, a_stride_h, a_stride_t, b_stride_r, b_stride_h, b_stride_t,
    time, heads, group_size, relations, width, relation_width, scale, relation_scale,
    HEADS: tl.constexpr, RELATIONS: tl.constexpr, WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The weighted sums of symbols and of up to `RELATIONS` relations, and the log-sum-exp of the scores."""
    row = tl.program_id(1).to(tl.int64)
    relation_blocks = tl.cdiv(relations, RELATIONS)
    head = tl.program_id(2) // relation_blocks * HEADS + tl.arange(0, HEADS)
    first_relation = tl.program_id(2) % relation_blocks * RELATIONS
    relation_index = first_relation + tl.arange(0, RELATIONS)
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    channel, relation_channel = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    groups, group = heads // group_size, head // group_size
    q = _load_heads(queries + row * q_stride_r, q_stride_h, q_stride_t, head, heads, query, time, channel, width)
    row_max = tl.full([HEADS, QUERIES], float("-inf"), tl.float32)
    row_sum = tl.zeros([HEADS, QUERIES], tl.float32)
    symbol_sums = tl.zeros([HEADS, QUERIES, WIDTH], tl.float32)
    relation_sums = tl.zeros([HEADS, QUERIES, RELATIONS], tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * QUERIES, time), KEYS):
        key = start + tl.arange(0, KEYS)
        k = _load_heads(keys + row * k_stride_r, k_stride_h, k_stride_t, group, groups, key, time, channel, width)
        s = _load_heads(symbols + row * s_stride_r, s_stride_h, s_stride_t, group, groups, key, time, channel, width)
        visible = (key[None, :] <= query[:, None]) & (key < time)[None, :]
        scores = tl.dot(q, _swap(k), input_precision=PRECISION) * scale
        scores = tl.where(visible[None, :, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 2))
        weights = tl.exp(scores - new_max[:, :, None])
        rescale = tl.exp(row_max - new_max)
        row_max = new_max
        row_sum = row_sum * rescale + tl.sum(weights, 2)
        symbol_sums = symbol_sums * rescale[:, :, None] + tl.dot(weights.to(s.dtype), s, input_precision=PRECISION)
        relation_sums = relation_sums * rescale[:, :, None]
        for relation in range(first_relation, tl.minimum(first_relation + RELATIONS, relations)):
            a_base = relation_queries + row * a_stride_r + relation * a_stride_h
            b_base = relation_keys + row * b_stride_r + relation * b_stride_h
            a = _load_head(a_base, a_stride_t, query, time, relation_channel, relation_width)
            b = _load_head(b_base, b_stride_t, key, time, relation_channel, relation_width)
            x = tl.dot(a, tl.permute(b, (1, 0)), input_precision=PRECISION) * relation_scale
            sums = tl.sum(weights * _activation(x, ACTIVATION)[None, :, :], 2)
            relation_sums += tl.where((relation_index == relation)[None, None, :], sums[:, :, None], 0.0)
    if first_relation == 0:
        values = (symbol_sums / row_sum[:, :, None]).to(output.dtype.element_ty)
        _store_heads(output + row * heads * time * width, values, head, heads, query, time, channel, width)
        mask = (head < heads)[:, None] & (query < time)[None, :]
        offsets = head[:, None] * time + query[None, :]
        tl.store(logsumexp + row * heads * time + offsets, row_max + tl.log(row_sum), mask=mask)
    values = (relation_sums / row_sum[:, :, None]).to(relation_output.dtype.element_ty)
    base = relation_output + row * heads * time * relations
    _store_heads(base, values, head, heads, query, time, relation_index, relations)


@triton.jit
def _backward_heads(
    queries, keys, symbols, relation_queries, relation_keys, logsumexp, row_dot, grad_output, grad_relation_output,
    grad_heads, grad_symbols,
    q_stride_r, q_stride_h, q_stride_t, k_stride_r, k_stride_h, k_stride_t, s_stride_r, s_stride_h, s_stride_t,
    a_stride_r, a_stride_h, a_stride_t, b_stride_r, b_stride_h, b_stride_t,
    time, heads, group_size, relations, width, relation_width, scale, relation_scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries; with `OF_KEYS`, of keys and symbols, for each head."""
    row = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    channel, relation_channel = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    groups, group = heads // group_size, head // group_size
    OWN: tl.constexpr = KEYS if OF_KEYS else QUERIES
    block_start = tl.program_id(0) * OWN
    own = block_start + tl.arange(0, OWN)
    # A block of queries loops over the keys up to its own, a block of keys over the queries from its own on.
    begin, end = 0, tl.minimum(block_start + OWN, time)
    if OF_KEYS:
        begin, end = block_start, time
    head_sums = tl.zeros([HEADS, OWN, WIDTH], tl.float32)
    if OF_KEYS:
        symbol_sums = tl.zeros([HEADS, OWN, WIDTH], tl.float32)
    for start in range(begin, end, QUERIES if OF_KEYS else KEYS):
        query, key = own, own
        if OF_KEYS:
            query = start + tl.arange(0, QUERIES)
        else:
            key = start + tl.arange(0, KEYS)
        q = _load_heads(queries + row * q_stride_r, q_stride_h, q_stride_t, head, heads, query, time, channel, width)
        k = _load_heads(keys + row * k_stride_r, k_stride_h, k_stride_t, group, groups, key, time, channel, width)
        s = _load_heads(symbols + row * s_stride_r, s_stride_h, s_stride_t, group, groups, key, time, channel, width)
        g_base = grad_output + row * heads * time * width
        g = _load_heads(g_base, time * width, width, head, heads, query, time, channel, width)
        lse = _load_numbers(logsumexp + row * heads * time, time, 1, head, heads, query, time)
        dots = _load_numbers(row_dot + row * heads * time, time, 1, head, heads, query, time)
        visible = (key[None, :] <= query[:, None]) & (query < time)[:, None]
        scores = tl.dot(q, _swap(k), input_precision=PRECISION) * scale - lse[:, :, None]
        weights = tl.exp(tl.where(visible[None, :, :], scores, float("-inf")))
        grad_weights = tl.dot(g, _swap(s), input_precision=PRECISION) - dots[:, :, None]
        for relation in range(0, relations):
            a_base = relation_queries + row * a_stride_r + relation * a_stride_h
            b_base = relation_keys + row * b_stride_r + relation * b_stride_h
            f_base = grad_relation_output + row * heads * time * relations + relation
            a = _load_head(a_base, a_stride_t, query, time, relation_channel, relation_width)
            b = _load_head(b_base, b_stride_t, key, time, relation_channel, relation_width)
            f = _load_numbers(f_base, time * relations, relations, head, heads, query, time).to(tl.float32)
            x = tl.dot(a, tl.permute(b, (1, 0)), input_precision=PRECISION) * relation_scale
            grad_weights += f[:, :, None] * _activation(x, ACTIVATION)[None, :, :]
        grad_scores = (weights * grad_weights * scale).to(q.dtype)
        if OF_KEYS:
            head_sums += tl.dot(_swap(grad_scores), q, input_precision=PRECISION)
            symbol_sums += tl.dot(_swap(weights.to(g.dtype)), g, input_precision=PRECISION)
        else:
            head_sums += tl.dot(grad_scores, k, input_precision=PRECISION)
    offset = row * heads * time * width
    _store_heads(grad_heads + offset, head_sums, head, heads, own, time, channel, width)
    if OF_KEYS:
        _store_heads(grad_symbols + offset, symbol_sums, head, heads, own, time, channel, width)


@triton.jit
def _backward_relations(
    queries, keys, relation_queries, relation_keys, logsumexp, grad_relation_output, grad_relations,
    q_stride_r, q_stride_h, q_stride_t, k_stride_r, k_stride_h, k_stride_t,
    a_stride_r, a_stride_h, a_stride_t, b_stride_r, b_stride_h, b_stride_t,
    time, heads, group_size, relations, width, relation_width, scale, relation_scale,
    RELATIONS: tl.constexpr, WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of relation queries; with `OF_KEYS`, of relation keys."""
    row = tl.program_id(1).to(tl.int64)
    relation = tl.program_id(2) * RELATIONS + tl.arange(0, RELATIONS)
    channel, relation_channel = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    OWN: tl.constexpr = KEYS if OF_KEYS else QUERIES
    block_start = tl.program_id(0) * OWN
    own = block_start + tl.arange(0, OWN)
    begin, end = 0, tl.minimum(block_start + OWN, time)
    if OF_KEYS:
        begin, end = block_start, time
    relation_sums = tl.zeros([RELATIONS, OWN, RELATION_WIDTH], tl.float32)
    for start in range(begin, end, QUERIES if OF_KEYS else KEYS):
        query, key = own, own
        if OF_KEYS:
            query = start + tl.arange(0, QUERIES)
        else:
            key = start + tl.arange(0, KEYS)
        visible = (key[None, :] <= query[:, None]) & (query < time)[:, None]
        grad_values = tl.zeros([RELATIONS, QUERIES, KEYS], tl.float32)
        for head in range(0, heads):
            q_base = queries + row * q_stride_r + head * q_stride_h
            k_base = keys + row * k_stride_r + head // group_size * k_stride_h
            f_base = grad_relation_output + (row * heads + head) * time * relations
            q = _load_head(q_base, q_stride_t, query, time, channel, width)
            k = _load_head(k_base, k_stride_t, key, time, channel, width)
            f = _load_numbers(f_base, 1, relations, relation, relations, query, time).to(tl.float32)
            lse = tl.load(logsumexp + (row * heads + head) * time + query, mask=query < time, other=0.0)
            scores = tl.dot(q, tl.permute(k, (1, 0)), input_precision=PRECISION) * scale - lse[:, None]
            weights = tl.exp(tl.where(visible, scores, float("-inf")))
            grad_values += f[:, :, None] * weights[None, :, :]
        a_base, b_base = relation_queries + row * a_stride_r, relation_keys + row * b_stride_r
        a = _load_heads(
            a_base, a_stride_h, a_stride_t, relation, relations, query, time, relation_channel, relation_width
        )
        b = _load_heads(
            b_base, b_stride_h, b_stride_t, relation, relations, key, time, relation_channel, relation_width
        )
        x = tl.dot(a, _swap(b), input_precision=PRECISION) * relation_scale
        derivative = _activation_derivative(x, _activation(x, ACTIVATION), ACTIVATION)
        grad_x = (grad_values * derivative * relation_scale).to(a.dtype)
        if OF_KEYS:
            relation_sums += tl.dot(_swap(grad_x), a, input_precision=PRECISION)
        else:
            relation_sums += tl.dot(grad_x, b, input_precision=PRECISION)
    base = grad_relations + row * relations * time * relation_width
    _store_heads(base, relation_sums, relation, relations, own, time, relation_channel, relation_width)


class RelationalInputs(NamedTuple):
    """The inputs of the kernels; consecutive heads share the keys and symbols of a group."""

    queries: Float[Tensor, "rows heads time width"]
    keys: Float[Tensor, "rows groups time width"]
    symbols: Float[Tensor, "rows groups time width"]
    relation_queries: Float[Tensor, "rows relations time relation_width"]
    relation_keys: Float[Tensor, "rows relations time relation_width"]


def attended_symbols_and_relations(heads: RelationalHeads, activation: Activation) -> tuple[Tensor, Tensor]:
    """The weighted sums of symbols, rows x heads x time x width, and of relations, rows x heads x time x relations."""
    assert heads.symbols is not None
    symbols = heads.symbols.expand(len(heads.queries), -1, -1, -1)
    tensors = (heads.queries, heads.keys, symbols, heads.relation_queries, heads.relation_keys)
    inputs = (x.to(heads.queries.dtype) for x in tensors if x is not None)
    output, relations, _ = _apply_relational_attention(*inputs, activation)
    return output, relations


class _RelationalAttention(Function):
    """The weighted sums, and the log-sum-exp of each query's scores for the backward pass."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        inputs = RelationalInputs(*map(contiguous_last_dim, args[:-1]))
        rows, heads, time, _ = inputs.queries.shape
        relations = inputs.relation_keys.shape[1]
        output = torch.empty_like(inputs.queries, memory_format=torch.contiguous_format)
        attended_relations = output.new_empty(rows, heads, time, relations)
        logsumexp = torch.empty(rows, heads, time, dtype=torch.float32, device=output.device)
        tiles, constants = _tiles(inputs), _constants(inputs, args[-1])
        head_block = _block_size(heads, tiles)
        relation_block = min(MAX_RELATIONS, 1 << (relations - 1).bit_length())
        num_blocks = triton.cdiv(heads, head_block) * triton.cdiv(relations, relation_block)
        if has_data(output):
            with torch.cuda.device_of(output):  # as autograd does for the backward pass
                _forward[(triton.cdiv(time, tiles.queries), rows, num_blocks)](
                    *inputs, output, attended_relations, logsumexp, *_strides(*inputs), *_scalars(inputs),
                    HEADS=head_block, RELATIONS=relation_block, **constants, num_warps=head_block,
                )  # fmt: skip
        return output, attended_relations, logsumexp

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        *tensors, ctx.activation = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_relation_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, output, relation_output, logsumexp = ctx.saved_tensors
        inputs = RelationalInputs(*map(contiguous_last_dim, tensors))
        q, k, _, a, b = inputs
        rows, heads, time = q.shape[:3]
        relations = b.shape[1]
        # The gradient of a softmax: weight x (gradient of the weight - row_dot), row_dot as `delta` in FlashAttention.
        row_dot = (grad_output.float() * output.float()).sum(-1)
        row_dot = (row_dot + (grad_relation_output.float() * relation_output.float()).sum(-1)).contiguous()
        grad_output, grad_relation_output = grad_output.contiguous(), grad_relation_output.contiguous()
        grad_q, grad_k, grad_s = (torch.empty_like(output, dtype=torch.float32) for _ in range(3))
        grad_a, grad_b = (torch.empty(b.shape, dtype=torch.float32, device=b.device) for _ in range(2))
        tiles, constants = _tiles(inputs), _constants(inputs, ctx.activation)
        head_block, relation_block = _block_size(heads, tiles), _block_size(relations, tiles)
        for of_keys, own, head_target, relation_target in (
            (False, tiles.queries, grad_q, grad_a),
            (True, tiles.keys, grad_k, grad_b),
        ):
            if not has_data(output):
                break
            _backward_heads[(triton.cdiv(time, own), rows, triton.cdiv(heads, head_block))](
                *inputs, logsumexp, row_dot, grad_output, grad_relation_output, head_target, grad_s,
                *_strides(*inputs), *_scalars(inputs),
                HEADS=head_block, **constants, OF_KEYS=of_keys, num_warps=head_block,
            )  # fmt: skip
            _backward_relations[(triton.cdiv(time, own), rows, triton.cdiv(relations, relation_block))](
                q, k, a, b, logsumexp, grad_relation_output, relation_target, *_strides(q, k, a, b), *_scalars(inputs),
                RELATIONS=relation_block, **constants, OF_KEYS=of_keys, num_warps=relation_block,
            )  # fmt: skip
        gradients = (grad_q, grad_k, grad_s, grad_a, grad_b)
        return *(_sum_groups(*pair) for pair in zip(gradients, inputs, strict=True)), None


_apply_relational_attention = as_operator(_RelationalAttention)


def _sum_groups(
    gradient: Float[Tensor, "rows heads time width"], like: Float[Tensor, "rows groups time width"]
) -> Float[Tensor, "rows groups time width"]:
    """Sums the gradients of the heads of each group."""
    if gradient.shape[1] != like.shape[1]:
        gradient = torch.unflatten(gradient, 1, (like.shape[1], -1)).sum(2)
    return gradient.to(like.dtype)


def _tiles(inputs: RelationalInputs) -> Tiles:
    q, relation_width = inputs.queries, inputs.relation_keys.shape[-1]
    limit, precision = max_shared_memory(q.device), matmul_precision(q.dtype)
    tiles = select_tiles(q.dtype, q.shape[-1], relation_width, limit, precision)
    assert tiles is not None, "relational_kernel.tiles_problem finds this first"
    if min(q.shape[1], inputs.relation_keys.shape[1]) < tiles.heads:  # fewer warps hold the tile of a relation
        tiles = tiles._replace(queries=16, keys=16)
    return tiles


def _block_size(heads: int, tiles: Tiles) -> int:
    """How many heads (or relations) a program holds; each has a warp."""
    return min(tiles.heads, 1 << (heads - 1).bit_length())


def _constants(inputs: RelationalInputs, activation: Activation) -> dict[str, Any]:
    """The constants of all kernels, known when they are compiled, with widths as in `relational_tiles.padded_width`."""
    tiles, q = _tiles(inputs), inputs.queries
    return {
        "WIDTH": padded_width(q.shape[-1]),
        "RELATION_WIDTH": padded_width(inputs.relation_keys.shape[-1]),
        "QUERIES": tiles.queries,
        "KEYS": tiles.keys,
        "ACTIVATION": activation,
        "PRECISION": matmul_precision(q.dtype),
        "num_stages": 2,
    }


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(size for x in tensors for size in x.stride()[:3])


def _scalars(inputs: RelationalInputs) -> tuple[float, ...]:
    _, heads, time, width = inputs.queries.shape
    _, relations, _, relation_width = inputs.relation_keys.shape
    group_size = heads // inputs.keys.shape[1]
    return time, heads, group_size, relations, width, relation_width, width**-0.5, relation_width**-0.5
