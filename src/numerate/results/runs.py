"""A row for each run of a study: how it stands, the end of its training, and its scores by region; rows in groups."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError, check_choice
from numerate.results.rows import LABEL_METRICS, REGIONS, SCORE_PREFIX, RunEntry, cells_of, find_runs, runs_of
from numerate.results.selecting import (
    column_of,
    differing_within,
    find_column,
    find_columns,
    is_identifier,
    setting_columns,
    split_name,
)
from numerate.results.summary import (
    STATISTICS,
    SUCCESS,
    Measures,
    by_context,
    check_metric,
    groups_of,
    of_map,
    over_seeds,
    reported,
    scores,
)

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from numerate.results.rows import Runs


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
    return runs_of(entries).join(run_scores(cells_of([one for one in entries if one.is_done])), on="run")


def run_scores(frame: "DataFrame") -> "DataFrame":
    """The scores of each run in columns such as `final.ood_test.mae.low`, indexed by `run`: by checkpoint, then by
    region, the nearest to training first."""
    from pandas import DataFrame

    columns: dict[str, dict[str, Any]] = {}
    for checkpoint in ("final", "best"):
        inside = by_context(of_map(reported(frame[frame["settings"].isna()], checkpoint)))
        inside = inside[inside["region"] != "below"]
        measures, regions = Measures(inside), [*REGIONS, *inside["region"].unique()]
        for key, index in sorted(groups_of(inside, ["run", "region"]), key=lambda one: regions.index(one[0]["region"])):
            for metric, score in measures.measures(index).items():
                path = f"{checkpoint}.{key['region']}"
                name = path if metric == "exact_match" else f"{path}.{metric.removeprefix(SCORE_PREFIX)}"
                for end in ("", ".low", ".high", *[".baseline"] * (metric in LABEL_METRICS)):
                    columns.setdefault(f"{name}{end}", {})[key["run"]] = getattr(score, end[1:] or "value")
    table = DataFrame(columns, dtype="float64")
    if "non_causal_reason" in frame:
        table = table.assign(non_causal_reason=frame.groupby("run")["non_causal_reason"].first())
    return table.dropna(axis="columns", how="all")


# Groups ---------------------------------------------------------------------------------------------------------------


def group_rows(
    table: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str = "median",
    threshold: float | None = None,
    success: str | None = None,
) -> "DataFrame":
    """A row per group of rows of `results_of` or `cells` with equal values in the columns `by`. Of runs, `label` alone
    stands for a variant: for the label and the settings in which runs of one label differ.

    For each column of results, or each of `columns`, there is the `statistic` over runs (median, iqm, mean), with
    `.low` and `.high` as in `numerate.summary`: of the median the lowest and the highest run, of the others the 95 %
    bootstrap interval over five runs and more; and `.seeds`, how many runs have a value. The cells of a run are taken
    together first, of the reported checkpoint unless groups are by `checkpoint`.

    Of runs: how many are `done`, `failed` and not done yet (`left`); `success`, the share of the done or failed runs
    with at least `threshold` (0.99) in the column `success` (see `success_column`), with Wilson's interval over runs: a
    failed run did not succeed, and a run of a non-causal model is not counted.

        group_rows(results_of("abacus_laptop"), ["label"], columns=["final.ood_test"], statistic="iqm")

    Raises `UserError` for missing or non-numeric columns, an unknown statistic, and a threshold outside (0, 1].
    """
    from pandas import DataFrame, concat

    check_choice("statistic", statistic, STATISTICS)
    keys, is_of_runs = group_keys(table, by), "status" in table
    names, found = value_columns(table, keys, columns), dict[str, DataFrame]()
    if not (is_of_runs or "checkpoint" in keys):
        table = reported(table)
    number = table.groupby(keys, sort=False, dropna=False).ngroup()
    groups, numbered = table.loc[~number.duplicated(), keys].reset_index(drop=True), table.assign(group=number)
    if is_of_runs:
        status = table["status"]
        for name in ("done", "failed"):
            groups[name] = (status == name).groupby(number).sum()
        groups["left"] = number.value_counts().sort_index() - groups["done"] - groups["failed"]
        if judged := success_column(table, success, threshold):
            is_causal = table.get("non_causal_reason", status.map({})).isna()
            values = table[judged].where((status == "done") & is_causal).mask(status == "failed", 0.0)
            found["success"] = _of_runs(numbered, "success", values)
        found |= {name: _of_runs(numbered, name, table[name].where(status == "done")) for name in names}
    else:
        groups["runs"] = table.groupby(number)["run"].nunique()
        found = {name: scores(numbered, ["group"], name) for name in names}
    results: dict[str, Series[Any]] = {}
    for name, values in found.items():
        own = over_seeds(values, ["group"], statistic, threshold or SUCCESS, statistic != "median").set_index("group")
        ends = ("success", "success.low", "success.high") if name == "success" else ("value", "low", "high")
        results |= {f"{name}{end}": own[column] for end, column in zip(("", ".low", ".high"), ends, strict=True)}
        results[f"{name}.seeds"] = own["seeds"]
    return concat([groups, DataFrame(results, index=groups.index)], axis=1)


def _of_runs(table: "DataFrame", name: str, values: "Series[Any]") -> "DataFrame":
    """The values of a column of runs as scores."""
    ends = {end: table.get(f"{name}.{end}", np.nan) for end in ("low", "high", "baseline")}
    found = table[["group", "variant"]].assign(value=values.astype("float64"), **ends)
    return found.assign(questions=0, cells=0, excluded=0).dropna(subset="value")


def group_keys(table: "DataFrame", by: Sequence[str]) -> list[str]:
    """The columns that `by` names. Of runs, `label` alone is a variant: the settings that differ under a label, too."""
    keys = list(dict.fromkeys(find_column(table, name, "group") for name in by or [""]))
    if keys != ["label"] or "status" not in table:
        return keys
    settings = [name for name in setting_columns(table) if name not in ("label", "plan")]
    return ["label", *differing_within(table, keys, settings)]


def value_columns(table: "DataFrame", keys: Sequence[str], columns: Sequence[str] = ()) -> list[str]:
    """The columns of numbers to summarize: the requested ones, otherwise of runs all results, of cells those that
    tables show."""
    numbers = [name for name in table if table[name].dtype.kind in "iuf" and name not in keys]
    if not columns:
        chosen = [name for name in numbers if not is_identifier(name) and split_name(name)[3] == ""]
        of_cells = [name for name in chosen if column_of(name).shown and not name.endswith(".baseline")]
        return chosen if "status" in table else of_cells
    found = dict.fromkeys(name for column in columns for name in find_columns(table, column) if name not in keys)
    for name in found:
        if name not in numbers:
            raise UserError(f"columns: {name} must be a column of numbers")
        if "status" not in table:
            check_metric(table, name)
    return list(found)


def success_column(table: "DataFrame", column: str | None = None, threshold: float | None = None) -> str | None:
    """The column by which runs succeed: as given, else the first that all evaluated runs have of the accuracy of labels
    beyond training, farthest region first, and in distribution, and exact match in distribution."""
    trained = "final.in_distribution"
    if column is None:
        beyond = [f"final.{name}.ood_accuracy" for name in reversed(REGIONS) if name != "in_distribution"]
        names = [name for name in (*beyond, f"{trained}.accuracy", trained) if name in table]
        known = table.loc[table["status"] == "done", names].dropna(how="all")
        found = next((name for name in names if known[name].notna().all()), None)
    else:
        found = find_column(table, column, "success")
        if table[found].dtype.kind != "f" or column_of(found).format != "share":
            raise UserError(f"success: must be a column of proportions, such as {trained}, not {found}")
    if threshold is not None and not (0 < threshold <= 1 and found):
        raise UserError(f"threshold: must be above 0 and at most 1, of a column such as {trained}, not {threshold}")
    return found
