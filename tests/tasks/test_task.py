"""Promises of every task, and of what a newcomer writes."""

import itertools
import random
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Example, Numbers, Questions
from numerate.tasks.task import MIN_SPLIT_SIZE, SPLITS, Task, can_be_split
from promises import (  # noqa: F401
    test_an_example_does_not_depend_on_the_portions,
    test_its_alphabet_holds_all_the_texts_it_uses,
    test_its_strata_have_questions_of_their_sizes,
    test_no_question_that_can_be_held_out_is_in_two_splits,
    test_seed_and_split_change_what_is_drawn,
    test_the_axes_of_its_grid_are_fields_that_can_be_fixed,
)


@dataclass(frozen=True)
class Doubling(Task):
    """What a newcomer writes: one example at a time."""

    digits: int | Span = setting(Span(1, 4), "how many digits the number has")

    def example(self, rng: random.Random) -> Example:
        digits = rng.randint(Span.from_value(self.digits).low, Span.from_value(self.digits).high)
        number = rng.randrange(10**digits)
        return Example(f"2*{number}=", str(2 * number))


@dataclass(frozen=True)
class Tiny(Task):
    """Ten questions in all."""

    says_so: bool = setting(True, "whether it knows that it is small")

    def draw(self, rng: CounterRNG, indices: np.ndarray) -> Questions:
        number = rng.integers(10, (len(indices), 1), np.int16)
        symbols = np.concatenate([number, np.full_like(number, 10), number], axis=1)
        return Questions((*"0123456789?",), symbols, Numbers.empty(len(indices)), np.full(len(indices), 2))

    def num_questions(self) -> int | None:
        return 10 if self.says_so else None


def test_a_newcomer_gives_one_example_at_a_time() -> None:
    task = Doubling()
    drawn = task.examples("train", 0, 0, 50)
    for row in range(50):
        text = "".join(drawn.alphabet[s] for s in drawn.symbols[row] if s >= 0)
        question, answer = text[: drawn.prompt_lengths[row]], text[drawn.prompt_lengths[row] :]
        assert int(question[2:-1]) * 2 == int(answer)
    assert drawn.take(slice(20, 30)).is_same(task.examples("train", 0, 20, 10))
    assert set(task.alphabet()) == set("0123456789*=")
    test, train = (set(task.examples(split, 0, 0, 600).hashes().tolist()) for split in ("test", "train"))
    assert not test & train


def test_an_example_without_its_size_along_an_axis_is_refused_with_how_to_say_it() -> None:
    class Sized(Doubling):
        def axes(self) -> tuple[str, ...]:
            return ("digits",)

    message = (
        r"^example: Sized has the axes digits, but the metadata of an example lacks digits; "
        r'return Example\(question, answer, \{"digits": 4\}\) with the size along each axis$'
    )
    with pytest.raises(UserError, match=message):
        Sized().examples("train", 0, 0, 4)


def test_an_example_that_is_none_is_refused_with_what_is_right() -> None:
    @dataclass(frozen=True)
    class Bare(Task):
        def example(self, rng: random.Random) -> Example:
            return "1+1="  # type: ignore[return-value]

    with pytest.raises(
        UserError, match=r"^example: Bare must return Example\(question, answer\) of two texts, not '1\+1='$"
    ):
        Bare().examples("train", 0, 0, 4)


def test_a_newcomer_may_give_questions_with_number_slots_too() -> None:
    @dataclass(frozen=True)
    class Naming(Task):
        def example(self, rng: random.Random) -> Questions:
            digits = np.array([[[rng.randrange(1, 10)]]], dtype=np.uint8)
            symbols = np.array([[-1, 0, -1]], dtype=np.int16)
            return Questions(("=",), symbols, Numbers(digits, np.ones((1, 1), dtype=np.int64)), np.array([2]))

        def num_questions(self) -> int:
            return 9

    drawn = Naming().examples("train", 0, 0, 20)
    assert len(drawn) == 20
    assert len(set(drawn.numbers.digits.reshape(-1).tolist())) > 3


def test_a_small_task_is_seen_and_every_split_draws_from_all_of_it() -> None:
    task = Tiny()
    assert not task.is_held_out("test")
    for split in ("train", "validation", "test"):
        assert len(set(task.examples(split, 0, 0, 300).hashes().tolist())) == 10


def test_a_small_task_that_does_not_say_so_is_refused() -> None:
    ten = Questions.from_examples([Example(f"{number}?", str(number)) for number in range(10)])
    fractions = Tiny().question_hashes(ten) / 2.0**64
    empty = next(split for split, (low, high) in SPLITS.items() if not ((fractions >= low) & (fractions < high)).any())
    with pytest.raises(UserError, match=rf"too few questions for '{empty}'; num_questions\(\) must return"):
        Tiny(says_so=False).examples(empty, 0, 0, 300)


def test_a_task_is_divided_where_its_smallest_split_has_enough_questions() -> None:
    assert MIN_SPLIT_SIZE == 100
    assert can_be_split(4000)
    assert not can_be_split(3999)


def test_the_splits_share_all_questions_out() -> None:
    edges = sorted(SPLITS.values())
    assert edges[0][0] == 0
    assert edges[-1][1] == 1
    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
    assert SPLITS["train"] == (0.1, 1.0)


def test_errors_say_what_would_be_right() -> None:
    with pytest.raises(
        UserError, match=r"digitz: Doubling has no setting 'digitz'; it has: digits. Did you mean 'digits'\?"
    ):
        Doubling().at_cell(digitz=3)
    with pytest.raises(UserError, match=r"split: must be one of .*, not 'tset'\. Did you mean 'test'\?"):
        Doubling().examples("tset", 0, 0, 1)
    with pytest.raises(UserError, match="no OOD validation"):
        Doubling().examples("ood_validation", 0, 0, 1)
    with pytest.raises(UserError, match="cannot parse questions"):
        Doubling().parse_question("2*3=")
    with pytest.raises(TypeError, match="draw"):
        type("Silent", (Task,), {})


def test_questions_are_drawn_and_tokenised_without_torch() -> None:
    code = "import sys, numerate.tasks.arithmetic, numerate.tokenizers.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0
