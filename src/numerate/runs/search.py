"""Hyperparameter search: trials are ordinary runs, and the best is selected by a validation score.

The point of a trial is a function of its number, the seed and the trials so far, so an interrupted search proposes what
an uninterrupted one would, and several commands, on several machines, share the trials of one folder. Its `study.json`
has the points and lists the runs; what a trial is worth is read from the metrics of its runs.
"""

import hashlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch

from numerate.config import from_tree, identity, override, refuse_while_loading, to_tree
from numerate.config.overrides import MAX_RUNS
from numerate.errors import OperationalError, UserError, check_choice, check_positive, pluralize
from numerate.recipes.study import content_key
from numerate.records.reading import damage_message
from numerate.runs.end import Ending
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.engines.worker import current_stop
from numerate.runs.initial_weights import initial_run
from numerate.runs.item import training_results
from numerate.runs.space import Space, value_text
from numerate.runs.status import RunState, read_states
from numerate.runs.study_folder import REMEDY, STUDY_FILE, Parameters, StudyFolder, StudyRun
from numerate.runs.train import train
from numerate.runs.trials import Metric, Pruner, Sampler, Trial, TrialSampling, curve
from numerate.training import disk, provenance
from numerate.training.lock import Lock, LockedError
from numerate.training.preflight import check_unchanged_files
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name, resolve_runs_dir
from numerate.training.stopping import Stop

_NUM_TRIALS = 30
_MAX_ALIKE = 5  # trials that fail alike before any other has ended
_NUM_FRESH_SEEDS = 5  # in the proposed command; none of them was used to select the best trial
_MAX_FAILURES = 3  # that are shown
_LOCK_TIMEOUT = 60.0  # seconds until the process is named that chooses a trial
_RETRY_SECONDS = 0.5  # seconds until trials that other processes are at are looked at again


@dataclass(frozen=True, repr=False)
class SearchResult:
    """A search so far: its `trials` in the order in which they were started, and the `exit_status` of the command.
    Displays as the best trial and the command that measures its settings on new seeds, in which `command_words` stand
    for the recipe."""

    search: "Search"
    trials: tuple[Trial, ...]
    exit_status: int
    command_words: tuple[str, ...]

    @property
    def num_left(self) -> int:
        """The number of unfinished trials."""
        return max(0, self.search.num_trials - sum(trial.has_ended for trial in self.trials))

    @property
    def best_trial(self) -> Trial:
        """The best trial, of equal ones the first. Raises `UserError` if none is complete."""
        sampling, complete = self.search.sampling, [trial for trial in self.trials if trial.state == "complete"]
        if not complete:
            raise UserError(f"{self.search.path}: no trial is complete")
        return (min if sampling.is_minimized else max)(complete, key=sampling.objective)

    @property
    def best_recipe(self) -> Recipe:
        """The recipe of the best trial's first run, which `train` finds done. Raises `UserError` if there is none."""
        return self.search.recipe_of(self.best_trial.runs[0])

    def next_command(self) -> str:
        """The command that trains and evaluates the best settings on new seeds."""
        first, (name, *options) = max(self.search.seeds) + 1, self.command_words
        seeds = ",".join(str(seed) for seed in range(first, first + _NUM_FRESH_SEEDS))
        settings = self.search.sampling.space.settings(self.best_trial.parameters)
        return shlex.join(["numerate", "run", name, *settings, f"seed={seeds}", *options])

    def __repr__(self) -> str:
        states, sampling, path = [trial.state for trial in self.trials], self.search.sampling, self.search.path
        counts = {"stopped early": states.count("pruned"), "failed": states.count("failed")}
        counts["not finished; the same command resumes"] = self.num_left
        parts = [f"{states.count('complete')} of {max(self.search.num_trials, len(states))} trials are complete"]
        parts += [f"{count} {text}" for text, count in counts.items() if count]
        failed = [sampling.describe(trial) for trial in self.trials if trial.state == "failed"]
        lines = [f"{path}: {', '.join(parts)}", *failed[:_MAX_FAILURES]]
        if "complete" in states:
            best = self.best_trial
            for field in sampling.space.fields:
                if field.is_edge(value := best.parameters[field.path]):
                    text = f"{field.path}={value_text(value)} is at the end of its range"
                    lines.append(f"warning: the best {text}; better values may lie outside; search a wider range")
            biased = f"{sampling.metric} of the best is biased upwards by selection; this evaluates it on new seeds:"
            lines += [f"best: {sampling.describe(best)}", biased, f"  {self.next_command()}"]
        return "\n".join([*lines, f"all trials: numerate results {shlex.quote(str(path))}"])


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
    validation (for ties, and tasks without one, on `validation`), or another `metric`; for language modeling, the
    lowest `validation_loss`; with several `seeds` their median. `seed` determines the points, and is that of the first
    run of each trial; default: the recipe's. `pruner` stops trials at an evaluation at which others were better.

    The same call resumes the search, until there are `trials` in total; several simultaneous calls share them. Without
    an `engine` one worker is this process. `command_words` are the words for this recipe (name and options) in the
    proposed command.

    Raises `UserError` for a space that cannot be searched, before anything is trained, for a `name` of a different
    search, and if Optuna is not installed; `OperationalError` for errors of the environment (a full disk).
    """
    refuse_while_loading("search")
    space, task, runs = Space.parse(recipe, settings), recipe.task, resolve_runs_dir(runs_dir)
    if metric == "ood_validation" and task.is_language_modeling:
        metric = "validation_loss"
    first_metric = "validation_loss" if task.is_language_modeling else "ood_validation"
    check_choice("metric", metric, (first_metric, "validation", "loss"))
    check_choice("sampler", sampler, get_args(Sampler))
    check_choice("pruner", pruner, get_args(Pruner))
    for option, number in (("trials", trials), ("workers", workers), ("seeds", seeds)):
        check_positive(option, number)
    if sampler == "grid" and space.size > MAX_RUNS:
        raise UserError(f"sampler: a grid has at most {MAX_RUNS:,} points; a step is the third number of between(...)")
    if engine is None:
        engine = Local(workers=workers) if workers > 1 else InProcess(threads=torch.get_num_threads())
    engine.check_available()
    if recipe.init_from == "latest":
        raise UserError("init_from: must name a run, since the latest will be a trial of the search")
    source, seed = initial_run(recipe, runs), recipe.seed if seed is None else seed
    recipe = replace(recipe, seed=seed, init_from=None if source is None else source.id)
    all_seeds = tuple(range(seed, seed + seeds))
    of = f"{recipe.title}, seed {','.join(map(str, all_seeds))}"
    limit = "" if recipe.training.minutes is None else f", {recipe.training.minutes:g} minutes"
    key = content_key(replace(recipe, seed=0))
    question = f"Which is best for {metric}: {' '.join(map(str, space.items))}? (search of {of}{limit}, {key})"
    digest = hashlib.sha256(question.encode()).hexdigest()[:6]
    title = folder_name(name or f"{recipe.title}-search-{digest}")
    found = Search(
        runs / title,
        question,
        replace(recipe, title=title, group=recipe.group or title),
        TrialSampling(space, metric, sampler, pruner, seed),
        all_seeds,
        int(min(trials or (space.size if sampler == "grid" else _NUM_TRIALS), space.size)),
        provenance.command_line(),
    ).open()
    status = _train_trials(found, engine, quiet)
    return SearchResult(found, tuple(found.trials()), status, tuple(command_words) or (recipe.title,))


@dataclass(frozen=True)
class Search:
    """A search in a folder, and what an engine applies to the numbers of its trials: a trial is added if it is not
    there yet, and what is missing of its runs is trained. The `question` says what must not change during a search; all
    trials have the `recipe`, whose title is that of the search. A call raises the errors of `MakeRun`.
    """

    path: Path
    question: str
    recipe: Recipe
    sampling: TrialSampling
    seeds: tuple[int, ...]
    num_trials: int
    command: str = ""

    @property
    def folder(self) -> StudyFolder:
        return StudyFolder(self.path)

    def lock(self) -> AbstractContextManager[bool]:
        """The lock of the search, held as long as the next run is chosen."""
        return Lock(self.path / "search.lock").hold("choosing a trial", timeout=_LOCK_TIMEOUT)

    def open(self) -> "Search":
        """This search in its folder, which is created if necessary. Raises `UserError` for the folder of a study or of
        another search, and if files of the task have changed since its first trial."""
        disk.make_folder(self.path)
        with self.lock():
            content = self.folder.read()
            if content.question not in ("", self.question):
                raise UserError(f"{self.path}: is that of: {content.question} Another name=, or none, starts a search")
            self.folder.update(content.plan(), self.question)
        folders = [RunFolder(self.path.parent / run.run) for run in content.runs]
        for folder in [one for one in folders if one.file("recipe.yaml").exists()][:1]:
            check_unchanged_files(self.recipe.task, folder.metadata(), self.path)
        return self

    def trials(self) -> list[Trial]:
        """All trials by number. Reading needs no lock. Raises `UserError` for parameters that were edited."""
        states = dict[int | None, list[RunState]]()
        for run in read_states(self.path.parent, self.folder.read().runs):
            states.setdefault(run.run.trial, []).append(run)
        trials = []
        for number in range(len(states)):
            try:
                runs = states[number]
                self.sampling.check_point(runs[0].run.parameters)
            except (ValueError, KeyError) as error:
                raise UserError(damage_message(self.path / STUDY_FILE, f"trial {number}: {error}", REMEDY)) from error
            trials.append(self._read(Trial(number, runs[0].run.parameters, runs=tuple(runs))))
        return trials

    def _read(self, trial: Trial) -> Trial:
        """A trial as its runs stand."""
        for run in trial.runs:
            if run.end is None:
                return replace(trial, state="running" if run.status == "running" else "left")
            if run.status == "failed":
                return replace(trial, state="failed", error=run.error)
            values = _read_curve(run.path, self.sampling.metric, self.recipe.training.steps, run.end.ended)
            if not values:
                problem = f"ended before an evaluation with a finite {self.sampling.metric}"
                error = f"training: {problem}; a larger budget, or a smaller training.evaluate_every="
                return replace(trial, state="failed", error=error)
            trial = replace(trial, curves=(*trial.curves, values))
            if (run.end.results or {}).get("stop_reason") == "pruned":
                return replace(trial, state="pruned")
        return replace(trial, state="complete") if len(trial.curves) == len(self.seeds) else trial

    def recipe_of(self, run: RunState) -> Recipe:
        recipe: Recipe = from_tree(run.run.recipe_tree(), "search", expected_class=Recipe)
        return recipe

    def name_of(self, number: int) -> str:
        return f"trial {number}"

    def done(self, number: int) -> bool:
        return any(trial.has_ended for trial in self.trials()[number : number + 1])

    def fail(self, number: int, failure: Failure) -> None:
        """Writes that a run of a trial failed whose worker could not, and raises the failure of a worker itself."""
        begun = self.trials()[number : number + 1]
        if failure.kind not in ("died", "out of memory", "timeout") or not begun:
            raise failure.to_error()
        with suppress(LockedError):
            Ending(RunFolder(begun[0].runs[-1].path), begun[0].runs[-1].run.key).fail(failure)

    def __call__(self, number: int) -> None:
        while not (trial := self.begin(number)).has_ended:
            self._train(trial)

    def begin(self, number: int) -> Trial:
        """The trial of a number, whose last run is to be trained, if it has not ended. What is missing is added."""
        with self.lock():
            while number >= len(trials := self.trials()):
                errors = {trial.error for trial in trials}
                if len(trials) >= _MAX_ALIKE and len(errors) == 1 and None not in errors:
                    problem = f"all {len(trials)} trials failed alike; remove this folder to search again"
                    raise UserError(f"{self.path}: {problem}: {errors.pop()}")
                self._add_run(len(trials), self.sampling.next_point(trials), self.seeds[0])
            trial = trials[number]
            if not trial.has_ended and len(trial.runs) == len(trial.curves):
                self._add_run(number, trial.parameters, self.seeds[len(trial.runs)])
            return self.trials()[number]

    def _add_run(self, number: int, parameters: Parameters, seed: int) -> None:
        """Adds a run of a trial to the study. One that is refused has failed, and no table has it."""
        settings, plan = self.sampling.space.settings(parameters), self.folder.read().plan()
        recipe, failure = self.recipe, None
        try:
            recipe = replace(override(recipe, settings), title=recipe.title, seed=seed)
            name = f"{self.path.name}/{identity(recipe)}"
            if any(run.run == name for run in plan):
                raise UserError("another trial has the same recipe")
        except UserError as error:
            name, failure = f"{self.path.name}/refused-{number}", error
        key, tree = content_key(recipe), to_tree(recipe)
        if failure is not None:
            Ending(RunFolder(self.path.parent / name), key).fail(failure)
        run = StudyRun.of(name, key, tree, trial=number, parameters=parameters, current=failure is None)
        self.folder.update([*plan, run], self.question)

    def _train(self, trial: Trial) -> None:
        """Trains the last run of a trial, and writes how it ended."""
        run, folder = trial.runs[-1], RunFolder(trial.runs[-1].path)
        with Ending(folder, run.run.key) as ending:
            recipe = self.recipe_of(run)

            def is_pruned() -> bool:
                if self.sampling.pruner == "none" or len(trial.runs) > 1:
                    return False
                values = curve(folder.records("metrics.jsonl"), self.sampling.metric)
                now = replace(trial, curves=(values,))
                trials = [now if one.number == trial.number else one for one in self.trials()]
                return bool(values) and self.sampling.is_pruned(trials, trial.number, recipe.training)

            stop = _TrialStop(is_pruned)
            options: dict[str, Any] = {"on_record": stop.on_record, "stop": stop, "command": self.command}
            trained = train(recipe, runs_dir=self.path.parent, quiet=True, **options)
            if trained.stop_reason == "stopped" and not stop.is_pruned:
                raise KeyboardInterrupt
            results = training_results(trained.run, recipe)  # a run that reached its minutes is complete, too
            ending.write("done", results=results | ({"stop_reason": "pruned"} if stop.is_pruned else {}))


@cache
def _read_curve(path: Path, metric: Metric, budget: int | None, ended: float) -> dict[int, float]:
    """The curve of the run in a folder that ended at this time."""
    return curve(RunFolder(path).records("metrics.jsonl"), metric, budget)


class _TrialStop(Stop):
    """Stops a run when its worker is stopped, or where the pruner, which is asked after each evaluation, says so."""

    def __init__(self, ask_pruner: Callable[[], bool]) -> None:
        super().__init__(handles_signals=False)
        self._ask_pruner, self._worker_stop = ask_pruner, current_stop()
        self._is_due, self.is_pruned = True, False  # a process may have been killed after an evaluation, before this

    def on_record(self, kind: str, record: Mapping[str, Any]) -> None:
        self._is_due = self._is_due or kind == "evaluation"

    @property
    def requested(self) -> bool:
        if self._is_due and not self.is_pruned:
            self._is_due, self.is_pruned = False, self._ask_pruner()
        return self.is_pruned or self._worker_stop.requested


def _train_trials(search: Search, engine: Engine, quiet: bool) -> int:
    """Trains the trials until all have ended, those of other commands by them while they live, and returns the exit
    status. Raises `UserError` or `OperationalError` if no trial can continue."""
    search, lost, status = replace(search, path=search.path.absolute()), set[int](), 0
    num_done = sum(trial.has_ended for trial in search.trials()[: search.num_trials])
    options: dict[str, Any] = {
        "num_done": num_done,
        "unit": "trial",
        "show": not quiet and num_done < search.num_trials,
    }
    bar = ProgressBar(search.num_trials, label=search.path.name, **options)
    with Stop() as stop, bar:
        while not stop.requested:
            trials = search.trials()[: search.num_trials]
            ended = {trial.number for trial in trials if trial.has_ended}
            if not (left := [number for number in range(search.num_trials) if number not in ended | lost]):
                break
            busy = {trial.number for trial in trials if trial.state == "running"}
            if not (free := [number for number in left if number not in busy]):
                bar.update(len(ended), f"waiting for {pluralize(len(left), 'trial')} of other processes")
                time.sleep(_RETRY_SECONDS)
                continue
            for outcome in engine.map(search, free, folder=search.path, stop=stop):
                number, failure = free[outcome.index], outcome.failure
                if failure is not None and not failure.is_transient and not search.done(number):
                    search.fail(number, failure)
                if search.done(number):
                    ended.add(number)
                    bar.print_line(search.sampling.describe(search.trials()[number]))
                    bar.step(len(ended))
                elif failure is None:
                    text = f"its worker finished, but {search.path} does not say so; all workers must share this folder"
                    raise OperationalError(f"trial {number}: {text}")
                elif failure.kind == "disk full":
                    raise failure.to_error()
                elif failure.kind != "busy" and not stop.requested:
                    bar.print_line(f"trial {number}: {failure.text}")
                    status = max(status, failure.status)
                    lost.add(number)
    return (stop.status or 130) if stop.requested else status
