"""The work on one run of a study: it is trained, evaluated and reported as far as necessary, and its end is written."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from numerate.runs.train import TrainedRun, train
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder


@dataclass(frozen=True)
class MakeRun:
    """Makes runs below a folder: a function of a `StudyRun`, which returns the warnings about its run.

    It does what is missing in the folder of the run and writes there how it ended, also with an error of its own. It
    raises `LockedError` if another process is at the run, errors of memory and of a full disk, and `KeyboardInterrupt`
    when stopped.
    """

    runs_dir: str
    command: str = field(compare=False)
    """The command line."""
    working_directory: str = field(compare=False)
    """The working directory of the command; paths of user files are relative to it."""

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
        folder = RunFolder(Path(self.runs_dir) / item.run)
        with Ending(folder, item.key) as ending:
            recipe = from_tree(item.recipe_tree(), Path(self.working_directory) / "study", expected_class=Recipe)
            trained = train(
                recipe,
                runs_dir=self.runs_dir,
                quiet=True,
                on_message=messages.append,
                stop=current_stop(),
                command=self.command,
            )
            if trained.stop_reason == "minutes":  # the same command resumes it
                return
            with folder.lock("evaluation"):  # so that nobody else does the same
                results = evaluate_trained(replace(trained, run=Run(folder)), recipe)
                ending.write("done", results=results)
            if results["step"] > (recipe.training.steps or results["step"]):
                further = f"trained further, to step {results['step']}, which its results are of"
                messages.append(f"warning: {item.display_name}: {further}; another title= separates its runs")


def evaluate_trained(trained: TrainedRun, recipe: Recipe) -> dict[str, Any]:
    """Evaluates a trained run with the grid and count of a recipe (another command may have trained it) at its best and
    its final checkpoint, and writes its report; returns the entries of `RunResults`.

    Raises `KeyboardInterrupt` if the training was stopped, or if a stop is requested.
    """
    run, stop = trained.run, current_stop()

    def check_stop(*_: int) -> None:
        if stop.requested or trained.stop_reason == "stopped":
            raise KeyboardInterrupt

    check_stop()
    count = run.evaluation_data.kind.default_count(recipe.evaluation)
    grid = None if recipe.evaluation.grid is None else str(resolve_grid(recipe.task, recipe.evaluation.grid))
    for name in ("best", "final"):
        run.evaluate(grid, count=count, checkpoint=name, on_progress=check_stop)
    run.report()
    track_results(run.path, run.recipe)
    return training_results(trained, recipe)


def training_results(trained: TrainedRun, recipe: Recipe) -> dict[str, Any]:
    """The entries of `RunResults` of a run that was trained and not evaluated."""
    run = trained.run
    progress = run.checkpoints("final")[0].state["progress"]
    metrics, extensions = run.folder.records("metrics.jsonl"), run.folder.metadata().get("extensions")
    target, flops = recipe.training.target_accuracy, progress.get("flops")
    stop_reason = "budget" if target is None or progress.get("exact_match", 0.0) < target else "target"
    validation = {"validation_exact_match": ("exact_match", "validation")}
    validation["ood_validation_exact_match"] = ("exact_match", "ood_validation")
    if any("perplexity" in line for line in metrics):
        names = ("loss", "perplexity", "bits_per_byte")
        validation |= {f"validation_{name}": (name, "validation") for name in names}
    return {
        **({"extended_from": extensions[-1]["budget"]} if extensions else {}),
        "stop_reason": "minutes" if trained.stop_reason == "minutes" else stop_reason,
        **{name: progress[name] for name in ("step", "examples", "tokens")},
        "flops": None if flops is None else float(flops),
        "loss": _last_value(metrics, "loss"),
        **{name: _last_value(metrics, *place) for name, place in validation.items()},
        "best_step": progress["best"],
    }


def _last_value(metrics: Sequence[Mapping[str, Any]], name: str, split: str | None = None) -> Any:
    return next((line[name] for line in reversed(metrics) if name in line and line.get("split") == split), None)
