"""Forest plots: per group and region the interquartile mean over seeds, its interval, and every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from numerate.errors import UserError
from numerate.reports.colour import SERIES
from numerate.reports.counts import common_metric_label
from numerate.reports.drawing import html_table, strip_plot, strip_plot_axis
from numerate.reports.estimates import MIN_SEEDS, Estimate, GroupEstimates, estimate_group
from numerate.reports.figures import GREY, MAX_WIDTH_INCHES, figure_style, new_figure
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group, region_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = 80
"""Rows of a forest plot on a page."""


def forest_plot_html(groups: Sequence[Group]) -> str:
    """The forest plot as HTML with its numbers below; "" if no group has several seeds."""
    estimates = [estimate_group(group) for group in groups]
    if all(one.num_seeds < 2 for one in estimates):
        return ""
    names = [name for name in REGION_LABELS if any(name in one.regions for one in estimates)]
    has_convergence_rate, words = any(one.convergence_rate is not None for one in estimates), region_labels(groups)
    header = [
        "",
        *(["converged"] * has_convergence_rate),
        *(f"{words[name]}{_baseline(groups, name)}" for name in names),
    ]
    rows = [
        _row(i if len(estimates) <= len(SERIES) else 0, one, names, has_convergence_rate)
        for i, one in enumerate(estimates[:MAX_ROWS])
    ]
    rows.append(["", *[strip_plot_axis()] * (len(header) - 1)])
    more = (
        f"<p class='quiet'>{len(estimates) - MAX_ROWS} more groups are in the table.</p>"
        if len(estimates) > MAX_ROWS
        else ""
    )
    return (
        f'<div class="forest">{html_table([escape(name) for name in header], rows)}</div>{more}'
        f"<figcaption>{escape(forest_caption(estimates))}</figcaption>"
        f"<details><summary>The numbers</summary>{_numbers(estimates, words)}</details>"
    )


def _baseline(groups: Sequence[Group], name: str) -> str:
    """The baseline of a region, where all groups have the same."""
    known = {found[name].baseline for group in groups for found in group.region_scores if name in found}
    baseline = known.pop() if len(known) == 1 else None
    return "" if baseline is None else f" (baseline {format_percent(baseline)} %)"


def _row(color: int, one: GroupEstimates, names: Sequence[str], rated: bool) -> list[str]:
    seeds = f"{one.num_seeds} seed{'s' * (one.num_seeds != 1)}"
    cells = [f'{escape(one.label)}<br><span class="quiet">{seeds}</span>']
    if rated:
        rate = one.convergence_rate
        text = (
            f'{one.converged_text} <span class="quiet">{format_interval(rate.low, rate.high, 0)}</span>' if rate else ""
        )
        cells.append(
            strip_plot(rate.value, (rate.low, rate.high), color=color, label=one.converged_text) + _below_html(text)
            if rate
            else ""
        )
    for name in names:
        estimate = one.regions.get(name)
        cells.append(_cell(estimate, color) if estimate else "")
    return cells


def _below_html(text: str) -> str:
    return f'<div class="under">{text}</div>'


def _cell(estimate: Estimate, color: int) -> str:
    """A strip with its number below: `97.2 [93.1, 99]`."""
    words = estimate.text
    head, _, rest = words.replace(",", ", ").replace(",  ", ", ").partition(" ")
    label = _below_html(
        f'{escape(head)} <span class="quiet">{escape(rest)}</span>'
        if estimate.values
        else f'<span class="quiet">{escape(words)}</span>'
    )
    if not estimate.values:
        return strip_plot(None, None, color=color, unconverged_values=estimate.unconverged_values, label=words) + label
    several = len(estimate.values) > 1
    return (
        strip_plot(
            estimate.iqm,
            estimate.interval if several else None,
            color=color,
            is_thick=estimate.has_enough_seeds,
            tick=estimate.median if several else None,
            seed_values=estimate.values if several else (),
            unconverged_values=estimate.unconverged_values,
            label=_tooltip(estimate),
        )
        + label
    )


def _tooltip(estimate: Estimate) -> str:
    lines = [f"interquartile mean {format_percent(estimate.iqm)} %", f"median {format_percent(estimate.median)} %"]
    if estimate.has_enough_seeds:
        lines = [
            f"{line} {format_interval(*span)}"
            for line, span in zip(lines, (estimate.interval, estimate.median_interval), strict=True)
        ]
    lines.append(f"{len(estimate.values)} seed{'s' * (len(estimate.values) != 1)}: " + _format_values(estimate.values))
    if estimate.unconverged_values:
        lines.append("did not converge: " + _format_values(estimate.unconverged_values))
    return "\n".join(lines)


def _format_values(values: Sequence[float], most: int = 12) -> str:
    return ", ".join(format_percent(value) for value in values[:most]) + (", ..." if len(values) > most else "")


def forest_caption(estimates: Sequence[GroupEstimates]) -> str:
    """The caption of a forest plot."""
    counts = sorted({len(e.values) for one in estimates for e in one.regions.values() if len(e.values) > 1})
    parts = ["Dot: the interquartile mean over seeds; upright line: the median; marks below: single seeds."]
    if counts and counts[-1] >= MIN_SEEDS:
        parts.append(
            "Thick line: the 95 % bootstrap interval of the interquartile mean, of 2,000 resamples of seeds: over "
            "seeds, not over questions."
        )
        if any(MIN_SEEDS <= count < 10 for count in counts):
            parts.append("From fewer than ten seeds it is still somewhat too narrow.")
    if counts and counts[0] < MIN_SEEDS:
        parts.append(
            f"Thin line: the lowest to the highest of fewer than {MIN_SEEDS} seeds, of which an interval would be much "
            "too narrow."
        )
    if any(one.convergence_rate is not None for one in estimates):
        parts.append(
            f"Converged: the share of seeds with at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution, "
            "with Wilson's 95 % interval over seeds."
        )
    if any(estimate.unconverged_values for one in estimates for estimate in one.regions.values()):
        parts.append("Crosses: seeds that did not converge; they count in distribution only.")
    return " ".join(parts)


def _numbers(estimates: Sequence[GroupEstimates], words: Mapping[str, str]) -> str:
    header = ["group", "region", "seeds", "median, %", "interquartile mean, %", "lowest to highest"]
    rows = []
    for one in estimates:
        for name, estimate in one.regions.items():
            values = estimate.values
            row = [escape(one.label), words[name], f"{len(values)}"]
            if values:
                spans = [f" {format_interval(*span)}" for span in (estimate.median_interval, estimate.interval)]
                centers = (estimate.median, estimate.iqm)
                row += [
                    f"{format_percent(v)}{span * estimate.has_enough_seeds}"
                    for v, span in zip(centers, spans, strict=True)
                ]
                row.append(f"{format_percent(min(values))} to {format_percent(max(values))}")
            else:
                row += ["", "", ""]
            rows.append(row)
    return html_table(header, rows, number_columns=range(2, 6))


def forest_figure(groups: Sequence[Group]) -> Figure:
    """The forest plot for a paper: a panel for each region, the groups below each other.

    Raises `UserError` if nothing was evaluated, or every group has one seed."""
    estimates = [estimate_group(group) for group in groups]
    names = [name for name in REGION_LABELS if any(name in one.regions for one in estimates)]
    if not names:
        raise UserError("intervals: nothing to draw; evaluate the runs first")
    if all(one.num_seeds < 2 for one in estimates):
        raise UserError("intervals: needs groups with several seeds; train more with seeds=5")
    with figure_style():
        has_convergence_rate = any(one.convergence_rate is not None for one in estimates)
        titles = ["converged seeds"] * has_convergence_rate + [region_labels(groups)[name] for name in names]
        figure = new_figure(min(MAX_WIDTH_INCHES, 1.6 + 1.75 * len(titles)), 0.95 + 0.3 * len(estimates))
        panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        for i, one in enumerate(estimates):
            color = SERIES[i % len(SERIES)] if len(estimates) <= len(SERIES) else SERIES[0]
            if one.convergence_rate is not None:
                rate = one.convergence_rate
                panels[0].plot([100 * rate.low, 100 * rate.high], [i, i], color=color, linewidth=2)
                panels[0].plot([100 * rate.value], [i], "o", color=color, markersize=4)
            for axes, name in zip(panels[has_convergence_rate:], names, strict=True):
                if name in one.regions:
                    _draw(axes, i, one.regions[name], color)
        for axes, title in zip(panels, titles, strict=True):
            axes.set(xlim=(-4, 104), ylim=(len(estimates) - 0.4, -0.6))
            axes.set_title(title)
            axes.set_xticks([0, 25, 50, 75, 100])
            axes.grid(axis="x", color="#dddddd", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.tick_params(left=False)
            axes.spines["left"].set_visible(False)
        panels[0].set_yticks(
            range(len(estimates)), [f"{one.label} ({one.converged_text or one.num_seeds})" for one in estimates]
        )
        if has_convergence_rate:
            panels[0].set_xlabel("% of seeds")
        for axes in panels[has_convergence_rate:]:
            axes.set_xlabel(f"{common_metric_label(groups)}, %")
        words = "\n".join(wrap(forest_caption(estimates), min(130, 30 * (len(titles) + 1))))
        figure.supxlabel(words, fontsize=6.5, color=GREY, x=0.01, ha="left")
    return figure


def _draw(axes: Axes, i: int, estimate: Estimate, color: str) -> None:
    below = i + 0.27
    axes.plot(
        [100 * value for value in estimate.unconverged_values],
        [below] * len(estimate.unconverged_values),
        "x",
        color="#8a8d95",
        markersize=3,
    )
    if not estimate.values:
        return
    if len(estimate.values) > 1:
        low, high = estimate.interval
        axes.plot([100 * low, 100 * high], [i, i], color=color, linewidth=2 if estimate.has_enough_seeds else 0.7)
        axes.plot([100 * estimate.median] * 2, [i - 0.17, i + 0.17], color=color, linewidth=0.9)
        axes.plot(
            [100 * value for value in estimate.values], [below] * len(estimate.values), "|", color=color, markersize=4
        )
    axes.plot([100 * estimate.iqm], [i], "o", color=color, markersize=4)
