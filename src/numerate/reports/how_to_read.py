"""Notes on how to read the numbers of a comparison."""

from collections.abc import Sequence

from numerate.reports.content import Bullets, Content
from numerate.reports.grid import CLEAR_MARGIN, format_percent, join_names
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group, have_unordered_cells, part_axis, region_labels
from numerate.reports.summary import GENERALIZATION_THRESHOLD


def reading_content(groups: Sequence[Group]) -> Content:
    """What words mean here, and what limits the comparison."""
    notes = _part_notes(groups) if have_unordered_cells(groups) else _length_notes(groups)
    if all(len(group.region_scores) <= 1 for group in groups):
        notes.append(
            "One seed per recipe. The intervals cover the sampling of questions for these models, not the variation "
            "over seeds, which can be larger. Add seeds=3 or more."
        )
    budgets = {
        group.label: sorted(
            {run.training_metrics()[-1].get("examples", 0) for run in group.runs if run.training_metrics()}
        )
        for group in groups
    }
    if len({count for counts in budgets.values() for count in counts}) > 1:
        texts = [f"{label} {', '.join(f'{count:,}' for count in counts)}" for label, counts in budgets.items()]
        notes.append(f"The budgets are not equal, in examples: {join_names(texts)}.")
    return [Bullets(notes)]


def _part_notes(groups: Sequence[Group]) -> list[str]:
    words, axis = region_labels(groups), part_axis(groups)
    return [
        f"Training contained questions of the {words['in_distribution']}, and none of the {words['ood_test']}. "
        f"Each {axis} is learned separately: a low score may mean slow learning rather than a lack of generalization."
    ]


def _length_notes(groups: Sequence[Group]) -> list[str]:
    margin = f" and clearly above the baseline (by at least {format_percent(CLEAR_MARGIN)} % of the rest up to 100 %)"
    margin *= any(group.baseline is not None for group in groups)
    notes = [
        f"“Converged” means a mean of at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution. "
        "Low OOD scores of a seed that did not converge may only mean slow learning.",
        f"“Up to n” means at least {format_percent(GENERALIZATION_THRESHOLD)} %{margin} at every OOD length up to n "
        "as measured; the interval at n may extend below it.",
    ]
    if any(point.overlaps_training for group in groups for point in group.points):
        notes.append(
            "Cells with a dotted underline have too few questions to hold any out; they are shown but excluded from "
            "the means."
        )
    if any(len(group.diagonal) == 0 and group.points for group in groups):
        notes.append("No cell has equal sizes on both axes, so how far models generalize is unknown.")
    return notes
