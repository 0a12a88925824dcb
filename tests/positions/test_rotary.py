"""Rotary positions, against the published case and complex numbers."""

from pathlib import Path

import pytest
import torch

from cases import published_case
from numerate.errors import UserError
from numerate.positions.rotary import Rotary


def test_the_published_case(shared: Path) -> None:
    case = published_case(shared, "abacus.json", "rope")
    turn = Rotary().build_attention(1, 8)
    prepared = turn.compute_cos_sin(torch.tensor([case["input"]["positions"]]))
    for name in ("q", "k"):
        x = torch.tensor(case["input"][name], dtype=torch.float32).expand(1, 1, 4, 8)
        expected = torch.tensor(case["expected"][name])
        torch.testing.assert_close(turn.rotate(x, prepared)[0, 0], expected, atol=case["tolerance"], rtol=0)


def test_each_pair_is_a_complex_number_times_a_phase() -> None:
    width, base = 8, 100.0
    turn = Rotary(base=base).build_attention(1, width).double()
    x = torch.randn(2, 3, 5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([[0, 1, 2, 9, 4], [3, 3, 0, 1, 100]])
    found = turn.rotate(x, turn.compute_cos_sin(places))
    for i in range(width // 2):
        phase = torch.polar(torch.ones(2, 1, 5).double(), places[:, None].double() * base ** (-2 * i / width))
        expected = torch.complex(x[..., i], x[..., i + width // 2]) * phase
        torch.testing.assert_close(found[..., i], expected.real, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found[..., i + width // 2], expected.imag, atol=1e-6, rtol=1e-6)


def test_a_share_turns_the_first_components_only() -> None:
    x = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0))
    places = torch.arange(1, 5)[None]
    half, small = Rotary(partial_rotary_factor=0.5).build_attention(1, 8), Rotary().build_attention(1, 4)
    found = half.rotate(x, half.compute_cos_sin(places))
    assert torch.equal(found[..., 4:], x[..., 4:])
    torch.testing.assert_close(found[..., :4], small.rotate(x[..., :4], small.compute_cos_sin(places)))


@pytest.mark.parametrize(("factor", "width", "rotated"), [(0.5, 6, 3), (1.0, 5, 5)])
def test_an_odd_width_cannot_be_turned(factor: float, width: int, rotated: int) -> None:
    with pytest.raises(UserError, match=f"must be even and positive, not {rotated} of {width}"):
        Rotary(partial_rotary_factor=factor).build_attention(1, width)
