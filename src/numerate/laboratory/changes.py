"""Settings that change how a trained model is run, and leave its weights as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from numerate.config import override, to_tree
from numerate.errors import Mistake
from numerate.training.recipe import Recipe

ONLY = "task.only"
"""The one setting of a task that an evaluation may change: which task of a `Mixture` is asked."""


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with settings of its model changed, for an evaluation.

    >>> changed(recipe, ["model.trunk.times=8"]).model.trunk.times
    8

    Which task of a `Mixture` is asked may be changed too (`task.only=1`). Raises `Mistake` for any other setting: of
    another task, tokenizer or seed a run of its own is made.
    """
    for text in settings:
        path = text.partition("=")[0].strip()
        if not path.startswith("model.") and path != ONLY:
            raise Mistake(
                f"{path}: an evaluation changes how the model is run, by settings below model. (such as "
                "model.mixer.dropout=0.1); with any other it would be another run, which `numerate train` makes"
            )
    return override(recipe, settings)


def differences(trained: Recipe, run: Recipe) -> dict[str, Any]:
    """The settings that differ from those it was trained with, as path and plain value, by path.

    What is set to the value that it has anyway is no difference: `{}` is the model as trained.
    """
    found: dict[str, Any] = {}
    _compare("model", to_tree(trained.model), to_tree(run.model), found)
    only, before = getattr(run.task, "only", None), getattr(trained.task, "only", None)
    if only != before:
        found[ONLY] = only
    return dict(sorted(found.items()))


def _compare(path: str, before: Any, after: Any, found: dict[str, Any]) -> None:
    if before == after and type(before) is type(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.get("kind") == after.get("kind"):
        for name in dict.fromkeys([*before, *after]):
            _compare(f"{path}.{name}", before.get(name), after.get(name), found)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            _compare(f"{path}.{number}", one, other, found)
    else:
        found[path] = after
