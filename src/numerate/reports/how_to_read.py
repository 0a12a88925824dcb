"""Notes on how to read the numbers of a comparison."""

from collections.abc import Sequence
from html import escape

from numerate.evaluation.labels import METRICS
from numerate.reports.counts import measure_words
from numerate.reports.finding import SOLVED, going_words, outcome
from numerate.reports.grid import percent
from numerate.reports.groups import Group, by_parts
from numerate.reports.limits import MOST_NAMED, listed
from numerate.reports.part_finding import part_notes


def reading(groups: Sequence[Group]) -> str:
    """Notes on what the numbers can and cannot show."""
    outcomes = [outcome(group) for group in groups]
    both = "" if any(group.labels for group in groups) else ", both numbers n digits long"
    if by_parts(groups):
        return _listed([*part_notes(groups), *_budgets(groups)])
    notes = [
        f"“Solves” means a mean {_solving(groups)}. “Goes to n” means {going_words(groups)} at every OOD length "
        f"up to n{both}, as measured; the interval at n may reach below.",
    ]
    if all(len(group.regions) <= 1 for group in groups):
        notes.append(
            "One seed per recipe. The intervals say how well each of these models was measured; they say nothing about "
            "what another seed would give, which can differ by more than the intervals. Add seeds=3 or more."
        )
    unsolved = [one for one in outcomes if one.trained and not one.solves and not one.group.by_symmetry]
    if len(unsolved) > MOST_NAMED:
        notes.append(
            f"{listed([one.label for one in unsolved])} did not solve the task in distribution in every seed: "
            "low OOD scores may only mean slow learning."
        )
    for one in unsolved if len(unsolved) <= MOST_NAMED else ():
        seeds = "" if one.seeds == 1 else f" in {one.seeds - one.solved} of {one.seeds} seeds"
        notes.append(
            f"{one.label} did not solve the task in distribution{seeds}: low OOD scores may only mean slow learning."
        )
    weak = [f"{one.label} {one.weak}" for one in outcomes if one.weak]
    if weak:
        notes.append(
            f"Weakest in-distribution cells: {'; '.join(weak[:MOST_NAMED])}{'; ...' if len(weak) > MOST_NAMED else '.'}"
        )
    notes += _budgets(groups)
    if any(point.seen for group in groups for point in group.points):
        notes.append(
            "Cells with a dotted underline have too few questions to hold any out; they are shown and not scored."
        )
    if any(len(group.diagonal) == 0 and group.points for group in groups):
        notes.append("No cell has both axes equal, so how far a model goes is unknown.")
    return _listed(notes)


def _listed(notes: Sequence[str]) -> str:
    return '<ul class="reading">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _budgets(groups: Sequence[Group]) -> list[str]:
    """A note where groups were trained on different numbers of examples."""
    budgets = {
        group.label: {run.training()[-1].get("examples") for run in group.runs if run.training()} for group in groups
    }
    if len(set().union(*budgets.values())) <= 1:
        return []
    texts = [
        f"{label} {', '.join(f'{seen:,}' for seen in sorted(filter(None, seen)))}" for label, seen in budgets.items()
    ]
    text = "; ".join(texts[:MOST_NAMED]) + ("; ..." if len(texts) > MOST_NAMED else ".")
    return [f"The budgets are not equal, in examples: {text}"]


def _solving(groups: Sequence[Group]) -> str:
    """The criterion for solving the training region, in words."""
    words = measure_words(groups)
    words = METRICS["accuracy"] if words == METRICS["unseen"] else words
    held = "" if any(group.labels for group in groups) else " with held-out questions"
    return f"{words} of at least {percent(SOLVED)} % over the cells in distribution{held}"
