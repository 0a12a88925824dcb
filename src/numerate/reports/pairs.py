"""Significance tests of pairs of groups over seeds, corrected for the number of pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
)
from numerate.reports.comparable import comparable_groups
from numerate.reports.content import Content, Note
from numerate.reports.grid import Point, cell_label, format_percent, is_clearly_above
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group
from numerate.reports.limits import join_names
from numerate.reports.summary import GENERALIZATION_THRESHOLD
from numerate.reports.table import TextTable

MAX_GROUPS_ALL_PAIRS = 4
"""Up to this number of groups all pairs are compared; with more, each with the first, to keep the correction small."""

SIGNIFICANCE_LEVEL = 0.05
"""The significance level."""


SIGNIFICANCE_NOTE = (
    f"Significant means p < {SIGNIFICANCE_LEVEL}, two-sided, corrected by Holm's method for all pairs of its column "
    "(in brackets uncorrected). p does not say how large a difference is, and a large p does not show that there is "
    "none."
)


@dataclass(frozen=True)
class SignificanceTest:
    """Two groups in one metric, the successes or the scores of the converged seeds, with the p of the test.
    `adjusted_p_value` is Holm's p over all pairs of the table; `min_p_value` is the smallest possible `p_value`."""

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


@dataclass(frozen=True)
class GroupPair:
    """Tests of two groups by metric ("converged", "ood", "far"), where both have two converged seeds."""

    first: Group
    second: Group
    tests: Mapping[str, SignificanceTest]

    @property
    def label(self) -> str:
        return f"{self.first.label} / {self.second.label}"


@dataclass(frozen=True)
class PairTests:
    """The pairs of a study. `baseline` is the group that all others are compared with, None if every pair is;
    `farthest_label` names the longest equal length at which some seed has `GENERALIZATION_THRESHOLD`, the same for
    all."""

    pairs: tuple[GroupPair, ...]
    baseline: Group | None
    farthest_label: str

    def pairs_with(self, metric: str) -> list[tuple[GroupPair, SignificanceTest]]:
        return [(pair, pair.tests[metric]) for pair in self.pairs if metric in pair.tests]


def compare_pairs(groups: Sequence[Group]) -> PairTests:
    """Compares groups of two seeds and more: all pairs of up to `MAX_GROUPS_ALL_PAIRS`, else each with the first of
    them.

    Which seeds converge is compared by Fisher's exact test. Scores are those of the converged seeds: seed by seed by
    the sign-flip test where both groups have the same seeds and enough of them for significance after the correction (2
    / 2**seeds * pairs below `SIGNIFICANCE_LEVEL`: six seeds for one pair, nine for ten), else by the permutation test.
    """
    several = [group for group in comparable_groups(groups) if len(group.evaluated_cells) > 1]
    all_pairs = len(several) <= MAX_GROUPS_ALL_PAIRS
    group_pairs = list(combinations(several, 2)) if all_pairs else [(other, several[0]) for other in several[1:]]
    farthest_point = _farthest_point([group.converged_group for group in several])
    tests = [_tests(one, other, farthest_point, len(group_pairs)) for one, other in group_pairs]
    for metric in TESTED_METRICS:
        measured = [found for found in tests if metric in found]
        for found, p in zip(measured, holm([found[metric].p_value for found in measured]), strict=True):
            found[metric] = replace(found[metric], adjusted_p_value=p)
    pairs = [GroupPair(one, other, found) for (one, other), found in zip(group_pairs, tests, strict=True) if found]
    label = cell_label(farthest_point.coordinates, several[0].operator) if farthest_point else ""
    return PairTests(tuple(pairs), None if all_pairs else several[0], label)


TESTED_METRICS = ("converged", "ood", "far")


def _tests(one: Group, other: Group, farthest_point: Point | None, pairs: int) -> dict[str, SignificanceTest]:
    found = {}
    flags = [[score >= CONVERGENCE_THRESHOLD for _, score in group.in_distribution_scores] for group in (one, other)]
    if min(map(len, flags)) > 1:
        first, second = (tuple(map(float, each)) for each in flags)
        p = fisher_exact((sum(flags[0]), len(first)), (sum(flags[1]), len(second)))
        lowest = min_p_value(len(first), len(second))
        found["converged"] = SignificanceTest(first, second, p, lowest, "Fisher's exact test")
    converged = one.converged_group, other.converged_group
    seeds = [[run.seed for run, _ in group.region_scores_by_run] for group in converged]
    if min(map(len, seeds)) > 1:
        if scores := _ood_means(*converged):
            found["ood"] = test_seeds(seeds, scores, pairs)
        points = [farthest_point and group.diagonal.get(_length(farthest_point)) for group in converged]
        if points[0] is not None and points[1] is not None:
            found["far"] = test_seeds(seeds, (points[0].seed_scores, points[1].seed_scores), pairs)
    return found


def _ood_means(*groups: Group) -> list[list[float]]:
    """Of each group and seed the mean over the OOD cells that all groups have; empty without any."""
    tables = [
        {
            tuple(point.coordinates.items()): point.seed_scores
            for point in group.points
            if point.region != "in_distribution" and not point.overlaps_training
        }
        for group in groups
    ]
    shared = [place for place in tables[0] if all(place in table for table in tables)]
    return [np.array([table[place] for place in shared]).mean(axis=0).tolist() for table in tables] if shared else []


def test_seeds(seeds: Sequence[Sequence[object]], scores: Sequence[Sequence[float]], pairs: int) -> SignificanceTest:
    """Tests two groups by one score of each of their seeds, as one of `pairs`; the test is chosen as in
    `compare_pairs`."""
    first, second = scores
    same = sorted(map(str, seeds[0])) == sorted(map(str, seeds[1])) and len(set(seeds[0])) == len(seeds[0])
    a, b = tuple(map(float, first)), tuple(map(float, second))
    if same and min_p_value(len(a), len(b), paired=True) * pairs < SIGNIFICANCE_LEVEL:
        ordered = [
            [value for _, value in sorted(zip(map(str, names), values, strict=True))]
            for names, values in zip(seeds, (a, b), strict=True)
        ]
        p, lowest = paired_permutation_test(*ordered, "report"), min_p_value(len(a), len(b), paired=True)
        return SignificanceTest(a, b, p, lowest, "sign-flip test, seed by seed")
    return SignificanceTest(a, b, permutation_test(a, b, "report"), min_p_value(len(a), len(b)), "permutation test")


def _farthest_point(groups: Sequence[Group]) -> Point | None:
    """The longest OOD equal lengths at which a seed of any group has `GENERALIZATION_THRESHOLD`, clearly above the
    score of memorization or of a constant answer."""
    found = [point for group in groups for point in group.diagonal.values() if point.region != "in_distribution"]
    best = [(max(point.seed_scores), point) for point in found]
    reached = [p for score, p in best if score >= GENERALIZATION_THRESHOLD and is_clearly_above(score, p.baseline)]
    return max(reached, key=_length, default=None)


def _length(point: Point) -> int:
    return next(iter(point.coordinates.values()))


def pairs_content(groups: Sequence[Group]) -> Content:
    """The pairs of a page with notes; empty if fewer than two groups have several seeds."""
    pair_tests = compare_pairs(groups)
    return [pair_table(pair_tests), *map(Note, pair_notes(pair_tests))] if pair_tests.pairs else []


def pair_table(pair_tests: PairTests) -> TextTable:
    """Per pair and metric the counts or the difference, below them p, corrected and not, with a star if significant."""
    has_ood, has_far = (bool(pair_tests.pairs_with(metric)) for metric in ("ood", "far"))
    header = ["pair", "converged", *["OOD cells, points", "ahead, %"] * has_ood]
    header += [f"{pair_tests.farthest_label}, points"] * has_far
    rows = []
    for pair in pair_tests.pairs:
        converged, ood, far = (pair.tests.get(metric) for metric in TESTED_METRICS)
        ends = (converged.first, converged.second) if converged else ()
        counts = " : ".join(f"{sum(each):.0f}/{len(each)}" for each in ends)
        ahead = format_percent(probability_of_improvement(ood.first, ood.second), 0) if ood else ""
        row = [pair.label, _result(counts, converged), *[_result(_points(ood), ood), ahead] * has_ood]
        rows.append(row + [_result(_points(far), far)] * has_far)
    return TextTable(header, rows, caption=_caption(pair_tests))


def _points(test: SignificanceTest | None) -> str:
    return f"{round(100 * test.difference, 1) + 0.0:+.1f}" if test else ""


def _result(text: str, test: SignificanceTest | None) -> str:
    return f"{text}\np {format_p_values(test)}{' *' * test.is_significant}" if test else ""


def format_p_values(test: SignificanceTest | None) -> str:
    """`0.048 (0.0079)`: the p corrected for all pairs, and alone."""
    return f"{_format_p_value(test.adjusted_p_value)} ({_format_p_value(test.p_value)})" if test else ""


def _format_p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else "1" if p >= 0.995 else f"{p:.2g}"


def pair_notes(pair_tests: PairTests) -> list[str]:
    """Where there are too few seeds for a significant difference, and which groups were not compared."""
    columns = ("How many seeds converge", "All OOD cells", f"At {pair_tests.farthest_label}")
    notes: dict[str, list[str]] = {}
    for metric, column in zip(TESTED_METRICS, columns, strict=True):
        tests = [test for _, test in pair_tests.pairs_with(metric)]
        if tests and (note := required_seeds_note(tests)):
            notes.setdefault(note, []).append(column)
    untested = [group for pair in pair_tests.pairs if "ood" not in pair.tests for group in (pair.first, pair.second)]
    few = dict.fromkeys(group.label for group in untested if len(group.converged_group.evaluated_cells) < 2)
    sentences = [f"{', '.join(where)}:{note}" for note, where in notes.items()]
    if few:
        reason = "Not compared out of distribution, as fewer than two of their seeds converged"
        sentences.append(f"{reason}: {join_names(list(few))}.")
    return sentences


def required_seeds_note(tests: Sequence[SignificanceTest]) -> str:
    """The number of seeds required, where no difference could be significant with these seeds."""
    min_corrected_p = min(tested.min_p_value for tested in tests) * len(tests)
    if min_corrected_p < SIGNIFICANCE_LEVEL:
        return ""
    seeds = next(n for n in range(2, 100) if min_p_value(n, n) * len(tests) < SIGNIFICANCE_LEVEL)
    corrected = f" after the correction for {len(tests)} pairs" if len(tests) > 1 else ""
    return (
        f" With these seeds no difference can be significant: the smallest possible p is "
        f"{_format_p_value(min(min_corrected_p, 1.0))}{corrected}; {seeds} seeds each would suffice."
    )


def _caption(pair_tests: PairTests) -> str:
    tests = sorted({tested.test_name for metric in ("ood", "far") for _, tested in pair_tests.pairs_with(metric)})
    by = " or the ".join(tests) or "permutation test"
    parts = [
        f"Each group against the first, {pair_tests.baseline.label}." if pair_tests.baseline else "",
        f"Converged: seeds with at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution, by Fisher's exact "
        "test.",
        f"Points: the difference of the means over converged seeds in percentage points, by the {by}.",
        "Groups that cannot converge by a symmetry count with all seeds."
        if any(group.is_limited_by_symmetry for pair in pair_tests.pairs for group in (pair.first, pair.second))
        else "",
        "Ahead: the probability that a seed of the first is better than a seed of the second, over all OOD cells.",
        f"{pair_tests.farthest_label} is the longest at which any seed of any group has "
        f"{format_percent(GENERALIZATION_THRESHOLD)} %."
        if pair_tests.farthest_label
        else "",
        f"*: significant. {SIGNIFICANCE_NOTE}",
    ]
    return " ".join(filter(None, parts))
