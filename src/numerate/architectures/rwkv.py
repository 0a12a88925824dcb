"""What RWKV's mixers share: token shift, low-rank projections, norms by head, time mixes with matrix-valued states.

The published weights and initializations are those of https://github.com/BlinkDL/RWKV-LM.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad

from numerate.kernels.backends import Backend, should_use_fla
from numerate.kernels.token_shift import shift_tokens, upcast
from numerate.mixers.mixer import Context, Mixer, check_divides, names_outside_linear_layers
from numerate.mixers.recurrence import Recurrence

CHUNK_SIZE = 16
"""Tokens per chunk; states are passed from chunk to chunk."""

MIN_BLOCK_SIZE = 4
"""Tokens of the smallest blocks, whose pairs are computed one by one."""


# How weights begin -------------------------------------------------------------------------------------------------


def depth_ratios(layer: int, depth: int) -> tuple[float, float]:
    """Relative depth in published initializations: 0 in the first layer to 1 in the last, and 1 to almost 0."""
    return layer / max(1, depth - 1), 1 - layer / depth


def channel_ratios(width: int) -> Tensor:
    """From 0 in the first channel to 1 in the last."""
    return torch.arange(width) / max(1, width - 1)


def initial_shift_weights(width: int, exponent: float, offset: float = 0.0) -> Tensor:
    """Weight of the previous token in each channel: 1 in the first, decreasing."""
    return 1 - (torch.arange(width) / width) ** exponent - offset


def initialize_linear(linear: nn.Linear, gain: float) -> None:
    """A linear map as published: orthogonal with this gain, or zeros."""
    if gain == 0:
        nn.init.zeros_(linear.weight)
    else:
        nn.init.orthogonal_(linear.weight, gain=gain)


def compute_num_heads(width: int, head_width: int | None) -> int:
    """The number of heads; by default of 64 channels each, or one head if the width is smaller."""
    size = head_width or min(64, width)
    check_divides("head_dim", size, width)
    return width // size


# Parts ---------------------------------------------------------------------------------------------------------------


def apply_token_shift(
    x: Float[Tensor, "rows time width"],
    x_prev: Float[Tensor, "rows time width"],
    shift_weights: Float[Tensor, " flat"] | Float[Tensor, "kinds rows time width"],
) -> tuple[Tensor, ...]:
    """Token shift: per kind, each channel's share of the token before and the rest of the token itself. Shares that no
    token changes lie one kind behind the other in one vector."""
    wide = shift_weights if shift_weights.dim() == 4 else shift_weights.view(-1, 1, 1, x.shape[-1])
    return torch.addcmul(x, x_prev - x, wide).unbind(0)


class LowRank(nn.Module):
    """A low-rank projection with an activation in between, plus a bias: LoRA with a bias, f(x down) up + bias."""

    def __init__(
        self,
        width: int,
        rank: int,
        between: Callable[[Tensor], Tensor] | None,
        up: Tensor,
        bias: Tensor | None,
        published: bool,
    ) -> None:
        super().__init__()
        self.activation = between
        self.down = nn.Parameter(torch.zeros(width, rank) if published else torch.randn(width, rank) * width**-0.5)
        self.up = nn.Parameter(up)
        self.bias = nn.Parameter(bias) if bias is not None else None

    def forward(self, x: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows time out"]:
        low = x @ self.down
        out = (low if self.activation is None else self.activation(low)) @ self.up
        return out if self.bias is None else out + self.bias


class HeadNorm(nn.Module):
    """LayerNorm of each head by itself, with a weight and a bias per channel. The variance gets 1e-5 per channel of a
    head: 64e-5 for the published heads of 64. Weights begin at ((layer + 1) / depth)^0.7."""

    def __init__(self, width: int, layer: int, depth: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), ((layer + 1) / depth) ** 0.7))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "rows time heads size"]) -> Float[Tensor, "rows time width"]:
        size = x.shape[-1]
        return torch.addcmul(self.bias, layer_norm(x, (size,), eps=1e-5 * size).flatten(-2), self.weight)


class RWKVSpec(Mixer):
    """The spec of a part of RWKV, which can be initialized as published."""

    published_initialization: bool


class RWKVMixer(Recurrence):
    """A part of RWKV, which reads each token and the one before."""

    output_layer = "output"

    def __init__(self, spec: RWKVSpec) -> None:
        super().__init__(spec)
        self.published_initialization = spec.published_initialization

    def self_initialized_parameters(self) -> set[str]:
        """All but the linear layers, and these too if as published."""
        if self.published_initialization:
            return {name for name, _ in self.named_parameters()}
        return super().self_initialized_parameters()


WKVInputs = tuple[Sequence[Tensor], Tensor]
WKVForms = tuple[Callable[..., tuple[Tensor, Tensor]], ...]


class MatrixTimeMix(RWKVMixer):
    """The time mix of versions 6 and 7. Its state: the newest input, rows x 1 x width, and rows x heads x keys x
    values. Parameters are named as in the published code."""

    decay_bias: ClassVar[str]
    """The parameter that learns twice as fast, as published."""
    requires_half_precision: ClassVar[bool] = False
    """Whether the kernel of flash-linear-attention runs in half precision alone."""

    ln_x: HeadNorm
    output: nn.Linear

    def __init__(self, spec: RWKVSpec, width: int, head_dim: int | None, backend: Backend) -> None:
        super().__init__(spec)
        self.heads, self.backend = compute_num_heads(width, head_dim), backend

    @abstractmethod
    def project(self, x: Tensor, before: Tensor, context: Context, lengths: Tensor | None) -> WKVInputs:
        """What the recurrence reads: receptance, logarithms of decays and more, by head, that let the state stay as it
        is behind `lengths`; and the gates, rows x time x width."""

    @abstractmethod
    def forms(self) -> WKVForms:
        """The recurrence token by token from a state, in chunks, and by flash-linear-attention: each of what `project`
        makes, with decays themselves but for the last."""

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        before, memory = state or (None, None)
        before, newest = shift_tokens(x, before, lengths)
        inputs, gate = self.project(x, before, context, lengths)
        recurrent, chunked, chunked_fla = self.forms()
        if memory is None and should_use_fla(self.backend, inputs[0], self.mixer_name, self.requires_half_precision):
            y, memory = chunked_fla(*inputs)
        else:
            r, log_decays, *others = upcast_all(*inputs)
            given = (r, log_decays.exp(), *others)
            y, memory = chunked(*given) if memory is None else recurrent(*given, memory)
        output: Tensor = self.output((self.read(y, inputs) * gate).to(gate.dtype))
        return output, (newest, memory)

    def read(self, y: Tensor, inputs: Sequence[Tensor]) -> Float[Tensor, "rows time width"]:
        """What is gated: the outputs of the heads, normed."""
        normed: Tensor = self.ln_x(y)
        return normed

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Only linear maps decay."""
        return {**dict.fromkeys(names_outside_linear_layers(self), (1.0, False)), self.decay_bias: (2.0, False)}


# Sums whose terms decay ----------------------------------------------------------------------------------------------


def split_chunks(
    x: Float[Tensor, "rows time heads size"], pad_value: float = 0.0
) -> Float[Tensor, "rows heads chunks positions size"]:
    """Splits rows into chunks, with padding at the end. Rows shorter than a chunk get a smaller one."""
    time, places = x.shape[1], MIN_BLOCK_SIZE
    while places < min(time, CHUNK_SIZE):
        places *= 2
    filled = pad(x, (0, 0, 0, 0, 0, -time % places), value=pad_value)
    return torch.unflatten(filled, 1, (-1, places)).movedim(3, 1)


def merge_chunks(
    x: Float[Tensor, "rows heads chunks positions size"], time: int
) -> Float[Tensor, "rows time heads size"]:
    """The inverse of `split_chunks`: the first `time` tokens."""
    return x.movedim(1, 3).flatten(1, 2)[:, :time]


def upcast_all(*tensors: Tensor) -> list[Tensor]:
    """Converts to at least single precision, as rounding errors accumulate in a recurrence."""
    return [upcast(x) for x in tensors]


def decayed_scores(
    queries: Float[Tensor, "*batch positions asking size"],
    keys: Float[Tensor, "*batch positions targets size"],
    decays: Float[Tensor, "*batch positions size"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each query times each earlier key, channel by channel through the decays of all places strictly between them.

    Returns the products (..., places, query, places, key), which are 0 where the key is not earlier; the queries
    through all decays before them; the keys through all decays after them; and the decays of all places together.
    The number of places is a power of 2, and at least `MIN_BLOCK_SIZE`.

    A block is halved: queries of the later half take the decays back to its beginning, keys of the earlier half those
    up to its end, and their product is one matrix. Blocks grow from `MIN_BLOCK_SIZE` to all places. Every factor is a
    product of decays, from 0 to 1: nothing is divided and nothing overflows however fast a channel forgets, and what
    underflows is too small to count. (Yang et al., 2023, https://arxiv.org/abs/2312.06635, section 4, do the same in
    two levels with logarithms, and divide within the smaller one.)

    >>> ones = torch.ones(4, 1, 1)
    >>> decayed_scores(ones, ones, torch.full((4, 1), 0.5))[0].view(4, 4)[3]
    tensor([0.2500, 0.5000, 1.0000, 0.0000])
    """
    batch, (time, num_queries, size), num_keys = decays.shape[:-2], queries.shape[-3:], keys.shape[-2]
    blocks, block_size = time // MIN_BLOCK_SIZE, MIN_BLOCK_SIZE
    queries, keys, scores, total_decay = _decayed_scores_pairwise(
        queries.reshape(*batch, blocks, block_size, num_queries, size),
        keys.reshape(*batch, blocks, block_size, num_keys, size),
        decays.reshape(*batch, blocks, block_size, size),
    )
    while block_size < time:
        blocks //= 2
        early_queries, late_queries = queries.reshape(*batch, blocks, 2, block_size, num_queries, size).unbind(-4)
        early_keys, late_keys = keys.reshape(*batch, blocks, 2, block_size, num_keys, size).unbind(-4)
        early_decay, late_decay = total_decay.reshape(*batch, blocks, 2, size).unbind(-2)
        early_scores, late_scores = scores.reshape(
            *batch, blocks, 2, block_size * num_queries, block_size * num_keys
        ).unbind(-3)
        cross_scores = late_queries.flatten(-3, -2) @ early_keys.flatten(-3, -2).transpose(-1, -2)
        upper, lower = (
            torch.cat([early_scores, torch.zeros_like(early_scores)], -1),
            torch.cat([cross_scores, late_scores], -1),
        )
        scores = torch.cat([upper, lower], dim=-2)
        queries = torch.cat([early_queries, late_queries * early_decay[..., None, None, :]], dim=-3)
        keys = torch.cat([early_keys * late_decay[..., None, None, :], late_keys], dim=-3)
        total_decay = early_decay * late_decay
        block_size *= 2
    return (
        scores.reshape(*batch, time, num_queries, time, num_keys),
        queries.reshape(*batch, time, num_queries, size),
        keys.reshape(*batch, time, num_keys, size),
        total_decay.reshape(*batch, size),
    )


def _decayed_scores_pairwise(queries: Tensor, keys: Tensor, decays: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for blocks of `MIN_BLOCK_SIZE` places, pair by pair; the products are one matrix per block."""
    each, asking, target_positions = decays.unbind(-2), queries.shape[-2], keys.shape[-2]
    every_query, every_key = queries.unbind(-3), keys.unbind(-3)
    rows: list[Tensor] = []
    reaching: list[Tensor] = []
    before = [torch.ones_like(each[0])]
    for place in range(MIN_BLOCK_SIZE):
        query = every_query[place][..., None, :]
        found = [(query * key[..., None, :, :]).sum(-1) for key in reaching]
        found += [queries.new_zeros(*queries.shape[:-3], asking, target_positions)] * (MIN_BLOCK_SIZE - place)
        rows.append(torch.stack(found, dim=-2).flatten(-2))
        reaching = [key * each[place][..., None, :] for key in reaching] + [every_key[place]]
        before.append(before[-1] * each[place])
    queries = queries * torch.stack(before[:-1], dim=-2)[..., None, :]
    return queries, torch.stack(reaching, dim=-3), torch.cat(rows, dim=-2), before[-1]
