"""Mamba-2: a selective state space whose decay is one number per head, computed as products of matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, rms_norm, silu, softplus

from numerate.architectures.mamba import EigenvalueRange, initial_dt_bias
from numerate.config import setting
from numerate.kernels.backends import Backend, should_use_fla
from numerate.kernels.token_shift import ShortConvolution, zero_padding
from numerate.mixers.mixer import Context, Mixer, check_divides
from numerate.mixers.recurrence import Recurrence
from numerate.positions.position import Position

CHUNK_SIZE = 64
"""Chunk size; states are passed from one chunk to the next."""

EPSILON = 1e-5
"""What the gated norm adds to the variance, as published."""


@dataclass(frozen=True)
class Mamba2(Mixer):
    """Mamba-2: a selective state space model with one decay per head (SSD).

    Dao and Gu (2024), https://arxiv.org/abs/2405.21060. `expand` x width channels in heads; the state of each head is a
    matrix of `state_size` x head width, with one token-dependent decay:

        H[t] = a[t] H[t-1] + rate[t] B[t] u[t]',    a[t] = exp(-rate[t] exp(A)),    y[t] = C[t]' H[t] + D u[t]

    u, B and C have passed a short causal convolution and a SiLU; B and C are those of all heads. y times SiLU of a gate
    is normed (RMSNorm) and mapped back to the width. Initialized as published: exp(A) uniform in 1 to 16, dt
    log-uniform in 0.001 to 0.1, D = 1. At width 128 a layer has 4 heads of 64 channels.

    With `eigenvalue_range="[-1,1]"` a decay a becomes 2 a - 1, which lets a head change its sign and so follow a parity
    (Grazzi et al., 2024, https://arxiv.org/abs/2411.12537).

    The published kernels need the package mamba-ssm; flash-linear-attention has the same recurrence as `simple_gla`.
    """

    state_size: int = setting(128, "state size per head", at_least=1)
    head_dim: int | None = setting(
        None, "channels per head; null: up to 64, at least 4 heads where possible", at_least=1
    )
    expand: int = setting(2, "expansion: channels over hidden size", at_least=1)
    conv_kernel: int = setting(4, "kernel size of the short convolution", at_least=1)
    eigenvalue_range: EigenvalueRange = setting("[0,1]", "range of the decays: [0,1] or [-1,1]")
    backend: Backend = setting("auto", "torch, fla (CUDA), or auto: fla where available")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "Mamba2Mixer":
        channels = self.expand * width
        divisors = [size for size in range(1, channels + 1) if channels % size == 0]
        head_width = self.head_dim or max(size for size in divisors if size <= max(1, min(64, channels // 4)))
        check_divides("head_dim", head_width, channels, "expand * hidden_size")
        return Mamba2Mixer(self, width, head_width)


class Mamba2Mixer(Recurrence):
    """The module of `Mamba2`. Its state: the window of the convolution, and rows x heads x state x head width."""

    def __init__(self, spec: Mamba2, width: int, head_width: int) -> None:
        super().__init__(spec)
        self.channels, self.state_size, self.head_width = spec.expand * width, spec.state_size, head_width
        self.heads = self.channels // head_width
        self.allow_neg_eigval, self.backend = spec.eigenvalue_range == "[-1,1]", spec.backend
        mixed = self.channels + 2 * self.state_size
        self.in_proj = nn.Linear(width, self.channels + mixed + self.heads, bias=False)
        self.conv1d = ShortConvolution(mixed, spec.conv_kernel)
        self.dt_bias = nn.Parameter(initial_dt_bias(self.heads))
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm_weight = nn.Parameter(torch.ones(self.channels))
        self.out_proj = nn.Linear(self.channels, width, bias=False)

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        window, memory = state or (None, None)
        sizes = [self.channels, self.channels + 2 * self.state_size, self.heads]
        gates, mixed, dt = self.in_proj(x).split(sizes, dim=-1)
        mixed, window = self.conv1d.run(mixed, window, lengths)
        inputs, B, C = torch.split(silu(mixed), [self.channels, self.state_size, self.state_size], dim=-1)
        inputs = inputs.view(*x.shape[:2], self.heads, self.head_width)
        dt = zero_padding(softplus(dt + self.dt_bias), lengths)
        if memory is None:
            output, memory = self.scan(dt, inputs * dt[..., None], B, C)
        else:
            decays, driven, new_B, new_C = (part[:, 0] for part in (self.decays(dt), inputs * dt[..., None], B, C))
            output, memory = scan_step(decays, driven, new_B, new_C, memory)
            output = output[:, None]
        output = (output + inputs * self.D[:, None]).flatten(2) * silu(gates)
        return self.out_proj(rms_norm(output, output.shape[-1:], self.norm_weight, EPSILON)), (window, memory)

    def decays(self, dt: Float[Tensor, "rows time heads"]) -> Float[Tensor, "rows time heads"]:
        decays = torch.exp(-dt * self.A_log.exp())
        return 2 * decays - 1 if self.allow_neg_eigval else decays

    def scan(
        self,
        dt: Float[Tensor, "rows time heads"],
        inputs: Float[Tensor, "rows time heads head_width"],
        B: Float[Tensor, "rows time state"],
        C: Float[Tensor, "rows time state"],
    ) -> tuple[Tensor, Tensor]:
        """The heads' outputs, and the state after the last token."""
        logs, signs = -dt * self.A_log.exp(), None
        if self.allow_neg_eigval:
            decays = self.decays(dt)
            # The signs of all factors from s to t are those up to t times those up to s.
            signs = torch.where(decays.detach() < 0, -1.0, 1.0).to(decays.dtype).cumprod(1)[..., None]
            logs = decays.abs().clamp_min(torch.finfo(decays.dtype).tiny).log()
            inputs = inputs * signs
        scan = chunked_scan_fla if should_use_fla(self.backend, inputs, "Mamba2") else chunked_scan
        output, memory = scan(logs, inputs, B, C)
        return (output, memory) if signs is None else (output * signs, memory * signs[:, -1, :, None])

    def flops(self, time: int) -> int:
        within = (self.state_size + self.channels) * (min(CHUNK_SIZE, time) + 1) // 2
        return super().flops(time) + 2 * time * (within + 2 * self.state_size * self.channels)


def chunked_scan(
    log_decays: Float[Tensor, "rows time heads"],
    inputs: Float[Tensor, "rows time heads head_width"],
    B: Float[Tensor, "rows time state"],
    C: Float[Tensor, "rows time state"],
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Float[Tensor, "rows time heads head_width"], Float[Tensor, "rows heads state head_width"]]:
    """The recurrence from log decays, in chunks of matrix products: the outputs, and the last state.

    Within a chunk, position t reads position s by C[t]' B[s] times the decays from s to t, plus the decayed state of
    earlier chunks (Dao and Gu, 2024, section 6). Log decays are summed over exactly the positions between s and t,
    never as differences of longer sums, which keeps precision, also in the gradient of a decay near 0. `scan_step`
    is one step of it.
    """
    rows, time, heads, head_width = inputs.shape
    chunk_size = min(chunk_size, time)
    num_chunks = -(-time // chunk_size)
    padding = num_chunks * chunk_size - time
    log_decays, B, C = (pad(part, (0, 0, 0, padding)) for part in (log_decays, B, C))
    inputs = pad(inputs, (0, 0, 0, 0, 0, padding)).view(rows, num_chunks, chunk_size, heads, head_width).transpose(2, 3)
    B, C = (part.view(rows, num_chunks, 1, chunk_size, -1) for part in (B, C))
    log_decays = log_decays.view(rows, num_chunks, chunk_size, heads).transpose(2, 3)
    causal_mask = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=log_decays.device).tril()
    log_decay_sums = (
        log_decays[..., None].expand(*log_decays.shape, chunk_size).masked_fill(~causal_mask.tril(-1), 0).cumsum(-2)
    )
    decays = log_decay_sums.masked_fill(~causal_mask, float("-inf")).exp()
    output = (C @ B.mT * decays) @ inputs
    chunk_states = B.mT @ (inputs * decays[..., -1, :, None])
    decays_from_start = log_decays.cumsum(-1).exp()[..., None]
    state, initial_states = torch.zeros_like(chunk_states[:, 0]), []
    for number in range(num_chunks):
        initial_states.append(state)
        state = decays_from_start[:, number, :, -1:] * state + chunk_states[:, number]
    if num_chunks > 1:
        output = output + C @ torch.stack(initial_states, dim=1) * decays_from_start
    return output.transpose(2, 3).reshape(rows, num_chunks * chunk_size, heads, head_width)[:, :time], state


def scan_step(
    decays: Float[Tensor, "rows heads"],
    inputs: Float[Tensor, "rows heads head_width"],
    B: Float[Tensor, "rows state"],
    C: Float[Tensor, "rows state"],
    state: Float[Tensor, "rows heads state head_width"],
) -> tuple[Float[Tensor, "rows heads head_width"], Float[Tensor, "rows heads state head_width"]]:
    """One step of the recurrence: the output, and the new state."""
    state = decays[..., None, None] * state + B[:, None, :, None] * inputs[:, :, None]
    return torch.einsum("rn,rhnp->rhp", C, state), state


def chunked_scan_fla(
    log_decays: Float[Tensor, "rows time heads"],
    inputs: Float[Tensor, "rows time heads head_width"],
    B: Float[Tensor, "rows time state"],
    C: Float[Tensor, "rows time state"],
) -> tuple[Float[Tensor, "rows time heads head_width"], Float[Tensor, "rows heads state head_width"]]:
    """`chunked_scan` by a kernel of flash-linear-attention, whose queries, keys and values are C, B and the inputs."""
    from fla.ops.simple_gla import chunk_simple_gla

    heads = log_decays.shape[2]
    keys, queries = (part[:, :, None].repeat(1, 1, heads, 1).to(inputs.dtype) for part in (B, C))
    output, memory = chunk_simple_gla(
        queries, keys, inputs.contiguous(), log_decays.float(), scale=1.0, output_final_state=True
    )
    return output, memory
