"""`numerate results STUDY`: the results of a study as a table, for people and for programs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numerate.commands.words import check_no_more_words, parse_bool, parse_options, require_word
from numerate.errors import UserError
from numerate.reports.colour import TerminalStyle
from numerate.tables.describing import describe_runs
from numerate.tables.grouping import describe_groups, group_results
from numerate.tables.results import cells_of, results_of
from numerate.tables.selecting import (
    find_column,
    informative_columns,
    is_identifier,
    parse_list,
    select_columns,
    sort_rows,
    where,
)
from numerate.tables.writing import FORMATS_FOR_PEOPLE, render, resolve_format, to_text, write_table

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_TERMINAL_ROWS = 200
"""Maximum rows on a terminal; pipes and files get all."""


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the study", "numerate results abacus_laptop group=label")
    conditions: list[str] = []
    parsers: dict[str, Callable[[str], Any]] = {
        "columns": str,
        "where": conditions.append,
        "sort": str,
        "group": str,
        "statistic": str,
        "threshold": float,
        "success": str,
        "cells": parse_bool,
        "format": str,
        "out": str,
        "runs_dir": str,
    }
    words, options = parse_options(args.words[1:], parsers)
    check_no_more_words(words, list(parsers))
    file_format = resolve_format(options.get("format"), options.get("out"))
    rows = _select_rows(address, options, [one for text in conditions for one in parse_list(text, "where")])
    frame, notes = _select_columns(rows, options, file_format in FORMATS_FOR_PEOPLE)
    if "out" in options:
        path = write_table(frame, options["out"], file_format, notes)
        print(f"{path}: {len(frame):,} {'row' if len(frame) == 1 else 'rows'}, {len(frame.columns)} columns")
    elif file_format == "text":
        width, num_keys = (
            TerminalStyle.from_stream(sys.stdout).width,
            len(set(parse_list(options.get("group", ""), "group"))),
        )
        max_rows = MAX_TERMINAL_ROWS if sys.stdout.isatty() else None
        print(to_text(frame, notes, width, max_rows, "columns" not in options, num_keys or None))
    else:
        sys.stdout.write(render(frame, file_format, notes))
    return 0


def _select_rows(address: str, options: dict[str, Any], conditions: Sequence[str]) -> "DataFrame":
    """The runs, or with cells=true the cells, that satisfy the conditions; only the files of these runs are read."""
    runs = results_of(address, options.get("runs_dir"))
    if not options.get("cells"):
        return where(runs, *conditions)
    of_runs = [condition for condition in conditions if _is_run_condition(condition, runs)]
    cells = cells_of(address, options.get("runs_dir"), runs=where(runs, *of_runs))
    return where(cells, *(condition for condition in conditions if condition not in of_runs))


def _is_run_condition(condition: str, runs: "DataFrame") -> bool:
    """Whether a condition concerns runs rather than their cells."""
    try:
        name = find_column(runs, condition.partition("=")[0].removesuffix("!"), "where")
    except UserError:
        return False
    return is_identifier(name) or name == "status"


def _select_columns(frame: "DataFrame", options: dict[str, Any], for_people: bool) -> tuple["DataFrame", list[str]]:
    """The columns, groups and order that the options name, and the notes below a table for people."""
    columns, order = (parse_list(options.get(name, ""), name) for name in ("columns", "sort"))
    if "group" in options:
        by = parse_list(options["group"], "group")
        more: dict[str, Any] = {"statistic": options.get("statistic"), "threshold": options.get("threshold")}
        more |= {"columns": columns, "success_column": options.get("success")}
        if for_people:
            return describe_groups(frame, by, order=order, **more)
        return sort_rows(group_results(frame, by, **more), *order), []
    for name in ("statistic", "threshold", "success"):
        if name in options:
            raise UserError(f"{name}: needs group=; for example: group=label {name}={options[name]}")
    frame = sort_rows(frame, *order)
    if "columns" in options:
        return select_columns(frame, columns), []
    if not for_people:
        return frame, []
    return (frame[informative_columns(frame)], []) if options.get("cells") else describe_runs(frame)
