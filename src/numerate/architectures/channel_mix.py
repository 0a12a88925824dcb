"""RWKV's channel mix: a feed-forward with token shift."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from numerate.architectures.rwkv import (
    RWKVMixer,
    RWKVSpec,
    apply_token_shift,
    depth_ratios,
    initial_shift_weights,
    initialize_linear,
)
from numerate.config import setting
from numerate.kernels.token_shift import shift_tokens
from numerate.mixers.mixer import Context
from numerate.positions.position import Position


@dataclass(frozen=True)
class ChannelMix(RWKVSpec):
    """RWKV's channel mix: a squared-ReLU feed-forward with token shift, gated in versions 4 and 6.

    Peng et al. (2023), https://arxiv.org/abs/2305.13048, equations 18 to 20 (version 4); Peng et al. (2024),
    https://arxiv.org/abs/2404.05892 (6, the same map with another width and initialization); Peng et al. (2025),
    https://arxiv.org/abs/2503.14456 (7, without the gate). It reads the previous token, so it takes the place of a
    mixer, alternating with `RWKV6` or `RWKV7`, and the model needs no feed-forward:

    >>> from numerate.mixers import RWKV6, Alternating
    >>> from numerate.models import Decoder
    >>> spec = Decoder(mixer=Alternating((RWKV6(), ChannelMix(version=6))), feed_forward=None)
    """

    version: Literal[4, 6, 7] = setting(4, "RWKV version: 4, 6 or 7")
    expansion: float | None = setting(
        None, "intermediate size over hidden size; null: 4, or in version 6 3.5 rounded up to a multiple of 32", above=0
    )
    published_initialization: bool = setting(
        False,
        "initialize as published, output and gate projections to 0; false: by the model's initialization",
    )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "ChannelMixer":
        return ChannelMixer(self, width, layer, depth)


class ChannelMixer(RWKVMixer):
    """The module of `ChannelMix`. Its state is the newest input, rows x 1 x width.

    Linear layers are named as in the published code; `shift_weights` is that of keys, then that of receptance.
    """

    output_layer = "value"

    def __init__(self, spec: ChannelMix, width: int, layer: int, depth: int) -> None:
        super().__init__(spec)
        hidden = round(width * (spec.expansion or 4))
        if spec.expansion is None and spec.version == 6:
            hidden = max(32, int(3.5 * width) // 32 * 32)
        _, early = depth_ratios(layer, depth)
        kinds, power = (1, early**4) if spec.version == 7 else (2, early)
        self.shift_weights = nn.Parameter(initial_shift_weights(width, power).repeat(kinds))
        self.key, self.value = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False) if spec.version != 7 else None
        if spec.published_initialization:
            if self.receptance is None:
                nn.init.uniform_(self.key.weight, -0.5 * width**-0.5, 0.5 * width**-0.5)
            else:
                initialize_linear(self.key, max(1.0, hidden / width) ** 0.5 if spec.version == 4 else 1.0)
                initialize_linear(self.receptance, 0.0)
            initialize_linear(self.value, 0.0)

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        before, newest = shift_tokens(x, state, lengths)
        for_keys, *for_gate = apply_token_shift(x, before, self.shift_weights)
        made: Tensor = self.value(torch.relu(self.key(for_keys)).square())
        return made if self.receptance is None else torch.sigmoid(self.receptance(for_gate[0])) * made, newest
