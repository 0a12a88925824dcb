"""RWKV-4: a running mean per channel with exponentially decaying weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from numerate.architectures.rwkv import (
    RWKVMixer,
    RWKVSpec,
    apply_token_shift,
    channel_ratios,
    depth_ratios,
    initial_shift_weights,
    initialize_linear,
    upcast_all,
)
from numerate.config import setting
from numerate.kernels.linear_scan import linear_scan
from numerate.kernels.token_shift import gather_last_tokens, shift_tokens
from numerate.mixers.mixer import Context
from numerate.positions.position import Position


@dataclass(frozen=True)
class RWKV4(RWKVSpec):
    """RWKV-4's time mix: a running mean of values with exponentially decaying weights per channel.

    Peng et al. (2023), https://arxiv.org/abs/2305.13048, equations 11 to 17. With keys k, values v, decays w > 0 per
    token, and u for the newest token, each channel gets

        sum over i < t of exp(k(i) - (t - 1 - i) w) v(i) + exp(u + k(t)) v(t), divided by the sum of the weights,

    times a gate, and a linear map follows. A whole RWKV-4 alternates it with `ChannelMix()`:

    >>> from numerate.mixers import Alternating, ChannelMix
    >>> from numerate.models import Decoder, Stack
    >>> channel_mix = ChannelMix(version=4, published_initialization=True)
    >>> mixer = Alternating((RWKV4(published_initialization=True), channel_mix))
    >>> spec = Decoder(backbone=Stack(num_layers=8), mixer=mixer, feed_forward=None, embedding_norm=True)

    With k = 0, u = 0 and exp(-w) = 0.5, values 1, 0, 0 give the means 1, 1/2 and 0.5/2.5 = 1/5.
    """

    published_initialization: bool = setting(
        False,
        "initialize as published: value projections orthogonal, all others 0; false: by the model's initialization",
    )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RWKV4Mixer":
        return RWKV4Mixer(self, width, layer, depth)


class RWKV4Mixer(RWKVMixer):
    """The module of `RWKV4`. Its state, each rows x 1 x width: the newest input; the weighted sum of the values and
    that of the weights, both divided by exp of the last; and that exponent, the largest so far.

    Parameters are named as in the published code; `shift_weights` is 1 - time_mix of keys, values and receptance, one
    after the other.
    """

    def __init__(self, spec: RWKV4, width: int, layer: int, depth: int) -> None:
        super().__init__(spec)
        late, early = depth_ratios(layer, depth)
        parts = [
            initial_shift_weights(width, early),
            initial_shift_weights(width, early) - 0.3 * late,
            initial_shift_weights(width, 0.5 * early),
        ]
        self.shift_weights = nn.Parameter(torch.cat(parts))
        self.time_decay = nn.Parameter(-5 + 8 * channel_ratios(width) ** (0.7 + 1.3 * late))
        self.time_first = nn.Parameter(math.log(0.3) + 0.5 * ((torch.arange(width) + 1) % 3 - 1))
        self.receptance, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        if spec.published_initialization:
            for linear, gain in ((self.receptance, 0.0), (self.key, 0.0), (self.value, 1.0), (self.output, 0.0)):
                initialize_linear(linear, gain)

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        before, *sums = state or (None,)
        before, newest = shift_tokens(x, before, lengths)
        for_keys, for_values, for_receptance = apply_token_shift(x, before, self.shift_weights)
        made = upcast_all(self.key(for_keys), self.value(for_values), self.time_decay, self.time_first)
        gate = torch.sigmoid(self.receptance(for_receptance))
        found, *sums = recurrent_wkv(*made, *sums) if sums else parallel_wkv(*made)
        if lengths is not None:
            sums = [gather_last_tokens(one, lengths)[:, None] for one in sums]
        return self.output((gate * found).to(gate.dtype)), (newest, *sums)

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Speeds learn twice as fast, the newest token's weight three times, as published."""
        return {"time_decay": (2.0, False), "time_first": (3.0, False)}

    def flops(self, time: int) -> int:
        return super().flops(time) + 16 * time * self.time_decay.numel()


# The recurrence ----------------------------------------------------------------------------------------------------


def recurrent_wkv(
    k: Float[Tensor, "rows time width"],
    v: Float[Tensor, "rows time width"],
    time_decay: Float[Tensor, " width"],
    time_first: Float[Tensor, " width"],
    numerator: Float[Tensor, "rows 1 width"] | None = None,
    denominator: Float[Tensor, "rows 1 width"] | None = None,
    max_exponent: Float[Tensor, "rows 1 width"] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The definition, token by token: the outputs, and the final state. `time_decay` is the logarithm of w.

    Sums are kept divided by exp(largest), the largest exponent in them, so that none overflows.
    """
    numerator, denominator = (torch.zeros_like(k[:, :1]) if one is None else one for one in (numerator, denominator))
    max_exponent = torch.full_like(k[:, :1], -torch.inf) if max_exponent is None else max_exponent
    found, speed = [], time_decay.exp()
    for key, own in zip(k[:, :, None].unbind(1), v[:, :, None].unbind(1), strict=True):
        top = torch.maximum(max_exponent, time_first + key)
        old, new = (max_exponent - top).exp(), (time_first + key - top).exp()
        found.append((old * numerator + new * own) / (old * denominator + new))
        top = torch.maximum(max_exponent - speed, key)
        old, new = (max_exponent - speed - top).exp(), (key - top).exp()
        numerator, denominator, max_exponent = old * numerator + new * own, old * denominator + new, top
    return torch.cat(found, dim=1), numerator, denominator, max_exponent


def parallel_wkv(
    k: Float[Tensor, "rows time width"],
    v: Float[Tensor, "rows time width"],
    time_decay: Float[Tensor, " width"],
    time_first: Float[Tensor, " width"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from a zero state, for all tokens in parallel; returns the states after every token."""
    speed = time_decay.exp()
    largest = _running_max_exponent(k.detach(), speed.detach())
    earlier = pad(largest[:, :-1], (0, 0, 1, 0), value=-torch.inf)
    kept, weights = (earlier - speed - largest).exp(), (k - largest).exp()
    value, weight = (linear_scan(kept, added) for added in (weights * v, weights))
    top = torch.maximum(earlier, (time_first + k).detach())
    old, new = (earlier - top).exp(), (time_first + k - top).exp()
    found = (old * shift_tokens(value)[0] + new * v) / (old * shift_tokens(weight)[0] + new)
    return found, value, weight, largest


def _running_max_exponent(k: Tensor, speed: Tensor) -> Tensor:
    """The largest exponent at each position, the largest k(i) - (t - i) speed; by doubling, in log2(time) rounds."""
    far, time = 1, k.shape[1]
    while far < time:
        k = torch.cat([k[:, :far], torch.maximum(k[:, far:], k[:, :-far] - far * speed)], dim=1)
        far *= 2
    return k
