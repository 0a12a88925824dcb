"""Promises of positions, on every one of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from layers import drawn
from numerate.positions.bias import Window
from numerate.positions.position import AttentionBias, ContextualBias, InputPosition, Rotation

WIDTH, HEADS = 16, 2
PLACES = torch.tensor([[0, 3, 1, 3, 7], [3, 0, 0, 2, 1]])


def built(position: Any) -> Any:
    """What it adds to the input, or does inside attention."""
    part = position.build_input(WIDTH)
    return position.build_attention(HEADS, WIDTH // HEADS) if part is None else part


def effect(part: Any, places: Tensor, x: Tensor) -> Tensor:
    """What it makes of the input x, of heads, or of scores by the distance to the first key: one for each position."""
    if isinstance(part, InputPosition):
        found: Tensor = part(x, places)
        return found
    if isinstance(part, Rotation):
        heads = x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        return part.rotate(heads, part.compute_cos_sin(places)).transpose(1, 2)
    assert isinstance(part, AttentionBias)
    return part.compute_bias(places, torch.zeros_like(places[:, :1]))[..., 0].transpose(1, 2)


def knows_no_places(position: Any) -> bool:
    return isinstance(built(position), ContextualBias)


def test_it_acts_on_the_input_or_inside_attention_and_not_both(any_position: Any) -> None:
    at_input, inside = any_position.build_input(WIDTH), any_position.build_attention(HEADS, WIDTH // HEADS)
    assert (at_input is None) != (inside is None)
    assert isinstance(at_input, InputPosition | None)
    assert isinstance(inside, Rotation | AttentionBias | ContextualBias | None)


@pytest.mark.where(any_position=lambda position: not knows_no_places(position) and not isinstance(position, Window))
def test_what_it_does_at_a_place_depends_on_that_place_alone(any_position: Any) -> None:
    found = effect(built(any_position), PLACES, torch.ones(2, 5, WIDTH))
    assert torch.equal(found[0, 1], found[0, 3])
    assert torch.equal(found[0, 1], found[1, 0])
    assert not torch.equal(found[0, 0], found[0, 1])


@pytest.mark.where(any_position=lambda position: not knows_no_places(position))
def test_one_row_of_places_stands_for_all_rows(any_position: Any) -> None:
    part, one, x = built(any_position), PLACES[:1], drawn(3, 5, WIDTH).float()
    found = effect(part, one, x).expand(3, *[-1] * (effect(part, one, x).dim() - 1))
    # A matrix product may sum in another order when it has more rows, on some processors.
    torch.testing.assert_close(found, effect(part, one.expand(3, -1), x), rtol=1e-6, atol=1e-6)


@pytest.mark.where(any_position=lambda position: isinstance(built(position), Rotation))
def test_turning_keeps_every_length_and_far_places_as_exact_in_half_precision(any_position: Any) -> None:
    """Angles are made in float32 even where the model runs in bfloat16: 257 is no number of bfloat16."""
    part, x = built(any_position), drawn(1, 50, WIDTH).float()
    turned, heads = effect(part, torch.arange(0, 5000, 100)[None], x), x.view(1, 50, HEADS, -1)
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1), rtol=1e-5, atol=1e-5)
    ones, places = torch.ones(1, 2, WIDTH), torch.tensor([[257, 256]])
    exact, rough = effect(part, places, ones), effect(part, places, ones.bfloat16()).float()
    torch.testing.assert_close(rough, exact, atol=0.03, rtol=0.03)
    assert not torch.allclose(exact[:, 0], exact[:, 1], atol=0.1)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_the_precision_of_the_input_is_kept(any_position: Any, kind: torch.dtype) -> None:
    part = built(any_position)
    if isinstance(part, ContextualBias):
        heads, seen = torch.zeros(1, HEADS, 3, WIDTH // HEADS, dtype=kind), torch.ones(1, 1, 3, 3).bool().tril()
        assert part.to(kind).compute_bias(heads, heads, seen).dtype == kind
    elif not isinstance(part, AttentionBias):
        assert effect(part.to(kind), PLACES, torch.zeros(2, 5, WIDTH, dtype=kind)).dtype == kind
