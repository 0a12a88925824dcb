"""The main figure of a page: a heat map for each group, and all of them by length."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from numerate.evaluation.labels import METRICS
from numerate.reports.counts import BASELINE_LABEL, common_metric_label
from numerate.reports.drawing import csv_link
from numerate.reports.figure import Chart, ChartLine, Figure, HeatMap, Style, assign_styles, tooltip
from numerate.reports.grid import REGION_LABELS, PlotGrid, Point, axis_label, baseline_curve, format_percent, make_grids
from numerate.reports.groups import Group, have_unordered_cells
from numerate.reports.html import to_html
from numerate.reports.limits import (
    MAX_CSV_ROWS,
    MAX_GROUPS_WITH_SEED_LINES,
    MAX_MAP_CELLS,
    groups_to_draw,
    left_out_note,
)
from numerate.reports.part_chart import part_section
from numerate.reports.success import length_curves
from numerate.reports.summary import GENERALIZATION_THRESHOLD, GroupResult, group_result
from numerate.reports.svg_writer import figure_html


def overview_figure(groups: Sequence[Group]) -> str:
    """The main figure: a heat map per group, then all groups along the diagonal with their intervals.

    It shows the best of many groups (`groups_to_draw`), and images instead of tables where maps are too large for a
    page. Where cells are parts, it is a chart of these."""
    if have_unordered_cells(groups):
        return f"{to_html(part_section(groups))}<figcaption>{_csv(groups)}</figcaption>"
    shown = groups_to_draw(groups)
    styled = assign_styles([group.label for group in shown])
    maps = [
        _map(group, grid, styled[group.label], len(groups)) for group in shown for grid in group.grids if grid.row_axis
    ]
    maps += [
        HeatMap.from_grid(
            grid, group.operator, title=f"{f'{group.label}: first' if len(groups) > 1 else 'First'} label right, %"
        )
        for group in shown
        if group.points and "items" in group.points[0].coordinates
        for grid in make_grids(group.first_token_points)
        if grid.row_axis
    ]
    notes = [_caption(groups), left_out_note(groups, shown)]
    if sum(len(one.cells) for one in maps) > MAX_MAP_CELLS:
        maps = [replace(one, detail="image") for one in maps]
        notes.append("The maps are too large for tooltips with numbers; the report of each run has them.")
    chart = length_chart(shown)
    charts = [chart] if chart.lines else []
    caption = Markup("{} {}").format(" ".join(filter(None, [*notes, *chart.notes])), Markup(_csv(groups)))
    return figure_html(Figure([*maps, *charts], caption=caption)) if maps or charts else ""


def _map(group: Group, grid: PlotGrid, style: Style, groups: int) -> HeatMap:
    if groups == 1:
        metric = group.metric_label
        return HeatMap.from_grid(grid, group.operator, title=grid.title or f"{metric[:1].upper()}{metric[1:]}, %")
    title = f"{group.label}, {grid.title}" if grid.title else group.label
    reach = generalization_text(group_result(group))
    return HeatMap.from_grid(grid, group.operator, title=title, subtitle=reach, title_style=style)


def generalization_text(result: GroupResult) -> str:
    """How far a group generalizes, in words: "90 % or more up to 8+8 digits"."""
    if result.first_ood_point is None:
        return "nothing OOD evaluated"
    if result.farthest_point is None:
        return f"{format_percent(result.first_ood_point.score)} % at {result.point_label(result.first_ood_point)}"
    return f"{format_percent(GENERALIZATION_THRESHOLD)} % or more up to {result.point_label(result.farthest_point)}"


def _has_two_number_axes(groups: Sequence[Group]) -> bool:
    return any(
        set(point.coordinates) == {"first_digits", "second_digits"} for group in groups for point in group.points[:1]
    )


def _caption(groups: Sequence[Group]) -> str:
    counts = sorted({point.count for group in groups for point in group.points})
    questions = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}" if counts else "no"
    method = sorted({cell.method for group in groups for cells in group.evaluated_cells for cell in cells})
    seeds = {len(group.region_scores) for group in groups}
    band = (
        "bands are 95 % Wilson intervals about these questions"
        if seeds == {1}
        else "values are medians over the seeds, bands run from the lowest to the highest"
        + ", thin lines are single seeds" * (len(groups_to_draw(groups)) <= MAX_GROUPS_WITH_SEED_LINES)
    )
    steps: dict[str, set[int]] = {}
    for cells in (cells for group in groups for cells in group.evaluated_cells):
        steps.setdefault(cells[0].checkpoint, set()).add(cells[0].step)
    chosen = [f"{name} ({_format_steps(sorted(found))})" for name, found in sorted(steps.items())]
    words = common_metric_label(groups)
    what = "questions" if words == METRICS["exact_match"] else "row" if counts == [1] else "rows"
    return (
        f"{words[:1].upper()}{words[1:]} in per cent, {questions} {what} per cell, {' and '.join(method)}; "
        f"{band}. "
        f"Checkpoint: {', '.join(chosen)}. A cell reads 100 or 0 only where all or none were right."
    )


def _format_steps(steps: Sequence[int]) -> str:
    if len(steps) > 3:
        return f"steps {steps[0]:,} to {steps[-1]:,}"
    return f"step {' and '.join(f'{step:,}' for step in steps)}"


def _csv(groups: Sequence[Group]) -> str:
    count = sum(len(cells) for group in groups for cells in group.evaluated_cells)
    if count > MAX_CSV_ROWS:
        return f"The numbers of all {count:,} cells, too many for this page, stand in evaluation.jsonl of each run."
    axes = list(groups[0].points[0].coordinates) if groups and groups[0].points else []
    named = have_unordered_cells(groups)
    rows: list[list[object]] = []
    for group in groups:
        for run in group.runs:
            for cell in group.cells(run):
                place = [cell.coordinates.get(axis, "") for axis in axes]
                place += [cell.names.get(axis, "") for axis in axes] if named else []
                name = group.label.replace(",", ";").replace('"', "'")
                span = (f"{cell.low:.6g}", f"{cell.high:.6g}")
                rows.append([name, run.seed, *place, round(cell.correct, 6), cell.count, *span, cell.region])
    return csv_link(
        "cells.csv",
        [
            "run",
            "seed",
            *axes,
            *(f"{axis}_name" for axis in axes if named),
            "correct",
            "count",
            "low",
            "high",
            "region",
        ],
        rows,
    )


def length_chart(groups: Sequence[Group]) -> Chart:
    """Accuracy along the diagonal of the grids, a line per group; its notes name the groups left out."""
    found, note = length_curves(groups)
    styled = assign_styles([group.label for group in groups])
    diagonals = [curve.group.diagonal for curve in found]
    lines = [
        ChartLine(
            curve.group.label,
            list(points),
            [point.score for point in points.values()],
            [point.low for point in points.values()],
            [point.high for point in points.values()],
            style=styled[curve.group.label],
            suffix=curve.suffix,
            has_markers=True,
            tooltips=[f"{curve.group.label}\n{tooltip(point, curve.group.operator)}" for point in points.values()],
            seed_lines=seed_curves(points) if len(found) <= MAX_GROUPS_WITH_SEED_LINES else (),
        )
        for curve, points in zip(found, diagonals, strict=True)
        if points
    ]
    baseline_lengths, baselines = baseline_curve(diagonals)
    if baseline_lengths:
        lines.append(ChartLine(BASELINE_LABEL, baseline_lengths, baselines, is_baseline=True))
    trained = [n for points in diagonals for n, point in points.items() if point.region == "in_distribution"]
    axes = next((list(group.points[0].coordinates) for group in groups if group.points), ["length"])
    has_two_numbers = _has_two_number_axes(groups)
    title = "Both numbers n digits long" if has_two_numbers else f"By size, {' = '.join(map(axis_label, axes))}"
    return Chart(
        title if len(axes) > 1 else "By length",
        lines,
        "n, digits of each number"
        if has_two_numbers
        else "n, along the diagonal"
        if len(axes) > 1
        else axis_label(axes[0]),
        f"{common_metric_label([curve.group for curve in found])}, %",
        is_percent=True,
        has_integer_ticks=True,
        trained_range=(min(trained), max(trained)) if trained else None,
        trained_range_label=REGION_LABELS["in_distribution"],
        notes=[note] * bool(note),
    )


def seed_curves(points_by_length: Mapping[int, Point]) -> list[list[float]]:
    """The accuracy of each seed along a diagonal; nothing for one seed."""
    seeds = min((len(point.seed_scores) for point in points_by_length.values()), default=0)
    return [[point.seed_scores[i] for point in points_by_length.values()] for i in range(seeds)] if seeds > 1 else []
