"""Backbones: blocks in a stack, or in a loop with shared weights."""

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

LoopsGiven = Loops | tuple[int, int] | int | None
"""Number of loops of a forward: one number, (without, with a gradient), or None for the default."""

DEVIATION = 0.02
"""Standard deviation of the noise of `initial_state="noise"`."""


class Backbone(ABC):
    """The spec of a backbone: a frozen dataclass that builds a `BackbonePart`."""

    @abstractmethod
    def layers(self) -> int:
        """Number of blocks (each with its own weights)."""

    @abstractmethod
    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "BackbonePart":
        """Builds the module. `seed` is the model's; `feed_forward` is that of its blocks, for injections like it."""

    def loops(self) -> int:
        """Default number of loops over the blocks."""
        return 1


class BackbonePart(nn.Module, ABC):
    """The module behind a `Backbone`. Its state is a list with one entry per (loop, block)."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows targets"] | None = None,
        loops: LoopsGiven = None,
    ) -> Float[Tensor, "rows places width"]:
        """`loops` is the number of loops; a backbone without loops takes only 1."""

    @abstractmethod
    def prefill(self, x: Tensor, context: Context, loops: LoopsGiven = None) -> tuple[Tensor, list[Any]]: ...

    @abstractmethod
    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]: ...

    @abstractmethod
    def flops(self, time: int, loops: LoopsGiven = None) -> int:
        """Floating-point operations of one forward over one row of this length."""


@dataclass(frozen=True)
class Stack(Backbone):
    """Stack of blocks, each with its own weights.

    With `input_injection` the input embeddings enter again before every block but the first: input injection, Bansal et
    al. (2022), https://arxiv.org/abs/2202.05826. `add` adds them to the hidden state; `linear` and `ffn` map the
    concatenation of the two, with own weights in each block.

    With `initial_state="noise"` the first block reads the input embeddings plus N(0, 0.02^2), the noise of `Loop`, as
    the published Abacus models without a loop do.
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
        target_positions: Int[Tensor, "rows targets"] | None = None,
        loops: LoopsGiven = None,
    ) -> Float[Tensor, "rows places width"]:
        _only_one(loops)
        last = len(self.blocks) - 1
        return self._through(
            x, context, lambda number, block, x: block(x, context, target_positions if number == last else None)
        )

    def prefill(self, x: Tensor, context: Context, loops: LoopsGiven = None) -> tuple[Tensor, list[Any]]:
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

    def flops(self, time: int, loops: LoopsGiven = None) -> int:
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
    """Looped transformer: a stack of blocks applied several times with shared weights.

    Dehghani et al. (2018), https://arxiv.org/abs/1807.03819; with input injection as in McLeish et al. (2024),
    https://arxiv.org/abs/2405.17399. The hidden state starts as zeros or noise, and the input embeddings enter before
    every loop: `add` adds them, `linear` and `ffn` map the concatenation of the two (shared by all loops). With `none`
    they are added once, before the first loop.

    The noise is N(0, 0.02^2): a fixed function of the model's seed and of the position, for any length. `num_loops`
    changes no weights, so that a trained model can be evaluated with another number (`model.backbone.num_loops=8`).

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
        target_positions: Int[Tensor, "rows targets"] | None = None,
        loops: LoopsGiven = None,
    ) -> Float[Tensor, "rows places width"]:
        loops = Loops.of(loops, self.times)
        turn = self.turn if self.compiled is None or not self.training else self.compiled
        state = self._start(x, context)
        if loops.no_grad_loops:
            with torch.no_grad():
                # What layers share within a forward is computed again for the loops with a gradient.
                quiet = replace(context, prepared={})
                for _ in range(loops.no_grad_loops):
                    state = turn(state, x, quiet, None)
            # Autocast caches copies of weights; those made without a gradient stop it in releases of torch before
            # https://github.com/pytorch/pytorch/pull/165068.
            torch.clear_autocast_cache()
            state = _anchored(state, x)
        if loops.divided:
            state, x = _scaled(state, float(loops.grad_loops)), _scaled(x, float(loops.grad_loops))
            context = replace(context, raw=x)
        for number in range(loops.grad_loops):
            state = turn(state, x, context, target_positions if number == loops.grad_loops - 1 else None)
        return _scaled(state, 1 / loops.grad_loops) if loops.divided else state

    def turn(self, state: Tensor, raw: Tensor, context: Context, target_positions: Tensor | None) -> Tensor:
        """One loop over whole rows; with `target_positions`, the last block ends at those positions only."""
        last = len(self.blocks) - 1
        return self._loop(
            state, raw, lambda number, block, x: block(x, context, target_positions if number == last else None)
        )

    def compile_loops(self) -> None:
        """Compiles one loop, for training: the number of loops may then change at every step.

        There are about a dozen graphs: with and without a gradient, first and later loops, all positions or only the
        targets, and again where two sizes happen to be equal. Torch's default limit is 8.
        """
        limits = torch._dynamo.config
        limits.recompile_limit = max(32, limits.recompile_limit)
        self.compiled = torch.compile(self.turn, dynamic=True)

    def prefill(self, x: Tensor, context: Context, loops: LoopsGiven = None) -> tuple[Tensor, list[Any]]:
        states: list[Any] = []

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, state = block.prefill(x, context)
            states.append(state)
            return x

        state = self._start(x, context)
        for _ in range(Loops.of(loops, self.times).whole):
            state = self._loop(state, x, run)
        return state, states

    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]:
        states: list[Any] = []

        def run(number: int, block: Block, x: Tensor) -> Tensor:
            x, after = block.step(x, context, state[len(states)])
            states.append(after)
            return x

        current = self._start(x, context)
        while len(states) < len(state):
            current = self._loop(current, x, run)
        return current, states

    def flops(self, time: int, loops: LoopsGiven = None) -> int:
        return Loops.of(loops, self.times).whole * _operations(self, time)

    def _start(self, x: Tensor, context: Context) -> Tensor:
        """The hidden state before the first loop."""
        start = x if self.injection is None else torch.zeros_like(x)
        return _with_noise(start, context, self.noise_starts) if self.noisy else start

    def _loop(self, state: Tensor, raw: Tensor, run: Callable[[int, Block, Tensor], Tensor]) -> Tensor:
        if self.injection is not None:
            state = self.injection(state, raw)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            state = run(number, block, state)
        return state


def _with_noise(x: Tensor, context: Context, starts: Tensor) -> Tensor:
    """x plus the noise of its positions."""
    index = context.index
    places = torch.arange(x.shape[1], device=x.device)[None] if index is None else index[:, None]
    return x + noise(starts, places, x.shape[2]).to(x.dtype)


def noise_starts(seed: int) -> Int[Tensor, "2"]:
    """Where the noise of a seed starts in the counter: a tensor, so that stacked models each have their own."""
    return torch.tensor([start_of(StepContext(seed, step=0), salt) for salt in (0x10, 0x11)])


def noise(starts: Int[Tensor, "2"], places: Int[Tensor, "rows time"], width: int) -> Float[Tensor, "rows time {width}"]:
    """Samples from N(0, 0.02^2) as a function of (seed, position, component), by Box and Muller (1958).

    https://doi.org/10.1214/aoms/1177706645
    """
    entries = (places[..., None] * width + torch.arange(width, device=places.device)).flatten()
    exact = torch.float32 if places.device.type == "mps" else torch.float64
    first, second = ((drawn_from(start, entries, 2**30).to(exact) + 0.5) / 2**30 for start in starts)
    return DEVIATION * ((-2 * first.log()).sqrt() * (2 * torch.pi * second).cos()).view(*places.shape, width)


class _WithoutGradient(torch.autograd.Function):
    """A state that depends on `x` with a gradient of zero.

    Otherwise loops without a gradient leave the embedding without one where nothing injects it again, and weight decay
    and DDP treat a missing gradient differently from zeros.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(state: Tensor, x: Tensor) -> Tensor:
        return state.view_as(state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is saved."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, torch.zeros_like(gradients[0])


def _anchored(state: Tensor, x: Tensor) -> Tensor:
    anchored: Tensor = _WithoutGradient.apply(state, x)  # type: ignore[no-untyped-call]
    return anchored


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

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
    """x with its gradient scaled. Between a factor and its inverse only the gradient of parameters changes."""
    scaled: Tensor = _Scaled.apply(x, factor)  # type: ignore[no-untyped-call]
    return scaled


def _operations(trunk: nn.Module, time: int) -> int:
    """Operations of each block and injection, once."""
    return sum(part.flops(time) for part in trunk.modules() if isinstance(part, Block | Injection))


def _only_one(loops: LoopsGiven) -> None:
    if Loops.of(loops, 1)[:2] != (0, 1):
        total = loops if isinstance(loops, int) else Loops.of(loops, 1).whole
        raise UserError(f"loops: a Stack goes through its blocks once, not {total} times; a looped backbone can")
