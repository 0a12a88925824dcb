"""Promises of `numerate bench v1`: the test sets, the results of runs and of Hugging Face models, and their files."""

import json
import re
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hugging_face import QUIET, save_model
from numerate.api import load, train
from numerate.bench.results import BenchResult
from numerate.bench.test_sets import NUM_EXAMPLES, V1, TestSet, select
from numerate.cli import main
from small_runs import small

TOOLS = Path(__file__).parents[1] / "tools"
PACKAGED = [test_set for test_set in V1 if not test_set.word_problems]

pytestmark = QUIET


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, with one of sums of up to 3 digits, and a Hugging Face model."""
    folder = tmp_path_factory.mktemp("bench")
    train(small("training.steps=2 name=adder"), runs_dir=folder / "runs")
    save_model(folder / "tiny")
    return folder


@pytest.fixture
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(words: str) -> int:
    return main(["bench", "v1", *words.split()])


def test_the_tool_makes_the_packaged_sets_again(tmp_path: Path) -> None:
    sys.path.insert(0, str(TOOLS))
    try:
        import bench_v1
    finally:
        sys.path.remove(str(TOOLS))
    bench_v1.main(tmp_path)
    assert {file.stem: file.read_bytes() for file in tmp_path.iterdir()} == {one.name: one.content for one in PACKAGED}


def test_there_are_twelve_sets_of_questions_that_differ_from_each_other_and_from_the_examples() -> None:
    assert len(V1) == 12
    for test_set in PACKAGED:
        texts = [line["question"] for line in (*test_set.examples, *test_set.questions)]
        assert len(texts) == len({*texts})
        assert len(test_set.examples) == NUM_EXAMPLES
        assert 90 <= test_set.num_questions <= 200


@pytest.mark.parametrize("test_set", PACKAGED, ids=lambda one: one.name)
def test_the_answers_are_right(test_set: TestSet) -> None:
    for line in (*test_set.examples, *test_set.questions):
        assert answer(test_set.name, line["question"]) == line["answer"], line


def answer(name: str, question: str) -> str:
    """The answer, computed from the words of the question."""
    numbers = [int(text) for text in re.findall(r"\d+", question)]
    match name:
        case "addition" | "addition-strata":
            return str(numbers[0] + numbers[1])
        case "subtraction":
            return str(numbers[0] - numbers[1])
        case "multiplication":
            return str(numbers[0] * numbers[1])
        case "division":
            return str(numbers[0] // numbers[1]) if numbers[0] % numbers[1] == 0 else "no quotient"
        case "comparison":
            decimals = re.findall(r"\d+\.\d+", question)
            return str(max(decimals, key=Fraction))
        case "sorting":
            pairs = re.findall(r"(\w):(\d+)", question)
            return ",".join(label for label, _ in sorted(pairs, key=lambda pair: int(pair[1])))
        case "counting":
            wanted, row = re.findall(r"letter (\w) in this row\? (.*)", question)[0]
            return str(row.split().count(wanted))
        case _:
            steps, modulus = re.findall(r"step: (.*)\. What is .* modulo (\d+)", question)[0]
            return str(len(steps.split()) % int(modulus))


def test_a_run_is_asked_what_its_task_can_read_as_it_was_trained(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("adder cells=true out=adder.json") == 0
    output = capsys.readouterr().out
    assert re.search(r"addition-strata +[\d.]+ \[", output)
    assert re.search(r"addition +20 digits +0 of 15", output)
    assert "Not all questions of all 12 sets were asked of adder." in output
    result = BenchResult.from_json("adder.json")
    assert [*result.sets] == ["addition", "addition-strata"]
    assert not result.complete
    line = select(["addition"])[0].questions[20]
    assert result.sets["addition"].predictions[20] == load("adder").ask(line["plain"]).prediction


def test_a_hugging_face_model_is_asked_in_words_and_its_answers_are_kept(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "hf:tiny sets=addition,comparison count=4 evaluation.generation.max_new_tokens=4"
    assert bench(f"{words} out=tiny.json") == 0
    result = BenchResult.from_json("tiny.json")
    assert {name: one.questions for name, one in result.sets.items()} == {"addition": 4, "comparison": 4}
    assert result.settings == ["evaluation.generation.max_new_tokens=4"]
    assert result.model["weights"] == "tiny"
    kept = {path: path.read_bytes() for path in place.glob("runs/hf-tiny/*/predictions.jsonl")}
    assert len(kept) == 2
    assert bench(f"{words} out=again.json") == 0
    assert (place / "again.json").read_bytes() == (place / "tiny.json").read_bytes()
    assert {path: path.read_bytes() for path in kept} == kept


def test_files_of_results_are_one_table_with_the_mean_of_complete_ones(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(test_set: TestSet) -> dict[str, Any]:
        count = test_set.num_questions
        return {
            "sha256": test_set.sha256,
            "cells": {"all": [count // 2, count]},
            "predictions": ["1"] * count,
            "ended": 1,
        }

    content = {"benchmark": "numerate bench v1", "model": {"name": "half"}, "settings": []}
    Path("half.json").write_text(json.dumps({**content, "sets": {one.name: line(one) for one in V1}}))
    assert bench("adder out=adder.json") == bench("half.json adder.json") == 0
    output = capsys.readouterr().out
    assert re.search(r"correct, % \[95 % interval\] +half +adder", output)
    assert re.search(r"^mean +49\.\d \[47\.\d, 52\.\d\]", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("nowhere", "no run"),
        ("nowhere.json", "nowhere.json: does not exist"),
        ("broken.json", "is no file of results"),
        ("other.json", "has results of other test sets"),
        ("adder sets=adition", "Did you mean 'addition'?"),
        ("adder sets=gsm8k", "Arithmetic can read no question of these sets"),
        ("adder count=3", "count=3: is for hf: models"),
        ("adder half.json out=both.json", "out: is the file of one model"),
        ("hf:tiny sets=gsm8k data_dir=.", "gsm8k"),
    ],
)
def test_wrong_input_is_refused(place: Path, words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.json").write_text('{"benchmark": "numerate bench v1"}')
    other = {"sha256": "0" * 64, "cells": {}, "predictions": [], "ended": 1}
    content = {"benchmark": "numerate bench v1", "model": {"name": "x"}, "settings": [], "sets": {"addition": other}}
    Path("other.json").write_text(json.dumps(content))
    assert bench(words) == 2
    assert error in " ".join(capsys.readouterr().err.split())


def test_word_problems_of_other_files_are_not_those_of_the_benchmark(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file in (("train", "train"), ("test", "test")):
        rows = [{"question": f"{name} {i}?", "answer": f"#### {i}"} for i in range(20)]
        Path(f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("svamp", "gsm_hard"):
        Path(name).mkdir()
    Path("svamp/SVAMP.json").write_text(json.dumps([{"Body": "a", "Question": "b?", "Answer": 1.0}]))
    Path("gsm_hard/gsmhardv2.jsonl").write_text(json.dumps({"input": "a?", "target": 1.0}) + "\n")
    assert bench("hf:tiny sets=gsm8k data_dir=.") == 1
    assert "the files of its dataset are others" in " ".join(capsys.readouterr().err.split())
