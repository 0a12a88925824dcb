"""User-defined components: classes in a user's file, available as `--parts my.py` or `my.py:recipe`.

A file runs only if the user names it, or if its contents equal those of a file named before (`approvals`). A saved
recipe is data: its classes are looked up in these files by the sha256 saved with it, and nothing runs before its hash
is checked. See docs/security.md.
"""

import hashlib
import inspect
import os
import sys
import warnings
from abc import ABC
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from numerate import catalogue
from numerate.config import packaged_parts
from numerate.config.approvals import approve, approved_paths
from numerate.config.user_code import UNGUARDED, UserFile, executing, read_user_file
from numerate.errors import UserError, did_you_mean, line_number_in, raise_first

_files: dict[str, UserFile] = {}
"""The user's files in use, by module name."""

_specs: dict[str, object] = {}
"""The `__spec__` of modules that Python imported, when their files were read: `importlib.reload` makes another."""

_files_from_parent: dict[str, UserFile] = {}
"""In a worker, by hash: files imported by the parent command, which run when they are needed."""


def is_abstract(part: type) -> bool:
    """Whether a class is abstract: `Mixer` is, `LSTM` is not."""
    return inspect.isabstract(part) or ABC in part.__bases__


def missing_methods(part: type) -> list[str]:
    """The abstract methods that a concrete class lacks; none for an abstract base class."""
    missing = sorted(getattr(part, "__abstractmethods__", ()))
    return [] if ABC in part.__bases__ or any(name in vars(part) for name in missing) else missing


def load_user_parts(path: str | Path) -> ModuleType:
    """Imports a user's file once and puts every part in it into the catalogue, under its class name.

    A part is a concrete class of a kind that the catalogue knows (`class Bitter(Mixer)`); it has to be a frozen
    dataclass in which every field has a default. A file that is already imported is not imported again. Its
    contents are approved: recipes that were saved with it can be opened without naming it.

    Raises `UserError` for a file that is missing or fails on import (with file and line), for a part that is not a spec
    or lacks a method of its kind, and for a name that another part already has.
    """
    file = _resolve_path(Path(path).expanduser())
    module = _imported_module(str(file))
    if module is None:
        module = _execute(read_user_file(str(file), "named"), str(path))
    else:
        _files[module.__name__] = replace(_user_file(module), reason="named")
    register_parts(_own_objects(module), str(path))
    approve(_files[module.__name__].sha256, str(file))
    return module


def load_user_object(address: str) -> Any:
    """An object of a file that the user named: `load_user_object("my.py:recipe")`.

    Raises `UserError` for a missing file or name.
    """
    path, _, name = address.rpartition(":")
    module = load_user_parts(path)
    if name not in vars(module):
        own_names = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        available = ", ".join(sorted(own_names)) or "nothing"
        raise UserError(f"{path} has no {name!r}; it has: {available}.{did_you_mean(name, own_names)}")
    return vars(module)[name]


def load_saved_packaged_part(address: str, source: object) -> Any:
    """The part of a package in a saved recipe. Raises `UserError` if the package is not installed and its modules have
    other contents than those that were saved with the hash `source`."""
    part = packaged_parts.load_packaged_part(address)
    is_declared = address in packaged_parts.declared_entry_points()
    if not is_declared and source is not None and class_address(part)[1] != source:
        raise UserError(f"{address}: its modules have changed since this was saved with them (sha256 {source!s:.12})")
    return part


def load_saved_class(address: str, source: object) -> Any:
    """The class `my.py:Bitter` of a saved recipe, whose file had the sha256 `source`.

    It is loaded from a file with exactly these contents that was named or imported in this process, otherwise from an
    approved one, at any path.

    Raises `UserError` if there is none, with how to approve it; the file is not executed.
    """
    path, _, name = address.rpartition(":")
    module = _loaded_module(path, name, source) or _approved_module(path, source)
    if name not in vars(module):
        raise UserError(f"{path} has no {name!r} although the file is unchanged; the recipe is corrupt")
    return vars(module)[name]


def user_files() -> tuple[UserFile, ...]:
    """The user's files in use, for `load_user_files` in another process."""
    return tuple(_files[name] for name in sorted(_files) if name in sys.modules)


def load_user_files(files: Sequence[UserFile]) -> None:
    """Runs the files of the parent command from the same bytes. Files imported there run only when a recipe needs them,
    as Python may import them here too.

    Raises `UserError` as `load_user_parts` does.
    """
    for file in files:
        if file.reason == "imported":
            _files_from_parent[file.sha256] = file
            continue
        module = _imported_module(file.path) or _execute(file, file.path)
        _files[module.__name__] = file
        register_parts(_own_objects(module), file.path)


def approve_imported() -> None:
    """Approves the files of a script and its imports once a run uses their components: the user ran them."""
    for file in user_files():
        if file.reason == "imported":
            approve(file.sha256, file.path)


def class_address(part: type) -> tuple[str, str | None]:
    """The name of a class in saved recipes, and what identifies its code if it is not numerate's own.

    Parts of numerate are named by class (`LSTM`); those of a user's file by file and class (`my.py:Bitter`), relative
    to the current folder if possible, with the sha256 of the file; those of an installed package by entry point
    (`acme.mixers:Bitter`), with their module and the package's version; others of a package by module and class, with
    the sha256 of its modules.

    Raises `UserError` for a class inside a function, under another name, or in a notebook, which could not be loaded
    again.
    """
    module, name = part.__module__, part.__name__
    if module.partition(".")[0] == "numerate":
        return name, None
    if module not in _files and (declared := packaged_parts.address_of_class(part)) is not None:
        return declared
    is_catalogued = module not in _files or _files[module].reason == "imported"
    if is_catalogued and any(known.get(name) == module for known in catalogue.parts_by_kind().values()):
        return name, None
    if part.__qualname__ != name:
        raise UserError(f"{part.__qualname__} must be defined at the top level of its module to be saved")
    loaded_module = sys.modules.get(module)
    if loaded_module is not None and vars(loaded_module).get(name) is not part:
        raise UserError(
            f"{name}: {module} has no such part under this name, or has defined it again since; define it there as "
            f"{name}, and make the recipe again"
        )
    if loaded_module is None or getattr(loaded_module, "__file__", None) in (None, "<stdin>"):
        raise UserError(
            f"{name}: is defined in a notebook's cell or an interactive session, and no file identifies it; begin the "
            f"cell with %%writefile my.py, and import it: from my import {name}"
        )
    file = _files[module] = _user_file(loaded_module)
    if file.depth:
        return f"{module}:{name}", file.sha256
    current_dir, path = Path(os.path.realpath(os.getcwd())), Path(file.path)
    shown_path = path.relative_to(current_dir) if path.is_relative_to(current_dir) else path
    return f"{shown_path.as_posix()}:{name}", file.sha256


def add_packaged_parts() -> None:
    """Imports the components of installed packages into the catalogue. Those that fail are skipped with a warning."""
    for address in packaged_parts.declared_entry_points():
        try:
            _register_packaged_part(address)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)


def add_packaged_part(name: str) -> None:
    """Imports the component with a name that an installed package declares, if one does, into the catalogue."""
    is_known = any(name in parts for parts in catalogue.parts_by_kind().values())
    if not is_known and (address := packaged_parts.address_of_name(name)) is not None:
        _register_packaged_part(address)


def _register_packaged_part(address: str) -> None:
    """Adds a declared class to the catalogue, or a function that returns a recipe or a study."""
    part = packaged_parts.load_packaged_part(address)
    kind = packaged_parts.kind_of_function(part)
    if kind is None:
        register_parts([part], address)
        return
    if catalogue.parts_by_kind().get(kind, {}).get(part.__name__, part.__module__) != part.__module__:
        raise UserError(f"{address}: a {kind} named {part.__name__!r} already exists; rename this function")
    catalogue.register(kind, part)


def register_parts(candidates: Iterable[Any], file_name: str) -> None:
    """Adds the components among `candidates` to the catalogue; `file_name` is the file named in errors."""
    kinds = catalogue.parts_by_kind()
    for part in candidates:
        if isinstance(part, type):
            for kind in sorted({parent.__name__ for parent in part.__mro__[1:]} & set(kinds)):
                if "__dataclass_fields__" in vars(part) and (missing := missing_methods(part)):
                    raise UserError(
                        f"{file_name}: {part.__name__} has no {' and no '.join(missing)}, which a {kind} needs"
                    )
                if not is_abstract(part):
                    problems = _spec_problems(part, kind, kinds[kind].get(part.__name__))
                    raise_first(f"{file_name}: {problem}" for problem in problems)
                    catalogue.register(kind, part)


def _own_objects(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]


def _resolve_path(file: Path) -> Path:
    if not file.is_file():
        neighbor_names = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(
            f"{file}: there is no such file.{did_you_mean(file.name, neighbor_names)} --parts FILE names it elsewhere."
        )
    return Path(os.path.realpath(file))


def _imported_module(file: str) -> ModuleType | None:
    """The module of a file that is already imported, by numerate or by Python."""
    for module in list(sys.modules.values()):
        module_file = getattr(module, "__file__", None)
        has_same_name = isinstance(module_file, str) and os.path.basename(module_file) == os.path.basename(file)
        if has_same_name and os.path.realpath(str(module_file)) == file:
            return module
    return None


def _user_file(module: ModuleType) -> UserFile:
    """The file of a module: as run by numerate, or as on disk when Python imported it, or imported it again."""
    known = _files.get(module.__name__)
    if known is not None and _specs.get(module.__name__, module.__spec__) is module.__spec__:
        return known
    _specs[module.__name__] = module.__spec__
    path, package = os.path.realpath(str(module.__file__)), module.__name__.partition(".")[0]
    is_packaged = getattr(sys.modules.get(package), "__path__", None) is not None
    try:
        return read_user_file(path, "imported" if known is None else known.reason, module.__name__ * is_packaged)
    except OSError as error:
        raise UserError(f"{path}: was imported but can no longer be read ({error.strerror})") from error


def _loaded_module(path: str, name: str, source: object) -> ModuleType | None:
    """The module with the saved contents that has a class `name`: of a named file, or of one that Python imported under
    the same file name; where no contents were saved, of any that was named or imported."""
    for module in list(sys.modules.values()):
        module_file = getattr(module, "__file__", None)
        if not isinstance(module_file, str) or not isinstance(vars(module).get(name), type):
            continue
        is_imported = os.path.basename(module_file) == os.path.basename(path) and "." not in module.__name__
        if module.__name__ in _files or is_imported:
            with suppress(UserError):  # its file is gone: its contents are unknown
                file = _user_file(module)
                if file.sha256 == source or (source is None and file.reason != "approved"):
                    return module
    return None


def _approved_module(path: str, source: object) -> ModuleType:
    """The module of an approved file with these contents; runs the file if necessary."""
    sha256 = source if isinstance(source, str) else ""
    paths = approved_paths(sha256)
    for candidate in paths:
        with suppress(OSError):
            file = read_user_file(os.path.realpath(candidate), "approved")
            if file.sha256 == sha256:
                return _load(file)
    if sha256 in _files_from_parent:
        return _load(_files_from_parent[sha256])
    if paths:
        reason = f"{paths[0]} had the contents that were saved (sha256 {sha256[:12]}), and is gone or has changed"
    else:
        reason = f"no file that you have named before has the contents that were saved (sha256 {sha256[:12] or 'none'})"
    raise UserError(
        f"{path}: {reason}. It was not run; pass --parts FILE (in Python: numerate.config.load_user_parts(FILE)) with "
        f"a file that you trust{f'; a run has a copy in parts/{sha256[:12]}' if sha256 else ''}."
    )


def _load(file: UserFile) -> ModuleType:
    module = _execute(file, file.path)
    register_parts(_own_objects(module), file.path)
    return module


def _execute(file: UserFile, file_name: str) -> ModuleType:
    """Runs a file from the hashed bytes, as a module named by its path and hash."""
    module_hash = hashlib.sha256(f"{file.path} {file.sha256}".encode()).hexdigest()
    module = ModuleType(f"numerate_user_{Path(file.path).stem}_{module_hash[:8]}")
    module.__file__ = file.path
    sys.modules[module.__name__] = module
    try:
        with executing(file):
            exec(compile(file.content, file.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        message = message.replace(
            "is not allowed: use default_factory", "can be changed in place; use a tuple or a text"
        )
        if file.reason != "named" and not isinstance(error, UserError):
            message += f". It is executed for its parts, without a command line; {UNGUARDED}"
        line = line_number_in(error, file.path)
        raise UserError(f"{file_name}{f', line {line}' if line else ''}: {message}") from error
    _files[module.__name__] = file
    return module


def _spec_problems(part: type, kind: str, existing_module: str | None) -> Iterator[str]:
    name = part.__name__
    members = vars(part)
    if not is_dataclass(part) or (members.get("__annotations__") and "__dataclass_fields__" not in members):
        yield f"{name} must be a dataclass: add @dataclass(frozen=True)"
    if not part.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        yield f"{name} must be frozen: write @dataclass(frozen=True) above it"
    for field in fields(part):
        if field.init and field.default is MISSING and field.default_factory is MISSING:
            yield f"{name}.{field.name} has no default; every setting needs one"
    if existing_module is not None and existing_module != part.__module__:
        yield f"a {kind} named {name!r} already exists; rename this class"
