"""Sending the results of an evaluation to the trackers of a run: heat maps and samples."""

from numerate.integrations import trackers
from numerate.reports.figure import Figure, heat_maps
from numerate.reports.groups import group_runs
from numerate.reports.language_curves import validation_metrics
from numerate.reports.matplotlib_writer import draw_figure
from numerate.reports.plots import validation_figure
from numerate.reports.records import read_run
from numerate.reports.settings import format_settings
from numerate.runs.run import Run


def track_results(run: Run) -> None:
    """Logs the heat maps and samples of a run to the trackers of its recipe, if any."""
    recipe = run.recipe
    if not recipe.trackers:
        return
    settings = trackers.TrackerSettings(
        recipe.tracking.project, recipe.tracking.entity, recipe.group, recipe.tracking.tags
    )
    active_trackers = trackers.make_trackers(recipe.trackers, settings)
    records = read_run(run.path)
    step = max([*(cell.step for cell in records.cells), *(one.step for one in records.language)], default=0)
    active_trackers.start(run.folder.metadata(), run.path, step)
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
