"""Promises of models, on every one of them: each mixer, numbering, position, trunk, norm and activation. In float64."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from layers import hides_keys
from numerate.batch import StepContext, Tokens

EXACT = {"atol": 1e-9, "rtol": 1e-9}


def logits(model: Any, tokens: Tokens, draw: StepContext | None = None) -> torch.Tensor:
    placed = tokens if draw is None else model.assign_positions(tokens, draw)
    found: torch.Tensor = model(placed).logits
    return found


def draws(model: Any) -> list[StepContext]:
    return [
        *(StepContext.for_evaluation(i) for i in {0, model.num_position_offsets() - 1}),
        StepContext(seed=1, step=4),
    ]


def other_ids(ids: torch.Tensor, seed: int = 9) -> torch.Tensor:
    """Other tokens everywhere, of any kind."""
    step = torch.randint(1, 18, ids.shape, generator=torch.Generator().manual_seed(seed))
    return 1 + (ids - 1 + step) % 18


@torch.no_grad()
def test_never_looks_ahead(any_model: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = build(any_model), make_tokens([8, 8])
    for draw in draws(model):
        whole = logits(model, tokens, draw)
        for place in (1, 4, 7):
            ids = torch.where(torch.arange(8) >= place, other_ids(tokens.ids), tokens.ids)
            after = logits(model, replace(tokens, ids=ids), draw)
            torch.testing.assert_close(after[:, :place], whole[:, :place], **EXACT)
            assert not torch.allclose(after[:, place:], whole[:, place:], **EXACT)


@torch.no_grad()
def test_rows_do_not_see_each_other(any_model: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = build(any_model), make_tokens([8, 3, 6, 8])
    for draw in draws(model):
        whole = logits(model, tokens, draw)
        ids = tokens.ids.clone()
        ids[3] = other_ids(ids)[3]
        after = logits(model, replace(tokens, ids=ids), draw)
        torch.testing.assert_close(after[:3], whole[:3], **EXACT)
        for row, length in enumerate([8, 3, 6, 8]):
            alone = Tokens(
                tokens.ids[row : row + 1, :length], tokens.lengths[row : row + 1], tokens.example_indices[row : row + 1]
            )
            torch.testing.assert_close(logits(model, alone, draw)[0], whole[row, :length], **EXACT)


@torch.no_grad()
def test_padding_on_the_right_changes_nothing(any_model: Any, build: Any, make_tokens: Any) -> None:
    model = build(any_model)
    tight, wide = make_tokens([7, 4]), make_tokens([7, 4])
    wide = replace(wide, ids=torch.nn.functional.pad(wide.ids, (0, 5)))
    for draw in draws(model):
        found, expected = logits(model, wide, draw), logits(model, tight, draw)
        torch.testing.assert_close(found[0, :7], expected[0], **EXACT)
        torch.testing.assert_close(found[1, :4], expected[1, :4], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("prompts", [[1, 5, 3], [4, 4, 4]])
def test_reading_at_once_is_reading_token_by_token(
    any_model: Any, build: Any, make_tokens: Any, prompts: list[int]
) -> None:
    model, tokens = build(any_model), make_tokens([9, 9, 9])
    lengths, rows, longest = torch.tensor(prompts), torch.arange(3), max(prompts)
    for position_offset in {0, model.num_position_offsets() - 1}:
        whole = logits(model, tokens, StepContext.for_evaluation(position_offset))
        read = torch.where(torch.arange(longest) < lengths[:, None], tokens.ids[:, :longest], 0)
        started = model.prefill(
            replace(tokens, ids=read, lengths=lengths), capacity=longest + 4, position_offset=position_offset
        )
        for step in range(5):
            assert started.output.logits.shape[1] == 1
            torch.testing.assert_close(started.output.logits[:, 0], whole[rows, lengths + step - 1], **EXACT)
            if step < 4:
                started = model.step(tokens.ids[rows, lengths + step], None, started.state)


@torch.no_grad()
def test_target_positions_are_those_of_the_whole(any_model: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = build(any_model), make_tokens([8, 5])
    indices = torch.tensor([[0, 3, 7], [2, 4, 4]])
    output = model(tokens, target_positions=indices)
    assert torch.equal(output.target_positions, indices)
    expected = logits(model, tokens)[torch.arange(2)[:, None], indices]
    torch.testing.assert_close(output.logits, expected, **EXACT)


@torch.no_grad()
@pytest.mark.where(any_model=lambda model: hides_keys(model.mixer))
def test_hidden_keys_are_not_seen(any_model: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = build(any_model), make_tokens([8, 8])
    hidden = torch.zeros(2, 8, dtype=torch.bool)
    hidden[0, [0, 3]] = hidden[1, 2] = True
    ids = torch.where(hidden, 4, tokens.ids)
    first, second = (replace(tokens, ids=torch.where(hidden, digit, ids)) for digit in (4, 9))
    shown = logits(model, first), logits(model, second)
    kept = [logits(model, replace(one, blocked_keys=hidden)) for one in (first, second)]
    assert not torch.allclose(shown[0][~hidden], shown[1][~hidden], **EXACT)
    torch.testing.assert_close(kept[0][~hidden], kept[1][~hidden], **EXACT)
    indices = torch.tensor([[1, 2, 7], [0, 3, 5]])
    there = model(replace(first, blocked_keys=hidden), target_positions=indices).logits
    torch.testing.assert_close(there, kept[0][torch.arange(2)[:, None], indices], **EXACT)
    prompt = replace(first, ids=first.ids[:, :5], lengths=torch.tensor([5, 5]), blocked_keys=hidden[:, :5])
    started = model.prefill(prompt, capacity=8)
    for place in range(4, 8):
        torch.testing.assert_close(started.output.logits[:, 0], kept[0][:, place], **EXACT)
        if place < 7:
            started = model.step(first.ids[:, place + 1], None, started.state)


def test_every_parameter_gets_a_finite_gradient(any_model: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = build(any_model).train(), make_tokens([8, 8, 8, 8])
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        output = model(model.assign_positions(tokens, StepContext(seed=0, step=0)))
    cross_entropy(output.logits.flatten(0, 1), other_ids(tokens.ids).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_weights_are_a_function_of_the_seed(any_model: Any, vocabulary: Any) -> None:
    state = torch.random.get_rng_state()
    first = any_model.build(vocabulary, 3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was moved"
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(77)
        again = any_model.build(vocabulary, 3).state_dict()
    other = any_model.build(vocabulary, 4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    claimed = any_model.build(vocabulary, 3)._self_initialized_parameters()
    matrices = {name for name in first if first[name].dim() > 1 and first[name].any()}
    assert matrices - claimed
    # Slopes of biases and the like, and what a mixer claims (the A of a state space), may start alike for every seed.
    assert all(not torch.equal(first[name], other[name]) for name in matrices - claimed)
    assert not matrices & claimed or any(not torch.equal(first[name], other[name]) for name in claimed)


@torch.no_grad()
def test_a_forward_in_evaluation_is_bit_identical_when_repeated(
    any_model: Any, vocabulary: Any, make_tokens: Any
) -> None:
    model, tokens = any_model.build(vocabulary, 0).eval(), make_tokens([8, 5, 2])
    assert torch.equal(logits(model, tokens), logits(model, tokens))
    placed = model.assign_positions(tokens, StepContext.for_evaluation())
    assert torch.equal(logits(model, tokens), logits(model, placed)), "unplaced tokens are placed as in evaluation"


@torch.no_grad()
def test_what_no_file_of_weights_has_outlasts_the_meta_device(any_model: Any, build: Any, make_tokens: Any) -> None:
    """Frequencies, slopes, buckets, kinds of tokens: functions of the settings."""
    model, tokens = build(any_model), make_tokens([9, 5])
    with torch.device("meta"):
        empty = build(any_model)
    for there in (empty, deepcopy(model).to("meta")):
        there.to_empty(device="cpu").load_state_dict(model.state_dict())
        assert torch.equal(logits(there, tokens), logits(model, tokens))
