"""Training a recipe in the folder of its run."""

from collections.abc import Callable
from pathlib import Path

from numerate.experiments.start import Listener as Listener
from numerate.experiments.start import Start
from numerate.experiments.start import TrainedRun as TrainedRun
from numerate.experiments.trial import TrainingEstimate as TrainingEstimate
from numerate.experiments.trial import debug as debug
from numerate.experiments.trial import dry_run as dry_run
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.run_folder import runs_directory
from numerate.training.stopping import Stop


def train(
    recipe: Recipe,
    *,
    runs_dir: str | Path | None = None,
    quiet: bool = False,
    listen: Listener | None = None,
    say: Callable[[str], None] | None = None,
    stop: Stop | None = None,
    command: str | None = None,
) -> TrainedRun:
    """Trains a recipe, or resumes it from its folder, and returns its run.

    The folder is `runs_dir / title / id` (see `numerate.training.run_folder`). Raises `UserError` for a recipe that
    cannot be trained, before anything is written; `OperationalError` where the loss is not finite or the disk is full.
    `listen` is called with every step and record, `say` with every message; `stop` can stop it from another thread;
    `command` is what the user typed, where this process was started by another.
    """
    runs, stop = runs_directory(runs_dir), stop or Stop()
    with World.joined(recipe.device) as world:
        shown = not quiet and world.first
        with Start(recipe, world, runs, shown=shown, listen=listen, on_message=say, command=command) as start:
            if not start.begin():
                return start.nothing()
            with stop:
                outcome = start.trainer.train(stop)
            return start.end(outcome)
