"""Hyperparameter search: trials are ordinary runs, and the best is selected by a validation score.

The point of a trial is a function of its number, the seed and the trials so far, so an interrupted search proposes what
an uninterrupted one would, and several commands, on several machines, share the trials of one folder.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch

from numerate.config import refuse_while_loading
from numerate.config.differences import short_path
from numerate.config.overrides import MAX_RUNS
from numerate.errors import OperationalError, UserError, check_choice, check_positive, raise_first
from numerate.records.heads import read_metrics
from numerate.runs.end import Ending
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.engines.worker import current_stop
from numerate.runs.item import training_results
from numerate.runs.sampling import importances, is_pruned, next_point
from numerate.runs.space import Space, value_text
from numerate.runs.status import RunState
from numerate.runs.train import train
from numerate.runs.trials import Metric, Pruner, Sampler, Score, Search, Trial
from numerate.terminal import text_table
from numerate.training import provenance
from numerate.training.lock import LockedError
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, resolve_runs_dir
from numerate.training.stopping import Stop

_NUM_TRIALS = 30
_MAX_ALIKE = 5  # trials that fail alike before any other has ended
_NUM_FRESH_SEEDS = 5  # in the proposed command; none of them was used to select the best trial
_MAX_SHOWN, _MAX_FAILURES = 10, 3


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of a search so far. Displays as a table of the best trials and the next command.

    `trials` are all trials in the order in which they were started, `exit_status` is that of the command;
    `command_words` are the recipe and its options in the next command.
    """

    search: Search
    trials: tuple[Trial, ...]
    exit_status: int
    command_words: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The folder of the search."""
        return self.search.path

    @property
    def num_left(self) -> int:
        """The number of unfinished trials."""
        return max(0, self.search.num_trials - sum(trial.has_ended for trial in self.trials))

    @property
    def ranked_trials(self) -> list[Trial]:
        """The complete trials, best first; ties in the order of the trials."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return sorted(complete, key=lambda trial: trial.objective, reverse="loss" not in self.search.metric)

    @property
    def best_trial(self) -> Trial:
        """The best trial. Raises `UserError` if none is complete."""
        if not (ranked := self.ranked_trials):
            raise UserError(f"{self.path}: no trial is complete")
        return ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        """The recipe of the best trial's first run, which `train` finds done. Raises `UserError` if there is none."""
        return self.search.recipe_of(self.best_trial.runs[0])

    def next_command(self) -> str:
        """The command that trains and evaluates the best settings on new seeds."""
        first = max(self.search.seeds) + 1
        seeds = ",".join(str(seed) for seed in range(first, first + _NUM_FRESH_SEEDS))
        name, *options = self.command_words
        settings = self.search.space.settings(self.best_trial.parameters)
        return shlex.join(["numerate", "run", name, *settings, f"seed={seeds}", *options])

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The best trials as a table, which is divided to fit into the `width` of a terminal, and notes."""
        rows = [self._row(trial) for trial in self.ranked_trials[:_MAX_SHOWN]]
        table = [text_table(list(rows[0]), [list(row.values()) for row in rows], width)] if rows else []
        return "\n\n".join([*table, "\n".join(self._notes())])

    def _row(self, trial: Trial) -> dict[str, str]:
        value, *interval = trial.texts()
        row = {"trial": str(trial.number), trial.scores[0].metric: value}
        if interval:
            row[f"of {len(trial.scores)} seeds" if len(trial.scores) > 1 else "95 % interval"] = " to ".join(interval)
        row |= {short_path(path, trial.parameters): value_text(value) for path, value in trial.parameters.items()}
        return row | {"run": ", ".join(run.path.name for run in trial.runs)}

    def _notes(self) -> Iterator[str]:
        states, ranked = [trial.state for trial in self.trials], self.ranked_trials
        counts = {"stopped early": states.count("pruned"), "failed": states.count("failed")}
        counts["not finished; the same command resumes"] = self.num_left
        parts = [f"{len(ranked)} of {max(self.search.num_trials, len(states))} trials are complete"]
        parts += [f"{count} {text}" for text, count in counts.items() if count]
        yield f"{self.path}: {', '.join(parts)}"
        for trial in [trial for trial in self.trials if trial.state == "failed"][:_MAX_FAILURES]:
            yield f"trial {trial.number} failed: {trial.error}"
        if shares := importances(self.search, self.trials):
            texts = (f"{path} {share:.0%}" for path, share in shares.items())
            yield f"parameter importances (PED-ANOVA): {', '.join(texts)}"
        if ranked:
            best = ranked[0]
            for field in self.search.space.fields:
                if field.is_edge(value := best.parameters[field.path]):
                    text = f"{field.path}={value_text(value)} is at the end of its range"
                    yield f"warning: the best {text}; better values may lie outside; search a wider range"
            yield f"best: trial {best.number}, selected by {best.scores[0].metric}, not on test questions"
            yield f"the best of {len(ranked)} is biased upwards by selection; this evaluates it on new seeds:"
            yield f"  {self.next_command()}"


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
    total = int(min(trials or (space.size if sampler == "grid" else _NUM_TRIALS), space.size))
    all_seeds = tuple(range(recipe.seed, recipe.seed + seeds))
    found = Search(Path(), recipe, space, total, metric, sampler, pruner, all_seeds)
    if engine is None:
        engine = Local(workers=workers) if workers > 1 else InProcess(threads=torch.get_num_threads())
    engine.check_available()
    found = found.open(resolve_runs_dir(runs_dir), name)
    num_done = sum(trial.has_ended for trial in found.trials())
    bar = ProgressBar(total, label=found.path.name, num_done=num_done, unit="trial", show=not quiet)
    with Stop() as stop, bar:
        status = _train_trials(found, engine, stop, bar)
    with found.lock():
        found.list_runs(found.trials())
    return SearchResult(found, tuple(found.trials()), status, tuple(command_words) or (recipe.title,))


@dataclass(frozen=True)
class TrainTrial:
    """Trains a trial: a function of its number, which adds it if it is not there yet, and does what is missing of its
    runs. It raises the errors of `MakeRun`."""

    search: Search
    command: str

    def name_of(self, number: int) -> str:
        return f"trial {number}"

    def done(self, number: int) -> bool:
        return any(trial.has_ended for trial in self.search.trials()[number : number + 1])

    def fail(self, number: int, failure: Failure) -> None:
        """Writes that a run of a trial failed whose worker could not, and raises the failure of a worker itself."""
        run = next((trial.unfinished for trial in self.search.trials()[number:]), None)
        if failure.kind not in ("died", "out of memory", "timeout") or run is None:
            raise failure.to_error()
        with suppress(LockedError):
            Ending(RunFolder(run.path), run.run.key).fail(failure)

    def __call__(self, number: int) -> None:
        with self.search.lock():
            while number >= len(trials := self.search.trials()):
                errors = {trial.error for trial in trials}
                if len(trials) >= _MAX_ALIKE and len(errors) == 1 and None not in errors:
                    problem = f"all {len(trials)} trials failed alike; remove this folder to search again"
                    raise UserError(f"{self.search.path}: {problem}: {errors.pop()}")
                self.search.add_trial(next_point(self.search, trials))
        for _ in self.search.seeds:
            trial = self.search.trials()[number]
            if (run := trial.unfinished) is not None:
                self._train(trial, run)

    def _train(self, trial: Trial, run: RunState) -> None:
        """Trains a run of a trial, and writes how it ended."""
        search, recipe, folder = self.search, self.search.recipe_of(run), RunFolder(run.path)
        stop = _TrialStop(lambda: is_pruned(search, trial, folder.records("metrics.jsonl")))
        with Ending(folder, run.run.key) as ending:
            trained = train(
                recipe,
                runs_dir=search.path.parent,
                quiet=True,
                on_record=stop.on_record,
                stop=stop,
                command=self.command,
            )
            if trained.stop_reason == "stopped" and not stop.is_pruned:
                raise KeyboardInterrupt
            damage: list[str] = []
            lines = read_metrics(folder.path, folder.metadata(), damage.append)
            raise_first(damage)
            if (score := Score.of(lines, search.metric, recipe.training.steps)) is None:
                problem = f"training: ended before an evaluation with a finite {search.metric}"
                raise UserError(f"{problem}; a larger budget, or a smaller training.evaluate_every=")
            results = training_results(replace(trained, stop_reason="budget"), recipe)  # minutes are one, too
            results |= {"search": msgspec.to_builtins(score)} | ({"stop_reason": "pruned"} if stop.is_pruned else {})
            ending.write("done", results=results)


class _TrialStop(Stop):
    """Stops a run when its worker is stopped, or where the pruner, which is asked after each evaluation, says so."""

    def __init__(self, ask_pruner: Callable[[], bool]) -> None:
        super().__init__(handles_signals=False)
        self._ask_pruner, self._worker_stop = ask_pruner, current_stop()
        self._is_due = True  # a process may have been killed after an evaluation and before this was asked
        self.is_pruned = False

    def on_record(self, kind: str, record: Mapping[str, Any]) -> None:
        self._is_due = self._is_due or kind == "evaluation"

    @property
    def requested(self) -> bool:
        if self._is_due and not self.is_pruned:
            self._is_due, self.is_pruned = False, self._ask_pruner()
        return self.is_pruned or self._worker_stop.requested


def _train_trials(search: Search, engine: Engine, stop: Stop, bar: ProgressBar) -> int:
    """Trains trials until none is left to take, and returns the exit status. Trials of other commands are left to them,
    and submitted jobs continue by themselves.

    Raises `UserError` or `OperationalError` if no trial can continue.
    """
    function = TrainTrial(replace(search, path=search.path.absolute()), provenance.command_line())
    while not stop.requested and (numbers := _numbers_left(search)):
        before, left, is_busy = search.trials(), dict[str, int](), False
        with closing(engine.map(function, numbers, folder=search.path, stop=stop)) as outcomes:  # type: ignore[type-var]
            for number, failure in ((numbers[outcome.index], outcome.failure) for outcome in outcomes):
                if failure is not None and failure.kind in ("stopped", "not started"):
                    left[failure.text] = failure.status
                elif failure is not None and failure.kind == "busy":
                    is_busy = True
                elif failure is not None and not function.done(number):
                    function.fail(number, failure)
                trials = search.trials()
                if function.done(number):
                    bar.print_line(str(trials[number]))
                bar.step(sum(trial.has_ended for trial in trials))
        if left and not stop.requested:
            for text in left:
                bar.print_line(f"not finished: {text}")
            return max(left.values())
        if not is_busy and search.trials() == before:
            raise OperationalError(f"{search.path}: {len(numbers)} trials remain, and no worker starts one")
    return (stop.status or 130) if stop.requested else 0


def _numbers_left(search: Search) -> list[int]:
    """The trials that a worker could take now: those whose process is gone, and those not added yet."""
    trials = search.trials()
    left = [trial.number for trial in trials if trial.unfinished is not None and trial.unfinished.status != "running"]
    return [*left, *range(len(trials), search.num_trials)]
