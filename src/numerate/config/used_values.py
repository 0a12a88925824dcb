"""The values that the code of a part uses, itself or through others of its module, each with a name and a text."""

import dis
import hashlib
import inspect
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from logging import Logger
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any, Protocol, runtime_checkable

ITSELF = ""
"""The name of what is read, but not compared."""

EMPTY_CONTAINERS = ("list()", "dict()", "set()")
"""What is written as empty, and filled later: a cache."""

_CONTAINERS = (tuple, list, set, frozenset, dict)


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> Any: ...


def used_values(part: type, written: Mapping[str, str | None] | None = None) -> Iterator[tuple[str, str]]:
    """The name and text of each value that the code of a class uses, without its settings, and without those that the
    source of its module determines: `written` has their texts, or None for what needs no comparison. Without
    `written`, for a session, all values, and functions by their code.

    Warns of a value that cannot be compared: of an object of another module without attributes.
    """
    waiting: list[tuple[str, Any]] = [(ITSELF, part)]
    seen: dict[int, Any] = {}
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, staticmethod | classmethod | property):
            value = value.fget if isinstance(value, property) else value.__func__
        value = inspect.unwrap(value) if callable(value) else value
        known = _written_text(name, written)
        if known in EMPTY_CONTAINERS or isinstance(value, Logger):
            continue
        text = _text(value, part.__module__, by_code=written is None)
        is_fixed = known is None or known in (text, f"{type(value).__name__}()")
        if not is_fixed:
            yield name, text
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if _is_own(value, part.__module__):
            waiting += _values_of_own(name, value, part, written)
        elif not constant_text(value) and not isinstance(value, FunctionType | BuiltinFunctionType | ModuleType | type):
            items = _items(value, part.__module__)
            waiting += [(ITSELF if is_fixed else f"{name}{key}", item) for key, item in items]
            if not items and not is_fixed and text.endswith(" object"):
                warnings.warn(
                    f"{part.__name__} uses {name}, a {type(value).__name__}, which cannot be compared: runs with "
                    "another one are not told apart; make what varies a setting",
                    stacklevel=2,
                )


def constant_text(value: Any) -> str:
    """A constant, a container of constants, or an array; empty for anything else."""
    if isinstance(value, Enum):
        return constant_text(value.value)
    if isinstance(value, bool | int | float | complex | str | bytes | NoneType | PurePath):
        return repr(value)
    if isinstance(value, _CONTAINERS):
        texts = [constant_text(item) for item in (value.items() if isinstance(value, dict) else value)]
        texts = texts if isinstance(value, tuple | list) else sorted(texts)
        return f"{type(value).__name__}({', '.join(texts)})" if all(texts) else ""
    return constant_text(value.tolist()) if issubclass(type(value), _Array) else ""


def _written_text(name: str, written: Mapping[str, str | None] | None) -> str | None:
    if name == ITSELF:
        return None
    if written is None:
        return ""
    return written.get(name, None if name.endswith(".__bases__") else "")


def _text(value: Any, module: str, by_code: bool) -> str:
    """A value in words. A function of the module is named by its line, in a session and for a lambda by its code."""
    kind = type(value)
    if text := constant_text(value):
        return text
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType | BuiltinFunctionType | type) and not _is_own(value, module):
        bound = constant_text(value.__self__) if isinstance(value, BuiltinFunctionType) else ""
        return f"{value.__module__}.{value.__qualname__}{bound}"
    if isinstance(value, FunctionType):
        is_named = value.__name__ != "<lambda>" and not by_code
        return f"{value.__qualname__}:{value.__code__.co_firstlineno if is_named else _code_hash(value.__code__)}"
    if isinstance(value, type):
        return f"{value.__qualname__}({', '.join(sorted(key for key in vars(value) if not key.startswith('__')))})"
    if isinstance(value, _CONTAINERS):
        return f"{kind.__name__} of {len(value)}"
    if isinstance(value, partial | MethodType) or _is_own(value, module):
        return f"{kind.__qualname__}()"
    shown = repr(value)
    return f"{kind.__module__}.{kind.__qualname__} object" if shown.startswith("<") or " at 0x" in shown else shown


def _is_own(value: Any, module: str) -> bool:
    """Whether a function, a class, or the class of an object belongs to a module."""
    if isinstance(value, FunctionType):
        return bool(value.__globals__.get("__name__") == module)
    return (value if isinstance(value, type) else type(value)).__module__ == module


def _items(value: Any, module: str) -> list[tuple[str, Any]]:
    """What is in a container, a partial, a bound method, or an object; of an object of another module what is constant,
    and the modules in a module."""
    if isinstance(value, dict):
        return [(f"[{_text(key, module, by_code=True)}]", item) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=lambda item: _text(item, module, by_code=True))
    if isinstance(value, _CONTAINERS):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, MethodType):
        return [(".__func__", value.__func__), (".__self__", value.__self__)]
    attributes = dict(getattr(value, "__dict__", {}))
    is_module = {"_parameters", "_buffers", "_modules"} <= attributes.keys()
    if is_module:  # of torch: the weights are learned
        inner = attributes["_buffers"] | attributes["_modules"]
        attributes = {key: item for key, item in attributes.items() if key[0] != "_" and key != "training"} | inner
    elif isinstance(value, partial):
        attributes |= {"func": value.func, "args": value.args, **value.keywords}
    if not (_is_own(value, module) or isinstance(value, partial | Namespace | SimpleNamespace)):
        attributes = {
            key: item
            for key, item in attributes.items()
            if key[:1] != "_" and (constant_text(item) or (is_module and hasattr(item, "_modules")))
        }
    return [(f".{key}", item) for key, item in attributes.items()]


def _values_of_own(
    name: str, thing: Any, part: type, written: Mapping[str, str | None] | None
) -> Iterator[tuple[str, Any]]:
    """What a class or an object has; what a function reads: globals, defaults of arguments, variables around it."""
    settings, module = [field.name for field in fields(part)] if is_dataclass(part) else [], part.__module__
    if isinstance(thing, FunctionType):
        name, code = thing.__qualname__, thing.__code__
        names = sorted(_global_names(code) & thing.__globals__.keys())
        yield from ((key, thing.__globals__[key]) for key in names if not key.startswith("__"))
        defaults = zip(code.co_varnames[: code.co_argcount][::-1], (thing.__defaults__ or ())[::-1], strict=False)
        for key, value in [*defaults, *(thing.__kwdefaults__ or {}).items()]:
            if key not in settings or name.removesuffix(".__init__") != part.__qualname__:  # of what is wrapped
                yield f"{name}({key})", value
        cells = zip(code.co_freevars, thing.__closure__ or (), strict=True)  # `__class__` is for `super()`
        full = [(key, cell.cell_contents) for key, cell in cells if key != "__class__" and cell != CellType()]
        yield from ((f"{name}[{key}]", value) for key, value in full)
    elif not isinstance(thing, type):
        yield ITSELF, type(thing)
        if not isinstance(thing, Enum):
            yield from ((f"{name}{key}", value) for key, value in _items(thing, module))
    elif thing.__bases__ != (tuple,):  # a NamedTuple
        for key, value in vars(thing).items():
            is_special = (key.startswith("_") and key.endswith("_")) or key == "_abc_impl"
            if key == "function":
                wrapped = inspect.unwrap(getattr(value, "__func__", value))
                yield thing.__qualname__, wrapped  # what a spec wraps
            elif key not in settings and (not is_special or _is_written_function(value, module, written is None)):
                yield f"{thing.__qualname__}.{key}", value
        yield f"{thing.__qualname__}.__bases__", thing.__bases__


def _is_written_function(value: Any, module: str, is_session: bool) -> bool:
    """Whether a function is one of a module, and none that `dataclass` has made for it."""
    value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    is_function = isinstance(value, FunctionType) and _is_own(value, module)
    return is_function and (is_session or not value.__code__.co_filename.startswith("<"))


@cache
def _global_names(code: CodeType) -> frozenset[str]:
    """The global names in the code of a function and of the functions in it."""
    instructions = dis.get_instructions(code)
    own = {one.argval for one in instructions if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(own.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))))


@cache
def _code_hash(code: CodeType) -> str:
    constants = [_code_hash(one) if isinstance(one, CodeType) else constant_text(one) for one in code.co_consts]
    content = (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]
