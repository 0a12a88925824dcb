"""What a worker of a search does: take a trial, train it as an ordinary run, and record its results."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NoReturn

from numerate.config import from_tree, identity, override
from numerate.errors import OperationalError, UserError
from numerate.executors import memory
from numerate.executors.executor import MAX_DEATHS, Work, WorkerContext
from numerate.executors.worker import RequestedStop, failure_from_exception
from numerate.searches.journal import Journal, Trial
from numerate.searches.sampling import Pruner, SamplingPlan, make_pruner
from numerate.searches.space import Space
from numerate.training import checkpoint
from numerate.training.lock import LockedError
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name

Metric = Literal["ood_validation", "validation", "loss", "validation_loss"]

_TIE_BREAK_WEIGHT = 1e-6
"""What a share in distribution weighs beside one on OOD validation: less than one question, so it settles ties."""

_POLL_SECONDS = 1.0
"""Seconds between looks at a run that another process trains."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search is about: its space, what is to be best, and how points are chosen and given up.

    `seeds` are those of each trial's runs, `timeout` the seconds that a trial may take.
    """

    space: Space
    metric: Metric = "ood_validation"
    sampling: SamplingPlan = SamplingPlan()
    pruner: Pruner = "none"
    seeds: tuple[int, ...] = (0,)
    timeout: float | None = None

    def definition(self, recipe: Recipe) -> dict[str, Any]:
        """What must not change during a search, as plain data. How points are chosen, and how many, may."""
        names = ("steps", "examples", "tokens", "flops", "epochs", "minutes", "target_accuracy", "evaluate_every")
        return {
            "recipe": [recipe.title, identity(replace(recipe, seed=0))],
            "training": {name: getattr(recipe.training, name) for name in names},
            "settings": [str(item) for item in self.space.items],
            "metric": self.metric,
            "seeds": list(self.seeds),
        }

    @property
    def minimize(self) -> bool:
        return self.metric in ("loss", "validation_loss")


@dataclass(frozen=True)
class Trials(Work):
    """Trains one trial per item, whichever is due. An item's result is the number of its trial, None where none was.

    Everything is written to the journal in `folder`, so that what a worker has done is known however it ends.
    """

    folder: Path
    runs_dir: Path
    recipe_tree: Mapping[str, Any]
    plan: SearchPlan
    command: str

    def open(self, context: WorkerContext) -> Callable[[Any], Any]:
        from numerate.experiments import train  # noqa: F401  (it takes seconds, and no trial should pay for it)

        recipe = from_tree(dict(self.recipe_tree), "search", expected_class=Recipe)
        journal = Journal(self.folder, self.plan.space, minimize=self.plan.minimize)

        def do(item: Any) -> int | None:
            with journal.take_trial(self.plan.sampling, context.worker) as trial:
                if trial is None:
                    return None
                _TrialRunner(self, journal, trial, recipe, context).run()
                return trial.number

        return do

    def item_name(self, item: Any) -> str:
        return "a trial"


class _TrialStopped(Exception):
    """A run was stopped before its end: `reason` is stop, late or pruned."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _TrialRunner:
    """A running trial."""

    def __init__(self, work: Trials, journal: Journal, trial: Trial, recipe: Recipe, context: WorkerContext) -> None:
        self.work, self.plan, self.journal, self.trial, self.context = work, work.plan, journal, trial, context
        self.recipe = recipe
        self.start_time = time.monotonic()

    def run(self) -> None:
        """Trains its runs and records them in the journal. Raises `KeyboardInterrupt` when stopped, and errors of the
        environment: a full disk, a folder that may not be written."""
        number = self.trial.number
        run_results: list[dict[str, Any]] = []
        try:
            recipes = [
                replace(override(self.recipe, self.plan.space.settings(self.trial.parameters)), seed=seed)
                for seed in self.plan.seeds
            ]
            if not self.journal.record_start(number, sum(map(self._last_step, recipes))):
                self.journal.fail(number, f"its process died {MAX_DEATHS} times without progress")
                return
            if self.journal.is_pruned(number):
                raise _TrialStopped("pruned")
            for index, recipe in enumerate(recipes):
                run_results.append(self._train(recipe, is_monitored=index == 0))
            self.journal.tell(number, *summarize_runs(run_results, self.plan.metric))
        except _TrialStopped as stopped:
            if stopped.reason == "stop":
                self.journal.reset_starts(number)
                raise KeyboardInterrupt from None
            if stopped.reason == "late":
                self.journal.fail(number, f"took longer than timeout={self.plan.timeout:g} s")
            else:
                first_recipe = recipes[0]
                self.journal.prune(
                    number, {"runs": [run_result(self._run_folder(first_recipe), first_recipe, self.plan.metric)]}
                )
        except (UserError, OperationalError) as error:
            if isinstance(error.__cause__, OSError) or (
                isinstance(error, OperationalError) and "not finite" not in str(error)
            ):
                raise
            self.journal.fail(number, str(error))
        except Exception as error:
            if memory.out_of_memory_error(error) is not None:
                self.journal.fail(number, f"out of memory: {str(error).partition(chr(10))[0]}")
                raise
            failure = failure_from_exception(error)
            self.journal.fail(number, failure.text, failure.traceback)

    def _run_folder(self, recipe: Recipe) -> RunFolder:
        return RunFolder(self.work.runs_dir / folder_name(recipe.title) / identity(recipe))

    def _last_step(self, recipe: Recipe) -> int:
        """How far a run is by its checkpoints."""
        return max(checkpoint.list_steps(self._run_folder(recipe).checkpoints), default=0)

    def _train(self, recipe: Recipe, *, is_monitored: bool) -> dict[str, Any]:
        """Trains one run, or waits for another process that trains it, and returns its results."""
        from numerate.experiments.train import train

        while True:
            monitor = _TrainingMonitor(self, recipe, is_monitored=is_monitored)
            try:
                trained = train(
                    recipe,
                    runs_dir=self.work.runs_dir,
                    quiet=True,
                    on_record=monitor.on_record,
                    stop=monitor.stop,
                    command=self.work.command,
                )
            except LockedError:
                self._wait_for_run()
                continue
            if trained.stop_reason == "stopped":
                raise _TrialStopped(monitor.reason or "stop")
            return run_result(trained.run.folder, recipe, self.plan.metric)

    def _wait_for_run(self) -> None:
        """For another trial, or another command, that trains the very same run."""
        end = time.monotonic() + _POLL_SECONDS
        while time.monotonic() < end:
            if (reason := self.stop_reason()) is not None:
                raise _TrialStopped(reason)
            time.sleep(0.05)

    def stop_reason(self) -> str | None:
        """Why the trial should end now, if it should."""
        if self.context.stop.requested:
            return "stop"
        limit = self.plan.timeout
        return "late" if limit is not None and time.monotonic() - self.start_time > limit else None


class _TrainingMonitor:
    """Listens to the training of a run, and stops it where it should end."""

    def __init__(self, runner: _TrialRunner, recipe: Recipe, *, is_monitored: bool) -> None:
        self.runner, self.is_monitored = runner, is_monitored
        self.stop, self.reason = RequestedStop(), ""
        self._pruner = make_pruner(runner.plan.pruner, recipe.training.steps)
        self._scores: dict[str, float] = {}
        self._step, self._loss = 0, None

    def on_record(self, kind: str, record: Mapping[str, Any]) -> None:
        is_language_modeling = kind == "evaluation" and "perplexity" in record
        if not is_language_modeling and self.runner.plan.metric != "validation_loss":
            self._loss = record.get("loss", self._loss)
        elif is_language_modeling and self.runner.plan.metric == "validation_loss":
            self._loss = record["loss"]
        if (reason := self.runner.stop_reason()) is not None:
            self._request_stop(reason)
        if kind == "evaluation":
            # Whole rows of labels are all wrong long before their labels are: those tell good settings from bad ones.
            name = "token_accuracy" if is_language_modeling else "accuracy" if "accuracy" in record else "exact_match"
            self._scores[record["split"]] = record[name]
            self._step = record["step"]
        elif self._scores:  # all splits of that step are in
            plan, journal, number = self.runner.plan, self.runner.journal, self.runner.trial.number
            value = self._loss if plan.minimize else compute_objective(self._scores, plan.metric)
            self._scores.clear()
            if self.is_monitored and value is not None and journal.report(number, self._step, value, self._pruner):
                self._request_stop("pruned")

    def _request_stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.stop.request()


def compute_objective(scores: Mapping[str, float], metric: Metric) -> float:
    """One number from the shares of an evaluation: that on OOD validation, ties settled by that in distribution."""
    if metric == "validation" or "ood_validation" not in scores:
        return scores["validation"]
    return scores["ood_validation"] + _TIE_BREAK_WEIGHT * scores["validation"]


def run_result(folder: RunFolder, recipe: Recipe, metric: Metric) -> dict[str, Any]:
    """What is to be known of a run, from its own records and from nothing else: the value at its best checkpoint.

    Steps beyond the budget (the run was trained further by somebody) do not count. Raises `UserError` for a run that
    was never evaluated in its training.
    """
    budget = recipe.training.steps
    records = [line for line in folder.records("metrics.jsonl") if budget is None or line["step"] <= budget]
    evaluations: dict[int, dict[str, Mapping[str, Any]]] = {}
    for line in records:
        if "split" in line:
            evaluations.setdefault(line["step"], {})[line["split"]] = line
    losses = [line for line in records if "loss" in line and "split" not in line]
    if evaluations and metric == "validation_loss":
        return _language_result(folder, recipe, evaluations, losses, max(line["step"] for line in records))
    if not evaluations or (metric == "loss" and not losses):
        raise UserError("training: ended before any evaluation; a larger budget or a smaller training.evaluate_every=")
    accuracies = {
        step: {split: _accuracy(line) for split, line in by_split.items()} for step, by_split in evaluations.items()
    }
    split = "ood_validation" if any("ood_validation" in each for each in accuracies.values()) else "validation"
    if metric == "validation":
        split = metric
    best = max(accuracies, key=lambda step: (accuracies[step].get(split, -1.0), step))
    best_line = evaluations[best][split]
    value = {"value": _accuracy(best_line), "low": best_line["low"], "high": best_line["high"], "metric": split}
    objective = compute_objective(accuracies[best], metric)
    if metric == "loss":
        objective = losses[-1]["loss"]
        value = {"value": objective, "low": None, "high": None, "metric": "loss"}
    return {
        "run": f"{folder.recipe_name}/{folder.id}",
        "seed": recipe.seed,
        **value,
        "objective": objective,
        "best_step": best,
        "steps": max(line["step"] for line in records),
        "loss": losses[-1]["loss"] if losses else None,
        **accuracies[best],
    }


def _accuracy(line: Mapping[str, Any]) -> float:
    """The accuracy on a split; for language modeling the top-1 accuracy over tokens."""
    return float(line["token_accuracy"] if "perplexity" in line else line["exact_match"])


def _language_result(
    folder: RunFolder,
    recipe: Recipe,
    evaluations: Mapping[int, Mapping[str, Mapping[str, Any]]],
    losses: Sequence[Mapping[str, Any]],
    steps: int,
) -> dict[str, Any]:
    """The result of a language-modeling run: its lowest validation loss, with the interval about the text.

    Raises `UserError` for a run that has no validation loss."""
    lines = [line for each in evaluations.values() if "perplexity" in (line := each.get("validation", {}))]
    if not lines:
        refuse_validation_loss(recipe)
    best = min(lines, key=lambda line: (line["loss"], -line["step"]))
    return {
        "run": f"{folder.recipe_name}/{folder.id}",
        "seed": recipe.seed,
        "value": best["loss"],
        "low": best.get("low"),
        "high": best.get("high"),
        "metric": "validation_loss",
        "objective": best["loss"],
        "best_step": best["step"],
        "steps": steps,
        "loss": losses[-1]["loss"] if losses else None,
        "validation": best["token_accuracy"],
        "perplexity": best["perplexity"],
        "bits_per_byte": best.get("bits_per_byte"),
    }


def summarize_runs(runs: Sequence[Mapping[str, Any]], metric: Metric) -> tuple[float, dict[str, Any]]:
    """The objective of a trial, and what was found: the median over its seeds, with the extremes of several seeds or
    Wilson's interval of one."""
    values = [run["value"] for run in runs]
    has_several_seeds = len(runs) > 1
    results = {
        "value": median(values),
        "low": min(values) if has_several_seeds else runs[0]["low"],
        "high": max(values) if has_several_seeds else runs[0]["high"],
        "metric": runs[0]["metric"],
        "runs": [dict(run) for run in runs],
    }
    return median([run["objective"] for run in runs]), results


def refuse_validation_loss(recipe: Recipe) -> NoReturn:
    """Raises the `UserError` of a search by validation loss whose task has none."""
    raise UserError(
        f"metric: validation_loss needs a language modeling task, not {type(recipe.task).__name__}; for example "
        "metric=validation"
    )
