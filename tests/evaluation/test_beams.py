"""Promises of beam search: transformers' own answers, on rows of different length, cached or not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from hugging_face import needs_transformers
from numerate.batch import Model, Tokens
from numerate.errors import OperationalError
from numerate.evaluation.beams import beam_search
from numerate.evaluation.generate import greedy_decode
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.t5 import T5
from numerate.vocabulary import EOS, PAD, Vocabulary
from oracle import generated_rows

pytestmark = needs_transformers

TINY = T5(hidden_size=16, num_layers=2, num_heads=2, head_dim=8, intermediate_size=32)
LLAMA = PretrainedDecoder(
    config='{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, '
    '"intermediate_size": 32}'
)


@torch.no_grad()
def lively(model: Any, draws: torch.Generator | None = None) -> Any:
    """A model of large random weights, which says the end now and then and not the same token for ever."""
    draws = torch.Generator().manual_seed(0) if draws is None else draws
    for parameter in model.parameters():
        parameter.normal_(0, 0.45, generator=draws)
    return model.eval()


@pytest.fixture
def begun() -> Tokens:
    return Tokens(torch.full((6, 1), PAD), torch.ones(6, dtype=torch.long), torch.arange(6))


def theirs(ids: torch.Tensor) -> list[list[int]]:
    rows = [row.tolist() for row in ids]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


@pytest.mark.parametrize("beams", [2, 4])
def test_a_t5_says_what_transformers_generates(vocabulary: Vocabulary, beams: int) -> None:
    model, draws = TINY.build(vocabulary, 0), torch.Generator().manual_seed(0)
    lively(model, draws=draws)
    source = torch.randint(1, 19, (40, 8), generator=draws)
    lengths = torch.randint(1, 9, (40,), generator=draws)
    seen = torch.arange(8) < lengths[:, None]
    source[~seen] = PAD
    found = model.hf_model.generate(
        input_ids=source,
        attention_mask=seen.long(),
        num_beams=beams,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
    )
    row = torch.arange(40)
    begun = Tokens(torch.full((40, 1), PAD), torch.ones(40, dtype=torch.long), row)
    source_tokens = Tokens(source, lengths, row)
    ours = generated_rows(beam_search(model, begun, 12, source=source_tokens, num_beams=beams))
    assert [filled(one) for one in ours] == [filled(one) for one in theirs(found[:, 1:])]
    assert len({len(one) for one in ours}) > 3, "some answers end early"


def filled(answer: list[int]) -> list[int]:
    return answer + [PAD] * (12 - len(answer))


@pytest.mark.parametrize("other_ends", [(), (6, 7, 8)])
def test_a_decoder_says_what_transformers_generates(
    vocabulary: Vocabulary, make_tokens: Any, other_ends: tuple[int, ...]
) -> None:
    model, prompts = lively(LLAMA.build(vocabulary, 0)), make_tokens([5, 2, 7])
    model.other_end_ids = other_ends
    ours = generated_rows(beam_search(model, prompts, 6))
    for row, length in enumerate([5, 2, 7]):
        found = model.hf_model.generate(
            input_ids=prompts.ids[row : row + 1, :length],
            attention_mask=torch.ones(1, length, dtype=torch.long),
            num_beams=4,
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=[EOS, *other_ends],
            pad_token_id=PAD,
        )
        found = found[:, length:].where(~torch.isin(found[:, length:], torch.tensor(other_ends)), EOS)
        assert ours[row] == theirs(found)[0]


def test_a_state_that_cannot_be_taken_apart_is_read_again(
    vocabulary: Vocabulary, make_tokens: Any, begun: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source = lively(TINY.build(vocabulary, 0)), make_tokens([5, 3, 8, 1, 6, 8])
    cached = beam_search(model, begun, 7, source=source)
    monkeypatch.setattr(type(model), "reorder_rows", Model.reorder_rows)
    again = beam_search(model, begun, 7, source=source)
    assert generated_rows(cached) == generated_rows(again)
    torch.testing.assert_close(cached.log_probability, again.log_probability)


def every_answer(model: Model, prompts: Tokens, vocabulary: Vocabulary, most: int) -> list[tuple[float, Sequence[int]]]:
    """Every answer of a row up to `most` tokens with its score, by reading each of them whole."""
    found, frontier = [], [([], 0.0)]
    while frontier:
        answer, total = frontier.pop()
        ids = torch.cat([prompts.ids, torch.tensor([answer], dtype=torch.long)], 1)
        tokens = replace(prompts, ids=ids, lengths=prompts.lengths + len(answer))
        scores = model(tokens).logits[0, -1].log_softmax(-1).tolist()
        for token, score in enumerate(scores):
            longer, sum_ = [*answer, token], total + score
            if token == EOS or len(longer) == most:
                found.append((sum_ / len(longer), longer))
            else:
                frontier.append((longer, sum_))
    return found


@torch.no_grad()
def test_enough_beams_find_the_best_answer_of_all_on_a_model_of_the_house(make_tokens: Any) -> None:
    vocabulary = Vocabulary.from_words(["a", "b"])
    model = Decoder(hidden_size=16, positions=(Rotary(),)).build(vocabulary, 3).eval()
    prompts = Tokens(torch.tensor([[4, 5, 4]]), torch.tensor([3]), torch.tensor([0]))
    best, answer = max(every_answer(model, prompts, vocabulary, 3))
    found = beam_search(model, prompts, 3, num_beams=40)
    assert generated_rows(found) == [answer]
    assert float(found.log_probability) == pytest.approx(best * len(answer), rel=1e-4)
    greedy_answer = greedy_decode(model, prompts, 3)
    assert float(greedy_answer.log_probability / greedy_answer.lengths) < best


@torch.no_grad()
def test_scores_that_are_no_numbers_are_a_fault(vocabulary: Vocabulary, begun: Tokens, make_tokens: Any) -> None:
    model, source = lively(TINY.build(vocabulary, 0)), make_tokens([5, 3, 8, 1, 6, 8])
    model.hf_model.shared.weight[7] = float("nan")
    with pytest.raises(OperationalError, match=r"^model: the logits are NaN"):
        beam_search(model, begun, 4, source=source)


@torch.no_grad()
def test_tokens_that_are_never_generated_are_no_fault(vocabulary: Vocabulary, make_tokens: Any) -> None:
    model, prompts = lively(LLAMA.build(vocabulary, 0)), make_tokens([5, 2, 7])
    free = generated_rows(beam_search(model, prompts, 4))
    banned = torch.tensor(sorted({token for row in free for token in row} - {EOS}))
    model._head[0].register_forward_hook(lambda head, given, logits: logits.index_fill(-1, banned, -torch.inf))
    found = generated_rows(beam_search(model, prompts, 4))
    assert not set(banned.tolist()) & {token for row in found for token in row}
