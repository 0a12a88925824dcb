"""Curves of runs on running text: validation loss by step, by operations and by time, bands over seeds."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.evaluation.statistics import seeds_band
from numerate.reports.drawing import Line, chart
from numerate.reports.groups import Group
from numerate.reports.limits import drawn, left_out
from numerate.reports.overview import dashed
from numerate.reports.records import Records
from numerate.reports.sections import banded, series, trained_once

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
    """Validation loss by floating-point operations of training, as far as they are known at its steps."""
    steps, values = by_step(run)
    at = {float(line["step"]): float(line["operations"]) for line in run.training() if "operations" in line}
    return _moved(steps, values, at)


def by_time(run: Records) -> Curve:
    """Validation loss by minutes of training, by the speed that was logged: evaluations and pauses are not in it."""
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
    """Values at another measure of how far training is: by steps in proportion between two that are known, the first
    of which is the beginning."""
    if not at:
        return [], []
    at = {0.0: 0.0} | at
    known = sorted(at)
    kept = [i for i, step in enumerate(steps) if bisect_right(known, step) and step <= known[-1]]
    places = np.interp([steps[i] for i in kept], known, [at[step] for step in known])
    return places.tolist(), [values[i] for i in kept]


def curves(groups: Sequence[Group]) -> str:
    """The panels of validation and training curves as HTML; nothing where nothing was measured."""
    once = trained_once(groups)
    shown = drawn(once)
    several = len(shown) > 1
    panels = [("Validation loss by step", _chart(shown, by_step, "step"))]
    if several:
        panels.append(("... by operations", _chart(shown, by_operations, "floating-point operations")))
        panels.append(("... by time", _chart(shown, by_time, "minutes of training, on the machine that trained it")))
    lines: list[Line] = []
    for i, group in enumerate(shown):
        losses = [series(run.training(), "loss") for run in group.runs if run.training()]
        lines += banded(group.label, losses, i, dashed=dashed(i))
    panels.append(("Training loss", chart(lines, x_label="step", y_label="nats per token", zoom=True)))
    told = [f"<figure><h3>{title}</h3>{drawing}</figure>" for title, drawing in panels if drawing]
    if not told:
        return ""
    note = "Validation loss: over the same part of the held-out text each time; by it the best checkpoint is chosen. "
    note += "Bands: lowest to highest seed. " * any(len(group.runs) > 1 for group in shown)
    note += "The vertical axis begins above 0. "
    note += left_out(once, shown)
    return f'<div class="panels">{"".join(told)}</div><figcaption>{escape(note)}</figcaption>'


def _chart(groups: Sequence[Group], along: Callable[[Records], Curve], words: str) -> str:
    lines: list[Line] = []
    for i, group in enumerate(groups):
        found = _found(group, along)
        if len(found) > 1 and along is not by_step:
            found = _on_one_axis(found)
        lines += banded(group.label, found, i, dashed=dashed(i))
    return chart(lines, x_label=words, y_label="nats per token", zoom=True, name=f"validation loss by {words}")


def _found(group: Group, along: Callable[[Records], Curve]) -> list[Curve]:
    """The curves of its runs that are known."""
    return [curve for run in group.runs if (curve := along(run))[0]]


def _on_one_axis(found: Sequence[Curve]) -> list[Curve]:
    """Curves at the places of the first, as far as all of them go: times differ from seed to seed."""
    low, high = max(one[0][0] for one in found), min(one[0][-1] for one in found)
    places = [place for place in found[0][0] if low <= place <= high]
    return [(places, np.interp(places, *one).tolist()) for one in found] if places else list(found[:1])


def curves_figure(groups: Sequence[Group]) -> "Figure":
    """The same for a paper: validation loss by step, by operations and by time, side by side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = drawn(trained_once(groups))
    ways: list[tuple[Callable[[Records], Curve], str]] = [
        (by_step, "step"),
        (by_operations, "floating-point operations"),
        (by_time, "minutes of training"),
    ]
    each = [(words, along, [(group, _found(group, along)) for group in shown]) for along, words in ways]
    drawn_ways = [way for way in each if any(found for _, found in way[2])]  # of a short run not all is known
    figure = Figure(figsize=(11 if len(drawn_ways) > 2 else 1 + 4.5 * len(drawn_ways), 3.6), layout="constrained")
    for place, (words, along, lines) in enumerate(drawn_ways, 1):
        axes = figure.add_subplot(1, len(drawn_ways), place)
        highest: list[float] = []
        for i, (group, found) in enumerate(lines):
            if not found:
                continue
            band = seeds_band(_on_one_axis(found) if along is not by_step and len(found) > 1 else found)
            label = f"{group.label} ({len(found)} seeds)" if len(found) > 1 else group.label
            style, alone = "--" if dashed(i) else "-", "o" if len(band.steps) == 1 else ""
            axes.plot(band.steps, band.median, color=f"C{i}", label=label, linestyle=style, marker=alone)
            if band.count > 1:
                axes.fill_between(band.steps, band.low, band.high, color=f"C{i}", alpha=0.2, linewidth=0)
            late = band.steps >= band.steps[-1] / 10
            highest.append(float(band.median[late].max()))
        axes.set_xlabel(words)
        if along is by_step:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if highest:
            low, _ = axes.get_ylim()
            axes.set_ylim(low, max(highest) * 1.02)
    figure.axes[0].set_ylabel("validation loss, nats per token")
    figure.axes[0].legend(fontsize=8)
    return figure
