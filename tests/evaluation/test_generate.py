"""Promises of greedy decoding, on every model."""

from typing import Any

import pytest
import torch

from numerate.evaluation.generate import greedy_decode
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.vocabulary import EOS, PAD
from oracle import generated_rows, read_again, row_of

LENGTHS = [2, 7, 4, 1, 6, 3]


def eager_to_end(model: Any) -> Any:
    """An untrained model that says the end now and then, and not the same token for ever."""
    with torch.no_grad():
        model.head.weight[EOS] *= 4.0
    return model


def test_ragged_prompts_are_answered_as_each_row_alone_without_a_cache(
    any_model: Any, build: Any, make_tokens: Any
) -> None:
    model, prompts = eager_to_end(build(any_model)), make_tokens(LENGTHS)
    position_offset = model.num_position_offsets() - 1
    together = greedy_decode(model, prompts, 6, position_offset=position_offset)
    ids, log_probabilities, _ = read_again(model, prompts, 6, position_offset=position_offset)
    assert generated_rows(together) == ids
    assert not together.log_probability.requires_grad, "no graph is kept"
    assert together.log_probability.tolist() == pytest.approx(log_probabilities, rel=1e-4, abs=1e-6)
    for row in (0, 1, 3):
        alone, (log_probability,), _ = read_again(model, row_of(prompts, row), 6, position_offset=position_offset)
        assert alone == [ids[row]]
        assert log_probability == pytest.approx(log_probabilities[row], rel=1e-4, abs=1e-6)


@pytest.fixture
def model(build: Any) -> Any:
    return eager_to_end(build(Decoder(hidden_size=16, positions=(Rotary(),))))


def test_a_row_stops_at_its_end_and_the_others_go_on(model: Any, make_tokens: Any) -> None:
    found = greedy_decode(model, make_tokens(LENGTHS * 4, seed=2), 8)
    lengths = found.lengths.tolist()
    assert len(set(lengths)) > 2, "some rows end early and some do not"
    assert 8 in lengths
    for row, length in enumerate(lengths):
        generated = found.ids[row]
        assert (generated[:length] == EOS).sum() == int(length < 8 or generated[7] == EOS)
        if length < 8:
            assert generated[length - 1] == EOS
        assert bool((generated[length:] == PAD).all())


def test_any_token_may_be_the_end(model: Any, make_tokens: Any) -> None:
    prompts = make_tokens(LENGTHS)
    usual = greedy_decode(model, prompts, 6, end_id=-1)
    assert usual.lengths.tolist() == [6] * len(LENGTHS)
    second = int(usual.ids[0, 1])
    stopped = greedy_decode(model, prompts, 6, end_id=second)
    expected = usual.ids[0].tolist()[: usual.ids[0].tolist().index(second) + 1]
    assert generated_rows(stopped)[0] == expected
