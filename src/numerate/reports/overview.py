"""The main figure of a page: a heat map for each group, and all of them by length."""

from collections.abc import Mapping, Sequence
from html import escape

from numerate.evaluation.labels import METRICS
from numerate.reports.charts import Chart, ChartLine, Style, styles
from numerate.reports.counts import FLOOR, measure_words
from numerate.reports.drawing import chart_svg, csv_link, heat_map, map_axes, mark, scale, tip
from numerate.reports.finding import REACHED, GroupFinding, outcome
from numerate.reports.grid import REGIONS, PlotGrid, Point, axis_words, floor_curve, grids, percent
from numerate.reports.groups import Group, by_parts
from numerate.reports.limits import MOST_CSV_ROWS, MOST_EACH, MOST_MAP_CELLS, drawn, left_out
from numerate.reports.part_chart import part_charts
from numerate.reports.small_map import small_map
from numerate.reports.success import by_length


def maps_and_lengths(groups: Sequence[Group]) -> str:
    """The main figure: a heat map per group, then all groups along the diagonal with their intervals.

    It shows the best of many groups (`drawn`), and images instead of tables where maps are too large for a page. Where
    cells are parts, it is a chart of these."""
    if by_parts(groups):
        return part_charts(groups) + f"<figcaption>{_csv(groups)}</figcaption>"
    shown = drawn(groups)
    styled = styles([group.label for group in shown])
    maps = [
        (f"{_map_title(styled[group.label], group, grid, len(groups))}", grid, group)
        for group in shown
        for grid in group.grids
        if grid.row_axis
    ]
    maps += [
        (f"{escape(f'{group.label}: first' if len(groups) > 1 else 'First')} label right, %", grid, group)
        for group in shown
        if group.points and "items" in group.points[0].at
        for grid in grids(group.first)
        if grid.row_axis
    ]
    large = sum(len(grid.points) for _, grid, _ in maps) > MOST_MAP_CELLS
    panels = [
        f"<figure><h3>{title}</h3>{_picture(grid) if large else heat_map(grid, group.operator)}</figure>"
        for title, grid, group in maps
    ]
    notes = [left_out(groups, shown)]
    if large:
        notes.append("The maps are too large for tooltips with numbers; the report of each run has them.")
    curve = length_chart(shown)
    if curve.lines:
        panels.append(f"<figure><h3>{escape(curve.title)}</h3>{chart_svg(curve)}</figure>")
        notes += curve.notes
    if not panels:
        return ""
    seen = any(point.seen for group in shown for point in group.points)
    key = scale(seen=seen) if maps else ""
    caption = " ".join(filter(None, [_caption(groups), *map(escape, notes), _csv(groups)]))
    return f'<div class="panels">{"".join(panels)}</div>{key}<figcaption>{caption}</figcaption>'


def _picture(grid: PlotGrid) -> str:
    return f'<div class="map-box">{small_map(grid)}<p class="axis">{escape(map_axes(grid))}</p></div>'


def _map_title(style: Style, group: Group, grid: PlotGrid, groups: int) -> str:
    if groups == 1:
        words = group.measure_words
        return escape(grid.title) or f"{words[:1].upper()}{words[1:]}, %"
    name = f"{group.label}, {grid.title}" if grid.title else group.label
    reach = escape(reach_words(outcome(group)))
    return f'{mark(style)}{escape(name)}<span class="quiet">{reach}</span>'


def reach_words(found: GroupFinding) -> str:
    """How far a group generalizes, in words: "90 % or more up to 8+8 digits"."""
    if found.first is None:
        return "nothing OOD evaluated"
    if found.reach is None:
        return f"{percent(found.first.value)} % at {found.words(found.first)}"
    return f"{percent(REACHED)} % or more up to {found.words(found.reach)}"


def _two_numbers(groups: Sequence[Group]) -> bool:
    return any(set(point.at) == {"first_digits", "second_digits"} for group in groups for point in group.points[:1])


def _caption(groups: Sequence[Group]) -> str:
    counts = sorted({point.count for group in groups for point in group.points})
    questions = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}" if counts else "no"
    method = sorted({cell.method for group in groups for cells in group.evaluated for cell in cells})
    seeds = {len(group.regions) for group in groups}
    band = (
        "bands are 95 % Wilson intervals about these questions"
        if seeds == {1}
        else "values are medians over the seeds, bands run from the lowest to the highest"
        + ", thin lines are single seeds" * (len(drawn(groups)) <= MOST_EACH)
    )
    steps: dict[str, set[int]] = {}
    for cells in (cells for group in groups for cells in group.evaluated):
        steps.setdefault(cells[0].checkpoint, set()).add(cells[0].step)
    chosen = [f"{name} ({_steps_words(sorted(found))})" for name, found in sorted(steps.items())]
    words = measure_words(groups)
    what = "questions" if words == METRICS["exact"] else "row" if counts == [1] else "rows"
    return (
        f"{words[:1].upper()}{words[1:]} in per cent, {questions} {what} per cell, {escape(' and '.join(method))}; "
        f"{band}. "
        f"Checkpoint: {escape(', '.join(chosen))}. A cell reads 100 or 0 only where all or none were right."
    )


def _steps_words(steps: Sequence[int]) -> str:
    if len(steps) > 3:
        return f"steps {steps[0]:,} to {steps[-1]:,}"
    return f"step {' and '.join(f'{step:,}' for step in steps)}"


def _csv(groups: Sequence[Group]) -> str:
    count = sum(len(cells) for group in groups for cells in group.evaluated)
    if count > MOST_CSV_ROWS:
        return f"The numbers of all {count:,} cells, too many for this page, stand in evaluation.jsonl of each run."
    axes = list(groups[0].points[0].at) if groups and groups[0].points else []
    named = by_parts(groups)
    rows: list[list[object]] = []
    for group in groups:
        for run in group.runs:
            for cell in group.cells(run):
                place = [cell.at.get(axis, "") for axis in axes]
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
    found, note = by_length(groups)
    styled = styles([group.label for group in groups])
    along = [curve.group.diagonal for curve in found]
    lines = [
        ChartLine(
            curve.group.label,
            list(points),
            [point.value for point in points.values()],
            [point.low for point in points.values()],
            [point.high for point in points.values()],
            style=styled[curve.group.label],
            suffix=curve.suffix,
            dots=True,
            tips=[f"{curve.group.label}\n{tip(point, curve.group.operator)}" for point in points.values()],
            each=seed_lines(points) if len(found) <= MOST_EACH else (),
        )
        for curve, points in zip(found, along, strict=True)
        if points
    ]
    across, floors = floor_curve(along)
    if across:
        lines.append(ChartLine(FLOOR, across, floors, floor=True))
    trained = [n for points in along for n, point in points.items() if point.region == "in_distribution"]
    axes = next((list(group.points[0].at) for group in groups if group.points), ["length"])
    two = _two_numbers(groups)
    title = "Both numbers n digits long" if two else f"By size, {' = '.join(map(axis_words, axes))}"
    return Chart(
        title if len(axes) > 1 else "By length",
        lines,
        "n, digits of each number" if two else "n, along the diagonal" if len(axes) > 1 else axis_words(axes[0]),
        f"{measure_words([curve.group for curve in found])}, %",
        shares=True,
        lengths=True,
        trained=(min(trained), max(trained)) if trained else None,
        region=REGIONS["in_distribution"],
        notes=[note] * bool(note),
    )


def seed_lines(along: Mapping[int, Point]) -> list[list[float]]:
    """The accuracy of each seed along a diagonal; nothing for one seed."""
    seeds = min((len(point.each) for point in along.values()), default=0)
    return [[point.each[i] for point in along.values()] for i in range(seeds)] if seeds > 1 else []
