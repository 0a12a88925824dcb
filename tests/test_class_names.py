"""A public class has a name of its own, and the table of old names has names that exist."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from numerate.old_names import OLD_CLASS_NAMES, OLD_SETTING_NAMES, OLD_SETTING_VALUES

PACKAGE = Path(__file__).parents[1] / "src" / "numerate"


def classes() -> Iterator[ast.ClassDef]:
    """The classes of every file."""
    for path in PACKAGE.rglob("*.py"):
        yield from (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))


def test_no_name_of_a_public_class_is_used_for_two() -> None:
    names = Counter(node.name for node in classes())
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_every_entry_of_the_table_of_old_names_is_a_class_and_a_setting_of_it() -> None:
    settings = {
        f"{node.name}.{field.target.id}"
        for node in classes()
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    assert {*OLD_SETTING_NAMES, *OLD_SETTING_VALUES} <= settings
    assert OLD_CLASS_NAMES.keys() <= {node.name for node in classes()}
