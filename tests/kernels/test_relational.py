"""The forms of relational attention against its definition, and the definition by hand."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch._subclasses import FakeTensorMode

from layers import assert_same, drawn
from numerate.kernels import relational_fast
from numerate.kernels.relational import Activation, RelationalHeads, Variant, apply_activation, reference_attention
from numerate.kernels.relational_fast import (
    _row_tensors,
    _should_use_sdpa,
    relational_attention,
    select_backend,
    supports_values,
)

CLOSE = {"atol": 1e-10, "rtol": 1e-10}
ACTIVATIONS, KINDS = get_args(Activation), get_args(Variant)
FLOATING = (
    "queries",
    "keys",
    "symbols",
    "distance_symbols",
    "relation_queries",
    "relation_keys",
    "relation_proj",
    "bias",
)


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of eleven are then read in three pieces, the last one shorter."""
    monkeypatch.setattr(relational_fast, "QUERY_CHUNK_SIZE", {"cpu": 4})


def made(
    kind: Variant, *, by_distance: bool = False, time: int = 11, seed: int = 0, relations: int = 2
) -> RelationalHeads:
    count, shapes = 3 if kind == "disrca" else relations, [(2, 3, time, 4)] * 2
    queries, keys, *compared = (
        drawn(*shape, seed=10 * seed + number) for number, shape in enumerate([*shapes, *[(2, count, time, 5)] * 2])
    )
    symbols = drawn(1 if by_distance else 2, 3, time, 4, seed=10 * seed + 4)
    return RelationalHeads(
        queries=queries,
        keys=keys,
        symbols=None if by_distance else symbols,
        distance_symbols=symbols if by_distance else None,
        relation_proj=drawn(3, 4, count, seed=10 * seed + 5) if kind == "relational" else None,
        **({} if kind == "rca" else dict(zip(("relation_queries", "relation_keys"), compared, strict=True))),
    )


def masked(heads: RelationalHeads, bias: bool) -> RelationalHeads:
    """Some keys hidden, and with `bias` something added to the scores."""
    time = heads.keys.shape[2]
    visible = (drawn(2, 1, time, time, seed=9) < 0.5) | torch.eye(time, dtype=torch.bool)
    return replace(heads, visible=visible.tril(), bias=drawn(1, 3, time, time, seed=8) if bias else None)


def with_leaves(heads: RelationalHeads) -> tuple[RelationalHeads, list[torch.Tensor]]:
    tensors = {name: getattr(heads, name) for name in FLOATING}
    leaves = {name: one.clone().requires_grad_() for name, one in tensors.items() if one is not None}
    return replace(heads, **leaves), list(leaves.values())


def same(heads: RelationalHeads, kind: Variant, activation: Activation, form: Any) -> None:
    heads, leaves = with_leaves(heads)
    found = relational_attention(heads, kind, activation, form)
    assert_same(found, reference_attention(heads, kind, activation), leaves, **CLOSE)


FORMS = [
    (kind, activation, form)
    for kind in KINDS
    for activation in ACTIVATIONS
    for form in ("chunks", "values")
    if form == "chunks" or supports_values(kind, activation)
]


@pytest.mark.parametrize(("kind", "activation", "form"), FORMS)
@pytest.mark.parametrize("by_distance", [False, True])
def test_every_form_is_the_definition_and_so_are_its_gradients(
    kind: Variant, activation: Activation, form: str, by_distance: bool
) -> None:
    """Also with masked keys, a bias, and weights that are dropped."""
    heads = made(kind, by_distance=by_distance)
    same(heads, kind, activation, form)
    for bias in (False, True):
        same(masked(heads, bias), kind, activation, form)
    same(replace(heads, dropout_mask=drawn(2, 3, 11, 11, seed=3) < 0.2, dropout=0.4), kind, activation, form)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("by_distance", [False, True])
def test_weights_that_are_not_kept_are_computed_again(
    monkeypatch: pytest.MonkeyPatch, by_distance: bool, dropout: float
) -> None:
    heads, leaves = with_leaves(replace(made("relational", by_distance=by_distance), dropout=dropout))
    outputs = []
    with torch.random.fork_rng(devices=()):
        for saved in (relational_fast.MAX_SAVED_WEIGHTS, 0):
            monkeypatch.setattr(relational_fast, "MAX_SAVED_WEIGHTS", saved)
            torch.manual_seed(5)
            outputs.append(relational_attention(heads, "relational", "identity", "values"))
    assert_same(*outputs, leaves, **CLOSE)


@pytest.mark.parametrize("form", ["plain", "values", "chunks"])
def test_what_is_drawn_for_dropout_leaves_the_mean_as_it_is(form: Any) -> None:
    heads = made("relational")
    calm = relational_attention(heads, "relational", "identity", form)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        many = [relational_attention(replace(heads, dropout=0.3), "relational", "identity", form) for _ in range(100)]
    assert not torch.allclose(many[0], many[1])
    spread = torch.stack(many).std(0) / 10
    assert float(((torch.stack(many).mean(0) - calm).abs() <= 5 * spread + 1e-9).double().mean()) > 0.99


@pytest.mark.parametrize("form", ["values", "chunks"])
def test_gradients_with_what_is_drawn_for_dropout_are_right(form: Any) -> None:
    heads = made("relational", time=6)
    named = [name for name in FLOATING if getattr(heads, name) is not None]
    given = [getattr(heads, name).clone().requires_grad_() for name in named]

    def say(*given: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(4)
            now = replace(heads, dropout=0.4, **dict(zip(named, given, strict=True)))
            return relational_attention(now, "relational", "identity", form)

    torch.autograd.gradcheck(say, given, fast_mode=True)


@pytest.mark.parametrize(("kind", "activation"), [("relational", "tanh"), ("relational", "identity"), ("rca", "relu")])
@pytest.mark.parametrize("by_distance", [False, True])
def test_some_queries_are_those_of_the_whole(kind: Variant, activation: Activation, by_distance: bool) -> None:
    heads = masked(made(kind, by_distance=by_distance), bias=True)
    whole = reference_attention(heads, kind, activation)
    places = torch.tensor([[0, 7, 10], [3, 3, 9]])
    row = torch.arange(2)[:, None]
    at = {
        name: getattr(heads, name)
        .expand(2, *getattr(heads, name).shape[1:])
        .transpose(1, 2)[row, places]
        .transpose(1, 2)
        for name in ("queries", "relation_queries", "visible", "bias")
        if getattr(heads, name) is not None
    }
    some = replace(heads, query_positions=places, **at)
    expected = whole.transpose(1, 2)[row, places].transpose(1, 2)
    for form in ("plain", "auto"):
        torch.testing.assert_close(relational_attention(some, kind, activation, form), expected, **CLOSE)


def test_the_definition_by_hand() -> None:
    """One query at a time: the first sees itself alone, the second gives both keys the same weight."""
    one = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    queries = torch.tensor([3.0, 4.0], dtype=torch.float64).view(1, 1, 2, 1)
    heads = RelationalHeads(
        queries=one * 0,
        keys=one,
        symbols=torch.tensor([5.0, 7.0], dtype=torch.float64).view(1, 1, 2, 1),
        relation_queries=queries,
        relation_keys=torch.tensor([1.0, -2.0], dtype=torch.float64).view(1, 1, 2, 1),
        relation_proj=torch.full((1, 1, 1), 2.0, dtype=torch.float64),
    )

    def values(kind: Variant, activation: Activation) -> list[float]:
        return [round(number, 6) for number in reference_attention(heads, kind, activation).flatten().tolist()]

    assert values("relational", "identity") == [2 * 3 + 5, (2 * 4 + 5 + 2 * -8 + 7) / 2]
    assert values("relational", "relu") == [2 * 3 + 5, (2 * 4 + 5 + 7) / 2]
    assert values("disrca", "identity") == [3 * 5, (4 * 5 - 8 * 7) / 2]
    assert values("disrca", "softmax") == [5.0, 2.5 + 6e-6]
    assert values("rca", "softmax") == [5.0, 6.0]
    assert values("rca", "sigmoid") == [0.5 * 5, 0.5 * 12]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_never_looks_ahead(activation: Activation) -> None:
    scores = torch.randn(1, 1, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    visible = torch.ones(3, 5, dtype=torch.bool).tril(1)[None, None]
    changed = torch.where(visible, scores, scores + 3.0)
    before, after = (apply_activation(one, visible, activation) for one in (scores, changed))
    torch.testing.assert_close(before[visible], after[visible], **CLOSE)
    queries, keys, symbols = torch.randn(3, 1, 1, 4, 2, generator=torch.Generator().manual_seed(0))
    keys[..., 3, :] = torch.inf  # of a score that is not finite
    heads = RelationalHeads(queries=queries, keys=keys, symbols=symbols)
    for form in (reference_attention, relational_attention):
        assert form(heads, "rca", activation)[..., :3, :].isfinite().all()


def test_gelu_is_its_tanh_form() -> None:
    scores = torch.tensor([[[[1.0]]]], dtype=torch.float64)
    output = apply_activation(scores, torch.ones(1, 1, 1, 1, dtype=torch.bool), "gelu")
    assert float(output) == pytest.approx(0.8411919906, abs=1e-9)


def test_the_form_is_chosen_by_activation_and_sizes() -> None:
    assert select_backend(made("relational"), "relational", "identity") == "values"
    assert select_backend(made("relational"), "relational", "tanh") == "chunks"
    for heads, relations, width, form in ((4, 4, 16, "values"), (8, 32, 8, "values"), (8, 8, 64, "chunks")):
        both, compared = torch.zeros(1, heads, 1, 64), torch.zeros(1, relations, 1, width)
        target_positions = RelationalHeads(both, both, both, relation_queries=compared, relation_keys=compared)
        assert select_backend(target_positions, "relational", "identity") == form
    assert select_backend(made("disrca"), "disrca", "identity") == "chunks"
    assert select_backend(made("rca"), "rca", "softmax") == "values"
    assert select_backend(made("rca"), "rca", "relu") == "chunks"


def test_relations_without_activation_are_values_for_pytorchs_attention_on_a_gpu() -> None:
    with FakeTensorMode():
        queries, compared = torch.empty(1, 8, 64, 64, device="cuda"), torch.empty(1, 8, 64, 64, device="cuda")
        heads = RelationalHeads(queries, queries, queries, relation_queries=compared, relation_keys=compared)
        assert select_backend(heads, "relational", "identity") == "values"
        assert _should_use_sdpa(_row_tensors(heads), dropout=0.1)
        assert select_backend(heads, "relational", "tanh") == "chunks"
