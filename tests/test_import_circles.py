"""No two files import each other, however far around."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "numerate"


def files() -> dict[str, Path]:
    """Every file of the package by the name of its module; a folder's `__init__` has the name of the folder."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(module: str, path: Path) -> Iterator[str]:
    """What the statements of a file may import, anywhere in it: modules, or names inside of them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{name.name}" for name in node.names)


def graph() -> dict[str, set[str]]:
    """Which files each file imports. The folders above an imported file do not count, only what is named: the names
    of a package that `__getattr__` looks up are for its users, and none of its own files may import them from it."""
    known = files()
    found = {}
    for module, path in known.items():
        named = (name if name in known else name.rpartition(".")[0] for name in imported(module, path))
        found[module] = {name for name in named if name in known}
    return found


def test_no_two_files_import_each_other_not_even_late_or_for_types_alone() -> None:
    TopologicalSorter(graph()).prepare()  # the error names the files of a circle
