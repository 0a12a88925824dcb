"""`numerate results STUDY`: the results of a study as a table, for people and for programs."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numerate.errors import UserError
from numerate.reports.colour import TerminalStyle
from numerate.tables.exporting import resolve_format, text_chunks, write_table
from numerate.tables.results import results_of
from numerate.tables.rows import Row
from numerate.tables.showing import to_text
from numerate.tables.table import Table, parse_list

MAX_TERMINAL_ROWS = 200
"""Maximum rows on a terminal; pipes and files get all."""


def results(
    address: str,
    *,
    where: Sequence[str] = (),
    format: str | None = None,
    out: str | None = None,
    runs_dir: str | None = None,
    **options: Any,
) -> None:
    """Prints or writes the table of a study that the options select."""
    file_format = resolve_format(format, out)
    table = _select_table(results_of(address, runs_dir), options, where)
    if out is not None:
        rows = _RowCounter(table.rows)
        path = write_table(replace(table, rows=rows), out, file_format)
        print(f"{path}: {rows.count:,} {'row' if rows.count == 1 else 'rows'}, {len(table.columns)} columns")
    elif file_format == "text":
        max_rows = MAX_TERMINAL_ROWS if sys.stdout.isatty() else None
        print(to_text(table, TerminalStyle.from_stream(sys.stdout).width, max_rows))
    else:
        for text in text_chunks(table, file_format):
            sys.stdout.write(text)


@dataclass
class _RowCounter:
    """Counts rows while iterating, so that rows of cells are read only once."""

    rows: Iterable[Row]
    count: int = 0

    def __iter__(self) -> Iterator[Row]:
        self.count = 0
        for row in self.rows:
            self.count += 1
            yield row


def _select_table(runs: Table, option_values: dict[str, Any], condition_texts: Sequence[str]) -> Table:
    """The table selected by the options."""
    conditions = [condition for text in condition_texts for condition in parse_list(text, "where")]
    table = runs
    if option_values.get("cells"):
        cells = runs.cells()
        run_conditions = [condition for condition in conditions if _is_run_condition(condition, runs, cells)]
        conditions = [condition for condition in conditions if condition not in run_conditions]
        table = runs.where(*run_conditions).cells() if run_conditions else cells
    table = table.where(*conditions) if conditions else table
    columns, order = (
        parse_list(option_values.get("columns", ""), "columns"),
        parse_list(option_values.get("sort", ""), "sort"),
    )
    if "group" in option_values:
        by = parse_list(option_values["group"], "group")
        table = table.group_by(
            *by,
            columns=columns,
            statistic=option_values.get("statistic"),
            threshold=option_values.get("threshold"),
            success_column=option_values.get("success"),
        )
        return table.sort(*order) if order else table
    for name in ("statistic", "threshold", "success"):
        if name in option_values:
            raise UserError(f"{name}: needs group=; for example: group=label {name}={option_values[name]}")
    table = table.sort(*order) if order else table
    return table.select(*columns) if columns else table


def _is_run_condition(condition: str, runs: Table, cells: Table) -> bool:
    """Whether a condition concerns runs rather than their cells, so that only the files of some runs are read."""
    name = condition.partition("=")[0].removesuffix("!")
    try:
        column = runs.columns[runs.column_index(name, "where")]
    except UserError:
        return False
    return column.is_identifier or column.name not in cells.names
