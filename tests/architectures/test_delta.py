"""DeltaNet, Gated DeltaNet and DeltaProduct as layers: written out by hand, and what they say of themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from layers import DELTA_NETS, assert_same, drawn, made, read
from numerate.architectures.delta import DeltaNet, DeltaProduct, GatedDeltaNet


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum() + 1e-6).sqrt()


@pytest.mark.parametrize("spec", DELTA_NETS)
def test_it_is_the_written_out_equations(spec: Any) -> None:
    part, x = made(spec), drawn(1, 7, 6)
    steps, gated = spec.transition_settings()
    width = spec.head_dim or 3
    mixing, *gates = (x[0] @ part.in_proj.weight.T).split([(1 + 2 * steps) * 2 * width] + [2 * width] * gated, dim=1)
    if spec.conv_kernel is not None:
        weight, before = part.conv1d.weight, torch.cat([torch.zeros(3, mixing.shape[1]), mixing])
        mixing = torch.stack([(weight * before[time : time + 4]).sum(dim=0) for time in range(7)])
    parts = silu(mixing).view(7, 1 + 2 * steps, 2, width)
    rates = (x[0] @ part.ba_proj.weight.T).view(7, steps + gated, 2)
    betas = (2 if spec.eigenvalue_range == "[-1,1]" else 1) * rates[:, :steps].sigmoid()
    memory, whole = torch.zeros(2, width, width).double(), read(part, x)
    for time in range(7):
        outputs = []
        for head in range(2):
            query = unit(parts[time, 0, head]) / width**0.5
            if gated:
                fade = softplus(rates[time, steps, head] + part.dt_bias[head])
                memory[head] = memory[head] * torch.exp(-torch.exp(part.A_log[head]) * fade)
            for write in range(steps):
                key, value = unit(parts[time, 1 + write, head]), parts[time, 1 + steps + write, head]
                beta = betas[time, write, head]
                memory[head] = (torch.eye(width) - beta * torch.outer(key, key)) @ memory[head]
                memory[head] = memory[head] + beta * torch.outer(key, value)
            found = query @ memory[head]
            outputs.append(found / (found.square().mean() + 1e-5).sqrt())
        output = torch.cat(outputs)
        if gated:
            output = output * silu(gates[0][time])
        assert_same(whole[0, time], part.out_proj.weight @ output)


def test_a_product_of_one_is_delta_net() -> None:
    x = drawn(2, 9, 6)
    for product, net in (
        (DeltaProduct(num_householder=1, num_heads=2), DeltaNet(num_heads=2, eigenvalue_range="[-1,1]")),
        (DeltaProduct(num_householder=1, num_heads=2, gated=True, eigenvalue_range="[0,1]"), GatedDeltaNet(2)),
    ):
        assert torch.equal(read(made(product), x), read(made(net), x))


def test_gates_begin_as_published() -> None:
    part = made(GatedDeltaNet(num_heads=4), width=16)
    times = softplus(part.dt_bias.detach())
    assert 0.001 <= float(times.min()) <= float(times.max()) <= 0.1
    assert float(part.A_log.detach().exp().max()) <= 16
    assert part.self_initialized_parameters() == {"A_log", "dt_bias", "conv1d.weight", "norm.weight"}


@pytest.mark.parametrize("spec", DELTA_NETS)
def test_its_packed_projections_are_of_one_size(spec: Any) -> None:
    part = made(spec)
    names = part.packed_projections()["in_proj"]
    assert part.in_proj.out_features == len(names) * spec.num_heads * part.head_width
    steps = part.num_householder
    assert [names.count(name) for name in ("queries", "keys", "values", "")] == [1, steps, steps, part.gated]
