"""Relational attention by its definition, materialized for all pairs of queries and keys."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

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
      query and key, the farthest first and that of distance 0 last.
    - `relation_queries`, `relation_keys`: what relations compare, none with `rca`; with `disrca` one for each head.
    - `relation_proj`: what each head makes of the relations, with `relational` alone.
    - `query_positions`: where in its row each query stands; None where the queries are those of all keys.
    - `visible`: which keys a query sees, None for those up to itself; `bias` is added to the scores of attention.
    - `dropout_mask`: which attention weights are not dropped, and the `dropout` that drew them.
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
    """The output of each head, by the equations of Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727.

    With attention weights a_ij (a causal softmax), relations r_ij and symbols s_j:

    - `relational`: the sum over j of a_ij (W r_ij + s_j), W a map for each head, r_ij all relations.
    - `rca`: the sum of r_ij s_j, r_ij the activated scores of attention themselves.
    - `disrca`: the sum of a_ij r_ij s_j, one relation for each head.

    Where a query i attends to key 1 only, with relation 3, a head with W = 2 and the symbol 5 gives 11.
    """
    visible = heads.visible if heads.visible is not None else causal_mask(heads.queries, heads.keys)
    scores = torch.einsum("rhqd,rhkd->rhqk", heads.queries, heads.keys) * heads.queries.shape[-1] ** -0.5
    if heads.bias is not None:
        scores = scores + heads.bias
    weights = apply_activation(scores, visible, activation if variant == "rca" else "softmax") * visible
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
    """The causal mask; fewer queries than keys are the last ones of a row."""
    target_positions, count = queries.shape[2], keys.shape[2]
    return torch.ones(target_positions, count, dtype=torch.bool, device=keys.device).tril(count - target_positions)[
        None, None
    ]


def apply_activation(
    scores: Float[Tensor, "rows heads query key"],
    visible: Bool[Tensor, "#rows 1 query key"],
    activation: Activation,
) -> Float[Tensor, "rows heads query key"]:
    """Scores through the activation. A softmax is over the keys that a query sees, so that none depends on later
    ones (the published code's does, https://github.com/Awni00/abstract_transformer)."""
    if activation == "softmax":
        kept = torch.promote_types(scores.dtype, torch.float32)
        return scores.masked_fill(~visible, float("-inf")).to(kept).softmax(-1).to(scores.dtype)
    return ACTIVATION_FUNCTIONS[activation](scores)


def distance_indices(heads: RelationalHeads) -> Int[Tensor, "#rows query key"]:
    """The row of `distance_symbols` for every pair; later keys, which are masked, get distance 0."""
    count = heads.keys.shape[2]
    key = torch.arange(count, device=heads.keys.device)
    places = key[None] if heads.query_positions is None else heads.query_positions
    return (count - 1 - places[:, :, None] + key).clamp(max=count - 1)


def pairwise_symbols(heads: RelationalHeads) -> Float[Tensor, "#rows heads #query key head_width"]:
    """The symbol of every pair of a query and a key."""
    if heads.symbols is not None:
        return heads.symbols[:, :, None]
    assert heads.distance_symbols is not None
    row = torch.arange(len(heads.distance_symbols), device=heads.keys.device)[:, None, None]
    return heads.distance_symbols.transpose(1, 2)[row, distance_indices(heads)].permute(0, 3, 1, 2, 4)


class RelationalInputs(NamedTuple):
    """What is read: keys and symbols have as many groups as divide the heads, one after the other."""

    queries: Float[Tensor, "rows heads time width"]
    keys: Float[Tensor, "rows groups time width"]
    symbols: Float[Tensor, "rows groups time width"]
    relation_queries: Float[Tensor, "rows relations time relation_width"]
    relation_keys: Float[Tensor, "rows relations time relation_width"]


class RelationalOutputs(NamedTuple):
    """Symbols and relations attended to, and the logarithm of each query's sum of exponentials."""

    symbols: Float[Tensor, "rows heads time width"]
    relations: Float[Tensor, "rows heads time relations"]
    logsumexp: Float[Tensor, "rows heads time"]


def sum_over_groups(
    gradient: Float[Tensor, "rows heads time width"], reference: Float[Tensor, "rows groups time width"]
) -> Float[Tensor, "rows groups time width"]:
    """Gradients of heads as those of the groups that they share."""
    if gradient.shape[1] == reference.shape[1]:
        return gradient.to(reference.dtype)
    return torch.unflatten(gradient, 1, (reference.shape[1], -1)).sum(2).to(reference.dtype)
