"""Settings that change how a trained model is run, and leave its weights as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numerate.config import override, to_tree
from numerate.errors import UserError
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.file_sources import of_hashes
from numerate.training.recipe import Recipe

ONLY = "task.task_index"
"""Which task of a `Mixture` is evaluated."""

FILE = "task.path"
"""The file with the rows to evaluate, where a model was trained on rows of a file (`ExampleFile`)."""

CONTENTS = "task.contents"
"""Hash of the rows of that file, which may change over time."""


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with settings of its model changed, for an evaluation.

    >>> changed(recipe, ["model.backbone.num_loops=8"]).model.backbone.num_loops
    8

    Of the task, only the index within a `Mixture` (`task.task_index=1`) and the file of an `ExampleFile`
    (`task.path=other.txt`) may change. Raises `UserError` for any other setting.
    """
    of_task = (ONLY, FILE) if isinstance(recipe.task, ExampleFile) else (ONLY,)
    for text in settings:
        path = text.partition("=")[0].strip()
        if not path.startswith("model.") and path not in of_task:
            raise UserError(
                f"{path}: an evaluation changes how the model is run, by settings below model. (such as "
                "model.mixer.dropout=0.1); with any other it would be another run, which `numerate train` makes"
            )
    found = override(recipe, settings)
    if (
        isinstance(recipe.task, ExampleFile)
        and isinstance(found.task, ExampleFile)
        and found.task.path != recipe.task.path
    ):
        return replace(found, task=recipe.task.of_file(str(found.task.path)))
    return found


def differences(trained: Recipe, run: Recipe) -> dict[str, Any]:
    """The settings that differ from those it was trained with, as path and plain value, by path.

    What is set to the value that it has anyway is no difference: `{}` is the model as trained.
    """
    found: dict[str, Any] = {}
    _compare("model", to_tree(trained.model), to_tree(run.model), found)
    only, before = getattr(run.task, "task_index", None), getattr(trained.task, "task_index", None)
    if only != before:
        found[ONLY] = only
    if isinstance(run.task, ExampleFile) and run.task.trained_on is not None:
        found[FILE], found[CONTENTS] = run.task.path, of_hashes(run.task.contents().values())[:12]
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
