"""`run` and `search`: many runs with one question."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate.commands.results import results
from numerate.commands.runs import sweep
from numerate.commands.status import MAX_SHOWN_FAILURES
from numerate.errors import UserError
from numerate.recipes.naming import load_recipe, load_recipe_or_study
from numerate.recipes.preset import debug
from numerate.recipes.study import Study
from numerate.results.page import text
from numerate.results.rows import find_runs
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.local import Local
from numerate.runs.search import search as search_recipe
from numerate.runs.status import RunState
from numerate.runs.study import preview_study, run_study
from numerate.runs.study_folder import StudyFolder
from numerate.terminal import MAX_PROSE_WIDTH, output_width, print_wrapped
from numerate.training.run_folder import resolve_runs_dir

MAX_VARIANTS, MAX_RUNS = 12, 200
"""Above this number of variants or runs, a table is shown instead of heat maps side by side."""


def _refuse_torchrun(advice: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"this command starts its own processes; {advice}")


def load_study(name: str, settings: Sequence[str], preset: str | None = None) -> Study:
    """A study, or the sweep of a recipe as one."""
    found = load_recipe_or_study(name)
    if not isinstance(found, Study):
        recipes = tuple(sweep(load_recipe(name), settings, preset))
        question = f"A sweep of {name}." if len(recipes) > 1 else f"One run of {name}."
        return Study(recipes[0].title, question, recipes)
    if preset == "debug":
        labels = {f"{title}-debug": label for title, label in found.labels.items()}
        recipes = tuple(map(debug, found.recipes))
        found = replace(found, recipes=recipes, title=f"{found.title}-debug", labels=labels)
    return found.sweep(settings)


def run(
    name: str,
    *,
    settings: Sequence[str],
    engine: Engine | None,
    traceback: bool,
    preset: str | None = None,
    retry: bool = False,
    runs_dir: str | None = None,
    dry_run: bool = False,
) -> int:
    """Trains, evaluates and reports a recipe or study; returns the highest exit status of its runs."""
    _refuse_torchrun("under torchrun use `numerate train`, then `evaluate`")
    study = load_study(name, settings, preset)
    print_wrapped(f"{study.title}: {study.question}")
    if dry_run:
        preview = preview_study(study, runs_dir=runs_dir, engine=engine, retry=retry)
        print(f"{preview}" if preview.script is None else f"{preview}\n\n{preview.script}")
        return 0
    page, states = run_study(study, runs_dir=runs_dir, engine=engine, retry=retry)
    _show_failures(study, states, runs_dir, traceback)
    if page is not None:
        show_summary(study, runs_dir, [state.path for state in states if state.status == "done"])
        print(f"\nreport: {page}")
    return max((state.exit_status for state in states), default=0)


def search(
    address: str,
    *,
    settings: Sequence[str],
    engine: Engine | None,
    traceback: bool,
    parts: Sequence[str],
    **options: Any,
) -> int:
    """Searches the settings of a recipe; the other options are those of `numerate.search`."""
    _refuse_torchrun("run it without torchrun")
    command_words = [address, *([f"runs_dir={options['runs_dir']}"] if "runs_dir" in options else [])]
    command_words += [word for path in parts for word in ("--parts", path)]
    result = search_recipe(
        load_recipe(address), settings, engine=engine or Local(), command_words=command_words, **options
    )
    print_wrapped(str(result))
    if traceback:
        for end in (run.end for trial in result.trials for run in trial.runs):
            print((end and end.traceback) or "", end="", file=sys.stderr)
    none_complete = not result.num_left and not any(trial.state == "complete" for trial in result.trials)
    return result.exit_status or int(none_complete)


def _show_failures(study: Study, states: Sequence[RunState], runs_dir: str | None, traceback: bool) -> None:
    failed = [state for state in states if state.status == "failed"]
    lines = []
    for one in failed[:MAX_SHOWN_FAILURES]:
        lines.append(f"{one.run.display_name}: {one.error}")
        if one.end is not None and one.end.traceback is not None and traceback:
            lines.append(one.end.traceback)
    if len(failed) > MAX_SHOWN_FAILURES:
        lines.append(f"... and {len(failed) - MAX_SHOWN_FAILURES} more failed runs")
    if failed:
        where = f" runs_dir={runs_dir}" if runs_dir is not None else ""
        lines.append(f"retry=true runs failed ones again; `numerate status {study.title}{where}`")
    if remaining := sum(state.end is None for state in states):
        num_done = sum(state.status == "done" for state in states)
        lines.append(f"{num_done:,} of {len(states):,} runs are done, {remaining:,} remain; the same command resumes")
    for line in lines:
        print_wrapped(f"numerate: {line}", sys.stderr)


def show_summary(study: Study, runs_dir: str | None, folders: Sequence[Path]) -> None:
    """Prints the tables and heat maps of a few variants, and for many the table of `numerate results group=label`."""
    runs = {f"{path.parent.name}/{path.name}" for path in folders}
    plan = StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir)).read().plan()
    variants = {planned.label for planned in plan if planned.run in runs}
    if len(variants) <= MAX_VARIANTS and len(folders) <= MAX_RUNS:
        print(text(find_runs(folders, runs_dir, study.labels), output_width() or MAX_PROSE_WIDTH))
    else:
        results(study.title, group="label", runs_dir=runs_dir)
