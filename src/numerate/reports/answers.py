"""Errors of numbers and texts in answers, by region and cell."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import cast

from numerate.errors import UserError
from numerate.evaluation.answer_metrics import (
    ANSWER_METRICS,
    PROPORTION_METRICS,
    available_metrics,
    base_metric,
    is_answer_metric,
    pooled_metrics,
)
from numerate.evaluation.labels import Metric
from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.content import Block, Content, Heading, Note
from numerate.reports.grid import ALL_OOD, ALL_REGION_LABELS, REGION_LABELS, cell_label, format_interval, format_percent
from numerate.reports.groups import Group
from numerate.reports.limits import groups_to_draw, left_out_note
from numerate.reports.metrics import NUMBER_METRICS, TEXT_METRICS
from numerate.reports.records import Cell
from numerate.reports.table import TextTable

NUMBER_COLUMNS, TEXT_COLUMNS = (*NUMBER_METRICS, "log_mae"), ("bleu", *TEXT_METRICS)

MAX_COLUMNS_WITH_INTERVALS, MAX_COLUMNS = 4, 7
"""Maximum number of columns with and without brackets."""

_NOTE = (
    "Each over all questions of a region; below it, where it differs, the mean over cells (modules) with equal "
    "weight. An answer without a number is wrong and has no error: it is excluded from errors, R² and "
    "correlations. There a predicted number counts as at most 1e10 in size, or ten times the target (clipped). Names "
    "with log are of sign(x) log10(|x| + 1)."
)

Metrics = Mapping[str, float | None]


def format_metric(name: str, value: float | None) -> str:
    """A metric as text: proportions in per cent, others with four digits."""
    if value is None:
        return ""
    if base_metric(name) in PROPORTION_METRICS or base_metric(name) == "exact_match":
        return f"{format_percent(value)} %"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def metrics_by_region(cells: Sequence[Cell]) -> dict[str, Metrics]:
    """The metrics of one run by region, and over all OOD regions. Cells that may overlap with training are left
    out, unless a region has no others."""
    regions = {name: [cell for cell in cells if cell.region == name] for name in REGION_LABELS}
    ood_regions = [name for name in REGION_LABELS if name != "in_distribution" and regions[name]]
    if len(ood_regions) > 1:
        regions[ALL_OOD] = [cell for name in ood_regions for cell in regions[name]]
    scored = {
        name: [cell for cell in inside if not cell.overlaps_training] or inside for name, inside in regions.items()
    }
    return {name: metrics for name, inside in scored.items() if (metrics := _pooled(inside))}


def _pooled(cells: Sequence[Cell]) -> Metrics:
    return pooled_metrics([cell.numbers for cell in cells], [cell.texts for cell in cells])


def metrics_by_seed(group: Group) -> list[tuple[object, dict[str, Metrics]]]:
    """Seed and metrics of each run of a group that has any."""
    each = [(run.seed, metrics_by_region(group.recorded_cells(run))) for run in group.runs]
    return [(seed, metrics) for seed, metrics in each if metrics]


def answers_content(groups: Sequence[Group]) -> Content:
    """The tables of numbers and of texts, and of a single run its cells; nothing if no answer was decoded."""
    known = {group.label: [found for _, found in metrics_by_seed(group)] for group in groups}
    shown = groups_to_draw([group for group in groups if known[group.label]])
    content: list[Block] = []
    is_study = any(len(group.runs) > 1 for group in shown)
    width = MAX_COLUMNS_WITH_INTERVALS if is_study else MAX_COLUMNS
    rows = {
        (group.label, region): [metrics[region] for metrics in known[group.label] if region in metrics]
        for group in shown
        for region in ALL_REGION_LABELS
    }
    for title, columns in (("Numbers", NUMBER_COLUMNS), ("Texts", TEXT_COLUMNS)):
        names = available_metrics(columns, [metrics for several in rows.values() for metrics in several])
        content += [Heading(title)] * bool(names)
        for begin in range(0, len(names), width):
            cut = names[begin : begin + width]
            lines = [
                [label] * (len(shown) > 1) + [ALL_REGION_LABELS[region], *(_over_seeds(several, name) for name in cut)]
                for (label, region), several in rows.items()
                if available_metrics(cut, several)
            ]
            header = ["run"] * (len(shown) > 1) + ["region", *cut]
            content.append(TextTable(header, lines, fold=f"All {len(lines)} lines", tips=ANSWER_METRICS))
    if not content:
        return []
    content.append(Note(_NOTE + " Of several seeds the median, from the lowest to the highest." * is_study))
    if len(groups) == len(groups[0].runs) == 1:
        content += _cell_tables(groups[0])
    return [*content, *([Note(left_out_note(groups, shown))] * (len(shown) < len(groups)))]


def _over_seeds(seed_metrics: Sequence[Metrics], name: str) -> str:
    """The median over seeds with their range, and below it that of the mean over cells where it differs."""
    lines = []
    for metric in (name, f"{name}{CELL_MEAN_SUFFIX}"):
        values = [value for metrics in seed_metrics if (value := metrics.get(metric)) is not None]
        text = format_metric(metric, median(values)) if values else ""
        if len(values) > 1 and base_metric(metric) in PROPORTION_METRICS:
            text += f" {format_interval(min(values), max(values))}"
        elif len(values) > 1:
            text += f" [{format_metric(metric, min(values))}, {format_metric(metric, max(values))}]"
        lines.append(text)
    return f"{lines[0]}\ncells {lines[1]}" if lines[1] and lines[1] != lines[0] else lines[0]


def _cell_tables(group: Group) -> Content:
    """Every cell of a single run by itself."""
    scored = [(cell, metrics) for cell in group.recorded_cells(group.runs[0]) if (metrics := _pooled([cell]))]
    names = available_metrics((*NUMBER_COLUMNS, *TEXT_COLUMNS), [metrics for _, metrics in scored])
    if len(scored) < 2:
        return []
    tables = []
    for begin in range(0, len(names), MAX_COLUMNS):
        cut = names[begin : begin + MAX_COLUMNS]
        rows = [
            [cell_label(cell.coordinates, group.operator, cell.names)]
            + [format_metric(name, metrics.get(name)) for name in cut]
            for cell, metrics in scored
        ]
        tables.append(TextTable(["cell", *cut], rows, fold=f"All {len(rows)} cells: {', '.join(cut)}"))
    return [Heading("Cell by cell"), *tables]


def split_metric(name: str | None) -> tuple[Metric | None, str | None]:
    """A metric name as (label metric or exact match, metric of numbers or texts); one is None. An unknown name is
    returned as the first, to be refused later."""
    return (None, name) if is_answer_metric(name) else (cast(Metric | None, name), None)


def check_has_metric(groups: Sequence[Group], metric: str | None) -> None:
    """Raises `UserError` for a group whose records do not have a metric of numbers or texts; nothing for None."""
    for group in groups if metric is not None else ():
        found = [metrics for _, regions in metrics_by_seed(group) for metrics in regions.values()]
        if not any(metrics.get(str(metric)) is not None for metrics in found):
            raise UserError(f"metric: {group.label} has no {metric}; numerate evaluate RUN method=decoding computes it")
