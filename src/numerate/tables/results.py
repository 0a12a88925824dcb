"""The results of a study as a DataFrame: a row per run of its plan, including those that failed or have not started."""

import os
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.evaluation.answer_metrics import ANSWER_METRICS, METRIC_NAMES, own_scores
from numerate.evaluation.grid import STRATUM
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read_records
from numerate.reports.grid import REGION_LABELS
from numerate.reports.settings import format_settings
from numerate.runs.status import read_states
from numerate.runs.study_folder import StudyFolder
from numerate.tables.differing import differing_settings
from numerate.tables.selecting import LABEL_METRICS, SCORE_PREFIX, display_format, is_identifier
from numerate.training.run_folder import folder_name, resolve_runs_dir

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from numerate.recipes.study import Study

_DTYPES = {int: ("int64", "Int64"), float: ("float64", "float64"), bool: ("bool", "boolean"), str: ("string", "string")}
"""pandas' types of columns without and with missing values."""

_TYPES = {"count": int, "share": float, "number": float, "text": str, "flag": bool}
"""The types of the columns of each format."""

_TRAINING_COLUMNS = (
    *("step", "examples", "tokens", "flops", "loss", "validation_exact_match", "ood_validation_exact_match"),
    "best_step",
)
_LANGUAGE_TRAINING_COLUMNS = ("validation_loss", "validation_perplexity", "validation_bits_per_byte")
"""The last training metrics of language modeling runs, instead of accuracies."""

_CHECKPOINTS = ("final", "best")
_ENDS = ("", ".low", ".high")
_LANGUAGE_COLUMNS = {
    "loss": "loss",
    "loss.low": "low",
    "loss.high": "high",
    "perplexity": "perplexity",
    "bits_per_byte": "bits_per_byte",
    "bits_per_byte.low": "bits_low",
    "bits_per_byte.high": "bits_high",
    "token_accuracy": "token_accuracy",
}
"""The columns of language modeling, with their entries in the record of a region."""


def results_of(study: "Study | str | Path", runs_dir: str | Path | None = None) -> "DataFrame":
    """The results of a study, given its title, its path, or the study itself, as a pandas DataFrame; torch is not
    imported.

        runs = results_of("abacus_laptop")
        runs.groupby("label")["final.ood_test"].median()

    A row per run of the current plan, and per completed run of earlier plans: `run` (its path below the folder of
    runs), `label`, `seed`, `status`; `plan`, if some are of earlier ones; each setting in which runs differ, by its
    path (`recipe.loss` for the loss, since `loss` is its value); `extended_from`, if some runs were extended, the
    budget in steps that they had before; the last metrics of training; per region the mean exact match of the `final`
    and the `best` checkpoint with its interval over questions (`final.ood_test`, `final.ood_test.low`,
    `final.ood_test.high`); for labels also their metrics with interval and baseline
    (`final.ood_test.ood_accuracy`, `final.ood_test.ood_accuracy.baseline`; `accuracy`, `last_label` and
    `correct_prefix` alike); for numbers or texts each metric of `numerate.evaluation.answer_metrics`
    (`final.ood_test.log_mae`, `final.ood_test.log_mae (mean of modules)`); `non_causal_reason`, if the model is not
    causal, so that scores are meaningless; `seconds` of all its sessions (without the time of a killed process after
    its last checkpoint) and `worker`; and for failed runs, the kind of `failure` and the `error`.

    Proportions are fractions from 0 to 1. Types are pandas' nullable ones, so that counts with missing values stay
    integers. Raises `UserError` if there is no such study.
    """
    from pandas import DataFrame

    folder = _find_study(study, runs_dir)
    states = read_states(folder.runs_dir, folder.read().runs)
    states = [state for state in states if state.run.current or state.status == "done"]
    runs, ends = [state.run for state in states], [state.end for state in states]
    done_records = [{} if end is None or end.results is None else end.results for end in ends]
    columns: dict[str, Series[Any]] = {
        "run": _series([one.run for one in runs], str),
        "label": _series([one.name for one in runs], str),
        "seed": _series([one.seed for one in runs], int),
        "status": _series([state.status for state in states], str),
    }
    if not all(one.current for one in runs):
        columns["plan"] = _series(["current" if one.current else "earlier" for one in runs], str)
    for path, values in differing_settings(runs).items():
        columns[path if is_identifier(path) else f"recipe.{path}"] = _series(values, infer_type(values))
    if any("extended_from" in record for record in done_records):
        columns["extended_from"] = _series([record.get("extended_from") for record in done_records], int)
    is_language_modeling = any("validation_loss" in record for record in done_records)
    for name in (*_TRAINING_COLUMNS, *_LANGUAGE_TRAINING_COLUMNS * is_language_modeling):
        columns[name] = _result([record.get(name) for record in done_records], name)
    results = [_region_values(record) for record in done_records]
    for name in sorted({name: None for values in results for name in values}, key=_region_order):
        column = _series([values.get(name) for values in results], float)
        if column.notna().any():
            columns[name] = column
    reasons = [_non_causal_reason(record) for record in done_records]
    if any(reasons):
        columns["non_causal_reason"] = _series(reasons, str)
    columns["seconds"] = _result([end and end.seconds for end in ends], "seconds")
    columns["worker"] = _result([end and f"{end.host}-{end.pid}" for end in ends], "worker")
    columns["stop_reason"] = _result([record.get("stop_reason") for record in done_records], "stop_reason")
    columns["failure"] = _result([end and end.kind for end in ends], "failure")
    columns["error"] = _result([end and end.error for end in ends], "error")
    return DataFrame(columns)


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
    complete, nullable = _DTYPES[kind]
    return Series(cast, dtype=nullable if None in cast else complete)


def _result(values: Iterable[Any], name: str) -> "Series[Any]":
    """A column of results of the type that its name implies."""
    return _series(values, _TYPES[display_format(name)])


def _cast(value: Any, kind: type) -> Any:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return None
    if kind is str:
        return str(value).lower() if isinstance(value, bool) else str(value)
    return kind(value) if isinstance(value, int | float) else None


def _region_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a run by column. The best checkpoint has none on OOD validation, where it was selected, so that
    its score there is biased."""
    return {
        f"{checkpoint}.{name}{end}": value
        for checkpoint in _CHECKPOINTS
        for name, region in (record.get(checkpoint) or {}).items()
        if (checkpoint, name) != ("best", "ood_validation")
        for end, value in _metric_values(region or {}).items()
    }


def _metric_values(region: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a region, by the ends of the names of their columns."""
    if "language" in region:
        return {f".{name}": region["language"].get(key) for name, key in _LANGUAGE_COLUMNS.items()}
    found = {end: region.get(end.lstrip(".") or "mean") for end in _ENDS}
    if labels := region.get("labels"):
        for name in LABEL_METRICS:
            found |= {f".{name}{end}": _get(labels, name, end.lstrip(".") or "value") for end in (*_ENDS, ".baseline")}
    if answers := region.get("answers"):
        for metric in METRIC_NAMES:
            ends = _ENDS if metric == "number_accuracy" else ("",)
            found |= {f".{metric}{end}": answers.get(f"{metric}{end}") for end in ends}
        found |= {f".{name}": value for name, value in answers.items()}  # the rest are scores of a kind of evaluation
    return found


def _region_order(name: str) -> tuple[int, int]:
    """Sorts columns by checkpoint, then by region, the nearest to training first."""
    checkpoint, region = name.split(".")[:2]
    regions = list(REGION_LABELS)
    return _CHECKPOINTS.index(checkpoint), regions.index(region) if region in regions else len(regions)


def _non_causal_reason(record: Mapping[str, Any]) -> str | None:
    """Why the model of a run is not causal, if it is not; its scores are then meaningless."""
    regions = [region for name in _CHECKPOINTS for region in (record.get(name) or {}).values()]
    return next((str(region["non_causal_reason"]) for region in regions if region.get("non_causal_reason")), None)


def _get(record: Any, *path: str) -> Any:
    for name in path:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


# Cells ------------------------------------------------------------------------------------------------------------

_CELL_KEYS: dict[str, type] = {"checkpoint": str, "step": int, "position_offset": int, "settings": str, "region": str}
_CELL_COLUMNS = (
    *("correct", "count", "exact_match", "low", "high", "digit_accuracy", "first_token_correct"),
    *("overlaps_training", "method"),
)
_LANGUAGE_CELL_COLUMNS = ("loss", "loss.low", "loss.high", "perplexity", "bits_per_byte", "tokens", "bytes")
"""The metrics of a portion of a corpus, instead of those of a cell."""


def cells_of(
    study: "Study | str | Path", runs_dir: str | Path | None = None, *, runs: "DataFrame | None" = None
) -> "DataFrame":
    """A row for each cell of each evaluation of the done runs of a study, or of those in `runs`, rows of `results_of`.

    The identifying columns of the run, then `checkpoint`, `step`, `position_offset`, `settings`, `region`, a column per
    axis of the grid (`cell.count`, if another column is named so), `stratum` if there are any, and the measurements:
    `correct`, `count`, `exact_match` with its interval `low`, `high`; of labels, numbers, texts and language modeling
    their metrics; `score.NAME` for the scores of a kind of evaluation outside numerate.
    """
    runs = results_of(study, runs_dir) if runs is None else runs
    folder = _find_study(study, runs_dir)
    done = runs[runs["status"] == "done"]
    identifiers = [name for name in runs.columns if is_identifier(name)]
    axes: dict[str, str] = {}
    values: dict[str, list[Any]] = {name: [] for name in (*_CELL_KEYS, *_CELL_COLUMNS)}
    counts: list[int] = []
    for run in done["run"]:
        records = read_records(folder.runs_dir / run / "cells.jsonl", EVALUATION, run_id=Path(run).name)
        for i, record in enumerate(records, sum(counts)):
            measured = _measurements(record)
            measured |= {STRATUM: record[STRATUM]} if record.get(STRATUM) is not None else {}
            for axis, size in record["cell"].items():
                is_taken = axis in (*identifiers, *_CELL_KEYS) or not is_identifier(axis)
                measured[axes.setdefault(axis, f"cell.{axis}" if is_taken else axis)] = size
            for name in measured:
                if name not in values:
                    values[name] = [None] * i
            for name, column in values.items():
                column.append(measured.get(name))
        counts.append(len(records))
    cells = done[identifiers].loc[done.index.repeat(counts)].reset_index(drop=True)
    kinds = _CELL_KEYS | dict.fromkeys(axes.values(), int) | ({STRATUM: str} if STRATUM in values else {})
    columns = {name: _series(values[name], kind) for name, kind in kinds.items()}
    columns |= {name: _result(column, name) for name, column in values.items() if name not in kinds}
    return cells.assign(**columns)


def _measurements(record: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record by column, without those of its axes."""
    if "language" in record:  # there is no exact match, and the interval is that of the loss
        found = {name: record.get(name) for name in (*_CELL_KEYS, "count")}
        found |= {name: record.get(_LANGUAGE_COLUMNS.get(name, name)) for name in _LANGUAGE_CELL_COLUMNS}
    elif "correct" not in record:  # of a kind of evaluation with entries of its own
        found = {name: record.get(name) for name in (*_CELL_KEYS, "count")}
        found |= {f"{SCORE_PREFIX}{name}": value for name, value in own_scores(record).items()}
    else:
        found = {name: record.get(name) for name in (*_CELL_KEYS, *_CELL_COLUMNS)}
        if record.get("count"):
            found["exact_match"] = record["correct"] / record["count"]
            scores = record.get("scores") or {}
            found |= {f"{SCORE_PREFIX}{name}": total / record["count"] for name, total in scores.items()}
        if labels := record.get("labels"):
            for name in LABEL_METRICS:
                found |= {name: labels.get(name), f"{name}.baseline": _get(labels, "baseline", name)}
        if "numbers" in record or "texts" in record:
            metrics = (_get(record, "numbers", "metrics") or {}) | (_get(record, "texts", "metrics") or {})
            found |= {name: metrics.get(name) for name in ANSWER_METRICS}
    return found | {"settings": format_settings(record["settings"]) if record.get("settings") else None}
