"""Cells that turn: both forms, what a turn does, and what does not change with the length of a row."""

import math

import pytest
import torch

from numerate.architectures.phasor import Phasor, PhasorMixer
from numerate.errors import UserError


def made(width: int = 8, **settings: float) -> PhasorMixer:
    torch.manual_seed(0)
    return Phasor(**settings).build(width, 0, 1, ()).double()  # type: ignore[arg-type]


def token_by_token(part: PhasorMixer, x: torch.Tensor) -> torch.Tensor:
    """The states of a loop over tokens."""
    angles, written = part.angles_and_inputs(x)
    state, found = torch.zeros_like(written[:, 0]), []
    for angle, new in zip(angles.unbind(1), written.unbind(1), strict=True):
        state = torch.polar(torch.ones_like(angle), angle) * state + new
        found.append(state)
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("exclusive", [False, True])
def test_whole_rows_are_the_loop_over_tokens_up_to_long_ones(exclusive: bool) -> None:
    part, x = made(exclusive=exclusive), torch.randn(3, 1000, 8, dtype=torch.float64)
    torch.testing.assert_close(part.states(x), token_by_token(part, x), atol=1e-10, rtol=1e-10)


def test_the_same_symbol_turns_by_the_same_angle_however_often_it_comes() -> None:
    part = made()
    with torch.no_grad():  # the first feature writes, the others turn
        part.write_gate.weight.zero_()
        part.write_gate.weight[:, 0] = 1000.0
        part.write_gate.bias.fill_(-500.0)
    number, symbol = torch.zeros(2, 8, dtype=torch.float64)
    number[0], symbol[1:] = 1.0, torch.randn(7, dtype=torch.float64)
    x = torch.stack([number, *[symbol] * 300])[None]
    states = token_by_token(part, x)[0, 1:]
    turns = states[1:] / states[:-1]
    torch.testing.assert_close(turns, turns[:1].expand_as(turns), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(turns.abs(), torch.ones_like(turns.abs()), atol=1e-9, rtol=1e-9)


def test_only_the_phase_is_read() -> None:
    part, x = made(), torch.randn(2, 1, 8, dtype=torch.float64)
    states = torch.polar(torch.full((2, 1, 8), 3.0, dtype=torch.float64), torch.rand(2, 1, 8, dtype=torch.float64))
    torch.testing.assert_close(part.read(states, x), part.read(1000 * states, x), atol=1e-4, rtol=1e-4)


def test_an_exclusive_token_that_turns_wholly_writes_nothing() -> None:
    part = made(exclusive=True)
    with torch.no_grad():
        part.rotation_gate.bias.fill_(50.0)
    _, written = part.angles_and_inputs(torch.randn(2, 3, 8, dtype=torch.float64))
    assert bool((written.abs() < 1e-12).all())


@pytest.mark.parametrize(
    "settings", [{"state_size": 0}, {"max_phase": 0.0}, {"learning_rate_factor": 0.0}, {"write_gate_offset": math.inf}]
)
def test_what_cannot_turn_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        Phasor(**settings)  # type: ignore[arg-type]
