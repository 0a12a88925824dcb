"""Positional encodings and masks inside one layer's attention."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from numerate.kernels.number_table import can_read_values
from numerate.mixers.mixer import Context
from numerate.positions.position import AttentionBias, ContextualBias, Position, Rotation
from numerate.positions.rotary import HalfSplitRotation

Scale = Float[Tensor, "#rows query"] | float | None
"""A factor on the attention logits of each query, or of all; None for 1."""


MAX_MASK_ELEMENTS = 2**25
"""Without gradients, a larger attention mask (rows x heads x query x key, 128 MiB of float32) is not computed as a
whole but in blocks of queries: that of a row of 30,000 tokens would take 3.6 GB for each head."""

BLOCK_MASK_ELEMENTS = {"cpu": 2**21}
"""Elements of the mask of one block by device, if not as many: on a CPU so few that they stay in its cache."""

WINDOW_BLOCK_QUERIES = 128
"""Queries of one block where a window leaves out most keys. Rows longer than two blocks are computed in blocks then."""


class QueryBlock(NamedTuple):
    """A part of the queries: which they are, how many keys they see, counted from the first, and their positions."""

    queries: slice
    num_keys: int
    query_positions: Int[Tensor, "#rows query"]


class AttentionPositions(nn.Module):
    """Rotates queries and keys, and computes the mask of visible keys and the attention biases.

    Queries are at all positions of a row, or at `query_positions`. A token attends to earlier keys that are not
    blocked, and to itself: also if it is blocked, unless `blocked_attend_to_themselves` is False and it sees another
    key. (A query without any visible key would have an undefined softmax.)
    """

    def __init__(
        self,
        heads: int,
        head_width: int,
        positions: Sequence[Position],
        blocked_attend_to_themselves: bool = True,
    ) -> None:
        super().__init__()
        self.head_width, self.blocked_attend_to_themselves = head_width, blocked_attend_to_themselves
        modules = [(index, position.build_attention(heads, head_width)) for index, position in enumerate(positions)]
        self.position_specs = {i: positions[i] for i, module in modules if module is not None}
        self.rotations, self.attention_biases, self.contextual_biases = (
            nn.ModuleDict({str(i): module for i, module in modules if isinstance(module, kind)})
            for kind in (Rotation, AttentionBias, ContextualBias)
        )

    def share_modules(self, first_layer: "AttentionPositions") -> None:
        """Uses the first layer's modules for positional encodings that all layers share."""
        for index, position in self.position_specs.items():
            if position.is_shared_across_layers():
                for attribute in ("rotations", "attention_biases", "contextual_biases"):
                    own_modules, shared_modules = getattr(self, attribute), getattr(first_layer, attribute)
                    if str(index) in own_modules:
                        own_modules[str(index)] = shared_modules[str(index)]

    def rotate(
        self,
        x: Float[Tensor, "rows some time width"],
        context: Context,
        query_positions: Int[Tensor, "rows time"] | None = None,
    ) -> Float[Tensor, "rows some time width"]:
        """Queries or keys, rotated by their positions."""
        for name, rotation in self.rotations.items():
            assert isinstance(rotation, Rotation)
            cache_key, position_ids = ("rotation", int(name), x.shape[-1]), context.position_ids[int(name)]
            if query_positions is not None and context.cache_position is None:
                prepared = rotation.compute_cos_sin(_gather_position_ids(position_ids, query_positions))
            else:
                if cache_key not in context.forward_cache:
                    if context.cache_position is not None:
                        position_ids = _gather_position_ids(position_ids, context.cache_position[:, None])
                    context.forward_cache[cache_key] = rotation.compute_cos_sin(position_ids)
                prepared = context.forward_cache[cache_key]
            x = rotation.rotate(x, prepared)
        return x

    def complex_rope(
        self, x: Float[Tensor, "rows time width"], context: Context, num_heads: int
    ) -> tuple[HalfSplitRotation, Complex[Tensor, "#rows time numbers"]] | None:
        """The rotation that `split_and_rotate` may apply by complex multiplication, with its factors for queries and
        keys of `num_heads` heads together; None if it does not apply.

        It applies to a single rotation over all dimensions of the heads and all positions of the rows, without
        contextual biases (which would read the permuted queries and keys), on a CPU in float32 or float64. Compiled
        models use the general path.
        """
        if len(self.rotations) != 1 or self.contextual_biases or context.cache_position is not None:
            return None
        if x.device.type != "cpu" or x.element_size() < 4 or torch.compiler.is_compiling():
            return None
        (name, rotation), *_ = self.rotations.items()
        if not isinstance(rotation, HalfSplitRotation) or not rotation.rotates_all_dims:
            return None
        if torch.is_autocast_enabled("cpu"):
            return None
        cache_key = ("complex_rope", int(name), self.head_width, num_heads)
        if cache_key not in context.forward_cache:
            factors = rotation.complex_factors(context.position_ids[int(name)], num_heads)
            context.forward_cache[cache_key] = factors.to(x.dtype.to_complex())
        return rotation, context.forward_cache[cache_key]

    def query_blocks(
        self,
        queries: Float[Tensor, "rows heads query width"],
        keys: Float[Tensor, "rows _ key width"],
        context: Context,
        query_positions: Int[Tensor, "rows query"] | None = None,
        uses_reachable_keys: bool = False,
    ) -> Iterator[QueryBlock] | None:
        """The blocks of queries in which attention without gradients is computed where a mask of all queries would be
        too large, or, for attention that `uses_reachable_keys`, mostly outside of a window; None where it is not, or
        where attention needs no mask."""
        needs_mask = query_positions is not None or context.blocked_keys is not None
        if torch.is_grad_enabled() or not (needs_mask or self.attention_biases or self.contextual_biases):
            return None
        (rows, heads, num_queries, _), num_keys = queries.shape, keys.shape[2]
        is_same_for_all_rows = not (needs_mask or self.contextual_biases) and all(
            len(context.position_ids[int(name)]) == 1 for name in self.attention_biases
        )
        elements_per_query = (1 if is_same_for_all_rows else rows) * heads * num_keys
        has_window = uses_reachable_keys and num_queries > 1 and self._has_window(keys, context)
        if elements_per_query * num_queries <= MAX_MASK_ELEMENTS and not has_window:
            return None
        max_elements = BLOCK_MASK_ELEMENTS.get(queries.device.type, MAX_MASK_ELEMENTS)
        block_size = max(1, max_elements // elements_per_query)
        if has_window:
            block_size = max(1, min(WINDOW_BLOCK_QUERIES, MAX_MASK_ELEMENTS // elements_per_query))
        return _split_queries(num_queries, num_keys, block_size, query_positions, queries.device)

    def _has_window(self, keys: Tensor, context: Context) -> bool:
        """Whether rows are long and the query in the middle of them does not reach most of the keys."""
        num_keys = keys.shape[2]
        if num_keys <= 2 * WINDOW_BLOCK_QUERIES or not can_read_values(keys):
            return False
        middle = QueryBlock(slice(0, 1), num_keys, torch.tensor([[num_keys // 2]]))
        reachable = self.reachable_keys(middle, context)
        return reachable is not None and 2 * len(reachable) < num_keys

    def reachable_keys(self, block: QueryBlock, context: Context) -> Int[Tensor, " key"] | None:
        """The positions of the keys that can have any weight for a block of queries; None for all that it sees."""
        is_readable = can_read_values(block.query_positions)
        if self.contextual_biases or context.blocked_keys is not None or not is_readable:
            return None
        masks = []
        for name, module in self.attention_biases.items():
            assert isinstance(module, AttentionBias)
            position_ids = context.position_ids[int(name)]
            if can_read_values(position_ids):
                at_queries = _gather_position_ids(position_ids, block.query_positions)
                masks.append(module.reachable_keys(at_queries, position_ids[:, : block.num_keys]))
        known = [mask for mask in masks if mask is not None]
        return reduce(torch.logical_and, known).nonzero()[:, 0] if known else None

    def visibility_and_bias(
        self,
        queries: Float[Tensor, "rows heads query width"],
        keys: Float[Tensor, "rows heads key width"],
        context: Context,
        query_positions: Int[Tensor, "#rows query"] | None = None,
        scale: Scale = None,
        key_positions: Int[Tensor, " key"] | None = None,
    ) -> tuple[Bool[Tensor, "#rows 1 query key"] | None, Float[Tensor, "#rows #heads query key"] | None]:
        """The mask of visible keys (None for a plain causal mask without biases, which for a row's last query covers
        all keys), and the bias to add to the scores times `scale` (None without biases). Keys are the first ones of a
        row, or those at `key_positions`."""
        sees_all_keys = query_positions is None or common_cache_position(context) is not None
        if sees_all_keys and context.blocked_keys is None and not self.attention_biases and not self.contextual_biases:
            return None, None
        selected_keys: slice | Tensor = slice(keys.shape[2]) if key_positions is None else key_positions
        if key_positions is None:
            key_positions = torch.arange(keys.shape[2], device=keys.device)
        positions = key_positions[None] if query_positions is None else query_positions
        visible = key_positions <= positions[:, :, None]
        if context.blocked_keys is not None:
            is_self = key_positions == positions[:, :, None]
            visible = visible & ~context.blocked_keys[:, None, selected_keys]
            if not self.blocked_attend_to_themselves:
                is_self = is_self & ~visible.any(-1, keepdim=True)
            visible = visible | is_self
        visible = visible[:, None]
        biases = []
        for name, module in self.attention_biases.items():
            assert isinstance(module, AttentionBias)
            biases.append(self._bias(int(name), module, context, query_positions, keys.shape[1], selected_keys))
        for module in self.contextual_biases.values():
            assert isinstance(module, ContextualBias)
            biases.append(module.compute_bias(queries, keys, visible))
        scaled = [apply_scale(bias, scale) for bias in biases]
        return visible, reduce(torch.add, scaled) if scaled else None

    def _bias(
        self,
        index: int,
        bias_module: AttentionBias,
        context: Context,
        query_positions: Tensor | None,
        num_heads: int,
        selected_keys: slice | Tensor,
    ) -> Tensor:
        position_ids = context.position_ids[index]
        if query_positions is not None:
            is_large = num_heads * position_ids.shape[1] ** 2 > MAX_MASK_ELEMENTS
            if context.cache_position is not None or len(position_ids) > 1 or is_large:
                at_queries = _gather_position_ids(position_ids, query_positions)
                return bias_module.compute_bias(at_queries, position_ids[:, selected_keys])
        # The bias of all pairs is shared by layers that share the module, and by the loops of a looped model. That may
        # first loop without gradients; those tensors must not be reused by later loops with gradients.
        cache_key = ("bias", index, id(bias_module), torch.is_grad_enabled())
        if cache_key not in context.forward_cache:
            context.forward_cache[cache_key] = bias_module.compute_bias(position_ids, position_ids)
        bias: Tensor = context.forward_cache[cache_key]
        return bias if query_positions is None else bias[0][:, query_positions][..., selected_keys].transpose(0, 1)

    def flops(self, heads: int, time: int) -> int:
        modules = self.contextual_biases.values()
        return sum(module.flops(heads, time) for module in modules if isinstance(module, ContextualBias))


def _split_queries(
    num_queries: int, num_keys: int, block_size: int, query_positions: Tensor | None, device: torch.device
) -> Iterator[QueryBlock]:
    for start in range(0, num_queries, block_size):
        queries = slice(start, min(start + block_size, num_queries))
        if query_positions is None:
            positions = torch.arange(queries.start, queries.stop, device=device)[None]
            yield QueryBlock(queries, queries.stop, positions)
        else:
            positions = query_positions[:, queries]
            num_visible = int(positions.max()) + 1 if can_read_values(positions) else num_keys
            yield QueryBlock(queries, num_visible, positions)


def apply_scale(x: Float[Tensor, "#rows heads query last"], scale: Scale) -> Float[Tensor, "#rows heads query last"]:
    """Multiplies queries, or attention biases, by the factor on the logits."""
    if scale is None:
        return x
    return x * (scale[:, None, :, None].to(x.dtype) if isinstance(scale, Tensor) else scale)


def common_cache_position(context: Context) -> int | None:
    """In a decoding step, the position of the newest token if it is the same in all rows and known without a device
    synchronization; otherwise None."""
    if context.cache_position is None:
        return None
    if "common_cache_position" not in context.forward_cache:
        newest_position = context.cached_length - 1
        is_common = len(context.cache_position) == 1 or (
            context.cache_position.device.type == "cpu" and bool((context.cache_position == newest_position).all())
        )
        context.forward_cache["common_cache_position"] = newest_position if is_common else None
    position: int | None = context.forward_cache["common_cache_position"]
    return position


def _gather_position_ids(
    position_ids: Int[Tensor, "#rows time"], query_positions: Int[Tensor, "#rows targets"]
) -> Int[Tensor, "#rows targets"]:
    return torch.take_along_dim(position_ids, query_positions, dim=1)
