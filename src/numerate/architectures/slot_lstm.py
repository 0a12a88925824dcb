"""An LSTM with several memory slots, chosen by each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from numerate.config import setting
from numerate.kernels.operators import as_operator
from numerate.kernels.token_shift import zero_padding
from numerate.mixers.mixer import Context, Mixer
from numerate.mixers.recurrence import Recurrence
from numerate.positions.position import Position


@dataclass(frozen=True)
class SlotLSTM(Mixer):
    """An LSTM with several memory slots, which each token reads and writes by a softmax.

    New in numerate, after the gated memories of Recurrent Entity Networks (Henaff et al., 2017,
    https://arxiv.org/abs/1612.03969) and the LSTM (Hochreiter and Schmidhuber, 1997). All slots share one set of
    weights and begin at zero. For token x with the shares a = softmax(sharpness * (A x + b)) of the slots that it
    writes to, and r = softmax(sharpness * (R x + d)) of those that it reads, which begin alike,

        (h, c) = sum over slots of r_j slot_j,    new = LSTM(x; h, c),    slot_j += a_j (new - slot_j)

    and the output is the new h, mapped back to the width. The shares are functions of the token alone. So where each
    kind of token has a slot of its own, that slot goes through the same states however many other tokens stand between:
    counting ten kinds of items takes ten small counters instead of the product of their states. With `num_slots=1` it
    is an LSTM.

    >>> from numerate.models import Decoder, Stack
    >>> spec = Decoder(hidden_size=64, backbone=Stack(num_layers=1), mixer=SlotLSTM(num_slots=16))
    """

    num_slots: int = setting(16, "number of memory slots", at_least=1)
    hidden_size: int | None = setting(None, "hidden size of each slot; null: the model's hidden_size", at_least=1)
    sharpness: float = setting(1.0, "factor on the logits of the slot softmax", above=0)

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "SlotLSTMMixer":
        return SlotLSTMMixer(self, width, self.hidden_size or width)


class SlotLSTMMixer(Recurrence):
    """The module of `SlotLSTM`. Its state is rows x slots x (2 x cells): h and c of every slot.

    The recurrence is not linear in its state, so it cannot be parallelized over time: the input projections are
    computed by matrix products for all positions, the rest by a loop.
    """

    def __init__(self, spec: SlotLSTM, width: int, cells: int) -> None:
        super().__init__(spec)
        self.num_slots, self.hidden_size, self.sharpness = spec.num_slots, cells, spec.sharpness
        self.write_proj, self.read_proj = nn.Linear(width, spec.num_slots), nn.Linear(width, spec.num_slots)
        self.in_proj = nn.Linear(width, 4 * cells)
        self.recurrent_proj = nn.Linear(cells, 4 * cells, bias=False)
        self.out_proj = nn.Linear(cells, width, bias=False)
        with torch.no_grad():
            for linear in (self.write_proj, self.in_proj):
                linear.weight.normal_(std=width**-0.5)
                linear.bias.zero_()
            self.read_proj.load_state_dict(self.write_proj.state_dict())
            self.in_proj.bias[cells : 2 * cells] = 1.0
            for gate in self.recurrent_proj.weight.chunk(4):
                nn.init.orthogonal_(gate)

    def self_initialized_parameters(self) -> set[str]:
        return {name for name, _ in self.named_parameters()} - {"out_proj.weight"}

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        memory = x.new_zeros(x.shape[0], self.num_slots, 2 * self.hidden_size) if state is None else state
        shares = zero_padding(self.write_weights(x), lengths)  # a token with weight 0 changes no slot
        reading = (self.sharpness * self.read_proj(x)).softmax(-1)
        hidden, memory = _loop(self.in_proj(x), reading, shares, memory, self.recurrent_proj.weight)
        return self.out_proj(hidden), memory

    def write_weights(self, x: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows time slots"]:
        """The softmax weights of slots."""
        shares: Tensor = (self.sharpness * self.write_proj(x)).softmax(-1)
        return shares

    def flops(self, time: int) -> int:
        return super().flops(time) + 10 * time * self.num_slots * self.hidden_size


@as_operator
def _loop(
    tokens: Float[Tensor, "rows time gates"],
    reading: Float[Tensor, "rows time slots"],
    shares: Float[Tensor, "rows time slots"],
    memory: Float[Tensor, "rows slots both"],
    recurrent_weight: Float[Tensor, "gates cells"],
) -> tuple[Tensor, Tensor]:
    """h after each token, and the slots after the last."""
    outputs = []
    for token, read, share in zip(tokens.unbind(1), reading.unbind(1), shares.unbind(1), strict=True):
        h, c = (read[:, None] @ memory)[:, 0].chunk(2, dim=-1)
        enter, keep, value, show = (token + nn.functional.linear(h, recurrent_weight)).chunk(4, dim=-1)
        c = keep.sigmoid() * c + enter.sigmoid() * value.tanh()
        h = show.sigmoid() * c.tanh()
        memory = torch.addcmul(memory, share[..., None], torch.cat([h, c], dim=-1)[:, None] - memory)
        outputs.append(h)
    return torch.stack(outputs, dim=1), memory
