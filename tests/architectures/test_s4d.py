"""S4D against the recurrence of each state written out, and against scipy's discretisation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from numerate.architectures.s4d import S4D, S4DMixer
from numerate.architectures.state_space import as_complex, hippo_legs
from numerate.errors import UserError
from numerate.mixers.mixer import Context

EXACT = {"atol": 1e-9, "rtol": 1e-9}
EVERY = [
    S4D(initialization=start, discretization=rule) for start in ("lin", "inv", "legs") for rule in ("zoh", "bilinear")
]


def made(spec: S4D, width: int = 3) -> S4DMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return spec.build(width, 0, 1, ()).double().eval()


def continuous(part: S4DMixer) -> tuple[Any, Any, Any]:
    """Eigenvalues, C and step sizes, as numpy arrays."""
    eigenvalues = torch.complex(-part.log_A_real.exp(), part.A_imag)
    return (
        eigenvalues.detach().numpy(),
        as_complex(part.C).detach().numpy(),
        part.log_dt.exp().detach().numpy(),
    )


def test_eigenvalues_begin_as_published() -> None:
    lin, inv, found = (continuous(made(S4D(initialization=start)))[0][0] for start in ("lin", "inv", "legs"))
    np.testing.assert_allclose(lin[:3], [-0.5, -0.5 + 1j * np.pi, -0.5 + 2j * np.pi], atol=1e-6)
    np.testing.assert_allclose(inv[:2].imag, [64 / np.pi * 63, 64 / np.pi * (64 / 3 - 1)], rtol=1e-6)
    p = np.sqrt(np.arange(64) + 0.5)
    theirs = np.linalg.eigvals(hippo_legs(64)[0] + np.outer(p, p))
    np.testing.assert_allclose(np.sort(found.imag), np.sort(theirs.imag[theirs.imag > 0]), rtol=1e-5)
    assert np.sort(inv.imag)[-1] == pytest.approx(np.sort(found.imag)[-1], rel=0.05), "inv is to come near to legs"


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: f"{spec.initialization} {spec.discretization}")
def test_the_kernel_is_the_discretised_recurrence_written_out(spec: S4D) -> None:
    signal = pytest.importorskip("scipy.signal", reason="scipy discretises for comparison; pip install scipy")
    part = made(spec)
    eigenvalues, reading, steps = continuous(part)
    kernel = part.kernel(40).detach().numpy()
    for channel in range(3):
        system = (np.diag(eigenvalues[channel]), np.ones((32, 1)), np.ones((1, 32)), np.zeros((1, 1)))
        if spec.discretization == "zoh":
            forward, inward, *_ = signal.cont2discrete(system, steps[channel], method="zoh")
        else:
            # scipy's bilinear rule moves half of each input into the next output; the factors are the same.
            forward, *_ = signal.cont2discrete(system, steps[channel], method="bilinear")
            inward = np.linalg.inv(np.eye(32) - steps[channel] / 2 * system[0]) @ system[1] * steps[channel]
        state = inward[:, 0]
        for place in range(40):
            assert kernel[channel, place] == pytest.approx(2 * (reading[channel] @ state).real, abs=1e-9)
            state = forward @ state


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: f"{spec.initialization} {spec.discretization}")
def test_reading_long_rows_at_once_is_reading_token_by_token(spec: S4D) -> None:
    part = made(spec)
    x = torch.randn(2, 70, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole, state = part.prefill(x, Context(torch.tensor([70, 33]), ()))
    running, outputs = torch.zeros_like(state), []
    for place in range(70):
        out, running = part.step(x[:, place : place + 1], Context(torch.tensor([1, 1]), ()), running)
        outputs.append(out)
        if place == 32:
            torch.testing.assert_close(state[1], running[1], **EXACT)
    torch.testing.assert_close(whole, torch.cat(outputs, dim=1), **EXACT)
    torch.testing.assert_close(state[0], running[0], **EXACT)


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: f"{spec.initialization} {spec.discretization}")
def test_it_stays_stable_whatever_is_learned(spec: S4D) -> None:
    part = made(spec)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    assert float(part._discretize()[0].detach().abs().max()) < 1.0


def test_only_c_decays() -> None:
    wishes = made(S4D(learning_rate_factor=0.2)).optimizer_options_by_parameter()
    assert wishes.pop("C") == (0.2, True)
    assert wishes == dict.fromkeys(("log_A_real", "A_imag", "log_dt"), (0.2, False))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"state_pairs": 0}, "state_pairs"),
        ({"dt_ratio": 0.0}, "dt_ratio"),
        ({"learning_rate_factor": float("inf")}, "learning_rate_factor"),
        ({"dropout": -0.1}, "dropout"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        replace(S4D(), **settings)
