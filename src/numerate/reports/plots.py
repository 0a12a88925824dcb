"""Figures by kind from run folders (`numerate plot`)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.labels import METRICS, Metric
from numerate.reports.counts import count_chart
from numerate.reports.figure import Chart, Figure, HeatMap
from numerate.reports.forest import forest_figure
from numerate.reports.grid import PlotGrid, join_names, make_grids
from numerate.reports.groups import Group, group_runs, have_unordered_cells, unique_trainings, with_metric
from numerate.reports.language import language_modeling_groups
from numerate.reports.language_curves import BANDS_NOTE, validation_charts
from numerate.reports.matplotlib_writer import check_figure_path, save_figure
from numerate.reports.overview import length_chart, overview_figure
from numerate.reports.part_chart import part_figure
from numerate.reports.records import read_runs
from numerate.reports.tasks import group_by_task
from numerate.reports.training import training_charts

MAX_MAPS = 6
"""Maximum number of heat maps in a comparison; with more groups it shows the curves alone."""


def grid_figure(groups: Sequence[Group]) -> Figure:
    """Heat maps side by side, one for each group, the border of the training region in red; of parts their chart."""
    if have_unordered_cells(groups):
        return curves_figure(groups)
    titled = [
        (", ".join(filter(None, (_with_seeds(group), grid.title))), grid) for group in groups for grid in group.grids
    ]
    return maps_figure([pair for pair in titled if pair[1].row_axis] or titled)


def maps_figure(grids: Sequence[tuple[str, PlotGrid]], columns: int = 3) -> Figure:
    """Grids with their titles side by side; strips of equal lengths below each other."""
    return Figure([_map(grid, title) for title, grid in grids], columns if any(g.row_axis for _, g in grids) else 1)


def _map(grid: PlotGrid, title: str) -> HeatMap:
    metric = METRICS[next((point.metric for point in grid.points.values()), "exact_match")]
    return HeatMap.from_grid(grid, title=title or grid.title or f"{metric}, %", has_tooltips=False)


def curves_figure(groups: Sequence[Group]) -> Figure:
    """Exact match by length with bands over seeds, or with intervals over questions for one seed; in a study of the
    converged seeds. Several tasks have a panel each. Parts, which have no length, have a point each with its interval.
    """
    if have_unordered_cells(groups):
        return part_figure({task.name: task.groups for task in group_by_task(groups)})
    return _charts([replace(length_chart(task.groups), title=task.name) for task in group_by_task(groups)])


def _charts(charts: Sequence[Chart]) -> Figure:
    """A panel for each task, two side by side; the title of a single line is its label."""
    charts = [chart for chart in charts if chart.drawn_lines]
    if len(charts) == 1 and len(charts[0].series) == 1:
        (line,) = charts[0].series
        charts = [replace(charts[0], title=line.label_with_suffix)]
    return Figure(charts, columns=2)


def counts_figure(groups: Sequence[Group]) -> Figure:
    """Accuracy per count of tasks with labels, beside the baseline; a panel for each task."""
    tasks = group_by_task([group for group in groups if group.labels])
    return _charts([replace(count_chart(task.groups), title=task.name) for task in tasks])


def first_token_figure(groups: Sequence[Group]) -> Figure:
    """Exact match and first-token accuracy side by side: for sorting, the whole order and the smallest item."""
    titled = []
    for group in groups if all(group.first_token_points for group in groups) else ():
        first = "first label" if "items" in group.first_token_points[0].coordinates else "first token"
        for name, grids in (("exact match", group.grids), (first, make_grids(group.first_token_points))):
            titled += [(f"{_with_seeds(group)}: {name}", grid) for grid in grids[:1]]
    return maps_figure(titled, columns=2)


def compare_figure(groups: Sequence[Group]) -> Figure:
    """A heat map for each group and all of them by length; by length alone where only equal lengths were evaluated, of
    more than `MAX_MAPS` groups, or of several tasks."""
    if language_modeling_groups(groups):
        return validation_figure(groups)
    figure = overview_figure(groups)
    num_maps = len(figure.maps)
    has_several_tasks = len(group_by_task(groups)) > 1 and any(group.diagonal for group in groups)
    if not 0 < num_maps <= MAX_MAPS or has_several_tasks:
        return curves_figure(groups)
    columns = 3 if num_maps in (3, 5, 6) else 2
    return replace(figure, columns=columns, is_last_wide=num_maps > 1, has_letters=True)


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
    "pair": first_token_figure,
    "compare": compare_figure,
    "intervals": forest_figure,
    "training": training_figure,
    "validation": validation_figure,
}

_REQUIREMENTS = {
    "counts": "runs whose answers are labels; use curves for others",
    "pair": "records of first-token accuracy of every run",
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
) -> Path:
    """Draws one of `FIGURES` from the records of runs and returns its path: .png, .svg or .pdf as its name ends.

    Runs that differ in the seed alone are taken together. `checkpoint` is final or best (default: final where it was
    evaluated); `labels` names the groups in their order, `labels_by_recipe` those of a recipe by its title
    (`{"addition_abacus": "Abacus"}`), `metric` what all are measured by. Raises `UserError` for another kind or ending,
    for runs without the records of the kind or the metric, and for a wrong number of labels.
    """
    if figure not in FIGURES or not folders:
        example = f"for example numerate plot {figure if figure in FIGURES else 'grid'} latest out=figure.png"
        known = f"there is no {figure!r}; there are: {', '.join(FIGURES)}.{did_you_mean(figure, FIGURES)}"
        raise UserError(f"plot: {known if figure not in FIGURES else f'no runs are named; {example}'}")
    check_figure_path(path)
    groups = [replace(group, checkpoint=checkpoint) for group in group_runs(read_runs(folders), labels_by_recipe)]
    groups = with_metric(groups, metric)
    if labels and len(labels) != len(groups):
        known = "; ".join(group.label for group in groups)
        raise UserError(f"labels: {len(labels)} for {len(groups)} groups; in this order they name: {known}")
    groups = [
        replace(group, label=label) for group, label in zip(groups, labels or [g.label for g in groups], strict=True)
    ]
    of_text = language_modeling_groups(groups)
    if of_text and figure in ("curves", "compare", "training"):
        figure = "validation"
    if figure == "validation" and (others := [group.label for group in groups if group not in of_text]):
        names = join_names(others, 4, separator="; ")
        warnings.warn(f"plot: {names}: not language modeling, so left out of the validation loss", stacklevel=2)
    evaluated = groups if figure in ("training", "validation") else [group for group in groups if group.points]
    drawn = FIGURES[figure](evaluated) if evaluated else Figure(())
    if not drawn.panels:
        needs = _REQUIREMENTS.get(figure, "runs evaluated on a grid")
        if not evaluated and not of_text:
            needs = f"runs that were evaluated{f' at the {checkpoint} checkpoint' if checkpoint else ''}"
        hint = "; use validation for language modeling runs" if of_text and not evaluated else ""
        raise UserError(f"plot: {figure} needs {needs}{hint}")
    return save_figure(drawn, path)


def _with_seeds(group: Group) -> str:
    seeds = len(group.evaluated_cells)
    return f"{group.label} ({seeds} seeds)" if seeds > 1 else group.label
