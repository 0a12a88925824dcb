"""The executor of a command: `executor=ray executor.address=auto workers=8 timeout=3600`."""

from collections.abc import Sequence
from dataclasses import dataclass

from numerate import catalogue
from numerate.config import override
from numerate.config.values import normalize_name, settings_of
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.executors.local import Local

SHORT_OPTIONS = ("workers", "timeout")
"""Settings of every executor that may be written without `executor.`."""


_EXAMPLES = {"workers": "2", "timeout": "600"}
_UNITS = {"timeout": ", in seconds"}


@dataclass(frozen=True)
class _ExecutorHolder:
    executor: Executor = Local()


def parse_executor(words: Sequence[str]) -> tuple[list[str], Executor]:
    """Splits the words of a command into the executor that they set, and other words.

    >>> words, executor = parse_executor(["quickstart", "seeds=3", "executor=local", "workers=8"])
    >>> words, type(executor).__name__, executor.workers
    (['quickstart', 'seeds=3'], 'Local', 8)

    An executor is named by its class in any case; the default is `local`. The order of the words does not matter.
    Raises `UserError` for an unknown executor or setting, with the most similar one, and for an invalid value.
    """
    executor_words = [word for word in words if _is_executor_option(word)]
    class_words = [word for word in executor_words if _key(word) == "executor"]
    setting_words = [word for word in executor_words if word not in class_words]
    executor = override(
        _ExecutorHolder(), [f"executor={_class_call(word.partition('=')[2].strip())}" for word in class_words]
    )
    for word in setting_words:
        _check_setting_exists(_key(word).split("."), type(executor.executor))
    changes = [f"executor.{word.strip()}" if _key(word) in SHORT_OPTIONS else word for word in setting_words]
    try:
        result = override(executor, changes).executor
    except UserError as error:
        raise _rename_in_error(error, setting_words) from error
    return [word for word in words if word not in executor_words], result


def has_executor_option(words: Sequence[str]) -> bool:
    """Whether any word of a command sets its executor."""
    return any(map(_is_executor_option, words))


def _rename_in_error(error: UserError, words: Sequence[str]) -> UserError:
    """The error of a setting in `SHORT_OPTIONS`, under the name that was typed and with an example."""
    path, _, message = str(error).partition(": ")
    name = path.removeprefix("executor.")
    typed = {_key(word) for word in words} & {name, path}
    if name not in SHORT_OPTIONS or len(typed) != 1:
        return error
    message = message.partition("; for example ")[0]
    word = typed.pop()
    return UserError(f"{word}: {message}; for example {word}={_EXAMPLES[name]}{_UNITS.get(name, '')}")


def _is_executor_option(word: str) -> bool:
    return "=" in word and (_key(word) in ("executor", *SHORT_OPTIONS) or _key(word).startswith("executor."))


def _key(word: str) -> str:
    return normalize_name(word.partition("=")[0].strip())


def _check_setting_exists(path: list[str], executor_class: type) -> None:
    """Raises `UserError` for a setting of another executor, naming that executor."""
    name = path[-1]
    if name in settings_of(executor_class) or len(path) != 2:
        return
    kinds = [kind for kind in catalogue.all_classes("Executor") if name in settings_of(kind)]
    if kinds:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise UserError(
            f"executor.{name}: {executor_class.__name__} has no such setting, {names} has: "
            f"executor={kinds[0].__name__.lower()}"
        )


def _class_call(text: str) -> str:
    """The name of an executor with the case of its class: `Ray(num_gpus=1)` for `ray(num_gpus=1)`."""
    name, bracket, settings = text.partition("(")
    by_lower = {known.lower(): known for known in catalogue.parts_by_kind().get("Executor", {})}
    return by_lower.get(name.strip().lower(), name.strip()) + bracket + settings
