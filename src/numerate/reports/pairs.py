"""Significance tests of pairs of groups over seeds: by how many seeds converge, and by scores and metrics of answers.

p values are corrected for the number of pairs of the same measure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

import numpy as np

from numerate.evaluation.answer_metrics import LOWER_IS_BETTER, base_metric
from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
)
from numerate.reports.comparable import comparable_groups
from numerate.reports.content import Bullets, Content, Heading
from numerate.reports.counts import common_metric_label
from numerate.reports.grid import ALL_REGION_LABELS, Point, format_percent, is_clearly_above
from numerate.reports.groups import CONVERGENCE_THRESHOLD, LABEL_SETTINGS, Group, region_labels, remove_seeds
from numerate.reports.limits import join_names
from numerate.reports.metrics import (
    EXACT_MATCH,
    METRIC_LABELS,
    GroupAtCheckpoint,
    MetricKey,
    charted_metrics,
    format_metric,
    groups_at_checkpoints,
    is_proportion,
    metric_title,
)
from numerate.reports.summary import GENERALIZATION_THRESHOLD
from numerate.reports.table import TextTable

MAX_GROUPS_ALL_PAIRS = 4
"""Up to this number of groups all pairs are compared; with more, each with the first, to keep the correction small."""

SIGNIFICANCE_LEVEL = 0.05
"""The significance level."""

SIGNIFICANCE_NOTE = (
    f"*: significant. Significant means p < {SIGNIFICANCE_LEVEL}, two-sided, corrected by Holm's method for all pairs "
    "of a measure (in brackets uncorrected). p does not say how large a difference is, and a large p does not show "
    "that there is none."
)

CONVERGED, OOD = "converged seeds", "all OOD cells"
"""The measures of `compare_pairs`, besides the farthest length."""

SeedValues = Sequence[tuple[object, float]]
"""A value of each seed."""


@dataclass(frozen=True)
class SignificanceTest:
    """The values of the seeds of two groups with the p of a test. `adjusted_p_value` is Holm's p over all pairs of the
    measure; `min_p_value` is the smallest possible `p_value`."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    p_value: float
    min_p_value: float
    test_name: str
    adjusted_p_value: float = 1.0

    @property
    def difference(self) -> float:
        return float(np.mean(self.first) - np.mean(self.second))

    @property
    def is_significant(self) -> bool:
        return self.adjusted_p_value < SIGNIFICANCE_LEVEL

    @property
    def text(self) -> str:
        """`0.048 (0.0079) *`: the p corrected for all pairs, and alone; a star if significant."""
        star = " *" * self.is_significant
        return f"{_format_p(self.adjusted_p_value)} ({_format_p(self.p_value)}){star}"


@dataclass(frozen=True)
class GroupPair:
    """Two groups by one measure: `CONVERGED`, `OOD`, "at length 9", or a metric of answers in a region. `seeds_better`
    are the seeds in which `first` is better, of the shared seeds; pairs of the same `family` are corrected together."""

    first: Group
    second: Group
    measure: str
    test: SignificanceTest
    metric: str = EXACT_MATCH
    seeds_better: tuple[int, int] | None = None
    family: int = 0

    @property
    def label(self) -> str:
        return f"{self.first.label} / {self.second.label}"

    @property
    def better_text(self) -> str:
        is_first = (self.test.difference < 0) == (base_metric(self.metric) in LOWER_IS_BETTER)
        one, other = (self.first, self.second) if is_first else (self.second, self.first)
        return f"{one.label} is better than {other.label}"


def compare_pairs(groups: Sequence[Group]) -> list[GroupPair]:
    """Compares groups of two seeds and more: all pairs of up to `MAX_GROUPS_ALL_PAIRS`, else each with the first of
    them.

    Which seeds converge is compared by Fisher's exact test; scores of the converged seeds, over the OOD cells that both
    groups have and at the longest equal length at which a seed of any group has `GENERALIZATION_THRESHOLD`, by
    `test_seeds`.
    """
    several = [group for group in comparable_groups(groups) if len(group.evaluated_cells) > 1]
    pairs = _select_pairs(several)
    found = _test_pairs(pairs, CONVERGED, _convergence, fisher=True) + _test_pairs(pairs, OOD, _ood_means)
    farthest_point = _farthest_point([group.converged_group for group in several])
    if farthest_point is None:
        return found

    def at_farthest(one: Group, other: Group) -> tuple[SeedValues, SeedValues]:
        return _scores_at(one, farthest_point.length), _scores_at(other, farthest_point.length)

    return found + _test_pairs(pairs, f"at {several[0].point_label(farthest_point)}", at_farthest)


def _select_pairs(items: Sequence[Group]) -> list[tuple[Group, Group]]:
    if len(items) <= MAX_GROUPS_ALL_PAIRS:
        return list(combinations(items, 2))
    return [(other, items[0]) for other in items[1:]]


def _test_pairs(
    pairs: Sequence[tuple[Group, Group]],
    measure: str,
    values: Callable[[Group, Group], tuple[SeedValues, SeedValues]],
    *,
    metric: str = EXACT_MATCH,
    family: int = 0,
    fisher: bool = False,
) -> list[GroupPair]:
    """The pairs in which both groups have two values and more, corrected together."""
    measured = [(pair, both) for pair in pairs if min(map(len, both := values(*pair)), default=0) > 1]
    tests = [_test_counts(*both) if fisher else test_seeds(*both, len(pairs)) for _, both in measured]
    corrected = holm([test.p_value for test in tests])
    return [
        GroupPair(
            *pair,
            measure,
            replace(test, adjusted_p_value=p),
            metric,
            _count_better_seeds(dict(both[0]), dict(both[1]), metric),
            family,
        )
        for (pair, both), test, p in zip(measured, tests, corrected, strict=True)
    ]


def _convergence(one: Group, other: Group) -> tuple[SeedValues, SeedValues]:
    first, second = (
        [(run.seed, float(score >= CONVERGENCE_THRESHOLD)) for run, score in group.in_distribution_scores]
        for group in (one, other)
    )
    return first, second


def _scores_at(group: Group, length: int) -> SeedValues:
    point = group.converged_group.diagonal.get(length)
    return _by_seed(group.converged_group, point.seed_scores if point else ())


def _by_seed(group: Group, values: Sequence[float]) -> SeedValues:
    return list(zip((run.seed for run, _ in group.cells_by_run), values, strict=False))


def _ood_means(one: Group, other: Group) -> tuple[SeedValues, SeedValues]:
    """Of each group and converged seed the mean over the OOD cells that both groups have; empty without any."""
    groups = (one.converged_group, other.converged_group)
    tables = [
        {
            tuple(point.coordinates.items()): point.seed_scores
            for point in group.points
            if point.region != "in_distribution" and not point.overlaps_training
        }
        for group in groups
    ]
    shared = [place for place in tables[0] if place in tables[1]]
    means = [np.array([table[place] for place in shared]).mean(axis=0).tolist() if shared else [] for table in tables]
    return _by_seed(groups[0], means[0]), _by_seed(groups[1], means[1])


def _farthest_point(groups: Sequence[Group]) -> Point | None:
    """The longest OOD equal lengths at which a seed of any group has `GENERALIZATION_THRESHOLD`, clearly above the
    score of memorization or of a constant answer."""
    found = [point for group in groups for point in group.diagonal.values() if point.region != "in_distribution"]
    best = [(max(point.seed_scores), point) for point in found]
    reached = [p for score, p in best if score >= GENERALIZATION_THRESHOLD and is_clearly_above(score, p.baseline)]
    return max(reached, key=lambda point: point.length, default=None)


def _test_counts(first: SeedValues, second: SeedValues) -> SignificanceTest:
    a, b = (tuple(value for _, value in each) for each in (first, second))
    p = fisher_exact((round(sum(a)), len(a)), (round(sum(b)), len(b)))
    return SignificanceTest(a, b, p, min_p_value(len(a), len(b)), "Fisher's exact test")


def test_seeds(first: SeedValues, second: SeedValues, pairs: int) -> SignificanceTest:
    """Tests two groups by one score of each of their seeds, as one of `pairs`.

    It is the sign-flip test, seed by seed, where both groups have the same seeds and enough of them for significance
    after the correction (2 / 2**seeds * pairs below `SIGNIFICANCE_LEVEL`: six seeds for one pair, nine for ten), else
    the permutation test.
    """
    a, b = (tuple(float(value) for _, value in each) for each in (first, second))
    names = [[str(seed) for seed, _ in each] for each in (first, second)]
    same = sorted(names[0]) == sorted(names[1]) and len(set(names[0])) == len(names[0])
    lowest = min_p_value(len(a), len(b), paired=True) if same else 1.0
    if lowest * pairs < SIGNIFICANCE_LEVEL:
        ordered = [[value for _, value in sorted((str(s), value) for s, value in each)] for each in (first, second)]
        p = paired_permutation_test(*ordered, "report")
        return SignificanceTest(a, b, p, lowest, "sign-flip test, seed by seed")
    return SignificanceTest(a, b, permutation_test(a, b, "report"), min_p_value(len(a), len(b)), "permutation test")


def compare_pairs_by_metric(groups: Sequence[Group], metric: str) -> list[GroupPair]:
    """The groups that have a metric of answers in two seeds and more, compared by `test_seeds` in each region: all
    pairs of up to `MAX_GROUPS_ALL_PAIRS`, else each with the first.

    With more groups that differ in the objective and in other settings, each is compared with the first group that
    differs from it in the objective alone, and corrected for the pairs of these.
    """
    found: list[GroupPair] = []
    families = [[(group, _scores(group, metric)) for group in one] for one in _families(comparable_groups(groups))]
    for region in ALL_REGION_LABELS:
        for number, family in enumerate(families):
            known = [(group, scores[region]) for group, scores in family if len(scores[region]) > 1]
            by_label = {group.label: list(values.items()) for group, values in known}
            pairs = _select_pairs([group for group, _ in known])

            def values(
                one: Group, other: Group, of: Mapping[str, SeedValues] = by_label
            ) -> tuple[SeedValues, SeedValues]:
                return of[one.label], of[other.label]

            found += _test_pairs(pairs, region, values, metric=metric, family=number)
    return found


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    """Of many groups families that differ in the objective alone; the groups without any such other join the first
    group."""
    by_settings: dict[str, list[Group]] = {}
    for group in groups:
        recipe = group.runs[0].recipe.items()
        settings = {name: value for name, value in recipe if name not in LABEL_SETTINGS | {"objective"}}
        key = json.dumps([remove_seeds(settings), group.settings or {}], sort_keys=True, default=str)
        by_settings.setdefault(key, []).append(group)
    large = [family for family in by_settings.values() if len(family) > 1]
    if not large or len(groups) <= MAX_GROUPS_ALL_PAIRS:
        return [list(groups)]
    single = [group for group in groups if not any(group in family for family in large)]
    rest = [groups[0], *(group for group in single if group is not groups[0])]
    return [*large, rest] if len(rest) > 1 else large


def _scores(group: Group, metric: str) -> Mapping[str, Mapping[int | None, float]]:
    """A metric of each region and seed; exact match as the mean over cells."""
    if metric == EXACT_MATCH:
        scores = group.region_scores_by_run
        return {
            region: {run.seed: found[region].score.value for run, found in scores if region in found}
            for region in ALL_REGION_LABELS
        }
    one = GroupAtCheckpoint(group, "")
    return {region: one.values_by_seed(MetricKey(region), metric) for region in ALL_REGION_LABELS}


def _count_better_seeds(
    first: Mapping[object, float], second: Mapping[object, float], metric: str
) -> tuple[int, int] | None:
    """In how many shared seeds the first is better, ties not counted; None without shared seeds."""
    sign = -1 if base_metric(metric) in LOWER_IS_BETTER else 1
    shared = [sign * (value - second[seed]) for seed, value in first.items() if seed in second]
    return (sum(difference > 0 for difference in shared), len(shared)) if shared else None


def pair_table(pairs: Sequence[GroupPair], title: str, labels: Mapping[str, str] = ALL_REGION_LABELS) -> TextTable:
    """The table of pairs: both means, their difference, the probability of improvement, the shared seeds in which the
    first is better, and p with a star if significant. `title` is the metric, `labels` names the regions."""
    rows = []
    for pair in pairs:
        both = (pair.test.first, pair.test.second)
        is_lower_better = base_metric(pair.metric) in LOWER_IS_BETTER
        probability = probability_of_improvement(*(both[::-1] if is_lower_better else both))
        means = [format_metric(pair.metric, fmean(values)) for values in both]
        counts = [f"{sum(values):.0f}/{len(values)}" for values in both]
        difference = pair.test.difference
        points = (
            f"{round(100 * difference, 1) + 0.0:+.1f} points" if is_proportion(pair.metric) else f"{difference:+.4g}"
        )
        rows.append(
            [
                pair.label,
                labels.get(pair.measure, pair.measure),
                " : ".join(counts if pair.measure == CONVERGED else means),
                points,
                format_percent(probability, 0),
                f"{pair.seeds_better[0]} of {pair.seeds_better[1]}" if pair.seeds_better else "",
                pair.test.text,
            ]
        )
    header = ["pair", "measure", f"{title}, mean of seeds", "difference", "better, %", "same seed", "p (uncorrected)"]
    return TextTable(header, rows, _caption(pairs), fold=f"All {len(rows)} pairs", style="pairs")


def _format_p(p: float) -> str:
    return "<0.001" if p < 0.001 else "1" if p >= 0.995 else f"{p:.2g}"


def _caption(pairs: Sequence[GroupPair]) -> str:
    measures = {pair.measure for pair in pairs}
    tests = " or the ".join(sorted({pair.test.test_name for pair in pairs if pair.measure != CONVERGED}))
    what = "All seeds, whether they converged or not"
    if not measures <= ALL_REGION_LABELS.keys():
        what = (
            f"Converged seeds have at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution, compared by "
            "Fisher's exact test; all else is over the converged seeds"
        )
    parts = [f"{what}, by the {tests}." if tests else f"{what}."]
    first = {pair.second.label for pair in pairs}
    if len(pairs) >= MAX_GROUPS_ALL_PAIRS and len(first) == 1:
        parts.append(f"Each group against the first, {first.pop()}.")
    elif len({pair.family for pair in pairs}) > 1:
        parts.append(
            "Each group is compared with the first that differs from it in the objective alone, and corrected for the "
            "pairs of that one."
        )
    if any(group.is_limited_by_symmetry for pair in pairs for group in (pair.first, pair.second)):
        parts.append("Groups that cannot converge by a symmetry count with all seeds.")
    if lengths := measures - {CONVERGED, OOD} - ALL_REGION_LABELS.keys():
        share = format_percent(GENERALIZATION_THRESHOLD)
        parts.append(
            f"{lengths.pop().removeprefix('at ')} is the longest at which any seed of any group has {share} %."
        )
    parts.append(
        "Better: how often a seed of the one is better than one of the other; same seed: how often in the same."
    )
    return " ".join([*parts, SIGNIFICANCE_NOTE])


def pair_sentences(pairs: Sequence[GroupPair], labels: Mapping[str, str] = ALL_REGION_LABELS) -> list[str]:
    """The significant differences by each measure in words, and where there are too few seeds for any."""
    notes: list[str] = []
    for measure in dict.fromkeys(pair.measure for pair in pairs):
        inside = [pair for pair in pairs if pair.measure == measure]
        better = [pair.better_text for pair in inside if pair.test.is_significant]
        others = [pair.label for pair in inside if not pair.test.is_significant]
        text = join_names(better) if better else "no significant difference"
        text += f"; not significant: {join_names(others)}" if better and others else ""
        families = [[pair.test for pair in inside if pair.family == number] for number in {p.family for p in inside}]
        more = _required_seeds_note(min(families, key=lambda all_: len(all_) * min(test.min_p_value for test in all_)))
        known = more and any(note.endswith(more) for note in notes)
        name = labels.get(measure)
        what = (
            f"{name}, {METRIC_LABELS[base_metric(inside[0].metric)]}" if name else f"{measure[0].upper()}{measure[1:]}"
        )
        notes.append(f"{what}: {text}.{' The same holds.' if known else more}")
    few = dict.fromkeys(
        group.label
        for pair in pairs
        if pair.measure == CONVERGED
        for group in (pair.first, pair.second)
        if len(group.converged_group.evaluated_cells) < 2
    )
    reason = "Not compared out of distribution, as fewer than two of their seeds converged"
    return [*notes, *[f"{reason}: {join_names(list(few))}." for _ in list(few)[:1]]]


def _required_seeds_note(tests: Sequence[SignificanceTest]) -> str:
    """The number of seeds required, where no difference could be significant with these seeds."""
    min_corrected_p = min(tested.min_p_value for tested in tests) * len(tests)
    if min_corrected_p < SIGNIFICANCE_LEVEL:
        return ""
    seeds = next(n for n in range(2, 100) if min_p_value(n, n) * len(tests) < SIGNIFICANCE_LEVEL)
    corrected = f" after the correction for {len(tests)} pairs" if len(tests) > 1 else ""
    return (
        f" With these seeds no difference can be significant: the smallest possible p is "
        f"{_format_p(min(min_corrected_p, 1.0))}{corrected}; {seeds} seeds each would suffice."
    )


def pairs_content(groups: Sequence[Group], metric: str | None = None) -> Content:
    """The pairs of a page, by a metric of answers if given; empty if fewer than two groups have several seeds."""
    pairs = compare_pairs(groups) if metric is None else compare_pairs_by_metric(groups, metric)
    words = region_labels(groups)
    title = metric or common_metric_label(groups)
    return [Bullets(pair_sentences(pairs, words)), pair_table(pairs, title, words)] if pairs else []


def part_pairs_content(groups: Sequence[Group]) -> Content:
    """The pairs where cells are named parts, by each metric of their chart; nothing without several seeds."""
    found = [(name, pairs_content(groups, name)) for name in charted_metrics(groups_at_checkpoints(groups))]
    return [block for name, content in found if content for block in (Heading(metric_title(name)), *content)]
