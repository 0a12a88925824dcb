"""Curves of language modeling runs: validation loss by step, by operations and by time, bands over seeds."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate
from math import log10
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.reports.charts import Chart, ChartLine, styles
from numerate.reports.drawing import panels, power
from numerate.reports.groups import Group
from numerate.reports.limits import drawn, left_out
from numerate.reports.records import Records
from numerate.reports.sections import banded, series, trained_once, training_charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[list[float], list[float]]


def validation(run: Records) -> list[Mapping[str, Any]]:
    """The lines about validation text, each step once."""
    return [line for line in run.split("development") if "perplexity" in line]


def by_step(run: Records) -> Curve:
    """Validation loss by step."""
    return series(validation(run), "loss")


def by_operations(run: Records) -> Curve:
    """Validation loss by floating-point operations of training, where known."""
    steps, values = by_step(run)
    at = {float(line["step"]): float(line["flops"]) for line in run.training() if "flops" in line}
    return _moved(steps, values, at)


def by_time(run: Records) -> Curve:
    """Validation loss by minutes of training from logged speeds, without evaluations and pauses."""
    steps, values = by_step(run)
    speeds = {float(line["step"]): float(line["tokens_per_second"]) for line in run.timings if _has_speed(line)}
    tokens = {float(line["step"]): float(line["tokens"]) for line in run.training() if "tokens" in line}
    order = sorted(tokens)
    if not speeds or not order:
        return [], []
    usual = median(speeds.values())  # of the first line of a start, whose speed is not known
    parts = [
        (tokens[step] - (tokens[before] if before is not None else 0.0)) / speeds.get(step, usual) / 60
        for before, step in zip([None, *order], order, strict=False)
    ]
    return _moved(steps, values, dict(zip(order, accumulate(parts), strict=True)))


def _has_speed(line: Mapping[str, Any]) -> bool:
    return bool(line.get("tokens_per_second"))


def _moved(steps: Sequence[float], values: Sequence[float], at: dict[float, float]) -> Curve:
    """Values over another axis than steps, interpolated linearly between known steps, starting at 0."""
    if not at:
        return [], []
    at = {0.0: 0.0} | at
    known = sorted(at)
    kept = [i for i, step in enumerate(steps) if bisect_right(known, step) and step <= known[-1]]
    moved = np.interp([steps[i] for i in kept], known, [at[step] for step in known])
    return moved.tolist(), [values[i] for i in kept]


def charts(groups: Sequence[Group]) -> list[Chart]:
    """Validation loss by step and, of several groups, by operations and by time, where known."""
    shown = drawn(trained_once(groups))
    styled = styles([group.label for group in shown])
    flops = [by_operations(run)[0] for group in shown for run in group.runs]
    unit = 3 * int(log10(max((max(steps) for steps in flops if steps), default=1.0)) // 3)
    ways: list[tuple[str, Callable[[Records], Curve], str, float]] = [
        ("Validation loss by step", by_step, "step", 1.0),
        (
            "... by operations",
            by_operations,
            f"10{power(unit).removeprefix('10')} floating-point operations",
            10.0**unit,
        ),
        ("... by time", by_time, "minutes of training", 1.0),
    ]
    found = []
    for title, along, words, scale in ways if len(shown) > 1 else ways[:1]:
        lines: list[ChartLine] = []
        for group in shown:
            curves = [([x / scale for x in at], values) for at, values in _found(group, along)]
            curves = _on_one_axis(curves) if len(curves) > 1 and along is not by_step else curves
            lines += banded(group.label, curves, styled[group.label])
        found.append(Chart(title, lines, words, "validation loss, nats per token", zoom=True))
    return [chart for chart in found if chart.lines]


def curves(groups: Sequence[Group]) -> str:
    """The panels of validation and training curves as HTML; nothing where nothing was measured."""
    losses = [replace(chart, log=False, zoom=True) for chart in training_charts(groups)[:1] if not chart.shares]
    drawing = panels([*charts(groups), *losses])
    once = trained_once(groups)
    note = "Validation loss: over the same part of the held-out text each time; by it the best checkpoint is chosen."
    caption = escape(" ".join([note, BANDS, left_out(once, drawn(once))]).strip())
    return f"{drawing}<figcaption>{caption}</figcaption>" if drawing else ""


BANDS = (
    "Lines: medians over seeds; bands: lowest to highest seed. The vertical axis begins above 0. Time is that of the "
    "machine that trained, evaluations left out."
)


def _found(group: Group, along: Callable[[Records], Curve]) -> list[Curve]:
    """The non-empty curves of its runs."""
    return [curve for run in group.runs if (curve := along(run))[0]]


def _on_one_axis(found: Sequence[Curve]) -> list[Curve]:
    """Curves interpolated at the x values of the first within the range of all, as times differ between seeds."""
    low, high = max(one[0][0] for one in found), min(one[0][-1] for one in found)
    shared = [x for x in found[0][0] if low <= x <= high]
    return [(shared, np.interp(shared, *one).tolist()) for one in found] if shared else list(found[:1])


def curves_figure(groups: Sequence[Group]) -> "Figure":
    """The same for a paper: validation loss by step, by operations and by time, side by side."""
    from numerate.reports.figures import charts_figure

    return charts_figure(charts(groups), note=BANDS)
