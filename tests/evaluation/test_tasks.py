"""One evaluator for all tasks: cells of sorting, OR, products; whole cells."""

import json
from typing import Any

import pytest

from numerate.batch import Model
from numerate.config import Span
from numerate.evaluation.evaluation_data import EvaluationData, cell_questions, num_cell_questions
from numerate.evaluation.evaluator import evaluate_cell
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.plain import format_question
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters

TASKS = [
    Arithmetic(digits=Span(1, 4)),
    Arithmetic(operator="-", digits=Span(1, 4)),
    Arithmetic(operator="x", digits=Span(1, 4)),
    Sorting(digits=Span(1, 4), items=Span(1, 4)),
    BitwiseOr(digits=Span(1, 4)),
]


def exam_of(task: Task) -> EvaluationData:
    return EvaluationData(task, Characters(), Continuation())


def model_of(exam: EvaluationData, positions: Any = (Rotary(),)) -> Model:
    model: Model = Decoder(hidden_size=16, positions=positions).build(exam.vocabulary, seed=2).eval()
    return model


@pytest.fixture(params=TASKS, ids=lambda task: f"{type(task).__name__}{getattr(task, 'operator', '')}")
def task(request: pytest.FixtureRequest) -> Any:
    return request.param


def cell_of(task: Task, size: int) -> dict[str, int]:
    return dict.fromkeys(task.axes(), size)


def test_a_cell_of_every_task_is_scored_alike_at_once_and_by_decoding(task: Task) -> None:
    exam = exam_of(task)
    model = model_of(exam)
    once, decoded = (
        evaluate_cell(model, exam, cell_of(task, 6), count=20, method=method) for method in ("one pass", "decoding")
    )
    decoded.pop("numbers", None)  # only decoding has them
    assert {**decoded, "method": "one pass", "digit_accuracy": once["digit_accuracy"]} == once
    assert json.loads(json.dumps(once)) == once


def test_a_cell_with_fewer_questions_than_wanted_uses_each_of_them_once() -> None:
    task = BitwiseOr(digits=Span(1, 4))
    cell = {"first_digits": 6, "second_digits": 3}
    assert num_cell_questions(task, cell, 100) == 3
    questions = cell_questions(task, cell, count=100)
    assert len({format_question(questions, row) for row in range(3)}) == len(questions) == 3
    exam = exam_of(task)
    record = evaluate_cell(model_of(exam), exam, cell, count=100)
    assert (record["count"], record["overlaps_training"]) == (3, False)
    assert evaluate_cell(model_of(exam), exam, cell, count=2)["count"] == 2
    assert evaluate_cell(model_of(exam), exam, cell_of(task, 3), count=100)["overlaps_training"] is True
