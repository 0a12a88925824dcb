"""Reading files of records: whole lines of JSON, each an object of a declared schema.

A last line without its line end was left by a process killed while writing. It does not count as damage: the next
writer removes it, and its work is done again. Any other line that cannot be read was damaged.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.records.schema import Schema

Warn = Callable[[str], None] | None


def record_of(text: bytes) -> dict[str, Any] | None:
    """The object that a text of JSON holds, or None where it holds none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if type(found) is dict else None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its `number` from 1, the `offset` of its first byte, its `text` without the line end.

    `record` is None where it is damaged (`damage` has the reason) or was `cut` by a kill.
    """

    number: int
    offset: int
    text: bytes
    record: dict[str, Any] | None
    damage: str | None = None
    cut: bool = False


def scan(content: bytes, path: Path, schema: Schema, number: int = 1, offset: int = 0) -> Iterator[Line]:
    """The lines of a file's content, which starts at a line `number` and an `offset`; empty lines are left out."""
    texts = content.split(b"\n")
    known: dict[str, tuple[int, dict[str, Any]]] = {}
    for place, text in enumerate(texts):
        if text and not text.isspace():
            record = record_of(text)
            wrong = "no JSON object" if record is None else schema.wrong(record)
            if wrong is None and record is not None and schema.unique:
                key = json.dumps([record.get(name) for name in schema.unique], sort_keys=True)
                before, same = known.setdefault(key, (number, record))
                if record != same:
                    wrong = f"it contradicts line {before}, which is about the same {schema.unique[0]}"
            if wrong is None:
                yield Line(number, offset, text, record)
            elif place == len(texts) - 1:
                yield Line(number, offset, text, None, cut=True)
            else:
                yield Line(number, offset, text, None, damaged(f"{path}, line {number}", wrong, schema.remedy))
        number += 1
        offset += len(text) + 1


def damaged(where: object, what: str, remedy: str) -> str:
    """The message about a damaged file."""
    return f"{where}: damaged: {what}. {remedy}"


def content_of(path: Path) -> bytes:
    """What a file holds; nothing where there is no such file. Raises `OperationalError` for one that cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise OperationalError(f"{path}: cannot be read: {error.strerror}") from error


def read(path: Path, schema: Schema, warn: Warn = None, cut: Warn = None) -> list[dict[str, Any]]:
    """The records of a file of lines, in order; none if there is no such file.

    >>> read(folder / "evaluation.jsonl", EVALUATION)[0]["correct"]
    98

    Raises `UserError` for a damaged line, where the schema makes that fatal; else `warn` is called, by default with a
    Python warning. `cut` is called for a last line that was cut.
    """
    return [record for _, record in sound(scan(content_of(path), path, schema), path, schema, warn, cut)]


def sound(
    lines: Iterable[Line], path: Path, schema: Schema, warn: Warn = None, cut: Warn = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of lines, each with the offset of its line; the others are reported as in `read`."""
    for line in lines:
        if line.record is not None:
            yield line.offset, line.record
        elif line.cut:
            if cut is not None:
                cut(f"{path.name}: the last line was cut when a process was killed, and is left out")
        elif schema.fatal:
            raise UserError(line.damage)
        else:
            (warn or _warn)(str(line.damage))


def read_object(path: Path, schema: Schema, warn: Warn = None) -> dict[str, Any] | None:
    """The object that a file of JSON holds, which is written as a whole; None if there is no such file.

    Raises `UserError` for a damaged one, where that is fatal; else `warn` is called, and it counts as missing.
    """
    try:
        record = record_of(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OperationalError(f"{path}: cannot be read: {error.strerror}") from error
    wrong = "no JSON object" if record is None else schema.wrong(record)
    if wrong is None:
        return record
    text = damaged(path, wrong, schema.remedy)
    if schema.fatal:
        raise UserError(text)
    (warn or _warn)(text)
    return None


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


class Tail:
    """A file that others append to, read as it grows: `new()` has the records since the last time.

    A last line without its end is read again the next time: by then there may be more of it.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self.schema = path, schema
        self.end = 0
        """How many bytes of the file have been read."""
        self._lines = 0

    def new(self) -> list[dict[str, Any]]:
        """Raises `UserError` for a damaged line."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.end)
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise OperationalError(f"{self.path}: cannot be read: {error.strerror}") from error
        lines = scan(content, self.path, self.schema, self._lines + 1, self.end)
        found = [record for _, record in sound(lines, self.path, self.schema)]
        self.end += content.rfind(b"\n") + 1
        self._lines += content.count(b"\n")
        return found
