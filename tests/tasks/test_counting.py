"""Promises of counting, of number lines and tables, and of the stream of counts."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.number_line import AdditionTable, NumberLine
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.tasks.rasp import RaspCounting
from numerate.tasks.selective import SelectiveCounting
from numerate.tasks.task import SPLITS, Task

VANILLA = Counting(start_number="after", held_out_starts=6)
FIFTY = Counting(count=50, start_number="before", starts=Span(1, 50))


def cells_of(questions: Questions) -> list[tuple[int, int]]:
    """Count and number of each row that has a number."""
    found = []
    for row in range(len(questions)):
        pieces = format_question(questions, row)[0].split()
        found.append((sum(piece.isalpha() for piece in pieces), int(next(p for p in pieces if p.isdecimal()))))
    return found


@pytest.mark.parametrize(
    "task", [Counting(), NumberLine(), AdditionTable(), RaspCounting(), SelectiveCounting()], ids=str
)
def test_counts_of_an_evaluation_are_refused_in_training(task: Any) -> None:
    assert task.data_warnings() == []
    for evaluated in (replace(task, eval_count=20), Mixture((task, replace(task, eval_count=20)))):
        with pytest.raises(UserError, match=r"^task.eval_count: must be null in a recipe, not 20"):
            evaluated.data_warnings()


@pytest.mark.parametrize(
    ("task", "text", "labels"),
    [
        (Counting(), "a a a", "1 2 3"),
        (Counting("different"), "s w c", "1 2 3"),
        (Counting("different", start_number="after"), "s w c b s 4", "1 2 3 4 5 9"),
        (FIFTY, "65 a a", ". 66 67"),
        (Counting(start_number="both"), "a a 5", "1 2 7"),
        (Counting(start_number="both"), "5 a a", ". 6 7"),
        (Counting(start_number="after", helper="pad"), "a <pad> a <pad> 7", ". 1 . 2 9"),
        (Counting(start_number="before", helper="pad"), "51 <pad> a <pad>", ". 51 . 52"),
        (Counting(start_number="both", helper="blank"), "a <blk> 7", ". 1 8"),
        (Counting(start_number="both", helper="blank"), "7 <blk> a <blk>", ". 7 . 8"),
        (Counting(modulus=3), "a a a a", "1 2 3 1"),
        (Counting(modulus=10, prefix="0"), "0 a a", ". 1 2"),
        (Counting(start_number="before", prefix="0"), "0 0 a", ". . 1"),
        (Counting(modulus=2, helper="pad"), "a <pad> a <pad> a <pad>", ". 1 . 2 . 1"),
        (Counting(prefix="<bos>", helper="blank"), "<bos> a <blk>", ". . 1"),
        (NumberLine(), "7 8 9", "8 9 10"),
        (NumberLine(filler="null"), "7 <null> <null>", "7 8 9"),
        (AdditionTable(), "65 3", "65 68"),
        (AdditionTable(helper="pad"), "65 <pad> 3 <pad>", ". 65 . 68"),
        (RaspCounting(), "<sos> 3 5 < 3 4 5", ". . < 3 4 5 <eos>"),
    ],
    ids=str,
)
def test_rows_read_as_the_paper_writes_them(task: Task, text: str, labels: str) -> None:
    read = task.parse_question(text if not isinstance(task, RaspCounting) else "3 5")
    assert format_question(read, 0) == (text, labels)
    assert set(read.alphabet) <= set(task.alphabet())


def test_six_starts_of_each_count_are_held_out_of_training_and_two_thirds_of_them_are_for_test() -> None:
    held = {split: set(cells_of(VANILLA.all_questions(split) or VANILLA.examples(split, 0, 0, 1))) for split in SPLITS}
    assert {split: len(held[split]) for split in ("train", "test", "validation")} == {
        "train": 3425,
        "test": 200,
        "validation": 100,
    }
    assert not held["train"] & held["test"] | held["test"] & held["validation"] | held["train"] & held["validation"]
    assert Counter(count for count, _ in held["test"] | held["validation"]) == dict.fromkeys(range(1, 51), 6)
    for split in ("train", "test", "validation"):
        assert set(cells_of(VANILLA.examples(split, 5, 0, 1500))) <= held[split]
    assert len(held["test"] - set(cells_of(VANILLA.examples("test", 5, 0, 2000)))) < 5


@pytest.mark.parametrize(
    "task",
    [
        VANILLA,
        Counting("different", start_number="both", held_out_starts=6),
        Counting(start_number="before", held_out_starts=6, helper="pad"),
    ],
)
def test_a_cell_of_trained_counts_asks_for_what_is_held_out_and_one_beyond_for_everything(task: Counting) -> None:
    trained = set(cells_of(VANILLA.all_questions("train") or VANILLA.examples("train", 0, 0, 1)))
    inside, further = task.at_cell(count=17), task.at_cell(count=80)
    assert inside.is_held_out("test")
    assert further.is_held_out("test")
    cells = set(cells_of(inside.examples("test", 0, 0, 200)))
    assert len(cells) == 4
    assert not cells & trained
    assert len(set(cells_of(further.examples("test", 0, 0, 600)))) == 20
    assert bool(task.splittable_mask(inside.examples("test", 0, 0, 5)).all())
    assert not bool(task.splittable_mask(further.examples("test", 0, 0, 5)).any())


def test_what_every_split_draws_from_is_not_called_held_out() -> None:
    for task in (FIFTY, Counting(modulus=10), Counting(count=50), NumberLine(), AdditionTable()):
        assert not task.is_held_out("test")
        assert not task.splittable_mask(task.examples("test", 0, 0, 20)).any()
        assert task.at_cell(count=60).is_held_out("test"), "counts that were never trained are new"
    assert not FIFTY.at_cell(count=20).is_held_out("test"), "a beginning of trained rows"
    assert Counting("different", modulus=10).at_cell(count=20).is_held_out("test")
    assert not Counting("different", modulus=10).at_cell(count=2).is_held_out("test"), "676 words of two letters"


def test_random_letters_are_held_out_without_changing_how_often_lengths_come() -> None:
    task = Counting("different", modulus=10)
    drawn = task.examples("train", 0, 0, 5000)
    assert set(Counter(drawn.metadata["count"].tolist()).values()) == {100}
    letters = np.array(drawn.alphabet)[drawn.symbols[drawn.symbols >= 0]]
    often = np.array(list(Counter(letters.tolist()).values()))
    assert len(often) == 26
    assert np.abs(often / often.sum() - 1 / 26).max() < 0.003
    seen = {split: set(task.examples(split, 0, 0, 3000).hashes().tolist()) for split in ("train", "test")}
    few = {hashed for text in "abcdefghijklmnopqrstuvwxyz" for hashed in task.parse_question(text).hashes().tolist()}
    assert seen["train"] & few
    tested = task.examples("test", 0, 0, 3000)
    both = np.isin(tested.hashes(), list(seen["train"]))
    assert tested.metadata["count"][both].max() == 2, "words of one and of two letters are too few"


def test_a_cell_has_every_start_that_the_published_tests_have() -> None:
    for count in range(51, 100):
        whole = FIFTY.at_cell(count=count).all_questions()
        assert whole is not None
        assert cells_of(whole) == [(count, start) for start in range(1, min(50, 100 - count) + 1)]
    total = sum(len(VANILLA.at_cell(count=count).all_questions() or ()) for count in range(51, 100))
    assert total == 1225
    both = Counting(start_number="both", held_out_starts=6)
    assert sum(len(both.at_cell(count=count).all_questions() or ()) for count in range(51, 100)) == 2450
    ending = Counting(start_number="before", starts=Span(1, 50), end=51)
    assert cells_of(ending.at_cell(count=20).all_questions() or ending.parse_question("1 a")) == [(20, 31)]
    assert (60, 40) in cells_of(ending.at_cell(count=60).all_questions() or ending.parse_question("1 a"))


def test_counts_go_as_far_as_the_numbers_do() -> None:
    assert format_question(Counting(modulus=10).at_cell(count=2000).longest_questions(), 0)[1].split()[-3:] == [
        "8",
        "9",
        "10",
    ]
    far = Counting(count=50, start_number="before", starts=Span(0, 150), max_number=200)
    assert (
        format_question(far.at_cell(count=200).all_questions() or far.parse_question("1 a"), 0)[1].split()[-1] == "200"
    )
    assert far.cells() is None
    assert Counting(modulus=10_000, count=10_000).longest_questions().labels.max() == 10_000  # type: ignore[union-attr]
    assert FIFTY.cells() == [(count,) for count in range(1, 100)]
    with pytest.raises(UserError, match=r"^count: must be at most 99 with starts from 1 and max_number=100, not 100"):
        FIFTY.at_cell(count=100)


def test_evaluation_settings_do_not_change_training() -> None:
    cell = VANILLA.at_cell(count=60)
    assert (cell.count, cell.eval_span) == (Span(1, 50), Span(60, 60))
    assert cell.max_training_labels() == VANILLA.max_training_labels() == 50
    ood_task = VANILLA.ood_validation_task()
    assert ood_task is not None
    assert ood_task.training_spans() == {"count": Span(51, 60)}
    assert cells_of(ood_task.all_questions() or VANILLA.parse_question("a 1"))[0] == (51, 1)
    whole = VANILLA.all_questions("ood_validation")
    assert whole is not None
    assert len(whole) == sum(100 - count for count in range(51, 61))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modulus": 10, "start_number": "before"}, "^modulus: "),
        ({"count": 101}, "^count: must be at most 100 with starts from 0 .*, not 101; or set max_number=101"),
        ({"starts": Span(-1, 3)}, "^starts: "),
        ({"prefix": "a b"}, "^prefix: "),
        ({"prefix": "<pad>"}, "^prefix: "),
        ({"prefix": "a\tb"}, "^prefix: "),
        ({"prefix": "[BOS]"}, r"^prefix: \[BOS\] is a special token"),
        (
            {"starts": 200, "start_number": "before"},
            "^starts: must be at most 99 with max_number=100, not 200",
        ),
        ({"end": 101}, "^end: must be from 1 to max_number=100, not 101"),
        ({"end": 101, "start_number": "before"}, "^end: must be from 1 to max_number=100, not 101"),
        ({"end": 100, "start_number": "before", "starts": 1}, "^end: no count of 1:50 from a start of 1.* 2 to 51"),
        ({"held_out_starts": 1}, "^held_out_starts: "),
        ({"helper": "null"}, "^helper: "),
        ({"eval_count": Span(90, 120)}, "^count: must be at most 100 .*, not 120"),
        ({"task": NumberLine, "end": 101}, "^end: "),
        ({"task": NumberLine, "end": 100, "starts": 1, "count": 3}, "^end: "),
        ({"task": NumberLine, "starts": 200}, "^starts: "),
        ({"task": RaspCounting, "count": 155}, "^count: .* too few different streams of 256 tokens with blocks of 155"),
        ({"task": RaspCounting, "eval_count": 154}, "^eval_count: there are too few"),
        ({"task": RaspCounting, "sequence_length": 8, "count": 50}, "^sequence_length: .* 55 tokens hold a block"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings.pop("task", Counting)(**settings)


@pytest.mark.parametrize(
    ("task", "texts"),
    [
        (FIFTY, ["", "a b", "5", "a 5 a", "99 a a", "5 5 a", "a a"]),
        (RaspCounting(), ["5", "5 5", "5 4", "<eos> 3 5", "3 156", ""]),
    ],
)
def test_rows_that_are_none_are_not_read(task: Task, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UserError, match=r"^question: "):
            task.parse_question(text)


def test_number_lines_that_end_at_one_number_begin_at_each_start() -> None:
    lines = NumberLine(count=Span(50, 99), starts=Span(1, 50), end=100, filler="blank")
    whole = lines.all_questions()
    assert whole is not None
    assert [format_question(whole, row)[1].split()[-1] for row in range(50)] == ["100"] * 50
    assert sorted(int(format_question(whole, row)[0].split()[0]) for row in range(50)) == list(range(1, 51))
    assert lines.max_training_labels() == 100


def test_a_stream_draws_every_pair_equally_often_and_asks_for_all_of_it() -> None:
    task = RaspCounting()
    drawn = task.examples("train", 0, 0, 4000)
    assert drawn.symbols.shape == (4000, 255)
    assert drawn.labels is not None
    assert (drawn.symbols >= 0).all()
    assert (drawn.labels >= 0).all()
    assert np.array_equal(drawn.symbols[:, 1:], drawn.labels[:, :-1])
    span = drawn.symbols[:, 2] - drawn.symbols[:, 1] + 1
    assert (span.min(), span.max()) == (2, 50)
    often = np.bincount(span, minlength=51)[2:]
    wanted = np.array([157 - s for s in range(2, 51)], dtype=float)
    wanted *= 4000 / wanted.sum()
    assert (((often - wanted) ** 2) / wanted).sum() < 49 + 6 * np.sqrt(98)
    assert drawn.symbols[:, 1].min() == 0
    assert drawn.symbols[:, 2].max() == 155


def test_a_cell_of_a_stream_is_one_block_with_determined_targets() -> None:
    cells = [RaspCounting().at_cell(count=count).all_questions() for count in range(51, 156)]
    assert sum(len(cell) for cell in cells if cell is not None) == 5565, "all that the published test has"
    assert format_question(RaspCounting().at_cell(count=3).longest_questions() or cells[0], 0) == (
        "<sos> 1 3 < 1 2 3",
        ". . < 1 2 3 <eos>",
    )  # type: ignore[arg-type]
    ood_task = RaspCounting().ood_validation_task()
    assert ood_task is not None
    text, labels = format_question(ood_task.examples("test", 0, 0, 1), 0)
    assert text.split()[0] == "<sos>"
    assert labels.split()[:3] == [".", ".", "<"]


def test_what_is_held_out_stays_so_beside_an_auxiliary_task() -> None:
    task = Mixture((VANILLA, NumberLine(count=99)), weights=(10, 1), auxiliary=True)
    known = set(cells_of(VANILLA.all_questions("train") or VANILLA.parse_question("a 1")))
    for split in ("train", "test"):
        drawn = task.examples(split, 0, 0, 2000)
        own = set(cells_of(drawn.take(drawn.metadata["task"] == 0)))
        assert own <= known if split == "train" else not own & known
    assert task.is_held_out("test")
    ood_task = task.ood_validation_task()
    assert ood_task is not None
    assert set(ood_task.examples("test", 0, 0, 200).metadata["task"].tolist()) == {0}
    assert set(task.longest_questions().metadata["count"].tolist()) == {50}  # type: ignore[union-attr]


@pytest.mark.parametrize("only", [None, 1])
def test_an_auxiliary_task_has_its_share_of_the_rows_that_are_kept(only: int | None) -> None:
    task = Mixture((VANILLA, AdditionTable(count=Span(1, 99))), weights=(1000, 99), auxiliary=True, task_index=only)
    drawn = task.examples("train", 0, 0, 1 << 17)
    wanted = 99 / 1099 if only is None else 1
    share = (drawn.metadata["task"] == 1).mean()
    assert abs(share - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / len(drawn)), share
    parts = [task.examples("train", 0, start, 5000).symbols for start in (0, 5000)]
    assert np.array_equal(np.concatenate(parts), drawn.symbols[:10_000]), "whatever the portions"
