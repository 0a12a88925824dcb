"""The linear recurrent unit: a diagonal recurrence with complex eigenvalues."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from numerate.config import setting
from numerate.kernels.token_shift import upcast
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrence import DiagonalRecurrence
from numerate.positions.position import Position


@dataclass(frozen=True)
class LRU(Mixer):
    """Linear recurrent unit (LRU): a diagonal recurrence with complex eigenvalues.

    Orvieto et al. (2023), https://arxiv.org/abs/2303.06349: h_t = l h_{t-1} + g B x_t, y_t = Re(C h_t) + D x_t, with
    eigenvalues l = exp(-exp(decay) + i exp(phase)), which lie within the unit circle whatever is learned, and
    normalization factors g that are initialized to root(1 - |l|^2), so that states are as large as inputs. A cell with
    l = exp(2 pi i / 10) counts modulo 10: after t inputs of 1 it holds a sum that comes round again every 10 tokens.

    The eigenvalues are initialized uniformly on a ring between two radii, with phases from 0 to `max_phase`; B is N(0,
    1/(2 width)), D is N(0, 1), as published. C is drawn by the model's initialization, as all maps to the residual
    stream. The paper tunes the ring for each task; the default here works for short rows.

    `gated=True`: the token controls rotation and decay of each state, l^(2 r_t) with r_t = sigmoid(W x_t), and the
    factor is root(1 - |l|^(4 r_t)). So a token may leave a state unchanged, which l alone cannot. This is the
    recurrence gate of Griffin (De et al., 2024, https://arxiv.org/abs/2402.19427) with 2 in place of its 8, so that
    factors are initially about l.
    """

    state_size: int | None = setting(None, "number of complex states; null: hidden_size", at_least=1)
    r_min: float = setting(0.5, "smallest initial radius of an eigenvalue", at_least=0)
    r_max: float = setting(0.99, "largest initial radius of an eigenvalue", above=0, at_most=1)
    max_phase: float = setting(6.28, "largest initial phase of an eigenvalue, in radians", above=0, at_most=2 * math.pi)
    gated: bool = setting(False, "whether decay and rotation depend on the token")
    learning_rate_factor: float = setting(0.5, "learning rate factor of the eigenvalues", above=0)

    def conflicts(self) -> Iterator[str]:
        if self.r_min > self.r_max:
            yield f"r_min: must be at most r_max={self.r_max}, not {self.r_min}"

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "LRUMixer":
        return LRUMixer(self, width, self.state_size or width)


class LRUMixer(DiagonalRecurrence):
    """The module of `LRU`, with complex states.

    `in_proj` makes, and `out_proj` reads, the real and the imaginary part of the first cell, then those of the next.
    """

    def __init__(self, spec: LRU, width: int, cells: int) -> None:
        super().__init__(spec)
        self.width, self.state_size, self.learning_rate_factor = width, cells, spec.learning_rate_factor
        self.in_proj = nn.Linear(width, 2 * cells, bias=False)
        nn.init.normal_(self.in_proj.weight, std=(2 * width) ** -0.5)
        self.out_proj = nn.Linear(2 * cells, width, bias=False)
        self.D = nn.Parameter(torch.randn(width))
        squares = torch.rand(cells) * (spec.r_max**2 - spec.r_min**2) + spec.r_min**2
        decay = -0.5 * squares.clamp(1e-6, 1 - 1e-6).log()
        self.nu_log = nn.Parameter(decay.log())
        self.theta_log = nn.Parameter((spec.max_phase * torch.rand(cells).clamp_min(1e-6)).log())
        self.gate = nn.Linear(width, cells, bias=False) if spec.gated else None
        self.gamma_log = None if spec.gated else nn.Parameter((-(-2 * decay).expm1()).log() / 2)

    def self_initialized_parameters(self) -> set[str]:
        return super().self_initialized_parameters() | {"in_proj.weight"}

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        own = (name for name, _ in self.named_parameters(recurse=False))
        return {name: (1.0 if name == "D" else self.learning_rate_factor, False) for name in own}

    def eigenvalues(self) -> Complex[Tensor, " cells"]:
        """What a cell is multiplied with at each token; with a gate, at a token whose gate is 1/2."""
        return torch.polar((-upcast(self.nu_log).exp()).exp(), upcast(self.theta_log).exp())

    def decays_and_inputs(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor]:
        """The eigenvalues at each token (1 x 1 x cells without a gate), and what it writes."""
        pairs = upcast(self.in_proj(x).unflatten(-1, (self.state_size, 2)))
        if self.gamma_log is not None:
            return self.eigenvalues()[None, None], torch.view_as_complex(self.gamma_log.exp()[:, None] * pairs)
        assert self.gate is not None
        far = 2 * self.gate(x).to(pairs.dtype).sigmoid()
        shrinks = -far * upcast(self.nu_log).exp()
        factor = (-(2 * shrinks).expm1()).clamp_min(1e-9).sqrt()
        turned = torch.polar(shrinks.exp(), far * upcast(self.theta_log).exp())
        return turned, torch.view_as_complex(factor[..., None] * pairs)

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        pairs = torch.view_as_real(states).flatten(-2)
        output: Tensor = self.out_proj(pairs.to(x.dtype)) + self.D * x
        return output

    def flops(self, time: int) -> int:
        return super().flops(time) + time * (2 * self.width + 10 * self.state_size)
