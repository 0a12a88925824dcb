"""Parts of a user's own: classes in a file of theirs, reachable without a fork as `--parts my.py` or `my.py:recipe`."""

import hashlib
import importlib
import inspect
import os
import sys
import warnings
from abc import ABC
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from numerate import catalogue
from numerate.errors import Mistake, did_you_mean

_hashes: dict[str, str] = {}
"""Per module name, the sha256 of its file as it was when the module was first seen."""

_by_file: set[str] = set()
"""Names of the modules that came from a user's file."""

_named: set[str] = set()
"""Names of those that the user named (`--parts my.py`), not only a saved recipe."""


def is_abstract(part: type) -> bool:
    """Whether a class only describes others: `Mixer` is, `LSTM` is not."""
    return inspect.isabstract(part) or ABC in part.__bases__


def load_user_parts(path: str | Path) -> ModuleType:
    """Imports a user's file once and puts every part in it into the catalogue, under its class name.

    A part is a concrete class of a kind that the catalogue knows (`class Bitter(Mixer)`); it has to be a frozen
    dataclass in which every field has a default. A file that is already imported is taken as it is, so that its classes
    stay the same classes.

    Raises `Mistake` for a file that is not there or fails on import (with file and line), for a part that is no spec,
    and for a name that another part already has.
    """
    module = _loaded(Path(path))
    _named.add(module.__name__)
    return module


def _loaded(path: Path) -> ModuleType:
    file = _existing(path.expanduser())
    module = _imported(file) or _import(file, str(path))
    _hashes.setdefault(module.__name__, hashlib.sha256(file.read_bytes()).hexdigest())
    _by_file.add(module.__name__)
    kinds = catalogue.kinds()
    for part in list(vars(module).values()):
        if isinstance(part, type) and part.__module__ == module.__name__ and not is_abstract(part):
            for kind in sorted({parent.__name__ for parent in part.__mro__[1:]} & set(kinds)):
                _check(part, kind, kinds[kind].get(part.__name__), str(path))
                catalogue.add(kind, part)
    return module


def user_object(address: str, *, source: str | None = None, beside: Path | None = None) -> Any:
    """What stands under a name in a user's file: `user_object("my.py:recipe")`.

    `beside` is a file (such as a saved recipe) from whose folder upwards a relative path is also looked for. `source`
    is the sha256 that the file had when it was saved: where it has another now, a warning says so.

    Raises `Mistake` for a file or name that is not there.
    """
    path, _, name = address.rpartition(":")
    file = _nearest(Path(path).expanduser(), source, beside)
    module = (None if file.is_file() else _named_instead(name, source)) or _loaded(file)
    if source is not None and _hashes[module.__name__] != source:
        warnings.warn(f"{path} has changed since this was saved; {name} may do something else now", stacklevel=2)
    if name not in vars(module):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        there = ", ".join(sorted(own)) or "nothing"
        raise Mistake(f"{path} has no {name!r}; it has: {there}.{did_you_mean(name, own)}")
    return vars(module)[name]


def user_files() -> list[str]:
    """The user's files that were loaded here, for a process that shall know the same parts by `load_user_parts`."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in sorted(_by_file)]
    return [file for file in files if file is not None]


def packaged_object(address: str) -> Any:
    """What stands under a name in an installed module: `packaged_object("acme.mixers:Bitter")`.

    Raises `Mistake` where there is no such module or name.
    """
    module, _, name = address.rpartition(":")
    try:
        return getattr(sys.modules.get(module) or importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        advice = "; it was defined in a session that is over, put it into a file" if module == "__main__" else ""
        raise Mistake(f"{address}: there is no such class{advice} ({error})") from error


def kind_of(part: type) -> tuple[str, str | None]:
    """How a tree names a class, and the sha256 of its file where it is a user's own.

    A part of the house by its name (`LSTM`); one of a user's file by the file, relative to the current folder where it
    lies in it (`my.py:Bitter`); one of an installed package by its module (`acme.mixers:Bitter`).

    Raises `Mistake` for a class inside a function, which nothing could find again.
    """
    module, name = part.__module__, part.__name__
    if module.partition(".")[0] == "numerate":
        return name, None
    if module not in _by_file and any(known.get(name) == module for known in catalogue.kinds().values()):
        return name, None
    if part.__qualname__ != name:
        raise Mistake(f"{part.__qualname__} stands inside another; at the top of its file it can be saved")
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or "." in module:
        return f"{module}:{name}", None
    path = Path(os.path.realpath(file))
    if module not in _hashes:
        _hashes[module] = hashlib.sha256(path.read_bytes()).hexdigest()
    here = Path(os.path.realpath(os.getcwd()))
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown.as_posix()}:{name}", _hashes[module]


def _existing(file: Path) -> Path:
    if not file.is_file():
        near = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise Mistake(f"{file}: there is no such file.{did_you_mean(file.name, near)} --parts FILE names it elsewhere.")
    return Path(os.path.realpath(file))


def _named_instead(name: str, source: str | None) -> ModuleType | None:
    """A file that the user named (`--parts`) and that holds what is meant, where the file that was saved is missing:
    the one with the same content, wherever it lies now, or else with the same class name."""
    named = [sys.modules[module] for module in sorted(_named) if name in vars(sys.modules.get(module, object))]
    same = [module for module in named if _hashes[module.__name__] == source]
    return next(iter(same or named), None)


def _nearest(path: Path, source: str | None, beside: Path | None) -> Path:
    """The file meant by a relative path: the one with the right hash, or else the first that there is."""
    folders = [Path.cwd(), *(Path(os.path.realpath(beside)).parents if beside else ())]
    found = [folder / path for folder in folders if (folder / path).is_file()]
    for file in found:
        if hashlib.sha256(file.read_bytes()).hexdigest() == source:
            return file
    return found[0] if found else path


def _imported(file: Path) -> ModuleType | None:
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        if isinstance(known, str) and os.path.basename(known) == file.name and os.path.realpath(known) == str(file):
            return module
    return None


def _import(file: Path, shown: str) -> ModuleType:
    """Runs the file from the very bytes that are hashed, under a name that only its path decides."""
    content = file.read_bytes()
    module = ModuleType(f"numerate_user_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}")
    module.__file__ = str(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # so that the file may import its neighbours, as a script may
    sys.modules[module.__name__] = module
    try:
        exec(compile(content, str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        what = str(error) if isinstance(error, Mistake) else f"{type(error).__name__}: {error}"
        raise Mistake(f"{shown}, line {_line(error, str(file))}: {what}") from error
    _hashes[module.__name__] = hashlib.sha256(content).hexdigest()
    return module


def _line(error: BaseException, file: str) -> int:
    """The last line of the file that was at work when the error came."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno or 0
    line, at = 0, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == file:
            line = at.tb_lineno
        at = at.tb_next
    return line


def _check(part: type, kind: str, taken: str | None, file: str) -> None:
    name = part.__name__
    own = vars(part)
    if not is_dataclass(part) or (own.get("__annotations__") and "__dataclass_fields__" not in own):
        raise Mistake(f"{file}: {name} is no dataclass; write @dataclass(frozen=True) above it")
    if not part.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise Mistake(f"{file}: {name} can be changed after it is made; write @dataclass(frozen=True) above it")
    for field in fields(part):
        if field.init and field.default is MISSING and field.default_factory is MISSING:
            raise Mistake(f"{file}: {name}.{field.name} has no default; every setting needs one")
    if taken is not None and taken != part.__module__:
        raise Mistake(f"{file}: there already is a {kind} named {name!r}; give yours another name")
