"""Contextual positions, against a loop over all pairs and against a public package."""

import math
from typing import Any

import pytest
import torch

from numerate.mixers.attention import Attention, SelfAttention
from numerate.mixers.mixer import Context, gather_positions
from numerate.positions.contextual import CoPE, CoPEBias
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary

HEADS, WIDTH = 2, 8


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def part(most: int = 3, width: int = 4) -> CoPEBias:
    made = CoPE(max_positions=most).build_attention(HEADS, width)
    assert isinstance(made, CoPEBias)
    made.double().position_embeddings.data = drawn(most, width, seed=9)
    return made


def attention(positions: tuple[Position, ...] = (CoPE(max_positions=3),), **settings: Any) -> SelfAttention:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        made = Attention(num_heads=HEADS, **settings).build(WIDTH, 0, 1, positions).double().eval()
    for inside in made.contextual_biases.values():
        inside.position_embeddings.data = drawn(*inside.position_embeddings.shape, seed=9)
    return made


def context(time: int, rows: int = 2, positions: int = 1, **more: Any) -> Context:
    return Context(torch.full((rows,), time), (torch.arange(time)[None],) * positions, **more)


@torch.no_grad()
def test_it_is_the_sum_of_gates_looked_up_pair_by_pair() -> None:
    queries, keys = drawn(2, HEADS, 6, 4, scale=1.5), drawn(2, HEADS, 6, 4, seed=1)
    visible = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    visible[1, 0, 4, 2] = False  # a key that is not seen opens no gate
    made = part(most=3)
    found, far = made.compute_bias(queries, keys, visible), 0
    for row in range(2):
        for head in range(HEADS):
            for i in range(6):
                place = 0.0
                for j in range(i, -1, -1):
                    if visible[row, 0, i, j]:
                        score = float(queries[row, head, i] @ keys[row, head, j]) / math.sqrt(4)
                        place += 1 / (1 + math.exp(-score))
                    at = min(place, 2.0)
                    far += place > 2.0
                    below = math.floor(at)
                    near, next_one = (
                        float(queries[row, head, i] @ made.position_embeddings[min(p, 2)]) for p in (below, below + 1)
                    )
                    expected = near * (below + 1 - at) + next_one * (at - below)
                    assert found[row, head, i, j].item() == pytest.approx(expected, abs=1e-10)
    assert far, "some places are clamped"


def test_it_is_that_of_a_public_package() -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers", reason="x-transformers is not installed")
    queries, keys = drawn(2, HEADS, 40, 4), drawn(2, HEADS, 40, 4, seed=1)
    made, other = part(most=7), theirs.CoPE(dim=4, heads=HEADS, max_pos=7).double()
    other.pos_emb.data = made.position_embeddings.data
    visible = torch.ones(40, 40, dtype=torch.bool).tril()[None, None]
    scores = (queries @ keys.transpose(-1, -2) / 2).masked_fill(~visible, -torch.finfo(torch.float64).max)
    found, expected = made.compute_bias(queries, keys, visible), other(queries, scores)
    torch.testing.assert_close(found * visible, expected * visible, atol=1e-10, rtol=1e-10)


def test_gates_that_are_all_open_count_tokens() -> None:
    made = part(most=4)
    queries = torch.full((1, HEADS, 3, 4), 40.0, dtype=torch.float64)
    visible = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]
    found = made.compute_bias(queries, queries, visible)[0, 0]
    of_place = queries[0, 0, 0] @ made.position_embeddings.T
    for i, j in ((0, 0), (1, 0), (2, 0), (2, 1), (2, 2)):
        assert found[i, j].item() == pytest.approx(of_place[i - j + 1].item())


def test_it_begins_without_positions() -> None:
    plain, made = attention(()), Attention(num_heads=HEADS).build(WIDTH, 0, 1, (CoPE(),)).double()
    x = drawn(2, 7, WIDTH)
    made.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(made.contextual_biases["0"].position_embeddings, torch.zeros(64, 4, dtype=torch.float64))
    torch.testing.assert_close(made(x, context(7)), plain(x, context(7)))


@pytest.mark.parametrize(
    ("positions", "settings"),
    [
        ((CoPE(max_positions=3),), {}),
        ((CoPE(max_positions=3),), {"logit_scale": 1.7}),
        ((CoPE(max_positions=3),), {"logit_scale": "log", "log_scale_start": 2}),
        ((Rotary(), CoPE(max_positions=9)), {}),
        ((CoPE(max_positions=3), CoPE(max_positions=2)), {"scale_by_inverse_layer_index": True}),
    ],
)
@pytest.mark.parametrize("hiding", [False, True])
def test_whole_rows_target_positions_and_one_token_at_a_time_agree(
    positions: tuple[Position, ...], settings: dict[str, Any], hiding: bool
) -> None:
    made, x, count = attention(positions, **settings), drawn(2, 9, WIDTH), len(positions)
    hidden = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) < 0.4 if hiding else None
    whole = made(x, context(9, positions=count, blocked_keys=hidden))
    indices = torch.tensor([[0, 3, 8], [2, 2, 7]])
    at = made.forward_at(x, context(9, positions=count, blocked_keys=hidden), indices)
    torch.testing.assert_close(at, gather_positions(whole, indices), atol=1e-10, rtol=1e-10)
    first = None if hidden is None else hidden[:, :4]
    output, state = made.prefill(x[:, :4], context(4, positions=count, blocked_keys=first, capacity=9))
    torch.testing.assert_close(output, whole[:, :4], atol=1e-10, rtol=1e-10)
    for place in range(4, 9):
        index = torch.full((2,), place)
        now = context(9, positions=count, blocked_keys=hidden, cache_position=index, cached_length=place + 1)
        output, state = made.step(x[:, place : place + 1], now, state)
        torch.testing.assert_close(output[:, 0], whole[:, place], atol=1e-10, rtol=1e-10)


def test_what_comes_later_changes_nothing() -> None:
    made, x = attention(), drawn(2, 9, WIDTH)
    later = x.clone()
    later[:, 5:] = drawn(2, 4, WIDTH, seed=4)
    before, after = made(x, context(9)), made(later, context(9))
    torch.testing.assert_close(after[:, :5], before[:, :5], atol=0, rtol=1e-12)
    assert not torch.allclose(after[:, 5:], before[:, 5:])


def test_the_gradient_of_queries_keys_and_vectors_is_the_slope() -> None:
    made = part(most=5)
    inputs = [
        drawn(1, HEADS, 5, 4, scale=0.3),
        drawn(1, HEADS, 5, 4, seed=1),
        made.position_embeddings.detach().clone(),
    ]
    visible = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]

    def bias(queries: torch.Tensor, keys: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        del made.position_embeddings
        made.position_embeddings = vectors  # type: ignore[assignment]
        return made.compute_bias(queries, keys, visible)

    assert torch.autograd.gradcheck(bias, [each.requires_grad_() for each in inputs])


def test_places_are_summed_exactly_where_a_model_runs_in_half_precision() -> None:
    made = CoPE(max_positions=400).build_attention(1, 4)
    made.position_embeddings.data[:, 0] = torch.arange(400) / 400
    queries = torch.full((1, 1, 400, 4), 20.0)
    visible = torch.ones(400, 400, dtype=torch.bool).tril()[None, None]
    exact = made.compute_bias(queries, queries, visible)
    rough = made.bfloat16().compute_bias(queries.bfloat16(), queries.bfloat16(), visible)
    torch.testing.assert_close(rough.float() * visible, exact * visible, atol=0.1, rtol=0.01)
