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
from numerate.reports.charts import Chart, ChartLine, Style, assign_styles
from numerate.reports.counts import MEMORIZATION_NOTE, common_metric, common_metric_label
from numerate.reports.drawing import collapsible, html_table, panels
from numerate.reports.finding import SOLVED_THRESHOLD
from numerate.reports.grid import REGION_LABELS, REGIONS_NOTE, RegionScore, cell_label, format_interval, format_percent
from numerate.reports.groups import Group, flatten_settings, have_named_parts, part_axis, region_labels
from numerate.reports.limits import (
    MAX_CURVE_POINTS,
    MAX_GROUP_COLUMNS,
    MAX_TOOLTIP_SEEDS,
    groups_to_draw,
    left_out_note,
)
from numerate.reports.overview import overview_figure
from numerate.reports.records import Records, Sample, split_metric_name

MAX_SAMPLES = 40
BASELINE_COLUMN = "baseline, %"
"""The column of the baselines, the last one where there is one."""


def heading(text: str, body: str) -> str:
    """A section with its heading; "" without a body."""
    return f"<section><h2>{escape(text)}</h2>\n{body}</section>\n" if body else ""


def finding_html(text: str) -> str:
    """The finding as HTML, without line breaks inside intervals and percentages."""
    text_with_breaks = re.sub(r"\[([\d.]+), ([\d.]+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", text).replace(
        " %", "\N{NO-BREAK SPACE}%"
    )
    return f'<p class="finding">{escape(text_with_breaks)}</p>'


def overview_section(groups: Sequence[Group]) -> str:
    """The main figure of a page; of parts and of labels under a heading."""
    figure = overview_figure(groups)
    if have_named_parts(groups):
        return heading(f"By {part_axis(groups)}", figure)
    return heading("By length of the row", figure) if any(group.labels for group in groups) else figure


def warning_html(text: str) -> str:
    """A warning at the top of a page as HTML; "" without text."""
    return f'<p class="warning"><strong>{escape(text)}</strong></p>' if text else ""


def training_charts(groups: Sequence[Group]) -> list[Chart]:
    """Loss by step, and exact match (label accuracy for labels) on each validation set by step."""
    shown = groups_to_draw(unique_trainings(groups))
    styled = assign_styles([group.label for group in shown])
    losses = [
        line
        for group in shown
        for line in band_lines(
            group.label,
            [metric_series(run.training_metrics(), "loss") for run in group.runs if run.training_metrics()],
            styled[group.label],
        )
    ]
    several = any(len(group.runs) > 1 for group in shown)
    note = "lines: medians; bands: lowest to highest seed" * several
    charts = [Chart("Training loss", losses, "step", "loss, nats per token", is_log=True, notes=[note] * several)]
    for name, words in validation_splits(groups).items():
        lines, has_labels = [], False
        for group in shown:
            evaluated = [run.split_metrics(name) for run in group.runs if run.split_metrics(name)]
            what = split_metric_name(evaluated)
            has_labels = has_labels or what == "accuracy"
            split_lines = band_lines(
                group.label, [metric_series(rows, what) for rows in evaluated], styled[group.label]
            )
            is_single_run = len(evaluated) == 1 and split_lines and what == "exact_match"
            lines += [_with_interval(split_lines[0], evaluated[0])] if is_single_run else split_lines
        measured = f"{METRICS['accuracy' if has_labels else 'exact_match']}, %"
        charts.append(Chart(f"Validation, {words}", lines, "step", measured, is_percent=True))
    return [chart for chart in charts if chart.lines]


def training_section(groups: Sequence[Group]) -> str:
    """Loss and exact match while training."""
    charts, once = training_charts(groups), unique_trainings(groups)
    note = (
        "Held-out questions of what is trained, by which the best checkpoint is chosen. "
        if have_named_parts(groups)
        else "Held-out questions; the best checkpoint is chosen on OOD validation. "
    ) * any(chart.is_percent for chart in charts)
    objectives = [group.runs[0].recipe.get("objective") for group in once]
    has_different_objectives = any(one != objectives[0] for one in objectives)
    note += "Losses differ from group to group, so that only their shapes compare. " * (
        has_different_objectives and bool(charts)
    )
    note += left_out_note(once, groups_to_draw(once))
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"{panels(charts)}{caption}" if charts else ""


def validation_splits(groups: Sequence[Group]) -> dict[str, str]:
    """The validation splits with their names on the pages of these groups."""
    if have_named_parts(groups):
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
    kept = {float(line["step"]): float(line[name]) for line in lines if "step" in line and line.get(name) is not None}
    return list(kept), list(kept.values())


def band_lines(label: str, curves: Sequence[tuple[list[float], list[float]]], style: Style) -> list[ChartLine]:
    """The median of curves as a line with their range as band; nothing without curves."""
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
    """The table of regions as text: per group and region the mean, its interval or the seeds' spread."""
    several = any(len(group.region_scores) > 1 for group in groups)
    header = [
        "run",
        "region",
        f"{common_metric_label(groups)}, %",
        "lowest to highest seed" if several else "95 % interval",
        "cells",
        "questions" if common_metric(groups) in (None, "exact_match") else "labels or rows",
    ]
    parts = have_named_parts(groups)
    header += ["each seed, %"] * several + [f"seeds at {format_percent(SOLVED_THRESHOLD)} %"] * (several and not parts)
    baselines = any(
        region.baseline is not None for group in groups for found in group.region_scores for region in found.values()
    )
    header += [BASELINE_COLUMN] * baselines
    rows = []
    for group in groups:
        for name, words in region_labels(groups).items():
            seeds = [regions[name] for regions in group.region_scores if name in regions]
            if not seeds:
                continue
            values = [region.score.value for region in seeds]
            one = seeds[0]
            span = (
                format_interval(one.score.low, one.score.high)
                if len(seeds) == 1
                else format_interval(min(values), max(values))
            )
            row = [group.label, words, format_percent(median(values)), span, _cells(one), f"{one.score.count:,}"]
            few = len(values) <= MAX_TOOLTIP_SEEDS
            each = ", ".join(format_percent(value) for value in values) if few else f"{len(values)} seeds"
            row += [each] * several + [_solved_seeds_text(group, name)] * (several and not parts)
            rows.append(row + ["" if one.baseline is None else format_percent(one.baseline)] * baselines)
    return header, rows


def _solved_seeds_text(group: Group, name: str) -> str:
    """How many seeds reach `SOLVED_THRESHOLD` in a region; out of distribution, of those that do in distribution."""
    if group.non_causal_reason is not None:
        return "no claim"
    found = [regions for regions in group.region_scores if name in regions]
    known = [one for one in found if "in_distribution" in one]
    solved = [one for one in known if one["in_distribution"].score.value >= SOLVED_THRESHOLD]
    solved_only = (
        name != "in_distribution"
        and not group.is_limited_by_symmetry
        and len(known) == len(found)
        and len(solved) < len(found)
    )
    scored = solved if solved_only else found
    reached = sum(one[name].score.value >= SOLVED_THRESHOLD for one in scored)
    if solved_only and not solved:
        return "none converged"
    return f"{reached} of {len(scored)}" + " converged" * solved_only


def _cells(region: RegionScore) -> str:
    if region.all_cells_overlap_training:
        return f"{region.num_cells}, all may overlap with training"
    return f"{region.num_cells}" + (
        f" (+{region.num_excluded_cells} not held out)" if region.num_excluded_cells else ""
    )


def region_table(groups: Sequence[Group]) -> str:
    """The regions of one group line by line, of several groups side by side."""
    header, rows = region_rows(groups)
    if not rows:
        return ""
    baselines = header[-1] == BASELINE_COLUMN
    note = (
        f"{REGIONS_NOTE} " * (not have_named_parts(groups))
        + "The mean gives every cell the same weight. " * (common_metric(groups) in (None, "exact_match"))
        + "Every label of a region weighs the same. " * (common_metric(groups) in ("unseen", "accuracy"))
        + "Every row of a region weighs the same. " * (common_metric(groups) in ("last", "prefix"))
        + "Cells whose questions are too few to hold any out are not counted in it. "
        + ("Brackets: lowest and highest seed. " if len({len(group.region_scores) for group in groups} - {1}) else "")
        + (
            f"Seeds below {format_percent(SOLVED_THRESHOLD)} % on what they were trained on have not converged, and "
            "are not counted among the seeds beyond it. "
            if any("converged" in cell for row in rows for cell in row[7:])
            else ""
        )
        + "The 95 % interval is about the questions: another seed may lie outside of it."
        + f" {MEMORIZATION_NOTE}" * baselines
    )
    if len(groups) == 1:
        shown = html_table(header[1:], [[escape(cell) for cell in row[1:]] for row in rows], number_columns=[1, 2, 4])
    else:
        shown = (_regions_side_by_side if len(groups) <= MAX_GROUP_COLUMNS else _regions_by_group)(
            groups, rows, baselines
        )
    return f"{shown}<figcaption>{note}</figcaption>"


def _baseline(row: Sequence[str], baselines: bool) -> str:
    """The baseline after a number, where the row has one."""
    return f" {_grey(f'baseline {row[-1]}')}" if baselines and row[-1] else ""


def _regions_side_by_side(groups: Sequence[Group], rows: Sequence[Sequence[str]], baselines: bool) -> str:
    found = {(row[0], row[1]): row for row in rows}
    lines = []
    for words in dict.fromkeys(row[1] for row in rows):
        any_row = next(row for row in rows if row[1] == words)
        line = [escape(words)]
        for group in groups:
            row = found.get((group.label, words))
            solved = (
                f'<br><span class="quiet">{row[7]} seeds at {format_percent(SOLVED_THRESHOLD)} %</span>'
                if row and len(row) > 7
                else ""
            )
            line.append(f"{row[2]} {row[3]}{_baseline(row, baselines)}{solved}" if row else "")
        lines.append([*line, any_row[5], escape(any_row[4])])
    labels = [f"{escape(group.label)}, %" for group in groups]
    return html_table(["region", *labels, "questions", "cells"], lines, number_columns=range(1, 2 + len(groups)))


def _regions_by_group(groups: Sequence[Group], rows: Sequence[Sequence[str]], baselines: bool) -> str:
    found = {(row[0], row[1]): row for row in rows}
    words = list(dict.fromkeys(row[1] for row in rows))
    lines = []
    for group in groups:
        known = [found.get((group.label, word)) for word in words]
        cells = (f"{row[2]} {_grey(row[3])}{_baseline(row, baselines)}" if row else "" for row in known)
        lines.append([escape(group.label), *cells])
    shown = html_table(["group", *(f"{word}, %" for word in words)], lines, number_columns=range(1, 1 + len(words)))
    return collapsible(shown, len(lines), f"All {len(lines)} groups")


def _grey(text: str) -> str:
    return f'<span class="quiet">{text}</span>'


def samples_table(run: Records) -> str:
    """Questions with predictions, wrong letters marked."""
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
    left = len(run.samples) - len(rows)
    more = f'<p class="quiet">{left} more in samples.jsonl.</p>' if left > 0 else ""
    header = ["cell", "question", "target", "prediction", "", "model input and output"]
    return html_table(header, rows, monospace_columns=[1, 2, 3, 5]) + more


def marked_prediction(sample: Sample) -> str:
    """The prediction after a tick or a cross, which do not depend on colour."""
    mark = '<span class="right">✓</span>' if sample.correct else '<span class="wrong">✗</span>'
    return f"{mark} {_highlight_errors(sample)}"


def _highlight_errors(sample: Sample) -> str:
    """The prediction with the letters that differ from the answer marked."""
    if sample.correct:
        return escape(sample.prediction)
    if not sample.prediction:
        return "<mark>(nothing)</mark>"
    parts = []
    for kind, _, _, start, end in SequenceMatcher(
        None, sample.correct_answer, sample.prediction, autojunk=False
    ).get_opcodes():
        text = escape(sample.prediction[start:end])
        parts.append(text if kind == "equal" else f"<mark>{text}</mark>" if text else "")
    return "".join(parts)


def run_metadata(run: Records) -> dict[str, str]:
    """Metadata of a run, name to text: parameters, steps, examples, time, versions."""
    head, metadata = run.metadata, {}
    if isinstance(head.get("parameters"), int):
        metadata["parameters"] = f"{head['parameters']:,}"
    last = run.training_metrics()[-1] if run.training_metrics() else {}
    for name in ("step", "examples", "tokens"):
        if isinstance(last.get(name), int | float):
            metadata["steps" if name == "step" else name] = f"{last[name]:,.0f}"
    for name in ("times", "hardware", "git", "versions"):
        if head.get(name):
            metadata[name] = _format_value(head[name])
    return metadata


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format_value(item)}" for key, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def reproduction_section(runs: Sequence[Records]) -> str:
    """Commands, environment and citation."""
    commands = [str(run.metadata["command"]) for run in runs if run.metadata.get("command")]
    once = list(dict.fromkeys(commands))
    parts = (
        [collapsible(f"<pre>{escape(chr(10).join(once))}</pre>", len(once), f"{len(once)} commands")] if once else []
    )
    rows = []
    for run in runs:
        known = run_metadata(run)
        cells = (
            known.get(name, "") for name in ("parameters", "steps", "examples", "times", "hardware", "git", "versions")
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
        same = [i for i in range(5, len(header)) if len({row[i] for row in rows}) == 1]
        kept = [i for i in range(len(header)) if i not in same]
        details = html_table(
            [header[i] for i in kept], [[row[i] for i in kept] for row in rows], number_columns=[2, 3, 4]
        )
        parts.append(collapsible(f'<div class="runs">{details}</div>', len(rows), f"All {len(rows)} runs"))
        shared_rows = [[header[i], rows[0][i]] for i in same if rows[0][i]]
        parts += (
            [f"<h3 class=measure>Common to all runs</h3>{html_table(['', ''], shared_rows)}"] if shared_rows else []
        )
    entries = dict.fromkeys(str(run.metadata["bibtex"]).strip() for run in runs if run.metadata.get("bibtex"))
    if entries:
        parts.append(f"<h3 class=measure>To cite</h3><pre>{escape(chr(10).join(entries))}</pre>")
    return "".join(parts)


def recipe_table(run: Records) -> str:
    """Every setting of the recipe, as on the command line."""
    settings = flatten_settings(run.recipe)
    rows = [[escape(path), escape(text)] for path, text in settings.items() if path]
    return html_table(["setting", "value"], rows, monospace_columns=[0, 1]) if rows else ""


def warnings(runs: Sequence[Records]) -> str:
    found = [f"<li>{escape(run.id)}: {escape(warning)}</li>" for run in runs for warning in run.warnings]
    return f'<ul class="reading">{"".join(found)}</ul>' if found else ""
