"""Cells that turn: what a turn does, and what does not change with the length of a row."""

import torch

from layers import assert_same, drawn, load_from, made
from numerate.architectures.phasor import Phasor


def test_the_same_symbol_turns_by_the_same_angle_however_often_it_comes() -> None:
    part, first = made(Phasor(), 8), torch.zeros(8, 8)
    first[:, 0] = 1000.0  # the first feature writes, the others turn
    load_from(part, {"write_gate.weight": first, "write_gate.bias": torch.full((8,), -500.0)})
    number, symbol = torch.eye(8)[0].double(), drawn(8)
    symbol[0] = 0
    states = part.states(torch.stack([number, *[symbol] * 300])[None])[0, 1:]
    turns = states[1:] / states[:-1]
    assert_same(turns, turns[:1].expand_as(turns))
    assert_same(turns.abs(), torch.ones_like(turns.abs()))


def test_only_the_phase_is_read() -> None:
    part, x = made(Phasor(), 8), drawn(2, 1, 8)
    states = torch.polar(torch.full((2, 1, 8), 3.0).double(), drawn(2, 1, 8, seed=1))
    assert_same(part.read(states, x), part.read(1000 * states, x), atol=1e-4, rtol=1e-4)


def test_an_exclusive_token_that_turns_wholly_writes_nothing() -> None:
    part = made(Phasor(exclusive=True), 8)
    load_from(part, {"rotation_gate.bias": torch.full((8,), 50.0)})
    assert bool((part.angles_and_inputs(drawn(2, 3, 8))[1].abs() < 1e-12).all())
