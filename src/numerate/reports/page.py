"""Report pages, one HTML file each that needs nothing else: a headline, warnings and the sections that apply."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from numerate.reports.content import Content
from numerate.reports.grid import join_names, span_text
from numerate.reports.groups import Group, different_cells_notes, group_runs, not_comparable_notes, with_shared_cells
from numerate.reports.html_writer import fill, frame, page, to_html
from numerate.reports.language import language_modeling_groups
from numerate.reports.output_files import write_output
from numerate.reports.records import Records, read_run
from numerate.reports.sections import CLOSING_SECTIONS, SECTIONS, Section, Subject
from numerate.reports.table import TextTable
from numerate.reports.tasks import TaskGroups, group_by_task

MAX_NAMED_RUNS = 7
"""Failed runs, and variants without any run, that are named; beyond it six, and the others are counted."""

MAX_ERROR_LENGTH = 100
"""Letters of an error that are shown."""


def write_run_report(run_folder: str | Path) -> Path:
    """Writes report.html into a run's folder and returns its path.

    It depends on the records only: the same records give identical files. Raises `UserError` if the folder is not a
    run or not writable, `OperationalError` when its records are damaged or the disk is full.
    """
    run = read_run(run_folder)
    return write_output(run.folder / "report.html", run_page(run).encode(), "The records are unchanged.", place="runs")


def run_page(run: Records) -> str:
    """The page of one run as text."""
    subject = Subject(group_runs([run])[:1], "run")
    warnings = ["; ".join(not_comparable_notes(subject.groups))]
    over = f"numerate · a run · {run.id}"
    return _report(f"{run.label}: report", run.label, over, warnings, [("", subject)], [_filled("", SECTIONS, subject)])


def run_iframe(run_folder: str | Path) -> str:
    """The page of a run for a notebook, in a separate frame so that styles do not leak."""
    return frame(run_page(read_run(run_folder)))


def comparison_page(
    groups: Sequence[Group],
    title: str = "",
    *,
    failed_runs: Sequence[tuple[str, str]] = (),
    missing_variants: Sequence[str] = (),
    answer_metric: str | None = None,
) -> str:
    """The page of several groups as text; of several tasks the headlines of all first, then the sections of each.

    It starts with `failed_runs`, failed runs with their errors, and `missing_variants`, variants without any run;
    `answer_metric` is a metric of numbers or texts.
    """
    title = title or _names(groups)
    everything = Subject(groups)
    runs, seeds = everything.runs, {len(group.runs) for group in groups}
    counts = f"{len(runs)} run{'s' * (len(runs) != 1)}, {span_text(seeds)} seed{'s' * (seeds != {1})} each"
    over = f"numerate · a comparison · {counts}"
    warnings = [missing_runs_note(len(runs), failed_runs, missing_variants), "; ".join(not_comparable_notes(groups))]
    tasks = split_by_task(groups)
    warnings += [note for task in tasks for note in different_cells_notes(task.groups)]
    subjects = [(task.name, Subject(task.groups, answer_metric=answer_metric)) for task in tasks]
    parts = [_filled(name, SECTIONS, subject) for name, subject in subjects]
    if len(tasks) > 1:
        parts.insert(0, ("", [(f"{len(tasks)} tasks", to_html(_tasks_content(tasks)))]))
    return _report(title, title, over, warnings, subjects, parts, everything)


def split_by_task(groups: Sequence[Group]) -> list[TaskGroups]:
    """The groups by task, with means over shared cells; those of language modeling first and together. A single task
    has no name."""
    texts = language_modeling_groups(groups)
    others = [group for group in groups if group not in texts]
    found = group_by_task(others) if others else []
    found = [replace(task, groups=tuple(with_shared_cells(task.groups))) for task in found]
    if texts:
        found.insert(0, TaskGroups("", tuple(texts), texts[0].runs[0].recipe.get("task") or {}))
    return [replace(task, name=task.name or _names(task.groups)) for task in found] if len(found) > 1 else found


def _names(groups: Sequence[Group]) -> str:
    return join_names([group.label for group in groups], 4)


def _tasks_content(tasks: Sequence[TaskGroups]) -> Content:
    note = (
        "Tasks are not compared with each other: each has its own figures, tables and tests below, corrected for the "
        "pairs of that task alone."
    )
    rows = [[task.name, f"{len(task.groups)}", task.text] for task in tasks]
    return [TextTable(["task", "groups", "as trained"], rows, note, monospace=[2])]


Part = tuple[str, list[tuple[str, Markup]]]
"""Sections, each with its title, under a heading ("" for none)."""


def _filled(name: str, sections: Sequence[Section], subject: Subject) -> Part:
    found = (section.of(subject) for section in sections)
    return name, [(title, to_html(content)) for title, content in found if content]


def _report(
    window_title: str,
    title: str,
    over: str,
    warnings: Sequence[str],
    subjects: Sequence[tuple[str, Subject]],
    parts: Sequence[Part],
    everything: Subject | None = None,
) -> str:
    headlines = [(name, subject.headline) for name, subject in subjects]
    closing = _filled("", CLOSING_SECTIONS, everything or subjects[0][1])
    values = {"over": over, "title": title, "warnings": [text for text in warnings if text], "headlines": headlines}
    return page(window_title, fill("report.html", **values, parts=[*parts, closing]))


def missing_runs_note(
    num_shown: int, failed: Sequence[tuple[str, str]], missing_variants: Sequence[str] = (), location: str = "below"
) -> str:
    """Sentences on failed runs with their errors, and on variants without any run; or "".

    >>> missing_runs_note(3, [("rotary seed 1", "the loss is nan")], [])
    '1 of 4 runs failed and is not in anything below: rotary seed 1 (the loss is nan).'
    """
    parts = []
    if failed:
        named = join_names([f"{label} ({_shorten(error)})" for label, error in failed], MAX_NAMED_RUNS)
        verb = "is" if len(failed) == 1 else "are"
        parts.append(
            f"{len(failed)} of {num_shown + len(failed)} runs failed and {verb} not in anything {location}: {named}."
        )
    if missing_variants:
        parts.append(f"No run of {join_names(missing_variants, MAX_NAMED_RUNS)} succeeded.")
    return " ".join(parts)


def _shorten(error: str) -> str:
    """The error on one line, without control characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in error).split())
    return text if len(text) <= MAX_ERROR_LENGTH else text[:MAX_ERROR_LENGTH].rstrip() + "…"
