"""Figures by kind from run folders (`numerate plot`)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.labels import Metric
from numerate.reports import figures
from numerate.reports.charts import Chart
from numerate.reports.comparable import not_comparable_notes
from numerate.reports.counts import count_chart
from numerate.reports.forest import forest_figure
from numerate.reports.grid import PlotGrid, Point, make_grids
from numerate.reports.groups import Group, group_runs, have_unordered_cells, unique_trainings, with_metric
from numerate.reports.language import language_modeling_groups
from numerate.reports.language_curves import curves_figure as language_curves
from numerate.reports.language_curves import validation_metrics
from numerate.reports.limits import groups_to_draw, left_out_note
from numerate.reports.overview import length_chart
from numerate.reports.part_chart import part_figure
from numerate.reports.records import read_runs
from numerate.reports.success import length_curves
from numerate.reports.tasks import group_by_task
from numerate.reports.training import training_charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_MAPS = 6
"""Maximum number of heat maps in a comparison; with more groups it shows the curves alone."""


def grid_figure(groups: Sequence[Group]) -> "Figure":
    """Heat maps side by side, one for each group, the border of the training region in red; of parts their chart."""
    if have_unordered_cells(groups):
        return curves_figure(groups)
    return figures.heat_maps(_maps(groups))


def curves_figure(groups: Sequence[Group]) -> "Figure":
    """Exact match by length with bands over seeds, or with intervals over questions for one seed; in a study of the
    converged seeds. Several tasks have a panel each. Parts, which have no length, have a point each with its interval.
    """
    if have_unordered_cells(groups):
        return part_figure({task.name: task.groups for task in group_by_task(groups)})
    return _panels([replace(_length_chart(task.groups), title=task.name) for task in group_by_task(groups)])


def _panels(charts: Sequence[Chart]) -> "Figure":
    """A panel for each task, two side by side; the title of a single line is its label."""
    if len(charts) == 1 and len(charts[0].series) == 1:
        (line,) = charts[0].series
        charts = [replace(charts[0], title=line.label_with_suffix)]
    return figures.charts_figure(charts, columns=2)


def counts_figure(groups: Sequence[Group]) -> "Figure":
    """Accuracy per count of tasks with labels, beside the baseline; a panel for each task. Raises `UserError` for
    groups without labels."""
    charts = []
    for task in group_by_task([group for group in groups if group.labels]):
        chart = count_chart(task.groups)
        barred = [f"{sentence}." for sentence in not_comparable_notes(task.groups)]
        charts.append(replace(chart, title=task.name, notes=[*barred, *chart.notes]))
    if not any(chart.lines for chart in charts):
        raise UserError("plot: counts needs runs whose answers are labels; use curves for these")
    return _panels(charts)


def first_token_figure(groups: Sequence[Group]) -> "Figure":
    """Exact match and first-token accuracy side by side: for sorting, the whole order and the smallest item."""
    found = []
    for group in groups:
        if not group.first_token_points:
            raise UserError(f"plot: the records of {group.label} have no first-token accuracy")
        exact, first = (
            "exact match",
            "first label" if "items" in group.first_token_points[0].coordinates else "first token",
        )
        found += [_with_title(grid, f"{_with_seeds(group)}: {exact}") for grid in group.grids[:1]]
        found += [
            _with_title(grid, f"{_with_seeds(group)}: {first}") for grid in make_grids(group.first_token_points)[:1]
        ]
    return figures.heat_maps(found, columns=2)


def compare_figure(groups: Sequence[Group]) -> "Figure":
    """A heat map for each group and all of them by length; by length alone where only equal lengths were evaluated, of
    more than `MAX_MAPS` groups, or of several tasks."""
    if language_modeling_groups(groups):
        return validation_figure(groups)
    maps = {group.label: grid for group in groups for grid in group.grids[:1] if grid.row_axis}
    several = len(group_by_task(groups)) > 1 and any(group.diagonal for group in groups)
    if not maps or len(maps) > MAX_MAPS or several:
        return curves_figure(groups)
    return figures.comparison_figure(maps, _length_chart(groups))


def intervals_figure(groups: Sequence[Group]) -> "Figure":
    """A row for each group, by region the interquartile mean over its seeds with its interval and every seed."""
    return forest_figure(groups)


def training_figure(groups: Sequence[Group]) -> "Figure":
    """Loss, and exact match on the validation splits, by step; of several tasks a row for each."""
    tasks = group_by_task(unique_trainings(groups))
    charts = [
        replace(chart, title=f"{task.name}: {chart.title}" if len(tasks) > 1 else chart.title)
        for task in tasks
        for chart in training_charts(task.groups)
    ]
    if not charts:
        raise UserError("plot: these runs have no metrics yet; train them first")
    return figures.charts_figure(charts)


def validation_figure(groups: Sequence[Group]) -> "Figure":
    """Validation loss of language modeling runs by step, by operations and by time. Raises `UserError` for other
    runs."""
    texts = language_modeling_groups(groups)
    if not any(validation_metrics(run) for group in texts for run in group.runs):
        raise UserError("plot: validation needs language modeling runs with a validation loss; use curves for others")
    return language_curves(texts)


FIGURES: dict[str, Callable[[Sequence[Group]], "Figure"]] = {
    "grid": grid_figure,
    "curves": curves_figure,
    "counts": counts_figure,
    "pair": first_token_figure,
    "compare": compare_figure,
    "intervals": intervals_figure,
    "training": training_figure,
    "validation": validation_figure,
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
    for runs without records, for a metric that they lack, and for a wrong number of labels.
    """
    if figure not in FIGURES:
        raise UserError(
            f"plot: there is no {figure!r}; there are: {', '.join(FIGURES)}.{did_you_mean(figure, FIGURES)}"
        )
    if not folders:
        raise UserError(f"plot: no runs are named; for example numerate plot {figure} latest out={figure}.png")
    figures.check_figure_suffix(path)
    groups = [replace(group, checkpoint=checkpoint) for group in group_runs(read_runs(folders), labels_by_recipe)]
    groups = with_metric(groups, metric)
    if labels:
        if len(labels) != len(groups):
            known = "; ".join(group.label for group in groups)
            raise UserError(f"labels: {len(labels)} for {len(groups)} groups; in this order they name: {known}")
        groups = [replace(group, label=label) for group, label in zip(groups, labels, strict=True)]
    if figure in ("curves", "compare", "grid", "intervals", "training") and language_modeling_groups(
        groups
    ):  # all there is of text
        figure = "validation"
    if figure == "validation" and (
        others := [group for group in groups if group not in language_modeling_groups(groups)]
    ):
        names = ", ".join(group.label for group in others[:3]) + ", ..." * (len(others) > 3)
        warnings.warn(
            f"plot: {names}: not language modeling, so left out of the figure of validation loss", stacklevel=2
        )
    is_from_training_log = figure in ("training", "validation")
    if not is_from_training_log and not any(group.points for group in groups):
        if language_modeling_groups(groups):
            raise UserError(f"plot: {figure} needs questions with answers; use validation for language modeling runs")
        raise UserError(
            "plot: nothing was evaluated" + (f" at the {checkpoint} checkpoint" if checkpoint else "") + " yet"
        )
    return figures.save_figure(
        FIGURES[figure]([group for group in groups if is_from_training_log or group.points]), path
    )


def _maps(groups: Sequence[Group]) -> list[PlotGrid]:
    """The maps of all groups under their labels; strips of equal lengths only where there is nothing else."""
    found = [
        _with_title(grid, ", ".join(filter(None, (_with_seeds(g), grid.title)))) for g in groups for grid in g.grids
    ]
    return [grid for grid in found if grid.row_axis] or found


def _length_chart(groups: Sequence[Group]) -> Chart:
    """The chart by length, with notes for a figure: what its bands are, and which groups are not drawn."""
    shown = groups_to_draw(groups)
    chart = length_chart(shown)
    points = [point for curve in length_curves(shown)[0] for point in curve.group.diagonal.values()]
    notes = [_uncertainty_note(points, has_seed_lines=any(line.seed_lines for line in chart.lines))] * bool(points)
    return replace(
        chart,
        notes=[*notes, *not_comparable_notes(groups), *chart.notes, *filter(None, [left_out_note(groups, shown)])],
    )


def _uncertainty_note(points: Sequence[Point], *, has_seed_lines: bool) -> str:
    """A note on the bands of curves."""
    seeds = sorted({len(point.seed_scores) for point in points})
    counts = sorted({point.count for point in points})
    what = "questions" if all(point.metric == "exact_match" for point in points) else "rows"
    questions = f"{counts[0]} {what}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} {what}"
    if seeds == [1]:
        return f"one seed; bands: 95 % Wilson intervals, {questions} per length"
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    single = " thin lines: single seeds;" * has_seed_lines
    return f"medians of {number} seeds; bands: lowest to highest;{single} {questions} each"


def _with_title(grid: PlotGrid, title: str) -> PlotGrid:
    return replace(grid, title=title)


def _with_seeds(group: Group) -> str:
    seeds = len(group.evaluated_cells)
    return f"{group.label} ({seeds} seeds)" if seeds > 1 else group.label
