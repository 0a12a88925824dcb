"""The executor of a command: `executor=ray executor.address=auto workers=8 timeout=3600`."""

from collections.abc import Sequence
from dataclasses import dataclass

from numerate import catalogue
from numerate.config import override
from numerate.config.values import fold, settings_of
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.executors.local import Local

SHORT = ("workers", "timeout")
"""Settings of every executor that may be written without `executor.`."""


_EXAMPLES = {"workers": "2", "timeout": "600"}
_UNITS = {"timeout": ", in seconds"}


@dataclass(frozen=True)
class _Executing:
    executor: Executor = Local()


def executor_of(words: Sequence[str]) -> tuple[list[str], Executor]:
    """Splits the words of a command into the others, and the executor that is set.

    >>> executor_of(["quickstart", "seeds=3", "executor=ray", "executor.num_gpus=0.25", "workers=8"])
    (['quickstart', 'seeds=3'], Ray(workers=8, ..., num_gpus=0.25))

    An executor goes by its class name in any case, `local` where none is named. The order of the words does not matter.
    Raises `UserError` for an executor or a setting that there is not, with the nearest that there is, and for a value
    that it does not take.
    """
    concerned = [word for word in words if _concerned(word)]
    named = [word for word in concerned if _key(word) == "executor"]
    others = [word for word in concerned if word not in named]
    executor = override(_Executing(), [f"executor={_named(word.partition('=')[2].strip())}" for word in named])
    for word in others:
        _refuse_others_setting(_key(word).split("."), type(executor.executor))
    changes = [f"executor.{word.strip()}" if _key(word) in SHORT else word for word in others]
    try:
        made = override(executor, changes).executor
    except UserError as error:
        raise _as_typed(error, others) from error
    return [word for word in words if word not in concerned], made


def executor_requested(words: Sequence[str]) -> bool:
    """Whether any word of a command sets its executor."""
    return any(map(_concerned, words))


def _as_typed(error: UserError, words: Sequence[str]) -> UserError:
    """The error of a setting in `SHORT`, under the name that was typed and with an example."""
    path, _, message = str(error).partition(": ")
    name = path.removeprefix("executor.")
    typed = {_key(word) for word in words} & {name, path}
    if name not in SHORT or len(typed) != 1:
        return error
    message = message.partition("; for example ")[0]
    word = typed.pop()
    return UserError(f"{word}: {message}; for example {word}={_EXAMPLES[name]}{_UNITS.get(name, '')}")


def _concerned(word: str) -> bool:
    return "=" in word and (_key(word) in ("executor", *SHORT) or _key(word).startswith("executor."))


def _key(word: str) -> str:
    return fold(word.partition("=")[0].strip())


def _refuse_others_setting(path: list[str], chosen: type) -> None:
    """Raises `UserError` for a setting of another executor, naming that executor."""
    name = path[-1]
    if name in settings_of(chosen) or len(path) != 2:
        return
    kinds = [kind for kind in catalogue.variants("Executor") if name in settings_of(kind)]
    if kinds:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise UserError(
            f"executor.{name}: {chosen.__name__} has no such setting, {names} has: executor={kinds[0].__name__.lower()}"
        )


def _named(text: str) -> str:
    """The name of an executor as its class has it: `ray(num_gpus=1)` is `Ray(num_gpus=1)`."""
    name, bracket, settings = text.partition("(")
    by_lower = {known.lower(): known for known in catalogue.kinds().get("Executor", {})}
    return by_lower.get(name.strip().lower(), name.strip()) + bracket + settings
