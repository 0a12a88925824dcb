"""Promises of writing rows to a folder, and of reading them there."""

import errno
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.config import Span, from_tree
from numerate.errors import OperationalError, UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.tasks.task import Task
from numerate.text.data import open_rows
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
    found = open_rows(tmp_path / "rows")
    assert len(found) == 500
    lines = (tmp_path / "rows" / "rows.txt").read_text().splitlines()
    assert len(lines) == 500
    for row in range(500):
        ids = seen.ids[row, : seen.lengths[row]]
        assert np.array_equal(found[row], ids)
        assert np.array_equal(found.answer(row), seen.ids[row][seen.target_mask[row]])
        assert lines[row] == found.text(row) == tokenizer.decode(ids, vocabulary)
    assert found.symbols == vocabulary.tokens
    assert np.array_equal(found[-1], found[499])


def test_the_files_are_plain_arrays_and_the_head_says_which(tmp_path: Path) -> None:
    write_rows(source(split="validation", seed=7), tmp_path / "rows")
    head = json.loads((tmp_path / "rows" / "head.json").read_text())
    ids = np.fromfile(tmp_path / "rows" / "ids.bin", dtype=head["ids"])
    offsets = np.fromfile(tmp_path / "rows" / "offsets.bin", dtype="<i8")
    assert (head["ids"], offsets[0], offsets[-1], head["rows"], head["tokens"]) == ("uint8", 0, len(ids), 500, len(ids))
    assert head["longest"] == np.diff(offsets).max()
    assert (head["split"], head["seed"], head["source"]) == ("validation", 7, "name")
    assert from_tree(head["task"], expected_class=Arithmetic) == TASK
    assert from_tree(head["tokenizer"], expected_class=Characters) == Characters()
    for name, info in head["files"].items():
        content = (tmp_path / "rows" / name).read_bytes()
        assert info == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert set(head["files"]) == {path.name for path in (tmp_path / "rows").iterdir()} - {"head.json"}
    assert head["versions"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("format", "files"), [("text", {"rows.txt"}), ("memmap", {"ids.bin", "offsets.bin", "answers.bin"})]
)
def test_a_format_is_what_is_written(format: Any, files: set[str], tmp_path: Path) -> None:
    on_progress: list[int] = []
    folder = write_rows(source(), tmp_path / "deep" / "rows", format, on_progress.append)
    assert {path.name for path in folder.iterdir()} == files | {"head.json"}
    assert on_progress == [*range(64, 500, 64), 500]
    if format == "text":
        with pytest.raises(UserError, match="was written as text only; format=memmap"):
            open_rows(folder)


def test_words_are_written_with_spaces_between_them_and_labels_beside_their_rows(tmp_path: Path) -> None:
    task = Counting(count=3, start_number="before", helper="pad")
    folder = write_rows(RowSource("name", task, Words(), 20), tmp_path / "rows")
    found, lines = open_rows(folder), (folder / "rows.txt").read_text().splitlines()
    for row, line in enumerate(lines):
        read, labels = line.split("\t")
        start = int(read.split()[0])
        assert found.text(row) == read == f"{start} <pad>" + " a <pad>" * 3
        assert labels == " ".join(f". {start + n}" for n in range(4))
        known = [found.symbols[i] for i in found.labels(row).tolist()]
        assert [symbol for symbol in known if symbol.isdigit()] == [str(start + n) for n in range(4)]
    with pytest.raises(UserError, match="have a label per token"):
        found.answer(0)


def test_the_example_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "data.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    write_rows(source(), tmp_path / "sums")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.startswith("500 Arithmetic\n[")


def test_what_was_written_can_be_read_as_a_task_and_written_again(tmp_path: Path) -> None:
    write_rows(source(), tmp_path / "rows")
    write_rows(source(), tmp_path / "tokens", "memmap")
    lines = (tmp_path / "rows" / "rows.txt").read_bytes()
    for number, place in enumerate((tmp_path / "rows", tmp_path / "rows" / "rows.txt", tmp_path / "tokens")):
        again = RowSource.from_file(place, ExampleFile(path=str(place)))
        write_rows(again, tmp_path / str(number))
        assert (tmp_path / str(number) / "rows.txt").read_bytes() == lines
        assert open_rows(tmp_path / str(number)).metadata["split"] is None
    first = RowSource.from_file(tmp_path / "tokens", ExampleFile(path=str(tmp_path / "tokens")), count=7)
    write_rows(first, tmp_path / "seven", "text")
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


def test_rows_beyond_the_last_are_refused(tmp_path: Path) -> None:
    found = open_rows(write_rows(source(count=3), tmp_path / "rows"))
    assert [len(row) for row in found] == np.diff(found.offsets).tolist()  # type: ignore[attr-defined]
    for row in (3, -4):
        with pytest.raises(IndexError, match=f"row {row} of 3"):
            found[row]


def test_impossible_sources_and_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split: must be set unless the task is a file"):
        source(split=None)
    with pytest.raises(UserError, match=r"format: must be one of text, memmap, both, not 'txt'"):
        write_rows(source(), tmp_path / "rows", "txt")  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from numerate.text.data.source import RowSource\n"
        "from numerate.text.data.writing import write_rows\n"
        "from numerate.tasks.arithmetic import Arithmetic\n"
        "from numerate.tokenizers.tokenizer import Characters\n"
        "found = []\n"
        "for number, count in enumerate((70_000, 280_000)):\n"
        "    write_rows(RowSource('x', Arithmetic(), Characters(), count), sys.argv[1] + str(number), 'memmap')\n"
        "    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        "assert found[1] < found[0] + 4096, found\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
