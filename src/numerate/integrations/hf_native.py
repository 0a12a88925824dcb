"""Decoders that a class of transformers computes: which class, its configuration, and its names of the weights.

An exported folder of such a decoder needs transformers alone (docs/hugging-face.md has the classes in a table). All are
stacks of causal attention without further parts, whose position ids count from the left. In some the class has biases
that the decoder has not: they are zeros. GPT-2 is not among them: its positions ignore the attention mask, so that a
row padded on the left would get others.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.block import NormType
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.rotary import Rotary

Change = Callable[[Tensor, int], Tensor]
"""A rearrangement of a weight, given the number of heads."""


@dataclass(frozen=True)
class NativeModel:
    """A class of transformers that computes some decoders."""

    name: str
    """As in its configuration: `Llama` for LlamaForCausalLM and LlamaConfig."""

    norm: NormType
    is_gated: bool
    positions: tuple[str, ...]
    """What the decoders have that it computes; see `_positions`."""

    settings: Callable[[Any], dict[str, Any]]
    """Its configuration for a decoder, beside `config_settings`."""

    modules: Mapping[str, str]
    """Our modules outside blocks, each with its name there."""

    block: str
    """Its blocks, as a prefix of names with {} for the number."""

    block_modules: Mapping[str, str]
    """Our modules in a block, each with its name there, or with those of several that divide its rows equally."""

    condition: Callable[[Any], bool] = lambda spec: spec.norm_first
    """What else holds for these decoders."""

    changes: Mapping[str, tuple[Change, Change]] = field(default_factory=dict)
    """Our modules whose weights are arranged in another way there: how they become theirs, and ours again."""

    def computes(self, spec: Decoder) -> bool:
        return (
            _is_plain(spec)
            and (spec.norm, _is_gated(spec)) == (self.norm, self.is_gated)
            and _positions(spec) in self.positions
            and self.condition(spec)
        )

    def config_settings(self, spec: Any) -> dict[str, Any]:
        """The configuration of a decoder. Of dropout it has that of attention weights."""
        return {
            "hidden_size": spec.hidden_size,
            "num_hidden_layers": spec.backbone.num_layers,
            "num_attention_heads": spec.mixer.num_heads,
            "tie_word_embeddings": spec.tie_word_embeddings,
            "attention_dropout": spec.mixer.dropout,
            **self.settings(spec),
        }

    def older_settings(self, spec: Any) -> dict[str, Any]:
        """What older releases of transformers read instead of `rope_parameters`, and newer ones ignore."""
        if (rope := self.settings(spec).get("rope_parameters")) is None:
            return {}
        base, share = rope["rope_theta"], rope["partial_rotary_factor"]
        return {"rope_theta": base, "rotary_emb_base": base, "partial_rotary_factor": share, "rotary_pct": share}

    def to_native(self, spec: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a decoder by the names of the class in files; a tied head is left out."""
        converted: dict[str, Tensor] = {}
        for ours, theirs, (change, _) in self._modules_of(spec):
            for kind in ("weight", "bias"):
                tensor = None if ours == "head" and spec.tie_word_embeddings else weights.get(f"{ours}.{kind}")
                if tensor is not None:
                    parts = change(tensor, spec.mixer.num_heads).chunk(len(theirs))
                    converted |= {f"{name}.{kind}": part.clone() for name, part in zip(theirs, parts, strict=True)}
        return converted

    def from_native(self, spec: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of the class by the names of a decoder; those of no module of the decoder keep their names.

        Biases that are zeros, and that the decoder has not, are left out.
        """
        rest, converted = dict(weights), {}
        for ours, theirs, (_, change) in self._modules_of(spec):
            for kind in ("weight", "bias"):
                if all(f"{name}.{kind}" in rest for name in theirs):
                    tensor = torch.cat([rest.pop(f"{name}.{kind}") for name in theirs])
                    if kind == "weight" or _has_bias(spec, ours) or tensor.any():
                        converted[f"{ours}.{kind}"] = change(tensor, spec.mixer.num_heads)
        return converted | rest

    def _modules_of(self, spec: Any) -> Iterator[tuple[str, list[str], tuple[Change, Change]]]:
        """Every module of a decoder, with the names of those that it is there, and how its weights change."""
        for ours, theirs in self.modules.items():
            yield ours, [theirs], self.changes.get(ours, _NO_CHANGE)
        for index in range(spec.backbone.num_layers):
            for ours, theirs in self.block_modules.items():
                names = [self.block.format(index) + name for name in theirs.split()]
                yield f"backbone.blocks.{index}.{ours}", names, self.changes.get(ours, _NO_CHANGE)


_NO_CHANGE: tuple[Change, Change] = (lambda tensor, _: tensor, lambda tensor, _: tensor)


def _has_bias(spec: Any, module: str) -> bool:
    parent = module.rpartition(".")[0].rpartition(".")[2]
    return bool({"mixer": spec.mixer.bias, "feed_forward": spec.feed_forward.bias}.get(parent, True))


def native_model(spec: Decoder) -> NativeModel | None:
    """The class of transformers that computes a decoder, or None.

    >>> native_model(Decoder(positions=(Rotary(),))).name
    'GPTNeoX'
    >>> native_model(Decoder(backbone=Stack(input_injection="add"))) is None
    True
    """
    return next((model for model in NATIVE_MODELS if model.computes(spec)), None)


# Which decoders, and what they are there ------------------------------------------------------------------------------


def _differs_only_in(spec: Any, default: Any, *names: str) -> bool:
    """Whether all other settings of a spec have their defaults."""
    return type(spec) is type(default) and replace(spec, **{name: getattr(default, name) for name in names}) == default


def _is_plain(spec: Decoder) -> bool:
    """Whether a decoder is an embedding, a stack of attention and feed-forward networks with norms, and a head."""
    sizes = ("hidden_size", "backbone", "mixer", "feed_forward", "positions", "norm", "norm_first", "norm_eps")
    without_effect = ("dropout", "embedding_dropout", "mixer_dropout", "dropout_on", "initialization")
    attention = ("num_heads", "bias", "dropout", "log_scale_start", "blocked_attend_to_themselves")
    return (
        _differs_only_in(spec, Decoder(), *sizes, *without_effect, "final_norm", "tie_word_embeddings")
        and spec.final_norm in (None, spec.norm_first)
        and spec.feed_forward is not None
        and _differs_only_in(spec.mixer, Attention(), *attention)
        and _differs_only_in(spec.backbone, Stack(), "num_layers")
    )


def _positions(spec: Decoder) -> str:
    """Which positions a decoder has: none, rotary (partly rotary: of a part of each head), learned or other."""
    if not spec.positions:
        return "none"
    position, *more = spec.positions
    if isinstance(position, Rotary) and _differs_only_in(position, Rotary(), "base", "partial_rotary_factor"):
        kind = "rotary" if position.partial_rotary_factor == 1 else "partly rotary"
    else:
        learned = _differs_only_in(position, Learned(), "max_position_embeddings", "initialization")
        kind = "learned" if learned else "other"
    return "other" if more else kind


def _is_gated(spec: Any) -> bool:
    return spec.feed_forward.activation in ("swiglu", "geglu")


def _activation(spec: Any) -> str:
    gelu = "gelu_pytorch_tanh" if spec.feed_forward.gelu_approximate == "tanh" else "gelu"
    return {"relu": "relu", "swiglu": "silu"}.get(spec.feed_forward.activation, gelu)


def _rope(spec: Any) -> dict[str, Any]:
    """The setting of rotary embeddings; without positions, those of no dimension."""
    rotary = spec.positions[0] if spec.positions else Rotary()
    share = rotary.partial_rotary_factor if spec.positions else 0.0
    return {"rope_parameters": {"rope_type": "default", "rope_theta": rotary.base, "partial_rotary_factor": share}}


def _feed_forward(spec: Any) -> dict[str, Any]:
    size = spec.feed_forward.resolve_intermediate_size(spec.hidden_size)
    return {"intermediate_size": size, "hidden_act": _activation(spec)}


def _heads_outside(tensor: Tensor, heads: int) -> Tensor:
    """Rows of queries, keys and values, each of all heads, as those of each head."""
    return torch.unflatten(tensor, 0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def _heads_inside(tensor: Tensor, heads: int) -> Tensor:
    return torch.unflatten(tensor, 0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


_PRE_NORM_BLOCK = {"mixer_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}

_LLAMA = NativeModel(
    "Llama",
    norm="rms",
    is_gated=True,
    positions=("rotary",),
    settings=lambda spec: {
        **_feed_forward(spec),
        **_rope(spec),
        "rms_norm_eps": spec.norm_eps,
        "attention_bias": spec.mixer.bias,
        "mlp_bias": spec.feed_forward.bias,
    },
    modules={"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
    block="model.layers.{}.",
    block_modules={
        **_PRE_NORM_BLOCK,
        "mixer.qkv_proj": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "mixer.out_proj": "self_attn.o_proj",
        "feed_forward.in_proj": "mlp.gate_proj mlp.up_proj",
        "feed_forward.out_proj": "mlp.down_proj",
    },
)

_STABLE_LM = replace(
    _LLAMA,
    name="StableLm",
    norm="layer",
    positions=("none", "rotary", "partly rotary"),
    condition=lambda spec: spec.norm_first and not spec.mixer.bias and not spec.feed_forward.bias,
    settings=lambda spec: {
        **_feed_forward(spec),
        **_rope(spec),
        "layer_norm_eps": spec.norm_eps,
        "num_key_value_heads": spec.mixer.num_heads,
    },
)

_GPT_NEOX = NativeModel(
    "GPTNeoX",
    norm="layer",
    is_gated=False,
    positions=("none", "rotary", "partly rotary"),
    settings=lambda spec: {
        **_feed_forward(spec),
        **_rope(spec),
        "layer_norm_eps": spec.norm_eps,
        "attention_bias": spec.mixer.bias,
        "use_parallel_residual": False,
    },
    modules={"embedding": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
    block="gpt_neox.layers.{}.",
    block_modules={
        **_PRE_NORM_BLOCK,
        "mixer.qkv_proj": "attention.query_key_value",
        "mixer.out_proj": "attention.dense",
        "feed_forward.in_proj": "mlp.dense_h_to_4h",
        "feed_forward.out_proj": "mlp.dense_4h_to_h",
    },
    changes={"mixer.qkv_proj": (_heads_outside, _heads_inside)},
)

_OPT = NativeModel(
    "OPT",
    norm="layer",
    is_gated=False,
    positions=("learned",),
    condition=lambda spec: spec.norm_eps == 1e-5,
    settings=lambda spec: {
        "ffn_dim": spec.feed_forward.resolve_intermediate_size(spec.hidden_size),
        "activation_function": _activation(spec),
        "do_layer_norm_before": spec.norm_first,
        "dropout": 0.0,
        "enable_bias": spec.mixer.bias or spec.feed_forward.bias,
        "max_position_embeddings": spec.positions[0].max_position_embeddings,
    },
    modules={
        "embedding": "model.decoder.embed_tokens",
        "input_positions.0.embedding": "model.decoder.embed_positions",
        "final_norm": "model.decoder.final_layer_norm",
        "head": "lm_head",
    },
    block="model.decoder.layers.{}.",
    block_modules={
        "mixer_norm": "self_attn_layer_norm",
        "mixer.qkv_proj": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "mixer.out_proj": "self_attn.out_proj",
        "feed_forward_norm": "final_layer_norm",
        "feed_forward.in_proj": "fc1",
        "feed_forward.out_proj": "fc2",
    },
    # Its first position has the index 2.
    changes={
        "input_positions.0.embedding": (lambda table, _: pad(table, (0, 0, 2, 0)), lambda table, _: table[2:]),
    },
)

NATIVE_MODELS = (_LLAMA, _STABLE_LM, _GPT_NEOX, _OPT)
