"""What several architectures promise alike: their layers in transformers, long rows, half precision, kernels, costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from layers import DELTA_NETS, assert_same, context, drawn, gradients, load_from, made, read
from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.delta import DeltaNet, DeltaProduct, GatedDeltaNet
from numerate.architectures.lru import LRU
from numerate.architectures.mamba import Mamba
from numerate.architectures.mamba2 import Mamba2
from numerate.architectures.rwkv6 import RWKV6
from numerate.architectures.rwkv7 import RWKV7
from numerate.architectures.s4 import S4
from numerate.architectures.slstm import SLSTM
from numerate.errors import UserError
from numerate.kernels.backends import is_fla_installed
from numerate.kernels.selective_scan import selective_scan
from numerate.mixers.min_gru import MinGRU
from numerate.mixers.recurrent import LSTM
from variants import name_of

# The same by others --------------------------------------------------------------------------------------------------


def transposed(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return tensors | {name: tensors[name].T}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", [Mamba(), Mamba2(head_dim=4), Mamba2(head_dim=32)], ids=name_of)
def test_mamba_is_the_layer_of_transformers(spec: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    own, sizes = made(spec, 16, depth=2, noise=0.1), {"hidden_size": 16, "vocab_size": 8}
    if isinstance(spec, Mamba):
        models = pytest.importorskip("transformers.models.mamba.modeling_mamba")
        theirs = models.MambaMixer(transformers.MambaConfig(**sizes, state_size=16, use_mambapy=False), 0)
        tensors = transposed(own.state_dict(), "A_log")
    else:
        models = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
        heads = {"num_heads": 32 // spec.head_dim, "head_dim": spec.head_dim, "n_groups": 1, "chunk_size": 4}
        theirs = models.Mamba2Mixer(transformers.Mamba2Config(**sizes, **heads), 0)
        tensors = own.state_dict()
        tensors["norm.weight"] = tensors.pop("norm_weight")
    tensors["conv1d.weight"] = tensors["conv1d.weight"].T[:, None]
    theirs.double().load_state_dict(tensors)
    # Theirs computes the recurrence, and the norm, in single precision whatever it is given.
    assert_same(read(own, drawn(2, 11, 16)), theirs(drawn(2, 11, 16)), atol=1e-5, rtol=1e-5)


def test_the_channel_mix_is_the_layer_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    modeling = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
    config = transformers.RwkvConfig(vocab_size=8, hidden_size=6, num_hidden_layers=3, context_length=16)
    layer, own = modeling.RwkvFeedForward(config, layer_id=1), made(ChannelMix(), layer=1, depth=3, dtype=torch.float32)
    shifts = ("time_mix_key", "time_mix_receptance")
    tensors = {name: tensor for name, tensor in own.state_dict().items() if name != "shift_weights"}
    load_from(layer, tensors | dict(zip(shifts, 1 - own.shift_weights.view(-1, 6), strict=True)))
    x = drawn(2, 11, 6).float()
    assert_same(read(own, x), layer(x)[0], atol=1e-5, rtol=1e-5)


# Rows of several chunks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", [S4(), *DELTA_NETS, Mamba(), Mamba2(), SLSTM(num_heads=2), RWKV6(), RWKV7()], ids=name_of
)
def test_long_rows_are_read_as_token_by_token(spec: Any) -> None:
    part, x = made(spec, noise=0.1), drawn(2, 90, 6)
    whole = read(part, x)
    first, state = part.prefill(x[:, :75], context([40, 75]))
    assert_same((first[0, :40], first[1]), (whole[0, :40], whole[1, :75]))
    for step in range(15):
        token = torch.stack([x[0, 40 + step], x[1, 75 + step]])[:, None]
        out, state = part.step(token, context([41 + step, 76 + step]), state)
        assert_same(out[:, 0], torch.stack([whole[0, 40 + step], whole[1, 75 + step]]))


@pytest.mark.parametrize("settings", [{}, {"conv_kernel": None}, {"forget_gate": "exponential"}], ids=str)
def test_gradients_go_through_the_state_of_a_prefill(settings: Any) -> None:
    part, x = made(SLSTM(hidden_size=4, num_heads=2, **settings)), drawn(2, 8, 6).requires_grad_()
    whole = read(part, x)
    _, state = part.prefill(x[:, :7], context([4, 7]))
    output, _ = part.step(torch.stack([x[0, 4], x[1, 7]])[:, None], context([5, 8]), state)
    assert_same(output[:, 0], torch.stack([whole[0, 4], whole[1, 7]]), [x, *part.parameters()])


# Half precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        (S4(), lambda state: state),
        (Mamba(), lambda state: state[1]),
        (Mamba2(), lambda state: state[1]),
        (DeltaProduct(num_heads=2, gated=True), lambda state: state[1]),
        (RWKV7(), lambda state: state[1]),
    ],
    ids=lambda part: name_of(part) if hasattr(part, "build") else "",
)
def test_under_autocast_the_recurrence_stays_in_single_precision(spec: Any, state: Any) -> None:
    part, x = made(spec, 16, dtype=torch.float32), drawn(2, 40, 16).float()
    expected = read(part, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = read(part, x)
        first, carried = part.prefill(x[:, :39], context([39, 39]))
        last, _ = part.step(x[:, 39:], context([40, 40]), carried)
    assert state(carried).dtype == torch.float32
    assert_same(found.float(), expected, atol=0.1, rtol=0.1)
    assert_same(torch.cat([first, last], dim=1).float(), found.float(), atol=0.05, rtol=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients(found, list(part.parameters())))


# Eigenvalues ---------------------------------------------------------------------------------------------------------


def parity_by_min_gru(x: Tensor, signed: bool) -> Tensor:
    """With a 1 that turns the sign round, and a begin that writes 1."""
    part = made(MinGRU(hidden_size=1, eigenvalue_range="[-1,1]" if signed else "[0,1]", bias=False), width=2)
    load_from(part, {"in_proj.weight": torch.tensor([[40.0, 0.0], [0.0, 2.0]]), "out_proj.weight": torch.ones(2, 1)})
    begin = torch.cat([torch.ones(1, 1, 1), torch.zeros_like(x[:, :, None])], dim=1)
    bits = torch.cat([torch.zeros(1, 1, 1), 2 * x[:, :, None] - 1], dim=1)
    return read(part, torch.cat([bits, begin], dim=2))[0, 1:, 0]


def parity_by_mamba(x: Tensor, signed: bool) -> Tensor:
    """By a scan in which a one has the least decay and a zero 1."""
    rates = torch.cat([torch.zeros(1, 1), 50 * x], dim=1)[..., None]
    first, ones = torch.zeros_like(rates), torch.ones_like(rates)
    first[:, 0] = 1
    return selective_scan(rates, first, ones, ones, -torch.ones(1, 1).double(), signed)[0][0, 1:, 0]


@pytest.mark.parametrize("says", [parity_by_min_gru, parity_by_mamba])
def test_a_negative_eigenvalue_follows_a_parity_and_a_positive_one_does_not(says: Any) -> None:
    bits = torch.tensor([[1.0, 0, 1, 1, 0, 0, 1, 1, 1, 0]], dtype=torch.float64)
    assert_same(says(bits, signed=True), (1 - 2 * (bits.cumsum(1) % 2))[0])
    assert (says(bits, signed=False) >= 0).all()


# What layers say of themselves ---------------------------------------------------------------------------------------

SLOW = dict.fromkeys(("log_A_real", "A_imag", "log_dt"), (0.3, False)) | {"C": (0.3, True)}
WISHES = [
    (S4(learning_rate_factor=0.3), SLOW | {"P": (0.3, False), "B": (0.3, False)}),
    (
        LRU(learning_rate_factor=0.3),
        dict.fromkeys(("nu_log", "theta_log", "gamma_log"), (0.3, False)) | {"D": (1.0, False)},
    ),
    (Mamba(), {"A_log": (1.0, False), "D": (1.0, False)}),
    (GatedDeltaNet(2), {"A_log": (1.0, False), "dt_bias": (1.0, False)}),
    (DeltaNet(2), {}),
]


@pytest.mark.parametrize(("spec", "wishes"), WISHES, ids=[type(spec).__name__ for spec, _ in WISHES])
def test_some_parameters_learn_at_another_rate_or_do_not_decay(spec: Any, wishes: dict[str, Any]) -> None:
    assert made(spec).optimizer_options_by_parameter() == wishes


@pytest.mark.parametrize(
    ("spec", "faster"), [(RWKV6(head_dim=3), "time_decay.bias"), (RWKV7(head_dim=3), "w_lora.bias")]
)
def test_in_rwkv_linear_maps_alone_decay_and_decays_learn_twice_as_fast(spec: Any, faster: str) -> None:
    part = made(spec, layer=1, depth=3)
    wishes = part.optimizer_options_by_parameter()
    assert wishes.pop(faster) == (2.0, False)
    assert set(wishes.values()) == {(1.0, False)}
    linear = {name for name, parameter in part.named_parameters() if name.endswith(".weight") and parameter.dim() == 2}
    assert {name for name, _ in part.named_parameters()} - {faster} - set(wishes) == linear
    assert {name for name, _ in part.named_parameters()} - part.self_initialized_parameters() == linear


@pytest.mark.parametrize(
    ("spec", "beside_matrices"), [(Mamba(), 8 * 32 * 16), (ChannelMix(), 0), (LSTM(hidden_size=9), 0)], ids=name_of
)
def test_it_costs_what_its_matrices_and_states_cost(spec: Any, beside_matrices: int) -> None:
    part = made(spec, width=16)
    matrices = sum(one.numel() for name, one in part.named_parameters() if one.dim() == 2 and "A_log" not in name)
    assert part.flops(10) == 10 * (2 * matrices + beside_matrices)


# Kernels of flash-linear-attention, and what is refused --------------------------------------------------------------


@pytest.mark.parametrize("spec", [DeltaNet(), Mamba2(), RWKV6(), RWKV7()], ids=lambda spec: type(spec).__name__)
def test_a_kernel_that_must_run_and_cannot_is_refused(spec: Any) -> None:
    required = replace(spec, backend="fla")
    with pytest.raises(UserError, match=r"^model\.mixer\.backend: fla (needs the package|runs in fp32)"):
        read(made(required, width=64), drawn(1, 3, 64))


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_fla_installed()), reason="flash-linear-attention needs a CUDA device"
)
@pytest.mark.parametrize(
    "spec",
    [
        *(replace(spec, head_dim=32) for spec in DELTA_NETS),
        Mamba2(head_dim=32, state_size=64),
        RWKV6(head_dim=32),
        RWKV7(head_dim=32),
    ],
    ids=name_of,
)
def test_the_kernels_of_flash_linear_attention_say_the_same(spec: Any) -> None:
    plain, fast = (made(replace(spec, backend=kernel), 64, dtype=torch.float32).cuda() for kernel in ("torch", "fla"))
    x = drawn(3, 100, 64).float().cuda()
    here = replace(context([100]), lengths=torch.tensor([100, 70, 1]).cuda())
    (expected, (_, state)), (found, (_, behind)) = (part.prefill(x, here) for part in (plain, fast))
    assert_same((found, behind.float()), (expected, state), atol=0.05, rtol=0.05)
    for part in (plain, fast):
        part(x, here).square().sum().backward()
    for (name, mine), theirs in zip(fast.named_parameters(), plain.parameters(), strict=True):
        assert float((mine.grad - theirs.grad).norm()) < 0.05 * float(theirs.grad.norm()) + 1e-3, name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: made(Mamba2(head_dim=5), 16),
            r"model\.mixer\.head_dim: must divide expand \* hidden_size=32, not 5; possible values: 1, 2, 4, 8, 16",
        ),
        (
            lambda: made(DeltaNet(num_heads=4)),
            r"model\.mixer\.num_heads: must divide hidden_size=6, not 4; possible values: 1, 2, 3, 6; or set head_dim",
        ),
        (
            lambda: made(RWKV6(), 96),
            r"model\.mixer\.head_dim: must divide hidden_size=96, not 64; possible values: .* 96",
        ),
        (lambda: made(SLSTM(num_heads=4)), r"model\.mixer\.num_heads: must divide hidden_size=6, not 4"),
        (
            lambda: made(SLSTM(num_heads=2, hidden_size=8, output_projection=False)),
            r"model\.mixer\.hidden_size: must equal the model's width 6 without an output projection, not 8",
        ),
        (lambda: LRU(r_min=0.9, r_max=0.5), r"r_min: must be at most r_max=0\.5, not 0\.9"),
    ],
)
def test_what_cannot_be_built_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()
