"""The cells of any number of runs as one pandas DataFrame, which all that people see is made of.

A row is a cell as one checkpoint answered it: which run it is (with the settings in which the runs differ), what was
evaluated, and what was measured. `COLUMNS` names and types the columns; the axes of the grid stand before `region`.
"""

import gc
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from numerate.config.differences import format_settings
from numerate.errors import UserError
from numerate.evaluation.answer_metrics import ANSWER_METRICS, LOWER_IS_BETTER, PROPORTION_METRICS, own_scores
from numerate.evaluation.labels import METRICS
from numerate.evaluation.likelihoods import Likelihoods
from numerate.records.heads import RECIPE_FILE, read_header, read_metrics
from numerate.records.kinds import EVALUATION, Region
from numerate.records.reading import read_bytes, read_records
from numerate.records.schema import Count, Fraction
from numerate.results.differing import differing_settings
from numerate.results.variants import label_runs
from numerate.runs.status import RunState, read_states
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training.run_folder import folder_name, resolve_runs_dir

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from numerate.recipes.study import Study
    from numerate.runs.run import Run

    Runs: TypeAlias = "Study | Run | str | Path | Sequence[Study | Run | str | Path]"

# Columns --------------------------------------------------------------------------------------------------------------

Format = Literal["plain", "share", "count", "number", "text", "flag"]
"""How a column is shown: a "share" in per cent, a "count" with commas, a "number" with four digits; "plain" are values
that tell rows apart."""

LABEL_METRICS = tuple(name for name in METRICS if name != "exact_match")
LANGUAGE_METRICS = ("loss", "perplexity", "bits_per_byte", "token_accuracy")
LOWER_BETTER = {*LOWER_IS_BETTER, "loss", "validation_loss", "perplexity", "bits_per_byte"}

REGIONS = {
    "in_distribution": "in distribution",
    "ood_validation": "OOD validation",
    "ood_test": "OOD test",
    "100+": "100+",
}
"""The regions of an evaluation, nearest to training first, with their names for people. There is also `below`, smaller
than all of training, which is in no summary."""


class Column(NamedTuple):
    """A column: its type in pandas, how it is shown, and its meaning."""

    kind: type
    format: Format
    meaning: str


COLUMNS: dict[str, Column] = {
    "run": Column(str, "plain", "the folder of the run, below the folder of all runs"),
    "label": Column(str, "plain", "the label of its recipe"),
    "variant": Column(
        str, "plain", "the label with the settings in which recipes of that label differ; seeds share it"
    ),
    "seed": Column(int, "plain", "its seed"),
    "checkpoint": Column(str, "plain", "`final`, `best`, or `step 500`"),
    "step": Column(int, "plain", "the step of the checkpoint"),
    "position_offset": Column(int, "plain", "the offset of position ids in this evaluation"),
    "settings": Column(str, "plain", "what was changed for this evaluation, such as `num_loops=8`; missing as trained"),
    "stratum": Column(str, "plain", "the stratum of the questions; missing for a cell of the map"),
    "region": Column(str, "plain", f"{', '.join(f'`{name}`' for name in REGIONS)} or `below`"),
    "questions": Column(int, "count", "questions, rows with labels, or chunks of text"),
    "correct": Column(int, "count", "how many answers were correct as a whole"),
    "exact_match": Column(float, "share", "correct / questions"),
    "low": Column(float, "share", "lower end of Wilson's 95 % interval of exact match, over questions"),
    "high": Column(float, "share", "upper end"),
    "digit_accuracy": Column(float, "share", "share of correct digits"),
    "first_token_correct": Column(int, "count", "answers whose first token was correct"),
    "overlaps_training": Column(bool, "flag", "too few questions to hold any out, so training may have seen them"),
    "method": Column(str, "text", "`one pass`, `decoding` or `beams`"),
    **{name: Column(float, "share", METRICS[name]) for name in LABEL_METRICS},
    **{f"{name}.baseline": Column(float, "share", f"{METRICS[name]} of memorizing") for name in LABEL_METRICS},
    **{
        name: Column(float, "share" if name in PROPORTION_METRICS else "number", title)
        for name, title in ANSWER_METRICS.items()
    },
    "loss": Column(float, "number", "nats per token"),
    "loss.low": Column(float, "number", "lower end of its 95 % interval, over chunks of text"),
    "loss.high": Column(float, "number", "upper end"),
    "bits_per_byte": Column(float, "number", "bits per byte of UTF-8"),
    "nats": Column(float, "number", "sum of the negative log-probabilities of all tokens"),
    "tokens": Column(int, "count", "tokens of text"),
    "bytes": Column(int, "count", "bytes of text"),
    "tokenizer": Column(str, "text", "a fingerprint of the tokenizer; losses compare only where it is the same"),
    "non_causal_reason": Column(str, "text", "how the model attends to later tokens, so that scores mean nothing"),
    "names": Column(object, "text", "the names of sizes that are parts, such as modules: {axis: name}"),
    "sums": Column(
        object, "text", "the record's sums of labels, numbers, texts or likelihoods, which `summary` merges"
    ),
}
"""The columns of `cells`, in order. Settings in which runs differ stand before `checkpoint`, the axes of the grid after
`settings`; `score.NAME` are scores of a kind of evaluation of one's own."""

SCORE_PREFIX = "score."
_DTYPES = {int: ("int64", "Int64"), float: ("float64",) * 2, bool: ("bool", "boolean"), str: ("str", "str")}
"""pandas' types of columns without and with missing values."""


def axes(frame: "DataFrame") -> list[str]:
    """The axes of the grid among the columns of `cells`: those between `settings` and `region`."""
    names = list(frame.columns)
    return [name for name in names[names.index("settings") + 1 : names.index("region")] if name != "stratum"]


def settings_columns(frame: "DataFrame") -> list[str]:
    """The columns of the settings in which runs differ, in a frame of cells, runs or metrics."""
    names = list(frame.columns)
    begin = names.index("seed") + 1
    end = next(i for i in range(begin, len(names)) if names[i] in ("checkpoint", "status", "split", "step"))
    return names[begin:end]


def series(values: Iterable[Any], kind: type) -> "Series[Any]":
    """A column of one type; what is missing, of another type or not finite is missing."""
    from pandas import Series

    values = list(values)
    found = {*map(type, values)}
    if kind is object:
        return Series(values, dtype=object)
    if kind is float and found <= {float, int, type(None)}:
        numbers = np.array(values, dtype=np.float64)
        return Series(np.where(np.isfinite(numbers), numbers, np.nan))
    cast = values if found <= {kind, type(None)} else [_cast(value, kind) for value in values]
    complete, nullable = _DTYPES[kind]
    return Series(cast, dtype=nullable if None in cast else complete)


def _cast(value: Any, kind: type) -> Any:
    if value is None or (type(value) is float and not isfinite(value)):
        return None
    if type(value) is kind:
        return value
    if kind is str:
        return str(value).lower() if isinstance(value, bool) else str(value)
    return kind(value) if isinstance(value, int | float) else None


def infer_type(values: Iterable[Any]) -> type:
    """The type of a column with these values: integers mixed with other numbers are float, all else is str."""
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds and kinds <= {int, float}:
        return int if kinds == {int} and all(abs(value) < 2**63 for value in known) else float
    return bool if kinds == {bool} else str


# Runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunEntry:
    """A run to be read: its folder, its name in tables (the path below the folder of runs), its labels as in `COLUMNS`,
    its recipe as plain data, how it stands if it belongs to a study, and the `step` and `stop_reason` of its training.
    """

    folder: Path
    run: str
    label: str
    variant: str
    seed: int
    recipe: Mapping[str, Any]
    state: RunState | None = None
    ended: Mapping[str, Any] | None = None


def find_runs(
    runs: "Runs", runs_dir: str | Path | None = None, labels: Mapping[str, str] | None = None
) -> list[RunEntry]:
    """The runs that are meant: those of a study (given by its title, its path or itself) with their states, or runs by
    their folders, names or objects, each once. `labels` renames recipes by their titles.

    Raises `UserError` for a study or run that is not there.
    """
    several: Sequence[Any] = runs if isinstance(runs, list | tuple) else [runs]
    found: list[RunEntry] = []
    alone: list[Path] = []
    for one in several:
        path = getattr(one, "path", one)
        address = folder_name(one.title) if hasattr(one, "recipes") else os.fspath(path)
        study = StudyFolder.find_existing(address, resolve_runs_dir(runs_dir))
        if study is not None:
            found += _study_runs(study)
        elif (Path(address) / RECIPE_FILE).is_file():
            alone.append(Path(address))
        elif hasattr(one, "recipes") or len(several) == 1:
            StudyFolder.find(address, resolve_runs_dir(runs_dir))
        else:
            raise UserError(f"{address}: neither a study nor the folder of a run, such as runs/<recipe>/<id>")
    found += _single_runs(list({path.resolve(): path for path in alone}.values()), labels or {})
    return list({entry.folder.resolve(): entry for entry in found}.values())


def _study_runs(study: StudyFolder) -> list[RunEntry]:
    """The runs of the current plan, and the done ones of earlier plans."""
    content = study.read()
    states = [one for one in read_states(study.runs_dir, content.runs) if one.run.current or one.status == "done"]
    names = {base: tree.get("name") for base, tree in content.bases.items()}

    def label(run: StudyRun) -> str:
        known = (content.labels.get(run.base), names[run.base], run.base)
        return next((name for name in known if name and f"{run.label} (".startswith(f"{name} (")), run.label)

    return [
        RunEntry(
            study.runs_dir / one.run.run,
            one.run.run,
            label(one.run),
            one.run.label,
            one.run.seed,
            content.tree(one.run),
            one,
            None if one.end is None else one.end.results,
        )
        for one in states
    ]


def _single_runs(folders: Sequence[Path], labels: Mapping[str, str]) -> list[RunEntry]:
    headers = [read_header(folder / RECIPE_FILE) for folder in folders]
    found = label_runs(folders, headers, labels)
    return [
        RunEntry(
            folder,
            "/".join(folder.resolve().parts[-2:]),
            label,
            variant,
            _seed(header["recipe"]),
            header["recipe"],
            ended=header.get("ended"),
        )
        for folder, header, (label, variant) in zip(folders, headers, found, strict=True)
    ]


def by_task(entries: Sequence[RunEntry]) -> dict[str, list[RunEntry]]:
    """The runs of each task by name; tasks that differ in their sizes alone are one. A single task has no name."""
    found: dict[str, list[RunEntry]] = {}
    for one in entries:
        key = json.dumps(_without_sizes(one.recipe.get("task") or {}), sort_keys=True, default=str)
        found.setdefault(key, []).append(one)
    if len(found) < 2:
        return {"": list(entries)}
    names = [", ".join(list(dict.fromkeys(one.label for one in own))[:4]) for own in found.values()]
    numbered = [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
    return dict(zip(numbered, found.values(), strict=True))


def _without_sizes(task: Any) -> Any:
    """A task without its sizes, which are spans and counts, and without seeds."""
    if isinstance(task, Mapping):
        return {key: _without_sizes(value) for key, value in task.items() if not _is_size(value)}
    return [_without_sizes(one) for one in task] if isinstance(task, list | tuple) else task


def _is_size(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or bool(re.fullmatch(r"\d+:\d+", str(value)))


def _seed(recipe: Mapping[str, Any]) -> int:
    return int(recipe.get("seed") or 0)


def _run_columns(entries: Sequence[RunEntry]) -> dict[str, list[Any]]:
    """The columns that say which run it is, one value per run."""
    columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in entries] for name in list(COLUMNS)[:4]}
    taken = {*COLUMNS, *RUN_COLUMNS}
    for path, values in differing_settings([one.recipe for one in entries]).items() if entries else ():
        columns[f"recipe.{path}" if path in taken else path] = values
    return columns


# Cells ----------------------------------------------------------------------------------------------------------------


class CellLine(msgspec.Struct, gc=False):
    """A line of `cells.jsonl`; what only `sums` needs stays plain data."""

    cell: dict[str, Count]
    checkpoint: str
    step: Count
    count: Count
    region: Region
    position_offset: Count
    overlaps_training: bool
    method: str
    correct: Count | None = None
    low: float | None = None
    high: float | None = None
    digit_accuracy: Fraction | None = None
    first_token_correct: Count | None = None
    first_error_counts: list[Count] | None = None
    settings: dict[str, Any] | None = None
    stratum: str | None = None
    names: dict[str, str] | None = None
    non_causal_reason: str | None = None
    run_id: str | None = None
    loss: float | str | None = None
    bits_per_byte: float | str | None = None
    labels: dict[str, Any] | None = None
    numbers: dict[str, Any] | None = None
    numbers_by_digits: dict[str, Any] | None = None
    texts: dict[str, Any] | None = None
    language: dict[str, Any] | None = None
    tokenizer: str | None = None
    scores: dict[str, float] | None = None
    kind: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether its numbers agree: no more are correct than counted, and the interval has their ratio in it."""
        if self.correct is None:
            return self.language is not None or self.kind is not None
        if self.language is not None:
            return False
        if self.correct > self.count or not self.count or self.low is None or self.high is None:
            return not self.count
        return self.low - 1e-6 <= self.correct / self.count <= self.high + 1e-6


def cells(runs: "Runs", runs_dir: str | Path | None = None, labels: Mapping[str, str] | None = None) -> "DataFrame":
    """The evaluated cells of runs, or of all done runs of a study, as a DataFrame with the columns of `COLUMNS`.

        frame = numerate.cells("quickstart")
        frame[frame["region"] == "ood_test"].groupby("label")["exact_match"].median()

    `runs` is the title, folder or object of a study or of a run, or a list of these. Columns of measures that no cell
    has are left out. No model is loaded, and torch is not imported.

    Raises `UserError` for what is not there, and for damaged records, with file and line.
    """
    entries = [one for one in find_runs(runs, runs_dir, labels) if one.state is None or one.state.status == "done"]
    return cells_of(entries)


def cells_of(entries: Sequence[RunEntry], records: Sequence[Sequence[Mapping[str, Any]]] | None = None) -> "DataFrame":
    """`cells` of runs that were found already, or of some `records` of each of them."""
    from pandas import DataFrame

    was_enabled = gc.isenabled()
    gc.disable()  # which would look through hundreds of thousands of new rows again and again
    try:
        if records is None:
            files = [_read_cells(one.folder / "cells.jsonl", one.folder.name) for one in entries]
        else:
            files = [_lines_of(own) for own in records]
    finally:
        (gc.enable if was_enabled else gc.disable)()
    counts, rows = list(map(len, files)), [row for rows in files for row in rows]
    run_columns = DataFrame(
        {name: series(values, infer_type(values)) for name, values in _run_columns(entries).items()}
    )
    frame = run_columns.loc[run_columns.index.repeat(counts)].reset_index(drop=True)
    frame = frame.assign(**_cell_columns(rows, set(frame.columns)))
    if frame["settings"].notna().any():
        settings = frame["settings"].fillna("")
        frame["variant"] = frame["variant"] + settings.where(settings == "", ", " + settings)
    return frame[frame["questions"] > 0].reset_index(drop=True)


def _read_cells(path: Path, run_id: str) -> list[CellLine]:
    """The lines of a file, each cell once: a later line replaces an earlier one.

    The quick decoder knows types and bounds; what it refuses is read again by the one that says what is wrong.
    """
    content = read_bytes(path)
    try:
        rows = _DECODER.decode_lines(content)
        is_sound = all(row.is_sound for row in rows) and {row.run_id for row in rows} <= {None, run_id}
        is_sound = is_sound and not _may_have_names_twice(content, rows)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        is_sound = False
    keys = [_key(row) for row in rows] if is_sound else []
    if not is_sound or len({*keys}) < len(keys) or b'"nan"' in content or b'inf"' in content:
        return _lines_of(read_records(path, EVALUATION, run_id=run_id))
    if any(row.correct is None and row.language is None for row in rows):  # of a kind with entries of its own
        for row, line in zip(rows, msgspec.json.Decoder(dict[str, Any]).decode_lines(content), strict=True):
            row.scores = own_scores(line) if row.correct is None and row.language is None else row.scores
    return rows


def _lines_of(records: Sequence[Mapping[str, Any]]) -> list[CellLine]:
    """Records as lines, each cell once."""
    rows = [msgspec.convert(record, CellLine) for record in records]
    for row, record in zip(rows, records, strict=True):
        row.scores = own_scores(record) if row.correct is None and row.language is None else row.scores
    return list({_key(row): row for row in rows}.values())


def _may_have_names_twice(content: bytes, rows: Sequence[CellLine]) -> bool:
    """Whether a name that counts may be given twice in a line, of which the quick decoder takes the last, or be null.
    Names inside of other entries count as well, so that the careful reader decides."""
    if content.count(b'"language":') != sum(row.language is not None for row in rows):
        return True
    names = ("cell", "checkpoint", "step", "settings", "region", "position_offset", "correct", "count", "low", "high")
    inside = sum(name in names for row in rows for name in row.cell)
    return any(content.count(f'"{name}":'.encode()) > len(rows) + inside for name in names)


_DECODER = msgspec.json.Decoder(CellLine)


def _key(row: CellLine) -> tuple[Any, ...]:
    return (
        *row.cell.values(),
        row.checkpoint,
        row.step,
        row.position_offset,
        row.stratum,
        str(row.settings or ""),
        *row.cell,
    )


def _cell_columns(rows: Sequence[CellLine], taken: set[str]) -> "dict[str, Series[Any]]":
    """The columns that say what was evaluated, and what was measured."""
    settings = _settings_texts(rows)
    columns: dict[str, list[Any]] = {
        **{name: [getattr(row, name) for row in rows] for name in ("checkpoint", "step", "position_offset")},
        "settings": settings,
    }
    names = dict.fromkeys(axis for shape in dict.fromkeys(tuple(row.cell) for row in rows) for axis in shape)
    for axis in names:
        columns[f"cell.{axis}" if axis in taken or axis in COLUMNS else axis] = [row.cell.get(axis) for row in rows]
    axes = list(columns)[4:]
    if any(row.stratum is not None for row in rows):
        columns["stratum"] = [row.stratum for row in rows]
    columns["region"] = [row.region for row in rows]
    columns |= _measures(rows)
    return {
        name: series(values, int if name in axes else COLUMNS[name].kind if name in COLUMNS else float)
        for name, values in columns.items()
        if name in axes or name in _ALWAYS or any(value is not None for value in values)
    }


_ALWAYS = {"checkpoint", "step", "position_offset", "settings", "stratum", "region", "questions", "overlaps_training"}


def _settings_texts(rows: Sequence[CellLine]) -> list[str | None]:
    """The settings of each evaluation, in words; most have none."""
    text = cache(lambda encoded: format_settings(msgspec.json.decode(encoded)))
    return [text(msgspec.json.encode(row.settings)) if row.settings else None for row in rows]


def _measures(rows: Sequence[CellLine]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "questions": [row.count for row in rows],
        "correct": [row.correct for row in rows],
        "exact_match": [None if row.correct is None or not row.count else row.correct / row.count for row in rows],
        **{name: [getattr(row, name) if row.correct is not None else None for row in rows] for name in ("low", "high")},
        "digit_accuracy": [row.digit_accuracy for row in rows],
        "first_token_correct": list(map(_first_token_correct, rows)),
        "overlaps_training": [row.overlaps_training for row in rows],
        "method": [row.method for row in rows],
    }
    if any(row.labels for row in rows):
        metrics, baselines = ([(row.labels or {}).get(name) or {} for row in rows] for name in ("metrics", "baseline"))
        columns |= {name: [one.get(name) for one in metrics] for name in LABEL_METRICS}
        columns |= {f"{name}.baseline": [one.get(name) for one in baselines] for name in LABEL_METRICS}
    if any(row.numbers or row.texts for row in rows):
        metrics = [
            ((row.numbers or {}).get("metrics") or {}) | ((row.texts or {}).get("metrics") or {}) for row in rows
        ]
        columns |= {name: [one.get(name) for one in metrics] for name in ANSWER_METRICS}
    if any(row.language for row in rows):
        columns |= _language_columns(rows)
    for name in dict.fromkeys(name for row in rows if row.scores for name in row.scores):
        totals = [(row.scores or {}).get(name) for row in rows]
        columns[f"{SCORE_PREFIX}{name}"] = [
            total if total is None or row.correct is None else total / max(row.count, 1)
            for row, total in zip(rows, totals, strict=True)
        ]
    columns["tokenizer"] = [row.tokenizer for row in rows]
    columns["non_causal_reason"] = [row.non_causal_reason for row in rows]
    columns["names"] = [row.names for row in rows]
    columns["sums"] = [_sums(row) for row in rows]
    return columns


def _language_columns(rows: Sequence[CellLine]) -> dict[str, list[Any]]:
    language = [None if row.language is None else Likelihoods.from_sums(row.language) for row in rows]
    written = [(row.low, row.high) if row.language is not None else (None, None) for row in rows]
    return {
        "loss": [row.loss for row in rows],
        "loss.low": [low for low, _ in written],
        "loss.high": [high for _, high in written],
        "perplexity": [one and one.perplexity for one in language],
        "bits_per_byte": [row.bits_per_byte for row in rows],
        "token_accuracy": [one and one.token_accuracy for one in language],
        "nats": [one and one.nll for one in language],
        "tokens": [one and one.tokens for one in language],
        "bytes": [one and one.bytes for one in language],
    }


def _first_token_correct(row: CellLine) -> int | None:
    if row.first_token_correct is not None or row.first_error_counts is None:
        return row.first_token_correct
    return row.count - (row.first_error_counts[0] if row.first_error_counts else 0)


def _sums(row: CellLine) -> dict[str, Any] | None:
    """What can be merged over cells without loss: the entries that the sums of `numerate.evaluation` are read from."""
    names = ("labels", "numbers", "numbers_by_digits", "texts", "language")
    found = {name: getattr(row, name) for name in names}
    found = {name: sums for name, sums in found.items() if sums is not None}
    if row.scores and row.correct is not None:
        found["scores"] = row.scores
    return {"count": row.count, "correct": row.correct, **found} if found else None


# Training -------------------------------------------------------------------------------------------------------------

RUN_COLUMNS: dict[str, Column] = {
    "status": Column(str, "text", "`done`, `failed`, `running` or `left`"),
    "plan": Column(str, "plain", "`current`, or `earlier` for a run that only an earlier command requested"),
    "extended_from": Column(int, "plain", "the budget in steps that it had before it was extended"),
    "step": Column(int, "count", "the last step of training"),
    "examples": Column(int, "count", "examples seen in training"),
    "tokens": Column(int, "count", "tokens seen in training"),
    "flops": Column(float, "number", "floating-point operations of training"),
    "loss": Column(float, "number", "the last training loss"),
    "validation_exact_match": Column(float, "share", "the last exact match on the validation split"),
    "ood_validation_exact_match": Column(float, "share", "the last exact match on OOD validation"),
    "validation_loss": Column(float, "number", "the last loss on the validation split, in nats per token"),
    "validation_perplexity": Column(float, "number", "its exp"),
    "validation_bits_per_byte": Column(float, "number", "the same in bits per byte"),
    "best_step": Column(int, "count", "the step of the best checkpoint"),
    "seconds": Column(float, "number", "seconds of all sessions"),
    "worker": Column(str, "text", "host and process"),
    "stop_reason": Column(str, "text", "`budget`, `target`, `minutes` or `pruned`"),
    "failure": Column(str, "text", "the kind of failure"),
    "error": Column(str, "text", "the error of a failed run"),
}
"""The columns of `runs_of` after those that say which run it is, but for the scores."""


def runs_of(entries: Sequence[RunEntry]) -> "DataFrame":
    """A row for each run of a study, done or not: which it is, how it stands, and the end of its training."""
    from pandas import DataFrame

    columns = {name: series(values, infer_type(values)) for name, values in _run_columns(entries).items()}
    states = [one.state for one in entries]
    ends = [None if state is None else state.end for state in states]
    results = [(end.results or {}) if end is not None else {} for end in ends]
    known: dict[str, list[Any]] = {
        "status": ["done" if state is None else state.status for state in states],
        "plan": ["earlier" if state is not None and not state.run.current else "current" for state in states],
        "seconds": [end and end.seconds for end in ends],
        "worker": [end and f"{end.host}-{end.pid}" for end in ends],
        "failure": [end and end.kind for end in ends],
        "error": [end and end.error for end in ends],
    }
    optional = {
        "extended_from",
        *(name for name in RUN_COLUMNS if name.startswith("validation_") and "exact" not in name),
    }
    for name, column in RUN_COLUMNS.items():
        values = known.get(name) or [result.get(name) for result in results]
        is_trivial = {*values} <= {"current"} if name == "plan" else name in optional and not any(values)
        if not is_trivial:
            columns[name] = series(values, column.kind)
    return DataFrame(columns)


def metrics(runs: "Runs", runs_dir: str | Path | None = None, labels: Mapping[str, str] | None = None) -> "DataFrame":
    """What was logged while runs trained: a row per line of `metrics.jsonl`, with the columns that say which run it is,
    `step`, `split` (missing for training itself) and the metrics.

        frame = numerate.results.rows.metrics("quickstart")
        frame[frame["split"] == "validation"].pivot(index="step", columns="run", values="exact_match")
    """
    from pandas import DataFrame

    entries = [one for one in find_runs(runs, runs_dir, labels) if one.state is None or one.state.status == "done"]
    return metrics_of(entries) if entries else DataFrame()


def metrics_of(entries: Sequence[RunEntry], on_damage: Callable[[str], None] = lambda text: None) -> "DataFrame":
    """`metrics` of runs that were found already. Damaged lines are left out, warned of, and passed to `on_damage`."""
    from pandas import DataFrame

    def warn(text: str) -> None:
        on_damage(text)
        warnings.warn(text, stacklevel=2)

    files = [read_metrics(one.folder, {"ended": one.ended}, warn, on_damage) for one in entries]
    lines = [line for lines in files for line in lines]
    run_columns = DataFrame(
        {name: series(values, infer_type(values)) for name, values in _run_columns(entries).items()}
    )
    frame = run_columns.loc[run_columns.index.repeat(list(map(len, files)))].reset_index(drop=True)
    names = {name for line in lines for name, value in line.items() if isinstance(value, int | float | str)}
    names |= {"step", "split"}
    return frame.assign(
        **{
            name: series([line.get(name) for line in lines], infer_type([line.get(name) for line in lines]))
            for name in sorted(names, key=lambda name: (name not in ("step", "split"), name))
        }
    )
