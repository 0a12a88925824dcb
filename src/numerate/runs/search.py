"""Hyperparameter search: trials are ordinary runs, and the best is selected by a validation score.

No grid and no question of the test split is evaluated: a search that used them would select settings that happen to do
well on them, and their scores would be biased.

The point of a trial is a function of its number, the seed and the trials so far, so an interrupted search proposes what
an uninterrupted one would, and several commands, on several machines, share the trials of one folder.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch

from numerate.config import refuse_while_loading
from numerate.config.overrides import MAX_RUNS
from numerate.errors import OperationalError, UserError, check_choice, check_positive
from numerate.records.heads import read_metrics
from numerate.runs.end import Ending
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.engines.worker import current_stop
from numerate.runs.item import training_results
from numerate.runs.sampling import importances, is_pruned, next_point
from numerate.runs.searched import SearchResult
from numerate.runs.space import Space, value_text
from numerate.runs.status import RunState
from numerate.runs.train import train
from numerate.runs.trials import Metric, Pruner, Sampler, Score, Search, Trial, TrialRun, open_search
from numerate.training import provenance
from numerate.training.lock import LockedError
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, resolve_runs_dir
from numerate.training.stopping import Stop

_NUM_TRIALS = 30


def search(
    recipe: Recipe,
    settings: Sequence[str] | Mapping[str, Any],
    *,
    trials: int | None = None,
    workers: int = 1,
    engine: Engine | None = None,
    metric: Metric = "ood_validation",
    sampler: Sampler = "tpe",
    pruner: Pruner = "none",
    seed: int | None = None,
    seeds: int = 1,
    name: str | None = None,
    runs_dir: str | Path | None = None,
    quiet: bool = False,
    command_words: Sequence[str] = (),
) -> SearchResult:
    """Trains a recipe at points of a search space, and returns the trials and the best settings.

        found = numerate.search(recipe, {"optimizer.learning_rate": "log(1e-4,1e-2)"}, trials=20)
        numerate.train(found.best_recipe)

    `settings` are parsed by `Space.parse`. The objective of a trial is the exact match of its best checkpoint on OOD
    validation (`ood_validation`; for ties, and tasks without one, on `validation`), or another `metric`; for language
    modeling, the lowest `validation_loss`. With several `seeds` it is the median. `sampler` is Optuna's TPE, random
    points, or a grid of all points; `pruner` (`median`, `hyperband`) stops trials at an evaluation at which others were
    better. `seed` determines the points and is the first run's seed in each trial; default: the recipe's.

    The same call resumes the search, until there are `trials` in total; several simultaneous calls share them. With one
    worker the same seed gives the same trials. Without an `engine` one worker is this process. `command_words` are the
    words for this recipe (name and options) in the proposed command.

    Raises `UserError` for a space that cannot be searched, before anything is trained, for a `name` of a different
    search, and if Optuna is not installed; `OperationalError` for errors of the environment (a full disk).
    """
    refuse_while_loading("search")
    space, is_text = Space.parse(recipe, settings), recipe.task.is_language_modeling
    metric = "validation_loss" if is_text and metric == "ood_validation" else metric
    check_choice("metric", metric, ("validation_loss" if is_text else "ood_validation", "validation", "loss"))
    check_choice("sampler", sampler, get_args(Sampler))
    check_choice("pruner", pruner, get_args(Pruner))
    for option, number in (("trials", trials), ("workers", workers), ("seeds", seeds)):
        check_positive(option, number)
    if sampler == "grid" and space.size > MAX_RUNS:
        raise UserError(f"sampler: a grid has at most {MAX_RUNS:,} points; a step is the third number of between(...)")
    recipe = recipe if seed is None else replace(recipe, seed=seed)
    all_seeds = tuple(range(recipe.seed, recipe.seed + seeds))
    total = int(min(trials or (space.size if sampler == "grid" else _NUM_TRIALS), space.size))
    empty = Search(Path(), {}, space, total, metric, sampler, pruner, all_seeds)
    found = open_search(recipe, empty, resolve_runs_dir(runs_dir), name)
    if engine is None:
        engine = Local(workers=workers) if workers > 1 else InProcess(threads=torch.get_num_threads())
    printed = {trial.number for trial in found.trials() if trial.state != "running"}
    bar = ProgressBar(total, label=found.path.name, num_done=len(printed), unit="trial", show=not quiet)
    with Stop() as stop, bar:
        _train_trials(found, engine, stop, lambda: _print_new(found, bar, printed))
    status, done = (stop.status or 130) if stop.requested else 0, tuple(found.trials())
    return SearchResult(found, done, importances(found, done), status, tuple(command_words) or (recipe.title,))


@dataclass(frozen=True)
class TrainTrial:
    """Trains a trial: a function of its number, which adds it if it is not there yet, and does what is missing of its
    runs. It raises the errors of `MakeRun`."""

    search: Search
    command: str

    def name_of(self, number: int) -> str:
        return f"trial {number}"

    def done(self, number: int) -> bool:
        trials = self.search.trials()
        return number < len(trials) and trials[number].state != "running"

    def __call__(self, number: int) -> None:
        with self.search.choosing():
            while number >= len(trials := self.search.trials()):
                self.search.add_trial(next_point(self.search, trials))
        for _ in self.search.seeds:
            trial = self.search.trials()[number]
            if trial.unfinished is not None:
                self._train(trial, trial.unfinished)

    def _train(self, trial: Trial, run: RunState) -> None:
        """Trains a run and writes how it ended."""
        recipe, folder = self.search.recipe_of(run), RunFolder(run.path)
        stop = _TrialStop(self.search, trial if run is trial.runs[0] and self.search.pruner != "none" else None)
        with Ending(folder, run.run.key) as ending:
            trained = train(
                run.recipe,
                runs_dir=self.search.path.parent,
                quiet=True,
                on_record=stop.on_record,
                stop=stop,
                command=self.command,
            )
            if trained.stop_reason == "stopped" and not stop.is_pruned:
                raise KeyboardInterrupt
            damage: list[str] = []
            lines = read_metrics(folder.path, folder.metadata(), damage.append)
            score = Score.of(lines, self.search.metric, recipe.training.steps)
            if damage or score is None:
                why = f"training: none of its evaluations has a finite {self.search.metric}"
                if not any("split" in line for line in lines):
                    why = "training: ended before any evaluation; a larger budget or a smaller training.evaluate_every="
                raise UserError(damage[0] if damage else why)
            results = training_results(trained, recipe) | {"search": msgspec.to_builtins(score)}
            if stop.is_pruned or results["stop_reason"] == "minutes":  # which are the budget of a trial
                results["stop_reason"] = "pruned" if stop.is_pruned else "budget"
            ending.write("done", results=results)


class _TrialStop(Stop):
    """Stops a run when its worker is stopped, or where the pruner, asked after each evaluation, stops its `trial`."""

    def __init__(self, search: Search, trial: Trial | None) -> None:
        super().__init__(handles_signals=False)
        self._search, self._trial, self._worker_stop = search, trial, current_stop()
        self._is_due = True  # a process may have been killed after an evaluation and before this was asked
        self.is_pruned = False

    def on_record(self, kind: str, record: Mapping[str, Any]) -> None:
        self._is_due = self._is_due or kind == "evaluation"

    @property
    def requested(self) -> bool:
        if self._trial is not None and self._is_due and not self.is_pruned:
            lines, self._is_due = RunFolder(self._trial.runs[0].path).records("metrics.jsonl"), False
            score = Score.of(lines, self._search.metric, None)
            self.is_pruned = score is not None and is_pruned(self._search, replace(self._trial, scores=(score,)))
        return self.is_pruned or self._worker_stop.requested


def _train_trials(search: Search, engine: Engine, stop: Stop, on_tick: Callable[[], None]) -> None:
    """Trains trials until none is left to take. Trials of other commands are left to them, and submitted jobs continue
    by themselves.

    Raises `UserError` or `OperationalError` if no trial can continue.
    """
    function = TrainTrial(replace(search, path=search.path.absolute()), provenance.command_line())
    while not stop.requested and (numbers := _numbers_left(search)):
        before, kinds = search.trials(), set()
        outcomes = engine.map(function, numbers, folder=search.path, stop=stop, on_tick=on_tick)
        with closing(outcomes):  # type: ignore[type-var]
            for outcome in outcomes:
                if outcome.failure is not None:
                    kinds.add(outcome.failure.kind)
                    _record_failure(search, numbers[outcome.index], outcome.failure)
                on_tick()
        if kinds & {"stopped", "not started"}:
            return
        if "busy" not in kinds and search.trials() == before:
            raise OperationalError(f"{search.path}: {len(numbers)} trials remain, and no worker starts one")


def _numbers_left(search: Search) -> list[int]:
    """The trials that a worker could take now: those whose process is gone, and those not added yet."""
    trials = search.trials()
    left = [trial.number for trial in trials if trial.unfinished is not None and trial.unfinished.status != "running"]
    return [*left, *range(len(trials), search.num_trials)]


def _record_failure(search: Search, number: int, failure: Failure) -> None:
    """Records the failure of a trial that its worker could not record, and raises that of a worker itself. A trial that
    was stopped, or that another process trains, goes on."""
    run = next((trial.unfinished for trial in search.trials() if trial.number == number), None)
    if failure.kind in ("died", "out of memory", "timeout") and run is not None:
        text = failure.text.removesuffix("; the same command resumes")
        with suppress(LockedError):
            Ending(RunFolder(run.path), run.run.key).fail(replace(failure, text=text))
    elif failure.kind not in ("busy", "stopped", "not started"):
        raise failure.to_error()


def _print_new(search: Search, bar: ProgressBar, printed: set[int]) -> None:
    """Prints each trial that has ended and is not among the `printed` numbers yet, whichever process trained it."""
    for trial in search.trials():
        if trial.state != "running" and trial.number not in printed:
            printed.add(trial.number)
            point = ", ".join(f"{path}={value_text(value)}" for path, value in trial.parameters.items())
            how = trial.texts()[0] if trial.state == "complete" else trial.state
            bar.print_line(f"trial {trial.number}: {how}, {point}{'' if trial.error is None else f': {trial.error}'}")
    bar.step(len(printed))
