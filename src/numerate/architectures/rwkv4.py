"""RWKV-4: a running mean per channel with exponentially decaying weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from numerate.architectures.rwkv import along_the_depth, along_the_width, begin, exact, mixed, own_parameters, shares
from numerate.config import setting
from numerate.kernels.token_shift import behind, previous, uncompiled
from numerate.mixers.mixer import Context, Mixer, TokenMixer, nothing_hidden
from numerate.positions.position import Position


@dataclass(frozen=True)
class RWKV4(Mixer):
    """RWKV-4's time mix: a running mean of values with exponentially decaying weights per channel.

    Peng et al. (2023), https://arxiv.org/abs/2305.13048, equations 11 to 17. With keys k, values v, decays w > 0 per
    token, and u for the newest token, each channel gets

        sum over i < t of exp(k(i) - (t - 1 - i) w) v(i) + exp(u + k(t)) v(t), divided by the sum of the weights,

    times a gate, and a linear map follows. A whole RWKV-4 alternates it with `ChannelMix()`:

    >>> Decoder(hidden_size=128, backbone=Stack(num_layers=8), mixer=Alternating((RWKV4(published=True),
    ...     ChannelMix(version=4, published=True))), feed_forward=None, embedding_norm=True)

    With k = 0, u = 0 and exp(-w) = 0.5, values 1, 0, 0 give the means 1, 1/2 and 0.5/2.5 = 1/5.
    """

    published: bool = setting(
        False,
        "initialize as published: value projections orthogonal, all others 0; false: by the model's initialization",
    )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "RWKV4Mixer":
        return RWKV4Mixer(self, width, layer, depth)


State = tuple[Tensor, Tensor, Tensor, Tensor]


class RWKV4Mixer(TokenMixer):
    """The part behind `RWKV4`. Its state, each rows x 1 x width: the newest input; the weighted sum of the values and
    that of the weights, both divided by exp of the last; and that exponent, the largest so far."""

    def __init__(self, spec: RWKV4, width: int, layer: int, depth: int) -> None:
        super().__init__()
        self.spec = spec
        late, early = along_the_depth(layer, depth)
        parts = [shares(width, early), shares(width, early) - 0.3 * late, shares(width, 0.5 * early)]
        self.shares = nn.Parameter(torch.cat(parts))
        self.decay = nn.Parameter(-5 + 8 * along_the_width(width) ** (0.7 + 1.3 * late))
        self.newest = nn.Parameter(math.log(0.3) + 0.5 * ((torch.arange(width) + 1) % 3 - 1))
        self.receptance, self.keys, self.values, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        if spec.published:
            for linear, gain in ((self.receptance, 0.0), (self.keys, 0.0), (self.values, 1.0), (self.out, 0.0)):
                begin(linear, gain)

    def claimed(self) -> set[str]:
        return own_parameters(self, self.spec.published)

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Speeds learn twice as fast, the newest token's weight three times, as published."""
        return {"decay": (2.0, False), "newest": (3.0, False)}

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        nothing_hidden(context, "RWKV4")
        gate, k, v = self._read(x, previous(x))
        return self._output(means(k, v, *exact(self.decay, self.newest))[0], gate)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, State]:
        nothing_hidden(context, "RWKV4")
        gate, k, v = self._read(x, previous(x))
        found, *sums = means(k, v, *exact(self.decay, self.newest))
        before, value, weight, largest = (behind(one, context.lengths)[:, None] for one in (x, *sums))
        return self._output(found, gate), (before, value, weight, largest)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: State) -> tuple[Tensor, State]:
        before, *sums = state
        gate, k, v = self._read(x, before)
        found, value, weight, largest = recurrent(k, v, *exact(self.decay, self.newest), *sums)
        return self._output(found, gate), (x, value, weight, largest)

    def _read(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for_keys, for_values, for_receptance = mixed(x, before, self.shares)
        k, v = exact(self.keys(for_keys), self.values(for_values))
        return torch.sigmoid(self.receptance(for_receptance)), k, v

    def _output(self, found: Tensor, gate: Tensor) -> Tensor:
        output: Tensor = self.out((gate * found).to(gate.dtype))
        return output

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,)

    def flops(self, time: int) -> int:
        width = self.decay.numel()
        return 2 * time * (4 * width * width + 8 * width)


# The recurrence ----------------------------------------------------------------------------------------------------


def recurrent(
    k: Float[Tensor, "rows time width"],
    v: Float[Tensor, "rows time width"],
    decay: Float[Tensor, " width"],
    newest: Float[Tensor, " width"],
    value: Float[Tensor, "rows 1 width"] | None = None,
    weight: Float[Tensor, "rows 1 width"] | None = None,
    largest: Float[Tensor, "rows 1 width"] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The definition, token by token: the means, and the state behind the last token. `decay` is the logarithm of w.

    Sums are kept divided by exp(largest), the largest exponent in them, so that none overflows.
    """
    value, weight = (torch.zeros_like(k[:, :1]) if one is None else one for one in (value, weight))
    largest = torch.full_like(k[:, :1], -torch.inf) if largest is None else largest
    found, speed = [], decay.exp()
    for key, own in zip(k[:, :, None].unbind(1), v[:, :, None].unbind(1), strict=True):
        top = torch.maximum(largest, newest + key)
        old, new = (largest - top).exp(), (newest + key - top).exp()
        found.append((old * value + new * own) / (old * weight + new))
        top = torch.maximum(largest - speed, key)
        old, new = (largest - speed - top).exp(), (key - top).exp()
        value, weight, largest = old * value + new * own, old * weight + new, top
    return torch.cat(found, dim=1), value, weight, largest


@uncompiled
def means(
    k: Float[Tensor, "rows time width"],
    v: Float[Tensor, "rows time width"],
    decay: Float[Tensor, " width"],
    newest: Float[Tensor, " width"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from nothing, of all places at once; the states are those behind every token."""
    speed = decay.exp()
    largest = _largest(k.detach(), speed.detach())
    earlier = pad(largest[:, :-1], (0, 0, 1, 0), value=-torch.inf)
    kept, weights = (earlier - speed - largest).exp(), (k - largest).exp()
    value, weight = _sums(kept, weights * v, weights)
    top = torch.maximum(earlier, (newest + k).detach())
    old, new = (earlier - top).exp(), (newest + k - top).exp()
    found = (old * previous(value) + new * v) / (old * previous(weight) + new)
    return found, value, weight, largest


def _largest(k: Tensor, speed: Tensor) -> Tensor:
    """The largest exponent behind each place, the largest k(i) - (t - i) speed; by doubling, in log2(time) rounds."""
    far, time = 1, k.shape[1]
    while far < time:
        k = torch.cat([k[:, :far], torch.maximum(k[:, far:], k[:, :-far] - far * speed)], dim=1)
        far *= 2
    return k


def _sums(kept: Tensor, *added: Tensor) -> list[Tensor]:
    """x(t) = kept(t) x(t-1) + added(t) for each of `added`: about root(time) places at once in about root(time) rounds,
    then what stood before them, in as many."""
    time = kept.shape[1]
    places = math.ceil(time**0.5)
    cut = (torch.unflatten(pad(one, (0, 0, 0, -time % places)), 1, (-1, places)).unbind(2) for one in (kept, *added))
    factors, *news = cut
    reach = [factors[0]]
    for factor in factors[1:]:
        reach.append(factor * reach[-1])
    through = torch.stack(reach, dim=2)
    found = []
    for new in news:
        within = [new[0]]
        for factor, one in zip(factors[1:], new[1:], strict=True):
            within.append(torch.addcmul(one, factor, within[-1]))
        begun = [torch.zeros_like(within[0][:, 0])]
        for far, last in zip(reach[-1].unbind(1)[:-1], within[-1].unbind(1)[:-1], strict=True):
            begun.append(torch.addcmul(last, far, begun[-1]))
        whole = torch.addcmul(torch.stack(within, dim=2), through, torch.stack(begun, dim=1)[:, :, None])
        found.append(whole.flatten(1, 2)[:, :time])
    return found
