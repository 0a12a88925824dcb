"""Significance tests of pairs of groups over seeds: by how many seeds converge, and by a metric in each region.

p values are corrected for the number of pairs of the same measure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from numerate.evaluation.answer_metrics import LOWER_IS_BETTER, base_metric
from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
)
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.content import Content, Heading
from numerate.reports.grid import ALL_OOD, ALL_REGION_LABELS, format_percent
from numerate.reports.groups import (
    CONVERGENCE_THRESHOLD,
    Group,
    common_metric_label,
    comparable_groups,
    main_metrics,
    region_labels,
)
from numerate.reports.metrics import EXACT_MATCH, MetricKey, format_metric, is_proportion, metric_title
from numerate.reports.table import TextTable

MAX_GROUPS_ALL_PAIRS = 4
"""Up to this number of groups all pairs are compared; with more, each with the first, to keep the correction small."""

SIGNIFICANCE_LEVEL = 0.05
"""The significance level."""

CONVERGED = "converged seeds"
"""The measure that is the number of converged seeds; the others are regions."""

SeedValues = Sequence[tuple[object, float]]
"""A value of each seed."""


@dataclass(frozen=True)
class SignificanceTest:
    """The values of the seeds of two groups with the p of a test. `adjusted_p_value` is Holm's p over the `num_pairs`
    pairs that are corrected together; `min_p_value` is the smallest possible `p_value`."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    p_value: float
    min_p_value: float
    test_name: str
    adjusted_p_value: float = 1.0
    num_pairs: int = 1

    @property
    def difference(self) -> float:
        return fmean(self.first) - fmean(self.second)

    @property
    def is_significant(self) -> bool:
        return self.adjusted_p_value < SIGNIFICANCE_LEVEL

    @property
    def text(self) -> str:
        """`0.048 (0.0079) *`: the p corrected for all pairs, and alone; a star if significant."""
        star = " *" * self.is_significant
        return f"{format_p(self.adjusted_p_value)} ({format_p(self.p_value)}){star}"


@dataclass(frozen=True)
class GroupPair:
    """Two groups by one measure: `CONVERGED`, or a metric in a region."""

    first: Group
    second: Group
    measure: str
    metric: str
    test: SignificanceTest

    @property
    def label(self) -> str:
        return f"{self.first.label} / {self.second.label}"


def compare_pairs(groups: Sequence[Group], metric: str | None = None) -> list[GroupPair]:
    """Compares groups of two seeds and more: all pairs of up to `MAX_GROUPS_ALL_PAIRS`, else each with the first.

    With a metric of numbers or texts by that in each region, over all seeds. Else by how many seeds converge, by
    Fisher's exact test, and by the mean over the cells that both groups have in each region out of distribution, over
    the converged seeds.
    """
    several = [group for group in comparable_groups(groups) if len(group.evaluated_cells) > 1]
    regions = [name for name in ALL_REGION_LABELS if any(name in group.first_region_scores for group in several)]
    measures = regions if metric else [CONVERGED, *(name for name in regions if name != "in_distribution")]
    are_many = len(several) > MAX_GROUPS_ALL_PAIRS
    pairs = [(other, several[0]) for other in several[1:]] if are_many else list(combinations(several, 2))
    return [pair for measure in measures for pair in _compare_by(pairs, measure, metric)]


def _compare_by(pairs: Sequence[tuple[Group, Group]], measure: str, metric: str | None) -> list[GroupPair]:
    """The pairs in which both groups have two values and more by a measure, corrected together."""
    measured = [(pair, values) for pair in pairs if min(map(len, values := _seed_values(*pair, measure, metric))) > 1]
    test = _test_counts if measure == CONVERGED else test_seeds
    tests = [test(*values, len(measured)) for _, values in measured]
    corrected = holm([one.p_value for one in tests])
    return [
        GroupPair(*pair, measure, metric or EXACT_MATCH, replace(one, adjusted_p_value=p, num_pairs=len(tests)))
        for (pair, _), one, p in zip(measured, tests, corrected, strict=True)
    ]


def _seed_values(first: Group, second: Group, measure: str, metric: str | None) -> tuple[SeedValues, SeedValues]:
    """The value of each seed by a measure, of both groups."""
    one: SeedValues
    other: SeedValues
    if metric is not None:
        name = f"{metric}{CELL_MEAN_SUFFIX}" if metric == EXACT_MATCH else metric
        one, other = (list(group.metric_by_seed(MetricKey(measure), name).items()) for group in (first, second))
    elif measure == CONVERGED:
        one, other = (
            [(run.seed, float(score >= CONVERGENCE_THRESHOLD)) for run, score in group.in_distribution_scores]
            for group in (first, second)
        )
    else:
        one, other = _means_over_shared_cells(first.converged_group, second.converged_group, measure)
    return one, other


def _means_over_shared_cells(first: Group, second: Group, region: str) -> tuple[SeedValues, SeedValues]:
    """Of each seed the mean over the cells of a region that both groups have; empty without any."""
    tables = [
        {
            tuple(point.coordinates.items()): point.seed_scores
            for point in group.points
            if region in (point.region, ALL_OOD) and point.region != "in_distribution" and not point.overlaps_training
        }
        for group in (first, second)
    ]
    shared = [place for place in tables[0] if place in tables[1]]
    one, other = (
        [(run.seed, fmean(table[place][i] for place in shared)) for i, (run, _) in enumerate(group.cells_by_run)]
        if shared
        else []
        for group, table in zip((first, second), tables, strict=True)
    )
    return one, other


def _test_counts(first: SeedValues, second: SeedValues, pairs: int) -> SignificanceTest:
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


def pair_table(pairs: Sequence[GroupPair], title: str, labels: dict[str, str] = ALL_REGION_LABELS) -> TextTable:
    """The table of pairs: both means, their difference, the probability of improvement, and p with a star if
    significant. `title` is the metric, `labels` names the regions."""
    rows = []
    for pair in pairs:
        first, second = pair.test.first, pair.test.second
        is_lower_better = base_metric(pair.metric) in LOWER_IS_BETTER
        probability = probability_of_improvement(*((second, first) if is_lower_better else (first, second)))
        counts = " : ".join(f"{sum(values):.0f}/{len(values)}" for values in (first, second))
        means = " : ".join(format_metric(pair.metric, fmean(values)) for values in (first, second))
        difference = pair.test.difference
        points = f"{round(100 * difference, 1) + 0.0:+.1f} points"
        rows.append(
            [
                pair.label,
                labels.get(pair.measure, pair.measure),
                counts if pair.measure == CONVERGED else means,
                points if is_proportion(pair.metric) else f"{difference:+.4g}",
                format_percent(probability, 0),
                pair.test.text,
            ]
        )
    header = ["pair", "measure", "means of seeds", "difference", "better, %", "p (uncorrected)"]
    return TextTable(header, rows, f"Means of {title}. {_caption(pairs)}", style="pairs")


def format_p(p: float) -> str:
    return "<0.001" if p < 0.001 else "1" if p >= 0.995 else f"{p:.2g}"


def _caption(pairs: Sequence[GroupPair]) -> str:
    tests = " or the ".join(sorted({pair.test.test_name for pair in pairs if pair.measure != CONVERGED}))
    what = f"Over all seeds, by the {tests}." if tests else ""
    if pairs[0].measure == CONVERGED:
        what = (
            f"Converged: from {format_percent(CONVERGENCE_THRESHOLD)} % in distribution on, compared by Fisher's exact "
            f"test. Regions: over the converged seeds, where both groups have two{f', by the {tests}' * bool(tests)}."
        )
    return (
        f"{what} Of more than {MAX_GROUPS_ALL_PAIRS} groups each is compared with the first. Better: how often a seed "
        "of the first beats one of the second. "
        f"*: significant, p < {SIGNIFICANCE_LEVEL}, two-sided, corrected by Holm's method for all pairs of a measure "
        "(in brackets uncorrected). p does not say how large a difference is, and a large p does not show that there "
        f"is none.{_required_seeds_note([pair.test for pair in pairs])}"
    )


def _required_seeds_note(tests: Sequence[SignificanceTest]) -> str:
    """The number of seeds required, where no difference could be significant with these seeds."""
    best = min(tests, key=lambda test: test.min_p_value * test.num_pairs)
    min_corrected_p = best.min_p_value * best.num_pairs
    if min_corrected_p < SIGNIFICANCE_LEVEL:
        return ""
    seeds = next(n for n in range(2, 100) if min_p_value(n, n) * best.num_pairs < SIGNIFICANCE_LEVEL)
    return (
        " With these seeds no difference can be significant: the smallest possible p is "
        f"{format_p(min(min_corrected_p, 1.0))}; {seeds} seeds each would suffice."
    )


def pairs_content(groups: Sequence[Group], metric: str | None = None) -> Content:
    """The pairs of a page, by a metric of answers if given; empty if fewer than two groups have several seeds."""
    pairs = compare_pairs(groups, metric)
    return [pair_table(pairs, metric or common_metric_label(groups), region_labels(groups))] if pairs else []


def part_pairs_content(groups: Sequence[Group]) -> Content:
    """The pairs where cells are named parts, by each main metric; nothing without several seeds."""
    found = [(name, pairs_content(groups, name)) for name in main_metrics(groups)]
    return [block for name, content in found if content for block in (Heading(metric_title(name)), *content)]
