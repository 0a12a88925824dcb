"""Forest plots: per group and region the interquartile mean over seeds, its interval, and every seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from numerate.evaluation.statistics import interquartile_mean, stratified_bootstrap_interval
from numerate.reports.colour import SERIES, Style
from numerate.reports.content import Content, Note
from numerate.reports.figure import Axis, Figure, Mark, PointChart, PointRow
from numerate.reports.grid import MAX_TOOLTIP_SEEDS, REGION_LABELS, format_counts, format_interval, format_percent
from numerate.reports.groups import (
    CONVERGENCE_THRESHOLD,
    Group,
    common_metric_label,
    different_cells_notes,
    have_unordered_cells,
    region_labels,
    with_shared_cells,
)
from numerate.reports.tasks import group_by_task

MAX_ROWS = 80
"""Rows of a forest plot on a page."""

MIN_SEEDS = 5
"""With fewer seeds a bootstrap interval is much too narrow; the lowest and the highest seed are shown instead."""

CAPTION = (
    "Dot: the interquartile mean over seeds; upright line: the median; marks below: single seeds. Thick line: the 95 % "
    "bootstrap interval of the interquartile mean, of 2,000 resamples of seeds (over seeds, not over questions; from "
    f"fewer than ten seeds it is somewhat too narrow). Thin line: the lowest to the highest of fewer than {MIN_SEEDS} "
    "seeds, or the 95 % interval over questions of one."
)


@dataclass(frozen=True)
class SeedSummary:
    """A number from several seeds. `values` are those of the seeds that count, `unconverged_values` those of seeds
    that did not converge and do not count; of a single seed `question_interval` is the 95 % interval over questions."""

    values: tuple[float, ...]
    unconverged_values: tuple[float, ...] = ()
    question_interval: tuple[float, float] | None = None

    @cached_property
    def iqm(self) -> float:
        """The interquartile mean, kept among the values where rounding would put it a last digit outside."""
        return float(min(max(interquartile_mean(self.values), min(self.values)), max(self.values)))

    @property
    def has_enough_seeds(self) -> bool:
        """Whether there are enough seeds for an interval."""
        return len(self.values) >= MIN_SEEDS

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the interquartile mean over seeds, deterministic in the values; their range
        where they are few, and over questions for a single one."""
        if len(self.values) == 1 and self.question_interval is not None:
            return self.question_interval
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
        if len(self.values) == 1:
            return f"{format_percent(self.iqm)}, one seed"
        return f"{format_percent(self.iqm)}, {' to '.join(map(format_percent, self.interval))}"

    @property
    def tooltip(self) -> str:
        if not self.values:
            return self.text
        ends = f" {format_interval(*self.interval)}" * self.has_enough_seeds
        lines = [f"interquartile mean {format_percent(self.iqm)} %{ends}"]
        lines.append(f"median {format_percent(median(self.values))} %")
        lines.append(f"{len(self.values)} seed{'s' * (len(self.values) != 1)}: {_join_percents(self.values)}")
        if self.unconverged_values:
            lines.append(f"did not converge: {_join_percents(self.unconverged_values)}")
        return "\n".join(lines)


def _join_percents(values: Sequence[float]) -> str:
    return ", ".join(map(format_percent, values[:MAX_TOOLTIP_SEEDS])) + ", ..." * (len(values) > MAX_TOOLTIP_SEEDS)


def summarize_region(group: Group, region: str) -> SeedSummary:
    """The scores of a region: those of all seeds in distribution, and of the converged ones out of distribution."""
    scores = [(run, found[region].score.value) for run, found in group.region_scores_by_run if region in found]
    counted = group.runs if region == "in_distribution" else group.converged_group.runs
    return SeedSummary(
        tuple(score for run, score in scores if run in counted),
        tuple(score for run, score in scores if run not in counted),
        group.region_estimate(region).single_seed_interval if len(scores) == 1 else None,
    )


def forest_content(groups: Sequence[Group]) -> Content:
    """The forest plot of a page; nothing if no group has several seeds."""
    if all(len(group.evaluated_cells) < 2 for group in groups):
        return []
    more = len(groups) - MAX_ROWS
    notes = [Note(f"{more} more groups are in the table of regions.")] if more > 0 else []
    return [forest_figure(groups[:MAX_ROWS]), *notes]


def forest_figure(groups: Sequence[Group]) -> Figure:
    """A row for each group and a panel for each region; no panels without several seeds of any group, unless the cells
    are parts, which have no other figure."""
    if all(len(group.evaluated_cells) < 2 for group in groups) and not have_unordered_cells(groups):
        return Figure(())
    notes = []
    if len(group_by_task(groups)) == 1:
        groups, notes = with_shared_cells(groups), different_cells_notes(groups)
    words, metric = region_labels(groups), common_metric_label(groups)
    styles = [Style(i if len(groups) <= len(SERIES) else 0, 0) for i in range(len(groups))]
    styled = list(zip(groups, styles, strict=True))
    panels, caption = [], " ".join([CAPTION, *notes])
    if any(group.convergence_rate for group in groups):
        marks = [_convergence_mark(group, style) for group, style in styled]
        panels.append(_panel("converged", "% of seeds", groups, marks))
        caption += (
            f" Converged: the share of seeds with at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution, "
            "with Wilson's 95 % interval over seeds. Crosses: the seeds that did not; they count in distribution."
        )
    for name in REGION_LABELS:
        if any(name in group.first_region_scores for group in groups):
            marks = [_mark(summarize_region(group, name), style) for group, style in styled]
            panels.append(_panel(f"{words[name]}{_baseline(groups, name)}", f"{metric}, %", groups, marks))
    return Figure(panels, columns=len(panels), caption=caption)


def _panel(title: str, label: str, groups: Sequence[Group], marks: Sequence[Mark | None]) -> PointChart:
    rows = [
        PointRow(
            group.label,
            mark,
            f"{format_counts(group.convergence_rate)} converged"
            if group.convergence_rate
            else f"{len(group.evaluated_cells)} seed{'s' * (len(group.evaluated_cells) != 1)}",
        )
        for group, mark in zip(groups, marks, strict=True)
    ]
    return PointChart(title, rows, Axis.percent(label, 0.25))


def _convergence_mark(group: Group, style: Style) -> Mark | None:
    rate = group.convergence_rate
    if rate is None:
        return None
    text, note = format_counts(rate), format_interval(rate.low, rate.high, 0)
    return Mark(style, rate.value, (rate.low, rate.high), text=text, note=note, tooltip=text)


def _mark(found: SeedSummary, style: Style) -> Mark:
    """The mark of a region with its number below: `97.2 [93.1, 99]`."""
    crosses, text = found.unconverged_values, found.text
    if not found.values:
        return Mark(style, unconverged_seeds=crosses, text=" " * bool(crosses), note=text, tooltip=text)
    number, _, note = text.partition(" ")
    several = found.values if len(found.values) > 1 else ()
    middle = median(several) if several else None
    is_reliable = found.has_enough_seeds
    return Mark(style, found.iqm, found.interval, is_reliable, middle, several, crosses, number, note, found.tooltip)


def _baseline(groups: Sequence[Group], name: str) -> str:
    """The baseline of a region, where all groups have the same."""
    known = {group.region_estimate(name).baseline for group in groups if name in group.first_region_scores}
    baseline = known.pop() if len(known) == 1 else None
    return "" if baseline is None else f" (baseline {format_percent(baseline)} %)"
