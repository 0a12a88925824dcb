"""Samples: the answers of a model, as a person writes them."""

from typing import Any

import pytest
import torch

from numerate.batch import StepContext
from numerate.config import Span
from numerate.evaluation import exact_match
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import evaluate_cell
from numerate.evaluation.exact_match import predict
from numerate.evaluation.generate import GenerationOutput
from numerate.evaluation.samples import sample_answers
from numerate.evaluation.text_answers import restore_number_format
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.text.models.numformer import Numformer
from numerate.text.models.t5 import T5
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import XVal
from numerate.tokenizers.layout import Continuation, MaskedLM, Seq2Seq, TokenClassification
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words
from numerate.vocabulary import EOS


def exam_of(order: Any = "reversed") -> EvaluationData:
    return EvaluationData(
        Arithmetic(digits=Span(1, 4)), Characters(number_format=Digits(digit_order=order)), Continuation()
    )


@pytest.fixture
def model() -> Any:
    made = Decoder(hidden_size=16, positions=(Rotary(),)).build(exam_of().vocabulary, 0).eval()
    with torch.no_grad():
        made.head.weight[EOS] *= 4.0
    return made


def test_questions_and_answers_read_as_a_person_writes_them(model: Any) -> None:
    for order, written in (("reversed", "21+9="), ("normal", "12+9=")):
        exam = exam_of(order)
        (sample,) = sample_answers(model, exam, exam.task.parse_question("12+9="))
        assert (sample.question, sample.correct_answer) == ("12+9=", "21")
        assert sample.model_text.startswith(written)
        assert sample.record({"first_digits": 2}) | {"probability": 0} == {
            "cell": {"first_digits": 2},
            "question": "12+9=",
            "correct_answer": "21",
            "prediction": sample.prediction,
            "correct": sample.correct,
            "model_text": sample.model_text,
            "probability": 0,
            "first_error": sample.first_error,
            "ended": sample.ended,
        }


@pytest.mark.parametrize(
    ("order", "words", "plain"),
    [
        ("reversed", "975", "579"),
        ("reversed", "12+34", "21+43"),
        ("reversed", "001", "100"),
        ("normal", "975", "975"),
        ("reversed", "+=", "+="),
        ("reversed", "", ""),
    ],
)
def test_numbers_are_turned_back(order: str, words: str, plain: str) -> None:
    assert restore_number_format(exam_of(order).tokenizer, words) == plain


def test_right_and_first_error_are_those_of_decoding(model: Any) -> None:
    exam = exam_of()
    questions = exam.task.examples("test", 0, 0, 40)
    predictions = predict(model, exam, exam.batch(questions), method="decoding", extra_tokens=2)
    marks, ids = predictions.match_counts, predictions.ids
    found = sample_answers(model, exam, questions)
    assert [one.correct for one in found] == marks.correct.tolist()
    assert [-1 if one.first_error is None else one.first_error for one in found] == marks.first_error.tolist()
    assert predictions.log_probability is not None
    assert [one.probability for one in found] == pytest.approx(predictions.log_probability.exp().tolist())
    for one in found:
        assert one.correct == (one.prediction == one.correct_answer and one.ended)
        assert 0 < one.probability <= 1
        assert one.model_text.startswith(exam_text(one.question))
    assert {one.ended for one in found} == {True, False}
    assert ids.shape[0] == 40


def exam_text(question: str) -> str:
    left, right = question.removesuffix("=").split("+")
    return f"{left[::-1]}+{right[::-1]}="


def test_labels_are_shown_at_their_positions() -> None:
    task = Counting(count=Span(1, 5), start_number="before", helper="pad")
    exam = EvaluationData(task, Words(add_bos_token=True), TokenClassification(blocked_tokens=("<pad>",)))
    model = Decoder(hidden_size=16).build(exam.vocabulary, 0).eval()
    (sample,) = sample_answers(model, exam, task.parse_question("5 <pad> a <pad>"))
    batch = exam.batch(task.parse_question("5 <pad> a <pad>"))
    best = model(model.assign_positions(batch.tokens, StepContext.for_evaluation())).logits.argmax(-1)[0]
    first, second = (exam.vocabulary.tokens[int(best[place])] for place in (2, 4))  # behind [BOS]
    assert (sample.question, sample.correct_answer) == ("5 <pad> a <pad>", ". 5 . 6")
    assert sample.prediction == sample.model_text == f". {first} . {second}"
    assert sample.first_error == (0 if first != "5" else 1 if second != "6" else None)


# Numbers beside tokens -----------------------------------------------------------------------------------------------


def exam_of_numbers(layout: Any) -> EvaluationData:
    pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    return EvaluationData(GeneratedMathematics(kinds=("mul",), digits=1), Subwords("characters", XVal()), layout)


def test_the_predicted_number_is_in_the_text_and_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    exam, cell = exam_of_numbers(Seq2Seq()), {"module": 1}
    questions = exam.task.at_cell(**cell).examples("test", 0, 0, 6)
    batch = exam.batch(questions)
    assert batch.target_number_values is not None
    right = batch.target_number_values.gather(1, batch.target_positions)
    wrong = right * torch.tensor([1.0, 1.0, 1.5, 2.0, -1.0, 1.0])[:, None] + torch.arange(6)[:, None].eq(5)

    def greedy(model: Any, prompts: Any, most: int, **more: Any) -> GenerationOutput:
        ids = batch.target_ids
        return GenerationOutput(ids, (ids != 0).sum(1), torch.zeros(6), wrong, (ids != 0).any(1))

    monkeypatch.setattr(exact_match, "greedy_decode", greedy)
    model = (
        T5(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=16, max_position_embeddings=None)
        .build(exam.vocabulary, 0)
        .eval()
    )
    record = evaluate_cell(model, exam, cell, count=6)
    found = sample_answers(model, exam, questions)
    assert [one.correct for one in found] == [a == b for a, b in zip(right[:, 0], wrong[:, 0], strict=True)]
    assert sum(bool(one.correct) for one in found) == record["correct"]
    assert 2 <= record["correct"] < 6
    assert [float(one.prediction) for one in found] == pytest.approx(wrong[:, 0].tolist())
    assert [one.prediction == one.correct_answer for one in found] == [one.correct for one in found]
    assert [one.first_error for one in found] == [None if one.correct else 0 for one in found]
    assert all(one.model_text.replace(" ", "").startswith(one.question[:12].replace(" ", "")) for one in found)


def test_masked_answers_have_the_number_of_their_head() -> None:
    exam = exam_of_numbers(MaskedLM())
    model = (
        Numformer(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_position_embeddings=64)
        .build(exam.vocabulary, 0)
        .eval()
    )
    questions = exam.task.at_cell(module=1).examples("test", 0, 0, 3)
    batch = exam.batch(questions)
    carrier, end = batch.target_ids[0, 0], batch.target_ids[0, 1]
    with torch.no_grad():
        model.hf_model["head"].bias[carrier] += 100.0
        meant = model(batch.tokens, target_positions=batch.target_positions).number_predictions[:, 0]
    found = sample_answers(model, exam, questions)
    assert int(end) == EOS
    assert [float(one.prediction.split()[0]) for one in found] == pytest.approx(
        meant.repeat_interleave(1).tolist(), rel=1e-3
    )
    assert not any(one.correct for one in found)


# Searches ------------------------------------------------------------------------------------------------------------


def test_answers_are_of_beam_search_where_the_evaluation_is(model: Any) -> None:
    exam = exam_of()
    questions = exam.task.examples("test", 0, 0, 40)
    searched = predict(model, exam, exam.batch(questions), method="beams", extra_tokens=2)
    marks, ids = searched.match_counts, searched.ids
    found = sample_answers(model, exam, questions, method="beams")
    predictions = [one.prediction for one in found]
    assert predictions == [
        restore_number_format(exam.tokenizer, exam.tokenizer.decode(row, exam.vocabulary)) for row in ids.tolist()
    ]
    assert predictions != [one.prediction for one in sample_answers(model, exam, questions)], (
        "greedy answers are others"
    )
    assert [one.correct for one in found] == marks.correct.tolist()


def test_where_nobody_knows_the_answer_nothing_is_right_or_wrong(model: Any) -> None:
    exam = exam_of()
    questions = exam.task.parse_question("12+9=")
    (judged,), (found,) = (
        sample_answers(model, exam, questions),
        sample_answers(model, exam, questions, are_answers_known=False),
    )
    assert (found.correct_answer, found.correct, found.first_error) == (None, None, None)
    assert (found.prediction, found.probability) == (judged.prediction, judged.probability)


def test_samples_are_of_sizes_that_someone_reads() -> None:
    kind = exam_of().kind
    sizes = {4: "in_distribution", 9: "ood_test", 200: "100+", 500: "100+", 501: "100+", 10_000: "100+"}
    cells = {(("first_digits", n), ("second_digits", n)): region for n, region in sizes.items()}
    assert [dict(cell)["first_digits"] for cell in kind.sample_cells(cells)] == [4, 9, 200, 500]
    assert kind.sample_cells({cell: region for cell, region in cells.items() if dict(cell)["first_digits"] > 500}) == []
