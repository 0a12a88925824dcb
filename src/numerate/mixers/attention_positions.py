"""Positional encodings inside one layer's attention, for mixers with their own queries and keys."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.mixers.mixer import Context
from numerate.positions.position import AttentionBias, ContextualBias, Position, Rotation
from numerate.positions.rotary import HalfSplitRotation


class AttentionPositions(nn.Module):
    """Rotates queries and keys and computes the mask of visible keys and the attention biases, as `SelfAttention` does.

    Queries are at all positions of a row, or at `query_positions`. A token attends to earlier keys that are not
    masked, and always to itself.
    """

    def __init__(self, heads: int, head_width: int, positions: Sequence[Position]) -> None:
        super().__init__()
        attention_modules = [
            (index, position.build_attention(heads, head_width)) for index, position in enumerate(positions)
        ]
        self.position_specs = {i: positions[i] for i, module in attention_modules if module is not None}
        self.rotations = nn.ModuleDict({str(i): part for i, part in attention_modules if isinstance(part, Rotation)})
        self.attention_biases = nn.ModuleDict(
            {str(i): part for i, part in attention_modules if isinstance(part, AttentionBias)}
        )
        self.contextual_biases = nn.ModuleDict(
            {str(i): part for i, part in attention_modules if isinstance(part, ContextualBias)}
        )

    def share_modules(self, first_layer: "AttentionPositions") -> None:
        """Uses the first layer's modules for positional encodings that all layers share."""
        for index, position in self.position_specs.items():
            for attribute in (
                ("rotations", "attention_biases", "contextual_biases") if position.is_shared_across_layers() else ()
            ):
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
                    cache_position = None if context.cache_position is None else context.cache_position[:, None]
                    context.forward_cache[cache_key] = rotation.compute_cos_sin(
                        position_ids if cache_position is None else _gather_position_ids(position_ids, cache_position)
                    )
                prepared = context.forward_cache[cache_key]
            x = rotation.rotate(x, prepared)
        return x

    def visibility_and_bias(
        self,
        queries: Float[Tensor, "rows heads query width"],
        keys: Float[Tensor, "rows heads key width"],
        context: Context,
        query_positions: Int[Tensor, "rows query"] | None = None,
    ) -> tuple[Bool[Tensor, "#rows 1 query key"] | None, Float[Tensor, "#rows #heads query key"] | None]:
        """The mask of visible keys (None for a plain causal mask without biases, which for a row's last query covers
        all keys), and the bias to add to the scores (None without biases)."""
        sees_all_keys = query_positions is None or common_cache_position(context) is not None
        if sees_all_keys and context.blocked_keys is None and not self.attention_biases and not self.contextual_biases:
            return None, None
        key_positions = torch.arange(keys.shape[2], device=keys.device)
        positions = key_positions[None] if query_positions is None else query_positions
        visible = key_positions <= positions[:, :, None]
        if context.blocked_keys is not None:
            is_self = key_positions == positions[:, :, None]
            visible = (visible & ~context.blocked_keys[:, None, : len(key_positions)]) | is_self
        visible, bias = visible[:, None], None
        for name, module in self.attention_biases.items():
            assert isinstance(module, AttentionBias)
            added = self._bias(int(name), module, context, query_positions, len(key_positions))
            bias = added if bias is None else bias + added
        for module in self.contextual_biases.values():
            assert isinstance(module, ContextualBias)
            added = module.compute_bias(queries, keys, visible)
            bias = added if bias is None else bias + added
        return visible, bias

    def _bias(
        self, index: int, bias_module: AttentionBias, context: Context, query_positions: Tensor | None, num_keys: int
    ) -> Tensor:
        position_ids = context.position_ids[index]
        if query_positions is not None:
            return bias_module.compute_bias(
                _gather_position_ids(position_ids, query_positions), position_ids[:, :num_keys]
            )
        # A looped model may first loop without gradients; those tensors must not be reused by later loops with
        # gradients.
        cache_key = ("bias", index, id(bias_module), torch.is_grad_enabled())
        if cache_key not in context.forward_cache:
            context.forward_cache[cache_key] = bias_module.compute_bias(position_ids, position_ids)
        bias: Tensor = context.forward_cache[cache_key]
        return bias

    def self_initialized_parameters(self) -> set[str]:
        """FIRE's MLP over distances does not use the model's initialization: see `SelfAttention`."""
        return {name for name, _ in self.named_parameters()}

    def flops(self, heads: int, time: int) -> int:
        return sum(
            module.flops(heads, time)
            for module in self.contextual_biases.values()
            if isinstance(module, ContextualBias)
        )


def find_complex_rope(
    rotations: nn.ModuleDict, contextual_biases: nn.ModuleDict, x: Tensor, context: Context
) -> tuple[int, HalfSplitRotation] | None:
    """The index and the rotation of the positional encoding that `split_and_rotate` may apply by complex
    multiplication; None if it does not apply.

    It applies to a single rotation over all dimensions of the heads and all positions of the rows, without contextual
    biases (which would read the permuted queries and keys), on a CPU in float32 or float64. Compiled models and models
    under torch.vmap use the general path.
    """
    if (
        len(rotations) != 1
        or contextual_biases
        or x.device.type != "cpu"
        or x.element_size() < 4
        or context.cache_position is not None
    ):
        return None
    if torch.compiler.is_compiling():
        return None
    (name, rotation), *_ = rotations.items()
    is_vmapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)
    if (
        not isinstance(rotation, HalfSplitRotation)
        or not rotation.rotates_all_dims
        or is_vmapped
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    return int(name), rotation


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
    position_ids: Int[Tensor, "#rows time"], query_positions: Int[Tensor, "rows targets"]
) -> Int[Tensor, "rows targets"]:
    return position_ids.expand(len(query_positions), -1).gather(1, query_positions)
