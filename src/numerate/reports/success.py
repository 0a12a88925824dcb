"""The success table of a study: which seeds converged, and to which lengths those generalize.

A seed that did not learn its training task is listed as not converged within its budget, not as a failure to
generalize: rates are over the converged seeds. Where a symmetry keeps every seed from converging, all are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import Proportion, success_rate, wilson
from numerate.reports.claims import claimable, no_claims, theorems
from numerate.reports.counts import MEMORISED, measure_words
from numerate.reports.grid import above, bracket, floors_along, percent
from numerate.reports.groups import CONVERGED, Group
from numerate.reports.limits import MOST_NAMED, listed
from numerate.reports.records import Records

SUCCESS = 0.99
"""The accuracy from which on a seed succeeds at a length."""

MOST_LENGTHS = 7
"""Maximum number of length columns in a table."""

CHECKPOINTS = ("final", "best")
"""The reported checkpoints: the last one, and the one chosen on OOD validation."""


@dataclass(frozen=True)
class AtLength:
    """The converged seeds at one length: how many succeed, and their median accuracy; `floor` is that of memorising."""

    rate: Proportion
    median: float
    floor: float | None = None

    @property
    def words(self) -> str:
        """`3/5 [23, 88] 97.2`: successes of seeds, Wilson's interval about the seeds in %, median exact match in %."""
        successes = round(self.rate.value * self.rate.count)
        return f"{successes}/{self.rate.count} {bracket(self.rate.low, self.rate.high, 0)} {percent(self.median)}"


@dataclass(frozen=True)
class Success:
    """One scheme at one checkpoint. `missed` are the unconverged seeds with their accuracy in distribution."""

    group: Group
    checkpoint: str
    converged: Sequence[Records]
    missed: Sequence[tuple[Records, float]]

    @property
    def seeds(self) -> int:
        return len(self.converged) + len(self.missed)

    @property
    def unable(self) -> bool:
        """Whether no seed converged because of a symmetry."""
        return self.group.by_symmetry and not self.converged

    @property
    def judged(self) -> Sequence[Records]:
        """The seeds shown by length: those that converged, or all where none can."""
        return [run for run, _ in self.missed] if self.unable else self.converged

    @cached_property
    def at(self) -> dict[int, AtLength]:
        """The results of the judged seeds by length."""
        group = self.group.converged
        if len(group.runs) != len(self.judged):
            group = replace(group, runs=tuple(self.judged))
        along = group.diagonal if self.judged else {}
        return {
            n: AtLength(success_rate(point.each, SUCCESS), median(point.each), point.floor)
            for n, point in along.items()
        }

    @property
    def converged_text(self) -> str:
        """`4/5 [38, 96]`: the converged seeds with Wilson's interval in per cent; no interval where none can
        converge: `0/5 by a symmetry`."""
        if self.unable:
            return f"0/{self.seeds} {SYMMETRY}"
        return f"{len(self.converged)}/{self.seeds} {bracket(*wilson(len(self.converged), self.seeds), 0)}"


@dataclass(frozen=True)
class Curve:
    """One line of a figure by length: the seeds drawn; `suffix` says how many of all they are."""

    group: Group
    suffix: str

    @property
    def label(self) -> str:
        """`rotary (4 of 5 seeds)`."""
        return f"{self.group.label} ({self.suffix})" if self.suffix else self.group.label


def by_length(groups: Sequence[Group]) -> tuple[list[Curve], str]:
    """The curves by length, and a sentence about what is left out. A study draws converged seeds only, and no scheme
    without any; where every group has one seed, or nothing converged, all are drawn and labelled so."""
    found, missed = [], []
    able = [group.converged for group in groups]
    study = any(len(group.evaluated) > 1 for group in groups) and any(one.evaluated for one in able)
    for group, one in zip(groups, able, strict=True):
        seeds, count = len(group.evaluated), len(one.evaluated)
        suffix = [f"{seeds} seeds"] * (seeds > 1)
        if group.by_symmetry:
            found.append(Curve(group, ", ".join(suffix + [f"at chance {SYMMETRY}"] * (seeds > 0))))
        elif study and seeds and not count:
            missed.append(f"{group.label} (0 of {seeds})")
        elif study:
            found.append(Curve(one, "".join(suffix) if count == seeds else f"{count} of {seeds} seeds"))
        else:
            found.append(Curve(group, ", ".join(suffix + ["did not converge"] * (seeds > 0 and not count))))
    return found, f"Not drawn, as no seed converged: {', '.join(missed)}." if missed else ""


def successes(groups: Sequence[Group]) -> list[Success]:
    """One for each group and checkpoint that was evaluated; groups with changed settings among them."""
    found = []
    for group in groups:
        names = [
            name for name in CHECKPOINTS if any(cell.checkpoint == name for run in group.runs for cell in run.cells)
        ]
        for name in names:
            # Reuse the cached results of the default checkpoint.
            same = all(cells[0].checkpoint == name == "final" for cells in group.evaluated)
            one = group if same else replace(group, checkpoint=name)
            if one.learned:
                yes = [run for run, share in one.learned if share >= CONVERGED]
                no = [(run, share) for run, share in one.learned if share < CONVERGED]
                found.append(Success(one, name, yes, no))
    return found


def table_lengths(found: Sequence[Success]) -> list[int]:
    """The lengths with a column: the longest trained one, the next two, and 1.5, 2, 2.5, 3 and 4 times it, where
    evaluated; beyond `MOST_LENGTHS` the second next, 2.5 and 3 times are dropped in this order.

    Trained on 1 to 6 digits and evaluated on 1 to 18: 6, 7, 8, 9, 12, 15, 18; on 50 and up to 200: 50, 51, 75, 100,
    125, 150, 200. Lengths at which memorising alone succeeds have no column.
    """
    points = [point for one in found for point in one.group.diagonal.items()]
    empty = {n for n, (floor, _) in floors_along(one.group.diagonal for one in found).items() if floor >= SUCCESS}
    evaluated = sorted({n for n, _ in points} - empty)
    longest = max((n for n, point in points if point.region == "in_distribution"), default=0)
    wanted = {longest, longest + 1, longest + 2, *(longest * half // 2 for half in (3, 4, 5, 6, 8)), *evaluated[-1:]}
    lengths = [n for n in evaluated if n in wanted]
    for less in (longest + 2, longest * 5 // 2, longest * 3):
        if len(lengths) > MOST_LENGTHS and less != evaluated[-1]:
            lengths = [n for n in lengths if n != less]
    return lengths


def success_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table as text: scheme, checkpoint, converged seeds, then by length what those show."""
    found = successes(groups)
    lengths = table_lengths(found)
    header = ["scheme", "checkpoint", "converged", *(f"n={n}" for n in lengths)]
    rows = []
    for one in found:
        at = one.at
        cells = [at[n].words if n in at else "" for n in lengths]
        if one.group.sees_future is not None:
            cells = [f"{NO_CLAIM}: {one.group.sees_future}", *([""] * (len(lengths) - 1))] if lengths else []
        elif not one.judged:
            cells = ["did not converge", *([""] * (len(lengths) - 1))] if lengths else []
        rows.append([one.group.label, one.checkpoint, one.converged_text, *cells])
    for label, floors in _floors(found):
        rows.append([label, "", "", *(percent(floors[n]) if n in floors else "" for n in lengths)])
    return header, rows


def _floors(found: Sequence[Success]) -> list[tuple[str, dict[int, float]]]:
    """The floors of all groups by length, each once under what it is."""
    known: dict[str, dict[int, float]] = {}
    for one in found:
        floors = {n: point.floor for n, point in one.group.diagonal.items() if point.floor is not None}
        known[one.group.label] = floors | known.get(one.group.label, {})
    together = floors_along(one.group.diagonal for one in found)
    if together and all(low == high for low, high in together.values()):
        return [("floor, %", {n: low for n, (low, _) in together.items()})]
    return [(f"floor of {label}, %", floors) for label, floors in known.items() if floors]


def _trained(found: Sequence[Success]) -> int:
    """The longest trained length of all groups."""
    return max((n for one in found for n, p in one.group.diagonal.items() if p.region == "in_distribution"), default=0)


def unconverged(groups: Sequence[Group]) -> list[str]:
    """Sentences on the seeds that did not converge, per scheme and checkpoint."""
    return [_sentence(one) for one in successes(groups) if one.missed]


SYMMETRY = "by a symmetry"
"""Label of a scheme that cannot converge, whatever its weights."""

NO_CLAIM = "no claim"
"""Replaces the numbers of a model that attends to later tokens."""


def note_of(groups: Sequence[Group]) -> str:
    """The caption of the table."""
    words = measure_words(groups)
    floors = any(group.floor is not None for group in groups)
    best = any(cell.checkpoint == "best" for group in groups for run in group.runs for cell in run.cells)
    within = {METRICS["unseen"]: METRICS["accuracy"], METRICS["exact"]: "held-out questions"}.get(words, words)
    return (
        f"A seed has converged with at least {percent(CONVERGED)} % in distribution ({within}); converged seeds of all "
        "have Wilson's 95 % interval in per cent. "
        f"By length n: the seeds with at least {percent(SUCCESS)} % of the converged ones, with Wilson's 95 % interval "
        f"in per cent, and the median of their {words} in per cent. Seeds that did not converge are not counted."
        + f" “{SYMMETRY}” marks schemes that cannot converge with any budget; all their seeds are shown."
        * any(group.by_symmetry for group in groups)
        + " “best” is the checkpoint that did best on OOD validation, which is excluded from its results." * best
        + f" {MEMORISED}" * floors
    )


def success_table(groups: Sequence[Group]) -> str:
    """The table as HTML; "" where every group has one seed."""
    if all(len(group.evaluated) < 2 for group in groups):
        return ""
    found = successes(groups)
    lengths = table_lengths(found)
    if not lengths:
        return ""
    longest = _trained(found)
    head = "".join(f'<th class="num">n = {n}{" (in distribution)" * (n <= longest)}</th>' for n in lengths)
    rows, before = [], ""
    for one in found:
        label = escape(one.group.label) if one.group.label != before else ""
        before = one.group.label
        count, interval = one.converged_text.split(" ", 1)
        whole = interval.replace(" ", "\N{NO-BREAK SPACE}")
        converged = f'{count} <span class="quiet">{whole}</span>'
        start = f'<td>{label}</td><td>{one.checkpoint}</td><td class="num">{converged}</td>'
        if one.group.sees_future is not None:
            why = escape(f"{NO_CLAIM}: {one.group.sees_future}")
            body = f'<td class="quiet" colspan="{len(lengths)}">{why}</td>'
        elif one.judged:
            at = one.at
            body = "".join(f'<td class="num">{_cell(at[n])}</td>' if n in at else "<td></td>" for n in lengths)
        else:
            body = f'<td class="quiet" colspan="{len(lengths)}">did not converge in this budget: {_missed(one)}</td>'
        rows.append(f"<tr>{start}{body}</tr>")
    for label, floors in _floors(found):
        texts = (f"{percent(floors[n])} %" if n in floors else "" for n in lengths)
        cells = "".join(f'<td class="num quiet">{text}</td>' for text in texts)
        rows.append(f'<tr><td class="quiet">{escape(label)}</td><td></td><td></td>{cells}</tr>')
    some = [_sentence(one) for one in found if one.judged and one.missed]
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
    """`0.9 % (seed 0), 12 % (seed 3)`."""
    return ", ".join(f"{percent(share)} % (seed {run.seed})" for run, share in one.missed)


def _sentence(one: Success) -> str:
    if one.unable:
        return f"{one.group.label} ({one.checkpoint}) cannot converge, {SYMMETRY}: {_missed(one)} right"
    who = "has seeds that did not converge" if one.converged else "did not converge in this budget"
    return f"{one.group.label} ({one.checkpoint}) {who}: {_missed(one)} right on what it was trained on"


def study_finding(groups: Sequence[Group]) -> str:
    """The finding of a study of many schemes and seeds in a few sentences; "" for fewer than four schemes.

    "On what they were trained on, 5 of 6 schemes converged in some seed (Abacus 5/5, looped 4/5, ...). ..."
    """
    every, groups = groups, claimable(groups)
    found = [one for one in successes(groups) if one.checkpoint == "final"] or successes(groups)
    if len(groups) < 4 or all(one.seeds < 2 for one in found):
        return ""
    able, unable = [one for one in found if one.converged], [one for one in found if not one.judged]
    never = [one.group.label for one in found if one.unable]
    parts = []
    if able:
        schemes = _some([f"{one.group.label} {len(one.converged)}/{one.seeds}" for one in able])
        everyone = f"all {len(found)}" if len(able) == len(found) else f"{len(able)} of {len(found)}"
        parts.append(f"{everyone} schemes converged on what they were trained on, in so many of their seeds: {schemes}")
    if unable:
        names = listed([one.group.label for one in unable])
        parts.append(f"{names} did not converge in this budget, so how far they would go is unknown")
    if never:
        parts.append(f"{listed(never)} cannot, {SYMMETRY}")
    goes = {one.group.label: (_farthest(one), one) for one in able}
    far = sorted((pair for pair in goes.values() if pair[0] is not None), key=lambda pair: -(pair[0] or 0))
    if far:
        schemes = _some(
            [f"{one.group.label} up to n = {n} ({one.at[n].words.split(' ')[0]} seeds)" for n, one in far if n]
        )
        parts.append(
            f"at {percent(SUCCESS)} % or more in most converged seeds, at every evaluated length up to n: {schemes}"
        )
    near = [one.group.label for n, one in goes.values() if n is None]
    if near:
        parts.append(f"{listed(near)} {'does' if len(near) == 1 else 'do'} not reach the first OOD length so")
    text = "; ".join([*parts, *no_claims(every), *theorems(every)])
    # Do not capitalize the name of a run.
    named = any(text.startswith(one.group.label) for one in found)
    return (text if named else text[:1].upper() + text[1:]) + "."


def _farthest(one: Success) -> int | None:
    """The last OOD n such that most converged seeds succeed at each OOD length up to it."""
    regions_at = {n: point.region for n, point in one.group.diagonal.items()}
    longest, far = max((n for n, region in regions_at.items() if region == "in_distribution"), default=0), None
    for n, at in one.at.items():
        if n > longest:
            if at.rate.value <= 0.5:
                break
            far = n if above(SUCCESS, at.floor) else far
    return far


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts) if len(texts) <= MOST_NAMED else listed(texts)
