"""Tables of all metrics of answers: over seeds, by region, and by cell (a module, a length)."""

from collections.abc import Sequence

from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.content import Block, Content, Folded, Heading, Note
from numerate.reports.grid import ALL_OOD
from numerate.reports.groups import (
    SAME_CHECKPOINT,
    Group,
    computed_metrics,
    have_unordered_cells,
    main_metrics,
    named_cells,
    part_axis,
    region_labels,
)
from numerate.reports.limits import MAX_GROUP_COLUMNS
from numerate.reports.metrics import COLUMN_LABELS, EXACT_MATCH, MetricKey, is_proportion, metric_title
from numerate.reports.table import TextTable

MAX_COLUMNS = 6
"""Metrics side by side on a page; wider tables are split."""


def metric_tables(groups: Sequence[Group]) -> Content:
    """All metrics by region, and of parts or of a single run by cell: of a single group with a column per metric, of
    several with a table per metric, folded unless it is a main one. Nothing where nothing but exact match of lengths
    was computed."""
    have_parts, is_single = have_unordered_cells(groups), len(groups) == 1
    evaluated = [one for group in groups for one in (group.at_checkpoints if have_parts else [group])]
    evaluated = [one for one in evaluated if one.metrics_by_seed]
    metrics = computed_metrics(evaluated)
    if not metrics or (metrics == [EXACT_MATCH] and not have_parts):
        return []
    content: list[Block] = []
    if is_single:
        content += _tables_of_group(groups[0], evaluated, metrics, with_cells=have_parts)
        if len(groups[0].runs) == 1 and not have_parts and not groups[0].labels:
            content.append(Folded("Cell by cell", _tables_of_group(groups[0], evaluated, metrics, with_cells=True)))
    for name in metrics if not is_single else ():
        table, title = metric_table(groups, name, evaluated), metric_title(name)
        content += [Heading(title), table] if name in main_metrics(evaluated) else [Folded(title, [table])]
    return [*content, Note(_caption(evaluated, groups, metrics))]


def _tables_of_group(
    group: Group, evaluated: Sequence[Group], metrics: Sequence[str], *, with_cells: bool
) -> list[Block]:
    """Tables of a few metrics each, of a group at its checkpoints."""
    columns = [
        (
            f"{COLUMN_LABELS.get(name, name)}{', %' * is_proportion(name)}"
            f"{f', {one.checkpoint_label}' * (len(evaluated) > 1)}",
            one,
            name,
        )
        for name in metrics
        for one in evaluated
    ]
    tables: list[Block] = []
    for begin in range(0, len(columns), MAX_COLUMNS):
        several = columns[begin : begin + MAX_COLUMNS]
        rows = _rows([group], several, with_cells)
        header = [_axis([group]), "region", *(title for title, _, _ in several)]
        tables.append(_table(header, rows))
    return tables


def metric_table(groups: Sequence[Group], metric: str, evaluated: Sequence[Group]) -> TextTable:
    """A metric with a row per part and per region, and a column, or of many groups a row, per group and checkpoint."""
    several = {one.checkpoint_label for one in evaluated} - {SAME_CHECKPOINT, "final"}
    columns = [
        (f"{one.label}{f', {one.checkpoint_label}' * (one.checkpoint_label in several)}", one, metric)
        for one in evaluated
    ]
    rows = _rows(groups, columns, with_cells=have_unordered_cells(groups))
    lines = [[_axis(groups), "region", *(title for title, _, _ in columns)], *rows]
    if len(columns) > MAX_GROUP_COLUMNS:
        lines = [list(line) for line in zip(*lines, strict=True)]
    return _table(lines[0], lines[1:])


def _table(header: list[str], rows: list[list[str]]) -> TextTable:
    """A table, without the column of cells where each row is of all cells."""
    first = int(all(row[0] == "all" for row in rows))
    return TextTable(header[first:], [row[first:] for row in rows], style="tight parts")


def _rows(groups: Sequence[Group], columns: Sequence[tuple[str, Group, str]], with_cells: bool) -> list[list[str]]:
    """Of each region its cells, then all its questions together and the mean over its cells; without empty rows."""
    words, names = region_labels(groups), named_cells(groups)
    has_all_ood = len(names.keys() - {"in_distribution"}) > 1 and not have_unordered_cells(groups)
    rows = []
    for region in (*names, *[ALL_OOD] * has_all_ood):
        lines = [(name, key, "") for key, name in names.get(region, []) if with_cells]
        if len(lines) > 1 or not with_cells:
            lines += [("all", MetricKey(region), ""), ("mean", MetricKey(region), CELL_MEAN_SUFFIX)]
        for name, key, suffix in lines:
            texts = [one.metric_text(key, f"{metric}{suffix}") for _, one, metric in columns]
            rows += [[name, words[region], *texts]] if any(texts) else []
    return rows


def _axis(groups: Sequence[Group]) -> str:
    return part_axis(groups) if have_unordered_cells(groups) else "cell"


def _caption(evaluated: Sequence[Group], groups: Sequence[Group], metrics: Sequence[str]) -> str:
    axis = _axis(groups)
    notes = [f"All: over all questions of the {axis}s together. Mean: over the {axis}s with equal weight."]
    if all(group.labels for group in groups):
        notes = ["Over all rows, or labels, of a region, which have the same weight."]
    is_study = {len(one.metrics_by_seed) for one in evaluated} != {1}
    notes.append(
        "Medians over seeds; in brackets the lowest and the highest seed."
        if is_study
        else "In brackets the 95 % interval over questions."
    )
    if "correct_prefix" in metrics:
        notes.append("Correct prefix: labels before the first wrong one, as a share of the row.")
    if "missing" in metrics:
        notes.append(
            "An answer without a number is wrong and has no error: it is excluded from errors, R² and correlations, "
            "and counts as missing or invalid. Names with log are of sign(x) log10(|x| + 1)."
        )
    if "clipped" in metrics:
        notes.append("Clipped numbers count in errors and correlations as 1e10, or ten times the target, in size.")
    if {one.checkpoint_label for one in evaluated} == {SAME_CHECKPOINT}:
        notes.append("The final checkpoint is the best one too, on held-out questions of what is trained.")
    elif any(one.checkpoint == "best" for one in evaluated):
        notes.append("The best checkpoint has the highest validation accuracy in distribution.")
    return " ".join(notes)
