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
from numerate.reports.claims import no_claims
from numerate.reports.counts import count_chart
from numerate.reports.forest import forest_figure
from numerate.reports.grid import PlotGrid, Point, grids
from numerate.reports.groups import Group, by_metric, by_parts, grouped
from numerate.reports.language_curves import curves_figure as language_curves
from numerate.reports.language_curves import validation
from numerate.reports.language_page import running
from numerate.reports.limits import drawn, left_out
from numerate.reports.overview import length_chart
from numerate.reports.part_chart import part_figure
from numerate.reports.records import read_each
from numerate.reports.sections import trained_once, training_charts
from numerate.reports.success import by_length
from numerate.reports.tasks import by_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_MAPS = 6
"""Maximum number of heat maps in a comparison; with more groups it shows the curves alone."""


def grid_figure(groups: Sequence[Group]) -> "Figure":
    """Heat maps side by side, one for each group, the border of the training region in red; of parts their chart."""
    if by_parts(groups):
        return curves_figure(groups)
    return figures.heat_maps(_maps(groups))


def curves_figure(groups: Sequence[Group]) -> "Figure":
    """Exact match by length with bands over seeds, or with intervals over questions for one seed; in a study of the
    converged seeds. Several tasks have a panel each. Parts, which have no length, have a point each with its interval.
    """
    if by_parts(groups):
        return part_figure({task.name: task.groups for task in by_task(groups)})
    return _panels([replace(_by_length(task.groups), title=task.name) for task in by_task(groups)])


def _panels(charts: Sequence[Chart]) -> "Figure":
    """A panel for each task, two side by side; the title of a single line is its label."""
    if len(charts) == 1 and len(charts[0].series) == 1:
        (line,) = charts[0].series
        charts = [replace(charts[0], title=line.named)]
    return figures.charts_figure(charts, columns=2)


def counts_figure(groups: Sequence[Group]) -> "Figure":
    """Accuracy per count of tasks with labels, beside the floor; a panel for each task. Raises
    `UserError` for groups without labels."""
    charts = []
    for task in by_task([group for group in groups if group.labels]):
        chart = count_chart(task.groups)
        barred = [f"{sentence}." for sentence in no_claims(task.groups)]
        charts.append(replace(chart, title=task.name, notes=[*barred, *chart.notes]))
    if not any(chart.lines for chart in charts):
        raise UserError(
            "plot: the answers of these runs are no labels, so there is no accuracy per count; curves is right"
        )
    return _panels(charts)


def pair_figure(groups: Sequence[Group]) -> "Figure":
    """Exact match and first-token accuracy side by side: for sorting, the whole order and the smallest item."""
    found = []
    for group in groups:
        if not group.first:
            raise UserError(f"plot: the records of {group.label} do not say how often the first token is right")
        exact, first = "exact match", "first label" if "items" in group.first[0].at else "first token"
        found += [_titled(grid, f"{_with_seeds(group)}: {exact}") for grid in group.grids[:1]]
        found += [_titled(grid, f"{_with_seeds(group)}: {first}") for grid in grids(group.first)[:1]]
    return figures.heat_maps(found, columns=2)


def compare_figure(groups: Sequence[Group]) -> "Figure":
    """A heat map for each group and all of them by length; by length alone where only equal lengths were evaluated, of
    more than `MOST_MAPS` groups, or of several tasks."""
    if running(groups):
        return validation_figure(groups)
    maps = {group.label: grid for group in groups for grid in group.grids[:1] if grid.row_axis}
    several = len(by_task(groups)) > 1 and any(group.diagonal for group in groups)
    if not maps or len(maps) > MOST_MAPS or several:
        return curves_figure(groups)
    return figures.comparison(maps, _by_length(groups))


def intervals_figure(groups: Sequence[Group]) -> "Figure":
    """A row for each group, by region the interquartile mean over its seeds with its interval and every seed."""
    return forest_figure(groups)


def training_figure(groups: Sequence[Group]) -> "Figure":
    """Loss, and exact match on the development sets, by step; of several tasks a row for each."""
    tasks = by_task(trained_once(groups))
    charts = [
        replace(chart, title=f"{task.name}: {chart.title}" if len(tasks) > 1 else chart.title)
        for task in tasks
        for chart in training_charts(task.groups)
    ]
    if not charts:
        raise UserError("plot: these runs have no metrics yet; train them first")
    return figures.charts_figure(charts)


def validation_figure(groups: Sequence[Group]) -> "Figure":
    """Of running text the validation loss by step, by operations and by time. Raises `UserError` for other runs."""
    texts = running(groups)
    if not any(validation(run) for group in texts for run in group.runs):
        raise UserError(
            "plot: none of these runs is of running text with a validation loss; curves is right for others"
        )
    return language_curves(texts)


KINDS: dict[str, Callable[[Sequence[Group]], "Figure"]] = {
    "grid": grid_figure,
    "curves": curves_figure,
    "counts": counts_figure,
    "pair": pair_figure,
    "compare": compare_figure,
    "intervals": intervals_figure,
    "training": training_figure,
    "validation": validation_figure,
}


def write_plot(
    kind: str,
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    checkpoint: str | None = None,
    labels: Sequence[str] = (),
    titles: Mapping[str, str] | None = None,
    metric: Metric | None = None,
) -> Path:
    """Draws one of `KINDS` from the records of runs and returns its path: .png, .svg or .pdf as its name ends.

    Runs that differ in the seed alone are taken together. `checkpoint` is final or best (default: final where it was
    evaluated); `labels` names the groups in their order, `titles` those of a recipe by its title
    (`{"addition_abacus": "Abacus"}`), `metric` what all are measured by. Raises `UserError` for another kind or ending,
    for runs without records, for a metric that they lack, and for a wrong number of labels.
    """
    if kind not in KINDS:
        raise UserError(f"plot: there is no {kind!r}; there are: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    if not folders:
        raise UserError(f"plot: no runs are named; for example numerate plot {kind} latest out={kind}.png")
    figures.refuse_ending(path)
    groups = [replace(group, checkpoint=checkpoint) for group in grouped(read_each(folders), titles)]
    groups = by_metric(groups, metric)
    if labels:
        if len(labels) != len(groups):
            known = "; ".join(group.label for group in groups)
            raise UserError(f"labels: {len(labels)} for {len(groups)} groups; in this order they name: {known}")
        groups = [replace(group, label=label) for group, label in zip(groups, labels, strict=True)]
    if kind in ("curves", "compare", "grid", "intervals", "training") and running(groups):  # all there is of text
        kind = "validation"
    if kind == "validation" and (others := [group for group in groups if group not in running(groups)]):
        names = ", ".join(group.label for group in others[:3]) + ", ..." * (len(others) > 3)
        warnings.warn(f"plot: {names}: of no running text, and left out of a figure of validation loss", stacklevel=2)
    logged = kind in ("training", "validation")
    if not logged and not any(group.points for group in groups):
        if running(groups):
            raise UserError(f"plot: {kind} is of answers, which running text has none of; validation is right for it")
        raise UserError(
            "plot: nothing was evaluated" + (f" at the {checkpoint} checkpoint" if checkpoint else "") + " yet"
        )
    return figures.save(KINDS[kind]([group for group in groups if logged or group.points]), path)


def _maps(groups: Sequence[Group]) -> list[PlotGrid]:
    """The maps of all groups under their labels; strips of equal lengths only where there is nothing else."""
    found = [_titled(grid, ", ".join(filter(None, (_with_seeds(g), grid.title)))) for g in groups for grid in g.grids]
    return [grid for grid in found if grid.row_axis] or found


def _by_length(groups: Sequence[Group]) -> Chart:
    """The chart by length, with notes for a figure: what its bands are, and which groups are not drawn."""
    shown = drawn(groups)
    chart = length_chart(shown)
    points = [point for curve in by_length(shown)[0] for point in curve.group.diagonal.values()]
    notes = [_doubt(points, thin=any(line.each for line in chart.lines))] * bool(points)
    return replace(chart, notes=[*notes, *no_claims(groups), *chart.notes, *filter(None, [left_out(groups, shown)])])


def _doubt(points: Sequence[Point], *, thin: bool) -> str:
    """A note on the bands of curves."""
    seeds = sorted({len(point.each) for point in points})
    counts = sorted({point.count for point in points})
    what = "questions" if all(point.metric == "exact" for point in points) else "rows"
    questions = f"{counts[0]} {what}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} {what}"
    if seeds == [1]:
        return f"one seed; bands: 95 % Wilson intervals, {questions} per length"
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    single = " thin lines: single seeds;" * thin
    return f"medians of {number} seeds; bands: lowest to highest;{single} {questions} each"


def _titled(grid: PlotGrid, title: str) -> PlotGrid:
    return replace(grid, title=title)


def _with_seeds(group: Group) -> str:
    seeds = len(group.evaluated)
    return f"{group.label} ({seeds} seeds)" if seeds > 1 else group.label
