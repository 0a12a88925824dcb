"""`numerate run RECIPE|STUDY`: train, evaluate, report."""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.commands.recipes import RecipeRequest
from numerate.commands.showing import comparison_summary
from numerate.errors import UserError
from numerate.evaluation.labels import METRICS
from numerate.executors.slurm import Slurm
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read_records
from numerate.reports.comparable import NOT_COMPARABLE
from numerate.reports.grid import REGION_LABELS, format_percent
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group
from numerate.reports.language_records import is_language_record, number_text
from numerate.reports.limits import MAX_UNFOLDED_ROWS
from numerate.reports.records import Records, cell_from_record
from numerate.reports.success import SYMMETRY
from numerate.reports.table import text_table
from numerate.reports.tasks import group_by_task
from numerate.studies.folder import StudyFolder
from numerate.studies.running import RunOutcome
from numerate.studies.status import MAX_SHOWN_FAILURES
from numerate.studies.study import Study, preview_study, run_study
from numerate.training.run_folder import resolve_runs_dir

MAX_VARIANTS, MAX_RUNS = 12, 200
"""Above this number of variants or runs, a short table is shown instead of heat maps side by side."""


def command(args: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("run: starts its own processes; under torchrun use `numerate train`, then `evaluate`")
    request = RecipeRequest.from_args(args, "numerate run quickstart")
    study = request.study()
    print(f"{study.title}: {study.question}")
    if args.dry_run:
        return _dry_run(study, request)
    page, outcomes = run_study(study, runs_dir=request.runs_dir, executor=request.executor, retry=request.retry)
    _show_failures(study, outcomes, request.runs_dir, args.traceback)
    if page is not None:
        folders = [outcome.path for outcome in outcomes if outcome.path is not None and outcome.error is None]
        print(_summary(study, StudyFolder.from_title(study.title, resolve_runs_dir(request.runs_dir)), folders))
        print(f"\nreport: {page}")
    return max((one.exit_status for one in outcomes), default=0)


def _dry_run(study: Study, request: RecipeRequest) -> int:
    submits = isinstance(request.executor, Slurm)
    preview = preview_study(
        study, runs_dir=request.runs_dir, executor=request.executor, retry=request.retry, script=submits
    )
    print(preview)
    if preview.script is not None:
        print(f"\n{preview.script}")
    return 0


def _show_failures(study: Study, outcomes: Sequence[RunOutcome], runs_dir: str | None, traceback: bool) -> None:
    failed = [
        outcome
        for outcome in outcomes
        if outcome.error is not None and (not outcome.is_resumable or outcome.failure_kind == "died")
    ]
    for one in failed[:MAX_SHOWN_FAILURES]:
        print(f"numerate: {one.label}: {one.error}", file=sys.stderr)
        if one.traceback is not None and traceback:
            print(one.traceback, file=sys.stderr)
    if len(failed) > MAX_SHOWN_FAILURES:
        print(f"numerate: ... and {len(failed) - MAX_SHOWN_FAILURES} more failed runs", file=sys.stderr)
    if any(not one.is_resumable for one in failed):
        runs_dir_text = f" runs_dir={runs_dir}" if runs_dir is not None else ""
        print(
            f"numerate: retry=true runs failed ones again; `numerate status {study.title}{runs_dir_text}`",
            file=sys.stderr,
        )
    resumable = [one for one in outcomes if one.is_resumable]
    if resumable:
        ended = sum(one.error is None for one in outcomes)
        what = f"{ended:,} of {len(outcomes):,} runs are done, {len(resumable):,} remain"
        print(f"numerate: {what}; the same command resumes", file=sys.stderr)


def _summary(study: Study, folder: StudyFolder, folders: Sequence[Path]) -> str:
    """Heat maps side by side for a few variants, a short table for many."""
    runs = {f"{path.parent.name}/{path.name}": path for path in folders}
    results = folder.results()
    variants: dict[str, list[Mapping[str, Any]]] = {}
    groups: dict[str, Group] = {}
    for planned in folder.plan():
        if planned.run in runs and planned.result_key in results:
            variants.setdefault(planned.label, []).append(results[planned.result_key])
            if planned.label not in groups:
                groups[planned.label] = _group_from_run(planned.label, runs[planned.run], planned.tree)
    if len(variants) <= MAX_VARIANTS and len(folders) <= MAX_RUNS:
        return comparison_summary(folders, study.labels)
    return variants_table(study.title, variants, groups)


def _group_from_run(label: str, folder: Path, recipe: Mapping[str, Any]) -> Group:
    """What identifies the task of a variant: its recipe, and one evaluated cell."""
    first = read_records(folder / "evaluation.jsonl", EVALUATION)[:1]
    cells = [cell_from_record(record) for record in first if not is_language_record(record)]
    return Group(label, (Records(folder, {"recipe": recipe}, cells=cells),))


def variants_table(
    title: str, variants: Mapping[str, Sequence[Mapping[str, Any]]], groups: Mapping[str, Group] | None = None
) -> str:
    """A table of many variants for each task, the best in the farthest region first: medians over their runs; for
    labels, the accuracy on unseen counts with its baseline.

    `variants` has the results of their runs, `groups` the identity of their tasks, if known.
    """
    if language_variants := {
        label: records for label, records in variants.items() if any(map(_is_language_record, records))
    }:
        others = {label: records for label, records in variants.items() if label not in language_variants}
        return "\n\n".join(
            [_language_table(title, language_variants), *([variants_table(title, others, groups)] if others else [])]
        )
    tasks = group_by_task(list(groups.values())) if groups else []
    labels_by_task = [(task.name, [group.label for group in task.groups]) for task in tasks] or [("", list(variants))]
    parts, any_converged = [], False
    for name, labels in labels_by_task:
        rows = [_variant_row(label, variants[label], groups[label] if groups else None) for label in labels]
        header = [region for region in REGION_LABELS if any(region in row.text for row in rows)]
        has_converged = any(row.converged for row in rows)
        any_converged = any_converged or has_converged
        rows.sort(key=lambda row: [row.median.get(region, -1.0) for region in reversed(header)], reverse=True)
        shown = [
            [
                row.label,
                str(row.runs),
                *([row.converged] * has_converged),
                *(row.text.get(region, "") for region in header),
            ]
            for row in rows[:MAX_UNFOLDED_ROWS]
        ]
        parts.append(
            f"{name}\n" * bool(name) + text_table(["variant", "runs", *(["converged"] * has_converged), *header], shown)
        )
        if len(rows) > MAX_UNFOLDED_ROWS:
            parts[-1] += f"\n{len(rows) - MAX_UNFOLDED_ROWS} more: numerate results {title} group=label"
    labelled = any("labels" in region for each in variants.values() for one in each for region in one["final"].values())
    what = (
        f"{METRICS['ood_accuracy']} (trained: {METRICS['accuracy']}), in brackets the baseline"
        if labelled
        else "exact match"
    )
    note = f"Medians over runs, {what}."
    note += f" Converged: at least {format_percent(CONVERGENCE_THRESHOLD)} % correct in distribution." * any_converged
    return "\n\n".join([*parts, note])


def _is_language_record(record: Mapping[str, Any]) -> bool:
    return any("language" in region for region in record["final"].values())


def _language_table(title: str, variants: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of language modeling variants, lowest bits per byte first: medians over their runs."""
    names = ("loss", "perplexity", "bits_per_byte")
    rows = []
    for label, records in variants.items():
        language_metrics = [
            record["final"]["in_distribution"]["language"] for record in records if "in_distribution" in record["final"]
        ]
        values_by_metric = [[one[name] for one in language_metrics if one.get(name) is not None] for name in names]
        rows.append(
            (label, len(records), [statistics.median(values) if values else None for values in values_by_metric])
        )
    rows.sort(key=lambda row: [value if value is not None else float("inf") for value in reversed(row[2])])
    shown = [[label, str(runs), *map(number_text, medians)] for label, runs, medians in rows[:MAX_UNFOLDED_ROWS]]
    table = text_table(["variant", "runs", "loss", "perplexity", "bits per byte"], shown)
    more = f"\n{len(rows) - MAX_UNFOLDED_ROWS} more: numerate results {title} group=label" * (
        len(rows) > MAX_UNFOLDED_ROWS
    )
    note = "Medians over runs, final checkpoint, full validation text; loss in nats per token."
    return f"{table}{more}\n\n{note}"


@dataclass(frozen=True)
class _VariantRow:
    """A line of the table: the median of its runs by region, also as text."""

    label: str
    runs: int
    converged: str
    median: Mapping[str, float]
    text: Mapping[str, str]


def _variant_row(label: str, records: Sequence[Mapping[str, Any]], group: Group | None) -> _VariantRow:
    found = [record["final"] for record in records]
    medians, text = {}, {}
    for region in REGION_LABELS:
        scores = [_region_score(one[region], region) for one in found if region in one]
        if scores:
            medians[region] = statistics.median(value for value, _ in scores)
            baselines = [baseline for _, baseline in scores if baseline is not None]
            text[region] = f"{medians[region]:.1%}" + f" ({max(baselines, default=0.0):.1%})" * bool(baselines)
    trained = [
        _region_score(one["in_distribution"], "in_distribution")[0] >= CONVERGENCE_THRESHOLD
        for one in found
        if "in_distribution" in one
    ]
    parts = group is not None and group.has_unordered_cells
    converged = f"{sum(trained)}/{len(trained)}" if trained and not parts else ""
    if trained and not parts and not any(trained):
        converged = f"no, {SYMMETRY}" if group is not None and group.is_limited_by_symmetry else "none"
    reasons = [
        region["non_causal_reason"] for one in found for region in one.values() if region.get("non_causal_reason")
    ]
    return _VariantRow(label, len(records), NOT_COMPARABLE if reasons else converged, medians, text)


def _region_score(region: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    """The score of a region, with its baseline; for labels, the accuracy on unseen counts, or on all counts in
    distribution."""
    labels = region.get("labels", {})
    found = labels.get("accuracy" if name == "in_distribution" else "ood_accuracy")
    if found is None:
        return region["mean"], None
    return found["value"], None if name == "in_distribution" else found["baseline"]
