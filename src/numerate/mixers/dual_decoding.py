"""Dual attention of one more token of each row, with few operations: a token costs little beside reading its weights.

All linear maps from a token are one, and both output maps are one that also holds each head's map of relations: with
output map O and map of relations W, what a relational head says is O (s + W r) = O s + (O W) r, for the symbols s and
relations r that it attends to. Factors on scores are in the weights. What is said is that of `DualAttentionMixer`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from numerate.mixers.inside import together
from numerate.mixers.mixer import Context, OfAllRows
from numerate.mixers.relational import FUNCTIONS
from numerate.mixers.symbols import SymbolsOf, SymbolsPart

if TYPE_CHECKING:
    from numerate.mixers.dual_attention import DualAttentionMixer


class Maps(OfAllRows):
    """The maps of a layer: from a token to queries and keys of all heads, values, relation queries and keys; and from
    what self-attention says, symbols and relations attended to (of each relational head in turn) to the output."""

    def __init__(self, part: "DualAttentionMixer", context: Context) -> None:
        assert isinstance(part.symbols, SymbolsPart)
        # Layers that share the part that gives symbols share what is made ready of it.
        name = ("symbols", id(part.symbols))
        if name not in context.prepared:
            context.prepared[name] = part.symbols.for_steps()
        self.symbols: SymbolsOf = context.prepared[name]
        queries, asking = part.queries, part.relation_queries
        answering = asking if part.spec.symmetric else part.relation_keys
        scales = (part.size**-0.5, 1.0, 1.0, part.relation_width**-0.5, 1.0)
        inward = list(zip((queries, part.keys, part.values, asking, answering), scales, strict=True))
        self.sizes = [len(one.weight) for one, _ in inward]
        self.inward = torch.cat([one.weight * scale for one, scale in inward])
        self.inward_bias = _bias([one for one, _ in inward])
        own, out = part.own_out.weight, part.out.weight
        by_head = torch.unflatten(part.relation_map.weight, 0, (part.other, part.size))
        related = torch.einsum("ohd,hdl->ohl", torch.unflatten(out, 1, (part.other, part.size)), by_head)
        other = torch.cat([out, related.flatten(1)], dim=1)
        self.outward: Tensor = torch.block_diag(own, other)  # type: ignore[no-untyped-call]
        self.outward_bias = _bias([part.own_out, part.out])


def _bias(parts: list[nn.Linear]) -> Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    return torch.cat([part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in parts])


@dataclass
class Decoding:
    """What the places so far are seen by: rows x heads x capacity x width each. `values` are those of self-attention,
    then the symbols of relational heads."""

    keys: Tensor
    values: Tensor
    relation_keys: Tensor
    maps: Maps


def can_decode(part: "DualAttentionMixer", x: Tensor, context: Context) -> bool:
    """Whether a layer can: both sorts of heads, each with a key of its own; relations that are not those of a softmax;
    a symbol for each token, nothing hidden and nothing added to scores; at least float32, without gradients."""
    spec, inside = part.spec, part.inside
    if spec.variant != "relational" or spec.function() not in FUNCTIONS or not isinstance(part.symbols, SymbolsPart):
        return False
    if spec.shared_queries or spec.key_value_heads is not None or not part.own or context.hidden is not None:
        return False
    linear_maps = (one for name, one in part.named_children() if name not in ("symbols", "inside"))
    if inside.biases or inside.contextual or any(type(one) is not nn.Linear for one in linear_maps):
        return False
    exact = x.dtype == part.queries.weight.dtype and x.element_size() >= 4
    stacked: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)
    busy = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)
    return exact and not (stacked or busy or (part.training and spec.dropout))


def step(
    part: "DualAttentionMixer", x: Float[Tensor, "rows 1 width"], context: Context, state: Decoding
) -> Float[Tensor, "rows 1 width"]:
    """What the newest token of each row says, which is put to the others."""
    assert context.index is not None
    maps, rows, seen, place = state.maps, len(x), context.seen, together(context)
    made = linear(x[:, 0], maps.inward, maps.inward_bias)
    queries, keys, values, asking, answering = torch.split(made, maps.sizes, dim=-1)
    turned = made[:, : queries.shape[-1] + keys.shape[-1]].view(rows, -1, 1, part.size)
    queries, keys = part.inside.turned(turned, context).chunk(2, dim=1)
    symbols = part.symbol_values(maps.symbols(x, context)).expand(rows, -1, -1)[:, 0]
    heads = {
        "keys": keys[:, :, 0],
        "values": torch.cat([values, symbols], dim=-1).view(rows, -1, part.size),
        "relation_keys": answering.view(rows, -1, part.relation_width),
    }
    row = None if place is not None else torch.arange(rows, device=x.device)
    for name, new in heads.items():
        held: Tensor = getattr(state, name)
        if place is not None:
            held.select(2, place).copy_(new)
        else:
            held[row, :, context.index] = new
    scores = queries @ state.keys[:, :, :seen].mT
    compared = asking.view(rows, -1, 1, part.relation_width) @ state.relation_keys[:, :, :seen].mT
    relations = FUNCTIONS[part.spec.function()](compared)
    if place is None:
        later = torch.arange(seen, device=x.device) > context.index[:, None]
        scores = scores.masked_fill(later[:, None, None], float("-inf"))
    weights = scores.softmax(-1)
    said = weights @ state.values[:, :, :seen]
    related = weights[:, part.own :, 0] @ relations[:, :, 0].mT
    return linear(torch.cat([said.flatten(1), related.flatten(1)], dim=1), maps.outward, maps.outward_bias)[:, None]
