"""Mamba-2: a selective state space whose decay is one number per head, computed as products of matrices."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, rms_norm, silu, softplus

from numerate.architectures.mamba import (
    EigenvalueRange,
    MambaState,
    initial_dt_bias,
)
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.backends import Backend, should_use_fla
from numerate.kernels.token_shift import ShortConvolution, length_mask
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_no_blocked_keys
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
        if channels % head_width:
            raise UserError(
                f"model.mixer.head_dim: must divide the {channels} channels, not {head_width}; "
                f"{', '.join(map(str, divisors))} are possible"
            )
        return Mamba2Mixer(self, width, head_width)


class Mamba2Mixer(TokenMixer):
    """One layer of Mamba-2. The SSM state is rows x heads x state x head width."""

    def __init__(self, spec: Mamba2, width: int, head_width: int) -> None:
        super().__init__()
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

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        check_no_blocked_keys(context, "Mamba2")
        gates, raw, dt = self._project(x)
        inputs, B, C = self._split_inputs(silu(self.conv1d(raw)))
        output, _ = self._scan(dt, inputs * dt[..., None], B, C)
        return self._gated_output(output, inputs, gates)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, MambaState]:
        check_no_blocked_keys(context, "Mamba2")
        gates, raw, dt = self._project(x)
        inputs, B, C = self._split_inputs(silu(self.conv1d(raw)))
        dt = dt * length_mask(context.lengths, x.shape[1])[..., None]
        output, memory = self._scan(dt, inputs * dt[..., None], B, C)
        return self._gated_output(output, inputs, gates), MambaState(self.conv1d.state(raw, context.lengths), memory)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: MambaState) -> tuple[Tensor, MambaState]:
        gates, raw, dt = self._project(x)
        convolved, window = self.conv1d.step(raw, state.conv_state)
        inputs, B, C = self._split_inputs(silu(convolved))
        decays = self._decays(dt)[:, 0]
        output, memory = scan_step(decays, (inputs * dt[..., None])[:, 0], B[:, 0], C[:, 0], state.ssm_state)
        return self._gated_output(output[:, None], inputs, gates), MambaState(window, memory)

    def _project(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor, Tensor]:
        """Gates, what the convolution reads, and dt (rows x time x heads)."""
        sizes = [self.channels, self.channels + 2 * self.state_size, self.heads]
        gates, raw, dt = self.in_proj(x).split(sizes, dim=-1)
        return gates, raw, softplus(dt + self.dt_bias)

    def _split_inputs(self, convolved: Float[Tensor, "rows time mixed"]) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (rows x time x heads x head width), B and C (rows x time x state)."""
        inputs, B, C = torch.split(convolved, [self.channels, self.state_size, self.state_size], dim=-1)
        return inputs.view(*inputs.shape[:2], self.heads, self.head_width), B, C

    def _decays(self, dt: Float[Tensor, "rows time heads"]) -> Float[Tensor, "rows time heads"]:
        decays = torch.exp(-dt * self.A_log.exp())
        return 2 * decays - 1 if self.allow_neg_eigval else decays

    def _scan(
        self,
        dt: Float[Tensor, "rows time heads"],
        inputs: Float[Tensor, "rows time heads head_width"],
        B: Float[Tensor, "rows time state"],
        C: Float[Tensor, "rows time state"],
    ) -> tuple[Tensor, Tensor]:
        """The heads' outputs, and the state after the last token."""
        logs, signs = -dt * self.A_log.exp(), None
        if self.allow_neg_eigval:
            decays = 2 * logs.exp() - 1
            # The signs of all factors from s to t are those up to t times those up to s.
            signs = torch.where(decays.detach() < 0, -1.0, 1.0).to(decays.dtype).cumprod(1)[..., None]
            logs = decays.abs().clamp_min(torch.finfo(decays.dtype).tiny).log()
            inputs = inputs * signs
        scan = chunked_scan_fla if should_use_fla(self.backend, inputs, "Mamba2") else chunked_scan
        output, memory = scan(logs, inputs, B, C)
        return (output, memory) if signs is None else (output * signs, memory * signs[:, -1, :, None])

    def _gated_output(self, output: Tensor, inputs: Tensor, gates: Tensor) -> Float[Tensor, "rows time width"]:
        output = (output + inputs * self.D[:, None]).flatten(2) * silu(gates)
        out: Tensor = self.out_proj(rms_norm(output, output.shape[-1:], self.norm_weight, EPSILON))
        return out

    def self_initialized_parameters(self) -> set[str]:
        return {"dt_bias", "A_log", "D", "norm_weight", "conv1d.weight", "conv1d.bias"}

    def output_projections(self) -> Sequence[nn.Linear]:
        return (self.out_proj,)

    def flops(self, time: int) -> int:
        maps = self.in_proj.weight.numel() + self.out_proj.weight.numel() + self.conv1d.weight.numel()
        within = (self.state_size + self.channels) * (min(CHUNK_SIZE, time) + 1) // 2
        return 2 * time * (maps + within + 2 * self.state_size * self.channels)


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
    never as differences of longer sums, which keeps precision, also in the gradient of a decay near 0. `recurrent` is
    the same, step by step.
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


def recurrent_scan(
    decays: Float[Tensor, "rows time heads"],
    inputs: Float[Tensor, "rows time heads head_width"],
    B: Float[Tensor, "rows time state"],
    C: Float[Tensor, "rows time state"],
) -> tuple[Float[Tensor, "rows time heads head_width"], Float[Tensor, "rows heads state head_width"]]:
    """The recurrence step by step, from the decays themselves."""
    memory = inputs.new_zeros(len(inputs), inputs.shape[2], B.shape[2], inputs.shape[3])
    outputs = []
    for time in range(inputs.shape[1]):
        one, memory = scan_step(decays[:, time], inputs[:, time], B[:, time], C[:, time], memory)
        outputs.append(one)
    return torch.stack(outputs, dim=1), memory


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
