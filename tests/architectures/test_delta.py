"""DeltaNet, Gated DeltaNet and DeltaProduct as layers: written out by hand, what they say of themselves, kernels."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from numerate.architectures.delta import DeltaMixer, DeltaNet, DeltaProduct, GatedDeltaNet
from numerate.errors import UserError
from numerate.mixers.mixer import Context

SPECS = [
    DeltaNet(num_heads=2),
    DeltaNet(num_heads=2, eigenvalue_range="[-1,1]", conv_kernel=None, head_dim=5),
    GatedDeltaNet(num_heads=2),
    DeltaProduct(num_heads=2, num_householder=3),
    DeltaProduct(num_heads=2, eigenvalue_range="[0,1]", gated=True),
]


def made(spec: Any, width: int = 6) -> DeltaMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part: DeltaMixer = spec.build(width, 0, 1, ()).double()
    return part


def inputs(rows: int, time: int, width: int = 6) -> Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def context(lengths: list[int]) -> Context:
    return Context(torch.tensor(lengths), ())


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum() + 1e-6).sqrt()


@pytest.mark.parametrize("spec", SPECS)
def test_it_is_the_written_out_equations(spec: Any) -> None:
    part, x = made(spec), inputs(1, 7)
    steps, gated = spec.transition_settings()
    width = spec.head_dim or 3
    mixing, *gates = (x[0] @ part.in_proj.weight.T).split([(1 + 2 * steps) * 2 * width] + [2 * width] * gated, dim=1)
    if spec.conv_kernel is not None:
        weight, before = part.conv1d.weight, torch.cat([torch.zeros(3, mixing.shape[1]), mixing])
        mixing = torch.stack([(weight * before[time : time + 4]).sum(dim=0) for time in range(7)])
    parts = silu(mixing).view(7, 1 + 2 * steps, 2, width)
    rates = (x[0] @ part.ba_proj.weight.T).view(7, steps + gated, 2)
    betas = (2 if spec.eigenvalue_range == "[-1,1]" else 1) * rates[:, :steps].sigmoid()
    memory = torch.zeros(2, width, width).double()
    for time in range(7):
        read = []
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
            read.append(found / (found.square().mean() + 1e-5).sqrt())
        output = torch.cat(read)
        if gated:
            output = output * silu(gates[0][time])
        expected = part.out_proj.weight @ output
        torch.testing.assert_close(part(x, context([7]))[0, time], expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
def test_long_rows_are_read_as_token_by_token(spec: Any) -> None:
    part, x = made(spec), inputs(2, 90)
    whole = part(x, context([90, 90]))
    first, state = part.prefill(x[:, :75], context([40, 75]))
    torch.testing.assert_close(first[0, :40], whole[0, :40], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(first[1], whole[1, :75], atol=1e-9, rtol=1e-9)
    for step in range(15):
        token = torch.stack([x[0, 40 + step], x[1, 75 + step]])[:, None]
        out, state = part.step(token, context([41 + step, 76 + step]), state)
        expected = torch.stack([whole[0, 40 + step], whole[1, 75 + step]])
        torch.testing.assert_close(out[:, 0], expected, atol=1e-9, rtol=1e-9)


def test_a_product_of_one_is_delta_net() -> None:
    one, net = (
        made(DeltaProduct(num_householder=1, num_heads=2)),
        made(DeltaNet(num_heads=2, eigenvalue_range="[-1,1]")),
    )
    gated, gated_net = (
        made(DeltaProduct(num_householder=1, num_heads=2, gated=True, eigenvalue_range="[0,1]")),
        made(GatedDeltaNet(2)),
    )
    x = inputs(2, 9)
    assert torch.equal(one(x, context([9, 9])), net(x, context([9, 9])))
    assert torch.equal(gated(x, context([9, 9])), gated_net(x, context([9, 9])))


def test_half_precision_is_computed_in_full_where_it_matters() -> None:
    part = made(DeltaProduct(num_heads=2, gated=True)).float()
    x = inputs(2, 40).float()
    expected = part(x, context([40, 40]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = part(x, context([40, 40]))
        first, state = part.prefill(x[:, :39], context([39, 39]))
        last, _ = part.step(x[:, 39:], context([40, 40]), state)
    assert state[1].dtype == torch.float32
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)
    torch.testing.assert_close(torch.cat([first, last], dim=1), found, atol=0.05, rtol=0.05)


def test_gates_begin_as_published_and_do_not_decay() -> None:
    part = made(GatedDeltaNet(num_heads=4), width=16)
    times = softplus(part.dt_bias.detach())
    assert 0.001 <= float(times.min()) <= float(times.max()) <= 0.1
    assert float(part.A_log.detach().exp().max()) <= 16
    assert part.self_initialized_parameters() == {"A_log", "dt_bias", "conv1d.weight", "norm.weight"}
    assert part.optimizer_options_by_parameter() == {"A_log": (1.0, False), "dt_bias": (1.0, False)}
    assert made(DeltaNet(num_heads=2)).optimizer_options_by_parameter() == {}


@pytest.mark.parametrize("spec", SPECS)
def test_its_fused_map_has_parts_of_one_size(spec: Any) -> None:
    part = made(spec)
    names = part.packed_projections()["in_proj"]
    assert part.in_proj.out_features == len(names) * spec.num_heads * part.head_width
    assert [names.count(name) for name in ("queries", "keys", "values", "")] == [
        1,
        part.num_householder,
        part.num_householder,
        part.gated,
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            lambda: made(DeltaNet(num_heads=4)),
            "model.mixer.num_heads: must divide hidden_size=6, not 4; possible values: 1, 2, 3, 6",
        ),
    ],
)
def test_impossible_settings_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        spec()


def test_only_a_kernel_that_must_run_keeps_models_from_being_stacked() -> None:
    assert DeltaNet().why_not_stacked() is None
    assert "vmap" in (DeltaNet(backend="fla").why_not_stacked() or "")


@pytest.mark.parametrize("spec", [*SPECS, DeltaNet(num_heads=2, eigenvalue_range="[-1,1]"), DeltaProduct(num_heads=2)])
def test_the_kernels_of_flash_linear_attention_say_the_same(spec: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("its kernels run on a CUDA device only")
    pytest.importorskip("fla.ops", reason="flash-linear-attention is not installed")
    spec = replace(spec, head_dim=32)
    plain, fast = (made(replace(spec, backend=kernel), width=64).float().cuda() for kernel in ("torch", "fla"))
    x = inputs(3, 100, 64).float().cuda()
    here = Context(torch.tensor([100, 70, 1]).cuda(), ())
    expected, state = plain.prefill(x, here)
    found, behind = fast.prefill(x, here)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    torch.testing.assert_close(behind[1].float(), state[1], atol=0.05, rtol=0.05)
    for part in (plain, fast):
        part(x, here).square().sum().backward()
    for (name, mine), theirs in zip(fast.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert float((mine.grad - theirs.grad).norm()) < 0.05 * float(theirs.grad.norm()) + 1e-3, name
