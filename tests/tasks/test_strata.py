"""Strata: questions that uniformly drawn ones almost never are, with facts about every question."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks import carry
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.mixture import Mixture
from numerate.tasks.multiplication import Multiplication
from numerate.tasks.plain import format_question
from numerate.tasks.task import Task

EXPECTED = {
    "nines_plus_one": "999+1=1000",
    "one_plus_nines": "1+999=1000",
    "nines_plus_nines": "999+999=1998",
    "power_minus_one": "100-1=99",
    "power_minus_nines": "100-99=1",
    "nines_times_nine": "999x9=8991",
    "nine_times_nines": "9x999=8991",
    "nines_times_nines": "999x999=998001",
}


def cells(task: Task, name: str, size: int) -> dict[str, dict[str, Any]]:
    return {cell["stratum"]: cell for cell in task.strata(size)[name]}


def texts(task: Task, count: int, split: str = "test") -> list[str]:
    questions = task.examples(split, 0, 0, count)
    return ["".join(format_question(questions, row)) for row in range(count)]


def operands(text: str, operator: str) -> list[int]:
    return [int(number) for number in text.partition("=")[0].split(operator)]


@pytest.mark.parametrize("operator", "+-x")
def test_a_cascade_with_one_question_has_that_question_once(operator: str) -> None:
    for name, cell in cells(Arithmetic(operator), "cascade", 3).items():  # type: ignore[arg-type]
        task = Arithmetic(operator).at_cell(**cell)  # type: ignore[arg-type]
        whole = task.all_questions()
        assert (whole is None) == (name not in EXPECTED)
        if whole is not None:
            assert ["".join(format_question(whole, row)) for row in range(len(whole))] == [EXPECTED[name]]
            assert [whole.metadata[axis][0] for axis in task.axes()] == [cell[axis] for axis in task.axes()]


@pytest.mark.parametrize(
    ("name", "operator", "total"), [("complement", "+", 10**6), ("power_minus_number", "-", 10**5)]
)
def test_a_cascade_of_many_questions_is_drawn_and_held_out(name: str, operator: str, total: int) -> None:
    cell = cells(Arithmetic(operator), "cascade", 6)[name]  # type: ignore[arg-type]
    task = Arithmetic(operator).at_cell(**cell)  # type: ignore[arg-type]
    found, trained = (texts(task, 200, split) for split in ("test", "train"))
    for first, second in (operands(text, operator) for text in found):
        assert first + second == total if operator == "+" else first == total
        assert (len(str(first)), len(str(second))) == (cell["first_digits"], cell["second_digits"])
        carried = longest_chain(first, second, operator)
        assert carried == (6 if operator == "+" else 5), text  # every column
    assert len({*found}) > 190
    assert {frozenset(operands(text, operator)) for text in found}.isdisjoint(
        frozenset(operands(text, operator)) for text in trained
    )
    assert task.is_held_out("test")


@pytest.mark.parametrize("operator", "+-x")
def test_strata_of_thousands_of_digits_are_drawn(operator: str) -> None:
    for name in ("cascade", "uneven"):
        for cell in cells(Arithmetic(operator), name, 2000).values():  # type: ignore[arg-type]
            (text,) = texts(Arithmetic(operator).at_cell(**cell), 1)  # type: ignore[arg-type]
            assert max(map(len, text.partition("=")[0].split(operator))) == 2000


def test_a_cascade_may_be_trained_at_several_lengths() -> None:
    task = Arithmetic("x", first_digits=3, second_digits=Span(4, 6), stratum="nines_times_nines")
    assert {*texts(task, 60, "train")} == {f"{n}x{n}={n * n}" for n in (9999, 99999, 999999)}
    assert Arithmetic(digits=20, longest_carry_chain=3).ood_validation_task() is None


@pytest.mark.parametrize(("operator", "longest"), [("+", 12), ("-", 11)])
def test_carry_chains_have_the_length_that_was_asked(operator: str, longest: int) -> None:
    task = Arithmetic(operator)  # type: ignore[arg-type]
    strata = task.strata(12)["carries"]
    assert [cell["longest_carry_chain"] for cell in strata] == [*range(longest + 1)]
    for cell in strata:
        for text in texts(task.at_cell(**cell), 40):
            first, second = sorted(operands(text, operator), reverse=operator == "-")
            assert len(str(first)) == len(str(second)) == 12
            assert longest_chain(first, second, operator) == cell["longest_carry_chain"]


def longest_chain(first: int, second: int, operator: str) -> int:
    """By adding, or subtracting, one column after the other by hand."""
    carries, carried = [], 0
    while first or second or carried:
        x, y = first % 10, second % 10
        carried = x + y + carried > 9 if operator == "+" else x - y - carried < 0
        carries.append(carried)
        first, second = first // 10, second // 10
    return max((len([*run]) for carried, run in groupby(carries) if carried), default=0)


@pytest.mark.parametrize("operator", "+-")
def test_all_pairs_of_a_carry_chain_are_drawn_equally_often(operator: str) -> None:
    pairs = [(x, y) for x in range(10, 100) for y in range(10, 100)]
    for chain in range(carry.max_chain(operator, 2) + 1):
        own = {
            (x, y)
            for x, y in pairs
            if longest_chain(*((x, y) if operator == "+" or x > y else (y, x)), operator) == chain
        }
        drawn = carry.draw_operands_with_chain(CounterRNG(random_key(chain)), operator, 40 * len(own), 2, chain, 8)
        numbers = drawn.astype(np.int64) @ 10 ** np.arange(8)
        found, counts = np.unique(numbers, axis=0, return_counts=True)
        assert {(int(x), int(y)) for x, y in found} == own
        assert carry.count_pairs_with_chain(operator, 2, chain) == len(own)
        different = found[:, 0] != found[:, 1]  # differences of equal operands come twice as often
        assert counts[different].std() < 1.3 * counts[different].mean() ** 0.5


@pytest.mark.parametrize("task", [Arithmetic("x", digits=Span(1, 6)), Multiplication(digits=Span(1, 6))])
def test_a_product_carries_where_its_columns_do(task: Task) -> None:
    questions = task.examples("test", 0, 0, 60)
    facts = task.question_facts(questions)
    for row, (first, second) in enumerate(questions.numbers.units_first[:, :2].tolist()):
        carried, carries = 0, []
        for column in range(len(first)):
            carried = (sum(first[i] * second[column - i] for i in range(column + 1)) + carried) // 10
            carries.append(carried > 0)
        assert facts["carries"][row] == sum(carries)
        runs = [len([*run]) for one, run in groupby(carries) if one]
        assert facts["longest_carry_chain"][row] == max(runs, default=0)


def test_facts_of_a_mixture_are_those_of_its_tasks() -> None:
    task = Mixture((Arithmetic("+"), Arithmetic("-")))
    questions = task.examples("test", 0, 0, 50)
    for index, own in enumerate(task.tasks):
        rows = np.flatnonzero(questions.metadata["task"] == index)
        for name, values in own.question_facts(questions.take(rows)).items():
            assert task.question_facts(questions)[name][rows].tolist() == values.tolist()


def test_a_mixture_has_the_strata_that_its_tasks_share() -> None:
    assert {name: len(of) for name, of in Mixture().strata(8).items()} == {"uneven": 4, "carries": 8}
    assert {*Mixture((Arithmetic(), Multiplication())).strata(8)} == {"uneven"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stratum": "power_minus_one"}, r"^stratum: must be nines_plus_one, .* or null for '\+', not power_minus_one"),
        ({"stratum": "complement", "no_carry": True}, r"^stratum: must be null with no_carry"),
        ({"operator": "-", "stratum": "power_minus_one", "digits": 1}, r"^stratum: .* 2 digits or more"),
        ({"longest_carry_chain": 2}, r"^longest_carry_chain: must be null unless both operands have one length"),
        ({"operator": "-", "digits": 5, "longest_carry_chain": 5}, r"must be at most 4 for 5 - 5 digits, not 5"),
        ({"operator": "x", "digits": 5, "longest_carry_chain": 2}, r"^longest_carry_chain: must be null for products"),
    ],
)
def test_what_has_no_questions_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Arithmetic(**settings)
