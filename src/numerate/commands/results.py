"""`numerate results STUDY`: the results of a study as a table, for people and for programs."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.errors import UserError
from numerate.results.rows import RunEntry, cells_of, find_runs
from numerate.results.runs import group_rows, with_scores
from numerate.results.selecting import (
    find_column,
    informative_columns,
    is_identifier,
    parse_list,
    select_columns,
    sort_rows,
)
from numerate.results.selecting import where as select_rows
from numerate.results.tables import (
    FORMATS_FOR_PEOPLE,
    Table,
    render,
    resolve_format,
    table_of,
    table_of_groups,
    table_of_runs,
    write_table,
)
from numerate.results.words import span
from numerate.runs.study_folder import StudyFolder
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
    folder = StudyFolder.find(address, resolve_runs_dir(runs_dir))
    entries = find_runs(folder.path, runs_dir)
    rows = _select_rows(entries, bool(options.get("cells")), conditions)
    table = _select_columns(rows, options, file_format in FORMATS_FOR_PEOPLE)
    if file_format == "latex" and isinstance(table, Table):
        table = table._replace(notes=[*table.notes, *_seeds_and_command(rows, folder.runs_dir)])
    if out is not None:
        path, shown = write_table(table, out, file_format), table.texts if isinstance(table, Table) else table
        num_columns = len(shown.columns.difference(["sums"]))
        print(f"{path}: {len(shown):,} {'row' if len(shown) == 1 else 'rows'}, {num_columns} columns")
        return
    max_rows = MAX_TERMINAL_ROWS if sys.stdout.isatty() else None
    sys.stdout.write(render(table, file_format, shutil.get_terminal_size((80, 24)).columns, max_rows))


def _select_rows(entries: Sequence[RunEntry], needs_cells: bool, conditions: Sequence[str]) -> "DataFrame":
    """The runs, or their cells, that satisfy the conditions; only the cells of these runs are read."""
    runs = with_scores(entries)
    if not needs_cells:
        return select_rows(runs, *conditions)
    of_runs = [condition for condition in conditions if _is_run_condition(condition, runs)]
    of_cells = [condition for condition in conditions if condition not in of_runs]
    kept = set(select_rows(runs, *of_runs)["run"])
    cells = cells_of(
        [one for one in entries if one.run in kept and one.state is not None and one.state.status == "done"]
    )
    return select_rows(cells, *of_cells)


def _is_run_condition(condition: str, runs: "DataFrame") -> bool:
    """Whether a condition concerns runs rather than their cells."""
    try:
        name = find_column(runs, condition.partition("=")[0].removesuffix("!"), "where")
    except UserError:
        return False
    return is_identifier(name) or name in ("status", "stop_reason", "failure")


def _seeds_and_command(rows: "DataFrame", runs_dir: Path) -> list[str]:
    """The seeds of a table, and the command of its first run, for its caption."""
    notes = []
    if len(seeds := {int(seed) for seed in rows.get("seed", ())}):
        notes.append(f"Seed{'s' * (len(seeds) > 1)}: {span(seeds)}.")
    folder = RunFolder(runs_dir / str(rows["run"].iloc[0])) if len(rows) else None
    if folder is not None and (command := folder.metadata().get("command")):
        notes.append(f"Command: {command}.")
    return notes


def _select_columns(frame: "DataFrame", options: dict[str, Any], for_people: bool) -> "DataFrame | Table":
    """The columns, groups and order that the options name; for people as texts with notes."""
    columns, order = (parse_list(options.get(name, ""), name) for name in ("columns", "sort"))
    if "group" in options:
        by = parse_list(options["group"], "group")
        more: dict[str, Any] = {"statistic": options.get("statistic", "median"), "threshold": options.get("threshold")}
        more |= {"columns": columns, "success": options.get("success")}
        if for_people:
            return table_of_groups(frame, by, order=order, **more)
        return sort_rows(group_rows(frame, by, **more), *order)
    for name in ("statistic", "threshold", "success"):
        if name in options:
            raise UserError(f"{name}: needs group=; for example: group=label {name}={options[name]}")
    frame = sort_rows(frame, *order)
    if "columns" in options:
        frame = select_columns(frame, columns)
        return table_of(frame) if for_people else frame
    if not for_people:
        return frame
    return table_of(frame[informative_columns(frame)]) if options.get("cells") else table_of_runs(frame)
