"""Running a study: its recipes are trained, evaluated and plotted together."""

import warnings
from collections.abc import Callable, Mapping, Sequence
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
from numerate.runs.end import END_FILE, read_end
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.initial_weights import initial_run
from numerate.runs.making import RunOutcome, StudyRunner
from numerate.runs.study_folder import STUDY_FILE, RequestedRun, StudyFolder, StudyRun, existing_runs
from numerate.training import checkpoint
from numerate.training.preflight import check_unchanged_files
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name, resolve_runs_dir


@dataclass(frozen=True)
class StudyPreview:
    """A preview of a command: the runs by state, and the `script` that the engine would submit, if it submits one."""

    folder: StudyFolder
    num_done: int
    num_resumable: int
    num_failed: int
    num_new: int
    script: str | None = None

    def __str__(self) -> str:
        counts = [
            ("done", self.num_done, ""),
            ("unfinished", self.num_resumable, "; they will resume"),
            ("failed", self.num_failed, "; retry=true runs them again"),
            ("new", self.num_new, ""),
        ]
        lines = [f"  {name:<10} {count:>8,}{note if count else ''}" for name, count, note in counts]
        return "\n".join(lines)


def run_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    retry: bool = False,
    on_message: Callable[[str], None] | None = None,
) -> tuple[Path | None, list[RunOutcome]]:
    """Trains and evaluates every recipe of a study, in parallel on all cores, and writes its report and figure.

    Completed runs are not repeated, stopped ones resume, and failed ones are listed with their error, or run again with
    `retry`. Returns the path of the report (None if no run has results, or the study was stopped) and how each run
    ended. `engine` runs it with `workers` at once, by default `Local()`; with `workers=1` and no engine it is this
    process (`InProcess`). Otherwise a script that calls this needs `if __name__ == "__main__":` around it, as with all
    uses of `multiprocessing`: each worker imports the script again. `on_message` is called with each message shown.
    Raises `UserError` for a study without recipes, for runs that were made with other defaults or on other data, and,
    if the study has a `missing_files_hint`, for missing files, before anything starts.

        page, outcomes = run_study(numerate.recipes.quickstart(), workers=2)
    """
    refuse_while_loading("run_study")
    runs, resolved_engine = resolve_runs_dir(runs_dir), _resolve_engine(engine, workers)
    resolved_engine.check_available()
    _check_files_exist(study)
    folder = StudyFolder.from_title(study.title, runs)
    _warn_if_title_is_shared(study, folder)
    plan, trees = _plan_runs(study, folder, write=True)
    runner = StudyRunner(folder, plan, trees, engine=resolved_engine, retry=retry, on_message=on_message)
    outcomes = runner.run()
    if runner.stopped or not runner.done:
        return None, outcomes
    _warn_if_trained_further(runner)
    failed = [(outcome.label, outcome.error) for outcome in outcomes if outcome.error is not None]
    return _write_report(study, runner, [runs / one.run for one in runner.done], failed), outcomes


def preview_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    retry: bool = False,
) -> StudyPreview:
    """A preview of `run_study`: the runs by state and the script that its engine would submit, if it submits one.
    Writes and starts nothing."""
    resolved_engine = _resolve_engine(engine, workers)
    folder = StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir))
    plan, trees = _plan_runs(study, folder, write=False)
    runner = StudyRunner(folder, plan, trees, engine=resolved_engine, retry=retry)
    existing = existing_runs(folder.runs_dir, runner.remaining)
    num_existing = sum((folder.runs_dir / one.run / "recipe.yaml").exists() for one in existing)
    text = None
    if type(resolved_engine).script is not Engine.script and runner.remaining:
        text = resolved_engine.script(runner.function, list(map(runner.item, runner.remaining)), folder.path)
    num_done, num_new = len(runner.done), len(runner.remaining) - num_existing
    return StudyPreview(folder, num_done, num_existing, len(runner.ends) - num_done, num_new, text)


def _resolve_engine(engine_or_none: Engine | None, workers: int | None) -> Engine:
    if engine_or_none is None and workers == 1:
        return InProcess()
    engine = engine_or_none or Local()
    return engine if workers is None else replace(engine, workers=workers)


def _plan_runs(
    study: Study, folder: StudyFolder, *, write: bool
) -> tuple[list[StudyRun], dict[str, Mapping[str, Any]]]:
    """The runs of the study, with the recipe of each as plain data."""
    if not study.recipes:
        raise UserError(f"study {study.title}: has no recipes")
    identity_cache, key_cache, tree_cache = TreeCache(), TreeCache(), TreeCache()
    recipes: dict[str, Recipe] = {}
    requested = []
    for requested_recipe in study.recipes:
        recipe, resolved = _resolve_init_from(requested_recipe, folder.runs_dir)
        run = f"{folder_name(recipe.title)}/{identity(resolved, identity_cache)}"
        if run not in recipes:
            requested.append(RequestedRun(run, content_key(resolved, key_cache), to_tree(recipe, cache=tree_cache)))
        check_not_conflicting(recipes.setdefault(run, recipe), recipe)
    _check_made_alike(folder.runs_dir, requested, recipes)
    plan = folder.update(requested, question=study.question, labels=study.labels, write=write)
    return plan, {one.run: one.tree for one in requested}


def _check_made_alike(runs_dir: Path, requested: Sequence[RequestedRun], recipes: Mapping[str, Recipe]) -> None:
    """Raises `UserError` if a default, or a data file, has changed since a run of the study was started. Missing files
    are reported run by run."""
    has_files: dict[Any, bool] = {}
    for one in existing_runs(runs_dir, requested):
        path, task = runs_dir / one.run, recipes[one.run].task
        if task not in has_files:
            try:
                has_files[task] = bool(task.file_hashes())
            except UserError:
                has_files[task] = False
        has_read_files = has_files[task] and bool(checkpoint.list_steps(path / "checkpoints"))
        end = read_end(path)
        has_same_key = end is not None and end.key == one.key  # then all values that affect results are the same
        if (has_read_files or not has_same_key) and (path / "recipe.yaml").exists():
            header = RunFolder.open(path).metadata()
            check_same_defaults(header["recipe"], _resolve_init_from(recipes[one.run], runs_dir)[1], path)
            if has_read_files:
                check_unchanged_files(task, header, path)


def _resolve_init_from(recipe: Recipe, runs: Path) -> tuple[Recipe, Recipe]:
    """A recipe with `init_from` as the path of that run, so that workers find the same one; and as its id, which is
    hashed. Unchanged if there is no such run, which the worker then reports."""
    if recipe.init_from is None:
        return recipe, recipe
    try:
        source = initial_run(recipe, runs)
    except UserError:
        return recipe, recipe
    assert source is not None
    return replace(recipe, init_from=str(source.path.resolve())), replace(recipe, init_from=source.id)


def _check_files_exist(study: Study) -> None:
    """Raises `UserError` that lists missing files, if the study has a hint for that; otherwise they are reported run by
    run."""
    if not study.missing_files_hint:
        return
    missing: dict[str, None] = {}
    tasks = dict.fromkeys(recipe.task for recipe in study.recipes)
    tokenizers = dict.fromkeys(recipe.tokenizer for recipe in study.recipes)
    for checks in ([task.check_files for task in tasks], [tokenizer.fingerprint for tokenizer in tokenizers]):
        try:
            for check in checks:
                check()
        except UserError as error:  # one of each is enough: looking up a name on the hub takes time
            missing[str(error)] = None
    if missing:
        raise UserError("\n".join([f"study {study.title}: files are missing", *missing, study.missing_files_hint]))


def _warn_if_title_is_shared(study: Study, folder: StudyFolder) -> None:
    """Warns about two studies with the same title: their runs are in one table, and the later report replaces the
    other."""
    other_question, generated = folder.read().question, ("A sweep of ", "One run of ")
    if other_question not in ("", study.question) and not any(
        question.startswith(generated) for question in (other_question, study.question)
    ):
        warnings.warn(
            f"{folder.path}: contains a study with another question ({other_question!r}); the two share a table, and "
            "this report replaces that one; use another title to separate them",
            stacklevel=3,
        )


def _warn_if_trained_further(runner: StudyRunner) -> None:
    """Warns about runs that another command has trained further: the report shows their last step."""
    further = []
    for one in runner.done:
        steps, results = runner.trees[one.run].get("training", {}).get("steps"), runner.ends[one.run].results
        if steps is not None and results is not None and results.get("step", 0) > steps:
            further.append(one.display_name)
    if further:
        more = f" and {len(further) - 3} more" if len(further) > 3 else ""
        warnings.warn(
            f"{', '.join(further[:3])}{more}: trained further, by another command; the report shows them at their last "
            "step and the others at the budget of this study; use another title= of the recipe to separate its runs",
            stacklevel=3,
        )


def _write_report(
    study: Study, runner: StudyRunner, folders: Sequence[Path], failed: Sequence[tuple[str, str]]
) -> Path:
    """Writes the page and the figure, unless they are newer than all that they show."""
    page = runner.folder.path / "report.html"
    sources = [runner.folder.path / STUDY_FILE, *(runner.folder.runs_dir / run / END_FILE for run in runner.ends)]
    sources += [folder / "cells.jsonl" for folder in folders]
    if not page.is_file() or page.stat().st_mtime_ns < max(one.stat().st_mtime_ns for one in sources if one.exists()):
        present = {one.label for one in runner.done}
        missing = list(dict.fromkeys(one.label for one in runner.plan if one.label not in present))
        groups = group_runs(read_runs(folders), study.labels)
        text = comparison_page(groups, study.question, failed_runs=failed, missing_variants=missing)
        write_output(page, text.encode(), place="runs")
        if (figure := compare_figure(groups)).drawn_panels:
            save_figure(figure, page.with_name("figure.png"))
    return page
