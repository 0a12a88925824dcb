"""minGRU: a gated recurrent unit whose gates depend only on the token, computed by a scan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.linear_scan import linear_scan
from numerate.kernels.token_shift import behind
from numerate.mixers.mixer import Context, Mixer, TokenMixer, nothing_hidden
from numerate.positions.position import Position

Eigenvalues = Literal["[0,1]", "[-1,1]"]


@dataclass(frozen=True)
class MinGRU(Mixer):
    """minGRU: a GRU without the state in its gates, which makes it a linear recurrence.

    Feng et al. (2024), https://arxiv.org/abs/2410.01201: h_t = (1 - z_t) h_{t-1} + z_t c_t with gates z_t = sigmoid(W
    x_t) and candidates c_t = V x_t, and a linear map back. With a gate of 1/2 and candidates 1, 1, 1 the state is 0.5,
    0.75, 0.875.

    - `positive_candidates=True`: candidates are made positive by g (Appendix B), as the paper's form in logarithms
      needs. The recurrence here divides by nothing and takes any candidate.
    - `eigenvalue_range="[-1,1]"`: the decay is 1 - 2 z_t. A token may then turn the sign of a cell round, which parity
      needs and no decay above 0 can do (Grazzi et al., 2024, https://arxiv.org/abs/2411.12537). Not in the paper.
    - `max_initial_memory`: the biases of the gates begin such that cells remember for 2 to `max_initial_memory` tokens
      (Tallec and Ollivier, 2018, https://arxiv.org/abs/1804.11188); without it all gates begin about 1/2.
    """

    hidden_size: int | None = setting(None, "size of the state; null: the model's hidden_size")
    bias: bool = setting(True, "whether gates and candidates have biases")
    positive_candidates: bool = setting(False, "whether candidate states are made positive")
    eigenvalue_range: Eigenvalues = setting("[0,1]", "range of the recurrence's eigenvalues")
    max_initial_memory: int | None = setting(None, "longest initial memory of a state, in tokens; null: about 2")

    def __post_init__(self) -> None:
        if self.hidden_size is not None and self.hidden_size < 1:
            raise UserError(f"hidden_size: {self.hidden_size} cells remember nothing; 1 or more is right")
        if self.eigenvalue_range not in get_args(Eigenvalues):
            raise UserError(
                f"eigenvalue_range: {self.eigenvalue_range!r} is none of: {', '.join(get_args(Eigenvalues))}"
            )
        if self.max_initial_memory is not None and self.max_initial_memory < 2:
            raise UserError(
                f"max_initial_memory: {self.max_initial_memory} is no memory; 2 or more tokens are right, or null"
            )
        if self.max_initial_memory is not None and not self.bias:
            raise UserError(
                "max_initial_memory: it is in the biases of the gates; bias=true, or max_initial_memory=null"
            )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "MinGRUMixer":
        return MinGRUMixer(self, width, self.hidden_size or width)


class MinGRUMixer(TokenMixer):
    """The part behind `MinGRU`. Its state is rows x cells. `inward` makes gates and candidates."""

    def __init__(self, spec: MinGRU, width: int, cells: int) -> None:
        super().__init__()
        self.cells, self.positive, self.signed = cells, spec.positive_candidates, spec.eigenvalue_range == "[-1,1]"
        self.inward = nn.Linear(width, 2 * cells, bias=spec.bias)
        self.out = nn.Linear(cells, width, bias=False)
        self.remembers = spec.max_initial_memory is not None
        if spec.max_initial_memory is not None:
            with torch.no_grad():
                self.inward.bias.zero_()
                self.inward.bias[:cells] = -torch.empty(cells).uniform_(1, spec.max_initial_memory - 1).log()

    def claimed(self) -> set[str]:
        return {"inward.bias"} if self.remembers else set()

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        out: Tensor = self.out(self._states(x, context).to(x.dtype))
        return out

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Tensor]:
        states = self._states(x, context)
        return self.out(states.to(x.dtype)), behind(states, context.lengths)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: Tensor) -> tuple[Tensor, Tensor]:
        decays, written = self._read(x)
        state = decays[:, 0] * state + written[:, 0]
        return self.out(state[:, None].to(x.dtype)), state

    def _states(self, x: Tensor, context: Context) -> Tensor:
        nothing_hidden(context, "MinGRU")
        return linear_scan(*self._read(x))

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The decay of each token, and what it writes: rows x time x cells."""
        gates, candidates = self.inward(x).chunk(2, dim=-1)
        if self.positive:
            candidates = torch.where(candidates >= 0, candidates + 0.5, candidates.sigmoid())
        decays = (-gates / 2).tanh() if self.signed else (-gates).sigmoid()
        return decays, gates.sigmoid() * candidates

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,)

    def flops(self, time: int) -> int:
        return 2 * time * (self.inward.weight.numel() + self.out.weight.numel() + 2 * self.cells)
