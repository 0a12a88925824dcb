"""The exceptions of the program.

`UserError` is for wrong input (exit status 2), `OperationalError` for a failure at run time (exit status 1). Either
message is one or two lines: what, where, and what would be right. Any other exception is a bug of the program, unless
it comes from a file of the user's own.
"""

import os
import traceback
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 300
"""Most characters of a message that are shown."""


class _NumerateError(Exception):
    speaker: bool | None = None
    """Whether this process prints it, of several that it ends; None: rank 0 does."""


class UserError(_NumerateError):
    """Something the user can put right: a mistyped name, an impossible value, a folder that is no run."""


class OperationalError(_NumerateError):
    """Something that went wrong while working: a full disk, a loss that is not finite, a checkpoint that is torn."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A closing hint, or nothing: `did_you_mean("Lstm", ["LSTM"])` is `" Did you mean 'LSTM'?"`.

    Case and the difference between `-` and `_` are ignored when looking for the nearest name.
    """
    folded = {name.lower().replace("-", "_"): name for name in known}
    near = get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def in_words(error: BaseException) -> str:
    """An exception that nobody expected, in one line: `"TypeError in my.py, line 12: unsupported operand ..."` where it
    comes from a file of the user's own (`users_line`), else a fault of the program."""
    name, message, location = type(error).__name__, " ".join(str(error).split()), users_line(error)
    message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 4]} ..."
    if location is not None:
        return f"{name} in {location}{f': {message}' if message else ''}"
    return f"this is a fault of the program: {name}{f': {message}' if message else ''}"


def users_line(error: BaseException) -> str | None:
    """`my.py, line 12` where an exception comes from a file of the user's own, None where it does not.

    Such a file is neither ours nor of an installed package. The innermost call that is no package's decides: an error
    in torch is the user's where his file called it, and ours where we did.
    """
    import sysconfig

    ours = os.path.realpath(os.path.dirname(__file__)) + os.sep
    standard = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
    installed = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = os.path.realpath(frame.filename)
        if path.startswith(ours):
            return None
        packaged = path.startswith(standard) or any(part in path for part in installed)
        if not packaged and not frame.filename.startswith("<"):
            return f"{os.path.basename(path)}, line {frame.lineno}"
    return None


def line_in(error: BaseException, file: str) -> int | None:
    """The last line of a file that was at work when the error came; None where none was."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    return next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == file), None)
