"""How a record of a text file becomes a question with its answer: JSON lines, tab-separated columns, pairs of lines."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from numerate.config import Spec
from numerate.text.tasks.mapped_lines import MappedLines

MAX_CHARACTERS = 1 << 16
"""Maximum number of characters of a question with its answer, or of a row: a longer one means a wrong format."""

MAX_RECORD_BYTES = 1 << 22
"""Maximum number of bytes of a record, unused fields included."""

QUESTION_NAMES = ("question", "questions", "query", "prompt", "input", "inputs", "source", "problem", "instruction")
ANSWER_NAMES = ("answer", "answers", "response", "completion", "output", "outputs", "target", "targets", "solution")
"""Common names of questions and of answers."""

TEXT = str | float
"""In a schema: a string, or a number as it is written."""

Pair = tuple[str, str]
"""A question and its answer."""


def check_pair(question: str, answer: str, *, requires_answer: bool = True) -> None:
    """Raises `ValueError` for an empty question or answer (unless not `requires_answer`), more than 65,536 characters,
    and NUL."""
    num_characters = len(question) + len(answer)
    if not question.strip() or (requires_answer and not answer.strip()):
        raise ValueError(f"has an empty {'answer' if question.strip() else 'question'}")
    if num_characters > MAX_CHARACTERS:
        raise ValueError(
            f"has {num_characters:,} characters; a question with its answer has at most {MAX_CHARACTERS:,}"
        )
    if "\0" in question or "\0" in answer:
        raise ValueError("contains a NUL character; is the file damaged?")


def decode_utf8(record: bytes, max_bytes: int | None = MAX_RECORD_BYTES) -> str:
    """The text of a record. Raises `ValueError` for one that is too long, or not UTF-8."""
    if max_bytes is not None and len(record) > max_bytes:
        raise ValueError(f"has {len(record):,} bytes; a record has at most {max_bytes:,}")
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not valid UTF-8 ({error.reason})") from error


class ExampleReader(Spec, ABC):
    """How a file becomes questions with their answers. A frozen dataclass."""

    preserves_characters: ClassVar[bool] = False
    """Whether questions and answers have the same characters as the file."""

    requires_answer: bool = True
    """Whether every question has an answer; in MultiRC it may be empty."""

    @abstractmethod
    def pairs(self, lines: MappedLines) -> Iterator[tuple[int, Pair | ValueError]]:
        """Each question of a file with the number of its line, from 1 on, or what is wrong in its place."""


class RecordReader(ExampleReader):
    """How one record of a file becomes a question with its answer. A frozen dataclass."""

    lines_per_record: ClassVar[int] = 1

    num_header_lines: int = 0
    """Number of lines before the first record, such as the names of columns."""

    @abstractmethod
    def parse(self, record: str) -> Pair:
        """The question of a record. Raises `ValueError` that says what is wrong with it."""

    def pairs(self, lines: MappedLines) -> Iterator[tuple[int, Pair | ValueError]]:
        step, end = self.lines_per_record, len(lines)
        numbers: Sequence[int] | NDArray[np.int64] = range(end)
        blank = lines.blank_lines if step > 1 else np.array([], dtype=np.int64)
        while len(blank) and blank[-1] == end - 1:  # at the end of the file
            blank, end = blank[:-1], end - 1
        if len(blank) and (end % step or not (blank % step).all()):
            # Blank lines are left out, unless all of them stand where an answer does.
            numbers = np.delete(np.arange(end), blank)
            lines, end = lines.select(numbers), len(numbers)
            gaps = np.flatnonzero(np.diff(numbers) > 1)
            if end % step and len(gaps := gaps[(gaps + 1) % step > 0]):
                end = int(gaps[0]) // step * step + 1  # a line is missing, probably at this blank one
        if end % step:
            yield int(numbers[end - 1]) + 1, ValueError(f"is incomplete: each record must have {step} lines")
        for line, record in lines.records(self.num_header_lines, end - end % step, step):
            if step == 1 and len(record) < 3 and not record.strip():
                continue
            try:
                pair = self.parse(decode_utf8(record))
            except ValueError as error:
                yield int(numbers[line]) + 1, error
            else:
                yield int(numbers[line]) + 1, pair


@dataclass(frozen=True)
class JSONLines(RecordReader):
    """A JSON object per line.

    >>> JSONLines().parse('{"question": "1+1=", "answer": 2}')
    ('1+1=', '2')
    """

    question: str = "question"
    answer: str = "answer"
    requires_answer: bool = True

    def parse(self, record: str) -> Pair:
        value = parse_json(record)
        try:
            fields = read_fields(value, {self.question: TEXT, self.answer: TEXT})
        except ValueError as error:
            hint = ""
            for field, names in (("question", QUESTION_NAMES), ("answer", ANSWER_NAMES)):
                found = [key for key in value if key.casefold() in names] if isinstance(value, dict) else []
                if found and getattr(self, field) not in value:
                    hint += f"; set {field}_field={found[0]}"
            raise ValueError(f"{error}{hint}") from error
        return fields[self.question], fields[self.answer]


@dataclass(frozen=True)
class TabSeparated(RecordReader):
    """A line of tab-separated columns, without quotes; `question` and `answer` are the indices of two, from 0.

    With `rest` the last of the two extends to the end of the line. `num_columns` is the most columns of a line; None:
    any number.

    >>> TabSeparated(question=1, answer=0).parse("7\\tWhy did it cross?")
    ('Why did it cross?', '7')
    """

    question: int = 0
    answer: int = 1
    num_header_lines: int = 0
    rest: bool = False
    num_columns: int | None = None
    preserves_characters: ClassVar[bool] = True

    def parse(self, record: str) -> Pair:
        last = max(self.question, self.answer)
        columns = record.split("\t", last if self.rest else -1)
        if len(columns) <= last:
            raise ValueError(f"has {len(columns)} columns, and column {last + 1} is wanted; tabs stand between them")
        if self.num_columns is not None and len(columns) > self.num_columns:
            raise ValueError(
                f"has {len(columns)} columns, and the first line has {self.num_columns}; is a tab in a text?"
            )
        if not columns[self.question].strip():
            raise ValueError(f"has no question in column {self.question + 1}")
        return columns[self.question].strip(), columns[self.answer].strip()


@dataclass(frozen=True)
class TwoLines(RecordReader):
    """The question on a line, its answer on the next: the files of the mathematics dataset.

    >>> TwoLines().parse("What is 7 + 5?\\n12\\n")
    ('What is 7 + 5?', '12')
    """

    lines_per_record: ClassVar[int] = 2
    preserves_characters: ClassVar[bool] = True

    def parse(self, record: str) -> Pair:
        question, _, answer = record.partition("\n")
        question, answer = question.strip(), answer.strip()
        if not question or not answer:
            raise ValueError(f"has no {'answer' if question else 'question'}; each record must be two lines")
        return question, answer


# JSON ----------------------------------------------------------------------------------------------------------------


class _Number(str):
    """A number of a JSON text, as it is written."""

    __slots__ = ()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write it as a string, in quotes")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r} comes twice in an object")
    return result


JSON_DECODER = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=_reject_constant, object_pairs_hook=_build_object
)
"""Reads JSON whose numbers keep their original characters. Raises `ValueError` for NaN, Infinity and repeated keys."""


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError` for invalid JSON, and as `JSON_DECODER` does."""
    try:
        return JSON_DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON ({error})") from error


def read_fields(value: Any, schema: Any, name: str = "") -> Any:
    """The part of a JSON value that a schema describes. Raises `ValueError`, with the path of the field, where it
    differs.

    A schema is `str`, `float` (a finite number), `TEXT` (a string, or a number as it is written), a list with the
    schema of its items, `object` (anything, in a list), or an object with the schema of each field; a key that ends in
    `?` may be missing.

    >>> read_fields(parse_json('{"answer": 1e5, "id": 7}'), {"answer": TEXT, "label?": float})
    {'answer': '1e5'}
    """
    if schema is TEXT:
        if not isinstance(value, str):
            raise _wrong_type(name, "a string or a number", value)
        return value
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            keys = " and ".join(repr(key) for key in schema if not key.endswith("?"))
            raise _wrong_type(name, f"a JSON object with {keys}", value)
        result = {}
        for key, part in schema.items():
            field = key.removesuffix("?")
            if field in value:
                result[field] = read_fields(value[field], part, f"{name}.{field}" if name else field)
            elif field == key:
                where = f"{name!r} " if name else ""
                raise ValueError(f"{where}has no {key!r}; it has: {', '.join(map(repr, value)) or 'nothing'}")
        return result
    if isinstance(schema, list):
        if not isinstance(value, list):
            raise _wrong_type(name, "a list", value)
        return [read_fields(item, schema[0], f"{name}[{i}]") for i, item in enumerate(value)]
    if schema is float:
        if not isinstance(value, _Number) or not isfinite(float(value)):
            raise ValueError(f"{name!r} must be a finite number, not {value!r}")
        return float(value)
    if schema is str and (not isinstance(value, str) or isinstance(value, _Number)):
        raise _wrong_type(name, "a string", value)
    return value


def _wrong_type(name: str, expected: str, value: Any) -> ValueError:
    kind = "a number" if isinstance(value, _Number) else type(value).__name__
    return ValueError(f"{f'{name!r} ' if name else ''}must be {expected}, not {kind}")
