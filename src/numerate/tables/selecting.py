"""Columns of results by name: what they hold, how options name them; rows by conditions, and their order.

Everything follows from the names of columns, so that any DataFrame with such columns can be selected from and shown.
Rows are selected by conditions of the command line, which name columns by their ends and are checked against the values
that there are; `DataFrame.query` does neither.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from numerate.config.values import split_at_commas, unquote
from numerate.errors import UserError, did_you_mean
from numerate.evaluation.answer_metrics import ANSWER_METRICS, PROPORTION_METRICS, base_metric
from numerate.evaluation.labels import METRICS
from numerate.reports.grid import REGION_LABELS, join_names
from numerate.runs.engines.engine import FailureKind

if TYPE_CHECKING:
    from pandas import DataFrame, Series

RUN_STATUSES = ("done", "failed", "running", "left")
"""The state of a run. A run that was stopped or killed is `left`: the same command resumes it."""

CATEGORIES: dict[str, Sequence[str]] = {
    "status": RUN_STATUSES,
    "plan": ("current", "earlier"),  # requested by the last command, or only by earlier ones
    "failure": get_args(FailureKind),
    "region": tuple(REGION_LABELS),
}
"""The values that a column may have, even if no row has them."""

LABEL_METRICS = tuple(name for name in METRICS if name != "exact_match")
"""The metrics of labels that have separate columns, after exact match."""

LANGUAGE_METRICS = ("loss", "perplexity", "bits_per_byte", "token_accuracy")
"""The metrics of language modeling that have columns."""

DEFAULT_ANSWER_METRICS = ("number_accuracy", "mae", "log_mae", "log_r2", "bleu", "perplexity")
"""The metrics of numbers and texts that are displayed by default."""

_CELL_DEFAULTS = {
    *("exact_match", "ood_accuracy", "ood_accuracy.baseline", "loss", "perplexity", "bits_per_byte"),
    *DEFAULT_ANSWER_METRICS,
}

Format = Literal["plain", "share", "count", "number", "text", "flag"]
"""What a column holds: a "share" is shown in per cent, a "count" with commas, a "number" with four digits; "plain" are
values that tell rows apart."""

METRIC_FORMATS: dict[str, Format] = {
    **dict.fromkeys(("correct", "count", "first_token_correct", "tokens", "bytes"), "count"),
    **dict.fromkeys(("exact_match", "low", "high", "baseline", "digit_accuracy", *LABEL_METRICS), "share"),
    **dict.fromkeys(LANGUAGE_METRICS, "number"),
    **{name: "share" if name in PROPORTION_METRICS else "number" for name in ANSWER_METRICS},
}
"""The metrics of cells, and of regions in columns such as `final.ood_test.mae`."""

RESULT_FORMATS: dict[str, Format] = {
    **METRIC_FORMATS,
    **dict.fromkeys(("step", "examples", "best_step", "done", "failed", "left"), "count"),
    **dict.fromkeys(("validation_exact_match", "ood_validation_exact_match"), "share"),
    **dict.fromkeys((f"{name}.baseline" for name in LABEL_METRICS), "share"),
    **dict.fromkeys(("flops", "seconds", "success", "loss.low", "loss.high"), "number"),
    **dict.fromkeys(("validation_loss", "validation_perplexity", "validation_bits_per_byte"), "number"),
    **dict.fromkeys(("status", "non_causal_reason", "worker", "stop_reason", "failure", "error"), "text"),
    **dict.fromkeys(("method", "success.of"), "text"),
    "overlaps_training": "flag",
}
"""The columns that do not tell rows apart, beside those of checkpoints (`final.`, `best.`)."""


SCORE_PREFIX = "score."
"""What columns of cells with scores of a kind of evaluation outside numerate begin with."""


def is_identifier(name: str) -> bool:
    """Whether a column tells rows apart: a label, a seed, a setting, an axis of cells. All others are results.

    >>> [is_identifier(name) for name in ("seed", "model.hidden_size", "loss", "final.ood_test.low")]
    [True, True, False, False]
    """
    return name not in RESULT_FORMATS and not name.startswith(("final.", "best.", SCORE_PREFIX))


def display_format(name: str) -> Format:
    """How the values of a column are shown."""
    if is_identifier(name):
        return "plain"
    if name.startswith(SCORE_PREFIX):
        return "share"
    if not name.startswith(("final.", "best.")):
        return RESULT_FORMATS[name]
    end = name.split(".", 2)[2] if name.count(".") > 1 else "exact_match"
    metric = base_metric(re.sub(r"\.(low|high|baseline)$", "", end))
    return METRIC_FORMATS.get(metric, "share" if _is_score(metric) else "number")


_VALIDATION_COLUMNS = ("loss", "validation_exact_match", "ood_validation_exact_match", "validation_loss")
"""The results shown of runs that were trained and not evaluated, those of a search."""


def is_default(name: str, names: Sequence[str]) -> bool:
    """Whether a result is displayed if no columns are requested, among the columns of a table of runs or cells."""
    if "status" not in names:
        return name in _CELL_DEFAULTS or name.startswith(SCORE_PREFIX)
    path, metric = ".".join(name.split(".")[:2]), ".".join(name.split(".")[2:])
    checkpoint, _, region = path.partition(".")
    if checkpoint not in ("final", "best"):
        return name == "non_causal_reason"
    if f"{path}.bits_per_byte" in names:
        return metric in LANGUAGE_METRICS[:3]
    if not metric:  # of labels the best checkpoint has only its main metric, to limit the width of a row
        return checkpoint == "final" or not any(f"{path}.{label_metric}" in names for label_metric in LABEL_METRICS)
    main = "accuracy" if region == "in_distribution" else "ood_accuracy"
    if metric in (main, f"{main}.baseline"):
        return metric == main or region != "in_distribution"
    return checkpoint == "final" and (metric in DEFAULT_ANSWER_METRICS or _is_score(metric))


def _is_score(metric: str) -> bool:
    """Whether the metric of a region is one that none of numerate's own kinds of evaluation has."""
    return bool(metric) and METRIC_FORMATS.keys().isdisjoint((metric, base_metric(metric), *metric.split(".")))


def find_columns(frame: "DataFrame", name: str, option: str = "columns", *, single: bool = False) -> list[str]:
    """The columns with a name: one, whose name may be shortened at the front if it is unique (`hidden_size` for
    `model.hidden_size`), or unless `single` all directly below it (`final`). Raises `UserError` if there are none."""
    text, names = _normalize_name(name), {_normalize_name(column): column for column in frame.columns}
    if text in names:
        return [names[text]]
    ends = [column for one, column in names.items() if one.endswith(f".{text}")]
    below = [c for one, c in names.items() if one.startswith(f"{text}.") and one.rpartition(".")[0] not in names]
    found = ends or (below if text else [])
    if len(found) > 1 and (ends or single):
        raise UserError(f"{option}: {name!r} may be {' or '.join(found[:12])}; give one of these")
    if not found:
        known = [*frame.columns, *(column.rpartition(".")[2] for column in frame.columns)]
        hint = did_you_mean(name, known) or f" There are: {join_names(frame.columns)}."
        raise UserError(f"{option}: no column {name!r}.{hint}")
    return found


def find_column(frame: "DataFrame", name: str, option: str) -> str:
    """The column with a name. Raises `UserError` if there is none, or several."""
    return find_columns(frame, name, option, single=True)[0]


def select_columns(frame: "DataFrame", names: Sequence[str]) -> "DataFrame":
    """The columns of these names, in this order; `all` is every column."""
    found = [one for name in names or [""] for one in (frame.columns if name == "all" else find_columns(frame, name))]
    return frame[list(dict.fromkeys(found))]


def where(frame: "DataFrame", *conditions: str) -> "DataFrame":
    """The rows in which columns have, or do not have, given values: `where(frame, "label!=Abacus", "hidden_size=64")`.

    `null` is a missing value: `loss!=null` selects the rows with a value. Raises `UserError` for a value that no row
    has.
    """
    selected = np.ones(len(frame), dtype=bool)
    for condition in conditions:
        name, equals, text = condition.partition("=")
        equal, name, text = not name.endswith("!"), name.removesuffix("!").strip(), text.strip()
        if not equals or not name:
            raise UserError(
                f"where: {condition!r} must be a condition; for example: where=label=Abacus,model.hidden_size=64"
            )
        column = frame[find_column(frame, name, "where")]
        values, value = plain_values(column), _parse_value(text, column)
        is_null = value is None and not equal
        if values and not is_null and value not in values and value not in CATEGORIES.get(str(column.name), ()):
            known = [json.dumps(one) if not isinstance(one, str) else one for one in dict.fromkeys(values)]
            hint = did_you_mean(text, known) or f" There are: {join_names(known)}."
            raise UserError(f"where: no row has {column.name}={text}.{hint}")
        selected &= np.array([(one == value) is equal for one in values], dtype=bool)
    return frame[selected]


def sort_rows(frame: "DataFrame", *names: str) -> "DataFrame":
    """The rows sorted by columns; `-final.ood_test` starts with the largest. Missing values come last."""
    by = [find_column(frame, name.removeprefix("-"), "sort") for name in names]
    ascending = [not name.startswith("-") for name in names]
    return frame.sort_values(by, ascending=ascending, kind="stable") if by else frame


def informative_columns(frame: "DataFrame") -> list[str]:
    """The columns to display if none are requested: the identifying ones that differ, those displayed by default that
    have values, and the status if not all runs are done. A setting that is the same in all rows of a label is omitted:
    the label implies it."""
    names = list(frame.columns)
    shown = {name for name in names if is_identifier(name) and name != "run" and frame[name].nunique(dropna=False) > 1}
    if "label" in shown:
        settings = shown - {"label", "seed"}
        shown -= settings - {*differing_within(frame, ["label"], sorted(settings))}
    shown = (shown or {"label", "seed"}) | ({"extended_from"} & {*names})
    if "status" in names and (frame["status"] != "done").any():
        shown.add("status")
    defaults = [name for name in names if is_default(name, names)]
    measured = [name for name in defaults or _VALIDATION_COLUMNS if name in names and frame[name].notna().any()]
    shown.update(measured or defaults)
    return [name for name in names if name in shown]


def differing_within(frame: "DataFrame", keys: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that differ among rows with equal values in the columns `keys`."""
    counts = frame.groupby(list(keys), dropna=False)[list(names)].nunique(dropna=False)
    return [name for name in names if (counts[name] > 1).any()]


def short_names(names: Sequence[str]) -> list[str]:
    """Settings by the ends of their paths if these are unique, as options accept them; others by their full paths."""
    ends = [re.sub(r".*?([^.]+(\.\d+)*)$", r"\1", name) for name in names]
    return [
        end if is_identifier(name) and ends.count(end) == 1 else name for name, end in zip(names, ends, strict=True)
    ]


def plain_values(column: "Series[Any]") -> list[Any]:
    """The values of a column as plain ones of Python; None where they are missing."""
    return list(column.astype(object).where(column.notna(), None))


def plain_rows(frame: "DataFrame") -> list[dict[str, Any]]:
    """The rows of a table by column, with plain values of Python."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def parse_list(text: str, option: str) -> list[str]:
    """The values of an option, separated by commas.

    >>> parse_list("label,seed", "columns")
    ['label', 'seed']
    """
    parts = split_at_commas(text)
    if parts is None:
        raise UserError(f"{option}: {text!r} has unclosed brackets or quotes")
    return [part for part in parts if part]


def _parse_value(text: str, column: "Series[Any]") -> Any:
    text, kind = unquote(text) or text, column.dtype.kind
    if text in ("", "null"):
        return None
    try:
        return float(text) if kind in "iuf" else {"true": True, "false": False}[text.lower()] if kind == "b" else text
    except (KeyError, ValueError):
        return text  # which no row has


def _normalize_name(name: str) -> str:
    return name.strip().lower().replace("-", "_")
