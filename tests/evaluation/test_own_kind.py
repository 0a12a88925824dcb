"""A kind of evaluation with records of its own is trained, evaluated, tabulated and reported like the others."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import numerate
from numerate import catalogue
from numerate.cli import main
from numerate.config import packaged_parts
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, cell_questions, kind_of
from numerate.evaluation.kinds.answers import AnswerKind
from numerate.evaluation.kinds.kind import EvaluationKind
from numerate.evaluation.samples import sample_answers
from numerate.results.summary import summary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.mixture import Mixture
from numerate.tokenizers.layout import Continuation


@dataclass(frozen=True)
class AnswerLength(EvaluationKind):
    """The mean length of predictions in characters; nothing is right or wrong."""

    def score(self, model: Any, evaluation_data: EvaluationData, request: Any) -> dict[str, Any]:
        cell, count, seed, position_offset, method, split = request
        questions = cell_questions(evaluation_data.task, cell, count=count, seed=seed, split=split)
        samples = sample_answers(model, evaluation_data, questions, position_offset, method=method)
        return {
            "cell": dict(cell),
            "count": len(samples),
            "position_offset": position_offset,
            "method": method,
            "overlaps_training": False,
            "characters": sum(len(sample.prediction) for sample in samples),
        }

    def predict(self, model: Any, evaluation_data: EvaluationData, request: Any) -> list[dict[str, Any]]:
        return [{"question": "1+1=", "prediction": "2", "correct_answer": None} for _ in range(request.num_questions)]


@dataclass(frozen=True)
class Graded(AnswerKind):
    """Scores that are not from 0 to 1."""

    columns: ClassVar[Mapping[str, str]] = {"grade": "points"}

    def score_answer(self, question: str, correct_answer: str, prediction: str) -> Mapping[str, float]:
        return {"grade": 3.0}


@dataclass(frozen=True)
class MeasuredSums(Arithmetic):
    """Sums whose answers are measured."""

    evaluation_kind: ClassVar[str | None] = "AnswerLength"


@dataclass(frozen=True)
class GradedSums(Arithmetic):
    """Sums whose answers are graded."""

    evaluation_kind: ClassVar[str | None] = "Graded"


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_user_classes", {})
    for part in (AnswerLength, Graded):
        catalogue.register("EvaluationKind", part)
    for task in (MeasuredSums, GradedSums):
        catalogue.register("Task", task)


def trained(task: Arithmetic, folder: Path) -> numerate.Run:
    model = ("model.hidden_size=16", "model.backbone.num_layers=1", "model.mixer.num_heads=2")
    recipe = numerate.recipe("addition_abacus", *model, "training.steps=2", "training.batch_size=8")
    recipe = replace(recipe, task=replace(task, digits=1))
    return numerate.train(recipe, runs_dir=folder, quiet=True)


def test_its_records_are_kept_read_again_and_left_out_of_reports(tmp_path: Path) -> None:
    run = trained(MeasuredSums(), tmp_path)
    results = run.evaluate("1:2x1:1", count=4)
    again = numerate.load(run.path).evaluate("1:2x1:1", count=4)
    assert str(again) == str(results)
    assert results.frame["score.characters"].tolist() == [record["characters"] for record in results]
    assert re.search(r"in distribution +1 +[\d.]+$", str(results), re.MULTILINE)
    assert {record["kind"] for record in results} == {"AnswerLength"}
    with pytest.warns(UserWarning, match="kind of evaluation that counts no answers are left out"):
        run.report()


@pytest.mark.parametrize(
    ("function", "entry", "problem"),
    [
        ("score", {"language": None}, "`language` must be `object`, not null"),
        ("score", {"correct": 3}, "Object missing required field `low`"),
        ("predict", {"correct_answer": None}, "Object missing required field `question`"),
    ],
)
def test_what_could_not_be_read_again_is_refused_before_it_is_written(
    function: str, entry: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, score = trained(MeasuredSums(), tmp_path), AnswerLength.score
    with monkeypatch.context() as patch:
        patch.setattr(
            *(AnswerLength, function),
            lambda *given: score(*given) | entry if function == "score" else [entry] * given[-1].num_questions,
        )
        with pytest.raises(UserError, match=re.escape(f"AnswerLength.{function}: {problem} (docs/adding.md)")):
            run.evaluate("1:2x1:1", count=4, predictions=True)
    again = [run.evaluate("1:2x1:1", count=4, predictions=True) for _ in range(2)]
    assert str(again[0]) == str(again[1])


def test_the_verifier_of_the_docs_is_evaluated_twice(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "adding.md").read_text()
    (tmp_path / "my_verifier.py").write_text(text.partition("# my_verifier.py\n")[2].partition("```")[0])
    small = ["model.hidden_size=16", "model.backbone.num_layers=1", "model.mixer.num_heads=2", "training.batch_size=8"]
    runs = f"runs_dir={tmp_path / 'runs'}"
    assert main(["train", f"{tmp_path / 'my_verifier.py'}:recipe", "training.steps=2", *small, runs]) == 0
    words = ["evaluate", "latest", "--parts", str(tmp_path / "my_verifier.py"), "grid=3:4", "count=4", runs]
    assert main([*words, "predictions=true"]) == 0
    (folder,) = tmp_path.glob("runs/*/*/cells.jsonl")
    written = [(folder.parent / name).read_bytes() for name in ("cells.jsonl", "predictions.jsonl")]
    assert b'"scores": {"verified"' in written[0]
    assert main([*words, "predictions=true"]) == 0
    assert [(folder.parent / name).read_bytes() for name in ("cells.jsonl", "predictions.jsonl")] == written


def test_its_numbers_are_results_of_a_study(tmp_path: Path) -> None:
    frame = trained(MeasuredSums(), tmp_path).evaluate("1:2x1:1", count=4).frame
    (score,) = summary(frame[frame["region"] == "in_distribution"], metric="score.characters")["value"]
    assert score == frame["score.characters"].iloc[0]


def test_a_score_that_is_not_from_0_to_1_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Graded\.score_answer.*grade must be a number from 0 to 1, not 3\.0"):
        trained(GradedSums(), tmp_path).evaluate("1x1", count=4)
    for run in tmp_path.glob("*/*/cells.jsonl"):
        assert run.read_text() == ""


def test_a_mixture_has_the_kind_of_its_tasks_and_refuses_two() -> None:
    layout = Continuation()
    assert type(kind_of(Mixture((GradedSums("+"), GradedSums("-"))), layout)) is Graded
    assert type(kind_of(Mixture((GradedSums("+"), Arithmetic("-")), auxiliary=True), layout)) is Graded
    with pytest.raises(UserError, match="tasks: must have the same kind of evaluation, not Graded, the default"):
        kind_of(Mixture((GradedSums("+"), Arithmetic("-"))), layout)


def test_every_kind_of_numerate_leaves_its_records_without_a_name() -> None:
    for name in catalogue.parts_by_kind()["EvaluationKind"]:
        kind: Any = catalogue.get_class("EvaluationKind", name)
        assert kind.name_entry() == ({"kind": name} if name in ("AnswerLength", "Graded") else {})
    assert main(["list", "evaluation-kinds"]) == 0


def test_a_kind_that_an_installed_package_declares_is_found_by_the_name_in_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "_user_classes", {})
    entry = SimpleNamespace(name="Graded", load=lambda: Graded)
    monkeypatch.setattr(packaged_parts, "declared_entry_points", lambda: {f"{__name__}:Graded": entry})
    assert isinstance(kind_of(GradedSums(), Continuation()), Graded)
