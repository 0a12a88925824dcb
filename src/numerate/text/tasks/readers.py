"""How a record of a text file becomes a question with its answer: JSON lines, tab-separated columns, pairs of lines."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, ClassVar, Self

from numerate.config import Spec
from numerate.tasks.texts import Example
from numerate.text.tasks.mapped_lines import MappedLines

MAX_CHARACTERS = 1 << 16
"""Maximum number of characters of a question with its answer, or of a row: a longer one means a wrong format."""

MAX_RECORD_BYTES = 1 << 22
"""Maximum number of bytes of a record, unused fields included."""

SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which JSON can encode but text cannot contain."""

TEXT = str | float
"""In a schema: a string, or a number as it is written."""


def check_example(example: Example, *, requires_answer: bool = True) -> Example:
    """The same example. Raises `ValueError` for an empty question or answer (unless not `requires_answer`), more than
    65,536 characters, NUL, or half of a surrogate pair."""
    question, answer = example.question, example.answer
    num_characters = len(question) + len(answer)
    if not question.strip() or (requires_answer and not answer.strip()):
        raise ValueError(f"has an empty {'answer' if question.strip() else 'question'}")
    if num_characters > MAX_CHARACTERS:
        raise ValueError(
            f"has {num_characters:,} characters; a question with its answer has at most {MAX_CHARACTERS:,}"
        )
    if "\0" in question or "\0" in answer:
        raise ValueError("contains a NUL character; is the file damaged?")
    is_ascii = question.isascii() and answer.isascii()
    if not is_ascii and (SURROGATES.search(question) or SURROGATES.search(answer)):
        raise ValueError("has half of a surrogate pair, which is no character")
    return example


def decode_utf8(record: bytes, max_bytes: int | None = MAX_RECORD_BYTES) -> str:
    """The text of a record. Raises `ValueError` for one that is too long, or not UTF-8."""
    if max_bytes is not None and len(record) > max_bytes:
        raise ValueError(f"has {len(record):,} bytes; a record has at most {max_bytes:,}")
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not valid UTF-8 ({error.reason})") from error


class ExampleReader(Spec, ABC):
    """How a file becomes questions with their answers. A frozen dataclass."""

    preserves_characters: ClassVar[bool] = False
    """Whether questions and answers have the same characters as the file."""

    requires_answer: bool = True
    """Whether every question has an answer; in MultiRC it may be empty."""

    @abstractmethod
    def examples(self, lines: MappedLines) -> Iterator[tuple[int, Example | ValueError]]:
        """Each question of a file with the number of its line, from 1 on, or what is wrong in its place."""


class RecordReader(ExampleReader):
    """How one record of a file becomes a question with its answer. A frozen dataclass."""

    lines_per_record: ClassVar[int] = 1

    num_header_lines: int = 0
    """Number of lines before the first record, such as the names of columns."""

    @abstractmethod
    def example(self, record: str) -> Example:
        """The question of a record. Raises `ValueError` that says what is wrong with it."""

    def examples(self, lines: MappedLines) -> Iterator[tuple[int, Example | ValueError]]:
        count, step = len(lines), self.lines_per_record
        if step > 1:
            while count and not lines.read(count - 1).strip():
                count -= 1
            if count % step:
                yield count, ValueError(f"is incomplete: each record must have {step} lines")
        for line, record in lines.records(self.num_header_lines, count - count % step, step):
            if step == 1 and len(record) < 3 and not record.strip():
                continue
            try:
                example = self.example(decode_utf8(record).rstrip("\r\n"))
            except ValueError as error:
                yield line + 1, error
            else:
                yield line + 1, example


@dataclass(frozen=True)
class JSONLines(RecordReader):
    """A JSON object per line.

    >>> JSONLines().example('{"question": "1+1=", "answer": 2}')
    Example(question='1+1=', answer='2', metadata={})
    """

    question: str = "question"
    answer: str = "answer"
    requires_answer: bool = True

    def example(self, record: str) -> Example:
        fields = read_fields(parse_json(record), {self.question: TEXT, self.answer: TEXT})
        return Example(fields[self.question], fields[self.answer])


@dataclass(frozen=True)
class TabSeparated(RecordReader):
    """A line of tab-separated columns, without quotes; `question` and `answer` are the indices of two, from 0.

    With `rest` the last of the two extends to the end of the line. `num_columns` is the most columns of a line; None:
    any number.

    >>> TabSeparated(question=1, answer=0).example("7\\tWhy did it cross?")
    Example(question='Why did it cross?', answer='7', metadata={})
    """

    question: int = 0
    answer: int = 1
    num_header_lines: int = 0
    rest: bool = False
    num_columns: int | None = None
    preserves_characters: ClassVar[bool] = True

    def example(self, record: str) -> Example:
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
        return Example(columns[self.question].strip(), columns[self.answer].strip())


@dataclass(frozen=True)
class TwoLines(RecordReader):
    """The question on a line, its answer on the next: the files of the mathematics dataset.

    >>> TwoLines().example("What is 7 + 5?\\n12\\n")
    Example(question='What is 7 + 5?', answer='12', metadata={})
    """

    lines_per_record: ClassVar[int] = 2
    preserves_characters: ClassVar[bool] = True

    def example(self, record: str) -> Example:
        question, _, answer = map(str.strip, record.partition("\n"))
        if not question or not answer:
            raise ValueError(f"has no {'answer' if question else 'question'}; each record must be two lines")
        return Example(question, answer)


# JSON ----------------------------------------------------------------------------------------------------------------


class _InvalidJSONValue(ValueError):
    """Valid JSON with a value that is not accepted."""


class _JSONInteger(int):
    """A whole number of a JSON text, with the characters it was written in."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            number = cls(text)
        except ValueError as error:
            raise _InvalidJSONValue(f"has a number of {len(text):,} digits; write it as a string, in quotes") from error
        number.text = text
        return number


class _JSONFloat(float):
    """A number of a JSON text with a point or an exponent, with the characters it was written in."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        number = cls(text)
        if isinf(number):
            raise _InvalidJSONValue(f"has {text[:20]}, which is too large for a float; write it as a string, in quotes")
        number.text = text
        return number


def _reject_constant(name: str) -> float:
    raise _InvalidJSONValue(f"has {name}, which is not a JSON number; write it as a string, in quotes")


def _build_unique_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _InvalidJSONValue(f"has {repeated!r} twice; keys must be unique")
    return result


JSON_DECODER = json.JSONDecoder(
    parse_int=_JSONInteger.parse,
    parse_float=_JSONFloat.parse,
    parse_constant=_reject_constant,
    object_pairs_hook=_build_unique_object,
)
"""Reads JSON whose numbers keep their original characters. Raises `ValueError` for NaN, Infinity, numbers beyond
floats, integers of thousands of digits, and repeated keys."""


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError` for invalid JSON, and as `JSON_DECODER` does."""
    try:
        return JSON_DECODER.decode(text)
    except _InvalidJSONValue:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON ({error})") from error


def is_json_object(text: str) -> bool:
    """Whether a text is an object of JSON, with any values.

    >>> [is_json_object(text) for text in ('{"question": NaN}', "[1]", "[" * 100_000)]
    [True, False, False]
    """
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def read_fields(value: Any, schema: Any, name: str = "") -> Any:
    """The part of a JSON value that a schema describes. Raises `ValueError`, with the path of the field, where it
    differs.

    A schema is `str`, `float` (a finite number), `TEXT` (a string, or a number as it is written), `object` (anything),
    a list with the schema of its items, or an object with the schema of each field; a key that ends in `?` may be
    missing.

    >>> read_fields(parse_json('{"answer": 1e5, "id": 7}'), {"answer": TEXT, "label?": float})
    {'answer': '1e5'}
    """
    where = f"{name!r} " if name else ""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            keys = " and ".join(repr(key) for key in schema if not key.endswith("?"))
            raise ValueError(f"{where}must be a JSON object with {keys}, not {_type_name(value)}")
        result = {}
        for key, part in schema.items():
            field, is_optional = key.removesuffix("?"), key.endswith("?")
            if field in value:
                result[field] = read_fields(value[field], part, f"{name}.{field}" if name else field)
            elif not is_optional:
                raise ValueError(f"{where}has no {field!r}; it has: {', '.join(map(repr, value)) or 'nothing'}")
        return result
    if isinstance(schema, list):
        if not isinstance(value, list):
            raise ValueError(f"{where}must be a list, not {_type_name(value)}")
        return [read_fields(item, schema[0], f"{name}[{i}]") for i, item in enumerate(value)]
    if schema is float and not isinstance(value, _JSONInteger | _JSONFloat):
        raise ValueError(f"{where}must be a finite number, not {value!r}")
    if schema is str and not isinstance(value, str):
        raise ValueError(f"{where}must be a string, not {_type_name(value)}")
    if schema == TEXT and not isinstance(value, str | _JSONInteger | _JSONFloat):
        raise ValueError(f"{where}must be a string or a number, not {_type_name(value)}")
    return value.text if schema == TEXT and not isinstance(value, str) else value


def _type_name(value: Any) -> str:
    return {_JSONInteger: "int", _JSONFloat: "float"}.get(type(value), type(value).__name__)
