"""Promises of what the two wings pass to each other."""

import os
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch

from numerate.batch import Batch, Output, Tokens


def tokens(rows: int = 2, time: int = 3, **more: Any) -> Tokens:
    return Tokens(torch.ones(rows, time, dtype=torch.long), torch.full((rows,), time), torch.arange(rows), **more)


def batch(**more: Any) -> Batch:
    some = torch.zeros(2, 1, dtype=torch.long)
    return Batch(tokens(), torch.zeros(2, 3, dtype=torch.long), some, some + 5, {"tokens": 2, "examples": 2}, 6, **more)


@pytest.mark.skipif(os.environ["CHECK_SHAPES"] == "0", reason="CHECK_SHAPES=0 turns the checks off")
def test_shapes_are_checked() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="lengths"):
        replace(tokens(), lengths=torch.ones(3, dtype=torch.long))
    with pytest.raises(jaxtyping.TypeCheckError, match="blocked_keys"):
        tokens(blocked_keys=torch.zeros(2, 4, dtype=torch.bool))


def test_everything_moves_to_a_device_together() -> None:
    """On the device `meta`, which every machine has."""
    whole = batch(source=tokens(number_values=torch.ones(2, 3), position_ids=(torch.zeros(1, 3, dtype=torch.long),)))
    moved = whole.to(torch.device("meta"))
    held = [moved.targets, moved.target_positions, moved.target_ids, *vars(moved.tokens).values()]
    assert moved.source is not None
    held += [*vars(moved.source).values(), *(moved.source.position_ids or ())]
    tensors = [value for value in held if isinstance(value, torch.Tensor)]
    assert len(tensors) == 3 + 3 + 4 + 1
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.counts == whole.counts
    assert moved.num_input_tokens == whole.num_input_tokens
    assert whole.targets.device.type == "cpu", "the batch given is left as it was"


def test_an_output_makes_logits_only_when_asked() -> None:
    called = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        called.append(hidden.shape)
        return hidden @ torch.ones(4, 7)

    output = Output(torch.ones(2, 3, 4), head)
    assert not called
    assert output.logits.shape == (2, 3, 7)
    assert called == [(2, 3, 4)]
    assert output.scaled_numbers is None
    assert Output(torch.ones(2, 3, 4), head, number_head=lambda hidden: hidden.sum(-1)).scaled_numbers.shape == (2, 3)


def test_targets_are_those_of_the_places_an_output_covers() -> None:
    one = batch()
    assert one.targets_for(Output(torch.ones(2, 3, 4), lambda hidden: hidden)) is one.targets
    there = Output(torch.ones(2, 1, 4), lambda hidden: hidden, target_positions=one.target_positions)
    assert one.targets_for(there) is one.target_ids
