"""A row for each run of a study: how it stands, the end of its training, and its scores by region; rows in groups."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError, check_choice
from numerate.evaluation.statistics import stratified_bootstrap_interval, success_rate
from numerate.results.rows import (
    LABEL_METRICS,
    REGIONS,
    SCORE_PREFIX,
    RunEntry,
    cells_of,
    find_runs,
    runs_of,
)
from numerate.results.selecting import column_format, differing_within, find_column, find_columns, is_identifier
from numerate.results.summary import STATISTICS, SUCCESS, Score, by_context, groups_of, of_map, reported, score_rows

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from numerate.results.rows import Runs

_ENDS = ("", ".low", ".high")


def results_of(study: "Runs", runs_dir: str | Path | None = None) -> "DataFrame":
    """The runs of a study, given by its title, its path or itself, as a DataFrame; torch is not imported.

        runs = numerate.results_of("abacus_laptop")
        runs.groupby("label")["final.ood_test"].median()

    A row per run of the current plan, and per done run of earlier plans: the columns that say which run it is, those of
    `RUN_COLUMNS`, and the scores of its cells by region at the `final` and the `best` checkpoint, as it was trained:
    exact match (`final.ood_test`, `final.ood_test.low`, `final.ood_test.high`) and every other metric that its cells
    have (`final.ood_test.ood_accuracy` with `.baseline`, `final.ood_test.log_mae`, `final.in_distribution.loss`). The
    best checkpoint has none on OOD validation, where it was chosen.

    Shares are fractions from 0 to 1. Raises `UserError` if there is no such study, and for damaged records.
    """
    return with_scores(find_runs(study, runs_dir))


def with_scores(entries: Sequence[RunEntry]) -> "DataFrame":
    """`results_of` runs that were found already."""
    runs = runs_of(entries)
    found = run_scores(cells_of([one for one in entries if one.state is None or one.state.status == "done"]))
    table = runs.join(found, on="run")
    tail = [name for name in ("seconds", "worker", "stop_reason", "failure", "error") if name in table]
    return table[[*(name for name in table if name not in tail), *tail]]


def run_scores(frame: "DataFrame") -> "DataFrame":
    """The scores of each run in columns such as `final.ood_test.mae.low`, indexed by `run`.

    Regions all of whose cells may overlap with training have none, unless answers are labels or there is no other.
    """
    from pandas import DataFrame

    rows: dict[str, dict[str, Any]] = {}
    for checkpoint in ("final", "best"):
        inside = by_context(of_map(reported(frame[frame["settings"].isna()], checkpoint)))
        inside = inside[inside["region"] != "below"]
        if "accuracy" not in inside or inside["accuracy"].isna().all():
            is_open = ~inside["overlaps_training"].astype(bool)
            of_region, of_run = (
                is_open.groupby([inside[name] for name in names]).transform("any")
                for names in (["run", "region"], ["run"])
            )
            inside = inside[of_region | ~of_run]
        for key, scores in score_rows(inside, ["run", "region"]):
            columns = rows.setdefault(key["run"], {})
            for metric, score in scores.items():
                columns |= _score_columns(f"{checkpoint}.{key['region']}", metric, score)
        for run, reason in (
            inside[["run", "non_causal_reason"]].dropna().itertuples(index=False)
            if "non_causal_reason" in inside
            else ()
        ):
            rows.setdefault(run, {})["non_causal_reason"] = reason
    table = DataFrame.from_dict(rows, orient="index")
    return table[sorted(table, key=_column_order)].dropna(axis="columns", how="all") if len(table) else table


def _score_columns(path: str, metric: str, score: Score) -> dict[str, float]:
    name = path if metric == "exact_match" else f"{path}.{metric.removeprefix(SCORE_PREFIX)}"
    found = {name: score.value, f"{name}.low": score.low, f"{name}.high": score.high}
    return found | ({f"{name}.baseline": score.baseline} if metric in LABEL_METRICS else {})


def _column_order(name: str) -> tuple[int, int]:
    """Columns by checkpoint, then by region, the nearest to training first."""
    checkpoint, _, rest = name.partition(".")
    region = rest.partition(".")[0]
    return ("final", "best").index(checkpoint) if rest else 2, [*REGIONS, region].index(region)


# Groups ---------------------------------------------------------------------------------------------------------------


def group_rows(
    table: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str = "median",
    threshold: float | None = None,
    success: str | None = None,
    intervals: bool = True,
) -> "DataFrame":
    """A row per group of rows of `results_of` or `cells` with equal values in the columns `by`. Of runs, `label` alone
    stands for a variant: for the label and the settings in which runs of one label differ.

    Of runs: how many are `done`, `failed` and not done yet (`left`); `success`, the share of the done or failed runs
    with at least `threshold` (0.99) in the column `success` (`final.in_distribution`; of labels, the farthest region's
    accuracy beyond training, named in `success.of`), with Wilson's interval over runs: a failed run did not succeed,
    and a run of a non-causal model is not counted. Then for each column of numbers, or each of `columns`: `.count`; the
    `statistic` (median, iqm, mean) such as `.median`, with its 95 % bootstrap interval `.median.low`, `.median.high`;
    `.lowest` and `.highest`. Seeds are resampled within each setting; a single seed has no interval, nor have several
    rows of one run. Without `intervals`, which take about a millisecond each, the bootstrap is left out.

        group_rows(results_of("abacus_laptop"), ["label"], columns=["final.ood_test"], statistic="iqm")

    Raises `UserError` for missing or non-numeric columns, an unknown statistic, and a threshold outside (0, 1].
    """
    from pandas import DataFrame

    check_choice("statistic", statistic, STATISTICS)
    keys = group_keys(table, by)
    names = value_columns(table, keys, columns)
    judged = _judged(table, success, threshold)
    values = table[names].astype("float64").to_numpy()
    is_of_runs, strata, size = "status" in table, _strata(table), "rows" if "questions" in table else "count"
    rows = []
    for key, group in groups_of(table, keys):
        row, done = dict(key), group
        if is_of_runs:
            statuses = table["status"].iloc[group]
            done, num_failed = group[statuses == "done"], int((statuses == "failed").sum())
            row |= {"done": len(done), "failed": num_failed, "left": len(group) - len(done) - num_failed}
            if judged is not None:
                row |= _success(judged.iloc[group], threshold or SUCCESS)
        else:
            row[size] = len(group)
        resampled = strata[done] if intervals and ("run" not in table or table["run"].iloc[done].is_unique) else None
        for name, column in zip(names, values[done].T, strict=True):
            found = _statistics(("results", name, statistic), column, resampled, statistic)
            row |= {f"{name}.{end}": value for end, value in found.items()}
        rows.append(row)
    counts = ["done", "failed", "left"] if is_of_runs else [size]
    rates = [] if judged is None else [f"success{end}" for end in (*_ENDS, ".count", ".of")]
    ends = ("count", *(f"{statistic}{end}" for end in _ENDS), "lowest", "highest")
    types: dict[str, Any] = {name: table[name].dtype for name in keys}
    for name in (*counts, *rates, *(f"{name}.{end}" for name in names for end in ends)):
        is_count = name in counts or name.endswith(".count")
        types[name] = "Int64" if is_count else "str" if name == "success.of" else "float64"
    found = DataFrame(rows, columns=list(types)).astype(types)
    return found.sort_values(keys, kind="stable", key=_sort_key)


def _sort_key(column: "Series[Any]") -> Any:
    """Numbers by size, texts in the order of the rows."""
    import pandas

    return column if column.dtype.kind in "iuf" else pandas.factorize(column, use_na_sentinel=False)[0]


def group_keys(table: "DataFrame", by: Sequence[str]) -> list[str]:
    """The columns that `by` names. Of runs, `label` alone is a variant: the settings that differ under a label, too."""
    keys = list(dict.fromkeys(find_column(table, name, "group") for name in by or [""]))
    if keys != ["label"] or "status" not in table:
        return keys
    settings = [name for name in setting_columns(table) if name not in ("label", "plan")]
    differing = differing_within(table, keys, settings)
    return ["label", *(name for name in settings if name in differing or name == "extended_from")]


def setting_columns(table: "DataFrame") -> list[str]:
    """The columns that tell rows apart, without the run, its seed, and the variant that they make up."""
    return [name for name in table.columns if is_identifier(name) and name not in ("run", "seed", "variant")]


def value_columns(table: "DataFrame", keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns of numbers to summarize: the requested ones, otherwise all results except ends of intervals."""
    numbers = [name for name in table.columns if table[name].dtype.kind in "iuf" and name not in keys]
    if not columns:
        bounds = {f"{name}{end}" for name in table.columns for end in (".low", ".high")}
        return [name for name in numbers if not is_identifier(name) and name not in bounds]
    found = dict.fromkeys(name for column in columns for name in find_columns(table, column) if name not in keys)
    for name in found:
        if name not in numbers:
            raise UserError(f"columns: {name} must be a column of numbers")
    return list(found)


def _judged(table: "DataFrame", column: str | None, threshold: float | None) -> "DataFrame | None":
    """Of each run the `score` that decides whether it succeeded, and the column that it is `of`: the first that it has
    of the accuracy beyond training in the regions beyond it, farthest first, and exact match in distribution (of
    labels, of all labels). 0 for a failed run; none if the run is not done, or its model is not causal."""
    from pandas import CategoricalDtype

    trained = "final.in_distribution"
    if column is None:
        beyond = [f"final.{name}.ood_accuracy" for name in reversed(REGIONS) if name != "in_distribution"]
        found = [name for name in (*beyond, f"{trained}.accuracy", trained) if name in table]
    else:
        found = [find_column(table, column, "success")]
        if table[found[0]].dtype.kind != "f" or column_format(found[0]) != "share":
            raise UserError(f"success: must be a column of proportions, such as {trained}, not {found[0]}")
    if threshold is not None and not (0 < threshold <= 1 and found):
        raise UserError(f"threshold: must be above 0 and at most 1, of a column such as {trained}, not {threshold}")
    if not found or "status" not in table:
        return None
    is_judged = table["status"] == "done"
    if "non_causal_reason" in table:
        is_judged &= table["non_causal_reason"].isna()
    scores = table[found].where(is_judged, axis=0)
    of = scores.notna().idxmax(axis=1).where(scores.notna().any(axis=1)).astype(CategoricalDtype(found))
    score = scores.bfill(axis=1).iloc[:, 0].mask(table["status"] == "failed", 0.0)
    return score.to_frame("score").assign(of=of)


def _success(judged: "DataFrame", threshold: float) -> dict[str, Any]:
    values = judged["score"].dropna()
    used = judged["of"].cat.remove_unused_categories().cat.categories
    found: dict[str, Any] = {"success.count": len(values), "success.of": ", ".join(used) or None}
    if len(values):
        rate = success_rate(values, threshold)
        found |= {"success": rate.value, "success.low": rate.low, "success.high": rate.high}
    return found


def _strata(table: "DataFrame") -> Any:
    """Numbers the settings (without seeds) of the rows."""
    settings = setting_columns(table)
    if not settings or not len(table):
        return np.zeros(len(table), int)
    return table.groupby(settings, sort=False, dropna=False).ngroup().to_numpy()


def _statistics(key: Sequence[object], column: Any, strata: Any | None, statistic: str) -> Mapping[str, float]:
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
        if any(len({*sample}) > 1 for sample in samples.values()):  # otherwise resampling changes nothing
            low, high = stratified_bootstrap_interval(list(samples.values()), *key, statistic=STATISTICS[statistic])
        found |= {f"{statistic}.low": low, f"{statistic}.high": high}
    # Rounding may leave the range of the values: no share is above 1.
    found = {end: float(np.clip(value, values.min(), values.max())) for end, value in found.items()}
    return {"count": len(values), "lowest": values.min(), "highest": values.max(), **found}
