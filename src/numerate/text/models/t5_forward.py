"""T5's forward pass over whole rows in fewer operations than transformers takes, with its modules and weights.

It is the same function up to rounding, and dropout draws the same random numbers: query, key and value are one product,
position bias and mask become one tensor per stack instead of one per layer, and the norm is torch's RMSNorm. Generation
with a cache, and attention weights, are left to transformers.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, rms_norm, scaled_dot_product_attention

Hidden = Float[Tensor, "rows time width"]


class StackInputs(NamedTuple):
    """What the blocks of a stack are given besides hidden states.

    `bias` is the position bias, and the lowest number where `mask` is False; None before the first block, which has its
    weights. A decoder attends to `encoded`, with `encoded_bias` instead of a position bias.
    """

    mask: Bool[Tensor, "#rows 1 #time time"]
    bias: Float[Tensor, "#rows heads time time"] | None = None
    encoded: Float[Tensor, "rows source width"] | None = None
    encoded_bias: Float[Tensor, "rows 1 1 source"] | None = None


def run_stack(
    stack: Any,
    x: Hidden,
    mask: Bool[Tensor, "rows time"] | None = None,
    encoded: Float[Tensor, "rows source width"] | None = None,
    encoded_mask: Bool[Tensor, "rows source"] | None = None,
) -> Hidden:
    """The last hidden states of a `T5Stack` whose blocks were given to `replace_forward`: an encoder, with the `mask`
    of its rows, or a causal decoder, which attends to `encoded`."""
    if mask is None:
        time = x.shape[1]
        inputs = StackInputs(torch.ones(1, 1, time, time, dtype=torch.bool, device=x.device).tril())
    else:
        inputs = StackInputs(mask[:, None, None])
    if encoded_mask is not None:
        zeros = torch.zeros((), dtype=_attention_dtype(x), device=x.device)
        inputs = inputs._replace(encoded=encoded, encoded_bias=_masked(zeros, encoded_mask[:, None, None]))
    x = stack.dropout(x)
    for block in stack.block:
        x, inputs = block(x, inputs)
    output: Tensor = stack.dropout(stack.final_layer_norm(x))
    return output


def replace_forward(stack: Any) -> None:
    """Gives the norms of a `T5Stack` torch's RMSNorm, and its blocks the forward below, which they take if called by
    `run_stack`. They are still called as modules, as FSDP and activation checkpointing need."""
    for module in stack.modules():
        if type(module).__name__ == "T5LayerNorm":
            _add_class(module, _Norm)
    for block in stack.block:
        _add_class(block, _Block)


def _add_class(module: Any, own: Any) -> None:
    module.__class__ = _subclass(own, module.__class__)


@cache
def _subclass(own: Any, module_class: Any) -> Any:
    return type(module_class.__name__, (own, module_class), {})


class _Norm(nn.Module):
    """The norm of T5, computed in the type of its input or float32, where transformers' computes in float32."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, x: Hidden) -> Hidden:
        return rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


class _Block(nn.Module):
    def forward(self, x: Hidden, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(inputs, StackInputs):
            return super().forward(x, inputs, *args, **kwargs)
        self_attention, *cross_attention, feed_forward = self.layer  # type: ignore[misc]
        attention: Any = self_attention.SelfAttention
        if inputs.bias is None:
            bias = attention.compute_bias(x.shape[1], x.shape[1], device=x.device).to(_attention_dtype(x))
            inputs = inputs._replace(bias=_masked(bias, inputs.mask))
        x = x + self_attention.dropout(_attend(attention, self_attention.layer_norm(x), inputs.bias))
        for layer in cross_attention:
            attended = _attend(layer.EncDecAttention, layer.layer_norm(x), inputs.encoded_bias, encoded=inputs.encoded)
            x = x + layer.dropout(attended)
        x = x + feed_forward.dropout(feed_forward.DenseReluDense(feed_forward.layer_norm(x)))
        return x, inputs


def _attend(attention: Any, x: Hidden, bias: Tensor, encoded: Tensor | None = None) -> Hidden:
    """A `T5Attention`, of rows to themselves or to `encoded`."""
    if encoded is None:
        projected = _project(x, attention.q, attention.k, attention.v)
    else:
        projected = [attention.q(x), *_project(encoded, attention.k, attention.v)]
    heads = (len(x), -1, attention.n_heads, attention.key_value_proj_dim)
    queries, keys, values = (part.view(heads).transpose(1, 2) for part in projected)
    rate = attention.dropout if attention.training else 0.0
    if x.device.type == "cpu":  # where torch has no fused attention with a bias that is learned
        batches = (part.flatten(0, 1) for part in (queries, keys, values, bias.expand(len(x), heads[2], -1, -1)))
        queries, keys, values, bias = batches
        weights = dropout(torch.baddbmm(bias, queries, keys.mT).softmax(-1), rate)
        output = torch.bmm(weights, values).view(len(x), heads[2], -1, heads[3])
    else:
        output = scaled_dot_product_attention(queries, keys, values, attn_mask=bias, dropout_p=rate, scale=1.0)
    mixed: Tensor = attention.o(output.transpose(1, 2).flatten(2))
    return mixed


def _project(x: Hidden, *maps: Any) -> Sequence[Tensor]:
    """Several linear maps without bias: one product, but on the CPU, where joining weights and gradients costs more,
    and where they have adapters (LoRA)."""
    if x.device.type == "cpu" or any(type(linear_map) is not nn.Linear for linear_map in maps):
        return [linear_map(x) for linear_map in maps]
    return linear(x, torch.cat([linear_map.weight for linear_map in maps])).chunk(len(maps), dim=-1)


def _masked(bias: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, bias, torch.finfo(bias.dtype).min)


def _attention_dtype(x: Tensor) -> torch.dtype:
    """The type in which attention is computed."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
