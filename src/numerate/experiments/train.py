"""Training a recipe in the folder of its run."""

from collections.abc import Callable
from pathlib import Path

from numerate.experiments.start import RecordCallback as RecordCallback
from numerate.experiments.start import TrainedRun as TrainedRun
from numerate.experiments.start import TrainingSession
from numerate.experiments.trial import TrainingEstimate as TrainingEstimate
from numerate.experiments.trial import debug as debug
from numerate.experiments.trial import dry_run as dry_run
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.run_folder import resolve_runs_dir
from numerate.training.stopping import Stop


def train(
    recipe: Recipe,
    *,
    runs_dir: str | Path | None = None,
    quiet: bool = False,
    on_record: RecordCallback | None = None,
    on_message: Callable[[str], None] | None = None,
    stop: Stop | None = None,
    command: str | None = None,
) -> TrainedRun:
    """Trains a recipe, or resumes it from its folder, and returns its run.

    The folder is `runs_dir / title / id` (see `numerate.training.run_folder`). Raises `UserError` for a recipe that
    cannot be trained, before anything is written; `OperationalError` if the loss is not finite or the disk is full.
    `on_record` is called with every step and record, `on_message` with every message; `stop` can stop it from another
    thread; `command` is the user's command line, if another process started this one.
    """
    runs, stop = resolve_runs_dir(runs_dir), stop or Stop()
    with World.connect(recipe.device) as world:
        shown = not quiet and world.is_main_process
        with TrainingSession(
            recipe, world, runs, show_progress=shown, on_record=on_record, on_message=on_message, command=command
        ) as start:
            if not start.start():
                return start.finish_untrained()
            with stop:
                outcome = start.trainer.train(stop)
            return start.finish(outcome)
