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

from numerate.config.differences import SETTINGS_WITHOUT_EFFECT, differences, format_settings, shortest_texts
from numerate.errors import UserError
from numerate.evaluation.answer_metrics import ANSWER_METRICS, PROPORTION_METRICS, own_scores
from numerate.evaluation.labels import METRICS
from numerate.records.heads import RECIPE_FILE, read_header, read_metrics
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read_records
from numerate.results.variants import label_runs
from numerate.runs.status import RunState, read_states
from numerate.runs.study_folder import StudyFolder
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

REGIONS = {
    "in_distribution": "in distribution",
    "ood_validation": "OOD validation",
    "ood_test": "OOD test",
    "100+": "100+",
}
"""The regions of an evaluation, nearest to training first, with their names for people. There is also `below`, smaller
than all of training, which is in no summary."""


class Column(NamedTuple):
    """A column: its type in pandas, how it is shown, its meaning, where a line of `cells.jsonl` has it (by default
    under its own name), and whether tables show it unless others are named."""

    kind: type
    format: Format
    meaning: str
    path: str = ""
    shown: bool = False


_SHOWN_METRICS = ("number_accuracy", "mae", "log_mae", "log_r2", "bleu")

COLUMNS: dict[str, Column] = {
    "run": Column(str, "plain", "the folder of the run, below the folder of all runs"),
    "label": Column(str, "plain", "the label of its recipe"),
    "variant": Column(str, "plain", "the label with the settings in which its runs differ; seeds share it"),
    "seed": Column(int, "plain", "its seed"),
    "checkpoint": Column(str, "plain", "`final`, `best`, or `step 500`"),
    "step": Column(int, "plain", "the step of the checkpoint"),
    "position_offset": Column(int, "plain", "the offset of position ids in this evaluation"),
    "settings": Column(str, "plain", "what was changed for this evaluation, such as `num_loops=8`; missing as trained"),
    "stratum": Column(str, "plain", "the stratum of the questions; missing for a cell of the map"),
    "region": Column(str, "plain", f"{', '.join(f'`{name}`' for name in REGIONS)} or `below`"),
    "questions": Column(int, "count", "questions, rows with labels, or chunks of text", "count"),
    "correct": Column(int, "count", "how many answers were correct as a whole"),
    "exact_match": Column(float, "share", "correct / questions, of a region the mean over its cells", shown=True),
    "low": Column(float, "share", "lower end of Wilson's 95 % interval of exact match, over questions"),
    "high": Column(float, "share", "upper end"),
    "digit_accuracy": Column(float, "share", "share of correct digits"),
    "first_token_correct": Column(int, "count", "answers whose first token was correct"),
    "overlaps_training": Column(bool, "flag", "too few questions to hold any out, so training may have seen them"),
    "method": Column(str, "text", "`one pass`, `decoding` or `beams`"),
    **{
        f"{name}{end}": Column(float, "share", f"{METRICS[name]}{of}", f"labels.{entry}.{name}", name == "ood_accuracy")
        for end, of, entry in (("", "", "metrics"), (".baseline", " of memorizing", "baseline"))
        for name in LABEL_METRICS
    },
    **{
        name: Column(
            float, "share" if name in PROPORTION_METRICS else "number", title, f"answers.{name}", name in _SHOWN_METRICS
        )
        for name, title in ANSWER_METRICS.items()
    },
    "loss": Column(float, "number", "nats per token, which depends on the tokenizer, as perplexity does", shown=True),
    "loss.low": Column(float, "number", "lower end of its 95 % interval, over chunks of text", "loss_low"),
    "loss.high": Column(float, "number", "upper end", "loss_high"),
    "perplexity": Column(float, "number", "exp(loss)", shown=True),
    "bits_per_byte": Column(float, "number", "bits per byte of UTF-8", shown=True),
    "token_accuracy": Column(float, "share", "share of tokens that were the most probable"),
    "nats": Column(float, "number", "sum of the negative log-probabilities of all tokens", "language.nll"),
    "tokens": Column(int, "count", "tokens of text", "language.tokens"),
    "bytes": Column(int, "count", "bytes of text", "language.bytes"),
    "tokenizer": Column(str, "text", "a fingerprint of the tokenizer; losses compare only where it is the same"),
    "non_causal_reason": Column(str, "text", "how the model sees later tokens: scores mean nothing", shown=True),
    "names": Column(object, "text", "the names of sizes that are parts, such as modules: {axis: name}"),
    "sums": Column(object, "text", "sums of labels, numbers, texts or likelihoods, which `summary` merges"),
}
"""The columns of `cells`, in order. Settings in which runs differ stand before `checkpoint`, the axes of the grid after
`settings`; `score.NAME`, at the end, are scores of a kind of evaluation of one's own."""

RUN_COLUMNS: dict[str, Column] = {
    "status": Column(str, "text", "`done`, `failed`, `running` or `left`"),
    "plan": Column(str, "plain", "`current`, or `earlier` for a run that only an earlier command requested"),
    "extended_from": Column(int, "plain", "its budget before it was extended, which its learning rates follow"),
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
    "stop_reason": Column(str, "text", "`budget`, `target` or `pruned`"),
    "failure": Column(str, "text", "the kind of failure"),
    "error": Column(str, "text", "the error of a failed run"),
}
"""The columns of `runs_of` after those that say which run it is. Of these and of `COLUMNS` a frame has those that have
a value, and always the ones of `_ALWAYS`."""

_ALWAYS = {"checkpoint", "step", "position_offset", "settings", "region", "questions", "overlaps_training"}
_ALWAYS |= {"status", "failure", "error"}

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


def series(values: Iterable[Any], kind: type | None = None) -> "Series[Any]":
    """A column of one type, by default the one that fits: integers mixed with other numbers are float, all else is
    text. None, what is not finite, and texts among numbers are missing."""
    from pandas import Series

    if kind is object:
        return Series(list(values), dtype=object)
    known = [None if type(value) is float and not isfinite(value) else value for value in values]
    if kind is not None and kind is not str:
        known = [value if isinstance(value, int | float) else None for value in known]
    types = {*map(type, known)} - {type(None)}
    if kind is None and types and types <= {int, float}:
        kind = int if types == {int} and all(value is None or abs(value) < 2**63 for value in known) else float
    kind = kind or (bool if types == {bool} else str)
    if kind is str and types - {str}:
        known = [str(one).lower() if isinstance(one, bool) else one if one is None else str(one) for one in known]
    return Series(known, dtype=_DTYPES[kind][None in known])


# Runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunEntry:
    """A run to be read: its folder, its name in tables (the path below the folder of runs), its labels as in `COLUMNS`,
    its recipe as plain data, its id, which its records repeat, how it stands if it belongs to a study, and the `step`
    and `stop_reason` of its training."""

    folder: Path
    run: str
    label: str
    variant: str
    seed: int
    recipe: Mapping[str, Any]
    id: str
    state: RunState | None = None
    ended: Mapping[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        return self.state is None or self.state.status == "done"


def find_runs(
    runs: "Runs", runs_dir: str | Path | None = None, labels: Mapping[str, str] | None = None
) -> list[RunEntry]:
    """The runs that are meant: those of a study (given by its title, its path or itself) with their states, or runs by
    their folders, names or objects, each once. Of a study these are the runs of the current plan, and the done ones of
    earlier plans. `labels` renames recipes by their titles.

    Raises `UserError` for a study or run that is not there.
    """
    is_one = isinstance(runs, str | os.PathLike) or hasattr(runs, "path") or hasattr(runs, "recipes")
    several: Sequence[Any] = [runs] if is_one or not isinstance(runs, Iterable) else [*runs]
    found: list[RunEntry] = []
    alone: dict[Path, Path] = {}
    for one in several:
        address = folder_name(one.title) if hasattr(one, "recipes") else getattr(one, "path", one)
        if not isinstance(address, str | os.PathLike):
            raise UserError(f"runs: must be a study, a run, a folder or title, or several of these, not {one!r}")
        address = os.fspath(address)
        if (Path(address) / RECIPE_FILE).is_file():
            alone[Path(address).resolve()] = Path(address)
        else:
            study = StudyFolder.find(address, resolve_runs_dir(runs_dir))
            states = read_states(study.runs_dir, study.read().runs)
            found += study_entries([state for state in states if state.run.current or state.status == "done"])
    heads = [read_header(folder / RECIPE_FILE) for folder in alone.values()]
    for folder, head, names in zip(alone.values(), heads, label_runs([*alone], heads, labels or {}), strict=True):
        run, seed = "/".join(folder.resolve().parts[-2:]), int(head["recipe"].get("seed") or 0)
        found.append(RunEntry(folder, run, *names, seed, head["recipe"], head["id"], ended=head.get("ended")))
    return list({entry.folder.resolve(): entry for entry in found}.values())


def study_entries(states: Sequence[RunState]) -> list[RunEntry]:
    """The runs of a study as they stand."""
    return [
        RunEntry(
            *(state.path, state.run.run, state.run.name, state.run.label, state.run.seed, state.run.recipe_tree()),
            *(state.path.name, state, None if state.end is None else state.end.results),
        )
        for state in states
    ]


def by_task(entries: Sequence[RunEntry]) -> dict[str, list[RunEntry]]:
    """The runs of each task by name; tasks that differ in their sizes (spans and counts) alone are one. A single task
    has no name."""
    found: dict[str, list[RunEntry]] = {}
    for one in entries:
        task = json.dumps(one.recipe.get("task") or {}, sort_keys=True, default=str)
        found.setdefault(re.sub(r'"\w+": (-?\d+|"\d+:\d+")(?=[,}])', "", task), []).append(one)
    if len(found) < 2:
        return {"": list(entries)}
    names = [", ".join(list(dict.fromkeys(one.label for one in own))[:4]) for own in found.values()]
    numbered = [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
    return dict(zip(numbered, found.values(), strict=True))


def differing_settings(recipes: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Each setting that may affect results and in which recipes differ, by its path: its value in every recipe; None if
    it has none. Where the parts there are of several classes, or in lists of several lengths, the value is a text with
    the settings that tell them apart: "Attention(num_heads=4)", "LSTM", "[Learned, Rotary]".

    >>> small, large = ({"seed": seed, "model": {"kind": "Decoder", "hidden_size": 64 + seed}} for seed in (0, 1))
    >>> differing_settings([small, large])
    {'model.hidden_size': [64, 65]}
    """
    ignored = {*SETTINGS_WITHOUT_EFFECT["Recipe"], "seed"}
    ignored |= {f"training.{name}" for name in SETTINGS_WITHOUT_EFFECT["Training"]}
    found = {}
    for path, values in differences("", recipes):
        if not {path, path.partition(".")[0]} & ignored:
            texts = iter(shortest_texts([one for one in values if one is not None]))
            is_plain = not any(isinstance(one, Mapping | list) for one in values)
            found[path] = [one if is_plain or one is None else next(texts) for one in values]
    return found


def _run_frame(entries: Sequence[RunEntry], counts: Sequence[int] | None = None) -> "DataFrame":
    """Which run it is and the settings in which the runs differ, a row for each, or as many as `counts` says."""
    from pandas import DataFrame

    columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in entries] for name in list(COLUMNS)[:4]}
    for path, values in differing_settings([one.recipe for one in entries]).items():
        columns[f"recipe.{path}" if path in COLUMNS or path in RUN_COLUMNS else path] = values
    frame = DataFrame({name: series(values) for name, values in columns.items()})
    return frame if counts is None else frame.loc[frame.index.repeat(counts)].reset_index(drop=True)


def runs_of(entries: Sequence[RunEntry]) -> "DataFrame":
    """A row for each run of a study, done or not: which it is, how it stands, and the end of its training."""
    states = [one.state for one in entries]
    ends = [None if state is None else state.end for state in states]
    is_earlier = [state is not None and not state.run.current for state in states]
    known: dict[str, list[Any]] = {
        "status": ["done" if state is None else state.status for state in states],
        "plan": [("current", "earlier")[one] if any(is_earlier) else None for one in is_earlier],
        "worker": [end and f"{end.host}-{end.pid}" for end in ends],
        "failure": [end and end.kind for end in ends],
        **{name: [end and getattr(end, name) for end in ends] for name in ("seconds", "error")},
    }
    results = [end.results if end and end.results else {} for end in ends]
    columns = {name: known.get(name) or [result.get(name) for result in results] for name in RUN_COLUMNS}
    return _run_frame(entries).assign(**_with_values(columns, RUN_COLUMNS))


def _with_values(columns: Mapping[str, Sequence[Any]], declared: Mapping[str, Column]) -> "dict[str, Series[Any]]":
    """The columns that have a value, or always are there."""
    return {
        name: series(values, declared[name].kind)
        for name, values in columns.items()
        if name in _ALWAYS or values.count(None) < len(values)
    }


# Cells ----------------------------------------------------------------------------------------------------------------


def cells(runs: "Runs", runs_dir: str | Path | None = None) -> "DataFrame":
    """The evaluated cells of runs, or of all done runs of a study, as a DataFrame with the columns of `COLUMNS`.

        frame = numerate.cells("quickstart")
        frame[frame["region"] == "ood_test"].groupby("label")["exact_match"].median()

    `runs` is the title, folder or object of a study or of a run, or a list of these. Columns of measures that no cell
    has are left out. No model is loaded, and torch is not imported.

    Raises `UserError` for what is not there, and for damaged records, with file and line.
    """
    return cells_of([one for one in find_runs(runs, runs_dir) if one.is_done])


def cells_of(entries: Sequence[RunEntry], records: Sequence[Sequence[Mapping[str, Any]]] | None = None) -> "DataFrame":
    """`cells` of runs that were found already, or of some `records` of each of them."""
    was_enabled = gc.isenabled()
    gc.disable()  # which would look through hundreds of thousands of new rows again and again
    try:
        lines = records or [read_records(one.folder / "cells.jsonl", EVALUATION, run_id=one.id) for one in entries]
        files = [list({_place(line): _row(line) for line in own}.values()) for own in lines]
    finally:
        (gc.enable if was_enabled else gc.disable)()
    frame = _run_frame(entries, list(map(len, files)))
    frame = frame.assign(**_cell_columns([row for rows in files for row in rows], {*frame}))
    if frame["settings"].notna().any():
        settings = frame["settings"].fillna("")
        frame["variant"] = frame["variant"] + settings.where(settings == "", ", " + settings)
    return frame[frame["questions"] > 0].reset_index(drop=True)


def _place(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two lines of the same cell share; a later one replaces an earlier one."""
    evaluation = (line["checkpoint"], line["step"], line["position_offset"], line.get("stratum"))
    return (*line["cell"].items(), *evaluation, str(line.get("settings") or ""))


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line with what is computed of it: its exact match, its scores, the sums that `summary` merges; of text `low`
    and `high` are the ends of the loss."""
    row, correct, count = dict(line), line.get("correct"), line["count"]
    if "language" in line:
        row |= {"loss_low": row.pop("low", None), "loss_high": row.pop("high", None)}
    elif correct is None:  # of a kind with entries of its own
        row["scores"] = own_scores(line)
    elif count:
        row["exact_match"] = correct / count
    metrics = [line[name].get("metrics", {}) for name in ("numbers", "texts") if line.get(name)]
    if metrics:
        row["answers"] = {name: value for one in metrics for name, value in one.items()}
    if known := {name: line[name] for name in _SUMS if line.get(name) and (correct is not None or name != "scores")}:
        row["sums"] = {"count": count, "correct": correct, **known}
    return row


_SUMS = ("labels", "numbers", "numbers_by_digits", "texts", "language", "scores")


def _cell_columns(rows: Sequence[Mapping[str, Any]], taken: set[str]) -> "dict[str, Series[Any]]":
    """The columns that say what was evaluated, and what was measured."""
    entry = cache(lambda name: [row.get(name) for row in rows])
    columns: dict[str, list[Any]] = {}
    for name in list(COLUMNS)[4:]:
        first, *inner = (COLUMNS[name].path or name).split(".")
        columns[name] = entry(first)
        for one in inner if columns[name].count(None) < len(rows) else ():
            columns[name] = [None if value is None else value.get(one) for value in columns[name]]
    text = cache(lambda encoded: format_settings(msgspec.json.decode(encoded)))
    columns["settings"] = [text(msgspec.json.encode(one)) if one else None for one in columns["settings"]]
    measured = _with_values(columns, COLUMNS)
    found = {name: measured.pop(name) for name in ("checkpoint", "step", "position_offset", "settings")}
    for axis in dict.fromkeys(axis for shape in dict.fromkeys(tuple(row["cell"]) for row in rows) for axis in shape):
        name = f"cell.{axis}" if axis in taken or axis in COLUMNS else axis
        found[name] = series([row["cell"].get(axis) for row in rows], int)
    found |= measured
    counts = [1 if row.get("correct") is None else max(row["count"], 1) for row in rows]
    for name in dict.fromkeys(name for scores in entry("scores") for name in scores or ()):
        totals = [(scores or {}).get(name) for scores in entry("scores")]
        found[f"{SCORE_PREFIX}{name}"] = series(totals, float) / counts
    return found


# Training -------------------------------------------------------------------------------------------------------------


def metrics(runs: "Runs", runs_dir: str | Path | None = None) -> "DataFrame":
    """What was logged while runs trained: a row per line of `metrics.jsonl`, with the columns that say which run it is,
    `step`, `split` (missing for training itself) and the metrics.

        frame = numerate.results.rows.metrics("quickstart")
        frame[frame["split"] == "validation"].pivot(index="step", columns="run", values="exact_match")
    """
    return metrics_of([one for one in find_runs(runs, runs_dir) if one.is_done])


def metrics_of(entries: Sequence[RunEntry], on_damage: Callable[[str], None] = lambda text: None) -> "DataFrame":
    """`metrics` of runs that were found already. Damaged lines are left out, warned of, and passed to `on_damage`."""

    def warn(text: str) -> None:
        on_damage(text)
        warnings.warn(text, stacklevel=2)

    files = [read_metrics(one.folder, {"ended": one.ended}, warn, on_damage) for one in entries]
    lines = [line for lines in files for line in lines]
    names = {name for line in lines for name, value in line.items() if isinstance(value, int | float | str)}
    columns = {name: series([line.get(name) for line in lines]) for name in ("step", "split", *sorted(names))}
    return _run_frame(entries, list(map(len, files))).assign(**columns)
