"""Mamba: a selective state space model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from numerate.config import setting
from numerate.kernels.selective_scan import scan_step, selective_scan
from numerate.kernels.token_shift import ShortConvolution, zero_padding
from numerate.mixers.mixer import Context, Mixer
from numerate.mixers.recurrence import Recurrence
from numerate.positions.position import Position

EigenvalueRange = Literal["[0,1]", "[-1,1]"]


@dataclass(frozen=True)
class Mamba(Mixer):
    """Mamba-1: a selective state space model.

    Gu and Dao (2023), https://arxiv.org/abs/2312.00752. Each of `expand` x width channels u, behind a short causal
    convolution and a SiLU, drives `state_size` numbers of its own that decay at a rate chosen by the token:

        h[t] = exp(rate[t] A) h[t-1] + rate[t] B[t] u[t],    y[t] = C[t] h[t] + D u[t]

    and y times SiLU of a gate is mapped back to the width. B and C are linear in u, the rate is the softplus of a
    linear map of low `time_step_rank`. Initialized as published: A = -1, ..., -state in every channel, D = 1, dt
    log-uniform in 0.001 to 0.1; no weight decay on A and D. At width 128 a layer has 256 channels and rank 8, and
    with 103 tokens a model has the 246,528 parameters of Chang and Bisk's (2024, https://arxiv.org/abs/2405.20131):

    >>> from numerate.models import Decoder
    >>> from numerate.vocabulary import Vocabulary
    >>> spec = Decoder(hidden_size=128, norm="rms", feed_forward=None, tie_word_embeddings=True, mixer=Mamba())
    >>> model = spec.build(Vocabulary.from_words([str(number) for number in range(99)]), seed=0)
    >>> sum(parameter.numel() for parameter in model.parameters())
    246528

    Decays are in [0, 1]; with `eigenvalue_range="[-1,1]"` a decay a becomes 2 a - 1, which lets a state change its sign
    and so follow a parity (Grazzi et al., 2024, https://arxiv.org/abs/2411.12537).

    It runs as a scan in plain torch on every device (`numerate.kernels.selective_scan`): flash-linear-attention has no
    selective scan of its own.
    """

    state_size: int = setting(16, "state size per channel", at_least=1)
    expand: int = setting(2, "expansion: channels over hidden size", at_least=1)
    conv_kernel: int = setting(4, "kernel size of the short convolution", at_least=1)
    time_step_rank: int | None = setting(
        None, "rank of the time step projection; null: hidden_size / 16, rounded up", at_least=1
    )
    eigenvalue_range: EigenvalueRange = setting("[0,1]", "range of the decays: [0,1] or [-1,1]")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "MambaMixer":
        return MambaMixer(self, width)


def initial_dt_bias(count: int) -> Float[Tensor, " count"]:
    """Biases whose softplus is log-uniform in 0.001 to 0.1, as published for Mamba and Mamba-2."""
    dt = torch.empty(count).uniform_(math.log(0.001), math.log(0.1)).exp()
    return dt + torch.log(-torch.expm1(-dt))


class MambaMixer(Recurrence):
    """The module of `Mamba`. Its state: the window of the convolution, and rows x state x channels.

    Parameters are named as in the published code; `A_log` is state x channels here, channels x state there.
    """

    def __init__(self, spec: Mamba, width: int) -> None:
        super().__init__(spec)
        self.channels, self.state_size = spec.expand * width, spec.state_size
        self.time_step_rank = spec.time_step_rank or -(-width // 16)
        self.allow_neg_eigval = spec.eigenvalue_range == "[-1,1]"
        self.in_proj = nn.Linear(width, 2 * self.channels, bias=False)
        self.conv1d = ShortConvolution(self.channels, spec.conv_kernel)
        self.x_proj = nn.Linear(self.channels, self.time_step_rank + 2 * self.state_size, bias=False)
        self.dt_proj = nn.Linear(self.time_step_rank, self.channels)
        self.A_log = nn.Parameter(torch.arange(1.0, self.state_size + 1).log()[:, None].repeat(1, self.channels))
        self.D = nn.Parameter(torch.ones(self.channels))
        self.out_proj = nn.Linear(self.channels, width, bias=False)
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-(self.time_step_rank**-0.5), self.time_step_rank**-0.5)
            self.dt_proj.bias.copy_(initial_dt_bias(self.channels))

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        window, memory = state or (None, None)
        inputs, gates = self.in_proj(x).chunk(2, dim=-1)
        inputs, window = self.conv1d.run(inputs, window, lengths)
        inputs = silu(inputs)
        low, B, C = self.x_proj(inputs).split([self.time_step_rank, self.state_size, self.state_size], dim=-1)
        dt = softplus(self.dt_proj(low))
        A = -self.A_log.exp()
        if memory is None:
            dt, driven = zero_padding(dt, lengths), zero_padding(dt * inputs, lengths)
            output, memory = selective_scan(dt, driven, B, C, A, self.allow_neg_eigval)
        else:
            new_dt, driven, new_B, new_C = (part[:, 0] for part in (dt, dt * inputs, B, C))
            output, memory = scan_step(new_dt, driven, new_B, new_C, A, memory, self.allow_neg_eigval)
            output = output[:, None]
        output = self.out_proj(torch.addcmul(output, inputs, self.D) * silu(gates))
        return output, (window, memory)

    def self_initialized_parameters(self) -> set[str]:
        return super().self_initialized_parameters() | {"dt_proj.weight", "dt_proj.bias"}

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"A_log": (1.0, False), "D": (1.0, False)}

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        return {"in_proj": ("inputs", "gates")}

    def flops(self, time: int) -> int:
        # Of each state: its exponent (counted with the weights, as A is a matrix) and the exponential, and three
        # products that are added: decay, input, reading.
        return super().flops(time) + 6 * time * self.channels * self.state_size
