"""The sLSTM against the paper's equations without a stabilizer, and its beginnings."""

from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, layer_norm, pad, silu

from layers import assert_same, drawn, made, read
from numerate.architectures.slstm import SLSTM


@pytest.mark.parametrize("convolution", [None, 3])
@pytest.mark.parametrize("forget", ["sigmoid", "exponential"])
def test_it_is_the_equations_of_the_paper(forget: Any, convolution: int | None) -> None:
    spec = SLSTM(num_heads=2, hidden_size=4, forget_gate=forget, conv_kernel=convolution)
    part, x = made(spec, noise=0.5), drawn(2, 11, 6)
    whole, seen = read(part, x), x
    if part.conv1d is not None:
        channels = part.conv1d.weight.T[:, None]
        convolved = conv1d(pad(x, (0, 0, 2, 0)).transpose(1, 2), channels, part.conv1d.bias, groups=6)
        seen = silu(convolved.transpose(1, 2))
    h, c, n = (torch.zeros(2, 4).double() for _ in range(3))
    for time in range(11):
        token = torch.cat([seen[:, time] @ part.if_proj.weight.T, x[:, time] @ part.zo_proj.weight.T], dim=1)
        i, f, z, o = (token + part.bias).chunk(4, dim=1)
        # Each head's weights are one block of a whole matrix per gate.
        blocks = part.recurrent_weight.view(2, 4, 2, 2)
        r = [torch.block_diag(*blocks[:, gate]) for gate in range(4)]
        i, f, z, o = (gate + h @ weight.T for gate, weight in zip((i, f, z, o), r, strict=True))
        f = f.sigmoid() if forget == "sigmoid" else f.exp()
        c, n = f * c + i.exp() * z.tanh(), f * n + i.exp()
        h = o.sigmoid() * c / n
        normed = layer_norm(h.view(2, 2, 2), (2,)).view(2, 4) * part.norm_weight
        assert_same(whole[:, time], normed @ part.out_proj.weight.T)


def test_forget_biases_begin_as_published_and_recurrent_weights_as_set() -> None:
    spec = SLSTM(num_heads=2)
    for layer, power in ((0, 0.3), (2, 1.6)):
        bias = made(spec, 16, layer, depth=3).bias.view(4, 2, 8).detach()
        assert bias[1, 0].tolist() == pytest.approx([5 - 12 * (k / 7) ** power for k in range(8)], abs=1e-5)
        assert torch.equal(bias[1, 0], bias[1, 1])
        assert not bias[[0, 2, 3]].any()
    assert 0.2 < float(made(spec, 16).recurrent_weight.detach().abs().max()) <= 0.25
    assert not made(SLSTM(num_heads=2, initialization="zeros"), 16).recurrent_weight.any()
