"""Sending the results of an evaluation to the trackers of a run: heat maps and samples."""

from pathlib import Path

from numerate.integrations.trackers import recipe_trackers
from numerate.reports.figure import Figure, heat_maps
from numerate.reports.groups import group_runs
from numerate.reports.language_curves import validation_metrics
from numerate.reports.matplotlib_writer import draw_figure
from numerate.reports.plots import validation_figure
from numerate.reports.records import read_run
from numerate.reports.settings import format_settings
from numerate.training.recipe import Recipe


def track_results(path: Path, recipe: Recipe) -> None:
    """Logs the heat maps and samples of a run in a folder to the trackers of its recipe, if any."""
    if not recipe.trackers:
        return
    active_trackers = recipe_trackers(recipe)
    records = read_run(path)
    step = max([*(cell.step for cell in records.cells), *(one.step for one in records.language)], default=0)
    active_trackers.start(records.metadata, path, step)
    for group in group_runs([records]):
        if maps := heat_maps(group.points, f"{group.metric_label}, %"):
            settings_text = format_settings(group.settings or {})
            active_trackers.log_figure(
                f"exact match, {settings_text}" if settings_text else "exact match",
                draw_figure(Figure(maps)),
                step,
            )
    if validation_metrics(records):
        active_trackers.log_figure("validation loss", draw_figure(validation_figure(group_runs([records]))), step)
    if texts := [{name: line.get(name) for name in ("step", "prompt", "text")} for line in records.generated_texts]:
        active_trackers.log_table("texts", texts, step)
    names = ("question", "correct_answer", "prediction", "correct", "model_text")
    samples = [{name: line.get(name) for name in names} for line in records.samples]
    if samples:
        active_trackers.log_table("samples", samples, step)
    active_trackers.finish()
