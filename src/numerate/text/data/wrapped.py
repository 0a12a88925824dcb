"""Questions with answers from Python as a task: a list, a generator, a data set of Hugging Face, a `DataLoader`."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from numerate.errors import UserError, check_choice
from numerate.text.data.new_folder import write_lines
from numerate.text.tasks.question_files import QuestionFiles
from numerate.text.tasks.readers import check_pair

MAX_QUESTIONS = 10_000_000
"""More of a split mean a generator that does not end."""

MAX_COMPARED = 1_000_000

SPLITS = ("train", "validation", "test")


def wrap_data(
    data: Iterable[Any] | Mapping[str, Iterable[Any]],
    folder: str | Path,
    *,
    question: str = "question",
    answer: str = "answer",
) -> QuestionFiles:
    """Makes a task of questions with answers, which are written to a new folder as JSON lines.

        task = numerate.wrap_data([("1+1=", "2"), ("1+2=", "3"), ...], "sums")
        task = numerate.wrap_data(datasets.load_dataset("gsm8k", "main")["train"], "gsm8k")
        task = numerate.wrap_data({"train": module.train_dataloader(), "test": module.test_dataloader()}, "mine")

    Each item is a pair of texts, or a mapping with the keys `question` and `answer`; of a `DataLoader` those of its
    data set. `data` may be one split or, by name, `train`, `validation` and `test`; those that are not given are shares
    of training (`QuestionFiles`). Later, and in another process, the recipe reads the files, without this code. A
    folder that has the same questions already is used as it is.

    Raises `UserError` for a folder with other questions, an item that is neither, an empty question or answer, an
    unknown split, and more than 10,000,000 questions.
    """
    splits: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {"train": data}
    for split in splits:
        check_choice("data", split, SPLITS)
    if "train" not in splits:
        raise UserError("data: must have a split train")
    if not str(folder):
        raise UserError("folder: must be a path of a new folder, not empty")
    out = Path(folder)
    lines = {f"{split}.jsonl": partial(_lines, split, splits[split], question, answer) for split in splits}
    if out.exists():
        for name in sorted({*lines, *(path.name for path in out.glob("*.jsonl"))}):
            _check_same_lines(out / name, lines[name]() if name in lines else ())
    else:
        try:
            write_lines({name: partial(_one_by_one, read) for name, read in lines.items()}, out)
        except UserError:
            if not out.exists():  # otherwise another process of torchrun has written it meanwhile
                raise
    files = {split: str(out / f"{split}.jsonl") for split in splits}
    return QuestionFiles(
        train_file=files["train"],
        validation_file=files.get("validation"),
        test_files=(files["test"],) if "test" in files else (),
    )


def _one_by_one(read: Callable[[], Iterator[bytes]]) -> Iterator[list[bytes]]:
    return ([line] for line in read())


def _check_same_lines(file: Path, lines: Iterable[bytes]) -> None:
    with open(file if file.is_file() else os.devnull, "rb") as stored:
        is_same = all(one == other for one, other in zip_longest(stored, lines))
    if not is_same:
        raise UserError(
            f"folder: {file} has other questions than the data, and is not overwritten; choose another folder"
        )


def _lines(split: str, data: Any, question: str, answer: str) -> Iterator[bytes]:
    """The questions of a split as JSON lines. Warns of a question with two answers, among the first `MAX_COMPARED`."""
    answers: dict[str, tuple[str, int]] = {}
    is_consistent = True
    for number, item in enumerate(_items(data), start=1):
        if number > MAX_QUESTIONS:
            raise UserError(
                f"data: {split} has more than {MAX_QUESTIONS:,} questions; of a generator that does not end, take "
                "a part: itertools.islice(data, 100_000)"
            )
        try:
            pair = _pair(item, question, answer)
            check_pair(*pair)
        except ValueError as error:
            raise UserError(f"data: item {number} of {split} {error}") from error
        if is_consistent and number <= MAX_COMPARED:
            first_answer, first_number = answers.setdefault(pair[0], (pair[1], number))
            is_consistent = pair[1] == first_answer
            if not is_consistent:
                warnings.warn(
                    f"data: items {first_number} and {number} of {split} have different answers to {pair[0]!r}: "
                    f"{first_answer!r} and {pair[1]!r}; no model can be right about both",
                    stacklevel=2,
                )
        yield json.dumps({"question": pair[0], "answer": pair[1]}, ensure_ascii=False).encode() + b"\n"


def _items(data: Any) -> Iterable[Any]:
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return (data[index] for index in range(len(data)))  # type: ignore[arg-type]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise UserError(f"data: must be questions with answers, such as a list of pairs, not {type(data).__name__}")
    return data


def _pair(item: Any, question: str, answer: str) -> tuple[str, str]:
    """A question with its answer. Raises `ValueError` for anything else."""
    if isinstance(item, Mapping):
        for key in (question, answer):
            if key not in item:
                raise ValueError(
                    f"has no {key!r}, it has: {', '.join(map(str, item))}; name its keys: question=, answer="
                )
        item = (item[question], item[answer])
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError("must be a pair of question and answer, or a mapping with both")
    for text in item:
        if isinstance(text, bool) or not isinstance(text, str | Real):
            raise ValueError(f"must have texts or numbers, not {type(text).__name__}")
        if not isinstance(text, str | Integral) and not math.isfinite(text):
            raise ValueError(f"has {text} in place of a text or number")
    return str(item[0]), str(item[1])
