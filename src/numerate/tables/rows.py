"""Rows of plain values under named columns: the content of a table.

Proportions are fractions from 0 to 1 in the rows and in data files, and per cent on display. A missing value is None,
and empty in a file.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, Self, TypeVar

from numerate.config.values import unquote
from numerate.errors import UserError, did_you_mean

Value = int | float | bool | str | None
Row = tuple[Value, ...]
DisplayFormat = Literal["plain", "share", "count", "number"]


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, and the type of its values (or None if missing).

    `display_format`: "plain", a "share" in per cent, a "count" with commas, or a "number" with four digits.
    `is_identifier`: it identifies rows (label, seed, settings); `is_default`: it is displayed by default. `categories`
    are possible values, even if no row has them.
    """

    name: str
    type: type = str
    display_format: DisplayFormat = "plain"
    is_identifier: bool = False
    is_default: bool = False
    categories: tuple[str, ...] = ()

    def cast(self, value: Any) -> Value:
        """A value of a record if it has the type of this column; otherwise None."""
        if value is None or (isinstance(value, float) and not isfinite(value)):
            return None
        if self.type is str:
            return str(value)
        if self.type is bool:
            return bool(value)
        if not isinstance(value, int | float):
            return None
        return float(value) if self.type is float else int(value)


@dataclass(frozen=True)
class LazyRows:
    """Rows that are generated for each iteration, so that a million of them need no memory."""

    make_rows: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        return self.make_rows()


@dataclass(frozen=True, repr=False, eq=False)
class BaseTable:
    """The base of `Table`: rows under named columns."""

    columns: tuple[Column, ...]
    rows: Iterable[Row]
    name: str = "rows"
    make_view: Callable[[Any], Any] | None = None
    notes: tuple[str, ...] = ()
    load_cells: Callable[[Collection[str]], Any] | None = None

    def __len__(self) -> int:
        return len(self.rows) if isinstance(self.rows, Sequence) else sum(1 for _ in self.rows)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        names = self.names
        return (dict(zip(names, row, strict=True)) for row in self.rows)

    def __getitem__(self, name: str) -> list[Value]:
        """The values of one column."""
        at = self.column_index(name)
        return [row[at] for row in self.rows]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def column_index(self, name: str, option: str = "columns") -> int:
        """The index of the column with a name. Raises `UserError` if there is none, or several."""
        found = self.column_indices(name, option)
        if len(found) > 1:
            raise UserError(
                f"{option}: {name!r} is several columns here; {join_names(self.names[i] for i in found)}; give one"
            )
        return found[0]

    def column_indices(self, name: str, option: str = "columns") -> list[int]:
        """The indices of the columns with a name: one, or all directly below it. Raises `UserError` if there are
        none."""
        text = _normalize_name(name)
        names = [_normalize_name(column) for column in self.names]
        if text in names:
            return [names.index(text)]
        suffix_matches = [i for i, one in enumerate(names) if one.endswith(f".{text}")]
        if len(suffix_matches) > 1:
            options = join_names((self.names[i] for i in suffix_matches), "or")
            raise UserError(f"{option}: {name!r} may be {options}; give one of these")
        if suffix_matches:
            return suffix_matches
        child_columns = [
            i for i, one in enumerate(names) if one.startswith(f"{text}.") and one.rpartition(".")[0] not in names
        ]
        if text and child_columns:
            return child_columns
        known = [*self.names, *(column.rpartition(".")[2] for column in self.names)]
        hint = did_you_mean(name, known) or f" There are: {join_names(self.names)}."
        raise UserError(f"{option}: no column {name!r}.{hint}")

    # Other tables of it -----------------------------------------------------------------------------------------------

    def select(self, *names: str) -> Self:
        """The columns of these names, in this order; `all` is every column."""
        found: dict[int, None] = {}
        for name in names:
            found.update(
                dict.fromkeys(range(len(self.columns)) if name == "all" else self.column_indices(name, "columns"))
            )
        if not found:
            raise UserError(f"columns: none is selected; there are: {join_names(self.names)}.")
        at = tuple(found)
        columns = tuple(self.columns[i] for i in at)
        return replace(
            self, columns=columns, rows=self._map_rows(lambda row: tuple(row[i] for i in at)), make_view=None
        )

    def where(self, *conditions: str) -> Self:
        """The rows in which columns have, or do not have, given values: `where("label!=Abacus",
        "model.hidden_size=64")`.

        `null` is a missing value: `loss!=null` selects the rows with a value. Raises `UserError` for a value that no
        row has.
        """
        tests = [self._parse_condition(condition) for condition in conditions]
        return replace(
            self, rows=self._filter_rows(lambda row: all((row[at] == value) is equal for at, equal, value in tests))
        )

    def _parse_condition(self, condition: str) -> tuple[int, bool, Value]:
        """Parses a condition: the column, whether its values must be equal, and the value."""
        name, equals, text = condition.partition("=")
        equal, name = not name.endswith("!"), name.removesuffix("!")
        if not equals or not name.strip():
            raise UserError(
                f"where: {condition!r} must be a condition; for example: where=label=Abacus,model.hidden_size=64"
            )
        at = self.column_index(name.strip(), "where")
        column = self.columns[at]
        value = _parse_value(text.strip(), column)
        if isinstance(self.rows, Sequence) and value not in column.categories:
            known = list(dict.fromkeys(row[at] for row in self.rows))
            if value not in known and known:
                texts = ["null" if one is None else _format_value(one) for one in known]
                hint = did_you_mean(text, texts) or f" There are: {join_names(texts)}."
                raise UserError(f"where: no row has {column.name}={text.strip()}.{hint}")
        return at, equal, value

    def sort(self, *names: str) -> Self:
        """The rows sorted by columns; `-final.ood_test` starts with the largest. Missing values come last."""
        rows = list(self.rows)
        for name in reversed(names):
            descending = name.startswith("-")
            at = self.column_index(name.removeprefix("-"), "sort")
            present_rows = [row for row in rows if row[at] is not None]
            present_rows.sort(key=lambda row, at=at: row[at], reverse=descending)  # type: ignore[misc]
            rows = [*present_rows, *(row for row in rows if row[at] is None)]
        return replace(self, rows=rows)

    def cells(self) -> Self:
        """A row for each cell of each evaluation of these runs, read from their folders for each iteration.

        Raises `UserError` if the table is not of runs, or no longer has the column `run`.
        """
        if self.load_cells is None:
            raise UserError("cells: needs a table of runs")
        if "run" not in self.names:
            raise UserError("cells: needs the column run; call cells() before select(...)")
        cells: Self = self.load_cells({str(run) for run in self["run"]})
        return cells

    def new_table(self, columns: Sequence[Column], rows: Iterable[Row], name: str, notes: tuple[str, ...] = ()) -> Self:
        """A table with other columns and rows."""
        return type(self)(tuple(columns), rows, name, notes=notes)

    def _map_rows(self, change: Callable[[Row], Row]) -> Iterable[Row]:
        if isinstance(self.rows, Sequence):
            return [change(row) for row in self.rows]
        return LazyRows(lambda: (change(row) for row in self.rows))

    def _filter_rows(self, test: Callable[[Row], bool]) -> Iterable[Row]:
        if isinstance(self.rows, Sequence):
            return [row for row in self.rows if test(row)]
        return LazyRows(lambda: (row for row in self.rows if test(row)))


TableT = TypeVar("TableT", bound=BaseTable)
"""A type of table: tables derived from it have the same type."""


def infer_type(values: Iterable[Value]) -> type:
    """The type of a column with these values: integers mixed with other numbers are float, all else is str."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and kinds:
        return int if all(value is None or abs(int(value)) < 2**63 for value in values) else float
    if kinds <= {int, float} and kinds:
        return float
    return bool if kinds == {bool} else str


def _parse_value(text: str, column: Column) -> Value:
    text = plain if (plain := unquote(text)) is not None else text
    if text in ("", "null"):
        return None
    if column.type is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"where: {column.name} must be true or false, not {text!r}")
        return text.lower() == "true"
    if column.type in (int, float):
        try:
            return float(text)
        except ValueError:
            raise UserError(f"where: {column.name} must be a number, not {text!r}") from None
    return text


def _format_value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _normalize_name(name: str) -> str:
    return re.sub("-", "_", name.strip().lower())


def join_names(names: Iterable[str], conjunction: str = "", max_names: int = 12) -> str:
    names = list(names)
    if conjunction and len(names) <= max_names:
        return f" {conjunction} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    return ", ".join(names[:max_names]) + (", ..." if len(names) > max_names else "")
