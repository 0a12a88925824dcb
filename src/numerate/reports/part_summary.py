"""The summary of groups whose cells are named parts: results on trained and untrained parts, by group."""

from collections.abc import Sequence
from statistics import median

from numerate.evaluation.answer_metrics import LOWER_IS_BETTER
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.comparable import comparable_groups, not_comparable_notes
from numerate.reports.groups import Group, part_axis, region_labels
from numerate.reports.limits import join_names
from numerate.reports.metrics import (
    EXACT_MATCH,
    METRIC_LABELS,
    GroupAtCheckpoint,
    MetricKey,
    computed_metrics,
    format_median,
    groups_at_checkpoints,
    is_proportion,
    named_parts,
)

MAX_LISTED_GROUPS = 4
"""Maximum number of groups listed; with more, the sentence names the best two and the last."""

MAX_LISTED_PARTS = 6


def part_summary(groups: Sequence[Group]) -> str:
    """The summary as one sentence.

    "On the trained modules (add_or_sub, mul), exact match is 45.1 % [44, 46] for CE and 47.3 % [47, 48] for WAS; on the
    modules beyond (add_or_sub_big, mul_big), ...; medians of 2 seeds each (brackets: range over seeds)."
    """
    groups_at_checkpoint = [
        one
        for one in groups_at_checkpoints(comparable_groups(groups))
        if one.metrics_by_seed and one.checkpoint != "best"
    ]
    if not groups_at_checkpoint:
        return "Nothing has been evaluated yet."
    metrics = computed_metrics(groups_at_checkpoint)
    second = next((name for name in ("log_mae", "bleu") if name in metrics), None)
    display_names, sentences = region_labels(groups), []
    for region, parts in named_parts(groups).items():
        names = [name for _, name in parts]
        listing = f" ({', '.join(names)})" if len(names) <= MAX_LISTED_PARTS else f" ({len(names)} in total)"
        clauses = [_clause(groups_at_checkpoint, MetricKey(region), f"{EXACT_MATCH}{CELL_MEAN_SUFFIX}")]
        clauses += [_clause(groups_at_checkpoint, MetricKey(region), f"{second}{CELL_MEAN_SUFFIX}")] if second else []
        if any(clauses):
            sentences.append(f"on the {display_names[region]}{listing}, {' and '.join(filter(None, clauses))}")
    counts = sorted({len(one.metrics_by_seed) for one in groups_at_checkpoint})
    means = f"each a mean over the {part_axis(groups)}s"
    each = " each" if len(groups_at_checkpoint) > 1 else ""
    if counts == [1]:
        uncertainty_note = f"{means}; one seed{each}, so the variation over seeds is unknown"
    else:
        number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        uncertainty_note = f"{means} and the median of {number} seeds{each} (brackets: range over seeds)"
    selection_note = ["the best of many groups is partly the best by chance (selection bias)"] * (
        len(groups_at_checkpoint) > MAX_LISTED_GROUPS
    )
    missing = [group.label for group in groups if not group.evaluated_cells]
    missing_note = [f"not evaluated yet: {join_names(missing)}"] if missing else []
    metric_note = [f"{second} is the {METRIC_LABELS[second]}"] if second else []
    text = "; ".join(
        [*sentences, uncertainty_note, *metric_note, *selection_note, *missing_note, *not_comparable_notes(groups)]
    )
    return text[:1].upper() + text[1:] + "."


def part_notes(groups: Sequence[Group]) -> list[str]:
    """Notes on the interpretation of the numbers."""
    display_names, axis = region_labels(groups), part_axis(groups)
    notes = [
        f"Training contained questions of the {display_names['in_distribution']}, and none of the "
        f"{display_names['ood_test']}. "
        f"Each {axis} is learned separately: a low score may mean slow learning rather than a lack of generalization."
    ]
    if all(len(group.region_scores) <= 1 for group in groups):
        notes.append(
            "One seed per recipe. The intervals cover the sampling of questions for these models, not the variation "
            "over seeds, which can be larger. Add seeds=3 or more."
        )
    return notes


def _clause(groups: Sequence[GroupAtCheckpoint], key: MetricKey, metric: str) -> str:
    """A metric of all groups: "exact match is 45.1 % for CE and 47.3 % for WAS"."""
    evaluated = [one for one in groups if one.values(key, metric)]
    if not evaluated:
        return ""
    name = metric.removesuffix(CELL_MEAN_SUFFIX)
    if len(evaluated) <= MAX_LISTED_GROUPS:
        values = [f"{_value(one, key, metric)}{_for_group(one, groups)}" for one in evaluated]
        return f"{_short(name)} is {join_names(values)}"
    lower_is_better = name in LOWER_IS_BETTER
    ranked = sorted(evaluated, key=lambda one: median(one.values(key, metric)), reverse=not lower_is_better)
    values = [f"{_value(one, key, metric)} for {one.group.label}" for one in ranked[:2]]
    last = f"{_value(ranked[-1], key, metric)} for {ranked[-1].group.label}"
    return (
        f"{_short(name)} is {'lowest' if lower_is_better else 'highest'}, of {len(evaluated)}, with "
        f"{join_names(values)} (last: {last})"
    )


def _short(metric: str) -> str:
    return METRIC_LABELS[metric] if metric == EXACT_MATCH else metric


def _for_group(one: GroupAtCheckpoint, groups: Sequence[GroupAtCheckpoint]) -> str:
    return f" for {one.group.label}" if len(groups) > 1 else ""


def _value(one: GroupAtCheckpoint, key: MetricKey, metric: str) -> str:
    middle, ends = format_median(one, key, metric)
    return " ".join(filter(None, [f"{middle}{' %' * is_proportion(metric)}", ends]))
