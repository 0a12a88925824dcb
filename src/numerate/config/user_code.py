"""A user's file with the modules of its folder that it imports: what is hashed, sent to workers, and executed."""

import ast
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Literal

from numerate.errors import UserError

Reason = Literal["named", "approved", "imported"]

UNGUARDED = 'keep only definitions outside `if __name__ == "__main__":`, or move the part to a file of its own'

_running: list["UserFile"] = []
"""The files that are being executed."""


@dataclass(frozen=True)
class UserFile:
    """A user's file. The hashed bytes are the ones executed, here and in every worker."""

    path: str
    content: bytes
    reason: Reason
    """The reason why it runs: the user named it; a saved recipe needs it and its hash is approved; or Python imported
    it, as a script or for one."""
    neighbors: tuple[tuple[str, bytes], ...] = ()
    """The modules of its folder that it imports, itself or through others: their paths there, and their contents."""
    depth: int = 0
    """How many packages it is in: `folder` is the one around them."""

    @property
    def folder(self) -> Path:
        return Path(self.path).parents[self.depth]

    @cached_property
    def sha256(self) -> str:
        """The hash of its contents, and of its neighbors if there are any."""
        own = hashlib.sha256(self.content).hexdigest()
        hashes = [f"{hashlib.sha256(content).hexdigest()} {name}" for name, content in self.neighbors]
        return hashlib.sha256("\n".join([own, *hashes]).encode()).hexdigest() if hashes else own

    @cached_property
    def sources(self) -> dict[str, bytes]:
        """The contents of the file and of its neighbors, by path."""
        return {self.path: self.content, **{str(self.folder / name): content for name, content in self.neighbors}}

    def copy_to(self, folder: Path) -> None:
        """Writes the file and its neighbors into a folder, where people read them and nothing executes them."""
        for path, content in self.sources.items():
            copy = folder / Path(path).relative_to(self.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)


def read_user_file(path: str, reason: Reason, module: str = "") -> UserFile:
    """A file, with its neighbors, as they are on disk; nothing is executed. Of a `module` in a package the neighbors
    are the modules of the package. Raises `OSError`."""
    content, is_init = Path(path).read_bytes(), os.path.basename(path) == "__init__.py"
    file = UserFile(path, content, reason, depth=module.count(".") + is_init if module else 0)
    found: dict[str, bytes] = {}
    waiting = [(module if is_init else module.rpartition(".")[0], content)]  # for relative imports, and contents
    while waiting:
        for name in _imported_modules(*waiting.pop()):
            stem = name.replace(".", "/")
            files = [one for one in (f"{stem}/__init__.py", f"{stem}.py") if (file.folder / one).is_file()]
            is_near = not module or name.partition(".")[0] == module.partition(".")[0]
            if files and is_near and files[0] not in found and file.folder / files[0] != Path(path):
                found[files[0]] = (file.folder / files[0]).read_bytes()
                package = name if files[0].endswith("/__init__.py") else name.rpartition(".")[0]
                waiting.append((package, found[files[0]]))
    return replace(file, neighbors=tuple(sorted(found.items())))


def _imported_modules(package: str, content: bytes) -> Iterator[str]:
    """The modules in the `import` statements of a file, those in functions as well, each after its packages."""
    names: list[str] = []
    with suppress(SyntaxError, ValueError, RecursionError, ImportError):  # reported when it is executed
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = resolve_name("." * node.level + (node.module or ""), package)
                names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    for parts in (name.split(".") for name in names):
        if parts[0] != "numerate" and parts[0] not in sys.stdlib_module_names:
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


class _NeighborImporter(MetaPathFinder, SourceLoader):  # type: ignore[misc]
    """Imports the neighbors of a file from their hashed bytes: not as edited meanwhile, nor from a `.pyc`."""

    def __init__(self, file: UserFile) -> None:
        self.folder, self.sources = file.folder, file.sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.get_filename(fullname)
        is_package = file.endswith("/__init__.py")
        return spec_from_loader(fullname, self, is_package=is_package) if file in self.sources else None

    def get_filename(self, fullname: str) -> str:
        stem = self.folder / fullname.replace(".", "/")
        return f"{stem}/__init__.py" if f"{stem}/__init__.py" in self.sources else f"{stem}.py"

    def get_data(self, path: str | bytes) -> bytes:
        return self.sources[str(path)] if path in self.sources else Path(str(path)).read_bytes()


@contextmanager
def executing(file: UserFile) -> Iterator[None]:
    """While a file is executed, and later for imports in its functions: its neighbors are imported from their hashed
    bytes. Its command line is empty. Raises `UserError` if a neighbor has the name of another module, or was edited.
    """
    folder, arguments = file.folder, sys.argv
    for name, content in file.neighbors:
        module, path = name.removesuffix(".py").removesuffix("/__init__").replace("/", "."), folder / name
        origin = getattr(sys.modules.get(module), "__file__", None) or path
        importers = [finder for finder in sys.meta_path if isinstance(finder, _NeighborImporter)]
        known = {finder.sources.get(finder.get_filename(module), content) for finder in importers}
        if os.path.realpath(origin) != os.path.realpath(path) or known - {content}:
            raise UserError(
                f"{file.path}: imports {path}, but another {module} is in use; rename it, or start a new process if it "
                "was edited"
            )
    if file.neighbors:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _NeighborImporter(file))
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # so that the file can import what it names at run time, like a script
    _running.append(file)
    sys.argv = [file.path]
    try:
        yield
    finally:
        sys.argv = arguments
        _running.pop()


def refuse_while_loading(function: str) -> None:
    """Raises `UserError` if a user's file calls a function where it is only executed for its parts."""
    if _running:
        raise UserError(f"calls {function} where it is loaded for its parts; {UNGUARDED}")
