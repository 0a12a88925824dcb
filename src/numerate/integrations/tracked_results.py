"""Sending the results of an evaluation to the trackers of a run: heat maps and samples."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

from numerate.errors import UserError
from numerate.integrations.trackers import recipe_trackers
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder


def track_results(path: Path, recipe: Recipe) -> None:
    """Logs the heat maps and samples of a run in a folder to the trackers of its recipe, if any."""
    if not recipe.trackers:
        return
    folder, active_trackers = RunFolder(path), recipe_trackers(recipe)
    rows = import_module("numerate.results.rows")  # which stands above integrations
    figures = import_module("numerate.results.figures")
    cells, logged = rows.cells(path), rows.metrics(path)
    step = int(cells["step"].max()) if len(cells) else 0
    active_trackers.start(folder.metadata(), path, step)
    for _, own in cells.groupby("variant", sort=False):
        changed = own["settings"].iloc[0]
        name = f"exact match, {changed}" if changed == changed else "exact match"
        with suppress(UserError):  # of cells that are no map
            active_trackers.log_figure(name, figures.heat_map(own).get_figure(), step)
    if "perplexity" in logged:
        ax = figures.training_curves(logged, split="validation")
        active_trackers.log_figure("validation loss", ax.get_figure(), step)
    lines = folder.records("samples.jsonl")
    for title, names in {
        "texts": ("step", "prompt", "text"),
        "samples": ("question", "correct_answer", "prediction", "correct", "model_text"),
    }.items():
        kept = [{name: line.get(name) for name in names} for line in lines if names[1] in line]
        if kept:
            active_trackers.log_table(title, kept, step)
    active_trackers.finish()
