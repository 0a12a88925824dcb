"""Comparison of several runs and seeds: one page, a figure, or text for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from numerate.errors import UserError, did_you_mean
from numerate.reports.colour import TerminalStyle
from numerate.reports.counts import common_metric_label
from numerate.reports.figure import Figure, HeatMap
from numerate.reports.groups import Group, group_runs, have_unordered_cells, with_metric
from numerate.reports.language import language_modeling_groups, language_text
from numerate.reports.limits import groups_to_draw, left_out_note
from numerate.reports.metric_tables import metric_tables_text
from numerate.reports.metrics import check_has_metric, split_metric
from numerate.reports.output_files import check_output, write_output
from numerate.reports.overview import length_chart
from numerate.reports.page import comparison_page, split_by_task
from numerate.reports.pairs import SIGNIFICANCE_NOTE, compare_pairs, compare_pairs_by_metric, pair_sentences, pair_table
from numerate.reports.records import Records, read_runs
from numerate.reports.regions import region_table
from numerate.reports.success import success_table, unconverged_notes
from numerate.reports.summary import headline
from numerate.reports.table import text_width
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
    check_output(path, "html")
    label_metric, answer_metric = split_metric(metric)
    groups = with_metric(group_runs(_read_runs(folders), labels), label_metric)
    check_has_metric(groups, answer_metric)
    known = [group.label for group in groups]
    if baseline is not None and baseline not in known:
        there = f"there are: {', '.join(known)}.{did_you_mean(baseline, known)}"
        raise UserError(f"baseline: no group is called {baseline!r}; {there}")
    groups = sorted(groups, key=lambda group: baseline is not None and group.label != baseline)
    page = comparison_page(
        groups, title, failed_runs=failed_runs, missing_variants=missing_variants, answer_metric=answer_metric
    )
    return write_output(path, page.encode(), "The records are unchanged.")


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


def _read_runs(folders: Sequence[str | Path]) -> list[Records]:
    if not folders:
        raise UserError("compare: no runs are named; for example numerate compare runs/a/1 runs/b/2")
    return read_runs(folders)


def comparison_text(
    groups: Sequence[Group], style: TerminalStyle | None = None, answer_metric: str | None = None
) -> str:
    """The comparison for a terminal: heat maps side by side, the diagonal, the table of regions, the headline; of
    several tasks one after the other."""
    style, tasks = style or TerminalStyle(), split_by_task(groups)
    texts = [
        language_text(task.groups)
        if language_modeling_groups(task.groups)
        else _task_text(task.groups, style, answer_metric)
        for task in tasks
    ]
    if len(tasks) == 1:
        return texts[0]
    names = (f"{task.name}\n{'=' * text_width(task.name)}" for task in tasks)
    return "\n\n\n".join(f"{name}\n\n{text}" for name, text in zip(names, texts, strict=True))


def _task_text(groups: Sequence[Group], style: TerminalStyle, answer_metric: str | None) -> str:
    shown = groups_to_draw(groups)
    maps = [
        HeatMap.from_grid(grid, title=f"{group.label}, {grid.title}" if grid.title else group.label, has_tooltips=False)
        for group in shown
        for grid in group.grids
        if grid.row_axis
    ]
    parts = [text] if (text := figure_text(Figure([*maps, length_chart(shown)]), style)) else []
    if have_unordered_cells(shown):
        parts.append(metric_tables_text(shown))
    elif (table := region_table(shown)).rows:
        parts.append(table.to_text())
    parts += [left_out_note(groups, shown)] * (len(shown) < len(groups))
    if any(len(group.evaluated_cells) > 1 for group in groups):
        table = success_table(groups)
        parts += [table.to_text(), "\n".join([table.caption, *unconverged_notes(groups)])] if table.rows else []
    tested = {} if have_unordered_cells(groups) else {common_metric_label(groups): compare_pairs(groups)}
    if answer_metric is not None:
        tested[answer_metric] = compare_pairs_by_metric(groups, answer_metric)
    for title, pairs in tested.items():
        if pairs:
            parts += [pair_table(pairs, title).to_text(), "\n".join([*pair_sentences(pairs), SIGNIFICANCE_NOTE])]
    return "\n\n".join([*parts, headline(groups)])
