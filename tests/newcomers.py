"""The parts that docs/adding.md tells a newcomer to write, for the promises of their kinds."""

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
KINDS = ("Task", "PositionIds", "Mixer", "Loss", "EvaluationKind")


@cache
def on_the_page() -> dict[str, list[type]]:
    """The classes of each kind that the page has."""
    found: dict[str, list[type]] = {}
    for text in re.findall(r"```python\n(# my_\w+\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        module = ModuleType("newcomer_" + text.split()[1].removesuffix(".py"))
        sys.modules[module.__name__] = module  # where dataclasses look their types up
        exec(compile(text, str(PAGE), "exec"), module.__dict__)
        own = [part for part in vars(module).values() if getattr(part, "__module__", "") == module.__name__]
        for part in own:
            for kind in KINDS:
                if isinstance(part, type) and kind in [base.__name__ for base in part.__mro__]:
                    found.setdefault(kind, []).append(part)
    assert set(found) == set(KINDS), "the page lacks an example of one of these kinds"
    return found
