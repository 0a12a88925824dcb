"""Sending the results of an evaluation to the trackers of a run: heat maps and samples."""

from numerate.experiments.run import Run
from numerate.integrations import trackers
from numerate.reports.figures import heat_maps
from numerate.reports.groups import grouped, settings_words
from numerate.reports.language_curves import curves_figure, validation
from numerate.reports.records import read


def track_results(run: Run) -> None:
    """Logs the heat maps and samples of a run to the trackers of its recipe, if any."""
    recipe = run.recipe
    if not recipe.trackers:
        return
    settings = trackers.TrackerSettings(
        recipe.tracking.project, recipe.tracking.entity, recipe.group, recipe.tracking.tags
    )
    tracked = trackers.make(recipe.trackers, settings)
    records = read(run.path)
    step = max([*(cell.step for cell in records.cells), *(one.step for one in records.language)], default=0)
    tracked.start(run.folder.head(), run.path, step)
    for group in grouped([records]):
        if group.grids:
            how = settings_words(group.settings or {})
            tracked.figure(f"exact match, {how}" if how else "exact match", heat_maps(group.grids), step)
    if validation(records):
        tracked.figure("validation loss", curves_figure(grouped([records])), step)
    if drawn := [{name: line.get(name) for name in ("step", "prompt", "text")} for line in records.drawn]:
        tracked.table("texts", drawn, step)
    samples = [
        {
            "question": one.question,
            "gold": one.gold,
            "said": one.prediction,
            "right": one.right,
            "as written": one.as_written,
        }
        for one in records.samples
    ]
    if samples:
        tracked.table("samples", samples, step)
    tracked.finish()
