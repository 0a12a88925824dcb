"""Promises of lists to be sorted."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.mixture import Mixture
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.tasks.sorting import Sorting
from numerate.tokenizers.tokenizer import Characters
from numerate.vocabulary import ITEM_LABELS


def listed(questions: Questions, row: int) -> tuple[list[tuple[str, int]], list[str]]:
    """The items of one row, and the labels of its answer, read from the text."""
    question, answer = format_question(questions, row)
    assert question.endswith("=")
    pairs = [item.split(":") for item in question[:-1].split(",")]
    return [(label, int(number)) for label, number in pairs], answer.split(",")


def test_sorting_is_what_python_sorts() -> None:
    for task in (Sorting(), Sorting(digits=Span(7, 30), items=Span(1, 12), lengths="uniform"), Sorting(2, 99)):
        for split in ("train", "test"):
            drawn = task.examples(split, 3, 0, 200)
            for row in range(200):
                items, answer = listed(drawn, row)
                assert answer == [label for label, _ in sorted(items, key=lambda item: item[1])]
                assert len(items) == drawn.metadata["items"][row] in task.digit_and_item_spans[1]
                assert max(len(str(number)) for _, number in items) <= drawn.metadata["digits"][row]
                assert drawn.metadata["digits"][row] in task.digit_and_item_spans[0]
                start = ITEM_LABELS.index(items[0][0])
                assert [label for label, _ in items] == [ITEM_LABELS[(start + i) % 99] for i in range(len(items))]
                assert all(number > 0 for _, number in items)


@given(st.lists(st.integers(0, 10**25) | st.integers(0, 5), min_size=1, max_size=99), st.randoms())
@settings(max_examples=50, deadline=None)
def test_any_list_with_any_labels_is_read_and_sorted_with_equal_numbers_as_they_stand(
    numbers: list[int], rng: object
) -> None:
    labels = rng.sample(ITEM_LABELS, len(numbers))  # type: ignore[attr-defined]
    text = ",".join(f"{label}:{number}" for label, number in zip(labels, numbers, strict=True))
    question, answer = format_question(Sorting().parse_question(text + "="), 0)
    assert question == text + "="
    order = sorted(range(len(numbers)), key=lambda i: numbers[i])
    assert answer == ",".join(labels[i] for i in order)


def test_every_pair_of_digits_and_items_comes_equally_often() -> None:
    facts = Sorting(digits=Span(2, 4), items=Span(1, 5)).examples("train", 0, 0, 15 * 40).metadata
    counts = Counter(zip(facts["digits"].tolist(), facts["items"].tolist(), strict=True))
    assert len(counts) == 15
    assert set(counts.values()) == {40}


def test_lengths_of_numbers_are_uniform_up_to_the_most_and_numbers_of_a_length_too() -> None:
    drawn = Sorting(digits=2, items=3).draw(CounterRNG(1), np.arange(33_000))
    numbers = np.array([[number for _, number in listed(drawn, row)[0]] for row in range(2_000)]).reshape(-1)
    assert (numbers < 10).mean() == pytest.approx(0.5, abs=0.04)
    lengths = drawn.numbers.lengths.reshape(-1)
    assert np.bincount(lengths)[1:] == pytest.approx([49_500, 49_500], abs=5 * 25_000**0.5)
    values = (drawn.numbers.digits[..., -2:].astype(int) * (10, 1)).sum(axis=2).reshape(-1)
    assert (np.abs(np.bincount(values)[1:10] - 5_500) < 5 * 5_500**0.5).all()
    assert (np.abs(np.bincount(values)[10:] - 550) < 5 * 550**0.5).all()


def test_labels_begin_anywhere_in_the_circle() -> None:
    drawn = Sorting(digits=1, items=2).draw(CounterRNG(1), np.arange(30_000))
    starts = np.bincount(drawn.symbols[:, 0], minlength=99)
    assert len(starts) == 99
    assert np.abs(starts - 30_000 / 99).max() < 5 * (30_000 / 99) ** 0.5


def test_a_question_is_its_numbers_whatever_their_labels_and_padding() -> None:
    task = Sorting()

    def hashed(text: str) -> int:
        return int(task.question_hashes(task.parse_question(text))[0])

    assert hashed("A:12,B:3=") == hashed("C:12,A:3=") == hashed("A:0012,B:3")
    assert len({hashed(text) for text in ("A:12,B:3=", "A:3,B:12=", "A:12,B:3,C:0=", "A:12,B:4=", "A:12=")}) == 5
    wide = Questions.concatenate(
        [task.parse_question("A:12,B:3="), task.parse_question(",".join(f"{x}:{'9' * 30}" for x in ITEM_LABELS[:20]))]
    )
    assert int(task.question_hashes(wide)[0]) == hashed("A:12,B:3=")
    mixed = Mixture((task, Sorting(items=3)))
    assert mixed.question_hashes(mixed.parse_question("A:12,B:3="))[0] == hashed("A:12,B:3=")  # type: ignore[index]


def test_lists_too_few_to_divide_are_seen_and_the_task_says_so() -> None:
    assert not Sorting(digits=1, items=3).is_held_out("test")  # 9^3 = 729 lists
    assert not Sorting(digits=5, items=3).is_held_out("test")  # some of its lists are of single digits
    assert Sorting(digits=1, items=4).is_held_out("test")  # 6,561
    assert Sorting(digits=Span(1, 9), items=Span(4, 9)).is_held_out("test")
    assert Sorting(digits=1, items=4).num_questions() == 9**4
    assert Sorting(digits=Span(1, 2), items=Span(1, 2)).num_questions() == 99 + 99**2


def test_ood_validation_has_longer_numbers_and_more_of_them() -> None:
    assert Sorting().ood_validation_task() == Sorting(digits=Span(11, 12), items=Span(11, 12))
    assert Sorting(items=95).ood_validation_task() == Sorting(digits=Span(11, 12), items=Span(96, 99))
    assert Sorting(items=99).ood_validation_task() is None


def test_the_longest_list_is_as_long_as_any() -> None:
    task, tokenizer = Sorting(digits=Span(1, 2), items=Span(1, 3)), Characters()
    vocabulary = tokenizer.build_vocabulary(task)
    drawn = tokenizer.encode_examples(task.examples("train", 0, 0, 2000), vocabulary)
    assert (
        int(tokenizer.encode_examples(task.longest_questions(), vocabulary).lengths[0])
        == int(drawn.lengths.max())
        == 3 * 5 + 5 + 1
    )


def test_what_is_no_list_is_refused() -> None:
    for text in ("", "A:", "A", "A:1;B:2=", "A:1,B:x=", "A:-1=", "12+3=", "A:1,=", "A:٣=", "::1,A:2="):
        with pytest.raises(UserError, match="an example is A:21,B:7,C:9="):
            Sorting().parse_question(text)
    for text in ("D:1,A:2=", "AB:1=", "7:1="):
        with pytest.raises(UserError, match=r"a label must be one character of ABCEF"):
            Sorting().parse_question(text)
    with pytest.raises(UserError, match="labels must be distinct"):
        Sorting().parse_question("A:1,A:2=")
