"""Columns of tables by parts of their names, and rows by conditions, as the command line has them."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from numerate.config.values import split_at_commas, unquote
from numerate.errors import UserError, did_you_mean
from numerate.evaluation.answer_metrics import base_metric
from numerate.results.rows import (
    COLUMNS,
    LABEL_METRICS,
    LANGUAGE_METRICS,
    REGIONS,
    RUN_COLUMNS,
    SCORE_PREFIX,
    Format,
)
from numerate.results.words import joined
from numerate.runs.engines.engine import FailureKind

if TYPE_CHECKING:
    from pandas import DataFrame, Series

RUN_STATUSES = ("done", "failed", "running", "left")
"""How a run may stand. One that was stopped or killed is `left`: the same command resumes it."""

CATEGORIES: dict[str, Sequence[str]] = {
    "status": RUN_STATUSES,
    "plan": ("current", "earlier"),
    "failure": get_args(FailureKind),
    "region": tuple(REGIONS),
}
"""The values that a column may have, even if no row has them."""

SHOWN_METRICS = ("number_accuracy", "mae", "log_mae", "log_r2", "bleu", "perplexity")
"""The metrics of numbers and texts that are shown unless others are named."""


def column_format(name: str) -> Format:
    """What a column holds, by its name."""
    if name.startswith(("final.", "best.")):
        metric = re.sub(r"\.(low|high|baseline)$", "", name.split(".", 2)[2] if name.count(".") > 1 else "")
        if metric in ("", "low", "high"):
            return "share"
        known = COLUMNS.get(metric) or COLUMNS.get(base_metric(metric))
        return "number" if metric in LANGUAGE_METRICS else known.format if known else "share"
    if name.startswith(SCORE_PREFIX):
        return "share"
    known = RUN_COLUMNS.get(name) or COLUMNS.get(name)
    if known is None:
        return {"success": "share", "done": "count", "failed": "count", "left": "count"}.get(name, "plain")  # type: ignore[return-value]
    return known.format


def is_identifier(name: str) -> bool:
    """Whether a column tells rows apart: a label, a seed, a setting, an axis of cells. All others are results.

    >>> [is_identifier(name) for name in ("seed", "model.hidden_size", "loss", "final.ood_test.low")]
    [True, True, False, False]
    """
    return column_format(name) == "plain"


def is_shown(name: str, names: Sequence[str]) -> bool:
    """Whether a result is shown if no columns are named, among the columns of a table of runs or of cells."""
    if "status" not in names:
        shown = ("exact_match", "ood_accuracy", "ood_accuracy.baseline", "loss", "bits_per_byte", *SHOWN_METRICS)
        return name in shown or name.startswith(SCORE_PREFIX)
    checkpoint, _, rest = name.partition(".")
    if checkpoint not in ("final", "best"):
        return name == "non_causal_reason"
    region, _, metric = rest.partition(".")
    path = f"{checkpoint}.{region}"
    if f"{path}.bits_per_byte" in names:
        return metric in LANGUAGE_METRICS[:3]
    if not metric:  # of labels the best checkpoint has only its main metric, to limit the width of a row
        return checkpoint == "final" or not any(f"{path}.{label_metric}" in names for label_metric in LABEL_METRICS)
    main = "accuracy" if region == "in_distribution" else "ood_accuracy"
    if metric in (main, f"{main}.baseline"):
        return metric == main or region != "in_distribution"
    known = {*COLUMNS, "low", "high", *(f"{one}.baseline" for one in LABEL_METRICS)}
    is_own = base_metric(re.sub(r"\.(low|high)$", "", metric)) not in known and not metric.endswith((".low", ".high"))
    return checkpoint == "final" and (metric in SHOWN_METRICS or is_own)


def find_columns(frame: "DataFrame", name: str, option: str = "columns", *, single: bool = False) -> list[str]:
    """The columns with a name: one, whose name may be shortened at the front if it is unique (`hidden_size` for
    `model.hidden_size`), or unless `single` all directly below it (`final`). Raises `UserError` if there are none."""
    text, names = _normalized(name), {_normalized(column): column for column in frame.columns}
    if text in names:
        return [names[text]]
    ends = [column for one, column in names.items() if one.endswith(f".{text}")]
    below = [c for one, c in names.items() if one.startswith(f"{text}.") and one.rpartition(".")[0] not in names]
    found = ends or (below if text else [])
    if len(found) > 1 and (ends or single):
        raise UserError(f"{option}: {name!r} may be {' or '.join(found[:12])}; give one of these")
    if not found:
        known = [*frame.columns, *(column.rpartition(".")[2] for column in frame.columns)]
        hint = did_you_mean(name, known) or f" There are: {joined(list(frame.columns))}."
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
        values, value = plain_values(column), _parsed(text, column)
        is_null = value is None and not equal
        if values and not is_null and value not in values and value not in CATEGORIES.get(str(column.name), ()):
            known = [json.dumps(one) if not isinstance(one, str) else one for one in dict.fromkeys(values)]
            hint = did_you_mean(text, known) or f" There are: {joined(known)}."
            raise UserError(f"where: no row has {column.name}={text}.{hint}")
        selected &= np.array([(one == value) is equal for one in values], dtype=bool)
    return frame[selected]


def sort_rows(frame: "DataFrame", *names: str) -> "DataFrame":
    """The rows sorted by columns; `-final.ood_test` starts with the largest. Missing values come last."""
    by = [find_column(frame, name.removeprefix("-"), "sort") for name in names]
    ascending = [not name.startswith("-") for name in names]
    return frame.sort_values(by, ascending=ascending, kind="stable") if by else frame


def informative_columns(frame: "DataFrame") -> list[str]:
    """The columns to show if none are named: those that tell rows apart and differ, the results shown by default that
    have values, and the status if not all runs are done. A setting that is the same in all rows of a label is left out:
    the label implies it."""
    names = list(frame.columns)
    apart = [name for name in names if is_identifier(name) and name not in ("run", "variant")]
    shown = {name for name in apart if frame[name].nunique(dropna=False) > 1}
    if "label" in shown:
        settings = shown - {"label", "seed"}
        shown -= settings - {*differing_within(frame, ["label"], sorted(settings))}
    shown = (shown or {"label", "seed"}) | ({"extended_from"} & {*names})
    if "status" in names and (frame["status"] != "done").any():
        shown.add("status")
    defaults = [name for name in names if is_shown(name, names)]
    validation = ("loss", "validation_exact_match", "ood_validation_exact_match", "validation_loss")
    measured = [name for name in defaults or validation if name in names and frame[name].notna().any()]
    shown.update(measured or defaults)
    return [name for name in names if name in shown]


def differing_within(frame: "DataFrame", keys: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that differ among rows with equal values in the columns `keys`."""
    counts = frame.groupby(list(keys), dropna=False)[list(names)].nunique(dropna=False)
    return [name for name in names if (counts[name] > 1).any()]


def plain_values(column: "Series[Any]") -> list[Any]:
    """The values of a column as plain ones of Python; None where they are missing."""
    return list(column.astype(object).where(column.notna(), None))


def parse_list(text: str, option: str) -> list[str]:
    """The values of an option, separated by commas.

    >>> parse_list("label,seed", "columns")
    ['label', 'seed']
    """
    parts = split_at_commas(text)
    if parts is None:
        raise UserError(f"{option}: {text!r} has unclosed brackets or quotes")
    return [part for part in parts if part]


def _parsed(text: str, column: "Series[Any]") -> Any:
    text, kind = unquote(text) or text, column.dtype.kind
    if text in ("", "null"):
        return None
    try:
        return float(text) if kind in "iuf" else {"true": True, "false": False}[text.lower()] if kind == "b" else text
    except (KeyError, ValueError):
        return text  # which no row has


def _normalized(name: str) -> str:
    return name.strip().lower().replace("-", "_")
