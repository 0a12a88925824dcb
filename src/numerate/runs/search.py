"""Hyperparameter search: trials are ordinary runs, and the best is selected by a validation score.

No grid and no question of the test split is evaluated: a search that used them would select settings that happen to do
well on them, and their scores would be biased.

The point of a trial is a function of its number, the seed and the trials so far, which are read from the folders of
their runs: see `numerate.runs.trials`. So an interrupted search proposes what an uninterrupted one would, and several
commands, on several machines, share the trials of one folder.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from numerate.config import refuse_while_loading, to_tree
from numerate.errors import OperationalError, UserError, check_choice, check_positive
from numerate.runs.end import Ending
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.engines.worker import current_stop
from numerate.runs.item import training_results
from numerate.runs.sampling import importances, is_pruned, load_optuna, next_point
from numerate.runs.searched import SearchResult, print_new
from numerate.runs.space import Space
from numerate.runs.study_folder import RequestedRun, StudyFolder
from numerate.runs.train import train
from numerate.runs.trials import Metric, Pruner, Sampler, Search, Trial, TrialRun, open_search, run_result
from numerate.training import provenance
from numerate.training.lock import LockedError
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import resolve_runs_dir
from numerate.training.stopping import Stop

_NUM_TRIALS = 30
_MAX_SAME_FAILURES = 3  # identical failures, without any other result, after which no more trials are started


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
    load_optuna()
    space = Space.parse(recipe, settings)
    for option, value, kind in (("metric", metric, Metric), ("sampler", sampler, Sampler), ("pruner", pruner, Pruner)):
        check_choice(option, value, get_args(kind))
    if recipe.task.is_language_modeling and metric == "ood_validation":  # language modeling has no OOD validation
        metric = "validation_loss"
    if metric == "validation_loss" and not recipe.task.is_language_modeling:
        raise UserError(
            f"metric: validation_loss needs a language modeling task, not {type(recipe.task).__name__}; for example "
            "metric=validation"
        )
    for option, number in (("trials", trials), ("workers", workers), ("seeds", seeds)):
        check_positive(option, number)
    if engine is None:
        engine = Local(workers=workers) if workers > 1 else InProcess(threads=torch.get_num_threads())
    first_seed = recipe.seed if seed is None else seed
    replace(recipe, seed=first_seed)  # refuses a seed out of range
    size = len(space.points()) if sampler == "grid" else space.size
    total = trials or (size if size is not None and sampler == "grid" else _NUM_TRIALS)
    total, all_seeds = total if size is None else min(total, size), tuple(range(first_seed, first_seed + seeds))
    found = Search(Path(), {}, "", space, total, metric, sampler, pruner, all_seeds)
    found = open_search(recipe, found, resolve_runs_dir(runs_dir), name)
    printed = {trial.number for trial in found.trials() if trial.state != "running"}
    bar = ProgressBar(total, label=found.path.name, num_done=len(printed), unit="trial", show=not quiet)
    with Stop() as stop, bar:
        if printed:
            bar.print_line(f"{found.path}: {len(printed)} trials are finished already")
        _train_trials(found, engine, stop, lambda: print_new(found, bar, printed))
        print_new(found, bar, printed)
    status, final_trials = (stop.status or 130) if stop.requested else 0, tuple(found.trials())
    _write_study(found, final_trials)
    words = tuple(command_words) or (recipe.title,)
    result = SearchResult(found, final_trials, importances(found, final_trials), status, words)
    result.write_table()
    return result


# One trial ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainTrial:
    """Trains a trial: a function of its number, which adds it if it is not there yet, and does what is missing of its
    runs. It raises `LockedError` if another process trains it, errors of memory and of a full disk, and
    `KeyboardInterrupt` when stopped."""

    search: Search
    command: str

    def name_of(self, number: int) -> str:
        return f"trial {number}"

    def done(self, number: int) -> bool:
        return any(trial.number == number and trial.state != "running" for trial in self.search.trials())

    def __call__(self, number: int) -> None:
        trial = self._get_or_add(number)
        for run in trial.runs if trial.state == "running" else ():
            if run.end() is None and not self._train(trial, run):
                return

    def _get_or_add(self, number: int) -> Trial:
        """The trial of a number; it is added, after those before it, if it is not there."""
        search = self.search
        with search.choosing():
            trials = search.trials()
            missing = sorted(set(range(number + 1)) - {trial.number for trial in trials})
            for one in missing:
                search.add_trial(one, next_point(search, trials, one))
                trials = search.trials()
        if missing:
            _write_study(search, trials)
        return trials[number]

    def _train(self, trial: Trial, run: TrialRun) -> bool:
        """Trains a run and writes how it ended. Returns whether the trial continues with its next run."""
        stop = _TrialStop(self.search, trial, can_prune=run is trial.runs[0])
        with Ending(run.folder, run.key) as ending:
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
            if not run_result(run, self.search.metric)["values"]:
                advice = "a larger budget or a smaller training.evaluate_every="
                raise UserError(f"training: ended before any evaluation; {advice}")
            results = training_results(trained, run.recipe) | ({"stop_reason": "pruned"} if stop.is_pruned else {})
            ending.write("done", results=results)
        return ending.end is not None and ending.end.status == "done" and not stop.is_pruned


def _write_study(search: Search, trials: Sequence[Trial]) -> None:
    """Lists the runs of all trials in `study.json`, so that `numerate results` and `status` show them as a study's."""
    runs = [run for trial in trials for run in trial.runs]
    requested = [RequestedRun(f"{search.path.name}/{run.folder.id}", run.key, to_tree(run.recipe)) for run in runs]
    StudyFolder(search.path).update(requested, question="A hyperparameter search.")


class _TrialStop(Stop):
    """Stops a run when its worker is stopped, or where the pruner stops its trial."""

    def __init__(self, search: Search, trial: Trial, *, can_prune: bool) -> None:
        super().__init__(handles_signals=False)
        self._search, self._trial, self._worker_stop = search, trial, current_stop()
        self._can_prune = can_prune and search.pruner != "none"
        self._is_due = True  # a process may have been killed after an evaluation and before this was asked
        self.is_pruned = False

    def on_record(self, kind: str, record: Mapping[str, Any]) -> None:
        self._is_due = self._is_due or kind == "evaluation"

    @property
    def requested(self) -> bool:
        if self._can_prune and self._is_due and not self.is_pruned:
            self._is_due, self.is_pruned = False, is_pruned(self._search, self._trial)
        return self.is_pruned or self._worker_stop.requested


# All trials -----------------------------------------------------------------------------------------------------------


def _train_trials(search: Search, engine: Engine, stop: Stop, on_tick: Callable[[], None]) -> None:
    """Trains trials until none is left to take. Trials of other commands are left to them, and submitted jobs continue
    by themselves.

    Raises `UserError` or `OperationalError` if no trial can continue, and `UserError` if the first ones all fail with
    the same error.
    """
    function = TrainTrial(replace(search, path=search.path.absolute()), provenance.command_line())
    while not stop.requested and (numbers := _numbers_left(search)):
        before, kinds = search.trials(), set()
        outcomes = engine.map(function, numbers, folder=search.path, stop=stop, on_tick=on_tick)
        with closing(outcomes):  # type: ignore[type-var]
            for outcome in outcomes:
                kinds.add("done" if outcome.failure is None else outcome.failure.kind)
                if outcome.failure is not None:
                    _handle_failure(search, numbers[outcome.index], outcome.failure)
                on_tick()
                _check_failures_differ(search)
        if kinds & {"stopped", "not started"}:
            return
        if "busy" not in kinds and search.trials() == before:
            raise OperationalError(f"{search.path}: {len(numbers)} trials remain, and no worker starts one")


def _numbers_left(search: Search) -> list[int]:
    """The trials that a worker could take now: those not added yet, and those whose process is gone."""
    taken = {trial.number for trial in search.trials() if trial.state != "running" or trial.is_locked}
    return [number for number in range(search.num_trials) if number not in taken]


def _handle_failure(search: Search, number: int, failure: Failure) -> None:
    """Records the failure of a trial that its worker could not record, and raises that of a worker itself. A trial that
    was stopped, or that another process trains, goes on."""
    trial = next((trial for trial in search.trials() if trial.number == number), None)
    if failure.kind in ("died", "out of memory", "timeout") and trial is not None:
        for run in [run for run in trial.runs if run.end() is None][:1]:
            with suppress(LockedError):
                Ending(run.folder, run.key).fail(failure)
    elif failure.kind not in ("busy", "stopped", "not started"):
        raise failure.to_error()


def _check_failures_differ(search: Search) -> None:
    """Raises `UserError` if all trials so far failed with the same error: further ones would fail too."""
    errors = [trial.error for trial in search.trials() if trial.state != "running"]
    if len(errors) >= _MAX_SAME_FAILURES and errors[0] is not None and len(set(errors)) == 1:
        raise UserError(
            f"{search.path}: all {len(errors)} trials failed with the same error, so no more were started: {errors[0]} "
            "(another name= starts a new search)"
        )
