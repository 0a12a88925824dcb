"""Promises of `numerate data`."""

import json
from pathlib import Path
from typing import Any

import pytest

from numerate import catalogue
from numerate.cli import main

OF_FILES = ("RJokes", "LanguageModeling", "Mathematics", "QuestionFiles", "MultiRC", "GSM8K", "ExampleFile")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "_user_classes", {})
    (tmp_path / "rows.txt").write_text("321+654=975\n21+9=12\n9+1=01\n9+1=01\n")
    return tmp_path


def rows_of(folder: str) -> list[str]:
    return Path(folder, "rows.txt").read_text(encoding="utf-8").splitlines()


def head_of(folder: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(Path(folder, "head.json").read_text(encoding="utf-8"))
    return head


def refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 2


def test_a_task_is_written_with_its_settings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "Arithmetic digits=2 tokenizer.number_format.digit_order=normal count=1k out=sums seed=4 split=validation"
    assert main(["data", "write", *words.split()]) == 0
    rows, head = rows_of("sums"), head_of("sums")
    assert (len(rows), head["seed"], head["split"]) == (1000, 4, "validation")
    first, second = rows[0].split("=")[0].split("+")
    assert rows[0] == f"{first}+{second}={int(first) + int(second)}"
    assert "1,000 rows" in capsys.readouterr().out


def test_a_recipe_is_written_as_its_run_reads_it(here: Path) -> None:
    words = "addition_abacus seed=5 task.digits=2 tokenizer.add_bos_token=true count=10 out=x"
    assert main(["data", "write", *words.split()]) == 0
    head = head_of("x")
    assert (head["task"]["digits"], head["tokenizer"]["add_bos_token"], head["seed"]) == (2, True, 5)


def test_every_task_can_be_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in catalogue.parts_by_kind()["Task"]:
        if name not in OF_FILES:
            assert main(["data", "write", name, "count=50", f"out={name}"]) == 0, capsys.readouterr().err
            assert len(rows_of(name)) == head_of(name)["rows"] == 50


def test_a_task_that_lists_its_questions_is_written_as_a_whole(here: Path) -> None:
    assert main(["data", "write", "BitwiseOr", "digits=1:5", "out=all"]) == 0
    assert len(set(rows_of("all"))) == len(rows_of("all")) == 55
    assert main(["data", "write", "BitwiseOr", "digits=1:5", "max_examples=10", "out=some"]) == 0
    assert len(rows_of("some")) == 10


def test_the_few_rows_of_a_labelled_task_are_written_once_unless_count_draws_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "write", "Counting", "start_number=before", "held_out_starts=6"]
    for split, count in {"train": 3425, "test": 200, "validation": 100}.items():
        assert main([*words, f"split={split}", f"out={split}"]) == 0
        assert f"every row of split {split} once (count= draws them)" in capsys.readouterr().out
        assert len(set(rows_of(split))) == len(rows_of(split)) == count
    assert main([*words, "count=4000", "out=drawn"]) == 0
    assert len(rows_of("drawn")) == 4000
    assert set(rows_of("drawn")) < set(rows_of("train"))
    assert [head_of(name)["each_once"] for name in ("train", "drawn")] == [1, 0]


@pytest.mark.parametrize(
    "task",
    [
        ["Counting", "start_number=before", "prefix=<bos>", "helper=pad"],
        ["SelectiveCounting", "num_symbols=4", "max_count=null", "modulus=4"],
        ["counting_samesymbol_plain3_addbigram_nullseq"],
        ["RaspCounting", "tokenizer.add_bos_token=true"],
    ],
)
def test_rows_with_labels_are_read_as_they_were_written(task: list[str], here: Path) -> None:
    assert main(["data", "write", *task, "count=70", "out=one"]) == 0
    again = [word for word in task if word.startswith("tokenizer")]
    assert main(["data", "write", "one", "out=again", *again]) == 0
    assert rows_of("one") == rows_of("again")
    assert head_of("one")["vocabulary"] == head_of("again")["vocabulary"]


def test_a_task_over_files_is_written_with_the_files_that_its_settings_name(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(here / "none"))
    texts = Path(__file__).parents[1] / "text" / "texts"
    mine = ["QuestionFiles", f"task.train_file={texts / 'questions.jsonl'}"]
    assert main(["data", "write", *mine, "out=q"]) == 0, capsys.readouterr().err
    assert len(rows_of("q")) > 0
    words = ["gsm8k", f"data_dir={texts}", "tokenizer.number_format.digit_order=normal", "out=g"]
    refused(["write", *words], "contains a line break, so rows are no lines of text; --as published writes", capsys)


def test_files_are_written_in_another_number_format(here: Path) -> None:
    assert main(["data", "write", "rows.txt", "tokenizer.number_format.digit_order=normal", "out=x"]) == 0
    assert (here / "x" / "rows.txt").read_text() == "123+456=579\n12+9=21\n9+1=10\n9+1=10\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "data: the command is missing; there are: write, fetch, tokenise, prepare."),
        ("wirte Arithmetic", "data: there is no command 'wirte'; there are: write, fetch, tokenise, prepare."),
        ("write Arithmetic", "out: the value is missing; for example: numerate data write Arithmetic out=sums"),
        ("write Arithmetic out=x count=many", "count: must be an integer, not 'many'"),
        ("write Arithmetic out=x count=0", "count: must be 1 or more, not 0; for example count=20M"),
        ("write Arithmetic out=x split=tset", "Did you mean 'test'?"),
        ("write Arithmetic out=. ", "out: . already exists; out= must be new"),
        ("write Aritmetic out=x", "no task, recipe, file or folder is named 'Aritmetic'"),
        ("write", "the task or recipe or file is missing; for example: numerate data write Arithmetic"),
        ("write nothing.txt out=x", "nothing.txt: does not exist"),
        ("write Arithmetic digitz=3 out=x", "Did you mean"),
        ("write rows.txt seed=3 out=x", "seed: the rows of a file are read in order"),
        ("write rows.txt split=train out=x", "split: rows.txt has no splits"),
    ],
)
def test_errors_are_one_line(words: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(words.split(), message, capsys)
    assert sorted(path.name for path in here.iterdir()) == ["rows.txt"]
