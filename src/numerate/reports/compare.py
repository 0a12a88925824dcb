"""Comparison of several runs and seeds: differences of recipes and of results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.statistics import newcombe_interval
from numerate.reports import overview, sections
from numerate.reports.answers import (
    answer_pair_rows,
    answer_pair_sentences,
    answer_pairs,
    answer_tables,
    check_has_metric,
    compare_pairs_by_metric,
    part_pair_tables,
    split_metric,
)
from numerate.reports.colour import TerminalStyle
from numerate.reports.comparable import not_comparable_notes
from numerate.reports.counts import MEMORIZATION_NOTE, count_section
from numerate.reports.drawing import collapsible, html_table
from numerate.reports.figure import Figure, HeatMap, Panel
from numerate.reports.forest import forest_section
from numerate.reports.grid import PlotGrid, baseline_ranges, cell_label, format_interval, format_percent
from numerate.reports.groups import (
    Group,
    differing_settings,
    group_runs,
    have_unordered_cells,
    region_labels,
    with_metric,
)
from numerate.reports.how_to_read import reading_notes
from numerate.reports.html import to_html
from numerate.reports.language import language_text
from numerate.reports.language_page import comparison_sections, language_modeling_groups
from numerate.reports.limits import (
    MAX_GROUP_COLUMNS,
    MAX_SEED_MAP_CELLS,
    MAX_SEED_MAPS,
    groups_to_draw,
    left_out_note,
)
from numerate.reports.metric_tables import metric_tables, metric_tables_text
from numerate.reports.missing import missing_runs_note
from numerate.reports.page import write_atomically
from numerate.reports.pairs import SIGNIFICANCE_NOTE, compare_pairs, pair_notes, pair_section, pair_table
from numerate.reports.records import Records, read_runs
from numerate.reports.sheet import page
from numerate.reports.success import (
    length_curves,
    success_section,
    success_table,
    unconverged_notes,
)
from numerate.reports.summary import group_result, summary_sentence
from numerate.reports.svg_writer import figure_html
from numerate.reports.table import text_table, text_width
from numerate.reports.tasks import group_by_task
from numerate.reports.terminal_writer import figure_text


def write_comparison(
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    baseline: str | None = None,
    failed_runs: Sequence[tuple[str, str]] = (),
    missing_variants: Sequence[str] = (),
    metric: str | None = None,
) -> Path:
    """Writes one self-contained HTML page that compares several runs and returns its path.

    Runs that differ in the seed alone form a group, shown by median, range and success rate. `labels` renames groups
    (`{"addition_abacus": "Abacus"}`). `baseline` is the label of the group listed first, with which all others are
    compared where they are many (default: the first one). `failed_runs` are failed runs with their errors, and
    `missing_variants` variants without any run; the page starts with them. `metric` is the metric of the page (default:
    `Group.metric`); one of numbers or texts, such as `log_mae`, adds tests, the rest of the page stays on exact match.
    Raises `UserError` for no folders, a folder that is no run, a baseline that is no group, or a metric that they lack.
    """
    label_metric, answer_metric = split_metric(metric)
    groups = with_baseline(with_metric(group_runs(_read_runs(folders), labels), label_metric), baseline)
    check_has_metric(groups, answer_metric)
    return write_atomically(
        Path(path),
        comparison_page(
            groups, title, failed_runs=failed_runs, missing_variants=missing_variants, answer_metric=answer_metric
        ),
    )


def write_comparison_figure(
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    labels: Mapping[str, str] | None = None,
    metric: str | None = None,
) -> Path:
    """Writes the figure of a comparison for a paper, .png, .svg or .pdf by its suffix, and returns its path.

    A heat map per group of runs, the training square marked, and all groups by length with their intervals. Raises
    `UserError` for another ending, no folders, or runs that were not evaluated on a grid.
    """
    from numerate.reports.matplotlib_writer import save_figure
    from numerate.reports.plots import compare_figure

    measure, answer = split_metric(metric)
    if answer is not None:
        raise UserError(f"metric: must be a metric of labels for a figure; for {answer} write out=compare.html")
    return save_figure(compare_figure(with_metric(group_runs(_read_runs(folders), labels), measure)), path)


def with_baseline(groups: Sequence[Group], baseline: str | None) -> list[Group]:
    """The groups with the baseline first. Raises `UserError` if none is called so."""
    if baseline is None:
        return list(groups)
    labels = [group.label for group in groups]
    if baseline not in labels:
        known = f"there are: {', '.join(labels)}.{did_you_mean(baseline, labels)}"
        raise UserError(f"baseline: no group is called {baseline!r}; {known}")
    first = groups[labels.index(baseline)]
    return [first, *(group for group in groups if group is not first)]


def comparison_page(
    groups: Sequence[Group],
    title: str = "",
    *,
    failed_runs: Sequence[tuple[str, str]] = (),
    missing_variants: Sequence[str] = (),
    answer_metric: str | None = None,
) -> str:
    """The page as text; `failed_runs` and `missing_variants` as in `write_comparison`, `answer_metric` a metric of
    numbers or texts."""
    # One run may be in several groups, evaluated with other settings; it counts once.
    runs = list({str(run.folder): run for group in groups for run in group.runs}.values())
    title = title or " and ".join(group.label for group in groups[:4]) + (" ..." if len(groups) > 4 else "")
    seeds = sorted({len(group.runs) for group in groups})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    subtitle = f"{len(runs)} run{'s' * (len(runs) != 1)}, {number} seed{'s' * (seeds != [1])} each"
    body = [
        f'<p class="over">numerate · a comparison · {subtitle}</p><h1>{escape(title)}</h1>',
        sections.warning_html(missing_runs_note(len(runs), failed_runs, missing_variants)),
        sections.warning_html("; ".join(not_comparable_notes(groups))),
        *_task_sections(groups, answer_metric),
        sections.heading("Reproduce", sections.reproduction_section(runs)),
        sections.heading("Left out of this report", sections.warnings(runs)),
    ]
    return page(title, "\n".join(part for part in body if part))


def _task_sections(groups: Sequence[Group], answer_metric: str | None) -> list[str]:
    """The sections of all groups; for several tasks, the summaries of all tasks first, then the sections of each."""
    if language_groups := language_modeling_groups(groups):
        others = [group for group in groups if group not in language_groups]
        different = sections.heading("What differs between the recipes", _settings_table(language_groups))
        rest = f'<h1 style="margin-top:4rem">{escape(_names(others))}</h1>'
        return [
            *comparison_sections(language_groups),
            different,
            *([rest, *_task_sections(others, answer_metric)] if others else []),
        ]
    tasks = group_by_task(groups)
    if len(tasks) == 1:
        return [
            sections.summary_html(summary_sentence(groups)),
            *_sections(groups, answer_metric),
        ]
    task_summaries = [
        f"<h3>{escape(task.name)}</h3>{sections.summary_html(summary_sentence(task.groups))}" for task in tasks
    ]
    rows = [[escape(task.name), f"{len(task.groups)}", escape(task.text)] for task in tasks]
    note = (
        "Tasks are not compared with each other: each has its own figures, tables and tests below, corrected for the "
        "pairs of that task alone."
    )
    table = html_table(["task", "groups", "as trained"], rows, number_columns=[1], monospace_columns=[2])
    task_table = f"{table}<figcaption>{note}</figcaption>"
    shown = [
        f'<section><h1 style="margin-top:4rem">{escape(task.name)}</h1>'
        f"{''.join(_sections(task.groups, answer_metric))}</section>"
        for task in tasks
    ]
    return [*task_summaries, sections.heading(f"{len(tasks)} tasks", task_table), *shown]


def _names(groups: Sequence[Group]) -> str:
    """The labels of the first groups."""
    return ", ".join(group.label for group in groups[:4]) + ", ..." * (len(groups) > 4)


def _sections(groups: Sequence[Group], answer_metric: str | None) -> list[str]:
    parts = have_unordered_cells(groups)
    return [
        sections.heading(f"Which groups differ in {answer_metric}", answer_pairs(groups, answer_metric)),
        sections.heading("Accuracy per count", count_section(groups)),
        sections.overview_section(groups),
        sections.heading("Results", metric_tables(groups) if parts else ""),
        sections.heading("Converged seeds and their length generalization", str(to_html(success_section(groups)))),
        sections.heading("Results over seeds", str(to_html(forest_section(groups)))),
        sections.heading(
            "Significant differences between groups",
            part_pair_tables(groups) if parts else str(to_html(pair_section(groups))),
        ),
        sections.heading("What differs between the recipes", _settings_table(groups)),
        sections.heading("How to read this", reading_notes(groups)),
        sections.heading("Regions", "" if parts else sections.region_table(groups)),
        sections.heading("Numbers and texts in the answers", "" if parts else answer_tables(groups)),
        sections.heading("Accuracy by length", _length_table(groups)),
        sections.heading("Results by seed", _seed_maps(groups)),
        sections.heading("Training", sections.training_section(groups)),
        sections.heading("Samples", _samples(groups)),
    ]


def comparison_text(
    groups: Sequence[Group], style: TerminalStyle | None = None, answer_metric: str | None = None
) -> str:
    """The comparison for a terminal: heat maps side by side, the diagonal, the table of regions, the summary; of
    several tasks one after the other."""
    if texts := language_modeling_groups(groups):
        others = [group for group in groups if group not in texts]
        if not others:
            return language_text(texts)
        parts = [(_names(texts), language_text(texts)), (_names(others), comparison_text(others, style, answer_metric))]
        return "\n\n\n".join(f"{name}\n{'=' * text_width(name)}\n\n{text}" for name, text in parts)
    style, tasks = style or TerminalStyle(), group_by_task(groups)
    if len(tasks) == 1:
        return _task_text(groups, style, answer_metric)
    return "\n\n\n".join(
        f"{task.name}\n{'=' * text_width(task.name)}\n\n{_task_text(task.groups, style, answer_metric)}"
        for task in tasks
    )


def _task_text(groups: Sequence[Group], style: TerminalStyle, answer: str | None) -> str:
    shown = groups_to_draw(groups)
    matrix_grids = [_with_title(grid, group.label) for group in shown for grid in group.grids if grid.row_axis]
    header, rows = sections.region_rows(shown)
    maps = [HeatMap.from_grid(grid, has_tooltips=False) for grid in matrix_grids]
    text = figure_text(Figure([*maps, overview.length_chart(shown)]), style)
    parts = [text] if text else []
    if have_unordered_cells(shown):
        parts.append(metric_tables_text(shown))
    else:
        parts += [text_table(header, rows)] if rows else []
    parts += [left_out_note(groups, shown)] if len(shown) < len(groups) else []
    if any(len(group.evaluated_cells) > 1 for group in groups):
        table = success_table(groups)
        success = [table.to_text(), "\n".join([table.caption, *unconverged_notes(groups)])]
        parts += success if table.rows else []
    found = compare_pairs(groups)
    if found.pairs and not have_unordered_cells(groups):
        parts += [pair_table(found).to_text(), "\n".join([*pair_notes(found), SIGNIFICANCE_NOTE])]
    parts += _answer_text(groups, answer) if answer is not None else []
    return "\n\n".join([*parts, summary_sentence(groups)])


def _answer_text(groups: Sequence[Group], answer: str) -> list[str]:
    """The tests by a metric of numbers or texts."""
    pairs = compare_pairs_by_metric(groups, answer)
    if not pairs:
        return []
    return [
        text_table(*answer_pair_rows(pairs, answer)),
        "\n".join([*answer_pair_sentences(pairs, answer), SIGNIFICANCE_NOTE]),
    ]


def _with_title(grid: PlotGrid, label: str) -> PlotGrid:
    title = f"{label}, {grid.title}" if grid.title else label
    return PlotGrid(grid.row_axis, grid.column_axis, grid.rows, grid.columns, grid.points, title)


def _read_runs(folders: Sequence[str | Path]) -> list[Records]:
    if not folders:
        raise UserError("compare: no runs are named; for example numerate compare runs/a/1 runs/b/2")
    return read_runs(folders)


def _settings_table(groups: Sequence[Group]) -> str:
    groups = sections.unique_trainings(groups)
    if len(groups) < 2:
        return ""
    recipes = [group.runs[0].recipe for group in groups]
    different = differing_settings(recipes, short=len(groups) > 2)
    if not different:
        return ""
    full_values = differing_settings(recipes)
    rows = [
        [escape(path), *(_setting_cell(text, full) for text, full in zip(texts, full_values[path], strict=True))]
        for path, texts in different.items()
    ]
    header = ["setting", *(escape(group.label) for group in groups)]
    if len(groups) > MAX_GROUP_COLUMNS:  # a row for each group
        lines = list(zip(*[header, *rows], strict=True))
        header, rows = ["group", *lines[0][1:]], [list(line) for line in lines[1:]]
    single_note = "They differ in this one setting; all others are equal." if len(different) == 1 else ""
    count = (
        single_note
        or f"They differ in {len(different)} settings: a difference in the results may come from any of them."
    )
    body = html_table(header, rows, monospace_columns=range(len(header)))
    return collapsible(body, len(rows), f"The settings of {len(groups)} groups") + f"<figcaption>{count}</figcaption>"


def _setting_cell(text: str, full_text: str) -> str:
    """A shortened setting with the whole one as tooltip."""
    return escape(text) if text == full_text else f'<span title="{escape(full_text)}">{escape(text)}</span>'


def _length_table(groups: Sequence[Group]) -> str:
    """The accuracy of each drawn group by length; of two groups with one seed the difference with its interval."""
    shown = groups_to_draw(groups, MAX_GROUP_COLUMNS)
    curves, missing_note = length_curves(shown)
    diagonals = [curve.group.diagonal for curve in curves]
    lengths = sorted(set().union(*diagonals))
    if not lengths:
        return ""
    baselines = baseline_ranges(diagonals)
    is_single_pair = len(groups) == len(curves) == 2 and all(len(group.region_scores) == 1 for group in groups)
    rows = []
    for n in lengths:
        found = [points.get(n) for points in diagonals]
        first = next(point for point in found if point is not None)
        row = [escape(cell_label(first.coordinates, groups[0].operator))]
        row += ["" if p is None else f"{format_percent(p.score)} {format_interval(p.low, p.high)}" for p in found]
        if is_single_pair and found[0] is not None and found[1] is not None:
            one, other = ((round(p.score * p.count), p.count) for p in found if p is not None)
            gap = newcombe_interval(one, other)
            row.append(f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]")
        elif is_single_pair:
            row.append("")
        region = region_labels(groups).get(first.region, first.region)
        row += [_baseline_text(baselines[n]) if n in baselines else ""] * bool(baselines)
        rows.append([*row, region.replace(" ", "\N{NO-BREAK SPACE}")])
    labels = [f"{escape(curve.label)}, %" for curve in curves]
    header = [
        "length",
        *labels,
        *(["difference, points"] * is_single_pair),
        *(["baseline, %"] * bool(baselines)),
        "region",
    ]
    notes = ["Differences carry Newcombe's 95 % interval, for each length by itself."] * is_single_pair
    notes += [MEMORIZATION_NOTE] * bool(baselines)
    notes += [missing_note] * bool(missing_note)
    notes += [left_out_note(groups, shown)] * (len(shown) < len(groups))
    caption = f"<figcaption>{escape(' '.join(notes))}</figcaption>" if notes else ""
    shares = html_table(header, rows, number_columns=range(1, len(header) - 1)) + caption
    return collapsible(shares, len(rows), f"All {len(rows)} lengths")


def _baseline_text(baselines: tuple[float, float]) -> str:
    """The baseline of a length, or the range where groups differ."""
    return " to ".join(map(format_percent, dict.fromkeys(baselines)))


def _seed_maps(groups: Sequence[Group]) -> str:
    """A small map for each of several seeds, up to `MAX_SEED_MAPS`."""
    if all(len(group.runs) == 1 for group in groups) or have_unordered_cells(groups):
        return ""
    singles = [[replace(group, runs=(run,)) for run in group.runs] for group in groups]
    as_images = sum(len(single.points) for each in singles for single in each) > MAX_SEED_MAP_CELLS
    parts, maps = [], 0
    for group, each in zip(groups, singles, strict=True):
        panels: list[Panel] = []
        for single in each:
            for grid in single.grids:
                maps += 1
                if maps <= MAX_SEED_MAPS:
                    reach = overview.generalization_text(group_result(single))
                    panels.append(_seed_map(single, grid, f"seed {single.runs[0].seed}", reach, as_images))
        if panels:
            parts.append(f"<h3>{escape(group.label)}</h3>{figure_html(Figure(panels, is_small=True))}")
    if maps > MAX_SEED_MAPS:
        missing = f"{maps - MAX_SEED_MAPS} of {maps} maps are left out"
        parts.append(f'<p class="quiet">{missing}, which would make this page too long; each run has a report.</p>')
    return "".join(parts)


def _seed_map(single: Group, grid: PlotGrid, title: str, reach: str, as_image: bool) -> Panel:
    if not grid.row_axis:
        return replace(overview.length_chart([single]), title=f"{title}: {reach}")
    found = HeatMap.from_grid(grid, single.operator, title=title, subtitle=reach)
    return replace(found, detail="image" if as_image else "colors")


def _samples(groups: Sequence[Group]) -> str:
    """Predictions of all groups on shared questions; without any, the samples of each group."""
    groups = groups_to_draw(groups, 4)
    by_question = [{sample.question: sample for sample in group.runs[0].samples} for group in groups]
    shared = (
        [question for question in by_question[0] if all(question in table for table in by_question)] if groups else []
    )
    if shared:
        rows = []
        for question in shared[: sections.MAX_SAMPLES]:
            first = by_question[0][question]
            predictions = [sections.marked_prediction(table[question]) for table in by_question]
            rows.append(
                [
                    escape(cell_label(first.coordinates, groups[0].operator, first.names)),
                    escape(question),
                    escape(first.correct_answer),
                    *predictions,
                ]
            )
        header = ["cell", "question", "target", *(f"{escape(group.label)}" for group in groups)]
        return html_table(header, rows, monospace_columns=range(1, len(header)))
    parts = [
        f"<details><summary>{escape(group.label)}</summary>{found}</details>"
        for group in groups
        if (found := sections.samples_table(group.runs[0]))
    ]
    return "".join(parts)
