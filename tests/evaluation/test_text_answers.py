"""Promises of records of answers that are texts or numbers: they have the scores, and cells of them pool exactly."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE_INDEX
from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.evaluation import answer_metrics, exact_match
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData
from numerate.evaluation.evaluator import METHODS, evaluate_cell
from numerate.evaluation.exact_match import target_likelihood
from numerate.evaluation.generate import GenerationOutput
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.text_answers import AnswerScorer
from numerate.evaluation.text_metrics import TextScores
from numerate.models.decoder import Decoder
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Example, Questions
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.tasks.texts import InMemorySource
from numerate.tokenizers.layout import Continuation, Layout, MaskedLM
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters

PAIRS = (Example("1+1? ", "it is 2"), Example("2*600? ", "1,200"), Example("Why? ", "who knows"))


@dataclass(frozen=True)
class Asking(Task):
    """Texts in a file, as far as an evaluation can tell."""

    first: int = setting(0, "the first of its questions")

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        return Questions.from_source(InMemorySource(PAIRS), (indices + self.first) % len(PAIRS))

    def question_hashes(self, questions: Questions) -> None:
        return None

    def alphabet(self) -> tuple[str, ...]:
        return tuple("abcdefghijklmnopqrstuvwxyzW0123456789+*?,. ")


def exam_of(task: Task, layout: Layout | None = None, tokenizer: Characters | None = None) -> EvaluationData:
    return EvaluationData(task, tokenizer or Characters(), layout or Continuation())


def decoding_to(
    monkeypatch: pytest.MonkeyPatch, exam: EvaluationData, answers: Sequence[str], ended: bool = True
) -> list[int]:
    """Makes greedy decoding return these answers; returns a list of the maximum lengths."""
    allowed: list[int] = []

    def greedy(model: Any, prompts: Any, most: int, **more: Any) -> GenerationOutput:
        allowed.append(most)
        ids = torch.zeros(len(answers), most, dtype=torch.long)
        for row, text in enumerate(answers):
            spoken = [*exam.tokenizer.encode(text, exam.vocabulary), *([3] if ended else [])]
            ids[row, : len(spoken)] = torch.tensor(spoken[:most])
        return GenerationOutput(ids, (ids != 0).sum(1), torch.zeros(len(answers)), None, (ids != 0).any(1))

    monkeypatch.setattr(exact_match, "greedy_decode", greedy)
    return allowed


def model_of(exam: EvaluationData) -> Any:
    return Decoder(hidden_size=16).build(exam.vocabulary, 0).eval()


def test_the_record_has_the_scores_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    exam = exam_of(Asking())
    allowed = decoding_to(monkeypatch, exam, ["it is 2", "about 1200, say", "42"])
    record = evaluate_cell(model_of(exam), exam, {}, count=3)
    assert record["method"] == "decoding", "though a text of characters has one tokenisation"
    assert (record["correct"], record["count"]) == (1, 3)
    numbers, texts = record["numbers"], record["texts"]
    assert (numbers["count"], numbers["correct"], numbers["missing"]) == (2, 2, 0), "nobody asks for the third number"
    assert texts["count"] == texts["ended"] == 3
    assert texts["metrics"]["rouge1"] == pytest.approx((1 + 0 + 0) / 3, abs=1e-6)
    assert allowed == [len("who knows") + 1 + EXTRA_TEXT_TOKENS], "an answer may be longer than the right one"
    json.dumps(record, allow_nan=False)


def test_an_answer_that_never_ends_is_read_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    exam = exam_of(Asking())
    decoding_to(monkeypatch, exam, ["2", "1", "3"], ended=False)
    record = evaluate_cell(model_of(exam), exam, {}, count=3)
    assert record["texts"]["ended"] == 0
    assert record["numbers"]["correct"] == 1
    assert record["correct"] == 0


def test_perplexity_and_token_accuracy_are_behind_the_right_prefix() -> None:
    exam = exam_of(Asking())
    model = model_of(exam)
    batch = exam.batch(exam.task.examples("test", 0, 0, 3))
    with torch.no_grad():
        logits = model(batch.tokens).logits.flatten(0, 1)
    targets = batch.targets.flatten()
    each = cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE_INDEX)
    nll, tokens, right = target_likelihood(model, batch)
    assert tokens == sum(len(pair.answer) + 1 for pair in PAIRS)
    assert nll == pytest.approx(float(each.sum()), rel=1e-5)
    assert right == int((logits.argmax(-1) == targets).sum())
    metrics = evaluate_cell(model, exam, {}, count=3)["texts"]["metrics"]
    assert metrics["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert metrics["token_accuracy"] == pytest.approx(right / tokens, abs=1e-6)


def test_cells_of_texts_pool_as_if_they_were_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exam = exam_of(Asking())
    model = model_of(exam)
    predictions = ["it is 3", "1,200", "I do"]
    decoding_to(monkeypatch, exam, predictions)
    whole = evaluate_cell(model, exam, {}, count=3)
    parts = []
    for first, text in enumerate(predictions):
        decoding_to(monkeypatch, exam, [text])
        parts.append(evaluate_cell(model, exam, {"first": first}, count=1))
    one, several = (
        answer_metrics.pooled_metrics(map(NumberScores.from_record, records), map(TextScores.from_record, records))
        for records in ([whole], parts)
    )
    for name in set(answer_metrics.ANSWER_METRICS) - {"spearman", "median_error", "log_median_error"}:
        assert several[name] == pytest.approx(one[name], abs=1e-5), name
    assert several["number_accuracy (mean of modules)"] == 1 / 2, "of the two cells that ask for a number"


def test_arithmetic_has_the_errors_of_its_wrong_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the model's number format, units first; an answer that is no number as a whole is invalid."""
    exam = exam_of(Arithmetic(digits=Span(3, 3)), tokenizer=Characters(number_format=Digits(digit_order="reversed")))
    questions = exam.task.at_cell(first_digits=3, second_digits=3).examples("test", 0, 0, 4)
    batch = exam.batch(questions)
    right = [
        int(exam.tokenizer.decode([i for i in row if i != IGNORE_INDEX], exam.vocabulary)[::-1])
        for row in batch.target_ids.tolist()
    ]
    predictions = [right[0], right[1] + 5, right[2] - 20]
    decoding_to(monkeypatch, exam, [*(str(number)[::-1] for number in predictions), "1+1"])
    cell = {"first_digits": 3, "second_digits": 3}
    record = evaluate_cell(model_of(exam), exam, cell, count=4, method="decoding")
    metrics = record["numbers"]["metrics"]
    assert (record["numbers"]["correct"], record["numbers"]["invalid"], record["correct"]) == (1, 1, 1)
    assert metrics["mae"] == pytest.approx(25 / 3)
    assert metrics["median_error"] == 5.0
    assert "texts" not in record
    assert "numbers" not in evaluate_cell(model_of(exam), exam, cell, count=4)


def test_answers_that_are_several_things_have_no_error() -> None:
    exam = exam_of(Sorting())
    cell = {axis: span.low for axis, span in exam.task.training_spans().items()}
    assert "numbers" not in evaluate_cell(model_of(exam), exam, cell, count=3, method="decoding")


def test_masked_answers_are_read_off_one_forward() -> None:
    exam = exam_of(Asking(), MaskedLM())
    for method in METHODS[1:]:
        with pytest.raises(
            UserError, match=f"^method: must be 'one pass', not '{method}', since layout=MaskedLM predicts"
        ):
            exam.kind.resolve_method(exam, method)
    record = evaluate_cell(model_of(exam), exam, {}, count=3)
    numbers, texts = NumberScores.from_record(record), TextScores.from_record(record)
    assert texts is not None
    assert texts.count == 3
    assert numbers is not None
    assert numbers.count == 2


def test_an_evaluation_of_texts_without_the_packages_that_score_them_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("numerate.evaluation.text_metrics.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"numerate\[text\]"):
        exam_of(Asking()).kind.resolve_method(exam_of(Asking()), "one pass")


def test_tokens_behind_the_end_are_left_out() -> None:
    exam = exam_of(Asking())
    answers = AnswerScorer(exam.tokenizer, exam.vocabulary, exam.task.examples("test", 0, 0, 1))
    row = [*exam.tokenizer.encode("it is 2", exam.vocabulary), 3, *exam.tokenizer.encode("7", exam.vocabulary)]
    found: Any = SimpleNamespace(ids=torch.tensor([row]), number_values=None)
    answers.add_answers(found)
    assert (answers.predictions, answers.sums.ended) == (["it is 2"], 1)
