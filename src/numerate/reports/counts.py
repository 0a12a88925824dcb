"""Accuracy per count: the share of correct labels at each position of a row, beside the score of memorization."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from numerate.evaluation.labels import LabelCounts
from numerate.evaluation.statistics import wilson_interval
from numerate.reports.content import Content
from numerate.reports.figure import Chart, ChartLine, Figure
from numerate.reports.grid import ALL_REGION_LABELS, join_names
from numerate.reports.groups import Group, group_styles, not_comparable_notes
from numerate.reports.limits import MAX_GROUPS_WITH_SEED_LINES, groups_to_draw, left_out_note

BASELINE_LABEL = "score of memorization"
"""The label of the baseline line in a figure."""

MEMORIZATION_NOTE = (
    "The baseline is the score of a model that has only memorized the trained counts; on unseen "
    "counts and on the last label it is that of the best single answer, given everywhere, where this is more."
)


def count_lines(groups: Sequence[Group]) -> list[ChartLine]:
    """The accuracy at each count of groups with labels: the median over seeds and their range, with few groups a thin
    line for each seed; with one seed the 95 % interval over rows."""
    styles, lines = group_styles(groups), []
    for group in groups:
        curves = [labels.accuracy_by_position() for labels in group.labels]
        by_seed = [{t: correct / count for t, correct, count in curve} for curve in curves]
        counts = [t for t in by_seed[0] if all(t in one for one in by_seed)]
        each = [[one[t] for t in counts] for one in by_seed]
        columns = list(zip(*each, strict=True))
        ends = [(min(column), max(column)) for column in columns]
        if len(each) == 1:
            repeats = group.labels[0].num_offsets
            ends = [wilson_interval(correct / repeats, max(1, count // repeats)) for _, correct, count in curves[0]]
        low, high = ([float(end[i]) for end in ends] for i in (0, 1))
        has_seed_lines = len(each) > 1 and len(groups) <= MAX_GROUPS_WITH_SEED_LINES
        lines.append(
            ChartLine(
                group.label,
                counts,
                list(map(median, columns)),
                low,
                high,
                style=styles[group.label],
                suffix=f"{len(each)} seeds" * (len(each) > 1),
                seed_lines=each if has_seed_lines else (),
            )
        )
    return lines


def baseline_line(groups: Sequence[Group], last_count: int) -> ChartLine | None:
    """The baseline as a line by count: 1 up to the last trained one, then the mean of the best constant answer over
    further counts. None if groups have different baselines or trained counts."""
    known = {(labels.max_training_labels, labels.baseline("ood_accuracy")) for labels in _first_labels(groups)}
    trained, baseline = known.pop() if len(known) == 1 else (None, None)
    if trained is None or trained >= last_count:
        return None
    x, y = [1, trained + 0.5, trained + 0.5, last_count], [1.0, 1.0, baseline or 0.0, baseline or 0.0]
    return ChartLine(BASELINE_LABEL, x, y, is_baseline=True)


def _first_labels(groups: Sequence[Group]) -> list[LabelCounts]:
    return [group.labels[0] for group in groups]


def count_chart(groups: Sequence[Group]) -> Chart:
    """The accuracy per count of all groups with labels as a chart, without lines where there is none."""
    shown = groups_to_draw([group for group in groups if group.labels])
    lines = count_lines(shown)
    baseline = baseline_line(shown, max(int(x) for line in lines for x in line.x)) if lines else None
    trained = {labels.max_training_labels for labels in _first_labels(shown)}
    limit = trained.pop() if len(trained) == 1 else None
    band = "Lines: medians over seeds; bands: from the lowest to the highest"
    band += "; thin lines: single seeds." if len(shown) <= MAX_GROUPS_WITH_SEED_LINES else "."
    if all(len(group.labels) == 1 for group in shown):
        band = "Bands: 95 % intervals over rows."
    return Chart(
        "",
        [*lines, *filter(None, [baseline])],
        "count (the t-th label of a row)",
        "correct labels, %",
        is_percent=True,
        has_integer_ticks=True,
        trained_range=(1, limit) if limit is not None else None,
        trained_range_label=ALL_REGION_LABELS["in_distribution"],
        notes=[band, *filter(None, [left_out_note(groups, shown)]), *(f"{x}." for x in not_comparable_notes(groups))],
    )


def counts_content(groups: Sequence[Group]) -> Content:
    """The accuracy per count as a chart; nothing without labels."""
    chart = count_chart(groups)
    if not chart.lines:
        return []
    shown = groups_to_draw([group for group in groups if group.labels])
    notes = [f"Share of all rows whose t-th label is correct. {chart.notes[0]}"]
    if any(line.is_baseline for line in chart.lines):
        notes.append(f"Dashed: {BASELINE_LABEL}; behind the trained counts that is the mean over these.")
        notes.append(MEMORIZATION_NOTE)
    averaged = [group.label for group in shown if any(labels.num_offsets > 1 for labels in group.labels)]
    if averaged:
        whose = "All numbers" if len(averaged) == len(shown) else f"Those of {join_names(averaged)}"
        counts = sorted({labels.num_offsets for group in shown for labels in group.labels} - {1})
        notes.append(f"{whose} are means over {' or '.join(map(str, counts))} fixed position offsets.")
    return [Figure([replace(chart, notes=())], caption=" ".join([*notes, *chart.notes[1:]]))]
