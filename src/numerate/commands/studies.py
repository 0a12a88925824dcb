"""`run` and `search`: many runs with one question."""

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from numerate.commands.compare import comparison_summary
from numerate.commands.runs import sweep
from numerate.errors import UserError
from numerate.evaluation.labels import METRICS
from numerate.executors.executor import Executor
from numerate.executors.local import Local
from numerate.executors.slurm import Slurm
from numerate.experiments.train import debug
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
from numerate.searches import search as searching
from numerate.studies.folder import StudyFolder
from numerate.studies.naming import load_recipe, load_recipe_or_study
from numerate.studies.running import RunOutcome
from numerate.studies.status import MAX_SHOWN_FAILURES
from numerate.studies.study import Study, preview_study, run_study
from numerate.training.run_folder import resolve_runs_dir

MAX_VARIANTS, MAX_RUNS = 12, 200
"""Above this number of variants or runs, a short table is shown instead of heat maps side by side."""

Variants = Mapping[str, Sequence[Mapping[str, Any]]]
"""The results of the runs of each variant, by its label."""


def _refuse_torchrun(advice: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"this command starts its own processes; {advice}")


def load_study(name: str, settings: Sequence[str], preset: str | None = None) -> Study:
    """A study, or the sweep of a recipe as one."""
    found = load_recipe_or_study(name)
    if not isinstance(found, Study):
        recipes = tuple(sweep(load_recipe(name), settings, preset))
        question = f"A sweep of {name}." if len(recipes) > 1 else f"One run of {name}."
        return Study(recipes[0].title, question, recipes)
    if preset == "debug":
        labels = {f"{title}-debug": label for title, label in found.labels.items()}
        recipes = tuple(map(debug, found.recipes))
        found = replace(found, recipes=recipes, title=f"{found.title}-debug", labels=labels)
    return found.sweep(settings)


def run(
    name: str,
    *,
    settings: Sequence[str],
    executor: Executor | None,
    traceback: bool,
    preset: str | None = None,
    retry: bool = False,
    runs_dir: str | None = None,
    dry_run: bool = False,
) -> int:
    """Trains, evaluates and reports a recipe or study; returns the highest exit status of its runs."""
    _refuse_torchrun("under torchrun use `numerate train`, then `evaluate`")
    study = load_study(name, settings, preset)
    print(f"{study.title}: {study.question}")
    if dry_run:
        is_submitted = isinstance(executor, Slurm)
        preview = preview_study(study, runs_dir=runs_dir, executor=executor, retry=retry, script=is_submitted)
        print(f"{preview}" if preview.script is None else f"{preview}\n\n{preview.script}")
        return 0
    page, outcomes = run_study(study, runs_dir=runs_dir, executor=executor, retry=retry)
    _show_failures(study, outcomes, runs_dir, traceback)
    if page is not None:
        folders = [outcome.path for outcome in outcomes if outcome.path is not None and outcome.error is None]
        print(_summary(study, StudyFolder.from_title(study.title, resolve_runs_dir(runs_dir)), folders))
        print(f"\nreport: {page}")
    return max((one.exit_status for one in outcomes), default=0)


def search(
    name: str,
    *,
    settings: Sequence[str],
    executor: Executor | None,
    traceback: bool,
    parts: Sequence[str],
    **options: Any,
) -> int:
    """Searches the settings of a recipe; the other options are those of `numerate.search`."""
    _refuse_torchrun("run it without torchrun")
    command_words = [name, *([f"runs_dir={options['runs_dir']}"] if "runs_dir" in options else [])]
    command_words += [word for path in parts for word in ("--parts", path)]
    result = searching.search(
        load_recipe(name), settings, executor=executor or Local(), command_words=command_words, **options
    )
    print(result)
    if traceback:
        for trial in result.trials:
            print(trial.results.get("traceback", ""), end="", file=sys.stderr)
    none_complete = not result.num_left and not result.ranked_trials
    return result.exit_status or int(none_complete)


def _show_failures(study: Study, outcomes: Sequence[RunOutcome], runs_dir: str | None, traceback: bool) -> None:
    failed = [one for one in outcomes if one.error and (not one.is_resumable or one.failure_kind == "died")]
    lines = []
    for one in failed[:MAX_SHOWN_FAILURES]:
        lines.append(f"{one.label}: {one.error}")
        if one.traceback is not None and traceback:
            lines.append(one.traceback)
    if len(failed) > MAX_SHOWN_FAILURES:
        lines.append(f"... and {len(failed) - MAX_SHOWN_FAILURES} more failed runs")
    if any(not one.is_resumable for one in failed):
        where = f" runs_dir={runs_dir}" if runs_dir is not None else ""
        lines.append(f"retry=true runs failed ones again; `numerate status {study.title}{where}`")
    if remaining := sum(one.is_resumable for one in outcomes):
        ended = sum(one.error is None for one in outcomes)
        lines.append(f"{ended:,} of {len(outcomes):,} runs are done, {remaining:,} remain; the same command resumes")
    for line in lines:
        print(f"numerate: {line}", file=sys.stderr)


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


def variants_table(title: str, variants: Variants, groups: Mapping[str, Group] | None = None) -> str:
    """A table of many variants for each task, the best in the farthest region first: medians over their runs; for
    labels, the accuracy on unseen counts with its baseline; for language modeling, the lowest loss first.

    `groups` has the identity of their tasks, if known.
    """
    texts = {label: records for label, records in variants.items() if any(map(_is_of_text, records))}
    others = {label: records for label, records in variants.items() if label not in texts}
    parts = [_language_table(title, texts)] if texts else []
    if others:
        tasks = group_by_task([groups[label] for label in others]) if groups else []
        labels_by_task = [(task.name, [group.label for group in task.groups]) for task in tasks] or [("", [*others])]
        rows_by_task = [
            (name, [_variant_row(label, others[label], (groups or {}).get(label)) for label in labels])
            for name, labels in labels_by_task
        ]
        is_labelled = any("labels" in one for each in others.values() for run in each for one in run["final"].values())
        baseline = f"{METRICS['ood_accuracy']} (trained: {METRICS['accuracy']}), in brackets the baseline"
        note = f"Medians over runs, {baseline if is_labelled else 'exact match'}."
        if any(row.converged for _, rows in rows_by_task for row in rows):
            note += f" Converged: at least {format_percent(CONVERGENCE_THRESHOLD)} % correct in distribution."
        parts += [*(_task_table(title, name, rows) for name, rows in rows_by_task), note]
    return "\n\n".join(parts)


def _is_of_text(record: Mapping[str, Any]) -> bool:
    return any("language" in region for region in record["final"].values())


def _first_rows(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    more = len(rows) - MAX_UNFOLDED_ROWS
    note = f"\n{more} more: numerate results {title} group=label" * (more > 0)
    return text_table(header, rows[:MAX_UNFOLDED_ROWS]) + note


def _language_table(title: str, variants: Variants) -> str:
    """A table of language modeling variants, lowest bits per byte first: medians over their runs."""
    names, medians = ("loss", "perplexity", "bits_per_byte"), {}
    for label, records in variants.items():
        trained = [record["final"]["in_distribution"] for record in records if "in_distribution" in record["final"]]
        values = [[one["language"][name] for one in trained if one["language"].get(name) is not None] for name in names]
        medians[label] = [statistics.median(each) if each else None for each in values]
    order = sorted(medians, key=lambda label: [float("inf") if x is None else x for x in reversed(medians[label])])
    rows = [[label, str(len(variants[label])), *map(number_text, medians[label])] for label in order]
    table = _first_rows(title, ["variant", "runs", "loss", "perplexity", "bits per byte"], rows)
    return f"{table}\n\nMedians over runs, final checkpoint, full validation text; loss in nats per token."


def _task_table(title: str, name: str, rows: list["_VariantRow"]) -> str:
    regions = [region for region in REGION_LABELS if any(region in row.medians for row in rows)]
    has_converged = any(row.converged for row in rows)
    best_first = sorted(rows, key=lambda row: [-row.medians.get(region, -1.0) for region in reversed(regions)])
    cells = [
        [row.label, row.runs, *[row.converged] * has_converged, *(row.texts.get(region, "") for region in regions)]
        for row in best_first
    ]
    table = _first_rows(title, ["variant", "runs", *["converged"] * has_converged, *regions], cells)
    return f"{name}\n" * bool(name) + table


class _VariantRow(NamedTuple):
    """A line of the table: the median of its runs by region, also as text."""

    label: str
    runs: str
    converged: str
    medians: dict[str, float]
    texts: dict[str, str]


def _variant_row(label: str, records: Sequence[Mapping[str, Any]], group: Group | None) -> _VariantRow:
    finals = [record["final"] for record in records]
    medians, texts, converged = {}, {}, ""
    for name in REGION_LABELS:
        if scores := [_region_score(final[name], name) for final in finals if name in final]:
            medians[name] = statistics.median(score for score, _ in scores)
            baselines = [baseline for _, baseline in scores if baseline is not None]
            texts[name] = f"{medians[name]:.1%}" + f" ({max(baselines, default=0.0):.1%})" * bool(baselines)
    name = "in_distribution"
    learned = [_region_score(one[name], name)[0] >= CONVERGENCE_THRESHOLD for one in finals if name in one]
    if any(region.get("non_causal_reason") for final in finals for region in final.values()):
        converged = NOT_COMPARABLE
    elif learned and not (group is not None and group.has_unordered_cells):
        is_limited = group is not None and group.is_limited_by_symmetry
        none = f"no, {SYMMETRY}" if is_limited else "none"
        converged = f"{sum(learned)}/{len(learned)}" if any(learned) else none
    return _VariantRow(label, str(len(records)), converged, medians, texts)


def _region_score(region: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    """The score of a region, with its baseline; for labels, the accuracy on unseen counts, or on all counts in
    distribution."""
    labels, is_trained = region.get("labels", {}), name == "in_distribution"
    found = labels.get("accuracy" if is_trained else "ood_accuracy")
    if found is None:
        return region["mean"], None
    return found["value"], None if is_trained else found["baseline"]
