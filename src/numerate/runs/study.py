"""Running a study: its recipes are trained, evaluated and plotted together."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.config import check_same_defaults, identity, refuse_while_loading, to_tree
from numerate.config.saving import TreeCache
from numerate.errors import UserError
from numerate.recipes.study import Study, check_not_conflicting, content_key
from numerate.reports.groups import group_runs
from numerate.reports.matplotlib_writer import save_figure
from numerate.reports.output_files import write_output
from numerate.reports.page import comparison_page
from numerate.reports.plots import compare_figure
from numerate.reports.records import read_runs
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.initial_weights import initial_run
from numerate.runs.making import StudyRunner
from numerate.runs.status import RunState, read_state
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training import checkpoint
from numerate.training.preflight import check_unchanged_files
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name, resolve_runs_dir


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
    folder, engine = StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir)), _resolve_engine(engine, workers)
    engine.check_available()
    _check_files_exist(study)
    runner = StudyRunner(folder, _plan_runs(study, folder, write=True), engine, retry)
    states = runner.run()
    is_stopped = runner.stop.requested and any(state.end is None for state in states)
    if is_stopped or not any(state.status == "done" for state in states):
        return None, states
    return _write_report(study, folder, states), states


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
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    retry: bool = False,
) -> StudyPreview:
    """A preview of `run_study`. Writes and starts nothing."""
    folder, engine = StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir)), _resolve_engine(engine, workers)
    runner = StudyRunner(folder, _plan_runs(study, folder, write=False), engine, retry)
    remaining, script = runner.remaining(), None
    counts = Counter[str](state.status for state in runner.states.values() if state.end is not None)
    counts += Counter("unfinished" if (one.path / "recipe.yaml").exists() else "new" for one in runner.unended())
    if type(engine).script is not Engine.script and remaining:
        script = engine.script(runner.function, remaining, folder.path)
    return StudyPreview(counts, script)


def _resolve_engine(engine: Engine | None, workers: int | None) -> Engine:
    if engine is None and workers == 1:
        return InProcess()
    return (engine or Local()) if workers is None else replace(engine or Local(), workers=workers)


def _plan_runs(study: Study, folder: StudyFolder, *, write: bool) -> list[StudyRun]:
    """The runs of the study. Raises `UserError` for runs that were made with another default, or on data that has
    changed since."""
    if not study.recipes:
        raise UserError(f"study {study.title}: has no recipes")
    identity_cache, key_cache, tree_cache = TreeCache(), TreeCache(), TreeCache()
    recipes: dict[str, Recipe] = {}
    has_files: dict[Any, bool] = {}
    requested = []
    for requested_recipe in study.recipes:
        recipe, hashed = _resolve_init_from(requested_recipe, folder.runs_dir)
        name = f"{folder_name(recipe.title)}/{identity(hashed, identity_cache)}"
        check_not_conflicting(recipes.setdefault(name, recipe), recipe)
        if recipes[name] is recipe:
            run = StudyRun.of(name, content_key(hashed, key_cache), to_tree(recipe, cache=tree_cache))
            _check_made_alike(read_state(folder.runs_dir, run), hashed, has_files)
            requested.append(run)
    return folder.update(requested, question=study.question, labels=study.labels, write=write)


def _check_made_alike(state: RunState, recipe: Recipe, has_files: dict[Any, bool]) -> None:
    """Raises `UserError` if a default, or a data file, has changed since a run was started. `has_files`: of which tasks
    there are files; missing ones are reported by the run."""
    if not (state.path / "recipe.yaml").exists():
        return
    if recipe.task not in has_files:
        has_files[recipe.task] = False
        with suppress(UserError):
            has_files[recipe.task] = bool(recipe.task.file_hashes())
    has_read_files = has_files[recipe.task] and bool(checkpoint.list_steps(state.path / "checkpoints"))
    if has_read_files or state.end is None:  # an end is of the very values that affect results
        header = RunFolder.open(state.path).metadata()
        check_same_defaults(header["recipe"], recipe, state.path)
        if has_read_files:
            check_unchanged_files(recipe.task, header, state.path)


def _resolve_init_from(recipe: Recipe, runs: Path) -> tuple[Recipe, Recipe]:
    """A recipe with `init_from` as the path of that run, so that workers find the same one; and as its id, which is
    hashed. Unchanged if there is no such run, which the worker then reports."""
    with suppress(UserError):
        if (source := initial_run(recipe, runs)) is not None:
            return replace(recipe, init_from=str(source.path.resolve())), replace(recipe, init_from=source.id)
    return recipe, recipe


def _check_files_exist(study: Study) -> None:
    """Raises `UserError` that lists missing files, if the study has a hint for that; otherwise they are reported run by
    run."""
    checks = [check for recipe in study.recipes for check in (recipe.task.check_files, recipe.tokenizer.fingerprint)]
    missing: dict[str, None] = {}
    for check in dict.fromkeys(checks) if study.missing_files_hint else ():
        try:
            check()
        except UserError as error:
            missing[str(error)] = None
    if missing:
        raise UserError("\n".join([f"study {study.title}: files are missing", *missing, study.missing_files_hint]))


def _write_report(study: Study, folder: StudyFolder, states: Sequence[RunState]) -> Path:
    """Writes the page and the figure."""
    page = folder.path / "report.html"
    done = [state for state in states if state.status == "done"]
    groups = group_runs(read_runs([state.path for state in done]), study.labels)
    failed = [(state.run.display_name, str(state.error)) for state in states if state.status != "done"]
    present = {state.run.label for state in done}
    missing = list(dict.fromkeys(state.run.label for state in states if state.run.label not in present))
    text = comparison_page(groups, study.question, failed_runs=failed, missing_variants=missing)
    write_output(page, text.encode(), place="runs")
    if (figure := compare_figure(groups)).drawn_panels:
        save_figure(figure, page.with_name("figure.png"))
    return page
