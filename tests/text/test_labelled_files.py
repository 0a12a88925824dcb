"""Promises of rows with a label per word that are read from files."""

from pathlib import Path

import numpy as np
import pytest

from cases import pairs
from numerate.errors import UserError
from numerate.tasks.counting import Counting
from numerate.tasks.questions import EMPTY
from numerate.text.data.source import RowSource
from numerate.text.data.writing import write_rows
from numerate.text.tasks import columns
from numerate.text.tasks.example_file import ExampleFile
from numerate.tokenizers.words import Words


def written(folder: Path) -> ExampleFile:
    source = RowSource("Counting", Counting(start_number="before", prefix="<bos>"), Words(), 60)
    return ExampleFile(path=str(write_rows(source, folder / "rows")))


def test_a_folder_gives_the_questions_and_the_alphabet_of_its_task(tmp_path: Path) -> None:
    task, own = written(tmp_path), Counting(start_number="before", prefix="<bos>")
    wanted, found = own.examples("train", 0, 0, 60), task.questions(np.arange(60))
    assert task.alphabet() == own.alphabet()
    assert pairs(found) == pairs(wanted)
    assert found.metadata["question_length"].tolist() == (wanted.metadata["count"] + 2).tolist()
    assert task.axes() == ("question_length",)
    only = ExampleFile(path=task.path, question_length=int(found.metadata["question_length"][0]))
    assert only.num_questions() == (found.metadata["question_length"] == found.metadata["question_length"][0]).sum()


@pytest.mark.parametrize("max_in_memory", [0, 1 << 23])
def test_a_file_of_words_tells_its_words(tmp_path: Path, max_in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", max_in_memory)
    monkeypatch.setenv("NUMERATE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rows.txt"
    path.write_text("65 b a\t. 66 67\n9 a\t. 10\n")
    task = ExampleFile(path=str(path))
    assert task.alphabet() == ("9", "10", "65", "66", "67", "b", "a")
    found = task.questions(np.array([1, 0]))
    assert pairs(found) == [("9 a", ". 10"), ("65 b a", ". 66 67")]
    assert found.labels is not None
    assert found.labels[0].tolist() == [EMPTY, 1, EMPTY]
    path.write_text("ab\t.1\n")
    assert pairs(ExampleFile(path=str(path)).questions(np.array([0]))) == [("a b", ". 1")]
    assert len([*tmp_path.glob("cache/labels/[!.]*")]) == (0 if max_in_memory else 2)


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    folder = Path(str(written(tmp_path).path))
    with pytest.raises(UserError, match=r"^digit_order: must be auto for rows with a label per word"):
        ExampleFile(path=str(folder), digit_order="reversed").alphabet()
    with pytest.raises(UserError, match=r"^question: "):
        ExampleFile(path=str(folder)).parse_question("1+1=")
    with pytest.raises(UserError, match=r"^split: "):
        ExampleFile(path=str(folder), split="train").alphabet()
