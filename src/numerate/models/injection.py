"""Input injection: the input embeddings enter the hidden state again."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from numerate.models.block import FeedForward

Inject = Literal["none", "add", "linear", "ffn"]


class Injection(nn.Module, ABC):
    """Combines hidden state and input embeddings, position-wise."""

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
    """A linear layer or feed-forward network on the concatenation of hidden state and input."""

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
