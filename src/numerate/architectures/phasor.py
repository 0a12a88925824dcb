"""Phasor: a diagonal recurrence of token-dependent rotations; the output depends on the phase only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn.functional import silu

from numerate.config import setting
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrence import DiagonalRecurrence
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


class PhasorMixer(DiagonalRecurrence):
    """The module of `Phasor`, with complex states."""

    def __init__(self, spec: Phasor, width: int, cells: int) -> None:
        super().__init__(spec)
        self.state_size, self.exclusive = cells, spec.exclusive
        self.learning_rate_factor = spec.learning_rate_factor
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
        return {name for name, _ in self.named_parameters()} - {"in_proj.weight", "out_proj.weight"}

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"phase": (self.learning_rate_factor, False)}

    def decays_and_inputs(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor]:
        angles, written = self.angles_and_inputs(x)
        return _rotation(angles), written

    def states(self, x: Float[Tensor, "rows time width"], state: Tensor | None = None) -> Tensor:
        """Over whole rows by two cumulative sums."""
        if state is not None:
            return super().states(x, state)
        angles, written = self.angles_and_inputs(x)
        turned = _rotation(angles.cumsum(1))
        return turned * (turned.conj() * written).cumsum(1)

    def angles_and_inputs(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor]:
        """The rotation of each state by each token, in radians, and the write; in fp32 at least."""
        kind = torch.promote_types(x.dtype, torch.float32)
        turn, write = ((2 * gate(x)).sigmoid().to(kind) for gate in (self.rotation_gate, self.write_gate))
        if self.exclusive:
            write = write * (1 - turn)
        pairs = self.in_proj(x).to(kind).unflatten(-1, (self.state_size, 2)) * write[..., None]
        return 2 * turn * self.phase, torch.view_as_complex(pairs.contiguous())

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        pairs = torch.view_as_real(states)
        phases = (pairs * (pairs.square().sum(-1, keepdim=True) + PHASE_EPSILON**2).rsqrt()).flatten(-2)
        output: Tensor = self.out_proj(phases.to(x.dtype) * silu(self.output_gate(x)))
        return output

    def flops(self, time: int) -> int:
        return super().flops(time) + 40 * time * self.state_size


def _rotation(angles: Float[Tensor, "rows time cells"]) -> Complex[Tensor, "rows time cells"]:
    return torch.polar(torch.ones_like(angles), angles)
