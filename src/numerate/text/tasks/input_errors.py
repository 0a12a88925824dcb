"""What is wrong with the user's files, names and installation, said one way."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from numerate.errors import UserError, did_you_mean


def file_error(path: str | Path, problem: str, line: int | None = None) -> UserError:
    """The error to raise for a file: what is wrong with it, and where.

    >>> file_error("sums.txt", "has no answer", line=3)
    UserError('sums.txt, line 3: has no answer')
    """
    return UserError(f"{path}{'' if line is None else f', line {line}'}: {problem}")


def check_choice(setting: str, value: str, choices: Iterable[str]) -> None:
    """Raises `UserError` for a value that is not one of `choices`; it suggests the nearest."""
    choices = list(choices)
    if value not in choices:
        raise UserError(
            f"{setting}: there is no {value!r}; there are: {', '.join(choices)}.{did_you_mean(value, choices)}"
        )


def check_names(setting: str, names: Sequence[str], choices: Sequence[str] | None = None) -> None:
    """Raises `UserError` for a name that comes twice, or is not one of `choices`."""
    for number, name in enumerate(names):
        if choices is not None:
            check_choice(setting, name, choices)
        if name in names[:number]:
            raise UserError(f"{setting}: must not contain {name!r} twice")
