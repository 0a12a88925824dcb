"""Errors about the user's files, names and installation, in one wording."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from numerate.errors import UserError


def file_error(path: str | Path, problem: str, line: int | None = None) -> UserError:
    """The error to raise for a file: what is wrong with it, and where.

    >>> file_error("sums.txt", "has no answer", line=3)
    UserError('sums.txt, line 3: has no answer')
    """
    return UserError(f"{path}{'' if line is None else f', line {line}'}: {problem}")


def duplicate_names(setting: str, names: Sequence[str]) -> Iterator[str]:
    """The conflict (`Spec.conflicts`) of a setting in which a name comes twice."""
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        yield f"{setting}: must not contain {twice!r} twice"
