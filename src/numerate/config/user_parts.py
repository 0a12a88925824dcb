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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from numerate import catalogue
from numerate.config import packaged_parts
from numerate.config.approvals import approve, approved_places
from numerate.errors import UserError, did_you_mean, line_in


@dataclass(frozen=True)
class UserFile:
    """A user's file: the hashed bytes are the bytes that run, here and in every worker."""

    path: str
    content: bytes
    by: Literal["named", "approved", "imported"]
    """Why it runs: the user named it; a saved recipe needs it and its hash is approved; or Python imported it, as a
    script or for one."""

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


_files: dict[str, UserFile] = {}
"""The user's files in use, by module name."""

_sent: dict[str, UserFile] = {}
"""In a worker, by hash: files imported by the parent command; each runs when it is needed."""


def is_abstract(part: type) -> bool:
    """Whether a class is abstract: `Mixer` is, `LSTM` is not."""
    return inspect.isabstract(part) or ABC in part.__bases__


def lacking(part: type) -> list[str]:
    """The abstract methods that a concrete class lacks; none for an abstract base class."""
    missing = sorted(getattr(part, "__abstractmethods__", ()))
    return [] if ABC in part.__bases__ or any(name in vars(part) for name in missing) else missing


def load_user_parts(path: str | Path) -> ModuleType:
    """Imports a user's file once and puts every part in it into the catalogue, under its class name.

    A part is a concrete class of a kind that the catalogue knows (`class Bitter(Mixer)`); it has to be a frozen
    dataclass in which every field has a default. A file that is already imported is not imported again. Its
    contents are approved: recipes that were saved with it can be opened without naming it.

    Raises `UserError` for a file that is not there or fails on import (with file and line), for a part that is no spec
    or lacks a method of its kind, and for a name that another part already has.
    """
    file = _existing(Path(path).expanduser())
    module = _imported(str(file))
    if module is None:
        module = _run(UserFile(str(file), file.read_bytes(), "named"), str(path))
    else:
        _files[module.__name__] = replace(_file_of(module), by="named")
    add_parts(_own(module), str(path))
    approve(_files[module.__name__].sha256, str(file))
    return module


def user_object(address: str) -> Any:
    """An object of a file that the user named: `user_object("my.py:recipe")`.

    Raises `UserError` for a file or name that is not there.
    """
    path, _, name = address.rpartition(":")
    module = load_user_parts(path)
    if name not in vars(module):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        there = ", ".join(sorted(own)) or "nothing"
        raise UserError(f"{path} has no {name!r}; it has: {there}.{did_you_mean(name, own)}")
    return vars(module)[name]


def saved_object(address: str, source: object) -> Any:
    """The class `my.py:Bitter` of a saved recipe, where its file had the sha256 `source`.

    It is taken from a file that was named or imported in this process, else from an approved one with exactly these
    contents, at any path. A file that was named runs also with other contents, with a warning.

    Raises `UserError` if there is none, with how to approve it; nothing of the file is run.
    """
    path, _, name = address.rpartition(":")
    module = _at_hand(path, name, source) or _approved(path, source)
    if name not in vars(module):
        raise UserError(f"{path} has no {name!r}, though its contents are those that were saved; the recipe is damaged")
    return vars(module)[name]


def user_files() -> tuple[UserFile, ...]:
    """The user's files in use, for `load_user_files` in another process."""
    return tuple(_files[name] for name in sorted(_files) if name in sys.modules)


def load_user_files(files: Sequence[UserFile]) -> None:
    """Runs the files of the parent command from the same bytes. Those imported there run when a recipe needs them, as
    Python may import them here too.

    Raises `UserError` as `load_user_parts` does.
    """
    for file in files:
        if file.by == "imported":
            _sent[file.sha256] = file
            continue
        module = _imported(file.path) or _run(file, file.path)
        _files[module.__name__] = file
        add_parts(_own(module), file.path)


def approve_imported() -> None:
    """Approves the files of a script and its imports once a run uses their components: the user ran them."""
    for file in user_files():
        if file.by == "imported":
            approve(file.sha256, file.path)


def kind_of(part: type) -> tuple[str, str | None]:
    """The name of a class in a tree, and the sha256 of its file if it is the user's.

    A part of numerate by its name (`LSTM`); one of a user's file by the file, relative to the current folder where it
    lies in it (`my.py:Bitter`); one of an installed package by its entry point (`acme.mixers:Bitter`).

    Raises `UserError` for a class inside a function, which nothing could find again.
    """
    module, name = part.__module__, part.__name__
    if module.partition(".")[0] == "numerate":
        return name, None
    if module not in _files and (address := packaged_parts.address_of(part)) is not None:
        return address, None
    ours = module not in _files or _files[module].by == "imported"
    if ours and any(known.get(name) == module for known in catalogue.kinds().values()):
        return name, None
    if part.__qualname__ != name:
        raise UserError(f"{part.__qualname__} stands inside another; at the top of its file it can be saved")
    found = sys.modules.get(module)
    if found is None or getattr(found, "__file__", None) is None or "." in module:
        return f"{module}:{name}", None
    file = _files.setdefault(module, _file_of(found))
    here, path = Path(os.path.realpath(os.getcwd())), Path(file.path)
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown.as_posix()}:{name}", file.sha256


def add_packaged_parts() -> None:
    """Imports the components of installed packages into the catalogue. Those that fail are skipped with a warning."""
    for address in packaged_parts.declared():
        try:
            add_parts([packaged_parts.packaged_part(address)], address)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)


def add_parts(found: Iterable[Any], shown: str) -> None:
    """Adds the components among `found` to the catalogue; `shown` is the file named in errors."""
    kinds = catalogue.kinds()
    for part in found:
        if isinstance(part, type):
            for kind in sorted({parent.__name__ for parent in part.__mro__[1:]} & set(kinds)):
                if "__dataclass_fields__" in vars(part) and (missing := lacking(part)):
                    raise UserError(f"{shown}: {part.__name__} has no {' and no '.join(missing)}, which a {kind} needs")
                if not is_abstract(part):
                    _check(part, kind, kinds[kind].get(part.__name__), shown)
                    catalogue.add(kind, part)


def _own(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]


def _existing(file: Path) -> Path:
    if not file.is_file():
        near = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(
            f"{file}: there is no such file.{did_you_mean(file.name, near)} --parts FILE names it elsewhere."
        )
    return Path(os.path.realpath(file))


def _imported(file: str) -> ModuleType | None:
    """The module of a file that is already imported, by numerate or by Python."""
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        alike = isinstance(known, str) and os.path.basename(known) == os.path.basename(file)
        if alike and os.path.realpath(str(known)) == file:
            return module
    return None


def _file_of(module: ModuleType) -> UserFile:
    """The file of a module: as run by numerate, or as on disk if Python imported it."""
    if module.__name__ in _files:
        return _files[module.__name__]
    path = os.path.realpath(str(module.__file__))
    try:
        return UserFile(path, Path(path).read_bytes(), "imported")
    except OSError as error:
        raise UserError(f"{path}: was imported, and cannot be read any more ({error.strerror})") from error


def _at_hand(path: str, name: str, source: object) -> ModuleType | None:
    """The module of a file that was named, or that Python imported under the same file name, with a class `name`: the
    one with the contents that were saved, else one with others, with a warning."""
    base, found = os.path.basename(path), []
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        if not isinstance(known, str) or not isinstance(vars(module).get(name), type):
            continue
        if module.__name__ in _files or (os.path.basename(known) == base and "." not in module.__name__):
            with suppress(UserError):  # its file is gone: which contents it had is not known
                found.append((_file_of(module), module))
    same = [module for file, module in found if file.sha256 == source]
    others = [(file, module) for file, module in found if file.by != "approved"]
    if same or not others:
        return same[0] if same else None
    file, module = others[0]
    if isinstance(source, str):
        warnings.warn(
            f"{path} has changed since this was saved; {name} may do something else now (sha256 {file.sha256[:12]}, "
            f"saved with {source[:12]})",
            stacklevel=4,
        )
    return module


def _approved(path: str, source: object) -> ModuleType:
    """The module of an approved file with these contents, run if it was not yet."""
    hash_of = source if isinstance(source, str) else ""
    paths = approved_places(hash_of)
    for candidate in paths:
        try:
            file = UserFile(os.path.realpath(candidate), Path(candidate).read_bytes(), "approved")
        except OSError:
            continue
        if file.sha256 == hash_of:
            return _started(file)
    if hash_of in _sent:
        return _started(_sent[hash_of])
    if paths:
        why = f"{paths[0]} had the contents that were saved (sha256 {hash_of[:12]}), and is gone or has changed"
    else:
        why = f"no file that you have named before has the contents that were saved (sha256 {hash_of[:12] or 'none'})"
    raise UserError(f"{path}: {why}. Nothing of it was run; --parts FILE names the file that you trust to be it.")


def _started(file: UserFile) -> ModuleType:
    module = _run(file, file.path)
    add_parts(_own(module), file.path)
    return module


def _run(file: UserFile, shown: str) -> ModuleType:
    """Runs a file from the hashed bytes, as a module named by its path and hash."""
    stem, folder = Path(file.path).stem, str(Path(file.path).parent)
    known = hashlib.sha256(f"{file.path} {file.sha256}".encode()).hexdigest()
    module = ModuleType(f"numerate_user_{stem}_{known[:8]}")
    module.__file__ = file.path
    if folder not in sys.path:
        sys.path.append(folder)  # so that the file may import its neighbours, as a script may
    sys.modules[module.__name__] = module
    try:
        exec(compile(file.content, file.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        line = line_in(error, file.path)
        raise UserError(f"{shown}{f', line {line}' if line else ''}: {what}") from error
    _files[module.__name__] = file
    return module


def _check(part: type, kind: str, taken: str | None, file: str) -> None:
    name = part.__name__
    own = vars(part)
    if not is_dataclass(part) or (own.get("__annotations__") and "__dataclass_fields__" not in own):
        raise UserError(f"{file}: {name} is no dataclass; write @dataclass(frozen=True) above it")
    if not part.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UserError(f"{file}: {name} can be changed after it is made; write @dataclass(frozen=True) above it")
    for field in fields(part):
        if field.init and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{file}: {name}.{field.name} has no default; every setting needs one")
    if taken is not None and taken != part.__module__:
        raise UserError(f"{file}: there already is a {kind} named {name!r}; give yours another name")
