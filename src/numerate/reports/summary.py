"""The headline of a page, at most two sentences: what was trained and how far it reaches, with intervals and seeds.

A model has converged if its mean in distribution reaches `CONVERGENCE_THRESHOLD`; how far it generalizes is read off
the diagonal of the grid without gaps, and never reaches a stratum that fails. A scheme that did not converge is
reported as that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.grid import (
    MAX_NAMES,
    Estimate,
    Point,
    format_interval,
    format_percent,
    is_clearly_above,
    join_names,
    range_label,
    span_text,
)
from numerate.reports.groups import (
    CONVERGENCE_THRESHOLD,
    NOT_COMPARABLE,
    Group,
    common_metric,
    common_metric_label,
    have_unordered_cells,
    named_cells,
    part_axis,
    region_labels,
)
from numerate.reports.metrics import EXACT_MATCH, MetricKey
from numerate.reports.strata import stratum_label

GENERALIZATION_THRESHOLD = 0.90
"""The accuracy required at every length up to n for a model to generalize to n."""

SELECTION_NOTE = "the best of many groups is partly the best by chance (selection bias)"

_REACHES = f"{format_percent(GENERALIZATION_THRESHOLD)} % or more"


@dataclass(frozen=True)
class GroupResult:
    """How far a group generalizes.

    The points are over the converged seeds (all where none converged): `farthest_point` is the last n such that all OOD
    lengths up to it have at least `GENERALIZATION_THRESHOLD` (the median over seeds), clearly above the baseline, and
    so has every stratum measured up to it; None if the first does not. `first_ood_point` is the first OOD length at
    which memorization alone does not reach it. `limiting_stratum` is the stratum that ends the search, None if it is a
    length.
    """

    group: Group
    in_distribution: Estimate
    farthest_point: Point | None
    first_ood_point: Point | None
    limiting_stratum: Point | None = None

    @property
    def num_seeds(self) -> int:
        return len(self.in_distribution.values)

    @property
    def num_converged(self) -> int:
        return sum(mean >= CONVERGENCE_THRESHOLD for mean in self.in_distribution.values)

    @property
    def has_converged(self) -> bool:
        """Whether every seed converged."""
        return 0 < self.num_seeds == self.num_converged

    @property
    def is_evaluated(self) -> bool:
        return self.num_seeds > 0 or self.first_ood_point is not None

    @property
    def reach_text(self) -> str:
        """How far it generalizes on the diagonal in words: "90 % or more up to 8+8 digits"."""
        if self.farthest_point is not None:
            return f"{_REACHES} up to {self.group.point_label(self.farthest_point)}"
        if self.limiting_stratum is not None:
            return self._limit_text
        first = self.first_ood_point
        return (
            f"{format_percent(first.score)} % at {self.group.point_label(first)}" if first else "nothing OOD evaluated"
        )

    @property
    def _limit_text(self) -> str:
        """`0 % [0, 79.3] on 99...9 + 1 with n = 8`; "" if no stratum limits how far it generalizes."""
        point = self.limiting_stratum
        if point is None:
            return ""
        size, label = self.group.stratum_size(point), stratum_label(point, self.group.axes, self.group.operator)
        return f"{_score(point)} on {label} with n = {size}"

    @property
    def clause(self) -> str:
        """Its part of the headline: "rotary falls to 0 % [0, 1.9] at 6+6 digits"."""
        label, first, last = self.group.label, self.first_ood_point, self.farthest_point
        if self.group.non_causal_reason is not None:
            return f"{label}: {NOT_COMPARABLE}: {self.group.non_causal_reason}"
        if not self.is_evaluated:
            return f"{label} is not evaluated yet"
        trained = self.in_distribution.text(unit=" %")
        if self.num_seeds and not self.num_converged:
            there = f", {_score(first)} at {self.group.point_label(first)}{_baseline(first)}" if first else ""
            is_untrained = not any(cell.step for run in self.group.runs for cell in run.cells)
            verdict = "was not trained" if is_untrained else "did not converge"
            return f"{label} {verdict} ({trained} in distribution{there})"
        some = f", in the {self.num_converged} of {self.num_seeds} seeds that converged"
        seeds = some * (self.num_converged < self.num_seeds)
        if first is None:
            return f"{label} converged ({trained} in distribution{seeds}), nothing beyond was evaluated"
        if last is None and self.limiting_stratum is not None:
            return f"{label} converged ({trained} in distribution{seeds}) but has {self._limit_text}"
        if last is None:
            baseline = f" ({_baseline(first)[2:]})" * (first.baseline is not None)
            return f"{label} falls to {_score(first)} at {self.group.point_label(first)}{baseline}{seeds}"
        there = f"{_score(last)} there{_baseline(last)}" + f"; then {self._limit_text}" * bool(self._limit_text)
        return f"{label} stays at {_REACHES} up to {self.group.diagonal_label(last)} ({there}{seeds})"


def group_result(group: Group) -> GroupResult:
    """The results of a group."""
    counted = group.converged_group if group.converged_group.evaluated_cells else group
    longest = max((n for n, point in counted.diagonal.items() if point.region == "in_distribution"), default=0)
    beyond = [p for n, p in counted.diagonal.items() if n > longest and p.region != "in_distribution"]
    informative = [point for point in beyond if _is_informative(point)]
    first = next(iter(informative or beyond), None)
    farthest, limit = _farthest_point(beyond), None
    failed = [point for point in counted.strata if point.score < GENERALIZATION_THRESHOLD]
    lowest = min(failed, key=lambda point: (counted.stratum_size(point), point.score), default=None)
    if farthest is not None and lowest is not None and (size := counted.stratum_size(lowest)) <= farthest.length:
        farthest, limit = _farthest_point([point for point in beyond if point.length < size]), lowest
    return GroupResult(group, group.region_estimate("in_distribution"), farthest, first, limit)


def _farthest_point(points: Sequence[Point]) -> Point | None:
    """The last length up to which all scores reach `GENERALIZATION_THRESHOLD` and are clearly above their baselines. A
    length at which memorization alone reaches it does not end the search, and is the last only if clearly above."""
    farthest = None
    for point in points:
        is_above = is_clearly_above(point.score, point.baseline)
        if point.score < GENERALIZATION_THRESHOLD or (_is_informative(point) and not is_above):
            break
        farthest = point if is_above else farthest
    return farthest


def _is_informative(point: Point) -> bool:
    """Whether memorization alone does not reach `GENERALIZATION_THRESHOLD` there."""
    return point.baseline is None or point.baseline < GENERALIZATION_THRESHOLD


def _score(point: Point) -> str:
    return f"{format_percent(point.score)} % {format_interval(point.low, point.high)}"


def _baseline(point: Point) -> str:
    return "" if point.baseline is None else f", baseline {format_percent(point.baseline)} %"


def headline(groups: Sequence[Group]) -> str:
    """The headline of one or more groups.

    Of the quickstart: "Trained on 1 to 5 digits, Abacus stays at 90 % or more up to 8+8 digits, both numbers n digits
    long (90.5 % [85.6, 93.8] there); rotary falls to 0 % [0, 1.9] at 6+6 digits. One seed each, so the variation over
    seeds is unknown (brackets: 95 % intervals over questions)."
    """
    if have_unordered_cells(groups):
        return _parts_headline(groups)
    results = [group_result(group) for group in groups]
    compared = [one for one in results if one.is_evaluated and one.group.non_causal_reason is None]
    if not any(one.is_evaluated for one in results):
        has_strata = any(group.strata for group in groups)
        return "Only strata have been evaluated." if has_strata else "Nothing has been evaluated yet."
    if not compared:
        return f"{'; '.join(one.clause for one in results)}."
    trained = [p for one in compared for p in one.group.points if p.region == "in_distribution"]
    span, tasks = range_label(trained), [run.recipe.get("task", {}) for one in compared for run in one.group.runs]
    opening = (
        f"Trained on {span}, "
        if all(_covers(trained, task) for task in tasks)
        else f"Evaluated in distribution on {span} only, "
    )
    spans = {range_label([p for p in one.group.points if p.region == "in_distribution"]) for one in compared}
    if len(spans) > 1:
        opening = "Trained on different sizes: "
    elif not span:
        opening = "No trained cell was evaluated, so low scores may be slow learning: "
    is_long = len(results) > MAX_NAMES // 2
    text = _many(compared) if is_long else "; ".join(one.clause for one in results)
    return f"{opening}{text}. {_uncertainty([one.group for one in compared])}."


def _covers(trained: Sequence[Point], task: Mapping[str, Any]) -> bool:
    """Whether the evaluated cells in distribution reach from the smallest to the largest sizes of training, as far as
    the task says."""
    for axis in trained[0].coordinates if trained else ():
        sizes = task.get(axis) or (task.get("digits") if axis.endswith("digits") else None)
        bounds = [int(bound) for bound in str(sizes).split(":") if bound.isdecimal()]
        found = [point.coordinates[axis] for point in trained]
        if bounds and (min(found) > bounds[0] or max(found) < bounds[-1]):
            return False
    return True


def _many(results: Sequence[GroupResult]) -> str:
    """The results of more groups than a sentence can name."""
    text = f"{sum(one.has_converged for one in results)} of {len(results)} groups converged in every seed, and "
    far = [(one.farthest_point, one.group) for one in results if one.farthest_point is not None]
    if not far:
        return f"{text}none stays at {_REACHES} beyond"
    longest = max(point.length for point, _ in far)
    best = [group for point, group in far if point.length == longest]
    label = next(group.diagonal_label(point) for point, group in far if group is best[0])
    names = join_names([group.label for group in best])
    return f"{text}{len(far)} stay at {_REACHES} beyond, the farthest up to {label} ({names})"


def _uncertainty(groups: Sequence[Group]) -> str:
    """What scores and brackets are, and over how many seeds."""
    counts = sorted({len(group.evaluated_cells) for group in groups})
    each = " each" if len(groups) > 1 else ""
    if counts == [1]:
        text = f"one seed{each}, so the variation over seeds is unknown (brackets: 95 % intervals over questions)"
    else:
        single = "; for one seed: 95 % intervals over questions" * (counts[0] == 1)
        text = f"medians of {span_text(counts)} seeds{each} (brackets: range over seeds{single})"
    metric = common_metric(groups)
    if metric not in (None, "exact_match"):
        text = f"scores are {common_metric_label(groups)}; {text}"
    return text[0].upper() + text[1:] + f"; {SELECTION_NOTE}" * (len(groups) > MAX_NAMES)


def _parts_headline(groups: Sequence[Group]) -> str:
    """The headline where cells are named parts, such as modules: exact match as the mean over the parts by region."""
    evaluated = [group for group in groups if group.non_causal_reason is None and group.metrics_by_seed]
    if not evaluated:
        return "Nothing has been evaluated yet."
    words, axis = region_labels(groups), part_axis(groups)
    clauses = []
    for region, parts in named_cells(groups).items():
        names = f" ({', '.join(name for _, name in parts)})" if len(parts) <= MAX_NAMES // 2 else f" ({len(parts)})"
        found = _named_scores(evaluated, MetricKey(region))
        clauses.append(f"on the {words[region]}{names} {found}")
    missing = [f"{group.label} is not evaluated yet" for group in groups if not group.evaluated_cells]
    text = "; ".join([*clauses, *missing])
    uncertainty = _uncertainty(evaluated)
    return f"Exact match {text}. Means over the {axis}s; {uncertainty[0].lower()}{uncertainty[1:]}."


def _named_scores(evaluated: Sequence[Group], key: MetricKey) -> str:
    """The mean exact match over cells of each group by name, of many the best ones."""
    found = [(group.label, group.metric_estimate(key, f"{EXACT_MATCH}{CELL_MEAN_SUFFIX}")) for group in evaluated]
    scored = [(label, estimate) for label, estimate in found if estimate.values]
    if len(scored) > MAX_NAMES:
        scored = sorted(scored, key=lambda pair: -pair[1].median)[: MAX_NAMES // 2]
    texts = [f"{label} " * (len(evaluated) > 1) + one.text(unit=" %") for label, one in scored]
    best = f"is highest, of {len(evaluated)}, with " if len(evaluated) > MAX_NAMES else "is "
    return best + join_names(texts)
