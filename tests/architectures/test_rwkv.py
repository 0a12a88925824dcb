"""RWKV: the time mixes of all versions written out, their published beginnings, and channels that forget at once."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import group_norm, normalize, silu

from layers import assert_same, context, drawn, load_from, made, read
from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.rwkv import (
    LowRank,
    apply_token_shift,
    compute_num_heads,
    decayed_scores,
    initial_shift_weights,
)
from numerate.architectures.rwkv6 import RWKV6
from numerate.architectures.rwkv7 import RWKV7, RWKV7Mixer

EXACT = {"atol": 1e-11, "rtol": 1e-11}
SMALL_6 = RWKV6(head_dim=4, decay_rank=3, shift_rank=2)


# Channels that forget at once ----------------------------------------------------------------------------------------


def test_behind_padding_the_state_of_a_row_stays_where_channels_forget_all_at_once() -> None:
    """Their decays have the logarithm minus infinity."""
    part, x = made(SMALL_6, width=8, noise=0.3), drawn(2, 9, 8)
    part.time_decay.bias.data.fill_(1000.0)
    _, (_, together) = part.prefill(x, context([9, 4]))
    for row, length in enumerate((9, 4)):
        _, (_, alone) = part.prefill(x[row : row + 1, :length], context([length]))
        assert_same(together[row], alone[0], **EXACT)
        assert alone.isfinite().all()


def test_a_channel_that_forgets_all_at_once_makes_nothing_infinite() -> None:
    decays = torch.ones(1, 8, 2)
    decays[0, 3, 0] = 0.0
    decays[0, :, 1] = 1e-38
    decays.requires_grad_()
    products = decayed_scores(torch.ones(1, 8, 1, 2), torch.ones(1, 8, 1, 2), decays)[0].view(8, 8)
    assert products.isfinite().all()
    assert products[4, 3] == 2.0, "the decay of the key's own place is not between the two"
    assert products[5, 2] == 0.0
    assert torch.autograd.grad(products.sum(), decays)[0].isfinite().all()


# Parts ---------------------------------------------------------------------------------------------------------------


def test_token_shift_takes_its_share_of_the_token_before_and_begins_with_it_alone() -> None:
    x, before = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 6.0]]])
    whole, half = apply_token_shift(x, before, torch.tensor([0.0, 0.0, 0.5, 0.25]))
    assert (whole.tolist(), half.tolist()) == ([[[1.0, 2.0]]], [[[2.0, 3.0]]])
    assert initial_shift_weights(4, 1.0).tolist() == [1.0, 0.75, 0.5, 0.25]
    assert initial_shift_weights(4, 0.5)[1] == 0.5


def test_heads_have_64_channels_by_default() -> None:
    assert [compute_num_heads(width, None) for width in (16, 64, 128)] == [1, 1, 2]
    assert compute_num_heads(48, 16) == 3


def test_hidden_widths_of_the_channel_mix_are_the_published_ones() -> None:
    widths = [made(ChannelMix(version), 128).key.out_features for version in (4, 6, 7)]
    assert widths == [512, 448, 512]
    assert made(ChannelMix(6, expansion=2.0), 128).key.out_features == 256


# Written out ---------------------------------------------------------------------------------------------------------


def test_the_channel_mix_is_its_equations_written_out() -> None:
    gated, plain = (made(ChannelMix(version), 4, layer=1, depth=3) for version in (4, 7))
    x = drawn(1, 2, 4)

    def shifted(share: Tensor) -> Tensor:
        return x[0, 0] * share + x[0, 1] * (1 - share)

    for_keys, for_gate = gated.shift_weights.view(2, 4)
    hidden = torch.relu(gated.key.weight @ shifted(for_keys)) ** 2
    expected = torch.sigmoid(gated.receptance.weight @ shifted(for_gate)) * (gated.value.weight @ hidden)
    assert_same(read(gated, x)[0, 1], expected, **EXACT)
    hidden = torch.relu(plain.key.weight @ shifted(plain.shift_weights)) ** 2
    assert_same(read(plain, x)[0, 1], plain.value.weight @ hidden, **EXACT)
    assert plain.receptance is None


def test_the_whole_of_version_6_is_its_equations_written_out() -> None:
    part, x = made(SMALL_6, 8, layer=1, depth=3), drawn(1, 6, 8)
    found, shift = read(part, x), part.token_shift
    state, before = torch.zeros(2, 4, 4).double(), torch.zeros(8).double()
    for place in range(6):
        now = x[0, place]
        delta, before = before - now, now
        low = torch.tanh((now + delta * shift.time_maa_x) @ shift.time_maa_w1).view(5, 2)
        shares = shift.shift_weights.view(5, 8) + torch.stack([low[i] @ shift.time_maa_w2[i] for i in range(5)])
        to_w, to_k, to_v, to_r, to_g = (now + delta * share for share in shares)
        w = (-bent(part.time_decay, to_w, torch.tanh).exp()).exp().view(2, 4)
        r, k, v = (
            (linear.weight @ one).view(2, 4)
            for linear, one in ((part.receptance, to_r), (part.key, to_k), (part.value, to_v))
        )
        pair = k[:, :, None] * v[:, None]
        output = ((state + part.time_faaaa.view(2, 4, 1) * pair) * r[:, :, None]).sum(1)
        state = w[:, :, None] * state + pair
        normed = group_norm(output.view(1, 8), 2, part.ln_x.weight, part.ln_x.bias, eps=4e-5)[0]
        assert_same(found[0, place], part.output.weight @ (normed * silu(part.gate.weight @ to_g)), **EXACT)


def bent(low: LowRank, x: Tensor, between: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """A map of low rank, written out."""
    return between(x @ low.down) @ low.up + (0 if low.bias is None else low.bias)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_whole_of_version_7_is_its_equations_written_out(layer: int) -> None:
    part, x, first = made(RWKV7(head_dim=4), 8, layer, depth=3), drawn(1, 6, 8), drawn(1, 6, 8, seed=7)
    load_from(part, {"k_a": drawn(8, seed=6)})
    found = read(part, x, forward_cache={RWKV7Mixer: first})
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
        normed = group_norm(output.view(1, 8), 2, part.ln_x.weight, part.ln_x.bias, eps=4e-5)[0]
        own = ((r * k * part.r_k.view(2, 4)).sum(1, keepdim=True) * v).view(8)
        expected = part.output.weight @ ((normed + own) * bent(part.g_lora, to_g, torch.sigmoid))
        assert_same(found[0, place], expected, **EXACT)


@pytest.mark.parametrize("form", ["forward", "prefill", "step"])
def test_later_layers_of_version_7_mix_the_values_of_the_first_in(form: str) -> None:
    first, later = (made(RWKV7(head_dim=4), 8, layer, depth=3) for layer in (0, 1))
    x, outputs = drawn(2, 1, 8), []
    for values in (x, 2 * x):
        here = context([1, 1])
        for part, given in ((first, values), (later, x)):
            more = ((torch.zeros(2, 1, 8).double(), torch.zeros(2, 2, 4, 4).double()),) if form == "step" else ()
            out = getattr(part, form)(given, here, *more)
        outputs.append(out if form == "forward" else out[0])
    assert not torch.allclose(*outputs), "the first layer's values change what the second says"


# As published --------------------------------------------------------------------------------------------------------

PUBLISHED = [
    RWKV6(head_dim=5, published_initialization=True),
    RWKV7(head_dim=5, published_initialization=True),
    *(ChannelMix(version, published_initialization=True) for version in (4, 6, 7)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("spec", PUBLISHED, ids=lambda spec: f"{type(spec).__name__} {getattr(spec, 'version', '')}")
def test_as_published_it_says_nothing_at_first_and_the_model_draws_no_map(spec: Any) -> None:
    part = made(spec, 10, layer=1, depth=3)
    assert not read(part, drawn(1, 3, 10), forward_cache={RWKV7Mixer: drawn(1, 3, 10)}).any()
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()}
    if isinstance(spec, ChannelMix):
        assert part.key.weight.any()
        power = (2 / 3) ** 4 if spec.version == 7 else 2 / 3
        assert float(part.shift_weights[5].detach()) == pytest.approx(1 - 0.5**power)


def test_version_6_begins_as_published_in_the_middle_of_three_layers() -> None:
    part = made(PUBLISHED[0], 10, layer=1, depth=3)
    assert part.ln_x.weight.detach().unique() == pytest.approx((2 / 3) ** 0.7)
    assert part.time_decay.bias[[0, 9]].tolist() == pytest.approx([-6, -1])
    assert part.time_faaaa[[0, 1, 9]].tolist() == pytest.approx([0.5, 0.5 * 8 / 9 + 0.1, 0.0])
    plain, soft = (initial_shift_weights(10, exponent).double() for exponent in (2 / 3, 1 / 3))
    expected = torch.cat([plain, plain, plain - 0.15, soft, soft])
    assert_same((part.token_shift.shift_weights, part.token_shift.time_maa_x), (expected, plain), atol=1e-6)
    assert not part.token_shift.time_maa_w1.any()
    assert not part.time_decay.down.any()
    for up in (part.token_shift.time_maa_w2, part.time_decay.up):
        assert 0.009 < float(up.detach().abs().max()) <= 0.01
    for linear, gain in ((part.receptance, 1.0), (part.key, 0.1), (part.value, 1.0), (part.gate, 0.1)):
        assert_same(linear.weight @ linear.weight.T, gain**2 * torch.eye(10).double(), atol=1e-5)


def test_version_7_begins_as_published_in_the_middle_of_three_layers() -> None:
    part = made(PUBLISHED[1], 10, layer=1, depth=3)
    channel, zigzag = torch.arange(10) / 9, torch.tensor([-1, -0.25, 0, 0.25, 1] * 2)
    for found, expected in (
        (part.w_lora.bias, -6 + 6 * channel ** (1 + 0.5**0.3) + 0.5 + 2.5 * zigzag),
        (part.a_lora.bias, -0.19 + 0.3 * zigzag + 0.4 * (channel - 0.5)),
        (part.v_lora.bias, 0.73 - 0.4 * (channel - 0.5)),
        (part.k_k, 0.71 - 0.1 * (channel - 0.5)),
        (part.r_k, torch.full((10,), -0.04)),
        (part.k_a, torch.full((10,), 1.02)),
        (part.shift_weights[:10], initial_shift_weights(10, 0.2 * 2 / 3)),
        (part.shift_weights[10:20], initial_shift_weights(10, 0.9 * 2 / 3)),
    ):
        assert_same(found, expected.double(), atol=1e-5)
    assert not any(low.down.any() for low in (part.w_lora, part.a_lora, part.v_lora, part.g_lora))
    for linear, bound in ((part.receptance, 0.5), (part.key, 0.05), (part.value, 0.5)):
        assert 0.9 * bound < float(linear.weight.detach().abs().max()) * 10**0.5 <= bound
    up = part.w_lora.up  # 32 x 10: its columns are orthogonal, of length 0.1 root(3.2)
    assert_same(up.T @ up, 0.032 * torch.eye(10).double(), atol=1e-6)


def test_without_the_published_start_version_7_has_small_rates_and_plain_keys() -> None:
    part = made(RWKV7(head_dim=4), 8, depth=3)
    assert part.v_lora is None, "the first layer has no values to mix in"
    assert not part.k_a.any(), "written keys begin as they are"
    assert float(part.a_lora.bias.detach().sigmoid().mean()) == pytest.approx(0.1, abs=0.02)


def test_ranks_of_version_7_follow_the_width_as_the_authors_suggest() -> None:
    part = made(RWKV7(), 768, layer=1, depth=3)
    ranks = [low.down.shape[1] for low in (part.w_lora, part.a_lora, part.v_lora, part.g_lora)]
    assert ranks == [64, 64, 32, 128]
    assert made(RWKV7(gate_rank=5), 64).g_lora.down.shape == (64, 5)
