"""`numerate results STUDY`: the results of a study as a table, for people and for programs."""

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numerate.errors import UserError
from numerate.reports.grid import span_text
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
)
from numerate.tables.selecting import where as select_rows
from numerate.tables.writing import FORMATS_FOR_PEOPLE, render, resolve_format, to_text, write_table
from numerate.training.run_folder import RunFolder, resolve_runs_dir

if TYPE_CHECKING:
    from pandas import DataFrame

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
    conditions = [condition for text in where for condition in parse_list(text, "where")]
    rows = _select_rows(address, runs_dir, bool(options.get("cells")), conditions)
    frame, notes = _select_columns(rows, options, file_format in FORMATS_FOR_PEOPLE)
    if file_format == "latex":
        notes += _seeds_and_command(rows, runs_dir)
    if out is not None:
        path = write_table(frame, out, file_format, notes)
        print(f"{path}: {len(frame):,} {'row' if len(frame) == 1 else 'rows'}, {len(frame.columns)} columns")
    elif file_format == "text":
        num_keys = len(set(parse_list(options.get("group", ""), "group"))) or None
        max_rows = MAX_TERMINAL_ROWS if sys.stdout.isatty() else None
        width = shutil.get_terminal_size((100, 24)).columns
        print(to_text(frame, notes, width, max_rows, "columns" not in options, num_keys))
    else:
        sys.stdout.write(render(frame, file_format, notes))


def _select_rows(address: str, runs_dir: str | None, needs_cells: bool, conditions: Sequence[str]) -> "DataFrame":
    """The runs, or their cells, that satisfy the conditions; only the files of these runs are read."""
    runs = results_of(address, runs_dir)
    if not needs_cells:
        return select_rows(runs, *conditions)
    of_runs = [condition for condition in conditions if _is_run_condition(condition, runs)]
    of_cells = [condition for condition in conditions if condition not in of_runs]
    cells = cells_of(address, runs_dir, runs=select_rows(runs, *of_runs))
    only_of_runs = [one for one in of_cells if _column(one, cells) is None and _column(one, runs) is not None]
    if only_of_runs:  # such as stop_reason
        cells = cells_of(address, runs_dir, runs=select_rows(runs, *of_runs, *only_of_runs))
    return select_rows(cells, *(condition for condition in of_cells if condition not in only_of_runs))


def _seeds_and_command(rows: "DataFrame", runs_dir: str | None) -> list[str]:
    """The seeds of a table, and the command of its first run, for its caption."""
    notes = []
    if len(seeds := {int(seed) for seed in rows.get("seed", ())}):
        notes.append(f"Seed{'s' * (len(seeds) > 1)}: {span_text(seeds)}.")
    folder = RunFolder(resolve_runs_dir(runs_dir) / str(rows["run"].iloc[0])) if len(rows) else None
    if folder is not None and (command := folder.metadata().get("command")):
        notes.append(f"Command: {command}.")
    return notes


def _is_run_condition(condition: str, runs: "DataFrame") -> bool:
    """Whether a condition concerns runs rather than their cells, though both have its column."""
    name = _column(condition, runs)
    return name is not None and (is_identifier(name) or name == "status")


def _column(condition: str, frame: "DataFrame") -> str | None:
    """The column that a condition names; None if there is none."""
    try:
        return find_column(frame, condition.partition("=")[0].removesuffix("!"), "where")
    except UserError:
        return None


def _select_columns(frame: "DataFrame", options: dict[str, Any], for_people: bool) -> tuple["DataFrame", list[str]]:
    """The columns, groups and order that the options name, and the notes below a table for people."""
    columns, order = (parse_list(options.get(name, ""), name) for name in ("columns", "sort"))
    if "group" in options:
        by = parse_list(options["group"], "group")
        more: dict[str, Any] = {"statistic": options.get("statistic", "median"), "threshold": options.get("threshold")}
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
