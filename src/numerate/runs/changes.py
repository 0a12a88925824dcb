"""Settings that an evaluation may change without changing the weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numerate.config import override, to_tree
from numerate.config.differences import differences, remove_seeds
from numerate.errors import UserError
from numerate.training.recipe import Recipe

TASK_INDEX, TASK_PATH = "task.task_index", "task.path"
"""What an evaluation may change of a task: which task of a `Mixture`, and which file of rows (`ExampleFile`)."""


def override_for_evaluation(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with settings of its model changed, for an evaluation.

    >>> import numerate
    >>> recipe = numerate.recipe("addition_abacus", "model.backbone=Loop(num_loops=4)")
    >>> override_for_evaluation(recipe, ["model.backbone.num_loops=8"]).model.backbone.num_loops
    8

    Of the task, only `TASK_INDEX` and `TASK_PATH` may change. Raises `UserError` for any other setting.
    """
    from numerate.text.tasks.example_file import ExampleFile

    task, paths = recipe.task, (TASK_INDEX, TASK_PATH) if isinstance(recipe.task, ExampleFile) else (TASK_INDEX,)
    for text in settings:
        path = text.partition("=")[0].strip()
        if not path.startswith("model.") and path not in paths:
            raise UserError(
                f"{path}: an evaluation changes how the model is run, by settings below model. (such as "
                "model.mixer.dropout=0.1); any other setting defines another run; train it with `numerate train`"
            )
    changed = override(recipe, settings)
    if isinstance(task, ExampleFile) and isinstance(changed.task, ExampleFile) and changed.task.path != task.path:
        return replace(changed, task=task.with_path(str(changed.task.path)))
    return changed


def diff_settings(trained: Recipe, evaluated: Recipe) -> dict[str, Any]:
    """The settings that differ from training, by path, as plain values; {} is the model as trained."""
    from numerate.text.tasks.example_file import ExampleFile
    from numerate.text.tasks.text_files import combine_hashes

    models = dict(differences("", [remove_seeds({"model": to_tree(one.model)}) for one in (trained, evaluated)]))
    changes, task = {path: new for path, (_, new) in models.items()}, evaluated.task
    task_index = getattr(task, "task_index", None)
    if task_index != getattr(trained.task, "task_index", None):
        changes[TASK_INDEX] = task_index
    if isinstance(task, ExampleFile) and task.training_task is not None:
        changes |= {TASK_PATH: task.path, "task.contents": combine_hashes(task.file_hashes().values())[:12]}
    return dict(sorted(changes.items()))
