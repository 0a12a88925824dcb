"""The main figure of a page: a heat map for each group, and all of them by length."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from numerate.evaluation.labels import METRICS
from numerate.reports.counts import BASELINE_LABEL
from numerate.reports.figure import Chart, ChartLine, Figure, HeatMap, heat_maps, tooltip
from numerate.reports.grid import (
    CLEAR_MARGIN,
    DIGIT_AXES,
    REGION_LABELS,
    Point,
    axis_label,
    baseline_curve,
    format_percent,
    span_text,
)
from numerate.reports.groups import Group, common_metric_label, group_styles, not_comparable_notes
from numerate.reports.limits import (
    MAX_GROUPS_WITH_SEED_LINES,
    MAX_MAP_CELLS,
    groups_to_draw,
    left_out_note,
)
from numerate.reports.published_reach import ADDITION, sources_note
from numerate.reports.success import length_curves
from numerate.reports.summary import GENERALIZATION_THRESHOLD, group_result


def overview_figure(groups: Sequence[Group]) -> Figure:
    """The main figure: heat maps of the groups, and all of them by length with their intervals; of many groups the best
    (`groups_to_draw`), and images instead of tables where maps are too large for a page."""
    shown, notes = groups_to_draw(groups), [_caption(groups)]
    maps = [one for one in group_maps(shown) if one.row_axis]
    if sum(len(one.cells) for one in maps) > MAX_MAP_CELLS:
        maps = [replace(one, as_image=True) for one in maps]
        notes.append("The maps are too large for tooltips with numbers; the report of each run has them.")
    return Figure([*maps, length_chart(groups)], caption=" ".join(notes))


def group_maps(groups: Sequence[Group]) -> list[HeatMap]:
    """The maps of each group; of tasks with items, such as sorting, also those of the first label."""
    styles, is_single, maps = group_styles(groups), len(groups) == 1, []
    for group in groups:
        metric, reach = group.metric_label, "" if is_single else group_result(group).reach_text
        for one in heat_maps(group.points, operator=group.operator):
            title = one.title or f"{metric[:1].upper()}{metric[1:]}, %"
            if not is_single:
                title = ", ".join(filter(None, (group.label, one.title)))
            style = None if is_single else styles[group.label]
            maps.append(replace(one, title=title, subtitle=reach, title_style=style))
        if group.points and "items" in group.points[0].coordinates:
            first = "First" if is_single else f"{group.label}: first"
            maps += heat_maps(group.first_token_points, f"{first} label right, %", group.operator)
    return maps


def _caption(groups: Sequence[Group]) -> str:
    counts = sorted({point.count for group in groups for point in group.points})
    questions = span_text(counts) if counts else "no"
    method = sorted({cell.method for group in groups for cells in group.evaluated_cells for cell in cells})
    steps: dict[str, set[int]] = {}
    for cells in (cells for group in groups for cells in group.evaluated_cells):
        steps.setdefault(cells[0].checkpoint, set()).add(cells[0].step)
    chosen = [f"{name} ({_format_steps(sorted(found))})" for name, found in sorted(steps.items())]
    words = common_metric_label(groups)
    what = "questions" if words == METRICS["exact_match"] else "row" if counts == [1] else "rows"
    median = ", the median over seeds" * any(len(group.evaluated_cells) > 1 for group in groups)
    margin = f" and clearly above the baseline (by at least {format_percent(CLEAR_MARGIN)} % of the rest up to 100 %)"
    margin *= any(group.baseline is not None for group in groups)
    strata = " and on every stratum up to n" * any(group.strata for group in groups)
    least = format_percent(GENERALIZATION_THRESHOLD)
    diagonal = " on the diagonal" * any(len(group.axes) > 1 for group in groups)
    reach = f" “Up to n”: at least {least} %{margin} at every OOD length up to n{diagonal}{strata}."
    return (
        f"{words[:1].upper()}{words[1:]} in per cent{median}, {questions} {what} per cell, {' and '.join(method)}. "
        f"Checkpoint: {', '.join(chosen)}. A cell reads 100 or 0 only where all or none were right."
        f"{reach * any(group.diagonal for group in groups)}"
    )


def _format_steps(steps: Sequence[int]) -> str:
    if len(steps) > 3:
        return f"steps {span_text(steps)}"
    return f"step {' and '.join(f'{step:,}' for step in steps)}"


def length_chart(groups: Sequence[Group]) -> Chart:
    """Accuracy along the diagonal of the grids, a line per group (`groups_to_draw`); its notes say what the bands are,
    and which groups are left out."""
    shown = groups_to_draw(groups)
    found, note = length_curves(shown)
    styled = group_styles(shown)
    diagonals = [group.diagonal for group, _ in found]
    lines = [
        ChartLine(
            group.label,
            list(points),
            [point.score for point in points.values()],
            [point.low for point in points.values()],
            [point.high for point in points.values()],
            style=styled[group.label],
            suffix=suffix,
            has_markers=True,
            tooltips=[f"{group.label}\n{tooltip(point, group.operator)}" for point in points.values()],
            seed_lines=seed_curves(points) if len(found) <= MAX_GROUPS_WITH_SEED_LINES else (),
        )
        for (group, suffix), points in zip(found, diagonals, strict=True)
        if points
    ]
    baseline_lengths, baselines = baseline_curve(diagonals)
    if baseline_lengths:
        lines.append(ChartLine(BASELINE_LABEL, baseline_lengths, baselines, is_baseline=True))
    trained = [n for points in diagonals for n, point in points.items() if point.region == "in_distribution"]
    axes = next((list(group.points[0].coordinates) for group in shown if group.points), ["length"])
    notes = [_bands_note([group for group, _ in found]), note, left_out_note(groups, shown)]
    notes += [f"{clause}." for clause in not_comparable_notes(groups)]
    is_addition = bool(lines) and all(group.operator == "+" for group, _ in found)
    lengths = [n for points in diagonals for n in points]
    published = [one for one in ADDITION if is_addition and min(lengths) <= one.digits <= max(lengths)]
    if tuple(axes) == DIGIT_AXES:
        title, x_label = "Both numbers n digits long", "n, digits of each number"
    elif len(axes) > 1:
        title, x_label = f"By size, {' = '.join(map(axis_label, axes))}", "n, along the diagonal"
    else:
        title, x_label = "By length", axis_label(axes[0])
    return Chart(
        title,
        lines,
        x_label,
        f"{common_metric_label([group for group, _ in found])}, %",
        is_percent=True,
        has_integer_ticks=True,
        trained_range=(min(trained), max(trained)) if trained else None,
        trained_range_label=REGION_LABELS["in_distribution"],
        reference_lines=[(one.digits, f"{one.name}*" if one.help else one.name) for one in published],
        notes=list(filter(None, [*notes, sources_note(published)])),
    )


def _bands_note(groups: Sequence[Group]) -> str:
    """What the lines and bands of a chart by length are."""
    points = [point for group in groups for point in group.diagonal.values()]
    seeds = {len(point.seed_scores) for point in points}
    if not points:
        return ""
    if seeds == {1}:
        return "One seed; bands: 95 % Wilson intervals."
    single = "; thin lines: single seeds" * (len(groups) <= MAX_GROUPS_WITH_SEED_LINES)
    return f"Medians of {span_text(seeds)} seeds; bands: lowest to highest{single}."


def seed_curves(points_by_length: Mapping[int, Point]) -> list[list[float]]:
    """The accuracy of each seed along a diagonal; nothing for one seed."""
    seeds = min((len(point.seed_scores) for point in points_by_length.values()), default=0)
    return [[point.seed_scores[i] for point in points_by_length.values()] for i in range(seeds)] if seeds > 1 else []
