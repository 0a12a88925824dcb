"""RWKV-6's time mix against its definition, the sum written out, and the published start."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.rwkv6 import RWKV6, RWKV6Mixer, chunked_wkv, recurrent_wkv
from numerate.errors import UserError
from numerate.kernels.backends import is_fla_installed
from numerate.mixers.alternating import Alternating
from numerate.mixers.mixer import Context
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.vocabulary import Vocabulary


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(time: int, fast: float = 1.0) -> tuple[Tensor, ...]:
    r, k, v, decays = (drawn(3, time, 2, 5, seed=seed) for seed in range(4))
    return r, (-(fast * decays).exp()).exp(), k, v, drawn(2, 5, seed=4)


def made(width: int = 8, layer: int = 1, depth: int = 3, spec: RWKV6 | None = None) -> RWKV6Mixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return (spec or RWKV6(head_dim=4, decay_rank=3, shift_rank=2)).build(width, layer, depth, ()).double()


def test_it_is_the_sum_over_all_earlier_tokens_written_out() -> None:
    r, decays, k, v, bonus = inputs(7)
    found = chunked_wkv(r, decays, k, v, bonus)[0]
    for place in range(7):
        expected = (r[:, place] * bonus * k[:, place]).sum(-1, keepdim=True) * v[:, place]
        for early in range(place):
            through = decays[:, early + 1 : place].prod(1)
            expected = expected + (r[:, place] * through * k[:, early]).sum(-1, keepdim=True) * v[:, early]
        torch.testing.assert_close(found[:, place], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_the_worked_example_of_its_docstring(bonus: float) -> None:
    ones = torch.ones(1, 2, 1, 1)
    found = chunked_wkv(ones, 0.5 * ones, ones, ones, torch.full((1, 1), bonus))[0]
    assert found.flatten().tolist() == [bonus, bonus + 1]


@pytest.mark.parametrize("time", [1, 5, 16, 41])
@pytest.mark.parametrize("fast", [1.0, 6.0])
def test_chunks_are_the_loop_also_for_extreme_decays(time: int, fast: float) -> None:
    given = [one.requires_grad_() for one in inputs(time, fast)]
    (found, state), (expected, last) = chunked_wkv(*given), recurrent_wkv(*given)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(state, last, atol=1e-9, rtol=1e-9)
    slopes, truth = (
        torch.autograd.grad((y * drawn(*y.shape, seed=8)).sum() + (s * drawn(*s.shape, seed=9)).sum(), given)
        for y, s in ((found, state), (expected, last))
    )
    for slope, true in zip(slopes, truth, strict=True):
        assert slope.isfinite().all()
        torch.testing.assert_close(slope, true, atol=1e-9, rtol=1e-9)


def test_the_whole_part_is_its_equations_written_out() -> None:
    part, x = made(), drawn(1, 6, 8)
    found = part(x, Context(torch.tensor([6]), ()))
    state, before = torch.zeros(2, 4, 4).double(), torch.zeros(8).double()
    for place in range(6):
        now = x[0, place]
        delta, before = before - now, now
        shift = part.token_shift
        low = torch.tanh((now + delta * shift.time_maa_x) @ shift.time_maa_w1).view(5, 2)
        shares = shift.shift_weights.view(5, 8) + torch.stack([low[i] @ shift.time_maa_w2[i] for i in range(5)])
        to_w, to_k, to_v, to_r, to_g = (now + delta * share for share in shares)
        speed = part.time_decay.bias + torch.tanh(to_w @ part.time_decay.down) @ part.time_decay.up
        w = (-speed.exp()).exp().view(2, 4)
        r, k, v = (
            (linear.weight @ one).view(2, 4)
            for linear, one in ((part.receptance, to_r), (part.key, to_k), (part.value, to_v))
        )
        pair = k[:, :, None] * v[:, None]
        output = ((state + part.time_faaaa.view(2, 4, 1) * pair) * r[:, :, None]).sum(1)
        state = w[:, :, None] * state + pair
        normed = nn.functional.group_norm(output.view(1, 8), 2, part.ln_x.weight, part.ln_x.bias, eps=4e-5)[0]
        expected = part.output.weight @ (normed * silu(part.gate.weight @ to_g))
        torch.testing.assert_close(found[0, place], expected, atol=1e-11, rtol=1e-11)


def test_the_published_start_in_the_middle_of_three_layers() -> None:
    part = made(width=10, spec=RWKV6(head_dim=5, published_initialization=True))
    assert float(part.time_decay.bias[0].detach()) == -6
    assert float(part.time_decay.bias[9].detach()) == pytest.approx(-1)
    assert part.time_faaaa[[0, 1, 9]].tolist() == pytest.approx([0.5, 0.5 * 8 / 9 + 0.1, 0.0])
    plain, soft = 1 - (torch.arange(10) / 10) ** (2 / 3), 1 - (torch.arange(10) / 10) ** (1 / 3)
    expected = torch.cat([plain, plain, plain - 0.15, soft, soft]).double()
    torch.testing.assert_close(part.token_shift.shift_weights.detach(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(part.token_shift.time_maa_x.detach(), plain.double(), atol=1e-6, rtol=0)
    for zero in (part.token_shift.time_maa_w1, part.time_decay.down, part.output.weight):
        assert not zero.any()
    for up in (part.token_shift.time_maa_w2, part.time_decay.up):
        assert 0.009 < float(up.detach().abs().max()) <= 0.01
    for linear, gain in ((part.receptance, 1.0), (part.key, 0.1), (part.value, 1.0), (part.gate, 0.1)):
        product = linear.weight @ linear.weight.T
        torch.testing.assert_close(product, gain**2 * torch.eye(10).double(), atol=1e-5, rtol=0)
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()}


def test_the_model_draws_the_maps_unless_they_begin_as_published() -> None:
    part = made()
    linear = {f"{name}.weight" for name in ("receptance", "key", "value", "gate", "output")}
    assert {name for name, _ in part.named_parameters()} - part.self_initialized_parameters() == linear
    wishes = part.optimizer_options_by_parameter()
    assert wishes["time_decay.bias"] == (2.0, False)
    assert set(wishes) == part.self_initialized_parameters()
    assert {wish for name, wish in wishes.items() if name != "time_decay.bias"} == {(1.0, False)}


def test_the_published_model_of_inductive_counting_has_1_116_416_parameters() -> None:
    mixer = Alternating((RWKV6(published_initialization=True), ChannelMix(version=6, published_initialization=True)))
    spec = Decoder(hidden_size=128, backbone=Stack(num_layers=8), mixer=mixer, feed_forward=None, embedding_norm=True)
    texts = [chr(200 + number) for number in range(103 - 14)]
    model = spec.build(Vocabulary.with_digits(texts), seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_116_416


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"backend: fla (needs the package|runs in fp32)"):
        made(spec=RWKV6(backend="fla"))(drawn(1, 3, 8), Context(torch.tensor([3]), ()))


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_fla_installed()), reason="flash-linear-attention needs a CUDA device"
)
def test_the_kernel_is_the_form_in_torch() -> None:
    parts = [made(64, spec=RWKV6(head_dim=32, backend=kernel)).float().cuda() for kernel in ("fla", "torch")]
    x, context = drawn(2, 70, 64).float().cuda(), Context(torch.tensor([70, 33], device="cuda"), ())
    (output, (_, state)), (expected, (_, last)) = (part.prefill(x, context) for part in parts)
    torch.testing.assert_close(output[0], expected[0], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(state, last, atol=2e-2, rtol=2e-2)
