"""What is computed at target positions only has the values and gradients of what is computed everywhere."""

import pytest
import torch

from layers import assert_same, context, drawn, made
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import gather_positions
from numerate.positions.bias import T5Bias
from numerate.positions.position import Position
from numerate.positions.position_ids import DigitIndex, Sequential, Shifted
from numerate.positions.rotary import Rotary

ATTENTIONS: dict[str, tuple[Attention, tuple[Position, ...]]] = {
    "plain": (Attention(num_heads=2), ()),
    "with bias vectors": (Attention(num_heads=2, bias=True), ()),
    "rotary": (Attention(num_heads=2), (Rotary(),)),
    "rotary by digit": (Attention(num_heads=2), (Rotary(position_ids=DigitIndex(max_offset=9)),)),
    "two rotations, one in part": (
        Attention(num_heads=2),
        (Rotary(partial_rotary_factor=0.5), Rotary(position_ids=Shifted(9))),
    ),
    "a bias in the scores": (Attention(num_heads=2), (T5Bias(),)),
    "a bias by digit": (Attention(num_heads=2), (T5Bias(position_ids=DigitIndex(max_offset=9)), Rotary())),
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("hiding", [False, True])
def test_attention_at_target_positions_is_the_whole_attention_there(name: str, hiding: bool) -> None:
    spec, positions = ATTENTIONS[name]
    rows, time, generator = 5, 9, torch.Generator().manual_seed(0)
    part, x = made(spec, 8, positions=positions, noise=0.1), drawn(rows, time, 8).requires_grad_()
    here = context([time] * rows)
    here.position_ids = tuple(
        torch.randint(0, 12, (1 if isinstance(one.position_ids, Sequential) else rows, time), generator=generator)
        for one in positions
    )
    indices = torch.randint(0, time, (rows, 4), generator=generator)
    indices[1] = torch.tensor([0, time - 1, time - 1, time - 1])
    if hiding:  # target positions too, and all of a row
        here.blocked_keys = torch.rand(rows, time, generator=generator) < 0.4
        here.blocked_keys[0] = True
    expected = gather_positions(part(x, here), indices)
    assert_same(part.forward_at(x, here, indices), expected, [x, *part.parameters()])


def test_dropout_in_attention_is_drawn_at_target_positions_too() -> None:
    part, x, indices = made(Attention(num_heads=2, dropout=0.5), 8), drawn(3, 6, 8), torch.tensor([[4, 5]] * 3)
    calm = part.forward_at(x, context([6] * 3), indices)
    assert not torch.equal(part.train().forward_at(x, context([6] * 3), indices), calm)
