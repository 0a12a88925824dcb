"""Comparison of several runs and seeds: one page, a figure, or text for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.errors import UserError, did_you_mean
from numerate.reports.groups import Group, check_has_metric, different_cells_notes, group_runs, with_metric
from numerate.reports.metrics import split_metric
from numerate.reports.output_files import check_output_file, write_output
from numerate.reports.page import comparison_page, split_by_task
from numerate.reports.records import read_runs
from numerate.reports.sections import SECTIONS, Subject
from numerate.reports.table import text_width
from numerate.reports.terminal_writer import TerminalStyle, content_text, filled


def read_comparison(
    folders: Sequence[str | Path],
    *,
    labels: Mapping[str, str] | None = None,
    baseline: str | None = None,
    metric: str | None = None,
) -> Subject:
    """The runs in these folders side by side. Those that differ in the seed alone form a group.

    `labels` renames groups (`{"addition_abacus": "Abacus"}`). `baseline` is the label of the group listed first, with
    which all others are compared where they are many (default: the first one). `metric` is the metric of all (default:
    `Group.metric`); one of numbers or texts, such as `log_mae`, adds tests, the rest stays on exact match. Raises
    `UserError` for no folders, a folder that is no run, a baseline that is no group, or a metric that they lack.
    """
    if not folders:
        raise UserError("compare: no runs are named; for example numerate compare runs/a/1 runs/b/2")
    label_metric, answer_metric = split_metric(metric)
    groups = with_metric(group_runs(read_runs(folders), labels), label_metric)
    check_has_metric(groups, answer_metric)
    known = [group.label for group in groups]
    if baseline is not None and baseline not in known:
        there = f"there are: {', '.join(known)}.{did_you_mean(baseline, known)}"
        raise UserError(f"baseline: no group is called {baseline!r}; {there}")
    groups.sort(key=lambda group: baseline is not None and group.label != baseline)
    return Subject(groups, answer_metric=answer_metric)


def write_comparison(compared: Subject | Sequence[str | Path], path: str | Path, **options: Any) -> Path:
    """Writes a comparison, or that of the runs in these folders, and returns its path: one self-contained HTML page, or
    a figure for a paper if the suffix is .png, .svg or .pdf.

    The options are those of `read_comparison`, and of `comparison_page`. The figure has a heat map per group, the
    training square marked, and all groups by length with their intervals. Raises `UserError` for another suffix, and
    for a figure of runs that were not evaluated on a grid or of a metric of numbers or texts.
    """
    reading = {name: options.pop(name) for name in ("labels", "baseline", "metric") if name in options}
    subject = compared if isinstance(compared, Subject) else read_comparison(compared, **reading)
    if Path(path).suffix.lower() in (".html", ".htm"):
        check_output_file(path, "html")
        page = comparison_page(subject.groups, answer_metric=subject.answer_metric, **options)
        return write_output(path, page.encode(), "The records are unchanged.")
    from numerate.reports.matplotlib_writer import save_figure
    from numerate.reports.plots import compare_figure

    if subject.answer_metric is not None:
        metric = subject.answer_metric
        raise UserError(f"metric: must be a metric of labels for a figure; for {metric} write out=compare.html")
    return save_figure(compare_figure(subject.groups), path)


def comparison_text(
    groups: Sequence[Group], style: TerminalStyle = TerminalStyle(), answer_metric: str | None = None
) -> str:
    """The comparison for a terminal: of each task the sections that are `in_terminal`, and the headline."""
    tasks = split_by_task(groups)
    texts = [_task_text(Subject(task.groups, answer_metric=answer_metric), style) for task in tasks]
    if len(tasks) == 1:
        return texts[0]
    return "\n\n\n".join(f"{_underlined(task.name, '=')}\n\n{text}" for task, text in zip(tasks, texts, strict=True))


def _task_text(subject: Subject, style: TerminalStyle) -> str:
    found = [section.of(subject) for section in SECTIONS if section.in_terminal]
    parts = [(title, text) for title, content in found if (text := content_text(content, style))]
    texts = [f"{_underlined(title, '-')}\n{text}" if title else text for title, text in parts]
    notes = [*different_cells_notes(subject.groups), subject.headline]
    return "\n\n".join([*texts, *(filled(note, style) for note in notes)])


def _underlined(title: str, rule: str) -> str:
    return f"{title}\n{rule * text_width(title)}"
