"""Tables in files and in other programs: CSV, Markdown, LaTeX, Parquet, JSON lines; pandas, DuckDB.

Shares stay fractions in CSV, Parquet and JSON lines, a missing value is nothing (null), names of columns stay whole.
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
from numerate.tables.rows import Column, NamedRows, Row, T, Value, type_of
from numerate.tables.showing import as_latex, as_markdown, as_text
from numerate.training import disk

FORMATS = {".txt": "text", ".csv": "csv", ".md": "markdown", ".tex": "latex", ".jsonl": "jsonl", ".parquet": "parquet"}
"""What a file's ending says of its format."""

_OF_A_STUDY = ("plan.jsonl", "study.yaml", "log.txt", "report.html", "figure.png")

_MANY = 20_000
"""Rows that are put into a file at once."""


def format_of(format: str | None, path: str | Path | None = None) -> str:
    """The format: as given, else by the ending of the file, else text."""
    known = list(FORMATS.values())
    if format is not None:
        if format not in known:
            raise UserError(
                f"format: there is no {format!r}; there are: {', '.join(known)}.{did_you_mean(format, known)}"
            )
        return format
    if path is None:
        return "text"
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise UserError(f"out: {path} ends like no format; {', '.join(FORMATS)} do, or say format={'|'.join(known)}")
    return FORMATS[ending]


def write(table: NamedRows, path: str | Path, format: str | None = None) -> Path:
    """Writes a table to a file, as a whole or not at all, and returns its path; folders on the way are made.

    The format is that of the ending (.txt, .csv, .md, .tex, .jsonl, .parquet) unless `format` says another. A file that
    is there already is replaced once the new one is whole. A table that is read lazily is written as it is read.

    Raises `UserError` for an unknown ending, for a place that may not be written, for a file that a run or study wrote
    itself, and for Parquet without pyarrow; `OperationalError` for a full disk.
    """
    path = Path(path)
    put = _WRITERS[format_of(format, path)]
    if _is_a_record(path):
        raise UserError(
            f"out: {path} is what a run or a study wrote itself, and is not replaced; another name is right"
        )
    safe = f"What {path.name} held before is unharmed." if path.exists() else ""
    with disk.explained(path, safe):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = disk.beside(path)
        try:
            with open(new, "xb") as file:
                put(table, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        disk.sync(path.parent)
    return path


def _is_a_record(path: Path) -> bool:
    """Whether a path is a file that a table is made of, or another that its run or study has written."""
    folder = path.absolute().parent
    if (folder / "recipe.yaml").is_file():
        return path.exists()
    if (folder.parent / "plan.jsonl").is_file() and folder.name in ("results", "states"):
        return True
    return (folder / "plan.jsonl").is_file() and path.name in _OF_A_STUDY


def lines_of(table: NamedRows, format: str) -> Iterator[str]:
    """A table as pieces of text with their line ends, in any format but Parquet."""
    if format == "text":
        yield as_text(table) + "\n"
    elif format == "markdown":
        yield as_markdown(table) + "\n"
    elif format == "latex":
        yield as_latex(table) + "\n"
    elif format == "csv":
        yield from _csv(table)
    elif format == "jsonl":
        for row in table:
            yield json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        raise UserError("format: parquet is nothing to read in a terminal; out=results.parquet writes it to a file")


def _csv(table: NamedRows) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.names)
    rows = iter(table.rows)
    while True:
        part = list(islice(rows, _MANY))
        writer.writerows([_plain(value) for value in row] for row in part)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        if len(part) < _MANY:
            return


def _plain(value: Value) -> Value:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _text_writer(format: str) -> Callable[[NamedRows, BinaryIO], None]:
    def put(table: NamedRows, file: BinaryIO) -> None:
        for text in lines_of(table, format):
            file.write(text.encode(errors="backslashreplace"))

    return put


def _parquet(table: NamedRows, file: BinaryIO) -> None:
    parquet = imported("pyarrow.parquet", "format: parquet")
    schema = _schema(table.columns)
    with parquet.ParquetWriter(file, schema) as writer:
        for part in _parts(table.rows):
            writer.write_table(_arrow(table.columns, part, schema))


_WRITERS: dict[str, Callable[[NamedRows, BinaryIO], None]] = {
    **{name: _text_writer(name) for name in FORMATS.values()},
    "parquet": _parquet,
}


def frame_of(table: NamedRows) -> Any:
    """The table as a pandas DataFrame: where some are missing, whole numbers are `Int64` and truths `boolean`."""
    pandas = imported("pandas", "frame")
    rows = list(table.rows)
    columns = {}
    for i, column in enumerate(table.columns):
        values = [row[i] for row in rows]
        missing = None in values
        kind = {int: "Int64" if missing else "int64", float: "float64", bool: "boolean" if missing else "bool"}
        columns[column.name] = pandas.Series(values, dtype=kind.get(column.type))
    return pandas.DataFrame(columns)


def queried(table: T, sql: str) -> T:
    """The answer of DuckDB to a query on the table, which is called by its name, and on its `cells`."""
    duckdb = imported("duckdb", "query")
    imported("pyarrow", "query")
    tables = {table.name: table}
    if "cells" in sql and table.cells_of is not None and "run" in table.names:
        tables["cells"] = table.cells()
    database = duckdb.connect(":memory:", config={"python_enable_replacements": False})
    try:
        for name, one in tables.items():
            schema = _schema(one.columns)
            arrow = importlib.import_module("pyarrow")
            parts = [_arrow(one.columns, part, schema) for part in _parts(one.rows)]
            database.register(name, arrow.concat_tables(parts) if parts else schema.empty_table())
        answer = database.execute(sql)
        names = [column[0] for column in answer.description or ()]
        rows = [tuple(_python(value) for value in row) for row in answer.fetchall()]
    except duckdb.Error as error:
        message = " ".join(str(error).split("\n\nLINE")[0].split())
        raise UserError(
            f"query: {message} (tables: {', '.join(tables)}; names with a dot stand in double quotes)"
        ) from error
    finally:
        database.close()
    known = {column.name: column for one in tables.values() for column in one.columns}
    return table.others(
        [_column(name, [row[i] for row in rows], known) for i, name in enumerate(names)], rows, "answer"
    )


def _column(name: str, values: list[Value], known: dict[str, Column]) -> Column:
    kind = type_of(values)
    old = known.get(name)
    if old is not None and old.type is kind:
        return old
    return Column(name, kind, "measure" if kind is float else "plain")


def _python(value: Any) -> Value:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if isfinite(number) else None
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while part := list(islice(rows, _MANY)):
        yield part


def _schema(columns: tuple[Column, ...]) -> Any:
    arrow = importlib.import_module("pyarrow")
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_(), str: arrow.string()}
    return arrow.schema([(column.name, kinds[column.type]) for column in columns])


def _arrow(columns: tuple[Column, ...], rows: list[Row], schema: Any) -> Any:
    arrow = importlib.import_module("pyarrow")
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return arrow.table([arrow.array(list(one), field.type) for one, field in zip(values, schema, strict=True)], schema)


def imported(package: str, what: str) -> Any:
    """A package that is not always there. Raises `UserError` with what installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise UserError(f"{what} needs the package {name}; pip install 'numerate[tables]'") from error
