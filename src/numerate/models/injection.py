"""How the embedded input comes back into the state, further up in a model."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from numerate.models.block import FeedForward

Inject = Literal["none", "add", "linear", "ffn"]


class Injection(nn.Module, ABC):
    """Makes one vector of the state and the embedded input, at every place alone."""

    @abstractmethod
    def forward(
        self, state: Float[Tensor, "rows time width"], raw: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]: ...

    def flops(self, time: int) -> int:
        return 0


class AddInjection(Injection):
    """state + input."""

    def forward(
        self, state: Float[Tensor, "rows time width"], raw: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]:
        return state + raw


class ConcatInjection(Injection):
    """A map from twice the width to the width, of state and input side by side: linear, or a feed-forward."""

    def __init__(self, width: int, feed_forward: FeedForward | None) -> None:
        super().__init__()
        if feed_forward is None:
            self.map: nn.Module = nn.Linear(2 * width, width, bias=False)
        else:
            self.map = feed_forward.build(width, reads=2 * width)

    def forward(
        self, state: Float[Tensor, "rows time width"], raw: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]:
        joined: Tensor = self.map(torch.cat([state, raw], dim=-1))
        return joined

    def flops(self, time: int) -> int:
        matrices = [part.weight.numel() for part in self.map.modules() if isinstance(part, nn.Linear)]
        return 2 * time * sum(matrices)


def make_injection(kind: Inject, width: int, feed_forward: FeedForward | None = None) -> Injection | None:
    """The injection of a name; `ffn` is a feed-forward of the kind given, or `FeedForward()`."""
    if kind == "none":
        return None
    if kind == "add":
        return AddInjection()
    return ConcatInjection(width, None if kind == "linear" else feed_forward or FeedForward())
