"""Attention against a written-out softmax."""

import math
from typing import Any

import pytest
import torch

from layers import assert_same, context, drawn, made, read
from numerate.architectures.dual_attention import DualAttention
from numerate.errors import UserError
from numerate.mixers.attention import Attention, SelfAttention
from numerate.positions.bias import ALiBi, T5Bias
from numerate.positions.position import AttentionBias, Position
from numerate.positions.position_ids import DigitIndex
from numerate.positions.rotary import Rotary
from variants import name_of


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


class Nearness(Position):
    position_ids = DigitIndex()

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return NearnessBias()


class NearnessBias(AttentionBias):
    def compute_bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        far = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).double()
        return far * torch.tensor([-0.5, 0.25]).double()[None, :, None, None]


def near(head: int, i: int, j: int) -> float:
    return [-0.5, 0.25][head] * (i - j)


def turned(x: torch.Tensor, places: range) -> torch.Tensor:
    """Rotary, with base 100."""
    left, right = x[:, :2], x[:, 2:]
    angles = torch.tensor([[place / 100.0 ** (i / 2) for i in range(2)] for place in places], dtype=torch.float64)
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], dim=1)


HIDDEN = torch.tensor([[True, False, True, False, False, True], [False, True, True, True, True, False]])
CASES: dict[str, tuple[Attention, tuple[Position, ...], int, dict[str, Any]]] = {
    **{f"{heads} heads": (Attention(num_heads=heads), (), 0, {}) for heads in (1, 2, 4)},
    "biases of projections": (Attention(num_heads=2, bias=True), (), 0, {}),
    "hidden keys": (Attention(num_heads=2), (), 0, {"hidden": HIDDEN}),
    "biases": (Attention(num_heads=2), (Nearness(),), 0, {"bias": near}),
    "rotary": (Attention(num_heads=2), (Rotary(base=100.0),), 0, {"turned": turned}),
    "several": (
        Attention(num_heads=2),
        (Nearness(), Rotary(base=100.0), Nearness()),
        0,
        {"turned": turned, "bias": lambda head, i, j: 2 * near(head, i, j)},
    ),
    "logit scale": (
        Attention(num_heads=2, logit_scale=1.7),
        (ALiBi(slope_scale=3.0),),
        0,
        {"bias": lambda head, i, j: -3 * 2.0 ** -[4, 8][head] * (i - j), "scale": lambda visible: 1.7},
    ),
    "logit scale of log": (
        Attention(num_heads=2, logit_scale="log", log_scale_start=4),
        (ALiBi(),),
        0,
        {
            "bias": lambda head, i, j: -(2.0 ** -[4, 8][head]) * (i - j),
            "scale": lambda visible: max(1.0, math.log(visible) / math.log(4)),
        },
    ),
    **{
        f"layer {layer}": (
            Attention(num_heads=2, scale_by_inverse_layer_index=True, logit_scale=1.7),
            (Nearness(),),
            layer,
            {"bias": near, "scale": lambda visible, layer=layer: 1.7 / (layer + 1)},
        )
        for layer in (0, 1, 3)
    },
    "layer 3 with log": (
        Attention(num_heads=2, scale_by_inverse_layer_index=True, logit_scale="log", log_scale_start=2),
        (),
        3,
        {"scale": lambda visible: max(1.0, math.log2(visible)) / 4},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_written_out_softmax(name: str) -> None:
    spec, positions, layer, settings = CASES[name]
    part, x = made(spec, 8, layer, layer + 1, positions, noise=0.1), drawn(2, 6, 8)
    found = read(part, x, len(positions), blocked_keys=settings.get("hidden"))
    # Angles and logarithms are made in float32.
    assert_same(found, written_out(part, x, **settings), atol=1e-6, rtol=1e-6)


def test_layers_that_share_a_bias_divide_it_by_their_own_numbers() -> None:
    spec, position = Attention(num_heads=2, scale_by_inverse_layer_index=True), T5Bias(share_across_layers=True)
    layers, both, x = spec.build_layers(8, 2, (position,)), context([6, 6], 1), drawn(2, 6, 8).float()
    for layer in layers:
        assert_same(layer(x, both), layer(x, context([6, 6], 1)))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("themselves", [False, True])
def test_hidden_tokens_see_themselves_or_not_however_they_are_read(themselves: bool, biased: bool) -> None:
    spec, positions = Attention(num_heads=2, blocked_attend_to_themselves=themselves), (Nearness(),) if biased else ()
    part, x, count = made(spec, 8, positions=positions), drawn(2, 6, 8), len(positions)
    # The first row begins with nothing that may be seen but each token itself.
    hidden = torch.tensor([[True, True, False, True, False, True], [False, True, True, False, True, True]])
    settings = {"bias": near} if biased else {}
    expected = written_out(part, x, hidden, themselves=themselves, **settings)
    assert_same(read(part, x, count, blocked_keys=hidden), expected)
    indices = torch.tensor([[0, 3, 5], [1, 2, 4]])
    found = part.forward_at(x, context([6, 6], count, blocked_keys=hidden), indices)
    assert_same(found, expected.gather(1, indices[..., None].expand(-1, -1, 8)))
    first, state = part.prefill(x[:, :1], context([1, 1], count, blocked_keys=hidden[:, :1], capacity=6))
    assert_same(first, expected[:, :1])
    for place in range(1, 6):
        more = {"cache_position": torch.full((2,), place), "cached_length": place + 1}
        output, state = part.step(x[:, place : place + 1], context([6, 6], count, blocked_keys=hidden, **more), state)
        assert_same(output[:, 0], expected[:, place])


@pytest.mark.parametrize("spec", [Attention(num_heads=2, dropout=0.5), DualAttention(0, 2, dropout=0.5)], ids=name_of)
def test_dropout_drops_in_training_only(spec: Any) -> None:
    part, x = made(spec, 8), drawn(2, 5, 8)
    calm = read(part, x)
    assert torch.equal(calm, read(part, x))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        assert not torch.allclose(read(part.train(), x), calm)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="must divide hidden_size=8, not 3; possible values: 1, 2, 4, 8"):
        made(Attention(num_heads=3), 8)
