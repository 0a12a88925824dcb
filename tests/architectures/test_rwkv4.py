"""RWKV-4's time mix against its definition, the sum written out, and transformers."""

import pytest
import torch
from torch import Tensor

from numerate.architectures.rwkv4 import RWKV4, RWKV4Mixer, parallel_wkv, recurrent_wkv
from numerate.mixers.mixer import Context


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(time: int, keys: float = 1.0, speeds: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return keys * drawn(3, time, 5), drawn(3, time, 5, seed=1), speeds * drawn(5, seed=2), drawn(5, seed=3)


def made(width: int = 6, layer: int = 1, depth: int = 3, **more: bool) -> RWKV4Mixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return RWKV4(**more).build(width, layer, depth, ()).double()


def test_it_is_the_weighted_mean_written_out() -> None:
    k, v, decay, newest = inputs(7)
    found = parallel_wkv(k, v, decay, newest)[0]
    for place in range(7):
        weights = [(k[:, i] - (place - 1 - i) * decay.exp()).exp() for i in range(place)]
        weights.append((newest + k[:, place]).exp())
        expected = sum(weight * v[:, i] for i, weight in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(found[:, place], expected, atol=1e-12, rtol=1e-12)


def test_the_worked_example_of_its_docstring() -> None:
    zero = torch.zeros(1)
    decay = torch.tensor([0.5]).log().neg().log()  # exp(-exp(decay)) = 0.5
    found = parallel_wkv(torch.zeros(1, 3, 1), torch.tensor([[[1.0], [0.0], [0.0]]]), decay, zero)[0]
    torch.testing.assert_close(found.flatten(), torch.tensor([1.0, 0.5, 0.2]))


@pytest.mark.parametrize("time", [1, 2, 9, 50])
@pytest.mark.parametrize(("keys", "speeds"), [(1.0, 1.0), (300.0, 1.0), (1.0, 8.0), (300.0, 8.0)])
def test_all_places_at_once_are_the_loop_also_for_large_keys_and_fast_decays(
    time: int, keys: float, speeds: float
) -> None:
    given = [one.requires_grad_() for one in inputs(time, keys, speeds)]
    found, *states = parallel_wkv(*given)
    expected, *last = recurrent_wkv(*given)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    for state, end in zip(states, last, strict=True):
        torch.testing.assert_close(state[:, -1:], end, atol=1e-9, rtol=1e-9)
    weights = drawn(3, time, 5, seed=9)
    slopes, truth = (
        torch.autograd.grad((one * weights).sum(), given, materialize_grads=True) for one in (found, expected)
    )
    for slope, true in zip(slopes, truth, strict=True):
        assert slope.isfinite().all()
        torch.testing.assert_close(slope, true, atol=1e-9, rtol=1e-7)


def test_it_is_the_time_mix_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle is transformers' RWKV")
    modeling = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
    config = transformers.RwkvConfig(vocab_size=8, hidden_size=6, num_hidden_layers=3, context_length=16)
    theirs, part = modeling.RwkvSelfAttention(config, layer_id=1), made().float()
    with torch.no_grad():
        for name, values in (("time_mix_key", 0), ("time_mix_value", 1), ("time_mix_receptance", 2)):
            theirs.get_parameter(name).copy_(1 - part.shift_weights.view(3, 6)[values])
        theirs.time_decay.copy_(part.time_decay)
        theirs.time_first.copy_(part.time_first)
        maps = {"key": part.key, "value": part.value, "receptance": part.receptance, "output": part.output}
        for name, ours in maps.items():
            theirs.get_parameter(f"{name}.weight").copy_(ours.weight)
    x = drawn(2, 11, 6).float()
    torch.testing.assert_close(part(x, Context(torch.tensor([11, 11]), ())), theirs(x)[0], atol=1e-5, rtol=1e-5)


def test_the_published_start_in_the_middle_of_three_layers() -> None:
    part = made(width=9, published_initialization=True)
    assert part.time_decay[0] == -5
    assert float(part.time_decay[-1].detach()) == pytest.approx(3.0)
    assert float(part.time_decay[4].detach()) == pytest.approx(-5 + 8 * 0.5 ** (0.7 + 1.3 / 2))
    assert part.time_first[:3].tolist() == pytest.approx([-1.2039728, -0.7039728, -1.7039728])
    keys, values, receptance = part.shift_weights.view(3, 9)
    assert float(keys[3].detach()) == pytest.approx(1 - (1 / 3) ** (2 / 3))
    torch.testing.assert_close(values, keys - 0.15)
    assert float(receptance[3].detach()) == pytest.approx(1 - (1 / 3) ** (1 / 3))
    assert not any(one.weight.any() for one in (part.key, part.receptance, part.output))
    weight = part.value.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(9).double(), atol=1e-5, rtol=0)
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()}


def test_the_model_draws_the_maps_unless_they_begin_as_published() -> None:
    part = made()
    assert part.self_initialized_parameters() == {"shift_weights", "time_decay", "time_first"}
    assert part.output.weight.any()


def test_speeds_learn_twice_as_fast_and_the_newest_weight_three_times() -> None:
    assert made().optimizer_options_by_parameter() == {"time_decay": (2.0, False), "time_first": (3.0, False)}
