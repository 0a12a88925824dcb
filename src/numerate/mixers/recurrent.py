"""Recurrent nets as mixers."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from numerate.config import setting
from numerate.kernels.operators import as_operator
from numerate.kernels.token_shift import gather_last_tokens
from numerate.mixers.mixer import Context, Mixer, check_output_width
from numerate.mixers.recurrence import Recurrence
from numerate.positions.position import Position

RecurrentInitialization = Literal["orthogonal", "torch"]


@dataclass(frozen=True)
class RecurrentSpec(Mixer):
    """Settings of `RNN`, `GRU` and `LSTM`: one torch module per layer, and an output projection.

    - `initialization="orthogonal"`: input weights N(0, 1/fan_in), orthogonal recurrent weights, biases 0 (an LSTM's
      forget gate 1: Jozefowicz et al., 2015, https://proceedings.mlr.press/v37/jozefowicz15.html).
    - `initialization="torch"`: everything uniform within +-1/root(cells), as torch's modules are.
    """

    hidden_size: int | None = setting(
        None, "hidden size of the recurrent layer; null: the model's hidden_size", at_least=1
    )
    output_projection: bool = setting(True, "whether a linear output projection follows; false: the torch module alone")
    bias: bool = setting(True, "whether the recurrence has biases")
    initialization: RecurrentInitialization = setting(
        "orthogonal", "orthogonal recurrent weights, or torch: torch's uniform"
    )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RecurrentMixer":
        cells = self.hidden_size or width
        check_output_width(cells, width, self.output_projection)
        net = self.build_rnn(width, cells)
        if self.initialization == "orthogonal":
            initialize_rnn(net)
        return RecurrentMixer(self, net, width)

    @abstractmethod
    def build_rnn(self, width: int, cells: int) -> nn.RNNBase:
        """Torch's module, from rows x time x width to rows x time x cells."""


@dataclass(frozen=True)
class RNN(RecurrentSpec):
    """Elman recurrent network with tanh (`torch.nn.RNN`).

    Elman (1990), https://doi.org/10.1207/s15516709cog1402_1: h_t = tanh(W x_t + b + U h_{t-1} + c). Each layer is one
    `torch.nn.RNN`.

    The bare net as published with the inductive counting tasks (https://arxiv.org/abs/2405.20131), with 33,024
    parameters at width 128:

    >>> mixer = RNN(output_projection=False, initialization="torch")
    """

    def build_rnn(self, width: int, cells: int) -> nn.RNNBase:
        return nn.RNN(width, cells, bias=self.bias, batch_first=True)


@dataclass(frozen=True)
class GRU(RecurrentSpec):
    """Gated recurrent unit (`torch.nn.GRU`).

    Cho et al. (2014), https://arxiv.org/abs/1406.1078. Each layer is one `torch.nn.GRU`, whose reset gate acts after
    the recurrent matrix, not before it as in the paper: n_t = tanh(W x_t + b + r_t * (U h_{t-1} + c)).
    """

    def build_rnn(self, width: int, cells: int) -> nn.RNNBase:
        return nn.GRU(width, cells, bias=self.bias, batch_first=True)


@dataclass(frozen=True)
class LSTM(RecurrentSpec):
    """Long short-term memory, as `torch.nn.LSTM`.

    Hochreiter and Schmidhuber (1997), https://doi.org/10.1162/neco.1997.9.8.1735.

    Each layer is one `torch.nn.LSTM` and a linear map back to the width. Initialization: input weights
    N(0, 1/fan_in), orthogonal recurrent weights, forget bias 1 (Jozefowicz et al., 2015).

    The bare net as published with the inductive counting tasks (https://arxiv.org/abs/2405.20131), with 132,096
    parameters at width 128:

    >>> mixer = LSTM(output_projection=False, initialization="torch")
    """

    def build_rnn(self, width: int, cells: int) -> nn.RNNBase:
        return nn.LSTM(width, cells, bias=self.bias, batch_first=True)


@torch.no_grad()
def initialize_rnn(rnn: nn.RNNBase) -> None:
    """The default initialization, from torch's global generator (which the model seeds)."""
    for name, parameter in rnn.named_parameters():
        if name == "weight_ih_l0":
            parameter.normal_(std=rnn.input_size**-0.5)
        elif name == "weight_hh_l0":
            for gate in parameter.chunk(parameter.shape[0] // rnn.hidden_size):
                nn.init.orthogonal_(gate)
        else:
            parameter.zero_()
            if name == "bias_ih_l0" and isinstance(rnn, nn.LSTM):
                parameter[rnn.hidden_size : 2 * rnn.hidden_size] = 1.0


class RecurrentMixer(Recurrence):
    """One layer of a recurrent net of torch. On a CPU torch runs whole rows of an LSTM in fp32 by oneDNN.

    Its state is the hidden state, for an LSTM the pair (hidden, cell); each 1 x rows x cells.
    """

    def __init__(self, spec: RecurrentSpec, net: nn.RNNBase, width: int) -> None:
        super().__init__(spec)
        self.rnn = net
        self.out_proj = nn.Linear(net.hidden_size, width, bias=False) if spec.output_projection else nn.Identity()

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        is_lstm = isinstance(self.rnn, nn.LSTM)
        if is_lstm and lengths is not None and int(lengths.min()) < x.shape[1]:
            # Packed sequences return the state at each row's end; unpacked ones are faster.
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            found, state = self.rnn(packed)
            hidden, _ = pad_packed_sequence(found, batch_first=True, total_length=x.shape[1])
        elif state is None and lengths is None and torch.compiler.is_compiling():
            (hidden,) = whole_rows(x, *self.rnn.parameters(), self.rnn.mode)
        else:
            hidden, state = self.rnn(x, state)
            if lengths is not None and not is_lstm:
                state = gather_last_tokens(hidden, lengths)[None]
        return self.out_proj(hidden), state


@as_operator
def whole_rows(x: Tensor, *weights_and_mode: Any) -> tuple[Tensor]:
    """The outputs of a layer of torch (LSTM, GRU or RNN_TANH) with these weights; `torch.compile` would write its loop
    out."""
    *weights, mode = weights_and_mode
    zeros = x.new_zeros(1, x.shape[0], weights[1].shape[1])
    state, has_biases = (zeros, zeros) if mode == "LSTM" else zeros, len(weights) == 4
    # one layer without dropout, as in training, in one direction, rows first
    return (getattr(torch, mode.lower())(x, state, weights, has_biases, 1, 0.0, True, False, True)[0],)
