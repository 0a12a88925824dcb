"""The summary of a run or a study in one sentence, computed from records alone.

A model has converged if its mean in distribution reaches `CONVERGENCE_THRESHOLD`; how far it generalizes is read off
the diagonal of the grid without gaps; numbers have intervals, and results of a single seed are marked as such.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import newcombe_interval
from numerate.reports.comparable import comparable_groups, not_comparable_notes, symmetry_notes
from numerate.reports.counts import common_metric, common_metric_label
from numerate.reports.grid import (
    CLEAR_MARGIN,
    Point,
    cell_label,
    format_interval,
    format_percent,
    is_clearly_above,
    range_label,
)
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group, have_unordered_cells
from numerate.reports.limits import MAX_NAMES, join_names
from numerate.reports.part_summary import part_summary

GENERALIZATION_THRESHOLD = 0.90
"""The accuracy required at every length up to n for a model to generalize to n."""

WEAK_CELL_THRESHOLD = 0.95
"""A trained cell whose interval is below this value is named even if the mean of the region is high."""


@dataclass(frozen=True)
class GroupResult:
    """The results of one group, for sentences.

    `in_distribution_scores` are the in-distribution means of each seed. The other fields are over the converged seeds
    (`converged_seeds`): `farthest_point` is the last n such that all OOD lengths up to n+n have at least
    `GENERALIZATION_THRESHOLD` (the median over seeds), clearly above the baseline; None if the first OOD length does
    not.
    `farthest_lengths` is the same for each seed; `first_ood_point` is the first OOD length at which memorization alone
    does not reach `GENERALIZATION_THRESHOLD`.
    """

    group: Group
    in_distribution_scores: tuple[float, ...]
    low: float
    high: float
    farthest_point: Point | None
    farthest_lengths: tuple[int | None, ...]
    first_ood_point: Point | None
    reaches_grid_end: bool
    weakest_cell_text: str
    all_cells_overlap_training: bool

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def num_seeds(self) -> int:
        return len(self.in_distribution_scores)

    @property
    def num_converged(self) -> int:
        """Number of seeds that converged."""
        return sum(mean >= CONVERGENCE_THRESHOLD for mean in self.in_distribution_scores)

    @property
    def has_converged(self) -> bool:
        return bool(self.in_distribution_scores) and self.num_converged == self.num_seeds

    @property
    def in_distribution_text(self) -> str:
        return f"{format_percent(median(self.in_distribution_scores))} % {format_interval(self.low, self.high)}"

    def point_label(self, point: Point) -> str:
        return cell_label(point.coordinates, self.group.operator, point.names)


def group_result(group: Group) -> GroupResult:
    """The results of a group."""
    trained_regions = [regions["in_distribution"] for regions in group.region_scores if "in_distribution" in regions]
    means = tuple(region.score.value for region in trained_regions)
    low, high = (min(means), max(means)) if len(means) > 1 else (0.0, 1.0)
    if len(trained_regions) == 1:
        low, high = trained_regions[0].score.low, trained_regions[0].score.high
    weakest = min((region.weakest_cell for region in trained_regions), key=lambda cell: cell.accuracy, default=None)
    weakest_cell_text = ""
    if weakest is not None and weakest.high < WEAK_CELL_THRESHOLD:
        weakest_label = cell_label(weakest.coordinates, group.operator, weakest.names)
        weakest_cell_text = f"{weakest_label}: {format_percent(weakest.accuracy)} %"
    diagonal = converged_seeds(group).diagonal
    max_trained_length = max((n for n, point in diagonal.items() if point.region == "in_distribution"), default=0)
    ood_points = [
        point for n, point in diagonal.items() if n > max_trained_length and point.region != "in_distribution"
    ]
    num_seeds = len(ood_points[0].seed_scores) if ood_points else 0
    farthest_point = _farthest_point([(point, point.score) for point in ood_points])
    farthest_by_seed = [
        _farthest_point([(point, point.seed_scores[i]) for point in ood_points]) for i in range(num_seeds)
    ]
    return GroupResult(
        group=group,
        in_distribution_scores=means,
        low=low,
        high=high,
        farthest_point=farthest_point,
        farthest_lengths=tuple(None if point is None else _length(point) for point in farthest_by_seed),
        first_ood_point=next(
            (point for point in ood_points if _is_informative(point)), ood_points[0] if ood_points else None
        ),
        reaches_grid_end=bool(ood_points) and farthest_point is ood_points[-1],
        weakest_cell_text=weakest_cell_text,
        all_cells_overlap_training=bool(trained_regions)
        and all(region.all_cells_overlap_training for region in trained_regions),
    )


def converged_seeds(group: Group) -> Group:
    """The converged seeds of a group, or all seeds if none converged."""
    converged_runs = tuple(
        run
        for run, regions in group.region_scores_by_run
        if "in_distribution" in regions and regions["in_distribution"].score.value >= CONVERGENCE_THRESHOLD
    )
    if not 0 < len(converged_runs) < len(group.runs):
        return group
    return (
        group.converged_group if group.converged_group.runs == converged_runs else replace(group, runs=converged_runs)
    )


def _farthest_point(scored_points: Sequence[tuple[Point, float]]) -> Point | None:
    """The last length up to which all scores reach `GENERALIZATION_THRESHOLD` and are clearly above their baselines. A
    length at which memorization alone reaches `GENERALIZATION_THRESHOLD` does not end the search, and is the last only
    if its score is clearly above its baseline."""
    farthest = None
    for point, score in scored_points:
        if score < GENERALIZATION_THRESHOLD or (_is_informative(point) and not is_clearly_above(score, point.baseline)):
            break
        if is_clearly_above(score, point.baseline):
            farthest = point
    return farthest


def _is_informative(point: Point) -> bool:
    """Whether memorization alone does not reach `GENERALIZATION_THRESHOLD` there."""
    return point.baseline is None or point.baseline < GENERALIZATION_THRESHOLD


def _length(point: Point) -> int:
    return next(iter(point.coordinates.values()))


def summary_sentence(groups: Sequence[Group]) -> str:
    """The summary of one or more groups: one sentence with the main numbers.

    For example, of the quickstart: "Both converged in distribution, 1 to 5 digits (Abacus 99.9 % [99.7, 100], rotary
    99.6 % [99.2, 99.8]), but only Abacus goes beyond: it stays at 90 % or more up to 8+8 digits (90.5 % [85.6, 93.8]
    there), while rotary falls to 0 % [0, 1.9] at 6+6 digits; one seed each, ..."
    """
    if have_unordered_cells(groups):
        return part_summary(groups)
    outcomes = [group_result(group) for group in comparable_groups(groups)]
    evaluated = [one for one in outcomes if one.in_distribution_scores or one.first_ood_point]
    exclusions = not_comparable_notes(groups)
    if not evaluated:
        return f"{'; '.join(exclusions)}." if exclusions else "Nothing has been evaluated yet."
    missing = [one.label for one in outcomes if not (one.in_distribution_scores or one.first_ood_point)]
    if len(evaluated) > MAX_NAMES:
        text = _summary_of_many(evaluated)
    else:
        opening, join = _in_distribution_clause(evaluated)
        text = f"{opening}{join}{_ood_clause(evaluated)}; {_metric_note(evaluated)}{_uncertainty_note(evaluated)}"
    if missing:
        text += f"; not evaluated yet: {join_names(missing)}"
    text = "; ".join([text, *exclusions, *symmetry_notes(groups)])
    # Do not capitalize the name of a run.
    starts_with_name = any(text.startswith(one.label) for one in evaluated)
    return (text if starts_with_name else text[0].upper() + text[1:]) + "."


def _summary_of_many(outcomes: Sequence[GroupResult]) -> str:
    """The summary of more groups than a sentence can name: how many converged, how many generalize, and which
    generalize farthest."""
    evaluated = [one for one in outcomes if one.in_distribution_scores]
    converged = [one for one in outcomes if one.has_converged]
    span = range_label(
        point for one in evaluated[:1] for point in one.group.points if point.region == "in_distribution"
    )
    text = (
        f"{len(converged)} of {len(outcomes)} converged in distribution, {span}"
        if evaluated
        else f"{len(outcomes)} groups were evaluated"
    )
    text += " (in every seed)" * any(one.num_seeds > 1 for one in evaluated)
    generalizing = [one for one in outcomes if one.farthest_point is not None]
    if not generalizing:
        text += f"; none goes beyond at {format_percent(GENERALIZATION_THRESHOLD)} % or more"
    else:
        longest = max(_length(one.farthest_point) for one in generalizing if one.farthest_point is not None)
        best = [
            one for one in generalizing if one.farthest_point is not None and _length(one.farthest_point) == longest
        ]
        far = best[0].point_label(best[0].farthest_point) if best[0].farthest_point is not None else ""
        text += (
            f"; {len(generalizing)} go beyond at {format_percent(GENERALIZATION_THRESHOLD)} % or more, the farthest up "
            f"to {far} ({join_names([one.label for one in best])})"
        )
    counts = {len(one.group.region_scores) for one in outcomes}
    uncertainty = "one seed each, so the variation over seeds is unknown" if counts == {1} else "medians over seeds"
    return f"{text}; {uncertainty}, and the best of many groups is partly the best by chance (selection bias)"


def _in_distribution_clause(outcomes: Sequence[GroupResult]) -> tuple[str, str]:
    """The clause about the results in distribution, and the conjunction after it."""
    evaluated = [one for one in outcomes if one.in_distribution_scores]
    if not evaluated:
        return (
            "no trained cell was evaluated",
            ", so low scores may be due to slow learning instead of a failure to generalize: ",
        )
    span = range_label(point for point in evaluated[0].group.points if point.region == "in_distribution")
    overlap = ", on questions that training may contain" * any(one.all_cells_overlap_training for one in evaluated)
    texts = [f"{one.in_distribution_text}{_seeds_converged(one)}{_weak(one)}" for one in evaluated]
    converged = [one for one in evaluated if one.has_converged]
    threshold_note = _threshold_note(converged, evaluated)
    if len(evaluated) == 1:
        verb = "converged" if converged else "did not converge"
        return (
            f"{evaluated[0].label} {verb} in distribution, {span} ({texts[0]}{threshold_note}{overlap})",
            " and " if converged else "; ",
        )
    values = ", ".join(f"{one.label} {text}" for one, text in zip(evaluated, texts, strict=True))
    result = f"converged in distribution, {span} ({values}{threshold_note}{overlap})"
    if len(converged) == len(evaluated):
        # "But" belongs before a contrast only.
        is_contrast = 0 < sum(one.farthest_point is not None for one in evaluated) < len(evaluated)
        everyone = "both" if len(evaluated) == 2 else f"all {len(evaluated)}"
        return f"{everyone} {result}", ", but " if is_contrast else ", and "
    if not converged:
        nobody = "neither" if len(evaluated) == 2 else f"none of the {len(evaluated)}"
        return f"{nobody} {result}", "; "
    return f"only {join_names([one.label for one in converged])} {result}", "; "


def _threshold_note(converged: Sequence[GroupResult], evaluated: Sequence[GroupResult]) -> str:
    if len(converged) == len(evaluated):
        return ""
    every = " in every seed" if any(one.num_seeds > 1 for one in evaluated) else ""
    return f"; converged means a mean of at least {format_percent(CONVERGENCE_THRESHOLD)} %{every}"


def _seeds_converged(one: GroupResult) -> str:
    if one.num_seeds == 1 or one.num_converged in (0, one.num_seeds):
        return ""
    return f", {one.num_converged} of {one.num_seeds} seeds converged"


def _weak(one: GroupResult) -> str:
    return f", weakest {one.weakest_cell_text}" if one.has_converged and one.weakest_cell_text else ""


def _ood_clause(outcomes: Sequence[GroupResult]) -> str:
    """The clause about generalization beyond training."""
    evaluated = [one for one in outcomes if one.first_ood_point is not None]
    if not evaluated:
        return "nothing beyond it was evaluated"
    generalizing = [one for one in evaluated if one.farthest_point is not None]
    not_generalizing = [one for one in evaluated if one.farthest_point is None]
    is_single = len(evaluated) == 1 and len(outcomes) == 1
    subject = (
        "" if evaluated[0].has_converged else "it " if evaluated[0].in_distribution_scores else f"{evaluated[0].label} "
    )
    if not not_generalizing:
        if is_single:
            return f"{subject}generalizes: {_generalizes_text(generalizing[0], 'it')}"
        everyone = "both go" if len(generalizing) == 2 else f"all {len(generalizing)} go"
        return f"{everyone} beyond: " + ", ".join(_generalizes_text(one, one.label) for one in generalizing)
    if not generalizing:
        if is_single and not_generalizing[0].in_distribution_scores and not not_generalizing[0].num_converged:
            return f"it {_fails_text(not_generalizing[0])}"
        if is_single:
            return f"{subject}does not go beyond: it {_fails_text(not_generalizing[0])}"
        nobody = "neither goes" if len(not_generalizing) == 2 else f"none of the {len(not_generalizing)} goes"
        return f"{nobody} beyond at {format_percent(GENERALIZATION_THRESHOLD)} % or more: " + ", ".join(
            f"{one.label} {_fails_text(one)}" for one in not_generalizing
        )
    text = (
        f"only {join_names([one.label for one in generalizing])} {'goes' if len(generalizing) == 1 else 'go'} beyond: "
    )
    text += ", ".join(_generalizes_text(one, "it" if len(generalizing) == 1 else one.label) for one in generalizing)
    text += ", while " + join_names([f"{one.label} {_fails_text(one)}" for one in not_generalizing])
    if any(not _differ_significantly(one, other) for one in generalizing for other in not_generalizing):
        text += ", a difference that is not significant"
    return text


def _generalizes_text(one: GroupResult, name: str) -> str:
    point = one.farthest_point
    if point is None:
        return ""
    end = ", the end of the grid" if one.reaches_grid_end else ""
    seeds = ""
    if one.num_seeds > 1 and len(set(one.farthest_lengths)) > 1:
        seeds = "; by seed up to " + join_names(["none" if n is None else str(n) for n in one.farthest_lengths])
    converged = (
        f", in the {one.num_converged} of {one.num_seeds} seeds that converged"
        if 0 < one.num_converged < one.num_seeds
        else ""
    )
    interval = format_interval(point.low, point.high)
    there = f"{format_percent(point.score)} % {interval} there{_baseline(point)}{converged}{seeds}"
    return (
        f"{name} stays at {format_percent(GENERALIZATION_THRESHOLD)} % or more up to {one.point_label(point)}{end} "
        f"({there})"
    )


def _fails_text(one: GroupResult) -> str:
    point = one.first_ood_point
    if point is None:
        return "was not evaluated beyond"
    verb = "falls to" if one.has_converged else "has"
    text = (
        f"{verb} {format_percent(point.score)} % {format_interval(point.low, point.high)} at "
        f"{one.point_label(point)}{_baseline_in_parentheses(point)}"
    )
    if one.has_converged or not one.in_distribution_scores:
        return text
    if one.group.is_limited_by_symmetry:
        return text
    if one.num_converged:
        return f"{text}, in the {one.num_converged} of {one.num_seeds} seeds that converged"
    return f"{text}, which says little about generalization, as it did not converge"


def _differ_significantly(one: GroupResult, other: GroupResult) -> bool:
    """Whether two groups differ significantly at the first OOD length."""
    first_point, second_point = one.first_ood_point, other.first_ood_point
    if first_point is None or second_point is None or first_point.coordinates != second_point.coordinates:
        return True
    if len(first_point.seed_scores) == 1 and len(second_point.seed_scores) == 1:
        gap = newcombe_interval(
            (round(first_point.score * first_point.count), first_point.count),
            (round(second_point.score * second_point.count), second_point.count),
        )
        return gap.low > 0.0 or gap.high < 0.0
    return first_point.low > second_point.high or second_point.low > first_point.high


def _baseline(point: Point) -> str:
    """The baseline at a length, to be shown after a score; empty if there is none."""
    return "" if point.baseline is None else f", baseline {format_percent(point.baseline)} %"


def _baseline_in_parentheses(point: Point) -> str:
    return f" ({baseline.removeprefix(', ')})" if (baseline := _baseline(point)) else ""


def generalization_criterion(groups: Sequence[Group]) -> str:
    """The text of the criterion for generalizing to n."""
    margin = (
        f" and clearly above the baseline there (by at least {format_percent(CLEAR_MARGIN)} % of the rest up to 100 %)"
    )
    has_baseline = any(group.baseline is not None for group in groups)
    return f"at least {format_percent(GENERALIZATION_THRESHOLD)} %{margin * has_baseline}"


def _metric_note(outcomes: Sequence[GroupResult]) -> str:
    """A note on the metric of labels; "" for exact match."""
    if common_metric([one.group for one in outcomes]) in (None, "exact_match"):
        return ""
    label = common_metric_label([one.group for one in outcomes])
    metric = f"{label}, in distribution over all counts" if label == METRICS["ood_accuracy"] else label
    return f"numbers are {metric}; the baseline is the score of memorization or of the best constant answer; "


def _uncertainty_note(outcomes: Sequence[GroupResult]) -> str:
    """A note on brackets and seeds."""
    counts = sorted({len(one.group.region_scores) for one in outcomes})
    each = " each" if len(outcomes) > 1 else ""
    if counts == [1]:
        sizes = sorted({point.count for one in outcomes for point in one.group.points})
        questions = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        if any(one.group.resolved_metric != "exact_match" for one in outcomes):
            questions += " row" if questions == "1" else " rows"
        return (
            f"one seed{each}, so the variation over seeds is unknown "
            f"(brackets: 95 % intervals over questions, {questions} per cell)"
        )
    if len(counts) == 1:
        return f"medians of {counts[0]} seeds{each} (brackets: range over seeds)"
    seeds = ", ".join(f"{one.label} {len(one.group.region_scores)}" for one in outcomes)
    return f"seeds: {seeds} (brackets: range over seeds; for one seed the 95 % interval over questions)"
