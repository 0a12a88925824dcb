"""Finds components by class name, without importing any other.

Every folder of parts lists them in its `__init__.py` as `CATALOGUE = {kind: {class name: module}}`. It defines the
short names on the command line (`model.mixer=LSTM`), `numerate list`, `from numerate.mixers import LSTM`, and the tests
that run on every variant. A one-line description is the first line of the class's docstring, read from the source as
text, so that listing a hundred parts imports none of them; or it is in the folder's `SUMMARIES = {kind: {name: line}}`.

Large groups of names are not listed individually. A folder names the module that creates them: `PRESETS` for named
parts with given settings, `FAMILIES` for names that follow a pattern.
"""

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from numerate.errors import UserError, did_you_mean

PART_PACKAGES = (
    "tasks",
    "tokenizers",
    "positions",
    "mixers",
    "models",
    "evaluation",
    "losses",
    "training",
    "runs.engines",
    "recipes",
)
"""The folders of `numerate` that contain parts."""

_user_classes: dict[str, dict[str, type]] = {}


def parts_by_kind() -> dict[str, dict[str, str]]:
    """Every kind of part with its variants: `{"Mixer": {"LSTM": "numerate.mixers.recurrent", ...}, ...}`."""
    modules_by_kind: dict[str, dict[str, str]] = {}
    for package in PART_PACKAGES:
        catalogue = importlib.import_module(f"numerate.{package}").CATALOGUE
        for kind, parts in catalogue.items():
            modules_by_kind.setdefault(kind, {}).update(
                {name: _path(package, module) for name, module in parts.items()}
            )
    for kind, classes in _user_classes.items():
        modules_by_kind.setdefault(kind, {}).update({name: part.__module__ for name, part in classes.items()})
    return modules_by_kind


def _path(folder: str, module: str) -> str:
    """The full name of a module in a catalogue: relative to `numerate` if it starts with a dot, otherwise to the
    folder."""
    return f"numerate.{module}" if "." in module else f"numerate.{folder}.{module}"


def import_by_name(module: str) -> Any:
    """A module outside the core, such as `text.data.prepared`, which the core imports only when it needs it."""
    return importlib.import_module(f"numerate.{module}")


def register(kind: str, part: Any) -> None:
    """Adds a user-defined class, or a function that makes a recipe, under its name, as `--parts my.py` does."""
    _user_classes.setdefault(kind, {})[part.__name__] = part


def get_class(kind: str, name: str, setting_path: str = "") -> type:
    """The class with a name among the parts of a kind; of recipes and studies, the function that makes one.

    Raises `UserError` with the available names: `get_class("Mixer", "LTSM", "model.mixer")` says `model.mixer: no Mixer
    is named 'LTSM'; there are: Attention, LSTM. Did you mean 'LSTM'?`
    """
    if name in _user_classes.get(kind, {}):
        return _user_classes[kind][name]
    parts = parts_by_kind().get(kind, {})
    if name not in parts:
        prefix = f"{setting_path}: " if setting_path else ""
        names = ", ".join(sorted(parts)) or "none"
        raise UserError(f"{prefix}no {kind} is named {name!r}; there are: {names}.{did_you_mean(name, parts)}")
    return getattr(importlib.import_module(parts[name]), name)  # type: ignore[no-any-return]


def presets(kind: str) -> dict[str, Any]:
    """Named parts of a kind with given settings, such as the tasks of a paper, by name.

    A folder names the modules that create them: `PRESETS = {"Task": ("counting_names",)}`, whose `presets()` returns
    them.
    """
    parts: dict[str, Any] = {}
    for module in preset_modules(kind):
        parts.update(importlib.import_module(module).presets())
    return parts


def family_modules(kind: str) -> dict[str, str]:
    """Patterns of the names of a kind, each with its module: `{"counting_TASK_MODEL": "numerate.recipes..."}`.

    A folder names the module of each: `FAMILIES = {"Recipe": {"counting_TASK_MODEL": "inductive_counting"}}`. Its
    function `family()` returns rows by name, with a one-line `summary` and `build(name)`, which builds the component.
    """
    modules: dict[str, str] = {}
    for package in PART_PACKAGES:
        patterns = getattr(importlib.import_module(f"numerate.{package}"), "FAMILIES", {}).get(kind, {})
        modules.update({pattern: _path(package, module) for pattern, module in patterns.items()})
    return modules


def family_rows(kind: str) -> dict[str, Any]:
    """The rows of every name that follows one of the patterns of a kind; see `family_modules`."""
    rows: dict[str, Any] = {}
    for module in family_modules(kind).values():
        rows.update(importlib.import_module(module).family())
    return rows


def family_names(kind: str) -> dict[str, str]:
    """Every name that follows one of the patterns of a kind, with its one-line description."""
    return {name: row.summary for name, row in family_rows(kind).items()}


def is_recipe(name: str) -> bool:
    """Whether a name is that of a recipe or study, or of a file with one.

    >>> is_recipe("addition-abacus"), is_recipe("my.py:recipe"), is_recipe("hf:gpt2"), is_recipe("Arithmetic")
    (True, True, True, False)
    """
    kinds, plain = parts_by_kind(), name.replace("-", "_")
    is_file = name.startswith("hf:") or name.endswith((".yaml", ".yml")) or ".py:" in name
    return is_file or plain in kinds["Recipe"] or plain in kinds["Study"] or family_row("Recipe", plain) is not None


def family_row(kind: str, name: str) -> Any:
    """The row of a name that follows one of the patterns of a kind, whose `build(name)` makes the component; None for
    another name."""
    for pattern, module in family_modules(kind).items():
        # The prefix before the first placeholder is in every name: other names import nothing.
        if name.startswith(re.split(r"[A-Z]", pattern)[0]):
            rows = importlib.import_module(module).family()
            if name in rows:
                return rows[name]
    return None


def get_part(kind: str, name: str) -> Any:
    """The part with a name: a preset, or a class with its defaults. Raises `UserError` for a name that is neither."""
    if name not in parts_by_kind().get(kind, {}):
        known_presets = presets(kind)
        if name in known_presets:
            return known_presets[name]
        if known_presets and (suggestion := did_you_mean(name, known_presets)):
            raise UserError(
                f"no {kind} is named {name!r}; {len(known_presets)} presets are named after papers.{suggestion}"
            )
    return get_class(kind, name)()


def part_summary(kind: str, name: str) -> str:
    """The one-line description of a part, without importing its module: `part_summary("Mixer", "LSTM")`."""
    if name in _user_classes.get(kind, {}):
        lines = (_user_classes[kind][name].__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""
    for package in PART_PACKAGES:
        summaries = getattr(importlib.import_module(f"numerate.{package}"), "SUMMARIES", {}).get(kind, {})
        if name in summaries:
            return str(summaries[name])
    return _docstring_summaries(parts_by_kind()[kind][name]).get(name, "")


def module_summary(module: str) -> str:
    """The first line of a module's docstring, without importing it: what a family, or a file of presets, contains."""
    return _first_line(_syntax_tree(module))


def preset_modules(kind: str) -> list[str]:
    """The modules that create the presets of a kind; see `presets`."""
    presets_by_package = [
        (package, getattr(importlib.import_module(f"numerate.{package}"), "PRESETS", {})) for package in PART_PACKAGES
    ]
    return [_path(room, file) for room, modules_by_kind in presets_by_package for file in modules_by_kind.get(kind, ())]


@lru_cache
def _docstring_summaries(module: str) -> dict[str, str]:
    definitions = [node for node in _syntax_tree(module).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return {node.name: _first_line(node) for node in definitions}


def _syntax_tree(module: str) -> ast.Module:
    """The source of a module, parsed; empty without a source file."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ast.Module([], [])
    with open(spec.origin, encoding="utf-8") as source:
        return ast.parse(source.read())


def _first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").split("\n")[0]


def lazy_getattr(package: str, catalogue: dict[str, dict[str, str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a folder of parts, so that `from numerate.mixers import LSTM` imports only its file."""
    module_of_name = {name: module for parts in catalogue.values() for name, module in parts.items()}

    def __getattr__(name: str) -> Any:
        if name in module_of_name:
            return getattr(importlib.import_module(_path(package, module_of_name[name])), name)
        raise AttributeError(f"numerate.{package} has no {name!r}")

    return __getattr__


def all_classes(kind: str) -> Iterator[type]:
    """Imports and returns every class of a kind."""
    for name in sorted(parts_by_kind().get(kind, {})):
        yield get_class(kind, name)
