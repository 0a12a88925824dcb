"""What is wrong with the user's files, names and installation, said one way."""

from collections.abc import Sequence
from pathlib import Path

from numerate.errors import UserError, check_choice


def file_error(path: str | Path, problem: str, line: int | None = None) -> UserError:
    """The error to raise for a file: what is wrong with it, and where.

    >>> file_error("sums.txt", "has no answer", line=3)
    UserError('sums.txt, line 3: has no answer')
    """
    return UserError(f"{path}{'' if line is None else f', line {line}'}: {problem}")


def check_names(setting: str, names: Sequence[str], choices: Sequence[str] | None = None) -> None:
    """Raises `UserError` for a name that comes twice, or is not one of `choices`."""
    for number, name in enumerate(names):
        if choices is not None:
            check_choice(setting, name, choices)
        if name in names[:number]:
            raise UserError(f"{setting}: must not contain {name!r} twice")
