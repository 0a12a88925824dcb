"""How Mamba and Mamba-2 begin, and the heads of Mamba-2."""

from typing import Any

import pytest
import torch
from torch.nn.functional import softplus

from layers import made
from numerate.architectures.mamba import Mamba
from numerate.architectures.mamba2 import Mamba2


@pytest.mark.parametrize(
    ("spec", "bias"), [(Mamba(), "dt_proj.bias"), (Mamba2(head_dim=1), "dt_bias")], ids=["Mamba", "Mamba2"]
)
def test_rates_begin_log_uniform_as_published(spec: Any, bias: str) -> None:
    part = made(spec, 128)
    rates = softplus(part.get_parameter(bias).detach())
    assert 0.00099 < float(rates.min()) < 0.0013
    assert 0.08 < float(rates.max()) < 0.101
    assert float(rates.log().mean()) == pytest.approx(-4.6, abs=0.2), "log-uniform: the middle is 0.01"
    assert torch.equal(part.D, torch.ones(256))


def test_decays_begin_as_published() -> None:
    part = made(Mamba(), 128)
    assert torch.allclose(part.A_log.exp(), torch.arange(1.0, 17)[:, None].expand(16, 256).double())
    assert part.dt_proj.weight.shape == (256, 8)
    assert 0.34 < float(part.dt_proj.weight.detach().abs().max()) <= 8**-0.5
    decays = made(Mamba2(head_dim=1), 128).A_log.detach().exp()
    assert 1 <= float(decays.min()) < 1.5
    assert 15.5 < float(decays.max()) <= 16
    assert float(decays.mean()) == pytest.approx(8.5, abs=1)


@pytest.mark.parametrize(
    ("width", "heads", "head_width"), [(1, 2, 1), (10, 4, 5), (16, 4, 8), (64, 4, 32), (256, 8, 64)]
)
def test_heads_divide_the_channels_of_any_width(width: int, heads: int, head_width: int) -> None:
    part = made(Mamba2(), width)
    assert (part.heads, part.head_width) == (heads, head_width)
