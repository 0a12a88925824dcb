"""Finds components by class name, without importing any other.

Every folder of parts lists them in its `__init__.py` as `CATALOGUE = {kind: {class name: module}}`. From that follow
the short names on the command line (`model.mixer=LSTM`), `numerate list`, `from numerate.mixers import LSTM`, and the
tests that run on every variant. A one-line description is the first line of the class's docstring, read
from the source as text, so that listing a hundred parts imports none of them.

Large groups of names are not listed one by one. A folder names the file that makes them: `PRESETS` for parts with
settings that have a name of their own, `FAMILIES` for names that follow a pattern.
"""

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from numerate.errors import UserError, did_you_mean

ROOMS = (
    "tasks",
    "tokenizers",
    "positions",
    "mixers",
    "models",
    "losses",
    "training",
    "executors",
    "recipes",
    "studies",
)
"""The folders of `numerate` that hold parts."""

_added: dict[str, dict[str, type]] = {}


def kinds() -> dict[str, dict[str, str]]:
    """Every kind of part with its variants: `{"Mixer": {"LSTM": "numerate.mixers.recurrent", ...}, ...}`."""
    found: dict[str, dict[str, str]] = {}
    for room in ROOMS:
        listed = importlib.import_module(f"numerate.{room}").CATALOGUE
        for kind, parts in listed.items():
            found.setdefault(kind, {}).update({name: _path(room, module) for name, module in parts.items()})
    for kind, classes in _added.items():
        found.setdefault(kind, {}).update({name: part.__module__ for name, part in classes.items()})
    return found


def _path(room: str, module: str) -> str:
    """Where a module of a catalogue is: with a dot from `numerate` on, else in the folder of the catalogue."""
    return f"numerate.{module}" if "." in module else f"numerate.{room}.{module}"


def add(kind: str, part: type) -> None:
    """Adds a class of the user's own under its name, as `--parts my.py` does."""
    _added.setdefault(kind, {})[part.__name__] = part


def find(kind: str, name: str, where: str = "") -> type:
    """The class called `name` among the parts of a kind.

    Raises `UserError` with the names that there are: `find("Mixer", "LTSM", "model.mixer")` says
    `model.mixer: no Mixer is named 'LTSM'; there are: Attention, LSTM. Did you mean 'LSTM'?`
    """
    if name in _added.get(kind, {}):
        return _added[kind][name]
    parts = kinds().get(kind, {})
    if name not in parts:
        prefix = f"{where}: " if where else ""
        names = ", ".join(sorted(parts)) or "none"
        raise UserError(f"{prefix}no {kind} is named {name!r}; there are: {names}.{did_you_mean(name, parts)}")
    return getattr(importlib.import_module(parts[name]), name)  # type: ignore[no-any-return]


def presets(kind: str) -> dict[str, Any]:
    """Parts of a kind with settings that have a name of their own, as the tasks of a paper have: name to part.

    A folder names the file that makes them, or several: `PRESETS = {"Task": ("counting_names",)}`, whose `presets()`
    returns them.
    """
    found: dict[str, Any] = {}
    for module in preset_modules(kind):
        found.update(importlib.import_module(module).presets())
    return found


def families(kind: str) -> dict[str, str]:
    """Patterns that names of a kind follow, each with its module: `{"counting_TASK_MODEL": "numerate.recipes..."}`.

    A folder names the file of each: `FAMILIES = {"Recipe": {"counting_TASK_MODEL": "counting_family"}}`. There
    `names()` gives every name with its one line, and `make(name)` what the name stands for.
    """
    found: dict[str, str] = {}
    for room in ROOMS:
        listed = getattr(importlib.import_module(f"numerate.{room}"), "FAMILIES", {}).get(kind, {})
        found.update({pattern: _path(room, module) for pattern, module in listed.items()})
    return found


def family_names(kind: str) -> dict[str, str]:
    """Every name that follows one of the patterns of a kind, with its one line."""
    found: dict[str, str] = {}
    for module in families(kind).values():
        found.update(importlib.import_module(module).names())
    return found


def of_family(kind: str, name: str) -> Any:
    """The component of a family name; None for a name that follows no pattern."""
    family = _family(kind, name)
    return None if family is None else family.make(name)


def in_family(kind: str, name: str) -> bool:
    """Whether a name is of a family, without building its component."""
    return _family(kind, name) is not None


def _family(kind: str, name: str) -> Any:
    for pattern, module in families(kind).items():
        # The prefix before the first placeholder is in every name: other names import nothing.
        if name.startswith(re.split(r"[A-Z]", pattern)[0]):
            family = importlib.import_module(module)
            if name in family.names():
                return family
    return None


def made(kind: str, name: str) -> Any:
    """The part behind a name: a preset, or a class with its defaults. Raises `UserError` for a name that is neither."""
    if name not in kinds().get(kind, {}):
        ready = presets(kind)
        if name in ready:
            return ready[name]
        if ready and (near := did_you_mean(name, ready)):
            raise UserError(f"no {kind} is named {name!r}; {len(ready)} have names of papers.{near}")
    return find(kind, name)()


def describe(kind: str, name: str) -> str:
    """The first line of a part's docstring, without importing its module: `describe("Mixer", "LSTM")`."""
    if name in _added.get(kind, {}):
        lines = (_added[kind][name].__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""
    return _first_lines(kinds()[kind][name]).get(name, "")


def module_summary(module: str) -> str:
    """The first line of a module's docstring, without importing it: what a family, or a file of presets, contains."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    with open(spec.origin, encoding="utf-8") as source:
        return (ast.get_docstring(ast.parse(source.read())) or "").split("\n")[0]


def preset_modules(kind: str) -> list[str]:
    """The modules that make parts of a kind with names of their own; see `presets`."""
    files = [(room, getattr(importlib.import_module(f"numerate.{room}"), "PRESETS", {})) for room in ROOMS]
    return [_path(room, file) for room, listed in files for file in listed.get(kind, ())]


@lru_cache
def _first_lines(module: str) -> dict[str, str]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    with open(spec.origin, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def lazily(room: str, catalogue: dict[str, dict[str, str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a folder of parts, so that `from numerate.mixers import LSTM` imports only its file."""
    where = {name: module for parts in catalogue.values() for name, module in parts.items()}

    def __getattr__(name: str) -> Any:
        if name in where:
            return getattr(importlib.import_module(_path(room, where[name])), name)
        raise AttributeError(f"numerate.{room} has no {name!r}")

    return __getattr__


def variants(kind: str) -> Iterator[type]:
    """Every class of a kind, imported, as tests run on all of them."""
    for name in sorted(kinds().get(kind, {})):
        yield find(kind, name)
