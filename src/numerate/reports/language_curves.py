"""Curves of language modeling runs: validation loss by step, by operations and by time, bands over seeds."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import log10
from statistics import median
from typing import Any

import numpy as np

from numerate.reports.colour import assign_styles
from numerate.reports.content import Content
from numerate.reports.figure import Chart, ChartLine, Figure, power_of_ten
from numerate.reports.groups import Group, unique_trainings
from numerate.reports.limits import groups_to_draw, left_out_note
from numerate.reports.records import Records
from numerate.reports.training import band_lines, metric_series, training_charts

Curve = tuple[list[float], list[float]]


def validation_metrics(run: Records) -> list[Mapping[str, Any]]:
    """The lines about validation text, each step once."""
    return [line for line in run.split_metrics("validation") if "perplexity" in line]


def loss_by_step(run: Records) -> Curve:
    """Validation loss by step."""
    return metric_series(validation_metrics(run), "loss")


def loss_by_flops(run: Records) -> Curve:
    """Validation loss by floating-point operations of training, if known."""
    steps, values = loss_by_step(run)
    at = {float(line["step"]): float(line["flops"]) for line in run.training_metrics() if "flops" in line}
    return _change_x_axis(steps, values, at)


def loss_by_time(run: Records) -> Curve:
    """Validation loss by minutes of training from logged speeds, without evaluations and pauses."""
    steps, values = loss_by_step(run)
    speeds = {float(x["step"]): float(x["tokens_per_second"]) for x in run.timings if x.get("tokens_per_second")}
    tokens = {float(line["step"]): float(line["tokens"]) for line in run.training_metrics() if "tokens" in line}
    order = sorted(tokens)
    if not speeds or not order:
        return [], []
    median_speed = median(speeds.values())  # of the first line of a start, whose speed is not known
    parts = [
        (tokens[step] - (tokens[before] if before is not None else 0.0)) / speeds.get(step, median_speed) / 60
        for before, step in zip([None, *order], order, strict=False)
    ]
    return _change_x_axis(steps, values, dict(zip(order, accumulate(parts), strict=True)))


def _change_x_axis(steps: Sequence[float], values: Sequence[float], x_by_step: dict[float, float]) -> Curve:
    """Values over another axis than steps, interpolated linearly between known steps, starting at 0."""
    if not x_by_step:
        return [], []
    x_by_step = {0.0: 0.0} | x_by_step
    known = sorted(x_by_step)
    indices = [i for i, step in enumerate(steps) if bisect_right(known, step) and step <= known[-1]]
    moved = np.interp([steps[i] for i in indices], known, [x_by_step[step] for step in known])
    return moved.tolist(), [values[i] for i in indices]


def validation_charts(groups: Sequence[Group]) -> list[Chart]:
    """Validation loss by step and, of several groups, by operations and by time, if known."""
    shown = groups_to_draw(unique_trainings(groups))
    styled = assign_styles([group.label for group in shown])
    flops = [loss_by_flops(run)[0] for group in shown for run in group.runs]
    unit = 3 * int(log10(max((max(steps) for steps in flops if steps), default=1.0)) // 3)
    flops_label = f"10{power_of_ten(unit).removeprefix('10')} floating-point operations"
    axes: list[tuple[str, Callable[[Records], Curve], str, float]] = [
        ("Validation loss by step", loss_by_step, "step", 1.0),
        ("Validation loss by operations", loss_by_flops, flops_label, 10.0**unit),
        ("Validation loss by time", loss_by_time, "minutes of training", 1.0),
    ]
    found = []
    for title, curve_function, label, scale in axes if len(shown) > 1 else axes[:1]:
        lines: list[ChartLine] = []
        for group in shown:
            curves = [curve for run in group.runs if (curve := curve_function(run))[0]]
            curves = [([x / scale for x in at], values) for at, values in curves]
            if len(curves) > 1 and curve_function is not loss_by_step:
                curves = _interpolate_to_common_axis(curves)
            lines += band_lines(group.label, curves, styled[group.label])
        found.append(Chart(title, lines, label, "validation loss, nats per token", zooms_to_data=True))
    return [chart for chart in found if chart.lines]


def curves_content(groups: Sequence[Group]) -> Content:
    """The panels of validation and training curves of a page."""
    losses = [
        replace(chart, is_log=False, zooms_to_data=True)
        for chart in training_charts(groups)[:1]
        if not chart.is_percent
    ]
    once = unique_trainings(groups)
    note = "Validation loss: over the same part of the held-out text each time; by it the best checkpoint is chosen."
    caption = " ".join([note, BANDS_NOTE, left_out_note(once, groups_to_draw(once))]).strip()
    return [Figure([*validation_charts(groups), *losses], caption=caption)]


BANDS_NOTE = (
    "Lines: medians over seeds; bands: range over seeds. The vertical axis begins above 0. Time is that of the "
    "machine that trained, evaluations left out."
)


def _interpolate_to_common_axis(found: Sequence[Curve]) -> list[Curve]:
    """Curves interpolated at the x values of the first within the range of all, as times differ between seeds."""
    low, high = max(one[0][0] for one in found), min(one[0][-1] for one in found)
    shared = [x for x in found[0][0] if low <= x <= high]
    return [(shared, np.interp(shared, *one).tolist()) for one in found] if shared else list(found[:1])
