"""Scores by region: in distribution, OOD validation, OOD test, with intervals, seeds and baselines."""

from collections.abc import Sequence
from dataclasses import replace

from numerate.evaluation.labels import METRICS
from numerate.reports.content import Block, Content, Facts, Note
from numerate.reports.counts import MEMORIZATION_NOTE
from numerate.reports.grid import (
    ALL_OOD,
    MAX_TOOLTIP_SEEDS,
    REGIONS_NOTE,
    RegionScore,
    format_interval,
    format_percent,
    score_regions,
)
from numerate.reports.groups import (
    Group,
    common_metric,
    common_metric_label,
    exclude_selection_cells,
    have_unordered_cells,
    region_labels,
)
from numerate.reports.reproduction import run_metadata
from numerate.reports.settings import format_settings
from numerate.reports.summary import GENERALIZATION_THRESHOLD, group_result
from numerate.reports.table import TextTable


def region_table(groups: Sequence[Group]) -> TextTable:
    """For each region and group the mean, and its interval or the range over seeds; no rows without an evaluation."""
    rows = [_region_row(group, name, groups) for name in region_labels(groups) for group in groups]
    rows = [row for row in rows if row]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row[name] for row in rows)]
    return TextTable(names, [[row[name] for name in names] for row in rows], style="tight")


def _region_row(group: Group, name: str, groups: Sequence[Group]) -> dict[str, str]:
    """The texts of a group in a region by column; {} where it was not evaluated."""
    found, first = group.region_estimate(name), group.first_region_scores.get(name)
    if first is None:
        return {}
    values, is_study = found.values, any(len(one.region_scores) > 1 for one in groups)
    each = ", ".join(map(format_percent, values)) if len(values) <= MAX_TOOLTIP_SEEDS else f"{len(values)} seeds"
    return {
        "region": region_labels(groups)[name],
        "run": group.label,
        f"{common_metric_label(groups)}, % [{'range over seeds' if is_study else '95 % interval'}]": found.text(),
        "baseline, %": "" if found.baseline is None else format_percent(found.baseline),
        "each seed, %": each * is_study,
        "questions" if common_metric(groups) in (None, "exact_match") else "labels or rows": f"{first.score.count:,}",
        "cells": _cells_text(first),
    }


def _cells_text(region: RegionScore) -> str:
    if region.all_cells_overlap_training:
        return f"{region.num_cells}, all may overlap with training"
    return f"{region.num_cells}" + f" (+{region.num_excluded_cells} not held out)" * (region.num_excluded_cells > 0)


def regions_content(groups: Sequence[Group]) -> Content:
    """The table of regions with what has to be known to read it."""
    table = region_table(groups)
    notes = [REGIONS_NOTE] * (not have_unordered_cells(groups))
    metric = common_metric(groups)
    weighted = "cells" if metric in (None, "exact_match") else "labels" if metric.endswith("accuracy") else "rows"
    notes += [
        f"All {weighted} of a region have the same weight.",
        "Cells with too few questions to hold any out are excluded.",
    ]
    notes.append("A 95 % interval covers the sampling of questions only; another seed may fall outside it.")
    notes += [MEMORIZATION_NOTE] * ("baseline, %" in table.header)
    table = replace(table, caption=" ".join(notes))
    if len(groups) == 1:
        table = replace(
            table, header=[*table.header[:1], *table.header[2:]], rows=[[*row[:1], *row[2:]] for row in table.rows]
        )
    return [table]


def facts_content(group: Group) -> Content:
    """The main numbers of a run."""
    found = group.region_scores[0] if group.region_scores else {}
    values = {}
    for name, words in region_labels([group]).items():
        if name in found and not (name == ALL_OOD and len(found) > 3 and not found[name].num_cells):
            is_trained = (group.resolved_metric, name) == ("ood_accuracy", "in_distribution")
            metric = METRICS["accuracy"] if is_trained else group.metric_label
            label = "mean" if group.resolved_metric == "exact_match" else metric
            values[f"{words}, {label}"] = _percent_text(found[name])
    reach = group_result(group).farthest_point
    if reach is not None:
        values[f"at least {format_percent(GENERALIZATION_THRESHOLD)} % up to"] = group.diagonal_label(reach)
    known = run_metadata(group.runs[0])
    values |= {name: known[name] for name in ("parameters", "steps", "examples") if name in known}
    return [Facts(values)] if values else []


def _percent_text(region: RegionScore) -> str:
    text = f"{format_percent(region.score.value)} % {format_interval(region.score.low, region.score.high)}"
    return text if region.baseline is None else f"{text}\nbaseline {format_percent(region.baseline)} %"


def evaluations_content(group: Group) -> Content:
    """One row per checkpoint, settings and position offset, where more than one was evaluated; of labels and several
    position offsets the mean over these as well."""
    run, metric = group.runs[0], group.resolved_metric
    offsets: list[int | None] = [*run.position_offsets()]
    offsets += [None] * (len(offsets) > 1 and all(cell.labels is not None for cell in run.cells))
    rows, words = [], region_labels([group])
    for settings in run.evaluation_settings:
        for name, step in run.checkpoints():
            for offset in offsets:
                cells = exclude_selection_cells(run.select_cells((name, step), offset, settings))
                if not cells:
                    continue
                found = score_regions([cell.with_metric(metric) for cell in cells])
                row = {"checkpoint": name, "step": f"{step:,}", "settings": format_settings(settings) or "as trained"}
                row["position offset"] = f"mean of {len(offsets) - 1}" if offset is None else str(offset)
                row |= {
                    f"{words[region]}, %": _percent_text(score).replace(" %", "") for region, score in found.items()
                }
                rows.append(row)
    if len(rows) < 2:
        return []
    regions = [f"{text}, %" for text in words.values() if any(f"{text}, %" in row for row in rows)]
    names = ["checkpoint", "step", *(["settings"] * (len(run.evaluation_settings) > 1)), "position offset", *regions]
    content: list[Block] = [TextTable(names, [[row.get(name, "") for name in names] for row in rows])]
    if any(cell.checkpoint == "best" and cell.region == "ood_validation" for cell in run.cells):
        content.append(Note(BEST_CHECKPOINT_NOTE))
    return content


BEST_CHECKPOINT_NOTE = "The best checkpoint was chosen on OOD validation, which is therefore excluded from its results."
