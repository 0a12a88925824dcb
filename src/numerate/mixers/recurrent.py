"""Recurrent nets as mixers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from numerate.config import setting
from numerate.errors import Mistake
from numerate.mixers.mixer import Context, Mixer, TokenMixer, nothing_hidden
from numerate.positions.position import Position


@dataclass(frozen=True)
class LSTM(Mixer):
    """Long short-term memory.

    Hochreiter and Schmidhuber (1997), https://doi.org/10.1162/neco.1997.9.8.1735.

    Each layer is one `torch.nn.LSTM` and a linear map back to the width. Its own initialisation: input weights
    N(0, 1/fan_in), orthogonal recurrent weights, forget bias 1 (Jozefowicz et al., 2015).
    """

    cells: int | None = setting(None, "memory cells per layer; the model's width if not given")

    def __post_init__(self) -> None:
        if self.cells is not None and self.cells < 1:
            raise Mistake(f"cells: {self.cells} cells remember nothing; 1 or more is right")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RecurrentMixer":
        return RecurrentMixer(width, self.cells or width)

    def why_not_stacked(self) -> str | None:
        return "model.mixer: torch.vmap has no rule for torch.nn.LSTM"


class RecurrentMixer(TokenMixer):
    """One layer of an LSTM. Its state is the pair (hidden, cell), each 1 x rows x cells."""

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.width, self.cells = width, cells
        self.recurrence = nn.LSTM(width, cells, batch_first=True)
        self.out = nn.Linear(cells, width, bias=False)
        self.reset()

    def reset(self) -> None:
        """The layer's own initialisation, from torch's global generator (which the model seeds)."""
        with torch.no_grad():
            inward, recurrent, inward_bias, recurrent_bias = (
                self.recurrence.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            inward.normal_(std=self.width**-0.5)
            for gate in recurrent.chunk(4):
                nn.init.orthogonal_(gate)
            inward_bias.zero_()
            recurrent_bias.zero_()
            inward_bias[self.cells : 2 * self.cells] = 1.0

    def claimed(self) -> set[str]:
        return {f"recurrence.{name}" for name, _ in self.recurrence.named_parameters()}

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        nothing_hidden(context, "LSTM")
        out: Tensor = self.out(self.recurrence(x)[0])
        return out

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        nothing_hidden(context, "LSTM")
        packed = pack_padded_sequence(x, context.lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, cell) = self.recurrence(packed)
        return self.out(self.recurrence(x)[0]), (hidden, cell)

    def step(
        self, x: Float[Tensor, "rows 1 width"], context: Context, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, state = self.recurrence(x, state)
        return self.out(mixed), state

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,)

    def operations(self, time: int) -> int:
        return 2 * time * (4 * self.cells * (self.width + self.cells) + self.cells * self.width)
