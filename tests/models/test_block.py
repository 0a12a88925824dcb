"""Blocks, feed-forwards and norms, each against its formula."""

import math
from typing import Any

import pytest
import torch

from numerate.mixers.mixer import Context, TokenMixer
from numerate.models.backbone import Stack
from numerate.models.block import Block, FeedForward, build_norm


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


PLAIN: dict[str, Any] = {"gelu": gelu, "relu": lambda x: max(x, 0.0)}
GATED: dict[str, Any] = {"swiglu": silu, "geglu": gelu}


def mapped(function: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([function(value) for value in x.flatten().tolist()], dtype=torch.float64).view(x.shape)


@pytest.mark.parametrize("activation", [*PLAIN, *GATED])
@pytest.mark.parametrize("biases", [True, False])
@torch.no_grad()
def test_each_feed_forward_is_its_formula(activation: Any, biases: bool) -> None:
    part, x = FeedForward(activation, expansion=1.5, bias=biases).build(4).double(), inputs(2, 3, 4)
    hidden = x @ part.in_proj.weight.T + (part.in_proj.bias if biases else 0.0)
    if activation in GATED:
        between = mapped(GATED[activation], hidden[..., :6]) * hidden[..., 6:]
    else:
        between = mapped(PLAIN[activation], hidden)
    assert between.shape[-1] == 6
    expected = between @ part.out_proj.weight.T + (part.out_proj.bias if biases else 0.0)
    torch.testing.assert_close(part(x), expected, atol=1e-10, rtol=1e-10)
    assert (part.in_proj.bias is not None) == biases


@torch.no_grad()
def test_each_norm_is_its_formula() -> None:
    x = inputs(3, 5, 6)
    mean, spread = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    root = (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    norms = {kind: build_norm(kind, 6).double() for kind in ("layer", "rms", "none")}
    for part in norms.values():
        for parameter in part.parameters():
            parameter.copy_(torch.arange(1.0, 7.0))
    scale = torch.arange(1.0, 7.0).double()
    torch.testing.assert_close(norms["layer"](x), (x - mean) / (spread + 1e-5).sqrt() * scale + scale)
    torch.testing.assert_close(norms["rms"](x), x / root * scale)
    assert torch.equal(norms["none"](x), x)


class Doubling(TokenMixer):
    """What it mixes is twice what it is given."""

    def forward(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        return 2 * x

    def prefill(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, None]:
        return 2 * x, None

    def step(self, x: torch.Tensor, context: Context, state: None) -> tuple[torch.Tensor, None]:
        return 2 * x, None

    def flops(self, time: int) -> int:
        return 0


CONTEXT = Context(torch.tensor([3, 3]), ())


def block(norm_first: bool, fed: bool = False, norm: Any = "rms") -> Block:
    feed_forward = FeedForward("relu").build(4) if fed else None
    return Block(4, Doubling(), feed_forward, norm=norm, norm_first=norm_first).double()


@torch.no_grad()
def test_pre_norm_norms_what_goes_in_and_post_norm_what_comes_out() -> None:
    x = inputs(2, 3, 4)
    norm = build_norm("rms", 4).double()
    torch.testing.assert_close(block(True)(x, CONTEXT), x + 2 * norm(x))
    torch.testing.assert_close(block(False)(x, CONTEXT), norm(x + 2 * x))
    fed = block(True, fed=True)
    y = x + 2 * norm(x)
    torch.testing.assert_close(fed(x, CONTEXT), y + fed.feed_forward(norm(y)))  # type: ignore[misc]
    fed = block(False, fed=True)
    y = norm(3 * x)
    torch.testing.assert_close(fed(x, CONTEXT), norm(y + fed.feed_forward(y)))  # type: ignore[misc]


@torch.no_grad()
def test_a_block_may_lack_either_half() -> None:
    x, empty = inputs(2, 3, 4), Block(4, None, None)
    assert torch.equal(empty(x, CONTEXT), x)
    assert torch.equal(empty.prefill(x, CONTEXT)[0], x)
    indices = torch.tensor([[0, 2], [1, 1]])
    assert torch.equal(empty(x, CONTEXT, indices), x[torch.arange(2)[:, None], indices])


@torch.no_grad()
def test_injection_adds_the_input_again_before_every_further_block() -> None:
    x = inputs(2, 3, 4)
    for inject, expected in (("none", 27 * x), ("add", ((3 * x + x) * 3 + x) * 3)):
        trunk = Stack(num_layers=3, input_injection=inject).build([block(True, norm="none") for _ in range(3)], 4)
        torch.testing.assert_close(trunk(x, CONTEXT), expected)
        torch.testing.assert_close(trunk.prefill(x, CONTEXT)[0], expected)
        indices = torch.tensor([[0, 2], [1, 1]])
        torch.testing.assert_close(trunk(x, CONTEXT, indices), expected[torch.arange(2)[:, None], indices])
