"""Columns of tables by parts of their names, and rows by conditions, as the command line has them."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from numerate.config.values import split_at_commas, unquote
from numerate.errors import UserError, did_you_mean
from numerate.evaluation.answer_metrics import base_metric
from numerate.results.rows import COLUMNS, REGIONS, RUN_COLUMNS, SCORE_PREFIX, Column
from numerate.results.words import joined

if TYPE_CHECKING:
    from pandas import DataFrame, Series

GROUP_COLUMNS = {
    **{name: Column(int, "count", "how many runs") for name in ("done", "failed", "left", "runs")},
    "success": Column(float, "share", "the share of runs that succeeded"),
}
"""The columns of groups besides those of what they group."""


def split_name(name: str) -> tuple[str, str, str, str]:
    """The checkpoint, the region, the metric and the end in the name of a column; that of exact match does not name it.

    >>> split_name("final.ood_test.mae.low"), split_name("best.ood_test"), split_name("success.high")
    (('final', 'ood_test', 'mae', 'low'), ('best', 'ood_test', 'exact_match', ''), ('', '', 'success', 'high'))
    """
    rest, _, end = name.rpartition(".")
    rest, end = (rest, end) if rest and end in ("low", "high", "seeds") else (name, "")
    if not rest.startswith(("final.", "best.")):
        return "", "", rest, end
    checkpoint, region, *metric = rest.split(".", 2)
    return checkpoint, region, metric[0] if metric else "exact_match", end


def column_of(name: str) -> Column:
    """What a column of runs, cells or groups holds, by its name."""
    checkpoint, _, metric, end = split_name(name)
    if end == "seeds":
        return GROUP_COLUMNS["runs"]
    if checkpoint or name.startswith(SCORE_PREFIX):
        return COLUMNS.get(base_metric(metric), Column(float, "share", "a score of one's own", shown=True))
    setting = Column(str, "plain", "a setting, or an axis of cells")
    return RUN_COLUMNS.get(metric) or COLUMNS.get(metric) or GROUP_COLUMNS.get(metric) or setting


def is_identifier(name: str) -> bool:
    """Whether a column tells rows apart: a label, a seed, a setting, an axis of cells. All others are results.

    >>> [is_identifier(name) for name in ("seed", "model.hidden_size", "loss", "final.ood_test.low")]
    [True, True, False, False]
    """
    return column_of(name).format == "plain"


def is_shown(name: str, names: Sequence[str]) -> bool:
    """Whether a table with columns of these names shows a result if none are named: of runs those of the last
    checkpoint, of labels the accuracy in distribution and beyond it."""
    checkpoint, region, metric, end = split_name(name)
    if end or ("status" in names and checkpoint != "final"):
        return name == "non_causal_reason"
    if region == "in_distribution" and metric.startswith(("accuracy", "ood_accuracy")):
        return metric == "accuracy"
    return column_of(name).shown and metric == base_metric(metric)


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


KNOWN_VALUES = {"status": ("done", "failed", "running", "left"), "plan": ("current", "earlier"), "region": (*REGIONS,)}
"""Values that may be asked for though no row has them."""


def where(frame: "DataFrame", *conditions: str) -> "DataFrame":
    """The rows in which columns have, or do not have, given values: `where(frame, "label!=Abacus", "hidden_size=64")`.

    `null` is a missing value: `loss!=null` selects the rows with a value. Raises `UserError` for a value that no row
    has, but for `KNOWN_VALUES`.
    """
    for condition in conditions:
        name, equals, text = condition.partition("=")
        is_equal, name, value = not name.endswith("!"), name.removesuffix("!").strip(), text.strip()
        if not equals or not name:
            example = "where=label=Abacus,model.hidden_size=64"
            raise UserError(f"where: {condition!r} must be a condition; for example: {example}")
        column = frame[find_column(frame, name, "where")]
        wanted: Any = unquote(value) or value
        if column.dtype.kind in "iufb":
            with suppress(ValueError):
                wanted = {"true": 1.0, "false": 0.0}[value.lower()] if column.dtype.kind == "b" else float(value)
        is_null = value in ("", "null")
        found = column.isna() if is_null else (column == wanted).fillna(False).astype(bool)
        is_known = (is_null and not is_equal) or value in KNOWN_VALUES.get(str(column.name), ())
        if len(frame) and not found.any() and not is_known:
            values = dict.fromkeys(plain_values(column))
            known = [one if isinstance(one, str) else json.dumps(one) for one in values]
            hint = did_you_mean(value, known) or f" There are: {joined(known)}."
            raise UserError(f"where: no row has {column.name}={value}.{hint}")
        frame = frame[found == is_equal]
    return frame


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
    shown = {name for name in ("label", "seed", *setting_columns(frame)) if frame[name].nunique(dropna=False) > 1}
    if "label" in shown:
        settings = sorted(shown - {"label", "seed"})
        shown -= {*settings} - {*differing_within(frame, ["label"], settings)}
    shown = shown or {"label", "seed"}
    if "status" in names and (frame["status"] != "done").any():
        shown.add("status")
    validation = ("loss", "validation_exact_match", "ood_validation_exact_match", "validation_loss")
    results = [name for name in names if is_shown(name, names)] or validation
    return [name for name in names if name in shown or (name in results and frame[name].notna().any())]


def setting_columns(frame: "DataFrame") -> list[str]:
    """The columns that tell rows apart, without the run, its seed, and the variant that they make up."""
    return [name for name in frame.columns if is_identifier(name) and name not in ("run", "seed", "variant")]


def differing_within(frame: "DataFrame", keys: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that differ among rows with equal values in the columns `keys`."""
    counts = frame.groupby(list(keys), dropna=False)[list(names)].nunique(dropna=False)
    return [name for name in names if (counts[name] > 1).any()]


def plain_values(column: "Series[Any]") -> list[Any]:
    """The values of a column as plain ones of Python; None where they are missing."""
    return list(column.astype(object).where(column.notna(), None))


def parse_list(text: str, option: str) -> list[str]:
    """The values of an option, separated by commas outside of brackets and quotes."""
    if (parts := split_at_commas(text)) is None:
        raise UserError(f"{option}: {text!r} has unclosed brackets or quotes")
    return [part for part in parts if part]


def _normalized(name: str) -> str:
    return name.strip().lower().replace("-", "_")
