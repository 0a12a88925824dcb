"""The engine of a command: `engine=ray engine.address=auto workers=8 timeout=3600`."""

from collections.abc import Sequence
from dataclasses import dataclass

from numerate import catalogue
from numerate.config import override
from numerate.config.values import normalize_name, settings_of
from numerate.errors import UserError
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.local import Local


@dataclass(frozen=True)
class _Holder:
    engine: Engine = Local()


def parse_engine(words: Sequence[str]) -> Engine:
    """The engine that words set: `engine=ray engine.address=auto workers=8 timeout=3600`.

    >>> parse_engine(["workers=8", "engine=local"]).workers
    8

    An engine is named by its class in any case; the default is `local`. The order of the words does not matter.
    Raises `UserError` for an unknown engine or setting, with the most similar one, and for an invalid value.
    """
    class_by_name = {known.lower(): known for known in catalogue.parts_by_kind().get("Engine", {})}
    class_words, settings = [], {}
    for word in words:
        key, _, text = word.partition("=")
        name = normalize_name(key.strip()).removeprefix("engine.")
        if name == "engine":
            class_name, bracket, rest = text.strip().partition("(")
            class_name = class_by_name.get(class_name.strip().lower(), class_name.strip())
            class_words.append(f"engine={class_name}{bracket}{rest}")
        else:
            settings[name] = text
    engine_class = type(override(_Holder(), class_words).engine)
    for name in settings:
        others = [one for one in catalogue.all_classes("Engine") if name in settings_of(one)]
        if others and engine_class not in others:
            raise UserError(
                f"engine.{name}: {engine_class.__name__} has no such setting, "
                f"{' and '.join(one.__name__ for one in others)} has: engine={others[0].__name__.lower()}"
            )
    return override(_Holder(), [*class_words, *(f"engine.{name}={text}" for name, text in settings.items())]).engine
