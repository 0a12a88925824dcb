"""Hyperparameter search: trials are ordinary runs, and the best is selected by a validation score.

    runs/<search>/journal.log    the trials and their results: see `numerate.searches.journal`
    runs/<search>/trials.jsonl   the same for other programs, one line per trial
    runs/<search>/results.csv    the same as a table, the best first
    runs/<recipe>/<id>/          the run of a trial, as `numerate train` leaves it

No grid and no question of the test split is evaluated: a search that used them would select settings that happen to do
well on them, and their scores would be biased.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from numerate.config import refuse_while_loading, to_tree
from numerate.errors import OperationalError, UserError, check_choice, check_positive
from numerate.executors.executor import Executor, Failure, ItemOutcome, WorkerContext
from numerate.executors.worker import unique_worker_name
from numerate.records.reading import FORMAT, check_format
from numerate.searches.journal import Journal, Trial
from numerate.searches.sampling import Pruner, Sampler, SamplingPlan, load_optuna
from numerate.searches.searched import SearchResult, short_names, write_results
from numerate.searches.space import Space, value_text
from numerate.searches.trials import Metric, SearchPlan, Trials
from numerate.training import provenance
from numerate.training.preflight import check_unchanged_files
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import folder_name, resolve_runs_dir
from numerate.training.stopping import Stop

DEFAULT_NUM_TRIALS = 30
"""Default number of trials."""

_MAX_SAME_FAILURES = 3  # identical failures, without any other result, after which no more trials are started
_MAX_IDLE_ROUNDS = (
    2  # rounds of an executor without new results; one of them may return results of an earlier command's jobs
)


def search(
    recipe: Recipe,
    settings: Sequence[str] | Mapping[str, Any],
    *,
    trials: int | None = None,
    workers: int = 1,
    executor: Executor | None = None,
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
        numerate.train(found.best)

    `settings` are parsed by `Space.parse`. The objective of a trial is the exact match of its best checkpoint on OOD
    validation (`ood_validation`; for ties, and tasks without one, on `validation`), or another `metric`; for language
    modeling, the lowest `validation_loss`. With several `seeds` it is the median. `sampler` is Optuna's TPE, random
    points, or a grid of all points; `pruner` (`median`, `halving`) stops trials at an evaluation at which others were
    better. `seed` determines the points and is the first run's seed in each trial; default: the recipe's.

    The same call resumes the search, until there are `trials` in total; several simultaneous calls share them. With one
    worker the same seed gives the same trials. Without an `executor` one worker is this process. `command_words` are
    the words for this recipe (name and options) in the proposed command.

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
    if executor is None and workers > 1:
        from numerate.executors import Local

        executor = Local(workers=workers)
    first_seed = recipe.seed if seed is None else seed
    replace(recipe, seed=first_seed)  # refuses a seed out of range
    plan = SearchPlan(
        space,
        metric,
        SamplingPlan(sampler, first_seed, _num_trials(space, trials, sampler)),
        pruner,
        tuple(range(first_seed, first_seed + seeds)),
    )
    runs = resolve_runs_dir(runs_dir)
    title, journal = _open_journal(recipe, plan, runs, name)
    base = _resolve_init_from(replace(recipe, group=recipe.group or title), runs)
    trial_work = Trials(journal.folder.absolute(), runs.absolute(), to_tree(base), plan, provenance.command_line())
    with Stop() as stop, _SearchProgress(journal, plan, title, quiet=quiet) as board:
        _run_trials(trial_work, journal, executor, stop, board.update)
    final_trials = tuple(journal.trials())
    num_left = max(0, plan.sampling.trials - sum(trial.state != "running" for trial in final_trials))
    status = (stop.status or 130) if stop.requested else 0
    result = SearchResult(
        journal.folder, recipe, plan, final_trials, journal.importances(), num_left, status, tuple(command_words)
    )
    write_results(result)
    return result


def _num_trials(space: Space, trials: int | None, sampler: Sampler) -> int:
    """The number of trials: at most the number of points of the space; by default all points of a grid."""
    size = len(space.points()) if sampler == "grid" else space.size()
    if trials is None:
        trials = size if sampler == "grid" and size is not None else DEFAULT_NUM_TRIALS
    return trials if size is None else min(trials, size)


def _open_journal(recipe: Recipe, plan: SearchPlan, runs: Path, name: str | None) -> tuple[str, Journal]:
    """Title and journal of a new or resumed search. Raises `UserError` if an existing one is a different search."""
    definition = json.loads(json.dumps({"format": FORMAT, **plan.definition(recipe)}))
    key = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:6]
    title = folder_name(name or f"{recipe.title}-search-{key}")
    if (runs / title / "study.yaml").exists():
        raise UserError(f"name: {title} is a study; name= must be new")
    journal = Journal(runs / title, plan.space, minimize=plan.minimize)
    contents = recipe.task.file_hashes()
    stored_definition = journal.get_or_set_definition({**definition, "contents": contents} if contents else definition)
    check_format(journal.folder, stored_definition.get("format", 1))
    for field, expected in definition.items():
        if stored_definition.get(field) != expected:
            stored_text, new_text = (
                json.dumps(value, ensure_ascii=False) for value in (stored_definition.get(field), expected)
            )
            raise UserError(
                f"{journal.folder}: is a search with another {field}: {stored_text}, and here {new_text}; another "
                "name=, or none, starts a new search"
            )
    check_unchanged_files(recipe.task, stored_definition, journal.folder)
    return title, journal


def _resolve_init_from(recipe: Recipe, runs: Path) -> Recipe:
    """A recipe whose `init_from` is replaced by the id of that run: `latest` would soon be a trial."""
    if recipe.init_from is None:
        return recipe
    from numerate.runs.initial_weights import initial_run

    source = initial_run(recipe, runs)
    return recipe if source is None else replace(recipe, init_from=source.id)


def _run_trials(
    work: Trials, journal: Journal, executor: Executor | None, stop: Stop, on_tick: Callable[[], None]
) -> None:
    """Trains trials until none is left to start. Trials of other commands are left to them, and submitted jobs continue
    by themselves.

    Raises `UserError` or `OperationalError` if no trial can continue, and `UserError` if the first ones all fail with
    the same error.
    """
    num_idle_rounds, is_submitted = 0, False
    while not (stop.requested or is_submitted) and (num_left := journal.num_available(work.plan.sampling)):
        if num_idle_rounds == _MAX_IDLE_ROUNDS:
            raise OperationalError(f"{journal.folder}: {num_left} trials remain, and no worker starts one")
        before = journal.trials()
        if executor is None:
            outcomes = _run_in_process(work, num_left, stop)
        else:
            outcomes = executor.run(
                work, range(num_left), folder=journal.folder / "executor", stop=stop, on_tick=on_tick
            )
        with contextlib.closing(outcomes):  # type: ignore[type-var]
            for outcome in outcomes:
                if outcome.failure is not None:
                    _handle_failure(outcome.failure, outcome.worker, journal)
                    is_submitted = is_submitted or outcome.failure.kind == "not started"
                on_tick()
                _check_failures_differ(journal)
        num_idle_rounds = num_idle_rounds + 1 if journal.trials() == before else 0


def _run_in_process(work: Trials, num_trials: int, stop: Stop) -> Iterator[ItemOutcome]:
    """Trains one trial after the other in this process."""
    import torch

    run_trial = work.open(WorkerContext(unique_worker_name(), torch.get_num_threads(), stop))
    for index in range(num_trials):
        try:
            if not stop.requested:
                run_trial(index)
        except KeyboardInterrupt:
            if not stop.requested:
                raise
        yield ItemOutcome(index)


def _handle_failure(failure: Failure, worker: str, journal: Journal) -> None:
    """Handles a failed worker: the trial of a worker that was stopped or died is started again."""
    if failure.kind in ("out of memory", "timeout"):
        journal.fail_trial_of(worker, failure.text)
    elif not failure.is_transient or failure.kind == "disk full":
        raise failure.to_error()


def _check_failures_differ(journal: Journal) -> None:
    """Raises `UserError` if all trials so far failed with the same error: further ones would fail too."""
    finished = [trial for trial in journal.trials() if trial.state != "running"]
    if (
        len(finished) >= _MAX_SAME_FAILURES
        and None not in (errors := {trial.error for trial in finished})
        and len(errors) == 1
    ):
        raise UserError(
            f"{journal.folder}: all {len(finished)} trials failed with the same error, so no more were started: "
            f"{finished[0].error} (another name= starts a new search)"
        )


class _SearchProgress:
    """Prints each finished trial, whichever worker ran it, and their number."""

    def __init__(self, journal: Journal, plan: SearchPlan, title: str, *, quiet: bool) -> None:
        self._journal, self._plan = journal, plan
        self._printed: set[int] = {trial.number for trial in journal.trials() if trial.state != "running"}
        self._progress = ProgressBar(
            plan.sampling.trials, label=title, num_done=len(self._printed), unit="trial", show=not quiet
        )

    def __enter__(self) -> "_SearchProgress":
        if self._printed:
            self._progress.print_line(f"{self._journal.folder}: {len(self._printed)} trials are finished already")
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.update()
        self._progress.close()

    def update(self) -> None:
        """Reads new entries of the journal."""
        trials = self._journal.trials()
        for trial in trials:
            if trial.state != "running" and trial.number not in self._printed:
                self._printed.add(trial.number)
                self._progress.print_line(f"trial {trial.number}: {self._trial_text(trial)}")
        best = next(iter(self._plan.rank(trials)), None)
        text = "" if best is None else f"{self._plan.value_text(best.results['value'])} (trial {best.number})"
        self._progress.step(len(self._printed), **({"best": text} if text else {}))

    def _trial_text(self, trial: Trial) -> str:
        short = short_names(self._plan.space)
        point = ", ".join(f"{short[path]}={value_text(value)}" for path, value in trial.parameters.items())
        if trial.state == "complete":
            return f"{self._plan.value_text(trial.results['value'])}, {point}"
        return f"stopped early, {point}" if trial.state == "pruned" else f"failed, {point}: {trial.error}"
