"""The results of a study as a DataFrame: a row per run of its plan, including those that failed or have not started."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.evaluation import answer_metrics
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read_bytes, read_records
from numerate.reports.grid import REGION_LABELS
from numerate.reports.settings import format_settings
from numerate.studies.folder import PlannedRun, StudyFolder, is_failed
from numerate.studies.state import has_ended, is_lost
from numerate.studies.status import runs_of
from numerate.tables.differing import differing_settings
from numerate.tables.selecting import LABEL_METRICS, LANGUAGE_METRICS, is_identifier
from numerate.training.run_folder import folder_name, resolve_runs_dir

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from numerate.studies.study import Study

_DTYPES = {int: "Int64", float: "float64", bool: "boolean", str: "string"}

_TRAINING_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("step", "examples", "tokens"), int),
    **dict.fromkeys(("flops", "loss", "validation_exact_match", "ood_validation_exact_match"), float),
    "best_step": int,
}
_LANGUAGE_TRAINING_COLUMNS = ("validation_loss", "validation_perplexity", "validation_bits_per_byte")
"""The last training metrics of language modeling runs, instead of accuracies."""

_STATUS_COLUMNS = {
    "seconds": ("timing.seconds", float),
    "worker": ("timing.worker", str),
    "stop_reason": ("stop_reason", str),
    "failure": ("failure", str),
    "error": ("error", str),
}
_CHECKPOINTS = ("final", "best")
_ENDS = ("", ".low", ".high")
_LANGUAGE_RECORD_KEYS = {
    "loss.low": "low",
    "loss.high": "high",
    "bits_per_byte.low": "bits_low",
    "bits_per_byte.high": "bits_high",
}


def results_of(study: "Study | str | Path", runs_dir: str | Path | None = None) -> "DataFrame":
    """The results of a study, given its title, its path, or the study itself, as a pandas DataFrame; torch is not
    imported.

        runs = results_of("abacus_laptop")
        runs.groupby("label")["final.ood_test"].median()
        duckdb.sql('select label, avg("final.ood_test") from runs group by label')

    A row per run of the current plan, and per completed run of earlier plans: `run` (its path below the folder of
    runs), `label`, `seed`, `status`; `plan`, if some are of earlier ones; each setting in which runs differ, by its
    path (`recipe.loss` for the loss, since `loss` is its value); the last metrics of training; per region the mean
    exact match of the `final` and the `best` checkpoint with its interval over questions (`final.ood_test`,
    `final.ood_test.low`, `final.ood_test.high`); for labels also their metrics with interval and baseline
    (`final.ood_test.ood_accuracy`, `final.ood_test.ood_accuracy.baseline`; `accuracy`, `last_label` and
    `correct_prefix` alike); for numbers or texts each metric of `numerate.evaluation.answer_metrics`
    (`final.ood_test.log_mae`, `final.ood_test.log_mae (mean of modules)`); `non_causal_reason`, if the model is not
    causal, so that scores are meaningless; `seconds` of all its sessions (without the time of a killed process after
    its last checkpoint) and `worker`; and for failed runs, the kind of `failure` and the `error`.

    Proportions are fractions from 0 to 1. Types are pandas' nullable ones, so that counts with missing values stay
    integers. Raises `UserError` if there is no such study.
    """
    folder = _find_study(study, runs_dir)
    all_runs = folder.all_runs()
    records, done = folder.results(), folder.done_results(all_runs)
    plan = [planned for planned in all_runs if planned.current or planned.run in done]
    running = {
        run for state in folder.states() if not has_ended(state) and not is_lost(state) for run in runs_of(state)
    }
    run_records = [records.get(planned.result_key, {}) for planned in plan]
    statuses = [_status(planned, record, done, running) for planned, record in zip(plan, run_records, strict=True)]
    done_records = [record if status == "done" else {} for record, status in zip(run_records, statuses, strict=True)]
    settings = differing_settings(plan)
    columns: dict[str, Series[Any]] = {
        "run": _series([planned.run for planned in plan], str),
        "label": _series(_labels(plan, folder.metadata()["labels"]), str),
        "seed": _series([planned.seed for planned in plan], int),
        "status": _series(statuses, str),
    }
    if not all(planned.current for planned in plan):
        columns["plan"] = _series(["current" if planned.current else "earlier" for planned in plan], str)
    for path, values in settings.items():
        columns[path if is_identifier(path) else f"recipe.{path}"] = _series(values, infer_type(values))
    kinds = dict(_TRAINING_COLUMNS)
    if any("validation_loss" in record for record in done_records):
        kinds |= dict.fromkeys(_LANGUAGE_TRAINING_COLUMNS, float)
    kinds |= dict.fromkeys(_region_columns(done_records), float)
    for name, kind in kinds.items():
        columns[name] = _series([_lookup(record, name) for record in done_records], kind)
    reasons = [_non_causal_reason(record) for record in done_records]
    if any(reasons):
        columns["non_causal_reason"] = _series(reasons, str)
    for name, (path, kind) in _STATUS_COLUMNS.items():
        columns[name] = _series([_lookup(record, path) for record in run_records], kind)
    return _frame(columns)


def infer_type(values: Iterable[Any]) -> type:
    """The type of a column with these values: integers mixed with other numbers are float, all else is str."""
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {int, float}:
        return int if kinds == {int} and all(value is None or abs(value) < 2**63 for value in values) else float
    return bool if kinds == {bool} else str


def _find_study(study: "Study | str | Path", runs_dir: str | Path | None) -> StudyFolder:
    address = os.fspath(study) if isinstance(study, str | os.PathLike) else folder_name(study.title)
    return StudyFolder.find(address, resolve_runs_dir(runs_dir))


def _series(values: Iterable[Any], kind: type) -> "Series[Any]":
    """A column of one type; what is missing, of another type or not finite is missing."""
    from pandas import Series

    cast = [_cast(value, kind) for value in values]
    has_all = kind in (int, bool) and None not in cast
    return Series(cast, dtype={int: "int64", bool: "bool"}[kind] if has_all else _DTYPES[kind])


def _cast(value: Any, kind: type) -> Any:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return None
    if kind is str:
        return str(value).lower() if isinstance(value, bool) else str(value)
    return kind(value) if isinstance(value, int | float) else None


def _frame(columns: "Mapping[str, Series[Any]]") -> "DataFrame":
    from pandas import DataFrame

    return DataFrame(columns)


def _status(planned: PlannedRun, record: Mapping[str, Any], done: Collection[str], begun: Collection[str]) -> str:
    if planned.run in done:
        return "done"
    if planned.run in begun:
        return "running"
    return "failed" if is_failed(record) else "left"


def _labels(plan: Sequence[PlannedRun], labels: Mapping[str, str]) -> Iterator[str]:
    """The labels of the runs without their settings, which have separate columns."""
    for planned in plan:
        known = (labels.get(planned.base), planned.base_tree.get("name"), planned.base)
        begins = (name for name in known if name and f"{planned.label} (".startswith(f"{name} ("))
        yield next(begins, planned.label)


def _region_columns(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each checkpoint, the regions that any run has, nearest to training first."""
    for checkpoint in _CHECKPOINTS:
        found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in REGION_LABELS}
        for record in records:
            for name, region in (record.get(checkpoint) or {}).items():
                found.setdefault(name, []).append(region or {})
        if checkpoint == "best":  # it was selected on OOD validation, so its score there is biased
            found.pop("ood_validation")
        for name, regions in found.items():
            if regions:
                yield from (f"{checkpoint}.{name}{end}" for end in _region_ends(regions))


def _region_ends(regions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The columns of a region, as ends of their names."""
    if any("language" in region for region in regions):
        for name in LANGUAGE_METRICS:
            yield from (f".{name}", *(f".{end}" for end in _LANGUAGE_RECORD_KEYS if end.startswith(f"{name}.")))
        return
    yield from _ENDS
    for name in LABEL_METRICS:
        if any(name in region.get("labels", {}) for region in regions):
            yield from (f".{name}{end}" for end in (*_ENDS, ".baseline"))
    for name in answer_metrics.METRIC_NAMES:
        if any(region.get("answers", {}).get(name) is not None for region in regions):
            yield from (f".{name}{end}" for end in (_ENDS if name == "number_accuracy" else ("",)))
    for name in dict.fromkeys(name for region in regions for name in region.get("answers", {})):
        if not answer_metrics.is_answer_metric(name.removesuffix(".low").removesuffix(".high")):
            yield f".{name}"  # a score of a kind of evaluation


def _non_causal_reason(record: Mapping[str, Any]) -> str | None:
    """Why the model of a run is not causal, if it is not; its scores are then meaningless."""
    regions = [region for name in _CHECKPOINTS for region in (record.get(name) or {}).values()]
    return next((str(region["non_causal_reason"]) for region in regions if region.get("non_causal_reason")), None)


def _lookup(record: Mapping[str, Any], name: str) -> Any:
    """The value of a record in a column; a region's mean is in the column of the region."""
    checkpoint, _, rest = name.partition(".")
    if checkpoint not in _CHECKPOINTS:
        return _get(record, *name.split("."))
    region_name, _, end = rest.partition(".")
    region = _get(record, checkpoint, region_name) or {}
    metric, _, part = end.partition(".")
    if "language" in region:
        return region["language"].get(_LANGUAGE_RECORD_KEYS.get(end, end))
    if metric in LABEL_METRICS:
        return _get(region, "labels", metric, part or "value")
    if answer_metrics.is_answer_metric(metric) or end in region.get("answers", {}):
        return _get(region, "answers", end)
    return region.get(end or "mean")


def _get(record: Any, *path: str) -> Any:
    for name in path:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


# Cells ------------------------------------------------------------------------------------------------------------

_CELL = re.compile(rb'"cell": ?\{([^{}]*)\}')
_AXIS = re.compile(rb'"([^"]+)": ?')

_CELL_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("correct", "count"), int),
    **dict.fromkeys(("exact_match", "low", "high", "digit_accuracy"), float),
    "first_token_correct": int,
    "overlaps_training": bool,
    "method": str,
}
_LANGUAGE_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("loss", "loss.low", "loss.high", "perplexity", "bits_per_byte"), float),
    **dict.fromkeys(("tokens", "bytes"), int),
}
"""The metrics of a portion of a corpus, instead of those of a cell."""


def cells_of(
    study: "Study | str | Path", runs_dir: str | Path | None = None, *, runs: "DataFrame | None" = None
) -> "DataFrame":
    """A row for each cell of each evaluation of the done runs of a study, or of those in `runs`, rows of `results_of`.

    The identifying columns of the run, then `checkpoint`, `step`, `position_offset`, `settings`, `region`, a column per
    axis of the grid (`cell.count`, if another column is named so), and the measurements: `correct`, `count`,
    `exact_match` with its interval `low`, `high`; of labels, numbers, texts and language modeling their metrics.
    """
    runs = results_of(study, runs_dir) if runs is None else runs
    folder = _find_study(study, runs_dir)
    done = runs[runs["status"] == "done"]
    identifiers = [name for name in runs.columns if is_identifier(name)]
    paths = [folder.runs_dir / run / "evaluation.jsonl" for run in done["run"]]
    axes: dict[str, str] = {}
    kinds: dict[str, type] = dict(_CELL_COLUMNS)
    for content in map(read_bytes, paths):
        for axis in _axis_names(content):
            is_taken = axis in (*identifiers, "checkpoint", "position_offset", "settings", "region")
            axes.setdefault(axis, f"cell.{axis}" if is_taken or not is_identifier(axis) else axis)
        if b'"labels":' in content:
            kinds |= dict.fromkeys((f"{name}{end}" for name in LABEL_METRICS for end in ("", ".baseline")), float)
        if b'"metrics":' in content:
            kinds |= dict.fromkeys(answer_metrics.ANSWER_METRICS, float)
        if b'"language":' in content:
            kinds |= _LANGUAGE_COLUMNS
    places: dict[str, type] = {"checkpoint": str, "step": int, "position_offset": int, "settings": str, "region": str}
    kinds = places | dict.fromkeys(axes.values(), int) | kinds
    counts, values = [], [[] for _ in kinds]  # type: ignore[var-annotated]
    for path in paths:
        counts.append(0)
        for record in read_records(path, EVALUATION):
            counts[-1] += 1
            measured = _measurements(record) | {name: _get(record, "cell", axis) for axis, name in axes.items()}
            for column, name in zip(values, kinds, strict=True):
                column.append(measured.get(name))
    repeated = done[identifiers].loc[done.index.repeat(counts)].reset_index(drop=True)
    cells = {name: _series(column, kind) for (name, kind), column in zip(kinds.items(), values, strict=True)}
    return _frame({**{name: repeated[name] for name in identifiers}, **cells})


def _measurements(record: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record by column, without those of its axes."""
    found = dict(record)
    found["settings"] = format_settings(record["settings"]) if record.get("settings") else None
    if "language" in record:  # there is no exact match, and the interval is that of the loss
        count = found.pop("count")
        return {name: found.get(name) for name in ("checkpoint", "step", "position_offset", "settings", "region")} | {
            "count": count,
            **{name: record.get(_LANGUAGE_RECORD_KEYS.get(name, name)) for name in _LANGUAGE_COLUMNS},
        }
    if record.get("count"):
        found["exact_match"] = record.get("correct", 0) / record["count"]
    labels = record.get("labels") or {}
    for name in LABEL_METRICS if labels else ():
        found |= {name: labels.get(name), f"{name}.baseline": _get(labels, "baseline", name)}
    for kind in ("numbers", "texts"):
        found |= _get(record, kind, "metrics") or {}
    return found


def _axis_names(content: bytes) -> Iterator[str]:
    """The names of the axes of all cells in a file, found without reading each record."""
    shapes = dict.fromkeys(re.sub(rb"-?\d+", b"", cell) for cell in _CELL.findall(content))
    yield from dict.fromkeys(name.decode(errors="replace") for shape in shapes for name in _AXIS.findall(shape))
