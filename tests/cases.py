"""Several cases in one test, where a test for each would cost more than what it does; and cases of others' code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def case(*parts: object) -> Iterator[None]:
    """Adds to an error within it what the case was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(str, parts))}")
        raise


def published_case(shared: Path, file: str, name: str) -> dict[str, Any]:
    """What published code computed; skips the test where this case is not handed out."""
    cases = json.loads((shared / "cases" / file).read_text(encoding="utf-8"))["cases"]
    found: dict[str, Any] | None = next((one for one in cases if name in (one.get("name"), one.get("id"))), None)
    if found is None:
        pytest.skip(f"the case {name} of {file} is not handed out")
    return found
