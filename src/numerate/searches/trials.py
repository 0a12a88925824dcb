"""What a worker of a search does: take a trial, train it as an ordinary run, and record its results."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from numerate.config import from_tree, identity, identity_of_values, override
from numerate.errors import UserError
from numerate.executors.executor import MAX_DEATHS, Work, WorkerContext
from numerate.executors.worker import failure_to_record
from numerate.searches.journal import Journal, Trial
from numerate.searches.sampling import Pruner, SamplingPlan, make_pruner
from numerate.searches.space import Space
from numerate.training import checkpoint
from numerate.training.lock import LockedError
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name
from numerate.training.stopping import Stop

Metric = Literal["ood_validation", "validation", "loss", "validation_loss"]

_TIE_BREAK_WEIGHT = 1e-6
"""What a share in distribution weighs beside one on OOD validation: less than one question, so it settles ties."""

_POLL_SECONDS = 1.0
"""Seconds between attempts at a run that another process trains."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search is about: its space, what is to be best, and how points are chosen and given up.

    `seeds` are those of each trial's runs.
    """

    space: Space
    metric: Metric = "ood_validation"
    sampling: SamplingPlan = SamplingPlan()
    pruner: Pruner = "none"
    seeds: tuple[int, ...] = (0,)

    def definition(self, recipe: Recipe) -> dict[str, Any]:
        """What must not change during a search, as plain data. How points are chosen, and how many, may."""
        names = ("steps", "examples", "tokens", "flops", "epochs", "minutes", "target_accuracy", "evaluate_every")
        return {
            "recipe": [recipe.title, identity_of_values(replace(recipe, seed=0))],
            "training": {name: getattr(recipe.training, name) for name in names},
            "settings": [str(item) for item in self.space.items],
            "metric": self.metric,
            "seeds": list(self.seeds),
        }

    @property
    def minimize(self) -> bool:
        return self.metric in ("loss", "validation_loss")

    def rank(self, trials: Sequence[Trial]) -> list[Trial]:
        """The complete ones, best first; ties in the order of the trials."""
        sign = 1 if self.minimize else -1
        complete = [trial for trial in trials if trial.objective is not None]
        return sorted(complete, key=lambda trial: (sign * (trial.objective or 0.0), trial.number))

    def value_text(self, value: float) -> str:
        """An objective as text: a fraction in per cent, a loss as a number."""
        return f"{value:.4g}" if self.minimize else f"{value:.1%}"


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
        from numerate.runs import train  # noqa: F401  (it takes seconds, and no trial should pay for it)

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


class _TrialRunner:
    """A running trial."""

    def __init__(self, work: Trials, journal: Journal, trial: Trial, recipe: Recipe, context: WorkerContext) -> None:
        self.work, self.plan, self.journal, self.number, self.context = work, work.plan, journal, trial.number, context
        self.recipe, self.parameters = recipe, trial.parameters

    def run(self) -> None:
        """Trains its runs and records them in the journal. Raises `KeyboardInterrupt` when stopped, and the errors that
        `failure_to_record` raises."""
        try:
            settings = self.plan.space.settings(self.parameters)
            recipes = [replace(override(self.recipe, settings), seed=seed) for seed in self.plan.seeds]
            last_step = sum(checkpoint.last_step(self._run_folder(recipe).checkpoints) for recipe in recipes)
            if not self.journal.record_start(self.number, last_step):
                self.journal.fail(self.number, f"its process died {MAX_DEATHS} times without progress")
                return
            is_pruned = self.journal.is_pruned(self.number)
            for index, recipe in enumerate(recipes):
                is_pruned = is_pruned or self._train(recipe, has_pruner=index == 0)
            trained = recipes[:1] if is_pruned else recipes
            runs = [run_result(self._run_folder(recipe), recipe, self.plan.metric) for recipe in trained]
            if is_pruned:
                self.journal.prune(self.number, {"runs": runs})
            else:
                self.journal.tell(self.number, *summarize_runs(runs, self.plan.metric))
        except KeyboardInterrupt:
            self.journal.reset_starts(self.number)
            raise
        except Exception as error:
            failure = failure_to_record(error)
            self.journal.fail(self.number, failure.text, failure.traceback)

    def _run_folder(self, recipe: Recipe) -> RunFolder:
        return RunFolder(self.work.runs_dir / folder_name(recipe.title) / identity(recipe))

    def _train(self, recipe: Recipe, *, has_pruner: bool) -> bool:
        """Trains one run, or waits for another process that trains it. Returns whether the pruner stopped it."""
        from numerate.runs.train import train

        monitor = _TrialStop(self, recipe, has_pruner=has_pruner)
        while True:
            try:
                trained = train(
                    recipe,
                    runs_dir=self.work.runs_dir,
                    quiet=True,
                    on_record=monitor.on_record,
                    stop=monitor,
                    command=self.work.command,
                )
            except LockedError:
                time.sleep(_POLL_SECONDS)
                if not monitor.requested:
                    continue
                raise KeyboardInterrupt from None
            if trained.stop_reason == "stopped" and not monitor.is_pruned:
                raise KeyboardInterrupt
            return monitor.is_pruned


class _TrialStop(Stop):
    """Stops the training of a run when its worker is stopped, or where the pruner stops its trial."""

    def __init__(self, runner: _TrialRunner, recipe: Recipe, *, has_pruner: bool) -> None:
        super().__init__(handles_signals=False)
        self.runner, self.plan, self.is_pruned = runner, runner.plan, False
        self._pruner = make_pruner(runner.plan.pruner, recipe.training.steps) if has_pruner else None
        self._scores: dict[str, float] = {}
        self._step, self._loss = 0, None

    @property
    def requested(self) -> bool:
        return self.is_pruned or self.runner.context.stop.requested

    def on_record(self, kind: str, record: Mapping[str, Any]) -> None:
        has_validation_loss = self.plan.metric == "validation_loss"
        if kind == "evaluation":
            # Whole rows of labels are all wrong long before their labels are: those tell good settings from bad ones.
            names = ("token_accuracy",) if "perplexity" in record else ("accuracy", "exact_match")
            self._scores[record["split"]] = next(record[name] for name in names if name in record)
            self._step = record["step"]
            if has_validation_loss and "perplexity" in record:
                self._loss = record["loss"]
            return
        if not has_validation_loss:
            self._loss = record.get("loss", self._loss)
        if self._scores:  # all splits of that step are in
            value = self._loss if self.plan.minimize else compute_objective(self._scores, self.plan.metric)
            self._scores.clear()
            if self._pruner is not None and value is not None and not self.is_pruned:
                self.is_pruned = self.runner.journal.report(self.runner.number, self._step, value, self._pruner)


def compute_objective(scores: Mapping[str, float], metric: Metric) -> float:
    """One number from the shares of an evaluation: that on OOD validation, ties settled by that in distribution."""
    if metric == "validation" or "ood_validation" not in scores:
        return scores["validation"]
    return scores["ood_validation"] + _TIE_BREAK_WEIGHT * scores["validation"]


def run_result(folder: RunFolder, recipe: Recipe, metric: Metric) -> dict[str, Any]:
    """What is to be known of a run, from its own records and from nothing else: the value at its best checkpoint, the
    one of the highest accuracy, or of the lowest validation loss.

    Steps beyond the budget (the run was trained further by somebody) do not count. Raises `UserError` for a run that
    was never evaluated in its training.
    """
    budget = recipe.training.steps
    records = [line for line in folder.records("metrics.jsonl") if budget is None or line["step"] <= budget]
    losses = [line["loss"] for line in records if "split" not in line]
    evaluations = [line for line in records if "split" in line]
    if not evaluations or (metric == "loss" and not losses):
        raise UserError("training: ended before any evaluation; a larger budget or a smaller training.evaluate_every=")
    has_ood_validation = any(line["split"] == "ood_validation" for line in evaluations)
    split = "ood_validation" if has_ood_validation and metric in ("ood_validation", "loss") else "validation"
    best = max(
        (line for line in evaluations if line["split"] == split),
        key=lambda line: (-line["loss"] if metric == "validation_loss" else _accuracy(line), line["step"]),
    )
    accuracies = {line["split"]: _accuracy(line) for line in evaluations if line["step"] == best["step"]}
    found = {"value": accuracies[split], "low": best.get("low"), "high": best.get("high"), "metric": split}
    objective, further = compute_objective(accuracies, metric), {}
    if metric == "validation_loss":
        found |= {"value": best["loss"], "metric": metric}
        objective, further = best["loss"], {name: best.get(name) for name in ("perplexity", "bits_per_byte")}
    elif metric == "loss":
        found, objective = {"value": losses[-1], "low": None, "high": None, "metric": metric}, losses[-1]
    return {
        "run": f"{folder.recipe_name}/{folder.id}",
        "seed": recipe.seed,
        **found,
        "objective": objective,
        "best_step": best["step"],
        "steps": max(line["step"] for line in records),
        "loss": losses[-1] if losses else None,
        **accuracies,
        **further,
    }


def _accuracy(line: Mapping[str, Any]) -> float:
    """The accuracy on a split; for language modeling the top-1 accuracy over tokens."""
    return float(line["token_accuracy"] if "perplexity" in line else line["exact_match"])


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
