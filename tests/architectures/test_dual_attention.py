"""Dual attention against published numbers, and what is only true of it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from numerate.architectures.dual_attention import DualAttention, DualAttentionMixer
from numerate.architectures.dual_decoding import DecodingCache
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention, TokenSymbols
from numerate.errors import UserError
from numerate.kernels import relational_fast
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context
from numerate.models.block import Block, FeedForwardModule
from numerate.positions.bias import ALiBi
from numerate.positions.rotary import Rotary

PUBLISHED = {"atol": 5e-6, "rtol": 0.0}


class Given(TokenSymbols):
    """Symbols that a case gives."""

    def __init__(self, symbols: torch.Tensor) -> None:
        super().__init__()
        self.symbols = symbols

    def forward(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        return self.symbols


def filled(shape: list[int], salt: int, amp: float, offset: float, **_: Any) -> torch.Tensor:
    """The formula of the cases: offset + amp sin(0.1 (7 i0 + 3 i1 + 2 i2 + 5 i3 + 1) + 1.1 salt)."""
    index = torch.zeros(shape, dtype=torch.float64)
    for dimension, factor in zip(range(len(shape)), (7, 3, 2, 5), strict=False):
        steps = torch.arange(shape[dimension], dtype=torch.float64) * factor
        index += steps.view(-1, *(1,) * (len(shape) - dimension - 1))
    return offset + amp * torch.sin(0.1 * (index + 1) + 1.1 * salt)


def case_of(shared: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, Any]]:
    cases = json.loads((shared / "cases" / "dual_attention.json").read_text())["cases"]
    case = next(case for case in cases if case["name"] == name)
    made = {key: filled(**how) for kind in ("weights", "inputs") for key, how in case[kind].items()}
    return case["config"], made, case["expected"]


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


def context(rows: int, time: int, positions: int = 1, **more: Any) -> Context:
    return Context(torch.full((rows,), time), tuple(torch.arange(time)[None] for _ in range(positions)), **more)


def read(part: Any, x: torch.Tensor) -> torch.Tensor:
    return part(x, context(*x.shape[:2]))


FORMS = ["plain", "values", "chunks"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["asym", "sym", "gqa_bias"])
def test_relational_attention_is_the_published(shared: Path, name: str, form: Any) -> None:
    config, made, expected = case_of(shared, f"relational_attention_{name}")
    heads, biases = config["n_heads"], "add_bias_kv" in config
    spec = DualAttention(
        config["total_n_heads"] - heads,
        heads,
        symmetric=config.get("symmetric_rels", False),
        num_key_value_heads=config.get("n_kv_heads"),
        bias=biases,
        out_bias=biases,
        backend=form,
    )
    x, symbols = made.pop("x"), made.pop("symbols")
    output = read(loaded(spec, 16, made, symbols), x)
    torch.testing.assert_close(output[..., -4 * heads :], torch.tensor(expected["out"]).double(), **PUBLISHED)


def test_self_attention_with_shared_keys_is_the_published(shared: Path) -> None:
    _, made, expected = case_of(shared, "self_attention_gqa_rope_causal")
    spec = DualAttention(2, 2, num_key_value_heads=1, bias=True, out_bias=True)
    x = made.pop("x")
    part = loaded(spec, 16, {f"self_attention.{name}": weight for name, weight in made.items()}, x)
    torch.testing.assert_close(read(part, x)[..., :8], torch.tensor(expected["out"]).double(), **PUBLISHED)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("2sa_2ra", {}),
        ("shared_qk", {"shared_queries": True}),
        ("only_relational", {"num_self_heads": 0, "num_relational_heads": 4}),
    ],
)
def test_dual_attention_is_the_published(shared: Path, name: str, spec: dict[str, Any], form: Any) -> None:
    _, made, expected = case_of(shared, f"dual_attention_{name}")
    x, symbols = made.pop("x"), made.pop("symbols")
    part = loaded(DualAttention(**spec, backend=form), 16, made, symbols)
    torch.testing.assert_close(read(part, x), torch.tensor(expected["out"]).double(), **PUBLISHED)


@pytest.mark.parametrize("form", FORMS)
def test_rca_is_the_published(shared: Path, form: Any) -> None:
    _, made, expected = case_of(shared, "rca_softmax")
    x, symbols = made.pop("x"), made.pop("symbols")
    part = loaded(DualAttention(variant="rca", backend=form), 16, made, symbols)
    torch.testing.assert_close(read(part, x)[..., 8:], torch.tensor(expected["out"]).double(), **PUBLISHED)


def test_a_block_is_the_published(shared: Path) -> None:
    _, made, expected = case_of(shared, "dual_block_prenorm_swiglu")
    x, symbols = made.pop("x"), made.pop("symbols")
    mixer = loaded(
        DualAttention(),
        16,
        {name.removeprefix("dual_attn."): one for name, one in made.items() if name.startswith("dual_attn.")},
        symbols,
    )
    block = Block(16, mixer, FeedForwardModule(16, 42, "swiglu", bias=False)).double().eval()
    with torch.no_grad():
        for mine, theirs in ((block.mixer_norm, "norm1"), (block.feed_forward_norm, "norm2")):
            assert isinstance(mine, nn.LayerNorm)
            mine.weight.copy_(made[f"{theirs}.weight"])
            mine.bias.copy_(made[f"{theirs}.bias"])
        assert block.feed_forward is not None
        gate_and_value = torch.cat([made[f"ff_block.linear{number}.weight"] for number in (1, 3)])
        block.feed_forward.in_proj.weight.copy_(gate_and_value)
        block.feed_forward.out_proj.weight.copy_(made["ff_block.linear2.weight"])
    torch.testing.assert_close(block(x, context(1, 5)), torch.tensor(expected["out"]).double(), **PUBLISHED)


def test_rotary_pairs_are_the_published_in_another_order(shared: Path) -> None:
    config, made, expected = case_of(shared, "rope_interleaved_pairs")
    order = [*range(0, 6, 2), *range(1, 6, 2)]
    turn = Rotary(base=config["theta"]).build_attention(2, 6)
    prepared = turn.compute_cos_sin(torch.arange(5)[None])
    for name in ("q", "k"):
        output = turn.rotate(made[name].transpose(1, 2)[..., order], prepared)
        wanted = torch.tensor(expected[name]).double().transpose(1, 2)[..., order]
        torch.testing.assert_close(output, wanted, **PUBLISHED)


def test_a_head_as_written_out_one_number_at_a_time() -> None:
    """One relational head of width 2 beside one of self-attention; two relations of width 3 through tanh."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        spec = DualAttention(
            1, 1, SymbolicAttention(3, num_heads=1), num_relations=2, relation_dim=3, activation="tanh"
        )
        part: Any = spec.build(4, 0, 1, ()).double()
        x = torch.randn(1, 4, 4, dtype=torch.float64)
    output = part(x, context(1, 4, 0))[0, :, 2:]
    w = {name: one.detach() for name, one in part.named_parameters()}
    queries, keys = x[0] @ w["q_proj.weight"][2:].T, x[0] @ w["k_proj.weight"][2:].T
    relation_queries = (x[0] @ w["relation_q_proj.weight"].T).view(4, 2, 3)
    relation_keys = (x[0] @ w["relation_k_proj.weight"].T).view(4, 2, 3)
    symbol_queries = x[0] @ w["symbols.q_proj.weight"].T + w["symbols.q_proj.bias"]
    chosen = (symbol_queries @ w["symbols.template_features"].T / 2).softmax(-1)
    symbols = chosen @ w["symbols.symbol_library"] @ w["symbol_v_proj.weight"].T
    for i in range(4):
        scores = [math.exp(float(queries[i] @ keys[j]) / math.sqrt(2)) for j in range(i + 1)]
        mixed = torch.zeros(2, dtype=torch.float64)
        for j, score in enumerate(scores):
            relations = torch.stack(
                [torch.tanh(relation_queries[i, k] @ relation_keys[j, k] / math.sqrt(3)) for k in range(2)]
            )
            mixed += score / sum(scores) * (w["relation_proj.weight"] @ relations + symbols[j])
        torch.testing.assert_close(output[i], w["relational_out_proj.weight"] @ mixed, atol=1e-10, rtol=1e-10)


def test_positions_turn_attention_and_never_relations() -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part: Any = DualAttention(0, 2, num_relations=2).build(8, 0, 1, (Rotary(),)).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        part.q_proj.weight.zero_()
    here, far = context(1, 5), Context(torch.tensor([5]), (torch.arange(5)[None] * 7,))
    torch.testing.assert_close(part(x, here), part(x, far), atol=1e-12, rtol=0)


SPECS = [
    DualAttention(2, 2),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=30)),
    DualAttention(2, 2, activation="silu", num_key_value_heads=1),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=200), variant="rca"),
    DualAttention(2, 2, variant="disrca", activation="softmax"),
]


@pytest.mark.parametrize("spec", SPECS, ids=[str(number) for number in range(len(SPECS))])
def test_rows_of_many_pieces_are_read_as_token_by_token(spec: DualAttention) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part: Any = spec.build(16, 0, 1, (Rotary(), ALiBi())).double().eval()
        plain: Any = spec.build(16, 0, 1, (Rotary(),)).double().eval()
        x = torch.randn(2, 150, 16, dtype=torch.float64)
    for mixer, positions in ((part, 2), (plain, 1)):
        whole = mixer(x, context(2, 150, positions))
        first, state = mixer.prefill(x[:, :146], context(2, 146, positions, capacity=150))
        torch.testing.assert_close(first, whole[:, :146], atol=1e-9, rtol=1e-9)
        for place in range(146, 150):
            now = context(2, place + 1, positions, cache_position=torch.full((2,), place), cached_length=place + 1)
            output, state = mixer.step(x[:, place : place + 1], now, state)
            torch.testing.assert_close(output[:, 0], whole[:, place], atol=1e-9, rtol=1e-9)


DECODED = [
    DualAttention(2, 2),
    DualAttention(1, 3, SymbolicAttention(5, scale=0.3, normalized=True), num_relations=2, relation_dim=7),
    DualAttention(2, 2, symmetric=True, bias=True, out_bias=True, activation="gelu"),
    DualAttention(3, 1, PositionalSymbols(), num_relations=5, relation_dim=2, activation="silu"),
]


@torch.no_grad()
@pytest.mark.parametrize("spec", DECODED, ids=[str(number) for number in range(len(DECODED))])
@pytest.mark.parametrize("lengths", [[6, 6], [4, 6]])
def test_one_more_token_by_fused_maps_says_the_same(spec: DualAttention, lengths: list[int]) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        mixer: Any = spec.build(16, 0, 1, (Rotary(),)).double().eval()
        x = torch.randn(2, 10, 16, dtype=torch.float64)
    whole, rows, last = mixer(x, context(2, 10)), torch.arange(2), torch.tensor(lengths)
    _, state = mixer.prefill(x[:, :6], replace(context(2, 6, capacity=10), lengths=last))
    assert isinstance(state, DecodingCache)
    state = pytest.importorskip("numerate.integrations.hf_cache").select_state_rows(state, torch.tensor([1, 0]), 2)
    x, whole, last = x.flip(0), whole.flip(0), last.flip(0)
    for step in range(4):
        index = last + step
        now = context(2, 7 + step, cache_position=index, cached_length=7 + step)
        output, state = mixer.step(x[rows, index][:, None], now, state)
        torch.testing.assert_close(output[:, 0], whole[rows, index], atol=1e-9, rtol=1e-9)


CACHED = [
    DualAttention(2, 2, symmetric=True, num_key_value_heads=1, bias=True, out_bias=True),
    DualAttention(2, 2, shared_queries=True, num_relations=1, activation="gelu"),
    DualAttention(0, 4, PositionalSymbols(), num_relations=8, relation_dim=3),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=4), num_key_value_heads=1, activation="relu"),
    DualAttention(2, 2, PositionRelativeSymbols(max_distance=4), variant="disrca", num_key_value_heads=1),
    DualAttention(2, 2, variant="disrca", symmetric=True, activation="sigmoid"),
    DualAttention(2, 2, activation="relu", backend="plain"),
    DualAttention(2, 2, PositionalSymbols("sinusoidal"), variant="rca", num_key_value_heads=1),
    DualAttention(2, 2, variant="rca", activation="tanh", shared_queries=True),
]


@pytest.mark.parametrize("spec", CACHED, ids=[str(number) for number in range(len(CACHED))])
@pytest.mark.parametrize("lengths", [(6, 6), (3, 6)])
def test_prompts_of_any_length_go_on_token_by_token(spec: DualAttention, lengths: tuple[int, int]) -> None:
    """Also where all rows are equally long, which is read without a mask."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part: Any = spec.build(16, 0, 1, (Rotary(),)).double().eval()
        x = torch.randn(2, 12, 16, dtype=torch.float64)
    whole, known = part(x, context(2, 12)), torch.tensor(lengths)
    _, state = part.prefill(x[:, :6], context(2, 6, capacity=12))
    for _ in range(5):
        newest = x[torch.arange(2), known][:, None]
        now = context(2, 12, cache_position=known, cached_length=int(known.max()) + 1)
        output, state = part.step(newest, now, state)
        torch.testing.assert_close(output[:, 0], whole[torch.arange(2), known], atol=1e-9, rtol=1e-9)
        known = known + 1


QUICK = [
    DualAttention(2, 2, symmetric=True, num_key_value_heads=1),
    DualAttention(2, 2, num_relations=3, relation_dim=5, activation="tanh", shared_queries=True),
    DualAttention(0, 4, variant="disrca"),
    Attention(4, bias=True),
]


@pytest.mark.parametrize("spec", QUICK, ids=[str(number) for number in range(len(QUICK))])
def test_queries_and_keys_turned_pair_by_pair_say_the_same(monkeypatch: pytest.MonkeyPatch, spec: Any) -> None:
    """Whole rows on a CPU are read so; values and gradients are those of the plain way."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part: Any = spec.build(32, 0, 1, (Rotary(),)).double()
        x = torch.randn(2, 7, 32, dtype=torch.float64)
    shifted = Context(torch.full((2,), 7), (torch.arange(7)[None] + torch.tensor([[0], [5]]),))

    def read_with_gradients() -> list[torch.Tensor]:
        given = x.clone().requires_grad_()
        output = part(given, replace(shifted, forward_cache={}))
        found = torch.autograd.grad(
            (output * output.detach().cos()).sum(), [given, *part.parameters()], allow_unused=True
        )
        return [output, *(one for one in found if one is not None)]

    assert part._project_fast(x, replace(shifted, forward_cache={})) is not None
    quick = read_with_gradients()
    monkeypatch.setattr(part, "_project_fast", lambda *_: None)
    for one, other in zip(quick, read_with_gradients(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_what_is_kept_for_a_token_is_what_it_is_seen_by() -> None:
    """Self-attention keeps keys and values, relations keys and projected symbols: 2.5 numbers per unit of width."""
    part: Any = DualAttention(2, 2).build(16, 0, 1, ())
    _, state = part.prefill(torch.randn(1, 3, 16), context(1, 3, 0, capacity=10))
    assert sum(one.numel() for one in state.values()) == 10 * (16 * 2 + 8)
    by_distance: Any = DualAttention(2, 2, PositionRelativeSymbols()).build(16, 0, 1, ())
    _, state = by_distance.prefill(torch.randn(1, 3, 16), context(1, 3, 0, capacity=10))
    assert sum(one.numel() for one in state.values()) == 10 * (16 * 2)


@pytest.mark.parametrize(("self_heads", "relational_heads"), [(4, 4), (6, 2), (8, 0), (0, 8)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_parameters_are_as_many_as_published(self_heads: int, relational_heads: int, symmetric: bool) -> None:
    """3 d D + D^2 of self-attention; of the others d D (2 + 2 + 1, or one less if symmetric) + H h R + D^2."""
    part = DualAttention(self_heads, relational_heads, symmetric=symmetric).build(64, 0, 1, ())
    found = sum(one.numel() for name, one in part.named_parameters() if not name.startswith("symbols."))
    own, other = 8 * self_heads, 8 * relational_heads
    relational = 64 * other * (4 if symmetric else 5) + other * relational_heads + other**2
    assert found == 3 * 64 * own + own**2 + relational


def test_no_number_stands_for_every_pair_where_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("read pair by pair")

    part: Any = DualAttention(2, 2).build(16, 0, 1, ())
    monkeypatch.setattr(relational_fast, "reference_attention", refused)
    monkeypatch.setattr(relational_fast, "_chunked_relational_attention", refused)
    part(torch.randn(1, 9, 16), context(1, 9, 0))


def test_dropout_drops_in_training_only() -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part: Any = DualAttention(2, 2, dropout=0.5).build(16, 0, 1, ()).eval()
        x = torch.randn(1, 9, 16)
        calm = part(x, context(1, 9, 0))
        assert torch.equal(calm, part(x, context(1, 9, 0)))
        part.train()
        assert not torch.allclose(part(x, context(1, 9, 0))[..., 8:], calm[..., 8:])


def test_layers_share_their_symbols() -> None:
    layers: Any = DualAttention().build_layers(16, 3, ())
    assert layers[0].symbols is layers[1].symbols is layers[2].symbols
    names = {id(one) for layer in layers for one in layer.parameters()}
    alone = sum(1 for layer in layers for _ in layer.parameters())
    assert alone - len(names) == 2 * 4


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
