"""Promises of the positional OR: its questions are listed, each once."""

import numpy as np
import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions


def texts(questions: Questions | None) -> list[str]:
    assert questions is not None
    return ["".join(format_question(questions, row)) for row in range(len(questions))]


def swapped(text: str) -> str:
    """The same question with its operands in the other order; where they are equally long the set has it once."""
    first, second, answer = text.replace("+", "=").split("=")
    return text if len(first) == len(second) else f"{second}+{first}={answer}"


def is_right(text: str) -> bool:
    """By the definition, from the text alone."""
    question, answer = text.split("=")
    first, second = question.split("+")
    longer, shorter = max(first, second, key=len), min(first, second, key=len)
    holder, other = (first, second) if "1" in first else (second, first)
    return (
        set(other) == {"0"}
        and holder.count("1") == 1
        and len(holder) == len(shorter)
        and answer == "".join("1" if i == holder.index("1") else "0" for i in range(len(longer)))
    )


@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 5), (3, 3), (1, 1), (40, 7)])
def test_a_cell_has_each_of_its_questions_once(first: int, second: int) -> None:
    cell = BitwiseOr().at_cell(first_digits=first, second_digits=second)
    every = texts(cell.all_questions())
    assert len(set(every)) == len(every) == cell.num_questions() == min(first, second)
    assert all(is_right(text) for text in every)
    assert set(texts(cell.examples("test", 0, 0, 5 * len(every)))) == set(every)
    assert sorted(texts(cell.examples("test", 1, 0, len(every)))) == sorted(every)


def test_all_lengths_together_have_as_many_questions_as_published() -> None:
    assert [BitwiseOr(digits=Span(1, n)).num_questions() for n in (5, 20)] == [55, 2870]
    every = texts(BitwiseOr().all_questions())
    assert len(set(every)) == len(every) == 2870
    assert all(is_right(text) for text in every)
    equal = [text for text in every if text.index("+") == text.index("=") - text.index("+") - 1]
    assert 50 < sum("1" in text.split("+")[0] for text in equal) < 160  # of 210, a coin each


def test_training_goes_through_all_of_them_in_rounds_of_different_order() -> None:
    task = BitwiseOr(digits=Span(1, 5))
    rounds = [texts(task.examples("train", 7, start, 55)) for start in (0, 55, 110)]
    assert all(len(set(one)) == 55 for one in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert rounds[0] != texts(task.examples("train", 8, 0, 55))


def test_a_training_set_of_some_is_fixed_and_the_others_are_held_out() -> None:
    task = BitwiseOr(max_examples=100)
    trained = set(texts(task.examples("train", 0, 0, 100)))
    assert len(trained) == 100
    known = trained | {swapped(text) for text in trained}
    assert set(texts(task.examples("train", 5, 300, 400))) == trained
    others = set(texts(task.all_questions()))
    assert others == {text for text in texts(BitwiseOr().all_questions()) if text not in known}
    assert not {swapped(text) for text in others} & known, "the same question was in training"
    for split in ("test", "validation"):
        assert set(texts(task.examples(split, 0, 0, len(others)))) == others
    assert task.is_held_out("test")
    assert not task.is_held_out("train")
    cells = [task.at_cell(first_digits=i, second_digits=j) for i in range(1, 21) for j in range(1, 21)]
    found = [texts(cell.all_questions()) for cell in cells]
    for cell, some in zip(cells, found, strict=True):
        assert cell.is_held_out("test") == (not set(some) & known)
        assert some
    held = [cell.splittable_mask(cell.draw(CounterRNG(1), np.arange(3))).tolist() for cell in cells]
    assert held == [[cell.is_held_out("test")] * 3 for cell in cells]
    assert task.splittable_mask(task.examples("test", 0, 0, 50)).all()
    everything = {text for some in found for text in some}
    assert others <= everything
    spread = {tuple(map(len, text.split("=")[0].split("+"))) for text in trained}
    assert len(spread) > 60


def test_a_question_with_its_operands_swapped_is_the_same_question() -> None:
    task = BitwiseOr()
    questions = task.all_questions()
    assert questions is not None
    hashes = dict(zip(texts(questions), task.question_hashes(questions).tolist(), strict=True))
    assert all(hashes[text] == hashes[swapped(text)] for text in hashes)
    assert len(set(hashes.values())) == len({min(text, swapped(text)) for text in hashes})
    shuffled = questions.take(np.array([2000, 3]))
    assert task.question_hashes(shuffled).tolist() == [[*hashes.values()][2000], [*hashes.values()][3]]


def test_without_a_training_set_of_some_only_longer_cells_are_new() -> None:
    task = BitwiseOr(digits=Span(1, 6))
    assert not task.is_held_out("test")
    assert not task.at_cell(first_digits=6, second_digits=2).is_held_out("test")
    assert task.at_cell(first_digits=7, second_digits=2).is_held_out("test")
    assert not task.splittable_mask(task.examples("test", 0, 0, 20)).any()
    ood_task = task.ood_validation_task()
    assert ood_task is not None
    assert ood_task.splittable_mask(ood_task.examples("test", 0, 0, 20)).all()
    assert ood_task.training_spans() == {"first_digits": Span(7, 7), "second_digits": Span(7, 7)}
    assert ood_task.is_held_out("ood_validation")
    assert len(set(texts(task.examples("ood_validation", 0, 0, 30)))) == 7
    assert BitwiseOr(digits=250).ood_validation_task() is None


def test_many_questions_are_not_listed_as_a_whole() -> None:
    assert BitwiseOr(digits=Span(1, 40)).all_questions() is None
    assert len(texts(BitwiseOr(digits=Span(1, 40)).examples("test", 0, 0, 60))) == 60


def test_it_can_also_be_drawn_with_replacement() -> None:
    task = BitwiseOr(digits=Span(2, 3))
    drawn = texts(task.draw(CounterRNG(1), np.arange(900)))
    assert all(is_right(text) for text in drawn)
    assert len(set(drawn)) == task.num_questions() == 2 + 2 + 2 + 3


def test_a_question_is_read_and_answered() -> None:
    task = BitwiseOr()
    assert texts(task.parse_question("0000+01=")) == ["0000+01=0100"]
    assert texts(task.parse_question(" 001 + 000 ")) == ["001+000=001"]
    assert texts(task.parse_question("000+001")) == ["000+001=001"]
    assert (
        task.question_hashes(task.parse_question("0000+01="))
        == task.question_hashes(task.at_cell(first_digits=4, second_digits=2).all_questions())[1]
    )
    for text in ("12+3=", "01+", "", "0+1=1"):
        with pytest.raises(UserError, match=r"an example is 0000\+01="):
            task.parse_question(text)
    for text in ("0100+00=", "11+000=", "00+000=", "01+010="):
        with pytest.raises(UserError, match="in the shorter operand"):
            task.parse_question(text)


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"^operator: '=' must be one character"):
        BitwiseOr(operator="=")
    with pytest.raises(
        UserError, match=r"^max_examples: must be at most 2870, the number of questions with .*, not 2871"
    ):
        BitwiseOr(max_examples=2871)
    with pytest.raises(UserError, match=r"^split: none of the trained questions of digits=1:20 has these lengths"):
        BitwiseOr().at_cell(first_digits=21, second_digits=3).examples("train", 0, 0, 1)
