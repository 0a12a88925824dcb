"""The linear recurrent unit against its equations in complex numbers, its ring, and a count that comes round again."""

import math
from typing import Any

import pytest
import torch

from numerate.architectures.lru import LRU, LRUMixer
from numerate.errors import UserError
from numerate.mixers.mixer import Context

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def made(width: int = 6, **settings: Any) -> LRUMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return LRU(**settings).build(width, 0, 1, ()).double()


def inputs(rows: int, time: int, width: int = 6) -> torch.Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def context(lengths: list[int], **more: Any) -> Context:
    return Context(torch.tensor(lengths), (), **more)


@pytest.mark.parametrize("gated", [False, True])
def test_it_is_the_equations_of_the_paper(gated: bool) -> None:
    part, x = made(state_size=5, gated=gated, max_phase=3.0), inputs(2, 23)
    one = torch.exp(-torch.exp(part.nu_log) + 1j * torch.exp(part.theta_log))
    b = torch.complex(part.in_proj.weight[::2], part.in_proj.weight[1::2])
    c = torch.complex(part.out_proj.weight[:, ::2], -part.out_proj.weight[:, 1::2])
    h = torch.zeros(2, 5, dtype=torch.complex128)
    whole = part(x, context([23, 23]))
    for time in range(23):
        now = x[:, time]
        if gated:
            eigenvalue = one ** (2 * (now @ part.gate.weight.T).sigmoid())
            factor = (1 - eigenvalue.abs() ** 2).sqrt()
        else:
            eigenvalue, factor = one, (1 - one.abs() ** 2).sqrt()  # which is where it begins
        h = eigenvalue * h + factor * (now.to(b.dtype) @ b.T)
        torch.testing.assert_close(whole[:, time], (h @ c.T).real + part.D * now, atol=1e-6, rtol=1e-6)


def test_eigenvalues_begin_evenly_spread_over_the_ring() -> None:
    found = made(state_size=4000, r_min=0.5, r_max=0.9, max_phase=1.0).eigenvalues()
    radius, phase = found.abs().detach(), found.angle().detach()
    assert 0.5 <= float(radius.min()) < 0.51
    assert 0.89 < float(radius.max()) <= 0.9
    assert 0 < float(phase.min()) < float(phase.max()) <= 1.0
    # As many in each part of the same area: half of them lie within the radius whose square is the middle one.
    middle = math.sqrt((0.5**2 + 0.9**2) / 2)
    assert float((radius < middle).double().mean()) == pytest.approx(0.5, abs=0.03)
    assert float((phase < 0.5).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_states_begin_as_large_as_what_is_written() -> None:
    part = made(width=32, state_size=300, r_min=0.8, r_max=0.95)
    x = torch.randn(8, 200, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    states = part.states(x)[:, 100:].detach()
    assert float(states.abs().square().mean().sqrt()) == pytest.approx(1.0, rel=0.05)


def test_a_cell_that_turns_by_a_tenth_counts_modulo_ten() -> None:
    part = made(state_size=1)
    with torch.no_grad():
        part.nu_log.fill_(-40), part.theta_log.fill_(math.log(2 * math.pi / 10)), part.gamma_log.zero_(), part.D.zero_()
        part.in_proj.weight.zero_(), part.out_proj.weight.zero_()
        part.in_proj.weight[0, 0] = part.out_proj.weight[0, 0] = 1  # writes 1 at the first token, reads the real part
    x = torch.zeros(1, 101, 6).double()
    x[0, 0, 0] = 1
    output = part(x, context([101]))[0, :, 0]
    counted = (2 * math.pi * (torch.arange(101).double() % 10) / 10).cos()
    torch.testing.assert_close(output, counted, atol=1e-12, rtol=0)


def test_a_gate_that_is_shut_lets_a_cell_stand_still() -> None:
    part = made(state_size=4, gated=True)
    with torch.no_grad():
        part.gate.weight.zero_()
        part.gate.weight[:, 0] = -60
    x = inputs(1, 30)
    x[:, :, 0] = 0
    x[:, 10:, 0] = 1
    states = part.states(x)
    torch.testing.assert_close(states[:, 29], states[:, 9], atol=1e-3, rtol=0)
    assert not torch.allclose(states[:, 9], states[:, 8], atol=1e-3)


def test_what_makes_the_ring_learns_slower_and_does_not_decay() -> None:
    part = made(learning_rate_factor=0.25)
    assert part.optimizer_options_by_parameter() == {
        "nu_log": (0.25, False),
        "theta_log": (0.25, False),
        "gamma_log": (0.25, False),
        "D": (1.0, False),
    }
    assert part.self_initialized_parameters() == {"nu_log", "theta_log", "gamma_log", "D", "in_proj.weight"}
    assert not any(parameter.is_complex() for parameter in part.parameters())


@pytest.mark.parametrize("gated", [False, True])
def test_radii_of_nothing_and_of_one_are_finite(gated: bool) -> None:
    for least, most in ((0.0, 1.0), (1.0, 1.0)):
        part, x = made(r_min=least, r_max=most, gated=gated), inputs(2, 40)
        output = part(x, context([40, 40]))
        output.sum().backward()
        assert output.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in part.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r_min": 0.9, "r_max": 0.5}, "^r_min: must be at most r_max=0.5, not 0.9"),
    ],
)
def test_what_cannot_be_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LRU(**settings)
