"""The parts that docs/adding.md tells a newcomer to write, for the promises of their kinds."""

import atexit
import re
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from numerate import catalogue
from numerate.config import user_parts

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
KINDS = ("Task", "PositionIds", "Mixer", "Loss", "EvaluationKind")


@cache
def on_the_page() -> dict[str, list[type]]:
    """The classes of each kind that the page has."""
    found: dict[str, list[type]] = {}
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for text in re.findall(r"```python\n(# my_\w+\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        module = ModuleType("newcomer_" + text.split()[1].removesuffix(".py"))
        sys.modules[module.__name__] = module  # where dataclasses look their types up
        file = folder / f"{module.__name__}.py"
        file.write_text(text, encoding="utf-8")
        module.__file__ = str(file)
        exec(compile(text, module.__file__, "exec"), module.__dict__)
        own = [part for part in vars(module).values() if getattr(part, "__module__", "") == module.__name__]
        for part in own:
            for kind in KINDS:
                if isinstance(part, type) and kind in [base.__name__ for base in part.__mro__]:
                    found.setdefault(kind, []).append(part)
    assert set(found) == set(KINDS), "the page lacks an example of one of these kinds"
    return found


def forget_parts_of_users(patch: pytest.MonkeyPatch) -> None:
    """As in a new process: no part of a user is known, and no file of theirs was loaded."""
    patch.setattr(sys, "path", list(sys.path))
    patch.setattr(catalogue, "_user_classes", {})
    patch.setattr(user_parts, "_files", {})
    for name in [name for name in sys.modules if name.startswith("numerate_user_")]:
        patch.delitem(sys.modules, name)
