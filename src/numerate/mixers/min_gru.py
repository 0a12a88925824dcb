"""minGRU: a gated recurrent unit whose gates depend only on the token, computed by a scan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from numerate.config import setting
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrence import DiagonalRecurrence
from numerate.positions.position import Position

EigenvalueRange = Literal["[0,1]", "[-1,1]"]


@dataclass(frozen=True)
class MinGRU(Mixer):
    """minGRU: a GRU without the state in its gates, which makes it a linear recurrence.

    Feng et al. (2024), https://arxiv.org/abs/2410.01201: h_t = (1 - z_t) h_{t-1} + z_t c_t with gates z_t = sigmoid(W
    x_t) and candidates c_t = V x_t, and a linear map back. With a gate of 1/2 and candidates 1, 1, 1 the state is 0.5,
    0.75, 0.875.

    - `positive_candidates=True`: candidates are made positive by g (Appendix B), as the paper's form in logarithms
      needs. This implementation has no divisions and accepts any candidate.
    - `eigenvalue_range="[-1,1]"`: the decay is 1 - 2 z_t. A token may then flip the sign of a state, which parity
      needs and no decay above 0 can do (Grazzi et al., 2024, https://arxiv.org/abs/2411.12537). Not in the paper.
    - `max_initial_memory`: the biases of the gates are initialized so that states remember 2 to `max_initial_memory`
      tokens (Tallec and Ollivier, 2018, https://arxiv.org/abs/1804.11188); without it all gates are initially about
      1/2.
    """

    hidden_size: int | None = setting(None, "size of the state; null: the model's hidden_size", at_least=1)
    bias: bool = setting(True, "whether gates and candidates have biases")
    positive_candidates: bool = setting(False, "whether candidate states are made positive")
    eigenvalue_range: EigenvalueRange = setting("[0,1]", "range of the recurrence's eigenvalues")
    max_initial_memory: int | None = setting(
        None, "longest initial memory of a state, in tokens; null: about 2", at_least=2
    )

    def conflicts(self) -> Iterator[str]:
        if self.max_initial_memory is not None and not self.bias:
            yield "max_initial_memory: must be null without gate biases (bias=false)"

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "MinGRUMixer":
        return MinGRUMixer(self, width, self.hidden_size or width)


class MinGRUMixer(DiagonalRecurrence):
    """The module of `MinGRU`. `in_proj` computes gates and candidates."""

    def __init__(self, spec: MinGRU, width: int, cells: int) -> None:
        super().__init__(spec)
        self.hidden_size, self.positive_candidates = cells, spec.positive_candidates
        self.allow_neg_eigval = spec.eigenvalue_range == "[-1,1]"
        self.in_proj = nn.Linear(width, 2 * cells, bias=spec.bias)
        self.out_proj = nn.Linear(cells, width, bias=False)
        self.has_memory_initialization = spec.max_initial_memory is not None
        if spec.max_initial_memory is not None:
            with torch.no_grad():
                self.in_proj.bias.zero_()
                self.in_proj.bias[:cells] = -torch.empty(cells).uniform_(1, spec.max_initial_memory - 1).log()

    def self_initialized_parameters(self) -> set[str]:
        return {"in_proj.bias"} if self.has_memory_initialization else set()

    def decays_and_inputs(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor]:
        gates, candidates = self.in_proj(x).chunk(2, dim=-1)
        if self.positive_candidates:
            candidates = torch.where(candidates >= 0, candidates + 0.5, candidates.sigmoid())
        decays = (-gates / 2).tanh() if self.allow_neg_eigval else (-gates).sigmoid()
        return decays, gates.sigmoid() * candidates

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.out_proj(states.to(x.dtype))
        return out

    def flops(self, time: int) -> int:
        return super().flops(time) + 4 * time * self.hidden_size
