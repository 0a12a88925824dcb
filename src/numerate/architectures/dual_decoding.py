"""A fast decoding step of dual attention, with few operations per token.

All input projections are packed into one, and both output projections into one with each head's relation projection:
with output projection O and relation projection W, a relational head's output is O (s + W r) = O s + (O W) r, for the
symbols s and relations r attended to. The factors on scores are folded into the weights. The output equals that of
`DualAttentionMixer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from numerate.architectures.symbols import SymbolFunction
from numerate.kernels.relational import ACTIVATION_FUNCTIONS, Activation
from numerate.mixers.attention_positions import AttentionPositions, common_cache_position
from numerate.mixers.mixer import Context, RowIndependentState


class DecodingProjections(RowIndependentState):
    """The fused projections of a layer: from a token to queries and keys of all heads, values, relation queries and
    keys; and from the outputs of self-attention, symbols and relations (by relational head) to the output."""

    def __init__(
        self,
        symbols: SymbolFunction,
        in_projections: Sequence[tuple[nn.Linear, float]],
        self_out_proj: nn.Linear,
        relational_out_proj: nn.Linear,
        relation_proj: Float[Tensor, "heads width relations"],
    ) -> None:
        self.symbol_function, self.num_relational_heads = symbols, len(relation_proj)
        self.split_sizes = [len(module.weight) for module, _ in in_projections]
        self.in_weight = torch.cat([module.weight * scale for module, scale in in_projections])
        self.in_bias = _packed_bias([module for module, _ in in_projections])
        relation_weight = torch.einsum(
            "ohd,hdl->ohl", torch.unflatten(relational_out_proj.weight, 1, relation_proj.shape[:2]), relation_proj
        )
        relational_weight = torch.cat([relational_out_proj.weight, relation_weight.flatten(1)], dim=1)
        self.out_weight: Tensor = torch.block_diag(self_out_proj.weight, relational_weight)  # type: ignore[no-untyped-call]
        self.out_bias = _packed_bias([self_out_proj, relational_out_proj])


def _packed_bias(modules: list[nn.Linear]) -> Tensor | None:
    if all(module.bias is None for module in modules):
        return None
    return torch.cat(
        [module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias for module in modules]
    )


@dataclass
class DecodingCache:
    """The cache: rows x heads x capacity x width each. `values` are those of self-attention, then the symbols of
    relational heads."""

    keys: Tensor
    values: Tensor
    relation_keys: Tensor
    projections: DecodingProjections


def decode_step(
    x: Float[Tensor, "rows 1 width"],
    context: Context,
    cache: DecodingCache,
    attention_positions: AttentionPositions,
    symbol_v_proj: nn.Linear,
    activation: Activation,
) -> Float[Tensor, "rows 1 width"]:
    """The output at the newest token of each row, which is added to the cache."""
    assert context.cache_position is not None
    projections, rows, cached_length, common_position = (
        cache.projections,
        len(x),
        context.cached_length,
        common_cache_position(context),
    )
    head_width, relation_width = cache.keys.shape[-1], cache.relation_keys.shape[-1]
    projected = linear(x[:, 0], projections.in_weight, projections.in_bias)
    queries, keys, values, relation_queries, relation_keys = torch.split(projected, projections.split_sizes, dim=-1)
    unrotated = projected[:, : queries.shape[-1] + keys.shape[-1]].view(rows, -1, 1, head_width)
    queries, keys = attention_positions.rotate(unrotated, context).chunk(2, dim=1)
    symbols = symbol_v_proj(projections.symbol_function(x, context)).expand(rows, -1, -1)[:, 0]
    new_entries = {
        "keys": keys[:, :, 0],
        "values": torch.cat([values, symbols], dim=-1).view(rows, -1, head_width),
        "relation_keys": relation_keys.view(rows, -1, relation_width),
    }
    row_index = None if common_position is not None else torch.arange(rows, device=x.device)
    for name, entry in new_entries.items():
        tensor: Tensor = getattr(cache, name)
        if common_position is not None:
            tensor.select(2, common_position).copy_(entry)
        else:
            tensor[row_index, :, context.cache_position] = entry
    scores = queries @ cache.keys[:, :, :cached_length].mT
    relation_scores = relation_queries.view(rows, -1, 1, relation_width) @ cache.relation_keys[:, :, :cached_length].mT
    relations = ACTIVATION_FUNCTIONS[activation](relation_scores)
    if common_position is None:
        is_later = torch.arange(cached_length, device=x.device) > context.cache_position[:, None]
        scores = scores.masked_fill(is_later[:, None, None], float("-inf"))
    weights = scores.softmax(-1)
    output = weights @ cache.values[:, :, :cached_length]
    attended_relations = weights[:, -projections.num_relational_heads :, 0] @ relations[:, :, 0].mT
    return linear(
        torch.cat([output.flatten(1), attended_relations.flatten(1)], dim=1),
        projections.out_weight,
        projections.out_bias,
    )[:, None]
