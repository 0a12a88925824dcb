"""The minimal GRU against its equations, token by token, and its beginnings."""

from typing import Any

import pytest
import torch

from layers import assert_same, drawn, made, read
from numerate.errors import UserError
from numerate.mixers.min_gru import MinGRU


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("eigenvalues", ["[0,1]", "[-1,1]"])
def test_it_is_the_equations_of_the_paper(eigenvalues: Any, biases: bool) -> None:
    part = made(MinGRU(hidden_size=5, eigenvalue_range=eigenvalues, bias=biases), noise=0.5)
    x, whole = drawn(2, 23, 6), read(part, drawn(2, 23, 6))
    projected = x @ part.in_proj.weight.T + (part.in_proj.bias if biases else 0)
    h = torch.zeros(2, 5).double()
    for time in range(23):
        gate, candidate = projected[:, time, :5].sigmoid(), projected[:, time, 5:]
        h = (1 - (2 if eigenvalues == "[-1,1]" else 1) * gate) * h + gate * candidate
        assert_same(whole[:, time], h @ part.out_proj.weight.T)


def test_positive_candidates_are_those_of_the_form_in_logarithms() -> None:
    """log g(x) is log(x + 1/2) from 0 up and -softplus(-x) below (Appendix B of the paper)."""
    part, x = made(MinGRU(hidden_size=5, positive_candidates=True), noise=0.5), drawn(2, 9, 6)
    gates, candidates = part.in_proj(x).chunk(2, dim=-1)
    logs = torch.where(candidates >= 0, (candidates.relu() + 0.5).log(), -(-candidates).exp().log1p())
    kept, written = -gates.exp().log1p(), -(-gates).exp().log1p() + logs
    total = kept.cumsum(1)
    states = (total + (written - total).logcumsumexp(1)).exp()
    assert_same(read(part, x), states @ part.out_proj.weight.T)


def test_cells_begin_with_the_requested_memory() -> None:
    part = made(MinGRU(hidden_size=400, max_initial_memory=50), width=16)
    tokens = 1 + (-part.in_proj.bias[:400]).exp().detach()  # a gate of 1/n remembers for n tokens
    assert 2 <= float(tokens.min()) < 4
    assert 46 < float(tokens.max()) <= 50
    assert not part.in_proj.bias[400:].any()
    assert part.self_initialized_parameters() == {"in_proj.bias"}
    assert made(MinGRU()).self_initialized_parameters() == set()
    with pytest.raises(UserError, match=r"^max_initial_memory: must be null without gate biases"):
        MinGRU(max_initial_memory=9, bias=False)
