"""Promises of writing rows to a folder, and of reading them there."""

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.config import Span, from_tree
from numerate.errors import OperationalError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.tasks.task import Task
from numerate.text.data.source import RowSource
from numerate.text.data.writing import write_rows
from numerate.text.tasks.example_file import ExampleFile
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words

TASK = Arithmetic(digits=Span(1, 4))


def source(task: Task = TASK, count: int = 500, tokenizer: Characters | None = None, **more: Any) -> RowSource:
    return RowSource("name", task, tokenizer or Characters(), count, **more)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are put together from many blocks."""
    monkeypatch.setattr(RowSource.read_blocks, "__defaults__", (64,))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "tokenizer", [Characters(), Characters(add_bos_token=True, number_format=Digits(digit_order="normal"))]
)
def test_what_is_written_is_what_a_run_sees(split: str, tokenizer: Characters, tmp_path: Path) -> None:
    write_rows(source(tokenizer=tokenizer, split=split, seed=3), tmp_path / "rows")
    vocabulary = tokenizer.build_vocabulary(TASK)
    seen = tokenizer.encode_examples(TASK.examples(split, 3, 0, 500), vocabulary)
    lines = (tmp_path / "rows" / "rows.txt").read_text().splitlines()
    assert len(lines) == 500
    for row in range(500):
        assert lines[row] == tokenizer.decode(seen.ids[row, : seen.lengths[row]], vocabulary)
    head = json.loads((tmp_path / "rows" / "head.json").read_text())
    assert tuple(head["vocabulary"]) == vocabulary.tokens
    assert (head["rows"], head["tokens"], head["longest"]) == (500, seen.lengths.sum(), seen.lengths.max())


def test_the_head_says_what_was_written(tmp_path: Path) -> None:
    on_progress: list[int] = []
    write_rows(source(split="validation", seed=7), tmp_path / "rows", on_progress.append)
    assert on_progress == [*range(64, 500, 64), 500]
    head = json.loads((tmp_path / "rows" / "head.json").read_text())
    assert (head["split"], head["seed"], head["source"]) == ("validation", 7, "name")
    assert from_tree(head["task"], expected_class=Arithmetic) == TASK
    assert from_tree(head["tokenizer"], expected_class=Characters) == Characters()
    content = (tmp_path / "rows" / "rows.txt").read_bytes()
    assert head["files"] == {"rows.txt": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    assert {path.name for path in (tmp_path / "rows").iterdir()} == {"rows.txt", "head.json"}
    assert head["versions"]["numpy"] == np.__version__


def test_words_are_written_with_spaces_between_them_and_labels_beside_their_rows(tmp_path: Path) -> None:
    task = Counting(count=3, start_number="before", helper="pad")
    folder = write_rows(RowSource("name", task, Words(), 20), tmp_path / "rows")
    for line in (folder / "rows.txt").read_text().splitlines():
        read, labels = line.split("\t")
        start = int(read.split()[0])
        assert read == f"{start} <pad>" + " a <pad>" * 3
        assert labels == " ".join(f". {start + n}" for n in range(4))


def test_what_was_written_can_be_read_as_a_task_and_written_again(tmp_path: Path) -> None:
    write_rows(source(), tmp_path / "rows")
    lines = (tmp_path / "rows" / "rows.txt").read_bytes()
    for number, place in enumerate((tmp_path / "rows", tmp_path / "rows" / "rows.txt")):
        again = RowSource.from_file(place, ExampleFile(path=str(place)))
        write_rows(again, tmp_path / str(number))
        assert (tmp_path / str(number) / "rows.txt").read_bytes() == lines
        assert json.loads((tmp_path / str(number) / "head.json").read_text())["split"] is None
    first = RowSource.from_file(tmp_path / "rows", ExampleFile(path=str(tmp_path / "rows")), count=7)
    write_rows(first, tmp_path / "seven")
    assert (tmp_path / "seven" / "rows.txt").read_bytes() == b"\n".join(lines.split(b"\n")[:7]) + b"\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_nothing_half_written_is_left(error: BaseException, tmp_path: Path) -> None:
    def on_progress(done: int) -> None:
        assert not (tmp_path / "rows").exists(), "it has no name before it is whole"
        if done > 200:
            raise error

    with pytest.raises((KeyboardInterrupt, OperationalError)):
        write_rows(source(), tmp_path / "rows", on_progress=on_progress)
    assert list(tmp_path.iterdir()) == []
