"""Promises of the tasks over files of text: splits without a question in common, parts that have numbers."""

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import pairs, whole
from numerate.catalogue import presets
from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import cell_questions, num_cell_questions
from numerate.evaluation.evaluator import resolve_grid
from numerate.tasks import GSM8K, Mathematics, MultiRC, QuestionFiles, RJokes
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.folders import data_folder
from numerate.text.tasks import text_task
from numerate.text.tasks.text_task import TextTask

TEXTS = Path(__file__).parent / "texts"

TASKS = [
    RJokes(data_dir=str(TEXTS)),
    Mathematics(
        ("arithmetic__mul",), ("arithmetic__mul_big",), ("easy",), data_dir=str(TEXTS), validation_fraction=0.1
    ),
    QuestionFiles(train_file=str(TEXTS / "questions.jsonl")),
    MultiRC(data_dir=str(TEXTS)),
    GSM8K(data_dir=str(TEXTS)),
]
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)


@every_task
def test_splits_have_no_question_in_common(task: TextTask) -> None:
    splits = {split: {question for question, _ in whole(task, split)} for split in ("train", "validation", "test")}
    assert all(splits.values())
    for one in splits:
        for other in splits:
            assert one == other or not splits[one] & splits[other]
    assert task.is_held_out("test")
    assert not task.is_held_out("train")
    assert task.num_questions() == len(whole(task, "train"))


@every_task
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_row_comes_once_in_each_pass_in_another_order(task: TextTask, split: str) -> None:
    rows = Counter(whole(task, split))
    count = sum(rows.values())
    passes = [pairs(task.examples(split, 3, turn * count, count)) for turn in range(2)]
    assert Counter(passes[0]) == Counter(passes[1]) == rows
    if count > 5:
        assert passes[0] != passes[1]
        assert pairs(task.examples(split, 4, 0, count)) != passes[0]
    portions = [pairs(task.examples(split, 3, start, 1))[0] for start in range(2 * count)]
    assert portions == [*passes[0], *passes[1]]


@every_task
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "too many to list"])
def test_no_row_is_drawn_twice_where_more_are_wanted_than_there_are(
    task: TextTask, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("validation", "test"):
        rows = Counter(whole(task, split))
        with monkeypatch.context() as patched:
            if not listed:
                patched.setattr(text_task, "_MAX_LISTED_ROWS", 0)
            questions = cell_questions(task, {}, count=43_246, split=split)
            assert (
                num_cell_questions(task, {}, 43_246, split)
                == task.num_rows(split)
                == len(questions)
                == sum(rows.values())
            )
            assert num_cell_questions(task, {}, 1, split) == 1
        assert Counter(pairs(questions)) == rows


@every_task
def test_parts_are_the_sizes_of_its_axis(task: TextTask) -> None:
    (axis,) = task.axes()
    for (number,) in task.cells():
        fixed = task.at_cell(**{axis: number})
        questions = fixed.examples("test", 0, 0, 4)
        assert set(questions.metadata[axis].tolist()) == {number}
        assert fixed.training_spans() == {axis: Span(number, number)}
        assert len(fixed.draw(CounterRNG(1), np.arange(5))) == 5
        assert fixed.longest_questions() is not None
        assert task.cell_name(axis, number) != str(number)
    assert str(resolve_grid(task, None)) == (f"1:{len(task.cells())}" if len(task.cells()) > 1 else "1")
    with pytest.raises(UserError, match=rf"^{axis}: there is no 9; there are: 1 "):
        task.at_cell(**{axis: 9}).examples("test", 0, 0, 1)


@every_task
def test_an_unknown_split_is_refused(task: TextTask) -> None:
    with pytest.raises(UserError, match=r"split: must be one of .*, not 'tset'.*Did you mean 'test'"):
        task.examples("tset", 0, 0, 1)
    with pytest.raises(UserError, match="files have no OOD validation"):
        task.examples("ood_validation", 0, 0, 1)


@every_task
def test_its_alphabet_holds_every_character(task: TextTask) -> None:
    used = {
        c for split in ("train", "validation", "test") for pair in whole(task, split) for text in pair for c in text
    }
    assert used <= set(task.alphabet())


@every_task
def test_the_longest_rows_are_found(task: TextTask) -> None:
    longest = max(len(question) + len(answer) for question, answer in pairs(task.longest_questions()))
    assert longest >= max(len(q) + len(a) for q, a in whole(task, "train"))


def test_without_files_a_name_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "none"))
    for name, dataset in (("mathematics", "mathematics"), ("svamp", "gsm8k"), ("rjokes", "rjokes"), ("multirc",) * 2):
        message = rf"^data_dir: {tmp_path}/none/\w+ does not exist; download it with `numerate data fetch {dataset}`"
        with pytest.raises(UserError, match=message):
            presets("Task")[name].examples("train", 0, 0, 1)
    with pytest.raises(UserError, match=r"^task\.train_file: must be set"):
        QuestionFiles().examples("train", 0, 0, 1)
    with pytest.raises(UserError, match=r"\(task\.train_file=a\.jsonl task\.keep_duplicates=true, for"):
        QuestionFiles(test_files=("a.jsonl",)).data_files()
    test = str(TEXTS / "questions.jsonl")
    assert QuestionFiles(train_file=test, test_files=(test,), keep_duplicates=True).num_rows("test") > 3


def test_the_users_data_folder_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(TEXTS))
    assert GSM8K().summary().startswith("train 17, validation 3, test gsm8k 6")
    monkeypatch.setenv("NUMERATE_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "numerate/data"
    monkeypatch.setenv("NUMERATE_DATA", str(TEXTS / "questions.jsonl"))
    with pytest.raises(UserError, match=r"NUMERATE_DATA: .* must be a folder, not a file"):
        data_folder()


# Files of one's own --------------------------------------------------------------------------------------------------


def rows(path: Path, lines: list[Any]) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def numbered(*numbers: int) -> list[dict[str, str]]:
    return [{"question": f"{n}?", "answer": str(n)} for n in numbers]


def test_a_question_of_a_test_is_not_trained_on(tmp_path: Path) -> None:
    train = rows(tmp_path / "a.jsonl", numbered(1, 2, 3, 4, 5, 2))
    held, test = rows(tmp_path / "b.jsonl", numbered(2, 6, 6, 7)), rows(tmp_path / "c.jsonl", numbered(7, 3))
    task = QuestionFiles(train_file=train, validation_file=held, test_files=(test,))
    assert [q for q, _ in whole(task, "train")] == ["1?", "4?", "5?"]
    assert [q for q, _ in whole(task, "validation")] == ["2?", "6?"]
    assert [q for q, _ in whole(task, "test")] == ["7?", "3?"]
    assert task.summary() == (
        "train 3, validation 2, test c 2, 3 rows removed from training, as their questions are in another split"
    )
    kept = replace(task, keep_duplicates=True)
    assert len(whole(kept, "train")) == 6
    assert not kept.is_held_out("test")


@pytest.mark.parametrize(
    ("validation", "test", "split"),
    [(range(8), range(8, 16), "train"), (range(4), range(4, 8), "train"), (range(8, 16), range(8, 16), "validation")],
)
def test_a_split_that_is_all_in_others_is_refused(tmp_path: Path, validation: range, test: range, split: str) -> None:
    files = {"train": range(8), "validation": validation, "test": test}
    paths = {name: rows(tmp_path / f"{name}.jsonl", numbered(*numbers)) for name, numbers in files.items()}
    task = QuestionFiles(train_file=paths["train"], validation_file=paths["validation"], test_files=(paths["test"],))
    with pytest.raises(UserError, match=f"has no question for '{split}' that is in no other split; .*keep_duplicates"):
        task.examples(split, 0, 0, 4)
    assert len(replace(task, keep_duplicates=True).examples(split, 0, 0, 4)) == 4


def test_several_test_files_are_parts_and_the_first_counts_as_trained(tmp_path: Path) -> None:
    files = tuple(rows(tmp_path / f"{name}.jsonl", numbered(n)) for name, n in (("near", 8), ("far", 9)))
    task = QuestionFiles(
        train_file=rows(tmp_path / "a.jsonl", numbered(*range(5))), test_files=files, validation_fraction=0.2
    )
    assert task.training_spans() == {"test": Span(1, 1)}
    assert [task.cell_name("test", n) for n in (1, 2, 3)] == ["near", "far", "3"]
    assert whole(task, "test") == [("8?", "8")]
    assert whole(task.at_cell(test=2), "test") == [("9?", "9")]
    assert len(whole(task.at_cell(test=2), "train")) == 4, "a part that is only tested trains on the others"
    (tmp_path / "easy").mkdir()
    alike = replace(task, test_files=(files[0], rows(tmp_path / "easy/near.jsonl", numbered(7)), files[1]))
    names = [alike.cell_name("test", n) for n in (1, 2, 3)]
    assert names == [f"{tmp_path.name}/near.jsonl", "easy/near.jsonl", "far"], "told apart by their folders"


def test_columns_are_named_by_the_first_line_or_by_their_number(tmp_path: Path) -> None:
    lines = ["id\tq\ta", *(f"{n}\twhat {n}\t{n}" for n in range(10))]
    path = rows(tmp_path / "a.tsv", lines)
    task = QuestionFiles(train_file=path, question_field="q", answer_field="a")
    assert set(whole(task, "train")) < {(f"what {n}", str(n)) for n in range(10)}
    task = QuestionFiles(train_file=path, question_field="2", answer_field="1", header=True)
    assert everything(task) == {(f"what {n}", str(n)) for n in range(10)}
    assert everything(replace(task, header=False)) == {("q", "id"), *everything(task)}
    for header, message in ((True, "its first line has: id, q, a"), (False, "its first line has 3, from 1 on")):
        with pytest.raises(UserError, match=rf"^question_field: .*a\.tsv has no column 'quest'; {message}"):
            whole(QuestionFiles(train_file=path, question_field="quest", header=header), "train")


@pytest.mark.parametrize("head", ["Question\tAnswer", "input\ttarget", "Prompt\tGold\tID", "question\tgold"])
def test_a_first_line_that_may_be_a_header_or_a_question_is_refused(tmp_path: Path, head: str) -> None:
    more = {(f"what {n}", str(n)) for n in range(10)}
    path = rows(tmp_path / "a.tsv", ["", head, *("\t".join(one) for one in more)])
    task = QuestionFiles(train_file=path)
    message = (
        f"^header: .*begins with a line that may name its columns or be a question: {head.replace(chr(9), ', ')}; "
    )
    by_number = replace(task, question_field="1", answer_field="2")
    for refused in (task, by_number) if head == "input\ttarget" else (task,):
        with pytest.raises(UserError, match=message):
            everything(refused)
    assert everything(replace(task, header=True)) == more
    assert everything(replace(task, header=False)) == {tuple(head.split("\t")[:2]), *more}
    assert everything(replace(by_number, header=True)) == more
    first, second = head.split("\t")[:2]
    assert everything(replace(task, question_field=first, answer_field=second)) == more


def test_a_first_line_that_is_no_header_is_a_question_though_its_columns_look_like_numbers_of_columns(
    tmp_path: Path,
) -> None:
    more = [(f"{n} + 1", str(n + 1)) for n in range(10)]
    path = rows(tmp_path / "a.tsv", ["2\t1", *("\t".join(one) for one in more)])
    assert everything(QuestionFiles(train_file=path)) == {("2", "1"), *more}
    assert everything(QuestionFiles(train_file=path, question_field="1", answer_field="2")) == {("2", "1"), *more}
    with_names = rows(tmp_path / "b.tsv", ["n\tquestion\tanswer", *(f"7\t{q}\t{a}" for q, a in more)])
    assert everything(QuestionFiles(train_file=with_names)) == set(more)
    assert everything(QuestionFiles(train_file=with_names, question_field="2", answer_field="answer")) == set(more)


def test_columns_with_commas_are_refused_with_the_command_that_makes_json_lines_of_them(tmp_path: Path) -> None:
    more = {(f"Is {n}, or {n + 1}, even?", str(n)) for n in range(10)}
    path = rows(
        tmp_path / "my even.csv", ["\ufeffquestion,answer", *(f'"{question}",{answer}' for question, answer in more)]
    )
    with pytest.raises(UserError, match=r"^format: .*my even\.csv is a \.csv file; must be JSON lines") as raised:
        everything(QuestionFiles(train_file=path))
    subprocess.run(str(raised.value).split("Convert it with: ")[1], shell=True, check=True)
    assert everything(QuestionFiles(train_file=str(tmp_path / "my even.jsonl"))) == more
    assert QuestionFiles(train_file=path, format="tsv", header=False).format == "tsv"


def test_two_lines_each_and_too_few_questions(tmp_path: Path) -> None:
    path = rows(tmp_path / "a.txt", [text for n in range(10) for text in (f"what {n}", str(n))])
    assert len(whole(QuestionFiles(train_file=path), "train")) == 8
    with pytest.raises(UserError, match=r"has 1 questions, too few to divide|leave nothing"):
        whole(
            QuestionFiles(
                train_file=rows(tmp_path / "b.jsonl", numbered(1)), validation_fraction=0.5, test_fraction=0.499
            ),
            "train",
        )


def test_shares_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(UserError, match=r"^test_fraction: 0\.5 and validation_fraction=0\.5 leave nothing"):
        QuestionFiles(validation_fraction=0.5, test_fraction=0.5)


def everything(task: TextTask) -> set[tuple[str, str]]:
    return {pair for split in ("train", "validation", "test") for pair in whole(task, split)}


# Jokes and reading ---------------------------------------------------------------------------------------------------


def test_a_joke_is_answered_with_its_score() -> None:
    assert whole(RJokes(data_dir=str(TEXTS)), "test")[1] == ("Why did number 51 cross the road? It was odd.", "5")


def test_a_passage_stays_in_one_split_and_validation_is_the_test_where_that_has_no_answers(tmp_path: Path) -> None:
    task = MultiRC(data_dir=str(TEXTS))
    assert [len(whole(task, split)) for split in ("train", "validation", "test")] == [10, 2, 6]
    question, answer = whole(task, "test")[0]
    assert question == "On day 20 there came 22 boats and seven birds.\n\nQuestion: How many boats came?"
    assert answer == "22"
    passages = [{q.partition("\n\n")[0] for q, _ in whole(task, split)} for split in ("train", "validation")]
    assert not passages[0] & passages[1]
    both = MultiRC(data_dir=str(TEXTS), validation_fraction=0.0)
    assert whole(both, "validation") == whole(both, "test")
    assert len(whole(both, "train")) == 12
    for name in ("train", "val", "test"):
        text = (TEXTS / "multirc" / f"{'val' if name == 'test' else name}.jsonl").read_text()
        (tmp_path / f"{name}.jsonl").write_text(text.replace("On day 2", "On day 9") if name == "test" else text)
    answered = MultiRC(data_dir=str(tmp_path))
    assert [len(whole(answered, split)) for split in ("train", "validation", "test")] == [12, 6, 6]


def test_several_right_answers_stand_beside_each_other_and_a_broken_passage_may_be_skipped(tmp_path: Path) -> None:
    options = [{"text": text, "label": label} for text, label in (("a", 1), ("b", 0), ("c", 1))]
    passage = {"passage": {"text": "T", "questions": [{"question": "Q?", "answers": options}]}}
    for name in ("train", "val"):
        rows(tmp_path / f"{name}.jsonl", [passage | {"idx": 0}, {"passage": 3}])
    task = MultiRC(data_dir=str(tmp_path), validation_fraction=0.0, keep_duplicates=True, skip_invalid=True)
    with pytest.warns(UserWarning, match="1 record skipped as invalid"):
        found = whole(task, "test")
    assert found == [("T\n\nQuestion: Q?", "a | c")]
    assert "skipped" in task.summary()
