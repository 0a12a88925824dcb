"""The hash of a part that is defined in a notebook or an interactive session, in place of that of a file."""

import hashlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, NoneType
from typing import Any

from numerate.config.dynamic_values import enclosed, value_text

_CONSTANTS = (bool, int, float, str, bytes, tuple, NoneType)
_CONTAINERS = (list, dict, set, frozenset)


def session_sha256(part: type) -> str:
    """A sha256 of the code of a class of `__main__`, and of all functions, classes and constants there that it uses,
    itself or through others: where a cell is changed, the run is another one, as with a changed file."""
    session = vars(sys.modules["__main__"])
    return hashlib.sha256("\n".join(_descriptions(part, session, set())).encode()).hexdigest()


def _descriptions(thing: Any, session: dict[str, Any], seen: set[int]) -> Iterator[str]:
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, _CONSTANTS):
        yield repr(thing)
    elif isinstance(thing, _CONTAINERS):
        yield from filter(None, [value_text(thing)])
    elif id(thing) not in seen:
        seen.add(id(thing))
        for name, component in _components(thing, session):
            yield name
            if not (isinstance(component, _CONTAINERS) and name.startswith("__")):  # the fields of a dataclass
                yield from _descriptions(component, session, seen)


def _components(thing: Any, session: dict[str, Any]) -> list[tuple[str, Any]]:
    """What the code of a function or class of the session consists of, each with a name."""
    if isinstance(thing, CodeType):
        constants = [("", constant) for constant in thing.co_consts]
        return [(thing.co_code.hex(), None), *constants, *((name, session.get(name)) for name in thing.co_names)]
    if getattr(thing, "__module__", None) != "__main__":
        return []
    if isinstance(thing, FunctionType):
        values = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *enclosed(thing).values()]
        return [("", thing.__code__), *(("", value) for value in values)]
    if isinstance(thing, type):
        return [*(("", base) for base in thing.__bases__), *sorted(vars(thing).items())]
    return []
