"""Causal self-attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from numerate.config import setting
from numerate.mixers.attention_maps import attention_weights
from numerate.mixers.attention_positions import AttentionPositions, Scale, apply_scale, common_cache_position
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_divides, gather_positions
from numerate.positions.position import Position
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
            layer.positions.share_modules(layers[0].positions)
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
        self.qkv_proj = nn.Linear(width, 3 * width, bias=spec.bias)
        self.out_proj = nn.Linear(width, width, bias=spec.bias)
        encodings = AttentionPositions(heads, width // heads, positions, spec.blocked_attend_to_themselves)
        self.rotations, self.attention_biases = encodings.rotations, encodings.attention_biases
        self.contextual_biases = encodings.contextual_biases
        # In a tuple, as its modules are those of this layer.
        self._positions = (encodings,)

    @property
    def positions(self) -> AttentionPositions:
        return self._positions[0]

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        queries, keys, values = self._project_fast(x, context) or self._project(x, context)
        return self._attend(queries, keys, values, context)

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets width"]:
        """`forward` at `target_positions`: keys and values of all positions, queries and outputs of these only."""
        width = self.heads * self.head_width
        weight, bias = self.qkv_proj.weight, self.qkv_proj.bias
        queries = linear(gather_positions(x, target_positions), weight[:width], None if bias is None else bias[:width])
        keys_values = self._split_heads(linear(x, weight[width:], None if bias is None else bias[width:]))
        keys, values = keys_values.chunk(2, dim=1)
        queries = self.positions.rotate(self._split_heads(queries), context, target_positions)
        return self._attend(queries, self.positions.rotate(keys, context), values, context, target_positions)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, KeyValueCache]:
        queries, keys, values = self._project(x, context)
        rows, heads, time, head_width = keys.shape
        cache = KeyValueCache(
            *(tensor.new_zeros(rows, heads, context.capacity, head_width) for tensor in (keys, values))
        )
        cache.keys[:, :, :time], cache.values[:, :, :time] = keys, values
        return self._attend(queries, keys, values, context), cache

    def step(
        self, x: Float[Tensor, "rows 1 width"], context: Context, state: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]:
        assert context.cache_position is not None
        queries, keys, values = self._project(x, context)
        if (position := common_cache_position(context)) is not None:
            state.keys[:, :, position], state.values[:, :, position] = keys[:, :, 0], values[:, :, 0]
        else:
            row_index = torch.arange(x.shape[0], device=x.device)
            state.keys[row_index, :, context.cache_position] = keys[:, :, 0]
            state.values[row_index, :, context.cache_position] = values[:, :, 0]
        keys, values = state.keys[:, :, : context.cached_length], state.values[:, :, : context.cached_length]
        return self._attend(queries, keys, values, context, context.cache_position[:, None]), state

    def attention_maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        queries, keys, _ = self._project(x, context)
        scale, mask = self._scale_and_mask(queries, keys, context)
        return {"attention": attention_weights(apply_scale(queries, scale), keys, mask)}

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each rows x heads x time x head width, rotated by the rotary embeddings."""
        rows, time, _ = x.shape
        queries, keys, values = self.qkv_proj(x).view(rows, time, 3, self.heads, self.head_width).unbind(2)
        queries, keys, values = queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        return self.positions.rotate(queries, context), self.positions.rotate(keys, context), values

    def _project_fast(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor] | None:
        """Faster `_project` for RoPE by complex multiplication, which permutes the components of queries and keys; None
        where it does not apply."""
        if type(self.qkv_proj) is not nn.Linear:
            return None
        if (rope := self.positions.complex_rope(x, context, 2 * self.heads)) is None:
            return None
        rotation, factors = rope
        width = self.heads * self.head_width

        def interleave_rope_rows(weight: Tensor) -> Tensor:
            return torch.cat([rotation.interleave_halves(weight[: 2 * width]), weight[2 * width :]])

        weight, bias = self.qkv_proj.weight, self.qkv_proj.bias
        permuted_bias = None if bias is None else interleave_rope_rows(bias[:, None])[:, 0]
        projected = linear(x, interleave_rope_rows(weight), permuted_bias)
        queries, keys, values = map(self._split_heads, split_and_rotate(projected, factors, [width] * 3))
        return queries, keys, values

    def _attend(
        self,
        queries: Float[Tensor, "rows heads query head_width"],
        keys: Float[Tensor, "rows heads key head_width"],
        values: Float[Tensor, "rows heads key head_width"],
        context: Context,
        query_positions: Int[Tensor, "rows query"] | None = None,
    ) -> Float[Tensor, "rows query width"]:
        """Attention and output projection, in blocks of queries where masks would be large."""
        blocks = self.positions.query_blocks(queries, keys, context, query_positions, uses_reachable_keys=True)
        if blocks is None:
            attn_output = self._attend_to_keys(queries, keys, values, context, query_positions)
        else:
            attn_output = torch.empty_like(queries)
            for block in blocks:
                key_positions = self.positions.reachable_keys(block, context)
                selected: Any = slice(block.num_keys) if key_positions is None else key_positions
                attn_output[:, :, block.queries] = self._attend_to_keys(
                    queries[:, :, block.queries],
                    keys[:, :, selected],
                    values[:, :, selected],
                    context,
                    block.query_positions,
                    key_positions,
                )
        output: Tensor = self.out_proj(attn_output.transpose(1, 2).flatten(2))
        return output

    def _attend_to_keys(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        context: Context,
        query_positions: Tensor | None,
        key_positions: Tensor | None = None,
    ) -> Float[Tensor, "rows heads query head_width"]:
        scale, mask = self._scale_and_mask(queries, keys, context, query_positions, key_positions)
        return scaled_dot_product_attention(
            apply_scale(queries, scale),
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None and query_positions is None,
        )

    def _scale_and_mask(
        self,
        queries: Tensor,
        keys: Tensor,
        context: Context,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> tuple[Scale, Tensor | None]:
        """The factor on the logits, and the attention mask: of visible keys, or with biases the biases there and minus
        infinity elsewhere; None for a plain causal mask, which suffices as real tokens never attend to padding on the
        right."""
        scale = self._query_scale(queries, query_positions)
        # The mask of whole rows is shared by layers that share their biases, and by the loops of a looped model.
        cache_key = (
            "mask",
            *map(id, self.positions.attention_biases.values()),
            *(self.logit_scale, self.log_scale_start, self.layer_scale),
            *(self.positions.blocked_attend_to_themselves, torch.is_grad_enabled()),
        )
        is_shared = query_positions is None and not self.positions.contextual_biases
        if is_shared and cache_key in context.forward_cache:
            return scale, context.forward_cache[cache_key]
        mask, bias = self.positions.visibility_and_bias(queries, keys, context, query_positions, scale, key_positions)
        if bias is not None and mask is not None:
            mask = bias.masked_fill(~mask, float("-inf"))
        if is_shared:
            context.forward_cache[cache_key] = mask
        return scale, mask

    def _query_scale(self, queries: Tensor, query_positions: Tensor | None) -> Scale:
        """The factor on the logits of queries, of whole rows or at some positions."""
        if self.logit_scale == "log":
            num_visible_keys = (
                torch.arange(1, queries.shape[2] + 1, device=queries.device)[None]
                if query_positions is None
                else query_positions + 1
            )
            return (num_visible_keys.float().log() / math.log(self.log_scale_start)).clamp(min=1.0) * self.layer_scale
        scale = float(self.logit_scale) * self.layer_scale
        return None if scale == 1.0 else scale

    def _split_heads(self, projected: Float[Tensor, "rows time all"]) -> Float[Tensor, "rows heads time head_width"]:
        rows, time, width = projected.shape
        return projected.view(rows, time, width // self.head_width, self.head_width).transpose(1, 2)

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
        return projection_and_score_flops + self.positions.flops(self.heads, time)
