"""Reference implementation of relational attention, materialized for all pairs of queries and keys."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

Variant = Literal["relational", "rca", "disrca"]
Activation = Literal["identity", "relu", "sigmoid", "tanh", "gelu", "silu", "softmax"]

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda scores: scores,
    "relu": relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": partial(gelu, approximate="tanh"),
    "silu": silu,
}
"""Elementwise activations of relations; `softmax` is over all visible keys of a query."""


@dataclass
class RelationalHeads:
    """The inputs of relational heads; keys and symbols per head, or for `relational_attention` per group of heads.

    - `symbols`: the projected symbol of every key; or None, and `distance_symbols` has one for each distance between
      query and key, from the largest down to 0.
    - `relation_queries`, `relation_keys`: relations are their scaled products; None with `rca`, one per head with
      `disrca`.
    - `relation_proj`: each head's projection of the relations; only with `relational`.
    - `query_positions`: the position of each query in its row; None if there is one query for every key.
    - `visible`: the mask of visible keys, None for a causal mask; `bias` is added to the attention scores.
    - `dropout_mask`: True for attention weights that are kept, drawn with probability `dropout` of False.
    """

    queries: Float[Tensor, "rows heads query head_width"]
    keys: Float[Tensor, "rows groups key head_width"]
    symbols: Float[Tensor, "#rows groups key head_width"] | None = None
    distance_symbols: Float[Tensor, "#rows groups key head_width"] | None = None
    relation_queries: Float[Tensor, "rows relations query relation_width"] | None = None
    relation_keys: Float[Tensor, "rows relations key relation_width"] | None = None
    relation_proj: Float[Tensor, "heads head_width relations"] | None = None
    query_positions: Int[Tensor, "#rows query"] | None = None
    visible: Bool[Tensor, "#rows 1 query key"] | None = None
    bias: Float[Tensor, "#rows heads query key"] | None = None
    dropout_mask: Bool[Tensor, "rows heads query key"] | None = None
    dropout: float = 0.0


def reference_attention(
    heads: RelationalHeads, variant: Variant, activation: Activation
) -> Float[Tensor, "rows heads query head_width"]:
    """The output of each head, computed from the equations of Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727.

    With attention weights a_ij (a causal softmax), relations r_ij and symbols s_j:

    - `relational`: the sum over j of a_ij (W r_ij + s_j), with all relations r_ij and a matrix W per head.
    - `rca`: the sum of r_ij s_j, where r_ij are the activated attention scores.
    - `disrca`: the sum of a_ij r_ij s_j, with one relation per head.

    If a query attends to key 1 only, with relation 3, a head with W = 2 and symbol 5 outputs 11.
    """
    visible = heads.visible if heads.visible is not None else causal_mask(heads.queries, heads.keys)
    scores = torch.einsum("rhqd,rhkd->rhqk", heads.queries, heads.keys) * heads.queries.shape[-1] ** -0.5
    if heads.bias is not None:
        scores = scores + heads.bias
    weights = apply_activation(scores, visible, activation if variant == "rca" else "softmax")
    weights = torch.where(visible, weights, 0)
    if heads.dropout_mask is not None:
        weights = weights * heads.dropout_mask / (1 - heads.dropout)
    symbols = pairwise_symbols(heads)
    if variant != "rca":
        assert heads.relation_queries is not None
        assert heads.relation_keys is not None
        relation_scores = torch.einsum("rlqp,rlkp->rlqk", heads.relation_queries, heads.relation_keys)
        relations = apply_activation(relation_scores * heads.relation_keys.shape[-1] ** -0.5, visible, activation)
        if variant == "relational":
            assert heads.relation_proj is not None
            symbols = symbols + torch.einsum("hdl,rlqk->rhqkd", heads.relation_proj, relations)
        else:
            weights = weights * relations
    output: Tensor = torch.einsum("rhqk,rhqkd->rhqd", weights, symbols.expand(*weights.shape, -1))
    return output


def causal_mask(queries: Tensor, keys: Tensor) -> Bool[Tensor, "1 1 query key"]:
    """The causal mask; if there are fewer queries than keys, they are the last ones of a row."""
    num_queries, num_keys = queries.shape[2], keys.shape[2]
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=keys.device)
    return mask.tril(num_keys - num_queries)[None, None]


def apply_activation(
    scores: Float[Tensor, "rows heads query key"],
    visible: Bool[Tensor, "#rows 1 query key"],
    activation: Activation,
) -> Float[Tensor, "rows heads query key"]:
    """Applies the activation to scores. A softmax is over the visible keys of a query, so that it does not depend on
    later ones (it does in the published code, https://github.com/Awni00/abstract_transformer)."""
    if activation == "softmax":
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return scores.masked_fill(~visible, float("-inf")).to(dtype).softmax(-1).to(scores.dtype)
    return ACTIVATION_FUNCTIONS[activation](scores)


def distance_indices(heads: RelationalHeads) -> Int[Tensor, "#rows query key"]:
    """The row of `distance_symbols` for every pair; later keys, which are masked, get distance 0."""
    num_keys = heads.keys.shape[2]
    key_positions = torch.arange(num_keys, device=heads.keys.device)
    query_positions = key_positions[None] if heads.query_positions is None else heads.query_positions
    return (num_keys - 1 - query_positions[:, :, None] + key_positions).clamp(max=num_keys - 1)


def pairwise_symbols(heads: RelationalHeads) -> Float[Tensor, "#rows heads #query key head_width"]:
    """The symbol of every pair of a query and a key."""
    if heads.symbols is not None:
        return heads.symbols[:, :, None]
    assert heads.distance_symbols is not None
    row_index = torch.arange(len(heads.distance_symbols), device=heads.keys.device)[:, None, None]
    return heads.distance_symbols.transpose(1, 2)[row_index, distance_indices(heads)].permute(0, 3, 1, 2, 4)
