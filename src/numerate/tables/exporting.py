"""Exports tables to CSV, Markdown, LaTeX, Parquet, JSON lines, pandas and DuckDB.

In CSV, Parquet and JSON lines, proportions are fractions, missing values are empty (null), and column names are
complete.
"""

import contextlib
import csv
import importlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from numerate.errors import UserError, did_you_mean
from numerate.tables.rows import BaseTable, Column, Row, TableT, Value, infer_type
from numerate.tables.showing import to_latex, to_markdown, to_text
from numerate.training import disk

FORMATS = {".txt": "text", ".csv": "csv", ".md": "markdown", ".tex": "latex", ".jsonl": "jsonl", ".parquet": "parquet"}
"""The format of each file suffix."""

_STUDY_FILES = ("plan.jsonl", "study.yaml", "log.txt", "report.html", "figure.png")

_BATCH_ROWS = 20_000
"""Rows written to a file at once."""


def resolve_format(format: str | None, path: str | Path | None = None) -> str:
    """The format: as given, else by the suffix of the file, else text."""
    known = list(FORMATS.values())
    if format is not None:
        if format not in known:
            raise UserError(
                f"format: there is no {format!r}; there are: {', '.join(known)}.{did_you_mean(format, known)}"
            )
        return format
    if path is None:
        return "text"
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UserError(
            f"out: the suffix of {path} must be one of {', '.join(FORMATS)}, or say format={'|'.join(known)}"
        )
    return FORMATS[suffix]


def write_table(table: BaseTable, path: str | Path, format: str | None = None) -> Path:
    """Writes a table to a file atomically, creating its parent folders, and returns the path.

    The format is that of the suffix (.txt, .csv, .md, .tex, .jsonl, .parquet) unless `format` is given. An existing
    file is replaced when the new one is complete. Lazy tables are written while they are read.

    Raises `UserError` for an unknown suffix, for a path that is not writable, for a file written by a run or study, and
    for Parquet without pyarrow; `OperationalError` for a full disk.
    """
    path = Path(path)
    write_format = _WRITERS[resolve_format(format, path)]
    if _is_run_file(path):
        raise UserError(f"out: {path} is a file of a run or study and must not be replaced; give another name")
    note = f"The previous content of {path.name} is unchanged." if path.exists() else ""
    with disk.convert_os_errors(path, note):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path = disk.temporary_path(path)
        try:
            with open(temporary_path, "xb") as file:
                write_format(table, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary_path, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary_path)
            raise
        disk.fsync(path.parent)
    return path


def _is_run_file(path: Path) -> bool:
    """Whether a path is a file written by a run or study."""
    folder = path.absolute().parent
    if (folder / "recipe.yaml").is_file():
        return path.exists()
    if (folder.parent / "plan.jsonl").is_file() and folder.name in ("results", "states"):
        return True
    return (folder / "plan.jsonl").is_file() and path.name in _STUDY_FILES


def text_chunks(table: BaseTable, format: str) -> Iterator[str]:
    """A table as an iterator of texts with line ends, in any format except Parquet."""
    if format == "text":
        yield to_text(table) + "\n"
    elif format == "markdown":
        yield to_markdown(table) + "\n"
    elif format == "latex":
        yield to_latex(table) + "\n"
    elif format == "csv":
        yield from _csv_chunks(table)
    elif format == "jsonl":
        for row in table:
            yield json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        raise UserError("format: parquet must be written to a file, with out=results.parquet")


def _csv_chunks(table: BaseTable) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.names)
    rows = iter(table.rows)
    while True:
        batch = list(islice(rows, _BATCH_ROWS))
        writer.writerows([_csv_value(value) for value in row] for row in batch)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        if len(batch) < _BATCH_ROWS:
            return


def _csv_value(value: Value) -> Value:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _text_writer(format: str) -> Callable[[BaseTable, BinaryIO], None]:
    def write_text(table: BaseTable, file: BinaryIO) -> None:
        for text in text_chunks(table, format):
            file.write(text.encode(errors="backslashreplace"))

    return write_text


def _write_parquet(table: BaseTable, file: BinaryIO) -> None:
    parquet = import_optional("pyarrow.parquet", "format: parquet")
    schema = _schema(table.columns)
    with parquet.ParquetWriter(file, schema) as writer:
        for part in _batches(table.rows):
            writer.write_table(_arrow_table(table.columns, part, schema))


_WRITERS: dict[str, Callable[[BaseTable, BinaryIO], None]] = {
    **{name: _text_writer(name) for name in FORMATS.values()},
    "parquet": _write_parquet,
}


def to_pandas(table: BaseTable) -> Any:
    """The table as a pandas DataFrame: columns with missing values have the types `Int64` and `boolean`."""
    pandas = import_optional("pandas", "frame")
    rows = list(table.rows)
    columns = {}
    for i, column in enumerate(table.columns):
        values = [row[i] for row in rows]
        missing = None in values
        kind = {int: "Int64" if missing else "int64", float: "float64", bool: "boolean" if missing else "bool"}
        columns[column.name] = pandas.Series(values, dtype=kind.get(column.type))
    return pandas.DataFrame(columns)


def run_query(table: TableT, sql: str) -> TableT:
    """The result of a DuckDB query on the table, under its name, and on its `cells`."""
    duckdb = import_optional("duckdb", "query")
    import_optional("pyarrow", "query")
    tables = {table.name: table}
    if "cells" in sql and table.load_cells is not None and "run" in table.names:
        tables["cells"] = table.cells()
    database = duckdb.connect(":memory:", config={"python_enable_replacements": False})
    try:
        for name, named_table in tables.items():
            schema = _schema(named_table.columns)
            arrow = importlib.import_module("pyarrow")
            parts = [_arrow_table(named_table.columns, part, schema) for part in _batches(named_table.rows)]
            database.register(name, arrow.concat_tables(parts) if parts else schema.empty_table())
        cursor = database.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        rows = [tuple(_to_python(value) for value in row) for row in cursor.fetchall()]
    except duckdb.Error as error:
        message = " ".join(str(error).split("\n\nLINE")[0].split())
        raise UserError(f"query: {message} (tables: {', '.join(tables)}; quote names with a dot)") from error
    finally:
        database.close()
    known = {column.name: column for one in tables.values() for column in one.columns}
    return table.new_table(
        [_result_column(name, [row[i] for row in rows], known) for i, name in enumerate(names)], rows, "answer"
    )


def _result_column(name: str, values: list[Value], known: dict[str, Column]) -> Column:
    kind = infer_type(values)
    old = known.get(name)
    if old is not None and old.type is kind:
        return old
    return Column(name, kind, "number" if kind is float else "plain")


def _to_python(value: Any) -> Value:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if isfinite(number) else None
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while part := list(islice(rows, _BATCH_ROWS)):
        yield part


def _schema(columns: tuple[Column, ...]) -> Any:
    arrow = importlib.import_module("pyarrow")
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_(), str: arrow.string()}
    return arrow.schema([(column.name, kinds[column.type]) for column in columns])


def _arrow_table(columns: tuple[Column, ...], rows: list[Row], schema: Any) -> Any:
    arrow = importlib.import_module("pyarrow")
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return arrow.table([arrow.array(list(one), field.type) for one, field in zip(values, schema, strict=True)], schema)


def import_optional(package: str, feature: str) -> Any:
    """Imports an optional package. Raises `UserError` with how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise UserError(f"{feature} needs the package {name}; pip install 'numerate[tables]'") from error
