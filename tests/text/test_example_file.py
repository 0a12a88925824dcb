"""Promises of questions that are written in files."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numerate.catalogue import get_class
from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import cell_questions, num_cell_questions
from numerate.evaluation.evaluator import resolve_grid
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import permute, random_key
from numerate.tasks.plain import format_question
from numerate.tasks.task import SPLITS
from numerate.text.tasks.example_file import ExampleFile
from numerate.tokenizers.tokenizer import Characters

SUMS = Path(__file__).parent / "sums.txt"


def written(path: Path, rows: list[str], **settings: object) -> ExampleFile:
    path.write_text("\n".join(rows) + "\n")
    return ExampleFile(path=str(path), **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ExampleFile:
    """20,000 sums of four digits, drawn without regard to splits."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(1000, 10_000, (20_000, 2)).tolist()
    rows = [f"{str(a)[::-1]}+{str(b)[::-1]}={str(a + b)[::-1]}" for a, b in pairs]
    return written(tmp_path_factory.mktemp("large") / "rows.txt", rows)


def plain(task: ExampleFile, rows: list[int] | None = None) -> list[str]:
    found = task.questions(np.arange(task.row_file.count) if rows is None else np.array(rows))
    return ["".join(format_question(found, row)) for row in range(len(found))]


def spelled(task: ExampleFile) -> list[str]:
    tokenizer = Characters()
    vocabulary = tokenizer.build_vocabulary(task)
    rows = tokenizer.encode_examples(task.questions(np.arange(task.row_file.count)), vocabulary)
    return [tokenizer.decode(ids, vocabulary) for ids in rows.ids]


def test_sums_become_numbers_and_are_spelled_as_they_were() -> None:
    task = ExampleFile(path=str(SUMS))
    lines = SUMS.read_text().splitlines()
    assert spelled(task) == lines
    assert plain(task)[2] == f"{lines[2].split('+')[0][::-1]}+" + "=".join(
        part[::-1] for part in lines[2].split("+")[1].split("=")
    )
    assert task.alphabet() == ("+", "=")
    assert task.questions(np.arange(5)).numbers.lengths.shape == (5, 3)


@pytest.mark.parametrize(
    ("order", "rows", "expected"),
    [
        ("reversed", ["321+654=975", "21+9=12", "0+01=01"], ["123+456=579", "12+9=21", "0+10=10"]),
        ("normal", ["123+456=579", "12+9=21"], ["123+456=579", "12+9=21"]),
        ("answer_reversed", ["123+456=975", "12+9=12"], ["123+456=579", "12+9=21"]),
        ("reversed", ["7-8=1-", "21-01=2"], ["7-8=-1", "12-10=2"]),
        ("normal", ["7-8=-1", "12-10=2", "3-15=-12"], ["7-8=-1", "12-10=2", "3-15=-12"]),
        ("reversed", ["21x21=441", "5x5=52", "0x99=0"], ["12x12=144", "5x5=25", "0x99=0"]),
    ],
)
def test_the_order_of_a_file_is_found_from_its_answers(
    order: str, rows: list[str], expected: list[str], tmp_path: Path
) -> None:
    for task in (written(tmp_path / "a.txt", rows), written(tmp_path / "b.txt", rows, digit_order=order)):
        assert plain(task) == expected
        assert task.questions(np.arange(1)).numbers.lengths.shape[1] == 3


def test_long_numbers_are_read_digit_by_digit(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    numbers = ["".join(map(str, rng.integers(1, 10, n))) for n in range(1, 60)]
    sums = [f"{a}+{b}={int(a) + int(b)}" for a, b in zip(numbers, reversed(numbers), strict=True)]
    assert plain(written(tmp_path / "n.txt", sums)) == sums
    turned = [
        "+".join(part[::-1] for part in row.split("=")[0].split("+")) + "=" + row.split("=")[1][::-1] for row in sums
    ]
    assert plain(written(tmp_path / "r.txt", turned)) == sums


@pytest.mark.parametrize(
    "rows",
    [
        ["300+40=700", "1+1=20"],  # leading zeros
        ["ζ:5,η:41=η,ζ", "A:1,B:0=B,A"],
        ["a1b2+a3b4=a4b6"],
        ["0000+10=1000"],
        ["1 +2 =3", "4+5=9"],
        ["1+2=3", "1+2+3=6"],
        ["1+2=4", "5+5=01"],  # no order makes both right
    ],
)
def test_all_else_is_text_and_comes_out_as_it_went_in(rows: list[str], tmp_path: Path) -> None:
    task = written(tmp_path / "rows.txt", rows)
    assert plain(task) == rows
    assert spelled(task) == rows
    questions = task.questions(np.arange(len(rows)))
    assert [format_question(questions, i)[0] for i in range(len(rows))] == [row.split("=")[0] + "=" for row in rows]
    assert set(task.alphabet()) == set("".join(rows))


def test_the_place_of_a_row_depends_on_nothing_but_seed_split_and_index() -> None:
    task = ExampleFile(path=str(SUMS))
    whole = task.examples("train", 5, 0, 300)
    for start, count in ((0, 1), (90, 12), (17, 200)):
        part = task.examples("train", 5, start, count)
        assert np.array_equal(part.hashes(), whole.hashes()[start : start + count])
        assert np.array_equal(part.random_bits, whole.random_bits[start : start + count])  # type: ignore[index, arg-type]
    assert len(np.unique(whole.random_bits)) == 300  # type: ignore[arg-type]


def test_an_order_has_every_place_once_and_sends_it_anywhere_alike() -> None:
    for count in (1, 2, 3, 10, 16, 17, 1000):
        order = permute(np.arange(count), count, random_key("x"))
        assert sorted(order.tolist()) == list(range(count))
        assert permute(np.array([count - 1, 0]), count, random_key("x")).tolist() == order[[count - 1, 0]].tolist()
    ends = np.array([permute(np.array([0, 4]), 9, random_key(seed)) for seed in range(1800)])
    for place in range(2):
        counts = np.bincount(ends[:, place], minlength=9)
        assert ((counts - 200.0) ** 2 / 200).sum() < 26.1  # chi squared with 8 degrees of freedom, one in a thousand


def test_held_out_rows_are_in_no_other_split_and_the_same_as_those_of_arithmetic(large: ExampleFile) -> None:
    drawn = {name: large._row_indices(name) for name in ("train", "validation", "test")}
    rows = [set(found.tolist()) for found in drawn.values() if found is not None]
    assert all(abs(len(found) / 20_000 - share) < 0.01 for found, share in zip(rows, (0.9, 0.025, 0.05), strict=True))
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    seen = large.examples("train", 0, 0, len(rows[0])).hashes()
    mine = large.questions(np.array([*rows[0]]))
    assert sorted(seen.tolist()) == sorted(mine.hashes().tolist()), "a pass of training has these rows"
    test = large.examples("test", 0, 0, 200)
    assert large.is_held_out("test")
    fraction = (Arithmetic().question_hashes(test) >> np.uint64(32)) / 2.0**32
    low, high = SPLITS["test"]
    assert ((fraction >= low) & (fraction < high)).all()


def test_bits_and_padded_sums_with_their_operands_swapped_are_one_question(tmp_path: Path) -> None:
    rows = ["0000+01=0100", "01+0000=0100", "0000+10=1000", "000+001=001", "0+01=1", "+=1"]
    task = written(tmp_path / "bits.txt", rows, digit_order="text")
    hashes = task.question_hashes(task.questions(np.arange(len(rows)))).tolist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == len(rows) - 1
    minus = written(tmp_path / "minus.txt", ["01-1=0", "1-01=0"], digit_order="text")
    assert len(set(minus.question_hashes(minus.questions(np.arange(2))).tolist())) == 2


def test_a_sum_and_its_mirror_image_belong_to_the_same_split(large: ExampleFile) -> None:
    found = large.questions(np.arange(50))
    mirrored = Arithmetic(digits=4)._build_questions(
        np.ascontiguousarray(found.numbers.units_first[:, [1, 0, 2]]), found.numbers.lengths[:, [1, 0]]
    )
    assert np.array_equal(large.question_hashes(found), large.question_hashes(mirrored))


def test_a_file_of_2000_rows_on_a_grid_of_400_cells_holds_one_row_in_ten_out(tmp_path: Path) -> None:
    rng = random.Random(0)
    sizes = [(i, j) for i in range(1, 21) for j in range(1, 21) for _ in range(5)]
    pairs = [tuple(rng.randrange(10 ** (n - 1), 10**n) for n in each) for each in sizes]
    task = written(tmp_path / "rows.txt", [f"{a}+{b}={a + b}" for a, b in pairs], digit_order="normal")
    rows = {split: len(task._row_indices(split)) for split in SPLITS}  # type: ignore[arg-type]
    assert rows["train"] == pytest.approx(1800, abs=50)
    assert rows["test"] == pytest.approx(100, abs=30)
    cells = [task.at_cell(first_digits=a, second_digits=b) for a, b in task.cells()]
    held = [cell for cell in cells if cell.is_held_out("test")]
    assert 40 < len(held) < len(cells) == 400
    questions = np.concatenate([cell.all_questions().hashes() for cell in held])  # type: ignore[union-attr]
    assert len(questions) == len(task.all_questions("test")), "every held-out question is in its cell"  # type: ignore[arg-type]
    assert not np.isin(questions, task.all_questions("train").hashes()).any()  # type: ignore[union-attr]


def test_evaluation_on_another_file_leaves_out_training_rows(large: ExampleFile, tmp_path: Path) -> None:
    trained, unseen = (
        [plain(large, [int(row)])[0] for row in large._row_indices(split)[:3]] for split in ("train", "test")
    )  # type: ignore[index]
    other = written(tmp_path / "other.txt", [*trained, *unseen, "12345+1=12346"], digit_order="normal")
    task = large.with_path(str(other.path))  # numbers in the other order than those of training
    cell = task.at_cell(first_digits=4, second_digits=4)
    assert cell.is_held_out("test")
    questions = cell.all_questions("test")
    assert questions is not None
    assert sorted("".join(format_question(questions, row)) for row in range(len(questions))) == sorted(unseen)
    assert [*task.at_cell(first_digits=5, second_digits=1).all_questions("test").metadata["first_digits"]] == [5]  # type: ignore[union-attr]


def test_cells_of_a_grid_are_the_rows_of_these_sizes() -> None:
    task = ExampleFile(path=str(SUMS))
    assert task.axes() == ("first_digits", "second_digits")
    assert task.training_spans() == {"first_digits": Span(1, 4), "second_digits": Span(1, 4)}
    cell = task.at_cell(first_digits=3, second_digits=2)
    assert cell.num_questions() == 6
    found = cell.examples("test", 0, 0, 20)
    assert set(found.metadata["first_digits"].tolist()) == {3}
    assert set(found.metadata["second_digits"].tolist()) == {2}
    with pytest.raises(UserError, match="no row has first_digits=9"):
        task.at_cell(first_digits=9).examples("test", 0, 0, 1)


def test_the_length_of_a_question_is_the_axis_of_a_file_that_lacks_pairs(tmp_path: Path) -> None:
    for task in (
        written(tmp_path / "a.txt", ["1+1=2", "11+11=22", "1+21=22"]),
        written(tmp_path / "b.txt", ["A:1=A", "A:1,B:2=A,B"]),
    ):
        assert task.axes() == ("question_length",)
        assert task.training_spans() == {"question_length": Span(4, max(len(r.split("=")[0]) + 1 for r in plain(task)))}
        assert task.at_cell(question_length=4).num_questions() == 1
    with pytest.raises(UserError, match="its rows are text, not sums of two numbers"):
        written(tmp_path / "c.txt", ["A:1=A"]).at_cell(first_digits=1).examples("test", 0, 0, 1)


@pytest.mark.parametrize("row", ["1+2", "+2=2", "1-2=1-", "10+2=3", "1+2=3=3", "1+2=", "12", "ä+2=3"])
def test_a_row_that_does_not_read_like_the_others_is_named_with_file_and_line(row: str, tmp_path: Path) -> None:
    task = written(tmp_path / "rows.txt", ["1+2=3", "01+1=11"] * 600 + [row])
    with pytest.raises(UserError, match=r"rows.txt, line 1201: .* is not a sum in reversed order .*digit_order=text"):
        task.questions(np.arange(task.row_file.count))
    task.questions(np.arange(1200))


def test_a_path_must_be_set() -> None:
    with pytest.raises(UserError, match="path: must be set"):
        ExampleFile().num_questions()


def test_a_person_may_ask_another_sum() -> None:
    task = ExampleFile(path=str(SUMS))
    assert format_question(task.parse_question("12+9="), 0) == ("12+9=", "21")
    with pytest.raises(UserError, match="only sums can be read"):
        ExampleFile(path=str(SUMS), digit_order="text").parse_question("12+9=")


@pytest.mark.parametrize("name", ["gen_add_bucket", "gen_add_reverse_answer", "gen_or_exact", "gen_sort"])
def test_rows_of_the_published_generator_are_read(name: str, shared: Path, tmp_path: Path) -> None:
    cases = json.loads((shared / "cases" / "abacus.json").read_text(encoding="utf-8"))["cases"]
    rows = next(case["expected"] for case in cases if case["id"] == name)
    task = written(tmp_path / "rows.txt", rows)
    questions = task.questions(np.arange(len(rows)))
    if name.startswith("gen_add"):
        for i in range(len(rows)):
            question, answer = format_question(questions, i)
            assert eval(question.removesuffix("=")) == int(answer)
        assert spelled(task) == rows or name == "gen_add_reverse_answer"
    else:
        assert plain(task) == rows


def test_it_trains_and_evaluates(tmp_path: Path) -> None:
    import numerate

    assert get_class("Task", "ExampleFile") is ExampleFile
    settings = (
        "model.hidden_size=16 training.batch_size=8 training.epochs=1 training.steps=null training.shuffle_window=4 "
        "evaluation.grid=1:2x1:2 evaluation.validation_examples=8"
    )
    recipe = numerate.recipe("addition_abacus", f"task=ExampleFile(path={SUMS})", *settings.split())
    run = numerate.train(recipe, runs_dir=tmp_path, quiet=True)
    assert run.path.is_dir()
    records = run.evaluate(count=4)
    assert [record["count"] for record in records] == [4, 4, 4, 4]
    assert json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 96 // 8
    other = written(tmp_path / "other.txt", ["21+1=31", "21111+9=12111", "21111+1=31111"])
    (record,) = run.evaluate("5x1", settings=[f"task.path={other.path}"])
    assert (record["count"], record["region"], record["overlaps_training"]) == (2, "ood_test", False)
    assert record["settings"]["task.path"] == other.path
    written(tmp_path / "other.txt", ["21+1=31", "21111+8=02111", "21111+2=41111"])
    (again,) = run.evaluate("5x1", settings=[f"task.path={other.path}"])
    assert again["settings"]["task.contents"] != record["settings"]["task.contents"], "computed again, not cached"
    letters = written(tmp_path / "letters.txt", ["21-1=11", "1-1=0"])
    with pytest.raises(UserError, match=r"letters.txt: has '-', which no row of training has"):
        run.evaluate("2x1", settings=[f"task.path={letters.path}"])


def test_no_row_is_drawn_twice_where_more_are_wanted_than_a_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = written(tmp_path / "sums.txt", [f"{n}+1={n + 1}" for n in range(1, 10)], digit_order="normal")
    monkeypatch.setattr("numerate.text.tasks.example_file._MAX_CHARACTERS_IN_MEMORY", 0)
    assert task.all_questions() is None
    questions = cell_questions(task, {}, count=100)
    assert len(questions) == num_cell_questions(task, {}, 100) == task.num_rows("test") == 9
    assert len({format_question(questions, row) for row in range(9)}) == 9


def test_the_cells_of_a_file_are_the_sizes_that_it_has(tmp_path: Path) -> None:
    every = written(tmp_path / "every.txt", ["1+2=3", "1+21=31", "21+2=32", "21+21=42"], digit_order="normal")
    assert every.cells() == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert str(resolve_grid(every, None)) == "1:2x1:2"
    assert every.at_cell(question_length=4).cells() == [(1, 1)]
    long = replace(every, question_length=Span(4, 5))
    assert long.cells() == [(1, 1), (1, 2), (2, 1)]
    assert str(resolve_grid(long, None)) == "1x1:2+2x1"
    holes = written(tmp_path / "holes.txt", ["A:1=A", "A:2,B:1=B,A", "A:21,B:1=B,A", "A:3=A"])
    assert holes.cells() == [(4,), (8,), (9,)]
    assert str(resolve_grid(holes, None)) == "4+8:9"
    short = replace(holes, question_length=Span(4, 8))
    assert short.cells() == [(4,), (8,), (9,)], "longer ones than the trained ones can be evaluated"
    assert str(resolve_grid(short, None)) == "4+8"
    assert Arithmetic().cells() is None
    assert str(resolve_grid(every, "1:2x1")) == "1:2x1"
    with pytest.raises(UserError, match=r"has 2 axes, the task has 1: .*; use e.g. 1:12, or null for the default grid"):
        resolve_grid(holes, "1:12x1:12")


def test_lines_of_json_are_no_rows_and_the_task_that_reads_them_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"question": "1+1=", "answer": "2"}\n' * 20)
    with pytest.raises(UserError, match=r"sums.jsonl, line 1: this is a record of JSON.*QuestionFiles\(train_file="):
        ExampleFile(path=str(path)).examples("train", 0, 0, 4)
