"""A public class has a name of its own, and the table of old names has names that exist."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import numerate
from numerate.config import override
from numerate.errors import UserError
from numerate.old_names import NEW_NAMES

PACKAGE = Path(__file__).parents[1] / "src" / "numerate"


def classes() -> Iterator[ast.ClassDef]:
    """The classes of every file."""
    for path in PACKAGE.rglob("*.py"):
        yield from (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))


def test_no_name_of_a_public_class_is_used_for_two() -> None:
    names = Counter(node.name for node in classes())
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_an_old_name_is_answered_by_one_that_exists() -> None:
    settings = {
        field.target.id
        for node in classes()
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    assert {new for names in NEW_NAMES.values() for new in names} <= settings | {node.name for node in classes()}
    recipe = numerate.recipe("addition_abacus")
    for old, new in {"optimizer.rate=1": "learning_rate", "layout=Pair": "Seq2Seq"}.items():
        with pytest.raises(UserError, match=f"Since version 0.2 it is called '{new}'"):
            override(recipe, [old])
