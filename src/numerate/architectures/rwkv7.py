"""RWKV-7 (Goose): matrix-valued states with a generalized delta rule."""

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
    MatrixTimeMix,
    RWKVSpec,
    WKVForms,
    WKVInputs,
    apply_token_shift,
    channel_ratios,
    decayed_scores,
    depth_ratios,
    initial_shift_weights,
    merge_chunks,
    split_chunks,
)
from numerate.config import setting
from numerate.kernels.backends import Backend
from numerate.kernels.operators import as_operator
from numerate.kernels.token_shift import zero_padding
from numerate.mixers.mixer import Context
from numerate.positions.position import Position

MAX_DECAY_RATE = math.exp(-0.5)
"""The fastest decay is exp(-this) a token, 0.545."""


@dataclass(frozen=True)
class RWKV7(RWKVSpec):
    """RWKV-7's time mix: a generalized delta rule with token-dependent decays and learning rates per channel.

    Peng et al. (2025), https://arxiv.org/abs/2503.14456, section 4. Per head, with r, k, v, decays w between 0.545 and
    1, rates a between 0 and 1, and the unit-length removal key z:

        S(t) = (diag(w(t)) - (a(t) * z(t)) z(t)^T) S(t-1) + k(t) v(t)^T        y(t) = S(t)^T r(t)

    A transition can have eigenvalues below 0 and mix channels, which decays alone cannot. Values of later layers are
    mixed with those of the first, which all layers of a forward pass share. Decays, rates, gates and that mixture come
    from maps of low rank; their ranks, if not given, are those that the authors suggest for the width. A norm by head,
    the newest token's own bonus, the gate and a linear map follow. A whole RWKV-7 alternates it with
    `ChannelMix(version=7)`:

    >>> from numerate.mixers import Alternating, ChannelMix
    >>> from numerate.models import Decoder, Stack
    >>> channel_mix = ChannelMix(version=7, published_initialization=True)
    >>> mixer = Alternating((RWKV7(published_initialization=True), channel_mix))
    >>> spec = Decoder(backbone=Stack(num_layers=8), mixer=mixer, feed_forward=None, embedding_norm=True)

    The published initialization learns slowly at small widths. By default learning rates are initially about 0.1
    (published: 0.45), written keys do not depend on the learning rate, and gates are 40 times as large: sums of one
    digit are then learned in 300 steps of 64, of which the published start needs more.

    With w = 1, a = 1 and one key of length 1 written to twice, the second value stands where the first stood; with
    a = 0 their sum does.
    """

    head_dim: int | None = setting(None, "channels per head; null: 64, or hidden_size if smaller", at_least=1)
    decay_rank: int | None = setting(
        None, "rank of the decay projection; null: 2.5 sqrt(hidden_size) in steps of 32", at_least=1
    )
    rate_rank: int | None = setting(
        None, "rank of the in-context learning rate projection; null: 2.5 sqrt(hidden_size) in steps of 32", at_least=1
    )
    value_rank: int | None = setting(
        None, "rank of the value residual projection; null: 1.7 sqrt(hidden_size) in steps of 32", at_least=1
    )
    gate_rank: int | None = setting(
        None, "rank of the gate projection; null: 5 sqrt(hidden_size) in steps of 32", at_least=1
    )
    published_initialization: bool = setting(
        False,
        "initialize as published: linear layers small and uniform, output and low-rank down projections 0; "
        "false: by the model's initialization, with smaller learning rates and larger gates",
    )
    backend: Backend = setting("auto", "auto, torch, or fla (flash-linear-attention, CUDA)")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RWKV7Mixer":
        return RWKV7Mixer(self, width, layer, depth)


class RWKV7Mixer(MatrixTimeMix):
    """The module of `RWKV7`. Maps of low rank are named as in flash-linear-attention: the bias, `down` and `up` of
    `w_lora` are w0, w1 and w2. `shift_weights` is x_r, x_w, x_k, x_v, x_a and x_g, one after the other."""

    decay_bias = "w_lora.bias"
    requires_half_precision = True

    def __init__(self, spec: RWKV7, width: int, layer: int, depth: int) -> None:
        super().__init__(spec, width, spec.head_dim, spec.backend)
        ratio_0_to_1, ratio_1_to_0 = depth_ratios(layer, depth)
        channel, size = channel_ratios(width), width // self.heads
        centered = channel - 0.5
        zigzag = (2 * channel_ratios(size) - 1).repeat(self.heads)
        zigzag = zigzag * zigzag.abs()
        exponents = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
        self.shift_weights = nn.Parameter(
            torch.cat([initial_shift_weights(width, exponent * ratio_1_to_0) for exponent in exponents])
        )

        def low_rank(
            rank: int | None,
            times: float,
            bias: Tensor | None,
            between: Callable[[Tensor], Tensor] | None = None,
            gain: float = 0.1,
        ) -> LowRank:
            rank = rank or max(32, 32 * round(times * width**0.5 / 32))
            up = nn.init.orthogonal_(torch.empty(rank, width), gain=gain * max(1.0, rank / width) ** 0.5)
            return LowRank(width, rank, between, up, bias, spec.published_initialization)

        decay_bias = -5.5 + 6 * channel ** (1 + ratio_0_to_1**0.3) + 2.5 * zigzag
        self.w_lora = low_rank(spec.decay_rank, 2.5, decay_bias, torch.tanh)
        self.a_lora = low_rank(
            spec.rate_rank, 2.5, (-0.19 if spec.published_initialization else -2.19) + 0.3 * zigzag + 0.4 * centered
        )
        self.v_lora = low_rank(spec.value_rank, 1.7, 0.73 - 0.4 * centered) if layer else None
        self.g_lora = low_rank(spec.gate_rank, 5.0, None, torch.sigmoid, 0.1 if spec.published_initialization else 4.0)
        self.k_k = nn.Parameter(0.71 - 0.1 * centered)
        self.k_a = nn.Parameter(torch.full((width,), 1.02 if spec.published_initialization else 0.0))
        self.r_k = nn.Parameter(torch.full((width,), -0.04))
        self.receptance, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.ln_x = HeadNorm(width, layer, depth)
        if spec.published_initialization:
            for linear, bound in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5), (self.output, 0.0)):
                nn.init.uniform_(linear.weight, -bound * width**-0.5, bound * width**-0.5)

    def project(self, x: Tensor, before: Tensor, context: Context, lengths: Tensor | None) -> WKVInputs:
        for_receptance, for_decay, for_keys, for_values, for_rate, for_gate = apply_token_shift(
            x, before, self.shift_weights
        )
        r, k, v = self.receptance(for_receptance), self.key(for_keys), self.value(for_values)
        if self.v_lora is None:
            context.forward_cache[RWKV7Mixer] = v
        else:
            v = torch.lerp(v, context.forward_cache[RWKV7Mixer], torch.sigmoid(self.v_lora(for_values)).to(v.dtype))
        rate = torch.sigmoid(self.a_lora(for_rate))
        log_decays, z = -MAX_DECAY_RATE * torch.sigmoid(self.w_lora(for_decay)), k * self.k_k
        made = (r, log_decays, k * (1 + (rate - 1) * self.k_a), v, z, rate)
        r, log_decays, k, v, z, rate = (torch.unflatten(one, -1, (self.heads, -1)) for one in made)
        z = normalize(z, dim=-1)
        log_decays, k, plus = (zero_padding(one, lengths) for one in (log_decays, k, z * rate))
        return (r, log_decays, k, v, -z, plus), self.g_lora(for_gate)

    def forms(self) -> WKVForms:
        return recurrent_wkv, chunked_wkv, chunked_wkv_fla

    def read(self, y: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        r, _, k, v, _, _ = inputs
        own = (r * k * self.r_k.view(self.heads, -1)).sum(-1, keepdim=True) * v
        return super().read(y, inputs) + own.flatten(-2)

    def flops(self, time: int) -> int:
        return super().flops(time) + 2 * time * (5 * self.r_k.numel() ** 2 // self.heads)


# The recurrence ----------------------------------------------------------------------------------------------------


def recurrent_wkv(
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


def chunked_wkv(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    minus: Float[Tensor, "rows time heads size"],
    plus: Float[Tensor, "rows time heads size"],
) -> tuple[Tensor, Tensor]:
    """The same from a zero state, in chunks; the tokens of a chunk are computed in parallel.

    What a token removes depends linearly on what earlier tokens of the chunk removed: a triangular system
    with ones on its diagonal gives all of it. This is the WY form of the delta rule, Yang et al. (2024),
    https://arxiv.org/abs/2406.06484, section 3, with a decay per channel.
    """
    time = r.shape[1]
    with torch.autocast(r.device.type, enabled=False):
        own_scores = split_chunks(torch.stack([(r * plus).sum(-1), (r * k).sum(-1)], dim=-1))
        queries, keys = torch.stack([minus, r * decays], dim=-2), torch.stack([plus, k], dim=-2)
        queries, keys = (torch.unflatten(split_chunks(one.flatten(-2)), -1, (2, -1)) for one in (queries, keys))
        scores, queries, keys, chunk_decays = decayed_scores(queries, keys, split_chunks(decays, 1.0))
        (minus_plus, minus_k), (r_plus, r_k) = (one.unbind(-1) for one in scores.unbind(-3))
        (minus, r), (plus, k), v = queries.unbind(-2), keys.transpose(-3, -1).unbind(-2), split_chunks(v)
        r_plus, r_k = (
            score + torch.diag_embed(own) for score, own in zip((r_plus, r_k), own_scores.unbind(-1), strict=True)
        )
        right_hand_sides = torch.cat([minus_k @ v, minus], dim=-1)
        solved = torch.linalg.solve_triangular(-minus_plus, right_hand_sides, upper=False, unitriangular=True)
        removed, removed_by_state = solved.split((v.shape[-1], minus.shape[-1]), dim=-1)
        removals, states, state = _chunk_states(chunk_decays[..., None], k @ v, plus, removed, removed_by_state)
        output = r_k @ v + r_plus @ removals + r @ states
    return merge_chunks(output, time), state


@as_operator
def _chunk_states(
    decays: Tensor, written: Tensor, plus: Tensor, removed: Tensor, removed_by_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What each chunk removes, the states before each chunk, and behind the last."""
    state, states, removals = torch.zeros_like(written[:, :, 0]), [], []
    parts = (part.unbind(2) for part in (decays, written, plus, removed, removed_by_state))
    for decay, new, key, own, by_state in zip(*parts, strict=True):
        states.append(state)
        removals.append(own + by_state @ state)
        state = decay * state + new + key @ removals[-1]
    return torch.stack(removals, dim=2), torch.stack(states, dim=2), state


def chunked_wkv_fla(
    r: Tensor, log_decays: Tensor, k: Tensor, v: Tensor, minus: Tensor, plus: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by flash-linear-attention 0.6, whose kernel needs half precision. No logarithm is below -0.607, which
    lets it use the faster products."""
    from fla.ops.rwkv7 import chunk_rwkv7

    half = r.dtype if r.element_size() == 2 else torch.bfloat16
    r, w, k, v, a, b = (one.to(half) for one in (r, log_decays, k, v, minus, plus))
    y, state = chunk_rwkv7(r=r, w=w, k=k, v=v, a=a, b=b, output_final_state=True, safe_gate=True, chunk_size=64)
    return y.float(), state.float()
