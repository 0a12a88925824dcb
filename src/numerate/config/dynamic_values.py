"""Values that the code of a part uses and its file does not fix: from the command line, a loop, or a factory.

They tell parts of one file apart that have the same name. What a file writes as a literal is in its hash already.
"""

import ast
import dis
import inspect
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, NoneType, SimpleNamespace
from typing import Any, Protocol, runtime_checkable

_PURE = {
    *("Path", "__file__", "abs", "bytes", "chr", "dict", "divmod", "enumerate", "float", "frozenset", "int", "len"),
    *("list", "map", "math", "max", "min", "ord", "pow", "range", "reversed", "round", "set", "sorted", "str", "sum"),
    *("tuple", "zip"),
}
"""Functions whose result is determined by their arguments."""

_ITSELF = ""
"""The name of what is read, but not compared by its name."""

_CACHES = ("list()", "dict()", "set()")
"""What is written as empty, and filled later."""


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> Any: ...


def dynamic_values(part: type, source: bytes) -> dict[str, str]:
    """The values that the code of a class uses, itself or through others of its module, by name; without its settings,
    imports, and what equals the first literal for this name in the source of the module.

        SCALE = float(sys.argv[1])     {"SCALE": "2.0"}
    """
    written, found = {**_written(source), _ITSELF: None}, dict[str, str]()
    waiting: list[tuple[str, Any]] = [(_ITSELF, part)]
    seen: set[int] = set()
    folder = os.path.dirname(os.path.realpath(sys.modules[part.__module__].__file__ or ""))
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, staticmethod | classmethod | property):
            value = value.fget if isinstance(value, property) else value.__func__
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and value.__code__.co_filename.startswith("<"):
            continue  # made by dataclass
        text = value_text(value).replace(folder, ".")
        is_method = isinstance(value, FunctionType | type) and "." in name
        if text and written.get(name, None if is_method else "") not in (text, None, *_CACHES):
            found[name] = f"{found.get(name, '')}{text};"
        if isinstance(value, partial | Namespace | SimpleNamespace):
            waiting += _attributes(name, value)
        elif getattr(value, "__module__", None) == part.__module__ and id(value) not in seen:
            seen.add(id(value))
            waiting += _values_used(name, value, part)
    return found


def value_text(value: Any) -> str:
    """A constant, a container of constants, an array, or the name of a function; empty for anything else."""
    if isinstance(value, Enum):
        return value_text(value.value)
    if isinstance(value, bool | int | float | complex | str | bytes | NoneType | PurePath):
        return repr(value)
    if isinstance(value, tuple | list | set | frozenset | dict):
        texts = [value_text(item) for item in (value.items() if isinstance(value, dict) else value)]
        texts = texts if isinstance(value, tuple | list) else sorted(texts)
        return f"{type(value).__name__}({', '.join(texts)})" if all(texts) else ""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__qualname__
    return value_text(value.tolist()) if issubclass(type(value), _Array) else ""


def enclosed(function: FunctionType) -> dict[str, Any]:
    """The variables of the functions around a function that it uses, without the class of `super()`."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if name != "__class__" and cell != CellType()}


def _attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    of_partial = {"func": value.func, "args": value.args, **value.keywords} if isinstance(value, partial) else {}
    yield from ((f"{name}.{key}", item) for key, item in (of_partial | getattr(value, "__dict__", {})).items())


def _values_used(name: str, thing: Any, part: type) -> Iterator[tuple[str, Any]]:
    """What a class or an object has; what a function reads: globals, defaults of arguments, variables around it."""
    settings = [field.name for field in fields(part)] if is_dataclass(part) else []
    if isinstance(thing, FunctionType):
        name, code = thing.__qualname__, thing.__code__
        names = sorted(_global_names(code) & thing.__globals__.keys())
        yield from ((key, thing.__globals__[key]) for key in names if not key.startswith("__"))
        defaults = zip(code.co_varnames[: code.co_argcount][::-1], (thing.__defaults__ or ())[::-1], strict=False)
        for key, value in [*defaults, *(thing.__kwdefaults__ or {}).items()]:
            if key not in settings or name.removesuffix(".__init__") != part.__qualname__:  # of what is wrapped
                yield f"{name}({key})", value
        yield from ((f"{name}[{key}]", value) for key, value in enclosed(thing).items())
    elif not isinstance(thing, type):
        yield _ITSELF, type(thing)
        yield from _attributes(name, thing)
    elif thing.__bases__ != (tuple,):  # a NamedTuple
        for key, value in vars(thing).items():
            if key == "function":
                yield _ITSELF, value  # what a spec wraps
            elif key not in settings and (isinstance(value, FunctionType) or key.strip("_") == key.lstrip("_")):
                yield f"{thing.__qualname__}.{key}", value
        yield from ((_ITSELF, base) for base in thing.__bases__)


@cache
def _global_names(code: CodeType) -> frozenset[str]:
    """The global names in the code of a function and of the functions in it."""
    instructions = dis.get_instructions(code)
    own = {one.argval for one in instructions if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(own.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))))


@cache
def _written(source: bytes) -> dict[str, str | None]:
    """What a file determines, by name: `SCALE`, `Scaled.factor`, and `scaled(gamma)` for the default of an argument.
    It is the first literal, as `value_text` has it; None for what is imported, defined, or computed once from these."""
    written: dict[str, str | None] = {}
    nodes: list[tuple[str, Any]] = [("", node) for node in ast.walk(ast.parse(source))]
    several = {name for name, count in Counter(_bound_names(nodes[0][1])).items() if count > 1}
    nodes += [(f"{part.name}.", node) for _, part in nodes if isinstance(part, ast.ClassDef) for node in part.body]
    for prefix, node in nodes:
        values: list[tuple[str, ast.expr]] = []
        is_unpacked = False
        if isinstance(node, ast.Import | ast.ImportFrom):
            written |= {prefix + (alias.asname or alias.name): None for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            written.setdefault(prefix + node.name, None)
        if isinstance(node, ast.FunctionDef):
            positional = [*node.args.posonlyargs, *node.args.args]
            defaults: list[tuple[ast.arg, ast.expr | None]] = [
                *zip(positional[::-1], node.args.defaults[::-1], strict=False)
            ]
            defaults += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            values = [(f"{node.name}({argument.arg})", value) for argument, value in defaults if value is not None]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [(name, node.value) for target in targets for name in _bound_names(target)]
            is_unpacked = not all(isinstance(target, ast.Name) for target in targets)
        for name, value in values:
            if (text := _literal_text(value)) and not is_unpacked:
                written.setdefault(prefix + name, text)
            elif name not in several and _is_determined(
                value, {key for key in written if written[key] != ""} - several
            ):
                written.setdefault(prefix + name, None)
            else:
                written.setdefault(prefix + name, "")
    return written


def _bound_names(node: ast.AST) -> list[str]:
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]


def _literal_text(expression: ast.expr) -> str:
    try:
        return value_text(ast.literal_eval(expression))
    except (ValueError, TypeError):
        return ""


def _is_determined(expression: ast.expr, known: set[str]) -> bool:
    """Whether an expression consists of literals, of names that the file determines, and of calls of pure functions."""
    nodes = [*ast.walk(expression)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - {*_bound_names(expression)}
    roots = [_root(node.func) for node in nodes if isinstance(node, ast.Call)]
    is_pure = all(isinstance(root, ast.Constant) or (isinstance(root, ast.Name) and root.id in _PURE) for root in roots)
    return is_pure and names <= (known | _PURE) - {"sys", "os"}


def _root(expression: ast.expr) -> ast.expr:
    """What a chain of attributes and calls begins with: `Path` of `Path("a").resolve().parent`."""
    while isinstance(expression, ast.Attribute | ast.Call):
        expression = expression.value if isinstance(expression, ast.Attribute) else expression.func
    return expression
