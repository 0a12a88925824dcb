"""The linear recurrent unit against its equations in complex numbers, its ring, and a count that comes round again."""

import math

import pytest
import torch

from layers import assert_same, drawn, gradients, load_from, made, read
from numerate.architectures.lru import LRU


@pytest.mark.parametrize("gated", [False, True])
def test_it_is_the_equations_of_the_paper(gated: bool) -> None:
    part, x = made(LRU(state_size=5, gated=gated, max_phase=3.0)), drawn(2, 23, 6)
    one = torch.exp(-torch.exp(part.nu_log) + 1j * torch.exp(part.theta_log))
    b = torch.complex(part.in_proj.weight[::2], part.in_proj.weight[1::2])
    c = torch.complex(part.out_proj.weight[:, ::2], -part.out_proj.weight[:, 1::2])
    h, whole = torch.zeros(2, 5, dtype=torch.complex128), read(part, x)
    for time in range(23):
        now, eigenvalue = x[:, time], one
        if gated:
            eigenvalue = one ** (2 * (now @ part.gate.weight.T).sigmoid())
        factor = (1 - eigenvalue.abs() ** 2).sqrt()  # which is where gamma begins without gates
        h = eigenvalue * h + factor * (now.to(b.dtype) @ b.T)
        assert_same(whole[:, time], (h @ c.T).real + part.D * now, atol=1e-6, rtol=1e-6)


def test_eigenvalues_begin_evenly_spread_over_the_ring() -> None:
    found = made(LRU(state_size=4000, r_min=0.5, r_max=0.9, max_phase=1.0)).eigenvalues().detach()
    radius, phase = found.abs(), found.angle()
    assert 0.5 <= float(radius.min()) < 0.51
    assert 0.89 < float(radius.max()) <= 0.9
    assert 0 < float(phase.min()) < float(phase.max()) <= 1.0
    # As many in each part of the same area: half of them lie within the radius whose square is the middle one.
    middle = math.sqrt((0.5**2 + 0.9**2) / 2)
    assert float((radius < middle).double().mean()) == pytest.approx(0.5, abs=0.03)
    assert float((phase < 0.5).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_a_cell_that_turns_by_a_tenth_counts_modulo_ten() -> None:
    part, first = made(LRU(state_size=1)), torch.eye(6)[0]  # writes 1 at the first token, reads the real part
    turns = torch.tensor([math.log(2 * math.pi / 10)], dtype=torch.float64)
    load_from(part, {"nu_log": torch.full((1,), -40.0), "theta_log": turns, "gamma_log": torch.zeros(1)})
    load_from(part, {"D": torch.zeros(6), "in_proj.weight": torch.stack([first, torch.zeros(6)])})
    load_from(part, {"out_proj.weight": torch.stack([first, torch.zeros(6)], dim=1)})
    x = torch.zeros(1, 101, 6).double()
    x[0, 0, 0] = 1
    counted = (2 * math.pi * (torch.arange(101).double() % 10) / 10).cos()
    assert_same(read(part, x)[0, :, 0], counted, atol=1e-12, rtol=0)


def test_its_parameters_are_real_and_its_own() -> None:
    part = made(LRU())
    assert part.self_initialized_parameters() == {"nu_log", "theta_log", "gamma_log", "D", "in_proj.weight"}
    assert not any(parameter.is_complex() for parameter in part.parameters())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (1.0, 1.0)])
def test_radii_of_nothing_and_of_one_are_finite(gated: bool, least: float, most: float) -> None:
    part = made(LRU(r_min=least, r_max=most, gated=gated))
    output = read(part, drawn(2, 40, 6))
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(output, list(part.parameters())))
