"""Attention maps: the attention weights of a forward pass, recorded on request."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from numerate.mixers.mixer import TokenMixer

MapKind = Literal["attention", "relational attention", "relations", "symbols", "cross attention"]
"""The kind of a map. All but `relations` sum to 1 for each query."""


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one layer in one loop, by kind, each rows x heads x query x key.

    `component` is encoder or decoder if a model has both, otherwise empty; layers and loops count from 0 within it.

    - `attention`: weights of self-attention heads; `cross attention`: weights on the encoder's outputs.
    - `relational attention`: attention weights of relational heads.
    - `relations`: the activated relations (any numbers); 0 for masked keys.
    - `symbols`: attention weights of tokens on a library of symbols.
    """

    layer: int
    loop: int
    maps: Mapping[MapKind, Tensor]
    component: str = ""


@dataclass
class RecordedMaps:
    """The recorded maps, in the order in which layers ran."""

    layers: list[LayerMaps] = field(default_factory=list)


@contextmanager
def record_maps(model: nn.Module) -> Iterator[RecordedMaps]:
    """Records the maps of all mixers in every forward pass of the model over whole rows.

        with record_maps(model) as recorded:
            model(tokens)
        recorded.layers[0].maps["attention"].shape  # rows, heads, query, key

    Outside of the context nothing is recorded, at no cost. Layers without attention have no maps.
    """
    recorded = RecordedMaps()
    loop_counts: dict[int, int] = {}
    mixers = [part for part in model.modules() if isinstance(part, TokenMixer)]

    def record(mixer: TokenMixer, given: tuple[Any, ...]) -> None:
        turn = loop_counts.get(id(mixer), 0)
        loop_counts[id(mixer)] = turn + 1
        with torch.no_grad():
            found = mixer.attention_maps(*given)
        if found:
            recorded.layers.append(LayerMaps(mixers.index(mixer), turn, found))

    hooks = [mixer.register_forward_pre_hook(record) for mixer in mixers]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def attention_weights(
    queries: Float[Tensor, "rows heads query head_width"],
    keys: Float[Tensor, "rows heads key head_width"],
    mask: Bool[Tensor, "#rows #heads #query key"] | Float[Tensor, "#rows #heads #query key"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "rows heads query key"]:
    """The weights of `scaled_dot_product_attention`, which does not return them. The mask is True for visible
    keys, or is added to the scores; None is a causal mask."""
    kept = torch.promote_types(queries.dtype, torch.float32)
    scores = (queries @ keys.mT).to(kept) * (queries.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()[None, None]
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)
