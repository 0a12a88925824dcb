"""The executor of a command: `executor=ray executor.address=auto workers=8 timeout=3600`."""

from collections.abc import Sequence
from dataclasses import dataclass

from numerate import catalogue
from numerate.config import override
from numerate.config.values import normalize_name, settings_of
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.executors.local import Local


@dataclass(frozen=True)
class _Holder:
    executor: Executor = Local()


def parse_executor(words: Sequence[str]) -> Executor:
    """The executor that words set: `executor=ray executor.address=auto workers=8 timeout=3600`.

    >>> parse_executor(["workers=8", "executor=local"]).workers
    8

    An executor is named by its class in any case; the default is `local`. The order of the words does not matter.
    Raises `UserError` for an unknown executor or setting, with the most similar one, and for an invalid value.
    """
    class_by_name = {known.lower(): known for known in catalogue.parts_by_kind().get("Executor", {})}
    class_words, settings = [], {}
    for word in words:
        key, _, text = word.partition("=")
        name = normalize_name(key.strip()).removeprefix("executor.")
        if name == "executor":
            class_name, bracket, rest = text.strip().partition("(")
            class_name = class_by_name.get(class_name.strip().lower(), class_name.strip())
            class_words.append(f"executor={class_name}{bracket}{rest}")
        else:
            settings[name] = text
    executor_class = type(override(_Holder(), class_words).executor)
    for name in settings:
        others = [one for one in catalogue.all_classes("Executor") if name in settings_of(one)]
        if others and executor_class not in others:
            raise UserError(
                f"executor.{name}: {executor_class.__name__} has no such setting, "
                f"{' and '.join(one.__name__ for one in others)} has: executor={others[0].__name__.lower()}"
            )
    return override(_Holder(), [*class_words, *(f"executor.{name}={text}" for name, text in settings.items())]).executor
