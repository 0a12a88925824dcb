"""Loss and validation scores by step of training, as charts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import SeedBand, seed_band
from numerate.reports.colour import Style, assign_styles
from numerate.reports.content import Content, Note
from numerate.reports.figure import Chart, ChartLine, Figure
from numerate.reports.grid import REGION_LABELS
from numerate.reports.groups import Group, have_unordered_cells, region_labels, unique_trainings
from numerate.reports.limits import MAX_CURVE_POINTS, groups_to_draw, left_out_note
from numerate.reports.records import split_metric_name


def training_charts(groups: Sequence[Group]) -> list[Chart]:
    """Loss by step, and exact match (label accuracy for labels) on each validation set by step."""
    drawn_groups = groups_to_draw(unique_trainings(groups))
    styles = assign_styles([group.label for group in drawn_groups])
    losses = [
        line
        for group in drawn_groups
        for line in band_lines(
            group.label,
            [metric_series(run.training_metrics(), "loss") for run in group.runs if run.training_metrics()],
            styles[group.label],
        )
    ]
    has_several_seeds = any(len(group.runs) > 1 for group in drawn_groups)
    note = "Lines: medians over seeds; bands: range over seeds." * has_several_seeds
    charts = [
        Chart("Training loss", losses, "step", "loss, nats per token", is_log=True, notes=[note] * has_several_seeds)
    ]
    for split, display_name in validation_splits(groups).items():
        lines, has_labels = [], False
        for group in drawn_groups:
            metrics_by_run = [run.split_metrics(split) for run in group.runs if run.split_metrics(split)]
            metric = split_metric_name(metrics_by_run)
            has_labels = has_labels or metric == "accuracy"
            split_lines = band_lines(
                group.label, [metric_series(rows, metric) for rows in metrics_by_run], styles[group.label]
            )
            is_single_run = len(metrics_by_run) == 1 and split_lines and metric == "exact_match"
            lines += [_with_interval(split_lines[0], metrics_by_run[0])] if is_single_run else split_lines
        y_label = f"{METRICS['accuracy' if has_labels else 'exact_match']}, %"
        charts.append(Chart(f"Validation, {display_name}", lines, "step", y_label, is_percent=True))
    return [chart for chart in charts if chart.lines]


def training_content(groups: Sequence[Group]) -> Content:
    """The charts of training, with what has to be known to read them."""
    charts, trained = training_charts(groups), unique_trainings(groups)
    notes = [f"Held-out questions{' of the training distribution' * have_unordered_cells(groups)}."] * any(
        chart.is_percent for chart in charts
    )
    if any(group.runs[0].recipe.get("objective") != trained[0].runs[0].recipe.get("objective") for group in trained):
        notes.append("The groups have different losses, so only the shapes of the curves can be compared.")
    notes += filter(None, [left_out_note(trained, groups_to_draw(trained))])
    return [Figure(charts), Note(" ".join(notes))] if charts else []


def validation_splits(groups: Sequence[Group]) -> dict[str, str]:
    """The validation splits, and their display names on the pages of these groups."""
    if have_unordered_cells(groups):
        return {"validation": region_labels(groups)["in_distribution"]}
    return {"validation": REGION_LABELS["in_distribution"], "ood_validation": REGION_LABELS["ood_validation"]}


def metric_series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """The steps and values of one metric."""
    values_by_step = {
        float(line["step"]): float(line[name]) for line in lines if "step" in line and line.get(name) is not None
    }
    return list(values_by_step), list(values_by_step.values())


def band_lines(label: str, curves: Sequence[tuple[list[float], list[float]]], style: Style) -> list[ChartLine]:
    """The median of curves as a line with their range as a band; empty without curves."""
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return []
    band: SeedBand = seed_band(curves)
    last = len(band.steps) - 1
    indices = sorted({round(i * last / (MAX_CURVE_POINTS - 1)) for i in range(MAX_CURVE_POINTS)} & set(range(last + 1)))
    steps, middle = band.steps[indices].tolist(), band.median[indices].tolist()
    low, high = (band.low[indices].tolist(), band.high[indices].tolist()) if band.count > 1 else (None, None)
    return [ChartLine(label, steps, middle, low, high, style=style, suffix=f"{band.count} seeds" * (band.count > 1))]


def _with_interval(line: ChartLine, rows: Sequence[Mapping[str, Any]]) -> ChartLine:
    by_step = {float(row["step"]): row for row in rows if "step" in row}
    if not all("low" in by_step[step] and "high" in by_step[step] for step in line.x):
        return line
    low, high = ([float(by_step[step][name]) for step in line.x] for name in ("low", "high"))
    return replace(line, low=low, high=high)
