"""Promises of what is known of the files that a task reads: a change of their contents is noticed, nothing else is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from numerate.config.path_names import shortest_unique_names
from numerate.errors import UserError
from numerate.tasks import GSM8K, Mathematics, Mixture, MultiRC, QuestionFiles, RJokes, contents
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.contents import file_sha256
from numerate.tasks.task import Task
from numerate.text.data.source import RowSource
from numerate.text.data.writing import write_rows
from numerate.text.tasks.example_file import ExampleFile
from numerate.tokenizers.tokenizer import Characters

TEXTS = Path(__file__).parents[1] / "text" / "texts"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(TEXTS, tmp_path / "texts"))


def rows(folder: Path, name: str = "sums.txt") -> str:
    (folder / name).write_text("12+9=21\n3+4=7\n1+1=2\n")
    return str(folder / name)


KINDS: dict[str, tuple[Callable[[Path], Task], str]] = {
    "RJokes": (lambda at: RJokes(data_dir=str(at)), "rjokes/train.tsv"),
    "Mathematics": (
        lambda at: Mathematics(("arithmetic__mul",), ("arithmetic__mul_big",), ("easy",), data_dir=str(at)),
        "mathematics_dataset/extrapolate/arithmetic__mul_big.txt",
    ),
    "QuestionFiles": (lambda at: QuestionFiles(train_file=str(at / "questions.jsonl")), "questions.jsonl"),
    "MultiRC": (lambda at: MultiRC(data_dir=str(at)), "multirc/val.jsonl"),
    "GSM8K": (lambda at: GSM8K(data_dir=str(at)), "gsm8k/test.jsonl"),
    "ExampleFile": (lambda at: ExampleFile(path=rows(at)), "sums.txt"),
    "ExampleFile, a folder": (lambda at: ExampleFile(path=str(Path(rows(at, "rjokes/a.txt")).parent)), "rjokes/a.txt"),
    "Mixture": (lambda at: Mixture(tasks=(Arithmetic(), ExampleFile(path=rows(at)))), "sums.txt"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_character_changes_the_contents_of_a_task(texts: Path, kind: str) -> None:
    make, name = KINDS[kind]
    task = make(texts)
    before = task.file_hashes()
    changed = next(one for one in before if name.endswith(one))
    file = texts / name
    assert task.files()[changed] == file
    time = file.stat().st_mtime_ns
    whole = file.read_bytes()
    place = next(place for place, byte in enumerate(whole) if byte in b"123456789")
    file.write_bytes(whole[:place] + bytes([105 - whole[place]]) + whole[place + 1 :])
    os.utime(file, ns=(time, time))
    after = task.file_hashes()
    assert {one for one in before if before[one] != after[one]} == {changed}
    file.write_bytes(whole)
    assert task.file_hashes() == before


def test_where_a_folder_lies_changes_nothing(texts: Path) -> None:
    before = GSM8K(data_dir=str(texts)).file_hashes()
    texts.rename(texts.with_name("elsewhere"))
    assert GSM8K(data_dir=str(texts.with_name("elsewhere"))).file_hashes() == before
    assert set(before) == {"train.jsonl", "test.jsonl"}


def test_a_task_that_draws_reads_no_files() -> None:
    assert Arithmetic().file_hashes() == {}
    assert Mixture(tasks=(Arithmetic(), Arithmetic(operator="-"))).file_hashes() == {}


def test_rows_of_ours_are_known_by_their_files(tmp_path: Path) -> None:
    folder = write_rows(RowSource("Arithmetic", Arithmetic(), Characters(), 50), tmp_path / "rows")
    assert set(ExampleFile(path=str(folder)).file_hashes()) == {"rows.txt"}


def test_names_are_the_shortest_ends_that_tell_files_apart() -> None:
    paths = [Path(f"/x/{name}") for name in ("b/c/a.txt", "d/c/a.txt", "e.txt", "e.txt")]
    assert shortest_unique_names(paths) == {"b/c/a.txt": paths[0], "d/c/a.txt": paths[1], "e.txt": paths[2]}


def test_a_large_file_is_read_once_and_again_when_it_changed(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_CACHED_SIZE", 1000)
    monkeypatch.setattr(contents, "_TIMESTAMP_SAFETY_NS", 0)
    read: list[str] = []
    digest = contents._digest
    monkeypatch.setattr(contents, "_digest", lambda path: [read.append(path), digest(path)][1])
    file = texts / "big.bin"
    file.write_bytes(np.arange(1000).tobytes())
    first = file_sha256(file)
    contents._cached_digest.cache_clear()  # as another process has it
    assert file_sha256(file) == first
    assert read == [str(file)]
    time = file.stat().st_mtime_ns
    file.write_bytes(np.arange(1, 1001).tobytes())
    os.utime(file, ns=(time, time))
    assert file_sha256(file) != first
    for note in (texts.parent / "cache" / "numerate" / "sums").iterdir():
        note.write_text("[1, 2")
    contents._cached_digest.cache_clear()
    assert file_sha256(file) == digest(str(file))


def test_a_file_that_was_just_changed_is_read_again(texts: Path) -> None:
    file = texts / "a.txt"
    sums = set()
    for turn in range(20):  # within one tick of the clock of many file systems
        file.write_text(f"{turn:02}")
        sums.add(file_sha256(file))
    assert len(sums) == 20
    with pytest.raises(UserError, match=r"nowhere\.txt: cannot be read \(No such file"):
        file_sha256(texts / "nowhere.txt")
