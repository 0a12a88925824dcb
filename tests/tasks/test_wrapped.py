"""A function that draws a question is a task. The promises of tasks run on that of docs/adding.md."""

import random
from typing import Any

import pytest

import numerate
from cases import pairs
from numerate.errors import UserError


@numerate.wrap_task
def halves(rng: random.Random, digits: int = 5) -> tuple[str, str]:
    """Half of an even number."""
    number = rng.randrange(10**digits)
    return f"{2 * number}/2=", str(number)


@numerate.wrap_task
def faulty(rng: random.Random, drawn: str = "3") -> Any:
    return {"3": 3, "numbers": (1, 2), "three": ("a", "b", "c")}[drawn]


def test_it_draws_what_the_function_returns_with_its_settings() -> None:
    for question, answer in pairs(halves(digits=4).examples("train", 0, 0, 50)):
        assert int(question.removesuffix("/2=")) == 2 * int(answer) < 20_000
    assert halves() == halves(digits=5)


@pytest.mark.parametrize("drawn", ["3", "numbers", "three"])
def test_anything_but_two_texts_is_refused(drawn: str) -> None:
    with pytest.raises(UserError, match=r"^task: faulty must return a question and its answer, two texts, not "):
        faulty(drawn=drawn).examples("train", 0, 0, 4)
