"""Relational attention tile by tile with a running softmax: what the kernel for CUDA does, also in plain torch.

A block of queries goes through the blocks of keys that it sees, all heads at once. Scores are made once per head and
relations once for all heads; what has been summed up so far is scaled down whenever a larger score is met, as in
FlashAttention (Dao et al., 2022, https://arxiv.org/abs/2205.14135), and with it heads x relations numbers for each
query, the relations attended to. No more than a tile of pairs is ever held. The backward makes each tile again from the
logarithm of the sum of a query's exponentials.
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
    FUNCTIONS,
    Activation,
    Heads,
    Kind,
    RelationalInputs,
    RelationalOutputs,
    in_groups,
)
from numerate.kernels.token_shift import uncompiled

By = Literal["tiles", "triton"]

TILE = 64
"""How many queries, and how many keys, the form in torch reads at a time."""

ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "gelu", "silu")
"""Relations that are activated one by one: a softmax of relations would need a running sum of its own."""


def why_not_tiled(heads: Heads, kind: Kind, activation: Activation) -> str | None:
    """What tiles cannot do of it, in words; None where they can."""
    for what, there in (
        (f"the variant {kind}", kind != "relational"),
        (f"the activation {activation}", activation not in ACTIVATIONS),
        ("hidden keys", heads.visible is not None and heads.bias is None),
        ("positions that add to scores", heads.bias is not None),
        ("symbols by distance", heads.symbols is None),
        ("dropout of attention weights", bool(heads.dropout) or heads.kept is not None),
    ):
        if there:
            return what
    return None


def has_kernel(heads: Heads, activation: Activation) -> bool:
    """Whether the kernel is the form to take for what tiles can do: where `on_device` and in its shared memory, unless
    relations are plain products and all values together no wider than 128."""
    assert heads.relation_keys is not None
    _, relations, _, compared = heads.relation_keys.shape
    narrow = activation == "identity" and heads.queries.shape[-1] + relations * compared <= 128
    return not narrow and on_device(heads) and why_too_large(heads, shared_memory(heads.queries.device)) is None


SHARED_MEMORY = {
    4: {16: {16: 106_496, 32: 131_072, 64: 180_224}, 32: {16: 155_648, 32: 180_224, 64: 229_376}},
    2: {
        16: {16: 55_296, 32: 67_584, 64: 92_160, 128: 141_312},
        32: {16: 79_872, 32: 92_160, 64: 116_736, 128: 165_888},
        64: {16: 129_024, 32: 141_312, 64: 165_888, 128: 215_040},
        128: {16: 227_328},
    },
}
"""Bytes of shared memory that a program of the kernel takes, by the bytes of a number, the width of a head and that of
a relation (both rounded up to a power of two, 16 at least): the most of its forward and both parts of its backward, for
4 heads and 4 relations. Measured by compiling ahead of time with triton 3.7.1; the same for compute capabilities 8.0,
9.0 and 12.0. All other widths up to 256 take more than an H100 has (232,448; an A100 166,912, consumer cards 101,376).
"""


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may take on a CUDA device, 0 where torch does not say (ROCm)."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def why_too_large(heads: Heads, limit: int) -> str | None:
    """Why the kernel cannot be launched where a program may take `limit` bytes of shared memory; None where it can."""
    assert heads.relation_keys is not None
    x, widths = heads.queries, (heads.queries.shape[-1], heads.relation_keys.shape[-1])
    width, compared = (max(16, 1 << (size - 1).bit_length()) for size in widths)
    needed = SHARED_MEMORY.get(x.element_size(), {}).get(width, {}).get(compared)
    if needed is not None and needed <= limit:
        return None
    bytes_needed = "too much" if needed is None else f"{needed:,} bytes of"
    return (
        f"heads {widths[0]} wide with relations {widths[1]} wide in {str(x.dtype).removeprefix('torch.')} take "
        f"{bytes_needed} shared memory; this device has {limit:,} bytes"
    )


def on_device(heads: Heads) -> bool:
    """Whether a kernel can reach these numbers: on a CUDA device, with the package, of one model and no stack."""
    x = heads.queries
    stacked = not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x)
    return x.is_cuda and not stacked and find_spec("triton") is not None


def in_tiles(heads: Heads, kind: Kind, activation: Activation, by: By) -> Float[Tensor, "rows heads query head_width"]:
    """As `relational.plain`, for whole rows. Raises `UserError` for what cannot be, see `why_not_tiled`."""
    if (why := why_not_tiled(heads, kind, activation)) is not None:
        raise UserError(f"model.mixer.backend: {by} knows no {why}; auto or chunks would do")
    if by == "triton" and find_spec("triton") is None:
        raise UserError(
            "model.mixer.backend: triton needs the package triton, which comes with torch for CUDA; "
            "auto, or backend=tiles for the same in plain torch"
        )
    if by == "triton" and not heads.queries.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError(f"model.mixer.backend: triton runs on CUDA, and not on {heads.queries.device.type}; auto does")
    limit = shared_memory(heads.queries.device) if by == "triton" and heads.queries.is_cuda else None
    if limit is not None and (why := why_too_large(heads, limit)) is not None:
        raise UserError(f"model.mixer.backend: triton: {why}; auto or chunks would do")
    assert heads.symbols is not None
    assert heads.relation_queries is not None
    assert heads.relation_keys is not None
    assert heads.relation_map is not None
    given = (heads.queries, heads.keys, heads.symbols, heads.relation_queries, heads.relation_keys)
    read = RelationalInputs(*(x.to(heads.queries.dtype) for x in given))
    output, related = tiled(read, activation, by)
    return output + related @ heads.relation_map.mT


@uncompiled
def tiled(read: RelationalInputs, activation: Activation, by: By = "tiles") -> tuple[Tensor, Tensor]:
    """Symbols attended to, rows x heads x time x width, and relations, rows x heads x time x relations: causal, nothing
    hidden, nothing added to the scores. Sums are of float32 at least, whatever is read."""
    read = read._replace(symbols=read.symbols.expand(len(read.queries), -1, -1, -1))
    outputs: tuple[Tensor, ...] = _Tiled.apply(*read, activation, by)  # type: ignore[no-untyped-call]
    return outputs[0], outputs[1]


class _Tiled(Function):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *tensors, activation, by = given
        read = RelationalInputs(*tensors)
        if by == "tiles":
            return forward(read, activation)
        from numerate.kernels import relational_triton

        return relational_triton.forward(read, activation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        *tensors, ctx.activation, ctx.by = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_symbols: Tensor, of_relations: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        read, outputs = RelationalInputs(*ctx.saved_tensors[:5]), RelationalOutputs(*ctx.saved_tensors[5:])
        # The gradient of a softmax: that of a weight, less the mean of all, by the weights themselves.
        mean = sum(
            (_more(of) * _more(one)).sum(-1) for of, one in ((of_symbols, outputs[0]), (of_relations, outputs[1]))
        )
        assert isinstance(mean, Tensor)
        if ctx.by == "tiles":
            return (*backward(read, outputs.sums, mean, of_symbols, of_relations, ctx.activation), None, None)
        from numerate.kernels import relational_triton

        found = relational_triton.backward(read, outputs.sums, mean, of_symbols, of_relations, ctx.activation)
        return (*found, None, None)


def _more(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def forward(read: RelationalInputs, activation: Activation) -> RelationalOutputs:
    """`tiled` in plain torch."""
    now = _each(read)
    rows, heads, time, _ = now.queries.shape
    scale, relation_scale = now.queries.shape[-1] ** -0.5, now.relation_queries.shape[-1] ** -0.5
    symbols = torch.empty_like(now.queries)
    relations = now.queries.new_empty(rows, heads, time, read.relation_keys.shape[1])
    sums = now.queries.new_empty(rows, heads, time)
    for first in range(0, time, TILE):
        block = slice(first, min(first + TILE, time))
        count = block.stop - first
        highest = sums.new_full((rows, heads, count), float("-inf"))
        total, of_symbols = torch.zeros_like(highest), torch.zeros_like(symbols[:, :, block])
        of_relations = torch.zeros_like(relations[:, :, block])
        for start in range(0, block.stop, TILE):
            seen = slice(start, min(start + TILE, block.stop))
            scores = (now.queries[:, :, block] @ now.keys[:, :, seen].mT) * scale
            scores = scores.masked_fill(~_visible(block, seen, scores), float("-inf"))
            higher = torch.maximum(highest, scores.amax(-1))
            weights, shrunk = (scores - higher[..., None]).exp(), (highest - higher).exp()
            related = FUNCTIONS[activation](
                (now.relation_queries[:, :, block] @ now.relation_keys[:, :, seen].mT) * relation_scale
            )
            total = total * shrunk + weights.sum(-1)
            of_symbols = of_symbols * shrunk[..., None] + weights @ now.symbols[:, :, seen]
            of_relations = of_relations * shrunk[..., None] + torch.einsum("bhqk,blqk->bhql", weights, related)
            highest = higher
        symbols[:, :, block] = of_symbols / total[..., None]
        relations[:, :, block] = of_relations / total[..., None]
        sums[:, :, block] = highest + total.log()
    kind = read.queries.dtype
    return RelationalOutputs(symbols.to(kind), relations.to(kind), sums)


def backward(
    read: RelationalInputs,
    sums: Float[Tensor, "rows heads time"],
    mean: Float[Tensor, "rows heads time"],
    of_symbols: Float[Tensor, "rows heads time width"],
    of_relations: Float[Tensor, "rows heads time relations"],
    activation: Activation,
) -> RelationalInputs:
    """The gradients of what was read; `mean` is, for each query, that of its weights by the weights themselves."""
    now, found = _each(read), RelationalInputs(*(torch.zeros_like(x) for x in _each(read)))
    of_symbols, of_relations = _more(of_symbols), _more(of_relations)
    time, scale, relation_scale = now.keys.shape[2], now.keys.shape[-1] ** -0.5, now.relation_keys.shape[-1] ** -0.5
    for first in range(0, time, TILE):
        block = slice(first, min(first + TILE, time))
        for start in range(0, block.stop, TILE):
            seen = slice(start, min(start + TILE, block.stop))
            scores = (now.queries[:, :, block] @ now.keys[:, :, seen].mT) * scale
            weights = (scores - sums[:, :, block, None]).exp() * _visible(block, seen, scores)
            compared = (now.relation_queries[:, :, block] @ now.relation_keys[:, :, seen].mT) * relation_scale
            related, slope = _with_slope(compared, activation)
            by_symbol, by_relation = of_symbols[:, :, block], of_relations[:, :, block]
            of_weights = by_symbol @ now.symbols[:, :, seen].mT
            of_weights += torch.einsum("bhql,blqk->bhqk", by_relation, related)
            of_scores = weights * (of_weights - mean[:, :, block, None]) * scale
            of_compared = torch.einsum("bhql,bhqk->blqk", by_relation, weights) * slope * relation_scale
            found.queries[:, :, block] += of_scores @ now.keys[:, :, seen]
            found.keys[:, :, seen] += of_scores.mT @ now.queries[:, :, block]
            found.symbols[:, :, seen] += weights.mT @ by_symbol
            found.relation_queries[:, :, block] += of_compared @ now.relation_keys[:, :, seen]
            found.relation_keys[:, :, seen] += of_compared.mT @ now.relation_queries[:, :, block]
    return RelationalInputs(*(in_groups(one, like) for one, like in zip(found, read, strict=True)))


def _each(read: RelationalInputs) -> RelationalInputs:
    """Keys and symbols for each head, everything in float32 at least."""
    heads = read.queries.shape[1]
    keys, symbols = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (read.keys, read.symbols))
    return RelationalInputs(*(_more(x) for x in read._replace(keys=keys, symbols=symbols)))


def _visible(block: slice, seen: slice, like: Tensor) -> Tensor:
    query, key = (torch.arange(one.start, one.stop, device=like.device) for one in (block, seen))
    return key <= query[:, None]


def _with_slope(compared: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Activated relations, and their derivative."""
    with torch.enable_grad():
        given = compared.detach().requires_grad_()
        related = FUNCTIONS[activation](given)
        (slope,) = torch.autograd.grad(related.sum(), given)
    return related.detach(), slope
