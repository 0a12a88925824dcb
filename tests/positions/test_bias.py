"""FIRE, ALiBi, the T5 bias and windows: published values, values by hand, and somebody else's implementation."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cases import published_case
from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.bias import FIRE, ALiBi, ALiBiBias, FIREBias, RelativePositionBias, T5Bias, Window
from numerate.positions.position import AttentionBias
from numerate.positions.position_ids import Coupled, RandomSubset
from numerate.vocabulary import Vocabulary


def network(case: dict[str, Any]) -> FIREBias:
    given = case["input"]
    part = FIREBias(given["heads"], given["mlp_width"], given["L"])
    with torch.no_grad():
        part.in_proj.weight.copy_(torch.tensor(given["W1"]))
        part.in_proj.bias.copy_(torch.tensor(given["b1"]))
        part.out_proj.weight.copy_(torch.tensor(given["W2"]))
        part.out_proj.bias.copy_(torch.tensor(given["b2"]))
        part.c.fill_(given["c"])
        part.L_multiplier.fill_(given["L_multiplier"])
    return part


def test_fire_in_evaluation_is_the_published_bias(shared: Path) -> None:
    case = published_case(shared, "abacus.json", "fire_bias_eval")
    places = torch.arange(case["input"]["seq_len"])[None]
    found = network(case).compute_bias(places, places)[0]
    torch.testing.assert_close(found, torch.tensor(case["expected"]), rtol=0, atol=case["tolerance"])


def test_fire_is_relative_to_the_query_beyond_its_threshold() -> None:
    torch.manual_seed(0)
    part = FIREBias(2, 4, threshold=5.0)
    with torch.no_grad():
        part.c.fill_(1e6)  # the logarithms are then nearly those of the ratio
    near, far = (part.compute_bias(torch.tensor([[i]]), torch.tensor([[0]])) for i in (100, 1000))
    torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-4)
    inside = part.compute_bias(torch.tensor([[2]]), torch.tensor([[0]]))
    assert not torch.allclose(near, inside, atol=1e-4)


def test_fire_in_evaluation_gives_the_same_in_pieces_as_at_once() -> None:
    part = FIREBias(2, 8, 512.0)
    places = torch.arange(700)[None]
    with torch.no_grad():
        found = part.compute_bias(places, places)
    torch.testing.assert_close(found, part.compute_bias(places, places).detach())


def test_randomised_fire_counts_through_where_there_are_too_few_places(shared: Path) -> None:
    case = published_case(shared, "abacus.json", "fire_randomised_too_short")
    length = case["input"]["seq_len"]
    tokens = Tokens(torch.full((1, length), 4), torch.tensor([length]), torch.tensor([3]))
    numbering = RandomSubset(case["input"]["max_length"])
    kinds = torch.ones(1, length, dtype=torch.long)
    drawn = numbering.assign(tokens, kinds, StepContext(0, 0))
    assert (
        torch.equal(drawn, numbering.assign(tokens, kinds, StepContext.for_evaluation()).expand(1, -1))
        == case["expected"]["train_equals_eval"]
    )


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2.0**-i for i in range(1, 9)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_slopes_are_the_published_ones(heads: int, expected: list[float]) -> None:
    assert ALiBiBias(heads).slopes.tolist() == pytest.approx(expected)


def test_alibi_is_minus_slope_times_distance() -> None:
    part = ALiBi(slope_scale=2.0).build_attention(2, 8)
    assert isinstance(part, ALiBiBias)
    bias = part.compute_bias(torch.tensor([[5]]), torch.tensor([[5, 4, 1, 7]]))
    assert bias[0, 0, 0].tolist() == pytest.approx([0, -2 / 16, -8 / 16, -4 / 16])
    assert bias[0, 1, 0].tolist() == pytest.approx([0, -2 / 256, -8 / 256, -4 / 256])
    near = ALiBiBias(1, max_distance=3).compute_bias(torch.tensor([[9]]), torch.tensor([[9, 7, 6, 5, 0]]))
    assert near.flatten().tolist() == pytest.approx([0, -2 / 256, -3 / 256, -3 / 256, -3 / 256])


def test_a_window_gives_no_weight_to_keys_whose_position_ids_are_further_away() -> None:
    bias = Window(size=1).build_attention(4, 8)
    assert isinstance(bias, AttentionBias)
    found = bias.compute_bias(torch.tensor([[5]]), torch.tensor([[3, 4, 5, 6, 7]]))
    assert (found.softmax(-1) > 0).flatten().tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("logit_scale", [1.0, "log"])
def test_with_a_window_on_coupled_ids_digits_far_away_change_nothing(logit_scale: Any) -> None:
    """Two layers with size=1 read differences of up to 2: the units of either operand reach the third digit."""
    positions = (Window(position_ids=Coupled(), size=1),)
    decoder = Decoder(
        hidden_size=16, backbone=Stack(2), mixer=Attention(num_heads=2, logit_scale=logit_scale), positions=positions
    )
    vocabulary = Vocabulary.with_digits(["+", "="])
    model = decoder.build(vocabulary, 0).eval()

    def hidden_states(text: str) -> torch.Tensor:
        ids = torch.tensor([[vocabulary.token_to_id[character] for character in text]])
        tokens = Tokens(ids, torch.tensor([len(text)]), torch.tensor([0]))
        return model(model.assign_positions(tokens, StepContext.for_evaluation())).hidden_states[0]

    with torch.no_grad():
        changed = (hidden_states("123456+654321=777777") != hidden_states("923456+854321=777777")).any(1)
    # ids: 2 to 7, 1, 2 to 7, 1, 2 to 7; the units (id 2) differ
    ids = torch.tensor([*range(2, 8), 1, *range(2, 8), 1, *range(2, 8)])
    assert torch.equal(changed, ids <= 4)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 16), (16, 64)])
def test_t5_buckets_are_those_of_transformers(buckets: int, most: int, two_sided: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")
    distance = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(
        -distance, bidirectional=two_sided, num_buckets=buckets, max_distance=most
    )
    assert torch.equal(RelativePositionBias(2, buckets, most, two_sided).relative_position_bucket(distance), theirs)


def test_t5_buckets_without_logarithms_by_hand() -> None:
    part, distances = RelativePositionBias(1, 8, 2, bidirectional=True), torch.tensor([0, 1, 2, 9, -1, -2, -9])
    assert part.relative_position_bucket(distances).tolist() == [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("make", [FIRE, T5Bias])
def test_shared_means_one_set_of_parameters_for_all_layers(make: Any) -> None:
    counts = {}
    for shared in (False, True):
        spec = Decoder(
            hidden_size=16,
            backbone=Stack(num_layers=3),
            mixer=Attention(num_heads=2),
            positions=(make(share_across_layers=shared),),
        )
        model = spec.build(Vocabulary.with_digits(["+", "="]), seed=0)
        counts[shared] = sum(p.numel() for n, p in model.named_parameters() if ".attention_biases." in n)
        layers = [block.mixer.attention_biases["0"] for block in model.backbone.blocks]
        assert (len({id(layer) for layer in layers}) == 1) == shared
    assert counts[False] == 3 * counts[True] > 0


@pytest.mark.parametrize("settings", [{"num_buckets": 7, "bidirectional": True}, {"max_distance": 3}], ids=str)
def test_buckets_that_do_not_fit_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(settings))}:"):
        T5Bias(**settings)


def test_the_network_of_distances_keeps_its_own_draw_under_every_initialisation() -> None:
    """Its inputs are from 0 up: with biases of 0, as a model's layers begin, half of its units would never learn."""
    model = Decoder(hidden_size=16, mixer=Attention(num_heads=2), positions=(FIRE(),)).build(
        Vocabulary.with_digits(["="]), seed=0
    )
    part = model.backbone.blocks[0].mixer.attention_biases["0"]
    assert float(part.in_proj.bias.detach().abs().min()) > 0
    assert float(part.in_proj.weight.detach().abs().max()) <= 1


@pytest.mark.parametrize(
    "position",
    [ALiBi(), ALiBi(max_distance=4), T5Bias(), T5Bias(num_buckets=8, max_distance=2, bidirectional=True)],
    ids=str,
)
@pytest.mark.parametrize(("rows", "queries"), [(1, 70), (3, 70), (3, 1)])
def test_looked_up_by_distance_a_bias_is_the_same_to_the_last_bit(position: Any, rows: int, queries: int) -> None:
    part, generator = position.build_attention(2, 4), torch.Generator().manual_seed(0)
    keys = torch.randint(0, 300, (rows, 900), generator=generator)
    expected = part.compute_bias(keys[:, :queries], keys).detach()
    with torch.no_grad():
        assert torch.equal(part.compute_bias(keys[:, :queries], keys), expected)
