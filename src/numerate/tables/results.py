"""The results of a study as one table: a row per run of its plan, including those that failed or have not started."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from numerate.evaluation import answer_metrics
from numerate.evaluation.labels import METRICS
from numerate.executors.executor import FailureKind
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read_bytes, read_records
from numerate.reports.grid import REGION_LABELS
from numerate.reports.groups import format_settings
from numerate.studies.folder import PlannedRun, StudyFolder, is_failed
from numerate.studies.state import has_ended, is_lost
from numerate.studies.status import runs_of
from numerate.tables.differing import differing_settings
from numerate.tables.rows import Column, LazyRows, Row, Value, infer_type
from numerate.tables.showing import select_informative_columns, short_names, single_line
from numerate.tables.table import Table
from numerate.training.run_folder import folder_name, resolve_runs_dir

if TYPE_CHECKING:
    from numerate.studies.study import Study

RUN_STATUSES = ("done", "failed", "running", "left")
"""The state of a run. A run that was stopped, or whose worker died, is `left`: the same command resumes it."""

PLANS = ("current", "earlier")
"""Whether a run was requested by the last command, or only by earlier ones."""

_TRAINING_COLUMNS = (
    Column("step", int, "count"),
    Column("examples", int, "count"),
    Column("tokens", int, "count"),
    Column("flops", float, "number"),
    Column("loss", float, "number"),
    Column("validation_exact_match", float, "share"),
    Column("ood_validation_exact_match", float, "share"),
    Column("best_step", int, "count"),
)
_LANGUAGE_TRAINING_COLUMNS = (
    Column("validation_loss", float, "number"),
    Column("validation_perplexity", float, "number"),
    Column("validation_bits_per_byte", float, "number"),
)
"""The last training metrics of language modeling runs, instead of accuracies."""
_CHECKPOINTS = ("final", "best")
_SHOWN_ERRORS = 5
"""Maximum number of different errors listed below a table; `where=status=failed columns=label,seed,error` has all."""

REGION_NOTE = (
    "final: the last checkpoint; best: the best checkpoint on OOD validation, which therefore has no column for it. "
    "Exact match, mean over the cells of each region."
)
LABEL_NOTE = (
    "ood_accuracy, accuracy, last_label and correct_prefix: metrics of all labels of a region; baseline: the score of "
    "memorizing the trained counts or of the best constant answer."
)
ANSWER_NOTE = (
    "Metrics of numbers and texts are over all questions of a region; those with (mean of modules) after the name are "
    "means over the cells, equally weighted. r2 and mae are of the numbers, log_r2 and log_mae of sign(x) "
    "log10(|x| + 1)."
)
LANGUAGE_NOTE = (
    "final: the last checkpoint; best: the one with the lowest loss on the validation split. For language modeling, "
    "loss is in nats per token and depends on the tokenizer, as perplexity, its exp, does; bits per byte does not. "
    "Intervals (.low, .high) are for sampling of the text; group=label shows the variation over seeds."
)
LANGUAGE_METRICS = ("loss", "perplexity", "bits_per_byte", "token_accuracy")
"""The metrics of language modeling that have columns."""
_LANGUAGE_RECORD_KEYS = {
    "loss.low": "low",
    "loss.high": "high",
    "bits_per_byte.low": "bits_low",
    "bits_per_byte.high": "bits_high",
}
DEFAULT_ANSWER_METRICS = ("number_accuracy", "mae", "log_mae", "log_r2", "bleu", "perplexity")
"""The metrics of numbers and texts that are displayed by default."""

LABEL_METRICS = tuple(name for name in METRICS if name != "exact_match")
"""The metrics of labels that have separate columns, after exact match."""


def results_of(study: "Study | str | Path", runs_dir: str | Path | None = None) -> Table:
    """The results of a study, given its title, its path, or the study itself; torch is not imported.

        table = results_of("abacus_laptop")
        table.select("label", "seed", "final.ood_test").write("ood_test.csv")
        table.group_by("label")

    A row per run of the current plan, and per completed run of earlier plans: `run` (its path below the folder of
    runs), `label`, `seed`, `status`; `plan`, if some are of earlier ones; each setting in which runs differ, by its
    path; the last metrics of training; per region the mean exact match of the `final` and the `best` checkpoint with
    its interval over questions (`final.ood_test`, `final.ood_test.low`, `final.ood_test.high`); for labels also their
    metrics with interval and baseline (`final.ood_test.ood_accuracy`, `final.ood_test.ood_accuracy.baseline`;
    `accuracy`, `last_label` and `correct_prefix` alike); for numbers or texts each metric of
    `numerate.evaluation.answer_metrics` (`final.ood_test.log_mae`, `final.ood_test.log_mae (mean of modules)`);
    `non_causal_reason`, if the model is not causal, so that scores are meaningless; `seconds` of all its sessions
    (without the time of a killed process after its last checkpoint) and `worker`; and for failed runs, the kind of
    `failure` and the `error`.

    Raises `UserError` if there is no such study.
    """
    address = os.fspath(study) if isinstance(study, str | os.PathLike) else folder_name(study.title)
    folder = StudyFolder.find(address, resolve_runs_dir(runs_dir))
    all_runs = folder.all_runs()
    records, done = folder.results(), folder.done_results(all_runs)
    plan = [planned for planned in all_runs if planned.current or planned.run in done]
    running_runs = {
        run for state in folder.states() if not has_ended(state) and not is_lost(state) for run in runs_of(state)
    }
    run_records = [records.get(planned.result_key, {}) for planned in plan]
    statuses = [_status(planned, record, done, running_runs) for planned, record in zip(plan, run_records, strict=True)]
    labels = _labels(plan, folder.metadata()["labels"])
    settings = differing_settings(plan)
    columns: list[tuple[Column, list[Value]]] = [
        (Column("run", is_identifier=True), [planned.run for planned in plan]),
        (Column("label", is_identifier=True), list(labels)),
        (Column("seed", int, is_identifier=True), [planned.seed for planned in plan]),
        (Column("status", categories=RUN_STATUSES), list(statuses)),
        *([_plan_column(plan)] if not all(planned.current for planned in plan) else []),
        *((_setting_column(path, values), _cast_to_common_type(values)) for path, values in settings.items()),
    ]
    identifier_columns = [(column, values) for column, values in columns if column.name != "status"]
    done_records = [record if status == "done" else {} for record, status in zip(run_records, statuses, strict=True)]
    has_language_metrics = any("validation_loss" in record for record in done_records)
    for column in (
        *_TRAINING_COLUMNS,
        *(_LANGUAGE_TRAINING_COLUMNS if has_language_metrics else ()),
        *_region_columns(done_records),
    ):
        columns.append((column, [column.cast(_lookup(record, column.name)) for record in done_records]))
    reasons = [_non_causal_reason(record) for record in done_records]
    if any(reason is not None for reason in reasons):
        columns.append((Column("non_causal_reason", is_default=True), list(reasons)))
    for column, path in _STATUS_COLUMNS:
        columns.append((column, [column.cast(_lookup(record, path)) for record in run_records]))
    rows = list(zip(*(values for _, values in columns), strict=True)) if plan else []

    def cells(run_names: Collection[str]) -> Table:
        return _cells_table(folder.runs_dir, identifier_columns, done.keys() & set(run_names))

    return Table(tuple(column for column, _ in columns), rows, "runs", _default_view, load_cells=cells)


_STATUS_COLUMNS = (
    (Column("seconds", float, "number"), "timing.seconds"),
    (Column("worker"), "timing.worker"),
    (Column("stop_reason"), "stop_reason"),
    (Column("failure", categories=get_args(FailureKind)), "failure"),
    (Column("error"), "error"),
)


def _plan_column(plan: Sequence[PlannedRun]) -> tuple[Column, list[Value]]:
    return Column("plan", categories=PLANS, is_identifier=True), [
        PLANS[0 if planned.current else 1] for planned in plan
    ]


def _status(planned: PlannedRun, record: Mapping[str, Any], done: Collection[str], begun: Collection[str]) -> str:
    if planned.run in done:
        return "done"
    if planned.run in begun:
        return "running"
    return "failed" if is_failed(record) else "left"


def _labels(plan: Sequence[PlannedRun], labels: Mapping[str, str]) -> list[str]:
    """The labels of the runs without their settings, which have separate columns."""
    found = []
    for planned in plan:
        known = (labels.get(planned.base), planned.base_tree.get("name"), planned.base)
        begins = (name for name in known if name and f"{planned.label} (".startswith(f"{name} ("))
        found.append(next(begins, planned.label))
    return found


def _setting_column(path: str, values: Sequence[Value]) -> Column:
    return Column(path, infer_type(values), is_identifier=True)


def _cast_to_common_type(values: Sequence[Value]) -> list[Value]:
    """Converts values of several types to the type of their column."""
    kind = infer_type(values)
    if kind is str:
        return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return [float(value) if kind is float and value is not None else value for value in values]


def _region_columns(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """For each checkpoint, the regions that any run has, nearest to training first."""
    columns = []
    for checkpoint in _CHECKPOINTS:
        names = dict.fromkeys(name for record in records for name in record.get(checkpoint) or {})
        ordered = [
            *(name for name in REGION_LABELS if name in names),
            *(name for name in names if name not in REGION_LABELS),
        ]
        for name in ordered:
            if (
                checkpoint == "best" and name == "ood_validation"
            ):  # the best checkpoint was selected there, so its score is biased
                continue
            path = f"{checkpoint}.{name}"
            regions = [(record.get(checkpoint) or {}).get(name) or {} for record in records]
            if any("language" in region for region in regions):
                columns += _language_columns(path)
                continue
            labelled = any("labels" in region for region in regions)
            # For labels, the best checkpoint has only its main metric, to limit the width of a row.
            columns.append(Column(path, float, "share", is_default=not labelled or checkpoint == "final"))
            columns += [Column(f"{path}.{end}", float, "share") for end in ("low", "high")]
            for label_metric in LABEL_METRICS if labelled else ():
                if any(label_metric in region.get("labels", {}) for region in regions):
                    main = label_metric == ("accuracy" if name == "in_distribution" else "ood_accuracy")
                    columns.append(Column(f"{path}.{label_metric}", float, "share", is_default=main))
                    columns += [Column(f"{path}.{label_metric}.{end}", float, "share") for end in ("low", "high")]
                    has_baseline = main and name != "in_distribution"
                    columns.append(Column(f"{path}.{label_metric}.baseline", float, "share", is_default=has_baseline))
            for metric in answer_metrics.METRIC_NAMES:
                if any(region.get("answers", {}).get(metric) is not None for region in regions):
                    shown: Literal["share", "number"] = (
                        "share" if answer_metrics.base_metric(metric) in answer_metrics.PROPORTION_METRICS else "number"
                    )
                    main = checkpoint == "final" and metric in DEFAULT_ANSWER_METRICS
                    columns.append(Column(f"{path}.{metric}", float, shown, is_default=main))
                    if metric == "number_accuracy":
                        columns += [Column(f"{path}.{metric}.{end}", float, "share") for end in ("low", "high")]
            for score in dict.fromkeys(name for region in regions for name in region.get("answers", {})):
                if not answer_metrics.is_answer_metric(score.removesuffix(".low").removesuffix(".high")):
                    main = checkpoint == "final" and not score.endswith((".low", ".high"))
                    columns.append(Column(f"{path}.{score}", float, "share", is_default=main))
    return columns


def _language_columns(path: str) -> list[Column]:
    """The columns of language modeling below the name of a checkpoint and a context."""
    found = []
    for name in LANGUAGE_METRICS:
        kind: Literal["share", "number"] = "share" if name == "token_accuracy" else "number"
        found.append(Column(f"{path}.{name}", float, kind, is_default=name != "token_accuracy"))
        found += [Column(f"{path}.{end}", float, kind) for end in _LANGUAGE_RECORD_KEYS if end.startswith(f"{name}.")]
    return found


def _non_causal_reason(record: Mapping[str, Any]) -> str | None:
    """Why the model of a run is not causal, if it is not; its scores are then meaningless."""
    regions = [region for name in _CHECKPOINTS for region in (record.get(name) or {}).values()]
    return next((str(region["non_causal_reason"]) for region in regions if region.get("non_causal_reason")), None)


def _lookup(record: Mapping[str, Any], name: str) -> Any:
    """The value of a record in a column; a region's mean is in the column of the region."""
    checkpoint, dot, region = name.partition(".")
    if checkpoint in _CHECKPOINTS and dot:
        region, _, end = region.partition(".")
        known = (record.get(checkpoint) or {}).get(region) or {}
        if "language" in known:
            return known["language"].get(_LANGUAGE_RECORD_KEYS.get(end, end))
        answers = known.get("answers") or {}
        if end in answers or answer_metrics.is_answer_metric(end.removesuffix(".low").removesuffix(".high")):
            return answers.get(end)
        metric, _, end = end.partition(".") if end.partition(".")[0] in LABEL_METRICS else ("", "", end)
        if metric:
            labels = ((record.get(checkpoint) or {}).get(region) or {}).get("labels", {})
            return (labels.get(metric) or {}).get(end or "value")
        return ((record.get(checkpoint) or {}).get(region) or {}).get(end or "mean")
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _default_view(table: Table) -> Table:
    """The identifying columns and results of the runs, followed by notes on missing runs."""
    names = table.names
    rows = list(table.rows)
    statuses = [row[names.index("status")] for row in rows]
    is_language_modeling = any(name.endswith(".bits_per_byte") for name in names)
    notes = (
        [LANGUAGE_NOTE if is_language_modeling else REGION_NOTE]
        if any(column.is_default for column in table.columns)
        else []
    )
    notes += [LABEL_NOTE] if any(name.endswith(".baseline") for name in names) else []
    notes += (
        [ANSWER_NOTE]
        if not is_language_modeling and any(name.rpartition(".")[2] in answer_metrics.ANSWER_METRICS for name in names)
        else []
    )
    if "non_causal_reason" in names:
        notes += [
            f"not comparable (non-causal): {reason}"
            for reason in dict.fromkeys(table["non_causal_reason"])
            if reason is not None
        ]
    if "plan" in names:
        earlier = sum(plan == "earlier" for plan in table["plan"])
        notes.append(f"{earlier:,} of earlier plans, not of the current one; where=plan=current leaves them out")
    if any(status != "done" for status in statuses):
        counted = ", ".join(f"{statuses.count(name):,} {name}" for name in RUN_STATUSES if name in statuses)
        notes.append(f"{len(rows):,} {'run' if len(rows) == 1 else 'runs'}: {counted}")
    shown = select_informative_columns(table)
    notes += _error_notes(table, shown)
    return replace(shown, notes=tuple(notes))


def _error_notes(table: Table, shown: Table) -> list[str]:
    """Failed runs, grouped by error."""
    names = short_names(shown)
    identifying = [i for i, column in enumerate(shown.columns) if column.is_identifier]
    errors: dict[str, list[str]] = {}
    for row, shown_row in zip(table, shown.rows, strict=True):
        if row["status"] == "failed":
            text = single_line(str(row["error"] or "no error message was recorded"))
            kind = row["failure"]
            text = text if kind in ("user error", "operational error", "error", None) else f"{kind}: {text}"
            identifiers = [
                str(shown_row[i]) if names[i] == "label" else f"{names[i]} {shown_row[i]}" for i in identifying
            ]
            errors.setdefault(text, []).append(" ".join(identifiers))
    found = []
    for error, runs in list(errors.items())[:_SHOWN_ERRORS]:
        more = f" and {len(runs) - 3:,} more" if len(runs) > 3 else ""
        found.append(f"failed: {', '.join(runs[:3])}{more}: {error}")
    if len(errors) > _SHOWN_ERRORS:
        found.append(f"... and {len(errors) - _SHOWN_ERRORS:,} other errors; columns=label,seed,error has them all")
    return found


# Cells ------------------------------------------------------------------------------------------------------------

_CELL = re.compile(rb'"cell": ?\{([^{}]*)\}')
_AXIS = re.compile(rb'"([^"]+)": ?')
_CELL_COLUMNS = (
    (Column("correct", int, "count"), "correct"),
    (Column("count", int, "count"), "count"),
    (Column("exact_match", float, "share", is_default=True), None),
    (Column("low", float, "share"), "low"),
    (Column("high", float, "share"), "high"),
    (Column("digit_accuracy", float, "share"), "digit_accuracy"),
    (Column("first_token_correct", int, "count"), "first_token_correct"),
    (Column("overlaps_training", bool), "overlaps_training"),
    (Column("method"), "method"),
)
"""The measurements of a cell, with their names in a record."""
_LABEL_COLUMNS = tuple(
    (Column(f"{name}{end}", float, "share", is_default=name == "ood_accuracy"), name, end)
    for name in LABEL_METRICS
    for end in ("", ".baseline")
)
"""Further columns for labels of a cell, with the metric and whether it is its baseline."""
_LANGUAGE_COLUMNS = (
    (Column("loss", float, "number", is_default=True), "loss"),
    (Column("loss.low", float, "number"), "low"),
    (Column("loss.high", float, "number"), "high"),
    (Column("perplexity", float, "number", is_default=True), "perplexity"),
    (Column("bits_per_byte", float, "number", is_default=True), "bits_per_byte"),
    (Column("tokens", int, "count"), "tokens"),
    (Column("bytes", int, "count"), "bytes"),
)
"""The metrics of a portion of a corpus, instead of those of a cell."""
_ANSWER_COLUMNS = tuple(
    Column(
        name,
        float,
        "share" if name in answer_metrics.PROPORTION_METRICS else "number",
        is_default=name in DEFAULT_ANSWER_METRICS,
    )
    for name in answer_metrics.ANSWER_METRICS
)
"""Further columns for numbers and texts of a cell."""


def _cells_table(
    runs: Path, identifier_columns: Sequence[tuple[Column, list[Value]]], run_names: Collection[str]
) -> Table:
    """A row per run, checkpoint, position offset and cell, of done runs. The files are read twice: for the axes, and
    for the rows."""
    run_rows = [row for row in zip(*(values for _, values in identifier_columns), strict=True) if row[0] in run_names]
    used_names = {
        "checkpoint",
        "step",
        "position_offset",
        "settings",
        "region",
        *(column.name for column, _ in _CELL_COLUMNS),
    }
    used_names |= (
        {column.name for column in _ANSWER_COLUMNS}
        | {column.name for column, _, _ in _LABEL_COLUMNS}
        | {column.name for column, _ in identifier_columns}
    )
    axes: dict[str, Column] = {}
    has_labels = has_answers = is_language_modeling = False
    for row in run_rows:
        content = read_bytes(runs / str(row[0]) / "evaluation.jsonl")
        has_labels = has_labels or b'"labels":' in content
        has_answers = has_answers or b'"metrics":' in content
        is_language_modeling = is_language_modeling or b'"language":' in content
        for name in _axis_names(content):
            axes.setdefault(name, Column(f"cell.{name}" if name in used_names else name, int, is_identifier=True))
    present_names = {column.name for column, _ in identifier_columns} | {
        column.name for column in _ANSWER_COLUMNS if has_answers
    }
    language_columns = [one for one in _LANGUAGE_COLUMNS if is_language_modeling and one[0].name not in present_names]
    columns = (
        *(column for column, _ in identifier_columns),
        Column("checkpoint", is_identifier=True),
        Column("step", int, "count"),
        Column("position_offset", int, is_identifier=True),
        Column("settings", is_identifier=True),
        Column("region", is_identifier=True, categories=tuple(REGION_LABELS)),
        *axes.values(),
        *(column for column, _ in _CELL_COLUMNS),
        *(column for column, _, _ in _LABEL_COLUMNS if has_labels),
        *(column for column in _ANSWER_COLUMNS if has_answers),
        *(column for column, _ in language_columns),
    )

    def rows() -> Iterator[Row]:
        for row in run_rows:
            for record in read_records(runs / str(row[0]) / "evaluation.jsonl", EVALUATION):
                of_labels = _label_values(record) if has_labels else ()
                of_answers = _answer_values(record) if has_answers else ()
                of_texts = (column.cast(record.get(name)) for column, name in language_columns)
                yield (*row, *_cell_values(record, axes), *of_labels, *of_answers, *of_texts)

    return Table(columns, LazyRows(rows), "cells", select_informative_columns)


def _cell_values(record: Mapping[str, Any], axes: Mapping[str, Column]) -> list[Value]:
    cell, count = record.get("cell") or {}, record.get("count")
    found: list[Value] = [
        record.get("checkpoint"),
        record.get("step"),
        record.get("position_offset"),
        format_settings(record["settings"]) if record.get("settings") else None,
        record.get("region"),
        *(cell.get(axis) for axis in axes),
    ]
    exact = record.get("correct", 0) / count if count else None
    if "language" in record:  # there is no exact match, and the interval is that of the loss
        return found + [column.cast(record.get(name)) if name == "count" else None for column, name in _CELL_COLUMNS]
    found += [exact if name is None else column.cast(record.get(name)) for column, name in _CELL_COLUMNS]
    return found


def _label_values(record: Mapping[str, Any]) -> list[Value]:
    found = record.get("labels") or {}
    return [
        column.cast((found.get("baseline") or {}).get(name) if end else found.get(name))
        for column, name, end in _LABEL_COLUMNS
    ]


def _answer_values(record: Mapping[str, Any]) -> list[Value]:
    metrics = {name: value for kind in ("numbers", "texts") for name, value in _record_metrics(record, kind).items()}
    return [column.cast(metrics.get(column.name)) for column in _ANSWER_COLUMNS]


def _record_metrics(record: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (record.get(kind) or {}).get("metrics") or {}


def _axis_names(content: bytes) -> Iterator[str]:
    """The names of the axes of all cells in a file, found without reading each record."""
    shapes = dict.fromkeys(re.sub(rb"-?\d+", b"", cell) for cell in _CELL.findall(content))
    yield from dict.fromkeys(name.decode(errors="replace") for shape in shapes for name in _AXIS.findall(shape))
