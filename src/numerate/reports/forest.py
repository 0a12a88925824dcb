"""Forest plots: per group and region the interquartile mean over seeds, its interval, and every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from numerate.errors import UserError
from numerate.reports.colour import SERIES
from numerate.reports.counts import measure_words
from numerate.reports.drawing import strip, strip_axis, table
from numerate.reports.estimates import FEW, Estimate, Seeds, seeds_of
from numerate.reports.figures import QUIET, WIDTH, blank, styled
from numerate.reports.grid import REGIONS, bracket, percent
from numerate.reports.groups import CONVERGED, Group, region_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_GROUPS = 80
"""Rows of a forest plot on a page."""


def forest(groups: Sequence[Group]) -> str:
    """The forest plot as HTML with its numbers below; "" where no group has several seeds."""
    found = [seeds_of(group) for group in groups]
    if all(one.count < 2 for one in found):
        return ""
    names = [name for name in REGIONS if any(name in one.regions for one in found)]
    rated, words = any(one.converged is not None for one in found), region_words(groups)
    header = ["", *(["converged"] * rated), *(f"{words[name]}{_floor(groups, name)}" for name in names)]
    rows = [_row(i if len(found) <= len(SERIES) else 0, one, names, rated) for i, one in enumerate(found[:MOST_GROUPS])]
    rows.append(["", *[strip_axis()] * (len(header) - 1)])
    more = (
        f"<p class='quiet'>{len(found) - MOST_GROUPS} more groups are in the table.</p>"
        if len(found) > MOST_GROUPS
        else ""
    )
    return (
        f'<div class="forest">{table([escape(name) for name in header], rows)}</div>{more}'
        f"<figcaption>{escape(forest_words(found))}</figcaption>"
        f"<details><summary>The numbers</summary>{_numbers(found, words)}</details>"
    )


def _floor(groups: Sequence[Group], name: str) -> str:
    """The floor of a region, where all groups have the same."""
    known = {found[name].floor for group in groups for found in group.regions if name in found}
    floor = known.pop() if len(known) == 1 else None
    return "" if floor is None else f" (floor {percent(floor)} %)"


def _row(colour: int, one: Seeds, names: Sequence[str], rated: bool) -> list[str]:
    seeds = f"{one.count} seed{'s' * (one.count != 1)}"
    cells = [f'{escape(one.label)}<br><span class="quiet">{seeds}</span>']
    if rated:
        rate = one.converged
        text = f'{one.converged_text} <span class="quiet">{bracket(rate.low, rate.high, 0)}</span>' if rate else ""
        cells.append(
            strip(rate.value, (rate.low, rate.high), colour=colour, name=one.converged_text) + _under(text)
            if rate
            else ""
        )
    for name in names:
        estimate = one.regions.get(name)
        cells.append(_cell(estimate, colour) if estimate else "")
    return cells


def _under(text: str) -> str:
    return f'<div class="under">{text}</div>'


def _cell(estimate: Estimate, colour: int) -> str:
    """A strip with its number below: `97.2 [93.1, 99]`."""
    words = estimate.words
    head, _, rest = words.replace(",", ", ").replace(",  ", ", ").partition(" ")
    label = _under(
        f'{escape(head)} <span class="quiet">{escape(rest)}</span>'
        if estimate.values
        else f'<span class="quiet">{escape(words)}</span>'
    )
    if not estimate.values:
        return strip(None, None, colour=colour, missed=estimate.missed, name=words) + label
    several = len(estimate.values) > 1
    return (
        strip(
            estimate.middle,
            estimate.interval if several else None,
            colour=colour,
            solid=estimate.enough,
            tick=estimate.median if several else None,
            each=estimate.values if several else (),
            missed=estimate.missed,
            name=_tip(estimate),
        )
        + label
    )


def _tip(estimate: Estimate) -> str:
    lines = [f"interquartile mean {percent(estimate.middle)} %", f"median {percent(estimate.median)} %"]
    if estimate.enough:
        lines = [
            f"{line} {bracket(*span)}"
            for line, span in zip(lines, (estimate.interval, estimate.median_interval), strict=True)
        ]
    lines.append(f"{len(estimate.values)} seed{'s' * (len(estimate.values) != 1)}: " + _some(estimate.values))
    if estimate.missed:
        lines.append("did not converge: " + _some(estimate.missed))
    return "\n".join(lines)


def _some(values: Sequence[float], most: int = 12) -> str:
    return ", ".join(percent(value) for value in values[:most]) + (", ..." if len(values) > most else "")


def forest_words(found: Sequence[Seeds]) -> str:
    """The caption of a forest plot."""
    counts = sorted({len(e.values) for one in found for e in one.regions.values() if len(e.values) > 1})
    parts = ["Dot: the interquartile mean over seeds; upright line: the median; marks below: single seeds."]
    if counts and counts[-1] >= FEW:
        parts.append(
            "Thick line: the 95 % bootstrap interval of the interquartile mean, of 2,000 resamples of seeds: over "
            "seeds, not over questions."
        )
        if any(FEW <= count < 10 for count in counts):
            parts.append("From fewer than ten seeds it is still somewhat too narrow.")
    if counts and counts[0] < FEW:
        parts.append(
            f"Thin line: the lowest to the highest of fewer than {FEW} seeds, of which an interval would be much too "
            "narrow."
        )
    if any(one.converged is not None for one in found):
        parts.append(
            f"Converged: the share of seeds with at least {percent(CONVERGED)} % in distribution, with Wilson's "
            "95 % interval over seeds."
        )
    if any(estimate.missed for one in found for estimate in one.regions.values()):
        parts.append("Crosses: seeds that did not converge; they count in distribution only.")
    return " ".join(parts)


def _numbers(found: Sequence[Seeds], words: Mapping[str, str]) -> str:
    header = ["group", "region", "seeds", "median, %", "interquartile mean, %", "lowest to highest"]
    rows = []
    for one in found:
        for name, estimate in one.regions.items():
            values = estimate.values
            row = [escape(one.label), words[name], f"{len(values)}"]
            if values:
                spans = [f" {bracket(*span)}" for span in (estimate.median_interval, estimate.interval)]
                centers = (estimate.median, estimate.middle)
                row += [f"{percent(v)}{span * estimate.enough}" for v, span in zip(centers, spans, strict=True)]
                row.append(f"{percent(min(values))} to {percent(max(values))}")
            else:
                row += ["", "", ""]
            rows.append(row)
    return table(header, rows, numbers=range(2, 6))


def forest_figure(groups: Sequence[Group]) -> Figure:
    """The forest plot for a paper: a panel for each region, the groups below each other.

    Raises `UserError` where nothing was evaluated, or every group has one seed."""
    found = [seeds_of(group) for group in groups]
    names = [name for name in REGIONS if any(name in one.regions for one in found)]
    if not names:
        raise UserError("intervals: nothing to draw; evaluate the runs first")
    if all(one.count < 2 for one in found):
        raise UserError("intervals: every group has one seed, of which there is no interval; train more: seeds=5")
    with styled():
        rated = any(one.converged is not None for one in found)
        titles = ["converged seeds"] * rated + [region_words(groups)[name] for name in names]
        figure = blank(min(WIDTH, 1.6 + 1.75 * len(titles)), 0.95 + 0.3 * len(found))
        panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        for i, one in enumerate(found):
            colour = SERIES[i % len(SERIES)] if len(found) <= len(SERIES) else SERIES[0]
            if one.converged is not None:
                rate = one.converged
                panels[0].plot([100 * rate.low, 100 * rate.high], [i, i], color=colour, linewidth=2)
                panels[0].plot([100 * rate.value], [i], "o", color=colour, markersize=4)
            for axes, name in zip(panels[rated:], names, strict=True):
                if name in one.regions:
                    _draw(axes, i, one.regions[name], colour)
        for axes, title in zip(panels, titles, strict=True):
            axes.set(xlim=(-4, 104), ylim=(len(found) - 0.4, -0.6))
            axes.set_title(title)
            axes.set_xticks([0, 25, 50, 75, 100])
            axes.grid(axis="x", color="#dddddd", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.tick_params(left=False)
            axes.spines["left"].set_visible(False)
        panels[0].set_yticks(range(len(found)), [f"{one.label} ({one.converged_text or one.count})" for one in found])
        if rated:
            panels[0].set_xlabel("% of seeds")
        for axes in panels[rated:]:
            axes.set_xlabel(f"{measure_words(groups)}, %")
        words = "\n".join(wrap(forest_words(found), min(130, 30 * (len(titles) + 1))))
        figure.supxlabel(words, fontsize=6.5, color=QUIET, x=0.01, ha="left")
    return figure


def _draw(axes: Axes, i: int, estimate: Estimate, colour: str) -> None:
    below = i + 0.27
    axes.plot(
        [100 * value for value in estimate.missed], [below] * len(estimate.missed), "x", color="#8a8d95", markersize=3
    )
    if not estimate.values:
        return
    if len(estimate.values) > 1:
        low, high = estimate.interval
        axes.plot([100 * low, 100 * high], [i, i], color=colour, linewidth=2 if estimate.enough else 0.7)
        axes.plot([100 * estimate.median] * 2, [i - 0.17, i + 0.17], color=colour, linewidth=0.9)
        axes.plot(
            [100 * value for value in estimate.values], [below] * len(estimate.values), "|", color=colour, markersize=4
        )
    axes.plot([100 * estimate.middle], [i], "o", color=colour, markersize=4)
