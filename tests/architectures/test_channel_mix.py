"""RWKV's channel mix: what every mixer promises, its equations, and transformers."""

from typing import Any

import pytest
import torch

from numerate.architectures.channel_mix import ChannelMix, ChannelMixer
from numerate.errors import UserError
from numerate.mixers.mixer import Context

EXACT = {"atol": 1e-12, "rtol": 1e-12}
VERSIONS = pytest.mark.parametrize("version", [4, 6, 7])


def inputs(rows: int, time: int, width: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(width: int, layer: int, depth: int, spec: ChannelMix) -> ChannelMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return spec.build(width, layer, depth, ()).double()


@VERSIONS
def test_it_sees_a_token_and_the_one_before_and_no_other(version: Any, mix: Any) -> None:
    mixing, x = mix((ChannelMix(version), ())), inputs(2, 6)
    whole, changed = mixing.at_once(x), x.clone()
    changed[:, 2] = inputs(2, 1, seed=1)[:, 0]
    differs = (mixing.at_once(changed) - whole).abs().amax(dim=(0, 2)) > 1e-9
    assert differs.tolist() == [False, False, True, True, False, False]


@VERSIONS
def test_reading_at_once_is_reading_token_by_token(version: Any, mix: Any) -> None:
    mixing, x = mix((ChannelMix(version), ())), inputs(3, 9)
    first, further = mixing.token_by_token(x, [4, 1, 2], more=5)
    whole = mixing.at_once(x)
    for row, length in enumerate([4, 1, 2]):
        torch.testing.assert_close(first[row, :length], whole[row, :length], **EXACT)
        torch.testing.assert_close(further[row], whole[row, length : length + 5], **EXACT)


def test_it_is_the_written_out_equations() -> None:
    gated, plain = (made(4, 1, 3, ChannelMix(version)) for version in (4, 7))
    x = inputs(1, 2, width=4)
    before, now = x[0]

    def shifted(share: torch.Tensor) -> torch.Tensor:
        return before * share + now * (1 - share)

    for_keys, for_gate = gated.shift_weights.view(2, 4)
    hidden = torch.relu(gated.key.weight @ shifted(for_keys)) ** 2
    assert gated.receptance is not None
    expected = torch.sigmoid(gated.receptance.weight @ shifted(for_gate)) * (gated.value.weight @ hidden)
    torch.testing.assert_close(gated(x, Context(torch.tensor([2]), ()))[0, 1], expected, **EXACT)
    hidden = torch.relu(plain.key.weight @ shifted(plain.shift_weights)) ** 2
    torch.testing.assert_close(plain(x, Context(torch.tensor([2]), ()))[0, 1], plain.value.weight @ hidden, **EXACT)
    assert plain.receptance is None


def test_it_is_the_feed_forward_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle is transformers' RWKV")
    modeling = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
    config = transformers.RwkvConfig(vocab_size=8, hidden_size=6, num_hidden_layers=3, context_length=16)
    theirs, part = modeling.RwkvFeedForward(config, layer_id=1).double(), made(6, 1, 3, ChannelMix())
    assert part.receptance is not None
    with torch.no_grad():
        theirs.time_mix_key.copy_(1 - part.shift_weights.view(2, 6)[0])
        theirs.time_mix_receptance.copy_(1 - part.shift_weights.view(2, 6)[1])
        for name, ours in (("key", part.key), ("receptance", part.receptance), ("value", part.value)):
            theirs.get_parameter(f"{name}.weight").copy_(ours.weight)
    x = inputs(2, 5, width=6)
    torch.testing.assert_close(part(x, Context(torch.tensor([5, 5]), ())), theirs(x)[0], **EXACT)


def test_hidden_widths_are_the_published_ones() -> None:
    widths = [made(128, 0, 2, ChannelMix(version)).key.out_features for version in (4, 6, 7)]
    assert widths == [512, 448, 512]
    assert made(128, 0, 2, ChannelMix(6, expansion=2.0)).key.out_features == 256


@VERSIONS
def test_as_published_it_says_nothing_at_first_and_the_model_draws_no_map(version: Any) -> None:
    part = made(32, 1, 4, ChannelMix(version, published_initialization=True))
    assert not part(inputs(1, 3, 32), Context(torch.tensor([3]), ())).any()
    assert part.key.weight.any()
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()}
    power = 0.75**4 if version == 7 else 0.75
    assert float(part.shift_weights[8].detach()) == pytest.approx(1 - 0.25**power)


def test_it_costs_what_its_matrices_cost() -> None:
    part = made(16, 0, 2, ChannelMix())
    assert part.flops(10) == 2 * 10 * (2 * 16 * 64 + 16 * 16)


def test_impossible_settings_and_hidden_keys_are_refused() -> None:
    context = Context(torch.tensor([3]), (), blocked_keys=torch.tensor([[False, True, False]]))
    for read in (made(8, 0, 1, ChannelMix()), made(8, 0, 1, ChannelMix()).prefill):
        with pytest.raises(UserError, match="does not support blocked keys"):
            read(inputs(1, 3, 8), context)
