"""Learned and sinusoidal positions, against written-out formulas."""

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from numerate.batch import Draw, Tokens
from numerate.errors import Mistake
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned, LearnedTable, Sinusoidal
from numerate.positions.numbering import DigitIndex, Sequential, Shifted


def test_sinusoidal_is_the_written_out_formula() -> None:
    width, base, scale = 6, 10000.0, 0.5
    places = [0, 1, 2, 57]
    part = Sinusoidal(base=base, scale=scale).build_input(width)
    found = part(torch.ones(1, 4, width), torch.tensor([places]))[0]
    for row, place in enumerate(places):
        for i in range(width // 2):
            angle = place / base ** (2 * i / width)
            assert found[row, 2 * i].item() == pytest.approx(1 + scale * math.sin(angle), abs=1e-5)
            assert found[row, 2 * i + 1].item() == pytest.approx(1 + scale * math.cos(angle), abs=1e-5)


def test_sinusoidal_refuses_an_odd_width() -> None:
    with pytest.raises(Mistake, match="7 must be even"):
        Sinusoidal().build_input(7)


def test_learned_adds_the_vector_of_the_place() -> None:
    part = Learned(table=5).build_input(3)
    assert isinstance(part, LearnedTable)
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([[0, 4, 2, 2], [1, 1, 0, 3]])
    assert torch.equal(part(x, places), x + part.vectors.weight[places])


def eight(vocabulary: Any, time: int = 8) -> Tokens:
    return Tokens(torch.full((2, time), vocabulary.ids["7"]), torch.full((2,), time), torch.arange(2))


@pytest.mark.parametrize("numbering", [Sequential(), DigitIndex()])
def test_a_table_that_is_too_small_is_refused_before_any_work(numbering: Any, vocabulary: Any) -> None:
    highest = 7 if isinstance(numbering, Sequential) else 8
    words = rf"model\.positions\.0: place {highest} is beyond the table of Learned.*table={highest + 1} are right"
    model = Decoder(width=8, positions=(Learned(numbering=numbering, table=highest),)).build(vocabulary, 0)
    with pytest.raises(Mistake, match=words):
        model.check(eight(vocabulary))
    with pytest.raises(Mistake, match=words):
        model.place(eight(vocabulary), Draw.fixed())
    large = Decoder(width=8, positions=(Learned(numbering=numbering, table=highest + 1),)).build(vocabulary, 0)
    assert large.check(eight(vocabulary)) == []
    assert large(eight(vocabulary)).logits.isfinite().all()


def test_the_position_that_is_too_small_is_the_one_named(vocabulary: Any) -> None:
    positions = (Learned(), Sinusoidal(), Learned(table=3))
    model = Decoder(width=8, positions=positions).build(vocabulary, 0)
    with pytest.raises(Mistake, match=r"model\.positions\.2: place 7 "):
        model.check(eight(vocabulary))


@pytest.mark.parametrize("numbering", [DigitIndex(max_offset=10), Shifted(max_shift=10)])
def test_the_table_must_hold_what_training_may_draw(numbering: Any, vocabulary: Any) -> None:
    calm = 8 if isinstance(numbering, DigitIndex) else 7
    needed = calm + 10 + 1
    enough = Decoder(width=8, positions=(Learned(numbering=numbering, table=needed),)).build(vocabulary, 0)
    assert enough.check(eight(vocabulary), trained=eight(vocabulary)) == []
    short = Decoder(width=8, positions=(Learned(numbering=numbering, table=needed - 1),)).build(vocabulary, 0)
    with pytest.raises(Mistake, match=f"place {needed - 1} is beyond"):
        short.check(eight(vocabulary), trained=eight(vocabulary))


@pytest.mark.parametrize(
    ("numbering", "first"),
    [(Sequential(), 8), (DigitIndex(), 9), (DigitIndex(max_offset=3), 12), (Shifted(max_shift=3, evaluate_at=2), 11)],
)
def test_the_first_untrained_place_is_named(numbering: Any, first: int, vocabulary: Any) -> None:
    """Trained on rows of 8 digits: the last place trained is the 8th digit's, raised by the most that is drawn."""
    model = Decoder(width=8, positions=(Learned(numbering=numbering, table=64),)).build(vocabulary, 0)
    warnings_ = model.check(eight(vocabulary, 20), trained=eight(vocabulary, 8))
    assert len(warnings_) == 1
    assert f"place {first} is the first that no training example had" in warnings_[0]
    assert model.check(eight(vocabulary, 8), trained=eight(vocabulary, 8)) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.check(replace(eight(vocabulary, 8)), trained=eight(vocabulary, 20))


def test_positions_without_a_table_take_any_place(vocabulary: Any) -> None:
    model = Decoder(width=8, positions=(Sinusoidal(),)).build(vocabulary, 0)
    assert model.check(eight(vocabulary, 2000), trained=eight(vocabulary, 8)) == []


@pytest.mark.parametrize(
    ("make", "field"),
    [(lambda: Learned(table=0), "table"), (lambda: Sinusoidal(base=1.0), "base")],
)
def test_impossible_values_are_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(Mistake, match=f"^{field}: "):
        make()
