"""`numerate run RECIPE|STUDY`: train, evaluate, report."""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.commands.recipes import Wanted
from numerate.commands.showing import summary
from numerate.errors import Mistake
from numerate.executors.slurm import Slurm
from numerate.reports.grid import REGIONS
from numerate.reports.table import text_table
from numerate.studies.folder import StudyFolder
from numerate.studies.running import Done
from numerate.studies.status import SHOWN
from numerate.studies.study import Study, run_study, survey
from numerate.training.run import runs_directory

MANY, MANY_RUNS = 12, 200
"""More variants, or runs, than this are shown as a short table instead of side by side."""


def command(given: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Mistake("run: starts processes of its own; under torchrun, `numerate train` is right, then `evaluate`")
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
        print(f"numerate: {what}; the same command goes on", file=sys.stderr)


def _summary(study: Study, folder: StudyFolder, folders: Sequence[Path]) -> str:
    """Heat maps side by side for a few variants, a short table for many."""
    runs = {f"{path.parent.name}/{path.name}" for path in folders}
    results = folder.results()
    variants: dict[str, list[Mapping[str, Any]]] = {}
    for planned in folder.plan():
        if planned.run in runs and planned.at in results:
            variants.setdefault(planned.label, []).append(results[planned.at])
    if len(variants) <= MANY and len(folders) <= MANY_RUNS:
        return summary(folders, study.labels)
    return short_table(study.title, variants)


def short_table(title: str, variants: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The best dozen of many variants, by the farthest region that was measured: medians over their runs."""
    there = {region for records in variants.values() for record in records for region in record["final"]}
    names = [region for region in REGIONS if region in there]
    rows = []
    for label, records in variants.items():
        means = [
            [record["final"][region]["mean"] for record in records if region in record["final"]] for region in names
        ]
        rows.append((label, len(records), [statistics.median(each) if each else None for each in means]))
    rows.sort(key=lambda row: [-1.0 if value is None else value for value in reversed(row[2])], reverse=True)
    shown = [
        [label, str(count), *("" if value is None else f"{value:.1%}" for value in values)]
        for label, count, values in rows[:MANY]
    ]
    more = f"{len(rows) - MANY} more: numerate results {title} group=label" if len(rows) > MANY else ""
    return "\n".join(filter(None, (text_table(["variant", "runs", *names], shown), more)))
