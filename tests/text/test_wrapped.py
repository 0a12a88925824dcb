"""Questions with answers from Python are a task of files: split, kept apart and loaded like others."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import numerate
from cases import whole
from numerate.config import from_tree, to_tree
from numerate.errors import UserError
from numerate.text.data import wrapped

PAIRS = [(f"{a}+{b}=", str(a + b)) for a in range(12) for b in range(10)]
ROWS = [{"question": question, "answer": int(answer), "id": 7} for question, answer in PAIRS]


def generated() -> Iterator[tuple[str, str]]:
    yield from PAIRS


def hugging_face() -> Any:
    import datasets

    return datasets.Dataset.from_list(ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PAIRS,
        generated,
        lambda: ROWS,
        hugging_face,
        lambda: DataLoader(PAIRS, batch_size=7, shuffle=True),  # type: ignore[arg-type]
        lambda: {"train": PAIRS},
    ],
    ids=["a list", "a generator", "mappings", "a data set of Hugging Face", "a loader", "splits"],
)
def test_questions_from_python_are_divided_once_and_read_from_files(make: Any, tmp_path: Path) -> None:
    task = numerate.wrap_data(make(), tmp_path / "sums")
    splits = [set(whole(task, split)) for split in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [96, 12, 12]
    assert set.union(*splits) == set(PAIRS)
    assert from_tree(to_tree(task)) == task == numerate.wrap_data(make(), tmp_path / "sums"), "the same script again"
    assert set(task.alphabet()) == set("0123456789+=")


def test_splits_of_ones_own_stay_and_what_is_tested_is_not_trained_on(tmp_path: Path) -> None:
    data = {"train": PAIRS[:100], "test": PAIRS[90:], "validation": PAIRS[60:70]}
    task = numerate.wrap_data(data, tmp_path / "sums")
    assert whole(task, "train") == PAIRS[:60] + PAIRS[70:90]
    assert whole(task, "test") == PAIRS[90:]
    assert "20 of 100 rows of training are left out" in task.data_warnings()[0]


@pytest.mark.parametrize("data", [PAIRS[:-1], [*PAIRS, ("1+1=", "2")], PAIRS[::-1], {"train": PAIRS, "test": PAIRS}])
def test_a_folder_with_other_questions_is_refused_and_stays(data: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^folder: must be a path of a new folder, not empty"):
        numerate.wrap_data(data, "")
    numerate.wrap_data(PAIRS, tmp_path / "sums")
    before = (tmp_path / "sums" / "train.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"\.jsonl has other questions than the data, and is not overwritten"):
        numerate.wrap_data(data, tmp_path / "sums")
    assert (tmp_path / "sums" / "train.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([("1+1=", "2"), ("1+2=",)], "data: item 2 of train must be a pair of question and answer, or a mapping"),
        ([{"q": "1+1=", "a": "2"}], "data: item 1 of train has no 'question', it has: q, a; name its keys: question="),
        ([("1+1=", None)], "data: item 1 of train must have texts or numbers, not NoneType"),
        ([("1+1=", float("nan"))], "data: item 1 of train has nan in place of a text or number"),
        ([("1+1=", " ")], "data: item 1 of train has an empty answer"),
        ({"training": PAIRS}, "data: must be one of train, validation, test, not 'training'. Did you mean 'train'?"),
        ({"test": PAIRS}, "data: must have a split train"),
        ("1+1=2", "data: must be questions with answers, such as a list of pairs, not str"),
        (
            ((f"{i}+1=", str(i + 1)) for i in count()),
            "data: train has more than 1,000 questions; of a generator that does not",
        ),
    ],
)
def test_what_is_no_question_with_an_answer_is_refused_and_nothing_is_left(
    data: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapped, "MAX_QUESTIONS", 1000)
    with pytest.raises(UserError) as refused:
        numerate.wrap_data(data, tmp_path / "sums")
    assert str(refused.value).startswith(message)
    assert not list(tmp_path.iterdir())


def test_two_answers_to_one_question_are_warned_of(tmp_path: Path) -> None:
    message = r"^data: items 1 and 121 of train have different answers to '0\+0=': '0' and '1'; no model can be"
    with pytest.warns(UserWarning, match=message):
        numerate.wrap_data([*PAIRS, ("0+0=", "1")], tmp_path / "sums")


def test_other_keys_are_named(tmp_path: Path) -> None:
    data = [{"q": question, "a": answer} for question, answer in PAIRS]
    task = numerate.wrap_data(data, tmp_path / "sums", question="q", answer="a")
    assert task == numerate.wrap_data(PAIRS, tmp_path / "sums")
