"""The sLSTM against the paper's equations without a stabiliser, its gradient against autograd's, and its beginnings."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, layer_norm, pad, silu

from numerate.architectures.slstm import SLSTM, SLSTMMixer, _SLSTMFunction, slstm, slstm_step
from numerate.errors import UserError
from numerate.mixers.mixer import Context

EXACT = {"atol": 1e-11, "rtol": 1e-11}


def made(width: int = 6, layer: int = 0, depth: int = 1, **settings: Any) -> SLSTMMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part = SLSTM(**{"num_heads": 2, **settings}).build(width, layer, depth, ()).double()
        torch.nn.init.normal_(part.norm_weight)
    return part


def inputs(rows: int, time: int, width: int = 6) -> torch.Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def context(lengths: list[int], **more: Any) -> Context:
    return Context(torch.tensor(lengths), (), **more)


def sequential_slstm(inputs: Tensor, recurrent: Tensor, sigmoid: bool) -> Tensor:
    """All h, token by token."""
    nothing = torch.zeros_like(inputs[:, 0, 0])
    states, found = (nothing, nothing, nothing - torch.inf), []
    for token in inputs.unbind(1):
        states = slstm_step(token, recurrent, sigmoid, *states)
        found.append(states[0])
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("convolution", [None, 3])
@pytest.mark.parametrize("forget", ["sigmoid", "exponential"])
def test_it_is_the_equations_of_the_paper(forget: Any, convolution: int | None) -> None:
    part, x = made(hidden_size=4, forget_gate=forget, conv_kernel=convolution), inputs(2, 11)
    whole, seen = part(x, context([11, 11])), x
    if part.conv1d is not None:
        channels = part.conv1d.weight.T[:, None]
        convolved = conv1d(pad(x, (0, 0, 2, 0)).transpose(1, 2), channels, part.conv1d.bias, groups=6)
        seen = silu(convolved.transpose(1, 2))
    h, c, n = (torch.zeros(2, 4).double() for _ in range(3))
    for time in range(11):
        token = torch.cat([seen[:, time] @ part.if_proj.weight.T, x[:, time] @ part.zo_proj.weight.T], dim=1)
        token = token + part.bias
        i, f, z, o = token.chunk(4, dim=1)
        # Each head's weights are one block of a whole matrix per gate.
        blocks = part.recurrent_weight.view(2, 4, 2, 2)
        r = [torch.block_diag(*blocks[:, gate]) for gate in range(4)]
        i, f, z, o = (gate + h @ weight.T for gate, weight in zip((i, f, z, o), r, strict=True))
        f = f.sigmoid() if forget == "sigmoid" else f.exp()
        c, n = f * c + i.exp() * z.tanh(), f * n + i.exp()
        h = o.sigmoid() * c / n
        normed = layer_norm(h.view(2, 2, 2), (2,)).view(2, 4) * part.norm_weight
        torch.testing.assert_close(whole[:, time], normed @ part.out_proj.weight.T, **EXACT)


@pytest.mark.parametrize("sigmoid", [True, False])
def test_its_gradient_is_that_of_the_steps(sigmoid: bool) -> None:
    given = torch.randn(3, 9, 4, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recurrent = 0.4 * torch.randn(2, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given.requires_grad_(), recurrent.requires_grad_()
    weights = inputs(3, 9, 10).view(3, 9, 2, 5)
    ours, theirs = _SLSTMFunction.apply(given, recurrent, sigmoid)[0], sequential_slstm(given, recurrent, sigmoid)
    torch.testing.assert_close(ours, theirs, **EXACT)
    for found, expected in zip(
        *(torch.autograd.grad((h * weights).sum(), [given, recurrent]) for h in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("convolution", [None, 3])
@pytest.mark.parametrize("forget", ["sigmoid", "exponential"])
def test_gradients_go_through_the_state_of_a_prefill(forget: Any, convolution: int | None) -> None:
    part, x = made(hidden_size=4, forget_gate=forget, conv_kernel=convolution), inputs(2, 8).requires_grad_()
    leaves = [x, *part.parameters()]
    whole = part(x, context([8, 8]))
    expected = torch.autograd.grad(whole[0, 4].square().sum() + whole[1, 7].square().sum(), leaves)
    _, state = part.prefill(x[:, :7], context([4, 7]))
    token = torch.stack([x[0, 4], x[1, 7]])[:, None]
    output, _ = part.step(token, context([5, 8]), state)
    for found, one in zip(torch.autograd.grad(output.square().sum(), leaves), expected, strict=True):
        torch.testing.assert_close(found, one, **EXACT)


@pytest.mark.parametrize("sigmoid", [True, False])
def test_its_gradient_by_all_it_carries_is_right(sigmoid: bool) -> None:
    given = torch.randn(2, 4, 4, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recurrent = torch.randn(2, 8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = (given.requires_grad_(), recurrent.requires_grad_())
    assert torch.autograd.gradcheck(lambda *two: slstm(*two, sigmoid), leaves)


def test_exponentials_that_no_number_holds_are_carried_all_the_same() -> None:
    given = torch.zeros(1, 300, 4, 1, 1)
    given[:, :, 0], given[:, :, 1] = 200.0, 90.0  # i = exp(200), f = exp(90), in fp32
    given[0, 0, 2], given[0, 1:, 2] = 20.0, -20.0
    h = _SLSTMFunction.apply(given.requires_grad_(), torch.zeros(1, 4, 1), False)[0]
    h.sum().backward()
    assert h.isfinite().all()
    assert given.grad.isfinite().all()
    assert h[0, -1].item() == pytest.approx(0.5), "the first token, kept by f^299, outweighs all later ones"


def test_with_open_gates_a_cell_holds_the_mean() -> None:
    given = torch.zeros(1, 50, 4, 1, 1).double()
    given[:, :, 1], given[:, :, 3] = 60, 60
    values = inputs(1, 50, 1)[0, :, 0]
    given[0, :, 2, 0, 0] = values
    h = _SLSTMFunction.apply(given, torch.zeros(1, 4, 1).double(), True)[0].flatten()
    means = values.tanh().cumsum(0) / torch.arange(1, 51)
    torch.testing.assert_close(h, means, **EXACT)


def test_members_of_a_stack_run_as_alone() -> None:
    given = torch.randn(2, 3, 9, 4, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recurrent = 0.4 * torch.randn(2, 2, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for dims in ((0, 0), (0, None), (None, 0)):
        own = [x if dim == 0 else x[0] for x, dim in zip((given, recurrent), dims, strict=True)]
        found = torch.vmap(lambda x, r: _SLSTMFunction.apply(x, r, True)[0], in_dims=dims)(*own)
        for member in range(2):
            one = [x[member] if dim == 0 else x for x, dim in zip(own, dims, strict=True)]
            torch.testing.assert_close(found[member], sequential_slstm(*one, True), **EXACT)


def test_forget_biases_begin_as_published_and_recurrent_weights_as_set() -> None:
    first, last = (made(width=16, layer=layer, depth=3).bias.view(4, 2, 8).detach() for layer in (0, 2))
    for bias, power in ((first, 0.3), (last, 1.6)):
        assert bias[1, 0].tolist() == pytest.approx([5 - 12 * (k / 7) ** power for k in range(8)], abs=1e-5)
        assert torch.equal(bias[1, 0], bias[1, 1])
        assert not bias[[0, 2, 3]].any()
    assert 0.2 < float(made(width=16).recurrent_weight.detach().abs().max()) <= 0.25
    assert not made(initialization="zeros").recurrent_weight.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_heads": 4},
            "^model.mixer.num_heads: must divide hidden_size=6, not 4; possible values: 1, 2, 3, 6",
        ),
        (
            {"hidden_size": 8, "output_projection": False},
            "^model.mixer.hidden_size: must equal the model's width 6 without an output projection, not 8",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(**settings)
