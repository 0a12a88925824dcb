"""Relative position biases, added to the attention scores."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from numerate.config import setting
from numerate.errors import UserError
from numerate.positions.position import Bias, Position
from numerate.positions.position_ids import PositionIds, Sequential


@dataclass(frozen=True)
class FIRE(Position):
    """FIRE: an attention bias learned as a function of the distance relative to the query's position.

    Li et al. (2023), "Functional Interpolation for Relative Positions", https://arxiv.org/abs/2310.04418. For a query
    at position i and a key at position j, a small network per layer gives each head

        f(log(|c (i - j)| + 1) / (log(|c max(i, |m| threshold)| + 1) + 1e-6)),  c and m learned.

    As the distance is divided by the query's position, longer rows stay within the trained range. Randomised FIRE is
    `FIRE(position_ids=RandomSubset(128))`. `shared` gives all layers one network; in the arithmetic system of McLeish
    et al. (2024) each has its own. In the paper's psi(x) = log(cx + 1), c starts at 0.1.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    hidden_size: int = setting(32, "hidden size of the network")
    threshold: float = setting(
        512.0, "below this position, times a learned factor, distances are not normalized by the position"
    )
    shared: bool = setting(False, "whether all layers share one network")

    def __post_init__(self) -> None:
        if self.hidden_size < 1:
            raise UserError(f"hidden_size: a network of width {self.hidden_size} is none; 32 is usual")
        if self.threshold <= 0:
            raise UserError(f"threshold: {self.threshold} is no place; a number above 0 is right, 512 is usual")

    def build_attention(self, heads: int, head_width: int) -> Bias:
        return DistanceNetwork(heads, self.hidden_size, self.threshold)

    def shares_layers(self) -> bool:
        return self.shared


class DistanceNetwork(Bias):
    """The network behind `FIRE`."""

    threshold: Tensor

    def __init__(self, heads: int, hidden: int, threshold: float) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(1, hidden), nn.Linear(hidden, heads)
        self.distance_scale = nn.Parameter(torch.full((1,), 0.1))  # one entry: FSDP cannot divide a scalar
        self.threshold_scale = nn.Parameter(torch.full((1,), 1.0))
        self.register_buffer("threshold", torch.tensor(float(threshold)), persistent=False)

    def bias(
        self, queries: Int[Tensor, "#rows query"], keys: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]:
        rows, pairs = max(len(queries), len(keys)), queries.shape[1] * keys.shape[1]
        if torch.is_grad_enabled() or rows * pairs <= _PAIRS:
            return self._bias(queries, keys)
        share = max(1, _PAIRS // (rows * keys.shape[1]))
        return torch.cat([self._bias(part, keys) for part in torch.split(queries, share, dim=1)], dim=2)

    def _bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        kind = self.inward.weight.dtype
        distance = (queries[:, :, None] - keys[:, None, :]).float()
        far = torch.maximum(queries.float(), (self.threshold_scale * self.threshold).abs())
        along = ((self.distance_scale * distance).abs() + 1).log()
        along = along / (((self.distance_scale * far).abs() + 1).log() + 1e-6)[:, :, None]
        hidden = relu(along[..., None].to(kind) * self.inward.weight[:, 0] + self.inward.bias)
        return linear(hidden, self.outward.weight, self.outward.bias).permute(0, 3, 1, 2)


_PAIRS = 1 << 18
"""Pairs of query and key per batch of the network in evaluation, to bound the memory of its hidden states."""


@dataclass(frozen=True)
class ALiBi(Position):
    """ALiBi: an attention bias of minus the distance times a fixed slope per head.

    Press et al. (2022), "Train Short, Test Long", https://arxiv.org/abs/2108.12409. Slopes are 2^(-8/heads),
    2^(-16/heads), ...: for 8 heads 1/2, 1/4, ... 1/256; if the number of heads is no power of two, those of the next
    smaller power and every other of the next larger one, as in the paper's code. Nothing is learned. `slope_scale`
    multiplies all slopes: position ids with short distances (`Coupled`) need steeper ones than long texts. With
    `max_distance=4` larger distances count as 4, so that longer rows have no bias unseen in training.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    slope_scale: float = setting(1.0, "factor on all slopes; 1 as published")
    max_distance: int | None = setting(None, "larger distances count as this one; null: no limit")

    def __post_init__(self) -> None:
        if self.max_distance is not None and self.max_distance < 1:
            raise UserError(
                f"max_distance: {self.max_distance} would make all distances one; 1 or more, or null, is right"
            )
        if not 0 <= self.slope_scale < float("inf"):
            raise UserError(f"slope_scale: {self.slope_scale} is no factor of a slope; 0 or more is right, 1 is usual")

    def build_attention(self, heads: int, head_width: int) -> Bias:
        return Slopes(heads, self.slope_scale, self.max_distance)


class Slopes(Bias):
    """The slopes behind `ALiBi`.

    >>> Slopes(4).slopes.tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """

    slopes: Tensor

    def __init__(self, heads: int, steepness: float = 1.0, farthest: int | None = None) -> None:
        super().__init__()
        self.farthest = farthest
        power = 2 ** math.floor(math.log2(heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)][: heads - power]
        self.register_buffer("slopes", steepness * torch.tensor(slopes), persistent=False)

    def bias(
        self, queries: Int[Tensor, "#rows query"], keys: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        if self.farthest is not None:
            distance = distance.clamp(max=self.farthest)
        return -distance.to(self.slopes.dtype) * self.slopes[:, None, None]


@dataclass(frozen=True)
class T5Bias(Position):
    """T5's relative position bias: a learned attention bias per head and distance bucket.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683. Half of the buckets hold one distance each, the others grow
    logarithmically up to `max_distance`; the last one holds all larger distances. Keys after the query count as
    distance 0; with `bidirectional=True` the buckets are divided between keys before and after, for position ids that
    do not count from the left (`DigitIndex`, `Coupled`). `shared` gives all layers the same biases, as T5 does.
    """

    position_ids: PositionIds = setting(Sequential(), "how position ids are assigned")
    num_buckets: int = setting(32, "number of distance buckets")
    max_distance: int = setting(128, "distances from here on share the last bucket")
    bidirectional: bool = setting(False, "whether keys after the query have buckets of their own")
    shared: bool = setting(False, "whether all layers share the biases")

    def __post_init__(self) -> None:
        sides = 2 if self.bidirectional else 1
        if self.num_buckets < 2 * sides or self.num_buckets % sides:
            right = "2 or more are" if sides == 1 else "an even number from 4 on is"
            raise UserError(f"num_buckets: {self.num_buckets} cannot be divided; {right} right, 32 is usual")
        exact = self.num_buckets // sides // 2
        if self.max_distance < exact:
            raise UserError(
                f"max_distance: {self.max_distance} is less than the {exact} distances that have a bucket each; "
                f"{exact} or more is right"
            )

    def build_attention(self, heads: int, head_width: int) -> Bias:
        return BucketTable(heads, self.num_buckets, self.max_distance, self.bidirectional)

    def shares_layers(self) -> bool:
        return self.shared


class BucketTable(Bias):
    """The table behind `T5Bias`: buckets x heads, drawn with standard deviation 0.1."""

    def __init__(self, heads: int, buckets: int, max_distance: int, two_sided: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.two_sided = buckets, max_distance, two_sided
        self.table = nn.Parameter(0.1 * torch.randn(buckets, heads))

    def bias(
        self, queries: Int[Tensor, "#rows query"], keys: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]:
        return self.table[self.bucket(queries[:, :, None] - keys[:, None, :])].permute(0, 3, 1, 2)

    def bucket(self, distance: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """The bucket of a distance (position of the query minus position of the key).

        With num_buckets=8, max_distance=16 and one side: 0 1 2 3 for these distances, 4 for 4 and 5, 5 for 6 and 7, 6
        for 8 to 11, 7 from 12 on.
        """
        buckets, ahead = self.buckets, torch.zeros_like(distance)
        if self.two_sided:
            buckets //= 2
            ahead = (distance < 0) * buckets
            distance = distance.abs()
        else:
            distance = distance.clamp(min=0)
        exact = buckets // 2
        wide = distance.clamp(min=1).float() / exact
        stretch = math.log(max(self.max_distance / exact, 1 + 1e-6))
        far = exact + (wide.log() / stretch * (buckets - exact)).long()
        return ahead + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))
