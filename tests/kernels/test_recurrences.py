"""The fast form of every recurrence, scan and convolution against its definition, token by token, with gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, normalize, pad, softplus

from layers import assert_same, delta_inputs, drawn, gradients, made
from numerate.architectures import mamba2, rwkv6, rwkv7, state_space
from numerate.architectures.phasor import Phasor
from numerate.architectures.slstm import slstm, slstm_step
from numerate.kernels import linear_scan as scan
from numerate.kernels import selective_scan as selective
from numerate.kernels.delta_rule import chunked_delta_rule, recurrent_delta_rule
from numerate.kernels.linear_scan import linear_scan
from numerate.kernels.selective_scan import scan_step, selective_scan
from numerate.kernels.token_shift import ShortConvolution, shift_tokens, zero_padding

Forms = tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]
"""The fast form, the definition, and what both are given."""


def leaves(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors if tensor is not None]


def decays(*shape: int, fast: float = 1.0, seed: int = 9) -> Tensor:
    """From 0 to 1; `fast` ones reach both ends."""
    return (-(fast * drawn(*shape, seed=seed)).exp()).exp()


# Definitions ---------------------------------------------------------------------------------------------------------


def sequential_scan(a: Tensor, b: Tensor) -> Tensor:
    h, found = torch.zeros_like(b[:, 0]), []
    for factor, added in zip(a.expand(-1, b.shape[1], -1).unbind(1), b.unbind(1), strict=True):
        h = factor * h + added
        found.append(h)
    return torch.stack(found, dim=1)


def sequential_selective_scan(
    dt: Tensor, inputs: Tensor, B: Tensor, C: Tensor, A: Tensor, signed: bool
) -> tuple[Tensor, Tensor]:
    state, outputs = A.new_zeros(len(dt), *A.shape), []
    for token in zip(dt.unbind(1), inputs.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        one, state = scan_step(*token, A, state, signed)
        outputs.append(one)
    return torch.stack(outputs, dim=1), state


def sequential_ssd(decays: Tensor, inputs: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    memory, outputs = inputs.new_zeros(len(inputs), inputs.shape[2], B.shape[2], inputs.shape[3]), []
    for token in zip(decays.unbind(1), inputs.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        one, memory = mamba2.scan_step(*token, memory)
        outputs.append(one)
    return torch.stack(outputs, dim=1), memory


def sequential_slstm(inputs: Tensor, recurrent: Tensor, sigmoid: bool) -> list[Tensor]:
    nothing = torch.zeros_like(inputs[:, 0, 0])
    states, found = (nothing, nothing, nothing - torch.inf), []
    for token in inputs.unbind(1):
        states = slstm_step(token, recurrent, sigmoid, *states)
        found.append(states)
    return [torch.stack(one, dim=1) for one in zip(*found, strict=True)]


def toeplitz(kernel: Tensor) -> Tensor:
    """Matrices of which [i, j] is kernel[i - j], entry by entry."""
    time, nothing = kernel.shape[1], torch.zeros_like(kernel[:, 0])
    rows = [torch.stack([kernel[:, i - j] if i >= j else nothing for j in range(time)], dim=1) for i in range(time)]
    return torch.stack(rows, dim=1)


def sequential_phasor(part: Any, x: Tensor) -> Tensor:
    angles, written = part.angles_and_inputs(x)
    return sequential_scan(torch.polar(torch.ones_like(angles), angles), written)


# Forms ---------------------------------------------------------------------------------------------------------------


def linear(time: int, kind: torch.dtype, shape: tuple[int, int] | None = None) -> Forms:
    """`shape` of decays that are the same for all rows or times."""
    rows, times = shape or (3, time)
    a = drawn(rows, times, 4, dtype=kind, seed=1)
    given = [a / (a.abs() + 0.1), drawn(3, time, 4, dtype=kind)]
    return linear_scan, sequential_scan, leaves(*given)


def selective_forms(time: int, signed: bool, rows: int = 3, chunks: int | None = None) -> Forms:
    sizes = [(rows, time, 6)] * 2 + [(rows, time, 4)] * 2
    dt, *rest = (drawn(*size, seed=number) for number, size in enumerate(sizes))
    given = leaves(softplus(dt), *rest, -drawn(4, 6, seed=9).exp())
    return (
        lambda *parts: selective_scan(*parts, signed, chunks),
        lambda *parts: sequential_selective_scan(*parts, signed),
        given,
    )


def ssd(time: int, chunk: int) -> Forms:
    sizes = [(2, time, 3), (2, time, 3, 5), (2, time, 4), (2, time, 4)]
    first, *rest = (drawn(*size, seed=number) for number, size in enumerate(sizes))
    return (
        lambda decays, *rest: mamba2.chunked_scan(decays.log(), *rest, chunk_size=chunk),
        sequential_ssd,
        leaves(first.sigmoid(), *rest),
    )


def delta(time: int, chunk: int, steps: int = 1, gated: bool = False, largest: float = 1.0) -> Forms:
    given = leaves(*delta_inputs(time, steps, gated, largest))
    return lambda *parts: chunked_delta_rule(*parts, chunk_size=chunk), recurrent_delta_rule, given


def wkv6(time: int, fast: float) -> Forms:
    r, k, v = (drawn(3, time, 2, 5, seed=seed) for seed in range(3))
    given = r, decays(3, time, 2, 5, fast=fast), k, v, drawn(2, 5, seed=4)
    return rwkv6.chunked_wkv, rwkv6.recurrent_wkv, leaves(*given)


def wkv7(time: int, fast: float) -> Forms:
    """Decays as the mixer makes them, or with `fast` any from 0 to 1."""
    r, k, v, speeds, under, rate = (drawn(3, time, 2, 5, seed=seed) for seed in range(6))
    decay = decays(3, time, 2, 5, fast=fast) if fast else (-0.6065 * speeds.sigmoid()).exp()
    under = normalize(under, dim=-1)
    return rwkv7.chunked_wkv, rwkv7.recurrent_wkv, leaves(r, decay, k, v, -under, under * rate.sigmoid())


def slstm_forms(time: int, sigmoid: bool) -> Forms:
    given = leaves(drawn(3, time, 4, 2, 5), 0.4 * drawn(2, 20, 5, seed=1))
    return (lambda *two: slstm(*two, sigmoid), lambda *two: sequential_slstm(*two, sigmoid), given)


def convolution(time: int) -> Forms:
    given = leaves(drawn(3, time), drawn(3, time, 2, seed=1))
    return state_space.causal_convolution, lambda kernel, signal: toeplitz(kernel) @ signal, given


def quotient(time: int) -> Forms:
    given = leaves(drawn(3, time), 0.1 * drawn(3, time, seed=1))

    def definition(above: Tensor, beside: Tensor) -> Tensor:
        matrix = torch.eye(time, dtype=torch.float64) + toeplitz(beside)
        return torch.linalg.solve(matrix, above[..., None])[..., 0]

    return state_space.series_quotient, definition, given


def responses(time: int) -> Forms:
    weights, phase = (drawn(2, *size, dtype=torch.complex128, seed=seed) for seed, size in enumerate(((3, 4), (4,))))

    def definition(weights: Tensor, base: Tensor) -> Tensor:
        powers = torch.stack([base**place for place in range(time)], dim=-1)
        return torch.einsum("hjn,hnl->hjl", weights, powers).real

    return (
        lambda weights, base: state_space.impulse_responses(weights, base, time),
        definition,
        leaves(weights, 0.7 * phase.sgn()),
    )


def short_convolution(time: int, size: int, biases: bool = True) -> Forms:
    part = ShortConvolution(6, size, biases).double()

    def torchs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return conv1d(pad(x, (0, 0, size - 1, 0)).mT, weight.mT[:, None], bias, groups=6).mT

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        output: Tensor = torch.func.functional_call(part, tensors, x)
        return output

    return ours, torchs, leaves(drawn(3, time, 6), drawn(size, 6, seed=1), drawn(6, seed=2) if biases else None)


def phasor(time: int, exclusive: bool) -> Forms:
    part = made(Phasor(exclusive=exclusive), width=4)
    return part.states, lambda x: sequential_phasor(part, x), leaves(drawn(2, time, 4))


FORMS: dict[str, Callable[[int], Forms]] = {
    "scan": lambda time: linear(time, torch.float64),
    "scan, complex": lambda time: linear(time, torch.complex128),
    "scan, decays of all rows": lambda time: linear(time, torch.complex128, (1, time)),
    "scan, decays of all times": lambda time: linear(time, torch.float64, (3, 1)),
    "scan, one decay": lambda time: linear(time, torch.complex128, (1, 1)),
    **{
        f"selective scan, {rows} rows, {chunks} chunks, signed={signed}": (
            lambda time, signed=signed, rows=rows, chunks=chunks: selective_forms(time, signed, rows, chunks)  # type: ignore[misc]
        )
        for signed in (False, True)
        for rows, chunks in ((3, 1), (3, 2), (3, 5), (3, None), (1, 2))
    },
    **{f"SSD, chunks of {chunk}": lambda time, chunk=chunk: ssd(time, chunk) for chunk in (1, 4, 64)},  # type: ignore[misc]
    "delta rule": lambda time: delta(time, chunk=16),
    "delta rule, in small chunks": lambda time: delta(time, chunk=4, largest=2.0),
    "delta rule, gated": lambda time: delta(time, chunk=32, gated=True),
    "delta rule, gated and negative": lambda time: delta(time, chunk=1000, gated=True, largest=2.0),
    "delta product": lambda time: delta(time, chunk=16, steps=2, largest=2.0),
    "delta product, gated": lambda time: delta(time, chunk=18, steps=3, gated=True, largest=2.0),
    "RWKV-6": lambda time: wkv6(time, fast=1.0),
    "RWKV-6, extreme decays": lambda time: wkv6(time, fast=6.0),
    "RWKV-7": lambda time: wkv7(time, fast=0.0),
    "RWKV-7, extreme decays": lambda time: wkv7(time, fast=6.0),
    "sLSTM": lambda time: slstm_forms(time, sigmoid=True),
    "sLSTM, exponential forget gate": lambda time: slstm_forms(time, sigmoid=False),
    "convolution": convolution,
    "quotient of series": quotient,
    "impulse responses": responses,
    "short convolution": lambda time: short_convolution(time, size=4),
    "short convolution of one tap": lambda time: short_convolution(time, size=1),
    "short convolution, no bias": lambda time: short_convolution(time, size=3, biases=False),
    "phasor": lambda time: phasor(time, exclusive=False),
    "phasor, exclusive": lambda time: phasor(time, exclusive=True),
}


@pytest.fixture(params=[1, 10**9], ids=["place by place", "chunk by chunk"])
def each_scan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MIN_SEQUENTIAL_SIZE", request.param)


@pytest.mark.parametrize("time", [1, 2, 4, 13, 33, 77])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_the_definition_with_its_gradients(name: str, time: int) -> None:
    fast, definition, given = FORMS[name](time)
    assert_same(fast(*given), definition(*given), given)


@pytest.mark.usefixtures("each_scan")
@pytest.mark.parametrize("time", [1, 2, 17, 64, 131])
@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith("scan")])
def test_each_form_of_the_scan_is_the_recurrence(name: str, time: int) -> None:
    test_it_is_the_definition_with_its_gradients(name, time)


# Extremes ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_scan")
def test_decays_of_nothing_and_of_all_stay_exact_over_long_rows() -> None:
    a = torch.zeros(1, 3000, 3, dtype=torch.float32)
    a[..., 1], a[..., 2] = 1, -1
    found = linear_scan(a, torch.ones(1, 3000, 3))[0]
    assert torch.equal(found[:, 0], torch.ones(3000))
    assert torch.equal(found[:, 1], torch.arange(1, 3001).float())
    assert torch.equal(found[:, 2], (torch.arange(1, 3001) % 2).float())
    half = linear_scan(torch.ones(1, 400, 1).bfloat16(), torch.ones(1, 400, 1).bfloat16())
    assert half.dtype == torch.float32
    assert half[0, -1] == 400, "the first number that bf16 cannot count to is 257"


@pytest.mark.parametrize("gate", [-200.0, -torch.inf])
def test_gates_that_let_nothing_through_overflow_nothing(gate: float) -> None:
    queries, keys, values, betas = (part.detach().float() for part in delta(40, 16)[2])
    gates = torch.full((2, 40, 3), gate).requires_grad_()
    found, _ = chunked_delta_rule(queries, keys, values, betas, gates)
    torch.testing.assert_close(found, (queries * keys).sum(dim=3, keepdim=True) * betas[..., None] * values)
    assert gradients(found, [gates])[0].isfinite().all()


@pytest.mark.parametrize("gated", [False, True])
def test_what_only_later_tokens_make_infinite_is_not_read(gated: bool) -> None:
    queries, keys, values, betas, *gates = (part.detach() for part in delta(9, 32, gated=gated)[2])
    queries, keys = torch.where(torch.arange(9)[:, None, None] < 8, queries * 1e200, keys), keys.clone()
    keys[:, 8] *= 1e200
    found, expected = (
        rule(queries, keys, values, betas, *gates)[0] for rule in (chunked_delta_rule, recurrent_delta_rule)
    )
    torch.testing.assert_close(found[:, :8], expected[:, :8])


@pytest.mark.parametrize(("steps", "gate"), [(1, -50.0), (2, -500.0), (1, -1e4), (2, -1e5)])
def test_no_digits_are_lost_behind_a_gate_that_is_nearly_closed(gate: float, steps: int) -> None:
    tensors = delta(64, 32, steps)[2]
    log_gates = -0.05 * tensors[0].detach().sigmoid()[..., 0]
    log_gates[:, ::16] = gate
    expected = [part.detach() for part in recurrent_delta_rule(*tensors, log_gates)]
    singles = [part.detach().float().requires_grad_() for part in (*tensors, log_gates)]
    found = chunked_delta_rule(*singles)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-6 * float(theirs.abs().max()), rtol=0)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(found, singles))


def test_many_equal_keys_blow_nothing_up() -> None:
    """The worst case of the triangular systems: every write undoes the one before it, and reflects."""
    keys, values, betas = (
        normalize(torch.ones(1, 200, 1, 4), dim=-1),
        drawn(1, 200, 1, 4),
        torch.full((1, 200, 1), 1.99),
    )
    expected, _ = recurrent_delta_rule(keys.double(), keys.double(), values, betas.double())
    found, _ = chunked_delta_rule(keys, keys, values.float(), betas)
    torch.testing.assert_close(found, expected.float(), atol=1e-2, rtol=1e-3)
    r, k, v = (drawn(3, 64, 2, 5, seed=seed) for seed in range(3))
    under = normalize(torch.ones_like(k), dim=-1)
    given = (r, torch.ones_like(k), under, v, -under, under)
    single = rwkv7.chunked_wkv(*(one.float() for one in given))[0]
    torch.testing.assert_close(single.double(), rwkv7.recurrent_wkv(*given)[0], atol=1e-5, rtol=1e-5)


def test_decays_of_nothing_or_nearly_nothing_have_the_gradients_of_the_loop() -> None:
    part = made(mamba2.Mamba2(eigenvalue_range="[-1,1]", head_dim=32), width=16)
    with torch.no_grad():
        part.A_log.zero_()
    near = torch.tensor([1e-9, -1e-12, 1e-3, 0.0, -1e-6, 1e-14], dtype=torch.float64)
    rates = (torch.log(torch.tensor(2.0, dtype=torch.float64)) + near).view(1, 6, 1).requires_grad_()
    rest = drawn(1, 6, 1, 5), drawn(1, 6, 4, seed=1), drawn(1, 6, 4, seed=2)
    found, expected = part.scan(rates, *rest), sequential_ssd(part.decays(rates), *rest)
    torch.testing.assert_close(found[0], expected[0], atol=1e-10, rtol=1e-10)
    [one], [other] = gradients(found, [rates]), gradients(expected, [rates])
    torch.testing.assert_close(one[:, [0, 1, 2, 4, 5]], other[:, [0, 1, 2, 4, 5]], atol=1e-8, rtol=1e-8)
    assert one.isfinite().all()


@pytest.mark.parametrize("eigenvalues", ["[0,1]", "[-1,1]"])
def test_a_layer_of_mamba_2_is_the_loop_over_its_decays_in_rows_of_several_chunks(eigenvalues: Any) -> None:
    part, time = made(mamba2.Mamba2(eigenvalue_range=eigenvalues), width=16), 2 * mamba2.CHUNK_SIZE + 3
    rates = softplus(3 * drawn(2, time, part.heads))
    assert bool((part.decays(rates) < -0.5).any()) == (eigenvalues == "[-1,1]"), "there is something to tell apart"
    rest = drawn(2, time, part.heads, 5), drawn(2, time, 4, seed=1), drawn(2, time, 4, seed=2)
    assert_same(part.scan(rates, *rest), sequential_ssd(part.decays(rates), *rest))


def test_exponentials_that_no_number_holds_are_carried_all_the_same() -> None:
    given = torch.zeros(1, 300, 4, 1, 1)
    given[:, :, 0], given[:, :, 1] = 200.0, 90.0  # i = exp(200), f = exp(90), in fp32
    given[0, 0, 2], given[0, 1:, 2] = 20.0, -20.0
    h = slstm(given.requires_grad_(), torch.zeros(1, 4, 1), False)[0]
    assert h.isfinite().all()
    assert gradients(h, [given])[0].isfinite().all()
    assert h[0, -1].item() == pytest.approx(0.5), "the first token, kept by f^299, outweighs all later ones"


def test_very_long_rows_are_convolved_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _, given = convolution(77)
    expected = fast(*given)
    monkeypatch.setattr(state_space, "FFT_MIN_LENGTH", 10)
    assert_same(fast(*given), expected, given)


# What it costs -------------------------------------------------------------------------------------------------------


def kept_numbers(function: Callable[..., Any], *given: Any) -> list[int]:
    """Sizes of what is kept for the gradient."""
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        function(*given)
    return kept


def test_what_is_kept_for_the_gradient_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MIN_SEQUENTIAL_SIZE", 10**9)
    a, b = drawn(2, 64, 8).requires_grad_(), drawn(2, 64, 8)
    assert sum(kept_numbers(linear_scan, a, b)) == 2 * 2 * 64 * 8, "a and h"
    fast, _, given = selective_forms(64, False, rows=2, chunks=1)
    assert max(kept_numbers(fast, *given)) == 2 * 6 * 4 * 64 // selective.SAVE_INTERVAL


# What goes before and behind -----------------------------------------------------------------------------------------


def test_a_shift_goes_on_behind_the_newest_token_and_padding_becomes_zero() -> None:
    x = torch.arange(1.0, 7).view(2, 3, 1)
    before, newest = shift_tokens(x, None, torch.tensor([2, 3]))
    assert before.flatten().tolist() == [0, 1, 2, 0, 4, 5]
    assert newest.flatten().tolist() == [2, 6]
    assert all(torch.equal(*pair) for pair in zip(shift_tokens(x[:, :1], newest), (newest, x[:, :1]), strict=True))
    ones = torch.ones(2, 3, 1, 2)
    assert zero_padding(ones, torch.tensor([1, 3])).sum((2, 3)).tolist() == [[2, 0, 0], [2, 2, 2]]
    assert zero_padding(ones, None) is ones
    for extreme in (-torch.inf, torch.inf, torch.nan):  # 0 times these is NaN
        assert zero_padding(ones * extreme, torch.tensor([0, 3]))[0].eq(0).all()
        turned = state_space.reverse_rows(torch.tensor([[[1.0], [2.0], [extreme]]]), torch.tensor([2]))
        assert turned.flatten().tolist() == [2, 1, 0]
