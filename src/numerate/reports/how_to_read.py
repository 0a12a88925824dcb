"""Notes on how to read the numbers of a comparison."""

from collections.abc import Sequence
from html import escape

from numerate.evaluation.labels import METRICS
from numerate.reports.counts import common_metric_label
from numerate.reports.grid import format_percent
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group, have_unordered_cells
from numerate.reports.limits import MAX_NAMES, join_names
from numerate.reports.part_summary import part_notes
from numerate.reports.summary import generalization_criterion, group_result


def reading_notes(groups: Sequence[Group]) -> str:
    """Notes on the interpretation of the numbers."""
    outcomes = [group_result(group) for group in groups]
    both = "" if any(group.labels for group in groups) else ", both numbers n digits long"
    if have_unordered_cells(groups):
        return _notes_html([*part_notes(groups), *_budget_notes(groups)])
    notes = [
        f"“Converged” means a mean {_convergence_criterion(groups)}. “Generalizes to n” means "
        f"{generalization_criterion(groups)} at every OOD length up to n{both}, as measured; the interval at n may "
        "extend below it.",
    ]
    if all(len(group.region_scores) <= 1 for group in groups):
        notes.append(
            "One seed per recipe. The intervals cover the sampling of questions for these models, not the variation "
            "over seeds, which can be larger. Add seeds=3 or more."
        )
    unconverged = [
        one
        for one in outcomes
        if one.in_distribution_scores and not one.has_converged and not one.group.is_limited_by_symmetry
    ]
    if len(unconverged) > MAX_NAMES:
        notes.append(
            f"{join_names([one.label for one in unconverged])} did not converge in every seed: "
            "low OOD scores may only mean slow learning."
        )
    for one in unconverged if len(unconverged) <= MAX_NAMES else ():
        seeds = "" if one.num_seeds == 1 else f" in {one.num_seeds - one.num_converged} of {one.num_seeds} seeds"
        notes.append(f"{one.label} did not converge{seeds}: low OOD scores may only mean slow learning.")
    weak = [f"{one.label} {one.weakest_cell_text}" for one in outcomes if one.weakest_cell_text]
    if weak:
        notes.append(
            f"Weakest in-distribution cells: {'; '.join(weak[:MAX_NAMES])}{'; ...' if len(weak) > MAX_NAMES else '.'}"
        )
    notes += _budget_notes(groups)
    if any(point.overlaps_training for group in groups for point in group.points):
        notes.append(
            "Cells with a dotted underline have too few questions to hold any out; they are shown but excluded from "
            "the means."
        )
    if any(len(group.diagonal) == 0 and group.points for group in groups):
        notes.append("No cell has equal sizes on both axes, so how far models generalize is unknown.")
    return _notes_html(notes)


def _notes_html(notes: Sequence[str]) -> str:
    return '<ul class="reading">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _budget_notes(groups: Sequence[Group]) -> list[str]:
    """A note if groups were trained on different numbers of examples."""
    budgets = {
        group.label: {run.training_metrics()[-1].get("examples") for run in group.runs if run.training_metrics()}
        for group in groups
    }
    if len(set().union(*budgets.values())) <= 1:
        return []
    texts = [
        f"{label} {', '.join(f'{count:,}' for count in sorted(filter(None, counts)))}"
        for label, counts in budgets.items()
    ]
    text = "; ".join(texts[:MAX_NAMES]) + ("; ..." if len(texts) > MAX_NAMES else ".")
    return [f"The budgets are not equal, in examples: {text}"]


def _convergence_criterion(groups: Sequence[Group]) -> str:
    """The text of the convergence criterion."""
    metric = common_metric_label(groups)
    metric = METRICS["accuracy"] if metric == METRICS["ood_accuracy"] else metric
    held_out = "" if any(group.labels for group in groups) else " with held-out questions"
    return f"{metric} of at least {format_percent(CONVERGENCE_THRESHOLD)} % over the cells in distribution{held_out}"
