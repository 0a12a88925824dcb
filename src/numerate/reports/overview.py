"""The main figure of a page: a heat map for each group, and all of them by length."""

from collections.abc import Mapping, Sequence
from html import escape

from numerate.evaluation.labels import METRICS
from numerate.reports.colour import SERIES
from numerate.reports.counts import FLOOR, measure_words
from numerate.reports.drawing import Line, chart, csv_link, heat_map, map_axes, scale, tip
from numerate.reports.finding import REACHED, Outcome, outcome
from numerate.reports.grid import Grid, Point, axis_words, floor_curve, grids, percent
from numerate.reports.groups import Group, by_parts
from numerate.reports.limits import MOST_CSV_ROWS, MOST_MAP_CELLS, drawn, left_out
from numerate.reports.part_chart import part_charts
from numerate.reports.small_map import small_map
from numerate.reports.success import by_length


def maps_and_lengths(groups: Sequence[Group]) -> str:
    """The main figure: a heat map per group, then all groups along the diagonal with their intervals.

    Of more groups than can be told apart those that go farthest; larger maps than a page can hold are pictures. Where
    cells are parts, a chart of those takes the place of both."""
    if by_parts(groups):
        return part_charts(groups) + f"<figcaption>{_csv(groups)}</figcaption>"
    shown = drawn(groups)
    maps = [
        (f"{_map_title(i, group, grid, len(groups))}", grid, group)
        for i, group in enumerate(shown)
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
        notes.append(
            "The maps are too large for numbers to be shown when pointed at; the report of each run shows them."
        )
    curve, note = lengths_chart(shown)
    if curve:
        axes = next((list(group.points[0].at) for group in groups if group.points), ["length"])
        title = "Both numbers n digits long" if _two_numbers(groups) else "By length"
        title = title if len(axes) == 1 or _two_numbers(groups) else f"By size, {' = '.join(map(axis_words, axes))}"
        panels.append(f"<figure><h3>{title}</h3>{curve}</figure>")
        notes.append(note)
    if not panels:
        return ""
    seen = any(point.seen for group in shown for point in group.points)
    key = scale(seen=seen) if maps else ""
    caption = " ".join(filter(None, [_caption(groups), *map(escape, notes), _csv(groups)]))
    return f'<div class="panels">{"".join(panels)}</div>{key}<figcaption>{caption}</figcaption>'


def _picture(grid: Grid) -> str:
    return f'<div class="map-box">{small_map(grid)}<p class="axis">{escape(map_axes(grid))}</p></div>'


def _map_title(i: int, group: Group, grid: Grid, groups: int) -> str:
    if groups == 1:
        words = group.measure_words
        return escape(grid.title) or f"{words[:1].upper()}{words[1:]}, %"
    name = f"{group.label}, {grid.title}" if grid.title else group.label
    reach = escape(reach_words(outcome(group)))
    return f'<span class="swatch c{i % 6}"></span>{escape(name)}<span class="quiet">{reach}</span>'


def reach_words(found: Outcome) -> str:
    """How far a group goes, in a few words: "90 % or more up to 8+8 digits"."""
    if found.first is None:
        return "nothing OOD evaluated"
    if found.reach is None:
        return f"{percent(found.first.value)} % at {found.words(found.first)}"
    return f"{percent(REACHED)} % or more up to {found.words(found.reach)}"


def _two_numbers(groups: Sequence[Group]) -> bool:
    return any(set(point.at) == {"first_digits", "second_digits"} for group in groups for point in group.points[:1])


def _caption(groups: Sequence[Group]) -> str:
    asked = sorted({point.count for group in groups for point in group.points})
    questions = f"{asked[0]:,}" if len(asked) == 1 else f"{asked[0]:,} to {asked[-1]:,}" if asked else "no"
    method = sorted({cell.method for group in groups for cells in group.evaluated for cell in cells})
    seeds = {len(group.regions) for group in groups}
    band = (
        "bands are 95 % Wilson intervals about these questions"
        if seeds == {1}
        else "values are medians over the seeds, bands run from the lowest to the highest, thin lines are single seeds"
    )
    steps: dict[str, set[int]] = {}
    for cells in (cells for group in groups for cells in group.evaluated):
        steps.setdefault(cells[0].checkpoint, set()).add(cells[0].step)
    chosen = [f"{name} ({_steps_words(sorted(found))})" for name, found in sorted(steps.items())]
    words = measure_words(groups)
    what = "questions" if words == METRICS["exact"] else "row" if asked == [1] else "rows"
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


def lengths_chart(groups: Sequence[Group]) -> tuple[str, str]:
    """Share right along the diagonal of the grids, a line per group, and in words which groups have none."""
    lines = []
    trained: list[int] = []
    found, note = by_length(groups)
    for curve in found:
        along = curve.group.diagonal
        trained += [n for n, point in along.items() if point.region == "in_distribution"]
        lines.append(
            Line(
                curve.label,
                list(along),
                [point.value for point in along.values()],
                [point.low for point in along.values()],
                [point.high for point in along.values()],
                colour=curve.place,
                dashed=dashed(curve.place),
                dots=True,
                tips=[f"{curve.label}\n{tip(point, curve.group.operator)}" for point in along.values()],
                each=seed_lines(along) if len(found) <= len(SERIES) else (),
            )
        )
    two = _two_numbers(groups)
    several = any(len(group.points[0].at) > 1 for group in groups if group.points)
    across, floors = floor_curve([curve.group.diagonal for curve in found])
    if across:
        lines.append(Line(FLOOR, across, floors, floor=True))
    drawing = chart(
        lines,
        x_label="n, digits of each number" if two else "n" if several else "length",
        y_label=f"{measure_words([curve.group for curve in found])}, %",
        shares=True,
        lengths=True,
        trained=(min(trained), max(trained)) if trained else None,
        name=f"{measure_words([curve.group for curve in found])} by length",
    )
    return drawing, note


def dashed(i: int) -> bool:
    """Every second line; from the seventh on, where colours come again, the other ones."""
    return bool((i + i // len(SERIES)) % 2)


def seed_lines(along: Mapping[int, Point]) -> list[list[float]]:
    """The share right along a diagonal of each seed by itself; nothing where there is one."""
    seeds = min((len(point.each) for point in along.values()), default=0)
    return [[point.each[i] for point in along.values()] for i in range(seeds)] if seeds > 1 else []
