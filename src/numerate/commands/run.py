"""`numerate run RECIPE|STUDY`: train, evaluate, report."""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.commands.recipes import Wanted
from numerate.commands.showing import summary
from numerate.errors import UserError
from numerate.evaluation.labels import METRICS
from numerate.executors.slurm import Slurm
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read
from numerate.reports.grid import REGIONS, percent
from numerate.reports.groups import CONVERGED, Group
from numerate.reports.language_records import is_portion, number_text
from numerate.reports.limits import MOST_ROWS
from numerate.reports.records import Records, cell_of
from numerate.reports.success import NO_CLAIM, SYMMETRY
from numerate.reports.table import text_table
from numerate.reports.tasks import by_task
from numerate.studies.folder import StudyFolder
from numerate.studies.running import Done
from numerate.studies.status import SHOWN
from numerate.studies.study import Study, run_study, survey
from numerate.training.run_folder import runs_directory

MANY, MANY_RUNS = 12, 200
"""More variants, or runs, than this are shown as a short table instead of side by side."""


def command(given: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("run: starts processes of its own; under torchrun, `numerate train` is right, then `evaluate`")
    wanted = Wanted.of(given, "numerate run quickstart")
    study = wanted.study()
    print(f"{study.title}: {study.question}")
    if given.dry_run:
        return _dry_run(study, wanted)
    page, done = run_study(study, runs_dir=wanted.runs_dir, executor=wanted.executor, retry=wanted.retry)
    _show_failures(study, done, wanted.runs_dir, given.traceback)
    if page is not None:
        folders = [one.path for one in done if one.path is not None and one.error is None]
        print(_summary(study, StudyFolder.of(study.title, runs_directory(wanted.runs_dir)), folders))
        print(f"\nreport: {page}")
    return max((one.status for one in done), default=0)


def _dry_run(study: Study, wanted: Wanted) -> int:
    submits = isinstance(wanted.executor, Slurm)
    found = survey(study, runs_dir=wanted.runs_dir, executor=wanted.executor, retry=wanted.retry, script=submits)
    print(found)
    if found.script is not None:
        print(f"\n{found.script}")
    return 0


def _show_failures(study: Study, done: Sequence[Done], runs_dir: str | None, traceback: bool) -> None:
    failed = [one for one in done if one.error is not None and (not one.left or one.kind == "died")]
    for one in failed[:SHOWN]:
        print(f"numerate: {one.label}: {one.error}", file=sys.stderr)
        if one.trace is not None and traceback:
            print(one.trace, file=sys.stderr)
    if len(failed) > SHOWN:
        print(f"numerate: ... and {len(failed) - SHOWN} more failed runs", file=sys.stderr)
    if any(not one.left for one in failed):
        where = f" runs_dir={runs_dir}" if runs_dir is not None else ""
        print(f"numerate: retry=true tries failed runs again; `numerate status {study.title}{where}`", file=sys.stderr)
    left = [one for one in done if one.left]
    if left:
        ended = sum(one.error is None for one in done)
        what = f"{ended:,} of {len(done):,} runs are done, {len(left):,} are left"
        print(f"numerate: {what}; the same command resumes", file=sys.stderr)


def _summary(study: Study, folder: StudyFolder, folders: Sequence[Path]) -> str:
    """Heat maps side by side for a few variants, a short table for many."""
    runs = {f"{path.parent.name}/{path.name}": path for path in folders}
    results = folder.results()
    variants: dict[str, list[Mapping[str, Any]]] = {}
    groups: dict[str, Group] = {}
    for planned in folder.plan():
        if planned.run in runs and planned.at in results:
            variants.setdefault(planned.label, []).append(results[planned.at])
            if planned.label not in groups:
                groups[planned.label] = _first_of(planned.label, runs[planned.run], planned.tree)
    if len(variants) <= MANY and len(folders) <= MANY_RUNS:
        return summary(folders, study.labels)
    return short_table(study.title, variants, groups)


def _first_of(label: str, folder: Path, recipe: Mapping[str, Any]) -> Group:
    """What identifies the task of a variant: its recipe, and one evaluated cell."""
    first = read(folder / "evaluation.jsonl", EVALUATION)[:1]
    cells = [cell_of(record) for record in first if not is_portion(record)]
    return Group(label, (Records(folder, {"recipe": recipe}, cells=cells),))


def short_table(
    title: str, variants: Mapping[str, Sequence[Mapping[str, Any]]], groups: Mapping[str, Group] | None = None
) -> str:
    """A table of many variants for each task, the best in the farthest region first: medians over their
    runs, of labels the accuracy on unseen counts with its floor.

    `variants` has the results of their runs, `groups` what identifies their tasks, where it is known.
    """
    if texts := {label: records for label, records in variants.items() if any(map(_is_of_text, records))}:
        others = {label: records for label, records in variants.items() if label not in texts}
        return "\n\n".join([_texts(title, texts), *([short_table(title, others, groups)] if others else [])])
    tasks = by_task(list(groups.values())) if groups else []
    together = [(task.name, [group.label for group in task.groups]) for task in tasks] or [("", list(variants))]
    parts, judged = [], False
    for name, labels in together:
        rows = [_variant(label, variants[label], groups[label] if groups else None) for label in labels]
        header = [region for region in REGIONS if any(region in row.text for row in rows)]
        able = any(row.converged for row in rows)
        judged = judged or able
        rows.sort(key=lambda row: [row.median.get(region, -1.0) for region in reversed(header)], reverse=True)
        shown = [
            [row.label, str(row.runs), *([row.converged] * able), *(row.text.get(region, "") for region in header)]
            for row in rows[:MOST_ROWS]
        ]
        parts.append(
            f"{name}\n" * bool(name) + text_table(["variant", "runs", *(["converged"] * able), *header], shown)
        )
        if len(rows) > MOST_ROWS:
            parts[-1] += f"\n{len(rows) - MOST_ROWS} more: numerate results {title} group=label"
    labelled = any("labels" in region for each in variants.values() for one in each for region in one["final"].values())
    what = f"{METRICS['unseen']} (trained: {METRICS['accuracy']}), in brackets the floor" if labelled else "exact match"
    note = f"Medians over runs, {what}."
    note += f" Converged: at least {percent(CONVERGED)} % of what it was trained on." * judged
    return "\n\n".join([*parts, note])


def _is_of_text(record: Mapping[str, Any]) -> bool:
    return any("language" in region for region in record["final"].values())


def _texts(title: str, variants: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of variants on running text, lowest bits per byte first: medians over their runs."""
    names = ("loss", "perplexity", "bits_per_byte")
    rows = []
    for label, records in variants.items():
        found = [
            record["final"]["in_distribution"]["language"] for record in records if "in_distribution" in record["final"]
        ]
        each = [[one[name] for one in found if one.get(name) is not None] for name in names]
        rows.append((label, len(records), [statistics.median(values) if values else None for values in each]))
    rows.sort(key=lambda row: [value if value is not None else float("inf") for value in reversed(row[2])])
    shown = [[label, str(runs), *map(number_text, medians)] for label, runs, medians in rows[:MOST_ROWS]]
    table = text_table(["variant", "runs", "loss", "perplexity", "bits per byte"], shown)
    more = f"\n{len(rows) - MOST_ROWS} more: numerate results {title} group=label" * (len(rows) > MOST_ROWS)
    note = "Medians over runs, final checkpoint, the whole validation text; loss in nats per token."
    return f"{table}{more}\n\n{note}"


@dataclass(frozen=True)
class _Variant:
    """A line of the table: by region the median of its runs, and the same as text."""

    label: str
    runs: int
    converged: str
    median: Mapping[str, float]
    text: Mapping[str, str]


def _variant(label: str, records: Sequence[Mapping[str, Any]], group: Group | None) -> _Variant:
    found = [record["final"] for record in records]
    medians, text = {}, {}
    for region in REGIONS:
        each = [_measured(one[region], region) for one in found if region in one]
        if each:
            medians[region] = statistics.median(value for value, _ in each)
            floors = [floor for _, floor in each if floor is not None]
            text[region] = f"{medians[region]:.1%}" + f" ({max(floors, default=0.0):.1%})" * bool(floors)
    trained = [
        _measured(one["in_distribution"], "in_distribution")[0] >= CONVERGED
        for one in found
        if "in_distribution" in one
    ]
    parts = group is not None and group.parts
    converged = f"{sum(trained)}/{len(trained)}" if trained and not parts else ""
    if trained and not parts and not any(trained):
        converged = f"no, {SYMMETRY}" if group is not None and group.by_symmetry else "none"
    reasons = [region["sees_future"] for one in found for region in one.values() if region.get("sees_future")]
    return _Variant(label, len(records), NO_CLAIM if reasons else converged, medians, text)


def _measured(region: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    """The score of a region, with its floor: of labels accuracy on unseen counts, within training on all."""
    labels = region.get("labels", {})
    found = labels.get("accuracy" if name == "in_distribution" else "unseen")
    if found is None:
        return region["mean"], None
    return found["value"], None if name == "in_distribution" else found["floor"]
