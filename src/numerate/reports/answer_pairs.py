"""Tests of which groups differ in a metric of answers, seed by seed, corrected within each region."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from markupsafe import Markup

from numerate.evaluation.answer_metrics import ANSWER_METRICS, LOWER_IS_BETTER, PROPORTION_METRICS, base_metric
from numerate.evaluation.statistics import holm, probability_of_improvement
from numerate.reports.answers import format_metric, metrics_by_seed
from numerate.reports.comparable import comparable_groups
from numerate.reports.content import Bullets, Content, Heading
from numerate.reports.grid import ALL_REGION_LABELS, format_percent
from numerate.reports.groups import LABEL_SETTINGS, Group, region_labels, remove_seeds
from numerate.reports.limits import join_names
from numerate.reports.metrics import EXACT_MATCH, charted_metrics, groups_at_checkpoints, metric_title
from numerate.reports.pairs import (
    MAX_GROUPS_ALL_PAIRS,
    SIGNIFICANCE_NOTE,
    SignificanceTest,
    format_p_values,
    required_seeds_note,
    test_seeds,
)
from numerate.reports.table import TextTable


@dataclass(frozen=True)
class AnswerPair:
    """Two groups by one metric in one region, seed by seed. `seeds_better` are the seeds in which `first` is better, of
    the shared seeds; pairs of the same `family` are corrected together."""

    first: Group
    second: Group
    region: str
    test: SignificanceTest
    seeds_better: tuple[int, int] | None = None
    family: int = 0

    @property
    def label(self) -> str:
        return f"{self.first.label} / {self.second.label}"


def compare_pairs_by_metric(groups: Sequence[Group], metric: str) -> list[AnswerPair]:
    """The groups that have a metric in two seeds and more, compared as `compare_pairs` compares scores: all pairs of up
    to `MAX_GROUPS_ALL_PAIRS`, else each with the first; Holm's correction for the pairs of each region.

    With more groups that differ in the objective and in other settings, each is compared with the first group that
    differs from it in the objective alone, and corrected for the pairs of these.
    """
    valid_groups = comparable_groups(groups)
    families = _families(valid_groups)
    pairs = [pair for number, family in enumerate(families) for pair in _pairs_of_family(family, metric, number)]
    return sorted(pairs, key=lambda pair: list(ALL_REGION_LABELS).index(pair.region))


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


def _scores(group: Group, metric: str) -> dict[str, dict[object, float]]:
    """A metric of each region and seed; exact match as the mean over cells."""
    if metric == EXACT_MATCH:
        each: list[tuple[object, dict[str, float]]] = [
            (run.seed, {name: one.score.value for name, one in found.items()})
            for run, found in group.region_scores_by_run
        ]
    else:
        each = [
            (seed, {region: value for region, metrics in found.items() if (value := metrics.get(metric)) is not None})
            for seed, found in metrics_by_seed(group)
        ]
    return {region: {seed: found[region] for seed, found in each if region in found} for region in ALL_REGION_LABELS}


def _pairs_of_family(groups: Sequence[Group], metric: str, family: int) -> list[AnswerPair]:
    scored = [(group, _scores(group, metric)) for group in groups]
    pairs = []
    for region in ALL_REGION_LABELS:
        known = [(group, scores[region]) for group, scores in scored if len(scores[region]) > 1]
        is_few = len(known) <= MAX_GROUPS_ALL_PAIRS
        several = list(combinations(known, 2)) if is_few else [(other, known[0]) for other in known[1:]]
        tests = [
            test_seeds(([*one], [*other]), ([*one.values()], [*other.values()]), len(several))
            for (_, one), (_, other) in several
        ]
        for (one, other), test, p in zip(several, tests, holm([test.p_value for test in tests]), strict=True):
            better = _count_better_seeds(one[1], other[1], metric)
            test = replace(test, adjusted_p_value=p)
            pairs.append(AnswerPair(one[0], other[0], region, test, better, family))
    return pairs


def _count_better_seeds(
    first: Mapping[object, float], second: Mapping[object, float], metric: str
) -> tuple[int, int] | None:
    """In how many shared seeds the first is better, ties not counted; None without shared seeds."""
    sign = -1 if base_metric(metric) in LOWER_IS_BETTER else 1
    shared = [sign * (value - second[seed]) for seed, value in first.items() if seed in second]
    return (sum(difference > 0 for difference in shared), len(shared)) if shared else None


def answer_pair_table(
    pairs: Sequence[AnswerPair], metric: str, labels: Mapping[str, str] = ALL_REGION_LABELS
) -> TextTable:
    """The table of pairs: both means, their difference, the probability of improvement, the shared seeds in which the
    first is better, and p. `labels` names the regions."""
    is_share, lower_is_better = (
        metric == EXACT_MATCH or base_metric(metric) in PROPORTION_METRICS,
        base_metric(metric) in LOWER_IS_BETTER,
    )
    rows = []
    for pair in pairs:
        first, second = pair.test.first, pair.test.second
        probability = probability_of_improvement(*((second, first) if lower_is_better else (first, second)))
        difference = f"{100 * pair.test.difference:+.1f} points" if is_share else f"{pair.test.difference:+.4g}"
        rows.append(
            [
                pair.label,
                labels[pair.region],
                " : ".join(format_metric(metric, fmean(values)) for values in (first, second)),
                difference,
                format_percent(probability, 0),
                f"{pair.seeds_better[0]} of {pair.seeds_better[1]}" if pair.seeds_better else "",
                format_p_values(pair.test),
            ]
        )
    header = ["pair", "region", f"{metric}, mean of seeds", "difference", "better, %", "same seed", "p (uncorrected)"]
    return TextTable(header, rows, fold=f"All {len(rows)} pairs", style="pairs")


def answer_pair_sentences(
    pairs: Sequence[AnswerPair], metric: str, labels: Mapping[str, str] = ALL_REGION_LABELS
) -> list[str]:
    """The significant differences in each region, in words."""
    notes: list[str] = []
    for region in dict.fromkeys(pair.region for pair in pairs):
        inside = [pair for pair in pairs if pair.region == region]
        better = [_better_text(pair, metric) for pair in inside if pair.test.is_significant]
        others = [pair.label for pair in inside if not pair.test.is_significant]
        text = join_names(better) if better else "no significant difference"
        text += f"; not significant: {join_names(others)}" if better and others else ""
        families = [[pair.test for pair in inside if pair.family == number] for number in {p.family for p in inside}]
        more = required_seeds_note(min(families, key=lambda all_: len(all_) * min(test.min_p_value for test in all_)))
        known = more and any(note.endswith(more) for note in notes)
        name = "exact match" if metric == EXACT_MATCH else ANSWER_METRICS[base_metric(metric)]
        notes.append(f"{labels[region]}, {name}: {text}.{' The same holds.' if known else more}")
    return notes


def _better_text(pair: AnswerPair, metric: str) -> str:
    is_first = (pair.test.difference < 0) == (base_metric(metric) in LOWER_IS_BETTER)
    one, other = (pair.first, pair.second) if is_first else (pair.second, pair.first)
    return f"{one.label} is better than {other.label}"


def answer_pairs_content(groups: Sequence[Group], metric: str | None) -> Content:
    """The pairs by a metric; nothing without a metric or two groups with several seeds."""
    pairs = compare_pairs_by_metric(groups, metric) if metric is not None else []
    if not pairs or metric is None:
        return []
    words = region_labels(groups)
    table = answer_pair_table(pairs, metric, words)
    rows = [list(row) for row in table.rows]
    for row, pair in zip(rows, pairs, strict=True):
        row[3] = Markup("<b>{}</b>").format(row[3]) if pair.test.is_significant else row[3]
    tests = " or the ".join(sorted({pair.test.test_name for pair in pairs}))
    caption = (
        f"All seeds, whether they converged or not, by the {tests}. "
        "Better: how often a seed of the one is better than one of the other; same seed: how often in the same one. "
        f"Bold: significant. {SIGNIFICANCE_NOTE}"
    )
    if len({pair.family for pair in pairs}) > 1:
        caption += (
            " Each group is compared with the first that differs from it in the objective alone, and corrected for the "
            "pairs of that one."
        )
    return [Bullets(answer_pair_sentences(pairs, metric, words)), replace(table, rows=rows, caption=caption)]


def part_pairs_content(groups: Sequence[Group]) -> Content:
    """The pairs where cells are named parts, by each metric of their chart; nothing without several seeds."""
    found = [(name, answer_pairs_content(groups, name)) for name in charted_metrics(groups_at_checkpoints(groups))]
    return [block for name, content in found if content for block in (Heading(metric_title(name)), *content)]
