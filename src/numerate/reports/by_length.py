"""Accuracy by length as a table, and the map of every seed."""

from collections.abc import Sequence
from dataclasses import replace

from numerate.evaluation.statistics import newcombe_interval
from numerate.reports.content import Block, Content, Heading, Note
from numerate.reports.figure import Figure, HeatMap, Panel
from numerate.reports.grid import PlotGrid, Point, baseline_ranges, cell_label, format_interval, format_percent
from numerate.reports.groups import Group, have_unordered_cells, region_labels
from numerate.reports.limits import (
    MAX_GROUP_COLUMNS,
    MAX_SEED_MAP_CELLS,
    MAX_SEED_MAPS,
    groups_to_draw,
    left_out_note,
)
from numerate.reports.overview import length_chart
from numerate.reports.success import length_curves
from numerate.reports.summary import group_result
from numerate.reports.table import TextTable


def lengths_content(groups: Sequence[Group]) -> Content:
    """The accuracy of each drawn group by length; of two groups with one seed the difference with its interval."""
    shown = groups_to_draw(groups, MAX_GROUP_COLUMNS)
    curves, missing_note = length_curves(shown)
    diagonals = [group.diagonal for group, _ in curves]
    baselines, words = baseline_ranges(diagonals), region_labels(groups)
    has_differences = len(groups) == len(curves) == 2 and all(len(group.region_scores) == 1 for group in groups)
    rows = []
    for n in sorted(set().union(*diagonals)):
        points = [diagonal.get(n) for diagonal in diagonals]
        first = next(point for point in points if point is not None)
        row = [cell_label(first.coordinates, groups[0].operator)]
        row += ["" if p is None else f"{format_percent(p.score)} {format_interval(p.low, p.high)}" for p in points]
        row += [_difference_text(points[0], points[-1])] * has_differences
        row += [" to ".join(map(format_percent, dict.fromkeys(baselines.get(n, ()))))] * bool(baselines)
        rows.append([*row, words.get(first.region, first.region)])
    labels = [f"{group.label} ({suffix}), %" if suffix else f"{group.label}, %" for group, suffix in curves]
    header = ["length", *labels, *["difference, points"] * has_differences]
    header += [*["baseline, %"] * bool(baselines), "region"]
    notes = ["Differences carry Newcombe's 95 % interval, for each length by itself."] * has_differences
    notes += [missing_note, left_out_note(groups, shown)]
    caption = " ".join(filter(None, notes))
    return [TextTable(header, rows, caption, fold=f"All {len(rows)} lengths")] if rows else []


def _difference_text(first: Point | None, second: Point | None) -> str:
    if first is None or second is None:
        return ""
    one, other = ((round(point.score * point.count), point.count) for point in (first, second))
    gap = newcombe_interval(one, other)
    return f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def seeds_content(groups: Sequence[Group]) -> Content:
    """A small map for each of several seeds, up to `MAX_SEED_MAPS`."""
    if all(len(group.runs) == 1 for group in groups) or have_unordered_cells(groups):
        return []
    singles = [[replace(group, runs=(run,)) for run in group.runs] for group in groups]
    as_images = sum(len(single.points) for each in singles for single in each) > MAX_SEED_MAP_CELLS
    content: list[Block] = []
    num_maps = 0
    for group, each in zip(groups, singles, strict=True):
        maps = [(single, grid) for single in each for grid in single.grids]
        shown = maps[: max(0, MAX_SEED_MAPS - num_maps)]
        num_maps += len(maps)
        panels = [_panel(single, grid, as_image=as_images) for single, grid in shown]
        content += [Heading(group.label), Figure(panels, is_small=True)] * bool(shown)
    if num_maps > MAX_SEED_MAPS:
        missing = f"{num_maps - MAX_SEED_MAPS} of {num_maps} maps are left out"
        content.append(Note(f"{missing}, which would make this page too long; each run has a report."))
    return content


def _panel(single: Group, grid: PlotGrid, *, as_image: bool) -> Panel:
    title, reach = f"seed {single.runs[0].seed}", group_result(single).reach_text
    if not grid.row_axis:
        return replace(length_chart([single]), title=f"{title}: {reach}", notes=())
    found = HeatMap.from_grid(grid, single.operator, title=title, subtitle=reach, has_tooltips=not as_image)
    return replace(found, detail="image" if as_image else "colors")
