"""Errors of numbers and texts in answers, by region and cell, and tests of which groups differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import combinations
from statistics import fmean, median
from typing import cast

from numerate.errors import UserError
from numerate.evaluation.answer_metrics import (
    ANSWER_METRICS,
    LOWER_IS_BETTER,
    PROPORTION_METRICS,
    available_metrics,
    base_metric,
    is_answer_metric,
    pooled_metrics,
)
from numerate.evaluation.labels import Metric
from numerate.evaluation.statistics import holm, probability_of_improvement
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.comparable import comparable_groups
from numerate.reports.drawing import collapsible, html_table
from numerate.reports.grid import ALL_OOD, ALL_REGION_LABELS, REGION_LABELS, cell_label, format_interval, format_percent
from numerate.reports.groups import LABEL_SETTINGS, Group, region_labels, remove_seeds
from numerate.reports.limits import groups_to_draw, join_names, left_out_note
from numerate.reports.metrics import charted_metrics, groups_at_checkpoints, metric_title
from numerate.reports.pairs import (
    MAX_GROUPS_ALL_PAIRS,
    SIGNIFICANCE_NOTE,
    SignificanceTest,
    format_p_values,
    required_seeds_note,
    test_seeds,
)
from numerate.reports.records import Cell

NUMBER_COLUMNS = (
    "number_accuracy",
    "within_1e-2",
    "missing",
    "invalid",
    "clipped",
    "mae",
    "median_error",
    "r2",
    "log_mae",
    "log_r2",
    "pearson",
    "spearman",
)
TEXT_COLUMNS = ("token_accuracy", "perplexity", "bleu", "rouge1", "rouge2", "rougeL", "ended")
"""The metrics of numbers and texts in tables."""

MAX_COLUMNS_WITH_INTERVALS, MAX_COLUMNS = 4, 7
"""Maximum number of columns with and without brackets."""


_NOTE = (
    "Each over all questions of a region; below it, where it differs, the mean over cells (modules) with equal "
    "weight. An answer without a number is wrong and has no error: it is excluded from errors, R² and "
    "correlations. There a predicted number counts as at most 1e10 in size, or ten times the target (clipped). Names "
    "with log are of sign(x) log10(|x| + 1). "
)


def format_metric(name: str, value: float | None) -> str:
    """A metric as text: proportions in per cent, others with four digits."""
    if value is None:
        return ""
    if base_metric(name) in PROPORTION_METRICS or base_metric(name) == "exact_match":
        return f"{format_percent(value)} %"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def metrics_by_region(cells: Sequence[Cell]) -> dict[str, dict[str, float | None]]:
    """The metrics of one run by region, and over all OOD regions. Cells that may overlap with training are left
    out, unless a region has no others."""
    regions = {name: [cell for cell in cells if cell.region == name] for name in REGION_LABELS}
    ood_regions = [name for name in REGION_LABELS if name != "in_distribution" and regions[name]]
    if len(ood_regions) > 1:
        regions[ALL_OOD] = [cell for name in ood_regions for cell in regions[name]]
    result = {}
    for name, region_cells in regions.items():
        scored = [cell for cell in region_cells if not cell.overlaps_training] or region_cells
        metrics = pooled_metrics([cell.numbers for cell in scored], [cell.texts for cell in scored])
        if metrics:
            result[name] = metrics
    return result


def metrics_by_seed(group: Group) -> list[tuple[object, dict[str, dict[str, float | None]]]]:
    """Seed and metrics of each run of a group that has any."""
    each = [(run.seed, metrics_by_region(group.recorded_cells(run))) for run in group.runs]
    return [(seed, metrics) for seed, metrics in each if metrics]


def answer_tables(groups: Sequence[Group]) -> str:
    """The tables of a page: numbers, texts, and of a single run its cells; "" if no answer was decoded."""
    shown = groups_to_draw([group for group in groups if metrics_by_seed(group)])
    if not shown:
        return ""
    parts = [
        *(
            _metric_table(shown, names, "Numbers" if i == 0 else "")
            for i, names in enumerate(_column_chunks(shown, NUMBER_COLUMNS))
        ),
        *(
            _metric_table(shown, names, "Texts" if i == 0 else "")
            for i, names in enumerate(_column_chunks(shown, TEXT_COLUMNS))
        ),
        f"<figcaption>{escape(_caption(shown))}</figcaption>",
    ]
    if len(shown) == 1 and len(shown[0].runs) == 1:
        parts.append(_cell_tables(shown[0]))
    more = left_out_note(groups, shown) if len(shown) < len(groups) else ""
    return "".join(parts) + (f'<p class="quiet">{escape(more)}</p>' if more else "")


def _caption(groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    return _NOTE + "Of several seeds the median, from the lowest to the highest." * several


def _metric_table(groups: Sequence[Group], names: Sequence[str], title: str) -> str:
    """A table with a row per group and region and a column per metric."""
    group_metrics = [(group, metrics_by_seed(group)) for group in groups]
    regions = [metrics for _, each in group_metrics for _, seed in each for metrics in seed.values()]
    present_metrics = [name for name in names if any(metrics.get(name) is not None for metrics in regions)]
    if not present_metrics:
        return ""
    rows = []
    for group, each in group_metrics:
        for region, words in ALL_REGION_LABELS.items():
            seed_metrics = [metrics[region] for _, metrics in each if region in metrics]
            if any(metrics.get(name) is not None for metrics in seed_metrics for name in present_metrics):
                first = [escape(group.label)] * (len(groups) > 1)
                rows.append(
                    [
                        *first,
                        words.replace(" ", "\N{NO-BREAK SPACE}"),
                        *(_cell(seed_metrics, name) for name in present_metrics),
                    ]
                )
    header = [*(["run"] * (len(groups) > 1)), "region"]
    numbers = range(len(header), len(header) + len(present_metrics))
    shown = html_table(
        [*header, *(f'<span title="{escape(ANSWER_METRICS[name])}">{name}</span>' for name in present_metrics)],
        rows,
        number_columns=numbers,
    )
    return f"<h3>{title}</h3>" * bool(title) + collapsible(shown, len(rows), f"All {len(rows)} lines")


def _column_chunks(groups: Sequence[Group], names: Sequence[str]) -> list[list[str]]:
    """The metrics that any group has, in chunks of columns that fit on a page."""
    metrics = [found for group in groups for _, seed in metrics_by_seed(group) for found in seed.values()]
    present_metrics = available_metrics(names, metrics)
    max_columns = MAX_COLUMNS_WITH_INTERVALS if any(len(group.runs) > 1 for group in groups) else MAX_COLUMNS
    return [present_metrics[i : i + max_columns] for i in range(0, len(present_metrics), max_columns)]


def _cell(seed_metrics: Sequence[Mapping[str, float | None]], name: str) -> str:
    """A metric over seeds, and below it the mean over cells where that differs."""
    lines = [_seed_summary(seed_metrics, name), _seed_summary(seed_metrics, f"{name}{CELL_MEAN_SUFFIX}")]
    if not lines[1] or lines[1] == lines[0]:
        return lines[0]
    return f'{lines[0]}<br><span class="quiet">cells {lines[1]}</span>'


def _seed_summary(seed_metrics: Sequence[Mapping[str, float | None]], name: str) -> str:
    values = [value for metrics in seed_metrics if (value := metrics.get(name)) is not None]
    if not values:
        return ""
    text = format_metric(name, median(values)).replace(" ", "\N{NO-BREAK SPACE}")
    if len(values) == 1:
        return text
    if base_metric(name) in PROPORTION_METRICS:
        return f"{text} {format_interval(min(values), max(values))}"
    return f"{text} [{format_metric(name, min(values))}, {format_metric(name, max(values))}]"


def _cell_tables(group: Group) -> str:
    cells = [cell for run in group.runs for cell in group.recorded_cells(run)]
    scored = [(cell, pooled_metrics([cell.numbers], [cell.texts])) for cell in cells]
    scored = [(cell, found) for cell, found in scored if found]
    names = available_metrics((*NUMBER_COLUMNS, *TEXT_COLUMNS), [found for _, found in scored])
    if len(scored) < 2:
        return ""
    tables = []
    for begin in range(0, len(names), MAX_COLUMNS):
        cut = names[begin : begin + MAX_COLUMNS]
        rows = [
            [
                escape(cell_label(cell.coordinates, group.operator, cell.names)),
                *(format_metric(name, found.get(name)) for name in cut),
            ]
            for cell, found in scored
        ]
        shown = html_table(["cell", *cut], rows, number_columns=range(1, len(cut) + 1))
        tables.append(collapsible(shown, len(rows), f"All {len(rows)} cells: {', '.join(cut)}"))
    return f"<h3>Cell by cell</h3>{''.join(tables)}"


def split_metric(name: str | None) -> tuple[Metric | None, str | None]:
    """A metric name as (label metric or exact match, metric of numbers or texts); one is None. An unknown name is
    returned as the first, to be refused later."""
    if is_answer_metric(name):
        return None, name
    return cast(Metric | None, name), None


def check_has_metric(groups: Sequence[Group], metric: str | None) -> None:
    """Raises `UserError` for a group whose records do not have a metric of numbers or texts; nothing for None."""
    for group in groups if metric is not None else ():
        if not any(
            metrics.get(str(metric)) is not None for _, seed in metrics_by_seed(group) for metrics in seed.values()
        ):
            raise UserError(f"metric: {group.label} has no {metric}; numerate evaluate RUN method=decoding computes it")


# Which groups differ --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerPair:
    """Two groups by one metric in one region, seed by seed."""

    first: Group
    second: Group
    region: str
    test: SignificanceTest
    seeds_better: tuple[int, int] | None = None
    """Seeds in which `first` is better, and shared seeds."""
    family: int = 0
    """Pairs of the same number are corrected together."""

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
    families = [valid_groups] if len(valid_groups) <= MAX_GROUPS_ALL_PAIRS else _families(valid_groups)
    pairs = [
        replace(pair, family=number)
        for number, family in enumerate(families)
        for pair in _pairs_of_family(family, metric)
    ]
    order = list(ALL_REGION_LABELS)
    return sorted(pairs, key=lambda pair: order.index(pair.region))


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    """Families of groups that differ in the objective alone; the groups without any such other join the first group."""
    groups_by_settings: dict[str, list[Group]] = {}
    for group in groups:
        settings = {
            name: value for name, value in group.runs[0].recipe.items() if name not in LABEL_SETTINGS | {"objective"}
        }
        key = json.dumps([remove_seeds(settings), group.settings or {}], sort_keys=True, default=str)
        groups_by_settings.setdefault(key, []).append(group)
    large = [family for family in groups_by_settings.values() if len(family) > 1]
    single_groups = [family[0] for family in groups_by_settings.values() if len(family) == 1]
    if not large:
        return [list(groups)]
    rest = [groups[0], *(group for group in single_groups if group is not groups[0])]
    return [*large, rest] if len(rest) > 1 else large


def _scores(group: Group, metric: str) -> list[tuple[object, dict[str, float]]]:
    """A metric of each seed by region; exact match as the mean over cells."""
    if metric == "exact_match":
        return [
            (run.seed, {name: one.score.value for name, one in found.items()})
            for run, found in group.region_scores_by_run
        ]
    return [
        (seed, {region: value for region, metrics in found.items() if (value := metrics.get(metric)) is not None})
        for seed, found in metrics_by_seed(group)
    ]


def _pairs_of_family(groups: Sequence[Group], metric: str) -> list[AnswerPair]:
    scored = [(group, _scores(group, metric)) for group in groups]
    pairs = []
    for region in ("in_distribution", *(name for name in ALL_REGION_LABELS if name != "in_distribution")):
        values = []
        for group, each in scored:
            scores = [(seed, known[region]) for seed, known in each if region in known]
            if len(scores) > 1:
                values.append((group, [seed for seed, _ in scores], [value for _, value in scores]))
        all_pairs = len(values) <= MAX_GROUPS_ALL_PAIRS
        group_pairs = list(combinations(values, 2)) if all_pairs else [(other, values[0]) for other in values[1:]]
        tests = [test_seeds((one[1], other[1]), (one[2], other[2]), len(group_pairs)) for one, other in group_pairs]
        adjusted = holm([test.p_value for test in tests])
        pairs += [
            AnswerPair(
                one[0], other[0], region, replace(test, adjusted_p_value=p), _count_better_seeds(one, other, metric)
            )
            for (one, other), test, p in zip(group_pairs, tests, adjusted, strict=True)
        ]
    return pairs


def _count_better_seeds(
    one: tuple[Group, Sequence[object], Sequence[float]],
    other: tuple[Group, Sequence[object], Sequence[float]],
    metric: str,
) -> tuple[int, int] | None:
    """In how many shared seeds `one` is better, ties not counted; None without shared seeds."""
    first, second = (dict(zip(seeds, values, strict=True)) for _, seeds, values in (one, other))
    shared = [seed for seed in first if seed in second]
    lower_is_better = base_metric(metric) in LOWER_IS_BETTER
    return (
        (sum((first[s] < second[s]) if lower_is_better else (first[s] > second[s]) for s in shared), len(shared))
        if shared
        else None
    )


def answer_pair_rows(
    pairs: Sequence[AnswerPair], metric: str, labels: Mapping[str, str] = ALL_REGION_LABELS
) -> tuple[list[str], list[list[str]]]:
    """The table of pairs as text: both means, their difference, the probability of improvement, the shared seeds in
    which the first is better, and p. `labels` names the regions."""
    header = ["pair", "region", f"{metric}, mean of seeds", "difference", "better, %", "same seed", "p (uncorrected)"]
    rows = []
    for pair in pairs:
        first, second = pair.test.first, pair.test.second
        probability = probability_of_improvement(
            *((second, first) if base_metric(metric) in LOWER_IS_BETTER else (first, second))
        )
        means = " : ".join(format_metric(metric, fmean(values)) for values in (first, second))
        rows.append(
            [
                pair.label,
                labels[pair.region],
                means,
                _format_difference(metric, pair.test),
                format_percent(probability, 0),
                f"{pair.seeds_better[0]} of {pair.seeds_better[1]}" if pair.seeds_better else "",
                format_p_values(pair.test),
            ]
        )
    return header, rows


def _format_difference(metric: str, test: SignificanceTest) -> str:
    share = base_metric(metric) in PROPORTION_METRICS or metric == "exact_match"
    return f"{100 * test.difference:+.1f}\N{NO-BREAK SPACE}points" if share else f"{test.difference:+.4g}"


def answer_pair_sentences(
    pairs: Sequence[AnswerPair], metric: str, labels: Mapping[str, str] = ALL_REGION_LABELS
) -> list[str]:
    """The significant differences in each region, in words."""
    notes: list[str] = []
    metric_label = "exact match" if metric == "exact_match" else ANSWER_METRICS[base_metric(metric)]
    for region in dict.fromkeys(pair.region for pair in pairs):
        region_pairs = [pair for pair in pairs if pair.region == region]
        significant = [pair for pair in region_pairs if pair.test.is_significant]
        better = [_comparison_text(pair, metric) for pair in significant]
        not_significant = [pair.label for pair in region_pairs if not pair.test.is_significant]
        parts = [join_names(better)] if better else ["no significant difference"]
        parts += [f"not significant: {join_names(not_significant)}"] if better and not_significant else []
        families = [
            [pair.test for pair in region_pairs if pair.family == number] for number in {p.family for p in region_pairs}
        ]
        more = required_seeds_note(
            min(families, key=lambda tests: len(tests) * min(test.min_p_value for test in tests))
        )
        known = more and any(note.endswith(more) for note in notes)
        notes.append(f"{labels[region]}, {metric_label}: {'; '.join(parts)}.{' The same holds.' if known else more}")
    return notes


def _comparison_text(pair: AnswerPair, metric: str) -> str:
    first = (pair.test.difference < 0) == (base_metric(metric) in LOWER_IS_BETTER)
    one, other = (pair.first, pair.second) if first else (pair.second, pair.first)
    return f"{one.label} is better than {other.label}"


def answer_pairs(groups: Sequence[Group], metric: str | None) -> str:
    """The pairs by a metric as HTML; "" without a metric or two groups with several seeds."""
    pairs = compare_pairs_by_metric(groups, metric) if metric is not None else []
    if not pairs or metric is None:
        return ""
    words = region_labels(groups)
    header, rows = answer_pair_rows(pairs, metric, words)
    notes = "".join(f"<li>{escape(note)}</li>" for note in answer_pair_sentences(pairs, metric, words))
    cells = [[escape(cell) for cell in row] for row in rows]
    for row, pair in zip(cells, pairs, strict=True):
        row[0] = f"{escape(pair.first.label)} /<br>{escape(pair.second.label)}"
        row[3] = f"<b>{row[3]}</b>" if pair.test.is_significant else row[3]
    tests = " or the ".join(sorted({pair.test.test_name for pair in pairs}))
    caption = (
        f"All seeds, whether they converged or not, by the {tests}. Better: how often a seed of the one is better than "
        f"one of the other; same seed: how often in the same one. Bold: significant. {SIGNIFICANCE_NOTE}"
    )
    if len(_families(comparable_groups(groups))) > 1 and len(groups) > MAX_GROUPS_ALL_PAIRS:
        caption += (
            " Each group is compared with the first that differs from it in the objective alone, and corrected for the "
            "pairs of that one."
        )
    shown = collapsible(f'<div class="pairs">{_pair_table(header, cells)}</div>', len(cells), f"All {len(cells)} pairs")
    return f'<ul class="reading">{notes}</ul>{shown}<figcaption>{escape(caption)}</figcaption>'


def _pair_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return html_table([escape(name) for name in header], cells, number_columns=range(2, len(header)))


def part_pair_tables(groups: Sequence[Group]) -> str:
    """The pairs where cells are parts, by each metric of their chart; "" without several seeds."""
    tables = [(metric, answer_pairs(groups, metric)) for metric in charted_metrics(groups_at_checkpoints(groups))]
    return "".join(
        f'<h3 class="measure">{escape(metric_title(metric))}</h3>{pairs}' for metric, pairs in tables if pairs
    )
