"""`finetune`: a model of Hugging Face evaluated, trained, and evaluated again on the same questions."""

import os
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

from numerate.commands.compare import check_suffix, compare
from numerate.commands.pretrained import check_has_task, evaluate_with_progress, is_pretrained
from numerate.config import expand_sweep
from numerate.errors import UserError
from numerate.recipes.hugging_face import finetuning_recipe, untrained_recipe
from numerate.recipes.naming import load_recipe
from numerate.results.evaluated import compared_as_text
from numerate.runs.pretrained_run import pretrained_run
from numerate.runs.train import train
from numerate.runs.trial import dry_run as estimate_training


def finetune(
    address: str,
    *,
    settings: Sequence[str],
    out: str = "compare.html",
    runs_dir: str | None = None,
    dry_run: bool = False,
) -> int:
    """Fine-tunes a model with every combination of settings, and compares the answers before and after; or resumes.
    Returns the exit status."""
    if not is_pretrained(address):
        raise UserError(f"{address}: must be hf: with the name or folder of a model; `numerate train` trains a recipe")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(f"finetune: runs in one process; `numerate train {address}` trains in several")
    check_has_task("finetune", address, settings)
    check_suffix(out)
    base = load_recipe(address)
    recipes = [finetuning_recipe(base, choice) for choice in expand_sweep(settings)]
    untrained = untrained_recipe(base, recipes[0])
    if dry_run:
        with TemporaryDirectory() as temporary_dir:
            print(f"{untrained.title}\n{pretrained_run(untrained, runs_dir=temporary_dir).estimate()}")
        for recipe in recipes:
            print(f"{recipe.title} seed={recipe.seed}\n{estimate_training(recipe)}")
        return 0
    for recipe in recipes:
        estimate_training(recipe, num_timed_steps=0)  # before an evaluation that may take hours
    before = pretrained_run(untrained, runs_dir=runs_dir)
    notes = compared_as_text(evaluate_with_progress(before, predictions=True).frame)
    paths = [str(before.path)]
    for recipe in recipes:
        trained = train(replace(recipe, evaluation=before.recipe.evaluation), runs_dir=runs_dir)
        if trained.exit_status:
            return trained.exit_status
        evaluate_with_progress(trained.run, predictions=True)
        paths.append(str(trained.run.path))
    compare(*paths, out=out, runs_dir=runs_dir)
    print("\n".join([*notes, *paths]))
    return 0
