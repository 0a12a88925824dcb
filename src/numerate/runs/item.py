"""The work on one run of a study: it is trained, evaluated and reported as far as necessary, and its end is written."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numerate.config import from_tree
from numerate.evaluation.answer_metrics import own_scores
from numerate.evaluation.evaluator import resolve_grid
from numerate.integrations.tracked_results import track_results
from numerate.reports.evaluation_results import Results
from numerate.runs.end import Ending, read_end
from numerate.runs.engines.worker import current_stop
from numerate.runs.run import Run
from numerate.runs.train import TrainedRun, train
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder


@dataclass(frozen=True)
class RunItem:
    """A run to be made: `run` is its path below the folder of runs, `key` the content key of its recipe, `tree` that
    recipe as plain data."""

    run: str
    key: str
    name: str = field(compare=False)
    tree: Mapping[str, Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class MakeRun:
    """Makes runs below a folder: a function of a `RunItem`, which returns the messages about its run.

    It does what is missing in the folder of the run and writes there how it ended, also with an error of its own. It
    raises `LockedError` if another process is at the run, errors of memory and of a full disk, and `KeyboardInterrupt`
    when stopped.
    """

    runs_dir: str
    command: str = field(compare=False)
    """The command line."""
    working_directory: str = field(compare=False)
    """The working directory of the command; paths of user files are relative to it."""
    verbose: bool = field(default=True, compare=False)
    """Whether all messages of a run are returned, or only its warnings."""

    def name_of(self, item: RunItem) -> str:
        return item.name

    def done(self, item: RunItem) -> bool:
        """Whether a run is trained and evaluated already."""
        path = Path(self.runs_dir) / item.run
        end = read_end(path) if (path / "recipe.yaml").exists() else None
        return end is not None and end.is_done(item.key)

    def __call__(self, item: RunItem) -> list[str]:
        messages: list[str] = []

        def on_message(text: str) -> None:
            if self.verbose or text.startswith("warning: "):
                messages.append(text)

        with _redirect_warnings(lambda warning, *_: on_message(f"warning: {warning}")):
            if not self.done(item):
                self._make(item, on_message)
        return messages

    def _make(self, item: RunItem, on_message: Callable[[str], None]) -> None:
        def on_record(kind: str, record: Mapping[str, Any]) -> None:
            if kind == "evaluation" and "perplexity" in record:
                text = f"validation loss {record['loss']:.4g}, perplexity {record['perplexity']:.4g}"
                on_message(f"{item.name} step {record['step']}: {text}")
            elif kind == "evaluation" and record["split"] == "validation":
                on_message(f"{item.name} step {record['step']}: {record['exact_match']:.1%} correct in distribution")

        folder = RunFolder(Path(self.runs_dir) / item.run)
        with Ending(folder, item.key) as ending:
            recipe = from_tree(item.tree, Path(self.working_directory) / "study", expected_class=Recipe)
            trained = train(
                recipe,
                runs_dir=self.runs_dir,
                quiet=True,
                on_record=on_record,
                on_message=on_message,
                stop=current_stop(),
                command=self.command,
            )
            with folder.lock("evaluation"):  # so that nobody else does the same
                results = evaluate_trained(replace(trained, run=Run(folder)), recipe)
                ending.write("done", results=results)


def evaluate_trained(trained: TrainedRun, recipe: Recipe) -> dict[str, Any]:
    """Evaluates a trained run with the grid and count of a recipe (another command may have trained it) at its best and
    its final checkpoint, and writes its report; returns the entries of `RunResults`.

    Raises `KeyboardInterrupt` if the training was stopped, or if a stop is requested.
    """
    run, evaluation, stop = trained.run, recipe.evaluation, current_stop()

    def on_progress(done: int, total: int) -> None:
        if stop.requested:
            raise KeyboardInterrupt

    if trained.stop_reason == "stopped":
        raise KeyboardInterrupt
    results_by_checkpoint: dict[str, Results] = {}
    for name in ("best", "final"):  # the best checkpoint is often the final one
        count = run.evaluation_data.kind.default_count(evaluation)
        grid = None if evaluation.grid is None else str(resolve_grid(recipe.task, evaluation.grid))
        results_by_checkpoint[name] = run.evaluate(grid, count=count, checkpoint=name, on_progress=on_progress)
    run.report()
    track_results(run.path, run.recipe)
    regions = {name: region_summaries(results) for name, results in results_by_checkpoint.items()}
    return training_results(trained, recipe) | regions


def training_results(trained: TrainedRun, recipe: Recipe) -> dict[str, Any]:
    """The entries of `RunResults` of a run that was trained and not evaluated."""
    run = trained.run
    progress = run.checkpoints("final")[0].state["progress"]
    metrics, extensions = run.folder.records("metrics.jsonl"), run.folder.metadata().get("extensions")
    target, flops = recipe.training.target_accuracy, progress.get("flops")
    stop_reason = "budget" if target is None or progress.get("exact_match", 0.0) < target else "target"
    return {
        **({"extended_from": extensions[-1]["budget"]} if extensions else {}),
        "stop_reason": "minutes" if trained.stop_reason == "minutes" else stop_reason,
        "step": progress["step"],
        "examples": progress["examples"],
        "tokens": progress["tokens"],
        "flops": None if flops is None else float(flops),
        "loss": _last_value(metrics, "loss"),
        "validation_exact_match": _last_value(metrics, "exact_match", "validation"),
        "ood_validation_exact_match": _last_value(metrics, "exact_match", "ood_validation"),
        **_language_metrics(metrics),
        "best_step": progress["best"],
    }


def region_summaries(results: Results) -> dict[str, dict[str, Any]]:
    """The regions of an evaluation with the settings of training, at the first position offset: those with held-out
    questions, or all if none has any. For label tasks, all regions, averaged over position offsets: their trained cells
    often have too few distinct rows to hold any out."""
    lines = [line for line in results.summary_lines() if not line["settings"]]
    if any("language" in line for line in lines):  # one per context length; the trained one is named in_distribution
        return {
            "in_distribution" if line["region"] == "in_distribution" else f"context {line['context_length']}": {
                "language": line["language"]
            }
            for line in lines
        }
    if not results.counts_answers:  # of a kind with entries of its own: its numbers
        return {line["region"]: {"answers": own_scores(line)} for line in lines}
    lines = [line for line in lines if not line["overlaps_training"] or "labels" in line] or lines
    names = ("mean", "low", "high", "cells", "labels", "answers", "non_causal_reason")
    return {line["region"]: {name: line[name] for name in names if name in line} for line in lines}


def _language_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For language modeling, the last validation metrics of training."""
    if not any("perplexity" in line for line in metrics):
        return {}
    names = ("loss", "perplexity", "bits_per_byte")
    return {f"validation_{name}": _last_value(metrics, name, "validation") for name in names}


def _last_value(metrics: Sequence[Mapping[str, Any]], name: str, split: str | None = None) -> Any:
    return next((line[name] for line in reversed(metrics) if name in line and line.get("split") == split), None)


@contextmanager
def _redirect_warnings(on_warning: Callable[..., None]) -> Iterator[None]:
    """Passes Python warnings to `on_warning`, each once per run."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = on_warning
        yield
