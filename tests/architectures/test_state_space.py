"""S4 against dense recurrences, numpy.linalg and the published Cauchy kernel."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layers import assert_same, drawn, made, read
from numerate.architectures.s4 import S4
from numerate.architectures.state_space import CHUNK_SIZE, as_complex, causal_convolution, hippo_legs, nplr_legs

WIDTH = 3


def moved(noise: float) -> Any:
    """A layer whose weights were made in float64, as nothing less shows the structure of LegS."""
    torch.set_default_dtype(torch.float64)
    try:
        return made(S4(), WIDTH, noise=noise)
    finally:
        torch.set_default_dtype(torch.float32)


def numbers(part: Any, name: str) -> NDArray[np.complex128]:
    found: NDArray[np.complex128] = as_complex(getattr(part, name).detach()).numpy()
    return found


def bilinear(a: Any, b: Any, step: float) -> tuple[Any, Any]:
    """(1 - step/2 A)^-1 (1 + step/2 A) and (1 - step/2 A)^-1 step B, by numpy's inverse."""
    one = np.eye(len(a))
    left = np.linalg.inv(one - step / 2 * a)
    return left @ (one + step / 2 * a), left @ b * step


def dense(part: Any, channel: int) -> tuple[Any, Any, Any]:
    """The discrete recurrence of a channel as a whole matrix over both halves of its conjugate pairs."""
    halves = part.eigenvalues().detach().numpy(), *(numbers(part, name) for name in ("P", "B", "C"))
    e, p, b, c = (np.concatenate([half[channel], half[channel].conj()]) for half in halves)
    return (*bilinear(np.diag(e) - np.outer(p, p.conj()), b, float(part.log_dt.detach().exp()[channel])), c)


# HiPPO-LegS ----------------------------------------------------------------------------------------------------------


def test_the_matrix_of_legs_is_the_published_one() -> None:
    a, b = hippo_legs(3)
    root = np.sqrt
    np.testing.assert_allclose(a, [[-1, 0, 0], [-root(3), -2, 0], [-root(5), -root(15), -3]], atol=1e-15)
    np.testing.assert_allclose(b, [1, root(3), root(5)], atol=1e-15)


@pytest.mark.parametrize("states", [2, 8, 64])
def test_legs_is_normal_less_a_matrix_of_rank_1(states: int) -> None:
    a, b = hippo_legs(states)
    found = nplr_legs(states)
    basis = np.concatenate([found.basis, found.basis.conj()], axis=1)
    eigenvalues, p, inward = (np.concatenate([x, x.conj()]) for x in (found.eigenvalues, found.P, found.B))
    np.testing.assert_allclose(basis @ basis.conj().T, np.eye(states), atol=1e-10)
    again = basis @ (np.diag(eigenvalues) - np.outer(p, p.conj())) @ basis.conj().T
    np.testing.assert_allclose(again, a, atol=1e-9)
    np.testing.assert_allclose(basis @ inward, b, atol=1e-10)
    np.testing.assert_allclose(eigenvalues.real, -0.5, atol=1e-8)


def test_at_first_s4_is_the_dense_recurrence_of_legs() -> None:
    part, u = moved(noise=0.0), drawn(20)
    a, b = hippo_legs(64)
    basis = nplr_legs(64).basis
    mixed = causal_convolution(part.kernel(20), u[:, None].expand(WIDTH, 20, 1))[..., 0].detach().numpy()
    for channel in range(WIDTH):
        forward, inward = bilinear(a, b, float(part.log_dt.detach().exp()[channel]))
        reading = 2 * (numbers(part, "C")[channel] @ basis.conj().T).real
        x = np.zeros(64)
        for place in range(20):
            x = forward @ x + inward * float(u[place])
            assert mixed[channel, place] == pytest.approx(reading @ x, abs=1e-9)


# The recurrence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1, CHUNK_SIZE + 1, 128])
def test_the_kernel_is_that_of_the_dense_recurrence_also_when_trained(time: int) -> None:
    part = moved(noise=0.3)
    kernel = part.kernel(time).detach().numpy()
    for channel in range(WIDTH):
        forward, x, reading = dense(part, channel)
        for place in range(time):
            assert kernel[channel, place] == pytest.approx((reading @ x).real, rel=1e-9, abs=1e-9)
            x = forward @ x


def test_steps_are_the_dense_recurrence_too() -> None:
    part, u = moved(noise=0.3), drawn(9)
    state, dense_states = torch.zeros(1, WIDTH, 32, 2).double(), [np.zeros(1)] * WIDTH
    for place in range(9):
        output, state = part.recurrent_step(u[place].expand(1, WIDTH), state)
        for channel in range(WIDTH):
            forward, inward, reading = dense(part, channel)
            before = dense_states[channel] if place else np.zeros(len(forward))
            dense_states[channel] = x = forward @ before + inward * float(u[place])
            assert float(output[0, channel].detach()) == pytest.approx((reading @ x).real, abs=1e-9)
            np.testing.assert_allclose(as_complex(state.detach())[0, channel].numpy(), x[:32], atol=1e-9)


def test_it_stays_stable_whatever_is_learned() -> None:
    part = moved(noise=5.0)
    for channel in range(WIDTH):
        assert np.abs(np.linalg.eigvals(dense(part, channel)[0])).max() < 1.0


@pytest.mark.parametrize("time", [2, 50, 128])
def test_the_published_cauchy_kernel_is_the_same_where_its_c_is_folded_rightly(time: int) -> None:
    """The published kernel is what `benchmarks/counting.py` measures S4 against."""
    cauchy_kernel = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "counting.py"))["cauchy_kernel"]
    part, folded = moved(noise=0.2), []
    for channel in range(WIDTH):
        forward, _, reading = dense(part, channel)
        folded.append((reading @ (np.eye(64) - np.linalg.matrix_power(forward, time)))[:32])
    eigenvalues, step = part.eigenvalues().detach(), part.log_dt.detach().exp()
    p, b, c = (as_complex(getattr(part, name).detach()) for name in ("P", "B", "C"))
    theirs = cauchy_kernel(eigenvalues, p, b, torch.from_numpy(np.stack(folded)), step, time)
    assert_same(part.kernel(time), theirs)
    unfolded = cauchy_kernel(eigenvalues, p, b, c, step, time)
    assert not torch.allclose(theirs, unfolded, atol=1e-3), "folding must matter, or nothing was compared"


def test_single_precision_is_near_double_at_every_length() -> None:
    part = made(S4(), width=64)
    exact = part.kernel(600).detach()
    near = part.float().kernel(600).detach().double()
    # 600 roundings of float32 at most, 6e-8 each; how many of them add up differs between processors.
    assert float((near - exact).abs().max()) < 3.6e-5 * max(1.0, float(exact.abs().max()))


# The layer -----------------------------------------------------------------------------------------------------------


def test_its_own_initialization() -> None:
    part = made(S4(), width=1000)
    linear = {"out_proj.weight", "out_proj.bias"}
    assert {name for name, _ in part.named_parameters()} == part.self_initialized_parameters() | linear
    steps = part.log_dt.detach()
    assert np.log(0.001) <= float(steps.min()) <= float(steps.max()) <= np.log(0.1)
    assert float(steps.mean()) == pytest.approx(np.log(0.01), abs=0.15)
    assert float(part.D.detach().std()) == pytest.approx(1.0, rel=0.1)
    assert float(part.C.detach().square().sum(-1).mean()) == pytest.approx(1.0, rel=0.05)


def test_dropout_leaves_out_whole_channels_in_training_only() -> None:
    part, x = made(S4(dropout=0.5), width=64), drawn(2, 9, 64)
    assert_same(read(part, x), read(part, x))
    torch.manual_seed(0)
    dropped = read(part.train(), x) == 0
    assert 0.3 < float(dropped.double().mean()) < 0.7
    assert torch.equal(dropped.all(dim=1), dropped.any(dim=1))
    assert not torch.equal(dropped[0], dropped[1])
