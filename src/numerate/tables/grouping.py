"""Statistics of grouped rows: count, median, extremes, interquartile mean, success rate."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, get_args

import numpy as np

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.statistics import (
    interquartile_mean,
    stratified_bootstrap_interval,
    success_rate,
)
from numerate.reports.grid import REGION_LABELS, format_interval, format_percent
from numerate.tables.rows import BaseTable, Column, LazyRows, Row, TableT, Value, join_names
from numerate.tables.showing import format_value, format_value_with_interval, is_determined_by

Statistic = Literal["median", "iqm", "mean"]

SUCCESS_COLUMN = "final.in_distribution"
"""The column that decides whether a run succeeded: exact match in distribution at the last checkpoint. For labels, it
is the accuracy on unseen counts in the farthest region of the run instead (`default_success_columns`)."""

SUCCESS_THRESHOLD = 0.99
"""The threshold of success."""

MIN_SEEDS = 5
"""Minimum number of seeds for a reliable bootstrap interval; with fewer it is too narrow."""

_STATISTICS: dict[str, Callable[[Any], Any]] = {
    "median": lambda rows: np.median(rows, axis=-1),
    "iqm": interquartile_mean,
    "mean": lambda rows: np.mean(rows, axis=-1),
}
_STATISTIC_LABELS = {"median": "Median", "iqm": "Interquartile mean", "mean": "Mean"}
_NOT_SETTINGS = ("run", "seed")


def group_table(
    table: TableT,
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str | None = None,
    threshold: float | None = None,
    success_column: str | None = None,
) -> TableT:
    """A row per group of rows with equal values in the columns `by`.

    For a table of runs: the numbers of runs `done`, `failed` and not done yet (`left`); `success_column`, the fraction
    of the done or failed runs with at least `threshold` (0.99) in the column `success_column` (`final.in_distribution`;
    for labels, the farthest of `final.100+.ood_accuracy`, `final.ood_test.ood_accuracy` and
    `final.ood_validation.ood_accuracy` of the run, named in `success_column.of`), with Wilson's interval over runs: a
    failed run (with a non-finite loss, for example) did not succeed, and a run of a non-causal model is not counted.
    Then for each column of numbers, or each of `columns`: the number of values `.count`, `.median`, `.lowest`,
    `.highest`, and the interquartile mean `.iqm` with its bootstrap interval `.iqm.low`, `.iqm.high`; or with
    `statistic` (median, iqm, mean) only that with its bootstrap interval. Seeds are resampled within each setting; a
    single seed has no interval, nor have several rows of one run (its cells).

        table.group_by("label", columns=["final.ood_test"], statistic="iqm")

    Raises `UserError` for missing or non-numeric columns, an unknown statistic, and a threshold outside (0, 1].
    """
    if statistic is not None and statistic not in get_args(Statistic):
        known = list(get_args(Statistic))
        hint = did_you_mean(statistic, known)
        raise UserError(f"statistic: there is no {statistic!r}; there are: {', '.join(known)}.{hint}")
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"threshold: must be above 0 and at most 1, not {threshold}, for example threshold=0.99")
    success_columns = (
        default_success_columns(table)
        if success_column is None
        else [table.names[table.column_index(success_column, "success")]]
    )
    if success_column is not None and table.columns[table.column_index(success_columns[0])].type is not float:
        raise UserError(f"success: must be a column of proportions such as {SUCCESS_COLUMN}, not {success_columns[0]}")
    if threshold is not None and not success_columns:
        raise UserError(f"threshold: the table must have the column {SUCCESS_COLUMN}")
    key_indices = [table.column_index(name, "group") for name in dict.fromkeys(by)]
    if not key_indices:
        raise UserError("group: the columns are missing; for example: group=label")
    value_indices = _value_columns(table, columns, key_indices)
    default_indices = [i for i in value_indices if columns or table.columns[i].is_default]
    if not columns:  # by default only the last checkpoint
        default_indices = [i for i in default_indices if table.names[i].startswith("final.")] or default_indices
    return _GroupedTable(
        table, key_indices, value_indices, default_indices, statistic, threshold or SUCCESS_THRESHOLD, success_columns
    ).result


def default_success_columns(table: BaseTable) -> list[str]:
    """The columns that decide whether a run succeeded; the first that a run has is used: accuracy on unseen counts in
    the regions beyond training, farthest first, then exact match in distribution (for labels, of all labels)."""
    ood_regions = [name for name in REGION_LABELS if name != "in_distribution"]
    candidates = [f"final.{region}.ood_accuracy" for region in reversed(ood_regions)]
    return [name for name in (*candidates, f"{SUCCESS_COLUMN}.accuracy", SUCCESS_COLUMN) if name in table.names]


def _value_columns(table: BaseTable, columns: Sequence[str], key_indices: Sequence[int]) -> list[int]:
    """The columns of numbers to aggregate: the requested ones, otherwise all results except interval bounds."""
    if columns:
        found = [
            i for i in dict.fromkeys(i for name in columns for i in table.column_indices(name)) if i not in key_indices
        ]
        for i in found:
            if table.columns[i].type not in (int, float):
                raise UserError(f"columns: {table.names[i]} must be a column of numbers")
        return found
    names = set(table.names)
    interval_columns = {f"{name}{end}" for name in names for end in (".low", ".high")}
    return [
        i
        for i, column in enumerate(table.columns)
        if column.type in (int, float)
        and not column.is_identifier
        and i not in key_indices
        and column.name not in interval_columns
    ]


def _compute_statistic(statistic: str, values: Sequence[float]) -> float:
    return _clip_to_range(float(_STATISTICS[statistic](np.asarray([values]))[0]), values)


def _clip_to_range(value: float, values: Sequence[float]) -> float:
    """Clips a value to the range of the values, which it may leave by rounding: no proportion is above 1."""
    return min(max(value, min(values)), max(values))


@dataclass(frozen=True)
class _Group:
    """Rows with equal values in the columns they are grouped by, and those of done runs, which are aggregated.

    `strata` numbers the settings (without seeds) of the rows; None if several rows are of one run.
    """

    key: Row
    rows: Sequence[Row]
    done_rows: Sequence[Row]
    strata: Sequence[int] | None

    def values(self, column: int) -> list[float]:
        return [float(value) for row in self.done_rows if isinstance(value := row[column], int | float)]

    def interval(self, column: int, statistic: str, name: str) -> tuple[float, float] | None:
        """The bootstrap interval over the seeds of each setting; None if no setting has two."""
        if self.strata is None:
            return None
        samples: dict[int, list[float]] = {}
        for stratum, row in zip(self.strata, self.done_rows, strict=True):
            if isinstance(value := row[column], int | float):
                samples.setdefault(stratum, []).append(float(value))
        if max(map(len, samples.values()), default=0) < 2:
            return None
        if all(len(set(sample)) == 1 for sample in samples.values()):  # resampling could not change anything
            same = _compute_statistic(statistic, [value for sample in samples.values() for value in sample])
            return same, same
        bounds = stratified_bootstrap_interval(
            list(samples.values()), "results", name, statistic, statistic=_STATISTICS[statistic]
        )
        values = self.values(column)
        return _clip_to_range(bounds[0], values), _clip_to_range(bounds[1], values)


@dataclass(frozen=True)
class _GroupedTable(Generic[TableT]):
    """A table, the columns by which it is grouped (`key_indices`), the aggregated ones, and those of them that are
    displayed."""

    table: TableT
    key_indices: Sequence[int]
    value_indices: Sequence[int]
    default_indices: Sequence[int]
    statistic: str | None
    threshold: float
    success_columns: Sequence[str]

    @property
    def result(self) -> TableT:
        """Groups with all numbers; intervals take about a millisecond each and are computed on access."""
        rows: list[Row] = []

        def make() -> Iterator[Row]:
            if not rows:
                rows.extend(self.rows(self.value_indices, self.suffixes))
            return iter(rows)

        all_rows = LazyRows(make)

        def view(found: TableT) -> TableT:
            if found.rows is all_rows and self.statistic is None:
                ends = ["count", "median", "lowest", "highest"]
                found = self.make_table(self.default_indices, ends, self.rows(self.default_indices, ends))
            return self.view(found)

        return replace(self.make_table(self.value_indices, self.suffixes, all_rows), make_view=view)

    @property
    def suffixes(self) -> list[str]:
        """The statistics of each column, as suffixes of the names."""
        typical = [] if self.statistic is not None else ["median", "lowest", "highest"]
        return ["count", *typical, *(f"{self.statistic or 'iqm'}{end}" for end in ("", ".low", ".high"))]

    @cached_property
    def groups(self) -> list[_Group]:
        """Sorts groups by their first rows, numbers by size."""
        names, columns = self.table.names, self.table.columns
        found: dict[Row, list[Row]] = {}
        for row in self.table.rows:
            found.setdefault(tuple(row[i] for i in self.key_indices), []).append(row)
        ranks = []
        for column, i in enumerate(self.key_indices):
            values = list(dict.fromkeys(key[column] for key in found))
            if columns[i].type in (int, float):
                values.sort(key=lambda value: (value is None, value if isinstance(value, int | float) else 0.0))
            ranks.append({value: rank for rank, value in enumerate(values)})
        status = names.index("status") if "status" in names else None
        groups = []
        for key in sorted(found, key=lambda key: [ranks[column][value] for column, value in enumerate(key)]):
            done = [row for row in found[key] if status is None or row[status] == "done"]
            groups.append(_Group(key, found[key], done, self._strata(done)))
        return groups

    def _strata(self, done: Sequence[Row]) -> list[int] | None:
        names = self.table.names
        if "run" in names:
            run = names.index("run")
            if len({row[run] for row in done}) < len(done):
                return None
        settings = [
            i for i, column in enumerate(self.table.columns) if column.is_identifier and names[i] not in _NOT_SETTINGS
        ]
        known: dict[Row, int] = {}
        return [known.setdefault(tuple(row[i] for i in settings), len(known)) for row in done]

    # In numbers -------------------------------------------------------------------------------------------------------

    def make_table(self, indices: Sequence[int], suffixes: Sequence[str], rows: Iterable[Row]) -> TableT:
        keys = [replace(self.table.columns[i], is_identifier=True, is_default=True) for i in self.key_indices]
        counts = ["done", "failed", "left"] if "status" in self.table.names else ["count"]
        columns = [*keys, *(Column(name, int, "count") for name in counts)]
        if self.success_columns and "status" in self.table.names:
            columns += [Column(f"success{end}", float, "share") for end in ("", ".low", ".high")]
            columns += [Column("success.count", int, "count"), Column("success.of")]
        for column in (self.table.columns[i] for i in indices):
            result = Column("", float, "share" if column.display_format == "share" else "number")
            for end in suffixes:
                kind = Column("", int, "count") if end == "count" else result
                columns.append(replace(kind, name=f"{column.name}.{end}"))
        return self.table.new_table(columns, rows, "groups", self.notes)

    def rows(self, indices: Sequence[int], suffixes: Sequence[str]) -> list[Row]:
        return [
            (*group.key, *self._counts(group), *(value for i in indices for value in self._summary(group, i, suffixes)))
            for group in self.groups
        ]

    def _counts(self, group: _Group) -> list[Value]:
        names = self.table.names
        if "status" not in names:
            return [len(group.rows)]
        status = names.index("status")
        failed = sum(row[status] == "failed" for row in group.rows)
        counts: list[Value] = [len(group.done_rows), failed, len(group.rows) - len(group.done_rows) - failed]
        if self.success_columns:
            reason_index = names.index("non_causal_reason") if "non_causal_reason" in names else None
            valid_rows = [row for row in group.done_rows if reason_index is None or row[reason_index] is None]
            scored = [result for row in valid_rows if (result := self._success_value(row)) is not None]
            values = [value for _, value in scored] + [0.0] * failed
            rate = success_rate(values, self.threshold) if values else None
            counts += [rate.value, rate.low, rate.high] if rate is not None else [None, None, None]
            by = {name for name, _ in scored}
            counts += [len(values), ", ".join(name for name in self.success_columns if name in by) or None]
        return counts

    def _success_value(self, row: Row) -> tuple[str, float] | None:
        """The column that decides whether a run succeeded, and its value."""
        results = ((name, row[self.table.names.index(name)]) for name in self.success_columns)
        return next(((name, float(value)) for name, value in results if isinstance(value, int | float)), None)

    def _summary(self, group: _Group, i: int, suffixes: Sequence[str]) -> list[Value]:
        """The statistics named by `suffixes`, of one column of one group."""
        values = group.values(i)
        found: dict[str, Value] = {"count": len(values)}
        if values:
            if "lowest" in suffixes:
                found |= {"median": float(np.median(values)), "lowest": min(values), "highest": max(values)}
            for name in (name for name in _STATISTICS if f"{name}.low" in suffixes):
                low, high = group.interval(i, name, self.table.names[i]) or (None, None)
                found |= {name: _compute_statistic(name, values), f"{name}.low": low, f"{name}.high": high}
        return [found.get(end) for end in suffixes]

    # In words ---------------------------------------------------------------------------------------------------------

    def view(self, found: TableT) -> TableT:
        """Groups for display: counts, successes, and each result in one column with its interval."""
        rows, names = list(found), found.names
        columns = [
            replace(column, type=str, display_format="plain") for column in found.columns[: len(self.key_indices)]
        ]
        texts = [
            [format_value(column, row[column.name]) or "none" for row in rows]
            for column in found.columns[: len(self.key_indices)]
        ]
        for name in ("done", "failed", "left", "count"):
            if name in names and (name in ("done", "count") or any(row[name] for row in rows)):
                columns.append(Column(name))
                texts.append([f"{row[name]:,}" for row in rows])
        if "success" in names:
            columns.append(Column("success"))
            texts.append([_format_success(row) for row in rows])
            if len({row["success.of"] for row in rows} - {None}) > 1:
                columns.append(Column("success.of"))
                texts.append([str(row["success.of"] or "") for row in rows])
        for column in (self.table.columns[i] for i in self.default_indices):
            columns.append(Column(column.name))
            texts.append([self._interval_text(column, row) for row in rows])
        return found.new_table(columns, list(zip(*texts, strict=True)), found.name, self.notes)

    def _interval_text(self, column: Column, row: dict[str, Value]) -> str:
        ends = ("median", "lowest", "highest")
        if self.statistic is not None:
            ends = (self.statistic, f"{self.statistic}.low", f"{self.statistic}.high")
        value, low, high = (row[f"{column.name}.{end}"] for end in ends)
        if not isinstance(value, float):
            return ""
        shown = column if column.display_format == "share" else replace(column, display_format="number")
        if row[f"{column.name}.count"] == 1 or not isinstance(low, float) or not isinstance(high, float):
            return format_value_with_interval(shown, value, None, None)
        return format_value_with_interval(shown, value, low, high)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on the statistics of a view, and on the settings that were grouped together."""
        what, runs = ("Runs", "done runs") if "status" in self.table.names else ("Rows", "rows")
        notes = []
        if self.default_indices and self.statistic is None:
            notes.append(f"Median of the {runs} [lowest, highest].")
        elif self.default_indices and self.statistic is not None:
            few = any(0 < len(group.done_rows) < MIN_SEEDS for group in self.groups)
            more = f" Of fewer than {MIN_SEEDS} seeds such an interval is too narrow." if few else ""
            notes.append(
                f"{_STATISTIC_LABELS[self.statistic]} of the {runs} [95 % bootstrap interval over seeds].{more}"
            )
        if "non_causal_reason" in self.table.names:
            reasons = dict.fromkeys(str(reason) for reason in self.table["non_causal_reason"] if reason is not None)
            notes += [f"not comparable (non-causal), and no success counted: {reason}" for reason in reasons]
        if self.success_columns:
            judged = [self._success_value(row) for group in self.groups for row in group.done_rows]
            by = {one[0] for one in judged if one is not None}
            named = join_names([name for name in self.success_columns if name in by] or self.success_columns[-1:], "or")
            farthest = ", each the farthest that it has," * (len(by) > 1)
            least = f"at least {format_percent(self.threshold)} %"
            notes.append(
                f"success: runs with {named}{farthest} of {least}, of those done or failed; "
                "failed runs count as unsuccessful [Wilson's 95 % interval, in per cent]."
            )
        if merged_columns := self._merged_columns():
            group_option = ",".join([*(self.table.names[i] for i in self.key_indices), *merged_columns])
            joined = join_names(merged_columns, "and")
            notes.append(f"{what} that differ in {joined} are grouped together; group={group_option} separates them.")
        return tuple(notes)

    def _merged_columns(self) -> list[str]:
        """The identifying columns (except seeds) that differ within a group, without settings implied by the label."""
        names = self.table.names
        rows = [row for group in self.groups for row in group.rows]
        found = [
            i
            for i, column in enumerate(self.table.columns)
            if column.is_identifier
            and i not in self.key_indices
            and column.name not in _NOT_SETTINGS
            and any(row[i] != group.rows[0][i] for group in self.groups for row in group.rows)
        ]
        label = names.index("label") if "label" in names else None
        if label in found:
            labels = [row[label] for row in rows]
            found = [i for i in found if i == label or not is_determined_by([row[i] for row in rows], labels)]
        return [names[i] for i in found]


def _format_success(row: dict[str, Value]) -> str:
    """`3/5 [23, 88]`: a proportion, and Wilson's interval in per cent."""
    value, low, high, count = (row[f"success{end}"] for end in ("", ".low", ".high", ".count"))
    if not (isinstance(value, float) and isinstance(low, float) and isinstance(high, float) and isinstance(count, int)):
        return ""
    return f"{round(value * count)}/{count} {format_interval(low, high, 0)}"
