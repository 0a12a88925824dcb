"""Relational attention as kernels for CUDA, by Triton: `relational_tiles` with a program for each block of a row.

A program reads a block of queries (in the second kernel of the backward, of keys) of one row, for up to `HEADS` heads
and `RELATIONS` relations; where there are more of either, further programs make the others, and make scores and
relations again. It keeps heads x relations numbers of each query beside the symbols attended to. Gradients that several
programs have a part in are written apart and then added up, so that they are the same bits every time. Products are
summed in float32; tiles go into matrix units in the type that is read (float32 without rounding to TF32).

Of the definition this is `relational` alone, with an activation of relations one by one, causal, without hidden keys,
biases of scores, dropout, or symbols by distance: those take the other forms (`relational_fast.chosen`). Importing this
module needs the package `triton`, which comes with torch for CUDA; with TRITON_INTERPRET=1 the kernels run on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM102  (one condition is known to the compiler, the other is not)
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from numerate.kernels.relational import Activation, RelationalInputs, RelationalOutputs, in_groups

HEADS, RELATIONS, TILE = 4, 4, 32
"""Of one program, at most: heads, relations; and its queries and keys of a tile. 4 x 4 x 32 x 32 products of weights
and relations are 128 for each of 128 threads. Not tuned: no device was at hand.
`relational_tiles.SHARED_MEMORY` was measured for them."""


@triton.jit
def _tile(base, part_stride, place_stride, part, parts, place, places, inner, width):
    """Numbers of some parts (heads or relations) at some places: parts x places x width, 0 where there are none."""
    at = part[:, None, None] * part_stride + place[None, :, None] * place_stride + inner[None, None, :]
    there = (part < parts)[:, None, None] & (place < places)[None, :, None] & (inner < width)[None, None, :]
    return tl.load(base + at, mask=there, other=0.0)


@triton.jit
def _put(base, found, part, parts, place, places, inner, width):
    """Writes parts x places x width numbers where they stand without gaps."""
    at = (part[:, None, None] * places + place[None, :, None]) * width + inner[None, None, :]
    there = (part < parts)[:, None, None] & (place < places)[None, :, None] & (inner < width)[None, None, :]
    tl.store(base + at, found, mask=there)


@triton.jit
def _line(base, part, parts, place, places):
    """One number for each part and place, without gaps."""
    there = (part < parts)[:, None] & (place < places)[None, :]
    return tl.load(base + part[:, None] * places + place[None, :], mask=there, other=0.0)


@triton.jit
def _products(one, other):
    """Of each part, all rows of one by all rows of the other."""
    return tl.dot(one, tl.permute(other, (0, 2, 1)), input_precision="ieee")


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
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
def _slope(x, y, ACTIVATION: tl.constexpr):
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
    queries, keys, symbols, asking, answering, output, related, sums,
    query_row, query_part, query_place, key_row, key_part, key_place, symbol_row, symbol_part, symbol_place,
    asking_row, asking_part, asking_place, answering_row, answering_part, answering_place,
    time, heads, relations, width, relation_width, scale, relation_scale,
    GROUP: tl.constexpr, HEADS: tl.constexpr, RELATIONS: tl.constexpr,
    WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    splits = tl.cdiv(relations, RELATIONS)
    head = tl.program_id(2) // splits * HEADS + tl.arange(0, HEADS)
    relation = tl.program_id(2) % splits * RELATIONS + tl.arange(0, RELATIONS)
    query = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inner, compared = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    q = _tile(queries + row * query_row, query_part, query_place, head, heads, query, time, inner, width)
    a = _tile(
        asking + row * asking_row, asking_part, asking_place,
        relation, relations, query, time, compared, relation_width,
    )  # fmt: skip
    highest = tl.full([HEADS, TILE], float("-inf"), tl.float32)
    total = tl.zeros([HEADS, TILE], tl.float32)
    of_symbols = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    of_relations = tl.zeros([HEADS, RELATIONS, TILE], tl.float32)
    groups = heads // GROUP
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * TILE, time), TILE):
        key = start + tl.arange(0, TILE)
        k = _tile(keys + row * key_row, key_part, key_place, head // GROUP, groups, key, time, inner, width)
        s = _tile(symbols + row * symbol_row, symbol_part, symbol_place, head // GROUP, groups, key, time, inner, width)
        b = _tile(
            answering + row * answering_row, answering_part, answering_place,
            relation, relations, key, time, compared, relation_width,
        )  # fmt: skip
        visible = (key[None, :] <= query[:, None]) & (key < time)[None, :]
        scores = tl.where(visible[None, :, :], _products(q, k) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 2))
        weights = tl.exp(scores - higher[:, :, None])
        shrunk = tl.exp(highest - higher)
        total = total * shrunk + tl.sum(weights, 2)
        of_symbols = of_symbols * shrunk[:, :, None] + tl.dot(weights.to(s.dtype), s, input_precision="ieee")
        r = _activated(_products(a, b) * relation_scale, ACTIVATION)
        of_relations = of_relations * shrunk[:, None, :] + tl.sum(weights[:, None, :, :] * r[None, :, :, :], 3)
        highest = higher
    if tl.program_id(2) % splits == 0:
        _put(
            output + row * heads * time * width, (of_symbols / total[:, :, None]).to(output.dtype.element_ty),
            head, heads, query, time, inner, width,
        )  # fmt: skip
        there = (head < heads)[:, None] & (query < time)[None, :]
        at = sums + row * heads * time + head[:, None] * time + query[None, :]
        tl.store(at, highest + tl.log(total), mask=there)
    found = (of_relations / total[:, None, :]).to(related.dtype.element_ty)
    at = ((row * heads + head)[:, None, None] * time + query[None, None, :]) * relations + relation[None, :, None]
    there = (head < heads)[:, None, None] & (relation < relations)[None, :, None] & (query < time)[None, None, :]
    tl.store(related + at, found, mask=there)


@triton.jit
def _backward(
    queries, keys, symbols, asking, answering, sums, mean, by_symbol, by_relation,
    to_first, to_symbols, to_relation,
    query_row, query_part, query_place, key_row, key_part, key_place, symbol_row, symbol_part, symbol_place,
    asking_row, asking_part, asking_place, answering_row, answering_part, answering_place,
    time, heads, relations, width, relation_width, scale, relation_scale, rows,
    GROUP: tl.constexpr, HEADS: tl.constexpr, RELATIONS: tl.constexpr,
    WIDTH: tl.constexpr, RELATION_WIDTH: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
    OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries and relation queries; with `OF_KEYS`, of keys, symbols and relation keys."""
    row = tl.program_id(1).to(tl.int64)
    splits = tl.cdiv(relations, RELATIONS)
    part, split = tl.program_id(2) // splits, tl.program_id(2) % splits
    head, relation = part * HEADS + tl.arange(0, HEADS), split * RELATIONS + tl.arange(0, RELATIONS)
    own = tl.program_id(0) * TILE
    inner, compared = tl.arange(0, WIDTH), tl.arange(0, RELATION_WIDTH)
    first = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    second = tl.zeros([HEADS, TILE, WIDTH], tl.float32)
    third = tl.zeros([RELATIONS, TILE, RELATION_WIDTH], tl.float32)
    groups = heads // GROUP
    # A query's keys are those up to its own block, a key's queries those from its own block on.
    begin, end = 0, tl.minimum(own + TILE, time)
    if OF_KEYS:
        begin, end = own, time
    for start in range(begin, end, TILE):
        query = (start if OF_KEYS else own) + tl.arange(0, TILE)
        key = (own if OF_KEYS else start) + tl.arange(0, TILE)
        q = _tile(queries + row * query_row, query_part, query_place, head, heads, query, time, inner, width)
        k = _tile(keys + row * key_row, key_part, key_place, head // GROUP, groups, key, time, inner, width)
        s = _tile(symbols + row * symbol_row, symbol_part, symbol_place, head // GROUP, groups, key, time, inner, width)
        a = _tile(
            asking + row * asking_row, asking_part, asking_place,
            relation, relations, query, time, compared, relation_width,
        )  # fmt: skip
        b = _tile(
            answering + row * answering_row, answering_part, answering_place,
            relation, relations, key, time, compared, relation_width,
        )  # fmt: skip
        g = _tile(by_symbol + row * heads * time * width, time * width, width, head, heads, query, time, inner, width)
        at = ((row * heads + head)[:, None, None] * time + query[None, None, :]) * relations + relation[None, :, None]
        there = (head < heads)[:, None, None] & (relation < relations)[None, :, None] & (query < time)[None, None, :]
        f = tl.load(by_relation + at, mask=there, other=0.0).to(tl.float32)
        visible = (key[None, :] <= query[:, None]) & (query < time)[:, None]
        known = _line(sums + row * heads * time, head, heads, query, time)
        scores = tl.where(visible[None, :, :], _products(q, k) * scale - known[:, :, None], float("-inf"))
        weights = tl.exp(scores)
        x = _products(a, b) * relation_scale
        r = _activated(x, ACTIVATION)
        of_weights = tl.sum(f[:, :, :, None] * r[None, :, :, :], 1)
        # What symbols and the mean have a part in is made by the programs of the first relations alone.
        less = _line(mean + row * heads * time, head, heads, query, time)
        of_weights += tl.where(split == 0, 1.0, 0.0) * (_products(g, s) - less[:, :, None])
        of_scores = (weights * of_weights * scale).to(q.dtype)
        of_compared = tl.sum(f[:, :, :, None] * weights[:, None, :, :], 0)
        of_compared = (of_compared * _slope(x, r, ACTIVATION) * relation_scale).to(a.dtype)
        if OF_KEYS:
            first += tl.dot(tl.permute(of_scores, (0, 2, 1)), q, input_precision="ieee")
            second += tl.dot(tl.permute(weights.to(g.dtype), (0, 2, 1)), g, input_precision="ieee")
            third += tl.dot(tl.permute(of_compared, (0, 2, 1)), a, input_precision="ieee")
        else:
            first += tl.dot(of_scores, k, input_precision="ieee")
            third += tl.dot(of_compared, b, input_precision="ieee")
    place = own + tl.arange(0, TILE)
    _put(to_first + (split * rows + row) * heads * time * width, first, head, heads, place, time, inner, width)
    if OF_KEYS:
        if split == 0:
            _put(to_symbols + row * heads * time * width, second, head, heads, place, time, inner, width)
    _put(
        to_relation + (part * rows + row) * relations * time * relation_width,
        third, relation, relations, place, time, compared, relation_width,
    )  # fmt: skip


def forward(read: RelationalInputs, activation: Activation) -> RelationalOutputs:
    """As `relational_tiles.forward`."""
    read = _without_gaps(read)
    rows, heads, time, _ = read.queries.shape
    output = torch.empty_like(read.queries, memory_format=torch.contiguous_format)
    related = read.queries.new_empty(rows, heads, time, read.relation_keys.shape[1])
    sums = torch.empty(rows, heads, time, dtype=torch.float32, device=output.device)
    sizes = _sizes(read, activation)
    _forward[_grid(read, sizes)](*read, output, related, sums, *_strides(read), *_numbers(read), **sizes)
    return RelationalOutputs(output, related, sums)


def backward(
    read: RelationalInputs,
    sums: Float[Tensor, "rows heads time"],
    mean: Float[Tensor, "rows heads time"],
    of_symbols: Float[Tensor, "rows heads time width"],
    of_relations: Float[Tensor, "rows heads time relations"],
    activation: Activation,
) -> RelationalInputs:
    """As `relational_tiles.backward`."""
    now, sizes = _without_gaps(read), _sizes(read, activation)
    rows, heads, time, width = read.queries.shape
    relations, relation_width = read.relation_keys.shape[1], read.relation_keys.shape[-1]
    grid = _grid(read, sizes)
    splits = triton.cdiv(relations, sizes["RELATIONS"])
    parts = grid[2] // splits

    def room(copies: int, count: int, size: int) -> Tensor:
        return torch.empty(copies, rows, count, time, size, dtype=torch.float32, device=sums.device)

    given = (sums, mean.contiguous(), of_symbols.contiguous(), of_relations.contiguous())
    of_queries, of_keys = room(splits, heads, width), room(splits, heads, width)
    of_asking, of_answering = room(parts, relations, relation_width), room(parts, relations, relation_width)
    into = room(1, heads, width)
    for of_these, targets in ((False, (of_queries, into, of_asking)), (True, (of_keys, into, of_answering))):
        _backward[grid](
            *now, *given, *targets, *_strides(now), *_numbers(now), rows, **sizes, OF_KEYS=of_these
        )  # fmt: skip
    found = RelationalInputs(of_queries, of_keys, into, of_asking, of_answering)
    summed = (one[0] if len(one) == 1 else one.sum(0) for one in found)
    return RelationalInputs(*(in_groups(one, like) for one, like in zip(summed, read, strict=True)))


def _without_gaps(read: RelationalInputs) -> RelationalInputs:
    return RelationalInputs(*(x if x.stride(-1) == 1 else x.contiguous() for x in read))


def _sizes(read: RelationalInputs, activation: Activation) -> dict[str, Any]:
    """What the kernels are compiled for: powers of two, 16 at least where matrices are multiplied."""
    heads, relations = read.queries.shape[1], read.relation_keys.shape[1]
    return {
        "GROUP": heads // read.keys.shape[1],
        "HEADS": min(HEADS, triton.next_power_of_2(heads)),
        "RELATIONS": min(RELATIONS, triton.next_power_of_2(relations)),
        "WIDTH": max(16, triton.next_power_of_2(read.queries.shape[-1])),
        "RELATION_WIDTH": max(16, triton.next_power_of_2(read.relation_keys.shape[-1])),
        "TILE": TILE,
        "ACTIVATION": activation,
    }


def _grid(read: RelationalInputs, sizes: dict[str, Any]) -> tuple[int, int, int]:
    """Blocks of a row, rows, and heads x relations of a program."""
    rows, heads, time, _ = read.queries.shape
    relations = read.relation_keys.shape[1]
    parts = triton.cdiv(heads, sizes["HEADS"]) * triton.cdiv(relations, sizes["RELATIONS"])
    return triton.cdiv(time, TILE), rows, parts


def _strides(read: RelationalInputs) -> tuple[int, ...]:
    return tuple(size for x in read for size in x.stride()[:3])


def _numbers(read: RelationalInputs) -> tuple[float, ...]:
    _, heads, time, width = read.queries.shape
    _, relations, _, relation_width = read.relation_keys.shape
    return time, heads, relations, width, relation_width, width**-0.5, relation_width**-0.5
