"""Comparison of several runs and seeds: one page, a figure, or text for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from numerate.errors import UserError, did_you_mean
from numerate.reports.colour import TerminalStyle
from numerate.reports.groups import Group, check_has_metric, group_runs, with_metric
from numerate.reports.metrics import split_metric
from numerate.reports.page import comparison_page, split_by_task, write_atomically
from numerate.reports.records import Records, read_runs
from numerate.reports.sections import SECTIONS, Subject
from numerate.reports.table import text_width
from numerate.reports.terminal_writer import content_text, filled


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
    return write_atomically(Path(path), page)


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
    """The comparison for a terminal: of each task the sections that are `in_terminal`, and the headline."""
    tasks = split_by_task(groups)
    texts = [_task_text(Subject(task.groups, answer_metric=answer_metric), style) for task in tasks]
    if len(tasks) == 1:
        return texts[0]
    return "\n\n\n".join(f"{_underlined(task.name, '=')}\n\n{text}" for task, text in zip(tasks, texts, strict=True))


def _task_text(subject: Subject, style: TerminalStyle | None) -> str:
    found = [section.of(subject) for section in SECTIONS if section.in_terminal]
    parts = [(title, text) for title, content in found if (text := content_text(content, style))]
    texts = [f"{_underlined(title, '-')}\n{text}" if title else text for title, text in parts]
    return "\n\n".join([*texts, filled(subject.headline)])


def _underlined(title: str, rule: str) -> str:
    return f"{title}\n{rule * text_width(title)}"
