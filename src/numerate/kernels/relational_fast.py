"""Relational attention without materializing all pairs: exact, and faster than the definition."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from numerate.kernels.relational import (
    Activation,
    RelationalHeads,
    Variant,
    apply_activation,
    distance_indices,
    reference_attention,
)
from numerate.kernels.relational_tiles import should_use_kernel, tiled_relational_attention, unsupported_feature
from numerate.kernels.token_shift import disable_compile

RelationalBackend = Literal["auto", "plain", "values", "chunks", "triton", "tiles"]

QUERY_CHUNK_SIZE = {"cpu": 64, "cuda": 256}
"""Number of queries per chunk."""

MAX_SAVED_WEIGHTS = 2**24
"""More attention weights than this (64 MiB of float32) are recomputed in the backward pass instead of being saved."""


def relational_attention(
    heads: RelationalHeads, variant: Variant, activation: Activation, backend: RelationalBackend = "auto"
) -> Float[Tensor, "rows heads query head_width"]:
    """As `plain`, in one of its exact forms.

    - `values`: relations that are plain products need not be known pair by pair. The sum over j of a_ij (q_i . k_j) is
      q_i times the sum of a_ij k_j, so relation keys are attended to like values, beside the symbols.
    - `chunks`: so many queries at a time, with only the keys that they see; for every activation.
    - `triton`: kernels for a CUDA device that make relations once for all heads and write none of them down, for
      `relational` with activations one by one, whole rows without masked keys; `tiles` is what they do in plain torch,
      for comparison. Some queries of a row (decoding) take `chunks` in their place.

    Symbols that depend on the distance are multiplied, in `values` and `chunks`, with weights that are moved from keys
    to distances. Raises `UserError` for a form requested by name that is not available.
    """
    backend = select_backend(heads, variant, activation) if backend == "auto" else backend
    if backend in ("triton", "tiles"):
        if heads.query_positions is None:
            return tiled_relational_attention(heads, variant, activation, backend)
        backend = "chunks"
    heads = _repeat_kv(heads)
    if heads.dropout and heads.dropout_mask is None and (backend == "plain" or heads.query_positions is not None):
        heads = replace(heads, dropout_mask=_draw_dropout(_row_tensors(heads), heads.dropout).dropout_mask)
    if backend == "plain":
        return reference_attention(heads, variant, activation)
    if heads.query_positions is not None:
        distance_index = None if heads.distance_symbols is None else distance_indices(heads)
        output, attended_relations = _attend_queries(
            _row_tensors(heads), variant, activation, heads.dropout, distance_index
        )
    elif backend == "values":
        output, attended_relations = _attend_to_relation_keys(heads, variant)
    else:
        output, attended_relations = _chunked_relational_attention(heads, variant, activation)
    if attended_relations is None:
        return output
    assert heads.relation_proj is not None
    return output + attended_relations @ heads.relation_proj.mT


def select_backend(heads: RelationalHeads, variant: Variant, activation: Activation) -> RelationalBackend:
    """The form that `auto` takes: `values` where there is one and it is the quicker.

    On a CUDA device with triton it is the kernel for what that can do and the device has shared memory for
    (`relational_tiles.SHARED_MEMORY_BYTES`), unless values are plain products no wider than 128 in all: those are what
    the fused attention of torch is made for. (Where the line is was not measured.)

    For a pair of tokens `values` multiplies heads x relations x width numbers, `chunks` a fraction of them but with
    passes over memory for every relation. Of both, on one core of a CPU and rows of 512, the line between them:
    4 x 4 x 64 take equally long, 8 x 8 x 64 1.6 times as long as values, 8 x 32 x 8 1.6 times as long in chunks.
    """
    if (
        heads.query_positions is None
        and unsupported_feature(heads, variant, activation) is None
        and should_use_kernel(heads, activation)
    ):
        return "triton"
    if not supports_values(variant, activation) or heads.query_positions is not None:
        return "chunks"
    if heads.relation_keys is None or heads.queries.is_cuda:
        return "values"
    _, relations, _, width = heads.relation_keys.shape
    products = heads.queries.shape[1] * relations * width
    return "values" if products <= 700 + relations * (90 + 2 * width) else "chunks"


def supports_values(variant: Variant, activation: Activation) -> bool:
    """Whether there is a form `values`: the weights must be those of a softmax, and relations plain products."""
    return (variant, activation) in (("relational", "identity"), ("rca", "softmax"))


def _repeat_kv(heads: RelationalHeads) -> RelationalHeads:
    """With keys and symbols for each head, where some share them."""
    count = heads.queries.shape[1]

    def each(x: Tensor) -> Tensor:
        return x if x.shape[1] == count else x.repeat_interleave(count // x.shape[1], dim=1)

    symbols, far = (None if x is None else each(x) for x in (heads.symbols, heads.distance_symbols))
    return replace(heads, keys=each(heads.keys), symbols=symbols, distance_symbols=far)


# Pieces of a row ---------------------------------------------------------------------------------------------------


class _RowTensors(NamedTuple):
    """The tensors of `RelationalHeads` that differ from row to row, or their gradients."""

    queries: Any
    keys: Any
    symbols: Any
    distance_symbols: Any
    relation_queries: Any
    relation_keys: Any
    bias: Any
    visible: Any
    dropout_mask: Any

    def query_ranges(self) -> Iterator[tuple[int, int]]:
        time, size = self.keys.shape[2], QUERY_CHUNK_SIZE.get(self.keys.device.type, 64)
        return ((start, min(start + size, time)) for start in range(0, time, size))

    def slice_queries(self, start: int, end: int) -> "_RowTensors":
        """The queries from `start` to `end` and the keys that they see: views, so that gradients are added in place."""
        cuts = {
            **dict.fromkeys(("queries", "relation_queries"), (..., slice(start, end), slice(None))),
            **dict.fromkeys(("keys", "symbols", "relation_keys"), (..., slice(0, end), slice(None))),
            **dict.fromkeys(("bias", "visible", "dropout_mask"), (..., slice(start, end), slice(0, end))),
        }
        if self.distance_symbols is not None:
            cuts["distance_symbols"] = (..., slice(self.distance_symbols.shape[2] - end, None), slice(None))
        named = self._asdict()
        return _RowTensors(**{name: one if one is None else one[cuts[name]] for name, one in named.items()})

    def zero_gradients(self, needed: tuple[bool, ...]) -> "_RowTensors":
        """Zeros for the gradients; none for the biases of pairs, which are many, where they need none."""
        floating = [x is not None and x.is_floating_point() for x in self]
        found = [torch.zeros_like(x) if there else None for x, there in zip(self, floating, strict=True)]
        return (
            _RowTensors(*found)
            if needed[_RowTensors._fields.index("bias")]
            else _RowTensors(*found)._replace(bias=None)
        )


def _row_tensors(heads: RelationalHeads) -> _RowTensors:
    return _RowTensors(*(getattr(heads, name) for name in _RowTensors._fields))


def _attention_weights(row: _RowTensors) -> Tensor:
    """The weights of attention of the last queries of a row."""
    scores = (row.queries * row.queries.shape[-1] ** -0.5) @ row.keys.mT
    if row.bias is not None:
        scores = scores + row.bias
    kept = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(~_visible_mask(row), float("-inf")).softmax(-1, dtype=kept)
    alike: Tensor = weights.to(row.queries.dtype)
    return alike


def _visible_mask(row: _RowTensors) -> Tensor:
    if row.visible is not None:
        seen: Tensor = row.visible
        return seen
    queries, keys = row.queries.shape[2], row.keys.shape[2]
    return torch.ones(queries, keys, dtype=torch.bool, device=row.keys.device).tril(keys - queries)[None, None]


def _draw_dropout(row: _RowTensors, dropout: float) -> _RowTensors:
    """With which weights are kept; in the backward these are known."""
    if not dropout or row.dropout_mask is not None:
        return row
    kept = row.queries.new_empty(*row.queries.shape[:3], row.keys.shape[2], dtype=torch.bool)
    return row._replace(dropout_mask=kept.bernoulli_(1 - dropout))


def _apply_dropout(weights: Tensor, row: _RowTensors, dropout: float) -> Tensor:
    return weights if row.dropout_mask is None else weights * row.dropout_mask * (1 / (1 - dropout))


def _keys_to_distances(weights: Tensor) -> Tensor:
    """Weights of keys as weights of distances, the farthest first: the last row stays, each one above it moves one more
    to the right. What moves out is of keys that a query does not see, which is 0.

    >>> _keys_to_distances(torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]))[0].tolist()
    [0.0, 1.0, 2.0]
    """
    queries, keys = weights.shape[-2:]
    return torch.unflatten(pad(weights.flatten(-2), (queries - 1, 1)), -1, (queries, keys + 1))[..., :-1]


def _distances_to_keys(weights: Tensor) -> Tensor:
    """The gradient of `_keys_to_distances`."""
    queries, keys = weights.shape[-2:]
    return torch.unflatten(pad(weights, (0, 1)).flatten(-2)[..., queries - 1 : -1], -1, (queries, keys))


def _fold_models(members: int, dims: tuple[int | None, ...], given: tuple[Any, ...]) -> list[Any]:
    """Under `torch.vmap` the members of a stack become further rows."""
    rows = given[0].shape[1 if dims[0] == 0 else 0]
    folded: list[Any] = []
    for x, dim in zip(given, dims, strict=True):
        if isinstance(x, Tensor) and not (dim is None and len(x) == 1):
            x = x.expand(members, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.expand(members, rows, *x.shape[2:]).flatten(0, 1)
        folded.append(x)
    return folded


# Values ------------------------------------------------------------------------------------------------------------


def _attend_to_relation_keys(heads: RelationalHeads, kind: Variant) -> tuple[Tensor, Tensor | None]:
    count, head_width = heads.queries.shape[1], heads.queries.shape[-1]
    parts = [] if heads.symbols is None else [heads.symbols.expand(len(heads.keys), -1, -1, -1)]
    if kind == "relational":
        assert heads.relation_keys is not None
        parts.append(heads.relation_keys.transpose(1, 2).flatten(2)[:, None].expand(-1, count, -1, -1))
    values = torch.cat(parts, dim=-1) if parts else heads.keys[..., :0]
    row = _row_tensors(heads)._replace(symbols=values, relation_queries=None, relation_keys=None)
    if heads.distance_symbols is None and _should_use_sdpa(row, heads.dropout):
        output = causal_attention(heads.queries, heads.keys, values, heads.visible, heads.bias, heads.dropout)
    else:
        output = _chunked_attention(row, heads.dropout)
    if kind == "rca":
        return output, None
    symbols, keys = torch.split(output, [head_width, output.shape[-1] - head_width], dim=-1)
    assert heads.relation_queries is not None
    asking = heads.relation_queries.transpose(1, 2)[:, None]
    related = (asking * torch.unflatten(keys, -1, asking.shape[-2:])).sum(-1)
    return symbols, related * asking.shape[-1] ** -0.5


def causal_attention(
    queries: Float[Tensor, "rows heads query width"],
    keys: Float[Tensor, "rows heads key width"],
    values: Float[Tensor, "rows heads key value_width"],
    visible: Bool[Tensor, "#rows 1 query key"] | None = None,
    bias: Float[Tensor, "#rows #heads query key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "rows heads query value_width"]:
    """Attention, by torch or by `_ChunkedAttention`, whichever is quicker: causal; fewer queries than keys, without a
    mask, see all of them."""
    row = _RowTensors(queries, keys, values, None, None, None, bias, visible, None)
    if not _should_use_sdpa(row, dropout):
        return _chunked_attention(row, dropout)
    mask = visible
    if visible is not None and bias is not None:
        mask = bias.masked_fill(~visible, float("-inf"))
    if mask is None and queries.shape[2] == keys.shape[2]:
        return scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
    return scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)


def _should_use_sdpa(row: _RowTensors, dropout: float) -> bool:
    """Whether to use torch's SDPA: on a CPU it has no fused kernel for values wider than keys, or for dropout."""
    some = row.queries.shape[2] != row.keys.shape[2]
    alike = row.symbols.shape[-1] == row.queries.shape[-1] and not dropout and row.dropout_mask is None
    return bool(row.queries.is_cuda or some or alike)


@disable_compile
def _chunked_attention(row: _RowTensors, dropout: float) -> Tensor:
    output: Tensor = _ChunkedAttention.apply(*row, dropout)[0]  # type: ignore[no-untyped-call]
    return output


class _ChunkedAttention(Function):
    """Causal attention whose values (`symbols`) may be wider than its keys, some queries at a time, with only the keys
    that these see; before them come the weighted symbols by distance.

    The gradient of a softmax, with o = the sum of a_j v_j and g the gradient of o: a_j (g . v_j - g . o). The weights
    are further outputs, so that they can be kept.
    """

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *tensors, dropout = given
        row = _RowTensors(*tensors)
        far = 0 if row.distance_symbols is None else row.distance_symbols.shape[-1]
        output = row.queries.new_empty(*row.queries.shape[:3], far + row.symbols.shape[-1])
        keep = row.queries[..., 0].numel() * row.keys.shape[2] <= 2 * MAX_SAVED_WEIGHTS
        tiles, drawn = [], []
        for start, end in row.query_ranges():
            now = _draw_dropout(row.slice_queries(start, end), dropout)
            weights = _attention_weights(now)
            tiles += [weights] if keep else []
            drawn += [now.dropout_mask] if row.dropout_mask is None and dropout else []
            weights = _apply_dropout(weights, now, dropout)
            if far:
                output[:, :, start:end, :far] = _keys_to_distances(weights) @ now.distance_symbols
            output[:, :, start:end, far:] = weights @ now.symbols
        return output, *drawn, *tiles

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        *tensors, ctx.dropout = inputs
        ctx.given = len(tensors)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved_tensors = ctx.saved_tensors
        row, output, extra_tensors = (
            _RowTensors(*saved_tensors[: ctx.given]),
            saved_tensors[ctx.given],
            iter(saved_tensors[ctx.given + 1 :]),
        )
        ranges, gradients = list(row.query_ranges()), row.zero_gradients(ctx.needs_input_grad)
        dropout_masks = [next(extra_tensors) for _ in ranges] if row.dropout_mask is None and ctx.dropout else []
        saved_weights = list(extra_tensors)
        distance_width = 0 if row.distance_symbols is None else row.distance_symbols.shape[-1]
        scale, row_dot = row.queries.shape[-1] ** -0.5, (grad_output * output).sum(-1, keepdim=True)
        for number, (start, end) in enumerate(ranges):
            chunk, chunk_gradients, grad_chunk = (
                row.slice_queries(start, end),
                gradients.slice_queries(start, end),
                grad_output[:, :, start:end],
            )
            chunk = chunk._replace(dropout_mask=dropout_masks[number]) if dropout_masks else chunk
            weights = saved_weights[number] if saved_weights else _attention_weights(chunk)
            dropped_weights, grad_values = _apply_dropout(weights, chunk, ctx.dropout), grad_chunk[..., distance_width:]
            grad_weights = grad_values @ chunk.symbols.mT
            chunk_gradients.symbols.add_(dropped_weights.mT @ grad_values)
            if distance_width:
                grad_values = grad_chunk[..., :distance_width]
                grad_weights += _distances_to_keys(grad_values @ chunk.distance_symbols.mT)
                chunk_gradients.distance_symbols.add_(
                    (_keys_to_distances(dropped_weights).mT @ grad_values).sum_to_size(
                        chunk_gradients.distance_symbols.shape
                    )
                )
            grad_scores = (_apply_dropout(grad_weights, chunk, ctx.dropout) - row_dot[:, :, start:end]).mul_(weights)
            if chunk_gradients.bias is not None:
                chunk_gradients.bias.add_(grad_scores.sum_to_size(chunk_gradients.bias.shape))
            grad_scores *= scale
            chunk_gradients.queries.add_(grad_scores @ chunk.keys)
            chunk_gradients.keys.add_(grad_scores.mT @ chunk.queries)
        return (*gradients, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor], tuple[int]]:
        output = _ChunkedAttention.apply(*_fold_models(info.batch_size, dims, given))[0]  # type: ignore[no-untyped-call]
        return (torch.unflatten(output, 0, (info.batch_size, -1)),), (0,)


# Chunks ------------------------------------------------------------------------------------------------------------


@disable_compile
def _chunked_relational_attention(
    heads: RelationalHeads, kind: Variant, activation: Activation
) -> tuple[Tensor, Tensor | None]:
    made = _ChunkedRelationalAttention.apply(*_row_tensors(heads), kind, activation, heads.dropout)  # type: ignore[no-untyped-call]
    return made[0], made[1] if kind == "relational" else None


class _ChunkedRelationalAttention(Function):
    """What `_read` gives, so many queries at a time; in the backward each is read again."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        row, settings = _RowTensors(*given[:-3]), given[-3:]
        rows = [_draw_dropout(row.slice_queries(*piece), settings[-1]) for piece in row.query_ranges()]
        pieces = [_drop_none(_attend_queries(now, *settings)) for now in rows]
        drawn = [now.dropout_mask for now in rows] if row.dropout_mask is None and settings[-1] else []
        return *(torch.cat(parts, dim=2) for parts in zip(*pieces, strict=True)), *drawn

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.settings = inputs[-3:]
        made = 2 if inputs[-3] == "relational" else 1
        ctx.mark_non_differentiable(*output[made:])
        ctx.save_for_backward(*inputs[:-3], *output[made:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count = len(_RowTensors._fields)
        row, drawn = _RowTensors(*ctx.saved_tensors[:count]), ctx.saved_tensors[count:]
        found = row.zero_gradients(ctx.needs_input_grad)
        for number, (start, end) in enumerate(row.query_ranges()):
            into = found.slice_queries(start, end)
            wanted = [name for name, room in into._asdict().items() if room is not None]
            with torch.enable_grad():
                now = row.slice_queries(start, end)
                now = now._replace(dropout_mask=drawn[number]) if drawn else now
                leaves = {name: getattr(now, name).detach().requires_grad_() for name in wanted}
                outputs = _drop_none(_attend_queries(now._replace(**leaves), *ctx.settings))
                given = [gradient[:, :, start:end] for gradient in gradients[: len(outputs)]]
                made = torch.autograd.grad(outputs, list(leaves.values()), given)
            for name, one in zip(wanted, made, strict=True):
                getattr(into, name).add_(one)
        return (*found, None, None, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        made = _ChunkedRelationalAttention.apply(*_fold_models(info.batch_size, dims, given))  # type: ignore[no-untyped-call]
        return tuple(torch.unflatten(one, 0, (info.batch_size, -1)) for one in made), (0,) * len(made)


def _drop_none(both: tuple[Tensor, Tensor | None]) -> list[Tensor]:
    return [one for one in both if one is not None]


def _attend_queries(
    row: _RowTensors, variant: Variant, activation: Activation, dropout: float, distance_index: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What is attended to, rows x heads x queries x head width; and for `relational` the relations attended to, rows x
    heads x queries x relations. The queries are the last of a row, or so `distance_index` from each key (see
    `distances`)."""
    visible = _visible_mask(row)
    if variant == "rca" and activation != "softmax":
        scores = (row.queries * row.queries.shape[-1] ** -0.5) @ row.keys.mT
        weights = apply_activation(scores if row.bias is None else scores + row.bias, visible, activation) * visible
    else:
        weights = _attention_weights(row)
    weights, attended_relations = _apply_dropout(weights, row, dropout).to(row.queries.dtype), None
    if variant != "rca":
        relation_scores = (row.relation_queries * row.relation_keys.shape[-1] ** -0.5) @ row.relation_keys.mT
        relations = apply_activation(relation_scores, visible, activation)
        if variant == "disrca":
            weights = weights * relations
        else:
            attended_relations = (weights.transpose(1, 2) @ relations.permute(0, 2, 3, 1)).transpose(1, 2)
    if row.symbols is not None:
        return weights @ row.symbols, attended_relations
    if distance_index is None:
        return _keys_to_distances(weights) @ row.distance_symbols, attended_relations
    distance_weights = torch.zeros_like(weights).scatter_add(-1, distance_index[:, None].expand(weights.shape), weights)
    return distance_weights @ row.distance_symbols, attended_relations
