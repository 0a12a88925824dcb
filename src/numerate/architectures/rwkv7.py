"""RWKV-7 (Goose): matrix-valued states with a generalised delta rule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from numerate.architectures.rwkv import (
    HeadNorm,
    LowRank,
    along_the_depth,
    along_the_width,
    decayed,
    exact,
    heads_of,
    in_chunks,
    mixed,
    out_of_chunks,
    own_parameters,
    shares,
)
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.backends import Kernel, refuse_other_kernels, takes_fla
from numerate.kernels.token_shift import behind, previous, real, uncompiled
from numerate.mixers.mixer import Context, Mixer, TokenMixer, nothing_hidden
from numerate.positions.position import Position

FASTEST = math.exp(-0.5)
"""The fastest decay is exp(-this) a token, 0.545."""

RANKS = ("decay_rank", "rate_rank", "value_rank", "gate_rank")


@dataclass(frozen=True)
class RWKV7(Mixer):
    """RWKV-7's time mix: a generalised delta rule with token-dependent decays and learning rates per channel.

    Peng et al. (2025), https://arxiv.org/abs/2503.14456, section 4. Per head, with r, k, v, decays w between 0.545 and
    1, rates a between 0 and 1, and the key z under which is removed, of length 1:

        S(t) = (diag(w(t)) - (a(t) * z(t)) z(t)^T) S(t-1) + k(t) v(t)^T        y(t) = S(t)^T r(t)

    A transition can have eigenvalues below 0 and mix channels, which decays alone cannot. Values of later layers are
    mixed with those of the first, which all layers of a forward share. Decays, rates, gates and that mixture come from
    maps of low rank; their ranks, if not given, are those that the authors suggest for the width. A norm by head, the
    newest token's own bonus, the gate and a linear map follow. A whole RWKV-7 alternates it with
    `ChannelMix(version=7)`:

    >>> Decoder(hidden_size=128, backbone=Stack(num_layers=8), mixer=Alternating((RWKV7(published=True),
    ...     ChannelMix(version=7, published=True))), feed_forward=None, embedding_norm=True)

    The published start learns slowly at small widths. By default rates begin at about 0.1 (published: 0.45), written
    keys do not hang on the rate, and gates are 40 times as large: sums of one digit are then learned in 300 steps of
    64, of which the published start needs more.

    With w = 1, a = 1 and one key of length 1 written to twice, the second value stands where the first stood; with
    a = 0 their sum does.
    """

    head_dim: int | None = setting(None, "channels per head; null: 64, or hidden_size where that is smaller")
    decay_rank: int | None = setting(None, "rank of the decay projection; null: 2.5 sqrt(hidden_size) in steps of 32")
    rate_rank: int | None = setting(
        None, "rank of the in-context learning rate projection; null: 2.5 sqrt(hidden_size) in steps of 32"
    )
    value_rank: int | None = setting(
        None, "rank of the value residual projection; null: 1.7 sqrt(hidden_size) in steps of 32"
    )
    gate_rank: int | None = setting(None, "rank of the gate projection; null: 5 sqrt(hidden_size) in steps of 32")
    published: bool = setting(
        False,
        "whether all begins as published: linear maps small and uniform, the last one and those to a low rank at 0; "
        "false: the model's initialisation draws linear maps, and less is removed and more let through",
    )
    backend: Kernel = setting("auto", "auto, torch, or fla (flash-linear-attention, CUDA)")

    def __post_init__(self) -> None:
        refuse_other_kernels(self.backend)
        for name in ("head_dim", *RANKS):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value} channels hold nothing; 1 or more is right")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RWKV7Mixer":
        return RWKV7Mixer(self, width, layer, depth)

    def why_not_stacked(self) -> str | None:
        return "model.mixer: torch.vmap has no rule for the kernels of fla" if self.backend == "fla" else None


State = tuple[Tensor, Tensor]
Read = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Between = Callable[[Tensor], Tensor] | None


class RWKV7Mixer(TokenMixer):
    """The part behind `RWKV7`. Its state: the newest input, rows x 1 x width, and rows x heads x keys x values."""

    def __init__(self, spec: RWKV7, width: int, layer: int, depth: int) -> None:
        super().__init__()
        self.spec, self.heads = spec, heads_of(width, spec.head_dim)
        late, early = along_the_depth(layer, depth)
        channel, size = along_the_width(width), width // self.heads
        centred = channel - 0.5
        zigzag = (2 * along_the_width(size) - 1).repeat(self.heads)
        zigzag = zigzag * zigzag.abs()
        powers = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
        self.shares = nn.Parameter(torch.cat([shares(width, power * early) for power in powers]))

        def low(
            rank: int | None, times: float, bias: Tensor | None, between: Between = None, gain: float = 0.1
        ) -> LowRank:
            rank = rank or max(32, 32 * round(times * width**0.5 / 32))
            up = nn.init.orthogonal_(torch.empty(rank, width), gain=gain * max(1.0, rank / width) ** 0.5)
            return LowRank(width, rank, between, up, bias, spec.published)

        speeds = -5.5 + 6 * channel ** (1 + late**0.3) + 2.5 * zigzag
        self.decay = low(spec.decay_rank, 2.5, speeds, torch.tanh)
        self.rate = low(spec.rate_rank, 2.5, (-0.19 if spec.published else -2.19) + 0.3 * zigzag + 0.4 * centred)
        self.mixture = low(spec.value_rank, 1.7, 0.73 - 0.4 * centred) if layer else None
        self.gate = low(spec.gate_rank, 5.0, None, torch.sigmoid, 0.1 if spec.published else 4.0)
        self.removed = nn.Parameter(0.71 - 0.1 * centred)
        self.rated = nn.Parameter(torch.full((width,), 1.02 if spec.published else 0.0))
        self.bonus = nn.Parameter(torch.full((width,), -0.04))
        self.receptance, self.keys, self.values, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = HeadNorm(width, layer, depth)
        if spec.published:
            for linear, bound in ((self.receptance, 0.5), (self.keys, 0.05), (self.values, 0.5), (self.out, 0.0)):
                nn.init.uniform_(linear.weight, -bound * width**-0.5, bound * width**-0.5)

    def claimed(self) -> set[str]:
        return own_parameters(self, self.spec.published)

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Only linear maps decay, and the biases of the decays learn twice as fast, as published."""
        plain = dict.fromkeys(own_parameters(self, False), (1.0, False))
        return {**plain, "decay.bias": (2.0, False)}

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        nothing_hidden(context, "RWKV7")
        read, gate = self._read(x, previous(x), context)
        return self._output(self._whole(read)[0], read, gate)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, State]:
        nothing_hidden(context, "RWKV7")
        (r, decays, k, v, minus, plus), gate = self._read(x, previous(x), context)
        there = real(context.lengths, x.shape[1])[:, :, None, None]
        read = (r, decays * there, k * there, v, minus, plus * there)
        y, matrix = self._whole(read)
        return self._output(y, read, gate), (behind(x, context.lengths)[:, None], matrix)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: State) -> tuple[Tensor, State]:
        before, matrix = state
        read, gate = self._read(x, before, context)
        r, decays, k, v, minus, plus = exact(*read)
        y, matrix = recurrent(r, decays.exp(), k, v, minus, plus, matrix)
        return self._output(y, read, gate), (x, matrix)

    def _read(self, x: Tensor, before: Tensor, context: Context) -> tuple[Read, Tensor]:
        """Receptance, logarithms of decays, keys, values, minus the keys under which is removed, and these times the
        rate: each rows x time x heads x size; and the gates, rows x time x width."""
        for_receptance, for_decay, for_keys, for_values, for_rate, for_gate = mixed(x, before, self.shares)
        r, k, v = self.receptance(for_receptance), self.keys(for_keys), self.values(for_values)
        if self.mixture is None:
            context.prepared[RWKV7Mixer] = v
        else:
            v = torch.lerp(v, context.prepared[RWKV7Mixer], torch.sigmoid(self.mixture(for_values)).to(v.dtype))
        rate = torch.sigmoid(self.rate(for_rate))
        decays, under = -FASTEST * torch.sigmoid(self.decay(for_decay)), k * self.removed
        made = (r, decays, k * (1 + (rate - 1) * self.rated), v, under, rate)
        r, decays, k, v, under, rate = (torch.unflatten(one, -1, (self.heads, -1)) for one in made)
        under = normalize(under, dim=-1)
        return (r, decays, k, v, -under, under * rate), self.gate(for_gate)

    def _whole(self, read: Read) -> tuple[Tensor, Tensor]:
        """The outputs at all positions, and the last states."""
        if takes_fla(self.spec.backend, read[0], "RWKV7", half_only=True):
            return through_fla(*read)
        r, decays, k, v, minus, plus = exact(*read)
        return chunked(r, decays.exp(), k, v, minus, plus)

    def _output(self, y: Tensor, read: Read, gate: Tensor) -> Tensor:
        r, _, k, v, _, _ = read
        own = (r * k * self.bonus.view(self.heads, -1)).sum(-1, keepdim=True) * v
        output: Tensor = self.out(((self.norm(y) + own.flatten(-2)) * gate).to(gate.dtype))
        return output

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,)

    def flops(self, time: int) -> int:
        matrices = sum(parameter.numel() for parameter in self.parameters() if parameter.dim() >= 2)
        return 2 * time * (matrices + 5 * self.bonus.numel() ** 2 // self.heads)


# The recurrence ----------------------------------------------------------------------------------------------------


def recurrent(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    minus: Float[Tensor, "rows time heads size"],
    plus: Float[Tensor, "rows time heads size"],
    state: Float[Tensor, "rows heads size size"] | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token, S = diag(decays) S + plus (minus^T S) + k v^T with outputs S^T r, and the last
    state. Decays are from 0 to 1."""
    outputs = []
    state = k.new_zeros(k.shape[0], *k.shape[2:], v.shape[-1]) if state is None else state
    for place in range(k.shape[1]):
        taken = (minus[:, place, :, :, None] * state).sum(-2, keepdim=True)
        state = decays[:, place, :, :, None] * state + plus[:, place, :, :, None] * taken
        state = state + k[:, place, :, :, None] * v[:, place, :, None]
        outputs.append((r[:, place, :, :, None] * state).sum(-2))
    return torch.stack(outputs, dim=1), state


@uncompiled
def chunked(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    minus: Float[Tensor, "rows time heads size"],
    plus: Float[Tensor, "rows time heads size"],
) -> tuple[Tensor, Tensor]:
    """The same from nothing, chunk by chunk: within each, all tokens at once.

    What a token takes out, minus^T S, hangs on what earlier tokens of the chunk took out, linearly: a triangular system
    with ones on its diagonal gives all of it. This is the WY form of the delta rule, Yang et al. (2024),
    https://arxiv.org/abs/2406.06484, section 3, with a decay per channel.
    """
    time = r.shape[1]
    with torch.autocast(r.device.type, enabled=False):
        now = torch.stack([(r * plus).sum(-1), (r * k).sum(-1)], dim=-1)
        asking, answering = torch.stack([minus, r * decays], dim=-2), torch.stack([plus, k], dim=-2)
        asking, answering = (torch.unflatten(in_chunks(one.flatten(-2)), -1, (2, -1)) for one in (asking, answering))
        products, asking, answering, whole = decayed(asking, answering, in_chunks(decays, 1.0))
        v, now = in_chunks(v), in_chunks(now)
        (taken_taken, taken_written), (output_taken, output_written) = (one.unbind(-1) for one in products.unbind(-3))
        (target_positions, read), (removed, written) = asking.unbind(-2), answering.transpose(-3, -1).unbind(-2)
        output_taken, output_written = (
            old + torch.diag_embed(new) for old, new in zip((output_taken, output_written), now.unbind(-1), strict=True)
        )
        both = torch.cat([taken_written @ v, target_positions], dim=-1)
        both = torch.linalg.solve_triangular(-taken_taken, both, upper=False, unitriangular=True)
        within, through = both.split((v.shape[-1], k.shape[-1]), dim=-1)
        brought = written @ v
        state, begun, taken = torch.zeros_like(brought[:, :, 0]), [], []
        for left, new, out, own, handed in zip(
            *(one.unbind(2) for one in (whole[..., None], brought, removed, within, through)), strict=True
        ):
            begun.append(state)
            taken.append(own + handed @ state)
            state = left * state + new + out @ taken[-1]
        output = output_written @ v + output_taken @ torch.stack(taken, dim=2) + read @ torch.stack(begun, dim=2)
    return out_of_chunks(output, time), state


def through_fla(r: Tensor, decays: Tensor, k: Tensor, v: Tensor, minus: Tensor, plus: Tensor) -> tuple[Tensor, Tensor]:
    """The same by flash-linear-attention 0.6, whose kernel wants half precision; `decays` are logarithms, none below
    -0.607, which lets it use the faster products."""
    from fla.ops.rwkv7 import chunk_rwkv7

    half = r.dtype if r.element_size() == 2 else torch.bfloat16
    r, w, k, v, a, b = (one.to(half) for one in (r, decays, k, v, minus, plus))
    y, state = chunk_rwkv7(r=r, w=w, k=k, v=v, a=a, b=b, output_final_state=True, safe_gate=True, chunk_size=64)
    return y.float(), state.float()
