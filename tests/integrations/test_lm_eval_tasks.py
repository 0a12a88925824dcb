"""Promises of tasks written for lm-evaluation-harness: the questions of `numerate evaluate`, in files that it reads."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from import_file import import_file
from numerate.cli import main
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import cell_questions
from numerate.evaluation.grid import Grid
from numerate.evaluation.number_metrics import NumberScores
from numerate.integrations.lm_eval_tasks import write_tasks
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.tasks.plain import format_question
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.text.tasks.gsm8k import GSM8K

TEXTS = Path(__file__).parents[1] / "text" / "texts"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Loader(yaml.SafeLoader):
    """Reads `!function` as the name of the function."""


Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


def read(file: str) -> Any:
    return yaml.load((Path("tasks") / file).read_text(encoding="utf-8"), Loader)


def rows(file: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (Path("tasks") / file).read_text(encoding="utf-8").split("\n")[:-1]]


def written(task: Task, grid: str, count: int = 20) -> str:
    return write_tasks(task, Grid.parse(grid, task.axes()).cells(), Path("tasks"), type(task).__name__, count=count)


def test_each_cell_is_a_task_with_the_questions_of_an_evaluation() -> None:
    task = Arithmetic()
    assert written(task, "diagonal:1:2") == "numerate_arithmetic"
    assert read("group.yaml")["task"] == ["numerate_arithmetic_1x1", "numerate_arithmetic_2x2"]
    for size in (1, 2):
        found = read(f"{size}x{size}.yaml")
        assert found["task"] == f"numerate_arithmetic_{size}x{size}"
        assert found["metadata"]["overlaps_training"] is (size == 1), "81 sums are too few to hold some out"
        asked = rows(found["dataset_kwargs"]["file"])
        questions = cell_questions(task, {"first_digits": size, "second_digits": size}, count=20)
        assert [(row["question"], row["answer"]) for row in asked] == [format_question(questions, i) for i in range(20)]
        assert {row["question"] for row in asked}.isdisjoint(row["question"] for row in rows("train.jsonl"))
    assert len(rows("train.jsonl")) > 20
    assert all(int(row["answer"]) == sum(map(int, row["question"][:-1].split("+"))) for row in rows("train.jsonl"))


def test_an_answer_has_room_to_be_too_long() -> None:
    written(Arithmetic(), "9x9")
    longest = max(len(row["answer"]) for row in rows("9x9.jsonl"))
    assert read(read("9x9.yaml")["include"])["generation_kwargs"]["max_gen_toks"] > longest


@pytest.mark.parametrize(
    ("task", "grid", "metrics"),
    [(Arithmetic(), "2x2", 5), (Sorting(), "1x3", 1), (Counting(), "3", 5), (GSM8K(data_dir=str(TEXTS)), "1", 5)],
    ids=lambda value: type(value).__name__ if isinstance(value, Task) else "",
)
def test_errors_of_numbers_are_measured_where_answers_have_numbers(task: Task, grid: str, metrics: int) -> None:
    written(task, grid, count=3)
    (label,) = [path.stem for path in Path("tasks").glob("*.yaml") if path.stem != "group"]
    settings = read(read(f"{label}.yaml")["include"])
    assert len(settings["metric_list"]) == metrics
    assert settings["process_results"].endswith("score_number" if metrics > 1 else "score_text")
    assert all(row["answer"].strip() for row in rows(f"{label}.jsonl"))


def test_a_stratum_of_the_task_is_written_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "write", "Arithmetic", "out=tasks", "format=lm-eval", "grid=cascade:4", "count=2"]) == 0
    assert [[*row.values()] for row in rows("4x1xnines_plus_one.jsonl")] == [["9999+1=", "10000"]]


def test_labels_are_asked_for_below_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "write", "Counting", "out=tasks", "format=lm-eval", "grid=4", "count=1"]) == 0
    ((question, answer),) = [row.values() for row in rows("4.jsonl")]
    assert question.endswith("\n")
    assert len(question.split()) == len(answer.split())


@pytest.fixture
def functions() -> Any:
    written(Arithmetic(), "2x2")
    return import_file(Path("tasks/lm_eval_functions.py"))


def test_a_folder_scores_answers_as_numerate_does(functions: Any) -> None:
    answers, predictions = ["12", "7", "100"], [" 12\n", "it is 9", "none"]
    scored = [
        functions.score_number({"answer": answer}, [text]) for answer, text in zip(answers, predictions, strict=True)
    ]
    assert [one["exact_match"] for one in scored] == [1, 0, 0]
    expected = NumberScores.from_texts(predictions, answers).metrics()
    for name in functions.NUMBER_METRICS:
        assert getattr(functions, name)([one[name] for one in scored]) == expected[name], name
    assert functions.mae([("none", "3")]) != functions.mae([("none", "3")]), "not a number"


def test_a_folder_works_without_numerate(functions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "find_spec", lambda name: None)
    assert functions.score_number({"answer": "12"}, ["12"]) == {"exact_match": 1}
    text = Path("tasks/lm_eval_functions.py").read_text(encoding="utf-8")
    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert all(line.split()[1].partition(".")[0] in sys.stdlib_module_names for line in imports)


def test_parts_of_the_same_name_are_tasks_of_their_own() -> None:
    for name in ("test-1", "test_1"):
        Path(f"{name}.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    Path("train.jsonl").write_text("".join(f'{{"question": "{i}+1", "answer": "{i + 1}"}}\n' for i in range(30)))
    settings = "train_file=train.jsonl test_files=[test-1.jsonl,test_1.jsonl] validation_fraction=0.1"
    assert main(f"data write QuestionFiles {settings} out=tasks format=lm-eval grid=1:2".split()) == 0
    assert read("group.yaml")["task"] == ["numerate_questionfiles_test_1", "numerate_questionfiles_test_1_2"]


def test_too_many_cells_and_options_of_other_formats_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"grid: 1,600 cells would be as many tasks; must be at most 400"):
        written(Arithmetic(), "1:40x1:40")
    assert main(["data", "write", "Arithmetic", "out=rows", "grid=1x1"]) == 2
    assert "grid: is of format=lm-eval" in capsys.readouterr().err
    assert not [*Path().iterdir()]
