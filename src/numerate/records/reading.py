"""Reading files of records: whole lines of JSON, each an object of a declared schema.

An incomplete last line without a line end was left by a process killed while writing. It does not count as damage: the
next writer removes it, and its work is repeated. Any other line that cannot be read is damaged, and so are one with a
name twice, one that conflicts with an earlier one, and one of another run than the others.

JSON has no numbers that are not finite: they are written as the texts "nan", "inf" and "-inf", and read as floats where
a field may have them.
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from numerate.errors import OperationalError, UserError
from numerate.records.schema import RUN_ID_KEY, Schema, restore_numbers

MessageCallback = Callable[[str], None] | None

FORMAT = 7
"""Format version of the folders of runs, studies and submissions (`format` in their files): 6 since version 0.3."""


class OtherVersionError(UserError):
    """A file is intact, but of an earlier or a later version."""


def check_format(path: Path, format_version: object) -> None:
    """Raises `OtherVersionError` for a file of an earlier or a later version, which would be misread."""
    if not isinstance(format_version, int) or format_version > FORMAT:
        raise OtherVersionError(
            f"{path}: has format {format_version}, this version reads format {FORMAT}; update numerate"
        )
    if format_version < FORMAT:
        raise OtherVersionError(
            f"{path}: was written by an earlier version of numerate and can only be read by that version; choose "
            "another folder for new runs (runs_dir=)"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"`{Counter(name for name, _ in pairs).most_common(1)[0][0]}` must be given once")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f'{name} is no JSON: write "nan", "inf" or "-inf"')


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
_LINE_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_NOT_FINITE = re.compile(rb'"(nan|-?inf)"')
_NO_OBJECT = "no JSON object"


def parse_record(text: bytes) -> dict[str, Any] | None:
    """The object in a JSON text; None if it is not an object, or has a name twice."""
    try:
        value = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return None
    return value if type(value) is dict else None


def _decode_quickly(text: bytes) -> Any:
    """What a line without faults says; None where the other decoder must look: of a name that is given twice msgspec
    keeps one, and so loses a colon (`\\u003a` is one, too)."""
    try:
        value = msgspec.json.decode(text)
        is_whole = msgspec.json.encode(value).count(b":") == text.count(b":") and b"\\u003" not in text
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value if is_whole else None


def _parse_line(text: bytes, schema: Schema) -> tuple[dict[str, Any], str | None]:
    """The record in a line, and what is wrong with it."""
    try:
        record = _decode_quickly(text) or _LINE_DECODER.decode(text.decode())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return {}, _NO_OBJECT
    except ValueError as error:
        return {}, str(error)
    problem = schema.find_violation(record) if type(record) is dict else _NO_OBJECT
    if problem is None and _NOT_FINITE.search(text):
        record = restore_numbers(record, schema.type_of(record))
    return record, problem


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A line of a file, without its line end. `record` is None if it is damaged (`problem` has the reason), or was
    truncated by a kill (`is_truncated`)."""

    text: bytes
    record: dict[str, Any] | None
    problem: str | None = None

    @property
    def is_truncated(self) -> bool:
        return self.record is None and self.problem is None


def parse_lines(content: bytes, path: Path, schema: Schema, run_id: str | None = None) -> Iterator[RecordLine]:
    """The lines of a file's content; empty ones, and those that equal an earlier one with the same `schema.unique`, are
    skipped. Lines that say of which run they are must be of `run_id`, or if it is None of the same one."""
    texts = content.split(b"\n")
    first_line_by_key: dict[bytes, tuple[int, dict[str, Any]]] = {}
    for number, text in enumerate(texts, 1):
        if not text or text.isspace():
            continue
        record, problem = _parse_line(text, schema)
        if problem == _NO_OBJECT and number == len(texts):
            yield RecordLine(text, None)
            continue
        if problem is None and (own_id := record.get(RUN_ID_KEY)) is not None:
            run_id = run_id or own_id
            if own_id != run_id:
                problem = f'`{RUN_ID_KEY}` must be "{run_id}", not "{own_id}": it is of another run'
        if problem is None and schema.unique:
            key = msgspec.json.encode([record.get(name) for name in schema.unique], order="sorted")
            first_number, first_record = first_line_by_key.setdefault(key, (number, record))
            if record != first_record:
                problem = f"it conflicts with line {first_number}, which has the same {schema.unique[0]}"
            elif number != first_number:
                continue
        if problem is None:
            yield RecordLine(text, record)
        else:
            yield RecordLine(text, None, damage_message(f"{path}, line {number}", problem, schema.remedy))


def damage_message(where: object, problem: str, remedy: str) -> str:
    """The message about a damaged file."""
    return f"{where}: damaged: {problem}. {remedy}"


def read_bytes(path: Path) -> bytes:
    """The content of a file; empty if there is no such file. Raises `OperationalError` if it cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise OperationalError(f"{path}: cannot be read: {error.strerror}") from error


def read_records(
    path: Path,
    schema: Schema,
    warn: MessageCallback = None,
    on_truncated_line: MessageCallback = None,
    run_id: str | None = None,
) -> list[dict[str, Any]]:
    """The records of a file of lines, in order; none if there is no such file. With `run_id`, those of other runs are
    damaged.

        read_records(folder / "cells.jsonl", EVALUATION)[0]["correct"]  # 98

    Raises `UserError` for a damaged line if it is fatal in the schema; otherwise `warn` is called, which by default
    issues a Python warning. `on_truncated_line` is called for a truncated last line.
    """
    records = []
    for line in parse_lines(read_bytes(path), path, schema, run_id):
        if line.record is not None:
            records.append(line.record)
        elif line.problem is not None:
            if schema.is_fatal:
                raise UserError(line.problem)
            (warn or partial(warnings.warn, stacklevel=3))(line.problem)
        elif on_truncated_line is not None:
            problem = "the last line is truncated (a process was killed while writing) and is skipped"
            on_truncated_line(f"{path.name}: {problem}")
    return records
