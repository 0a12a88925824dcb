"""The gate of a feed-forward with one gradient for both halves."""

import pytest
import torch
from torch.nn.functional import gelu, silu

from numerate.models.gating import gated_activation


@pytest.mark.parametrize("activation", [silu, gelu])
def test_a_gate_and_its_gradient_are_those_of_its_formula(activation: torch.nn.Module) -> None:
    hidden = torch.randn(2, 3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    output, wanted = gated_activation(hidden, activation), activation(hidden[..., :5]) * hidden[..., 5:]
    torch.testing.assert_close(output, wanted, atol=1e-12, rtol=1e-12)
    found, expected = (torch.autograd.grad((one * weight).sum(), hidden)[0] for one in (output, wanted))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_models_in_a_stack_are_gated_each_alone() -> None:
    hidden = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    stacked = torch.vmap(lambda one: gated_activation(one, silu))(hidden)
    torch.testing.assert_close(stacked, gated_activation(hidden, silu))


def test_one_and_three_by_hand() -> None:
    assert float(gated_activation(torch.tensor([1.0, 3.0]), silu)) == pytest.approx(2.193, abs=1e-3)
