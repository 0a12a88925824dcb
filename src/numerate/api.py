"""The names of `import numerate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.recipes.naming import load_recipe, with_settings
from numerate.recipes.preset import debug
from numerate.recipes.study import Study as Study
from numerate.runs.run import Run as Run
from numerate.runs.run import load as load
from numerate.runs.search import search as search
from numerate.runs.study import run_study as run_study
from numerate.runs.train import train as train_in_folder
from numerate.training.recipe import Recipe as Recipe


def recipe(name: str, *overrides: str, **settings_by_name: object) -> Recipe:
    """A recipe by its name, or `my.py:name`, with settings changed as on the command line; `preset=debug` is its small
    version.

    >>> changed = recipe("addition_abacus", "model.hidden_size=64", "seed=7")
    >>> changed.model.hidden_size, changed.seed
    (64, 7)
    >>> recipe("addition_abacus", "preset=debug").training.steps
    6
    """
    if settings_by_name:
        raise UserError(f"recipe: settings are texts with their paths, such as recipe({name!r}, 'training.steps=10')")
    base, settings = load_recipe(name), [text for text in overrides if text != "preset=debug"]
    return with_settings(base if len(settings) == len(overrides) else debug(base, settings), settings)


def train(recipe: Recipe, *, runs_dir: str | Path | None = None, quiet: bool = False) -> Run:
    """Trains a recipe in the folder of its run, or resumes it. See `numerate.runs.train`.

    Ctrl-C and SIGTERM stop it after the current batch with a checkpoint, and are then passed on: `KeyboardInterrupt`,
    or `SystemExit` with the status of the signal, so that a script that trains several recipes also ends.
    """
    result = train_in_folder(recipe, runs_dir=runs_dir, quiet=quiet)
    if result.exit_status == 130:
        raise KeyboardInterrupt
    if result.exit_status:
        raise SystemExit(result.exit_status)
    return result.run


def compare(runs: Run | str | Path | Sequence[Run | str | Path], path: str | Path = "compare.html") -> Path:
    """Writes a page that compares runs and seeds: medians, intervals, rates of success, heat maps side by side."""
    from numerate.results.page import page
    from numerate.results.rows import find_runs
    from numerate.training.output_files import check_output_file, write_output

    several = [runs] if isinstance(runs, Run | str | Path) else runs
    folders: list[Any] = [run.path if isinstance(run, Run) else load(run).path for run in several]
    if not folders:
        raise UserError("compare: needs at least one run")
    check_output_file(path, "html")
    entries = find_runs(folders)
    html = page(entries, " and ".join(dict.fromkeys(one.variant for one in entries)))
    return write_output(path, html.encode(), "The records are unchanged.")
