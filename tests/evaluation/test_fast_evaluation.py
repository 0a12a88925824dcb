"""The quick ways to score and to decode against the plain ones."""

from dataclasses import replace

import pytest
import torch

from numerate.batch import IGNORE_INDEX, Batch, Model
from numerate.config import Span
from numerate.evaluation import evaluation_data as exam_room
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts, split_batch
from numerate.evaluation.exact_match import MatchCounts, predict, score_batch
from numerate.evaluation.generate import greedy_decode, greedy_decode_uncached
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.position import Position
from numerate.positions.position_ids import DigitIndex, Shifted
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters

MODELS: dict[str, tuple[Mixer, tuple[Position, ...]]] = {
    "rotary": (Attention(num_heads=2), (Rotary(),)),
    "abacus": (Attention(num_heads=2), (Learned(position_ids=DigitIndex(), max_position_embeddings=64),)),
    "shifted": (Attention(num_heads=2), (Learned(position_ids=Shifted(9), max_position_embeddings=64),)),
    "recurrent": (LSTM(), ()),
}


def exam() -> EvaluationData:
    return EvaluationData(Arithmetic(digits=Span(1, 6)), Characters(), Continuation())


def model(name: str, exam: EvaluationData) -> Model:
    mixer, positions = MODELS[name]
    spec = Decoder(hidden_size=16, mixer=mixer, positions=positions, backbone=Stack(num_layers=2))
    return spec.build(exam.vocabulary, seed=1).double().eval()


def questions(exam: EvaluationData, count: int = 40) -> Batch:
    return exam.batch(exam.task.examples("test", 0, 0, count))


def with_some_right(model: Model, batch: Batch) -> Batch:
    """Every other row asks for exactly what the model says of its own accord, if it is as long."""
    prompts, most = extract_prompts(batch)
    generated = greedy_decode_uncached(model, prompts, most, end_id=-1).ids
    ids, targets, target_ids = batch.tokens.ids.clone(), batch.targets.clone(), batch.target_ids.clone()
    for row in range(0, len(ids), 2):
        first, count = int(batch.target_positions[row, 0]), int((batch.target_ids[row] != IGNORE_INDEX).sum())
        answer = generated[row, :count]
        target_ids[row, :count] = targets[row, first : first + count] = answer
        ids[row, first + 1 : first + count] = answer[:-1]
    tokens = replace(batch.tokens, ids=ids)
    return replace(batch, tokens=tokens, targets=targets, target_ids=target_ids)


def same(one: MatchCounts, other: MatchCounts) -> bool:
    return (
        torch.equal(one.correct, other.correct)
        and torch.equal(one.first_error, other.first_error)
        and (one.num_correct_digits, one.num_digits) == (other.num_correct_digits, other.num_digits)
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("position_offset", [0, 1])
def test_scoring_in_pieces_is_scoring_at_once(name: str, position_offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = exam()
    brain = model(name, sheet)
    batch = with_some_right(brain, questions(sheet))
    at_once = score_batch(brain, sheet, batch, position_offset)
    monkeypatch.setattr(exam_room, "MAX_TOKENS_PER_CPU_FORWARD", 3 * batch.tokens.ids.shape[1] + 1)
    assert len(split_batch(batch)) == 14
    assert same(score_batch(brain, sheet, batch, position_offset), at_once)


def test_pieces_hold_every_row_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = questions(exam())
    batch = replace(batch, tokens=replace(batch.tokens, blocked_keys=batch.tokens.ids == 5), source=batch.tokens)
    monkeypatch.setattr(exam_room, "MAX_TOKENS_PER_CPU_FORWARD", 1)
    found = split_batch(batch)
    assert len(found) == len(batch.tokens.ids)
    for name in ("ids", "lengths", "example_indices", "blocked_keys"):
        assert torch.equal(torch.cat([getattr(piece.tokens, name) for piece in found]), getattr(batch.tokens, name))
    for name in ("targets", "target_positions", "target_ids"):
        assert torch.equal(torch.cat([getattr(piece, name) for piece in found]), getattr(batch, name))
    assert all(piece.source is not None for piece in found)


def test_a_batch_that_is_small_enough_is_left_whole() -> None:
    batch = questions(exam(), 5)
    assert split_batch(batch)[0] is batch


@pytest.mark.parametrize("name", MODELS)
def test_one_pass_scores_as_decoding_with_right_and_wrong_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = exam()
    brain = model(name, sheet)
    batch = with_some_right(brain, questions(sheet))
    monkeypatch.setattr(exam_room, "MAX_TOKENS_PER_CPU_FORWARD", 100)
    one_pass = score_batch(brain, sheet, batch)
    decoded = predict(brain, sheet, batch, method="decoding").match_counts
    assert torch.equal(one_pass.correct, decoded.correct)
    assert torch.equal(one_pass.first_error, decoded.first_error)
    assert one_pass.correct.any()
    assert not one_pass.correct.all()


@pytest.mark.parametrize("name", MODELS)
def test_decoding_with_a_cache_says_what_decoding_without_says(name: str) -> None:
    sheet = exam()
    brain = model(name, sheet)
    prompts, most = extract_prompts(questions(sheet))
    # An end that some rows say at different times, and some perhaps never.
    generated = greedy_decode_uncached(brain, prompts, most, end_id=-1).ids
    end = int(generated.flatten().mode().values)
    for stop in (-1, end):
        cached, plain = (
            greedy_decode(brain, prompts, most, end_id=stop),
            greedy_decode_uncached(brain, prompts, most, end_id=stop),
        )
        assert torch.equal(cached.ids, plain.ids)
        assert torch.equal(cached.lengths, plain.lengths)
        torch.testing.assert_close(cached.log_probability, plain.log_probability, atol=1e-5, rtol=1e-5)
