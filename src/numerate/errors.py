"""The exceptions of the program.

`UserError` is for wrong input (exit status 2), `OperationalError` for a failure at run time (exit status 1). A message
is one or two lines: what is wrong, where, and what is required. Any other exception is a bug, unless it comes from a
file of the user's own.
"""

import importlib
import os
import traceback
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

_MAX_MESSAGE_LENGTH = 300
"""Maximum number of characters of a message that are shown."""


class _NumerateError(Exception):
    should_print: bool | None = None
    """Whether this process, of several, prints the error; None: rank 0 does."""

    exit_status = 1  # of a command that ends with it


class UserError(_NumerateError):
    """An error that the user can fix: a misspelled name, an invalid value, a folder that is not a run."""

    exit_status = 2


class OperationalError(_NumerateError):
    """A failure at run time: a full disk, a loss that is not finite, a corrupted checkpoint."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A closing hint, or nothing: `did_you_mean("Lstm", ["LSTM"])` is `" Did you mean 'LSTM'?"`.

    Case and the difference between `-` and `_` are ignored.
    """
    choice_by_normalized_name = {name.lower().replace("-", "_"): name for name in choices}
    matches = get_close_matches(word.lower().replace("-", "_"), choice_by_normalized_name, n=1, cutoff=0.6)
    return f" Did you mean {choice_by_normalized_name[matches[0]]!r}?" if matches else ""


def pluralize(count: int, noun: str) -> str:
    """A count with its noun.

    >>> pluralize(2, "task")
    '2 tasks'
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def error_text(error: BaseException) -> str:
    """The whole message of an error of another library in one line, or the name of its class."""
    return " ".join(str(error).split()) or type(error).__name__


def raise_first(problems: Iterable[str]) -> None:
    """Raises a `UserError` with the first of these messages, if there is one. They are made one by one, so that a check
    may rely on those before it."""
    for problem in problems:
        raise UserError(problem)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raises `UserError` for a value that is none of the choices.

    >>> check_choice("split", "tset", ["train", "test"])
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: split: must be one of train, test, not 'tset'. Did you mean 'test'?
    """
    choices = list(choices)
    if value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise UserError(f"{name}: must be one of {', '.join(choices)}, not {value!r}{f'.{hint}' if hint else ''}")


def check_positive(name: str, value: int | None) -> None:
    """Raises `UserError` for a number below 1.

    >>> check_positive("workers", 0)
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: workers: must be at least 1, not 0
    """
    if value is not None and value < 1:
        raise UserError(f"{name}: must be at least 1, not {value}")


def import_extra(module: str, feature: str, extra: str) -> Any:
    """Imports a package that is installed with an extra. Raises `UserError` if it is not, with how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(
            f"{feature}: the package {package} is not installed; pip install 'numerate[{extra}]'"
        ) from error


def chain_of_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def describe_error(error: BaseException) -> str:
    """An unexpected exception, in one line: `"TypeError in my.py, line 12: unsupported operand ..."` where it
    comes from a file of the user's own (`user_code_location`), otherwise as an internal error."""
    name, message, location = type(error).__name__, " ".join(str(error).split()), user_code_location(error)
    message = message if len(message) <= _MAX_MESSAGE_LENGTH else f"{message[: _MAX_MESSAGE_LENGTH - 4]} ..."
    if location is not None:
        return f"{name} in {location}{f': {message}' if message else ''}"
    return f"internal error, please report it: {name}{f': {message}' if message else ''}"


def user_code_location(error: BaseException) -> str | None:
    """`my.py, line 12` where an exception comes from a file of the user's own, None if it does not.

    Such a file belongs neither to numerate nor to an installed package. The innermost call outside of packages decides:
    an error in torch is the user's if the user's file called it, and ours if we did.
    """
    import sysconfig

    package_dir = os.path.realpath(os.path.dirname(__file__)) + os.sep
    standard_library_dirs = tuple(
        os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
    )
    site_packages_parts = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = os.path.realpath(frame.filename)
        if path.startswith(package_dir):
            return None
        is_library_code = path.startswith(standard_library_dirs) or any(part in path for part in site_packages_parts)
        if not is_library_code and not frame.filename.startswith("<"):
            return f"{os.path.basename(path)}, line {frame.lineno}"
    return None


def line_number_in(error: BaseException, file: str) -> int | None:
    """The last line of a file that was at work when the error came; None where none was."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    return next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == file), None)
