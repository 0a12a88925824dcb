"""Promises of positions, on every one of them."""

from typing import Any

import torch

from numerate.positions.position import AttentionBias, ContextualBias, InputPosition, Rotation

WIDTH, HEADS = 16, 2


def test_it_acts_on_the_input_or_inside_attention_and_not_both(any_position: Any) -> None:
    at_input, inside = any_position.build_input(WIDTH), any_position.build_attention(HEADS, WIDTH // HEADS)
    assert (at_input is None) != (inside is None)
    assert isinstance(at_input, InputPosition | None)
    assert isinstance(inside, Rotation | AttentionBias | ContextualBias | None)


def test_what_it_does_at_a_place_depends_on_that_place_alone(any_position: Any) -> None:
    places = torch.tensor([[0, 3, 1, 3, 7], [3, 0, 0, 2, 1]])
    part = any_position.build_input(WIDTH)
    if part is not None:
        added = part(torch.zeros(2, 5, WIDTH), places)
        assert torch.equal(added[0, 1], added[0, 3])
        assert torch.equal(added[0, 1], added[1, 0])
        assert not torch.equal(added[0, 0], added[0, 1])
        return
    inside = any_position.build_attention(HEADS, WIDTH // HEADS)
    if isinstance(inside, ContextualBias):  # knows no places
        return
    if isinstance(inside, Rotation):
        turned = inside.rotate(torch.ones(2, HEADS, 5, WIDTH // HEADS), inside.compute_cos_sin(places))
        assert torch.equal(turned[0, :, 1], turned[1, :, 0])
        assert not torch.equal(turned[0, :, 0], turned[0, :, 1])
    else:
        assert isinstance(inside, AttentionBias)
        bias = inside.compute_bias(places, places)
        assert torch.equal(bias[0, :, 1, 0], bias[1, :, 0, 1])
        assert not torch.equal(bias[0, :, 1, 0], bias[0, :, 2, 0])


def test_one_row_of_places_stands_for_all_rows(any_position: Any) -> None:
    one = torch.tensor([[0, 1, 5]])
    x = torch.randn(3, 3, WIDTH, generator=torch.Generator().manual_seed(0))
    part = any_position.build_input(WIDTH)
    inside = any_position.build_attention(HEADS, WIDTH // HEADS)
    if part is not None:
        assert torch.equal(part(x, one), part(x, one.expand(3, -1)))
    elif isinstance(inside, Rotation):
        heads = x.view(3, 3, HEADS, -1).transpose(1, 2)
        assert torch.equal(
            inside.rotate(heads, inside.compute_cos_sin(one)),
            inside.rotate(heads, inside.compute_cos_sin(one.expand(3, -1))),
        )
    elif not isinstance(inside, ContextualBias):
        assert isinstance(inside, AttentionBias)
        each = inside.compute_bias(*[one.expand(3, -1)] * 2)
        # A matrix product may sum in another order when it has more rows, on some processors.
        torch.testing.assert_close(inside.compute_bias(one, one).expand(3, -1, -1, -1), each, rtol=1e-6, atol=1e-6)


def test_turning_keeps_every_length(any_position: Any) -> None:
    inside = any_position.build_attention(HEADS, WIDTH // HEADS)
    if not isinstance(inside, Rotation):
        assert inside is None or isinstance(inside, AttentionBias | ContextualBias)
        return
    x = torch.randn(1, HEADS, 50, WIDTH // HEADS, generator=torch.Generator().manual_seed(0))
    turned = inside.rotate(x, inside.compute_cos_sin(torch.arange(0, 5000, 100)[None]))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=1e-5)


def test_the_precision_of_the_input_is_kept(any_position: Any) -> None:
    places = torch.tensor([[0, 1, 5]])
    for kind in (torch.float64, torch.float32, torch.bfloat16):
        part = any_position.build_input(WIDTH)
        inside = any_position.build_attention(HEADS, WIDTH // HEADS)
        if part is not None:
            assert part.to(kind)(torch.zeros(1, 3, WIDTH, dtype=kind), places).dtype == kind
        heads = torch.zeros(1, HEADS, 3, WIDTH // HEADS, dtype=kind)
        if isinstance(inside, Rotation):
            assert inside.rotate(heads, inside.compute_cos_sin(places)).dtype == kind
        elif isinstance(inside, ContextualBias):
            seen = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]
            assert inside.to(kind).compute_bias(heads, heads, seen).dtype == kind


def test_far_places_are_as_exact_as_near_ones_in_half_precision(any_position: Any) -> None:
    """Angles are made in float32 even where the model runs in bfloat16: 257 is no number of bfloat16."""
    inside = any_position.build_attention(HEADS, WIDTH // HEADS)
    if not isinstance(inside, Rotation):
        return
    x = torch.ones(1, HEADS, 2, WIDTH // HEADS)
    places = torch.tensor([[257, 256]])
    exact = inside.rotate(x, inside.compute_cos_sin(places))
    rough = inside.rotate(x.bfloat16(), inside.compute_cos_sin(places)).float()
    torch.testing.assert_close(rough, exact, atol=0.03, rtol=0.03)
    assert not torch.allclose(exact[:, :, 0], exact[:, :, 1], atol=0.1)
