"""A fast decoding step of dual attention, with few operations per token.

All input projections are fused, and both output projections with each head's map of relations: with output projection O
and map of relations W, a relational head's output is O (s + W r) = O s + (O W) r, for the symbols s and relations r
attended to. Factors on scores are in the weights. The output equals that of `DualAttentionMixer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from numerate.architectures.symbols import SymbolsOf
from numerate.kernels.relational import FUNCTIONS, Activation
from numerate.mixers.attention_positions import Inside, together
from numerate.mixers.mixer import Context, OfAllRows


class Projections(OfAllRows):
    """The fused projections of a layer: from a token to queries and keys of all heads, values, relation queries and
    keys; and from the outputs of self-attention, symbols and relations (by relational head) to the output."""

    def __init__(
        self,
        symbols: SymbolsOf,
        inward: Sequence[tuple[nn.Linear, float]],
        own_out: nn.Linear,
        out: nn.Linear,
        by_head: Float[Tensor, "heads width relations"],
    ) -> None:
        self.symbols, self.relational = symbols, len(by_head)
        self.sizes = [len(one.weight) for one, _ in inward]
        self.inward = torch.cat([one.weight * scale for one, scale in inward])
        self.inward_bias = _bias([one for one, _ in inward])
        related = torch.einsum("ohd,hdl->ohl", torch.unflatten(out.weight, 1, by_head.shape[:2]), by_head)
        other = torch.cat([out.weight, related.flatten(1)], dim=1)
        self.outward: Tensor = torch.block_diag(own_out.weight, other)  # type: ignore[no-untyped-call]
        self.outward_bias = _bias([own_out, out])


def _bias(parts: list[nn.Linear]) -> Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    return torch.cat([part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in parts])


@dataclass
class Decoding:
    """The cache: rows x heads x capacity x width each. `values` are those of self-attention, then the symbols of
    relational heads."""

    keys: Tensor
    values: Tensor
    relation_keys: Tensor
    maps: Projections


def is_exact(x: Tensor, weight: Tensor) -> bool:
    """Whether fused decoding is exact: at least float32, without gradients."""
    stacked: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)
    busy = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)
    return x.dtype == weight.dtype and x.element_size() >= 4 and not (stacked or busy)


def decoded(
    x: Float[Tensor, "rows 1 width"],
    context: Context,
    state: Decoding,
    inside: Inside,
    symbol_values: nn.Linear,
    activation: Activation,
) -> Float[Tensor, "rows 1 width"]:
    """The output at the newest token of each row, which is added to the cache."""
    assert context.index is not None
    maps, rows, seen, place = state.maps, len(x), context.seen, together(context)
    size, relation_width = state.keys.shape[-1], state.relation_keys.shape[-1]
    made = linear(x[:, 0], maps.inward, maps.inward_bias)
    queries, keys, values, asking, answering = torch.split(made, maps.sizes, dim=-1)
    turned = made[:, : queries.shape[-1] + keys.shape[-1]].view(rows, -1, 1, size)
    queries, keys = inside.turned(turned, context).chunk(2, dim=1)
    symbols = symbol_values(maps.symbols(x, context)).expand(rows, -1, -1)[:, 0]
    heads = {
        "keys": keys[:, :, 0],
        "values": torch.cat([values, symbols], dim=-1).view(rows, -1, size),
        "relation_keys": answering.view(rows, -1, relation_width),
    }
    row = None if place is not None else torch.arange(rows, device=x.device)
    for name, new in heads.items():
        held: Tensor = getattr(state, name)
        if place is not None:
            held.select(2, place).copy_(new)
        else:
            held[row, :, context.index] = new
    scores = queries @ state.keys[:, :, :seen].mT
    compared = asking.view(rows, -1, 1, relation_width) @ state.relation_keys[:, :, :seen].mT
    relations = FUNCTIONS[activation](compared)
    if place is None:
        later = torch.arange(seen, device=x.device) > context.index[:, None]
        scores = scores.masked_fill(later[:, None, None], float("-inf"))
    weights = scores.softmax(-1)
    output = weights @ state.values[:, :, :seen]
    related = weights[:, -maps.relational :, 0] @ relations[:, :, 0].mT
    return linear(torch.cat([output.flatten(1), related.flatten(1)], dim=1), maps.outward, maps.outward_bias)[:, None]
