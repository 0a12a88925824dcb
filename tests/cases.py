"""Several cases in one test, where a test for each would cost more than what it does; and questions as texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numerate.tasks.plain import format_question


@contextmanager
def case(*parts: object) -> Iterator[None]:
    """Adds to an error within it what the case was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(str, parts))}")
        raise


def pairs(questions: Any) -> list[tuple[str, str]]:
    """Questions with their answers, as a person writes them."""
    assert questions is not None
    return [format_question(questions, row) for row in range(len(questions))]


def whole(task: Any, split: str) -> list[tuple[str, str]]:
    """All questions of a split."""
    return pairs(task.all_questions(split))
