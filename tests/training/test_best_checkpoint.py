"""Promises of the best step: chosen by accuracy or by the validation loss, depending on the kind of answers."""

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import small_runs
from numerate import catalogue
from numerate.api import recipe
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.kinds.answers import AnswerKind
from numerate.runs.train import TrainedRun, train
from numerate.tasks.task import Task
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import XVal
from numerate.tokenizers.layout import Seq2Seq
from numerate.tokenizers.tokenizer import Characters
from numerate.training.recipe import Recipe
from numerate.training.training_state import BestStepRule, ValidationScore
from small_runs import best_step, metrics

torch.set_num_threads(1)

ACCURACY, TIES, LOSS = BestStepRule("accuracy"), BestStepRule("accuracy", loss_breaks_ties=True), BestStepRule("loss")
PLAIN = recipe("addition_rotary")


def best_of(criterion: BestStepRule, accuracies: list[float], losses: list[float]) -> int:
    known: ValidationScore | None = None
    best = -1
    for step, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True)):
        new = criterion.score({"validation": accuracy}, loss)
        if criterion.is_improvement(new, known):
            best, known = step, ValidationScore(*json.loads(json.dumps(new)))  # as a checkpoint keeps it
    return best


def test_the_best_is_the_most_accurate_or_the_one_with_the_lowest_loss() -> None:
    nothing, falling = [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 2.0, 2.5]
    assert best_of(ACCURACY, nothing, falling) == 3, "ties to the later"
    assert best_of(TIES, nothing, falling) == best_of(LOSS, nothing, falling) == 1
    assert best_of(TIES, [0.1, 0.3, 0.3, 0.2], [1.0, 4.0, 3.0, 0.5]) == 2
    assert best_of(TIES, [0.1, 0.3, 0.3, 0.2], [1.0, 3.0, 4.0, 0.5]) == 1
    assert best_of(TIES, [0.3, 0.3], [2.0, 2.0]) == 1, "and of equal losses the later"
    assert best_of(LOSS, [0.9, 0.1], [1.0, 1.0]) == 1
    assert best_of(LOSS, [0.9, 0.1, 0.2], [math.nan, 5.0, math.inf]) == 1


def test_accuracy_is_that_of_the_next_sizes_and_the_loss_that_of_validation() -> None:
    both = {"validation": 0.9, "ood_validation": 0.2}
    assert ACCURACY.score(both, None) == ("accuracy", "ood_validation", 0.2, None)
    assert LOSS.score(both, 1.5) == ("loss", "validation", 1.5, None)
    assert LOSS.score(both, math.nan).value == sys.float_info.max


def test_the_kind_of_answers_decides_unless_it_is_set() -> None:
    pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    symbols = EvaluationData(PLAIN.task, PLAIN.tokenizer, PLAIN.layout)
    texts = EvaluationData(GeneratedMathematics(), Characters(), Seq2Seq())
    numbers = EvaluationData(GeneratedMathematics(), Subwords("characters", XVal()), Seq2Seq())
    found = [BestStepRule.from_metric(None, exam) for exam in (symbols, texts, numbers)]
    assert found == [ACCURACY, TIES, LOSS]
    assert [BestStepRule.from_metric("accuracy", exam) for exam in (symbols, numbers)] == [TIES, TIES]
    assert BestStepRule.from_metric("loss", symbols) == LOSS


OWN = (
    "task.digits=1:2 training.steps=8 training.evaluate_every=1 training.checkpoint_every=null "
    "training.keep_checkpoints=1 evaluation.grid=1x1 optimizer.learning_rate=3 schedule=Constant(warmup=3)"
)


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, "training.log_every=25", *more, name="addition_rotary")


def best_and_lines(made: TrainedRun) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [line for line in metrics(made) if line.get("split") == "validation"]
    return best_step(made.run), lines


def test_a_run_keeps_the_step_of_the_lowest_loss_and_says_so(tmp_path: Path) -> None:
    made = train(small("training.best_metric=loss"), runs_dir=tmp_path, quiet=True)
    best, lines = best_and_lines(made)
    losses = {line["step"]: line["validation_loss"] for line in lines}
    lowest = min(losses, key=lambda step: (losses[step], -step))
    assert lowest < 8, "a rate this high makes it worse again"
    assert best == {"step": lowest, "score": pytest.approx(losses[lowest]), "split": "validation", "metric": "loss"}
    assert made.run.checkpoints("best")[0].step == lowest
    results = made.run.evaluate("1x1", count=5, checkpoint="best")
    assert results.best == best


def test_where_nothing_is_right_the_loss_decides_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    wanted = ("training.best_metric=accuracy", "task.digits=6")
    whole = train(small(*wanted), runs_dir=tmp_path / "whole", quiet=True)
    best, lines = best_and_lines(whole)
    assert {line["exact_match"] for line in lines} == {0.0}
    losses = {line["step"]: line["validation_loss"] for line in lines}
    assert best["step"] == min(losses, key=lambda step: losses[step]) < 8
    assert best["metric"] == "accuracy"
    for steps in (4, 8):
        halves = train(small(*wanted, f"training.steps={steps}"), runs_dir=tmp_path / "halves", quiet=True)
    assert best_and_lines(halves)[0] == best


@dataclass(frozen=True)
class Judged(AnswerKind):
    """Answers judged by their length and their first digit."""

    columns: ClassVar[Mapping[str, str]] = {"short": "answers of at most two characters", "any": "all answers"}

    def score_answer(self, question: str, correct_answer: str, prediction: str) -> Mapping[str, float]:
        assert re.fullmatch(r"\d+\+\d+=", question)
        assert eval(question[:-1]) == int(correct_answer)
        return {"short": float(len(prediction) <= 2), "any": 1.0}


def test_the_score_of_a_kind_of_evaluation_chooses_the_best_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_user_classes", {"EvaluationKind": {"Judged": Judged}})
    monkeypatch.setattr(Task, "evaluation_kind", "Judged")
    made = train(small(), runs_dir=tmp_path, quiet=True)
    best, lines = best_and_lines(made)
    short = {line["step"]: line["short"] for line in metrics(made) if line.get("split") == "ood_validation"}
    assert len({*short.values()}) > 1, "otherwise nothing is chosen"
    highest = max(short, key=lambda step: (short[step], step))
    assert best == {"step": highest, "score": short[highest], "split": "ood_validation", "metric": "accuracy"}
    assert {line["any"] for line in lines} == {1.0}
    assert all(line["exact_match"] == line["correct"] / line["count"] < 1 for line in lines)
    reached = train(small("training.target_accuracy=0.01", "seed=1"), runs_dir=tmp_path, quiet=True)
    assert reached.stop_reason == "target"
