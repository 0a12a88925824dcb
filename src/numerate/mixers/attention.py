"""Causal self-attention."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import weights_of
from numerate.mixers.attention_positions import turned_in_pairs
from numerate.mixers.mixer import Context, Mixer, TokenMixer, at_places
from numerate.positions.position import Bias, Contextual, Position, Rotation
from numerate.positions.rotary import split_and_turned


@dataclass(frozen=True)
class Attention(Mixer):
    """Causal multi-head self-attention.

    Vaswani et al. (2017), https://arxiv.org/abs/1706.03762.

    Positions that act inside attention (`Rotary`, biases) are those of the model, not of this spec.

    `logit_scale` multiplies the attention logits, biases included: above 1 attention is sharper. It changes no weight,
    so a trained model may be evaluated with another one: on rows longer than those of training softmax spreads over
    more keys, and a larger scale, or one that grows with the length, makes up for it (Velickovic et al., 2024,
    https://arxiv.org/abs/2410.01104). With `logit_scale="log"` a query that sees n keys uses
    max(1, log n / log log_scale_start), after Chiang and Cholak (2022), https://arxiv.org/abs/2202.12172: up to
    `log_scale_start` keys nothing changes. With log_scale_start=64 a query with 4,096 keys uses 2.

    `scale_by_inverse_layer_index` divides the logits of the first layer by 1, of the second by 2 and so on, as GPT-2
    can (`scale_attn_by_inverse_layer_idx`) and the published counting does (Chang and Bisk, 2024,
    https://arxiv.org/abs/2405.20131). There, too, a token that is hidden does not even see itself:
    `blocked_attend_to_themselves=False`; one that then sees nothing at all does see itself.
    """

    num_heads: int = setting(4, "number of attention heads; must divide hidden_size")
    bias: bool = setting(False, "whether the projections have biases")
    dropout: float = setting(0.0, "dropout of attention weights")
    logit_scale: float | Literal["log"] = setting(
        1.0, "factor on the attention logits; log: grows with the length", later=True
    )
    log_scale_start: int = setting(64, "number of visible keys up to which logit_scale=log changes nothing", later=True)
    scale_by_inverse_layer_index: bool = setting(False, "divide the attention logits of layer n by n", later=True)
    blocked_attend_to_themselves: bool = setting(True, "whether a blocked token still attends to itself", later=True)

    def __post_init__(self) -> None:
        if self.num_heads < 1:
            raise UserError(f"num_heads: {self.num_heads} heads attend to nothing; 1 or more is right")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout: {self.dropout} is not a share; from 0 to below 1 is right")
        if self.logit_scale != "log" and (isinstance(self.logit_scale, str) or not 0 < self.logit_scale < float("inf")):
            raise UserError(f"logit_scale: {self.logit_scale} leaves nothing to attend by; a number above 0, or log")
        if self.log_scale_start < 2:
            raise UserError(
                f"log_scale_start: the logarithm of {self.log_scale_start} divides by nothing; 2 or more is right"
            )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "SelfAttention":
        if width % self.num_heads:
            fitting = [heads for heads in range(1, width + 1) if width % heads == 0 and heads <= 4 * self.num_heads]
            raise UserError(
                f"model.mixer.num_heads: width {width} does not divide into {self.num_heads} heads; "
                f"{', '.join(map(str, fitting))} heads would do"
            )
        return SelfAttention(self, width, positions, layer)

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        layers = [self.build(width, layer, depth, positions) for layer in range(depth)]
        for layer in layers[1:]:
            layer.share(layers[0])
        return list(layers)

    def attends(self) -> bool:
        return True


@dataclass
class Cache:
    """Key-value cache: rows x heads x capacity x head width each."""

    keys: Tensor
    values: Tensor


class SelfAttention(TokenMixer):
    """One layer of causal self-attention, with a key-value cache in `step`."""

    def __init__(self, spec: Attention, width: int, positions: Sequence[Position], layer: int = 0) -> None:
        super().__init__()
        heads = spec.num_heads
        self.heads, self.head_width, self.dropout = heads, width // heads, spec.dropout
        self.logit_scale, self.log_from = spec.logit_scale, spec.log_scale_start
        self.layer_scale = 1 / (layer + 1) if spec.scale_by_inverse_layer_index else 1.0
        self.hidden_see_themselves = spec.blocked_attend_to_themselves
        self.inward = nn.Linear(width, 3 * width, bias=spec.bias)
        self.out = nn.Linear(width, width, bias=spec.bias)
        acting = [(i, position.build_attention(heads, width // heads)) for i, position in enumerate(positions)]
        self.specs = {i: positions[i] for i, part in acting if part is not None}
        self.rotations = nn.ModuleDict({str(i): part for i, part in acting if isinstance(part, Rotation)})
        self.biases = nn.ModuleDict({str(i): part for i, part in acting if isinstance(part, Bias)})
        self.contextual = nn.ModuleDict({str(i): part for i, part in acting if isinstance(part, Contextual)})

    def share(self, first: "SelfAttention") -> None:
        """Shares with the first layer the modules of positions that all layers share."""
        for number, position in self.specs.items():
            if position.shares_layers():
                for kind in ("rotations", "biases", "contextual"):
                    mine, theirs = getattr(self, kind), getattr(first, kind)
                    if str(number) in mine:
                        mine[str(number)] = theirs[str(number)]

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        queries, keys, values = self._quickly(x, context) or self._projected(x, context)
        return self._whole(queries, keys, values, context)

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets width"]:
        """`forward` at `target_positions`: all keys and values, but queries, scores and outputs of these only."""
        width = self.heads * self.head_width
        weight, bias = self.inward.weight, self.inward.bias
        queries = self._in_heads(
            linear(at_places(x, target_positions), weight[:width], None if bias is None else bias[:width])
        )
        keys, values = self._in_heads(linear(x, weight[width:], None if bias is None else bias[width:])).chunk(2, dim=1)
        for name, part in self.rotations.items():
            assert isinstance(part, Rotation)
            queries = part.turn(queries, part.prepare(_gathered(context.position_ids[int(name)], target_positions)))
            keys = part.turn(keys, self._prepared(int(name), part, context))
        place = torch.arange(x.shape[1], device=x.device)
        visible = self._shown(
            place <= target_positions[:, :, None], place == target_positions[:, :, None], context.hidden
        )[:, None]
        scale = self._scale(target_positions + 1)

        def at_targets(position: int, part: Bias) -> Tensor:
            return self._bias_at(position, part, context, target_positions)

        mask = self._mask(visible, queries, keys, scale, at_targets)
        return self._attended(_scaled(queries, scale), keys, values, mask)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Cache]:
        queries, keys, values = self._projected(x, context)
        rows, heads, time, head_width = keys.shape
        cache = Cache(*(part.new_zeros(rows, heads, context.capacity, head_width) for part in (keys, values)))
        cache.keys[:, :, :time], cache.values[:, :, :time] = keys, values
        return self._whole(queries, keys, values, context), cache

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: Cache) -> tuple[Tensor, Cache]:
        assert context.index is not None
        queries, keys, values = self._projected(x, context)
        row = torch.arange(x.shape[0], device=x.device)
        state.keys[row, :, context.index] = keys[:, :, 0]
        state.values[row, :, context.index] = values[:, :, 0]
        index, seen, place = context.index[:, None], context.seen, torch.arange(context.seen, device=x.device)
        hidden = None if context.hidden is None else context.hidden[:, :seen]
        visible = self._shown((place <= index)[:, None], (place == index)[:, None], hidden)[:, None]
        keys, values = state.keys[:, :, :seen], state.values[:, :, :seen]
        scale = self._scale(index + 1)

        def newest(position: int, part: Bias) -> Tensor:
            places = context.position_ids[position]
            return part.bias(_gathered(places, index), places[:, :seen])

        mask = self._mask(visible, queries, keys, scale, newest)
        mixed = scaled_dot_product_attention(_scaled(queries, scale), keys, values, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2)), state

    def _projected(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each rows x heads x time x head width, turned by the rotations."""
        rows, time, _ = x.shape
        queries, keys, values = self.inward(x).view(rows, time, 3, self.heads, self.head_width).unbind(2)
        queries, keys, values = queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        for name, part in self.rotations.items():
            assert isinstance(part, Rotation)
            prepared = self._prepared(int(name), part, context)
            queries, keys = part.turn(queries, prepared), part.turn(keys, prepared)
        return queries, keys, values

    def _quickly(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor] | None:
        """`_projected` with components of queries and keys permuted, where that is faster."""
        if (
            type(self.inward) is not nn.Linear
            or (found := turned_in_pairs(self.rotations, self.contextual, x, context)) is None
        ):
            return None
        number, part = found
        width, bias = self.heads * self.head_width, self.inward.bias
        name = ("pairs", number, self.head_width)
        if name not in context.prepared:
            context.prepared[name] = part.pairs(context.position_ids[number], 2 * self.heads).to(x.dtype.to_complex())

        def ordered(rows: Tensor) -> Tensor:
            return torch.cat([part.neighbours(rows[: 2 * width]), rows[2 * width :]])

        made = linear(x, ordered(self.inward.weight), None if bias is None else ordered(bias[:, None])[:, 0])
        parts = split_and_turned(made, context.prepared[name], [width] * 3)
        queries, keys, values = (self._in_heads(one) for one in parts)
        return queries, keys, values

    def _prepared(self, position: int, part: Rotation, context: Context) -> object:
        name = ("rotation", position, self.head_width)
        if name not in context.prepared:
            places = context.position_ids[position]
            if context.index is not None:
                places = _gathered(places, context.index[:, None])
            context.prepared[name] = part.prepare(places)
        return context.prepared[name]

    def maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        queries, keys, _ = self._projected(x, context)
        scale, mask = self._whole_mask(queries, keys, context)
        return {"attention": weights_of(_scaled(queries, scale), keys, mask)}

    def _whole(self, queries: Tensor, keys: Tensor, values: Tensor, context: Context) -> Tensor:
        scale, mask = self._whole_mask(queries, keys, context)
        return self._attended(_scaled(queries, scale), keys, values, mask)

    def _whole_mask(
        self, queries: Tensor, keys: Tensor, context: Context
    ) -> tuple[Tensor | float | None, Tensor | None]:
        """The factor on the logits, and what is visible or added to them; None for causal attention alone."""
        time, device = queries.shape[2], queries.device
        scale = self._scale(torch.arange(1, time + 1, device=device)[None])
        mask = None
        # Elsewhere plain causal attention will do (padding on the right is then seen by nothing real).
        if context.hidden is not None or self.biases or self.contextual:
            causal = torch.ones(time, time, dtype=torch.bool, device=device).tril()[None]
            own = torch.eye(time, dtype=torch.bool, device=device)[None]
            visible = self._shown(causal, own, context.hidden)[:, None]
            mask = self._mask(visible, queries, keys, scale, lambda i, part: self._whole_bias(i, part, context))
        return scale, mask

    def _scale(self, visible: Int[Tensor, "#rows query"]) -> Float[Tensor, "#rows query"] | float | None:
        """The factor on the logits of queries that see so many keys; None for no factor."""
        if self.logit_scale == "log":
            return (visible.float().log() / math.log(self.log_from)).clamp(min=1.0) * self.layer_scale
        scale = float(self.logit_scale) * self.layer_scale
        return None if scale == 1.0 else scale

    def _whole_bias(self, position: int, part: Bias, context: Context) -> Float[Tensor, "#rows heads time time"]:
        """The bias of all pairs, shared by layers that share the module, and by the loops of a looped model."""
        # A loop may turn without gradients first: what was made then is not what later turns need.
        name = ("bias", position, id(part), torch.is_grad_enabled())
        if name not in context.prepared:
            places = context.position_ids[position]
            context.prepared[name] = part.bias(places, places)
        found: Tensor = context.prepared[name]
        return found

    def _bias_at(
        self, position: int, part: Bias, context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows heads targets time"]:
        places = context.position_ids[position]
        if len(places) > 1 or places.shape[1] > _TABULATED:
            return part.bias(_gathered(places, target_positions), places)
        # All rows have the same places: every pair once, then each row's queries looked up.
        return self._whole_bias(position, part, context)[0][:, target_positions].transpose(0, 1)

    def _attended(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention and output projection; causal without a mask."""
        dropout = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=mask is None
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _in_heads(self, projected: Float[Tensor, "rows time all"]) -> Float[Tensor, "rows heads time head_width"]:
        rows, time, width = projected.shape
        return projected.view(rows, time, width // self.head_width, self.head_width).transpose(1, 2)

    def _shown(
        self,
        visible: Bool[Tensor, "#rows query key"],
        own: Bool[Tensor, "#rows query key"],
        hidden: Bool[Tensor, "rows key"] | None,
    ) -> Bool[Tensor, "#rows query key"]:
        """Which keys each query sees, of those that are `visible` by their place; `own` is the query's own key.

        One that sees no other key always sees its own: there would be no softmax otherwise."""
        if hidden is None:
            return visible
        shown = visible & ~hidden[:, None, :]
        return shown | (own if self.hidden_see_themselves else own & ~shown.any(-1, keepdim=True))

    def _mask(
        self,
        visible: Bool[Tensor, "#rows 1 query key"],
        queries: Float[Tensor, "rows heads query head_width"],
        keys: Float[Tensor, "rows heads key head_width"],
        scale: Tensor | float | None,
        bias_of: Callable[[int, Bias], Tensor],
    ) -> Tensor:
        """What is visible, or with positions that add to the scores what they add there, and minus infinity elsewhere;
        `bias_of` is a bias, given the number of its position, at these queries."""
        mask: Tensor = visible
        for name, part in self.biases.items():
            assert isinstance(part, Bias)
            mask = _added(mask, _scaled(bias_of(int(name), part), scale))
        for part in self.contextual.values():
            assert isinstance(part, Contextual)
            mask = _added(mask, _scaled(part.bias(queries, keys, visible), scale))
        return mask

    def fused(self) -> Mapping[str, Sequence[str]]:
        return {"inward": ("queries", "keys", "values")}

    def claimed(self) -> set[str]:
        # A network of distances has inputs from 0 up: drawn as a layer of the model, half of it would be dead at once.
        return {name for name, _ in self.named_parameters() if name.startswith(("biases.", "contextual."))}

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,)

    def flops(self, time: int) -> int:
        width = self.heads * self.head_width
        own = 2 * time * 4 * width * width + 2 * 2 * width * time * (time + 1) // 2
        parts = [part for part in self.contextual.values() if isinstance(part, Contextual)]
        return own + sum(part.flops(self.heads, time) for part in parts)


def _gathered(
    places: Int[Tensor, "#rows time"], target_positions: Int[Tensor, "rows targets"]
) -> Int[Tensor, "rows targets"]:
    """The position ids at `target_positions`."""
    return places.expand(len(target_positions), -1).gather(1, target_positions)


def _scaled(
    x: Float[Tensor, "#rows heads query last"], scale: Float[Tensor, "#rows query"] | float | None
) -> Float[Tensor, "rows heads query last"]:
    """Queries, or biases of queries, times the factor on the logits."""
    if scale is None:
        return x
    return x * (scale[:, None, :, None].to(x.dtype) if isinstance(scale, Tensor) else scale)


_TABULATED = 2048
"""Rows longer than this many places do not have the biases of all their pairs written down."""


def _added(
    mask: Bool[Tensor, "#rows 1 query key"] | Float[Tensor, "#rows #heads query key"],
    bias: Float[Tensor, "#rows heads query key"],
) -> Float[Tensor, "#rows heads query key"]:
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, float("-inf"))
    return mask + bias
