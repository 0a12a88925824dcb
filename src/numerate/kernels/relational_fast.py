"""Relational attention without materializing all pairs: exact, and faster than the reference."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from numerate.kernels.operators import as_operator
from numerate.kernels.relational import (
    Activation,
    RelationalHeads,
    Variant,
    apply_activation,
    causal_mask,
    distance_indices,
    reference_attention,
)

RelationalBackend = Literal["auto", "plain", "values", "chunks"]

QUERY_CHUNK_SIZE = {"cpu": 64, "cuda": 256}
"""Number of queries per chunk."""

MAX_SAVED_WEIGHTS = 2**24
"""More attention weights than this (64 MiB of float32) are recomputed in the backward pass instead of being saved."""


def relational_attention(
    heads: RelationalHeads, variant: Variant, activation: Activation, backend: RelationalBackend = "auto"
) -> Float[Tensor, "rows heads query head_width"]:
    """The same as `reference_attention` (`plain`) up to rounding, by one of these backends:

    - `values`: for relations without activation, which need not be computed for every pair. The sum over j of
      a_ij (q_i . k_j) is q_i times the sum of a_ij k_j, so relation keys are attended to like values, along with the
      symbols.
    - `chunks`: `QUERY_CHUNK_SIZE` queries at a time, with only their visible keys; for every activation.

    For symbols that depend on the distance, both shift the weights from keys to distances.
    """
    backend = select_backend(heads, variant, activation) if backend == "auto" else backend
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
    """The backend that `auto` selects: `values` if it is available and faster, and on a CUDA device wherever it is
    available, where PyTorch's attention computes it.

    For a pair of tokens `values` multiplies heads x relations x width numbers, `chunks` a fraction of them but with
    passes over memory for every relation. The threshold between them was measured on one CPU core with rows of 512
    tokens: 4 x 4 x 64 takes equally long with both, 8 x 8 x 64 takes 1.6 times as long with `values`, 8 x 32 x 8 takes
    1.6 times as long with `chunks`.
    """
    if not supports_values(variant, activation) or heads.query_positions is not None:
        return "chunks"
    if heads.relation_keys is None or heads.queries.is_cuda:
        return "values"
    _, relations, _, width = heads.relation_keys.shape
    products = heads.queries.shape[1] * relations * width
    return "values" if products <= 700 + relations * (90 + 2 * width) else "chunks"


def supports_values(variant: Variant, activation: Activation) -> bool:
    """Whether the backend `values` applies: weights must be from a softmax, and relations without activation."""
    return (variant, activation) in (("relational", "identity"), ("rca", "softmax"))


def _repeat_kv(heads: RelationalHeads) -> RelationalHeads:
    """Repeats the keys and symbols of each group for each of its heads."""
    num_heads = heads.queries.shape[1]

    def repeat(x: Tensor) -> Tensor:
        return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)

    symbols, distance_symbols = (None if x is None else repeat(x) for x in (heads.symbols, heads.distance_symbols))
    return replace(heads, keys=repeat(heads.keys), symbols=symbols, distance_symbols=distance_symbols)


# Chunks of queries -------------------------------------------------------------------------------------------------


class _RowTensors(NamedTuple):
    """The tensors of `RelationalHeads` with a dimension of rows, or their gradients."""

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
        """The queries from `start` to `end` and their visible keys: views, so that gradients are added in place."""
        slices = {
            **dict.fromkeys(("queries", "relation_queries"), (..., slice(start, end), slice(None))),
            **dict.fromkeys(("keys", "symbols", "relation_keys"), (..., slice(0, end), slice(None))),
            **dict.fromkeys(("bias", "visible", "dropout_mask"), (..., slice(start, end), slice(0, end))),
        }
        if self.distance_symbols is not None:
            slices["distance_symbols"] = (..., slice(self.distance_symbols.shape[2] - end, None), slice(None))
        tensors = self._asdict()
        return _RowTensors(**{name: x if x is None else x[slices[name]] for name, x in tensors.items()})

    def zero_gradients(self, needed: tuple[bool, ...]) -> "_RowTensors":
        """Zeros for the gradients; None for the biases, which are large, if they need no gradient."""
        gradients = _RowTensors(
            *(torch.zeros_like(x) if x is not None and x.is_floating_point() else None for x in self)
        )
        return gradients if needed[_RowTensors._fields.index("bias")] else gradients._replace(bias=None)


def _row_tensors(heads: RelationalHeads) -> _RowTensors:
    return _RowTensors(*(getattr(heads, name) for name in _RowTensors._fields))


def _attention_weights(row: _RowTensors) -> Tensor:
    """The attention weights of the last queries of a row."""
    scores = (row.queries * row.queries.shape[-1] ** -0.5) @ row.keys.mT
    if row.bias is not None:
        scores = scores + row.bias
    dtype = torch.promote_types(scores.dtype, torch.float32)
    weights: Tensor = scores.masked_fill(~_visible_mask(row), float("-inf")).softmax(-1, dtype=dtype)
    return weights.to(row.queries.dtype)


def _visible_mask(row: _RowTensors) -> Tensor:
    if row.visible is not None:
        visible: Tensor = row.visible
        return visible
    return causal_mask(row.queries, row.keys)


def _draw_dropout(row: _RowTensors, dropout: float) -> _RowTensors:
    """Draws the dropout mask, unless it is set (in the backward pass)."""
    if not dropout or row.dropout_mask is not None:
        return row
    mask = row.queries.new_empty(*row.queries.shape[:3], row.keys.shape[2], dtype=torch.bool)
    return row._replace(dropout_mask=mask.bernoulli_(1 - dropout))


def _apply_dropout(weights: Tensor, row: _RowTensors, dropout: float) -> Tensor:
    return weights if row.dropout_mask is None else weights * row.dropout_mask * (1 / (1 - dropout))


def _keys_to_distances(weights: Tensor) -> Tensor:
    """Converts weights of keys to weights of distances, from the largest to 0: the last row is not shifted, each row
    above it is shifted one more to the right. Weights shifted out are 0, as they belong to later keys.

    >>> _keys_to_distances(torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]))[0].tolist()
    [0.0, 1.0, 2.0]
    """
    queries, keys = weights.shape[-2:]
    return torch.unflatten(pad(weights.flatten(-2), (queries - 1, 1)), -1, (queries, keys + 1))[..., :-1]


def _distances_to_keys(weights: Tensor) -> Tensor:
    """The gradient of `_keys_to_distances`."""
    queries, keys = weights.shape[-2:]
    return torch.unflatten(pad(weights, (0, 1)).flatten(-2)[..., queries - 1 : -1], -1, (queries, keys))


# Values ------------------------------------------------------------------------------------------------------------


def _attend_to_relation_keys(heads: RelationalHeads, variant: Variant) -> tuple[Tensor, Tensor | None]:
    num_heads, head_width = heads.queries.shape[1], heads.queries.shape[-1]
    value_tensors = [] if heads.symbols is None else [heads.symbols.expand(len(heads.keys), -1, -1, -1)]
    if variant == "relational":
        assert heads.relation_keys is not None
        value_tensors.append(heads.relation_keys.transpose(1, 2).flatten(2)[:, None].expand(-1, num_heads, -1, -1))
    values = torch.cat(value_tensors, dim=-1) if value_tensors else heads.keys[..., :0]
    row = _row_tensors(heads)._replace(symbols=values, relation_queries=None, relation_keys=None)
    if heads.distance_symbols is None and _should_use_sdpa(row, heads.dropout):
        output = causal_attention(heads.queries, heads.keys, values, heads.visible, heads.bias, heads.dropout)
    else:
        output = _chunked_attention(row, heads.dropout)
    if variant == "rca":
        return output, None
    symbols, keys = torch.split(output, [head_width, output.shape[-1] - head_width], dim=-1)
    assert heads.relation_queries is not None
    queries = heads.relation_queries.transpose(1, 2)[:, None]
    relations = (queries * torch.unflatten(keys, -1, queries.shape[-2:])).sum(-1)
    return symbols, relations * queries.shape[-1] ** -0.5


def causal_attention(
    queries: Float[Tensor, "rows heads query width"],
    keys: Float[Tensor, "rows heads key width"],
    values: Float[Tensor, "rows heads key value_width"],
    visible: Bool[Tensor, "#rows 1 query key"] | None = None,
    bias: Float[Tensor, "#rows #heads query key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "rows heads query value_width"]:
    """Causal attention by PyTorch or by `_ChunkedAttention`, whichever is faster. If there are fewer queries than keys
    and no mask, every query attends to all keys."""
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
    has_fewer_queries = row.queries.shape[2] != row.keys.shape[2]
    has_dropout = bool(dropout) or row.dropout_mask is not None
    has_fused_kernel = row.symbols.shape[-1] == row.queries.shape[-1] and not has_dropout
    return bool(row.queries.is_cuda or has_fewer_queries or has_fused_kernel)


def _chunked_attention(row: _RowTensors, dropout: float) -> Tensor:
    output: Tensor = _apply_chunked_attention(*row, dropout)[0]
    return output


class _ChunkedAttention(Function):
    """Causal attention over chunks of queries with their visible keys; values (`symbols`) may be wider than keys. In
    the output, the weighted sums of distance symbols come first.

    The gradient of a softmax, with o = the sum of a_j v_j and g the gradient of o: a_j (g . v_j - g . o). The weights
    are additional outputs, so that they can be saved for the backward pass.
    """

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        *tensors, dropout = inputs
        row = _RowTensors(*tensors)
        distance_width = 0 if row.distance_symbols is None else row.distance_symbols.shape[-1]
        output = row.queries.new_empty(*row.queries.shape[:3], distance_width + row.symbols.shape[-1])
        save_weights = row.queries[..., 0].numel() * row.keys.shape[2] <= 2 * MAX_SAVED_WEIGHTS
        saved_weights, dropout_masks = [], []
        for start, end in row.query_ranges():
            chunk = _draw_dropout(row.slice_queries(start, end), dropout)
            weights = _attention_weights(chunk)
            saved_weights += [weights] if save_weights else []
            dropout_masks += [chunk.dropout_mask] if row.dropout_mask is None and dropout else []
            weights = _apply_dropout(weights, chunk, dropout)
            if distance_width:
                output[:, :, start:end, :distance_width] = _keys_to_distances(weights) @ chunk.distance_symbols
            output[:, :, start:end, distance_width:] = weights @ chunk.symbols
        return output, *dropout_masks, *saved_weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        *tensors, ctx.dropout = inputs
        ctx.num_inputs = len(tensors)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved_tensors = ctx.saved_tensors
        row, output, extra_tensors = (
            _RowTensors(*saved_tensors[: ctx.num_inputs]),
            saved_tensors[ctx.num_inputs],
            iter(saved_tensors[ctx.num_inputs + 1 :]),
        )
        ranges, gradients = list(row.query_ranges()), row.zero_gradients(ctx.needs_input_grad)
        dropout_masks = [next(extra_tensors) for _ in ranges] if row.dropout_mask is None and ctx.dropout else []
        saved_weights = list(extra_tensors)
        distance_width = 0 if row.distance_symbols is None else row.distance_symbols.shape[-1]
        scale, row_dot = row.queries.shape[-1] ** -0.5, (grad_output * output).sum(-1, keepdim=True)
        for index, (start, end) in enumerate(ranges):
            chunk, chunk_gradients, grad_chunk = (
                row.slice_queries(start, end),
                gradients.slice_queries(start, end),
                grad_output[:, :, start:end],
            )
            chunk = chunk._replace(dropout_mask=dropout_masks[index]) if dropout_masks else chunk
            weights = saved_weights[index] if saved_weights else _attention_weights(chunk)
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


_apply_chunked_attention = as_operator(_ChunkedAttention)


# Chunks ------------------------------------------------------------------------------------------------------------


def _chunked_relational_attention(
    heads: RelationalHeads, variant: Variant, activation: Activation
) -> tuple[Tensor, Tensor | None]:
    inputs = (*_row_tensors(heads), variant, activation, heads.dropout)
    outputs = _apply_chunked_relational_attention(*inputs)
    return outputs[0], outputs[1] if variant == "relational" else None


class _ChunkedRelationalAttention(Function):
    """`_attend_queries` for one chunk of queries after the other, each recomputed in the backward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        row, settings = _RowTensors(*inputs[:-3]), inputs[-3:]
        chunks = [_draw_dropout(row.slice_queries(start, end), settings[-1]) for start, end in row.query_ranges()]
        outputs = [_drop_none(_attend_queries(chunk, *settings)) for chunk in chunks]
        dropout_masks = [chunk.dropout_mask for chunk in chunks] if row.dropout_mask is None and settings[-1] else []
        return *(torch.cat(tensors, dim=2) for tensors in zip(*outputs, strict=True)), *dropout_masks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.settings = inputs[-3:]
        num_outputs = 2 if inputs[-3] == "relational" else 1
        ctx.mark_non_differentiable(*output[num_outputs:])
        ctx.save_for_backward(*inputs[:-3], *output[num_outputs:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        num_inputs = len(_RowTensors._fields)
        row, dropout_masks = _RowTensors(*ctx.saved_tensors[:num_inputs]), ctx.saved_tensors[num_inputs:]
        gradients = row.zero_gradients(ctx.needs_input_grad)
        for index, (start, end) in enumerate(row.query_ranges()):
            chunk_gradients = gradients.slice_queries(start, end)
            names = [name for name, gradient in chunk_gradients._asdict().items() if gradient is not None]
            with torch.enable_grad():
                chunk = row.slice_queries(start, end)
                chunk = chunk._replace(dropout_mask=dropout_masks[index]) if dropout_masks else chunk
                leaves = {name: getattr(chunk, name).detach().requires_grad_() for name in names}
                outputs = _drop_none(_attend_queries(chunk._replace(**leaves), *ctx.settings))
                grad_chunks = [gradient[:, :, start:end] for gradient in grad_outputs[: len(outputs)]]
                leaf_gradients = torch.autograd.grad(outputs, list(leaves.values()), grad_chunks)
            for name, gradient in zip(names, leaf_gradients, strict=True):
                getattr(chunk_gradients, name).add_(gradient)
        return (*gradients, None, None, None)


_apply_chunked_relational_attention = as_operator(_ChunkedRelationalAttention)


def _drop_none(tensors: tuple[Tensor, Tensor | None]) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _attend_queries(
    row: _RowTensors, variant: Variant, activation: Activation, dropout: float, distance_index: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The weighted sums of symbols, rows x heads x queries x head width, and for `relational` of relations, rows x
    heads x queries x relations. The queries are the last of a row, unless `distance_index` (see `distance_indices`)
    gives their distances from each key."""
    visible = _visible_mask(row)
    if variant == "rca" and activation != "softmax":
        scores = (row.queries * row.queries.shape[-1] ** -0.5) @ row.keys.mT
        weights = apply_activation(scores if row.bias is None else scores + row.bias, visible, activation)
        weights = torch.where(visible, weights, 0)
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
