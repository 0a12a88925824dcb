"""Promises of sampling: which tokens may come, which of them does, and that a cache changes nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numerate.batch import Tokens
from numerate.errors import OperationalError, UserError
from numerate.evaluation.generate import greedy_decode
from numerate.evaluation.sampling import (
    EXCLUDED_SCORE,
    Sampling,
    generate,
    process_logits,
    sample_tokens,
    uniform_numbers,
)
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.rotary import Rotary
from numerate.vocabulary import EOS, PAD
from oracle import generated_rows, row_of

LENGTHS = [2, 7, 4, 1, 6, 3]
MIXED = Sampling(temperature=0.9, top_k=12, top_p=0.95, min_p=0.02, seed=5)


@pytest.fixture
def model(build: Any) -> Any:
    return build(Decoder(hidden_size=16, positions=(Rotary(),)))


@pytest.mark.parametrize("sampling", [Sampling(), MIXED, Sampling(seed=1)], ids=str)
def test_a_prompt_has_the_same_continuation_alone_and_among_others(
    model: Any, make_tokens: Any, sampling: Sampling
) -> None:
    prompts = make_tokens(LENGTHS)
    together = generated_rows(generate(model, prompts, 12, sampling, stop_ids=()))
    assert len({tuple(row) for row in together}) == len(LENGTHS)
    assert together == [
        generated_rows(generate(model, row_of(prompts, row), 12, sampling, stop_ids=()))[0] for row in range(6)
    ]
    assert together != generated_rows(generate(model, prompts, 12, replace(sampling, seed=9), stop_ids=()))


@pytest.mark.parametrize("sampling", [Sampling(do_sample=False), Sampling(temperature=0), Sampling(top_k=1)], ids=str)
def test_temperature_0_and_one_most_probable_token_are_greedy_decoding(
    model: Any, make_tokens: Any, sampling: Sampling
) -> None:
    prompts = make_tokens(LENGTHS)
    assert generated_rows(generate(model, prompts, 8, sampling)) == generated_rows(greedy_decode(model, prompts, 8))


def test_random_numbers_are_those_of_their_seed_row_and_place_alone() -> None:
    import numpy as np

    table = uniform_numbers(3, np.array([7, 2**62, 8]), 500)
    assert np.array_equal(table[2:, :4], uniform_numbers(3, np.array([8]), 4))
    assert len(np.unique(table)) == table.size
    assert 0 <= table.min() < 0.01
    assert 0.99 < table.max() < 1
    assert abs(table.mean() - 0.5) < 0.03
    assert abs(table.var() - 1 / 12) < 0.01
    assert abs(np.corrcoef(table)[0, 2]) < 0.15, "neighbouring rows are strangers"


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_what_may_come_is_what_the_warpers_of_transformers_leave(kind: torch.dtype) -> None:
    from transformers import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    draws = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(20, 1500, generator=draws, dtype=kind)
    ids = torch.randint(0, 1500, (20, 9), generator=draws)
    cases = [
        Sampling(temperature=0.7),
        Sampling(top_k=40),
        Sampling(top_p=0.9),
        Sampling(temperature=3.0, top_p=0.97),
        Sampling(min_p=0.05),
        Sampling(temperature=1.5, top_k=300, top_p=0.8, min_p=0.1),
        Sampling(top_p=1e-6),
        Sampling(top_k=5000, top_p=1.0, min_p=0.0),
    ]
    for case in cases:
        theirs: Any = TemperatureLogitsWarper(float(case.temperature))(ids, logits)
        theirs = theirs if case.top_k is None else TopKLogitsWarper(case.top_k)(ids, theirs)
        theirs = theirs if case.top_p is None else TopPLogitsWarper(case.top_p)(ids, theirs)
        theirs = theirs if case.min_p is None else MinPLogitsWarper(case.min_p)(ids, theirs)
        ours = process_logits(logits, case)
        assert torch.equal(ours == EXCLUDED_SCORE, theirs == EXCLUDED_SCORE), case
        torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1), rtol=1e-5, atol=1e-7)


def scores_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(top_k=2), [0, 2, 3]),  # 2 and 3 are equally likely
        (Sampling(top_p=0.5), [0, 2, 3]),
        (Sampling(top_p=0.35), [0]),
        (Sampling(min_p=0.5), [0, 2, 3]),
        (Sampling(top_k=1), [0]),
        (Sampling(temperature=1e-40), [0]),
        (Sampling(top_p=0.9, min_p=0.26), [0, 2, 3]),
    ],
    ids=str,
)
def test_what_is_as_likely_as_the_last_one_kept_is_kept_too(sampling: Sampling, left: list[int]) -> None:
    scores = process_logits(scores_of(0.4, 0.1, 0.2, 0.2, 0.1), sampling)
    assert torch.nonzero(scores[0].exp() > 0)[:, 0].tolist() == left
    single = process_logits(scores_of(0.4, 0.1, 0.2, 0.2, 0.1).float(), sampling)
    assert torch.nonzero(single[0].exp() > 0)[:, 0].tolist() == left


def test_tokens_come_as_often_as_they_are_likely_and_never_where_they_may_not() -> None:
    drawn = torch.arange(0.5, 10_000)[:, None].double() / 10_000
    scores = torch.tensor([EXCLUDED_SCORE, 0.0, math.log(3.0), EXCLUDED_SCORE, math.log(6.0), EXCLUDED_SCORE])
    found = sample_tokens(scores.expand(len(drawn), 6), drawn[:, 0])
    assert found.bincount(minlength=6).tolist() == [0, 1000, 3000, 0, 6000, 0]
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(scores.expand(2, 6), ends).tolist() == [1, 4]


def test_a_row_ends_with_any_of_its_stop_tokens_and_says_that_it_did(model: Any, make_tokens: Any) -> None:
    prompts = make_tokens(LENGTHS * 4, seed=2)
    free = generate(model, prompts, 9, Sampling(), stop_ids=())
    assert free.lengths.tolist() == [9] * 24
    assert not bool(free.has_stop_token.any())
    found = generate(model, prompts, 9, Sampling(), stop_ids=(EOS, 7, 11))
    for row, (ids, whole) in enumerate(zip(generated_rows(found), generated_rows(free), strict=True)):
        first = next((place for place, i in enumerate(whole) if i in (EOS, 7, 11)), 8)
        assert ids == whole[: first + 1]
        assert bool(found.has_stop_token[row]) == (ids[-1] in (EOS, 7, 11))
        assert found.ids[row, len(ids) :].tolist() == [PAD] * (found.ids.shape[1] - len(ids))
    assert len(set(found.lengths.tolist())) > 3


def test_who_listens_hears_every_token_once_and_may_end_rows(model: Any, make_tokens: Any) -> None:
    calls: list[list[int | None]] = []

    def on_progress(token: Any) -> list[int]:
        calls.append(list(token))
        return [1] if len(calls) == 3 else []

    found = generate(model, make_tokens(LENGTHS), 7, Sampling(), stop_ids=(7,), on_tokens=on_progress)
    assert int(found.lengths[1]) <= 3
    rows_of_calls = [[one for one in row if one is not None] for row in zip(*calls, strict=True)]
    assert rows_of_calls == generated_rows(found)


def test_log_probability_is_the_models_own_whatever_is_sampled(model: Any, make_tokens: Any) -> None:
    prompts = row_of(make_tokens([4]), 0)
    found = generate(model, prompts, 5, MIXED, stop_ids=())
    whole = torch.cat([prompts.ids, found.ids], dim=1)
    scores = model(Tokens(whole, torch.tensor([9]), prompts.example_indices)).logits.log_softmax(-1)[0, 3:8]
    own = scores.gather(1, found.ids[0][:, None]).sum()
    torch.testing.assert_close(found.log_probability[0], own.detach())


@torch.no_grad()
def test_a_window_reads_the_last_tokens_as_if_the_text_began_there(build: Any, make_tokens: Any) -> None:
    model = build(Decoder(hidden_size=16, positions=(Learned(max_position_embeddings=8),)))
    prompts, sampling = make_tokens([2, 6, 1]), Sampling(seed=2)
    with pytest.raises(UserError, match="position 8"):
        generate(model, prompts, 9, sampling, stop_ids=())
    found = generate(model, prompts, 9, sampling, stop_ids=(), window=8)
    for row in range(3):
        ids = prompts.ids[row, : int(prompts.lengths[row])].tolist()
        for place, token in enumerate(found.ids[row].tolist()):
            read = torch.tensor([ids[-8:]])
            logits = model(Tokens(read, torch.tensor([read.shape[1]]), prompts.example_indices[:1])).logits[:, -1]
            drawn = torch.from_numpy(uniform_numbers(2, prompts.example_indices[row : row + 1].numpy(), 9))[:, place]
            assert sample_tokens(process_logits(logits, sampling), drawn).tolist() == [token]
            ids.append(token)
    short = generate(model, make_tokens([2, 6, 1]), 2, sampling, window=50)
    assert generated_rows(short) == generated_rows(generate(model, prompts, 2, sampling))
    long = generate(model, make_tokens([12]), 2, sampling, window=3)
    assert long.ids.shape == (1, 2)


def test_nothing_global_is_drawn_from(model: Any, make_tokens: Any) -> None:
    before = torch.get_rng_state()
    generate(model, make_tokens(LENGTHS), 4, MIXED)
    assert torch.equal(before, torch.get_rng_state())


def test_nan_logits_are_an_error(model: Any, make_tokens: Any) -> None:
    with torch.no_grad():
        model.head.weight[3] = float("nan")
    with pytest.raises(OperationalError, match="NaN"):
        generate(model, make_tokens([2]), 3, Sampling())
