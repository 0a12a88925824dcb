"""Causal self-attention."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from numerate.config import setting
from numerate.mixers.attention_maps import attention_weights
from numerate.mixers.attention_positions import find_complex_rope
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_divides, gather_positions
from numerate.positions.position import AttentionBias, ContextualBias, Position, Rotation
from numerate.positions.rotary import split_and_rotate


@dataclass(frozen=True)
class Attention(Mixer):
    """Causal multi-head self-attention.

    Vaswani et al. (2017), https://arxiv.org/abs/1706.03762.

    Positional encodings inside attention (`Rotary`, biases) are settings of the model, not of this class.

    `logit_scale` multiplies the attention logits, biases included: values above 1 make attention sharper. It does not
    change the weights, so a trained model can be evaluated with another value: on rows longer than those of training
    softmax spreads over more keys, and a larger scale, or one that grows with the length, compensates for this
    (Velickovic et al., 2024, https://arxiv.org/abs/2410.01104). With `logit_scale="log"` the logits of a query with n
    visible keys are multiplied by max(1, log n / log log_scale_start), after Chiang and Cholak (2022),
    https://arxiv.org/abs/2202.12172. With log_scale_start=64 they are not scaled up to 64 keys, and doubled at 4,096.

    `scale_by_inverse_layer_index` divides the logits of the first layer by 1, of the second by 2 and so on, as GPT-2
    optionally does (`scale_attn_by_inverse_layer_idx`) and the published counting models do (Chang and Bisk, 2024,
    https://arxiv.org/abs/2405.20131). In these models a masked token does not attend to itself either:
    `blocked_attend_to_themselves=False`; a query without any visible key attends to itself, because the softmax would
    be undefined otherwise.
    """

    num_heads: int = setting(4, "number of attention heads; must divide hidden_size", at_least=1)
    bias: bool = setting(False, "whether the projections have biases")
    dropout: float = setting(0.0, "dropout of attention weights", at_least=0, below=1)
    logit_scale: float | Literal["log"] = setting(
        1.0, "factor on the attention logits; log: grows with the length", above=0
    )
    log_scale_start: int = setting(
        64, "with logit_scale=log: number of visible keys up to which logits are not scaled", at_least=2
    )
    scale_by_inverse_layer_index: bool = setting(False, "divide the attention logits of layer n by n")
    blocked_attend_to_themselves: bool = setting(
        True, "whether a masked token (blocked for all queries) still attends to itself"
    )

    def small(self) -> "Attention":
        return replace(self, num_heads=4)

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "SelfAttention":
        check_divides("num_heads", self.num_heads, width)
        return SelfAttention(self, width, positions, layer)

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        layers = [self.build(width, layer, depth, positions) for layer in range(depth)]
        for layer in layers[1:]:
            layer.share_modules(layers[0])
        return list(layers)

    def has_attention(self) -> bool:
        return True


@dataclass
class KeyValueCache:
    """Key-value cache: rows x heads x capacity x head width each."""

    keys: Tensor
    values: Tensor


class SelfAttention(TokenMixer):
    """One layer of causal self-attention, with a key-value cache in `step`."""

    def __init__(self, spec: Attention, width: int, positions: Sequence[Position], layer: int = 0) -> None:
        super().__init__()
        heads = spec.num_heads
        self.heads, self.head_width, self.dropout = heads, width // heads, spec.dropout
        self.logit_scale, self.log_scale_start = spec.logit_scale, spec.log_scale_start
        self.layer_scale = 1 / (layer + 1) if spec.scale_by_inverse_layer_index else 1.0
        self.blocked_keys_see_themselves = spec.blocked_attend_to_themselves
        self.qkv_proj = nn.Linear(width, 3 * width, bias=spec.bias)
        self.out_proj = nn.Linear(width, width, bias=spec.bias)
        attention_modules = [
            (index, position.build_attention(heads, width // heads)) for index, position in enumerate(positions)
        ]
        self.position_specs = {i: positions[i] for i, module in attention_modules if module is not None}
        self.rotations = nn.ModuleDict({str(i): part for i, part in attention_modules if isinstance(part, Rotation)})
        self.attention_biases = nn.ModuleDict(
            {str(i): part for i, part in attention_modules if isinstance(part, AttentionBias)}
        )
        self.contextual_biases = nn.ModuleDict(
            {str(i): part for i, part in attention_modules if isinstance(part, ContextualBias)}
        )

    def share_modules(self, first_layer: "SelfAttention") -> None:
        """Uses the first layer's modules for positional encodings that all layers share."""
        for index, position in self.position_specs.items():
            if position.is_shared_across_layers():
                for attribute in ("rotations", "attention_biases", "contextual_biases"):
                    own_modules, shared_modules = getattr(self, attribute), getattr(first_layer, attribute)
                    if str(index) in own_modules:
                        own_modules[str(index)] = shared_modules[str(index)]

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        queries, keys, values = self._project_fast(x, context) or self._project(x, context)
        return self._attend_causally(queries, keys, values, context)

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets width"]:
        """`forward` at `target_positions`: keys and values of all positions, queries and outputs of these only."""
        width = self.heads * self.head_width
        weight, bias = self.qkv_proj.weight, self.qkv_proj.bias
        queries = self._split_heads(
            linear(gather_positions(x, target_positions), weight[:width], None if bias is None else bias[:width])
        )
        keys, values = self._split_heads(linear(x, weight[width:], None if bias is None else bias[width:])).chunk(
            2, dim=1
        )
        for name, rotation in self.rotations.items():
            assert isinstance(rotation, Rotation)
            queries = rotation.rotate(
                queries,
                rotation.compute_cos_sin(_gather_position_ids(context.position_ids[int(name)], target_positions)),
            )
            keys = rotation.rotate(keys, self._prepare_rotation(int(name), rotation, context))
        key_positions = torch.arange(x.shape[1], device=x.device)
        visible = self._visible_keys(
            key_positions <= target_positions[:, :, None],
            key_positions == target_positions[:, :, None],
            context.blocked_keys,
        )[:, None]
        scale = self._query_scale(target_positions + 1)

        def bias_at_targets(index: int, bias_module: AttentionBias) -> Tensor:
            return self._bias_at_targets(index, bias_module, context, target_positions)

        mask = self._attention_mask(visible, queries, keys, scale, bias_at_targets)
        return self._attend(_apply_scale(queries, scale), keys, values, mask)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, KeyValueCache]:
        queries, keys, values = self._project(x, context)
        rows, heads, time, head_width = keys.shape
        cache = KeyValueCache(
            *(tensor.new_zeros(rows, heads, context.capacity, head_width) for tensor in (keys, values))
        )
        cache.keys[:, :, :time], cache.values[:, :, :time] = keys, values
        return self._attend_causally(queries, keys, values, context), cache

    def step(
        self, x: Float[Tensor, "rows 1 width"], context: Context, state: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]:
        assert context.cache_position is not None
        queries, keys, values = self._project(x, context)
        row_index = torch.arange(x.shape[0], device=x.device)
        state.keys[row_index, :, context.cache_position] = keys[:, :, 0]
        state.values[row_index, :, context.cache_position] = values[:, :, 0]
        query_positions, cached_length, key_positions = (
            context.cache_position[:, None],
            context.cached_length,
            torch.arange(context.cached_length, device=x.device),
        )
        blocked_keys = None if context.blocked_keys is None else context.blocked_keys[:, :cached_length]
        visible = self._visible_keys(
            (key_positions <= query_positions)[:, None], (key_positions == query_positions)[:, None], blocked_keys
        )[:, None]
        keys, values = state.keys[:, :, :cached_length], state.values[:, :, :cached_length]
        scale = self._query_scale(query_positions + 1)

        def bias_at_newest(index: int, bias_module: AttentionBias) -> Tensor:
            position_ids = context.position_ids[index]
            return bias_module.compute_bias(
                _gather_position_ids(position_ids, query_positions), position_ids[:, :cached_length]
            )

        mask = self._attention_mask(visible, queries, keys, scale, bias_at_newest)
        attn_output = scaled_dot_product_attention(_apply_scale(queries, scale), keys, values, attn_mask=mask)
        return self.out_proj(attn_output.transpose(1, 2).flatten(2)), state

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each rows x heads x time x head width, rotated by the rotary embeddings."""
        rows, time, _ = x.shape
        queries, keys, values = self.qkv_proj(x).view(rows, time, 3, self.heads, self.head_width).unbind(2)
        queries, keys, values = queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        for name, rotation in self.rotations.items():
            assert isinstance(rotation, Rotation)
            prepared = self._prepare_rotation(int(name), rotation, context)
            queries, keys = rotation.rotate(queries, prepared), rotation.rotate(keys, prepared)
        return queries, keys, values

    def _project_fast(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor] | None:
        """Faster `_project` for RoPE by complex multiplication, which permutes the components of queries and keys; None
        where it does not apply."""
        if (
            type(self.qkv_proj) is not nn.Linear
            or (match := find_complex_rope(self.rotations, self.contextual_biases, x, context)) is None
        ):
            return None
        index, rotation = match
        width, bias = self.heads * self.head_width, self.qkv_proj.bias
        cache_key = ("complex_rope", index, self.head_width)
        if cache_key not in context.forward_cache:
            context.forward_cache[cache_key] = rotation.complex_factors(context.position_ids[index], 2 * self.heads).to(
                x.dtype.to_complex()
            )

        def interleave_rope_rows(weight: Tensor) -> Tensor:
            return torch.cat([rotation.interleave_halves(weight[: 2 * width]), weight[2 * width :]])

        projected = linear(
            x,
            interleave_rope_rows(self.qkv_proj.weight),
            None if bias is None else interleave_rope_rows(bias[:, None])[:, 0],
        )
        tensors = split_and_rotate(projected, context.forward_cache[cache_key], [width] * 3)
        queries, keys, values = (self._split_heads(tensor) for tensor in tensors)
        return queries, keys, values

    def _prepare_rotation(self, index: int, rotation: Rotation, context: Context) -> object:
        cache_key = ("rotation", index, self.head_width)
        if cache_key not in context.forward_cache:
            position_ids = context.position_ids[index]
            if context.cache_position is not None:
                position_ids = _gather_position_ids(position_ids, context.cache_position[:, None])
            context.forward_cache[cache_key] = rotation.compute_cos_sin(position_ids)
        return context.forward_cache[cache_key]

    def attention_maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        queries, keys, _ = self._project(x, context)
        scale, mask = self._scale_and_mask(queries, keys, context)
        return {"attention": attention_weights(_apply_scale(queries, scale), keys, mask)}

    def _attend_causally(self, queries: Tensor, keys: Tensor, values: Tensor, context: Context) -> Tensor:
        scale, mask = self._scale_and_mask(queries, keys, context)
        return self._attend(_apply_scale(queries, scale), keys, values, mask)

    def _scale_and_mask(
        self, queries: Tensor, keys: Tensor, context: Context
    ) -> tuple[Tensor | float | None, Tensor | None]:
        """The factor on the logits, and the attention mask (boolean, or additive with biases); None for a plain causal
        mask."""
        time, device = queries.shape[2], queries.device
        scale = self._query_scale(torch.arange(1, time + 1, device=device)[None])
        mask = None
        # Otherwise plain causal attention suffices: real tokens never attend to padding on the right.
        if context.blocked_keys is not None or self.attention_biases or self.contextual_biases:
            causal = torch.ones(time, time, dtype=torch.bool, device=device).tril()[None]
            is_self = torch.eye(time, dtype=torch.bool, device=device)[None]
            visible = self._visible_keys(causal, is_self, context.blocked_keys)[:, None]
            mask = self._attention_mask(
                visible, queries, keys, scale, lambda index, bias_module: self._full_bias(index, bias_module, context)
            )
        return scale, mask

    def _query_scale(self, num_visible_keys: Int[Tensor, "#rows query"]) -> Float[Tensor, "#rows query"] | float | None:
        """The factor on the logits of queries with this number of visible keys; None for no factor."""
        if self.logit_scale == "log":
            return (num_visible_keys.float().log() / math.log(self.log_scale_start)).clamp(min=1.0) * self.layer_scale
        scale = float(self.logit_scale) * self.layer_scale
        return None if scale == 1.0 else scale

    def _full_bias(
        self, index: int, bias_module: AttentionBias, context: Context
    ) -> Float[Tensor, "#rows heads time time"]:
        """The bias of all pairs, shared by layers that share the module, and by the loops of a looped model."""
        # A looped model may first loop without gradients; those tensors must not be reused by later loops with
        # gradients.
        cache_key = ("bias", index, id(bias_module), torch.is_grad_enabled())
        if cache_key not in context.forward_cache:
            position_ids = context.position_ids[index]
            context.forward_cache[cache_key] = bias_module.compute_bias(position_ids, position_ids)
        bias: Tensor = context.forward_cache[cache_key]
        return bias

    def _bias_at_targets(
        self, index: int, bias_module: AttentionBias, context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows heads targets time"]:
        position_ids = context.position_ids[index]
        if len(position_ids) > 1 or position_ids.shape[1] > _MAX_TABULATED_LENGTH:
            return bias_module.compute_bias(_gather_position_ids(position_ids, target_positions), position_ids)
        # All rows have the same position ids: compute the bias of each pair once and index it by each row's queries.
        return self._full_bias(index, bias_module, context)[0][:, target_positions].transpose(0, 1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention and output projection; causal without a mask."""
        dropout = self.dropout if self.training else 0.0
        attn_output = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=mask is None
        )
        output: Tensor = self.out_proj(attn_output.transpose(1, 2).flatten(2))
        return output

    def _split_heads(self, projected: Float[Tensor, "rows time all"]) -> Float[Tensor, "rows heads time head_width"]:
        rows, time, width = projected.shape
        return projected.view(rows, time, width // self.head_width, self.head_width).transpose(1, 2)

    def _visible_keys(
        self,
        visible: Bool[Tensor, "#rows query key"],
        is_self: Bool[Tensor, "#rows query key"],
        blocked_keys: Bool[Tensor, "rows key"] | None,
    ) -> Bool[Tensor, "#rows query key"]:
        """The keys each query attends to, out of those `visible` by position; `is_self` is True at the query's own key.

        A query without any other visible key attends to itself: the softmax would be undefined otherwise."""
        if blocked_keys is None:
            return visible
        unblocked = visible & ~blocked_keys[:, None, :]
        return unblocked | (is_self if self.blocked_keys_see_themselves else is_self & ~unblocked.any(-1, keepdim=True))

    def _attention_mask(
        self,
        visible: Bool[Tensor, "#rows 1 query key"],
        queries: Float[Tensor, "rows heads query head_width"],
        keys: Float[Tensor, "rows heads key head_width"],
        scale: Tensor | float | None,
        compute_bias: Callable[[int, AttentionBias], Tensor],
    ) -> Tensor:
        """The boolean mask of visible keys, or with position biases the biases there and minus infinity elsewhere;
        `compute_bias` returns the bias of a positional encoding (by its index) at these queries."""
        mask: Tensor = visible
        for name, module in self.attention_biases.items():
            assert isinstance(module, AttentionBias)
            mask = _add_bias(mask, _apply_scale(compute_bias(int(name), module), scale))
        for module in self.contextual_biases.values():
            assert isinstance(module, ContextualBias)
            mask = _add_bias(mask, _apply_scale(module.compute_bias(queries, keys, visible), scale))
        return mask

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        return {"qkv_proj": ("queries", "keys", "values")}

    def self_initialized_parameters(self) -> set[str]:
        # The inputs of FIRE's MLP over distances are nonnegative: the model's initialization would leave half of its
        # units dead.
        return {
            name for name, _ in self.named_parameters() if name.startswith(("attention_biases.", "contextual_biases."))
        }

    def output_projections(self) -> Sequence[nn.Linear]:
        return (self.out_proj,)

    def flops(self, time: int) -> int:
        width = self.heads * self.head_width
        projection_and_score_flops = 2 * time * 4 * width * width + 2 * 2 * width * time * (time + 1) // 2
        contextual_biases = [module for module in self.contextual_biases.values() if isinstance(module, ContextualBias)]
        return projection_and_score_flops + sum(part.flops(self.heads, time) for part in contextual_biases)


def _gather_position_ids(
    position_ids: Int[Tensor, "#rows time"], target_positions: Int[Tensor, "rows targets"]
) -> Int[Tensor, "rows targets"]:
    """The position ids at `target_positions`."""
    return position_ids.expand(len(target_positions), -1).gather(1, target_positions)


def _apply_scale(
    x: Float[Tensor, "#rows heads query last"], scale: Float[Tensor, "#rows query"] | float | None
) -> Float[Tensor, "rows heads query last"]:
    """Multiplies queries, or attention biases, by the factor on the logits."""
    if scale is None:
        return x
    return x * (scale[:, None, :, None].to(x.dtype) if isinstance(scale, Tensor) else scale)


_MAX_TABULATED_LENGTH = 2048
"""The biases of all pairs are not materialized for rows longer than this."""


def _add_bias(
    mask: Bool[Tensor, "#rows 1 query key"] | Float[Tensor, "#rows #heads query key"],
    bias: Float[Tensor, "#rows heads query key"],
) -> Float[Tensor, "#rows heads query key"]:
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, float("-inf"))
    return mask + bias
