"""Relative position biases, added to the attention scores."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from numerate.config import setting
from numerate.kernels.number_table import can_read_values
from numerate.positions.position import AttentionBias, Position
from numerate.positions.position_ids import PositionIds, Sequential


@dataclass(frozen=True)
class FIRE(Position):
    """FIRE: an attention bias learned as a function of the distance relative to the query's position.

    Li et al. (2023), "Functional Interpolation for Relative Positions", https://arxiv.org/abs/2310.04418. For a query
    at position i and a key at position j, a small network per layer computes for each head

        f(log(|c (i - j)| + 1) / (log(|c max(i, |m| threshold)| + 1) + 1e-6)),  c and m learned.

    As the distance is divided by the query's position, longer rows stay within the trained range. Randomized FIRE is
    `FIRE(position_ids=RandomSubset(128))`. `share_across_layers` gives all layers one network; in the arithmetic system
    of McLeish et al. (2024) each has its own. In the paper's psi(x) = log(cx + 1), c starts at 0.1.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    hidden_size: int = setting(32, "hidden size of the network", at_least=1)
    threshold: float = setting(
        512.0, "below this position, times a learned factor, distances are not normalized by the position", above=0
    )
    share_across_layers: bool = setting(False, "whether all layers share one network")

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return FIREBias(heads, self.hidden_size, self.threshold)

    def is_shared_across_layers(self) -> bool:
        return self.share_across_layers


class FIREBias(AttentionBias):
    """The module of `FIRE`. `c` and `L_multiplier`, c and m there, are named as in the paper's code."""

    threshold: Tensor

    def __init__(self, num_heads: int, hidden_size: int, threshold: float) -> None:
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(1, hidden_size), nn.Linear(hidden_size, num_heads)
        self.c = nn.Parameter(torch.full((1,), 0.1))  # one entry: FSDP cannot divide a scalar
        self.L_multiplier = nn.Parameter(torch.full((1,), 1.0))
        self.register_constant("threshold", lambda: torch.tensor(float(threshold)))

    def compute_bias(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]:
        rows, num_pairs = (
            max(len(query_positions), len(key_positions)),
            query_positions.shape[1] * key_positions.shape[1],
        )
        if torch.is_grad_enabled() or rows * num_pairs <= _MAX_PAIRS_PER_CHUNK:
            return self._compute_chunk(query_positions, key_positions)
        chunk_size = max(1, _MAX_PAIRS_PER_CHUNK // (rows * key_positions.shape[1]))
        return torch.cat(
            [self._compute_chunk(part, key_positions) for part in torch.split(query_positions, chunk_size, dim=1)],
            dim=2,
        )

    def _compute_chunk(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        dtype = self.in_proj.weight.dtype
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).float()
        normalizer = torch.maximum(query_positions.float(), (self.L_multiplier * self.threshold).abs())
        normalized_distance = ((self.c * distance).abs() + 1).log()
        normalized_distance = normalized_distance / (((self.c * normalizer).abs() + 1).log() + 1e-6)[:, :, None]
        hidden = relu(normalized_distance[..., None].to(dtype) * self.in_proj.weight[:, 0] + self.in_proj.bias)
        return linear(hidden, self.out_proj.weight, self.out_proj.bias).permute(0, 3, 1, 2)


_MAX_PAIRS_PER_CHUNK = 1 << 18
"""Pairs of query and key per batch of the network in evaluation, to bound the memory of its hidden states."""


def bias_by_distance(
    bias_of: Callable[[Int[Tensor, "rows query key"]], Float[Tensor, "rows heads query key"]],
    query_positions: Int[Tensor, "#rows query"],
    key_positions: Int[Tensor, "#rows key"],
) -> Float[Tensor, "#rows heads query key"]:
    """A bias that depends only on the distance, the position of the query minus that of the key.

    On a CPU, without gradients, `bias_of` is computed for each distance that may occur instead of each pair of a query
    and a key, and looked up: several times faster for long rows.
    """
    num_pairs = query_positions.shape[1] * key_positions.numel()
    if num_pairs >= _MIN_LOOKED_UP_PAIRS and _can_look_up(query_positions):
        first = int(query_positions.min() - key_positions.max())
        last = int(query_positions.max() - key_positions.min())
        if last - first < num_pairs:
            distances = torch.arange(first, last + 1, device=query_positions.device)
            bias_by_index = bias_of(distances[None, None])[0, :, 0].contiguous()
            index = query_positions.int()[:, :, None] - (key_positions + first).int()[:, None, :]
            return torch.unflatten(bias_by_index.index_select(1, index.flatten()), 1, index.shape).transpose(0, 1)
    return bias_of(query_positions[:, :, None] - key_positions[:, None, :])


def _can_look_up(position_ids: Tensor) -> bool:
    """Whether a bias may be looked up by values of position ids: these are read, and the bias has no gradient."""
    return can_read_values(position_ids) and not torch.is_grad_enabled()


_MIN_LOOKED_UP_PAIRS = 1 << 12
"""With fewer pairs of query and key, computing their biases is as fast."""


@dataclass(frozen=True)
class ALiBi(Position):
    """ALiBi: an attention bias of minus the distance times a fixed slope per head.

    Press et al. (2022), "Train Short, Test Long", https://arxiv.org/abs/2108.12409. Slopes are 2^(-8/heads),
    2^(-16/heads), ...: for 8 heads 1/2, 1/4, ... 1/256; if the number of heads is no power of two, those of the next
    smaller power and every other of the next larger one, as in the paper's code. Nothing is learned. `slope_scale`
    multiplies all slopes: position ids with short distances (`Coupled`) need steeper ones than long texts. With
    `max_distance=4` larger distances count as 4, so that longer rows have no bias that did not occur in training.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    slope_scale: float = setting(1.0, "factor on all slopes; 1 as published", at_least=0)
    max_distance: int | None = setting(None, "larger distances count as this one; null: no limit", at_least=1)

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return ALiBiBias(heads, self.slope_scale, self.max_distance)


class ALiBiBias(AttentionBias):
    """The slopes of `ALiBi`.

    >>> ALiBiBias(4).slopes.tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """

    slopes: Tensor

    def __init__(self, num_heads: int, slope_scale: float = 1.0, max_distance: int | None = None) -> None:
        super().__init__()
        self.max_distance = max_distance
        power = 2 ** math.floor(math.log2(num_heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)][: num_heads - power]
        self.register_constant("slopes", lambda: slope_scale * torch.tensor(slopes))

    def compute_bias(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]:
        return bias_by_distance(self._bias_of, query_positions, key_positions)

    def _bias_of(self, distance: Int[Tensor, "rows query key"]) -> Float[Tensor, "rows heads query key"]:
        distance = distance[:, None].abs()
        if self.max_distance is not None:
            distance = distance.clamp(max=self.max_distance)
        return -distance.to(self.slopes.dtype) * self.slopes[:, None, None]


@dataclass(frozen=True)
class T5Bias(Position):
    """T5's relative position bias: a learned attention bias per head and distance bucket.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683. Half of the buckets hold one distance each, the others grow
    logarithmically up to `max_distance`; the last one holds all larger distances. Keys after the query count as
    distance 0; with `bidirectional=True` the buckets are divided between keys before and after, for position ids that
    do not count from the left (`DigitIndex`, `Coupled`). `share_across_layers` gives all layers the same biases, as T5
    does.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    num_buckets: int = setting(32, "number of distance buckets", at_least=2)
    max_distance: int = setting(128, "distances from here on share the last bucket", at_least=1)
    bidirectional: bool = setting(False, "whether keys after the query have separate buckets")
    share_across_layers: bool = setting(False, "whether all layers share the biases")

    def conflicts(self) -> Iterator[str]:
        if self.bidirectional and (self.num_buckets < 4 or self.num_buckets % 2):
            yield f"num_buckets: must be an even number of 4 or more if bidirectional, not {self.num_buckets}"
        max_exact = self.num_buckets // (2 if self.bidirectional else 1) // 2
        if self.max_distance < max_exact:
            yield (
                f"max_distance: must be {max_exact} or more, the number of distances that have a bucket each, not "
                f"{self.max_distance}"
            )

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return RelativePositionBias(heads, self.num_buckets, self.max_distance, self.bidirectional)

    def is_shared_across_layers(self) -> bool:
        return self.share_across_layers


class RelativePositionBias(AttentionBias):
    """The module of `T5Bias`: buckets x heads, drawn with standard deviation 0.1."""

    bucket_by_distance: Tensor

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.bidirectional = num_buckets, max_distance, bidirectional
        self.relative_attention_bias = nn.Parameter(0.1 * torch.randn(num_buckets, num_heads))
        # All distances beyond max_distance have the buckets of the first ones beyond it.
        distances = range(-max_distance - 1, max_distance + 2)
        self.register_constant("bucket_by_distance", lambda: self.relative_position_bucket(torch.tensor(distances)))

    def compute_bias(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]:
        return bias_by_distance(self._bias_of, query_positions, key_positions)

    def _bias_of(self, distance: Int[Tensor, "rows query key"]) -> Float[Tensor, "rows heads query key"]:
        largest = self.max_distance + 1
        bucket = self.bucket_by_distance[distance.clamp(-largest, largest) + largest]
        return self.relative_attention_bias[bucket].permute(0, 3, 1, 2)

    def relative_position_bucket(self, distance: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """The bucket of a distance (position of the query minus position of the key).

        With num_buckets=8, max_distance=16 and one side: 0 1 2 3 for these distances, 4 for 4 and 5, 5 for 6 and 7, 6
        for 8 to 11, 7 from 12 on.
        """
        num_buckets, direction_offset = self.num_buckets, torch.zeros_like(distance)
        if self.bidirectional:
            num_buckets //= 2
            direction_offset = (distance < 0) * num_buckets
            distance = distance.abs()
        else:
            distance = distance.clamp(min=0)
        max_exact = num_buckets // 2
        distance_ratio = distance.clamp(min=1).float() / max_exact
        log_max_ratio = math.log(max(self.max_distance / max_exact, 1 + 1e-6))
        log_bucket = max_exact + (distance_ratio.log() / log_max_ratio * (num_buckets - max_exact)).long()
        return direction_offset + torch.where(distance < max_exact, distance, log_bucket.clamp(max=num_buckets - 1))


@dataclass(frozen=True)
class Window(Position):
    """A window: queries see only keys whose position ids differ from theirs by at most `size`.

    With `Coupled` position ids a digit sees the digits of its own significance and `size` more on either side, in all
    numbers and at any length: in long rows a query has as many visible keys as in short ones. With `Sequential` it is
    the sliding window of Beltagy et al. (2020), https://arxiv.org/abs/2004.05150. Layers add up: two with `size=1` read
    from differences up to 2.

    A key outside of the window has the bias -1e9, which softmax turns into a weight of exactly 0. Nothing is learned;
    to tell visible keys apart takes another encoding, such as `T5Bias`.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    size: int = setting(128, "largest difference of position ids between a query and a visible key", at_least=0)

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return WindowBias(self.size)


class WindowBias(AttentionBias):
    """The module of `Window`, the same for all heads.

    >>> ids = torch.tensor([[2, 3, 1, 2, 3]])  # of `12+34` with `Coupled` position ids
    >>> WindowBias(size=1).compute_bias(ids[:, -1:], ids)
    tensor([[[[ 0.0000e+00,  0.0000e+00, -1.0000e+09,  0.0000e+00,  0.0000e+00]]]])
    """

    outside: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_constant("outside", lambda: torch.tensor(-1e9))

    def compute_bias(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows 1 query key"]:
        distance = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
        return torch.where(distance > self.size, self.outside, 0)

    def reachable_keys(
        self, query_positions: Int[Tensor, "#rows query"], key_positions: Int[Tensor, "#rows key"]
    ) -> Bool[Tensor, " key"]:
        first, last = query_positions.amin(1, keepdim=True), query_positions.amax(1, keepdim=True)
        return ((key_positions >= first - self.size) & (key_positions <= last + self.size)).any(0)
