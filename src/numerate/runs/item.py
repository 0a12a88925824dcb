"""The work on one run of a study: it is trained, evaluated and reported as far as necessary, and its end is written."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numerate.config import from_tree
from numerate.evaluation.evaluator import resolve_grid
from numerate.integrations.tracked_results import track_results
from numerate.runs.end import Ending
from numerate.runs.engines.engine import Failure
from numerate.runs.engines.worker import current_stop
from numerate.runs.run import Run
from numerate.runs.status import read_state
from numerate.runs.study_folder import StudyRun
from numerate.runs.train import train
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop


@dataclass(frozen=True)
class MakeRun:
    """Makes runs below a folder: a function of a `StudyRun`, which returns the warnings about its run.

    It does what is missing in the folder of the run and writes there how it ended, also with an error of its own. It
    raises `LockedError` if another process is at the run, errors of memory and of a full disk, and `KeyboardInterrupt`
    when stopped. Paths of user files are relative to the `working_directory` of the `command`.
    """

    runs_dir: str
    command: str = field(compare=False)
    working_directory: str = field(compare=False)

    def name_of(self, item: StudyRun) -> str:
        return item.display_name

    def done(self, item: StudyRun) -> bool:
        """Whether a run is trained and evaluated already, or has failed, also meanwhile: a retry removes its end."""
        return read_state(Path(self.runs_dir), item).status in ("done", "failed")

    def fail(self, item: StudyRun, failure: Failure) -> None:
        """Writes that a run failed whose worker could not: it died, took too long, or had no memory. Raises the errors
        of `Ending.write`."""
        Ending(RunFolder(Path(self.runs_dir) / item.run), item.key).fail(failure)

    def __call__(self, item: StudyRun) -> list[str]:
        messages: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            if not self.done(item):
                self._make(item, messages)
        texts = [text for text in messages if text.startswith("warning: ")]
        return list(dict.fromkeys([*texts, *(f"warning: {one.message}" for one in caught)]))

    def _make(self, item: StudyRun, messages: list[str]) -> None:
        folder, stop = RunFolder(Path(self.runs_dir) / item.run), current_stop()
        with Ending(folder, item.key) as ending:
            recipe = from_tree(item.recipe_tree(), Path(self.working_directory) / "study", expected_class=Recipe)
            options: dict[str, Any] = {"on_message": messages.append, "stop": stop, "command": self.command}
            trained = train(recipe, runs_dir=self.runs_dir, quiet=True, **options)
            if trained.stop_reason == "stopped":
                raise KeyboardInterrupt
            if trained.stop_reason == "minutes":  # the same command resumes it
                return
            with folder.lock("evaluation"):  # so that nobody else does the same
                _evaluate(run := Run(folder), recipe, stop)
                results = training_results(run, recipe)
                ending.write("done", results=results)
            if results["step"] > (recipe.training.steps or results["step"]):
                further = f"trained further, to step {results['step']}, which its results are of"
                messages.append(f"warning: {item.display_name}: {further}; another title= separates its runs")


def _evaluate(run: Run, recipe: Recipe, stop: Stop) -> None:
    """Evaluates a run with the grid and count of a recipe (another command may have trained it) at its best and its
    final checkpoint, and writes its report. Raises `KeyboardInterrupt` if a stop is requested."""

    def check_stop(*_: int) -> None:
        if stop.requested:
            raise KeyboardInterrupt

    check_stop()
    count = run.evaluation_data.kind.default_count(recipe.evaluation)
    grid = None if recipe.evaluation.grid is None else str(resolve_grid(recipe.task, recipe.evaluation.grid))
    for checkpoint in ("best", "final"):
        run.evaluate(grid, count=count, checkpoint=checkpoint, on_progress=check_stop)
    run.report()
    track_results(run.path, run.recipe)


def training_results(run: Run, recipe: Recipe) -> dict[str, Any]:
    """The `RunResults` of a run that reached its budget or its target."""
    progress, extensions = run.checkpoints("final")[0].state["progress"], run.folder.metadata().get("extensions")
    last: dict[tuple[str | None, str], Any] = {}  # of each value by the split of its line, that of training being None
    for line in run.folder.records("metrics.jsonl"):
        last |= {(line.get("split"), name): value for name, value in line.items()}
    target = recipe.training.target_accuracy
    is_at_target = target is not None and progress.get("exact_match", 0.0) >= target
    names = ("loss", "perplexity", "bits_per_byte") if ("validation", "perplexity") in last else ()
    return {
        **({"extended_from": extensions[-1]["budget"]} if extensions else {}),
        "stop_reason": "target" if is_at_target else "budget",
        **{name: progress[name] for name in ("step", "examples", "tokens")},
        "flops": float(progress["flops"]),
        "loss": last.get((None, "loss")),
        **{f"{split}_exact_match": last.get((split, "exact_match")) for split in ("validation", "ood_validation")},
        **{f"validation_{name}": last.get(("validation", name)) for name in names},
        "best_step": progress["best"],
    }
