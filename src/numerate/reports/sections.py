"""The sections of report pages, made from groups of runs; a single run is a group of one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from html import escape
from statistics import median
from typing import Any

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import Band, seeds_band
from numerate.reports.charts import Chart, ChartLine, Style, styles
from numerate.reports.counts import MEMORISED, measure_of, measure_words
from numerate.reports.drawing import folded, panels, table
from numerate.reports.finding import SOLVED
from numerate.reports.grid import REGIONS, REGIONS_EXPLAINED, Region, bracket, percent, place_words
from numerate.reports.groups import Group, by_parts, flattened, part_axis, region_words
from numerate.reports.limits import MOST_BESIDE, MOST_STEPS, MOST_VALUES, drawn, left_out
from numerate.reports.overview import maps_and_lengths
from numerate.reports.records import Records, Sample, split_measure

MOST_SAMPLES = 40
FLOORS = "floor, %"
"""The column of the floors, the last one where there is one."""


def heading(text: str, body: str) -> str:
    """A section with its heading; "" without a body."""
    return f"<section><h2>{escape(text)}</h2>\n{body}</section>\n" if body else ""


def sentence(text: str) -> str:
    """The finding as HTML, without line breaks inside intervals and percentages."""
    whole = re.sub(r"\[([\d.]+), ([\d.]+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", text).replace(" %", "\N{NO-BREAK SPACE}%")
    return f'<p class="finding">{escape(whole)}</p>'


def lengths(groups: Sequence[Group]) -> str:
    """The main figure of a page; of parts and of labels under a heading."""
    figure = maps_and_lengths(groups)
    if by_parts(groups):
        return heading(f"By {part_axis(groups)}", figure)
    return heading("By length of the row", figure) if any(group.labels for group in groups) else figure


def warning(text: str) -> str:
    """A warning at the top of a page as HTML; "" without text."""
    return f'<p class="warning"><strong>{escape(text)}</strong></p>' if text else ""


def training_charts(groups: Sequence[Group]) -> list[Chart]:
    """Loss by step, and exact match (label accuracy for labels) on each development set by step."""
    shown = drawn(trained_once(groups))
    styled = styles([group.label for group in shown])
    losses = [
        line
        for group in shown
        for line in banded(
            group.label, [series(run.training(), "loss") for run in group.runs if run.training()], styled[group.label]
        )
    ]
    several = any(len(group.runs) > 1 for group in shown)
    note = "lines: medians; bands: lowest to highest seed" * several
    charts = [Chart("Training loss", losses, "step", "loss, nats per token", log=True, notes=[note] * several)]
    for name, words in splits_of(groups).items():
        lines, labelled = [], False
        for group in shown:
            evaluated = [run.split(name) for run in group.runs if run.split(name)]
            what = split_measure(evaluated)
            labelled = labelled or what == "accuracy"
            lined = banded(group.label, [series(rows, what) for rows in evaluated], styled[group.label])
            alone = len(evaluated) == 1 and lined and what == "exact"
            lines += [_with_interval(lined[0], evaluated[0])] if alone else lined
        measured = f"{METRICS['accuracy' if labelled else 'exact']}, %"
        charts.append(Chart(f"Development, {words}", lines, "step", measured, shares=True))
    return [chart for chart in charts if chart.lines]


def training(groups: Sequence[Group]) -> str:
    """Loss and exact match while training."""
    charts, once = training_charts(groups), trained_once(groups)
    note = (
        "Held-out questions of what is trained, by which the best checkpoint is chosen. "
        if by_parts(groups)
        else "Held-out questions; the best checkpoint is chosen on OOD validation. "
    ) * any(chart.shares for chart in charts)
    objectives = [group.runs[0].recipe.get("objective") for group in once]
    unlike = any(one != objectives[0] for one in objectives)
    note += "Losses differ from group to group, so that only their shapes compare. " * (unlike and bool(charts))
    note += left_out(once, drawn(once))
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"{panels(charts)}{caption}" if charts else ""


def splits_of(groups: Sequence[Group]) -> dict[str, str]:
    """The development splits with their names on the pages of these groups."""
    if by_parts(groups):
        return {"development": region_words(groups)["in_distribution"]}
    return {"development": REGIONS["in_distribution"], "beyond-development": REGIONS["ood_validation"]}


def trained_once(groups: Sequence[Group]) -> list[Group]:
    """Groups without repeated evaluations of the same runs."""
    once: dict[tuple[str, ...], Group] = {}
    for group in groups:
        once.setdefault(tuple(str(run.folder) for run in group.runs), group)
    return list(once.values())


def series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """The steps and values of one metric."""
    kept = {float(line["step"]): float(line[name]) for line in lines if "step" in line and line.get(name) is not None}
    return list(kept), list(kept.values())


def banded(label: str, curves: Sequence[tuple[list[float], list[float]]], style: Style) -> list[ChartLine]:
    """The median of curves as a line with their range as band; nothing without curves."""
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return []
    band: Band = seeds_band(curves)
    last = len(band.steps) - 1
    kept = sorted({round(i * last / (MOST_STEPS - 1)) for i in range(MOST_STEPS)} & set(range(last + 1)))
    steps, middle = band.steps[kept].tolist(), band.median[kept].tolist()
    low, high = (band.low[kept].tolist(), band.high[kept].tolist()) if band.count > 1 else (None, None)
    return [ChartLine(label, steps, middle, low, high, style=style, suffix=f"{band.count} seeds" * (band.count > 1))]


def _with_interval(line: ChartLine, rows: Sequence[Mapping[str, Any]]) -> ChartLine:
    by_step = {float(row["step"]): row for row in rows if "step" in row}
    if not all("low" in by_step[step] and "high" in by_step[step] for step in line.x):
        return line
    low, high = ([float(by_step[step][name]) for step in line.x] for name in ("low", "high"))
    return replace(line, low=low, high=high)


def region_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table of regions as text: per group and region the mean, its interval or the seeds' spread."""
    several = any(len(group.regions) > 1 for group in groups)
    header = [
        "run",
        "region",
        f"{measure_words(groups)}, %",
        "lowest to highest seed" if several else "95 % interval",
        "cells",
        "questions" if measure_of(groups) in (None, "exact") else "labels or rows",
    ]
    parts = by_parts(groups)
    header += ["each seed, %"] * several + [f"seeds at {percent(SOLVED)} %"] * (several and not parts)
    floors = any(region.floor is not None for group in groups for found in group.regions for region in found.values())
    header += [FLOORS] * floors
    rows = []
    for group in groups:
        for name, words in region_words(groups).items():
            seeds = [regions[name] for regions in group.regions if name in regions]
            if not seeds:
                continue
            values = [region.share.value for region in seeds]
            one = seeds[0]
            span = bracket(one.share.low, one.share.high) if len(seeds) == 1 else bracket(min(values), max(values))
            row = [group.label, words, percent(median(values)), span, _cells(one), f"{one.share.count:,}"]
            few = len(values) <= MOST_VALUES
            each = ", ".join(percent(value) for value in values) if few else f"{len(values)} seeds"
            row += [each] * several + [_reached(group, name)] * (several and not parts)
            rows.append(row + ["" if one.floor is None else percent(one.floor)] * floors)
    return header, rows


def _reached(group: Group, name: str) -> str:
    """How many seeds reach `SOLVED` in a region; out of distribution, of those that reach it in distribution."""
    if group.sees_future is not None:
        return "no claim"
    found = [regions for regions in group.regions if name in regions]
    known = [one for one in found if "in_distribution" in one]
    able = [one for one in known if one["in_distribution"].share.value >= SOLVED]
    partly = name != "in_distribution" and not group.by_symmetry and len(known) == len(found) and len(able) < len(found)
    judged = able if partly else found
    reached = sum(one[name].share.value >= SOLVED for one in judged)
    if partly and not able:
        return "no converged"
    return f"{reached} of {len(judged)}" + " converged" * partly


def _cells(region: Region) -> str:
    if region.only_seen:
        return f"{region.cells}, all seen in training"
    return f"{region.cells}" + (f" (+{region.seen_left_out} not held out)" if region.seen_left_out else "")


def region_table(groups: Sequence[Group]) -> str:
    """The regions of one group line by line, of several groups side by side."""
    header, rows = region_rows(groups)
    if not rows:
        return ""
    floors = header[-1] == FLOORS
    note = (
        f"{REGIONS_EXPLAINED} " * (not by_parts(groups))
        + "The mean gives every cell the same weight. " * (measure_of(groups) in (None, "exact"))
        + "Every label of a region weighs the same. " * (measure_of(groups) in ("unseen", "accuracy"))
        + "Every row of a region weighs the same. " * (measure_of(groups) in ("last", "prefix"))
        + "Cells whose questions are too few to hold any out are not counted in it. "
        + ("Brackets: lowest and highest seed. " if len({len(group.regions) for group in groups} - {1}) else "")
        + (
            f"Seeds below {percent(SOLVED)} % on what they were trained on have not converged, and are not counted "
            "among the seeds beyond it. "
            if any("converged" in cell for row in rows for cell in row[7:])
            else ""
        )
        + "The 95 % interval is about the questions: another seed may lie outside of it."
        + f" {MEMORISED}" * floors
    )
    if len(groups) == 1:
        shown = table(header[1:], [[escape(cell) for cell in row[1:]] for row in rows], numbers=[1, 2, 4])
    else:
        shown = (_regions_side_by_side if len(groups) <= MOST_BESIDE else _regions_below)(groups, rows, floors)
    return f"{shown}<figcaption>{note}</figcaption>"


def _floor(row: Sequence[str], floors: bool) -> str:
    """The floor after a number, where the row has one."""
    return f" {_quiet(f'floor {row[-1]}')}" if floors and row[-1] else ""


def _regions_side_by_side(groups: Sequence[Group], rows: Sequence[Sequence[str]], floors: bool) -> str:
    found = {(row[0], row[1]): row for row in rows}
    lines = []
    for words in dict.fromkeys(row[1] for row in rows):
        any_row = next(row for row in rows if row[1] == words)
        line = [escape(words)]
        for group in groups:
            row = found.get((group.label, words))
            solved = (
                f'<br><span class="quiet">{row[7]} seeds at {percent(SOLVED)} %</span>' if row and len(row) > 7 else ""
            )
            line.append(f"{row[2]} {row[3]}{_floor(row, floors)}{solved}" if row else "")
        lines.append([*line, any_row[5], escape(any_row[4])])
    labels = [f"{escape(group.label)}, %" for group in groups]
    return table(["region", *labels, "questions", "cells"], lines, numbers=range(1, 2 + len(groups)))


def _regions_below(groups: Sequence[Group], rows: Sequence[Sequence[str]], floors: bool) -> str:
    found = {(row[0], row[1]): row for row in rows}
    words = list(dict.fromkeys(row[1] for row in rows))
    lines = []
    for group in groups:
        known = [found.get((group.label, word)) for word in words]
        cells = (f"{row[2]} {_quiet(row[3])}{_floor(row, floors)}" if row else "" for row in known)
        lines.append([escape(group.label), *cells])
    shown = table(["group", *(f"{word}, %" for word in words)], lines, numbers=range(1, 1 + len(words)))
    return folded(shown, len(lines), f"All {len(lines)} groups")


def _quiet(text: str) -> str:
    return f'<span class="quiet">{text}</span>'


def samples(run: Records) -> str:
    """Questions with predictions, wrong letters marked."""
    if not run.samples:
        return ""
    rows = [
        [
            escape(place_words(sample.at, run.operator, sample.names)),
            escape(sample.question),
            escape(sample.gold),
            _marked(sample),
            '<span class="right">right</span>' if sample.right else '<span class="wrong">wrong</span>',
            escape(sample.as_written),
        ]
        for sample in run.samples[:MOST_SAMPLES]
    ]
    left = len(run.samples) - len(rows)
    more = f'<p class="quiet">{left} more in samples.jsonl.</p>' if left > 0 else ""
    header = ["cell", "question", "truth", "prediction", "", "as the model reads and writes it"]
    return table(header, rows, mono=[1, 2, 3, 5]) + more


def marked_prediction(sample: Sample) -> str:
    """The prediction after a tick or a cross, which do not depend on colour."""
    mark = '<span class="right">✓</span>' if sample.right else '<span class="wrong">✗</span>'
    return f"{mark} {_marked(sample)}"


def _marked(sample: Sample) -> str:
    """The prediction with the letters that differ from the answer marked."""
    if sample.right:
        return escape(sample.prediction)
    if not sample.prediction:
        return "<mark>(nothing)</mark>"
    parts = []
    for kind, _, _, start, end in SequenceMatcher(None, sample.gold, sample.prediction, autojunk=False).get_opcodes():
        text = escape(sample.prediction[start:end])
        parts.append(text if kind == "equal" else f"<mark>{text}</mark>" if text else "")
    return "".join(parts)


def provenance(run: Records) -> dict[str, str]:
    """Metadata of a run, name to text: parameters, steps, examples, time, versions."""
    head, known = run.head, {}
    if isinstance(head.get("parameters"), int):
        known["parameters"] = f"{head['parameters']:,}"
    last = run.training()[-1] if run.training() else {}
    for name in ("step", "examples", "tokens"):
        if isinstance(last.get(name), int | float):
            known["steps" if name == "step" else name] = f"{last[name]:,.0f}"
    for name in ("times", "hardware", "git", "versions"):
        if head.get(name):
            known[name] = _plain(head[name])
    return known


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def reproduce(runs: Sequence[Records]) -> str:
    """Commands, environment and citation."""
    commands = [str(run.head["command"]) for run in runs if run.head.get("command")]
    once = list(dict.fromkeys(commands))
    parts = [folded(f"<pre>{escape(chr(10).join(once))}</pre>", len(once), f"{len(once)} commands")] if once else []
    rows = []
    for run in runs:
        known = provenance(run)
        cells = (
            known.get(name, "") for name in ("parameters", "steps", "examples", "times", "hardware", "git", "versions")
        )
        rows.append(
            [escape(f"{run.label} / {run.id}"), str(run.seed if run.seed is not None else ""), *map(escape, cells)]
        )
    if len(runs) == 1:
        pairs = [["run", escape(f"{runs[0].label} / {runs[0].id}")]]
        pairs += [[escape(name), escape(text)] for name, text in provenance(runs[0]).items()]
        parts.append(table(["", ""], pairs))
    else:
        for row, run in zip(rows, runs, strict=True):
            times = run.head.get("times")
            row[5] = escape(str(times["ended"])) if isinstance(times, Mapping) and times.get("ended") else row[5]
        header = ["run", "seed", "parameters", "steps", "examples", "ended", "hardware", "git", "versions"]
        same = [i for i in range(5, len(header)) if len({row[i] for row in rows}) == 1]
        kept = [i for i in range(len(header)) if i not in same]
        details = table([header[i] for i in kept], [[row[i] for i in kept] for row in rows], numbers=[2, 3, 4])
        parts.append(folded(f'<div class="runs">{details}</div>', len(rows), f"All {len(rows)} runs"))
        alike = [[header[i], rows[0][i]] for i in same if rows[0][i]]
        parts += [f"<h3 class=measure>Of all of them</h3>{table(['', ''], alike)}"] if alike else []
    entries = dict.fromkeys(str(run.head["bibtex"]).strip() for run in runs if run.head.get("bibtex"))
    if entries:
        parts.append(f"<h3 class=measure>To cite</h3><pre>{escape(chr(10).join(entries))}</pre>")
    return "".join(parts)


def recipe(run: Records) -> str:
    """Every setting of the recipe, as on the command line."""
    settings = flattened(run.recipe)
    rows = [[escape(path), escape(text)] for path, text in settings.items() if path]
    return table(["setting", "value"], rows, mono=[0, 1]) if rows else ""


def warnings(runs: Sequence[Records]) -> str:
    found = [f"<li>{escape(run.id)}: {escape(warning)}</li>" for run in runs for warning in run.warnings]
    return f'<ul class="reading">{"".join(found)}</ul>' if found else ""
