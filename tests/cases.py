"""Several cases in one test, where a test for each would cost more than what it does."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*parts: object) -> Iterator[None]:
    """Adds to an error within it what the case was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(str, parts))}")
        raise
