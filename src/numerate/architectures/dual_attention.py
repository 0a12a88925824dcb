"""Dual attention: self-attention heads and relational attention heads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from numerate.architectures.symbols import DistanceSymbols, SymbolicAttention, Symbols, TokenSymbols
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.relational import Activation, RelationalHeads, Variant, apply_activation, causal_mask
from numerate.kernels.relational_fast import RelationalBackend, causal_attention, relational_attention, supports_values
from numerate.mixers.attention_positions import AttentionPositions, common_cache_position
from numerate.mixers.mixer import Context, Mixer, TokenMixer, gather_positions
from numerate.positions.position import Position
from numerate.positions.rotary import split_and_rotate


@dataclass(frozen=True)
class DualAttention(Mixer):
    """Dual attention (Altabaa and Lafferty, 2024): self-attention heads beside relational attention heads.

    https://arxiv.org/abs/2405.16727. A relational head has causal attention weights a_ij;
    its output for token i is the sum over j of a_ij (W r_ij + S s_j), with the relations r_ij between tokens i and j
    and a symbol s_j that identifies token j. Relation l is activation((Q_l x_i . K_l x_j) / sqrt(its width)), shared by
    all heads; each head has its own W. The two kinds of heads have separate output projections, whose outputs are
    concatenated.

    With `variant="rca"` (relational cross-attention) relations are the attention weights themselves, and symbols the
    values; with `variant="disrca"` (disentangled) attention weights are multiplied by one relation per head.

    Positional encodings apply to attention as in `Attention`, never to relations. With `num_key_value_heads`, several
    heads of the same kind share keys and values or symbols (grouped-query attention, Ainslie et al., 2023,
    https://arxiv.org/abs/2305.13245), and with `disrca` relation keys too. With `activation="softmax"` relations are
    normalized over the visible keys of a token.

    >>> from numerate.models import Decoder, Stack
    >>> from numerate.positions import Rotary
    >>> mixer = DualAttention(num_self_heads=4, num_relational_heads=4, symbols=SymbolicAttention(num_symbols=512))
    >>> spec = Decoder(hidden_size=128, backbone=Stack(num_layers=4), positions=(Rotary(),), mixer=mixer)

    This is one of the published models of Tiny Stories, in the authors' later code; in the code of the published
    results the total width of all relations was that of the model (there `relation_dim=32`).
    """

    num_self_heads: int = setting(
        2, "number of self-attention heads; the total number of heads must divide hidden_size", at_least=0
    )
    num_relational_heads: int = setting(2, "number of relational attention heads", at_least=0)
    symbols: Symbols = setting(SymbolicAttention(), "how symbols are assigned to tokens")
    variant: Variant = setting("relational", "relational, rca (relations only) or disrca (attention times relation)")
    num_relations: int | None = setting(None, "number of relations; null: num_relational_heads", at_least=1)
    relation_dim: int | None = setting(
        None,
        "dimension of a relation's queries and keys; null: total width of the relational heads / num_relations",
        at_least=1,
    )
    symmetric: bool = setting(False, "whether relations are symmetric: queries and keys share their projection")
    activation: Activation | None = setting(None, "activation of relations; null: softmax with rca, otherwise identity")
    num_key_value_heads: int | None = setting(
        None, "number of key-value heads of each kind (grouped-query attention); null: one per head", at_least=1
    )
    shared_queries: bool = setting(False, "whether relational heads use the queries and keys of self-attention")
    bias: bool = setting(False, "whether key and value projections have biases")
    out_bias: bool = setting(False, "whether output projections have biases")
    dropout: float = setting(0.0, "dropout of attention weights", at_least=0, below=1)
    backend: RelationalBackend = setting(
        "auto",
        "implementation (equal up to rounding): auto, plain, values (activation=identity only), chunks",
        in_run_id=False,
    )

    def conflicts(self) -> Iterator[str]:
        if self.num_self_heads + self.num_relational_heads < 1:
            yield "num_self_heads: num_self_heads + num_relational_heads must be 1 or more"
        if self.variant != "relational":
            for name in ("num_relations", "relation_dim"):
                if getattr(self, name) is not None:
                    yield f"{name}: must be null with variant={self.variant}, which has one relation per head"
        num_groups = self.num_key_value_heads
        if num_groups is not None:
            for name in ("num_self_heads", "num_relational_heads"):
                if getattr(self, name) % num_groups:
                    yield (
                        f"num_key_value_heads: {num_groups} must divide {name}={getattr(self, name)}; "
                        "choose a common divisor of both numbers of heads"
                    )
            if self.symmetric and self.variant != "relational" and num_groups != self.num_relational_heads:
                yield (
                    f"num_key_value_heads: must be null with symmetric relations of {self.variant}, which have one key "
                    "per query"
                )
        if self.shared_queries and self.num_self_heads != self.num_relational_heads:
            yield (
                f"shared_queries: num_relational_heads={self.num_relational_heads} must equal "
                f"num_self_heads={self.num_self_heads}"
            )
        if self.symmetric and self.variant == "rca":
            yield "symmetric: must be false with variant=rca, which has no relations besides attention"
        if self.backend == "values" and not supports_values(self.variant, self.relation_activation()):
            yield (
                f"backend: values does not support variant={self.variant} with "
                f"activation={self.relation_activation()}; use chunks or auto"
            )

    def relation_activation(self) -> Activation:
        """The activation function of relations."""
        return self.activation or ("softmax" if self.variant == "rca" else "identity")

    def small(self) -> "DualAttention":
        return replace(
            self,
            num_self_heads=2 * bool(self.num_self_heads),
            num_relational_heads=2 * bool(self.num_relational_heads),
            num_key_value_heads=None,
            num_relations=None,
            relation_dim=None,
        )

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "DualAttentionMixer":
        return DualAttentionMixer(
            self, width, positions, self.symbols.build(width) if self.num_relational_heads else None
        )

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        symbols = self.symbols.build_layers(width, depth) if self.num_relational_heads else [None] * depth
        layers = [DualAttentionMixer(self, width, positions, symbols[layer]) for layer in range(depth)]
        known_ids: set[int] = set()
        for layer in layers:
            layer.attention_positions.share_modules(layers[0].attention_positions)
            ids_by_name = {name: id(parameter) for name, parameter in layer.named_parameters()}
            layer.shared_parameters = {name for name, parameter_id in ids_by_name.items() if parameter_id in known_ids}
            known_ids |= set(ids_by_name.values())
        return list(layers)

    def has_attention(self) -> bool:
        return True


TensorsByName = dict[str, Tensor]
"""Tensors by name, each rows x heads x time x head dimension; in a cache, `time` is its capacity."""


class DualAttentionMixer(TokenMixer):
    """The module of `DualAttention`. Its decoding state: keys, values, projected symbols and relation keys of all
    positions."""

    def __init__(
        self,
        spec: DualAttention,
        width: int,
        positions: Sequence[Position],
        symbols: TokenSymbols | DistanceSymbols | None,
    ) -> None:
        super().__init__()
        self.spec, num_self_heads, num_relational_heads = spec, spec.num_self_heads, spec.num_relational_heads
        if width % (num_self_heads + num_relational_heads):
            raise UserError(
                f"model.mixer.num_self_heads: num_self_heads + num_relational_heads must divide hidden_size={width}, "
                f"not {num_self_heads} + {num_relational_heads}"
            )
        self.shared_parameters: set[str] = set()
        num_heads = num_self_heads + num_relational_heads
        self.num_self_heads, self.num_relational_heads = num_self_heads, num_relational_heads
        self.head_width = head_width = width // num_heads
        groups = spec.num_key_value_heads
        self.num_self_groups = min(groups or num_self_heads, num_self_heads)
        self.num_relational_groups = min(groups or num_relational_heads, num_relational_heads)
        num_queries, num_keys = num_heads, self.num_self_groups + self.num_relational_groups
        if spec.shared_queries:
            num_queries, num_keys = num_self_heads, self.num_self_groups
        self.q_proj = nn.Linear(width, num_queries * head_width, bias=False)
        self.k_proj = nn.Linear(width, num_keys * head_width, bias=spec.bias)
        self.attention_positions = AttentionPositions(num_heads, head_width, positions)
        if num_self_heads:
            self.v_proj = nn.Linear(width, self.num_self_groups * head_width, bias=spec.bias)
            self.self_out_proj = nn.Linear(num_self_heads * head_width, num_self_heads * head_width, bias=spec.out_bias)
        self.symbols, self.num_relations, self.relation_width = symbols, 0, 0
        if num_relational_heads:
            self._build_relational(spec, width)

    def _build_relational(self, spec: DualAttention, width: int) -> None:
        relational_width, variant = self.num_relational_heads * self.head_width, spec.variant
        self.symbol_v_proj = nn.Linear(width, self.num_relational_groups * self.head_width, bias=spec.bias)
        self.relational_out_proj = nn.Linear(relational_width, relational_width, bias=spec.out_bias)
        if variant == "rca":
            return
        if variant == "disrca":
            num_queries, self.num_relations = self.num_relational_heads, self.num_relational_groups
            self.relation_width = spec.relation_dim or self.head_width
        else:
            num_queries = self.num_relations = spec.num_relations or self.num_relational_heads
            self.relation_width = spec.relation_dim or relational_width // self.num_relations
            if spec.relation_dim is None and relational_width % self.num_relations:
                raise UserError(
                    f"model.mixer.num_relations: must divide {relational_width}, the total width of the relational "
                    f"heads, not {self.num_relations}; choose a divisor, or set relation_dim"
                )
            self.relation_proj = nn.Linear(self.num_relations, relational_width, bias=False)
        self.relation_q_proj = nn.Linear(width, num_queries * self.relation_width, bias=False)
        if not spec.symmetric:
            self.relation_k_proj = nn.Linear(width, self.num_relations * self.relation_width, bias=False)

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        return self._attend(self._project_fast(x, context) or self._project(x, context), context)

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets width"]:
        keys_values = self._project_keys_values(x, context)
        queries = self._project_queries(gather_positions(x, target_positions), context, target_positions)
        return self._attend(keys_values | queries, context, target_positions)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, TensorsByName]:
        keys_values, cache = self._project_keys_values(x, context), {}
        for name, tensor in keys_values.items():
            rows, heads, time, head_width = len(x), *tensor.shape[1:]
            cache[name] = tensor.new_zeros(rows, heads, context.capacity, head_width)
            cache[name][:, :, :time] = tensor
        return self._attend(keys_values | self._project_queries(x, context), context), cache

    def step(
        self, x: Float[Tensor, "rows 1 width"], context: Context, state: TensorsByName
    ) -> tuple[Tensor, TensorsByName]:
        assert context.cache_position is not None
        row_index, cache_position = torch.arange(x.shape[0], device=x.device), common_cache_position(context)
        for name, tensor in self._project_keys_values(x, context).items():
            if cache_position is None:
                state[name][row_index, :, context.cache_position] = tensor[:, :, 0]
            else:
                state[name][:, :, cache_position] = tensor[:, :, 0]
        keys_values = {name: tensor[:, :, : context.cached_length] for name, tensor in state.items()}
        query_positions = context.cache_position[:, None]
        queries = self._project_queries(x, context, query_positions)
        return self._attend(keys_values | queries, context, query_positions), state

    def _relation_key_projection(self) -> nn.Linear:
        return self.relation_q_proj if self.spec.symmetric else self.relation_k_proj

    def _project(self, x: Tensor, context: Context) -> TensorsByName:
        """The projections of tokens: those of `_project_keys_values` and of `_project_queries`."""
        return self._project_keys_values(x, context) | self._project_queries(x, context)

    def _project_keys_values(self, x: Tensor, context: Context) -> TensorsByName:
        """The keys, values, symbols and relation keys of tokens."""
        projected = {"keys": self.attention_positions.rotate(self._split_heads(self.k_proj(x)), context)}
        if self.num_self_heads:
            projected["values"] = self._split_heads(self.v_proj(x))
        if isinstance(self.symbols, TokenSymbols):
            projected["symbols"] = self._split_heads(self.symbol_v_proj(self.symbols(x, context)))
        if self.num_relations:
            projected["relation_keys"] = self._split_heads(self._relation_key_projection()(x), self.relation_width)
        return projected

    def _project_queries(self, x: Tensor, context: Context, query_positions: Tensor | None = None) -> TensorsByName:
        """The queries and relation queries of tokens."""
        queries = self._split_heads(self.q_proj(x))
        projected = {"queries": self.attention_positions.rotate(queries, context, query_positions)}
        if self.num_relations:
            projected["relation_queries"] = self._split_heads(self.relation_q_proj(x), self.relation_width)
        return projected

    def _project_fast(self, x: Tensor, context: Context) -> TensorsByName | None:
        """`_project` with one matrix product and RoPE by complex multiplication, which permutes the components of
        attention queries and keys; None if it does not apply."""
        projections = {"queries": self.q_proj, "keys": self.k_proj}
        projections |= {"values": self.v_proj} if self.num_self_heads else {}
        if self.num_relations:
            projections["relation_queries"] = self.relation_q_proj
            projections |= {} if self.spec.symmetric else {"relation_keys": self.relation_k_proj}
        if any(type(module) is not nn.Linear or module.bias is not None for module in projections.values()):
            return None
        widths = [module.out_features for module in projections.values()]
        if (rope := self.attention_positions.complex_rope(x, context, sum(widths[:2]) // self.head_width)) is None:
            return None
        rotation, factors = rope
        rotated_weight = rotation.interleave_halves(torch.cat([self.q_proj.weight, self.k_proj.weight]))
        weight = torch.cat([rotated_weight, *(module.weight for module in list(projections.values())[2:])])
        projected = {
            name: self._split_heads(tensor, self.relation_width if name.startswith("relation_") else None)
            for name, tensor in zip(projections, split_and_rotate(linear(x, weight), factors, widths), strict=True)
        }
        if self.num_relations and self.spec.symmetric:
            projected["relation_keys"] = projected["relation_queries"]
        if isinstance(self.symbols, TokenSymbols):
            projected["symbols"] = self._split_heads(self.symbol_v_proj(self.symbols(x, context)))
        return projected

    def _attend(
        self, projected: TensorsByName, context: Context, query_positions: Tensor | None = None
    ) -> Float[Tensor, "rows query width"]:
        """The outputs at all positions, or of queries at `query_positions`; in blocks of queries where masks would be
        large."""
        queries, keys = self._queries_and_keys(projected)
        blocks = self.attention_positions.query_blocks(queries, keys, context, query_positions)
        if blocks is None:
            return self._attend_to_keys(projected, context, query_positions)
        output = queries.new_empty(len(queries), queries.shape[2], queries.shape[1] * self.head_width)
        for block in blocks:
            slices = dict.fromkeys(("queries", "relation_queries"), block.queries)
            visible = {name: x[:, :, slices.get(name, slice(block.num_keys))] for name, x in projected.items()}
            output[:, block.queries] = self._attend_to_keys(visible, context, block.query_positions)
        return output

    def _attend_to_keys(
        self, projected: TensorsByName, context: Context, query_positions: Tensor | None
    ) -> Float[Tensor, "rows query width"]:
        num_self_heads, groups = self.num_self_heads, self.num_self_groups
        queries, keys = self._queries_and_keys(projected)
        visible, bias = self.attention_positions.visibility_and_bias(
            queries, self._keys_per_head(keys), context, query_positions
        )
        self_bias = relational_bias = bias
        if bias is not None and bias.shape[1] > 1:
            self_bias, relational_bias = bias[:, :num_self_heads], bias[:, num_self_heads:]
        elif bias is not None:
            relational_bias = bias.expand(-1, self.num_relational_heads, -1, -1)
        dropout = self.spec.dropout if self.training else 0.0
        outputs = []
        if num_self_heads:
            self_keys, values = (_repeat_kv(x, num_self_heads) for x in (keys[:, :groups], projected["values"]))
            self_queries = queries[:, :num_self_heads]
            attn_output = causal_attention(self_queries, self_keys, values, visible, self_bias, dropout)
            outputs.append(self.self_out_proj(attn_output.transpose(1, 2).flatten(2)))
        if self.num_relational_heads:
            heads = RelationalHeads(
                queries[:, num_self_heads:],
                keys[:, groups:],
                query_positions=query_positions,
                visible=visible,
                bias=relational_bias,
                dropout=dropout,
                **self._relation_inputs(projected),
            )
            activation = self.spec.relation_activation()
            attn_output = relational_attention(heads, self.spec.variant, activation, self.spec.backend)
            outputs.append(self.relational_out_proj(attn_output.transpose(1, 2).flatten(2)))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def _queries_and_keys(self, projected: TensorsByName) -> tuple[Tensor, Tensor]:
        """Queries of all heads and keys of all groups, those of self-attention first."""
        queries, keys = projected["queries"], projected["keys"]
        if self.spec.shared_queries:
            return torch.cat([queries, queries], dim=1), torch.cat([keys, keys], dim=1)
        return queries, keys

    def _keys_per_head(self, keys: Tensor) -> Tensor:
        """The keys of every head, repeated from those of its group."""
        if keys.shape[1] == self.num_self_heads + self.num_relational_heads:
            return keys
        self_keys, relational_keys = keys[:, : self.num_self_groups], keys[:, self.num_self_groups :]
        kinds = ((self_keys, self.num_self_heads), (relational_keys, self.num_relational_heads))
        return torch.cat([_repeat_kv(group_keys, heads) for group_keys, heads in kinds], dim=1)

    def _relation_inputs(self, projected: TensorsByName) -> dict[str, Tensor]:
        """The symbols, and the relation queries and keys."""
        inputs = {}
        if isinstance(self.symbols, DistanceSymbols):
            symbols = self.symbols(projected["keys"].shape[2])
            inputs["distance_symbols"] = self._split_heads(self.symbol_v_proj(symbols)[None])
        else:
            inputs["symbols"] = projected["symbols"]
        if self.num_relations:
            inputs |= {name: projected[name] for name in ("relation_queries", "relation_keys")}
            if self.spec.variant == "disrca":
                inputs["relation_keys"] = _repeat_kv(inputs["relation_keys"], self.num_relational_heads)
            else:
                inputs["relation_proj"] = torch.unflatten(
                    self.relation_proj.weight, 0, (self.num_relational_heads, self.head_width)
                )
        return inputs

    def attention_maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        maps, projected, num_self_heads = {}, self._project(x, context), self.num_self_heads
        queries, keys = self._queries_and_keys(projected)
        keys = self._keys_per_head(keys)
        visible, bias = self.attention_positions.visibility_and_bias(queries, keys, context)
        visible = causal_mask(queries, keys) if visible is None else visible
        scores = torch.einsum("rhqd,rhkd->rhqk", queries, keys) * self.head_width**-0.5
        scores = scores if bias is None else scores + bias
        if num_self_heads:
            maps["attention"] = apply_activation(scores[:, :num_self_heads], visible, "softmax")
        if not self.num_relational_heads:
            return maps
        function = self.spec.relation_activation()
        if self.spec.variant != "rca" or function == "softmax":
            maps["relational attention"] = apply_activation(scores[:, num_self_heads:], visible, "softmax")
        else:
            maps["relations"] = apply_activation(scores[:, num_self_heads:], visible, function) * visible
        if self.num_relations:
            inputs = self._relation_inputs(projected)
            relation_scores = torch.einsum("rlqp,rlkp->rlqk", inputs["relation_queries"], inputs["relation_keys"])
            relation_scores = relation_scores * self.relation_width**-0.5
            maps["relations"] = apply_activation(relation_scores, visible, function) * visible
        symbol_weights = self.symbols.attention_maps(x, context) if isinstance(self.symbols, TokenSymbols) else None
        return maps if symbol_weights is None else maps | {"symbols": symbol_weights}

    def _split_heads(self, projected: Float[Tensor, "rows time all"], head_width: int | None = None) -> Tensor:
        return torch.unflatten(projected, -1, (-1, head_width or self.head_width)).transpose(1, 2)

    def self_initialized_parameters(self) -> set[str]:
        """Those of positions, as in `SelfAttention`, and of symbols; shared ones belong to the first layer."""
        symbols = set() if self.symbols is None else self.symbols.self_initialized_parameters()
        positions = {f"attention_positions.{name}" for name, _ in self.attention_positions.named_parameters()}
        return (positions | {f"symbols.{name}" for name in symbols}) - self.shared_parameters

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        roles = {"q_proj": "queries", "k_proj": "keys", "relation_q_proj": "queries", "relation_k_proj": "keys"}
        return {name: (role,) for name, role in roles.items() if hasattr(self, name)}

    def fan_in_by_layer(self) -> Mapping[str, int]:
        # As in the published code, where this projection is a tensor of heads x head width x relations.
        return {"relation_proj": self.head_width * self.num_relations} if hasattr(self, "relation_proj") else {}

    def output_projections(self) -> Sequence[nn.Linear]:
        return (
            *((self.self_out_proj,) if self.num_self_heads else ()),
            *((self.relational_out_proj,) if self.num_relational_heads else ()),
        )

    def flops(self, time: int) -> int:
        """Counted from the definition, over all pairs of a query and a visible key, independent of the backend."""
        num_weights = sum(module.weight.numel() for module in self.children() if isinstance(module, nn.Linear))
        num_heads = self.num_self_heads + self.num_relational_heads
        total_width, relation_width = self.head_width * num_heads, self.num_relations * self.relation_width
        if self.spec.variant == "disrca":
            relation_width = self.num_relational_heads * self.head_width
        flops_per_pair = (
            2 * total_width
            + relation_width
            + (self.num_relational_heads * self.num_relations if self.spec.variant == "relational" else 0)
        )
        symbol_flops = self.symbols.flops(time) if isinstance(self.symbols, TokenSymbols) else 0
        bias_flops = self.attention_positions.flops(num_heads, time)
        return 2 * time * num_weights + flops_per_pair * time * (time + 1) + symbol_flops + bias_flops


def _repeat_kv(x: Float[Tensor, "rows groups time width"], heads: int) -> Float[Tensor, "rows heads time width"]:
    """Repeats each group's keys or values for each of its heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
