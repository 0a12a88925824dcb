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
    apply_token_shift,
    channel_ratios,
    compute_num_heads,
    decayed_scores,
    depth_ratios,
    initial_shift_weights,
    merge_chunks,
    self_initialized_names,
    split_chunks,
    upcast_all,
)
from numerate.config import setting
from numerate.kernels.backends import Backend, should_use_fla
from numerate.kernels.token_shift import disable_compile, gather_last_tokens, length_mask, shift_tokens
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_no_blocked_keys
from numerate.positions.position import Position

MAX_DECAY_RATE = math.exp(-0.5)
"""The fastest decay is exp(-this) a token, 0.545."""

RANK_SETTINGS = ("decay_rank", "rate_rank", "value_rank", "gate_rank")


@dataclass(frozen=True)
class RWKV7(Mixer):
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

    def why_not_stacked(self) -> str | None:
        return "model.mixer: torch.vmap has no rule for the kernels of fla" if self.backend == "fla" else None


State = tuple[Tensor, Tensor]
WKVInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
OptionalActivation = Callable[[Tensor], Tensor] | None


class RWKV7Mixer(TokenMixer):
    """The module of `RWKV7`. Its state: the newest input, rows x 1 x width, and rows x heads x keys x values.

    Parameters are named as in the published code, maps of low rank as in flash-linear-attention: the bias, `down` and
    `up` of `w_lora` are w0, w1 and w2. `shift_weights` is x_r, x_w, x_k, x_v, x_a and x_g, one after the other.
    """

    def __init__(self, spec: RWKV7, width: int, layer: int, depth: int) -> None:
        super().__init__()
        self.spec, self.heads = spec, compute_num_heads(width, spec.head_dim)
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
            rank: int | None, times: float, bias: Tensor | None, between: OptionalActivation = None, gain: float = 0.1
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

    def self_initialized_parameters(self) -> set[str]:
        return self_initialized_names(self, self.spec.published_initialization)

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Only linear maps decay, and the biases of the decays learn twice as fast, as published."""
        plain = dict.fromkeys(self_initialized_names(self, False), (1.0, False))
        return {**plain, "w_lora.bias": (2.0, False)}

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        check_no_blocked_keys(context, "RWKV7")
        read, gate = self._project(x, shift_tokens(x), context)
        return self._output(self._wkv(read)[0], read, gate)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, State]:
        check_no_blocked_keys(context, "RWKV7")
        (r, decays, k, v, minus, plus), gate = self._project(x, shift_tokens(x), context)
        there = length_mask(context.lengths, x.shape[1])[:, :, None, None]
        read = (r, decays * there, k * there, v, minus, plus * there)
        y, matrix = self._wkv(read)
        return self._output(y, read, gate), (gather_last_tokens(x, context.lengths)[:, None], matrix)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: State) -> tuple[Tensor, State]:
        before, matrix = state
        read, gate = self._project(x, before, context)
        r, decays, k, v, minus, plus = upcast_all(*read)
        y, matrix = recurrent_wkv(r, decays.exp(), k, v, minus, plus, matrix)
        return self._output(y, read, gate), (x, matrix)

    def _project(self, x: Tensor, before: Tensor, context: Context) -> tuple[WKVInputs, Tensor]:
        """Receptance, logarithms of decays, keys, values, minus the keys under which is removed, and these times the
        rate: each rows x time x heads x size; and the gates, rows x time x width."""
        for_receptance, for_decay, for_keys, for_values, for_rate, for_gate = apply_token_shift(
            x, before, self.shift_weights
        )
        r, k, v = self.receptance(for_receptance), self.key(for_keys), self.value(for_values)
        if self.v_lora is None:
            context.forward_cache[RWKV7Mixer] = v
        else:
            v = torch.lerp(v, context.forward_cache[RWKV7Mixer], torch.sigmoid(self.v_lora(for_values)).to(v.dtype))
        rate = torch.sigmoid(self.a_lora(for_rate))
        decays, under = -MAX_DECAY_RATE * torch.sigmoid(self.w_lora(for_decay)), k * self.k_k
        made = (r, decays, k * (1 + (rate - 1) * self.k_a), v, under, rate)
        r, decays, k, v, under, rate = (torch.unflatten(one, -1, (self.heads, -1)) for one in made)
        under = normalize(under, dim=-1)
        return (r, decays, k, v, -under, under * rate), self.g_lora(for_gate)

    def _wkv(self, read: WKVInputs) -> tuple[Tensor, Tensor]:
        """The outputs at all positions, and the last states."""
        if should_use_fla(self.spec.backend, read[0], "RWKV7", requires_half_precision=True):
            return chunked_wkv_fla(*read)
        r, decays, k, v, minus, plus = upcast_all(*read)
        return chunked_wkv(r, decays.exp(), k, v, minus, plus)

    def _output(self, y: Tensor, read: WKVInputs, gate: Tensor) -> Tensor:
        r, _, k, v, _, _ = read
        own = (r * k * self.r_k.view(self.heads, -1)).sum(-1, keepdim=True) * v
        output: Tensor = self.output(((self.ln_x(y) + own.flatten(-2)) * gate).to(gate.dtype))
        return output

    def output_projections(self) -> Sequence[nn.Linear]:
        return (self.output,)

    def flops(self, time: int) -> int:
        matrices = sum(parameter.numel() for parameter in self.parameters() if parameter.dim() >= 2)
        return 2 * time * (matrices + 5 * self.r_k.numel() ** 2 // self.heads)


# The recurrence ----------------------------------------------------------------------------------------------------


def recurrent_wkv(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    neg_removal_keys: Float[Tensor, "rows time heads size"],
    rated_removal_keys: Float[Tensor, "rows time heads size"],
    state: Float[Tensor, "rows heads size size"] | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token, S = diag(decays) S + plus (minus^T S) + k v^T with outputs S^T r, and the last
    state. Decays are from 0 to 1."""
    outputs = []
    state = k.new_zeros(k.shape[0], *k.shape[2:], v.shape[-1]) if state is None else state
    for place in range(k.shape[1]):
        taken = (neg_removal_keys[:, place, :, :, None] * state).sum(-2, keepdim=True)
        state = decays[:, place, :, :, None] * state + rated_removal_keys[:, place, :, :, None] * taken
        state = state + k[:, place, :, :, None] * v[:, place, :, None]
        outputs.append((r[:, place, :, :, None] * state).sum(-2))
    return torch.stack(outputs, dim=1), state


@disable_compile
def chunked_wkv(
    r: Float[Tensor, "rows time heads size"],
    decays: Float[Tensor, "rows time heads size"],
    k: Float[Tensor, "rows time heads size"],
    v: Float[Tensor, "rows time heads size"],
    neg_removal_keys: Float[Tensor, "rows time heads size"],
    rated_removal_keys: Float[Tensor, "rows time heads size"],
) -> tuple[Tensor, Tensor]:
    """The same from a zero state, in chunks; the tokens of a chunk are computed in parallel.

    What a token removes depends linearly on what earlier tokens of the chunk removed: a triangular system
    with ones on its diagonal gives all of it. This is the WY form of the delta rule, Yang et al. (2024),
    https://arxiv.org/abs/2406.06484, section 3, with a decay per channel.
    """
    time = r.shape[1]
    with torch.autocast(r.device.type, enabled=False):
        diagonal_scores = torch.stack([(r * rated_removal_keys).sum(-1), (r * k).sum(-1)], dim=-1)
        stacked_queries, stacked_keys = (
            torch.stack([neg_removal_keys, r * decays], dim=-2),
            torch.stack([rated_removal_keys, k], dim=-2),
        )
        stacked_queries, stacked_keys = (
            torch.unflatten(split_chunks(one.flatten(-2)), -1, (2, -1)) for one in (stacked_queries, stacked_keys)
        )
        scores, stacked_queries, stacked_keys, total_decay = decayed_scores(
            stacked_queries, stacked_keys, split_chunks(decays, 1.0)
        )
        v, diagonal_scores = split_chunks(v), split_chunks(diagonal_scores)
        (removal_removal_scores, removal_write_scores), (output_removal_scores, output_write_scores) = (
            one.unbind(-1) for one in scores.unbind(-3)
        )
        (removal_queries, output_queries), (removal_key_chunks, write_key_chunks) = (
            stacked_queries.unbind(-2),
            stacked_keys.transpose(-3, -1).unbind(-2),
        )
        output_removal_scores, output_write_scores = (
            off_diagonal + torch.diag_embed(update)
            for off_diagonal, update in zip(
                (output_removal_scores, output_write_scores), diagonal_scores.unbind(-1), strict=True
            )
        )
        right_hand_sides = torch.cat([removal_write_scores @ v, removal_queries], dim=-1)
        right_hand_sides = torch.linalg.solve_triangular(
            -removal_removal_scores, right_hand_sides, upper=False, unitriangular=True
        )
        local_removals, state_weights = right_hand_sides.split((v.shape[-1], k.shape[-1]), dim=-1)
        chunk_updates = write_key_chunks @ v
        state, initial_states, removed_values = torch.zeros_like(chunk_updates[:, :, 0]), [], []
        for decay, new, removal_keys, local_removal, state_weight in zip(
            *(
                one.unbind(2)
                for one in (total_decay[..., None], chunk_updates, removal_key_chunks, local_removals, state_weights)
            ),
            strict=True,
        ):
            initial_states.append(state)
            removed_values.append(local_removal + state_weight @ state)
            state = decay * state + new + removal_keys @ removed_values[-1]
        output = (
            output_write_scores @ v
            + output_removal_scores @ torch.stack(removed_values, dim=2)
            + output_queries @ torch.stack(initial_states, dim=2)
        )
    return merge_chunks(output, time), state


def chunked_wkv_fla(
    r: Tensor, decays: Tensor, k: Tensor, v: Tensor, neg_removal_keys: Tensor, rated_removal_keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by flash-linear-attention 0.6, whose kernel needs half precision; `decays` are logarithms, none below
    -0.607, which lets it use the faster products."""
    from fla.ops.rwkv7 import chunk_rwkv7

    half = r.dtype if r.element_size() == 2 else torch.bfloat16
    r, w, k, v, a, b = (one.to(half) for one in (r, decays, k, v, neg_removal_keys, rated_removal_keys))
    y, state = chunk_rwkv7(r=r, w=w, k=k, v=v, a=a, b=b, output_final_state=True, safe_gate=True, chunk_size=64)
    return y.float(), state.float()
