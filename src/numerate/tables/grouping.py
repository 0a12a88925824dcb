"""Statistics of grouped results: count, median, extremes, interquartile mean, success rate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError, check_choice
from numerate.evaluation.statistics import interquartile_mean, stratified_bootstrap_interval, success_rate
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.tables.selecting import (
    find_column,
    find_columns,
    is_default,
    is_identifier,
    join_names,
    plain_values,
    sort_rows,
)
from numerate.tables.writing import format_value, format_value_with_interval

if TYPE_CHECKING:
    from pandas import DataFrame

SUCCESS_COLUMN = "final.in_distribution"
"""The column that decides whether a run succeeded: exact match in distribution at the last checkpoint. For labels, it
is the accuracy on unseen counts in the farthest region of the run instead (`default_success_columns`)."""

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
_NOT_SETTINGS = ("run", "seed")
_ENDS = ("", ".low", ".high")


def group_results(
    results: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str | None = None,
    threshold: float | None = None,
    success_column: str | None = None,
    intervals: bool = True,
) -> "DataFrame":
    """A row per group of rows of `results_of` or `cells_of` with equal values in the columns `by`.

    For runs: the numbers of runs `done`, `failed` and not done yet (`left`); `success`, the fraction of the done or
    failed runs with at least `threshold` (0.99) in the column `success_column` (`final.in_distribution`; for labels,
    the farthest of `final.100+.ood_accuracy`, `final.ood_test.ood_accuracy` and `final.ood_validation.ood_accuracy` of
    the run, named in `success.of`), with Wilson's interval over runs: a failed run (with a non-finite loss, for
    example) did not succeed, and a run of a non-causal model is not counted. Then for each column of numbers, or each
    of `columns`: the number of values `.count`, `.median`, `.lowest`, `.highest`, and the interquartile mean `.iqm`
    with its bootstrap interval `.iqm.low`, `.iqm.high`; or with `statistic` (median, iqm, mean) only that with its
    bootstrap interval. Seeds are resampled within each setting; a single seed has no interval, nor have several rows of
    one run (its cells). Without `intervals`, which take about a millisecond each, the bootstrap is left out.

        group_results(results_of("abacus_laptop"), ["label"], columns=["final.ood_test"], statistic="iqm")

    Raises `UserError` for missing or non-numeric columns, an unknown statistic, and a threshold outside (0, 1].
    """
    from pandas import DataFrame

    if statistic is not None:
        check_choice("statistic", statistic, STATISTICS)
    keys = _keys(results, by)
    names = value_columns(results, keys, columns)
    success_columns = _success_columns(results, success_column, threshold)
    values = results[names].astype("float64").to_numpy()
    judged = _judged(results, success_columns)
    statuses, strata = _statuses(results), _strata(results)
    runs = plain_values(results["run"]) if "run" in results else range(len(results))
    rows = []
    for key, group in _groups(results, keys):
        done = group[statuses[group] == "done"]
        has_intervals = intervals and len({runs[row] for row in done}) == len(done)
        row = dict(zip(keys, key, strict=True))
        if "status" in results:
            row |= _counts(statuses[group], done, judged, success_columns, threshold or SUCCESS_THRESHOLD)
        else:
            row["count"] = len(group)
        for name, column in zip(names, values[done].T, strict=True):
            found = _statistics(name, column, strata[done] if has_intervals else None, statistic)
            row |= {f"{name}.{end}": value for end, value in found.items()}
        rows.append(row)
    typical = ["median", "lowest", "highest"] if statistic is None else []
    ends = ["count", *typical, *(f"{statistic or 'iqm'}{end}" for end in _ENDS)]
    all_names = [*keys, *_count_columns(results, success_columns), *(f"{name}.{end}" for name in names for end in ends)]
    kinds = {name: results[name].dtype for name in keys} | {
        name: "Int64" if name in ("done", "failed", "left") or name.endswith("count") else "float64"
        for name in all_names[len(keys) :]
    }
    return DataFrame(rows, columns=all_names).astype(
        kinds | ({"success.of": "string"} if "success.of" in kinds else {})
    )


def describe_groups(
    results: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str | None = None,
    order: Sequence[str] = (),
    threshold: float | None = None,
    success_column: str | None = None,
) -> tuple["DataFrame", list[str]]:
    """Groups for display: counts, successes, and each result with its interval as text; and notes.

    By default only the results of the last checkpoint that a table of runs shows; the median with the extremes.
    """
    keys = _keys(results, by)
    names = value_columns(results, keys, columns)
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
        intervals=statistic is not None or bool(order),
    )
    groups = sort_rows(groups, *order)
    shown = {name: [format_value(name, value) or "none" for value in plain_values(groups[name])] for name in keys}
    for name in ("done", "failed", "left", "count"):
        if name in groups and (name in ("done", "count") or groups[name].any()):
            shown[name] = [f"{value:,}" for value in groups[name]]
    if "success" in groups:
        values = [plain_values(groups[f"success{end}"]) for end in (".count", *_ENDS)]
        shown["success"] = [_format_success(*numbers) for numbers in zip(*values, strict=True)]
        if groups["success.of"].nunique() > 1:
            shown["success.of"] = [name or "" for name in plain_values(groups["success.of"])]
    for name in names:
        ends = ["median", "lowest", "highest"] if statistic is None else [f"{statistic}{end}" for end in _ENDS]
        values = [plain_values(groups[f"{name}.{end}"]) for end in ("count", *ends)]
        shown[name] = [_format_estimate(name, *numbers) for numbers in zip(*values, strict=True)]
    success_columns = _success_columns(results, success_column, threshold)
    notes = _notes(results, keys, bool(names), statistic, success_columns, threshold or SUCCESS_THRESHOLD)
    from pandas import DataFrame

    return DataFrame(shown, dtype="string"), notes


def default_success_columns(results: "DataFrame") -> list[str]:
    """The columns that decide whether a run succeeded; the first that a run has is used: accuracy on unseen counts in
    the regions beyond training, farthest first, then exact match in distribution (for labels, of all labels)."""
    ood_regions = [name for name in REGION_LABELS if name != "in_distribution"]
    candidates = [f"final.{region}.ood_accuracy" for region in reversed(ood_regions)]
    return [name for name in (*candidates, f"{SUCCESS_COLUMN}.accuracy", SUCCESS_COLUMN) if name in results]


def value_columns(results: "DataFrame", keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns of numbers to aggregate: the requested ones, otherwise all results except interval bounds."""
    if columns:
        found = dict.fromkeys(name for column in columns for name in find_columns(results, column))
        return _numbers(results, [name for name in found if name not in keys], "iuf", "columns")
    bounds = {f"{name}{end}" for name in results.columns for end in (".low", ".high")}
    numbers = [name for name in results.columns if results[name].dtype.kind in "iuf" and not is_identifier(name)]
    return [name for name in numbers if name not in keys and name not in bounds]


def _keys(results: "DataFrame", by: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(find_column(results, name, "group") for name in by or [""]))


def _success_columns(results: "DataFrame", column: str | None, threshold: float | None) -> list[str]:
    named = [] if column is None else _numbers(results, [find_column(results, column, "success")], "f", "success")
    found = named or default_success_columns(results)
    if threshold is not None and not (0 < threshold <= 1 and found):
        raise UserError(
            f"threshold: must be above 0 and at most 1, of a column such as {SUCCESS_COLUMN}, not {threshold}"
        )
    return found


def _numbers(results: "DataFrame", names: Sequence[str], kinds: str, option: str) -> list[str]:
    for name in names:
        if results[name].dtype.kind not in kinds:
            raise UserError(f"{option}: {name} must be a column of {'proportions' if kinds == 'f' else 'numbers'}")
    return list(names)


def _groups(results: "DataFrame", keys: Sequence[str]) -> Iterator[tuple[list[Any], Any]]:
    """The keys of each group and the positions of its rows; numbers by size, texts in the order of the rows."""
    import pandas

    ranks = np.stack(
        [
            results[name].rank(method="dense", na_option="bottom").to_numpy("float64")
            if results[name].dtype.kind in "iuf"
            else pandas.factorize(results[name], use_na_sentinel=False)[0]
            for name in keys
        ]
    )
    order = np.lexsort(ranks[::-1])
    ends = np.flatnonzero((ranks[:, order[1:]] != ranks[:, order[:-1]]).any(axis=0)) + 1
    values = [plain_values(results[name]) for name in keys]
    for rows in np.split(order, ends) if len(order) else ():
        yield [column[rows[0]] for column in values], rows


def _statuses(results: "DataFrame") -> Any:
    """The status of each row; cells are of done runs."""
    return results["status"].to_numpy(object) if "status" in results else np.full(len(results), "done", object)


def _count_columns(results: "DataFrame", success_columns: Sequence[str]) -> list[str]:
    if "status" not in results:
        return ["count"]
    success = [f"success{end}" for end in (*_ENDS, ".count", ".of")] if success_columns else []
    return ["done", "failed", "left", *success]


def _counts(
    statuses: Any,
    done: Any,
    judged: Mapping[int, tuple[str, float]],
    success_columns: Sequence[str],
    threshold: float,
) -> dict[str, Any]:
    failed = int(np.sum(statuses == "failed"))
    counts: dict[str, Any] = {"done": len(done), "failed": failed, "left": len(statuses) - len(done) - failed}
    found = [judged[row] for row in done if row in judged]
    values = [value for _, value in found] + [0.0] * failed
    by = [name for name in success_columns if name in {one for one, _ in found}]
    counts |= {"success.count": len(values), "success.of": ", ".join(by) or None}
    if values:
        rate = success_rate(values, threshold)
        counts |= {"success": rate.value, "success.low": rate.low, "success.high": rate.high}
    return counts


def _judged(
    results: "DataFrame", success_columns: Sequence[str], causal_only: bool = True
) -> dict[int, tuple[str, float]]:
    """The first of the success columns that a done row has, with its value; by the position of the row."""
    is_judged = _statuses(results) == "done"
    if causal_only and "non_causal_reason" in results:
        is_judged &= results["non_causal_reason"].isna().to_numpy()
    found: dict[int, tuple[str, float]] = {}
    for name in reversed(success_columns):
        values = results[name].to_numpy("float64")
        found |= {int(row): (name, float(values[row])) for row in np.flatnonzero(is_judged & ~np.isnan(values))}
    return found


def _strata(results: "DataFrame") -> Any:
    """Numbers the settings (without seeds) of the rows."""
    settings = [name for name in results.columns if is_identifier(name) and name not in _NOT_SETTINGS]
    if not settings or not len(results):
        return np.zeros(len(results), int)
    return results.groupby(settings, sort=False, dropna=False).ngroup().to_numpy()


def _statistics(name: str, column: Any, strata: Any | None, statistic: str | None) -> dict[str, float]:
    """The statistics of the values of one column of one group, by the ends of their columns. The bootstrap interval is
    over the seeds of each setting; there is none if no setting has two."""
    is_present = ~np.isnan(column)
    values, typical = column[is_present], statistic or "iqm"
    found: dict[str, float] = {"count": len(values)}
    if not len(values):
        return found
    if statistic is None:
        found |= {"median": float(np.median(values)), "lowest": values.min(), "highest": values.max()}
    found[typical] = float(STATISTICS[typical](values[None])[0])
    samples: dict[int, list[float]] = {}
    for stratum, value in zip([] if strata is None else strata[is_present], values, strict=strata is not None):
        samples.setdefault(stratum, []).append(float(value))
    if max(map(len, samples.values()), default=0) > 1:
        low = high = found[typical]
        if any(len(set(sample)) > 1 for sample in samples.values()):  # otherwise resampling changes nothing
            key = ("results", name, typical)
            low, high = stratified_bootstrap_interval(list(samples.values()), *key, statistic=STATISTICS[typical])
        found |= {f"{typical}.low": low, f"{typical}.high": high}
    # Rounding may leave the range of the values: no proportion is above 1.
    bounds = values.min(), values.max()
    return {end: value if end == "count" else float(np.clip(value, *bounds)) for end, value in found.items()}


def _notes(
    results: "DataFrame",
    keys: Sequence[str],
    has_values: bool,
    statistic: str | None,
    success_columns: Sequence[str],
    threshold: float,
) -> list[str]:
    """Notes on the statistics, and on the settings that were grouped together."""
    what, runs = ("Runs", "done runs") if "status" in results else ("Rows", "rows")
    done = results[results["status"] == "done"] if "status" in results else results
    notes = []
    if has_values and statistic is None:
        notes.append(f"Median of the {runs} [lowest, highest].")
    elif has_values and statistic is not None:
        few = (done.groupby(list(keys), dropna=False).size() < MIN_SEEDS).any()
        more = f" Of fewer than {MIN_SEEDS} seeds such an interval is too narrow." if few else ""
        notes.append(f"{_STATISTIC_LABELS[statistic]} of the {runs} [95 % bootstrap interval over seeds].{more}")
    if "non_causal_reason" in results:
        reasons = results["non_causal_reason"].dropna().unique()
        notes += [f"not comparable (non-causal), and no success counted: {reason}" for reason in reasons]
    if success_columns:
        by = {name for name, _ in _judged(results, success_columns, causal_only=False).values()}
        named = join_names([name for name in success_columns if name in by] or success_columns[-1:], "or")
        farthest = ", each the farthest that it has," * (len(by) > 1)
        notes.append(
            f"success: runs with {named}{farthest} of at least {format_percent(threshold)} %, of those done or failed; "
            "failed runs count as unsuccessful [Wilson's 95 % interval, in per cent]."
        )
    if merged := _merged_columns(results, keys):
        notes.append(
            f"{what} that differ in {join_names(merged, 'and')} are grouped together; "
            f"group={','.join([*keys, *merged])} separates them."
        )
    return notes


def _merged_columns(results: "DataFrame", keys: Sequence[str]) -> list[str]:
    """The identifying columns (except seeds) that differ within a group, without settings implied by the label."""
    others = [n for n in results.columns if is_identifier(n) and n not in keys and n not in _NOT_SETTINGS]
    found = [name for name in others if _differs_within(results, keys, name)]
    if "label" in found:
        found = [name for name in found if name == "label" or _differs_within(results, ["label"], name)]
    return found


def _differs_within(results: "DataFrame", keys: Sequence[str], name: str) -> bool:
    return bool((results.groupby(list(keys), dropna=False)[name].nunique(dropna=False) > 1).any())


def _format_estimate(name: str, count: int, value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return ""
    return format_value_with_interval(name, value, *((low, high) if count > 1 else (None, None)))


def _format_success(count: int, value: float | None, low: float | None, high: float | None) -> str:
    """`3/5 [23, 88]`: a proportion, and Wilson's interval in per cent."""
    if value is None or low is None or high is None:
        return ""
    return f"{round(value * count)}/{count} {format_interval(low, high, 0)}"
