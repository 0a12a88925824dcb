"""Errors of numbers and texts in answers, by region and cell, and tests of which groups differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import combinations
from statistics import fmean, median
from typing import cast

from numerate.errors import UserError
from numerate.evaluation.answer_metrics import LESS_IS_BETTER, METRICS, SHARES, base, is_one, pooled, told_in
from numerate.evaluation.labels import Metric
from numerate.evaluation.statistics import holm, probability_of_improvement
from numerate.evaluation.sums import BY_MODULE
from numerate.reports.claims import claimable
from numerate.reports.drawing import folded, table
from numerate.reports.grid import OOD, REGION_WORDS, REGIONS, bracket, percent, place_words
from numerate.reports.groups import LABELS, Group, region_words, without_seed
from numerate.reports.limits import drawn, left_out, listed
from numerate.reports.measures import measures_drawn, shown, title_of
from numerate.reports.pairs import ALL_PAIRS, SIGNIFICANCE_NOTE, Tested, needed_words, p_words, tested
from numerate.reports.records import Cell

NUMBERS = (
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
TEXTS = ("token_accuracy", "perplexity", "bleu", "rouge1", "rouge2", "rougeL", "ended")
"""The metrics of numbers and texts in tables."""

MOST_WIDE, MOST_NARROW = 4, 7
"""Maximum number of columns with and without brackets."""


_NOTE = (
    "Each over all questions of a region; below it, where it differs, the mean over cells (modules) with equal "
    "weight. An answer without a number is wrong and has no error: it is excluded from errors, R² and "
    "correlations. There a predicted number counts as at most 1e10 in size, or ten times the target (clipped). Names "
    "with log are of sign(x) log10(|x| + 1). "
)


def answer_text(name: str, value: float | None) -> str:
    """A metric as text: shares in per cent, others in four digits."""
    if value is None:
        return ""
    if base(name) in SHARES or base(name) == "exact":
        return f"{percent(value)} %"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def measured(cells: Sequence[Cell]) -> dict[str, dict[str, float | None]]:
    """The metrics of one run by region, and over all OOD regions. Cells that may overlap with training are left
    out, unless a region has no others."""
    regions = {name: [cell for cell in cells if cell.region == name] for name in REGIONS}
    beyond = [name for name in REGIONS if name != "in_distribution" and regions[name]]
    if len(beyond) > 1:
        regions[OOD] = [cell for name in beyond for cell in regions[name]]
    found = {}
    for name, inside in regions.items():
        scored = [cell for cell in inside if not cell.seen] or inside
        metrics = pooled([cell.numbers for cell in scored], [cell.texts for cell in scored])
        if metrics:
            found[name] = metrics
    return found


def by_seed(group: Group) -> list[tuple[object, dict[str, dict[str, float | None]]]]:
    """Seed and metrics of each run of a group that has any."""
    each = [(run.seed, measured(group.recorded(run))) for run in group.runs]
    return [(seed, metrics) for seed, metrics in each if metrics]


def answers(groups: Sequence[Group]) -> str:
    """The tables of a page: numbers, texts, and of a single run its cells; "" where no answer was decoded."""
    shown = drawn([group for group in groups if by_seed(group)])
    if not shown:
        return ""
    parts = [
        *(_of(shown, names, "Numbers" if i == 0 else "") for i, names in enumerate(_cut(shown, NUMBERS))),
        *(_of(shown, names, "Texts" if i == 0 else "") for i, names in enumerate(_cut(shown, TEXTS))),
        f"<figcaption>{escape(_note(shown))}</figcaption>",
    ]
    if len(shown) == 1 and len(shown[0].runs) == 1:
        parts.append(_by_cell(shown[0]))
    more = left_out(groups, shown) if len(shown) < len(groups) else ""
    return "".join(parts) + (f'<p class="quiet">{escape(more)}</p>' if more else "")


def _note(groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    return _NOTE + "Of several seeds the median, from the lowest to the highest." * several


def _of(groups: Sequence[Group], names: Sequence[str], title: str) -> str:
    """A table with a row per group and region and a column per metric."""
    found = [(group, by_seed(group)) for group in groups]
    regions = [metrics for _, each in found for _, seed in each for metrics in seed.values()]
    there = [name for name in names if any(metrics.get(name) is not None for metrics in regions)]
    if not there:
        return ""
    rows = []
    for group, each in found:
        for region, words in REGION_WORDS.items():
            several = [metrics[region] for _, metrics in each if region in metrics]
            if any(metrics.get(name) is not None for metrics in several for name in there):
                first = [escape(group.label)] * (len(groups) > 1)
                rows.append(
                    [*first, words.replace(" ", "\N{NO-BREAK SPACE}"), *(_cell(several, name) for name in there)]
                )
    header = [*(["run"] * (len(groups) > 1)), "region"]
    numbers = range(len(header), len(header) + len(there))
    shown = table(
        [*header, *(f'<span title="{escape(METRICS[name])}">{name}</span>' for name in there)], rows, numbers=numbers
    )
    return f"<h3>{title}</h3>" * bool(title) + folded(shown, len(rows), f"All {len(rows)} lines")


def _cut(groups: Sequence[Group], names: Sequence[str]) -> list[list[str]]:
    """The metrics that any group has, in chunks of columns that fit on a page."""
    metrics = [found for group in groups for _, seed in by_seed(group) for found in seed.values()]
    there = told_in(names, metrics)
    most = MOST_WIDE if any(len(group.runs) > 1 for group in groups) else MOST_NARROW
    return [there[i : i + most] for i in range(0, len(there), most)]


def _cell(several: Sequence[Mapping[str, float | None]], name: str) -> str:
    """A metric over seeds, and below it the mean over cells where that differs."""
    lines = [_seeds(several, name), _seeds(several, f"{name}{BY_MODULE}")]
    if not lines[1] or lines[1] == lines[0]:
        return lines[0]
    return f'{lines[0]}<br><span class="quiet">cells {lines[1]}</span>'


def _seeds(several: Sequence[Mapping[str, float | None]], name: str) -> str:
    values = [value for metrics in several if (value := metrics.get(name)) is not None]
    if not values:
        return ""
    text = answer_text(name, median(values)).replace(" ", "\N{NO-BREAK SPACE}")
    if len(values) == 1:
        return text
    if base(name) in SHARES:
        return f"{text} {bracket(min(values), max(values))}"
    return f"{text} [{answer_text(name, min(values))}, {answer_text(name, max(values))}]"


def _by_cell(group: Group) -> str:
    cells = [cell for run in group.runs for cell in group.recorded(run)]
    scored = [(cell, pooled([cell.numbers], [cell.texts])) for cell in cells]
    scored = [(cell, found) for cell, found in scored if found]
    names = told_in((*NUMBERS, *TEXTS), [found for _, found in scored])
    if len(scored) < 2:
        return ""
    tables = []
    for begin in range(0, len(names), MOST_NARROW):
        cut = names[begin : begin + MOST_NARROW]
        rows = [
            [
                escape(place_words(cell.at, group.operator, cell.names)),
                *(answer_text(name, found.get(name)) for name in cut),
            ]
            for cell, found in scored
        ]
        shown = table(["cell", *cut], rows, numbers=range(1, len(cut) + 1))
        tables.append(folded(shown, len(rows), f"All {len(rows)} cells: {', '.join(cut)}"))
    return f"<h3>Cell by cell</h3>{''.join(tables)}"


def split_metric(name: str | None) -> tuple[Metric | None, str | None]:
    """A metric name as (label metric or exact match, metric of numbers or texts); one is None. An unknown name is
    returned as the first, to be refused later."""
    if is_one(name):
        return None, name
    return cast(Metric | None, name), None


def lacking(groups: Sequence[Group], metric: str | None) -> None:
    """Raises `UserError` for a group whose records do not have a metric of numbers or texts; nothing for None."""
    for group in groups if metric is not None else ():
        if not any(metrics.get(str(metric)) is not None for _, seed in by_seed(group) for metrics in seed.values()):
            raise UserError(
                f"metric: {group.label} has no {metric}, which is known where answers were decoded and some have a "
                "number; numerate evaluate RUN method=decoding computes it"
            )


# Which groups differ --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerPair:
    """Two groups by one metric in one region, seed by seed."""

    one: Group
    other: Group
    region: str
    tested: Tested
    ahead: tuple[int, int] | None = None
    """Seeds in which `one` is better, and shared seeds."""
    family: int = 0
    """Pairs of the same number are corrected together."""

    @property
    def label(self) -> str:
        return f"{self.one.label} / {self.other.label}"


def pairs_by(groups: Sequence[Group], metric: str) -> list[AnswerPair]:
    """The groups that have a metric in two seeds and more, compared as `pairs_of` compares scores: all pairs of up to
    `ALL_PAIRS`, else each with the first; Holm's correction for the pairs of each region.

    With more groups that differ in the objective and in other settings, each is compared with the first group that
    differs from it in the objective alone, and corrected for the pairs of these.
    """
    able = claimable(groups)
    families = [able] if len(able) <= ALL_PAIRS else _families(able)
    found = [
        replace(pair, family=number)
        for number, family in enumerate(families)
        for pair in _pairs_of_family(family, metric)
    ]
    order = list(REGION_WORDS)
    return sorted(found, key=lambda pair: order.index(pair.region))


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    """Families of groups that differ in the objective alone; the groups without any such other join the first group."""
    together: dict[str, list[Group]] = {}
    for group in groups:
        settings = {name: value for name, value in group.runs[0].recipe.items() if name not in LABELS | {"objective"}}
        key = json.dumps([without_seed(settings), group.settings or {}], sort_keys=True, default=str)
        together.setdefault(key, []).append(group)
    large = [family for family in together.values() if len(family) > 1]
    alone = [family[0] for family in together.values() if len(family) == 1]
    if not large:
        return [list(groups)]
    rest = [groups[0], *(group for group in alone if group is not groups[0])]
    return [*large, rest] if len(rest) > 1 else large


def _scores(group: Group, metric: str) -> list[tuple[object, dict[str, float]]]:
    """A metric of each seed by region; exact match as the mean over cells."""
    if metric == "exact":
        return [(run.seed, {name: one.share.value for name, one in found.items()}) for run, found in group.measured]
    return [
        (seed, {region: value for region, metrics in found.items() if (value := metrics.get(metric)) is not None})
        for seed, found in by_seed(group)
    ]


def _pairs_of_family(groups: Sequence[Group], metric: str) -> list[AnswerPair]:
    scored = [(group, _scores(group, metric)) for group in groups]
    found = []
    for region in ("in_distribution", *(name for name in REGION_WORDS if name != "in_distribution")):
        values = []
        for group, each in scored:
            scores = [(seed, known[region]) for seed, known in each if region in known]
            if len(scores) > 1:
                values.append((group, [seed for seed, _ in scores], [value for _, value in scores]))
        few = len(values) <= ALL_PAIRS
        chosen = list(combinations(values, 2)) if few else [(other, values[0]) for other in values[1:]]
        tests = [tested((one[1], other[1]), (one[2], other[2]), len(chosen)) for one, other in chosen]
        adjusted = holm([test.p for test in tests])
        found += [
            AnswerPair(one[0], other[0], region, replace(test, adjusted=p), _seeds_ahead(one, other, metric))
            for (one, other), test, p in zip(chosen, tests, adjusted, strict=True)
        ]
    return found


def _seeds_ahead(
    one: tuple[Group, Sequence[object], Sequence[float]],
    other: tuple[Group, Sequence[object], Sequence[float]],
    metric: str,
) -> tuple[int, int] | None:
    """In how many shared seeds `one` is better, ties not counted; None without shared seeds."""
    first, second = (dict(zip(seeds, values, strict=True)) for _, seeds, values in (one, other))
    shared = [seed for seed in first if seed in second]
    less = base(metric) in LESS_IS_BETTER
    return (
        (sum((first[s] < second[s]) if less else (first[s] > second[s]) for s in shared), len(shared))
        if shared
        else None
    )


def answer_pair_rows(
    found: Sequence[AnswerPair], metric: str, words: Mapping[str, str] = REGION_WORDS
) -> tuple[list[str], list[list[str]]]:
    """The table of pairs as text: both means, their difference, the probability of improvement, the shared seeds in
    which the first is better, and p. `words` names the regions."""
    header = ["pair", "region", f"{metric}, mean of seeds", "difference", "better, %", "same seed", "p (uncorrected)"]
    rows = []
    for pair in found:
        first, second = pair.tested.first, pair.tested.second
        ahead = probability_of_improvement(*((second, first) if base(metric) in LESS_IS_BETTER else (first, second)))
        means = " : ".join(answer_text(metric, fmean(values)) for values in (first, second))
        rows.append(
            [
                pair.label,
                words[pair.region],
                means,
                _gap(metric, pair.tested),
                percent(ahead, 0),
                f"{pair.ahead[0]} of {pair.ahead[1]}" if pair.ahead else "",
                p_words(pair.tested),
            ]
        )
    return header, rows


def _gap(metric: str, test: Tested) -> str:
    share = base(metric) in SHARES or metric == "exact"
    return f"{100 * test.difference:+.1f}\N{NO-BREAK SPACE}points" if share else f"{test.difference:+.4g}"


def answer_pair_sentences(
    found: Sequence[AnswerPair], metric: str, words: Mapping[str, str] = REGION_WORDS
) -> list[str]:
    """The significant differences in each region, in words."""
    notes: list[str] = []
    measure = "exact match" if metric == "exact" else METRICS[base(metric)]
    for region in dict.fromkeys(pair.region for pair in found):
        here = [pair for pair in found if pair.region == region]
        apart = [pair for pair in here if pair.tested.apart]
        better = [_better(pair, metric) for pair in apart]
        equal = [pair.label for pair in here if not pair.tested.apart]
        parts = [listed(better)] if better else ["no significant difference"]
        parts += [f"not significant: {listed(equal)}"] if better and equal else []
        families = [[pair.tested for pair in here if pair.family == number] for number in {p.family for p in here}]
        more = needed_words(min(families, key=lambda tests: len(tests) * min(test.lowest for test in tests)))
        known = more and any(note.endswith(more) for note in notes)
        notes.append(f"{words[region]}, {measure}: {'; '.join(parts)}.{' The same holds.' if known else more}")
    return notes


def _better(pair: AnswerPair, metric: str) -> str:
    first = (pair.tested.difference < 0) == (base(metric) in LESS_IS_BETTER)
    one, other = (pair.one, pair.other) if first else (pair.other, pair.one)
    return f"{one.label} is better than {other.label}"


def answer_pairs(groups: Sequence[Group], metric: str | None) -> str:
    """The pairs by a metric as HTML; "" without a metric or two groups with several seeds."""
    found = pairs_by(groups, metric) if metric is not None else []
    if not found or metric is None:
        return ""
    words = region_words(groups)
    header, rows = answer_pair_rows(found, metric, words)
    notes = "".join(f"<li>{escape(note)}</li>" for note in answer_pair_sentences(found, metric, words))
    cells = [[escape(cell) for cell in row] for row in rows]
    for row, pair in zip(cells, found, strict=True):
        row[0] = f"{escape(pair.one.label)} /<br>{escape(pair.other.label)}"
        row[3] = f"<b>{row[3]}</b>" if pair.tested.apart else row[3]
    tests = " or the ".join(sorted({pair.tested.test for pair in found}))
    caption = (
        f"All seeds, whether they converged or not, by the {tests}. Better: how often a seed of the one is better than "
        f"one of the other; same seed: how often in the same one. Bold: significant. {SIGNIFICANCE_NOTE}"
    )
    if len(_families(claimable(groups))) > 1 and len(groups) > ALL_PAIRS:
        caption += (
            " Each group is compared with the first that differs from it in the objective alone, and corrected for the "
            "pairs of that one."
        )
    shown = folded(f'<div class="pairs">{_pair_table(header, cells)}</div>', len(cells), f"All {len(cells)} pairs")
    return f'<ul class="reading">{notes}</ul>{shown}<figcaption>{escape(caption)}</figcaption>'


def _pair_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return table([escape(name) for name in header], cells, numbers=range(2, len(header)))


def part_pairs(groups: Sequence[Group]) -> str:
    """The pairs where cells are parts, by each metric of their chart; "" without several seeds."""
    tables = [(measure, answer_pairs(groups, measure)) for measure in measures_drawn(shown(groups))]
    return "".join(f'<h3 class="measure">{escape(title_of(measure))}</h3>{pairs}' for measure, pairs in tables if pairs)
