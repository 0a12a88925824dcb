"""Attention against a written-out softmax."""

import math
from typing import Any

import pytest
import torch

from numerate.errors import UserError
from numerate.mixers.attention import Attention, SelfAttention
from numerate.mixers.mixer import Context
from numerate.positions.bias import ALiBi
from numerate.positions.position import AttentionBias, Position
from numerate.positions.position_ids import DigitIndex
from numerate.positions.rotary import Rotary


@torch.no_grad()
def written_out(
    part: SelfAttention,
    x: torch.Tensor,
    hidden: torch.Tensor | None = None,
    turned: Any = lambda x, places: x,
    bias: Any = lambda head, query, key: 0.0,
    scale: Any = lambda visible: 1.0,
    themselves: bool = True,
) -> torch.Tensor:
    """One score, one exponential, one sum at a time."""
    rows, time, width = x.shape
    heads, size = part.heads, width // part.heads
    projected = x @ part.qkv_proj.weight.T + (0.0 if part.qkv_proj.bias is None else part.qkv_proj.bias)
    q, k, v = projected[..., :width], projected[..., width : 2 * width], projected[..., 2 * width :]
    mixed = torch.zeros_like(x)
    for row in range(rows):
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            queries, keys = turned(q[row, :, own], range(time)), turned(k[row, :, own], range(time))
            for i in range(time):
                seen = [j for j in range(i + 1) if (j == i and themselves) or hidden is None or not hidden[row, j]]
                seen = seen or [i]
                scores = [float(queries[i] @ keys[j]) / math.sqrt(size) + bias(head, i, j) for j in seen]
                weights = [math.exp(score * scale(i + 1)) for score in scores]
                for j, weight in zip(seen, weights, strict=True):
                    mixed[row, i, own] += weight / sum(weights) * v[row, j, own]
    return mixed @ part.out_proj.weight.T + (0.0 if part.out_proj.bias is None else part.out_proj.bias)


def inputs(rows: int, time: int, width: int) -> torch.Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def made(spec: Attention, width: int, positions: tuple[Position, ...] = (), layer: int = 0) -> SelfAttention:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return spec.build(width, layer, layer + 1, positions).double().eval()


def places(time: int, count: int) -> Context:
    return Context(torch.full((2,), time), tuple(torch.arange(time)[None] for _ in range(count)))


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_it_is_the_written_out_softmax(heads: int, biases: bool) -> None:
    part, x = made(Attention(num_heads=heads, bias=biases), 8), inputs(2, 5, 8)
    torch.testing.assert_close(part(x, places(5, 0)), written_out(part, x), atol=1e-10, rtol=1e-10)


def test_hidden_keys_are_left_out_of_the_written_out_softmax() -> None:
    part, x = made(Attention(num_heads=2), 8), inputs(2, 5, 8)
    hidden = torch.tensor([[True, False, True, False, False], [False, True, True, True, True]])
    context = places(5, 0)
    context.blocked_keys = hidden
    torch.testing.assert_close(part(x, context), written_out(part, x, hidden), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("themselves", [False, True])
def test_hidden_tokens_see_themselves_or_not_however_they_are_read(themselves: bool, biased: bool) -> None:
    spec, positions = Attention(num_heads=2, blocked_attend_to_themselves=themselves), (Nearness(),) if biased else ()
    part, x = made(spec, 8, positions), inputs(2, 6, 8)
    # The first row begins with nothing that may be seen but each token itself.
    hidden = torch.tensor([[True, True, False, True, False, True], [False, True, True, False, True, True]])

    def read(time: int, **more: Any) -> Context:
        return Context(torch.full((2,), time), tuple(torch.arange(time)[None] for _ in positions), **more)

    def bias(head: int, i: int, j: int) -> float:
        return [-0.5, 0.25][head] * (i - j) if biased else 0.0

    expected = written_out(part, x, hidden, bias=bias, themselves=themselves)
    torch.testing.assert_close(part(x, read(6, blocked_keys=hidden)), expected, atol=1e-10, rtol=1e-10)
    indices = torch.tensor([[0, 3, 5], [1, 2, 4]])
    found = part.forward_at(x, read(6, blocked_keys=hidden), indices)
    torch.testing.assert_close(found, expected.gather(1, indices[..., None].expand(-1, -1, 8)), atol=1e-10, rtol=1e-10)
    first, state = part.prefill(x[:, :1], read(1, blocked_keys=hidden[:, :1], capacity=6))
    torch.testing.assert_close(first, expected[:, :1], atol=1e-10, rtol=1e-10)
    for place in range(1, 6):
        now = read(6, blocked_keys=hidden, cache_position=torch.full((2,), place), cached_length=place + 1)
        output, state = part.step(x[:, place : place + 1], now, state)
        torch.testing.assert_close(output[:, 0], expected[:, place], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_the_logits_of_a_layer_are_divided_by_its_number(layer: int) -> None:
    part, x = (
        made(Attention(num_heads=2, scale_by_inverse_layer_index=True, logit_scale=1.7), 8, (Nearness(),), layer),
        inputs(2, 5, 8),
    )

    def bias(head: int, i: int, j: int) -> float:
        return [-0.5, 0.25][head] * (i - j)

    expected = written_out(part, x, bias=bias, scale=lambda visible: 1.7 / (layer + 1))
    torch.testing.assert_close(part(x, places(5, 1)), expected, atol=1e-10, rtol=1e-10)
    growing = made(
        Attention(num_heads=2, scale_by_inverse_layer_index=True, logit_scale="log", log_scale_start=2), 8, (), layer
    )
    scale = [max(1.0, math.log2(visible)) / (layer + 1) for visible in range(1, 6)]
    expected = written_out(growing, x, scale=lambda visible: scale[visible - 1])
    torch.testing.assert_close(growing(x, places(5, 0)), expected, atol=1e-6, rtol=1e-6)


def test_rotary_turns_queries_and_keys_of_the_written_out_softmax() -> None:
    def turned(x: torch.Tensor, places: range) -> torch.Tensor:
        left, right = x[:, :2], x[:, 2:]
        angles = torch.tensor([[place / 100.0 ** (i / 2) for i in range(2)] for place in places], dtype=torch.float64)
        sines, cosines = angles.sin(), angles.cos()
        return torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=1)

    part, x = made(Attention(num_heads=2), 8, (Rotary(base=100.0),)), inputs(2, 5, 8)
    torch.testing.assert_close(part(x, places(5, 1)), written_out(part, x, turned=turned), atol=1e-6, rtol=1e-6)


class Nearness(Position):
    position_ids = DigitIndex()

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return NearnessBias()


class NearnessBias(AttentionBias):
    def compute_bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        far = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).double()
        return far * torch.tensor([-0.5, 0.25]).double()[None, :, None, None]


def test_biases_are_added_to_the_written_out_scores() -> None:
    part, x = made(Attention(num_heads=2), 8, (Nearness(),)), inputs(2, 5, 8)
    expected = written_out(part, x, bias=lambda head, i, j: [-0.5, 0.25][head] * (i - j))
    torch.testing.assert_close(part(x, places(5, 1)), expected, atol=1e-10, rtol=1e-10)


def test_several_biases_add_up() -> None:
    part, x = (
        made(Attention(num_heads=2), 8, (Nearness(), Rotary(partial_rotary_factor=0.5), Nearness())),
        inputs(2, 5, 8),
    )
    single = made(Attention(num_heads=2), 8, (Nearness(), Rotary(partial_rotary_factor=0.5)))
    single.load_state_dict(part.state_dict())
    assert not torch.allclose(part(x, places(5, 3)), single(x, places(5, 2)))


def test_the_logit_scale_multiplies_scores_and_biases_alike() -> None:
    x = inputs(2, 6, 8)
    part = made(Attention(num_heads=2, logit_scale=1.7), 8, (ALiBi(slope_scale=3.0),))
    slopes = [3 * 2**-4, 3 * 2**-8]
    expected = written_out(part, x, bias=lambda head, i, j: -slopes[head] * (i - j), scale=lambda visible: 1.7)
    torch.testing.assert_close(part(x, places(6, 1)), expected)


def test_a_logit_scale_of_log_grows_with_the_keys_that_a_query_sees() -> None:
    x = inputs(2, 9, 8)
    part = made(Attention(num_heads=2, logit_scale="log", log_scale_start=4), 8, (ALiBi(),))

    def scale(visible: int) -> float:
        return max(1.0, math.log(visible) / math.log(4))

    slopes = [2**-4, 2**-8]
    expected = written_out(part, x, bias=lambda head, i, j: -slopes[head] * (i - j), scale=scale)
    torch.testing.assert_close(part(x, places(9, 1)), expected)
    plain = made(Attention(num_heads=2), 8, (ALiBi(),))
    torch.testing.assert_close(part(x, places(9, 1))[:, :4], plain(x, places(9, 1))[:, :4])
    assert not torch.allclose(part(x, places(9, 1))[:, 4:], plain(x, places(9, 1))[:, 4:])


def test_dropout_drops_in_training_only() -> None:
    part, x = made(Attention(num_heads=2, dropout=0.5), 8), inputs(2, 5, 8)
    calm = part(x, places(5, 0))
    assert torch.equal(calm, part(x, places(5, 0)))
    part.train()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        assert not torch.allclose(part(x, places(5, 0)), calm)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Attention(num_heads=3).build(8, 0, 1, ()),
            "must divide hidden_size=8, not 3; possible values: 1, 2, 4, 8",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()
