"""Promises of evaluation: a record is a pure function of the weights, and says what was counted."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from numerate.batch import IGNORE_INDEX
from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.evaluation import evaluation_data as exam_room
from numerate.evaluation.evaluation_data import (
    EvaluationData,
    cell_questions,
    split_batch,
)
from numerate.evaluation.evaluator import evaluate_cell
from numerate.evaluation.exact_match import predict
from numerate.evaluation.statistics import wilson_interval
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex, PositionIds, Shifted
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation, TokenClassification
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words
from oracle import Oracle

CELL = {"first_digits": 3, "second_digits": 2}


@pytest.fixture
def exam() -> EvaluationData:
    return EvaluationData(Arithmetic(digits=Span(1, 5)), Characters(), Continuation())


@pytest.fixture
def model(exam: EvaluationData) -> Any:
    return Decoder(hidden_size=16, positions=(Rotary(),)).build(exam.vocabulary, 0).eval()


def model_of(exam: EvaluationData, position_ids: PositionIds) -> Any:
    position = Learned(position_ids=position_ids, max_position_embeddings=64)
    return Decoder(hidden_size=16, positions=(position,)).build(exam.vocabulary, 0).eval()


def test_marks_by_hand(exam: EvaluationData) -> None:
    """321 + 654 = 975 is answered 9, 7, 5 and the end: four tokens, three of them digits."""
    batch = exam.batch(exam.task.parse_question("321+654="))
    assert [i for i in batch.targets[0].tolist() if i != IGNORE_INDEX] == [9, 11, 13, 3]
    for wrong, digits in ((-1, 3), (0, 2), (1, 2), (2, 2), (3, 3)):
        model = Oracle(batch, 19, lambda row, place, right, wrong=wrong: 16 if place == wrong else right)  # type: ignore[misc]
        marks = predict(model, exam, batch).match_counts
        assert (marks.correct.tolist(), marks.first_error.tolist()) == ([wrong == -1], [wrong])
        assert (marks.num_correct_digits, marks.num_digits) == (digits, 3)


def test_a_record_counts_what_its_rows_say(exam: EvaluationData, model: Any) -> None:
    record = evaluate_cell(model, exam, CELL, count=50, seed=3)
    questions = exam.task.at_cell(**CELL).examples("test", 3, 0, 50)
    marks = predict(model, exam, exam.batch(questions)).match_counts
    assert record["cell"] == CELL
    assert record["correct"] == int(marks.correct.sum())
    assert record["count"] == 50
    assert (record["low"], record["high"]) == tuple(round(float(x), 6) for x in wilson_interval(record["correct"], 50))
    assert record["digit_accuracy"] == round(marks.num_correct_digits / marks.num_digits, 6)
    assert sum(record["first_error_counts"]) == 50 - record["correct"]
    assert record["first_token_correct"] == 50 - record["first_error_counts"][0]
    assert record["first_error_counts"] == np.bincount(marks.first_error[marks.first_error >= 0].numpy()).tolist()
    assert record["method"] == "one pass"
    assert record["overlaps_training"] is False
    assert set(questions.metadata["first_digits"]) == {3}


def test_the_same_evaluation_gives_the_same_bytes(exam: EvaluationData, model: Any) -> None:
    first = json.dumps(evaluate_cell(model, exam, CELL, count=40))
    torch.manual_seed(1234)
    again = EvaluationData(Arithmetic(digits=Span(1, 5)), Characters(), Continuation())
    assert json.dumps(evaluate_cell(model, again, CELL, count=40)) == first
    assert json.dumps(evaluate_cell(model, exam, CELL, count=40, seed=1)) != first


@pytest.mark.parametrize("most", [1, 130])
@pytest.mark.parametrize("limit", ["MAX_TOKENS_PER_BATCH", "MAX_TOKENS_PER_CPU_FORWARD"])
@pytest.mark.parametrize("position_ids", [DigitIndex(), Shifted(9)], ids=repr)
def test_a_cell_cut_into_any_chunks_is_the_same(
    exam: EvaluationData, monkeypatch: pytest.MonkeyPatch, position_ids: Any, limit: str, most: int
) -> None:
    model = model_of(exam, position_ids).double()
    offset = model.num_position_offsets() - 1
    expected = evaluate_cell(model, exam, CELL, count=30, position_offset=offset)
    monkeypatch.setattr(exam_room, limit, most)
    assert evaluate_cell(model, exam, CELL, count=30, position_offset=offset) == expected


def test_pieces_of_a_forward_hold_every_row_once_and_in_order(
    exam: EvaluationData, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = exam.batch(exam.task.examples("test", 0, 0, 40))
    batch = replace(batch, tokens=replace(batch.tokens, blocked_keys=batch.tokens.ids == 5), source=batch.tokens)
    assert split_batch(batch)[0] is batch, "a batch that is small enough is left whole"
    monkeypatch.setattr(exam_room, "MAX_TOKENS_PER_CPU_FORWARD", 1)
    found = split_batch(batch)
    assert len(found) == len(batch.tokens.ids)
    for name in ("ids", "lengths", "example_indices", "blocked_keys"):
        assert torch.equal(torch.cat([getattr(piece.tokens, name) for piece in found]), getattr(batch.tokens, name))
    for name in ("targets", "target_positions", "target_ids"):
        assert torch.equal(torch.cat([getattr(piece, name) for piece in found]), getattr(batch, name))
    assert all(piece.source is not None for piece in found)


def test_each_position_offset_is_measured_at_its_own_places(exam: EvaluationData) -> None:
    model = model_of(exam, Shifted(max_shift=30, num_eval_offsets=2))
    assert model.num_position_offsets() == 2
    first, second = (evaluate_cell(model, exam, CELL, count=60, position_offset=i) for i in (0, 1))
    assert (first["position_offset"], second["position_offset"]) == (0, 1)
    assert first["first_error_counts"] != second["first_error_counts"]


def test_offsets_of_training_never_enter_an_evaluation(exam: EvaluationData) -> None:
    models = [model_of(exam, DigitIndex(max_offset=most)) for most in (30, 0)]
    first, second = (evaluate_cell(model, exam, CELL, count=40) for model in models)
    assert first == second


def test_a_cell_that_no_task_has_is_refused(exam: EvaluationData, model: Any) -> None:
    with pytest.raises(UserError, match="Did you mean 'first_digits'"):
        evaluate_cell(model, exam, {"first_digit": 3}, count=10)


def test_targets_are_answers_whatever_the_targets_of_training(exam: EvaluationData) -> None:
    trained_on_all = EvaluationData(exam.task, exam.tokenizer, Continuation(targets="all"))
    questions = exam.task.examples("test", 0, 0, 5)
    assert torch.equal(trained_on_all.batch(questions).targets, exam.batch(questions).targets)


def test_one_pass_holds_where_there_is_one_tokenisation(exam: EvaluationData) -> None:
    @dataclass(frozen=True)
    class Several(Characters):
        has_unique_tokenization = False
        note: int = setting(0, "nothing")

    assert exam.kind.resolve_method(exam, "one pass") == "one pass"
    several = EvaluationData(exam.task, Several(), Continuation())
    labels = EvaluationData(exam.task, Several(), TokenClassification())
    assert labels.kind.resolve_method(labels, "one pass") == "one pass"
    model = Decoder(hidden_size=16).build(several.vocabulary, 0).eval()
    assert evaluate_cell(model, several, CELL, count=5)["method"] == "decoding", "and it says so"


def test_the_longest_tokens_are_those_of_the_largest_questions(exam: EvaluationData) -> None:
    tokens = exam.longest_rows(exam.task)
    assert int(tokens.lengths.max()) == 5 + 1 + 5 + 1 + 6
    assert int(exam.longest_rows(replace(exam.task, digits=Span(1, 3))).lengths.max()) == 3 + 1 + 3 + 1 + 4


def test_labels_are_read_off_one_forward_and_decoding_is_refused(any_task: Any) -> None:
    """A label is predicted at its own position and never read again: there is nothing to decode."""
    questions = cell_questions(any_task, {}, count=30)
    if questions.labels is None:
        pytest.skip("its answers are continuations")
    exam = EvaluationData(any_task, Words(), TokenClassification())
    model = Decoder(hidden_size=16).build(exam.vocabulary, 0).eval()
    record = evaluate_cell(model, exam, {}, count=30)
    assert record["method"] == "one pass"
    with pytest.raises(
        UserError,
        match=r"^method: must be 'one pass', not 'decoding', since layout=TokenClassification predicts all positions",
    ):
        evaluate_cell(model, exam, {}, count=30, method="decoding")
    batch = exam.batch(questions)
    with torch.no_grad():
        predictions = model(batch.tokens).logits.argmax(-1)
    right = ((predictions == batch.targets) | (batch.targets == IGNORE_INDEX)).all(1)
    assert record["correct"] == int(right.sum())
