"""Several mixers in one model: who takes which layer."""

from typing import Any

import pytest
import torch

from numerate.errors import UserError
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.vocabulary import Vocabulary


def test_each_mixer_is_built_with_its_layer_and_depth_among_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    for part in (LSTM, Attention):
        true = part.build

        def build(self: Any, width: int, layer: int, depth: int, positions: Any, true: Any = true) -> Any:
            built.append((type(self).__name__, layer, depth, len(positions)))
            return true(self, width, layer, depth, positions)

        monkeypatch.setattr(part, "build", build)
    mixer = Alternating((LSTM(), Attention()))
    for layer in range(5):
        mixer.build(16, layer, 5, (Rotary(),))
    lstm, attention = [("LSTM", i, 3, 0) for i in range(3)], [("Attention", i, 2, 1) for i in range(2)]
    assert built == [lstm[0], attention[0], lstm[1], attention[1], lstm[2]]


def test_one_mixer_in_turn_is_that_mixer() -> None:
    vocabulary = Vocabulary.with_digits(["+"])
    alone, in_turn = (
        Decoder(hidden_size=16, mixer=mixer, positions=(Rotary(),)).build(vocabulary, 3)
        for mixer in (Attention(num_heads=2), Alternating((Attention(num_heads=2),)))
    )
    for (name, own), (other, same) in zip(alone.named_parameters(), in_turn.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(own, same)


def test_fewer_layers_than_mixers_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"2 mixers need at least 2 layers, not 1; use model\.backbone\.num_layers=2 or more"
    ):
        Decoder(hidden_size=16, backbone=Stack(num_layers=1), mixer=Alternating()).build(
            Vocabulary.with_digits(["+"]), 0
        )


def test_no_mixer_and_lists_within_lists_are_refused() -> None:
    with pytest.raises(UserError, match="mixers: must not be empty"):
        Alternating(())
    with pytest.raises(UserError, match=r"mixers\.0: must not be Alternating itself"):
        Alternating((Alternating(),))
