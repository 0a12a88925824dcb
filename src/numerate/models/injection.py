"""Input injection: the input embeddings enter the hidden state again."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from numerate.models.block import FeedForward

InjectionType = Literal["none", "add", "linear", "ffn"]


class Injection(nn.Module, ABC):
    """Combines hidden state and input embeddings, position-wise."""

    @abstractmethod
    def forward(
        self, hidden_state: Float[Tensor, "rows time width"], input_embeddings: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]: ...

    def flops(self, time: int) -> int:
        return 0


class AddInjection(Injection):
    """state + input."""

    def forward(
        self, hidden_state: Float[Tensor, "rows time width"], input_embeddings: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]:
        return hidden_state + input_embeddings


class ConcatInjection(Injection):
    """A linear layer or feed-forward network on the concatenation of hidden state and input."""

    def __init__(self, width: int, feed_forward: FeedForward | None) -> None:
        super().__init__()
        if feed_forward is None:
            self.proj: nn.Module = nn.Linear(2 * width, width, bias=False)
        else:
            self.proj = feed_forward.build(width, in_features=2 * width)

    def forward(
        self, hidden_state: Float[Tensor, "rows time width"], input_embeddings: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]:
        output: Tensor = self.proj(torch.cat([hidden_state, input_embeddings], dim=-1))
        return output

    def flops(self, time: int) -> int:
        matrices = [part.weight.numel() for part in self.proj.modules() if isinstance(part, nn.Linear)]
        return 2 * time * sum(matrices)


def build_injection(
    injection_type: InjectionType, width: int, feed_forward: FeedForward | None = None
) -> Injection | None:
    """The injection with this name; `ffn` is a feed-forward network like the given one, or `FeedForward()`."""
    if injection_type == "none":
        return None
    if injection_type == "add":
        return AddInjection()
    return ConcatInjection(width, None if injection_type == "linear" else feed_forward or FeedForward())
