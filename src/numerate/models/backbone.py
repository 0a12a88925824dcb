"""Backbones: blocks in a stack, or in a loop with shared weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import Loops, StepContext
from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.mixers.mixer import Context
from numerate.models.block import Block, FeedForward
from numerate.models.injection import Injection, InjectionType, build_injection
from numerate.positions.counter import random_integers

LoopsArgument = Loops | tuple[int, int] | int | None
"""Number of loops of a forward pass: one number, (without, with a gradient), or None for the default."""

NOISE_STD = 0.02
"""Standard deviation of the noise of `initial_state="noise"`."""


class Backbone(Spec, ABC):
    """The spec of a backbone: a frozen dataclass that builds a `BackboneModule`."""

    @abstractmethod
    def num_blocks(self) -> int:
        """Number of blocks (each with its own weights)."""

    @abstractmethod
    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "BackboneModule":
        """Builds the module. `seed` is the model's; `feed_forward` is that of its blocks, which some injections
        copy."""

    def default_num_loops(self) -> int:
        """Default number of loops over the blocks."""
        return 1


RunBlock = Callable[[int, Block, Tensor], Tensor]
"""Runs a block, given with its index, on hidden states."""


class BackboneModule(nn.Module, ABC):
    """The module of a `Backbone`. Its state is a list with one entry per (loop, block)."""

    def __init__(self, blocks: list[Block], noise_seed: int | None) -> None:
        """`noise_seed` is the seed of the noise of the initial state; None: no noise."""
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.noise_seed, self._kept_noise = noise_seed, torch.empty(1, 0)

    @abstractmethod
    def run(self, x: Tensor, context: Context, run_block: RunBlock, num_loops: int) -> Tensor:
        """From input embeddings to the last hidden states, by `num_loops` loops over the blocks."""

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows targets"] | None = None,
        loops: LoopsArgument = None,
    ) -> Float[Tensor, "rows positions width"]:
        """`loops` is the number of loops; a backbone without loops takes only 1."""
        return self.run(x, context, self._run_in(context, target_positions), self.resolve_loops(loops).total)

    def _run_in(self, context: Context, target_positions: Tensor | None) -> RunBlock:
        """Runs a block over whole rows; with `target_positions`, the last block ends at those positions only."""
        last = len(self.blocks) - 1
        return lambda number, block, x: block(x, context, target_positions if number == last else None)

    def _with_noise(self, x: Tensor, context: Context) -> Tensor:
        """x plus the noise of its positions, if there is any."""
        if self.noise_seed is None:
            return x
        newest = context.cache_position
        if newest is None:
            noise = self._noise_from_the_start(self.noise_seed, x.shape[1], x.shape[2], x.device)
        else:
            noise = position_noise(self.noise_seed, newest[:, None], x.shape[2])
        return x + noise.to(x.dtype)

    def _noise_from_the_start(self, seed: int, time: int, width: int, device: torch.device) -> Tensor:
        """The noise of the first positions, kept between forward passes: it takes some 60 operators."""
        if torch.compiler.is_compiling():
            return position_noise(seed, torch.arange(time, device=device)[None], width)
        if self._kept_noise.shape[1] < time or self._kept_noise.device != device:
            capacity = 1 << (time - 1).bit_length()
            self._kept_noise = position_noise(seed, torch.arange(capacity, device=device)[None], width)
        return self._kept_noise[:, :time]

    def prefill(self, x: Tensor, context: Context) -> tuple[Tensor, list[Any]]:
        states: list[Any] = []

        def run_block(number: int, block: Block, x: Tensor) -> Tensor:
            x, state = block.prefill(x, context)
            states.append(state)
            return x

        return self.run(x, context, run_block, self.resolve_loops(None).total), states

    def step(self, x: Tensor, context: Context, state: list[Any]) -> tuple[Tensor, list[Any]]:
        states: list[Any] = []

        def run_block(number: int, block: Block, x: Tensor) -> Tensor:
            x, after = block.step(x, context, state[len(states)])
            states.append(after)
            return x

        return self.run(x, context, run_block, len(state) // len(self.blocks)), states

    @abstractmethod
    def resolve_loops(self, loops: LoopsArgument) -> Loops:
        """The loops of a forward pass. Raises `UserError` for more than one if there can be only one."""

    def flops(self, time: int, loops: LoopsArgument = None) -> int:
        """Floating-point operations of one forward pass over one row of this length."""
        parts = [part for part in self.modules() if isinstance(part, Block | Injection)]
        return self.resolve_loops(loops).total * sum(part.flops(time) for part in parts)


@dataclass(frozen=True)
class Stack(Backbone):
    """Stack of blocks, each with its own weights.

    With `input_injection` the input embeddings enter again before every block but the first: input injection, Bansal et
    al. (2022), https://arxiv.org/abs/2202.05826. `add` adds them to the hidden state; `linear` and `ffn` map the
    concatenation of the two, with own weights in each block.

    With `initial_state="noise"` the first block reads the input embeddings plus N(0, 0.02^2), the noise of `Loop`, as
    the published Abacus models without a loop do.
    """

    num_layers: int = setting(2, "number of blocks", at_least=1)
    input_injection: InjectionType = setting(
        "none",
        "how the input embeddings enter every further block: a sum (add), or a linear layer or ffn on both; none",
    )
    initial_state: Literal["zero", "noise"] = setting(
        "zero", "added to the input embeddings before the first block: nothing (zero), or small fixed noise"
    )

    def num_blocks(self) -> int:
        return self.num_layers

    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "StackModule":
        return StackModule(self, blocks, width, seed, feed_forward)


class StackModule(BackboneModule):
    """The module of `Stack`."""

    def __init__(
        self, spec: Stack, blocks: list[Block], width: int, seed: int, feed_forward: FeedForward | None
    ) -> None:
        super().__init__(blocks, seed if spec.initial_state == "noise" else None)
        injections = [build_injection(spec.input_injection, width, feed_forward) for _ in blocks[1:]]
        self.injections = nn.ModuleList([injection for injection in injections if injection is not None])

    def resolve_loops(self, loops: LoopsArgument) -> Loops:
        found = Loops.from_argument(loops, 1)
        if found[:2] != (0, 1):
            total = loops if isinstance(loops, int) else found.total
            raise UserError(f"loops: must be 1 for a Stack, not {total}; use a Loop backbone for more")
        return found

    def run(self, x: Tensor, context: Context, run_block: RunBlock, num_loops: int) -> Tensor:
        input_embeddings, x = x, self._with_noise(x, context)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = run_block(
                index, block, self.injections[index - 1](x, input_embeddings) if index and self.injections else x
            )
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

    >>> from numerate.models import Decoder
    >>> spec = Decoder(hidden_size=64, backbone=Loop(num_layers=2, num_loops=8, input_injection="add"))
    """

    num_layers: int = setting(1, "blocks per loop", at_least=1)
    num_loops: int = setting(4, "number of loops", at_least=1)
    input_injection: InjectionType = setting(
        "add", "how the input embeddings enter every loop: add, linear or ffn; none: only the first"
    )
    initial_state: Literal["zero", "noise"] = setting(
        "zero", "hidden state before the first loop: zero, or small fixed noise"
    )

    def num_blocks(self) -> int:
        return self.num_layers

    def default_num_loops(self) -> int:
        return self.num_loops

    def build(
        self, blocks: list[Block], width: int, seed: int = 0, feed_forward: FeedForward | None = None
    ) -> "LoopModule":
        return LoopModule(self, blocks, width, seed, feed_forward)


class LoopModule(BackboneModule):
    """The module of `Loop`."""

    def __init__(
        self, spec: Loop, blocks: list[Block], width: int, seed: int, feed_forward: FeedForward | None
    ) -> None:
        super().__init__(blocks, seed if spec.initial_state == "noise" else None)
        self.injection = build_injection(spec.input_injection, width, feed_forward)
        self.num_loops = spec.num_loops
        self.compiled_loop: Callable[[Tensor, Tensor, Context, Tensor | None], Tensor] | None = None

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows targets"] | None = None,
        loops: LoopsArgument = None,
    ) -> Float[Tensor, "rows positions width"]:
        loops = self.resolve_loops(loops)
        run_loop = self.run_loop if self.compiled_loop is None or not self.training else self.compiled_loop
        hidden_state = self._initial_state(x, context)
        if loops.no_grad_loops:
            with torch.no_grad():
                # Values that layers share within a forward pass are recomputed for the loops with gradients.
                no_grad_context = replace(context, forward_cache={})
                for _ in range(loops.no_grad_loops):
                    hidden_state = run_loop(hidden_state, x, no_grad_context, None)
            # Autocast caches copies of weights; those made without a gradient stop it in releases of torch before
            # https://github.com/pytorch/pytorch/pull/165068.
            torch.clear_autocast_cache()
            hidden_state = _attach_zero_gradient(hidden_state, x)
        if loops.average_gradients:
            hidden_state, x = (
                _scale_gradient(hidden_state, float(loops.grad_loops)),
                _scale_gradient(x, float(loops.grad_loops)),
            )
            context = replace(context, input_embeddings=x)
        for index in range(loops.grad_loops):
            hidden_state = run_loop(
                hidden_state, x, context, target_positions if index == loops.grad_loops - 1 else None
            )
        return _scale_gradient(hidden_state, 1 / loops.grad_loops) if loops.average_gradients else hidden_state

    def run_loop(
        self, hidden_state: Tensor, input_embeddings: Tensor, context: Context, target_positions: Tensor | None
    ) -> Tensor:
        """One loop over whole rows; with `target_positions`, the last block ends at those positions only."""
        return self._run_blocks(hidden_state, input_embeddings, self._run_in(context, target_positions))

    def compile_loops(self) -> None:
        """Compiles one loop, for training: the number of loops may then change at every step.

        Each shape has several graphs: with and without a gradient, first and later loops, all positions or only the
        targets.
        """
        self.compiled_loop = torch.compile(self.run_loop)

    def resolve_loops(self, loops: LoopsArgument) -> Loops:
        return Loops.from_argument(loops, self.num_loops)

    def run(self, x: Tensor, context: Context, run_block: RunBlock, num_loops: int) -> Tensor:
        hidden_state = self._initial_state(x, context)
        for _ in range(num_loops):
            hidden_state = self._run_blocks(hidden_state, x, run_block)
        return hidden_state

    def _initial_state(self, x: Tensor, context: Context) -> Tensor:
        """The hidden state before the first loop."""
        return self._with_noise(x if self.injection is None else torch.zeros_like(x), context)

    def _run_blocks(self, hidden_state: Tensor, input_embeddings: Tensor, run_block: RunBlock) -> Tensor:
        if self.injection is not None:
            hidden_state = self.injection(hidden_state, input_embeddings)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            hidden_state = run_block(index, block, hidden_state)
        return hidden_state


def position_noise(seed: int, positions: Int[Tensor, "rows time"], width: int) -> Float[Tensor, "rows time {width}"]:
    """Samples from N(0, 0.02^2) as a function of (seed, position, component), by Box and Muller (1958).

    https://doi.org/10.1214/aoms/1177706645
    """
    counters = (positions[..., None] * width + torch.arange(width, device=positions.device)).flatten()
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    uniform_1, uniform_2 = (
        (random_integers(StepContext(seed, step=0), counters, 2**30, salt).to(dtype) + 0.5) / 2**30
        for salt in (0x10, 0x11)
    )
    return NOISE_STD * ((-2 * uniform_1.log()).sqrt() * (2 * torch.pi * uniform_2).cos()).view(*positions.shape, width)


class _ZeroGradient(torch.autograd.Function):
    """A state that depends on `x` with a gradient of zero.

    Otherwise, after loops without gradients the embedding would have no gradient (unless an injection uses it again),
    which weight decay and DDP treat differently from zeros.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, x: Tensor) -> Tensor:
        return state.view_as(state)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        return None, torch.zeros_like(grad_outputs[0])


def _attach_zero_gradient(state: Tensor, x: Tensor) -> Tensor:
    output: Tensor = _ZeroGradient.apply(state, x)  # type: ignore[no-untyped-call]
    return output


class _ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0] * ctx.factor, None


def _scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x with its gradient scaled. Between a factor and its inverse only the gradient of parameters changes."""
    output: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return output
