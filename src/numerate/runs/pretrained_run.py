"""Runs that are not trained here: pretrained models as they are, without a copy of their weights."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.config import check_same_defaults, identity, to_tree
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.runs.run import Run
from numerate.runs.train import run_metadata
from numerate.training import checkpoint
from numerate.training.preflight import tokenizer_fingerprint
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, resolve_runs_dir


def pretrained_run(recipe: Recipe, *, runs_dir: str | Path | None = None, device: str | None = None) -> Run:
    """The run of a recipe with its pretrained weights as they are, created unless it exists.

    Its checkpoint, of step 0, says that the weights are those that the recipe names, and has no copy of them. What is
    trained from them is another run, and so is the same model when the files of the task have other contents. Of a
    task with rows in files all are asked, unless `evaluation.examples_per_cell` is set. Raises `UserError` for a recipe
    without pretrained weights.
    """
    weights = getattr(recipe.model, "weights", None)
    if weights is None:
        raise UserError(f"model.weights: must be set to evaluate a {type(recipe.model).__name__} without training it")
    num_rows = recipe.task.num_rows("test")
    if num_rows is not None and recipe.evaluation.examples_per_cell == Evaluation().examples_per_cell:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, examples_per_cell=num_rows))
    recipe = replace(recipe, training=replace(recipe.training, steps=0))
    vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
    origin = recipe.model.pretrained_config(vocabulary)
    model, contents = recipe.model.build_on_meta(vocabulary, recipe.seed, origin), recipe.task.file_hashes()
    key = f"pretrained{f' {json.dumps(contents, sort_keys=True)}' if contents else ''}"
    folder = untrained_folder(
        recipe, key, model, runs_dir, {"contents": contents or None}, {"origin": origin, "is_pretrained": True}
    )
    return Run(folder, device=device)


def untrained_folder(
    recipe: Recipe,
    weights_key: str,
    model: Model,
    runs_dir: str | Path | None,
    entries: Mapping[str, Any],
    state: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, Any]] | None = None,
    step: int = 0,
) -> RunFolder:
    """The folder of a run that is not trained here, created unless it exists; then it has the settings of `recipe` that
    are not in its id, such as the grid. `weights_key` says what weights it has, `entries` are more of its head, and
    `state`, `weights` and `step` are its checkpoint."""
    run_id = hashlib.sha256(f"{identity(recipe)} {weights_key}".encode()).hexdigest()[:12]
    metadata = run_metadata(recipe, model, **entries)
    folder = RunFolder.create(resolve_runs_dir(runs_dir), recipe.title, run_id, metadata)
    with folder.lock("importing"):
        stored = folder.metadata()
        recipe = replace(recipe, name=recipe.name or stored["name"])
        if stored["recipe"] != (tree := to_tree(recipe)):
            check_same_defaults(stored["recipe"], recipe, folder.path)
            folder.update_metadata(recipe=tree, name=recipe.name)
        if checkpoint.latest_valid(folder.checkpoints)[0] is None:
            fingerprint = tokenizer_fingerprint(recipe.tokenizer, recipe.task)
            checkpoint.write(folder.checkpoints, step, weights or {}, {"tokenizer": fingerprint, **state})
    return folder
