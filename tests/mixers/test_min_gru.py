"""The minimal GRU against its equations, token by token, and what its eigenvalues allow."""

from typing import Any

import pytest
import torch

from numerate.errors import UserError
from numerate.mixers.min_gru import MinGRU, MinGRUMixer
from numerate.mixers.mixer import Context

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def made(**settings: Any) -> MinGRUMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part = MinGRU(**settings).build(6, 0, 1, ()).double()
        if part.in_proj.bias is not None:
            torch.nn.init.normal_(part.in_proj.bias)
    return part


def inputs(rows: int, time: int, width: int = 6) -> torch.Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def context(lengths: list[int], **more: Any) -> Context:
    return Context(torch.tensor(lengths), (), **more)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("eigenvalues", ["[0,1]", "[-1,1]"])
def test_it_is_the_equations_of_the_paper(eigenvalues: Any, biases: bool) -> None:
    part, x = made(hidden_size=5, eigenvalue_range=eigenvalues, bias=biases), inputs(2, 23)
    read = x @ part.in_proj.weight.T + (part.in_proj.bias if biases else 0)
    h = torch.zeros(2, 5).double()
    for time in range(23):
        gate, candidate = read[:, time, :5].sigmoid(), read[:, time, 5:]
        h = (1 - (2 if eigenvalues == "[-1,1]" else 1) * gate) * h + gate * candidate
        torch.testing.assert_close(part(x, context([23, 23]))[:, time], h @ part.out_proj.weight.T, **EXACT)


def test_positive_candidates_are_those_of_the_form_in_logarithms() -> None:
    """log g(x) is log(x + 1/2) from 0 up and -softplus(-x) below (Appendix B of the paper)."""
    part, x = made(hidden_size=5, positive_candidates=True), inputs(2, 9)
    read = part.in_proj(x)
    logs = torch.where(read[..., 5:] >= 0, (read[..., 5:].relu() + 0.5).log(), -(-read[..., 5:]).exp().log1p())
    kept, written = -read[..., :5].exp().log1p(), -(-read[..., :5]).exp().log1p() + logs
    total = kept.cumsum(1)
    states = (total + (written - total).logcumsumexp(1)).exp()
    torch.testing.assert_close(part(x, context([9, 9])), states @ part.out_proj.weight.T, **EXACT)


def test_a_negative_eigenvalue_follows_a_parity_and_a_positive_one_cannot() -> None:
    part = made(hidden_size=1, eigenvalue_range="[-1,1]", bias=False)
    with torch.no_grad():
        part.in_proj.weight.zero_()
        part.in_proj.weight[0, 0], part.in_proj.weight[1, 1] = 40, 2  # a 1 turns the sign round; the begin writes 1
        part.out_proj.weight.fill_(1)
    bits = [1, 1, 0, 1, 0, 0, 1]
    x = torch.zeros(1, 8, 6).double()
    x[0, 0, 1], x[0, 1:, 0] = 1, torch.tensor([1.0 if bit else -1.0 for bit in bits])
    output = part(x, context([8]))[0, 1:, 0]
    signs = [(-1.0) ** sum(bits[: count + 1]) for count in range(7)]
    torch.testing.assert_close(output, torch.tensor(signs).double(), atol=1e-9, rtol=0)
    part.allow_neg_eigval = False
    assert not (part(x, context([8]))[0, 1:, 0] < 0).any()


def test_cells_begin_with_the_requested_memory() -> None:
    with torch.random.fork_rng(devices=()):
        part = MinGRU(hidden_size=400, max_initial_memory=50).build(16, 0, 1, ())
    tokens = 1 + (-part.in_proj.bias[:400]).exp().detach()  # a gate of 1/n remembers for n tokens
    assert 2 <= float(tokens.min()) < 4
    assert 46 < float(tokens.max()) <= 50
    assert not part.in_proj.bias[400:].any()
    assert part.self_initialized_parameters() == {"in_proj.bias"}
    assert MinGRU().build(16, 0, 1, ()).self_initialized_parameters() == set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_initial_memory": 9, "bias": False}, "^max_initial_memory: must be null without gate biases"),
    ],
)
def test_what_cannot_be_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MinGRU(**settings)
