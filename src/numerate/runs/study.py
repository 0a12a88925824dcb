"""Studies: their recipes are trained and evaluated by an engine, and reported together."""

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from numerate.config import check_same_defaults, identity, refuse_while_loading, to_tree
from numerate.config.saving import TreeCache
from numerate.errors import OperationalError, UserError, pluralize
from numerate.recipes.study import Study, check_not_conflicting, content_key
from numerate.runs.end import END_FILE, End, clear_end
from numerate.runs.engines.engine import Engine, Failure, Outcome
from numerate.runs.engines.failures import stopped_failure
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.initial_weights import initial_run
from numerate.runs.item import MakeRun
from numerate.runs.presenting import of_results
from numerate.runs.status import RunState, StudyStatus, read_state, read_states
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.tasks.task import Task
from numerate.training import checkpoint, provenance
from numerate.training.lock import LockedError
from numerate.training.preflight import check_unchanged_files
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name, resolve_runs_dir
from numerate.training.stopping import Stop

_MAX_NAMED = 50  # runs of a study of which each is named when it is done; of more, those that failed
_RETRY_SECONDS = 0.5  # seconds until runs that other processes are at are looked at again
_MAX_TIME_FRACTION = 0.05  # of the time at most for looking at the runs


def run_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    retry: bool = False,
) -> tuple[Path | None, list[RunState]]:
    """Trains and evaluates every recipe of a study, in parallel on all cores, and writes its report and figure.

        page, runs = run_study(numerate.recipes.quickstart(), workers=2)

    Completed runs are not repeated, stopped ones resume, and failed ones are listed with their error, or run again with
    `retry`. Returns the path of the report (None if no run is done, or the study was stopped) and how each run stands.
    `engine` runs it with `workers` at once, by default `Local()`; with `workers=1` and no engine it is this process
    (`InProcess`). Otherwise a script that calls this needs `if __name__ == "__main__":` around it, as with all uses of
    `multiprocessing`: each worker imports the script again.

    Raises `UserError` for a study without recipes, for runs that were made with other defaults or on other data, and,
    if the study has a `missing_files_hint`, for missing files, before anything starts; `OperationalError` if the disk
    is full.
    """
    refuse_while_loading("run_study")
    if engine is None and workers == 1:
        engine = InProcess()
    elif engine is None or workers is not None:
        engine = replace(engine or Local(), workers=workers)
    engine.check_available()
    _check_files_exist(study)
    runner = _StudyRunner(study, runs_dir, engine, retry, write=True)
    states = runner.run()
    is_stopped = runner.stop.requested and any(state.end is None for state in states)
    if is_stopped or not any(state.status == "done" for state in states):
        return None, states
    return of_results("page").write_study_page(runner.folder.path, study.question, states), states


@dataclass(frozen=True)
class StudyPreview:
    """A preview of a command: the `counts` of runs done, unfinished, failed and new, and the `script` that the engine
    would submit, if it submits one."""

    counts: Counter[str]
    script: str | None = None

    def __str__(self) -> str:
        notes = {"done": "", "unfinished": "; they will resume", "failed": "; retry=true runs them again", "new": ""}
        rows = [(name, self.counts[name], note) for name, note in notes.items()]
        return "\n".join(f"  {name:<10} {count:>8,}{note * bool(count)}" for name, count, note in rows)


def preview_study(
    study: Study, *, runs_dir: str | Path | None = None, engine: Engine | None = None, retry: bool = False
) -> StudyPreview:
    """A preview of `run_study`. Writes and starts nothing."""
    runner = _StudyRunner(study, runs_dir, engine or Local(), retry, write=False)
    remaining, function = runner.remaining(), runner.function
    counts = Counter[str](state.status for state in runner.states.values() if state.end is not None)
    counts += Counter("unfinished" if (one.path / "recipe.yaml").exists() else "new" for one in runner.unended())
    has_script = type(runner.engine).script is not Engine.script and remaining
    return StudyPreview(counts, runner.engine.script(function, remaining, runner.folder.path) if has_script else None)


class _StudyRunner:
    """The runs of a study that a command requests, and how each stands: with `retry` failed ones are left, too.

    Messages are shown above a progress bar, and written to the study's `log.txt`. Raises `UserError` for runs that were
    made with another default, or on data that has changed since.
    """

    def __init__(
        self, study: Study, runs_dir: str | Path | None, engine: Engine, retry: bool = False, *, write: bool
    ) -> None:
        if not study.recipes:
            raise UserError(f"study {study.title}: has no recipes")
        self.folder = StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir))
        self.engine, self.stop, self._next_update, self._printed = engine, Stop(), 0.0, set[str]()
        requested = _requested(study, self.folder.runs_dir)
        plan = self.folder.update(requested, question=study.question, labels=study.labels, write=write)
        self.states = {state.run.run: state for state in read_states(self.folder.runs_dir, plan)}
        self._retried = [state for state in self.states.values() if retry and state.status == "failed"]
        self.states |= {state.run.run: RunState(state.run, state.path, "left") for state in self._retried}
        self.function = MakeRun(str(self.folder.runs_dir.absolute()), provenance.command_line(), os.getcwd())
        self._status = StudyStatus(self.folder, list(self.states.values()))

    def unended(self) -> list[RunState]:
        """The runs that have not ended, and that the engine did not return unfinished."""
        return [state for state in self.states.values() if state.end is None and state.failure is None]

    def remaining(self) -> list[StudyRun]:
        """The runs to give to the engine, in this order: the first seed of every variant, then the second, ...; within
        a seed the most expensive first, so that all workers end together."""
        left = [state.run for state in self.unended() if state.status == "left"]
        return sorted(left, key=lambda one: (one.seed, -_estimated_cost(one.recipe_tree())))

    def run(self) -> list[RunState]:
        """Makes the remaining runs, and returns how each run of the plan stands, in the order of the plan. Raises
        `OperationalError` if the disk is full."""
        for state in self._retried:
            with suppress(LockedError):  # another command retries it
                clear_end(RunFolder(state.path))
        if self.unended():
            self.bar = ProgressBar(
                len(self.states),
                label=self.folder.title,
                log_path=self.folder.path / "log.txt",
                unit="run",
                estimate_seconds_left=lambda: self._status.seconds_left,
            )
            with self.stop, self.bar:
                while (unended := self.unended()) and not self.stop.requested:
                    self._update()
                    if runs := self.remaining():
                        options: dict[str, Any] = {"folder": self.folder.path, "stop": self.stop}
                        for outcome in self.engine.map(self.function, runs, on_tick=self._update, **options):
                            self._take(runs[outcome.index], outcome)
                    if len(self.unended()) == len(unended) and not self.stop.requested:
                        busy = pluralize(len(unended), "run")
                        self._print_once(f"waiting for {busy} that other processes are training")
                        time.sleep(_RETRY_SECONDS)
                self._next_update = 0.0
                self._update()
        states = list(self.states.values())
        if self.stop.requested:  # its exit status is that of the command, whatever workers say
            return [one if one.end else replace(one, failure=stopped_failure(self.stop)) for one in states]
        return states

    def _take(self, run: StudyRun, outcome: Outcome) -> None:
        """Takes over how a run ended, or why it did not. A run that another process is at stays as it is."""
        for text in outcome.result or ():
            self._print_once(text)
        state, failure = read_state(self.folder.runs_dir, run), outcome.failure
        if failure is None and state.status == "left":
            text = f"its worker finished, but {state.path} does not say so; all workers must share this folder"
            is_stopped = (state.path / END_FILE).exists()  # it reached `training.minutes`
            stopped = Failure("stopped", "not done yet; the same command resumes", 0)
            failure = stopped if is_stopped else Failure("operational error", text)
        if state.end is None and failure is not None and failure.kind != "busy":
            if failure.kind == "disk full":
                raise failure.to_error()
            state = replace(state, failure=failure) if failure.is_transient else self._fail(state, failure)
            if failure.kind == "stopped" and not self.stop.requested:
                self.bar.print_line(f"{run.display_name}: {failure.text}")
        self._set_state(state)

    def _fail(self, state: RunState, failure: Failure) -> RunState:
        """Writes that a run failed, unless its job on Slurm did."""
        try:
            self.function.fail(state.run, failure)
        except LockedError:
            return state
        except (OperationalError, UserError):  # a full disk, a folder of somebody else: it is said by this command
            end = End.now("failed", key=state.run.key, seconds=0.0, kind=failure.kind, error=failure.text)
            return replace(state, status="failed", end=end)
        return read_state(self.folder.runs_dir, state.run)

    def _set_state(self, state: RunState) -> None:
        is_shown = state.status != "done" or len(self.states) <= _MAX_NAMED
        if is_shown and state.end is not None and self.states[state.run.run].end is None:
            self.bar.print_line(f"{state.run.display_name}: {state.error or 'done'}")
        self.states[state.run.run] = state

    def _print_once(self, text: str) -> None:
        """Prints a line, unless one was printed that differs in words with numbers and paths alone."""
        pattern = re.sub(r"(?<!\S)[-+(]*\d\S*|\S*/\S*", "", text)
        if pattern not in self._printed:
            self._printed.add(pattern)
            self.bar.print_line(text)

    def _update(self) -> None:
        """Looks at the runs and draws the bar, unless that was done just before."""
        start_time = time.monotonic()
        if start_time < self._next_update:
            return
        for state in self.unended():
            self._set_state(read_state(self.folder.runs_dir, state.run))
        self._status = status = StudyStatus(self.folder, list(self.states.values()))
        failed = [f"{status.count('failed'):,} failed"] if status.count("failed") else []
        shown = [f"{one.run.label} {one.loss:.2g}" for one in status.running[:3] if one.loss is not None]
        self.bar.update(status.count("done") + status.count("failed"), ", ".join([*failed, *shown]))
        now = time.monotonic()
        self._next_update = now + (now - start_time) / _MAX_TIME_FRACTION


def _estimated_cost(tree: Mapping[str, Any]) -> float:
    """A rough estimate of how long a run takes relative to others of its study: its examples, by the width, depth and
    loops of its model, if it has such settings."""
    training, model = tree.get("training") or {}, tree.get("model") or {}
    backbone = model["backbone"] if isinstance(model.get("backbone"), Mapping) else {}
    examples = training.get("examples") or (training.get("steps") or 1) * (training.get("batch_size") or 1)
    sizes = [model.get("hidden_size")] * 2 + [backbone.get(name) for name in ("num_layers", "num_loops")]
    return float(examples) * prod(float(size or 1) for size in sizes)


def _requested(study: Study, runs_dir: Path) -> list[StudyRun]:
    """The runs of a study, each once; see `_StudyRunner`."""
    identity_cache, key_cache, tree_cache = TreeCache(), TreeCache(), TreeCache()
    recipes, requested, has_files = dict[str, Recipe](), list[StudyRun](), cache(_has_files)
    for requested_recipe in study.recipes:
        recipe, hashed = _resolve_init_from(requested_recipe, runs_dir)
        name = f"{folder_name(recipe.title)}/{identity(hashed, identity_cache)}"
        check_not_conflicting(recipes.setdefault(name, recipe), recipe)
        if recipes[name] is recipe:
            run = StudyRun.of(name, content_key(hashed, key_cache), to_tree(recipe, cache=tree_cache))
            state = read_state(runs_dir, run)
            if (state.path / "recipe.yaml").exists() and (state.end is None or has_files(recipe.task)):
                header = RunFolder.open(state.path).metadata()
                check_same_defaults(header["recipe"], hashed, state.path)
                if has_files(recipe.task) and checkpoint.list_steps(state.path / "checkpoints"):
                    check_unchanged_files(recipe.task, header, state.path)
            requested.append(run)
    return requested


def _has_files(task: Task) -> bool:
    """Whether a task reads files that are there; missing ones are reported by the run."""
    with suppress(UserError):
        return bool(task.file_hashes())
    return False


def _resolve_init_from(recipe: Recipe, runs: Path) -> tuple[Recipe, Recipe]:
    """A recipe with `init_from` as the path of that run, so that workers find the same one; and as its id, which is
    hashed. Unchanged if there is no such run, which the worker then reports."""
    with suppress(UserError):
        if (source := initial_run(recipe, runs)) is not None:
            return replace(recipe, init_from=str(source.path.resolve())), replace(recipe, init_from=source.id)
    return recipe, recipe


def _check_files_exist(study: Study) -> None:
    """Raises `UserError` that lists missing files, if the study has a hint for that; otherwise each run reports its
    own."""
    checks = [check for recipe in study.recipes for check in (recipe.task.check_files, recipe.tokenizer.fingerprint)]
    missing: dict[str, None] = {}
    for check in dict.fromkeys(checks) if study.missing_files_hint else ():
        try:
            check()
        except UserError as error:
            missing[str(error)] = None
    if missing:
        raise UserError("\n".join([f"study {study.title}: files are missing", *missing, study.missing_files_hint]))
