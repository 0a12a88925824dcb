"""Contextual positions, against a loop over all pairs and against a public package."""

import math
from typing import Any

import pytest
import torch

from layers import assert_same, context, drawn, made, read
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import gather_positions
from numerate.positions.contextual import CoPE, CoPEBias
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary

HEADS, WIDTH = 2, 8


def bias_of(most: int = 3, width: int = 4) -> CoPEBias:
    found = CoPE(max_positions=most).build_attention(HEADS, width)
    assert isinstance(found, CoPEBias)
    found.double().position_embeddings.data = drawn(most, width, seed=9)
    return found


def attention(positions: tuple[Position, ...] = (CoPE(max_positions=3),), **settings: Any) -> Any:
    part = made(Attention(num_heads=HEADS, **settings), WIDTH, positions=positions)
    for inside in part.contextual_biases.values():
        inside.position_embeddings.data = drawn(*inside.position_embeddings.shape, seed=9)
    return part


@torch.no_grad()
def test_it_is_the_sum_of_gates_looked_up_pair_by_pair() -> None:
    queries, keys = 1.5 * drawn(2, HEADS, 6, 4), drawn(2, HEADS, 6, 4, seed=1)
    visible = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    visible[1, 0, 4, 2] = False  # a key that is not seen opens no gate
    own = bias_of(most=3)
    found, far = own.compute_bias(queries, keys, visible), 0
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
                        float(queries[row, head, i] @ own.position_embeddings[min(p, 2)]) for p in (below, below + 1)
                    )
                    expected = near * (below + 1 - at) + next_one * (at - below)
                    assert found[row, head, i, j].item() == pytest.approx(expected, abs=1e-10)
    assert far, "some places are clamped"


def test_it_is_that_of_a_public_package() -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers", reason="x-transformers is not installed")
    queries, keys = drawn(2, HEADS, 40, 4), drawn(2, HEADS, 40, 4, seed=1)
    own, other = bias_of(most=7), theirs.CoPE(dim=4, heads=HEADS, max_pos=7).double()
    other.pos_emb.data = own.position_embeddings.data
    visible = torch.ones(40, 40, dtype=torch.bool).tril()[None, None]
    scores = (queries @ keys.transpose(-1, -2) / 2).masked_fill(~visible, -torch.finfo(torch.float64).max)
    found, expected = own.compute_bias(queries, keys, visible), other(queries, scores)
    torch.testing.assert_close(found * visible, expected * visible, atol=1e-10, rtol=1e-10)


def test_it_begins_without_positions() -> None:
    plain, contextual = attention(()), made(Attention(num_heads=HEADS), WIDTH, positions=(CoPE(),))
    contextual.load_state_dict(plain.state_dict(), strict=False)
    assert not contextual.contextual_biases["0"].position_embeddings.any()
    assert_same(read(contextual, drawn(2, 7, WIDTH), 1), read(plain, drawn(2, 7, WIDTH)))


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
    part, x, count = attention(positions, **settings), drawn(2, 9, WIDTH), len(positions)
    hidden = drawn(2, 9, seed=1) < -0.3 if hiding else None
    whole, indices = read(part, x, count, blocked_keys=hidden), torch.tensor([[0, 3, 8], [2, 2, 7]])
    at = part.forward_at(x, context([9, 9], count, blocked_keys=hidden), indices)
    assert_same(at, gather_positions(whole, indices))
    first = None if hidden is None else hidden[:, :4]
    output, state = part.prefill(x[:, :4], context([4, 4], count, blocked_keys=first, capacity=9))
    assert_same(output, whole[:, :4])  # also: what comes later changes nothing
    for place in range(4, 9):
        more = {"cache_position": torch.full((2,), place), "cached_length": place + 1}
        output, state = part.step(x[:, place : place + 1], context([9, 9], count, blocked_keys=hidden, **more), state)
        assert_same(output[:, 0], whole[:, place])


def test_the_gradient_of_queries_keys_and_vectors_is_the_slope() -> None:
    own = bias_of(most=5)
    inputs = [
        0.3 * drawn(1, HEADS, 5, 4),
        drawn(1, HEADS, 5, 4, seed=1),
        own.position_embeddings.detach().clone(),
    ]
    visible = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]

    def bias(queries: torch.Tensor, keys: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        del own.position_embeddings
        own.position_embeddings = vectors  # type: ignore[assignment]
        return own.compute_bias(queries, keys, visible)

    assert torch.autograd.gradcheck(bias, [each.requires_grad_() for each in inputs])


def test_places_are_summed_exactly_where_a_model_runs_in_half_precision() -> None:
    own = CoPE(max_positions=400).build_attention(1, 4)
    own.position_embeddings.data[:, 0] = torch.arange(400) / 400
    queries = torch.full((1, 1, 400, 4), 20.0)
    visible = torch.ones(400, 400, dtype=torch.bool).tril()[None, None]
    exact = own.compute_bias(queries, queries, visible)
    rough = own.bfloat16().compute_bias(queries.bfloat16(), queries.bfloat16(), visible)
    torch.testing.assert_close(rough.float() * visible, exact * visible, atol=0.1, rtol=0.01)
