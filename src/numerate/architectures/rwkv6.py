"""RWKV-6 (Finch): matrix-valued states with token-dependent decays per channel."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from numerate.architectures.rwkv import (
    HeadNorm,
    LowRank,
    MatrixTimeMix,
    RWKVSpec,
    WKVForms,
    WKVInputs,
    apply_token_shift,
    channel_ratios,
    decayed_scores,
    depth_ratios,
    initial_shift_weights,
    initialize_linear,
    merge_chunks,
    split_chunks,
)
from numerate.config import setting
from numerate.kernels.backends import Backend
from numerate.kernels.operators import as_operator
from numerate.kernels.token_shift import zero_padding
from numerate.mixers.mixer import Context
from numerate.positions.position import Position


@dataclass(frozen=True)
class RWKV6(RWKVSpec):
    """RWKV-6's time mix: matrix-valued states with token-dependent decays.

    Peng et al. (2024), https://arxiv.org/abs/2404.05892, section 4.2, known as x060. Per head, with r, k, v, the decays
    w between 0 and 1, and a bonus u for the newest token:

        y(t) = (S(t-1) + (u * k(t)) v(t)^T)^T r(t)        S(t) = diag(w(t)) S(t-1) + k(t) v(t)^T

    Token shift and w depend on the token by maps of low rank. A norm by head, a SiLU gate and a linear map follow. A
    whole RWKV-6 alternates it with `ChannelMix(version=6)`. The model of Chang and Bisk (2024),
    https://arxiv.org/abs/2405.20131, whose folder is named v5, is this one, with 4 layers of each and width 128:

    >>> from numerate.mixers import Alternating, ChannelMix
    >>> from numerate.models import Decoder, Stack
    >>> channel_mix = ChannelMix(version=6, published_initialization=True)
    >>> mixer = Alternating((RWKV6(published_initialization=True), channel_mix))
    >>> spec = Decoder(backbone=Stack(num_layers=8), mixer=mixer, feed_forward=None, embedding_norm=True)

    With two tokens whose keys, values and receptances are 1, w = 0.5 and u = 0, y is 0 and 1; with u = 1 it is 1 and 2.
    """

    head_dim: int | None = setting(None, "channels per head; null: 64, or hidden_size if smaller", at_least=1)
    decay_rank: int = setting(64, "rank of the decay projection", at_least=1)
    shift_rank: int = setting(32, "rank of the token shift projections", at_least=1)
    published_initialization: bool = setting(
        False,
        "initialize as published: orthogonal, output and low-rank projections 0; false: by the model's initialization",
    )
    backend: Backend = setting("auto", "auto, torch, or fla (flash-linear-attention, CUDA)")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RWKV6Mixer":
        return RWKV6Mixer(self, width, layer, depth)


class RWKV6Mixer(MatrixTimeMix):
    """The module of `RWKV6`. `time_decay` has time_decay as its bias, and time_decay_w1 and _w2 as `down` and `up`."""

    decay_bias = "time_decay.bias"

    def __init__(self, spec: RWKV6, width: int, layer: int, depth: int) -> None:
        super().__init__(spec, width, spec.head_dim, spec.backend)
        late, _ = depth_ratios(layer, depth)
        channel, rank = channel_ratios(width), spec.decay_rank
        self.token_shift = DynamicShift(width, layer, depth, spec.shift_rank, spec.published_initialization)
        speeds, up = -6 + 5 * channel ** (0.7 + 1.3 * late), torch.empty(rank, width).uniform_(-0.01, 0.01)
        self.time_decay = LowRank(width, rank, torch.tanh, up, speeds, spec.published_initialization)
        thirds = 0.1 * ((torch.arange(width) + 1) % 3 - 1)
        self.time_faaaa = nn.Parameter(late * (1 - channel) + thirds)
        self.receptance, self.key, self.value, self.gate, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.ln_x = HeadNorm(width, layer, depth)
        if spec.published_initialization:
            gains = ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0), (self.gate, 0.1), (self.output, 0.0))
            for linear, gain in gains:
                initialize_linear(linear, gain)

    def project(self, x: Tensor, before: Tensor, context: Context, lengths: Tensor | None) -> WKVInputs:
        for_decay, for_keys, for_values, for_receptance, for_gate = self.token_shift(x, before)
        made = (self.receptance(for_receptance), self.time_decay(for_decay), self.key(for_keys), self.value(for_values))
        r, speeds, k, v = (torch.unflatten(one, -1, (self.heads, -1)) for one in made)
        log_decays, k = zero_padding(-speeds.exp(), lengths), zero_padding(k, lengths)
        return (r, log_decays, k, v, self.time_faaaa.view(self.heads, -1)), silu(self.gate(for_gate))

    def forms(self) -> WKVForms:
        return recurrent_wkv, chunked_wkv, chunked_wkv_fla

    def flops(self, time: int) -> int:
        return super().flops(time) + 2 * time * (3 * self.time_faaaa.numel() ** 2 // self.heads)


class DynamicShift(nn.Module):
    """Token shift whose shares depend on the token: for decay, keys, values, receptance and gate.

    Parameters are named as in the published code; `shift_weights` is time_maa_w, _k, _v, _r and _g, one behind the
    other.
    """

    def __init__(self, width: int, layer: int, depth: int, rank: int, published: bool) -> None:
        super().__init__()
        late, early = depth_ratios(layer, depth)
        plain, soft = initial_shift_weights(width, early), initial_shift_weights(width, 0.5 * early)
        self.time_maa_x = nn.Parameter(plain.clone())
        self.shift_weights = nn.Parameter(torch.cat([plain, plain, plain - 0.3 * late, soft, soft]))
        down = torch.zeros(width, 5 * rank) if published else torch.randn(width, 5 * rank) * width**-0.5
        self.time_maa_w1 = nn.Parameter(down)
        self.time_maa_w2 = nn.Parameter(torch.empty(5, rank, width).uniform_(-0.01, 0.01))

    def forward(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        low = torch.tanh(torch.addcmul(x, before - x, self.time_maa_x) @ self.time_maa_w1)
        more = torch.unflatten(low, -1, (5, -1)).movedim(-2, 0).flatten(1, 2) @ self.time_maa_w2
        return apply_token_shift(
            x, before, torch.unflatten(more, 1, x.shape[:2]) + self.shift_weights.view(5, 1, 1, -1)
        )


# The recurrence ----------------------------------------------------------------------------------------------------


def recurrent_wkv(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    bonus: Float[Tensor, "heads size"],
    state: Float[Tensor, "rows heads size size"] | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token, and the state behind the last. Decays are from 0 to 1."""
    outputs = []
    state = k.new_zeros(k.shape[0], *k.shape[2:], v.shape[-1]) if state is None else state
    for place in range(k.shape[1]):
        pair = k[:, place, :, :, None] * v[:, place, :, None]
        outputs.append((r[:, place, :, :, None] * (state + bonus[..., None] * pair)).sum(-2))
        state = decays[:, place, :, :, None] * state + pair
    return torch.stack(outputs, dim=1), state


def chunked_wkv(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    bonus: Float[Tensor, "heads size"],
) -> tuple[Tensor, Tensor]:
    """The same from a zero state, in chunks; the tokens of a chunk are computed in parallel."""
    time = r.shape[1]
    newest = (r * k * bonus).sum(-1, keepdim=True) * v
    with torch.autocast(r.device.type, enabled=False):
        r, k, v = split_chunks(r), split_chunks(k), split_chunks(v)
        products, r, k, whole = decayed_scores(r[..., None, :], k[..., None, :], split_chunks(decays, 1.0))
        begun, state = _chunk_states(whole[..., None], k.squeeze(-2).transpose(-1, -2) @ v)
        output = products.squeeze((-3, -1)) @ v + r.squeeze(-2) @ begun
    return merge_chunks(output, time) + newest, state


@as_operator
def _chunk_states(decays: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each chunk, and behind the last."""
    state, begun = torch.zeros_like(written[:, :, 0]), []
    for decay, new in zip(decays.unbind(2), written.unbind(2), strict=True):
        begun.append(state)
        state = decay * state + new
    return torch.stack(begun, dim=2), state


def chunked_wkv_fla(r: Tensor, log_decays: Tensor, k: Tensor, v: Tensor, bonus: Tensor) -> tuple[Tensor, Tensor]:
    """The same by flash-linear-attention 0.6, in the precision of the receptance."""
    from fla.ops.rwkv6 import chunk_rwkv6

    r, k, v, w, u = (one.to(r.dtype) for one in (r, k, v, log_decays, bonus))
    y, state = chunk_rwkv6(r=r, k=k, v=v, w=w, u=u, scale=1.0, output_final_state=True)
    return y.float(), state.float()
