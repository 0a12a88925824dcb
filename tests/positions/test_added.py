"""Learned and sinusoidal positions, against written-out formulas."""

import math
from typing import Any

import pytest
import torch

from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.recurrent import LSTM
from numerate.models.decoder import Decoder
from numerate.models.initialization import Initialization
from numerate.positions.added import Learned, LearnedEmbedding, Scalar, ScaledSinusoidal, Sinusoidal
from numerate.positions.bias import FIRE, ALiBi, T5Bias
from numerate.positions.position_ids import DigitIndex, Sequential, Shifted, Zooming
from numerate.positions.rotary import Rotary


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


def test_learned_adds_the_vector_of_the_place() -> None:
    part = Learned(max_position_embeddings=5).build_input(3)
    assert isinstance(part, LearnedEmbedding)
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([[0, 4, 2, 2], [1, 1, 0, 3]])
    assert torch.equal(part(x, places), x + part.embedding.weight[places])


@pytest.mark.parametrize("frozen", [False, True])
def test_vectors_that_begin_as_waves_are_still_waves_when_the_model_is_built(
    frozen: bool, any_initialisation: Initialization, vocabulary: Any
) -> None:
    """In the published code a later initialisation overwrites them."""
    position = Learned(max_position_embeddings=20, initialization="sinusoidal", frozen=frozen)
    model = Decoder(hidden_size=6, mixer=LSTM(), positions=(position,), initialization=any_initialisation).build(
        vocabulary, 0
    )
    waves = Sinusoidal().build_input(6)(torch.zeros(1, 20, 6), torch.arange(20)[None])[0]
    table = model.input_positions["0"].embedding.weight
    torch.testing.assert_close(table.detach(), waves)
    assert table.requires_grad != frozen
    model(eight(vocabulary)).logits.sum().backward()
    assert (table.grad is None) == frozen


def test_frozen_vectors_that_begin_as_embeddings_are_those_of_the_model_that_learns_them(vocabulary: Any) -> None:
    tables = [
        Decoder(hidden_size=8, positions=(Learned(max_position_embeddings=20, frozen=frozen),))
        .build(vocabulary, 0)
        .input_positions["0"]
        .embedding
        for frozen in (False, True)
    ]
    assert torch.equal(tables[0].weight, tables[1].weight)
    assert float(tables[1].weight.std()) > 0.01
    assert not tables[1].weight.requires_grad


def test_scalar_puts_the_share_of_the_places_where_the_last_feature_was() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    found = Scalar(max_positions=128).build_input(4)(x, torch.tensor([[0, 32, 128]]))
    assert torch.equal(found[..., :3], x[..., :3])
    assert found[..., 3].tolist() == [[0.0, 0.25, 1.0]] * 2


def test_scalar_takes_the_fractions_of_zooming_as_they_are(vocabulary: Any) -> None:
    model = Decoder(hidden_size=4, mixer=LSTM(), positions=(Scalar(position_ids=Zooming()),)).build(vocabulary, 0)
    tokens = model.assign_positions(eight(vocabulary, 3), StepContext.for_evaluation())
    assert tokens.position_ids is not None
    found = model.input_positions["0"](torch.zeros(2, 3, 4), tokens.position_ids[0])
    assert found[..., 3].tolist() == [[0.25, 0.5, 0.75]] * 2
    assert model(tokens).logits.isfinite().all()


@pytest.mark.parametrize(
    "position", [Learned, Sinusoidal, ScaledSinusoidal, Rotary, FIRE, ALiBi, T5Bias], ids=lambda kind: kind.__name__
)
def test_a_position_that_wants_whole_places_refuses_fractions(position: Any) -> None:
    with pytest.raises(
        UserError,
        match=r"^positions.0.position_ids: Zooming has fractional position ids, .* Scalar accepts fractions",
    ):
        Decoder(hidden_size=8, positions=(position(position_ids=Zooming()),))


def test_a_model_that_looks_ahead_says_so_and_is_not_decoded(vocabulary: Any) -> None:
    ahead = Decoder(hidden_size=4, mixer=LSTM(), positions=(Scalar(), Scalar(position_ids=Zooming()))).build(
        vocabulary, 0
    )
    why = ahead.non_causal_reason()
    assert why is not None
    assert why.startswith("the position ids Zooming of positions.1 depend on the length of the whole row")
    with pytest.raises(UserError, match=r"^model: the position ids Zooming .* cannot generate"):
        ahead.prefill(eight(vocabulary), capacity=9)
    causal = Decoder(hidden_size=4, mixer=LSTM(), positions=(Scalar(),)).build(vocabulary, 0)
    assert causal.non_causal_reason() is None
    causal.prefill(eight(vocabulary), capacity=9)


def eight(vocabulary: Any, time: int = 8) -> Tokens:
    return Tokens(torch.full((2, time), vocabulary.token_to_id["7"]), torch.full((2,), time), torch.arange(2))


def learned(numbering: Any, size: int, vocabulary: Any) -> Any:
    """A model with a table of so many positions."""
    position = Learned(position_ids=numbering, max_position_embeddings=size)
    return Decoder(hidden_size=8, positions=(position,)).build(vocabulary, 0)


@pytest.mark.parametrize("numbering", [Sequential(), DigitIndex()])
def test_a_table_that_is_too_small_is_refused_before_any_work(numbering: Any, vocabulary: Any) -> None:
    highest = 7 if isinstance(numbering, Sequential) else 8
    words = rf"model\.positions\.0: position {highest} is out of range for Learned.*embeddings={highest + 1}$"
    model, large = (learned(numbering, size, vocabulary) for size in (highest, highest + 1))
    with pytest.raises(UserError, match=words):
        model.check_tokens(eight(vocabulary))
    with pytest.raises(UserError, match=words):
        model.assign_positions(eight(vocabulary), StepContext.for_evaluation())
    assert large.check_tokens(eight(vocabulary)) == []
    assert large(eight(vocabulary)).logits.isfinite().all()


def test_the_position_that_is_too_small_is_the_one_named(vocabulary: Any) -> None:
    positions = (Learned(), Sinusoidal(), Learned(max_position_embeddings=3))
    model = Decoder(hidden_size=8, positions=positions).build(vocabulary, 0)
    with pytest.raises(UserError, match=r"model\.positions\.2: position 7 "):
        model.check_tokens(eight(vocabulary))


@pytest.mark.parametrize(
    ("numbering", "needed"),
    [
        (DigitIndex(max_offset=10), 8 + 10 + 1),
        (Shifted(max_shift=10), 7 + 10 + 1),
        (Shifted(max_shift=1, shift_within=10), 8 + 1),  # 8 tokens within 10 places: 0 to 8
    ],
)
def test_the_table_must_hold_what_training_may_draw(numbering: Any, needed: int, vocabulary: Any) -> None:
    enough, short = (learned(numbering, size, vocabulary) for size in (needed, needed - 1))
    assert enough.check_tokens(eight(vocabulary), training_tokens=eight(vocabulary)) == []
    with pytest.raises(UserError, match=f"position {needed - 1} is out of range"):
        short.check_tokens(eight(vocabulary), training_tokens=eight(vocabulary))


@pytest.mark.parametrize(
    ("numbering", "first"),
    [
        (Sequential(), 8),
        (DigitIndex(), 9),
        (DigitIndex(max_offset=3), 12),
        (Shifted(max_shift=3, num_eval_offsets=2), 11),
    ],
)
def test_the_first_untrained_place_is_named(numbering: Any, first: int, vocabulary: Any) -> None:
    """Trained on rows of 8 digits: the last place trained is the 8th digit's, raised by the most that is drawn."""
    model = learned(numbering, 64, vocabulary)
    (warning,) = model.check_tokens(eight(vocabulary, 20), training_tokens=eight(vocabulary, 8))
    assert f"position {first} and later ones do not occur in training" in warning
    for trained in (8, 20):
        assert model.check_tokens(eight(vocabulary, 8), training_tokens=eight(vocabulary, trained)) == []


def test_positions_without_a_table_take_any_place(vocabulary: Any) -> None:
    model = Decoder(hidden_size=8, positions=(Sinusoidal(),)).build(vocabulary, 0)
    assert model.check_tokens(eight(vocabulary, 2000), training_tokens=eight(vocabulary, 8)) == []


def test_a_width_without_room_for_a_scalar_is_refused() -> None:
    with pytest.raises(UserError, match=r"^hidden_size: "):
        Scalar().build_input(1)
