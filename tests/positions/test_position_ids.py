"""Promises of numberings, on every one of them; then the numbers of each by hand."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch

from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.positions.position_ids import (
    Coupled,
    DigitIndex,
    NumberIndex,
    PositionIds,
    RandomSubset,
    Sequential,
    Shifted,
    Zooming,
)
from numerate.vocabulary import Vocabulary
from promises import (  # noqa: F401
    WITH_HELPER,
    assert_rows_may_grow,
    test_a_longer_row_never_changes_earlier_position_ids,
    test_position_ids_start_at_0_and_depend_on_the_row_and_the_context_alone,
)
from promises import position_ids_of as numbers

DRAWS = [StepContext.for_evaluation(), StepContext(seed=0, step=0), StepContext(seed=5, step=17)]


@pytest.fixture
def vocabulary() -> Vocabulary:
    """The published one, its last token a helper."""
    return WITH_HELPER


def all_draws(numbering: PositionIds) -> list[StepContext]:
    return [StepContext.for_evaluation(i) for i in range(numbering.num_position_offsets())] + DRAWS[1:]


def taken(tokens: Tokens, rows: torch.Tensor) -> Tokens:
    return replace(
        tokens, ids=tokens.ids[rows], lengths=tokens.lengths[rows], example_indices=tokens.example_indices[rows]
    )


def row_of(text: str, vocabulary: Vocabulary, rows: int = 1) -> Tokens:
    """Rows of a text, in which a space is a helper."""
    ids = torch.tensor([[vocabulary.token_to_id[character] for character in text]] * rows)
    return Tokens(ids, torch.full((rows,), len(text)), torch.arange(rows))


@pytest.mark.where(any_position_ids=lambda scheme: not scheme.causal)
def test_what_is_not_causal_looks_ahead(any_position_ids: Any, make_tokens: Any, vocabulary: Any) -> None:
    with pytest.raises(AssertionError):
        assert_rows_may_grow(any_position_ids, make_tokens([14, 14, 14]), vocabulary)


def test_padding_behind_a_row_never_changes_its_numbers(
    any_position_ids: Any, make_tokens: Any, vocabulary: Any
) -> None:
    whole = make_tokens([5, 9, 14])
    for draw in all_draws(any_position_ids):
        expected = numbers(any_position_ids, whole, vocabulary, draw)
        for row, length in enumerate([5, 9, 14]):
            alone = taken(whole, torch.tensor([row]))
            alone = replace(alone, ids=alone.ids[:, :length])
            assert torch.equal(numbers(any_position_ids, alone, vocabulary, draw)[0], expected[row, :length])


def test_a_row_gets_its_numbers_whatever_batch_it_stands_in(
    any_position_ids: Any, make_tokens: Any, vocabulary: Any
) -> None:
    whole = make_tokens([9, 4, 14, 14, 2])
    for draw in all_draws(any_position_ids):
        expected = numbers(any_position_ids, whole, vocabulary, draw)
        for rows in ([3], [4, 0], [2, 1, 0, 4, 3], [0, 1], [2, 3, 4]):
            part = taken(whole, torch.tensor(rows))
            assert torch.equal(numbers(any_position_ids, part, vocabulary, draw), expected[rows])


def test_what_may_be_raised_is_drawn_anew_for_every_seed_and_step(
    any_position_ids: Any, make_tokens: Any, vocabulary: Any
) -> None:
    tokens = make_tokens([9, 14])
    calm = numbers(any_position_ids, tokens, vocabulary, StepContext.for_evaluation())
    by_step = {
        tuple(numbers(any_position_ids, tokens, vocabulary, StepContext(0, s)).flatten().tolist()) for s in range(40)
    }
    by_seed = {
        tuple(numbers(any_position_ids, tokens, vocabulary, StepContext(s, 0)).flatten().tolist()) for s in range(40)
    }
    if any_position_ids.max_training_offset():
        assert len(by_step) > 5
        assert len(by_seed) > 5
    else:
        assert by_step == by_seed == {tuple(calm.flatten().tolist())}


def test_draws_stay_within_the_headroom(any_position_ids: Any, make_tokens: Any, vocabulary: Any) -> None:
    tokens = replace(make_tokens([12] * 500), example_indices=torch.arange(500))
    calm = numbers(any_position_ids, tokens, vocabulary, StepContext.for_evaluation())
    assert int(calm.min()) >= 0
    for step in range(4):
        drawn = numbers(any_position_ids, tokens, vocabulary, StepContext(seed=1, step=step))
        assert int(drawn.min()) >= 0
        assert int((drawn - calm).max()) <= any_position_ids.max_training_offset()
        assert int(drawn.max()) <= any_position_ids.max_training_position(int(calm.max()))


def test_position_offsets_are_places_that_training_could_have_had(
    any_position_ids: Any, make_tokens: Any, vocabulary: Any
) -> None:
    tokens = make_tokens([12] * 5)
    calm = numbers(any_position_ids, tokens, vocabulary, StepContext.for_evaluation(0))
    assert any_position_ids.num_position_offsets() >= 1
    seen = set()
    for position_offset in range(any_position_ids.num_position_offsets()):
        places = numbers(any_position_ids, tokens, vocabulary, StepContext.for_evaluation(position_offset))
        assert int(places.min()) >= 0
        assert int((places - calm).max()) <= any_position_ids.max_training_offset()
        seen.add(tuple(places.flatten().tolist()))
    assert len(seen) == any_position_ids.num_position_offsets(), "two position offsets are the same"


def test_an_evaluation_draws_nothing(any_position_ids: Any, make_tokens: Any, vocabulary: Any) -> None:
    tokens = make_tokens([12, 7])
    elsewhere = replace(tokens, example_indices=tokens.example_indices + 12345)
    for position_offset in range(any_position_ids.num_position_offsets()):
        first = numbers(any_position_ids, tokens, vocabulary, StepContext.for_evaluation(position_offset))
        assert torch.equal(
            first, numbers(any_position_ids, elsewhere, vocabulary, StepContext.for_evaluation(position_offset))
        )
        again = StepContext(seed=8, position_offset=position_offset)
        assert torch.equal(first, numbers(any_position_ids, tokens, vocabulary, again))


# By hand -------------------------------------------------------------------------------------------------------------


BY_HAND: list[tuple[PositionIds, str, list[int]]] = [
    (Sequential(), "5 x x", [0, 1, 2, 3, 4]),
    (DigitIndex(), "321+654=975", [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]),
    (DigitIndex(max_offset=6, random_gaps=True), "321+654=975", [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]),
    (Coupled(), "321+654=975", [2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]),
    (Coupled(operand_digit_order="normal"), "123+45=861", [4, 3, 2, 1, 3, 2, 1, 2, 3, 4]),
    (NumberIndex(), "32+654=975", [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]),
    (RandomSubset(eval_stride=3), "7777", [0, 3, 6, 9]),
    # A helper gets the position of the next real token.
    (Sequential("next"), "5 x x  x ", [0, 1, 1, 2, 2, 3, 3, 3, 4]),
    (Shifted(max_shift=9, helper_positions="next"), "5 x x  x ", [0, 1, 1, 2, 2, 3, 3, 3, 4]),
    (RandomSubset(eval_stride=2, helper_positions="next"), "5 x x  x ", [0, 2, 2, 4, 4, 6, 6, 6, 8]),
]


@pytest.mark.parametrize(("numbering", "text", "expected"), BY_HAND, ids=str)
def test_in_evaluation_they_are_as_written_by_hand(
    numbering: PositionIds, text: str, expected: list[int], vocabulary: Any
) -> None:
    assert numbers(numbering, row_of(text, vocabulary), vocabulary, StepContext.for_evaluation()).tolist() == [expected]


def test_shifted_evaluates_at_evenly_spaced_offsets(vocabulary: Any) -> None:
    numbering, tokens = Shifted(max_shift=60, num_eval_offsets=3), row_of("77", vocabulary)
    found = [numbers(numbering, tokens, vocabulary, draw).tolist() for draw in all_draws(numbering)[:3]]
    assert found == [[[0, 1]], [[30, 31]], [[60, 61]]]


def test_zooming_says_how_far_along_a_row_each_real_token_stands(vocabulary: Any) -> None:
    for draw in DRAWS:
        assert numbers(Zooming(), row_of("5 xx", vocabulary), vocabulary, draw).tolist() == [[0.25, 0.5, 0.5, 0.75]]


def test_shifted_adds_one_offset_per_row_that_reaches_both_ends(make_tokens: Any, vocabulary: Any) -> None:
    tokens = replace(make_tokens([4] * 300), example_indices=torch.arange(300))
    places = numbers(Shifted(max_shift=9), tokens, vocabulary, StepContext(seed=0, step=0))
    assert torch.equal(places, places[:, :1] + torch.arange(4))
    assert sorted(set(places[:, 0].tolist())) == list(range(10))


def test_digit_index_per_batch_raises_all_rows_by_the_same(make_tokens: Any, vocabulary: Any) -> None:
    tokens = make_tokens([12] * 50)
    calm = numbers(DigitIndex(), tokens, vocabulary, StepContext.for_evaluation())
    offsets = set()
    for step in range(60):
        places = numbers(DigitIndex(max_offset=6, offset_per="batch"), tokens, vocabulary, StepContext(0, step))
        raised = (places - calm)[calm > 0].unique().tolist()
        assert len(raised) == 1
        offsets.add(raised[0])
    assert offsets == set(range(7))


def test_random_gaps_are_the_same_in_all_numbers_and_have_the_promised_distribution(vocabulary: Any) -> None:
    count = 20000
    tokens = row_of("321+12=4321", vocabulary, count)
    places = numbers(DigitIndex(max_offset=2, random_gaps=True), tokens, vocabulary, StepContext(0, 0))
    assert torch.equal(places[:, :3], places[:, 7:10])
    assert torch.equal(places[:, 4:6], places[:, 7:9])
    assert (places[:, [3, 6]] == 0).all()
    expected: dict[tuple[int, ...], float] = defaultdict(float)
    for left_out, offset in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]:
        subsets = list(combinations(range(offset + 1, offset + 5 + left_out), 4))
        for subset in subsets:
            expected[subset] += count / 3 / (3 - left_out) / len(subsets)
    found = Counter(map(tuple, places[:, 7:].tolist()))
    assert set(found) == set(expected)
    chi_squared = sum((found[ids] - number) ** 2 / number for ids, number in expected.items())
    assert chi_squared < 36.1, "99.9 % quantile of 14 degrees of freedom"


def test_random_gaps_of_rows_without_digits_are_none(vocabulary: Any) -> None:
    spec = DigitIndex(max_offset=6, random_gaps=True)
    assert numbers(spec, row_of("=+=", vocabulary), vocabulary, StepContext(0, 0)).tolist() == [[0, 0, 0]]


def test_random_gaps_per_batch_are_the_same_for_all_rows(vocabulary: Any) -> None:
    tokens = row_of("321+654=9751", vocabulary, 50)
    spec = DigitIndex(max_offset=6, offset_per="batch", random_gaps=True)
    places = [numbers(spec, tokens, vocabulary, StepContext(0, step)) for step in range(20)]
    assert all((drawn == drawn[0]).all() for drawn in places)
    assert len({tuple(drawn[0].tolist()) for drawn in places}) > 10


def test_coupled_does_not_change_operands_with_what_comes_behind_the_question(vocabulary: Any) -> None:
    whole, expected = row_of("123+45=861", vocabulary), [4, 3, 2, 1, 3, 2, 1, 2, 3, 4]
    ended = replace(whole, ids=torch.nn.functional.pad(whole.ids, (0, 1), value=3), lengths=whole.lengths + 1)
    for row, length in ((ended, 10), (row_of("123+45=", vocabulary), 7)):
        found = numbers(Coupled(operand_digit_order="normal"), row, vocabulary, StepContext.for_evaluation())
        assert found[0, :length].tolist() == expected[:length]


def test_coupled_raises_all_but_the_special_tokens_by_one_offset(vocabulary: Any) -> None:
    ids = [[2, *row_of("321+654=975", vocabulary).ids[0].tolist(), 3, 0]]
    one = Tokens(torch.tensor(ids), torch.tensor([13]), torch.tensor([0]))
    tokens = Tokens(one.ids.repeat(300, 1), one.lengths.repeat(300), torch.arange(300))
    calm = numbers(Coupled(), one, vocabulary, StepContext.for_evaluation())
    assert calm.tolist() == [[0, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 0, 0]]
    places = numbers(Coupled(max_offset=6), tokens, vocabulary, StepContext(0, 0))
    offsets = places[:, 1:2] - 2
    assert torch.equal(places, torch.where(calm > 0, calm + offsets, 0))
    assert sorted(set(offsets.flatten().tolist())) == list(range(7))


def test_a_random_subset_is_sorted_without_repeats_and_uniform(vocabulary: Any) -> None:
    rows = 4000
    tokens = Tokens(torch.full((rows, 3), 4), torch.full((rows,), 3), torch.arange(rows))
    places = numbers(RandomSubset(max_length=6), tokens, vocabulary, StepContext(0, 0))
    assert bool((places[:, 1:] > places[:, :-1]).all())
    assert int(places.min()) == 0
    assert int(places.max()) == 5
    counts: dict[tuple[int, ...], int] = {}
    for row in places.tolist():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    assert len(counts) == 20, "every subset of 3 of 6 is drawn"
    chi_squared = sum((count - rows / 20) ** 2 / (rows / 20) for count in counts.values())
    assert chi_squared < 43.8, "99.9 % quantile of 19 degrees of freedom"


def test_a_random_subset_of_a_fixed_size_gives_a_row_the_first_of_them(vocabulary: Any) -> None:
    numbering = RandomSubset(max_length=10, subset_size=6)
    long, short = (row_of("7" * length, vocabulary) for length in (6, 4))
    for step in range(20):
        whole = numbers(numbering, long, vocabulary, StepContext(0, step))
        assert torch.equal(numbers(numbering, short, vocabulary, StepContext(0, step)), whole[:, :4])


def test_a_row_longer_than_what_there_is_to_choose_from_is_counted_through(vocabulary: Any) -> None:
    row = row_of("777777", vocabulary)
    assert numbers(RandomSubset(max_length=4), row, vocabulary, StepContext(0, 1)).tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("length", [1, 3, 6, 9, 15])
@pytest.mark.parametrize(
    "numbering",
    [RandomSubset(8), RandomSubset(8, eval_stride=3), RandomSubset(8, subset_size=4), RandomSubset(8, 4, 2)],
)
def test_the_reach_of_a_random_subset_is_the_highest_place_that_training_ever_draws(
    numbering: RandomSubset, length: int, vocabulary: Any
) -> None:
    tokens = Tokens(torch.full((300, length), 4), torch.full((300,), length), torch.arange(300))
    highest = int(numbers(numbering, tokens, vocabulary, StepContext.for_evaluation()).max())
    drawn = max(int(numbers(numbering, tokens, vocabulary, StepContext(0, step)).max()) for step in range(3))
    if numbering.subset_size is None or length >= numbering.subset_size:
        assert drawn == numbering.max_training_position(highest)
    else:  # the first of more places than the row has never are the last ones
        assert drawn <= numbering.max_training_position(highest) == 7


def test_behind_the_end_of_a_row_with_helpers_all_places_are_0(vocabulary: Any) -> None:
    row = replace(row_of("5 x x", vocabulary), lengths=torch.tensor([3]))
    assert numbers(Sequential("next"), row, vocabulary, StepContext.for_evaluation()).tolist() == [[0, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "helpers", "most"),
    # within 10 places: 5 tokens and one more; 3 that are no helpers and one more; 12 do not fit
    [("5 x x", "own", 4), ("5 x x", "next", 6), ("5xxxxxxxxxxx", "next", 0)],
)
def test_a_row_shifted_within_some_places_draws_every_offset_that_leaves_it_room(
    text: str, helpers: Any, most: int, vocabulary: Any
) -> None:
    tokens = row_of(text, vocabulary, rows=500)
    numbering = Shifted(shift_within=10, helper_positions=helpers)
    calm = numbers(numbering, tokens, vocabulary, StepContext.for_evaluation())
    places = numbers(numbering, tokens, vocabulary, StepContext(0, 3))
    assert torch.equal(places - calm, (places - calm)[:, :1].expand_as(places)), "one offset for a row"
    assert sorted(set((places - calm)[:, 0].tolist())) == list(range(most + 1))


def test_rows_shifted_within_some_places_have_each_their_own_room(make_tokens: Any, vocabulary: Any) -> None:
    tokens = replace(make_tokens([9, 1] * 400), example_indices=torch.arange(800))
    offsets = numbers(Shifted(shift_within=10), tokens, vocabulary, StepContext(0, 0))[:, 0]
    assert set(offsets[::2].tolist()) == {0}
    assert set(offsets[1::2].tolist()) == set(range(9))


def test_a_random_subset_with_helpers_draws_one_place_more_than_there_are_real_tokens(vocabulary: Any) -> None:
    tokens = row_of("5 x ", vocabulary, rows=4000)
    places = numbers(RandomSubset(max_length=5, helper_positions="next"), tokens, vocabulary, StepContext(0, 0))
    assert torch.equal(places[:, 1], places[:, 2])
    chosen = places[:, [0, 1, 3]].tolist()
    counts = {tuple(row): chosen.count(row) for row in chosen}
    assert len(counts) == 10, "every subset of 3 of 5 is drawn"
    assert all(first < second < third for first, second, third in counts)
    chi_squared = sum((count - 400) ** 2 / 400 for count in counts.values())
    assert chi_squared < 27.9, "99.9 % quantile of 9 degrees of freedom"


def test_a_subset_larger_than_what_it_is_chosen_from_is_refused_and_so_are_gaps_without_an_offset() -> None:
    with pytest.raises(UserError, match=r"^subset_size: "):
        RandomSubset(max_length=4, subset_size=5)
    with pytest.raises(UserError, match="random_gaps: needs a max_offset of 1 or more"):
        DigitIndex(random_gaps=True)


def test_rows_shifted_within_a_table_leave_their_padding_in_it(make_tokens: Any) -> None:
    tokens = make_tokens([3, 40, 100])
    kinds = torch.zeros_like(tokens.ids)
    for step in range(50):
        places = Shifted(max_shift=27, shift_within=128).assign(tokens, kinds, StepContext(0, step))
        assert int(places.max()) < 128
        assert not places[torch.arange(100) >= tokens.lengths[:, None]].any()
