"""Promises of the published system's files: its names and formats, the same at a second time, and read again."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cases import whole
from numerate.cli import main
from numerate.errors import UserError
from numerate.published import number_loss_files as published_texts
from numerate.tasks import GSM8K, Mathematics, MultiRC, RJokes
from numerate.tasks.multiplication import Multiplication
from numerate.text.data.new_folder import write_lines

TEXTS = Path(__file__).parents[1] / "text" / "texts"

MATHEMATICS = Mathematics(
    ("arithmetic__mul",), ("arithmetic__mul_big",), ("easy",), data_dir=str(TEXTS), validation_fraction=0.1
)


WRITTEN: list[tuple[Any, str, list[str]]] = [
    (MATHEMATICS, "mathematics_dataset-v1.0", ["test_extrapolate.txt", "test_interpolate.txt", "train.txt", "val.txt"]),
    (
        GSM8K(data_dir=str(TEXTS)),
        "grade_school_math/data/preprocessed",
        ["test_clean.jsonl", "train_t_clean.jsonl", "val_t_clean.jsonl"],
    ),
    (
        MultiRC(data_dir=str(TEXTS), validation_fraction=0.0),
        "multirc/data/preprocessed",
        ["test_clean.jsonl", "train_clean.jsonl", "val_clean.jsonl"],
    ),
    (RJokes(data_dir=str(TEXTS)), "rjokes-dataset/data", ["dev.jsonl", "test.jsonl", "train.jsonl"]),
]


@pytest.mark.parametrize(("task", "folder", "names"), WRITTEN, ids=lambda one: type(one).__name__)
def test_files_are_written_with_their_names_read_again_and_the_same_at_a_second_time(
    task: Any, folder: str, names: list[str], tmp_path: Path
) -> None:
    written = write_lines(published_texts.published_files(task), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out" / folder).iterdir()) == names
    assert all(written.values())
    contents = {name: (tmp_path / "out" / folder / name).read_bytes() for name in names}
    for place in (tmp_path / "out", tmp_path / "out" / folder):
        again = replace(task, data_dir=str(place))
        for split in ("train", "validation", "test"):
            assert sorted(whole(again, split)) == sorted(whole(task, split))
    if isinstance(task, Mathematics):
        assert sorted(whole(replace(again, module=2), "test")) == sorted(whole(replace(task, module=2), "test"))
        assert [again.cell_name("module", n) for n in (1, 2)] == ["interpolate", "extrapolate"]
    write_lines(published_texts.published_files(task), tmp_path / "second")
    with pytest.raises(UserError, match=r"^out: .* already exists and is not overwritten"):
        write_lines(published_texts.published_files(task), tmp_path / "out")
    for place in ("out", "second"):
        assert {name: (tmp_path / place / folder / name).read_bytes() for name in names} == contents


def test_another_seed_divides_otherwise(tmp_path: Path) -> None:
    found = [published_texts.published_files(MATHEMATICS, seed)["mathematics_dataset-v1.0/val.txt"] for seed in (0, 1)]
    assert [*found[0]()] != [*found[1]()]


def test_lines_are_those_of_the_published_programs() -> None:
    (lines,) = published_texts.published_files(MATHEMATICS)["mathematics_dataset-v1.0/test_extrapolate.txt"]()
    assert lines[0].decode().split("\n")[0].startswith("What is ")
    assert lines[0].count(b"\n") == 2
    (jokes,) = published_texts.published_files(RJokes(data_dir=str(TEXTS)))["rjokes-dataset/data/dev.jsonl"]()
    assert json.loads(jokes[0]) == {"question": "Why did number 40 cross the road? It was odd.", "answer": "0"}


def test_products_have_their_published_sizes() -> None:
    found = published_texts.published_files(Multiplication())
    assert [name.rpartition("/")[2] for name in found] == ["train.jsonl", "val.jsonl", "test.jsonl"]
    rows = {
        name.rpartition("/")[2]: {line for block in lines() for line in block}
        for name, lines in found.items()
        if "train" not in name
    }
    assert {name: len(lines) for name, lines in rows.items()} == {"val.jsonl": 10_000, "test.jsonl": 20_000}
    assert not rows["val.jsonl"] & rows["test.jsonl"]
    row = json.loads(next(iter(rows["test.jsonl"])))
    first, second = map(int, row["question"].removeprefix("What is ").removesuffix("?").split(" times "))
    assert first * second == int(row["answer"])
    assert published_texts.num_questions(Multiplication()) == 810_000


def test_the_command_writes_them_and_says_the_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMERATE_DATA", str(TEXTS))
    assert main(["data", "write", "gsm8k", "--as", "published", "out=ready"]) == 0
    output = capsys.readouterr().out
    assert "ready/grade_school_math/data/preprocessed/train_t_clean.jsonl  17 questions" in output
    assert "read: train 17, validation 3, test gsm8k 6" in output
    assert main(["data", "write", "gsm8k", "--as", "published", "out=ready"]) == 2
    assert main(["data", "write", "svamp", "--as", "published", "out=x"]) == 2
    assert main(["sample", "gsm8k", "count=1", "split=test"]) == 0
    assert "    #### " in capsys.readouterr().out


def test_broken_lines_are_skipped_where_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (TEXTS / "questions.jsonl").read_text().splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:3], "{broken", *lines[3:]]))
    words = ["sample", "QuestionFiles", f"train_file={tmp_path}/a.jsonl", "count=1"]
    assert main(words) == 2
    assert "a.jsonl, line 4: is not valid JSON" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*words, "--skip-bad"]) == 0
    assert "warning: 1 record skipped as invalid; the first: " in capsys.readouterr().err


def test_names_without_published_files_are_refused() -> None:
    with pytest.raises(UserError, match="'svamp' has no published files; there are: mathematics"):
        published_texts.published_task("svamp")
