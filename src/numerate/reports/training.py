"""Loss and validation scores by step of training, as charts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import SeedBand, seed_band
from numerate.reports.colour import Style
from numerate.reports.content import Content, Note
from numerate.reports.figure import Chart, ChartLine, Figure
from numerate.reports.grid import REGION_LABELS
from numerate.reports.groups import Group, group_styles, have_unordered_cells, region_labels, unique_trainings
from numerate.reports.limits import MAX_CURVE_POINTS, groups_to_draw, left_out_note
from numerate.reports.records import Records, split_metric_name


class Curve(NamedTuple):
    """Values by step, or along another axis; `low` and `high` are the ends of their 95 % intervals, if known."""

    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


def training_charts(groups: Sequence[Group]) -> list[Chart]:
    """Loss by step, and exact match (label accuracy for labels) on each validation set by step."""
    shown = groups_to_draw(unique_trainings(groups))
    has_several_seeds = any(len(group.runs) > 1 for group in shown)
    notes = ["Lines: medians over seeds; bands: range over seeds."] * has_several_seeds
    losses = group_lines(shown, lambda run: metric_curve(run.training_metrics(), "loss"))
    charts = [Chart("Training loss", losses, "step", "loss, nats per token", is_log=True, notes=notes)]
    for split, display_name in validation_splits(groups).items():
        rows = [run.split_metrics(split) for group in shown for run in group.runs]
        metric = METRICS["accuracy" if "accuracy" in map(split_metric_name, rows) else "exact_match"]
        lines = group_lines(shown, partial(_validation_curve, split=split))
        charts.append(Chart(f"Validation, {display_name}", lines, "step", f"{metric}, %", is_percent=True))
    return [chart for chart in charts if chart.lines]


def _validation_curve(run: Records, split: str) -> Curve:
    lines = run.split_metrics(split)
    return metric_curve(lines, split_metric_name(lines))


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


def metric_curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """The steps and values of one metric where it is finite; those of exact match with the logged intervals over
    questions."""
    by_step = {float(line["step"]): line for line in lines if line.get(name) is not None and isfinite(line[name])}
    steps, found = list(by_step), list(by_step.values())
    values, *ends = (
        [float(line[key]) for line in found] if all(key in line for line in found) else None
        for key in (name, "low", "high")
    )
    return Curve(steps, values or [], *(ends if name == "exact_match" and all(ends) else ()))


def group_lines(
    groups: Sequence[Group],
    curve: Callable[[Records], Curve],
    align: Callable[[Sequence[Curve]], Sequence[Curve]] = list,
) -> list[ChartLine]:
    """For each group that has curves their median as a line with their range as a band, of a single one its interval.

    `align` brings the curves of several seeds to shared x values."""
    styles = group_styles(groups)
    lines = []
    for group in groups:
        curves = [found for run in group.runs if (found := curve(run)).x]
        if curves:
            lines.append(_band_line(group.label, align(curves), styles[group.label]))
    return lines


def _band_line(label: str, curves: Sequence[Curve], style: Style) -> ChartLine:
    band: SeedBand = seed_band([(curve.x, curve.y) for curve in curves])
    last = len(band.steps) - 1
    indices = sorted({round(i * last / (MAX_CURVE_POINTS - 1)) for i in range(MAX_CURVE_POINTS)} & set(range(last + 1)))
    ends = (band.low, band.high) if band.count > 1 else (curves[0].low, curves[0].high)
    low, high = (None if end is None else [float(end[i]) for i in indices] for end in ends)
    steps, middle = band.steps[indices].tolist(), band.median[indices].tolist()
    return ChartLine(label, steps, middle, low, high, style=style, suffix=f"{band.count} seeds" * (band.count > 1))
