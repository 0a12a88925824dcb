"""The finding of a run or a study in one sentence, written from records alone.

A model "solves" its training region from a stated mean on; how far it generalizes is read off the diagonal of the grid
without gaps; numbers have intervals, and a single seed is named as such.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import difference
from numerate.reports.claims import claimable, no_claims, theorems
from numerate.reports.counts import measure_of, measure_words
from numerate.reports.grid import CLEAR, Point, above, bracket, percent, place_words, span_words
from numerate.reports.groups import CONVERGED, Group, by_parts
from numerate.reports.limits import MOST_NAMED, listed
from numerate.reports.part_finding import part_finding

SOLVED = CONVERGED
"""The mean in distribution, over held-out questions, from which on a model "solves" it."""

REACHED = 0.90
"""The accuracy required at every length up to n for a model to "go to n"."""

WEAK = 0.95
"""A trained cell whose interval lies below this is named even if the mean of the region is high."""


@dataclass(frozen=True)
class GroupFinding:
    """The results of one group, for sentences.

    `trained` are the in-distribution means of each seed. The others are over the seeds that solve it (`solving`):
    `reach` is the last n such that all OOD lengths up to n+n have at least `REACHED` (the median over seeds), clearly
    above the floor; None if not even the first has. `reaches` is the same for each seed; `first` is the first OOD
    length at which memorising alone does not give `REACHED`.
    """

    group: Group
    trained: tuple[float, ...]
    low: float
    high: float
    reach: Point | None
    reaches: tuple[int | None, ...]
    first: Point | None
    at_the_end: bool
    weak: str
    only_seen: bool

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def seeds(self) -> int:
        return len(self.trained)

    @property
    def solved(self) -> int:
        """How many seeds solve the training region."""
        return sum(mean >= SOLVED for mean in self.trained)

    @property
    def solves(self) -> bool:
        return bool(self.trained) and self.solved == self.seeds

    @property
    def trained_text(self) -> str:
        return f"{percent(median(self.trained))} % {bracket(self.low, self.high)}"

    def words(self, point: Point) -> str:
        return place_words(point.at, self.group.operator, point.names)


def outcome(group: Group) -> GroupFinding:
    """The results of a group."""
    found = [regions["in_distribution"] for regions in group.regions if "in_distribution" in regions]
    means = tuple(region.share.value for region in found)
    low, high = (min(means), max(means)) if len(means) > 1 else (0.0, 1.0)
    if len(found) == 1:
        low, high = found[0].share.low, found[0].share.high
    weakest = min((region.weakest for region in found), key=lambda cell: cell.accuracy, default=None)
    weak = ""
    if weakest is not None and weakest.high < WEAK:
        weak = f"{place_words(weakest.at, group.operator, weakest.names)}: {percent(weakest.accuracy)} %"
    along = solving(group).diagonal
    trained = [n for n, point in along.items() if point.region == "in_distribution"]
    beyond = [point for n, point in along.items() if n > max(trained, default=0) and point.region != "in_distribution"]
    seeds = len(beyond[0].each) if beyond else 0
    reach = _reach([(point, point.value) for point in beyond])
    alone = [_reach([(point, point.each[i]) for point in beyond]) for i in range(seeds)]
    return GroupFinding(
        group=group,
        trained=means,
        low=low,
        high=high,
        reach=reach,
        reaches=tuple(None if point is None else _n(point) for point in alone),
        first=next((point for point in beyond if _telling(point)), beyond[0] if beyond else None),
        at_the_end=bool(beyond) and reach is beyond[-1],
        weak=weak,
        only_seen=bool(found) and all(region.only_seen for region in found),
    )


def solving(group: Group) -> Group:
    """The seeds of a group that solve the training region, or all where none or every one does."""
    able = tuple(
        run
        for run, found in group.measured
        if "in_distribution" in found and found["in_distribution"].share.value >= SOLVED
    )
    if not 0 < len(able) < len(group.runs):
        return group
    return group.converged if group.converged.runs == able else replace(group, runs=able)


def _reach(along: Sequence[tuple[Point, float]]) -> Point | None:
    """The last length up to which all have `REACHED` and are clearly above their floors. A length at which memorising
    alone gives `REACHED` does not end the search, and is the last only if it is clearly above its floor."""
    last = None
    for point, share in along:
        if share < REACHED or (_telling(point) and not above(share, point.floor)):
            break
        if above(share, point.floor):
            last = point
    return last


def _telling(point: Point) -> bool:
    """Whether memorising alone does not give `REACHED` there."""
    return point.floor is None or point.floor < REACHED


def _n(point: Point) -> int:
    return next(iter(point.at.values()))


def finding(groups: Sequence[Group]) -> str:
    """The finding of one group or of several, as one sentence with the numbers in it.

    For example, of the quickstart: "Both solve what they were trained on, 1 to 5 digits
    (Abacus 99.9 % [99.7, 100], rotary 99.6 % [99.2, 99.8]), but only Abacus goes beyond: it stays at 90 % or more up
    to 8+8 digits (90.5 % [85.6, 93.8] there), while rotary falls to 0 % [0, 1.9] at 6+6 digits; one seed each, ..."
    """
    if by_parts(groups):
        return part_finding(groups)
    outcomes = [outcome(group) for group in claimable(groups)]
    evaluated = [one for one in outcomes if one.trained or one.first]
    barred = no_claims(groups)
    if not evaluated:
        return f"{'; '.join(barred)}." if barred else "Nothing was evaluated yet, so there is nothing to say."
    missing = [one.label for one in outcomes if not (one.trained or one.first)]
    if len(evaluated) > MOST_NAMED:
        text = _of_many(evaluated)
    else:
        opening, join = _trained(evaluated)
        text = f"{opening}{join}{_beyond(evaluated)}; {_measured(evaluated)}{_doubt(evaluated)}"
    if missing:
        text += f"; not evaluated yet: {listed(missing)}"
    text = "; ".join([text, *barred, *theorems(groups)])
    # Do not capitalize the name of a run.
    named = any(text.startswith(one.label) for one in evaluated)
    return (text if named else text[0].upper() + text[1:]) + "."


def _of_many(outcomes: Sequence[GroupFinding]) -> str:
    """The finding of more groups than a sentence can name: how many solve and go beyond, and who goes farthest."""
    known = [one for one in outcomes if one.trained]
    able = [one for one in outcomes if one.solves]
    span = span_words(point for one in known[:1] for point in one.group.points if point.region == "in_distribution")
    text = f"{len(able)} of {len(outcomes)} solve what they were trained on, {span}" if known else "many were evaluated"
    text += " (in every seed)" * any(one.seeds > 1 for one in known)
    going = [one for one in outcomes if one.reach is not None]
    if not going:
        text += f"; none goes beyond at {percent(REACHED)} % or more"
    else:
        longest = max(_n(one.reach) for one in going if one.reach is not None)
        best = [one for one in going if one.reach is not None and _n(one.reach) == longest]
        far = best[0].words(best[0].reach) if best[0].reach is not None else ""
        text += (
            f"; {len(going)} go beyond at {percent(REACHED)} % or more, the farthest up to {far} "
            f"({listed([one.label for one in best])})"
        )
    counts = {len(one.group.regions) for one in outcomes}
    doubt = "one seed each, so how much seeds differ is not known" if counts == {1} else "medians over seeds"
    return f"{text}; {doubt}, and the best of so many owes some of its lead to chance"


def _trained(outcomes: Sequence[GroupFinding]) -> tuple[str, str]:
    """The half of the sentence about the training region, and the conjunction after it."""
    known = [one for one in outcomes if one.trained]
    if not known:
        return (
            "no trained cell was evaluated",
            ", so what follows may be slow learning as well as failing to generalise: ",
        )
    span = span_words(point for point in known[0].group.points if point.region == "in_distribution")
    what = f"what {'it was' if len(known) == 1 else 'they were'} trained on, {span}"
    seen = ", on questions that training may have met" if any(one.only_seen for one in known) else ""
    texts = [f"{one.label} {one.trained_text}{_seeds_solved(one)}{_weak(one)}" for one in known]
    solving = [one for one in known if one.solves]
    if len(known) == 1:
        verb = "solves" if solving else "does not solve"
        values = f"{known[0].trained_text}{_seeds_solved(known[0])}{_weak(known[0])}{_threshold(solving, known)}{seen}"
        return f"{known[0].label} {verb} {what} ({values})", " and " if solving else "; "
    values = f" ({', '.join(texts)}{_threshold(solving, known)}{seen})"
    if len(solving) == len(known):
        # "But" belongs before a contrast only.
        contrast = 0 < sum(one.reach is not None for one in known) < len(known)
        everyone = "both" if len(known) == 2 else f"all {len(known)}"
        return f"{everyone} solve {what}{values}", ", but " if contrast else ", and "
    if not solving:
        nobody = "neither" if len(known) == 2 else f"none of the {len(known)}"
        return f"{nobody} solves {what.replace('they were', 'it was')}{values}", "; "
    names = listed([one.label for one in solving])
    verb = "solves" if len(solving) == 1 else "solve"
    return (
        f"only {names} {verb} {what.replace('they were', 'it was' if len(solving) == 1 else 'they were')}{values}",
        "; ",
    )


def _threshold(solving: Sequence[GroupFinding], known: Sequence[GroupFinding]) -> str:
    if len(solving) == len(known):
        return ""
    every = " in every seed" if any(one.seeds > 1 for one in known) else ""
    return f"; solving means a mean of at least {percent(SOLVED)} %{every}"


def _seeds_solved(one: GroupFinding) -> str:
    return "" if one.seeds == 1 or one.solved in (0, one.seeds) else f", {one.solved} of {one.seeds} seeds solve it"


def _weak(one: GroupFinding) -> str:
    return f", weakest {one.weak}" if one.solves and one.weak else ""


def _beyond(outcomes: Sequence[GroupFinding]) -> str:
    """The half of the sentence about generalization beyond training."""
    judged = [one for one in outcomes if one.first is not None]
    if not judged:
        return "nothing beyond it was evaluated"
    going = [one for one in judged if one.reach is not None]
    staying = [one for one in judged if one.reach is None]
    alone = len(judged) == 1 and len(outcomes) == 1
    who = "" if judged[0].solves else f"{'it' if judged[0].trained else judged[0].label} "
    if not staying:
        if alone:
            return f"{who}goes beyond: {_goes(going[0], 'it')}"
        everyone = "both go" if len(going) == 2 else f"all {len(going)} go"
        return f"{everyone} beyond: " + ", ".join(_goes(one, one.label) for one in going)
    if not going:
        if alone and staying[0].trained and not staying[0].solved:
            return f"it {_stays(staying[0])}"
        if alone:
            return f"{who}does not go beyond: it {_stays(staying[0])}"
        nobody = "neither goes" if len(staying) == 2 else f"none of the {len(staying)} goes"
        return f"{nobody} beyond at {percent(REACHED)} % or more: " + ", ".join(
            f"{one.label} {_stays(one)}" for one in staying
        )
    text = f"only {listed([one.label for one in going])} {'goes' if len(going) == 1 else 'go'} beyond: "
    text += ", ".join(_goes(one, "it" if len(going) == 1 else one.label) for one in going)
    text += ", while " + listed([f"{one.label} {_stays(one)}" for one in staying])
    if any(not _apart(one, other) for one in going for other in staying):
        text += ", a difference that these records cannot tell from chance"
    return text


def _goes(one: GroupFinding, name: str) -> str:
    point = one.reach
    if point is None:
        return ""
    end = ", the end of the grid" if one.at_the_end else ""
    seeds = ""
    if one.seeds > 1 and len(set(one.reaches)) > 1:
        seeds = "; seed by seed up to " + listed(["none" if n is None else str(n) for n in one.reaches])
    solved = f", in the {one.solved} of {one.seeds} seeds that solve it" if 0 < one.solved < one.seeds else ""
    there = f"{percent(point.value)} % {bracket(point.low, point.high)} there{_floor(point)}{solved}{seeds}"
    return f"{name} stays at {percent(REACHED)} % or more up to {one.words(point)}{end} ({there})"


def _stays(one: GroupFinding) -> str:
    point = one.first
    if point is None:
        return "was not evaluated beyond"
    verb = "falls to" if one.solves else "has"
    text = f"{verb} {percent(point.value)} % {bracket(point.low, point.high)} at {one.words(point)}{_bracketed(point)}"
    if one.solves or not one.trained:
        return text
    if one.group.by_symmetry:
        return text
    if one.solved:
        return f"{text}, in the {one.solved} of {one.seeds} seeds that have learned what it was trained on"
    return f"{text}, which says little as it has not learned what it was trained on"


def _apart(one: GroupFinding, other: GroupFinding) -> bool:
    """Whether two groups differ significantly at the first OOD length."""
    here, there = one.first, other.first
    if here is None or there is None or here.at != there.at:
        return True
    if len(here.each) == 1 and len(there.each) == 1:
        gap = difference((round(here.value * here.count), here.count), (round(there.value * there.count), there.count))
        return gap.low > 0.0 or gap.high < 0.0
    return here.low > there.high or there.low > here.high


def _floor(point: Point) -> str:
    """The floor at a length, as text after a number."""
    return "" if point.floor is None else f", floor {percent(point.floor)} %"


def _bracketed(point: Point) -> str:
    return f" ({floor.removeprefix(', ')})" if (floor := _floor(point)) else ""


def going_words(groups: Sequence[Group]) -> str:
    """What "goes to n" means, in words."""
    clear = f" and clearly above the floor there (at least {percent(CLEAR)} % of what the floor leaves)"
    return f"at least {percent(REACHED)} %{clear * any(group.floor is not None for group in groups)}"


def _measured(outcomes: Sequence[GroupFinding]) -> str:
    """A note on the metric of labels; "" for exact match."""
    if measure_of([one.group for one in outcomes]) in (None, "exact"):
        return ""
    words = measure_words([one.group for one in outcomes])
    what = f"{words}, within training on all its counts" if words == METRICS["unseen"] else words
    return f"numbers are {what}; the floor is what memorising gives, or one answer everywhere; "


def _doubt(outcomes: Sequence[GroupFinding]) -> str:
    """A note on brackets and seeds."""
    counts = sorted({len(one.group.regions) for one in outcomes})
    each = " each" if len(outcomes) > 1 else ""
    if counts == [1]:
        sizes = sorted({point.count for one in outcomes for point in one.group.points})
        questions = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        if any(one.group.measure != "exact" for one in outcomes):
            questions += " row" if questions == "1" else " rows"
        return (
            f"one seed{each}, so how much seeds differ is not known "
            f"(brackets: 95 % intervals over questions, {questions} per cell)"
        )
    if len(counts) == 1:
        return f"medians of {counts[0]} seeds{each} (brackets: lowest and highest seed)"
    seeds = ", ".join(f"{one.label} {len(one.group.regions)}" for one in outcomes)
    return f"seeds: {seeds} (brackets: lowest and highest seed; for one seed the 95 % interval about the questions)"
