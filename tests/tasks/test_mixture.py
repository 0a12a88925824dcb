"""Promises of several tasks as one."""

import hashlib

import numpy as np
import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.mixture import Mixture
from numerate.tasks.plain import format_question
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import SPLITS


def test_each_task_comes_as_often_as_its_weight_says_and_the_fact_tells_which() -> None:
    task = Mixture((Arithmetic("+"), Arithmetic("-"), Arithmetic("x", digits=3)), weights=(1, 0.5, 2.5))
    drawn = task.examples("train", 0, 0, 8192)
    shares = np.bincount(drawn.metadata["task"]) / 8192
    assert shares == pytest.approx([0.25, 0.125, 0.625], abs=0.03)
    for row in range(300):
        question, answer = format_question(drawn, row)
        assert "+-x"[drawn.metadata["task"][row]] in question
        assert eval(question[:-1].replace("x", "*")) == int(answer)


def test_the_rows_of_mixed_sums_are_those_that_they_have_always_been() -> None:
    drawn = Mixture((Arithmetic(digits=4), Arithmetic("-", digits=4)), weights=(1, 3)).examples("train", 0, 0, 4096)
    texts = "".join("".join(format_question(drawn, row)) for row in range(4096))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "ddda2d9df0ce9898"


def test_its_tasks_hold_out_what_they_hold_out_by_themselves() -> None:
    task = Mixture((Arithmetic("+", digits=4), Arithmetic("-", digits=4)))
    for split in ("train", "test", "ood_validation"):
        drawn = task.examples(split, 0, 0, 400)
        source = task if split != "ood_validation" else task.ood_validation_task()
        assert source is not None
        for number, member in enumerate(task.tasks):
            rows = drawn.metadata["task"] == number
            own = member.question_hashes(drawn.take(rows))
            assert own is not None
            found = source.question_hashes(drawn)
            assert found is not None
            assert np.array_equal(found[rows], own)
            low, high = SPLITS[split]
            assert ((own / 2.0**64 >= low) & (own / 2.0**64 < high)).all()
    assert task.is_held_out("test")
    assert not Mixture().is_held_out("test")


def test_a_cell_pins_every_task_and_task_pins_one() -> None:
    task = Mixture()
    assert task.axes() == ("first_digits", "second_digits")
    cell = task.at_cell(first_digits=3, second_digits=5)
    assert all(member.operand_spans == (Span(3, 3), Span(5, 5)) for member in cell.tasks)
    assert cell.num_questions() == 2 * 900 * 90_000
    one = task.at_cell(first_digits=3, task=1)
    assert one.tasks[one.task_index or 0] == Arithmetic("-", first_digits=3)
    assert set(one.examples("test", 0, 0, 20).metadata["task"].tolist()) == {1}
    assert one.alphabet() == task.alphabet(), "the vocabulary is that of all tasks"
    assert set(one.examples("test", 0, 0, 20).metadata["first_digits"].tolist()) == {3}
    mixed = Mixture((Arithmetic(digits=Span(2, 4)), Arithmetic("x", digits=Span(1, 3))))
    assert mixed.training_spans() == {"first_digits": Span(1, 4), "second_digits": Span(1, 4)}
    with pytest.raises(UserError, match="has no setting 'third_digits'"):
        task.at_cell(third_digits=3)
    with pytest.raises(UserError, match="task_index: must be from 0 to 1, not 2"):
        task.at_cell(task=2)


def test_a_task_by_itself_is_seen_where_another_may_have_the_same_questions() -> None:
    """Sums of 2 digits without carry are too few to be divided, and are sums: those of the first are then seen too."""
    task = Mixture((Arithmetic("+", digits=2), Arithmetic("+", digits=2, no_carry=True)))
    assert task.tasks[0].is_held_out("test")
    assert not task.tasks[1].is_held_out("test")
    assert not task.at_cell(task=0).is_held_out("test")


def test_tasks_without_common_axes_are_mixed_too() -> None:
    task = Mixture((Arithmetic(), Sorting(items=Span(4, 5))))
    drawn = task.examples("test", 0, 0, 100)
    assert task.axes() == ()
    assert set(drawn.metadata) == {"task"}
    assert set(task.alphabet()) >= {"+", ":", "A"}


def test_a_question_is_read_by_the_task_that_can() -> None:
    task = Mixture()
    for text, answer, number in (("3-9=", "-6", 1), ("3+9=", "12", 0)):
        read = task.parse_question(text)
        assert format_question(read, 0)[1] == answer
        assert read.metadata["task"].tolist() == [number]
    with pytest.raises(UserError, match=r"no task of the mixture can parse it: .*12\+9=.*12-9="):
        task.parse_question("3x9=")


def test_impossible_mixtures_are_refused() -> None:
    with pytest.raises(UserError, match=r"^tasks: must have at least one task"):
        Mixture(())
    with pytest.raises(UserError, match=r"^weights: must have one entry per task \(2\), or none, not 1"):
        Mixture(weights=(1,))
    with pytest.raises(UserError, match=r"^weights: must be greater than 0, not \(1, 0\)"):
        Mixture(weights=(1, 0))
    with pytest.raises(UserError, match=r"^tasks: must not contain another mixture"):
        Mixture((Mixture(),))
    with pytest.raises(UserError, match=r"^tasks: BitwiseOr must be a sampled task, not one that enumerates"):
        Mixture((BitwiseOr(), Arithmetic()))
