"""Searching for good settings of a recipe: trials that are ordinary runs, and the best of them on a development score.

    runs/<search>/journal.log    what was tried and what came of it: see `numerate.searches.journal`
    runs/<search>/trials.jsonl   the same for other programs, one line per trial
    runs/<search>/results.csv    the same as a table, the best first
    runs/<recipe>/<id>/          the run of a trial, as `numerate train` leaves it

No grid and no question of the test split is evaluated: a search that saw them would choose what happens to do
well on them, and their scores would then say nothing about other questions.
"""

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from numerate.config import to_tree
from numerate.errors import OperationalError, UserError, did_you_mean
from numerate.executors.executor import Executor, Failure, Finished, WorkerContext
from numerate.searches.journal import Journal, Trial
from numerate.searches.sampling import Pruner, Sampler, SamplingPlan, load_optuna
from numerate.searches.searched import SearchResult, short_names, shown, text_of, write
from numerate.searches.space import Space
from numerate.searches.trials import Metric, SearchPlan, Trials
from numerate.training import provenance
from numerate.training.preflight import refuse_other_contents
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import folder_name, runs_directory
from numerate.training.stopping import Stop

TRIALS = 30
"""Default number of trials."""

_ALIKE = 3  # trials that fail with the same words, when nothing else happened, until no more are begun
_IDLE = 2  # rounds of an executor without any news; in one it may give the results of an earlier command's jobs
_PATIENCE = 10.0  # seconds that an executor grants a trial beyond its own timeout


def search(
    recipe: Recipe,
    settings: Sequence[str] | Mapping[str, Any],
    *,
    trials: int | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    metric: Metric = "beyond-development",
    sampler: Sampler = "tpe",
    pruner: Pruner = "none",
    seed: int | None = None,
    seeds: int = 1,
    name: str | None = None,
    runs_dir: str | Path | None = None,
    quiet: bool = False,
    called: Sequence[str] = (),
) -> SearchResult:
    """Trains a recipe at one point of a space of settings after the other, and returns what was found.

    >>> found = numerate.search(recipe, {"optimizer.learning_rate": "log(1e-4,1e-2)"}, trials=20)
    >>> numerate.train(found.best)

    `settings` are read by `Space.read`. A trial's value is what its best checkpoint got right on OOD validation
    (`beyond-development`; ties, and tasks without one, go by `development`), or another `metric`; of running
    text it is its lowest `development_loss`. Of several `seeds` it is the median. `sampler` is Optuna's TPE, random
    points, or a grid of all points; `pruner` (`median`, `halving`) stops trials at an evaluation where others were
    better. `seed` is of the points and of the first run of each trial; the recipe's own if not given.

    The same call resumes where the last one ended, until there are `trials` in all; several calls at once share them.
    With one worker the same seed gives the same trials. Without an `executor` one worker is this process. `called` are
    the words for this recipe in the command that is proposed: its name and its options.

    Raises `UserError` for a space that cannot be searched, before anything is trained, for a `name` under which
    something else is searched, and where Optuna is not installed; `OperationalError` for what the world does (a full
    disk).
    """
    load_optuna()
    space = Space.read(recipe, settings)
    for what, given, kind in (("metric", metric, Metric), ("sampler", sampler, Sampler), ("pruner", pruner, Pruner)):
        if given not in get_args(kind):
            known = get_args(kind)
            raise UserError(f"{what}: {given!r} is none of: {', '.join(known)}.{did_you_mean(str(given), known)}")
    if recipe.task.running and metric == "beyond-development":  # running text has no OOD validation
        metric = "development_loss"
    if metric == "development_loss" and not recipe.task.running:
        what = type(recipe.task).__name__
        raise UserError(f"metric: development_loss is of running text, and {what} is none; metric=development is right")
    for what, number in (("trials", trials), ("workers", workers), ("seeds", seeds)):
        if number is not None and number < 1:
            raise UserError(f"{what}: {number} is too few; 1 or more is right")
    if executor is None and workers > 1:
        from numerate.executors import Local

        executor = Local(workers=workers)
    first = recipe.seed if seed is None else seed
    replace(recipe, seed=first)  # refuses a seed out of range
    plan = SearchPlan(
        space,
        metric,
        SamplingPlan(sampler, first, _limit(space, trials, sampler)),
        pruner,
        tuple(range(first, first + seeds)),
        executor.timeout if executor is not None else None,
    )
    runs = runs_directory(runs_dir)
    title, journal = _begun(recipe, plan, runs, name)
    base = _from_there(replace(recipe, group=recipe.group or title), runs)
    work = Trials(journal.folder.absolute(), runs.absolute(), to_tree(base), plan, provenance.command())
    with Stop() as stop, _Board(journal, plan, title, quiet=quiet) as board:
        _work_off(work, journal, executor, stop, board.look)
    over = tuple(journal.trials())
    left = max(0, plan.way.trials - sum(trial.state != "running" for trial in over))
    status = (stop.status or 130) if stop.requested else 0
    found = SearchResult(journal.folder, recipe, plan, over, journal.importances(), left, status, tuple(called))
    write(found)
    return found


def _limit(space: Space, trials: int | None, sampler: Sampler) -> int:
    """How many trials there will be: no more than the space has points, and by default all points of a grid."""
    size = len(space.points()) if sampler == "grid" else space.size()
    if trials is None:
        trials = size if sampler == "grid" and size is not None else TRIALS
    return trials if size is None else min(trials, size)


def _begun(recipe: Recipe, plan: SearchPlan, runs: Path, name: str | None) -> tuple[str, Journal]:
    """Title and journal of a search, begun or gone on with. Raises `UserError` where it is about something else."""
    question = json.loads(json.dumps(plan.question(recipe)))
    key = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:6]
    title = folder_name(name or f"{recipe.title}-search-{key}")
    if (runs / title / "study.yaml").exists():
        raise UserError(f"name: {title} is a study; another name= is right")
    journal = Journal(runs / title, plan.space, minimise=plan.minimise)
    contents = recipe.task.contents()
    known = journal.question({**question, "contents": contents} if contents else question)
    for what, here in question.items():
        if known.get(what) != here:
            before, now = (json.dumps(value, ensure_ascii=False) for value in (known.get(what), here))
            raise UserError(
                f"{journal.folder}: is a search with another {what}: {before}, and here {now}; another name=, or none, "
                "begins a search of its own"
            )
    refuse_other_contents(recipe.task, known, journal.folder)
    return title, journal


def _from_there(recipe: Recipe, runs: Path) -> Recipe:
    """A recipe that begins with another run's weights, with that run named for good: `latest` would soon be a trial."""
    if recipe.init_from is None:
        return recipe
    from numerate.experiments.start import source_of

    source = source_of(recipe, runs)
    return recipe if source is None else replace(recipe, init_from=source.id)


def _work_off(work: Trials, journal: Journal, executor: Executor | None, stop: Stop, look: Callable[[], None]) -> None:
    """Trains trials until none is left to start. Trials of other commands are theirs, and what an executor only submits
    continues by itself.

    Raises `UserError` or `OperationalError` where no trial could continue, and `UserError` where the first ones all
    fail alike.
    """
    seen: list[list[Trial]] = []
    submitted = False
    while not (stop.requested or submitted) and (left := journal.left(work.plan.way)):
        trials = journal.trials()
        if seen.count(trials) == _IDLE:
            raise OperationalError(f"{journal.folder}: {left} trials are left, and no worker takes one up")
        seen.append(trials)
        if executor is None:
            done = _here(work, left, stop)
        else:
            patient = replace(executor, timeout=executor.timeout and executor.timeout + _PATIENCE)
            done = patient.run(work, range(left), folder=journal.folder / "executor", stop=stop, tick=look)
        with contextlib.closing(done):  # type: ignore[type-var]
            for one in done:
                if one.failure is not None:
                    _answer(one.failure, one.worker, journal)
                    submitted = submitted or one.failure.kind == "not begun"
                look()
                _refuse_alike(journal)


def _here(work: Trials, left: int, stop: Stop) -> Iterator[Finished]:
    """One trial after the other, in this process."""
    import torch

    do = work.open(WorkerContext(f"{socket.gethostname()}-{os.getpid()}", torch.get_num_threads(), stop))
    for index in range(left):
        try:
            if stop.requested:
                return
            do(index)
        except KeyboardInterrupt:
            if not stop.requested:
                raise
            return
        yield Finished(index)


def _answer(failure: Failure, worker: str, journal: Journal) -> None:
    """Handles a failed worker: the trial of a worker that was stopped or died is started again."""
    if failure.kind in ("out of memory", "timeout"):
        journal.fail_of(worker, failure.text)
    elif failure.kind == "mistake":
        raise UserError(failure.text)
    elif failure.kind in ("fault", "error"):
        error = OperationalError(failure.text)
        if failure.trace is not None:
            error.add_note(failure.trace)
        raise error


def _refuse_alike(journal: Journal) -> None:
    """Raises `UserError` where nothing but one error has come of all trials so far: the next ones would be no
    better."""
    over = [trial for trial in journal.trials() if trial.state != "running"]
    if len(over) >= _ALIKE and None not in (errors := {trial.error for trial in over}) and len(errors) == 1:
        raise UserError(
            f"{journal.folder}: all {len(over)} trials failed alike, so no more were begun: {over[0].error} "
            "(another name= starts anew)"
        )


class _Board:
    """Prints each finished trial, whichever worker ran it, and their number."""

    def __init__(self, journal: Journal, plan: SearchPlan, title: str, *, quiet: bool) -> None:
        self._journal, self._plan = journal, plan
        self._shown: set[int] = {trial.number for trial in journal.trials() if trial.state != "running"}
        self._progress = ProgressBar(plan.way.trials, label=title, done=len(self._shown), unit="trial", silent=quiet)

    def __enter__(self) -> "_Board":
        if self._shown:
            self._progress.say(f"{self._journal.folder}: {len(self._shown)} trials are over already")
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.look()
        self._progress.close()

    def look(self) -> None:
        """Reads what is new in the journal."""
        trials = self._journal.trials()
        for trial in trials:
            if trial.state != "running" and trial.number not in self._shown:
                self._shown.add(trial.number)
                self._progress.say(f"trial {trial.number}: {self._outcome(trial)}")
        self._progress.step(len(self._shown), **self._best(trials))

    def _outcome(self, trial: Trial) -> str:
        short = short_names(self._plan.space)
        point = ", ".join(f"{short[path]}={text_of(value)}" for path, value in trial.parameters.items())
        if trial.state == "complete":
            return f"{shown(trial.found['value'], self._plan.metric)}, {point}"
        return f"stopped early, {point}" if trial.state == "pruned" else f"failed, {point}: {trial.error}"

    def _best(self, trials: Sequence[Trial]) -> dict[str, str]:
        complete = [trial for trial in trials if trial.objective is not None]
        if not complete:
            return {}
        sign = 1 if self._plan.minimise else -1
        best = min(complete, key=lambda trial: sign * (trial.objective or 0.0))
        return {"best": f"{shown(best.found['value'], self._plan.metric)} (trial {best.number})"}
