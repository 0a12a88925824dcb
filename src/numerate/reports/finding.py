"""The finding of a run or a study in one sentence, written from records alone.

A model "solves" its training region from a stated mean on; how far it generalizes is read off the diagonal of the grid
without gaps; numbers have intervals, and a single seed is named as such.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import newcombe_interval
from numerate.reports.claims import groups_with_valid_claims, invalid_claim_notes, symmetry_notes
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
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group, have_named_parts
from numerate.reports.limits import MAX_NAMES, join_names
from numerate.reports.part_finding import part_finding

SOLVED_THRESHOLD = CONVERGENCE_THRESHOLD
"""The mean in distribution, over held-out questions, from which on a model "solves" it."""

GENERALIZATION_THRESHOLD = 0.90
"""The accuracy required at every length up to n for a model to "go to n"."""

WEAK_CELL_THRESHOLD = 0.95
"""A trained cell whose interval lies below this is named even if the mean of the region is high."""


@dataclass(frozen=True)
class GroupFinding:
    """The results of one group, for sentences.

    `in_distribution_scores` are the in-distribution means of each seed. The others are over the seeds that solve it
    (`solving`): `farthest_point` is the last n such that all OOD lengths up to n+n have at least
    `GENERALIZATION_THRESHOLD` (the median over seeds), clearly above the baseline; None if not even the first has.
    `farthest_lengths` is the same for each seed; `first_ood_point` is the first OOD length at which memorizing alone
    does not give `GENERALIZATION_THRESHOLD`.
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
    def num_solved(self) -> int:
        """How many seeds solve the training region."""
        return sum(mean >= SOLVED_THRESHOLD for mean in self.in_distribution_scores)

    @property
    def is_solved(self) -> bool:
        return bool(self.in_distribution_scores) and self.num_solved == self.num_seeds

    @property
    def in_distribution_text(self) -> str:
        return f"{format_percent(median(self.in_distribution_scores))} % {format_interval(self.low, self.high)}"

    def point_label(self, point: Point) -> str:
        return cell_label(point.coordinates, self.group.operator, point.names)


def group_result(group: Group) -> GroupFinding:
    """The results of a group."""
    found = [regions["in_distribution"] for regions in group.region_scores if "in_distribution" in regions]
    means = tuple(region.score.value for region in found)
    low, high = (min(means), max(means)) if len(means) > 1 else (0.0, 1.0)
    if len(found) == 1:
        low, high = found[0].score.low, found[0].score.high
    weakest = min((region.weakest_cell for region in found), key=lambda cell: cell.accuracy, default=None)
    weak = ""
    if weakest is not None and weakest.high < WEAK_CELL_THRESHOLD:
        weak = f"{cell_label(weakest.coordinates, group.operator, weakest.names)}: {format_percent(weakest.accuracy)} %"
    diagonal = solving_seeds(group).diagonal
    trained = [n for n, point in diagonal.items() if point.region == "in_distribution"]
    ood_points = [
        point for n, point in diagonal.items() if n > max(trained, default=0) and point.region != "in_distribution"
    ]
    seeds = len(ood_points[0].seed_scores) if ood_points else 0
    reach = _farthest_point([(point, point.score) for point in ood_points])
    farthest_by_seed = [_farthest_point([(point, point.seed_scores[i]) for point in ood_points]) for i in range(seeds)]
    return GroupFinding(
        group=group,
        in_distribution_scores=means,
        low=low,
        high=high,
        farthest_point=reach,
        farthest_lengths=tuple(None if point is None else _length(point) for point in farthest_by_seed),
        first_ood_point=next(
            (point for point in ood_points if _is_informative(point)), ood_points[0] if ood_points else None
        ),
        reaches_grid_end=bool(ood_points) and reach is ood_points[-1],
        weakest_cell_text=weak,
        all_cells_overlap_training=bool(found) and all(region.all_cells_overlap_training for region in found),
    )


def solving_seeds(group: Group) -> Group:
    """The seeds of a group that solve the training region, or all where none or every one does."""
    solving_runs = tuple(
        run
        for run, found in group.region_scores_by_run
        if "in_distribution" in found and found["in_distribution"].score.value >= SOLVED_THRESHOLD
    )
    if not 0 < len(solving_runs) < len(group.runs):
        return group
    return group.converged_group if group.converged_group.runs == solving_runs else replace(group, runs=solving_runs)


def _farthest_point(scored_points: Sequence[tuple[Point, float]]) -> Point | None:
    """The last length up to which all have `GENERALIZATION_THRESHOLD` and are clearly above their baselines. A length
    at which memorization alone reaches `GENERALIZATION_THRESHOLD` does not end the search, and is the last only if it
    is clearly above its baseline."""
    last = None
    for point, share in scored_points:
        if share < GENERALIZATION_THRESHOLD or (_is_informative(point) and not is_clearly_above(share, point.baseline)):
            break
        if is_clearly_above(share, point.baseline):
            last = point
    return last


def _is_informative(point: Point) -> bool:
    """Whether memorizing alone does not give `GENERALIZATION_THRESHOLD` there."""
    return point.baseline is None or point.baseline < GENERALIZATION_THRESHOLD


def _length(point: Point) -> int:
    return next(iter(point.coordinates.values()))


def finding_sentence(groups: Sequence[Group]) -> str:
    """The finding of one group or of several, as one sentence with the numbers in it.

    For example, of the quickstart: "Both solve what they were trained on, 1 to 5 digits
    (Abacus 99.9 % [99.7, 100], rotary 99.6 % [99.2, 99.8]), but only Abacus goes beyond: it stays at 90 % or more up
    to 8+8 digits (90.5 % [85.6, 93.8] there), while rotary falls to 0 % [0, 1.9] at 6+6 digits; one seed each, ..."
    """
    if have_named_parts(groups):
        return part_finding(groups)
    outcomes = [group_result(group) for group in groups_with_valid_claims(groups)]
    evaluated = [one for one in outcomes if one.in_distribution_scores or one.first_ood_point]
    claim_notes = invalid_claim_notes(groups)
    if not evaluated:
        return f"{'; '.join(claim_notes)}." if claim_notes else "Nothing has been evaluated yet."
    missing = [one.label for one in outcomes if not (one.in_distribution_scores or one.first_ood_point)]
    if len(evaluated) > MAX_NAMES:
        text = _finding_of_many(evaluated)
    else:
        opening, join = _in_distribution_clause(evaluated)
        text = f"{opening}{join}{_ood_clause(evaluated)}; {_metric_note(evaluated)}{_uncertainty_note(evaluated)}"
    if missing:
        text += f"; not evaluated yet: {join_names(missing)}"
    text = "; ".join([text, *claim_notes, *symmetry_notes(groups)])
    # Do not capitalize the name of a run.
    named = any(text.startswith(one.label) for one in evaluated)
    return (text if named else text[0].upper() + text[1:]) + "."


def _finding_of_many(outcomes: Sequence[GroupFinding]) -> str:
    """The finding of more groups than a sentence can name: how many solve and go beyond, and who goes farthest."""
    known = [one for one in outcomes if one.in_distribution_scores]
    solved = [one for one in outcomes if one.is_solved]
    span = range_label(point for one in known[:1] for point in one.group.points if point.region == "in_distribution")
    text = (
        f"{len(solved)} of {len(outcomes)} solve what they were trained on, {span}" if known else "many were evaluated"
    )
    text += " (in every seed)" * any(one.num_seeds > 1 for one in known)
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
    doubt = "one seed each, so how much seeds differ is not known" if counts == {1} else "medians over seeds"
    return f"{text}; {doubt}, and the best of many groups is partly the best by chance (selection bias)"


def _in_distribution_clause(outcomes: Sequence[GroupFinding]) -> tuple[str, str]:
    """The half of the sentence about the training region, and the conjunction after it."""
    known = [one for one in outcomes if one.in_distribution_scores]
    if not known:
        return (
            "no trained cell was evaluated",
            ", so what follows may be slow learning as well as failing to generalize: ",
        )
    span = range_label(point for point in known[0].group.points if point.region == "in_distribution")
    what = f"what {'it was' if len(known) == 1 else 'they were'} trained on, {span}"
    seen = ", on questions that training may have met" if any(one.all_cells_overlap_training for one in known) else ""
    texts = [f"{one.label} {one.in_distribution_text}{_seeds_solved(one)}{_weak(one)}" for one in known]
    solving = [one for one in known if one.is_solved]
    if len(known) == 1:
        verb = "solves" if solving else "does not solve"
        (one,) = known
        values = f"{one.in_distribution_text}{_seeds_solved(one)}{_weak(one)}{_threshold_note(solving, known)}{seen}"
        return f"{one.label} {verb} {what} ({values})", " and " if solving else "; "
    values = f" ({', '.join(texts)}{_threshold_note(solving, known)}{seen})"
    if len(solving) == len(known):
        # "But" belongs before a contrast only.
        contrast = 0 < sum(one.farthest_point is not None for one in known) < len(known)
        everyone = "both" if len(known) == 2 else f"all {len(known)}"
        return f"{everyone} solve {what}{values}", ", but " if contrast else ", and "
    if not solving:
        nobody = "neither" if len(known) == 2 else f"none of the {len(known)}"
        return f"{nobody} solves {what.replace('they were', 'it was')}{values}", "; "
    names = join_names([one.label for one in solving])
    verb = "solves" if len(solving) == 1 else "solve"
    return (
        f"only {names} {verb} {what.replace('they were', 'it was' if len(solving) == 1 else 'they were')}{values}",
        "; ",
    )


def _threshold_note(solving: Sequence[GroupFinding], known: Sequence[GroupFinding]) -> str:
    if len(solving) == len(known):
        return ""
    every = " in every seed" if any(one.num_seeds > 1 for one in known) else ""
    return f"; solving means a mean of at least {format_percent(SOLVED_THRESHOLD)} %{every}"


def _seeds_solved(one: GroupFinding) -> str:
    return (
        ""
        if one.num_seeds == 1 or one.num_solved in (0, one.num_seeds)
        else f", {one.num_solved} of {one.num_seeds} seeds solve it"
    )


def _weak(one: GroupFinding) -> str:
    return f", weakest {one.weakest_cell_text}" if one.is_solved and one.weakest_cell_text else ""


def _ood_clause(outcomes: Sequence[GroupFinding]) -> str:
    """The half of the sentence about generalization beyond training."""
    evaluated = [one for one in outcomes if one.first_ood_point is not None]
    if not evaluated:
        return "nothing beyond it was evaluated"
    generalizing = [one for one in evaluated if one.farthest_point is not None]
    not_generalizing = [one for one in evaluated if one.farthest_point is None]
    is_single = len(evaluated) == 1 and len(outcomes) == 1
    who = "" if evaluated[0].is_solved else f"{'it' if evaluated[0].in_distribution_scores else evaluated[0].label} "
    if not not_generalizing:
        if is_single:
            return f"{who}generalizes: {_generalizes_text(generalizing[0], 'it')}"
        everyone = "both go" if len(generalizing) == 2 else f"all {len(generalizing)} go"
        return f"{everyone} beyond: " + ", ".join(_generalizes_text(one, one.label) for one in generalizing)
    if not generalizing:
        if is_single and not_generalizing[0].in_distribution_scores and not not_generalizing[0].num_solved:
            return f"it {_fails_text(not_generalizing[0])}"
        if is_single:
            return f"{who}does not go beyond: it {_fails_text(not_generalizing[0])}"
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


def _generalizes_text(one: GroupFinding, name: str) -> str:
    point = one.farthest_point
    if point is None:
        return ""
    end = ", the end of the grid" if one.reaches_grid_end else ""
    seeds = ""
    if one.num_seeds > 1 and len(set(one.farthest_lengths)) > 1:
        seeds = "; seed by seed up to " + join_names(["none" if n is None else str(n) for n in one.farthest_lengths])
    solved = (
        f", in the {one.num_solved} of {one.num_seeds} seeds that solve it"
        if 0 < one.num_solved < one.num_seeds
        else ""
    )
    interval = format_interval(point.low, point.high)
    there = f"{format_percent(point.score)} % {interval} there{_baseline(point)}{solved}{seeds}"
    return (
        f"{name} stays at {format_percent(GENERALIZATION_THRESHOLD)} % or more up to {one.point_label(point)}{end} "
        f"({there})"
    )


def _fails_text(one: GroupFinding) -> str:
    point = one.first_ood_point
    if point is None:
        return "was not evaluated beyond"
    verb = "falls to" if one.is_solved else "has"
    text = (
        f"{verb} {format_percent(point.score)} % {format_interval(point.low, point.high)} at "
        f"{one.point_label(point)}{_baseline_in_parentheses(point)}"
    )
    if one.is_solved or not one.in_distribution_scores:
        return text
    if one.group.is_limited_by_symmetry:
        return text
    if one.num_solved:
        return f"{text}, in the {one.num_solved} of {one.num_seeds} seeds that have learned what it was trained on"
    return f"{text}, which says little as it has not learned what it was trained on"


def _differ_significantly(one: GroupFinding, other: GroupFinding) -> bool:
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
    """The baseline at a length, as text after a number."""
    return "" if point.baseline is None else f", baseline {format_percent(point.baseline)} %"


def _baseline_in_parentheses(point: Point) -> str:
    return f" ({baseline.removeprefix(', ')})" if (baseline := _baseline(point)) else ""


def generalization_criterion(groups: Sequence[Group]) -> str:
    """What "goes to n" means, in words."""
    clear = (
        f" and clearly above the baseline there (by at least {format_percent(CLEAR_MARGIN)} % of the range up to 100 %)"
    )
    return (
        f"at least {format_percent(GENERALIZATION_THRESHOLD)} "
        f"%{clear * any(group.baseline is not None for group in groups)}"
    )


def _metric_note(outcomes: Sequence[GroupFinding]) -> str:
    """A note on the metric of labels; "" for exact match."""
    if common_metric([one.group for one in outcomes]) in (None, "exact_match"):
        return ""
    words = common_metric_label([one.group for one in outcomes])
    what = f"{words}, within training on all its counts" if words == METRICS["unseen"] else words
    return f"numbers are {what}; the baseline is the score of memorization or of the best constant answer; "


def _uncertainty_note(outcomes: Sequence[GroupFinding]) -> str:
    """A note on brackets and seeds."""
    counts = sorted({len(one.group.region_scores) for one in outcomes})
    each = " each" if len(outcomes) > 1 else ""
    if counts == [1]:
        sizes = sorted({point.count for one in outcomes for point in one.group.points})
        questions = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        if any(one.group.resolved_metric != "exact_match" for one in outcomes):
            questions += " row" if questions == "1" else " rows"
        return (
            f"one seed{each}, so how much seeds differ is not known "
            f"(brackets: 95 % intervals over questions, {questions} per cell)"
        )
    if len(counts) == 1:
        return f"medians of {counts[0]} seeds{each} (brackets: lowest and highest seed)"
    seeds = ", ".join(f"{one.label} {len(one.group.region_scores)}" for one in outcomes)
    return f"seeds: {seeds} (brackets: lowest and highest seed; for one seed the 95 % interval about the questions)"
