"""Rows taken together: how many, the median and the extremes, the interquartile mean, how many succeed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, get_args

import numpy as np

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.statistics import interquartile_mean, median_spread, stratified_bootstrap, success_rate
from numerate.reports.grid import REGIONS, bracket, percent
from numerate.tables.rows import Column, Lazily, NamedRows, Row, T, Value, names_listed
from numerate.tables.showing import follows, interval_text, value_text

Statistic = Literal["median", "iqm", "mean"]

SOLVED = "final.in_distribution"
"""The column that says whether a run succeeded: exact match on what it was trained on, at the last checkpoint. Where
its answers are labels it is the accuracy on unseen counts of the farthest region that it has instead (`solved_by`)."""

THRESHOLD = 0.99
"""From which share on it did."""

FEW = 5
"""Seeds below which a bootstrap interval is too narrow to be believed."""

_ALONG: dict[str, Callable[[Any], Any]] = {
    "median": lambda rows: np.median(rows, axis=-1),
    "iqm": interquartile_mean,
    "mean": lambda rows: np.mean(rows, axis=-1),
}
_WORDS = {"median": "Median", "iqm": "Interquartile mean", "mean": "Mean"}
_NOT_SETTINGS = ("run", "seed")


def grouped(
    table: T,
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str | None = None,
    threshold: float | None = None,
    success: str | None = None,
) -> T:
    """A row per group of rows with equal values in the columns `by`.

    Of a table of runs: how many are `done`, `failed` and not done yet (`left`); `success`, the share of the runs that
    ended, done or failed, with at least `threshold` (0.99) in the column `success` (`final.in_distribution`; of a run
    on labels the farthest of `final.100+.unseen`, `final.ood_test.unseen` and `final.ood_validation.unseen` that it
    has, which `success.of` names), with Wilson's interval about the runs: a run that failed (its loss was not finite,
    say) did not succeed, and one of which nothing may be claimed is not counted. Then for each column of numbers, or
    each of `columns`: `.count` of the values, `.median`, `.lowest`, `.highest`, and the interquartile mean `.iqm` with
    its bootstrap interval `.iqm.low`, `.iqm.high`; or with `statistic` (median, iqm, mean) that alone with its
    bootstrap interval. Seeds are drawn anew within each setting by itself; a single seed has no interval, nor have rows
    that are of one run (its cells).

    >>> table.group("label", columns=["final.ood_test"], statistic="iqm")

    Raises `UserError` for columns that are not there or hold no numbers, an unknown statistic, and no share as
    threshold.
    """
    if statistic is not None and statistic not in get_args(Statistic):
        known = list(get_args(Statistic))
        hint = did_you_mean(statistic, known)
        raise UserError(f"statistic: there is no {statistic!r}; there are: {', '.join(known)}.{hint}")
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"threshold: {threshold} is not a share; above 0 up to 1 is right, for example threshold=0.99")
    solved = solved_by(table) if success is None else [table.names[table.at(success, "success")]]
    if success is not None and table.columns[table.at(solved[0])].type is not float:
        raise UserError(f"success: {solved[0]} is no share; {SOLVED} is one")
    if threshold is not None and not solved:
        raise UserError(f"threshold: there is no {SOLVED} here, which it is compared with")
    at = [table.at(name, "group") for name in dict.fromkeys(by)]
    if not at:
        raise UserError("group: the columns are missing; for example: group=label")
    measured = _measured(table, columns, at)
    main = [i for i in measured if columns or table.columns[i].main]
    if not columns:  # the last checkpoint is enough to begin with
        main = [i for i in main if table.names[i].startswith("final.")] or main
    return _Grouping(table, at, measured, main, statistic, threshold or THRESHOLD, solved).found


def solved_by(table: NamedRows) -> list[str]:
    """The columns that say whether a run succeeded, of which the first that it has counts: accuracy on unseen counts
    in the regions beyond training, farthest first, then what is right of what was trained, of labels all of them."""
    beyond = [name for name in REGIONS if name != "in_distribution"]
    wanted = [f"final.{region}.unseen" for region in reversed(beyond)]
    return [name for name in (*wanted, f"{SOLVED}.accuracy", SOLVED) if name in table.names]


def _measured(table: NamedRows, columns: Sequence[str], at: Sequence[int]) -> list[int]:
    """The columns of numbers that are summed up: those wanted, else all results but the ends of intervals."""
    if columns:
        found = [i for i in dict.fromkeys(i for name in columns for i in table.matching(name)) if i not in at]
        for i in found:
            if table.columns[i].type not in (int, float):
                raise UserError(f"columns: {table.names[i]} holds no numbers, so it has no statistics over a group")
        return found
    names = set(table.names)
    ends = {f"{name}{end}" for name in names for end in (".low", ".high")}
    return [
        i
        for i, column in enumerate(table.columns)
        if column.type in (int, float) and not column.tells and i not in at and column.name not in ends
    ]


def _of(statistic: str, values: Sequence[float]) -> float:
    return _within(float(_ALONG[statistic](np.asarray([values]))[0]), values)


def _within(value: float, values: Sequence[float]) -> float:
    """A value between the least and the largest of some, which rounding may miss by a little: no share is above 1."""
    return min(max(value, min(values)), max(values))


@dataclass(frozen=True)
class _Group:
    """Rows with equal values in the columns they are grouped by, and those that count: of done runs.

    `strata` numbers the settings, seeds aside, that these are of; None where several are of one run.
    """

    by: Row
    rows: Sequence[Row]
    done: Sequence[Row]
    strata: Sequence[int] | None

    def values(self, i: int) -> list[float]:
        return [float(value) for row in self.done if isinstance(value := row[i], int | float)]

    def interval(self, i: int, statistic: str, name: str) -> tuple[float, float] | None:
        """The bootstrap interval over the seeds of each setting; None where no setting has two."""
        if self.strata is None:
            return None
        samples: dict[int, list[float]] = {}
        for stratum, row in zip(self.strata, self.done, strict=True):
            if isinstance(value := row[i], int | float):
                samples.setdefault(stratum, []).append(float(value))
        if max(map(len, samples.values()), default=0) < 2:
            return None
        if all(len(set(sample)) == 1 for sample in samples.values()):  # nothing that a draw could change
            same = _of(statistic, [value for sample in samples.values() for value in sample])
            return same, same
        bounds = stratified_bootstrap(list(samples.values()), "results", name, statistic, statistic=_ALONG[statistic])
        values = self.values(i)
        return _within(bounds[0], values), _within(bounds[1], values)


@dataclass(frozen=True)
class _Grouping(Generic[T]):
    """A table, the columns `at` which it is grouped, those that are summed up, and those of them that people see."""

    table: T
    at: Sequence[int]
    measured: Sequence[int]
    main: Sequence[int]
    statistic: str | None
    threshold: float
    solved: Sequence[str]

    @property
    def found(self) -> T:
        """Groups with all numbers; intervals take about a millisecond each and are computed on access."""
        rows: list[Row] = []

        def make() -> Iterator[Row]:
            if not rows:
                rows.extend(self.rows(self.measured, self.ends))
            return iter(rows)

        every = Lazily(make)

        def view(found: T) -> T:
            if found.rows is every and self.statistic is None:
                ends = ["count", "median", "lowest", "highest"]
                found = self.with_columns(self.main, ends, self.rows(self.main, ends))
            return self.view(found)

        return replace(self.with_columns(self.measured, self.ends, every), view=view)

    @property
    def ends(self) -> list[str]:
        """The statistics of each column, as suffixes of the names."""
        typical = [] if self.statistic is not None else ["median", "lowest", "highest"]
        return ["count", *typical, *(f"{self.statistic or 'iqm'}{end}" for end in ("", ".low", ".high"))]

    @cached_property
    def groups(self) -> list[_Group]:
        """In the order of their first rows, numbers by their size."""
        names, columns = self.table.names, self.table.columns
        found: dict[Row, list[Row]] = {}
        for row in self.table.rows:
            found.setdefault(tuple(row[i] for i in self.at), []).append(row)
        ranks = []
        for column, i in enumerate(self.at):
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
        settings = [i for i, column in enumerate(self.table.columns) if column.tells and names[i] not in _NOT_SETTINGS]
        known: dict[Row, int] = {}
        return [known.setdefault(tuple(row[i] for i in settings), len(known)) for row in done]

    # In numbers -------------------------------------------------------------------------------------------------------

    def with_columns(self, wanted: Sequence[int], ends: Sequence[str], rows: Iterable[Row]) -> T:
        keys = [replace(self.table.columns[i], tells=True, main=True) for i in self.at]
        counts = ["done", "failed", "left"] if "status" in self.table.names else ["count"]
        columns = [*keys, *(Column(name, int, "count") for name in counts)]
        if self.solved and "status" in self.table.names:
            columns += [Column(f"success{end}", float, "share") for end in ("", ".low", ".high")]
            columns += [Column("success.count", int, "count"), Column("success.of")]
        for column in (self.table.columns[i] for i in wanted):
            result = Column("", float, "share" if column.shown == "share" else "measure")
            for end in ends:
                kind = Column("", int, "count") if end == "count" else result
                columns.append(replace(kind, name=f"{column.name}.{end}"))
        return self.table.others(columns, rows, "groups", self.notes)

    def rows(self, wanted: Sequence[int], ends: Sequence[str]) -> list[Row]:
        return [
            (*group.by, *self._counts(group), *(value for i in wanted for value in self._summary(group, i, ends)))
            for group in self.groups
        ]

    def _counts(self, group: _Group) -> list[Value]:
        names = self.table.names
        if "status" not in names:
            return [len(group.rows)]
        status = names.index("status")
        failed = sum(row[status] == "failed" for row in group.rows)
        found: list[Value] = [len(group.done), failed, len(group.rows) - len(group.done) - failed]
        if self.solved:
            barred = names.index("no_claim") if "no_claim" in names else None
            claimed = [row for row in group.done if barred is None or row[barred] is None]
            judged = [result for row in claimed if (result := self._judged(row)) is not None]
            values = [value for _, value in judged] + [0.0] * failed
            rate = success_rate(values, self.threshold) if values else None
            found += [rate.value, rate.low, rate.high] if rate is not None else [None, None, None]
            by = {name for name, _ in judged}
            found += [len(values), ", ".join(name for name in self.solved if name in by) or None]
        return found

    def _judged(self, row: Row) -> tuple[str, float] | None:
        """The column that decides whether a run succeeded, with its value."""
        results = ((name, row[self.table.names.index(name)]) for name in self.solved)
        return next(((name, float(value)) for name, value in results if isinstance(value, int | float)), None)

    def _summary(self, group: _Group, i: int, ends: Sequence[str]) -> list[Value]:
        """The numbers that `ends` name, of one column of one group."""
        values = group.values(i)
        found: dict[str, Value] = {"count": len(values)}
        if values:
            if "lowest" in ends:
                spread = median_spread(values)
                found |= {"median": spread.median, "lowest": spread.lowest, "highest": spread.highest}
            for name in (name for name in _ALONG if f"{name}.low" in ends):
                low, high = group.interval(i, name, self.table.names[i]) or (None, None)
                found |= {name: _of(name, values), f"{name}.low": low, f"{name}.high": high}
        return [found.get(end) for end in ends]

    # In words ---------------------------------------------------------------------------------------------------------

    def view(self, found: T) -> T:
        """What people see of groups: counts, successes, and each result in one column with its interval."""
        rows, names = list(found), found.names
        columns = [replace(column, type=str, shown="plain") for column in found.columns[: len(self.at)]]
        texts = [
            [value_text(column, row[column.name]) or "none" for row in rows] for column in found.columns[: len(self.at)]
        ]
        for name in ("done", "failed", "left", "count"):
            if name in names and (name in ("done", "count") or any(row[name] for row in rows)):
                columns.append(Column(name))
                texts.append([f"{row[name]:,}" for row in rows])
        if "success" in names:
            columns.append(Column("success"))
            texts.append([_success(row) for row in rows])
            if len({row["success.of"] for row in rows} - {None}) > 1:
                columns.append(Column("success.of"))
                texts.append([str(row["success.of"] or "") for row in rows])
        for column in (self.table.columns[i] for i in self.main):
            columns.append(Column(column.name))
            texts.append([self._interval_text(column, row) for row in rows])
        return found.others(columns, list(zip(*texts, strict=True)), found.name, self.notes)

    def _interval_text(self, column: Column, row: dict[str, Value]) -> str:
        ends = ("median", "lowest", "highest")
        if self.statistic is not None:
            ends = (self.statistic, f"{self.statistic}.low", f"{self.statistic}.high")
        value, low, high = (row[f"{column.name}.{end}"] for end in ends)
        if not isinstance(value, float):
            return ""
        shown = column if column.shown == "share" else replace(column, shown="measure")
        if row[f"{column.name}.count"] == 1 or not isinstance(low, float) or not isinstance(high, float):
            return interval_text(shown, value, None, None)
        return interval_text(shown, value, low, high)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the numbers of a view are, and what was taken together."""
        what, runs = ("Runs", "done runs") if "status" in self.table.names else ("Rows", "rows")
        notes = []
        if self.main and self.statistic is None:
            notes.append(f"Median of the {runs} [lowest, highest].")
        elif self.main and self.statistic is not None:
            few = any(0 < len(group.done) < FEW for group in self.groups)
            more = f" Of fewer than {FEW} seeds such an interval is too narrow." if few else ""
            notes.append(f"{_WORDS[self.statistic]} of the {runs} [95 % bootstrap interval over seeds].{more}")
        if "no_claim" in self.table.names:
            reasons = dict.fromkeys(str(reason) for reason in self.table["no_claim"] if reason is not None)
            notes += [f"no claim, and no success counted: {reason}" for reason in reasons]
        if self.solved:
            judged = [self._judged(row) for group in self.groups for row in group.done]
            by = {one[0] for one in judged if one is not None}
            named = names_listed([name for name in self.solved if name in by] or self.solved[-1:], "or")
            farthest = ", each the farthest that it has," * (len(by) > 1)
            least = f"at least {percent(self.threshold)} %"
            notes.append(
                f"success: runs with {named}{farthest} of {least}, of those done or failed; "
                "one that failed did not succeed [Wilson's 95 % interval, in per cent]."
            )
        if together := self._together():
            apart = ",".join([*(self.table.names[i] for i in self.at), *together])
            joined = names_listed(together, "and")
            notes.append(f"{what} that differ in {joined} are taken together; group={apart} keeps them apart.")
        return tuple(notes)

    def _together(self) -> list[str]:
        """What tells rows apart, seeds aside, and differs inside a group; settings that a label says are not named."""
        names = self.table.names
        rows = [row for group in self.groups for row in group.rows]
        found = [
            i
            for i, column in enumerate(self.table.columns)
            if column.tells
            and i not in self.at
            and column.name not in _NOT_SETTINGS
            and any(row[i] != group.rows[0][i] for group in self.groups for row in group.rows)
        ]
        label = names.index("label") if "label" in names else None
        if label in found:
            labels = [row[label] for row in rows]
            found = [i for i in found if i == label or not follows([row[i] for row in rows], labels)]
        return [names[i] for i in found]


def _success(row: dict[str, Value]) -> str:
    """`3/5 [23, 88]`: how many of how many, and Wilson's interval in per cent."""
    value, low, high, count = (row[f"success{end}"] for end in ("", ".low", ".high", ".count"))
    if not (isinstance(value, float) and isinstance(low, float) and isinstance(high, float) and isinstance(count, int)):
        return ""
    return f"{round(value * count)}/{count} {bracket(low, high, 0)}"
