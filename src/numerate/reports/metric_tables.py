"""Tables of the metrics of answers, numbers and texts: over seeds, by region and cell (a module, a length)."""

from collections.abc import Sequence

from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.content import Block, Content, Folded, Heading, Note
from numerate.reports.grid import ALL_OOD
from numerate.reports.groups import Group, have_unordered_cells, part_axis, region_labels
from numerate.reports.limits import MAX_GROUP_COLUMNS
from numerate.reports.metrics import (
    EXACT_MATCH,
    METRIC_LABELS,
    SAME_CHECKPOINT,
    GroupAtCheckpoint,
    MetricKey,
    charted_metrics,
    computed_metrics,
    groups_at_checkpoints,
    is_proportion,
    metric_title,
    named_cells,
)
from numerate.reports.table import TextTable

MAX_COLUMNS = 6
"""Metrics side by side on a page; wider tables are split."""


def metric_tables(groups: Sequence[Group]) -> Content:
    """Of a single group a table with a column per metric; of several a table for each metric, folded unless it has a
    chart. Where cells are lengths, the metrics besides exact match by region, and of a single run by cell. Nothing
    where nothing was evaluated."""
    have_parts = have_unordered_cells(groups)
    evaluated = [one for one in groups_at_checkpoints(groups) if one.metrics_by_seed]
    evaluated = [one for one in evaluated if have_parts or one.checkpoint != "best"] or evaluated
    metrics, charted = computed_metrics(evaluated), charted_metrics(evaluated)
    metrics = [name for name in metrics if have_parts or name != EXACT_MATCH]
    content: list[Block] = []
    if len(groups) == 1 and metrics:
        content += _tables_of_one_group(groups, evaluated, metrics, have_parts)
        if not have_parts and len(groups[0].runs) == 1:
            content.append(Folded("Cell by cell", _tables_of_one_group(groups, evaluated, metrics, True)))
    for name in metrics if len(groups) > 1 else ():
        table = metric_table(groups, name, evaluated)
        if len(evaluated) > MAX_GROUP_COLUMNS:
            header, *rows = zip(table.header, *table.rows, strict=True)
            table = TextTable(header, rows, fold=f"All {len(rows)} lines", style=table.style)
        title = metric_title(name)
        content += [Heading(title), table] if name in charted else [Folded(title, [table])]
    return [*content, Note(_caption(evaluated, groups, metrics))] if content else []


def _tables_of_one_group(
    groups: Sequence[Group], evaluated: Sequence[GroupAtCheckpoint], metrics: Sequence[str], with_cells: bool
) -> list[Block]:
    several = len(evaluated) > 1
    columns = [
        (f"{_short(name)}{', %' * is_proportion(name)}{f', {one.checkpoint}' * several}", one, name)
        for name in metrics
        for one in evaluated
    ]
    tips = {title: METRIC_LABELS[name] for title, _, name in columns}
    cuts = [columns[begin : begin + MAX_COLUMNS] for begin in range(0, len(columns), MAX_COLUMNS)]
    return [_table(groups, cut, tips, with_cells) for cut in cuts]


def metric_table(groups: Sequence[Group], metric: str, evaluated: Sequence[GroupAtCheckpoint]) -> TextTable:
    """A metric with a row per part and per region, and a column per group and checkpoint."""
    several = {one.checkpoint for one in evaluated} - {SAME_CHECKPOINT, "final"}
    columns = [
        (f"{one.group.label}{f', {one.checkpoint}' * (one.checkpoint in several)}", one, metric) for one in evaluated
    ]
    return _table(groups, columns, {}, have_unordered_cells(groups))


def _table(
    groups: Sequence[Group],
    columns: Sequence[tuple[str, GroupAtCheckpoint, str]],
    tips: dict[str, str],
    with_cells: bool,
) -> TextTable:
    """Rows of each region: its cells, then all its questions together and the mean over its cells."""
    words, names = region_labels(groups), named_cells(groups)
    rows = []
    for region in (
        *names,
        *[ALL_OOD] * (len(names.keys() - {"in_distribution"}) > 1 and not have_unordered_cells(groups)),
    ):
        cells = names.get(region, [])
        lines = [(name, key, "") for key, name in cells if with_cells]
        if len(lines) > 1 or not with_cells:
            lines += [("all", MetricKey(region), ""), ("mean", MetricKey(region), CELL_MEAN_SUFFIX)]
        for name, key, suffix in lines:
            rows.append([name, words[region], *(one.text(key, f"{metric}{suffix}") for _, one, metric in columns)])
    rows = [row for row in rows if any(row[2:])]
    header = [_axis(groups), "region", *(title for title, _, _ in columns)]
    return TextTable(header, rows, fold=f"All {len(rows)} lines", style="tight parts", tips=tips)


def _axis(groups: Sequence[Group]) -> str:
    return part_axis(groups) if have_unordered_cells(groups) else "cell"


def _short(metric: str) -> str:
    return METRIC_LABELS[metric] if metric == EXACT_MATCH else metric


def _caption(evaluated: Sequence[GroupAtCheckpoint], groups: Sequence[Group], metrics: Sequence[str]) -> str:
    axis = _axis(groups)
    notes = [f"All: over all questions of the {axis}s together. Mean: over the {axis}s with equal weight."]
    is_study = {len(one.metrics_by_seed) for one in evaluated} != {1}
    notes.append(
        "Medians over seeds; in brackets the lowest and the highest seed."
        if is_study
        else "In brackets the 95 % interval over questions."
    )
    if "missing" in metrics:
        notes.append(
            "An answer without a number is wrong and has no error: it is excluded from errors, R² and correlations, "
            "and counts as missing or invalid. Names with log are of sign(x) log10(|x| + 1)."
        )
    if "clipped" in metrics:
        notes.append("Clipped numbers count in errors and correlations as 1e10, or ten times the target, in size.")
    if {one.checkpoint for one in evaluated} == {SAME_CHECKPOINT}:
        notes.append("The final checkpoint is the best one too, on held-out questions of what is trained.")
    elif have_unordered_cells(groups) and any(one.checkpoint != "final" for one in evaluated):
        notes.append("The best checkpoint has the highest validation accuracy in distribution.")
    return " ".join(notes)
