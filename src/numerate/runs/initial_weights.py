"""The run whose weights a recipe starts from: `init_from`."""

from dataclasses import replace
from pathlib import Path

from numerate.config import identity
from numerate.errors import UserError
from numerate.training.finding import find_run
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder


def initial_run(recipe: Recipe, runs: Path) -> RunFolder | None:
    """The run that a recipe is initialized from; its id, not its address, is part of the new run's identity.

    `latest` is the run that was started last. If that is the new run itself, which is being resumed, `latest` means the
    run that it was initialized from, so that the same command resumes it.
    """
    if recipe.init_from is None:
        return None
    try:
        source = find_run(recipe.init_from, runs)
    except UserError as error:
        raise UserError(f"init_from: {error}") from error
    earlier = source.metadata()["recipe"].get("init_from") if recipe.init_from == "latest" else None
    if earlier is not None and identity(replace(recipe, init_from=earlier)) == source.id:
        return find_run(earlier, runs)
    return source
