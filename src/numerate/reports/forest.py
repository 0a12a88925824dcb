"""Forest plots: per group and region the interquartile mean over seeds, its interval, and every seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from numerate.evaluation.statistics import Proportion, interquartile_mean, stratified_bootstrap_interval, success_rate
from numerate.reports.colour import SERIES, Style
from numerate.reports.content import Content, Note
from numerate.reports.counts import common_metric_label
from numerate.reports.figure import Axis, Figure, Mark, PointChart, PointRow
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group, region_labels

MAX_ROWS = 80
"""Rows of a forest plot on a page."""

MIN_SEEDS = 5
"""With fewer seeds a bootstrap interval is much too narrow; the lowest and the highest seed are shown instead."""


@dataclass(frozen=True)
class Estimate:
    """One number from several seeds. `values` are those of the seeds that count, `unconverged_values` those of seeds
    that did not converge and do not count."""

    values: tuple[float, ...]
    unconverged_values: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return median(self.values)

    @cached_property
    def iqm(self) -> float:
        """The interquartile mean, kept among the values where rounding would put it a last digit outside."""
        return min(max(interquartile_mean(self.values), min(self.values)), max(self.values))

    @property
    def has_enough_seeds(self) -> bool:
        """Whether there are enough seeds for an interval."""
        return len(self.values) >= MIN_SEEDS

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the interquartile mean over seeds, deterministic in the values; their range
        where they are few."""
        if not self.has_enough_seeds:
            return min(self.values), max(self.values)
        return stratified_bootstrap_interval([self.values], "report")

    @property
    def text(self) -> str:
        """`97.2 [93.1, 99]`, with few seeds `97.2, 93.1 to 99`, with one `97.2, one seed`; in per cent."""
        if not self.values:
            return "none converged" if self.unconverged_values else ""
        if self.has_enough_seeds:
            return f"{format_percent(self.iqm)} {format_interval(*self.interval)}"
        ends = " to ".join(map(format_percent, self.interval)) if len(self.values) > 1 else "one seed"
        return f"{format_percent(self.iqm)}, {ends}"


@dataclass(frozen=True)
class GroupEstimates:
    """The seeds of one group: how many converged (None if that was not measured), and the estimates by region."""

    group: Group
    converged_group: Group
    convergence_rate: Proportion | None
    regions: dict[str, Estimate]

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def num_seeds(self) -> int:
        """How many seeds were evaluated."""
        return len(self.group.evaluated_cells)

    @property
    def converged_text(self) -> str:
        """`4/5`: the seeds that converged of all."""
        rate = self.convergence_rate
        return "" if rate is None else f"{round(rate.value * rate.count)}/{rate.count}"


def estimate_group(group: Group) -> GroupEstimates:
    """The estimates of a group: over all seeds in distribution, and over the converged ones out of distribution."""
    converged = group.converged_group
    trained = [share for _, share in group.in_distribution_scores]
    regions: dict[str, Estimate] = {}
    for name in REGION_LABELS:
        scores = [(run, found[name].score.value) for run, found in group.region_scores_by_run if name in found]
        counts = [name == "in_distribution" or run in converged.runs for run, _ in scores]
        values = tuple(value for (_, value), count in zip(scores, counts, strict=True) if count)
        others = tuple(value for (_, value), count in zip(scores, counts, strict=True) if not count)
        regions |= {name: Estimate(values, others)} if scores else {}
    return GroupEstimates(group, converged, success_rate(trained, CONVERGENCE_THRESHOLD) if trained else None, regions)


def forest_content(groups: Sequence[Group]) -> Content:
    """The forest plot of a page; empty if no group has several seeds."""
    figure = forest_figure(groups[:MAX_ROWS] if len(groups) > MAX_ROWS else groups)
    if not figure.panels:
        return []
    more = (
        [Note(f"{len(groups) - MAX_ROWS} more groups are in the table of regions.")] if len(groups) > MAX_ROWS else []
    )
    return [figure, *more]


def forest_figure(groups: Sequence[Group]) -> Figure:
    """A row for each group and a panel for each region; no panels without several seeds of any group."""
    estimates = [estimate_group(group) for group in groups]
    if all(one.num_seeds < 2 for one in estimates):
        return Figure(())
    words, metric = region_labels(groups), common_metric_label(groups)
    styles = [Style(i if len(estimates) <= len(SERIES) else 0, 0) for i in range(len(estimates))]
    panels = []
    if any(one.convergence_rate is not None for one in estimates):
        marks = [_convergence_mark(one, style) for one, style in zip(estimates, styles, strict=True)]
        panels.append(_panel("converged", "% of seeds", estimates, marks))
    for name in REGION_LABELS:
        if any(name in one.regions for one in estimates):
            marks = [_mark(one.regions.get(name), style) for one, style in zip(estimates, styles, strict=True)]
            panels.append(_panel(f"{words[name]}{_baseline(groups, name)}", f"{metric}, %", estimates, marks))
    return Figure(panels, columns=len(panels), caption=_caption(estimates))


def _panel(title: str, label: str, estimates: Sequence[GroupEstimates], marks: Sequence[Sequence[Mark]]) -> PointChart:
    rows = [
        PointRow(
            one.label, inside, f"{one.converged_text} converged" if one.converged_text else f"{one.num_seeds} seeds"
        )
        for one, inside in zip(estimates, marks, strict=True)
    ]
    return PointChart(title, rows, Axis.percent(label, 0.25))


def _convergence_mark(one: GroupEstimates, style: Style) -> list[Mark]:
    rate = one.convergence_rate
    if rate is None:
        return []
    note = format_interval(rate.low, rate.high, 0)
    return [
        Mark(style, rate.value, (rate.low, rate.high), text=one.converged_text, note=note, tooltip=one.converged_text)
    ]


def _mark(estimate: Estimate | None, style: Style) -> list[Mark]:
    """The mark of a region with its number below: `97.2 [93.1, 99]`."""
    if estimate is None:
        return []
    crosses = estimate.unconverged_values
    if not estimate.values:
        return [Mark(style, unconverged_seeds=crosses, note=estimate.text, text=" ", tooltip=estimate.text)]
    has_several = len(estimate.values) > 1
    text, _, note = estimate.text.partition(" ")
    return [
        Mark(
            style,
            estimate.iqm,
            estimate.interval if has_several else None,
            estimate.has_enough_seeds,
            estimate.median if has_several else None,
            estimate.values if has_several else (),
            crosses,
            text,
            note,
            _tooltip(estimate),
        )
    ]


def _baseline(groups: Sequence[Group], name: str) -> str:
    """The baseline of a region, where all groups have the same."""
    known = {found[name].baseline for group in groups for found in group.region_scores if name in found}
    baseline = known.pop() if len(known) == 1 else None
    return "" if baseline is None else f" (baseline {format_percent(baseline)} %)"


def _tooltip(estimate: Estimate) -> str:
    ends = f" {format_interval(*estimate.interval)}" * estimate.has_enough_seeds
    lines = [f"interquartile mean {format_percent(estimate.iqm)} %{ends}"]
    lines.append(f"median {format_percent(estimate.median)} %")
    lines.append(f"{len(estimate.values)} seed{'s' * (len(estimate.values) != 1)}: {_join_percents(estimate.values)}")
    if estimate.unconverged_values:
        lines.append(f"did not converge: {_join_percents(estimate.unconverged_values)}")
    return "\n".join(lines)


def _join_percents(values: Sequence[float], most: int = 12) -> str:
    return ", ".join(map(format_percent, values[:most])) + ", ..." * (len(values) > most)


def _caption(estimates: Sequence[GroupEstimates]) -> str:
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
