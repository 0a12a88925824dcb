"""Dual attention against published numbers, and what is only true of it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import published_case
from layers import assert_same, context, drawn, filled, load_from, made, read
from numerate.architectures.dual_attention import DualAttention, DualAttentionMixer
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention, TokenSymbols
from numerate.errors import UserError
from numerate.integrations.hf_cache import select_state_rows
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context
from numerate.models.block import Block, FeedForward
from numerate.positions.bias import ALiBi
from numerate.positions.rotary import Rotary
from variants import name_of

PUBLISHED = {"atol": 5e-6, "rtol": 0.0}


class Given(TokenSymbols):
    """Symbols that a case gives."""

    def __init__(self, symbols: Tensor) -> None:
        super().__init__()
        self.symbols = symbols

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.symbols


def layer_case(shared: Path, name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Weights and inputs, and the output."""
    case = published_case(shared, "dual_attention.json", name)
    return filled(case), torch.tensor(case["expected"]["out"]).double()


def halves(weight: torch.Tensor, size: int) -> torch.Tensor:
    """Queries or keys whose neighbouring components were turned together, for a rotation that pairs halves."""
    order = [*range(0, size, 2), *range(1, size, 2)]
    return weight.unflatten(0, (-1, size))[:, order].flatten(0, 1)


def loaded(spec: DualAttention, width: int, weights: dict[str, torch.Tensor], symbols: torch.Tensor) -> Any:
    """The mixer with a case's weights; parts that the case does not have stay as drawn."""
    part = DualAttentionMixer(spec, width, (Rotary(),), Given(symbols)).double().eval()
    own: dict[str, torch.Tensor] = {}
    other: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        _, is_own, rest = name.rpartition("self_attention.")
        (own if is_own else other)[rest.removeprefix("relational_attention.")] = tensor
    size, groups = part.head_width, spec.num_key_value_heads
    with torch.no_grad():
        for sort, at in (
            (own, slice(0, part.num_self_heads * size)),
            (other, slice(part.q_proj.out_features - part.num_relational_heads * size, None)),
        ):
            for name, mine in (("wq", part.q_proj), ("wk", part.k_proj)):
                named = f"{name}_attn" if f"{name}_attn.weight" in sort else name
                for what in ("weight", "bias"):
                    if f"{named}.{what}" in sort:
                        here = at if mine is part.q_proj or groups is None else _keys_at(part, sort is own)
                        getattr(mine, what)[here] = halves(sort[f"{named}.{what}"], size)
        places = {"wv": ("v_proj", "symbol_v_proj"), "wo": ("self_out_proj", "relational_out_proj")}
        for name, mine in places.items():
            for sort, target in zip((own, other), mine, strict=True):
                for what in ("weight", "bias"):
                    if f"{name}.{what}" in sort:
                        getattr(getattr(part, target), what).copy_(sort[f"{name}.{what}"])
        for name, target in (("wq_rel", "relation_q_proj"), ("wk_rel", "relation_k_proj")):
            if f"{name}.weight" in other:
                getattr(part, target).weight.copy_(other[f"{name}.weight"])
        if "wr" in other:
            part.relation_proj.weight.copy_(other["wr"].flatten(0, 1))
    return part


def _keys_at(part: Any, own: bool) -> slice:
    edge = part.num_self_groups * part.head_width
    return slice(0, edge) if own else slice(edge, None)


FORMS = ["plain", "values", "chunks"]
LAYERS: dict[str, tuple[DualAttention, slice]] = {
    "relational_attention_asym": (DualAttention(), slice(8, None)),
    "relational_attention_sym": (DualAttention(symmetric=True), slice(8, None)),
    "relational_attention_gqa_bias": (
        DualAttention(0, 4, num_key_value_heads=2, bias=True, out_bias=True),
        slice(None),
    ),
    "self_attention_gqa_rope_causal": (DualAttention(num_key_value_heads=1, bias=True, out_bias=True), slice(8)),
    "dual_attention_2sa_2ra": (DualAttention(), slice(None)),
    "dual_attention_shared_qk": (DualAttention(shared_queries=True), slice(None)),
    "dual_attention_only_relational": (DualAttention(num_self_heads=0, num_relational_heads=4), slice(None)),
    "rca_softmax": (DualAttention(variant="rca"), slice(8, None)),
}
"""Published layers, and which features of the output they are of."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_published_layer(shared: Path, name: str, form: Any) -> None:
    (spec, features), (weights, expected) = LAYERS[name], layer_case(shared, name)
    x = weights.pop("x")
    symbols = weights.pop("symbols", x)
    if name.startswith("self_attention"):
        weights = {f"self_attention.{own}": weight for own, weight in weights.items()}
    found = read(loaded(replace(spec, backend=form), 16, weights, symbols), x, 1)
    assert_same(found[..., features], expected, **PUBLISHED)


def test_a_block_is_the_published(shared: Path) -> None:
    weights, expected = layer_case(shared, "dual_block_prenorm_swiglu")
    x, symbols = weights.pop("x"), weights.pop("symbols")
    attention = {name.removeprefix("dual_attn."): one for name, one in weights.items() if name.startswith("dual_attn.")}
    mixer = loaded(DualAttention(), 16, attention, symbols)
    block = Block(16, mixer, FeedForward("swiglu", intermediate_size=42, bias=False).build(16)).double().eval()
    for mine, theirs in (("mixer_norm", "norm1"), ("feed_forward_norm", "norm2")):
        load_from(block, {f"{mine}.{what}": weights[f"{theirs}.{what}"] for what in ("weight", "bias")})
    gate_and_value = torch.cat([weights[f"ff_block.linear{number}.weight"] for number in (1, 3)])
    load_from(block, {"feed_forward.in_proj.weight": gate_and_value})
    load_from(block, {"feed_forward.out_proj.weight": weights["ff_block.linear2.weight"]})
    assert_same(read(block, x, 1), expected, **PUBLISHED)


def test_rotary_pairs_are_the_published_in_another_order(shared: Path) -> None:
    case = published_case(shared, "dual_attention.json", "rope_interleaved_pairs")
    given, order = filled(case), [*range(0, 6, 2), *range(1, 6, 2)]
    turn = Rotary(base=case["config"]["theta"]).build_attention(2, 6)
    prepared = turn.compute_cos_sin(torch.arange(5)[None])
    for name in ("q", "k"):
        wanted = torch.tensor(case["expected"][name]).double().transpose(1, 2)[..., order]
        assert_same(turn.rotate(given[name].transpose(1, 2)[..., order], prepared), wanted, **PUBLISHED)


def test_a_head_as_written_out_one_number_at_a_time() -> None:
    """One relational head of width 2 beside one of self-attention; two relations of width 3 through tanh."""
    symbols = SymbolicAttention(3, num_heads=1)
    part = made(DualAttention(1, 1, symbols, num_relations=2, relation_dim=3, activation="tanh"), 4)
    x = drawn(1, 4, 4)
    output, w = read(part, x)[0, :, 2:], {name: one.detach() for name, one in part.named_parameters()}
    queries, keys = x[0] @ w["q_proj.weight"][2:].T, x[0] @ w["k_proj.weight"][2:].T
    relation_queries = (x[0] @ w["relation_q_proj.weight"].T).view(4, 2, 3)
    relation_keys = (x[0] @ w["relation_k_proj.weight"].T).view(4, 2, 3)
    symbol_queries = x[0] @ w["symbols.q_proj.weight"].T + w["symbols.q_proj.bias"]
    chosen = (symbol_queries @ w["symbols.template_features"].T / 2).softmax(-1)
    values = chosen @ w["symbols.symbol_library"] @ w["symbol_v_proj.weight"].T
    for i in range(4):
        scores = [math.exp(float(queries[i] @ keys[j]) / math.sqrt(2)) for j in range(i + 1)]
        mixed = torch.zeros(2, dtype=torch.float64)
        for j, score in enumerate(scores):
            relations = torch.tanh((relation_queries[i] * relation_keys[j]).sum(1) / math.sqrt(3))
            mixed += score / sum(scores) * (w["relation_proj.weight"] @ relations + values[j])
        assert_same(output[i], w["relational_out_proj.weight"] @ mixed, atol=1e-10, rtol=1e-10)


def test_positions_turn_attention_and_never_relations() -> None:
    part, x = made(DualAttention(0, 2, num_relations=2), 8, positions=(Rotary(),)), drawn(1, 5, 8)
    load_from(part, {"q_proj.weight": torch.zeros(8, 8)})
    far = Context(torch.tensor([5]), (torch.arange(5)[None] * 7,))
    assert_same(read(part, x, 1), part(x, far), atol=1e-12, rtol=0)


READ = [
    DualAttention(2, 2),
    DualAttention(1, 3, SymbolicAttention(5, scale=0.3, normalized=True), num_relations=2, relation_dim=7),
    DualAttention(2, 2, symmetric=True, bias=True, out_bias=True, activation="gelu"),
    DualAttention(3, 1, PositionalSymbols(), num_relations=5, relation_dim=2, activation="silu"),
    DualAttention(2, 2, activation="relu", backend="plain"),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=30)),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=200), variant="rca"),
    DualAttention(2, 2, variant="disrca", activation="softmax"),
    DualAttention(2, 2, symmetric=True, num_key_value_heads=1, bias=True, out_bias=True),
    DualAttention(2, 2, shared_queries=True, num_relations=1, activation="gelu"),
    DualAttention(0, 4, PositionalSymbols(), num_relations=8, relation_dim=3),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=4), num_key_value_heads=1, activation="relu"),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=4), variant="disrca", num_key_value_heads=1),
    DualAttention(2, 2, variant="disrca", symmetric=True, activation="sigmoid"),
    DualAttention(2, 2, PositionalSymbols("sinusoidal"), variant="rca", num_key_value_heads=1),
    DualAttention(2, 2, variant="rca", activation="tanh", shared_queries=True),
]


@pytest.mark.parametrize("lengths", [[70, 70], [65, 70]], ids=str)
@pytest.mark.parametrize("spec", READ, ids=name_of)
def test_rows_of_several_chunks_are_read_as_token_by_token(spec: DualAttention, lengths: list[int]) -> None:
    """Also where all rows are equally long, which is read without a mask, and where rows change their order."""
    rows = torch.arange(2)
    for positions in ((Rotary(),), (Rotary(), ALiBi())):
        part, x, last, count = (
            made(spec, 16, positions=positions),
            drawn(2, 75, 16),
            torch.tensor(lengths),
            len(positions),
        )
        whole = read(part, x, count)
        first, state = part.prefill(x[:, :70], replace(context([70, 70], count, capacity=75), lengths=last))
        assert_same(first[rows, last - 1], whole[rows, last - 1])
        state = select_state_rows(state, torch.tensor([1, 0]), 2)
        x, whole, last = x.flip(0), whole.flip(0), last.flip(0)
        for step in range(5):
            index, cached = last + step, 71 + step
            now = context([cached] * 2, count, cache_position=index, cached_length=cached)
            output, state = part.step(x[rows, index][:, None], now, state)
            assert_same(output[:, 0], whole[rows, index])


QUICK = [
    DualAttention(2, 2, symmetric=True, num_key_value_heads=1),
    DualAttention(2, 2, num_relations=3, relation_dim=5, activation="tanh", shared_queries=True),
    DualAttention(0, 4, variant="disrca"),
    Attention(4, bias=True),
]


@pytest.mark.parametrize("spec", QUICK, ids=name_of)
def test_queries_and_keys_turned_pair_by_pair_say_the_same(monkeypatch: pytest.MonkeyPatch, spec: Any) -> None:
    """Whole rows on a CPU are read so; values and gradients are those of the plain way."""
    part, x = made(spec, 32, positions=(Rotary(),)), drawn(2, 7, 32).requires_grad_()
    shifted = replace(context([7, 7]), position_ids=(torch.arange(7)[None] + torch.tensor([[0], [5]]),))
    assert part._project_fast(x, replace(shifted, forward_cache={})) is not None
    quick = part(x, replace(shifted, forward_cache={}))
    monkeypatch.setattr(part, "_project_fast", lambda *_: None)
    assert_same(part(x, shifted), quick, [x, *part.parameters()], atol=1e-10, rtol=1e-10)


def test_what_is_kept_for_a_token_is_what_it_is_seen_by() -> None:
    """Self-attention keeps keys and values, relations keys and projected symbols: 2.5 numbers per unit of width."""
    for symbols, numbers in ((SymbolicAttention(), 16 * 2 + 8), (PositionRelativeSymbols(), 16 * 2)):
        _, state = made(DualAttention(2, 2, symbols), 16).prefill(drawn(1, 3, 16), context([3], capacity=10))
        assert sum(one.numel() for one in state.values()) == 10 * numbers


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DualAttention(0, 0), r"^num_self_heads: num_self_heads \+ num_relational_heads must be 1 or more"),
        (
            lambda: DualAttention(4, 4, num_key_value_heads=3),
            "^num_key_value_heads: 3 must divide num_self_heads=4",
        ),
        (
            lambda: DualAttention(2, 4, shared_queries=True),
            "^shared_queries: num_relational_heads=4 must equal num_self_heads=2",
        ),
        (lambda: DualAttention(variant="rca", num_relations=3), "^num_relations: must be null with variant=rca"),
        (lambda: DualAttention(variant="rca", symmetric=True), "^symmetric: must be false with variant=rca"),
        (
            lambda: DualAttention(variant="disrca", symmetric=True, num_key_value_heads=1),
            "^num_key_value_heads: must be null with symmetric relations of disrca",
        ),
        (
            lambda: DualAttention(backend="values", activation="tanh"),
            "^backend: values does not support variant=relational with activation=tanh",
        ),
        (lambda: DualAttention(3, 2).build(16, 0, 1, ()), r"must divide hidden_size=16, not 3 \+ 2"),
        (
            lambda: DualAttention(num_relations=3).build(16, 0, 1, ()),
            r"^model\.mixer\.num_relations: must divide 8, the total width of the relational heads, not 3",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()
