"""Statistics of grouped results: median, interquartile mean or mean with intervals, extremes, success rate."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError, check_choice
from numerate.evaluation.statistics import interquartile_mean, stratified_bootstrap_interval, success_rate
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent, join_names
from numerate.tables.describing import EXTENDED_NOTE
from numerate.tables.selecting import (
    differing_within,
    display_format,
    find_column,
    find_columns,
    is_default,
    is_identifier,
    plain_values,
    sort_rows,
)
from numerate.tables.writing import format_value, format_value_with_interval

if TYPE_CHECKING:
    from pandas import DataFrame

SUCCESS_COLUMN = "final.in_distribution"
"""The column that decides whether a run succeeded: exact match in distribution at the last checkpoint. For labels, it
is the accuracy on unseen counts in the farthest region of the run instead (`_success_scores`)."""

SUCCESS_THRESHOLD = 0.99
"""The threshold of success."""

MIN_SEEDS = 5
"""Minimum number of seeds for a reliable bootstrap interval; with fewer it is too narrow."""

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "median": lambda rows: np.median(rows, axis=-1),
    "iqm": interquartile_mean,
    "mean": lambda rows: np.mean(rows, axis=-1),
}
_STATISTIC_LABELS = {"median": "Median", "iqm": "Interquartile mean", "mean": "Mean"}
_ENDS = ("", ".low", ".high")


def group_results(
    results: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str = "median",
    threshold: float | None = None,
    success_column: str | None = None,
    intervals: bool = True,
) -> "DataFrame":
    """A row per group of rows of `results_of` or `cells_of` with equal values in the columns `by`. Of runs, `label`
    alone stands for a variant: for the label and the settings in which runs of one label differ.

    For runs: the numbers of runs `done`, `failed` and not done yet (`left`); `success`, the fraction of the done or
    failed runs with at least `threshold` (0.99) in the column `success_column` (`final.in_distribution`; for labels,
    the farthest of `final.100+.ood_accuracy`, `final.ood_test.ood_accuracy` and `final.ood_validation.ood_accuracy` of
    the run, named in `success.of`), with Wilson's interval over runs: a failed run (with a non-finite loss, for
    example) did not succeed, and a run of a non-causal model is not counted. Then for each column of numbers, or each
    of `columns`: the number of values `.count`; the `statistic` (median; iqm, the interquartile mean; mean) such as
    `.median`, with its 95 % bootstrap interval `.median.low`, `.median.high`; `.lowest` and `.highest`. Seeds are
    resampled within each setting; a single seed has no interval, nor have several rows of one run (its cells). Without
    `intervals`, which take about a millisecond each, the bootstrap is left out.

        group_results(results_of("abacus_laptop"), ["label"], columns=["final.ood_test"], statistic="iqm")

    Raises `UserError` for missing or non-numeric columns, an unknown statistic, and a threshold outside (0, 1].
    """
    from pandas import DataFrame

    check_choice("statistic", statistic, STATISTICS)
    keys = _keys(results, by)
    names = _value_columns(results, keys, columns)
    scores = _success_scores(results, success_column, threshold)
    values = results[names].astype("float64").to_numpy()
    strata, num_rows = _strata(results), _num_rows_column(keys)
    rows = []
    for _, group in sorted(results.groupby(_sort_keys(results, keys)).indices.items()):
        row = {name: results[name].iloc[group[0]] for name in keys}
        done = group
        if "status" in results:
            statuses = results["status"].iloc[group]
            done, num_failed = group[statuses == "done"], int((statuses == "failed").sum())
            row |= {"done": len(done), "failed": num_failed, "left": len(group) - len(done) - num_failed}
            if scores is not None:
                row |= _success(scores.iloc[group], threshold or SUCCESS_THRESHOLD)
        else:
            row[num_rows] = len(group)
        has_intervals = intervals and ("run" not in results or results["run"].iloc[done].is_unique)
        for name, column in zip(names, values[done].T, strict=True):
            found = _statistics(name, column, strata[done] if has_intervals else None, statistic)
            row |= {f"{name}.{end}": value for end, value in found.items()}
        rows.append(row)
    counts = ["done", "failed", "left"] if "status" in results else [num_rows]
    success = [] if scores is None else [f"success{end}" for end in (*_ENDS, ".count", ".of")]
    ends = ("count", *(f"{statistic}{end}" for end in _ENDS), "lowest", "highest")
    types = {name: results[name].dtype for name in keys}
    for name in (*counts, *success, *(f"{name}.{end}" for name in names for end in ends)):
        is_count = name in counts or name.endswith(".count")
        types[name] = "Int64" if is_count else "string" if name == "success.of" else "float64"
    return DataFrame(rows, columns=list(types)).astype(types)


def _num_rows_column(keys: Sequence[str]) -> str:
    """The column with the number of rows of a group of cells; cells have a column `count` themselves."""
    return "rows" if "count" in keys else "count"


def describe_groups(
    results: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str = "median",
    order: Sequence[str] = (),
    threshold: float | None = None,
    success_column: str | None = None,
) -> tuple["DataFrame", list[str]]:
    """Groups for display: counts, successes, and each result as text, the median with the extremes, the interquartile
    mean and the mean with their bootstrap intervals; and notes.

    By default only the results of the last checkpoint that a table of runs shows.
    """
    from pandas import DataFrame

    keys = _keys(results, by)
    names = _value_columns(results, keys, columns)
    if not columns:
        defaults = [name for name in names if is_default(name, list(results.columns))]
        names = [name for name in defaults if name.startswith("final.")] or defaults
    groups = group_results(
        results,
        keys,
        columns=names or columns,
        statistic=statistic,
        threshold=threshold,
        success_column=success_column,
        intervals=statistic != "median" or bool(order),
    )
    groups = sort_rows(groups, *order)
    shown = {name: [format_value(name, value) or "none" for value in plain_values(groups[name])] for name in keys}
    num_rows = _num_rows_column(keys)
    for name in ("done", "failed", "left") if "status" in results else (num_rows,):
        if name in ("done", num_rows) or groups[name].any():
            shown[name] = [f"{value:,}" for value in groups[name]]
    if "success" in groups:
        values = [plain_values(groups[f"success{end}"]) for end in (".count", *_ENDS)]
        shown["success"] = [_format_success(*numbers) for numbers in zip(*values, strict=True)]
        if groups["success.of"].nunique() > 1:
            shown["success.of"] = [name or "" for name in plain_values(groups["success.of"])]
    bounds = ("lowest", "highest") if statistic == "median" else (f"{statistic}.low", f"{statistic}.high")
    for name in names:
        values = [plain_values(groups[f"{name}.{end}"]) for end in ("count", statistic, *bounds)]
        shown[name] = [_format_estimate(name, *numbers) for numbers in zip(*values, strict=True)]
    notes = [_statistic_note(results, keys, statistic)] if names else []
    if "non_causal_reason" in results:
        reasons = results["non_causal_reason"].dropna().unique()
        notes += [f"not comparable (non-causal), and no success counted: {reason}" for reason in reasons]
    if "extended_from" in results:
        notes.append(EXTENDED_NOTE)
    if (scores := _success_scores(results, success_column, threshold)) is not None:
        notes.append(_success_note(scores, threshold or SUCCESS_THRESHOLD))
    if merged := _merged_columns(results, keys):
        notes.append(
            f"{'Runs' if 'status' in results else 'Rows'} that differ in {join_names(merged)} are grouped "
            f"together; group={','.join([*keys, *merged])} separates them."
        )
    return DataFrame(shown, dtype="string"), notes


def _keys(results: "DataFrame", by: Sequence[str]) -> list[str]:
    """The columns that `by` names. Of runs, `label` alone is a variant: the settings that differ under a label, too."""
    keys = list(dict.fromkeys(find_column(results, name, "group") for name in by or [""]))
    if keys != ["label"] or "status" not in results:
        return keys
    settings = [name for name in _setting_columns(results) if name not in ("label", "plan")]
    differing = differing_within(results, keys, settings)
    return ["label", *(name for name in settings if name in differing or name == "extended_from")]


def _value_columns(results: "DataFrame", keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns of numbers to aggregate: the requested ones, otherwise all results except interval bounds."""
    numbers = [name for name in results.columns if results[name].dtype.kind in "iuf" and name not in keys]
    if not columns:
        bounds = {f"{name}{end}" for name in results.columns for end in (".low", ".high")}
        return [name for name in numbers if not is_identifier(name) and name not in bounds]
    found = dict.fromkeys(name for column in columns for name in find_columns(results, column) if name not in keys)
    for name in found:
        if name not in numbers:
            raise UserError(f"columns: {name} must be a column of numbers")
    return list(found)


def _sort_keys(results: "DataFrame", keys: Sequence[str]) -> list[Any]:
    """Numbers by which rows are grouped and groups sorted: numbers by size, texts in the order of the rows."""
    import pandas

    return [
        results[name].rank(method="dense", na_option="bottom").to_numpy("float64")
        if results[name].dtype.kind in "iuf"
        else pandas.factorize(results[name], use_na_sentinel=False)[0]
        for name in keys
    ]


def _success_scores(results: "DataFrame", column: str | None, threshold: float | None) -> "DataFrame | None":
    """For each run the `score` that decides whether it succeeded, and the column that it is `of`: the first that it has
    of the accuracy on unseen counts in the regions beyond training, farthest first, and exact match in distribution
    (for labels, of all labels). 0 for a failed run; none if the run is not done, or its model is not causal. None for
    results without such columns, and for cells."""
    from pandas import CategoricalDtype

    if column is None:
        regions = [name for name in reversed(REGION_LABELS) if name != "in_distribution"]
        candidates = [*(f"final.{name}.ood_accuracy" for name in regions), f"{SUCCESS_COLUMN}.accuracy", SUCCESS_COLUMN]
        found = [name for name in candidates if name in results]
    else:
        found = [find_column(results, column, "success")]
        if results[found[0]].dtype.kind != "f" or display_format(found[0]) != "share":
            raise UserError(f"success: must be a column of proportions, such as {SUCCESS_COLUMN}, not {found[0]}")
    if threshold is not None and not (0 < threshold <= 1 and found):
        raise UserError(
            f"threshold: must be above 0 and at most 1, of a column such as {SUCCESS_COLUMN}, not {threshold}"
        )
    if not found or "status" not in results:
        return None
    is_judged = results["status"] == "done"
    if "non_causal_reason" in results:
        is_judged &= results["non_causal_reason"].isna()
    scores = results[found].where(is_judged, axis=0)
    of = scores.notna().idxmax(axis=1).where(scores.notna().any(axis=1)).astype(CategoricalDtype(found))
    score = scores.bfill(axis=1).iloc[:, 0].mask(results["status"] == "failed", 0.0)
    return score.to_frame("score").assign(of=of)


def _success(scores: "DataFrame", threshold: float) -> dict[str, Any]:
    """The success rate of a group."""
    values = scores["score"].dropna()
    found: dict[str, Any] = {"success.count": len(values), "success.of": ", ".join(_columns_used(scores)) or None}
    if len(values):
        rate = success_rate(values, threshold)
        found |= {"success": rate.value, "success.low": rate.low, "success.high": rate.high}
    return found


def _columns_used(scores: "DataFrame") -> list[str]:
    return list(scores["of"].cat.remove_unused_categories().cat.categories)


def _strata(results: "DataFrame") -> Any:
    """Numbers the settings (without seeds) of the rows."""
    settings = _setting_columns(results)
    if not settings or not len(results):
        return np.zeros(len(results), int)
    return results.groupby(settings, sort=False, dropna=False).ngroup().to_numpy()


def _statistics(name: str, column: Any, strata: Any | None, statistic: str) -> dict[str, float]:
    """The statistics of the values of one column of one group, by the ends of their columns. The bootstrap interval is
    over the seeds of each setting; there is none if no setting has two."""
    is_present = ~np.isnan(column)
    values = column[is_present]
    if not len(values):
        return {"count": 0}
    found = {statistic: float(STATISTICS[statistic](values[None])[0])}
    samples: dict[int, list[float]] = {}
    for stratum, value in zip([] if strata is None else strata[is_present], values, strict=strata is not None):
        samples.setdefault(stratum, []).append(float(value))
    if max(map(len, samples.values()), default=0) > 1:
        low = high = found[statistic]
        if any(len(set(sample)) > 1 for sample in samples.values()):  # otherwise resampling changes nothing
            key = ("results", name, statistic)
            low, high = stratified_bootstrap_interval(list(samples.values()), *key, statistic=STATISTICS[statistic])
        found |= {f"{statistic}.low": low, f"{statistic}.high": high}
    lowest, highest = values.min(), values.max()
    # Rounding may leave the range of the values: no proportion is above 1.
    found = {end: float(np.clip(value, lowest, highest)) for end, value in found.items()}
    return {"count": len(values), "lowest": lowest, "highest": highest, **found}


def _statistic_note(results: "DataFrame", keys: Sequence[str], statistic: str) -> str:
    is_runs = "status" in results
    of, rows = ("done runs", results[results["status"] == "done"]) if is_runs else ("rows", results)
    if statistic == "median":
        return f"Median of the {of} [lowest, highest]."
    has_few = (rows.groupby(list(keys), dropna=False).size() < MIN_SEEDS).any()
    few = f" Of fewer than {MIN_SEEDS} seeds such an interval is too narrow." if has_few else ""
    return f"{_STATISTIC_LABELS[statistic]} of the {of} [95 % bootstrap interval over seeds].{few}"


def _success_note(scores: "DataFrame", threshold: float) -> str:
    used = _columns_used(scores)
    named = " or ".join(used or scores["of"].cat.categories[-1:])
    farthest = ", each the farthest that it has," * (len(used) > 1)
    return (
        f"success: runs with {named}{farthest} of at least {format_percent(threshold)} %, of those done or failed; "
        "failed runs count as unsuccessful [Wilson's 95 % interval, in per cent]."
    )


def _merged_columns(results: "DataFrame", keys: Sequence[str]) -> list[str]:
    """The identifying columns (except seeds) that differ within a group, without settings implied by the label."""
    found = differing_within(results, keys, [name for name in _setting_columns(results) if name not in keys])
    if "label" in found:
        return ["label", *differing_within(results, ["label"], [name for name in found if name != "label"])]
    return found


def _setting_columns(results: "DataFrame") -> list[str]:
    """The identifying columns without the seed."""
    return [name for name in results.columns if is_identifier(name) and name not in ("run", "seed")]


def _format_estimate(name: str, count: int, value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return ""
    return format_value_with_interval(name, value, *((low, high) if count > 1 else (None, None)))


def _format_success(count: int, value: float | None, low: float | None, high: float | None) -> str:
    """`3/5 [23, 88]`: a proportion, and Wilson's interval in per cent."""
    if value is None or low is None or high is None:
        return ""
    return f"{round(value * count)}/{count} {format_interval(low, high, 0)}"
