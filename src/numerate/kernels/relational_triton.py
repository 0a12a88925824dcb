"""Relational attention as kernels for CUDA, by Triton: `relational_tiles` with a program for each block of a row.

A program reads a block of queries (in the second kernel of the backward, of keys) of one row, for up to `MAX_HEADS`
heads and `MAX_RELATIONS` relations; where there are more of either, further programs make the others, and make scores
and relations again. It keeps heads x relations numbers of each query beside the symbols attended to. Gradients that
several programs have a part in are written apart and then added up, so that they are the same bits every time. Products
are summed in float32; tiles go into matrix units in the type that is read (float32 without rounding to TF32).

Of the definition this is `relational` alone, with an activation of relations one by one, causal, without masked keys,
biases of scores, dropout, or symbols by distance: those take the other forms (`relational_fast.select_backend`).
Importing this module needs the package `triton`, which comes with torch for CUDA; with TRITON_INTERPRET=1 the kernels
run on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM102  (one condition is known to the compiler, the other is not)
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from numerate.kernels.relational import Activation, RelationalInputs, RelationalOutputs, sum_over_groups

MAX_HEADS, MAX_RELATIONS, TILE_SIZE = 4, 4, 32
"""Of one program, at most: heads, relations; and its queries and keys of a tile. 4 x 4 x 32 x 32 products of weights
and relations are 128 for each of 128 threads. Not tuned: no device was at hand.
`relational_tiles.SHARED_MEMORY_BYTES` was measured for them."""


@triton.jit
def _load_tile(base, part_stride, place_stride, part, parts, place, places, inner, width):
    """Numbers of some parts (heads or relations) at some places: parts x places x width, 0 if there are none."""
    at = part[:, None, None] * part_stride + place[None, :, None] * place_stride + inner[None, None, :]
    there = (part < parts)[:, None, None] & (place < places)[None, :, None] & (inner < width)[None, None, :]
    return tl.load(base + at, mask=there, other=0.0)


@triton.jit
def _store_tile(base, found, part, parts, place, places, inner, width):
    """Writes parts x places x width numbers where they stand without gaps."""
    at = (part[:, None, None] * places + place[None, :, None]) * width + inner[None, None, :]
    there = (part < parts)[:, None, None] & (place < places)[None, :, None] & (inner < width)[None, None, :]
    tl.store(base + at, found, mask=there)


@triton.jit
def _load_line(base, part, parts, place, places):
    """One number for each part and place, without gaps."""
    there = (part < parts)[:, None] & (place < places)[None, :]
    return tl.load(base + part[:, None] * places + place[None, :], mask=there, other=0.0)


@triton.jit
def _matmul_transposed(one, other):
    """Of each part, all rows of one by all rows of the other."""
    return tl.dot(one, tl.permute(other, (0, 2, 1)), input_precision="ieee")


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
    """The derivative at x, where the activation is y."""
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
    query_row, query_part, query_place, key_row, key_part, key_place, symbol_row, symbol_part, symbol_place,
    asking_row, asking_part, asking_place, answering_row, answering_part, answering_place,
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
    q = _load_tile(queries + row * query_row, query_part, query_place, head, heads, query, time, channel, width)
    a = _load_tile(
        relation_queries + row * asking_row, asking_part, asking_place,
        relation, relations, query, time, relation_channel, relation_width,
    )  # fmt: skip
    row_max = tl.full([HEADS, TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([HEADS, TILE], tl.float32)
    symbol_sums = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    relation_sums = tl.zeros([HEADS, RELATIONS, TILE], tl.float32)
    num_groups = heads // GROUP
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * TILE, time), TILE):
        key = start + tl.arange(0, TILE)
        k = _load_tile(keys + row * key_row, key_part, key_place, head // GROUP, num_groups, key, time, channel, width)
        s = _load_tile(
            symbols + row * symbol_row, symbol_part, symbol_place, head // GROUP, num_groups, key, time, channel, width
        )
        b = _load_tile(
            relation_keys + row * answering_row, answering_part, answering_place,
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
    query_row, query_part, query_place, key_row, key_part, key_place, symbol_row, symbol_part, symbol_place,
    asking_row, asking_part, asking_place, answering_row, answering_part, answering_place,
    time, heads, relations, width, relation_width, scale, relation_scale, rows,
    GROUP: tl.constexpr, HEADS: tl.constexpr, RELATIONS: tl.constexpr,
    WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
    OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries and relation queries; with `OF_KEYS`, of keys, symbols and relation keys."""
    row = tl.program_id(1).to(tl.int64)
    num_relation_splits = tl.cdiv(relations, RELATIONS)
    part, relation_block = tl.program_id(2) // num_relation_splits, tl.program_id(2) % num_relation_splits
    head, relation = part * HEADS + tl.arange(0, HEADS), relation_block * RELATIONS + tl.arange(0, RELATIONS)
    block_start = tl.program_id(0) * TILE
    channel, relation_channel = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    grad_heads = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    grad_symbols = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    grad_relations = tl.zeros([RELATIONS, TILE, RELATION_WIDTH], tl.float32)
    num_groups = heads // GROUP
    # A query's keys are those up to its own block, a key's queries those from its own block on.
    first_start, end = 0, tl.minimum(block_start + TILE, time)
    if OF_KEYS:
        first_start, end = block_start, time
    for start in range(first_start, end, TILE):
        query = (start if OF_KEYS else block_start) + tl.arange(0, TILE)
        key = (block_start if OF_KEYS else start) + tl.arange(0, TILE)
        q = _load_tile(queries + row * query_row, query_part, query_place, head, heads, query, time, channel, width)
        k = _load_tile(keys + row * key_row, key_part, key_place, head // GROUP, num_groups, key, time, channel, width)
        s = _load_tile(
            symbols + row * symbol_row, symbol_part, symbol_place, head // GROUP, num_groups, key, time, channel, width
        )
        a = _load_tile(
            relation_queries + row * asking_row, asking_part, asking_place,
            relation, relations, query, time, relation_channel, relation_width,
        )  # fmt: skip
        b = _load_tile(
            relation_keys + row * answering_row, answering_part, answering_place,
            relation, relations, key, time, relation_channel, relation_width,
        )  # fmt: skip
        g = _load_tile(
            grad_symbol_output + row * heads * time * width,
            time * width,
            width,
            head,
            heads,
            query,
            time,
            channel,
            width,
        )
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
        # What symbols and the mean have a part in is made by the programs of the first relations alone.
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
    _store_tile(
        grad_head_ptr + (relation_block * rows + row) * heads * time * width,
        grad_heads,
        head,
        heads,
        time_index,
        time,
        channel,
        width,
    )
    if OF_KEYS:
        if relation_block == 0:
            _store_tile(
                grad_symbols_ptr + row * heads * time * width,
                grad_symbols,
                head,
                heads,
                time_index,
                time,
                channel,
                width,
            )
    _store_tile(
        grad_relation_ptr + (part * rows + row) * relations * time * relation_width,
        grad_relations, relation, relations, time_index, time, relation_channel, relation_width,
    )  # fmt: skip


def forward(inputs: RelationalInputs, activation: Activation) -> RelationalOutputs:
    """As `relational_tiles.forward`."""
    inputs = _contiguous_last_dim(inputs)
    rows, heads, time, _ = inputs.queries.shape
    output = torch.empty_like(inputs.queries, memory_format=torch.contiguous_format)
    related = inputs.queries.new_empty(rows, heads, time, inputs.relation_keys.shape[1])
    sums = torch.empty(rows, heads, time, dtype=torch.float32, device=output.device)
    sizes = _constexpr_sizes(inputs, activation)
    _forward[_launch_grid(inputs, sizes)](
        *inputs, output, related, sums, *_strides(inputs), *_scalar_arguments(inputs), **sizes
    )
    return RelationalOutputs(output, related, sums)


def backward(
    inputs: RelationalInputs,
    logsumexp: Float[Tensor, "rows heads time"],
    row_dot: Float[Tensor, "rows heads time"],
    grad_symbols: Float[Tensor, "rows heads time width"],
    grad_relations: Float[Tensor, "rows heads time relations"],
    activation: Activation,
) -> RelationalInputs:
    """As `relational_tiles.backward`."""
    contiguous_inputs, constexprs = _contiguous_last_dim(inputs), _constexpr_sizes(inputs, activation)
    rows, heads, time, width = inputs.queries.shape
    relations, relation_width = inputs.relation_keys.shape[1], inputs.relation_keys.shape[-1]
    grid = _launch_grid(inputs, constexprs)
    num_relation_splits = triton.cdiv(relations, constexprs["RELATIONS"])
    num_head_blocks = grid[2] // num_relation_splits

    def room(copies: int, count: int, size: int) -> Tensor:
        return torch.empty(copies, rows, count, time, size, dtype=torch.float32, device=logsumexp.device)

    tensors = (logsumexp, row_dot.contiguous(), grad_symbols.contiguous(), grad_relations.contiguous())
    grad_queries, grad_keys = room(num_relation_splits, heads, width), room(num_relation_splits, heads, width)
    grad_relation_queries, grad_relation_keys = (
        room(num_head_blocks, relations, relation_width),
        room(num_head_blocks, relations, relation_width),
    )
    grad_symbol_inputs = room(1, heads, width)
    for for_keys, targets in (
        (False, (grad_queries, grad_symbol_inputs, grad_relation_queries)),
        (True, (grad_keys, grad_symbol_inputs, grad_relation_keys)),
    ):
        _backward[grid](
            *contiguous_inputs, *tensors, *targets, *_strides(contiguous_inputs),
            *_scalar_arguments(contiguous_inputs), rows, **constexprs, OF_KEYS=for_keys,
        )  # fmt: skip
    gradients = RelationalInputs(grad_queries, grad_keys, grad_symbol_inputs, grad_relation_queries, grad_relation_keys)
    totals = (one[0] if len(one) == 1 else one.sum(0) for one in gradients)
    return RelationalInputs(*(sum_over_groups(one, like) for one, like in zip(totals, inputs, strict=True)))


def _contiguous_last_dim(read: RelationalInputs) -> RelationalInputs:
    return RelationalInputs(*(x if x.stride(-1) == 1 else x.contiguous() for x in read))


def _constexpr_sizes(read: RelationalInputs, activation: Activation) -> dict[str, Any]:
    """What the kernels are compiled for: powers of two, 16 at least where matrices are multiplied."""
    heads, relations = read.queries.shape[1], read.relation_keys.shape[1]
    return {
        "GROUP": heads // read.keys.shape[1],
        "HEADS": min(MAX_HEADS, triton.next_power_of_2(heads)),
        "RELATIONS": min(MAX_RELATIONS, triton.next_power_of_2(relations)),
        "WIDTH": max(16, triton.next_power_of_2(read.queries.shape[-1])),
        "RELATION_WIDTH": max(16, triton.next_power_of_2(read.relation_keys.shape[-1])),
        "TILE": TILE_SIZE,
        "ACTIVATION": activation,
    }


def _launch_grid(read: RelationalInputs, sizes: dict[str, Any]) -> tuple[int, int, int]:
    """Blocks of a row, rows, and heads x relations of a program."""
    rows, heads, time, _ = read.queries.shape
    relations = read.relation_keys.shape[1]
    parts = triton.cdiv(heads, sizes["HEADS"]) * triton.cdiv(relations, sizes["RELATIONS"])
    return triton.cdiv(time, TILE_SIZE), rows, parts


def _strides(read: RelationalInputs) -> tuple[int, ...]:
    return tuple(size for x in read for size in x.stride()[:3])


def _scalar_arguments(read: RelationalInputs) -> tuple[float, ...]:
    _, heads, time, width = read.queries.shape
    _, relations, _, relation_width = read.relation_keys.shape
    return time, heads, relations, width, relation_width, width**-0.5, relation_width**-0.5
