"""Mamba-2's matrix products against its loop, its layer against that of transformers, and its own initialisation."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from numerate.architectures.mamba2 import (
    CHUNK_SIZE,
    Mamba2,
    Mamba2Mixer,
    chunked_scan,
    chunked_scan_fla,
    scan_step,
)
from numerate.errors import UserError
from numerate.kernels import backends as kernels
from numerate.mixers.mixer import Context

EXACT = {"atol": 1e-10, "rtol": 1e-10}
ON_A_DEVICE = pytest.mark.skipif(
    not (torch.cuda.is_available() and kernels.is_fla_installed()), reason="needs a GPU and flash-linear-attention"
)


def made(width: int = 16, **settings: Any) -> Mamba2Mixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Mamba2(**settings).build(width, 0, 2, ())


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scanned(time: int, heads: int = 3, head_width: int = 5, states: int = 4) -> list[Tensor]:
    """Decays, inputs, B and C of two rows."""
    sizes = [(2, time, heads), (2, time, heads, head_width), (2, time, states), (2, time, states)]
    decays, *rest = (numbers(*size, seed=seed) for seed, size in enumerate(sizes))
    return [part.requires_grad_() for part in (decays.sigmoid(), *rest)]


def recurrent_scan(decays: Tensor, inputs: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence step by step, from the decays themselves."""
    memory = inputs.new_zeros(len(inputs), inputs.shape[2], B.shape[2], inputs.shape[3])
    outputs = []
    for time in range(inputs.shape[1]):
        one, memory = scan_step(decays[:, time], inputs[:, time], B[:, time], C[:, time], memory)
        outputs.append(one)
    return torch.stack(outputs, dim=1), memory


def gradients(found: tuple[Tensor, Tensor], parts: list[Tensor]) -> tuple[Tensor, ...]:
    total = sum((one * numbers(*one.shape, seed=5)).sum() for one in found)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, parts)


def context(*lengths: int) -> Context:
    return Context(torch.tensor(lengths), ())


@pytest.mark.parametrize("time", [1, 4, 7, 12])
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_the_products_and_their_gradients_are_those_of_the_loop(time: int, chunk: int) -> None:
    decays, *rest = parts = scanned(time)
    found, expected = chunked_scan(decays.log(), *rest, chunk_size=chunk), recurrent_scan(decays, *rest)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    for one, other in zip(gradients(found, parts), gradients(expected, parts), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("eigenvalues", ["[0,1]", "[-1,1]"])
def test_the_layer_is_the_loop_over_its_decays_in_rows_of_several_chunks(eigenvalues: Any) -> None:
    part, time = made(eigenvalue_range=eigenvalues).double(), 2 * CHUNK_SIZE + 3
    rates = softplus(3 * numbers(2, time, part.heads))
    decays = part.decays(rates)
    assert bool((decays < -0.5).any()) == (eigenvalues == "[-1,1]"), "there is something to tell apart"
    rest = [part.detach() for part in scanned(time, heads=part.heads)[1:]]
    for one, other in zip(part.scan(rates, *rest), recurrent_scan(decays, *rest), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_decays_of_nothing_or_nearly_nothing_have_the_gradients_of_the_loop() -> None:
    part = made(eigenvalue_range="[-1,1]", head_dim=32).double()
    assert part.heads == 1
    with torch.no_grad():
        part.A_log.zero_()
    near = torch.tensor([1e-9, -1e-12, 1e-3, 0.0, -1e-6, 1e-14], dtype=torch.float64)
    rates = (torch.log(torch.tensor(2.0, dtype=torch.float64)) + near).view(1, 6, 1).requires_grad_()
    rest = [part.detach()[:1] for part in scanned(6, heads=1)[1:]]
    found, expected = part.scan(rates, *rest), recurrent_scan(part.decays(rates), *rest)
    torch.testing.assert_close(found[0], expected[0], **EXACT)
    [one], [other] = gradients(found, [rates]), gradients(expected, [rates])
    torch.testing.assert_close(one[:, [0, 1, 2, 4, 5]], other[:, [0, 1, 2, 4, 5]], atol=1e-8, rtol=1e-8)
    assert one.isfinite().all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("head_width", [4, 32])
def test_it_is_the_layer_of_transformers(head_width: int) -> None:
    models = pytest.importorskip("transformers.models.mamba2.modeling_mamba2", reason="compares with transformers")
    from transformers import Mamba2Config

    part = made(head_dim=head_width).double()
    config = Mamba2Config(
        hidden_size=16, num_heads=32 // head_width, head_dim=head_width, n_groups=1, chunk_size=4, vocab_size=8
    )
    theirs = models.Mamba2Mixer(config, 0).double()
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            parameter.add_(0.1 * numbers(*parameter.shape, seed=len(name)))
    own = part.state_dict()
    renamed = {
        "A_log": own["A_log"],
        "D": own["D"],
        "dt_bias": own["dt_bias"],
        "conv1d.weight": own["conv1d.weight"].T[:, None],
        "conv1d.bias": own["conv1d.bias"],
        "in_proj.weight": own["in_proj.weight"],
        "norm.weight": own["norm_weight"],
        "out_proj.weight": own["out_proj.weight"],
    }
    theirs.load_state_dict(renamed)
    x = numbers(2, 11, 16)
    # Theirs computes the recurrence and the norm in single precision whatever it is given.
    torch.testing.assert_close(part(x, context(11, 11)), theirs(x), atol=1e-5, rtol=1e-5)


def test_its_own_initialisation_is_the_published_one() -> None:
    part = made(128, head_dim=1)
    decays = part.A_log.detach().exp()
    assert 1 <= float(decays.min()) < 1.5
    assert 15.5 < float(decays.max()) <= 16
    assert float(decays.mean()) == pytest.approx(8.5, abs=1)
    rates = softplus(part.dt_bias.detach())
    assert 0.00099 < float(rates.min()) < 0.0013
    assert 0.08 < float(rates.max()) < 0.101
    assert float(rates.log().mean()) == pytest.approx(-4.6, abs=0.2), "log-uniform: the middle is 0.01"
    assert torch.equal(part.D, torch.ones(256))


@pytest.mark.parametrize(
    ("width", "heads", "head_width"), [(1, 2, 1), (10, 4, 5), (16, 4, 8), (64, 4, 32), (256, 8, 64)]
)
def test_heads_divide_the_channels_of_any_width(width: int, heads: int, head_width: int) -> None:
    part = made(width)
    assert (part.heads, part.head_width) == (heads, head_width)


def test_heads_that_do_not_divide_are_refused_with_those_that_do() -> None:
    with pytest.raises(
        UserError,
        match=r"^model.mixer.head_dim: must divide expand \* hidden_size=32, not 5; possible values: 1, 2, 4, 8, 16",
    ):
        made(16, head_dim=5)


def test_a_kernel_that_cannot_run_here_is_refused() -> None:
    with pytest.raises(UserError, match=r"model.mixer.backend: fla"):
        made(backend="fla")(torch.zeros(1, 3, 16), context(3))


@ON_A_DEVICE
@pytest.mark.parametrize("time", [5, 130])
def test_the_kernel_is_the_products(time: int) -> None:
    decays, *rest = (part.detach().float().cuda() for part in scanned(time, head_width=32, states=64))
    parts = [part.requires_grad_() for part in (decays.log(), *rest)]
    found, expected = chunked_scan_fla(*parts), chunked_scan(*parts)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-2)
    totals = [(output * torch.ones_like(output)).sum() for output, _ in (found, expected)]
    for one, other in zip(*(torch.autograd.grad(total, parts) for total in totals), strict=True):
        torch.testing.assert_close(one, other, atol=5e-2, rtol=2e-2)
