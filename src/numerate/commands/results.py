"""`numerate results STUDY`: the results of a study as a table, for people and for programs."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numerate.commands.words import first, no_more, options, truth
from numerate.errors import UserError
from numerate.reports.colour import TerminalStyle
from numerate.tables.exporting import format_of, lines_of, write
from numerate.tables.results import results_of
from numerate.tables.rows import Row
from numerate.tables.showing import as_text
from numerate.tables.table import Table, listed

ROWS = 200
"""Rows shown on a terminal; pipes and files get all."""


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the study", "numerate results abacus_laptop group=label")
    wheres: list[str] = []
    kinds: dict[str, Callable[[str], Any]] = {
        "columns": str,
        "where": wheres.append,
        "sort": str,
        "group": str,
        "statistic": str,
        "threshold": float,
        "success": str,
        "cells": truth,
        "format": str,
        "out": str,
        "runs_dir": str,
    }
    words, own = options(given.words[1:], kinds)
    no_more(words, list(kinds))
    if own.get("out") == "":
        raise UserError("out: the file is missing; for example: out=results.csv")
    format = format_of(own.get("format"), own.get("out"))
    table = _chosen(results_of(address, own.get("runs_dir")), own, wheres)
    if "out" in own:
        rows = _Counted(table.rows)
        path = write(replace(table, rows=rows), own["out"], format)
        print(f"{path}: {rows.count:,} {'row' if rows.count == 1 else 'rows'}, {len(table.columns)} columns")
    elif format == "text":
        print(as_text(table, TerminalStyle.of(sys.stdout).width, ROWS if sys.stdout.isatty() else None))
    else:
        for text in lines_of(table, format):
            sys.stdout.write(text)
    return 0


@dataclass
class _Counted:
    """Counts rows while iterating, so that those of cells are read once."""

    rows: Iterable[Row]
    count: int = 0

    def __iter__(self) -> Iterator[Row]:
        self.count = 0
        for row in self.rows:
            self.count += 1
            yield row


def _chosen(runs: Table, own: dict[str, Any], wheres: list[str]) -> Table:
    """The table selected by the options."""
    conditions = [condition for text in wheres for condition in listed(text, "where")]
    table = runs
    if own.get("cells"):
        cells = runs.cells()
        of_runs = [condition for condition in conditions if _is_of_runs(condition, runs, cells)]
        conditions = [condition for condition in conditions if condition not in of_runs]
        table = runs.where(*of_runs).cells() if of_runs else cells
    table = table.where(*conditions) if conditions else table
    columns, order = listed(own.get("columns", ""), "columns"), listed(own.get("sort", ""), "sort")
    if "columns" in own and not columns:
        raise UserError(
            "columns: the names are missing; for example: columns=label,seed,final.ood_test; all is every column"
        )
    if "group" in own:
        by = listed(own["group"], "group")
        table = table.group(
            *by,
            columns=columns,
            statistic=own.get("statistic"),
            threshold=own.get("threshold"),
            success=own.get("success"),
        )
        return table.sort(*order) if order else table
    for name in ("statistic", "threshold", "success"):
        if name in own:
            raise UserError(f"{name}: is of groups of runs; for example: group=label {name}={own[name]}")
    table = table.sort(*order) if order else table
    return table.select(*columns) if columns else table


def _is_of_runs(condition: str, runs: Table, cells: Table) -> bool:
    """Whether a condition is about runs and not about their cells, so that only the files of some runs are read."""
    name = condition.partition("=")[0].removesuffix("!")
    try:
        column = runs.columns[runs.at(name, "where")]
    except UserError:
        return False
    return column.tells or column.name not in cells.names
