"""Who attends to whom: the very weights that a forward uses, written down when somebody asks for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from numerate.mixers.mixer import TokenMixer

Sort = Literal["attention", "relational attention", "relations", "symbols", "cross attention"]
"""Of what a map is. All but `relations` are shares that add up to 1 for each query."""


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one layer in one turn: by their sort, each rows x heads x query x key.

    `part` is encoder or decoder where a model has both, and else empty; layers and turns count from 0 within it.

    - `attention`: the weights of heads of self-attention; `cross attention` those on what an encoder read.
    - `relational attention`: the weights by which relational heads attend.
    - `relations`: the relations themselves, which are any numbers, behind their activation; 0 for keys not seen.
    - `symbols`: how much of each symbol of a library a token takes; its keys are symbols.
    """

    layer: int
    turn: int
    maps: Mapping[Sort, Tensor]
    part: str = ""


@dataclass
class Observed:
    """What was seen while a model ran, in the order in which its layers came."""

    layers: list[LayerMaps] = field(default_factory=list)


@contextmanager
def observed(model: nn.Module) -> Iterator[Observed]:
    """Within it every forward of the model over whole rows leaves the maps of its mixers.

    >>> with observed(model) as seen:
    ...     model(tokens)
    >>> seen.layers[0].maps["attention"].shape
    torch.Size([1, 4, 6, 6])

    Nothing of it is computed, and no forward is slower, outside. Layers without any maps leave none.
    """
    seen = Observed()
    turns: dict[int, int] = {}
    mixers = [part for part in model.modules() if isinstance(part, TokenMixer)]

    def note(mixer: TokenMixer, given: tuple[Any, ...]) -> None:
        turn = turns.get(id(mixer), 0)
        turns[id(mixer)] = turn + 1
        with torch.no_grad():
            found = mixer.maps(*given)
        if found:
            seen.layers.append(LayerMaps(mixers.index(mixer), turn, found))

    hooks = [mixer.register_forward_pre_hook(note) for mixer in mixers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def weights_of(
    queries: Float[Tensor, "rows heads query head_width"],
    keys: Float[Tensor, "rows heads key head_width"],
    mask: Bool[Tensor, "#rows #heads #query key"] | Float[Tensor, "#rows #heads #query key"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "rows heads query key"]:
    """The weights of `scaled_dot_product_attention`, which never tells them. The mask is True where a key is seen, or
    added to the scores; without one each query sees the keys up to itself."""
    kept = torch.promote_types(queries.dtype, torch.float32)
    scores = (queries @ keys.mT).to(kept) * (queries.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()[None, None]
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)
