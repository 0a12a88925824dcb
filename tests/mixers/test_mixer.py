"""Promises of mixers, on every one of them with positions that act inside it. All in float64."""

from typing import Any

import pytest
import torch

from layers import hides_keys
from numerate.errors import UserError
from promises import (  # noqa: F401
    EXACT,
    inputs,
    test_earlier_tokens_matter,
    test_evaluation_is_not_random,
    test_never_looks_ahead,
    test_padding_on_the_right_changes_nothing,
    test_prompts_may_have_any_lengths,
    test_reading_at_once_is_reading_token_by_token,
    test_rows_do_not_see_each_other,
)


@pytest.mark.where(any_mixing=lambda mixing: hides_keys(mixing[0]))
def test_hidden_keys_are_not_seen(any_mixing: Any, mix: Any) -> None:
    mixing, x = mix(any_mixing), inputs(2, 8)
    hidden = torch.zeros(2, 8, dtype=torch.bool)
    hidden[0, [0, 3]] = hidden[1, 5] = True
    changed = torch.where(hidden[..., None], inputs(2, 8, seed=1), x)
    before, after = mixing.at_once(x, blocked_keys=hidden), mixing.at_once(changed, blocked_keys=hidden)
    assert before.isfinite().all()
    torch.testing.assert_close(after[~hidden], before[~hidden], **EXACT)
    assert not torch.allclose(mixing.at_once(changed)[~hidden], mixing.at_once(x)[~hidden], **EXACT)


@pytest.mark.where(any_mixing=lambda mixing: not mixing[0].has_attention())
def test_hidden_keys_are_refused_where_every_token_is_read(any_mixing: Any, mix: Any) -> None:
    mixing, hidden = mix(any_mixing), torch.zeros(2, 8, dtype=torch.bool)
    context = mixing.context(torch.full((2,), 8), 8, blocked_keys=hidden)
    for form in (mixing.part, mixing.part.prefill):
        with pytest.raises(UserError, match="does not support blocked keys"):
            form(inputs(2, 8), context)


def test_target_positions_are_those_of_the_whole(any_mixing: Any, mix: Any) -> None:
    mixing, x = mix(any_mixing), inputs(3, 8)
    indices = torch.tensor([[0, 3, 7], [1, 2, 2], [7, 0, 4]])
    hidden = torch.zeros(3, 8, dtype=torch.bool)
    hidden[0, 3] = hidden[1, 0] = True
    for more in ({}, {"blocked_keys": hidden}) if hides_keys(any_mixing[0]) else ({},):
        context = mixing.context(torch.full((3,), 8), 8, **more)
        expected = mixing.at_once(x, **more)[torch.arange(3)[:, None], indices]
        torch.testing.assert_close(mixing.part.forward_at(x, context, indices), expected, **EXACT)


def test_every_parameter_gets_a_finite_gradient(any_mixing: Any, mix: Any) -> None:
    mixing = mix(any_mixing)
    (mixing.at_once(inputs(3, 6)) * inputs(3, 6, seed=1)).sum().backward()
    named = dict(mixing.part.named_parameters())
    assert named
    for name, parameter in named.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        learned = float(parameter.grad.abs().sum())
        if name.endswith("attention_biases.0.out_proj.bias") and getattr(any_mixing[0], "activation", None) != "gelu":
            # What FIRE adds to all scores of a head alike softmax takes away again: 0, but for what rounding leaves.
            assert learned < 1e-9, name
        else:
            # A bias before FIRE's ReLU is such a constant, too, where its units are active at every distance.
            assert learned > 0 or name.endswith("attention_biases.0.in_proj.bias"), name


def test_cast_to_half_precision_it_still_learns_and_steps(any_mixing: Any, mix: Any) -> None:
    mixing, x, lengths = mix(any_mixing), inputs(2, 20).bfloat16(), torch.tensor([20, 13])
    part = mixing.part.bfloat16()
    output = mixing.at_once(x, lengths)
    output.square().sum().backward()
    _, state = part.prefill(x, mixing.context(lengths, 20, capacity=21))
    further, _ = part.step(x[:, :1], mixing.context(lengths + 1, 21, cache_position=lengths, cached_length=21), state)
    for found in (output, further, *(parameter.grad for parameter in part.parameters())):
        assert found is not None
        assert found.dtype is torch.bfloat16
        assert found.isfinite().all()
    exact = mix(any_mixing)
    exact.part.load_state_dict(part.state_dict())
    whole = exact.at_once(x.double(), lengths)
    torch.testing.assert_close(output.double(), whole, atol=0.1 * float(whole.detach().abs().max()), rtol=0)


def test_what_it_says_of_its_parameters_is_true_of_them(any_mixing: Any, mix: Any) -> None:
    part = mix(any_mixing).part
    named, modules = dict(part.named_parameters()), set(part.modules())
    assert part.self_initialized_parameters() <= set(named)
    assert set(part.optimizer_options_by_parameter()) <= set(named)
    assert set(part.output_projections()) <= modules
    assert sum(linear.out_features for linear in part.output_projections()) in (0, 16)


def test_longer_rows_cost_more(any_mixing: Any, mix: Any) -> None:
    part = mix(any_mixing).part
    assert 0 < 2 * part.flops(10) <= part.flops(20) <= 4 * part.flops(10)


@pytest.mark.where(any_mixing=lambda mixing: not mixing[0].has_attention())  # which keeps every token
def test_what_a_recurrence_carries_does_not_grow(any_mixing: Any, mix: Any) -> None:
    sizes = set()
    for time in (3, 30):
        mixing, x = mix(any_mixing), inputs(2, time)
        lengths = torch.full((2,), time)
        context = mixing.context(lengths, time, capacity=time + 1)
        _, state = mixing.part.prefill(x, context)
        sizes.add(size_of(state))
        context = mixing.context(lengths + 1, time + 1, cache_position=lengths, cached_length=time + 1)
        _, state = mixing.part.step(inputs(2, 1, seed=1), context, state)
        sizes.add(size_of(state))
    assert len(sizes) == 1
    assert sizes.pop() > 0


def size_of(state: Any) -> int:
    """How many numbers a state holds, however it is built."""
    if isinstance(state, torch.Tensor):
        return state.numel()
    parts = vars(state).values() if hasattr(state, "__dict__") else state
    return sum(size_of(part) for part in parts if part is not None)
