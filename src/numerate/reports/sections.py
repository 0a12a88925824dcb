"""The sections of report pages, made from groups of runs; a single run is a group of one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from html import escape
from statistics import median
from typing import Any

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import SeedBand, seed_band
from numerate.reports.comparable import NOT_COMPARABLE
from numerate.reports.counts import MEMORIZATION_NOTE, common_metric, common_metric_label
from numerate.reports.drawing import collapsible, html_table
from numerate.reports.figure import Chart, ChartLine, Figure, Style, assign_styles
from numerate.reports.grid import REGION_LABELS, REGIONS_NOTE, RegionScore, cell_label, format_interval, format_percent
from numerate.reports.groups import (
    CONVERGENCE_THRESHOLD,
    Group,
    flatten_settings,
    have_unordered_cells,
    part_axis,
    region_labels,
)
from numerate.reports.limits import (
    MAX_CURVE_POINTS,
    MAX_GROUP_COLUMNS,
    MAX_TOOLTIP_SEEDS,
    groups_to_draw,
    left_out_note,
)
from numerate.reports.overview import overview_figure
from numerate.reports.records import Records, Sample, split_metric_name
from numerate.reports.svg_writer import figure_html

MAX_SAMPLES = 40
BASELINE_COLUMN = "baseline, %"
"""The header of the baseline column, which is the last column if present."""


def heading(text: str, body: str) -> str:
    """A section with its heading; "" without a body."""
    return f"<section><h2>{escape(text)}</h2>\n{body}</section>\n" if body else ""


def summary_html(text: str) -> str:
    """The summary as HTML, without line breaks inside intervals and percentages."""
    unbroken_text = re.sub(r"\[([\d.]+), ([\d.]+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", text).replace(
        " %", "\N{NO-BREAK SPACE}%"
    )
    return f'<p class="summary">{escape(unbroken_text)}</p>'


def overview_section(groups: Sequence[Group]) -> str:
    """The main figure of a page, with a heading if cells are unordered or answers are labels."""
    figure = overview_figure(groups)
    if have_unordered_cells(groups):
        return heading(f"By {part_axis(groups)}", figure)
    return heading("By length of the row", figure) if any(group.labels for group in groups) else figure


def warning_html(text: str) -> str:
    """A warning at the top of a page as HTML; "" without text."""
    return f'<p class="warning"><strong>{escape(text)}</strong></p>' if text else ""


def training_charts(groups: Sequence[Group]) -> list[Chart]:
    """Loss by step, and exact match (label accuracy for labels) on each validation set by step."""
    drawn_groups = groups_to_draw(unique_trainings(groups))
    styles = assign_styles([group.label for group in drawn_groups])
    losses = [
        line
        for group in drawn_groups
        for line in band_lines(
            group.label,
            [metric_series(run.training_metrics(), "loss") for run in group.runs if run.training_metrics()],
            styles[group.label],
        )
    ]
    has_several_seeds = any(len(group.runs) > 1 for group in drawn_groups)
    note = "lines: medians over seeds; bands: range over seeds" * has_several_seeds
    charts = [
        Chart("Training loss", losses, "step", "loss, nats per token", is_log=True, notes=[note] * has_several_seeds)
    ]
    for split, display_name in validation_splits(groups).items():
        lines, has_labels = [], False
        for group in drawn_groups:
            metrics_by_run = [run.split_metrics(split) for run in group.runs if run.split_metrics(split)]
            metric = split_metric_name(metrics_by_run)
            has_labels = has_labels or metric == "accuracy"
            split_lines = band_lines(
                group.label, [metric_series(rows, metric) for rows in metrics_by_run], styles[group.label]
            )
            is_single_run = len(metrics_by_run) == 1 and split_lines and metric == "exact_match"
            lines += [_with_interval(split_lines[0], metrics_by_run[0])] if is_single_run else split_lines
        y_label = f"{METRICS['accuracy' if has_labels else 'exact_match']}, %"
        charts.append(Chart(f"Validation, {display_name}", lines, "step", y_label, is_percent=True))
    return [chart for chart in charts if chart.lines]


def training_section(groups: Sequence[Group]) -> str:
    """Loss and exact match during training."""
    charts, unique_groups = training_charts(groups), unique_trainings(groups)
    note = (
        "Held-out questions of the training distribution. " if have_unordered_cells(groups) else "Held-out questions. "
    ) * any(chart.is_percent for chart in charts)
    objectives = [group.runs[0].recipe.get("objective") for group in unique_groups]
    has_different_objectives = any(objective != objectives[0] for objective in objectives)
    note += "The groups have different losses, so only the shapes of the curves can be compared. " * (
        has_different_objectives and bool(charts)
    )
    note += left_out_note(unique_groups, groups_to_draw(unique_groups))
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"{figure_html(Figure(charts))}{caption}" if charts else ""


def validation_splits(groups: Sequence[Group]) -> dict[str, str]:
    """The validation splits, and their display names on the pages of these groups."""
    if have_unordered_cells(groups):
        return {"validation": region_labels(groups)["in_distribution"]}
    return {"validation": REGION_LABELS["in_distribution"], "ood_validation": REGION_LABELS["ood_validation"]}


def unique_trainings(groups: Sequence[Group]) -> list[Group]:
    """Groups without repeated evaluations of the same runs."""
    groups_by_folders: dict[tuple[str, ...], Group] = {}
    for group in groups:
        groups_by_folders.setdefault(tuple(str(run.folder) for run in group.runs), group)
    return list(groups_by_folders.values())


def metric_series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """The steps and values of one metric."""
    values_by_step = {
        float(line["step"]): float(line[name]) for line in lines if "step" in line and line.get(name) is not None
    }
    return list(values_by_step), list(values_by_step.values())


def band_lines(label: str, curves: Sequence[tuple[list[float], list[float]]], style: Style) -> list[ChartLine]:
    """The median of curves as a line with their range as a band; empty without curves."""
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return []
    band: SeedBand = seed_band(curves)
    last = len(band.steps) - 1
    indices = sorted({round(i * last / (MAX_CURVE_POINTS - 1)) for i in range(MAX_CURVE_POINTS)} & set(range(last + 1)))
    steps, middle = band.steps[indices].tolist(), band.median[indices].tolist()
    low, high = (band.low[indices].tolist(), band.high[indices].tolist()) if band.count > 1 else (None, None)
    return [ChartLine(label, steps, middle, low, high, style=style, suffix=f"{band.count} seeds" * (band.count > 1))]


def _with_interval(line: ChartLine, rows: Sequence[Mapping[str, Any]]) -> ChartLine:
    by_step = {float(row["step"]): row for row in rows if "step" in row}
    if not all("low" in by_step[step] and "high" in by_step[step] for step in line.x):
        return line
    low, high = ([float(by_step[step][name]) for step in line.x] for name in ("low", "high"))
    return replace(line, low=low, high=high)


def region_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table of regions as text: for each group and region the mean, and its interval or the range over seeds."""
    has_several_seeds = any(len(group.region_scores) > 1 for group in groups)
    header = [
        "run",
        "region",
        f"{common_metric_label(groups)}, %",
        "range over seeds" if has_several_seeds else "95 % interval",
        "cells",
        "questions" if common_metric(groups) in (None, "exact_match") else "labels or rows",
    ]
    has_convergence = has_several_seeds and not have_unordered_cells(groups)
    header += ["each seed, %"] * has_several_seeds
    header += [f"seeds at {format_percent(CONVERGENCE_THRESHOLD)} %"] * has_convergence
    has_baseline = any(
        region.baseline is not None
        for group in groups
        for regions in group.region_scores
        for region in regions.values()
    )
    header += [BASELINE_COLUMN] * has_baseline
    rows = []
    for group in groups:
        for region_name, display_name in region_labels(groups).items():
            regions_by_seed = [regions[region_name] for regions in group.region_scores if region_name in regions]
            if not regions_by_seed:
                continue
            values = [region.score.value for region in regions_by_seed]
            region = regions_by_seed[0]
            interval = (
                format_interval(region.score.low, region.score.high)
                if len(values) == 1
                else format_interval(min(values), max(values))
            )
            row = [group.label, display_name, format_percent(median(values)), interval]
            row += [_cells(region), f"{region.score.count:,}"]
            are_few = len(values) <= MAX_TOOLTIP_SEEDS
            seed_values = ", ".join(format_percent(value) for value in values) if are_few else f"{len(values)} seeds"
            row += [seed_values] * has_several_seeds + [_converged_seeds_text(group, region_name)] * has_convergence
            rows.append(row + ["" if region.baseline is None else format_percent(region.baseline)] * has_baseline)
    return header, rows


def _converged_seeds_text(group: Group, region_name: str) -> str:
    """How many seeds reach `CONVERGENCE_THRESHOLD` in a region; out of distribution, of those that reach it in
    distribution."""
    if group.non_causal_reason is not None:
        return NOT_COMPARABLE
    regions_by_seed = [regions for regions in group.region_scores if region_name in regions]
    with_in_distribution = [regions for regions in regions_by_seed if "in_distribution" in regions]
    converged = [
        regions for regions in with_in_distribution if regions["in_distribution"].score.value >= CONVERGENCE_THRESHOLD
    ]
    converged_only = (
        region_name != "in_distribution"
        and not group.is_limited_by_symmetry  # all positions have the same state, so no seed can converge
        and len(with_in_distribution) == len(regions_by_seed)
        and len(converged) < len(regions_by_seed)
    )
    if converged_only and not converged:
        return "none converged"
    counted = converged if converged_only else regions_by_seed
    num_reached = sum(regions[region_name].score.value >= CONVERGENCE_THRESHOLD for regions in counted)
    return f"{num_reached} of {len(counted)}" + " converged" * converged_only


def _cells(region: RegionScore) -> str:
    if region.all_cells_overlap_training:
        return f"{region.num_cells}, all may overlap with training"
    return f"{region.num_cells}" + (
        f" (+{region.num_excluded_cells} not held out)" if region.num_excluded_cells else ""
    )


def region_table(groups: Sequence[Group]) -> str:
    """The table of regions: one row per region with the groups side by side, or one row per group if there are many."""
    header, rows = region_rows(groups)
    if not rows:
        return ""
    has_baseline = header[-1] == BASELINE_COLUMN
    note = (
        f"{REGIONS_NOTE} " * (not have_unordered_cells(groups))
        + "The mean weights all cells equally. " * (common_metric(groups) in (None, "exact_match"))
        + "All labels of a region are weighted equally. " * (common_metric(groups) in ("ood_accuracy", "accuracy"))
        + "All rows of a region are weighted equally. " * (common_metric(groups) in ("last_label", "correct_prefix"))
        + "Cells with too few questions to hold any out are excluded. "
        + ("Brackets: range over seeds. " if len({len(group.region_scores) for group in groups} - {1}) else "")
        + (
            f"Seeds below {format_percent(CONVERGENCE_THRESHOLD)} % in distribution have not converged and are "
            "excluded from the counts out of distribution. "
            if any("converged" in cell for row in rows for cell in row[7:])
            else ""
        )
        + "The 95 % interval covers the sampling of questions only; another seed may fall outside it."
        + f" {MEMORIZATION_NOTE}" * has_baseline
    )
    if len(groups) == 1:
        table = html_table(header[1:], [[escape(cell) for cell in row[1:]] for row in rows], number_columns=[1, 2, 4])
    else:
        table = (
            _regions_side_by_side(groups, rows, has_baseline, count_column=header[5])
            if len(groups) <= MAX_GROUP_COLUMNS
            else _regions_by_group(groups, rows, has_baseline)
        )
    return f"{table}<figcaption>{note}</figcaption>"


def _baseline(row: Sequence[str], has_baseline: bool) -> str:
    """The baseline, to be shown after a score; empty if the row has none."""
    return f" {_grey(f'baseline {row[-1]}')}" if has_baseline and row[-1] else ""


def _regions_side_by_side(
    groups: Sequence[Group], rows: Sequence[Sequence[str]], has_baseline: bool, count_column: str
) -> str:
    rows_by_key = {(row[0], row[1]): row for row in rows}
    lines = []
    for display_name in dict.fromkeys(row[1] for row in rows):
        any_row = next(row for row in rows if row[1] == display_name)
        line = [escape(display_name)]
        for group in groups:
            row = rows_by_key.get((group.label, display_name))
            converged = (
                f'<br><span class="quiet">{row[7]} seeds at {format_percent(CONVERGENCE_THRESHOLD)} %</span>'
                if row and len(row) > 7
                else ""
            )
            line.append(f"{row[2]} {row[3]}{_baseline(row, has_baseline)}{converged}" if row else "")
        lines.append([*line, any_row[5], escape(any_row[4])])
    labels = [f"{escape(group.label)}, %" for group in groups]
    return html_table(["region", *labels, count_column, "cells"], lines, number_columns=range(1, 2 + len(groups)))


def _regions_by_group(groups: Sequence[Group], rows: Sequence[Sequence[str]], has_baseline: bool) -> str:
    rows_by_key = {(row[0], row[1]): row for row in rows}
    display_names = list(dict.fromkeys(row[1] for row in rows))
    lines = []
    for group in groups:
        group_rows = [rows_by_key.get((group.label, display_name)) for display_name in display_names]
        cells = (f"{row[2]} {_grey(row[3])}{_baseline(row, has_baseline)}" if row else "" for row in group_rows)
        lines.append([escape(group.label), *cells])
    columns = ["group", *(f"{display_name}, %" for display_name in display_names)]
    table = html_table(columns, lines, number_columns=range(1, len(columns)))
    return collapsible(table, len(lines), f"All {len(lines)} groups")


def _grey(text: str) -> str:
    return f'<span class="quiet">{text}</span>'


def samples_table(run: Records) -> str:
    """Questions with predictions, with wrong characters highlighted."""
    if not run.samples:
        return ""
    rows = [
        [
            escape(cell_label(sample.coordinates, run.operator, sample.names)),
            escape(sample.question),
            escape(sample.correct_answer),
            _highlight_errors(sample),
            '<span class="right">correct</span>' if sample.correct else '<span class="wrong">wrong</span>',
            escape(sample.model_text),
        ]
        for sample in run.samples[:MAX_SAMPLES]
    ]
    num_omitted = len(run.samples) - len(rows)
    more = f'<p class="quiet">{num_omitted} more in samples.jsonl.</p>' if num_omitted > 0 else ""
    header = ["cell", "question", "target", "prediction", "", "model input and output"]
    return html_table(header, rows, monospace_columns=[1, 2, 3, 5]) + more


def marked_prediction(sample: Sample) -> str:
    """The prediction with a tick or a cross, readable without colour."""
    mark = '<span class="right">✓</span>' if sample.correct else '<span class="wrong">✗</span>'
    return f"{mark} {_highlight_errors(sample)}"


def _highlight_errors(sample: Sample) -> str:
    """The prediction, with characters that differ from the answer highlighted."""
    if sample.correct:
        return escape(sample.prediction)
    if not sample.prediction:
        return "<mark>(empty)</mark>"
    parts = []
    for kind, _, _, start, end in SequenceMatcher(
        None, sample.correct_answer, sample.prediction, autojunk=False
    ).get_opcodes():
        text = escape(sample.prediction[start:end])
        parts.append(text if kind == "equal" else f"<mark>{text}</mark>" if text else "")
    return "".join(parts)


def run_metadata(run: Records) -> dict[str, str]:
    """The texts of a run's metadata by name: parameters, steps, examples, times, versions."""
    texts = {}
    if isinstance(run.metadata.get("parameters"), int):
        texts["parameters"] = f"{run.metadata['parameters']:,}"
    last = run.training_metrics()[-1] if run.training_metrics() else {}
    for name in ("step", "examples", "tokens"):
        if isinstance(last.get(name), int | float):
            texts["steps" if name == "step" else name] = f"{last[name]:,.0f}"
    for name in ("times", "hardware", "git", "versions"):
        if run.metadata.get(name):
            texts[name] = _format_value(run.metadata[name])
    return texts


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format_value(item)}" for key, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def reproduction_section(runs: Sequence[Records]) -> str:
    """Commands, environment and citation."""
    commands = [str(run.metadata["command"]) for run in runs if run.metadata.get("command")]
    unique_commands = list(dict.fromkeys(commands))
    commands_html = f"<pre>{escape(chr(10).join(unique_commands))}</pre>"
    parts = (
        [collapsible(commands_html, len(unique_commands), f"{len(unique_commands)} commands")]
        if unique_commands
        else []
    )
    rows = []
    for run in runs:
        metadata = run_metadata(run)
        cells = (
            metadata.get(name, "")
            for name in ("parameters", "steps", "examples", "times", "hardware", "git", "versions")
        )
        rows.append(
            [escape(f"{run.label} / {run.id}"), str(run.seed if run.seed is not None else ""), *map(escape, cells)]
        )
    if len(runs) == 1:
        pairs = [["run", escape(f"{runs[0].label} / {runs[0].id}")]]
        pairs += [[escape(name), escape(text)] for name, text in run_metadata(runs[0]).items()]
        parts.append(html_table(["", ""], pairs))
    else:
        for row, run in zip(rows, runs, strict=True):
            times = run.metadata.get("times")
            row[5] = escape(str(times["ended"])) if isinstance(times, Mapping) and times.get("ended") else row[5]
        header = ["run", "seed", "parameters", "steps", "examples", "ended", "hardware", "git", "versions"]
        common_columns = [i for i in range(5, len(header)) if len({row[i] for row in rows}) == 1]
        columns = [i for i in range(len(header)) if i not in common_columns]
        details = html_table(
            [header[i] for i in columns], [[row[i] for i in columns] for row in rows], number_columns=[2, 3, 4]
        )
        parts.append(collapsible(f'<div class="runs">{details}</div>', len(rows), f"All {len(rows)} runs"))
        shared_rows = [[header[i], rows[0][i]] for i in common_columns if rows[0][i]]
        parts += (
            [f"<h3 class=measure>Common to all runs</h3>{html_table(['', ''], shared_rows)}"] if shared_rows else []
        )
    entries = dict.fromkeys(str(run.metadata["bibtex"]).strip() for run in runs if run.metadata.get("bibtex"))
    if entries:
        parts.append(f"<h3 class=measure>Citation</h3><pre>{escape(chr(10).join(entries))}</pre>")
    return "".join(parts)


def recipe_table(run: Records) -> str:
    """Every setting of the recipe, as on the command line."""
    settings = flatten_settings(run.recipe)
    rows = [[escape(path), escape(text)] for path, text in settings.items() if path]
    return html_table(["setting", "value"], rows, monospace_columns=[0, 1]) if rows else ""


def warnings(runs: Sequence[Records]) -> str:
    items = [f"<li>{escape(run.id)}: {escape(warning)}</li>" for run in runs for warning in run.warnings]
    return f'<ul class="reading">{"".join(items)}</ul>' if items else ""
