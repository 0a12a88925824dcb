"""RWKV-7's time mix against its definition, its equations written out, and the published start."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from numerate.architectures.rwkv import LowRank
from numerate.architectures.rwkv7 import RWKV7, RWKV7Mixer, chunked_wkv, recurrent_wkv
from numerate.errors import UserError
from numerate.kernels.backends import is_fla_installed
from numerate.mixers.mixer import Context


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(time: int, fast: float = 0.0) -> tuple[Tensor, ...]:
    """Decays as the mixer makes them, or with `fast` any from 0 to 1."""
    r, k, v, speeds, under, rate = (drawn(3, time, 2, 5, seed=seed) for seed in range(6))
    decays = (-(fast * speeds).exp()).exp() if fast else (-0.6065 * speeds.sigmoid()).exp()
    under = normalize(under, dim=-1)
    return r, decays, k, v, -under, under * rate.sigmoid()


def made(width: int = 8, layer: int = 0, depth: int = 3, spec: RWKV7 | None = None) -> RWKV7Mixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return (spec or RWKV7(head_dim=4)).build(width, layer, depth, ()).double()


@pytest.mark.parametrize("time", [1, 5, 16, 41])
@pytest.mark.parametrize("fast", [0.0, 6.0])
def test_chunks_are_the_loop_also_for_extreme_decays(time: int, fast: float) -> None:
    given = [one.requires_grad_() for one in (one.detach() for one in inputs(time, fast))]
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


def test_one_key_written_to_over_and_over_stays_exact_in_single_precision() -> None:
    r, decays, k, v, _, _ = inputs(64)
    under = normalize(torch.ones_like(k), dim=-1)
    given = (r, torch.ones_like(decays), under, v, -under, under)
    found = chunked_wkv(*(one.float() for one in given))[0]
    torch.testing.assert_close(found.double(), recurrent_wkv(*given)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("rate", "left"), [(1.0, 5.0), (0.0, 8.0), (0.5, 6.5)])
def test_a_key_written_to_twice_keeps_the_second_value_or_the_sum(rate: float, left: float) -> None:
    ones, v = torch.ones(1, 2, 1, 1), torch.tensor([3.0, 5.0]).view(1, 2, 1, 1)
    for form in (chunked_wkv, recurrent_wkv):
        assert form(ones, ones, ones, v, -ones, rate * ones)[0].flatten().tolist() == [3.0, left]


def test_the_transition_can_turn_a_sign() -> None:
    ones = torch.ones(1, 1, 1, 1)
    state = torch.full((1, 1, 1, 1), 2.0)
    _, after = recurrent_wkv(ones, 0.6 * ones, 0 * ones, ones, -ones, 0.9 * ones, state)
    assert after.item() == pytest.approx(2.0 * (0.6 - 0.9))


@pytest.mark.parametrize("layer", [0, 1])
def test_the_whole_part_is_its_equations_written_out(layer: int) -> None:
    part, x, first = made(layer=layer), drawn(1, 6, 8), drawn(1, 6, 8, seed=7)
    with torch.no_grad():
        part.k_a.copy_(drawn(8, seed=6))
    found = part(x, Context(torch.tensor([6]), (), forward_cache={RWKV7Mixer: first}))
    state, before = torch.zeros(2, 4, 4).double(), torch.zeros(8).double()
    for place in range(6):
        now = x[0, place]
        to_r, to_w, to_k, to_v, to_a, to_g = (before - now) * part.shift_weights.view(6, 8) + now
        before = now
        r, k, v = part.receptance.weight @ to_r, part.key.weight @ to_k, part.value.weight @ to_v
        w = (-math.exp(-0.5) * torch.sigmoid(bent(part.w_lora, to_w, torch.tanh))).exp()
        a = torch.sigmoid(bent(part.a_lora, to_a))
        if part.v_lora is not None:
            v = v + (first[0, place] - v) * torch.sigmoid(bent(part.v_lora, to_v))
        under = normalize((k * part.k_k).view(2, 4), dim=-1)
        k = k * (1 + (a - 1) * part.k_a)
        r, k, v, w, a = (one.view(2, 4) for one in (r, k, v, w, a))
        turn = torch.diag_embed(w) - (a * under)[:, :, None] * under[:, None]
        state = turn @ state + k[:, :, None] * v[:, None]
        output = (state * r[:, :, None]).sum(1)
        normed = nn.functional.group_norm(output.view(1, 8), 2, part.ln_x.weight, part.ln_x.bias, eps=4e-5)[0]
        own = ((r * k * part.r_k.view(2, 4)).sum(1, keepdim=True) * v).view(8)
        expected = part.output.weight @ ((normed + own) * bent(part.g_lora, to_g, torch.sigmoid))
        torch.testing.assert_close(found[0, place], expected, atol=1e-11, rtol=1e-11)


def bent(low: LowRank, x: Tensor, between: Callable[[Tensor], Tensor] = lambda one: one) -> Tensor:
    out: Tensor = between(x @ low.down) @ low.up
    return out if low.bias is None else out + low.bias


@pytest.mark.parametrize("form", ["forward", "prefill", "step"])
def test_later_layers_mix_in_the_values_of_the_first(form: str) -> None:
    first, later, x = made(), made(layer=1), drawn(2, 1, 8)
    outputs = []
    for values in (x, 2 * x):
        context = Context(torch.tensor([1, 1]), ())
        for part, given in ((first, values), (later, x)):
            more = ((torch.zeros(2, 1, 8).double(), torch.zeros(2, 2, 4, 4).double()),) if form == "step" else ()
            out = getattr(part, form)(given, context, *more)
            out = out if form == "forward" else out[0]
        outputs.append(out)
    assert not torch.allclose(*outputs), "the first layer's values change what the second says"


def test_the_published_start_in_the_middle_of_three_layers() -> None:
    part = made(width=10, layer=1, spec=RWKV7(head_dim=5, published_initialization=True))
    channel, zigzag = torch.arange(10) / 9, torch.tensor([-1, -0.25, 0, 0.25, 1] * 2)
    assert part.v_lora is not None
    for found, expected in (
        (part.w_lora.bias, -6 + 6 * channel ** (1 + 0.5**0.3) + 0.5 + 2.5 * zigzag),
        (part.a_lora.bias, -0.19 + 0.3 * zigzag + 0.4 * (channel - 0.5)),
        (part.v_lora.bias, 0.73 - 0.4 * (channel - 0.5)),
        (part.k_k, 0.71 - 0.1 * (channel - 0.5)),
        (part.shift_weights[:10], 1 - (torch.arange(10) / 10) ** (0.2 * 2 / 3)),
        (part.shift_weights[10:20], 1 - (torch.arange(10) / 10) ** (0.9 * 2 / 3)),
    ):
        assert found is not None
        torch.testing.assert_close(found.detach(), expected.double(), atol=1e-5, rtol=0)
    assert part.r_k.tolist() == pytest.approx([-0.04] * 10)
    assert part.k_a.tolist() == pytest.approx([1.02] * 10)
    for zero in (part.w_lora.down, part.a_lora.down, part.v_lora.down, part.g_lora.down, part.output.weight):
        assert not zero.any()
    for linear, bound in ((part.receptance, 0.5), (part.key, 0.05), (part.value, 0.5)):
        assert 0.9 * bound < float(linear.weight.detach().abs().max()) * 10**0.5 <= bound
    up = part.w_lora.up  # 32 x 10: its columns are orthogonal, of length 0.1 root(3.2)
    torch.testing.assert_close(up.T @ up, 0.032 * torch.eye(10).double(), atol=1e-6, rtol=0)
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()}


def test_ranks_follow_the_width_as_the_authors_suggest() -> None:
    part = made(width=768, layer=1, spec=RWKV7())
    assert part.v_lora is not None
    ranks = [low.down.shape[1] for low in (part.w_lora, part.a_lora, part.v_lora, part.g_lora)]
    assert ranks == [64, 64, 32, 128]
    assert made(width=64, spec=RWKV7(gate_rank=5)).g_lora.down.shape == (64, 5)


def test_the_model_draws_the_maps_unless_they_begin_as_published() -> None:
    part = made()
    linear = {f"{name}.weight" for name in ("receptance", "key", "value", "output")}
    assert {name for name, _ in part.named_parameters()} - part.self_initialized_parameters() == linear
    wishes = part.optimizer_options_by_parameter()
    assert wishes["w_lora.bias"] == (2.0, False)
    assert {wish for name, wish in wishes.items() if name != "w_lora.bias"} == {(1.0, False)}
    assert part.v_lora is None, "the first layer has no values to mix in"
    assert not part.k_a.any(), "written keys begin as they are"
    assert part.a_lora.bias is not None
    assert float(part.a_lora.bias.detach().sigmoid().mean()) == pytest.approx(0.1, abs=0.02)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"backend: fla (needs the package|runs in fp32)"):
        made(spec=RWKV7(backend="fla"))(drawn(1, 3, 8), Context(torch.tensor([3]), ()))


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_fla_installed()), reason="flash-linear-attention needs a CUDA device"
)
def test_the_kernel_is_the_form_in_torch() -> None:
    parts = [made(64, spec=RWKV7(head_dim=32, backend=kernel)).float().cuda() for kernel in ("fla", "torch")]
    x, context = drawn(2, 70, 64).float().cuda(), Context(torch.tensor([70, 33], device="cuda"), ())
    (output, (_, state)), (expected, (_, last)) = (part.prefill(x, context) for part in parts)
    torch.testing.assert_close(output[0], expected[0], atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(state, last, atol=3e-2, rtol=3e-2)
