"""The results of a study as one table: a row per run of its plan, also of those that failed or are not begun."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from numerate.evaluation import answer_metrics
from numerate.evaluation.labels import METRICS
from numerate.executors.executor import Kind
from numerate.records.kinds import EVALUATION
from numerate.records.reading import content_of, read
from numerate.reports.grid import REGIONS
from numerate.reports.groups import settings_words
from numerate.studies.folder import Planned, StudyFolder, is_failed
from numerate.studies.state import gone, silent
from numerate.studies.status import runs_of
from numerate.tables.differing import differing
from numerate.tables.rows import Column, Lazily, Row, Value, type_of
from numerate.tables.showing import short_names, telling, words
from numerate.tables.table import Table
from numerate.training.run_folder import folder_name, runs_directory

if TYPE_CHECKING:
    from numerate.studies.study import Study

STATUSES = ("done", "failed", "running", "left")
"""The state of a run. What was stopped, or whose worker died, is left: the same command resumes it."""

PLANS = ("current", "earlier")
"""Whether a run was requested by the last command, or only by earlier ones."""

_MEASURES = (
    Column("step", int, "count"),
    Column("examples", int, "count"),
    Column("tokens", int, "count"),
    Column("flops", float, "measure"),
    Column("loss", float, "measure"),
    Column("development", float, "share"),
    Column("beyond-development", float, "share"),
    Column("best_step", int, "count"),
)
_TEXT_MEASURES = (
    Column("development_loss", float, "measure"),
    Column("development_perplexity", float, "measure"),
    Column("development_bits", float, "measure"),
)
"""The last training measures of running text, instead of accuracies."""
_CHECKPOINTS = ("final", "best")
_SHOWN_ERRORS = 5
"""Different errors that are written below a table; `where=status=failed columns=label,seed,error` has all."""

LEGEND = (
    "final: the last checkpoint; best: the one that did best on OOD validation, so that this has no column of it. "
    "Exact match, mean over the cells of each region."
)
LABELS = (
    "unseen, accuracy, last and prefix: of labels, over all of a region; floor: what memorising the counts of training "
    "gives, or one answer everywhere."
)
ANSWERS = (
    "Of numbers and texts each metric is over all questions of a region; with (mean of modules) behind its name it is "
    "the mean over the cells, each weighing the same. r2 and mae are of the numbers, log_r2 and log_mae of sign(x) "
    "log10(|x| + 1)."
)
LANGUAGE = (
    "final: the last checkpoint; best: the one with the lowest loss on the development split. Of running text loss is "
    "in nats per token and depends on the tokenizer, as perplexity, its exp, does; bits per byte does not. Intervals "
    "(.low, .high) are about the text; group=label has what seeds differ by."
)
OF_TEXT = ("loss", "perplexity", "bits_per_byte", "likeliest")
"""The measures of running text that have columns."""
_ENDS_OF_TEXT = {
    "likeliest": "accuracy",
    "loss.low": "low",
    "loss.high": "high",
    "bits_per_byte.low": "bits_low",
    "bits_per_byte.high": "bits_high",
}
MAIN_ANSWERS = ("number_accuracy", "mae", "log_mae", "log_r2", "bleu", "perplexity")
"""The metrics of numbers and texts that people see first."""

MEASURES = tuple(name for name in METRICS if name != "exact")
"""The measures of labels that have columns of their own, behind exact match."""


def results_of(study: "Study | str | Path", runs_dir: str | Path | None = None) -> Table:
    """The results of a study, by its title, its path, or itself; torch is not imported.

    >>> table = results_of("abacus_laptop")
    >>> table.select("label", "seed", "final.ood_test").write("beyond.csv")
    >>> table.group("label")

    A row per run of the current plan, and of earlier plans per run that is done: `run` (its folder below that of all
    runs), `label`, `seed`, `status`; `plan`, where some are of earlier ones; each setting in which runs differ, by its
    path; what training measured last; per region the mean exact match of the `final` and the `best` checkpoint with its
    interval about the questions (`final.ood_test`, `final.ood_test.low`, `final.ood_test.high`); where answers are
    labels also their measures with interval and floor (`final.ood_test.unseen`, `final.ood_test.unseen.floor`;
    `accuracy`, `last` and `prefix` alike); where they are numbers or texts each metric of
    `numerate.evaluation.answer_metrics` (`final.ood_test.log_mae`, `final.ood_test.log_mae (mean of modules)`);
    `no_claim`, why nothing may be claimed of a run; `seconds` of all its starts (what a killed process did after its
    last checkpoint is not known) and `worker`; and of what failed, how (`failure`) and with which `error`.

    Raises `UserError` where there is no such study.
    """
    address = os.fspath(study) if isinstance(study, str | os.PathLike) else folder_name(study.title)
    folder = StudyFolder.find(address, runs_directory(runs_dir))
    every = folder.every()
    records, done = folder.results(), folder.done(every)
    plan = [planned for planned in every if planned.current or planned.run in done]
    begun = {run for state in folder.states() if not gone(state) and not silent(state) for run in runs_of(state)}
    found = [records.get(planned.at, {}) for planned in plan]
    statuses = [_status(planned, record, done, begun) for planned, record in zip(plan, found, strict=True)]
    labels = _labels(plan, folder.head()["labels"])
    settings = differing(plan)
    columns: list[tuple[Column, list[Value]]] = [
        (Column("run", tells=True), [planned.run for planned in plan]),
        (Column("label", tells=True), list(labels)),
        (Column("seed", int, tells=True), [planned.seed for planned in plan]),
        (Column("status", may_be=STATUSES), list(statuses)),
        *([_plan_column(plan)] if not all(planned.current for planned in plan) else []),
        *((_setting(path, values), _as_one(values)) for path, values in settings.items()),
    ]
    identified = [(column, values) for column, values in columns if column.name != "status"]
    measured = [record if status == "done" else {} for record, status in zip(found, statuses, strict=True)]
    texts = any("development_loss" in record for record in measured)
    for column in (*_MEASURES, *(_TEXT_MEASURES if texts else ()), *_region_columns(measured)):
        columns.append((column, [column.read(_at(record, column.name)) for record in measured]))
    reasons = [_no_claim(record) for record in measured]
    if any(reason is not None for reason in reasons):
        columns.append((Column("no_claim", main=True), list(reasons)))
    for column, path in _REST:
        columns.append((column, [column.read(_at(record, path)) for record in found]))
    rows = list(zip(*(values for _, values in columns), strict=True)) if plan else []

    def cells(wanted: Collection[str]) -> Table:
        return _cells(folder.runs, identified, done.keys() & set(wanted))

    return Table(tuple(column for column, _ in columns), rows, "runs", _view, cells_of=cells)


_REST = (
    (Column("seconds", float, "measure"), "took.seconds"),
    (Column("worker"), "took.worker"),
    (Column("why"), "why"),
    (Column("failure", may_be=get_args(Kind)), "kind"),
    (Column("error"), "error"),
)


def _plan_column(plan: Sequence[Planned]) -> tuple[Column, list[Value]]:
    return Column("plan", may_be=PLANS, tells=True), [PLANS[0 if planned.current else 1] for planned in plan]


def _status(planned: Planned, record: Mapping[str, Any], done: Collection[str], begun: Collection[str]) -> str:
    if planned.run in done:
        return "done"
    if planned.run in begun:
        return "running"
    return "failed" if is_failed(record) else "left"


def _labels(plan: Sequence[Planned], labels: Mapping[str, str]) -> list[str]:
    """What the runs are called without their settings, which have columns of their own."""
    found = []
    for planned in plan:
        known = (labels.get(planned.base), planned.base_tree.get("name"), planned.base)
        begins = (name for name in known if name and f"{planned.label} (".startswith(f"{name} ("))
        found.append(next(begins, planned.label))
    return found


def _setting(path: str, values: Sequence[Value]) -> Column:
    return Column(path, type_of(values), tells=True)


def _as_one(values: Sequence[Value]) -> list[Value]:
    """Values of several types as those of the one that their column has."""
    kind = type_of(values)
    if kind is str:
        return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return [float(value) if kind is float and value is not None else value for value in values]


def _region_columns(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Of each checkpoint the regions that any run has, nearest to training first."""
    found = []
    for checkpoint in _CHECKPOINTS:
        names = dict.fromkeys(name for record in records for name in record.get(checkpoint) or {})
        ordered = [*(name for name in REGIONS if name in names), *(name for name in names if name not in REGIONS)]
        for name in ordered:
            if checkpoint == "best" and name == "ood_validation":  # where it was chosen, so that it says nothing of it
                continue
            path = f"{checkpoint}.{name}"
            regions = [(record.get(checkpoint) or {}).get(name) or {} for record in records]
            if any("language" in region for region in regions):
                found += _text_columns(path)
                continue
            labelled = any("labels" in region for region in regions)
            # Of labels the best checkpoint has its headline alone: a row is wide enough.
            found.append(Column(path, float, "share", main=not labelled or checkpoint == "final"))
            found += [Column(f"{path}.{end}", float, "share") for end in ("low", "high")]
            for measure in MEASURES if labelled else ():
                if any(measure in region.get("labels", {}) for region in regions):
                    main = measure == ("accuracy" if name == "in_distribution" else "unseen")
                    found.append(Column(f"{path}.{measure}", float, "share", main=main))
                    found += [Column(f"{path}.{measure}.{end}", float, "share") for end in ("low", "high")]
                    floor = main and name != "in_distribution"
                    found.append(Column(f"{path}.{measure}.floor", float, "share", main=floor))
            for metric in answer_metrics.NAMES:
                if any(region.get("answers", {}).get(metric) is not None for region in regions):
                    shown: Literal["share", "measure"] = (
                        "share" if answer_metrics.base(metric) in answer_metrics.SHARES else "measure"
                    )
                    main = checkpoint == "final" and metric in MAIN_ANSWERS
                    found.append(Column(f"{path}.{metric}", float, shown, main=main))
                    if metric == "number_accuracy":
                        found += [Column(f"{path}.{metric}.{end}", float, "share") for end in ("low", "high")]
    return found


def _text_columns(path: str) -> list[Column]:
    """The columns of running text below the name of a checkpoint and a context."""
    found = []
    for name in OF_TEXT:
        kind: Literal["share", "measure"] = "share" if name == "likeliest" else "measure"
        found.append(Column(f"{path}.{name}", float, kind, main=name != "likeliest"))
        found += [Column(f"{path}.{end}", float, kind) for end in _ENDS_OF_TEXT if end.startswith(f"{name}.")]
    return found


def _no_claim(record: Mapping[str, Any]) -> str | None:
    """How the model of a run sees what comes later in a row, so that nothing may be claimed of it."""
    regions = [region for name in _CHECKPOINTS for region in (record.get(name) or {}).values()]
    return next((str(region["sees_future"]) for region in regions if region.get("sees_future")), None)


def _at(record: Mapping[str, Any], name: str) -> Any:
    """What a record has under a column's name; a region's mean stands under its own name."""
    checkpoint, dot, region = name.partition(".")
    if checkpoint in _CHECKPOINTS and dot:
        region, _, end = region.partition(".")
        known = (record.get(checkpoint) or {}).get(region) or {}
        if "language" in known:
            return known["language"].get(_ENDS_OF_TEXT.get(end, end))
        if answer_metrics.is_one(end.removesuffix(".low").removesuffix(".high")):
            return (((record.get(checkpoint) or {}).get(region) or {}).get("answers") or {}).get(end)
        measure, _, end = end.partition(".") if end.partition(".")[0] in MEASURES else ("", "", end)
        if measure:
            labels = ((record.get(checkpoint) or {}).get(region) or {}).get("labels", {})
            return (labels.get(measure) or {}).get(end or "value")
        return ((record.get(checkpoint) or {}).get(region) or {}).get(end or "mean")
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _view(table: Table) -> Table:
    """What tells the runs apart and what came of them; below it, what is missing and why."""
    names = table.names
    rows = list(table.rows)
    statuses = [row[names.index("status")] for row in rows]
    running = any(name.endswith(".bits_per_byte") for name in names)
    notes = [LANGUAGE if running else LEGEND] if any(column.main for column in table.columns) else []
    notes += [LABELS] if any(name.endswith(".floor") for name in names) else []
    notes += (
        [ANSWERS] if not running and any(name.rpartition(".")[2] in answer_metrics.METRICS for name in names) else []
    )
    if "no_claim" in names:
        notes += [f"no claim: {reason}" for reason in dict.fromkeys(table["no_claim"]) if reason is not None]
    if "plan" in names:
        earlier = sum(plan == "earlier" for plan in table["plan"])
        notes.append(f"{earlier:,} of earlier plans, not of the current one; where=plan=current leaves them out")
    if any(status != "done" for status in statuses):
        counted = ", ".join(f"{statuses.count(name):,} {name}" for name in STATUSES if name in statuses)
        notes.append(f"{len(rows):,} {'run' if len(rows) == 1 else 'runs'}: {counted}")
    shown = telling(table)
    notes += _errors(table, shown)
    return replace(shown, notes=tuple(notes))


def _errors(table: Table, shown: Table) -> list[str]:
    """What failed and why, the runs of one error together."""
    names = short_names(shown)
    identifying = [i for i, column in enumerate(shown.columns) if column.tells]
    errors: dict[str, list[str]] = {}
    for row, seen in zip(table, shown.rows, strict=True):
        if row["status"] == "failed":
            text = words(str(row["error"] or "no error was written down"))
            kind = row["failure"]
            text = text if kind in ("mistake", "fault", "error", None) else f"{kind}: {text}"
            who = [str(seen[i]) if names[i] == "label" else f"{names[i]} {seen[i]}" for i in identifying]
            errors.setdefault(text, []).append(" ".join(who))
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
_FIXED = (
    (Column("correct", int, "count"), "correct"),
    (Column("count", int, "count"), "count"),
    (Column("exact", float, "share", main=True), None),
    (Column("low", float, "share"), "low"),
    (Column("high", float, "share"), "high"),
    (Column("digit_accuracy", float, "share"), "digit_accuracy"),
    (Column("first_correct", int, "count"), "first_correct"),
    (Column("seen", bool), "seen"),
    (Column("method"), "method"),
)
"""What is measured of a cell, with its name in a record."""
_OF_LABELS = tuple(
    (Column(f"{name}{end}", float, "share", main=name == "unseen"), name, end)
    for name in MEASURES
    for end in ("", ".floor")
)
"""What is measured of the labels of a cell beside, with the measure and whether it is its floor."""
_OF_TEXTS = (
    (Column("loss", float, "measure", main=True), "loss"),
    (Column("loss.low", float, "measure"), "low"),
    (Column("loss.high", float, "measure"), "high"),
    (Column("perplexity", float, "measure", main=True), "perplexity"),
    (Column("bits_per_byte", float, "measure", main=True), "bits_per_byte"),
    (Column("tokens", int, "count"), "tokens"),
    (Column("bytes", int, "count"), "bytes"),
)
"""The measures of a portion of running text, instead of those of a cell."""
_OF_ANSWERS = tuple(
    Column(name, float, "share" if name in answer_metrics.SHARES else "measure", main=name in MAIN_ANSWERS)
    for name in answer_metrics.METRICS
)
"""What is measured of the numbers and texts of a cell beside."""


def _cells(runs: Path, identified: Sequence[tuple[Column, list[Value]]], wanted: Collection[str]) -> Table:
    """A row per run, checkpoint, placement and cell, of done runs. The files are read twice: which axes, which rows."""
    by_run = [row for row in zip(*(values for _, values in identified), strict=True) if row[0] in wanted]
    taken = {"checkpoint", "step", "position_offset", "settings", "region", *(column.name for column, _ in _FIXED)}
    taken |= (
        {column.name for column in _OF_ANSWERS}
        | {column.name for column, _, _ in _OF_LABELS}
        | {column.name for column, _ in identified}
    )
    axes: dict[str, Column] = {}
    labelled = answered = running = False
    for row in by_run:
        content = content_of(runs / str(row[0]) / "evaluation.jsonl")
        labelled = labelled or b'"labels":' in content
        answered = answered or b'"measures":' in content
        running = running or b'"language":' in content
        for name in _axes(content):
            axes.setdefault(name, Column(f"cell.{name}" if name in taken else name, int, tells=True))
    there = {column.name for column, _ in identified} | {column.name for column in _OF_ANSWERS if answered}
    texts = [one for one in _OF_TEXTS if running and one[0].name not in there]
    columns = (
        *(column for column, _ in identified),
        Column("checkpoint", tells=True),
        Column("step", int, "count"),
        Column("position_offset", int, tells=True),
        Column("settings", tells=True),
        Column("region", tells=True, may_be=tuple(REGIONS)),
        *axes.values(),
        *(column for column, _ in _FIXED),
        *(column for column, _, _ in _OF_LABELS if labelled),
        *(column for column in _OF_ANSWERS if answered),
        *(column for column, _ in texts),
    )

    def rows() -> Iterator[Row]:
        for row in by_run:
            for record in read(runs / str(row[0]) / "evaluation.jsonl", EVALUATION):
                of_labels = _of_labels(record) if labelled else ()
                of_answers = _of_answers(record) if answered else ()
                of_texts = (column.read(record.get(name)) for column, name in texts)
                yield (*row, *_cell(record, axes), *of_labels, *of_answers, *of_texts)

    return Table(columns, Lazily(rows), "cells", telling)


def _cell(record: Mapping[str, Any], axes: Mapping[str, Column]) -> list[Value]:
    cell, count = record.get("cell") or {}, record.get("count")
    found: list[Value] = [
        record.get("checkpoint"),
        record.get("step"),
        record.get("position_offset"),
        settings_words(record["settings"]) if record.get("settings") else None,
        record.get("region"),
        *(cell.get(axis) for axis in axes),
    ]
    exact = record.get("correct", 0) / count if count else None
    if "language" in record:  # nothing is right or wrong as a whole, and the interval is that of the loss
        return found + [column.read(record.get(name)) if name == "count" else None for column, name in _FIXED]
    found += [exact if name is None else column.read(record.get(name)) for column, name in _FIXED]
    return found


def _of_labels(record: Mapping[str, Any]) -> list[Value]:
    found = record.get("labels") or {}
    return [
        column.read((found.get("floor") or {}).get(name) if end else found.get(name))
        for column, name, end in _OF_LABELS
    ]


def _of_answers(record: Mapping[str, Any]) -> list[Value]:
    measures = {name: value for kind in ("numbers", "texts") for name, value in _measures_of(record, kind).items()}
    return [column.read(measures.get(column.name)) for column in _OF_ANSWERS]


def _measures_of(record: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (record.get(kind) or {}).get("measures") or {}


def _axes(content: bytes) -> Iterator[str]:
    """The names of the axes of all cells in a file, found without reading each record."""
    shapes = dict.fromkeys(re.sub(rb"-?\d+", b"", cell) for cell in _CELL.findall(content))
    yield from dict.fromkeys(name.decode(errors="replace") for shape in shapes for name in _AXIS.findall(shape))
