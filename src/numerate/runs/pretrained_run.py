"""Runs of pretrained models as they are, without training and without a copy of their weights."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from numerate.config import check_same_defaults, identity, to_tree
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.runs.run import Run
from numerate.training import checkpoint, provenance
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
    model = recipe.model.build_on_meta(vocabulary, recipe.seed, origin)
    tree, contents = to_tree(recipe), recipe.task.file_hashes()
    run_key = f"{identity(recipe)} pretrained{f' {json.dumps(contents, sort_keys=True)}' if contents else ''}"
    folder = RunFolder.create(
        resolve_runs_dir(runs_dir),
        recipe.title,
        hashlib.sha256(run_key.encode()).hexdigest()[:12],
        {
            "recipe": tree,
            **({"contents": contents} if contents else {}),
            "variant": identity(replace(recipe, seed=0)),
            "name": recipe.name,
            "group": recipe.group,
            **provenance.provenance(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
    )
    with folder.lock("evaluation"):
        if (stored := folder.metadata()["recipe"]) != tree:  # what is not in the id: grid, number of questions, folder
            check_same_defaults(stored, recipe, folder.path)
            folder.update_metadata(recipe=tree)
        if checkpoint.latest_valid(folder.checkpoints)[0] is None:
            fingerprint = tokenizer_fingerprint(recipe.tokenizer, recipe.task)
            state = {"tokenizer": fingerprint, "origin": origin, "is_pretrained": True}
            checkpoint.write(folder.checkpoints, 0, {}, state)
    return Run(folder, device=device)
