"""Significance tests of pairs of groups over seeds, corrected for the number of pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import combinations

import numpy as np

from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    paired_permutation,
    permutation,
    probability_of_improvement,
    smallest_p,
)
from numerate.reports.claims import claimable
from numerate.reports.drawing import table
from numerate.reports.finding import REACHED
from numerate.reports.grid import Point, above, percent, place_words
from numerate.reports.groups import CONVERGED, Group
from numerate.reports.limits import listed

ALL_PAIRS = 4
"""Up to so many groups every pair is compared, with more each one with the first, to keep the correction small."""

LEVEL = 0.05
"""The significance level."""


SIGNIFICANCE_NOTE = (
    f"Significant means p < {LEVEL}, two-sided, corrected by Holm's method for all pairs of its column (in brackets "
    "uncorrected). p does not say how large a difference is, and a large p does not show that there is none."
)


@dataclass(frozen=True)
class Tested:
    """Two groups in one measure, the successes or the scores of the converged seeds, with the p of the test. `adjusted`
    is Holm's p over all pairs of the table; `lowest` is the smallest possible `p`."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    p: float
    lowest: float
    test: str
    adjusted: float = 1.0

    @property
    def difference(self) -> float:
        return float(np.mean(self.first) - np.mean(self.second))

    @property
    def apart(self) -> bool:
        return self.adjusted < LEVEL


@dataclass(frozen=True)
class Pair:
    """Tests of two groups by measure ("converged", "ood", "far"), where both have two converged seeds."""

    one: Group
    other: Group
    tests: Mapping[str, Tested]

    @property
    def label(self) -> str:
        return f"{self.one.label} / {self.other.label}"


@dataclass(frozen=True)
class Pairs:
    """The pairs of a study. `baseline` is the group that all others are compared with, None where every pair is; `far`
    is the longest equal length at which some seed has `REACHED`, the same for all."""

    pairs: tuple[Pair, ...]
    baseline: Group | None
    far: Point | None
    operator: str | None

    @property
    def far_words(self) -> str:
        return place_words(self.far.at, self.operator) if self.far else ""

    def of(self, measure: str) -> list[tuple[Pair, Tested]]:
        return [(pair, pair.tests[measure]) for pair in self.pairs if measure in pair.tests]


def pairs_of(groups: Sequence[Group]) -> Pairs:
    """Compares groups of two seeds and more: all pairs of up to `ALL_PAIRS`, else each with the first of them.

    Which seeds converge is compared by Fisher's exact test. Scores are those of the converged seeds: seed by seed by
    the sign-flip test where both groups have the same seeds and enough of them for significance after the correction
    (2 / 2**seeds * pairs below `LEVEL`: six seeds for one pair, nine for ten), else by the permutation test.
    """
    several = [group for group in claimable(groups) if len(group.evaluated) > 1]
    every = len(several) <= ALL_PAIRS
    chosen = list(combinations(several, 2)) if every else [(other, several[0]) for other in several[1:]]
    far = _far([group.converged for group in several])
    tests = [_tests(one, other, far, len(chosen)) for one, other in chosen]
    for measure in MEASURES:
        measured = [found for found in tests if measure in found]
        for found, p in zip(measured, holm([found[measure].p for found in measured]), strict=True):
            found[measure] = replace(found[measure], adjusted=p)
    pairs = [Pair(one, other, found) for (one, other), found in zip(chosen, tests, strict=True) if found]
    operator = several[0].operator if several else None
    return Pairs(tuple(pairs), None if every else several[0], far, operator)


MEASURES = ("converged", "ood", "far")


def _tests(one: Group, other: Group, far: Point | None, pairs: int) -> dict[str, Tested]:
    found = {}
    able = [[share >= CONVERGED for _, share in group.learned] for group in (one, other)]
    if min(map(len, able)) > 1:
        hits, more = (sum(each) for each in able)
        p = fisher_exact((hits, len(able[0])), (more, len(able[1])))
        first, second = (tuple(float(yes) for yes in each) for each in able)
        found["converged"] = Tested(first, second, p, smallest_p(len(first), len(second)), "Fisher's exact test")
    here, there = one.converged, other.converged
    if min(len(here.evaluated), len(there.evaluated)) > 1:
        scores = _ood(here, there)
        if scores:
            found["ood"] = _scores(here, there, *scores, pairs)
        points = [far and group.diagonal.get(_n(far)) for group in (here, there)]
        if points[0] is not None and points[1] is not None:
            found["far"] = _scores(here, there, points[0].each, points[1].each, pairs)
    return found


def _ood(one: Group, other: Group) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Of each seed the mean over the OOD cells that both groups have."""
    tables = [
        {
            tuple(point.at.items()): point.each
            for point in group.points
            if point.region != "in_distribution" and not point.seen
        }
        for group in (one, other)
    ]
    shared = [place for place in tables[0] if place in tables[1]]
    if not shared:
        return None
    first, second = (np.array([each[place] for place in shared]).mean(axis=0) for each in tables)
    return tuple(first.tolist()), tuple(second.tolist())


def _scores(one: Group, other: Group, first: Sequence[float], second: Sequence[float], pairs: int) -> Tested:
    seeds = [[run.seed for run, _ in group.measured] for group in (one, other)]
    return tested(seeds, (first, second), pairs)


def tested(seeds: Sequence[Sequence[object]], scores: Sequence[Sequence[float]], pairs: int) -> Tested:
    """Tests two groups by one score of each of their seeds, as one of `pairs`; the test is chosen as in `pairs_of`."""
    first, second = scores
    same = sorted(map(str, seeds[0])) == sorted(map(str, seeds[1])) and len(set(seeds[0])) == len(seeds[0])
    a, b = tuple(map(float, first)), tuple(map(float, second))
    if same and smallest_p(len(a), len(b), paired=True) * pairs < LEVEL:
        ordered = [_by_seed(names, values) for names, values in zip(seeds, (a, b), strict=True)]
        p, lowest = paired_permutation(*ordered, "report"), smallest_p(len(a), len(b), paired=True)
        return Tested(a, b, p, lowest, "sign-flip test, seed by seed")
    return Tested(a, b, permutation(a, b, "report"), smallest_p(len(a), len(b)), "permutation test")


def _by_seed(seeds: Sequence[object], values: Sequence[float]) -> list[float]:
    return [value for _, value in sorted(zip(map(str, seeds), values, strict=True))]


def _far(groups: Sequence[Group]) -> Point | None:
    """The longest OOD equal lengths at which a seed of any group has `REACHED`, clearly above the
    floor."""
    found = [point for group in groups for point in group.diagonal.values() if point.region != "in_distribution"]
    reached = [point for point in found if max(point.each) >= REACHED and above(max(point.each), point.floor)]
    return max(reached, key=_n, default=None)


def _n(point: Point) -> int:
    return next(iter(point.at.values()))


def pair_rows(found: Pairs) -> tuple[list[str], list[list[str]]]:
    """The table as text: per pair and measure the counts or the difference, and p, corrected and not."""
    header = ["pair", "converged", "p (uncorrected)"]
    header += ["OOD, points", "ahead, %", "p (uncorrected)"] * bool(found.of("ood"))
    header += [f"{found.far_words}, points", "p (uncorrected)"] * bool(found.of("far"))
    rows = []
    for pair in found.pairs:
        converged, ood, far = (pair.tests.get(measure) for measure in MEASURES)
        row = [pair.label, _counts(converged), p_words(converged)]
        row += [_points(ood), _ahead(ood), p_words(ood)] * bool(found.of("ood"))
        row += [_points(far), p_words(far)] * bool(found.of("far"))
        rows.append(row)
    return header, rows


def _counts(tested: Tested | None) -> str:
    return " : ".join(f"{sum(each):.0f}/{len(each)}" for each in (tested.first, tested.second)) if tested else ""


def _points(tested: Tested | None) -> str:
    return f"{round(100 * tested.difference, 1) + 0.0:+.1f}" if tested else ""


def _ahead(tested: Tested | None) -> str:
    return percent(probability_of_improvement(tested.first, tested.second), 0) if tested else ""


def p_words(tested: Tested | None) -> str:
    """`0.048 (0.0079)`: the p corrected for all pairs, and alone."""
    return f"{_p(tested.adjusted)} ({_p(tested.p)})" if tested else ""


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else "1" if p >= 0.995 else f"{p:.2g}"


def pair_sentences(found: Pairs) -> list[str]:
    """The table in words: which pairs differ significantly, which do not, and whether there are enough seeds."""
    where = {"converged": "How many seeds converge", "ood": "All OOD cells", "far": f"At {found.far_words}"}
    notes: list[str] = []
    for measure in MEASURES:
        tests = found.of(measure)
        if not tests:
            continue
        apart = [(pair, tested) for pair, tested in tests if tested.apart]
        equal = [pair for pair, tested in tests if not tested.apart]
        parts = _sides(apart, found.baseline)
        if not apart:
            parts = ["no significant difference"]
        elif equal and found.baseline:
            parts.append(f"no significant difference from it: {listed([pair.one.label for pair in equal])}")
        elif equal:
            parts.append(f"not significant: {listed([pair.label for pair in equal])}")
        needed = needed_words([tested for _, tested in tests])
        repeated = needed and any(note.endswith(needed) for note in notes)
        notes.append(f"{where[measure]}: {'; '.join(parts)}.{' The same holds.' if repeated else needed}")
    left = [pair for pair in found.pairs if "ood" not in pair.tests]
    alone = dict.fromkeys(group.label for pair in left for group in (pair.one, pair.other) if _few(group))
    if alone:
        notes.append(
            f"Not compared out of distribution, as fewer than two of their seeds converged: {listed(list(alone))}."
        )
    return notes


def _sides(apart: Sequence[tuple[Pair, Tested]], baseline: Group | None) -> list[str]:
    """The direction of each difference; with a baseline first the groups above it, then those below."""
    if baseline is None:
        order = [(p.one, p.other) if tested.difference > 0 else (p.other, p.one) for p, tested in apart]
        return [listed([f"{one.label} is above {other.label}" for one, other in order])] if order else []
    above = [pair.one.label for pair, tested in apart if tested.difference > 0]
    below = [pair.one.label for pair, tested in apart if tested.difference < 0]
    name = [baseline.label, "it" if above else baseline.label]
    return [
        f"{word} {label} {are(names)} {listed(names)}"
        for word, label, names in zip(("above", "below"), name, (above, below), strict=True)
        if names
    ]


def are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _few(group: Group) -> bool:
    return len(group.converged.evaluated) < 2


def needed_words(tests: Sequence[Tested]) -> str:
    """The number of seeds required, where no difference could be significant with these seeds."""
    lowest = min(tested.lowest for tested in tests) * len(tests)
    if lowest < LEVEL:
        return ""
    seeds = next(n for n in range(2, 100) if smallest_p(n, n) * len(tests) < LEVEL)
    corrected = f" after the correction for {len(tests)} pairs" if len(tests) > 1 else ""
    return (
        f" With these seeds no difference can be significant: the smallest possible p is "
        f"{_p(min(lowest, 1.0))}{corrected}; {seeds} seeds each would do."
    )


def pair_table(groups: Sequence[Group]) -> str:
    """The pairs as HTML, in words and as a table; "" where fewer than two groups have several seeds."""
    found = pairs_of(groups)
    if not found.pairs:
        return ""
    header = ["pair", "converged"]
    header += ["OOD cells, points", "ahead, %"] * bool(found.of("ood"))
    header += [f"{found.far_words}, points"] * bool(found.of("far"))
    rows = []
    for pair in found.pairs:
        converged, ood, far = (pair.tests.get(measure) for measure in MEASURES)
        row = [escape(pair.label), _marked(_counts(converged), converged)]
        row += [_marked(_points(ood), ood), _ahead(ood)] * bool(found.of("ood"))
        row += [_marked(_points(far), far)] * bool(found.of("far"))
        rows.append(row)
    notes = "".join(f"<li>{escape(note)}</li>" for note in pair_sentences(found))
    shown = table([escape(name) for name in header], rows, numbers=range(1, len(header)))
    return f'<ul class="reading">{notes}</ul>{shown}<figcaption>{escape(_caption(found))}</figcaption>'


def _marked(text: str, tested: Tested | None) -> str:
    """The result, bold where significant, with its p below."""
    if tested is None:
        return ""
    first = f"<b>{text}</b>" if tested.apart else text
    return f'{first}<br><span class="quiet">p {escape(p_words(tested))}</span>'


def _caption(found: Pairs) -> str:
    tests = sorted({tested.test for measure in ("ood", "far") for _, tested in found.of(measure)})
    by = " or the ".join(tests) or "permutation test"
    parts = [
        f"Each group against the first, {found.baseline.label}." if found.baseline else "",
        f"Converged: seeds with at least {percent(CONVERGED)} % in distribution, by Fisher's exact test.",
        f"Points: the difference of the means over converged seeds in percentage points, by the {by}.",
        "Groups that cannot converge by a symmetry count with all seeds."
        if any(group.by_symmetry for pair in found.pairs for group in (pair.one, pair.other))
        else "",
        "Ahead: the probability that a seed of the first is better than a seed of the second, over all OOD cells.",
        f"{found.far_words} is the longest at which any seed of any group has {percent(REACHED)} %."
        if found.far
        else "",
        f"Bold: significant. {SIGNIFICANCE_NOTE}",
    ]
    return " ".join(filter(None, parts))
