"""A mixer, a task and a recipe in a package of their own, declared by the entry points of pyproject.toml."""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from numerate.config import Span, setting
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_no_blocked_keys
from numerate.models.decoder import Decoder
from numerate.positions.position import Position
from numerate.tasks.task import Example, Task
from numerate.training.recipe import Recipe, Training


@dataclass(frozen=True)
class RunningMean(Mixer):
    """The mean of a linear map of all tokens so far."""

    bias: bool = setting(False, "whether the linear map has a bias")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RunningMeanMixer":
        return RunningMeanMixer(width, self.bias)


class RunningMeanMixer(TokenMixer):
    """The part behind `RunningMean`. Its state is the sum of what was mapped, and how many tokens that were."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.value_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        check_no_blocked_keys(context, "RunningMean")
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        mean: Tensor = self.value_proj(x).cumsum(dim=1) / counts[:, None]
        return mean

    def prefill(self, x: Tensor, context: Context) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        is_token = torch.arange(x.shape[1], device=x.device) < context.lengths[:, None]
        total = (self.value_proj(x) * is_token[..., None]).sum(dim=1, keepdim=True)
        return self(x, context), (total, context.lengths[:, None, None])

    def step(self, x: Tensor, context: Context, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        total, count = state[0] + self.value_proj(x), state[1] + 1
        return total / count, (total, count)

    def flops(self, time: int) -> int:
        return 2 * time * self.value_proj.in_features**2


@dataclass(frozen=True)
class Repeat(Task):
    """A word is said twice: the answer to `abc>` is `abcabc`."""

    letters: int | Span = setting(Span(3, 5), "how many letters the words have", at_least=1)

    def example(self, rng: random.Random) -> Example:
        length = rng.choice(list(Span.from_value(self.letters)))
        word = "".join(rng.choice(string.ascii_lowercase) for _ in range(length))
        return Example(f"{word}>", word + word, {"letters": length})

    def axes(self) -> tuple[str, ...]:
        return ("letters",)

    def ood_validation_task(self) -> "Repeat":
        return replace(self, letters=Span.from_value(self.letters).high + 1)

    def num_questions(self) -> int:
        return sum(26**length for length in Span.from_value(self.letters))

    def alphabet(self) -> tuple[str, ...]:
        return (*string.ascii_lowercase, ">")


def repeat_mean() -> Recipe:
    """Words of 3 to 5 letters twice, by a decoder with RunningMean."""
    return Recipe(
        task=Repeat(), model=Decoder(hidden_size=64, mixer=RunningMean()), training=Training(steps=1000, threads=1)
    )
