"""From a name that a user types to the recipe or study that is meant."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.config import from_tree, load_yaml, user_object
from numerate.errors import UserError, did_you_mean
from numerate.records.heads import is_head, read_head
from numerate.training.recipe import Recipe


def named_recipe(text: str) -> Recipe:
    """`addition_abacus` (or `addition-abacus`), `my.py:recipe`, or the path of a saved `recipe.yaml`.

    Raises `UserError` for anything else, also for a study.
    """
    found = named(text)
    if isinstance(found, Recipe):
        return found
    if _is_study(found):
        raise UserError(f"{text} is a study of several recipes; `numerate run {text}` trains, evaluates and reports it")
    raise UserError(f"{text}: is no recipe but {type(found).__name__}")


def named(text: str) -> Any:
    """A recipe or a study by its name; see `named_recipe`. Raises `UserError` with the nearest name there is."""
    if text.endswith((".yaml", ".yml")):
        head = read_head(Path(text)) if is_head(Path(text)) else load_yaml(text)
        tree = head.get("recipe", head) if isinstance(head, Mapping) else head
        return from_tree(tree, text, declared=Recipe)
    if ":" in text and text.rpartition(":")[0].endswith(".py"):
        found = user_object(text)
        made = found() if callable(found) and not isinstance(found, Recipe) else found
        if isinstance(made, Recipe) and made.title == "recipe":
            return replace(made, title=text.rpartition("/")[2].replace(".py:", "-"))
        return made
    name = text.replace("-", "_")
    kinds = catalogue.kinds()
    for kind in ("Recipe", "Study"):
        if name in kinds.get(kind, {}):
            make: Callable[[], Any] = catalogue.find(kind, name)
            return make()
        if (made := catalogue.of_family(kind, name)) is not None:
            return made
    known = [*kinds.get("Recipe", {}), *kinds.get("Study", {}), *catalogue.family_names("Recipe")]
    raise UserError(
        f"no recipe or study is named {text!r}; `numerate list` shows all of them.{did_you_mean(text, known)}"
    )


def _is_study(found: Any) -> bool:
    from numerate.studies.study import Study

    return isinstance(found, Study)
