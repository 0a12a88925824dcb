"""A public class has a name of its own."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "numerate"


def classes() -> Iterator[ast.ClassDef]:
    """The classes of every file."""
    for path in PACKAGE.rglob("*.py"):
        yield from (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))


def test_no_name_of_a_public_class_is_used_for_two() -> None:
    names = Counter(node.name for node in classes())
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []
