"""Mamba's scan against its loop, its layer against that of transformers, and its own initialisation."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

import numerate.kernels.selective_scan as scans
from numerate.architectures.mamba import Mamba, MambaMixer
from numerate.kernels.selective_scan import scan_step, selective_scan
from numerate.mixers.mixer import Context
from numerate.models.decoder import Decoder
from numerate.vocabulary import Vocabulary

EXACT = {"atol": 1e-10, "rtol": 1e-10}


def made(width: int = 16, **settings: Any) -> MambaMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Mamba(**settings).build(width, 0, 2, ())


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scanned(time: int, rows: int = 3, channels: int = 6, states: int = 4, seed: int = 0) -> list[Tensor]:
    """Rates, inputs, B, C and decays of a scan."""
    sizes = [(rows, time, channels)] * 2 + [(rows, time, states)] * 2
    rates, *rest = (numbers(*size, seed=seed + number) for number, size in enumerate(sizes))
    found = [softplus(rates), *rest, -numbers(states, channels, seed=seed + 9).exp()]
    return [part.requires_grad_() for part in found]


def gradients(found: tuple[Tensor, Tensor], parts: list[Tensor]) -> tuple[Tensor, ...]:
    total = sum((one * numbers(*one.shape, seed=5)).sum() for one in found)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, parts)


def sequential_scan(
    dt: Tensor, inputs: Tensor, B: Tensor, C: Tensor, A: Tensor, signed: bool = False
) -> tuple[Tensor, Tensor]:
    """`selective_scan` step by step."""
    state, outputs = A.new_zeros(len(dt), *A.shape), []
    for time in range(dt.shape[1]):
        one, state = scan_step(dt[:, time], inputs[:, time], B[:, time], C[:, time], A, state, signed)
        outputs.append(one)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("time", [1, 3, 4, 8, 13])
@pytest.mark.parametrize(("rows", "chunks"), [(3, 1), (3, 2), (3, 3), (3, 5), (3, None), (1, 1), (1, 2)])
def test_the_scan_and_its_gradient_are_those_of_the_loop(
    signed: bool, time: int, rows: int, chunks: int | None
) -> None:
    parts = scanned(time, rows)
    found, expected = selective_scan(*parts, signed, chunks), sequential_scan(*parts, signed)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    for one, other in zip(gradients(found, parts), gradients(expected, parts), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("rows", [1, 40])
def test_rows_are_cut_into_chunks_only_where_there_is_little_to_do(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[int] = []
    cut = scans._split_chunks
    monkeypatch.setattr(scans, "_split_chunks", lambda x, count: (chunks.append(count), cut(x, count))[1])
    selective_scan(*scanned(16, rows=rows, channels=32, states=16))
    assert set(chunks) == {4 if rows == 1 else 1}


@pytest.mark.parametrize("chunks", [1, 2, 6])
def test_scans_that_are_stacked_are_those_of_each_alone(chunks: int) -> None:
    """Three models' scans as one, with decays of their own, and with one decay for all."""
    alone = [scanned(13, rows=2, seed=seed) for seed in (0, 10, 20)]
    stacked = [torch.stack(parts) for parts in zip(*alone, strict=True)]
    found = torch.vmap(lambda *parts: selective_scan(*parts, True, chunks))(*stacked)
    for model, parts in enumerate(alone):
        for one, other in zip(found, sequential_scan(*parts, True), strict=True):
            torch.testing.assert_close(one[model], other, **EXACT)
    leaves = [part for parts in alone for part in parts]
    expected = tuple(
        torch.stack(output) for output in zip(*(sequential_scan(*parts, True) for parts in alone), strict=True)
    )
    for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    shared = torch.vmap(lambda *parts: selective_scan(*parts, alone[1][4], True, chunks))(*stacked[:4])
    torch.testing.assert_close(shared[0][1], found[0][1], **EXACT)


def test_where_rates_and_inputs_are_zero_the_state_stands_still() -> None:
    for signed in (False, True):
        dt, inputs, B, C, A = (part.detach() for part in scanned(9))
        dt[:, 5:] = inputs[:, 5:] = 0
        _, last = selective_scan(dt, inputs, B, C, A, signed)
        _, expected = selective_scan(*(part[:, :5] for part in (dt, inputs, B, C)), A, signed)
        torch.testing.assert_close(last, expected, **EXACT)


def test_what_is_kept_for_the_gradient_is_few_states() -> None:
    parts, saved = scanned(64, rows=2, channels=8, states=16), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.numel()), x)[1], lambda x: x):
        selective_scan(*parts, num_chunks=1)
    assert max(saved) == 2 * 8 * 16 * 64 // scans.SAVE_INTERVAL


def test_a_forward_without_gradients_says_the_same() -> None:
    parts = scanned(7)
    with torch.no_grad():
        found = selective_scan(*parts)
    torch.testing.assert_close(found[0], selective_scan(*parts)[0], **EXACT)


@pytest.mark.filterwarnings("ignore")
def test_it_is_the_layer_of_transformers() -> None:
    models = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="compares with transformers")
    from transformers import MambaConfig

    config = MambaConfig(hidden_size=16, state_size=16, num_hidden_layers=1, use_mambapy=False, vocab_size=8)
    theirs = models.MambaMixer(config, 0).double()
    part = made().double()
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            parameter.add_(0.1 * numbers(*parameter.shape, seed=len(name)))
    own = part.state_dict()
    renamed = {
        "A_log": own["A_log"].T,
        "D": own["D"],
        "conv1d.weight": own["conv1d.weight"].T[:, None],
        "conv1d.bias": own["conv1d.bias"],
        "in_proj.weight": own["in_proj.weight"],
        "x_proj.weight": own["x_proj.weight"],
        "dt_proj.weight": own["dt_proj.weight"],
        "dt_proj.bias": own["dt_proj.bias"],
        "out_proj.weight": own["out_proj.weight"],
    }
    theirs.load_state_dict(renamed)
    x = numbers(2, 11, 16)
    # Theirs computes the recurrence in single precision whatever it is given.
    torch.testing.assert_close(part(x, Context(torch.tensor([11, 11]), ())), theirs(x), atol=1e-5, rtol=1e-5)


def test_its_own_initialisation_is_the_published_one() -> None:
    part = made(128)
    assert torch.allclose(part.A_log.exp(), torch.arange(1.0, 17)[:, None].expand(16, 256))
    assert torch.equal(part.D, torch.ones(256))
    rates = softplus(part.dt_proj.bias.detach())
    assert 0.00099 < float(rates.min()) < 0.0013
    assert 0.08 < float(rates.max()) < 0.101
    assert float(rates.log().mean()) == pytest.approx(-4.6, abs=0.2), "log-uniform: the middle is 0.01"
    assert part.dt_proj.weight.shape == (256, 8)
    assert 0.34 < float(part.dt_proj.weight.detach().abs().max()) <= 8**-0.5
    assert part.optimizer_options_by_parameter() == {"A_log": (1.0, False), "D": (1.0, False)}


def test_the_published_model_has_246528_parameters() -> None:
    spec = Decoder(hidden_size=128, norm="rms", feed_forward=None, tie_word_embeddings=True, mixer=Mamba())
    model = spec.build(Vocabulary.with_digits([f"w{number}" for number in range(89)]), seed=0)
    assert model.embedding.weight.shape[0] == 103
    assert sum(parameter.numel() for parameter in model.parameters()) == 246_528


def parity_wishes(signed: bool) -> tuple[Tensor, Tensor]:
    """The output, and the parity of the ones so far as +-1, by a scan with set weights: a one has the least decay, a
    zero 1."""
    bits = torch.tensor([[1.0, 0, 1, 1, 0, 0, 1, 1, 1, 0]], dtype=torch.float64)
    rates = torch.cat([torch.zeros(1, 1, dtype=torch.float64), 50 * bits], dim=1)[..., None]
    first = torch.zeros(1, 11, 1, dtype=torch.float64)
    first[:, 0] = 1
    ones = torch.ones(1, 11, 1, dtype=torch.float64)
    output, _ = selective_scan(rates, first, ones, ones, -torch.ones(1, 1, dtype=torch.float64), signed)
    return output[0, 1:, 0], (1 - 2 * (bits.cumsum(1) % 2))[0]


def test_a_negative_eigenvalue_follows_a_parity_and_a_positive_one_does_not() -> None:
    output, parity = parity_wishes(signed=True)
    torch.testing.assert_close(output, parity, atol=1e-9, rtol=0)
    output, _ = parity_wishes(signed=False)
    assert (output >= 0).all()


def test_half_precision_keeps_the_recurrence_whole() -> None:
    part, x = made(), numbers(2, 40, 16).float()
    context = Context(torch.tensor([40, 40]), ())
    with torch.autocast("cpu", torch.bfloat16):
        found = part(x, context)
    found.float().square().sum().backward()
    torch.testing.assert_close(found.float(), part(x, context), atol=0.02, rtol=0.05)
    assert part.A_log.grad is not None
    assert part.A_log.grad.isfinite().all()


def test_it_costs_what_its_matrices_and_states_cost() -> None:
    part = made()
    matrices = sum(parameter.numel() for name, parameter in part.named_parameters() if "weight" in name)
    assert part.flops(10) == 10 * (2 * matrices + 8 * 32 * 16)
