"""A public class has a name of its own."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "numerate"


def test_no_name_of_a_public_class_is_used_for_two() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []
