"""S4 against the dense recurrence of HiPPO-LegS, against numpy.linalg, and against the published Cauchy kernel."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from numerate.architectures import state_space
from numerate.architectures.s4 import S4, S4Mixer
from numerate.architectures.state_space import (
    CHUNK_SIZE,
    as_complex,
    causal_convolution,
    hippo_legs,
    impulse_responses,
    nplr_legs,
    series_quotient,
)
from numerate.errors import UserError
from numerate.mixers.mixer import Context
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.vocabulary import Vocabulary

EXACT = {"atol": 1e-9, "rtol": 1e-9}
WIDTH = 4


def made(spec: S4 | None = None, width: int = WIDTH, moved: float = 0.0) -> S4Mixer:
    """A layer in float64; `moved` away from its initialisation by noise of this size, as training would."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(0)
            part = (spec or S4()).build(width, 0, 1, ()).eval()
            for parameter in part.parameters():
                parameter.add_(moved * torch.randn_like(parameter))
    finally:
        torch.set_default_dtype(torch.float32)
    return part


def inputs(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context(lengths: list[int]) -> Context:
    return Context(torch.tensor(lengths), ())


def toeplitz(kernel: torch.Tensor) -> torch.Tensor:
    """Matrices of which [i, j] is kernel[i - j], entry by entry."""
    time = kernel.shape[1]
    nothing = torch.zeros_like(kernel[:, 0])
    rows = [torch.stack([kernel[:, i - j] if i >= j else nothing for j in range(time)], dim=1) for i in range(time)]
    return torch.stack(rows, dim=1)


def numbers(part: S4Mixer, name: str) -> NDArray[np.complex128]:
    found: NDArray[np.complex128] = as_complex(getattr(part, name).detach()).numpy()
    return found


def bilinear(a: Any, b: Any, step: float) -> tuple[Any, Any]:
    """(1 - step/2 A)^-1 (1 + step/2 A) and (1 - step/2 A)^-1 step B, by numpy's inverse."""
    one = np.eye(len(a))
    left = np.linalg.inv(one - step / 2 * a)
    return left @ (one + step / 2 * a), left @ b * step


def dense(part: S4Mixer, channel: int) -> tuple[Any, Any, Any]:
    """The discrete recurrence of a channel as a whole matrix over both halves of its conjugate pairs."""
    eigenvalues, p, b, c = (
        np.concatenate([half, half.conj()])
        for half in (
            part.eigenvalues().detach().numpy()[channel],
            *(numbers(part, name)[channel] for name in ("P", "B", "C")),
        )
    )
    step = float(part.log_dt.detach().exp()[channel])
    return (*bilinear(np.diag(eigenvalues) - np.outer(p, p.conj()), b, step), c)


# HiPPO-LegS ----------------------------------------------------------------------------------------------------------


def test_the_matrix_of_legs_is_the_published_one() -> None:
    a, b = hippo_legs(3)
    root = np.sqrt
    np.testing.assert_allclose(a, [[-1, 0, 0], [-root(3), -2, 0], [-root(5), -root(15), -3]], atol=1e-15)
    np.testing.assert_allclose(b, [1, root(3), root(5)], atol=1e-15)
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(hippo_legs(6)[0]).real), [-6, -5, -4, -3, -2, -1], atol=1e-9)


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
    low_rank = np.sqrt(np.arange(states) + 0.5)
    theirs = np.linalg.eigvals(a + np.outer(low_rank, low_rank))
    np.testing.assert_allclose(np.sort(eigenvalues.imag), np.sort(theirs.imag), atol=1e-8)
    np.testing.assert_allclose(theirs.real, -0.5, atol=1e-8)


def test_at_first_it_is_the_dense_recurrence_of_legs() -> None:
    part, u = made(), inputs(20)
    a, b = hippo_legs(64)
    basis = nplr_legs(64).basis
    mixed = causal_convolution(part.kernel(20), u[:, None].expand(WIDTH, 20, 1))[..., 0].detach().numpy()
    for channel in range(WIDTH):
        forward, inward = bilinear(a, b, float(part.log_dt.detach().exp()[channel]))
        read = 2 * (numbers(part, "C")[channel] @ basis.conj().T).real
        x = np.zeros(64)
        for place in range(20):
            x = forward @ x + inward * float(u[place])
            assert mixed[channel, place] == pytest.approx(read @ x, abs=1e-9)


# The recurrence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1, 7, CHUNK_SIZE, CHUNK_SIZE + 1, 51, 128])
def test_the_kernel_is_that_of_the_dense_recurrence_also_when_trained(time: int) -> None:
    part = made(moved=0.3)
    kernel = part.kernel(time).detach().numpy()
    for channel in range(WIDTH):
        forward, x, read = dense(part, channel)
        for place in range(time):
            assert kernel[channel, place] == pytest.approx((read @ x).real, rel=1e-9, abs=1e-9)
            x = forward @ x


def test_steps_are_the_dense_recurrence_too() -> None:
    part, u = made(moved=0.3), inputs(9)
    state, dense_states = torch.zeros(1, WIDTH, 32, 2).double(), [np.zeros(64) for _ in range(WIDTH)]
    for place in range(9):
        output, state = part.recurrent_step(u[place].expand(1, WIDTH), state)
        for channel in range(WIDTH):
            forward, inward, read = dense(part, channel)
            dense_states[channel] = forward @ dense_states[channel] + inward * float(u[place])
            assert float(output[0, channel].detach()) == pytest.approx((read @ dense_states[channel]).real, abs=1e-9)
            np.testing.assert_allclose(
                as_complex(state.detach())[0, channel].numpy(), dense_states[channel][:32], atol=1e-9
            )


@pytest.mark.parametrize("time", [2, 50, 128])
def test_the_published_cauchy_kernel_is_the_same_where_its_c_is_folded_rightly(time: int) -> None:
    """The published kernel is what `benchmarks/counting.py` measures S4 against."""
    cauchy_kernel = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "counting.py"))["cauchy_kernel"]
    part = made(moved=0.2)
    folded = []
    for channel in range(WIDTH):
        forward, _, read = dense(part, channel)
        folded.append((read @ (np.eye(64) - np.linalg.matrix_power(forward, time)))[:32])
    eigenvalues, step = part.eigenvalues().detach(), part.log_dt.detach().exp()
    p, b = (as_complex(getattr(part, name).detach()) for name in ("P", "B"))
    theirs = cauchy_kernel(eigenvalues, p, b, torch.from_numpy(np.stack(folded)), step, time)
    torch.testing.assert_close(part.kernel(time).detach(), theirs, **EXACT)
    unfolded = cauchy_kernel(eigenvalues, p, b, as_complex(part.C.detach()), step, time)
    assert not torch.allclose(theirs, unfolded, atol=1e-3), "folding must matter, or nothing was compared"


def test_single_precision_is_near_double_at_every_length() -> None:
    part = made(width=64)
    exact = part.kernel(600).detach()
    near = part.float().kernel(600).detach().double()
    # 600 roundings of float32 at most, 6e-8 each; how many of them add up differs between processors.
    assert float((near - exact).abs().max()) < 3.6e-5 * max(1.0, float(exact.abs().max()))


def test_a_row_longer_than_any_piece_is_read_as_token_by_token() -> None:
    part, x = made(moved=0.1), inputs(2, 2 * CHUNK_SIZE + 5, WIDTH)
    whole, state = part.prefill(x, context([2 * CHUNK_SIZE + 5, 40]))
    running, outputs, behind = torch.zeros_like(state), [], []
    for place in range(x.shape[1]):
        out, running = part.step(x[:, place : place + 1], context([1, 1]), running)
        outputs.append(out)
        behind.append(running)
    torch.testing.assert_close(whole, torch.cat(outputs, dim=1), **EXACT)
    torch.testing.assert_close(state[0], behind[-1][0], **EXACT)
    torch.testing.assert_close(state[1], behind[39][1], **EXACT)
    assert state.shape == (2, WIDTH, 32, 2)


def test_it_stays_stable_whatever_is_learned() -> None:
    part = made(moved=5.0)
    for channel in range(WIDTH):
        assert np.abs(np.linalg.eigvals(dense(part, channel)[0])).max() < 1.0


# What it is made of --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1, 2, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE, 77])
def test_a_convolution_by_pieces_is_one_by_a_whole_matrix_with_its_gradients(time: int) -> None:
    kernel, signal = inputs(3, time).requires_grad_(), inputs(3, time, 2, seed=1).requires_grad_()
    weights = inputs(3, time, 2, seed=2)

    def gradients(out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((out * weights).sum(), [kernel, signal])

    out, whole = causal_convolution(kernel, signal), toeplitz(kernel) @ signal
    torch.testing.assert_close(out, whole, **EXACT)
    for found, expected in zip(gradients(out), gradients(whole), strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


def test_very_long_rows_are_convolved_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, signal = inputs(3, 77), inputs(3, 77, 2, seed=1)
    expected = causal_convolution(kernel, signal)
    monkeypatch.setattr(state_space, "FFT_MIN_LENGTH", 10)
    torch.testing.assert_close(causal_convolution(kernel, signal), expected, **EXACT)


@pytest.mark.parametrize("time", [1, 5, CHUNK_SIZE, 3 * CHUNK_SIZE + 4])
def test_feedback_solves_its_own_equation(time: int) -> None:
    above, beside = inputs(3, time), 0.1 * inputs(3, time, seed=1)
    found = series_quotient(above, beside)[..., None]
    torch.testing.assert_close((found + toeplitz(beside) @ found)[..., 0], above, **EXACT)
    one, minus_z = torch.zeros(2, 1, time + 1).double()
    one[:, 0], minus_z[:, 1] = 1.0, -1.0
    torch.testing.assert_close(series_quotient(one, minus_z), torch.ones_like(one))


def test_gradients_of_feedback_and_of_kernels_are_their_differences() -> None:
    above, beside = inputs(2, 2 * CHUNK_SIZE).requires_grad_(), 0.01 * inputs(2, 2 * CHUNK_SIZE, seed=1)
    assert torch.autograd.gradcheck(series_quotient, [above, beside.requires_grad_()])
    weights = torch.view_as_complex(inputs(2, 3, 4, 2)).requires_grad_()
    base = (0.7 * torch.view_as_complex(inputs(2, 4, 2, seed=1)).sgn()).requires_grad_()

    def six(weights: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        return impulse_responses(weights, base, 6)

    assert torch.autograd.gradcheck(six, [weights, base])


# Model and spec ------------------------------------------------------------------------------------------------------


def test_a_model_of_one_layer_has_the_published_number_of_weights() -> None:
    vocabulary = Vocabulary.with_digits([str(number) for number in range(99)])
    assert vocabulary.size == 103
    spec = Decoder(hidden_size=128, backbone=Stack(num_layers=1), mixer=S4(), feed_forward=None, final_norm=False)
    assert sum(parameter.numel() for parameter in spec.build(vocabulary, 0).parameters()) == 92_672


def test_its_own_initialisation() -> None:
    part = made(width=1000)
    assert {name for name, _ in part.named_parameters()} == part.self_initialized_parameters() | {
        "out_proj.weight",
        "out_proj.bias",
    }
    steps = part.log_dt.detach()
    assert float(steps.min()) >= np.log(0.001)
    assert float(steps.max()) <= np.log(0.1)
    assert float(steps.mean()) == pytest.approx(np.log(0.01), abs=0.15)
    assert float(part.D.detach().std()) == pytest.approx(1.0, rel=0.1)
    assert float(part.C.detach().square().sum(-1).mean()) == pytest.approx(1.0, rel=0.05)


def test_the_recurrence_learns_slowly_and_only_c_decays() -> None:
    wishes = made(S4(learning_rate_factor=0.3)).optimizer_options_by_parameter()
    assert wishes.pop("C") == (0.3, True)
    assert wishes == dict.fromkeys(("log_A_real", "A_imag", "P", "B", "log_dt"), (0.3, False))


def test_dropout_leaves_out_whole_channels_in_training_only() -> None:
    part, x = made(S4(dropout=0.5), width=64), inputs(2, 9, 64)
    kept = part(x, context([9, 9]))
    torch.testing.assert_close(part(x, context([9, 9])), kept)
    torch.manual_seed(0)
    dropped = part.train()(x, context([9, 9])) == 0
    assert 0.3 < float(dropped.double().mean()) < 0.7
    assert torch.equal(dropped.all(dim=1), dropped.any(dim=1))
    assert not torch.equal(dropped[0], dropped[1])


def test_bf16_keeps_the_recurrence_in_single_precision() -> None:
    part, x = made().float(), inputs(2, 40, WIDTH).float()
    exact = part(x, context([40, 40]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, state = part.prefill(x, context([40, 40]))
    assert state.dtype == torch.float32
    torch.testing.assert_close(half.float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"state_pairs": 0}, "state_pairs"),
        ({"dt_ratio": 0.5}, "dt_ratio"),
        ({"dt_min": 0.0}, "dt_min"),
        ({"learning_rate_factor": -1.0}, "learning_rate_factor"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        replace(S4(), **settings)
