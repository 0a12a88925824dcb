"""How the blocks of a model follow each other."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.config import setting
from numerate.errors import Mistake
from numerate.mixers.mixer import Context
from numerate.models.block import Block

Inject = Literal["none", "add"]


class Trunk(ABC):
    """The description of the blocks' order in a recipe: a frozen dataclass that builds a `TrunkPart`."""

    @abstractmethod
    def layers(self) -> int:
        """How many blocks there are (each with weights of its own)."""

    @abstractmethod
    def build(self, blocks: list[Block]) -> "TrunkPart": ...


class TrunkPart(nn.Module, ABC):
    """Blocks in their order. Its state is a list with one entry per (turn, block)."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        asked: Int[Tensor, "rows asked"] | None = None,
        turns: int | None = None,
    ) -> Float[Tensor, "rows places width"]:
        """`turns` is how often a loop goes round; a trunk without a loop knows one turn only."""

    @abstractmethod
    def prefill(self, x: Tensor, context: Context, turns: int | None = None) -> tuple[Tensor, list[Any]]: ...

    @abstractmethod
    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]: ...


@dataclass(frozen=True)
class Stack(Trunk):
    """Blocks one after the other, each once.

    With `inject="add"` the embedded input is added again before every block but the first (which reads it anyway):
    input injection, Bansal et al. (2022), https://arxiv.org/abs/2202.05826.
    """

    depth: int = setting(2, "how many blocks")
    inject: Inject = setting("none", "whether the embedded input is added again before every further block")

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise Mistake(f"depth: {self.depth} blocks are no model; 1 or more is right")

    def layers(self) -> int:
        return self.depth

    def build(self, blocks: list[Block]) -> "StackPart":
        return StackPart(blocks, self.inject)


class StackPart(TrunkPart):
    """The part behind `Stack`."""

    def __init__(self, blocks: list[Block], inject: Inject) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.inject = inject == "add"

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        asked: Int[Tensor, "rows asked"] | None = None,
        turns: int | None = None,
    ) -> Float[Tensor, "rows places width"]:
        _only_one(turns)
        raw = x
        for number, block in enumerate(self.blocks):
            last = number == len(self.blocks) - 1
            x = block(x + raw if number and self.inject else x, context, asked if last else None)
        return x

    def prefill(self, x: Tensor, context: Context, turns: int | None = None) -> tuple[Tensor, list[Any]]:
        _only_one(turns)
        states: list[Any] = [None] * len(self.blocks)

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, states[number] = block.prefill(x, context)
            return x

        return self._through(x, run), states

    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]:
        states = list(state)

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, states[number] = block.step(x, context, states[number])
            return x

        return self._through(x, run), states

    def _through(self, x: Tensor, run: Callable[[int, Block, Tensor], Tensor]) -> Tensor:
        raw = x
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = run(number, block, x + raw if number and self.inject else x)
        return x


def _only_one(turns: int | None) -> None:
    if turns not in (None, 1):
        raise Mistake(f"turns: a Stack goes through its blocks once, not {turns} times; a looped trunk can")
