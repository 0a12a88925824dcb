"""Which seeds converged, and how many of those go how far: the table of a study.

A seed that has not learned what it was trained on says nothing about going beyond it. It is therefore listed as not
converged in its budget, and is not counted as a failure to generalise: rates are over the seeds that converged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import Share, success_rate, wilson
from numerate.reports.claims import claimable, no_claims, theorems
from numerate.reports.counts import MEMORISED, measure_words
from numerate.reports.grid import bracket, percent
from numerate.reports.groups import CONVERGED, Group
from numerate.reports.limits import MOST_NAMED, listed
from numerate.reports.records import Records

SUCCESS = 0.99
"""The exact match at a length from which on a seed succeeds there."""

MOST_LENGTHS = 7
"""Columns of lengths beside each other on a page."""

CHECKPOINTS = ("final", "best")
"""The checkpoints that are reported: the last one, and the one that was best on the next lengths, never on the test."""


@dataclass(frozen=True)
class AtLength:
    """What the converged seeds show at one length: how many succeed, of how many, and the median of their shares."""

    rate: Share
    median: float

    @property
    def words(self) -> str:
        """`3/5 [23, 88] 97.2`: successes of seeds, Wilson's interval about the seeds in %, median exact match in %."""
        successes = round(self.rate.value * self.rate.count)
        return f"{successes}/{self.rate.count} {bracket(self.rate.low, self.rate.high, 0)} {percent(self.median)}"


@dataclass(frozen=True)
class Success:
    """One scheme at one checkpoint. `missed` are the seeds that did not converge with their trained exact match."""

    group: Group
    checkpoint: str
    converged: Sequence[Records]
    missed: Sequence[tuple[Records, float]]

    @property
    def seeds(self) -> int:
        return len(self.converged) + len(self.missed)

    @cached_property
    def at(self) -> dict[int, AtLength]:
        """By length, what the converged seeds show."""
        group = self.group.converged
        if len(group.runs) != len(self.converged):
            group = replace(group, runs=tuple(self.converged))
        along = group.diagonal if self.converged else {}
        return {n: AtLength(success_rate(point.each, SUCCESS), median(point.each)) for n, point in along.items()}

    @property
    def told(self) -> str:
        """`4/5 [38, 96]`: how many of the seeds converged, with Wilson's interval about the seeds in per cent."""
        return f"{len(self.converged)}/{self.seeds} {bracket(*wilson(len(self.converged), self.seeds), 0)}"


@dataclass(frozen=True)
class Curve:
    """One line of a figure by length: the seeds that are drawn, what it is called, and its place among all groups."""

    group: Group
    label: str
    place: int


def by_length(groups: Sequence[Group]) -> tuple[list[Curve], str]:
    """What is drawn by length, and in words what is not: in a study the seeds that converged, and no scheme of which
    none did. Where every group has one seed, or nothing converged, all are drawn and those that did not say so."""
    found, missed = [], []
    able = [group.converged for group in groups]
    study = any(len(group.evaluated) > 1 for group in groups) and any(one.evaluated for one in able)
    for i, (group, one) in enumerate(zip(groups, able, strict=True)):
        seeds, count = len(group.evaluated), len(one.evaluated)
        if study and seeds and not count:
            missed.append(f"{group.label} (0 of {seeds})")
        elif study:
            told = f"{seeds} seeds" * (seeds > 1) if count == seeds else f"{count} of {seeds} seeds"
            found.append(Curve(one, f"{group.label} ({told})" if told else group.label, i))
        else:
            told = ", ".join([f"{seeds} seeds"] * (seeds > 1) + ["did not converge"] * (seeds > 0 and not count))
            found.append(Curve(group, f"{group.label} ({told})" if told else group.label, i))
    return found, f"Not drawn, as no seed converged: {', '.join(missed)}." if missed else ""


def successes(groups: Sequence[Group]) -> list[Success]:
    """One for each group and checkpoint that was evaluated; groups with changed settings among them."""
    found = []
    for group in groups:
        names = [
            name for name in CHECKPOINTS if any(cell.checkpoint == name for run in group.runs for cell in run.cells)
        ]
        for name in names:
            # What the group is about anyway is not measured again.
            same = all(cells[0].checkpoint == name == "final" for cells in group.evaluated)
            one = group if same else replace(group, checkpoint=name)
            if one.learned:
                yes = [run for run, share in one.learned if share >= CONVERGED]
                no = [(run, share) for run, share in one.learned if share < CONVERGED]
                found.append(Success(one, name, yes, no))
    return found


def lengths_told(found: Sequence[Success]) -> list[int]:
    """The lengths worth a column: the longest trained one, the next two, and 1.5, 2, 2.5, 3 and 4 times it, if asked;
    where a page has no room for all of them without the second next and 2.5 times, or three times.

    Trained on 1 to 6 digits and asked 1 to 18: 6, 7, 8, 9, 12, 15, 18; on 50 and asked up to 200: 50, 51, 75, 100, 125,
    150, 200.
    """
    points = [point for one in found for point in one.group.diagonal.items()]
    asked = sorted({n for n, _ in points})
    longest = max((n for n, point in points if point.region == "trained"), default=0)
    wanted = {longest, longest + 1, longest + 2, *(longest * half // 2 for half in (3, 4, 5, 6, 8)), *asked[-1:]}
    told = [n for n in asked if n in wanted]
    for less in (longest + 2, longest * 5 // 2, longest * 3):
        if len(told) > MOST_LENGTHS and less != asked[-1]:
            told = [n for n in told if n != less]
    return told


def success_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table as text: scheme, checkpoint, converged seeds, then by length what those show."""
    found = successes(groups)
    lengths = lengths_told(found)
    header = ["scheme", "checkpoint", "converged", *(f"n={n}" for n in lengths)]
    rows = []
    for one in found:
        at = one.at
        cells = [at[n].words if n in at else "" for n in lengths]
        if one.group.looks_ahead is not None:
            cells = [f"{NO_CLAIM}: {one.group.looks_ahead}", *([""] * (len(lengths) - 1))] if lengths else []
        elif not one.converged:
            cells = ["did not converge", *([""] * (len(lengths) - 1))] if lengths else []
        rows.append([one.group.label, one.checkpoint, one.told, *cells])
    for label, floor in _floors(found):
        rows.append([label, "", "", *("" if n <= _trained(found) else f"{percent(floor)}" for n in lengths)])
    return header, rows


def _floors(found: Sequence[Success]) -> list[tuple[str, float]]:
    """The floors of all groups beyond training, each once under what it is."""
    known = {one.group.label: one.group.floor for one in found if one.group.floor is not None}
    if len(set(known.values())) == 1:
        return [("floor, %", next(iter(known.values())))]
    return [(f"floor of {label}, %", floor) for label, floor in known.items()]


def _trained(found: Sequence[Success]) -> int:
    """The longest trained length of all groups."""
    return max((n for one in found for n, p in one.group.diagonal.items() if p.region == "trained"), default=0)


def unconverged(groups: Sequence[Group]) -> list[str]:
    """In words, per scheme and checkpoint, which seeds did not converge and how far they got."""
    return [_sentence(one) for one in successes(groups) if one.missed]


NO_CLAIM = "no claim"
"""What stands in the place of numbers where a model sees what comes later in a row."""


def note_of(groups: Sequence[Group]) -> str:
    """What the numbers of the table are."""
    words = measure_words(groups)
    floors = any(group.floor is not None for group in groups)
    return (
        f"A seed has converged if at least {percent(CONVERGED)} % is right of what it was trained on "
        f"({'label accuracy' if words == METRICS['unseen'] else 'held-out questions'}); so many of all seeds, with "
        "Wilson's 95 % interval about the seeds in per cent. "
        f"By length n: the converged seeds with at least {percent(SUCCESS)} % right there, of all that converged, with "
        f"Wilson's 95 % interval about the seeds in per cent; then the median of their {words} in per cent. "
        "Seeds that did not converge say nothing about generalising and are not counted. "
        "“best” is the checkpoint that did best on the next lengths, never on the lengths tested."
        + f" {MEMORISED}"
        * floors
    )


def success_table(groups: Sequence[Group]) -> str:
    """The table as HTML, for studies: nothing where every group has one seed."""
    if all(len(group.evaluated) < 2 for group in groups):
        return ""
    found = successes(groups)
    lengths = lengths_told(found)
    if not lengths:
        return ""
    longest = _trained(found)
    head = "".join(f'<th class="num">n = {n}{" (trained)" * (n <= longest)}</th>' for n in lengths)
    rows, before = [], ""
    for one in found:
        label = escape(one.group.label) if one.group.label != before else ""
        before = one.group.label
        count, interval = one.told.split(" ", 1)
        whole = interval.replace(" ", "\N{NO-BREAK SPACE}")
        told = f'{count} <span class="quiet">{whole}</span>'
        start = f'<td>{label}</td><td>{one.checkpoint}</td><td class="num">{told}</td>'
        if one.group.looks_ahead is not None:
            why = escape(f"{NO_CLAIM}: {one.group.looks_ahead}")
            body = f'<td class="quiet" colspan="{len(lengths)}">{why}</td>'
        elif one.converged:
            at = one.at
            body = "".join(f'<td class="num">{_cell(at[n])}</td>' if n in at else "<td></td>" for n in lengths)
        else:
            body = f'<td class="quiet" colspan="{len(lengths)}">did not converge in this budget: {_missed(one)}</td>'
        rows.append(f"<tr>{start}{body}</tr>")
    for label, floor in _floors(found):
        cells = "".join(f'<td class="num quiet">{"" if n <= longest else f"{percent(floor)} %"}</td>' for n in lengths)
        rows.append(f'<tr><td class="quiet">{escape(label)}</td><td></td><td></td>{cells}</tr>')
    some = [line for one in found if one.converged and one.missed for line in (_sentence(one),)]
    notes = f'<ul class="reading">{"".join(f"<li>{escape(line)}.</li>" for line in some)}</ul>' if some else ""
    if len(some) > MOST_NAMED:
        notes = f"<details><summary>{len(some)} with seeds that did not converge</summary>{notes}</details>"
    return (
        '<div class="scroll"><table class="data tight"><thead><tr><th>scheme</th><th>checkpoint</th>'
        f'<th class="num">converged</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"<figcaption>{escape(note_of(groups))}</figcaption>{notes}"
    )


def _cell(at: AtLength) -> str:
    """The count and its interval, the median below."""
    count, interval = at.words.split(" ", 1)
    quiet = interval[: interval.index("]") + 1].replace(" ", "\N{NO-BREAK SPACE}")
    return f'<b>{count}</b> <span class="quiet">{quiet}</span><br>{percent(at.median)} %'


def _missed(one: Success) -> str:
    return ", ".join(f"seed {run.seed} {percent(share)} %" for run, share in one.missed)


def _sentence(one: Success) -> str:
    who = "has seeds that did not converge" if one.converged else "did not converge in this budget"
    return f"{one.group.label} ({one.checkpoint}) {who}: {_missed(one)} right on what it was trained on"


def study_finding(groups: Sequence[Group]) -> str:
    """The finding of a study of many schemes and seeds in a few sentences; "" for fewer, whose finding says more.

    "On what they were trained on, 5 of 6 schemes converged in some seed (Abacus 5/5, looped 4/5, ...). ..."
    """
    every, groups = groups, claimable(groups)
    found = [one for one in successes(groups) if one.checkpoint == "final"] or successes(groups)
    if len(groups) < 4 or all(one.seeds < 2 for one in found):
        return ""
    able, unable = [one for one in found if one.converged], [one for one in found if not one.converged]
    parts = []
    if able:
        told = _some([f"{one.group.label} {len(one.converged)}/{one.seeds}" for one in able])
        everyone = f"all {len(found)}" if not unable else f"{len(able)} of {len(found)}"
        parts.append(f"{everyone} schemes converged on what they were trained on, in so many of their seeds: {told}")
    if unable:
        names = listed([one.group.label for one in unable])
        parts.append(f"{names} did not converge in this budget, which says nothing about how far they would go")
    goes = {one.group.label: (_farthest(one), one) for one in able}
    far = sorted((pair for pair in goes.values() if pair[0] is not None), key=lambda pair: -(pair[0] or 0))
    if far:
        told = _some(
            [f"{one.group.label} up to n = {n} ({one.at[n].words.split(' ')[0]} seeds)" for n, one in far if n]
        )
        parts.append(f"at {percent(SUCCESS)} % or more in most converged seeds, at every length asked up to n: {told}")
    near = [one.group.label for n, one in goes.values() if n is None]
    if near:
        parts.append(f"{listed(near)} {'does' if len(near) == 1 else 'do'} not reach the first untrained length so")
    text = "; ".join([*parts, *no_claims(every), *theorems(every)])
    # A sentence that begins with a run's name keeps the name as it is.
    named = any(text.startswith(one.group.label) for one in found)
    return (text if named else text[:1].upper() + text[1:]) + "."


def _farthest(one: Success) -> int | None:
    """The last untrained n such that most converged seeds succeed at each untrained length up to it."""
    regions_at = {n: point.region for n, point in one.group.diagonal.items()}
    longest, far = max((n for n, region in regions_at.items() if region == "trained"), default=0), None
    for n, at in one.at.items():
        if n > longest:
            if at.rate.value <= 0.5:
                break
            far = n
    return far


def _some(told: Sequence[str]) -> str:
    return ", ".join(told) if len(told) <= MOST_NAMED else listed(told)
