"""The run whose weights a recipe starts from: `init_from`."""

from dataclasses import replace
from pathlib import Path

from numerate.config import identity
from numerate.errors import UserError
from numerate.models.strict_weights import match_state_dict
from numerate.runs.run import Run
from numerate.training import checkpoint
from numerate.training.finding import find_run
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.trainer import Trainer


def find_initial_checkpoint(source: RunFolder, recorded_path: str | None, trainer: Trainer) -> checkpoint.Checkpoint:
    """The checkpoint whose weights a run starts from: that at `recorded_path`, if an earlier session of the run chose
    one, otherwise the last one of `source`. Raises `UserError` if there is none, or if it is of another model or
    vocabulary."""
    if recorded_path is None:
        _check_same_vocabulary(Run(source), trainer)
        found = Run(source).checkpoints("final")[0]
    elif Path(recorded_path).is_dir():
        found = checkpoint.read_checkpoint(Path(recorded_path))
    else:
        raise UserError(
            f"init_from: {recorded_path}, from which this run was initialized, no longer exists; another seed= starts "
            "a new run"
        )
    match_state_dict(trainer.model, found.read(only=["weights"])["weights"], f"init_from: {found.path}")
    return found


def _check_same_vocabulary(source: Run, trainer: Trainer) -> None:
    """The token ids of a run of another task have other meanings."""
    source_symbols, symbols = source.evaluation_data.vocabulary.tokens, trainer.evaluation_data.vocabulary.tokens
    if source_symbols != symbols:
        kinds = [type(recipe.task).__name__ for recipe in (source.recipe, trainer.recipe)]
        raise UserError(
            f"init_from: {source.path} must have the vocabulary of this run ({kinds[1]}, {len(symbols)} tokens), "
            f"not that of {kinds[0]} ({len(source_symbols)} tokens); tokenizer.vocabulary= can set a common one"
        )


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
    if recipe.init_from == "latest":
        initial_run_id = source.metadata()["recipe"].get("init_from")
        if initial_run_id is not None and identity(replace(recipe, init_from=initial_run_id)) == source.id:
            return find_run(initial_run_id, runs)
    return source
