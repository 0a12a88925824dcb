"""Running a study: its recipes are trained, evaluated and plotted together."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from numerate.config import check_same_defaults, identity, refuse_while_loading, to_tree
from numerate.config.saving import TreeCache
from numerate.errors import UserError
from numerate.recipes.study import Study, check_not_conflicting, content_key
from numerate.runs.end import END_FILE, read_end
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.initial_weights import initial_run
from numerate.runs.making import RunOutcome, StudyRunner
from numerate.runs.presenting import write_study_page
from numerate.runs.status import RunState, read_state
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.tasks.task import Task
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
    engine = _resolve_engine(engine, workers)
    engine.check_available()
    _check_files_exist(study)
    runner = _plan(study, runs_dir, engine, retry, write=True)
    states = runner.run()
    is_stopped = runner.stop.requested and any(state.end is None for state in states)
    if is_stopped or not any(state.status == "done" for state in states):
        return None, states
    return write_study_page(runner.folder.path, study.question, states), states


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
    engine = _resolve_engine(engine, workers)
    runner = _plan(study, runs_dir, engine, retry, write=False)
    remaining = runner.remaining()
    counts = Counter[str](state.status for state in runner.states.values() if state.end is not None)
    counts += Counter("unfinished" if (one.path / "recipe.yaml").exists() else "new" for one in runner.unended())
    has_script = type(engine).script is not Engine.script and remaining
    return StudyPreview(counts, engine.script(runner.function, remaining, runner.folder.path) if has_script else None)


def _resolve_engine(engine: Engine | None, workers: int | None) -> Engine:
    if engine is None and workers == 1:
        return InProcess()
    return (engine or Local()) if workers is None else replace(engine or Local(), workers=workers)


def _plan(study: Study, runs_dir: str | Path | None, engine: Engine, retry: bool, *, write: bool) -> StudyRunner:
    """The runs of the study. Raises `UserError` for runs that were made with another default, or on data that has
    changed since."""
    if not study.recipes:
        raise UserError(f"study {study.title}: has no recipes")
    folder = StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir))
    identity_cache, key_cache, tree_cache = TreeCache(), TreeCache(), TreeCache()
    recipes, requested, has_files = dict[str, Recipe](), list[StudyRun](), cache(_has_files)
    for requested_recipe in study.recipes:
        recipe, hashed = _resolve_init_from(requested_recipe, folder.runs_dir)
        name = f"{folder_name(recipe.title)}/{identity(hashed, identity_cache)}"
        check_not_conflicting(recipes.setdefault(name, recipe), recipe)
        if recipes[name] is recipe:
            run = StudyRun.of(name, content_key(hashed, key_cache), to_tree(recipe, cache=tree_cache))
            state = read_state(folder.runs_dir, run)
            if (state.path / "recipe.yaml").exists() and (state.end is None or has_files(recipe.task)):
                header = RunFolder.open(state.path).metadata()
                check_same_defaults(header["recipe"], hashed, state.path)
                if has_files(recipe.task) and checkpoint.list_steps(state.path / "checkpoints"):
                    check_unchanged_files(recipe.task, header, state.path)
            requested.append(run)
    plan = folder.update(requested, question=study.question, labels=study.labels, write=write)
    return StudyRunner(folder, plan, engine, retry)


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
        write_study_page(runner.folder.path, study.question)
    return page
