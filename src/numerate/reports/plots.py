"""Figures by kind from run folders (`numerate plot`)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.labels import Metric
from numerate.reports.counts import count_chart
from numerate.reports.figure import Chart, Figure
from numerate.reports.forest import forest_figure
from numerate.reports.grid import join_names
from numerate.reports.groups import Group, group_runs, have_unordered_cells, unique_trainings, with_metric
from numerate.reports.language import language_modeling_groups
from numerate.reports.language_curves import BANDS_NOTE, validation_charts
from numerate.reports.matplotlib_writer import check_figure_path, save_figure
from numerate.reports.overview import group_maps, length_chart, overview_figure
from numerate.reports.records import read_runs
from numerate.reports.tasks import group_by_task
from numerate.reports.training import training_charts

MAX_MAPS = 6
"""Maximum number of heat maps in a comparison; with more groups it shows the curves alone."""


def grid_figure(groups: Sequence[Group]) -> Figure:
    """Heat maps side by side, one for each group, the border of the training region in red (strips of equal lengths
    below each other); of parts the means of their regions."""
    if have_unordered_cells(groups):
        return curves_figure(groups)
    maps = group_maps(groups)
    shown = [one for one in maps if one.row_axis] or maps
    return Figure(shown, columns=3 if shown and shown[0].row_axis else 1)


def curves_figure(groups: Sequence[Group]) -> Figure:
    """Exact match by length with bands over seeds, or with intervals over questions for one seed; in a study of the
    converged seeds. Several tasks have a panel each. Of parts, which have no length, the means of their regions.
    """
    if have_unordered_cells(groups):
        return forest_figure(groups)
    return _charts([replace(length_chart(task.groups), title=task.name) for task in group_by_task(groups)])


def _charts(charts: Sequence[Chart]) -> Figure:
    """A panel for each task, two side by side; the title of a single line is its label."""
    charts = [chart for chart in charts if chart.drawn_lines]
    if len(charts) == 1 and len(charts[0].series) == 1:
        charts = [replace(charts[0], title=charts[0].series[0].label_with_suffix)]
    return Figure(charts, columns=2)


def counts_figure(groups: Sequence[Group]) -> Figure:
    """Accuracy per count of tasks with labels, beside the baseline; a panel for each task."""
    tasks = group_by_task([group for group in groups if group.labels])
    return _charts([replace(count_chart(task.groups), title=task.name) for task in tasks])


def compare_figure(groups: Sequence[Group]) -> Figure:
    """A heat map for each group and all of them by length; by length alone where only equal lengths were evaluated, of
    more than `MAX_MAPS` groups, or of several tasks."""
    if language_modeling_groups(groups):
        return validation_figure(groups)
    figure = overview_figure(groups)
    has_several_tasks = len(group_by_task(groups)) > 1 and any(group.diagonal for group in groups)
    if not 0 < len(figure.maps) <= MAX_MAPS or has_several_tasks:
        return curves_figure(groups)
    return replace(figure, columns=2 if len(figure.drawn_panels) in (2, 4) else 3)


def training_figure(groups: Sequence[Group]) -> Figure:
    """Loss, and exact match on the validation splits, by step; of several tasks a row for each."""
    tasks = group_by_task(unique_trainings(groups))
    titled = [(task.name if len(tasks) > 1 else "", chart) for task in tasks for chart in training_charts(task.groups)]
    return Figure([replace(chart, title=": ".join(filter(None, (name, chart.title)))) for name, chart in titled])


def validation_figure(groups: Sequence[Group]) -> Figure:
    """Validation loss of language modeling runs by step, by operations and by time."""
    return Figure(validation_charts(language_modeling_groups(groups)), caption=BANDS_NOTE)


FIGURES: dict[str, Callable[[Sequence[Group]], Figure]] = {
    "grid": grid_figure,
    "curves": curves_figure,
    "counts": counts_figure,
    "compare": compare_figure,
    "intervals": forest_figure,
    "training": training_figure,
    "validation": validation_figure,
}

_REQUIREMENTS = {
    "counts": "runs whose answers are labels; use curves for others",
    "intervals": "groups with several seeds; train more with seeds=5",
    "training": "runs with metrics; train them first",
    "validation": "language modeling runs with a validation loss; use curves for others",
}


def write_plot(
    figure: str,
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    checkpoint: str | None = None,
    labels: Sequence[str] = (),
    labels_by_recipe: Mapping[str, str] | None = None,
    metric: Metric | None = None,
    size: str = "page",
) -> Path:
    """Draws one of `FIGURES` from the records of runs and returns its path: .png, .svg or .pdf as its name ends.

    Runs that differ in the seed alone are taken together. `checkpoint` is final or best (default: final where it was
    evaluated); `labels` names the groups in their order, `labels_by_recipe` those of a recipe by its title
    (`{"addition_abacus": "Abacus"}`), `metric` what all are measured by; `size` is column, page or slide. Raises
    `UserError` for another kind, ending or size, for runs without the records of the kind or the metric, and for a
    wrong number of labels.
    """
    if figure not in FIGURES:
        known = f"there is no {figure!r}; there are: {', '.join(FIGURES)}.{did_you_mean(figure, FIGURES)}"
        raise UserError(f"plot: {known}")
    if not folders:
        raise UserError(f"plot: no runs are named; for example numerate plot {figure} latest out=figure.png")
    check_figure_path(path)
    groups = [replace(group, checkpoint=checkpoint) for group in group_runs(read_runs(folders), labels_by_recipe)]
    groups = with_metric(groups, metric)
    if labels and len(labels) != len(groups):
        known = "; ".join(group.label for group in groups)
        raise UserError(f"labels: {len(labels)} for {len(groups)} groups; in this order they name: {known}")
    if labels:
        groups = [replace(group, label=label) for group, label in zip(groups, labels, strict=True)]
    of_text = language_modeling_groups(groups)
    if of_text and figure in ("curves", "compare", "training"):
        figure = "validation"
    if figure == "validation" and (others := [group.label for group in groups if group not in of_text]):
        names = join_names(others, 4, separator="; ")
        warnings.warn(f"plot: {names}: not language modeling, so left out of the validation loss", stacklevel=2)
    evaluated = groups if figure in ("training", "validation") else [group for group in groups if group.points]
    drawn = FIGURES[figure](evaluated) if evaluated else Figure(())
    if not drawn.drawn_panels:
        needs = _REQUIREMENTS.get(figure, "runs evaluated on a grid")
        if not evaluated and not of_text:
            needs = f"runs that were evaluated{f' at the {checkpoint} checkpoint' if checkpoint else ''}"
            if any(group.strata for group in groups):
                needs = "sizes in the grid, and only strata were evaluated"
        hint = "; use validation for language modeling runs" if of_text and not evaluated else ""
        raise UserError(f"plot: {figure} needs {needs}{hint}")
    return save_figure(drawn, path, size)
