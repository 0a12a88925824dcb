"""How the blocks of a model follow each other: once each, or round and round."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import Loops, StepContext
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.mixer import Context
from numerate.models.block import Block, FeedForward
from numerate.models.injection import Inject, Injection, make_injection
from numerate.positions.counter import drawn_from, start_of

TurnsGiven = Loops | tuple[int, int] | int | None
"""What a forward may be told of turns: their number, (without, with a gradient), or nothing."""

DEVIATION = 0.02
"""Standard deviation of the noise that a state may start as."""


class Backbone(ABC):
    """The description of the blocks' order in a recipe: a frozen dataclass that builds a `BackbonePart`."""

    @abstractmethod
    def layers(self) -> int:
        """How many blocks there are (each with weights of its own)."""

    @abstractmethod
    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "BackbonePart":
        """The part. `seed` is the model's; `feed_forward` is that of its blocks, for maps of the same kind."""

    def loops(self) -> int:
        """How often the blocks are gone through by default."""
        return 1


class BackbonePart(nn.Module, ABC):
    """Blocks in their order. Its state is a list with one entry per (turn, block)."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows asked"] | None = None,
        loops: TurnsGiven = None,
    ) -> Float[Tensor, "rows places width"]:
        """`loops` is how often a loop goes round; a trunk without a loop knows one turn only."""

    @abstractmethod
    def prefill(self, x: Tensor, context: Context, loops: TurnsGiven = None) -> tuple[Tensor, list[Any]]: ...

    @abstractmethod
    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]: ...

    @abstractmethod
    def flops(self, time: int, loops: TurnsGiven = None) -> int:
        """Floating-point operations of one forward over one row of this length."""


@dataclass(frozen=True)
class Stack(Backbone):
    """Blocks one after the other, each once.

    With `input_injection` the embedded input comes back before every block but the first, which reads it anyway: input
    injection, Bansal et al. (2022), https://arxiv.org/abs/2202.05826. `add` adds it to the state; `linear` and `ffn`
    map the two, side by side, to one vector, each block with a map of its own.

    With `initial_state="noise"` the first block reads the embedded input plus N(0, 0.02^2), the noise of `Loop`: so do
    the published Abacus models without a loop.
    """

    num_layers: int = setting(2, "number of blocks")
    input_injection: Inject = setting(
        "none", "whether and how the input embeddings are injected again before every further block"
    )
    initial_state: Literal["zero", "noise"] = setting(
        "zero", "added to the input embeddings before the first block; noise is small and fixed", later=True
    )

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise UserError(f"num_layers: {self.num_layers} blocks are no model; 1 or more is right")

    def layers(self) -> int:
        return self.num_layers

    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "StackPart":
        return StackPart(self, blocks, width, seed, feed_forward)


class StackPart(BackbonePart):
    """The part behind `Stack`."""

    noise_starts: Tensor

    def __init__(
        self, spec: Stack, blocks: list[Block], width: int, seed: int, feed_forward: FeedForward | None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.noisy = spec.initial_state == "noise"
        self.register_buffer("noise_starts", noise_starts(seed) if self.noisy else None, persistent=False)
        made = [make_injection(spec.input_injection, width, feed_forward) for _ in blocks[1:]]
        self.injections = nn.ModuleList([injection for injection in made if injection is not None])

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows asked"] | None = None,
        loops: TurnsGiven = None,
    ) -> Float[Tensor, "rows places width"]:
        _only_one(loops)
        last = len(self.blocks) - 1
        return self._through(
            x, context, lambda number, block, x: block(x, context, target_positions if number == last else None)
        )

    def prefill(self, x: Tensor, context: Context, loops: TurnsGiven = None) -> tuple[Tensor, list[Any]]:
        _only_one(loops)
        states: list[Any] = [None] * len(self.blocks)

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, states[number] = block.prefill(x, context)
            return x

        return self._through(x, context, run), states

    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]:
        states = list(state)

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, states[number] = block.step(x, context, states[number])
            return x

        return self._through(x, context, run), states

    def flops(self, time: int, loops: TurnsGiven = None) -> int:
        _only_one(loops)
        return _operations(self, time)

    def _through(self, x: Tensor, context: Context, run: Callable[[int, Block, Tensor], Tensor]) -> Tensor:
        raw = x
        if self.noisy:
            x = _with_noise(x, context, self.noise_starts)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = run(number, block, self.injections[number - 1](x, raw) if number and self.injections else x)
        return x


@dataclass(frozen=True)
class Loop(Backbone):
    """Blocks gone through again and again, with the same weights at every turn: a looped transformer.

    Dehghani et al. (2018), https://arxiv.org/abs/1807.03819; with input injection as in McLeish et al. (2024),
    https://arxiv.org/abs/2405.17399. The state starts as nothing or as noise, and before every turn the embedded input
    is put into it: `add` adds it, `linear` and `ffn` map the two, side by side, to one vector (one map for all turns).
    With `none` it is added once, before the first turn.

    The noise is N(0, 0.02^2): a function of the model's seed and of the place in the row, never drawn again, without
    a limit on length. `num_loops` changes no weights, so that a trained model can be evaluated at another
    (`model.backbone.num_loops=8`).

    >>> Decoder(hidden_size=64, backbone=Loop(num_layers=2, num_loops=8, input_injection="add"))
    """

    num_layers: int = setting(1, "blocks per loop")
    num_loops: int = setting(4, "number of loops")
    input_injection: Inject = setting(
        "add", "how the input embeddings are injected before every loop; none: only before the first"
    )
    initial_state: Literal["zero", "noise"] = setting("zero", "initial state; noise is small and fixed")

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise UserError(f"num_layers: {self.num_layers} blocks are no model; 1 or more is right")
        if self.num_loops < 1:
            raise UserError(f"num_loops: {self.num_loops} turns compute nothing; 1 or more is right")

    def layers(self) -> int:
        return self.num_layers

    def loops(self) -> int:
        return self.num_loops

    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "LoopPart":
        return LoopPart(self, blocks, width, seed, feed_forward)


class LoopPart(BackbonePart):
    """The part behind `Loop`."""

    noise_starts: Tensor

    def __init__(
        self, spec: Loop, blocks: list[Block], width: int, seed: int, feed_forward: FeedForward | None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.injection = make_injection(spec.input_injection, width, feed_forward)
        self.times, self.noisy = spec.num_loops, spec.initial_state == "noise"
        self.register_buffer("noise_starts", noise_starts(seed) if self.noisy else None, persistent=False)
        self.compiled: Callable[[Tensor, Tensor, Context, Tensor | None], Tensor] | None = None

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows asked"] | None = None,
        loops: TurnsGiven = None,
    ) -> Float[Tensor, "rows places width"]:
        loops = Loops.of(loops, self.times)
        turn = self.turn if self.compiled is None or not self.training else self.compiled
        state = self._start(x, context)
        if loops.no_grad_loops:
            with torch.no_grad():
                # What layers share within a forward is made afresh for the turns with a gradient.
                quiet = replace(context, prepared={})
                for _ in range(loops.no_grad_loops):
                    state = turn(state, x, quiet, None)
            # Autocast keeps its copies of weights, and those made without a gradient pass none on in releases of torch
            # before https://github.com/pytorch/pytorch/pull/165068.
            torch.clear_autocast_cache()
            state = _anchored(state, x)
        if loops.divided:
            state, x = _scaled(state, float(loops.grad_loops)), _scaled(x, float(loops.grad_loops))
            context = replace(context, raw=x)
        for number in range(loops.grad_loops):
            state = turn(state, x, context, target_positions if number == loops.grad_loops - 1 else None)
        return _scaled(state, 1 / loops.grad_loops) if loops.divided else state

    def turn(self, state: Tensor, raw: Tensor, context: Context, target_positions: Tensor | None) -> Tensor:
        """One turn over whole rows; with `target_positions`, the last block's end at those places only."""
        last = len(self.blocks) - 1
        return self._turn(
            state, raw, lambda number, block, x: block(x, context, target_positions if number == last else None)
        )

    def compile_loops(self) -> None:
        """Compiles one turn, for training: how many turns there are may then change at every step.

        There are about a dozen programs: with and without a gradient, the first turn and later ones, at all places or
        those asked, and again where two sizes happen to be equal. Torch gives up at 8 unless told otherwise.
        """
        limits = torch._dynamo.config
        limits.recompile_limit = max(32, limits.recompile_limit)
        self.compiled = torch.compile(self.turn, dynamic=True)

    def prefill(self, x: Tensor, context: Context, loops: TurnsGiven = None) -> tuple[Tensor, list[Any]]:
        states: list[Any] = []

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, state = block.prefill(x, context)
            states.append(state)
            return x

        state = self._start(x, context)
        for _ in range(Loops.of(loops, self.times).whole):
            state = self._turn(state, x, run)
        return state, states

    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]:
        states: list[Any] = []

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, after = block.step(x, context, state[len(states)])
            states.append(after)
            return x

        current = self._start(x, context)
        while len(states) < len(state):
            current = self._turn(current, x, run)
        return current, states

    def flops(self, time: int, loops: TurnsGiven = None) -> int:
        return Loops.of(loops, self.times).whole * _operations(self, time)

    def _start(self, x: Tensor, context: Context) -> Tensor:
        """The state before the first turn."""
        start = x if self.injection is None else torch.zeros_like(x)
        return _with_noise(start, context, self.noise_starts) if self.noisy else start

    def _turn(self, state: Tensor, raw: Tensor, run: Callable[[int, Block, Tensor], Tensor]) -> Tensor:
        if self.injection is not None:
            state = self.injection(state, raw)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            state = run(number, block, state)
        return state


def _with_noise(x: Tensor, context: Context, starts: Tensor) -> Tensor:
    """x plus the noise of its places."""
    index = context.index
    places = torch.arange(x.shape[1], device=x.device)[None] if index is None else index[:, None]
    return x + noise(starts, places, x.shape[2]).to(x.dtype)


def noise_starts(seed: int) -> Int[Tensor, "2"]:
    """What the noise of a model's seed is counted on from: a tensor, so that stacked models each have their own."""
    return torch.tensor([start_of(StepContext(seed, step=0), salt) for salt in (0x10, 0x11)])


def noise(starts: Int[Tensor, "2"], places: Int[Tensor, "rows time"], width: int) -> Float[Tensor, "rows time {width}"]:
    """Numbers from N(0, 0.02^2) that are a function of (seed, place, entry of the vector), by Box and Muller (1958).

    https://doi.org/10.1214/aoms/1177706645
    """
    entries = (places[..., None] * width + torch.arange(width, device=places.device)).flatten()
    exact = torch.float32 if places.device.type == "mps" else torch.float64
    first, second = ((drawn_from(start, entries, 2**30).to(exact) + 0.5) / 2**30 for start in starts)
    return DEVIATION * ((-2 * first.log()).sqrt() * (2 * torch.pi * second).cos()).view(*places.shape, width)


class _WithoutGradient(torch.autograd.Function):
    """A state that depends on `x`, whose gradient is nothing.

    Turns without a gradient would otherwise leave the embedding without any where nothing injects it again, and a
    missing gradient is another thing than one of zeros: to weight decay, and to processes that wait for it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(state: Tensor, x: Tensor) -> Tensor:
        return state.view_as(state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is needed later."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, torch.zeros_like(gradients[0])


def _anchored(state: Tensor, x: Tensor) -> Tensor:
    anchored: Tensor = _WithoutGradient.apply(state, x)  # type: ignore[no-untyped-call]
    return anchored


class _Scaled(torch.autograd.Function):
    """The same forward; the gradient times a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def _scaled(x: Tensor, factor: float) -> Tensor:
    """x, whose gradient is multiplied. Between one factor and its inverse only the gradient of parameters changes."""
    scaled: Tensor = _Scaled.apply(x, factor)  # type: ignore[no-untyped-call]
    return scaled


def _operations(trunk: nn.Module, time: int) -> int:
    """Of each block and injection once."""
    return sum(part.flops(time) for part in trunk.modules() if isinstance(part, Block | Injection))


def _only_one(loops: TurnsGiven) -> None:
    if Loops.of(loops, 1)[:2] != (0, 1):
        told = loops if isinstance(loops, int) else Loops.of(loops, 1).whole
        raise UserError(f"loops: a Stack goes through its blocks once, not {told} times; a looped backbone can")
