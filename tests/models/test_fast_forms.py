"""What is computed at target positions only has the values and gradients of what is computed everywhere."""

from typing import Any

import pytest
import torch
from torch import Tensor

from layers import assert_same, context, drawn, made
from numerate.batch import StepContext
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer, gather_positions
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.position import AttentionBias, Position
from numerate.positions.position_ids import DigitIndex, PositionIds, Sequential, Shifted
from numerate.positions.rotary import Rotary


class Distances(Position):
    """A bias in the scores: a different number for every distance and head."""

    def __init__(self, numbering: PositionIds) -> None:
        self.position_ids = numbering

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return DistanceTable(heads)


class DistanceTable(AttentionBias):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(41, heads))

    def compute_bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).clamp(-20, 20) + 20
        return self.table[distance].permute(0, 3, 1, 2)


ATTENTIONS: dict[str, tuple[Attention, tuple[Position, ...]]] = {
    "plain": (Attention(num_heads=2), ()),
    "with bias vectors": (Attention(num_heads=2, bias=True), ()),
    "rotary": (Attention(num_heads=2), (Rotary(),)),
    "rotary by digit": (Attention(num_heads=2), (Rotary(position_ids=DigitIndex(max_offset=9)),)),
    "two rotations, one in part": (
        Attention(num_heads=2),
        (Rotary(partial_rotary_factor=0.5), Rotary(position_ids=Shifted(9))),
    ),
    "a bias in the scores": (Attention(num_heads=2), (Distances(Sequential()),)),
    "a bias by digit": (Attention(num_heads=2), (Distances(DigitIndex(max_offset=9)), Rotary())),
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("hiding", [False, True])
def test_attention_at_target_positions_is_the_whole_attention_there(name: str, hiding: bool) -> None:
    spec, positions = ATTENTIONS[name]
    rows, time, generator = 5, 9, torch.Generator().manual_seed(0)
    part, x = made(spec, 8, positions=positions), drawn(rows, time, 8).requires_grad_()
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


def test_positions_are_those_that_gathering_finds() -> None:
    x, indices = torch.arange(24.0).view(2, 4, 3), torch.tensor([[0, 2, 2], [3, 1, 0]])
    assert torch.equal(gather_positions(x, indices), torch.take_along_dim(x, indices[..., None], dim=1))


@pytest.mark.parametrize("mixer", [Attention(num_heads=2), LSTM()])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("feed_forward", [FeedForward(), None])
def test_a_decoder_says_the_same_at_target_positions(
    mixer: Mixer, norm_first: bool, feed_forward: FeedForward | None, build: Any, make_tokens: Any
) -> None:
    inside: tuple[Position, ...] = (Rotary(),) if mixer.has_attention() else ()
    spec = Decoder(
        hidden_size=16,
        mixer=mixer,
        positions=(Learned(position_ids=DigitIndex(max_offset=5), max_position_embeddings=32), *inside),
        backbone=Stack(num_layers=2, input_injection="add"),
        norm_first=norm_first,
        feed_forward=feed_forward,
    )
    model, indices = build(spec), torch.tensor([[2, 5, 7], [3, 4, 4], [0, 1, 2]])
    tokens = model.assign_positions(make_tokens([8, 5, 3]), StepContext(0, 4))
    whole, fast = model(tokens), model(tokens, target_positions=indices)
    assert fast.target_positions is not None
    assert whole.target_positions is None
    assert_same(fast.logits, gather_positions(whole.logits, indices), list(model.parameters()))


def test_dropout_in_attention_is_drawn_at_target_positions_too() -> None:
    part, x, indices = made(Attention(num_heads=2, dropout=0.5), 8), drawn(3, 6, 8), torch.tensor([[4, 5]] * 3)
    calm = part.forward_at(x, context([6] * 3), indices)
    assert not torch.equal(part.train().forward_at(x, context([6] * 3), indices), calm)
