"""Dual attention: self-attention heads beside relational attention heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from numerate.architectures.dual_decoding import Decoding, Projections, decoded, is_exact
from numerate.architectures.symbols import DistanceSymbols, SymbolicAttention, Symbols, SymbolsPart
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.relational import FUNCTIONS, Activation, Heads, Kind, activated, causal
from numerate.kernels.relational_fast import Form, attended, has_values, relational_attention
from numerate.mixers.attention_positions import Inside, together, turned_in_pairs
from numerate.mixers.mixer import Context, Mixer, TokenMixer, at_places
from numerate.positions.position import Position
from numerate.positions.rotary import split_and_turned


@dataclass(frozen=True)
class DualAttention(Mixer):
    """Dual attention: self-attention heads beside relational attention heads.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727. A relational head has causal attention weights a_ij;
    its values for tokens i and j are their relations r_ij, and a symbol s_j that identifies j: the sum over j of
    a_ij (W r_ij + S s_j). Relation l is activation((Q_l x_i . K_l x_j) / sqrt(its width)), shared by all heads; W is a
    head's own map of all relations. The two kinds of heads have separate output projections, whose outputs are
    concatenated.

    With `variant="rca"` (relational cross-attention) relations are the attention weights themselves, and symbols the
    values; with `variant="disrca"` (disentangled) attention weights are multiplied by one relation per head.

    Positions act on attention as in `Attention`, never on relations. With `num_key_value_heads` several heads of a sort
    share keys and values (Ainslie et al., 2023, https://arxiv.org/abs/2305.13245): with `rca` also what is compared,
    with `disrca` relation keys too. A softmax of relations is over the keys that a token sees.

    >>> Decoder(hidden_size=128, backbone=Stack(num_layers=4), positions=(Rotary(),),
    ...     mixer=DualAttention(num_self_heads=4, num_relational_heads=4, symbols=SymbolicAttention(num_symbols=512)))

    is a published one of Tiny Stories in the authors' later code; in that of the published numbers all relations
    together were as wide as the model (there `relation_dim=32`).
    """

    num_self_heads: int = setting(2, "number of self-attention heads; all heads together must divide hidden_size")
    num_relational_heads: int = setting(2, "number of relational attention heads")
    symbols: Symbols = setting(SymbolicAttention(), "where symbols come from")
    variant: Kind = setting("relational", "relational, rca (relations only) or disrca (attention times relation)")
    num_relations: int | None = setting(None, "number of relations; null: num_relational_heads")
    relation_dim: int | None = setting(
        None, "dimension of a relation's queries and keys; null: all relations together as wide as the relational heads"
    )
    symmetric: bool = setting(False, "whether relations are symmetric: queries and keys share their projection")
    activation: Activation | None = setting(None, "activation of relations; null: softmax with rca, otherwise identity")
    num_key_value_heads: int | None = setting(
        None, "number of key-value heads of each kind (grouped-query attention); null: one per head"
    )
    shared_queries: bool = setting(False, "whether relational heads use the queries and keys of self-attention")
    bias: bool = setting(False, "whether key and value projections have biases")
    out_bias: bool = setting(False, "whether output projections have biases")
    dropout: float = setting(0.0, "dropout of attention weights")
    backend: Form = setting(
        "auto",
        "implementation, all exact: auto, plain, values (identity only), chunks, triton (CUDA), tiles",
        identity=False,
    )

    def __post_init__(self) -> None:
        for name in ("num_self_heads", "num_relational_heads"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}: {getattr(self, name)} is no number of heads; 0 or more is right")
        if self.num_self_heads + self.num_relational_heads < 1:
            raise UserError("num_self_heads: no heads at all attend to nothing; 1 or more of either sort is right")
        for name in ("num_relations", "relation_dim", "num_key_value_heads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value} relate to nothing; 1 or more is right")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout: {self.dropout} is not a share; from 0 to below 1 is right")
        if self.variant != "relational":
            for name in ("num_relations", "relation_dim"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name}: {self.variant} compares once for each head; leave it out")
        groups = self.num_key_value_heads
        if groups is not None:
            for name in ("num_self_heads", "num_relational_heads"):
                if getattr(self, name) % groups:
                    raise UserError(
                        f"num_key_value_heads: {groups} cannot be shared evenly by {getattr(self, name)} {name}; "
                        "a number that divides both is right"
                    )
            if self.symmetric and self.variant != "relational" and groups != self.num_relational_heads:
                raise UserError(
                    f"num_key_value_heads: symmetric relations of {self.variant} have a key for each query; "
                    f"leave it out"
                )
        if self.shared_queries and self.num_self_heads != self.num_relational_heads:
            raise UserError(
                f"shared_queries: {self.num_relational_heads} relational heads cannot attend with the queries of "
                f"{self.num_self_heads} others; as many of one sort as of the other are right"
            )
        if self.symmetric and self.variant == "rca":
            raise UserError("symmetric: rca has no relations beside its attention, which never is; leave it out")
        relational = self.variant == "relational" and self.function() != "softmax"
        if (self.backend in ("triton", "tiles") and not relational) or (
            self.backend == "values" and not has_values(self.variant, self.function())
        ):
            raise UserError(
                f"backend: {self.variant} through {self.function()} has no form {self.backend}; chunks or auto would do"
            )

    def function(self) -> Activation:
        """The activation that relations go through."""
        return self.activation or ("softmax" if self.variant == "rca" else "identity")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "DualAttentionMixer":
        return DualAttentionMixer(
            self, width, positions, self.symbols.build(width) if self.num_relational_heads else None
        )

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        symbols = self.symbols.build_layers(width, depth) if self.num_relational_heads else [None] * depth
        layers = [DualAttentionMixer(self, width, positions, symbols[layer]) for layer in range(depth)]
        known: set[int] = set()
        for layer in layers:
            layer.inside.share(layers[0].inside)
            named = {name: id(parameter) for name, parameter in layer.named_parameters()}
            layer.elsewhere = {name for name, one in named.items() if one in known}
            known |= set(named.values())
        return list(layers)

    def attends(self) -> bool:
        return True


Cache = dict[str, Tensor]
"""What the places so far are seen by, each rows x heads x capacity x width."""


class DualAttentionMixer(TokenMixer):
    """The part behind `DualAttention`. Its state: keys, values, projected symbols and relation keys of all places."""

    def __init__(
        self,
        spec: DualAttention,
        width: int,
        positions: Sequence[Position],
        symbols: SymbolsPart | DistanceSymbols | None,
    ) -> None:
        super().__init__()
        self.spec, own, other = spec, spec.num_self_heads, spec.num_relational_heads
        if width % (own + other):
            raise UserError(
                f"model.mixer.num_self_heads: width {width} does not divide into {own} and {other} heads; "
                "a divisor of the width in all is right"
            )
        self.elsewhere: set[str] = set()
        self.own, self.other, self.size = own, other, width // (own + other)
        self.own_groups = (spec.num_key_value_heads or own) if own else 0
        self.groups = (spec.num_key_value_heads or other) if other else 0
        alone = not spec.shared_queries
        self.queries = nn.Linear(width, (own + other * alone) * self.size, bias=False)
        self.keys = nn.Linear(width, (self.own_groups + self.groups * alone) * self.size, bias=spec.bias)
        self.inside = Inside(own + other, self.size, positions)
        if own:
            self.values = nn.Linear(width, self.own_groups * self.size, bias=spec.bias)
            self.own_out = nn.Linear(own * self.size, own * self.size, bias=spec.out_bias)
        self.symbols, self.relations, self.relation_width = symbols, 0, 0
        if other:
            self._make_relational(spec, width)

    def _make_relational(self, spec: DualAttention, width: int) -> None:
        inside, variant = self.other * self.size, spec.variant
        self.symbol_values = nn.Linear(width, self.groups * self.size, bias=spec.bias)
        self.out = nn.Linear(inside, inside, bias=spec.out_bias)
        if variant == "rca":
            return
        self.relations, asking = (
            (spec.num_relations or self.other, 0) if variant == "relational" else (self.groups, self.other)
        )
        self.relation_width = spec.relation_dim or (inside // self.relations if variant == "relational" else self.size)
        if variant == "relational":
            if spec.relation_dim is None and inside % self.relations:
                raise UserError(
                    f"model.mixer.num_relations: relational heads {inside} wide do not divide into {self.relations} "
                    "relations; a divisor of it, or a relation_dim, is right"
                )
            self.relation_map = nn.Linear(self.relations, inside, bias=False)
        self.relation_queries = nn.Linear(width, (asking or self.relations) * self.relation_width, bias=False)
        if not spec.symmetric:
            self.relation_keys = nn.Linear(width, self.relations * self.relation_width, bias=False)

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        queries, held = self._quickly(x, context) or (None, self._held(x, context))
        return self._output(x, held, context, queries=queries)

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets width"]:
        return self._output(at_places(x, target_positions), self._held(x, context), context, target_positions)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Cache | Decoding]:
        held, cache = self._held(x, context), {}
        for name, part in held.items():
            rows, heads, time, size = len(x), *part.shape[1:]
            cache[name] = part.new_zeros(rows, heads, context.capacity, size)
            cache[name][:, :, :time] = part
        output = self._output(x, held, context)
        if not self._decodes(x, context):
            return output, cache
        symbols = cache.pop("symbols")
        cache["values"] = torch.cat([cache["values"], symbols.expand(len(x), -1, -1, -1)], dim=1)
        return output, Decoding(**cache, maps=self._for_steps(context))

    def _decodes(self, x: Tensor, context: Context) -> bool:
        """Whether the fast decoding step applies: both kinds of heads, without grouped keys; relations without a
        softmax; a symbol per token, no blocked keys and no attention bias."""
        spec = self.spec
        if (
            spec.variant != "relational"
            or spec.function() not in FUNCTIONS
            or not isinstance(self.symbols, SymbolsPart)
        ):
            return False
        if spec.shared_queries or spec.num_key_value_heads is not None or not self.own or context.hidden is not None:
            return False
        linear_maps = (one for name, one in self.named_children() if name not in ("symbols", "inside"))
        if self.inside.biases or self.inside.contextual or any(type(one) is not nn.Linear for one in linear_maps):
            return False
        return is_exact(x, self.queries.weight) and not (self.training and spec.dropout)

    def _for_steps(self, context: Context) -> Projections:
        assert isinstance(self.symbols, SymbolsPart)
        # Layers that share the part that gives symbols share what is made ready of it.
        name = ("symbols", id(self.symbols))
        if name not in context.prepared:
            context.prepared[name] = self.symbols.for_steps()
        asking = self.relation_queries
        answering = asking if self.spec.symmetric else self.relation_keys
        scale, relation_scale = self.size**-0.5, self.relation_width**-0.5
        inward = (self.queries, scale), (self.keys, 1.0), (self.values, 1.0), (asking, relation_scale), (answering, 1.0)
        by_head = torch.unflatten(self.relation_map.weight, 0, (self.other, self.size))
        return Projections(context.prepared[name], inward, self.own_out, self.out, by_head)

    def step(
        self, x: Float[Tensor, "rows 1 width"], context: Context, state: Cache | Decoding
    ) -> tuple[Tensor, Cache | Decoding]:
        assert context.index is not None
        if isinstance(state, Decoding):
            return decoded(x, context, state, self.inside, self.symbol_values, self.spec.function()), state
        row, place = torch.arange(x.shape[0], device=x.device), together(context)
        for name, part in self._held(x, context).items():
            if place is None:
                state[name][row, :, context.index] = part[:, :, 0]
            else:
                state[name][:, :, place] = part[:, :, 0]
        held = {name: part[:, :, : context.seen] for name, part in state.items()}
        return self._output(x, held, context, context.index[:, None]), state

    def _held(self, x: Tensor, context: Context) -> Cache:
        """The keys, values, symbols and relation keys of tokens."""
        held = {"keys": self.inside.turned(self._in_heads(self.keys(x)), context)}
        if self.own:
            held["values"] = self._in_heads(self.values(x))
        if isinstance(self.symbols, SymbolsPart):
            held["symbols"] = self._in_heads(self.symbol_values(self.symbols(x, context)))
        if self.relations:
            made = self.relation_queries if self.spec.symmetric else self.relation_keys
            held["relation_keys"] = self._in_heads(made(x), self.relation_width)
        return held

    def _quickly(self, x: Tensor, context: Context) -> tuple[Cache, Cache] | None:
        """Queries of both kinds, and `_held`, by one linear layer, with components of attention queries and keys
        permuted; None where that is not faster."""
        made = {"queries": self.queries, "keys": self.keys}
        made |= {"values": self.values} if self.own else {}
        if self.relations:
            made["relation_queries"] = self.relation_queries
            made |= {} if self.spec.symmetric else {"relation_keys": self.relation_keys}
        if any(type(part) is not nn.Linear or part.bias is not None for part in made.values()):
            return None
        if (found := turned_in_pairs(self.inside.rotations, self.inside.contextual, x, context)) is None:
            return None
        number, part = found
        sizes = {name: one.out_features for name, one in made.items()}
        heads = (sizes["queries"] + sizes["keys"]) // self.size
        key = ("pairs", number, self.size, heads)
        if key not in context.prepared:
            context.prepared[key] = part.pairs(context.position_ids[number], heads).to(x.dtype.to_complex())
        turned = part.neighbours(torch.cat([self.queries.weight, self.keys.weight]))
        weight = torch.cat([turned, *(one.weight for one in list(made.values())[2:])])
        parts = split_and_turned(linear(x, weight), context.prepared[key], list(sizes.values()))
        held = {
            name: self._in_heads(one, self.relation_width if name.startswith("relation_") else None)
            for name, one in zip(made, parts, strict=True)
        }
        asking: Cache = {name: held.pop(name) for name in ("queries", "relation_queries") if name in held}
        if self.relations and self.spec.symmetric:
            held["relation_keys"] = asking["relation_queries"]
        if isinstance(self.symbols, SymbolsPart):
            held["symbols"] = self._in_heads(self.symbol_values(self.symbols(x, context)))
        return asking, held

    def _output(
        self, x: Tensor, held: Cache, context: Context, at: Tensor | None = None, queries: Cache | None = None
    ) -> Tensor:
        """The outputs at all positions, or `at` some, that attend to those in `held`; `queries` if already computed."""
        asking = queries or {}
        own = self.own
        compared, keys = self._compared(x, held, context, at, asking.get("queries"))
        visible, bias = self.inside.seen(compared, self._of_heads(keys), context, at)
        dropout = self.spec.dropout if self.training else 0.0
        parts = []
        if own:
            seen, values = (_each(one[:, : self.own_groups], own) for one in (keys, held["values"]))
            added = bias if bias is None or bias.shape[1] == 1 else bias[:, :own]
            mixed = attended(compared[:, :own], seen, values, visible, added, dropout)
            parts.append(self.own_out(mixed.transpose(1, 2).flatten(2)))
        if self.other:
            heads = Heads(
                compared[:, own:],
                keys[:, self.own_groups :],
                places=at,
                visible=visible,
                bias=bias if bias is None or bias.shape[1] == 1 else bias[:, own:],
                dropout=dropout,
                **self._related(x, held, keys.shape[2], asking.get("relation_queries")),
            )
            mixed = relational_attention(heads, self.spec.variant, self.spec.function(), self.spec.backend)
            parts.append(self.out(mixed.transpose(1, 2).flatten(2)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _compared(
        self, x: Tensor, held: Cache, context: Context, at: Tensor | None = None, made: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries of all heads and keys of all groups, those of self-attention first."""
        keys = held["keys"]
        queries = self.inside.turned(self._in_heads(self.queries(x)), context, at) if made is None else made
        if self.spec.shared_queries:
            queries, keys = torch.cat([queries, queries], dim=1), torch.cat([keys, keys], dim=1)
        return queries, keys

    def _of_heads(self, keys: Tensor) -> Tensor:
        """Keys of all heads, from those of groups."""
        if (self.own_groups, self.groups) == (self.own, self.other):
            return keys
        parts = ((keys[:, : self.own_groups], self.own), (keys[:, self.own_groups :], self.other))
        return torch.cat([_each(part, heads) for part, heads in parts if heads], dim=1)

    def maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        found, held, own = {}, self._held(x, context), self.own
        queries, keys = self._compared(x, held, context)
        keys = self._of_heads(keys)
        visible, bias = self.inside.seen(queries, keys, context)
        visible = causal(queries, keys) if visible is None else visible
        scores = torch.einsum("rhqd,rhkd->rhqk", queries, keys) * self.size**-0.5
        scores = scores if bias is None else scores + bias
        if own:
            found["attention"] = activated(scores[:, :own], visible, "softmax")
        if not self.other:
            return found
        function = self.spec.function()
        if self.spec.variant != "rca" or function == "softmax":
            found["relational attention"] = activated(scores[:, own:], visible, "softmax")
        else:
            found["relations"] = activated(scores[:, own:], visible, function) * visible
        if self.relations:
            related = self._related(x, held, keys.shape[2])
            compared = torch.einsum("rlqp,rlkp->rlqk", related["relation_queries"], related["relation_keys"])
            found["relations"] = activated(compared * self.relation_width**-0.5, visible, function) * visible
        chosen = self.symbols.maps(x, context) if isinstance(self.symbols, SymbolsPart) else None
        return found if chosen is None else found | {"symbols": chosen}

    def _related(self, x: Tensor, held: Cache, keys: int, asking: Tensor | None = None) -> dict[str, Tensor]:
        """Symbols, and what relations compare."""
        made = {}
        if isinstance(self.symbols, DistanceSymbols):
            made["by_distance"] = self._in_heads(self.symbol_values(self.symbols(keys))[None])
        else:
            made["symbols"] = held["symbols"]
        if self.relations:
            made["relation_queries"] = (
                self._in_heads(self.relation_queries(x), self.relation_width) if asking is None else asking
            )
            made["relation_keys"] = held["relation_keys"]
            if self.spec.variant == "disrca":
                made["relation_keys"] = _each(made["relation_keys"], self.other)
            else:
                made["relation_map"] = torch.unflatten(self.relation_map.weight, 0, (self.other, self.size))
        return made

    def _in_heads(self, made: Float[Tensor, "rows time all"], size: int | None = None) -> Tensor:
        return torch.unflatten(made, -1, (-1, size or self.size)).transpose(1, 2)

    def claimed(self) -> set[str]:
        """Of what layers share, those of the first."""
        symbols = set() if self.symbols is None else self.symbols.claimed()
        own = {f"inside.{name}" for name in self.inside.claimed()} | {f"symbols.{name}" for name in symbols}
        return own - self.elsewhere

    def fused(self) -> Mapping[str, Sequence[str]]:
        made = {"queries": "queries", "keys": "keys", "relation_queries": "queries", "relation_keys": "keys"}
        return {name: (what,) for name, what in made.items() if hasattr(self, name)}

    def reads(self) -> Mapping[str, int]:
        # As published, where the map is a tensor of heads x head width x relations.
        return {"relation_map": self.size * self.relations} if hasattr(self, "relation_map") else {}

    def outward(self) -> Sequence[nn.Linear]:
        return (*((self.own_out,) if self.own else ()), *((self.out,) if self.other else ()))

    def flops(self, time: int) -> int:
        """Those of the definition for pairs of a token and one that it sees, whatever the form."""
        linear = [part for part in self.children() if isinstance(part, nn.Linear)]
        inside, compared = self.size * (self.own + self.other), self.relations * self.relation_width
        if self.spec.variant == "disrca":
            compared = self.other * self.size
        pair = 2 * inside + compared + (self.other * self.relations if self.spec.variant == "relational" else 0)
        symbols = self.symbols.flops(time) if isinstance(self.symbols, SymbolsPart) else 0
        matrices = sum(part.weight.numel() for part in linear)
        contextual = self.inside.flops(self.own + self.other, time)
        return 2 * time * matrices + pair * time * (time + 1) + symbols + contextual


def _each(x: Float[Tensor, "rows groups time width"], heads: int) -> Float[Tensor, "rows heads time width"]:
    """Those of groups for each of their heads, one after the other."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
