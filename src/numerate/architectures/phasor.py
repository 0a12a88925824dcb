"""Phasor: a diagonal recurrence of token-dependent rotations; the output depends on the phase only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn.functional import silu

from numerate.config import setting
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_no_blocked_keys
from numerate.positions.position import Position

PHASE_EPSILON = 1e-2
"""Where the size of a cell is far below this, its phase fades instead of jumping."""


@dataclass(frozen=True)
class Phasor(Mixer):
    """Diagonal recurrence of complex states with token-dependent rotations, of which only the phase is read.

    New in numerate: a diagonal recurrence as in the LRU (Orvieto et al., 2023,
    https://arxiv.org/abs/2303.06349), with eigenvalues of size one as in unitary recurrent nets (Arjovsky et al., 2016,
    https://arxiv.org/abs/1511.06464) that each token chooses, as in selective state spaces. For token x,

        turn r = sigmoid(2 (R x + b)),  write w = sigmoid(2 (W x + c)),    h_t = exp(2 i r phase) h_{t-1} + w (B x)
        y = out( h / |h| * silu(S x) )

    A state works like a clock hand: a number may set it, each counted symbol rotates it by the same angle, and other
    tokens may leave it unchanged. Nothing decays or grows with length: counting 50 symbols generalizes to 200, as far
    as the angles are exact. With `exclusive` the write is w (1 - r): a token that rotates a state does not write to it.

    Over whole rows h is computed by two cumulative sums, exactly and without a division.

    >>> from numerate.models import Decoder, Stack
    >>> spec = Decoder(hidden_size=64, backbone=Stack(num_layers=1), mixer=Phasor())
    """

    state_size: int | None = setting(None, "number of complex states; null: hidden_size", at_least=1)
    max_phase: float = setting(math.pi, "largest initial rotation, in radians", above=0, at_most=2 * math.pi)
    exclusive: bool = setting(False, "whether a token that rotates a state does not write to it")
    write_gate_offset: float = setting(2.0, "initial bias of the write gate is minus this", above=-math.inf)
    learning_rate_factor: float = setting(0.5, "learning rate factor of the rotations", above=0)

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "PhasorMixer":
        return PhasorMixer(self, width, self.state_size or width)


class PhasorMixer(TokenMixer):
    """The module of `Phasor`. Its state is rows x cells, complex."""

    def __init__(self, spec: Phasor, width: int, cells: int) -> None:
        super().__init__()
        self.width, self.state_size, self.learning_rate_factor, self.exclusive = (
            width,
            cells,
            spec.learning_rate_factor,
            spec.exclusive,
        )
        self.in_proj = nn.Linear(width, 2 * cells, bias=False)
        self.rotation_gate, self.write_gate = nn.Linear(width, cells), nn.Linear(width, cells)
        self.output_gate = nn.Linear(width, 2 * cells)
        self.out_proj = nn.Linear(2 * cells, width, bias=False)
        self.phase = nn.Parameter(torch.rand(cells) * spec.max_phase)
        with torch.no_grad():
            for linear in (self.rotation_gate, self.write_gate, self.output_gate):
                linear.weight.normal_(std=width**-0.5)
                linear.bias.zero_()
            self.write_gate.bias.fill_(-spec.write_gate_offset)

    def self_initialized_parameters(self) -> set[str]:
        gates = ("rotation_gate", "write_gate", "output_gate")
        return {"phase", *(f"{gate}.{own}" for gate in gates for own in ("weight", "bias"))}

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"phase": (self.learning_rate_factor, False)}

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        return self._output(self._states(x, context), x)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Tensor]:
        states = self._states(x, context)
        last = (torch.arange(x.shape[0], device=x.device), context.lengths - 1)
        return self._output(states, x), states[last]

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: Tensor) -> tuple[Tensor, Tensor]:
        angles, written = self._angles_and_inputs(x)
        after = torch.polar(torch.ones_like(angles), angles) * state[:, None] + written
        return self._output(after, x), after[:, 0]

    def recurrent_states(self, x: Float[Tensor, "rows time width"]) -> Complex[Tensor, "rows time cells"]:
        """The states token by token: the reference for tests of the parallel form."""
        angles, written = self._angles_and_inputs(x)
        state, found = torch.zeros_like(written[:, 0]), []
        for place in range(x.shape[1]):
            state = torch.polar(torch.ones_like(angles[:, place]), angles[:, place]) * state + written[:, place]
            found.append(state)
        return torch.stack(found, dim=1)

    def _states(self, x: Tensor, context: Context) -> Tensor:
        check_no_blocked_keys(context, "Phasor")
        angles, written = self._angles_and_inputs(x)
        turned = angles.cumsum(1)
        turned = torch.polar(torch.ones_like(turned), turned)
        return turned * (turned.conj() * written).cumsum(1)

    def _angles_and_inputs(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor]:
        """The rotation of each state by each token, in radians, and the write; in fp32 at least."""
        kind = torch.promote_types(x.dtype, torch.float32)
        turn, write = ((2 * gate(x)).sigmoid().to(kind) for gate in (self.rotation_gate, self.write_gate))
        if self.exclusive:
            write = write * (1 - turn)
        pairs = self.in_proj(x).to(kind).unflatten(-1, (self.state_size, 2)) * write[..., None]
        return 2 * turn * self.phase, torch.view_as_complex(pairs.contiguous())

    def _output(self, states: Tensor, x: Tensor) -> Tensor:
        pairs = torch.view_as_real(states)
        phases = (pairs * (pairs.square().sum(-1, keepdim=True) + PHASE_EPSILON**2).rsqrt()).flatten(-2)
        output: Tensor = self.out_proj(phases.to(x.dtype) * silu(self.output_gate(x)))
        return output

    def output_projections(self) -> Sequence[nn.Linear]:
        return (self.out_proj,)

    def flops(self, time: int) -> int:
        maps = (self.in_proj, self.rotation_gate, self.write_gate, self.output_gate, self.out_proj)
        return time * (2 * sum(part.weight.numel() for part in maps) + 40 * self.state_size)
