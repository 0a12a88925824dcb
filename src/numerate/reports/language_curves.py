"""Curves of language modeling runs: validation loss by step, by operations and by time, bands over seeds."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import log10
from statistics import median
from typing import Any

import numpy as np

from numerate.reports.content import Content
from numerate.reports.figure import Chart, Figure, power_of_ten
from numerate.reports.groups import Group, unique_trainings
from numerate.reports.limits import groups_to_draw, left_out_note
from numerate.reports.records import Records
from numerate.reports.training import Curve, group_lines, metric_curve, training_charts


def validation_metrics(run: Records) -> list[Mapping[str, Any]]:
    """The lines about validation text, each step once."""
    return [line for line in run.split_metrics("validation") if "perplexity" in line]


def loss_by_step(run: Records) -> Curve:
    """Validation loss by step."""
    return metric_curve(validation_metrics(run), "loss")


def loss_by_flops(run: Records) -> Curve:
    """Validation loss by floating-point operations of training, if known."""
    steps, values, *_ = loss_by_step(run)
    at = {float(line["step"]): float(line["flops"]) for line in run.training_metrics() if "flops" in line}
    return _change_x_axis(steps, values, at)


def loss_by_time(run: Records) -> Curve:
    """Validation loss by minutes of training from logged speeds, without evaluations and pauses."""
    steps, values, *_ = loss_by_step(run)
    speeds = {float(x["step"]): float(x["tokens_per_second"]) for x in run.timings if x.get("tokens_per_second")}
    tokens = {float(line["step"]): float(line["tokens"]) for line in run.training_metrics() if "tokens" in line}
    order = sorted(tokens)
    if not speeds or not order:
        return Curve([], [])
    median_speed = median(speeds.values())  # of the first line of a start, whose speed is not known
    parts = [
        (tokens[step] - (tokens[before] if before is not None else 0.0)) / speeds.get(step, median_speed) / 60
        for before, step in zip([None, *order], order, strict=False)
    ]
    return _change_x_axis(steps, values, dict(zip(order, accumulate(parts), strict=True)))


def _change_x_axis(steps: Sequence[float], values: Sequence[float], x_by_step: dict[float, float]) -> Curve:
    """Values over another axis than steps, interpolated linearly between known steps, starting at 0."""
    if not x_by_step:
        return Curve([], [])
    x_by_step = {0.0: 0.0} | x_by_step
    known = sorted(x_by_step)
    indices = [i for i, step in enumerate(steps) if bisect_right(known, step) and step <= known[-1]]
    moved = np.interp([steps[i] for i in indices], known, [x_by_step[step] for step in known])
    return Curve(moved.tolist(), [values[i] for i in indices])


def validation_charts(groups: Sequence[Group]) -> list[Chart]:
    """Validation loss by step and, of several groups, by operations and by time, if known."""
    shown = groups_to_draw(unique_trainings(groups))
    flops = [loss_by_flops(run).x for group in shown for run in group.runs]
    unit = 3 * int(log10(max((max(steps) for steps in flops if steps), default=1.0)) // 3)
    flops_label = f"10{power_of_ten(unit).removeprefix('10')} floating-point operations"

    def in_units(run: Records) -> Curve:
        steps, values, *_ = loss_by_flops(run)
        return Curve([step / 10.0**unit for step in steps], values)

    axes = [("step", "step", group_lines(shown, loss_by_step))]
    if len(shown) > 1:
        axes.append(("operations", flops_label, group_lines(shown, in_units, _interpolate_to_common_axis)))
        axes.append(("time", "minutes of training", group_lines(shown, loss_by_time, _interpolate_to_common_axis)))
    y_label = "validation loss, nats per token"
    charts = [Chart(f"Validation loss by {by}", lines, label, y_label, zooms_to_data=True) for by, label, lines in axes]
    return [chart for chart in charts if chart.lines]


def curves_content(groups: Sequence[Group]) -> Content:
    """The panels of validation and training curves of a page."""
    losses = [
        replace(chart, is_log=False, zooms_to_data=True, notes=())
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
    low, high = max(one.x[0] for one in found), min(one.x[-1] for one in found)
    shared = [x for x in found[0].x if low <= x <= high]
    return [Curve(shared, np.interp(shared, one.x, one.y).tolist()) for one in found] if shared else list(found[:1])
