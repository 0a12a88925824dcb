"""How a record of a file of text becomes a question with its answer: JSON lines, columns with tabs, two lines each."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, ClassVar, Self

from numerate.config import Spec
from numerate.tasks.texts import Example

MAX_CHARACTERS = 1 << 16
"""The most characters of a question with its answer, or of a row: more means that a file is read in the wrong way."""

MAX_RECORD_BYTES = 1 << 22
"""The most bytes of a record of a file, unused fields included."""

BYTE_ORDER_MARK = "\ufeff"
"""The byte order mark."""

SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which JSON can encode but text cannot contain."""


def check_example(example: Example, *, requires_answer: bool = True) -> Example:
    """A question with its answer. Raises `ValueError` for an empty question or answer (unless not `requires_answer`),
    more than 65,536 characters, NUL, or half of a surrogate pair."""
    if not example.question.strip():
        raise ValueError("has an empty question")
    if requires_answer and not example.answer.strip():
        raise ValueError("has an empty answer")
    check_length(len(example.question) + len(example.answer), "question with its answer")
    for text in (example.question, example.answer):
        if "\0" in text:
            raise ValueError("contains a NUL character; is the file damaged?")
        if not text.isascii() and SURROGATES.search(text):
            raise ValueError("has half of a surrogate pair, which is no character")
    return example


def check_length(num_characters: int, what: str) -> None:
    """Raises `ValueError` for what is too long."""
    if num_characters > MAX_CHARACTERS:
        raise ValueError(f"has {num_characters:,} characters; a {what} has at most {MAX_CHARACTERS:,}")


def decode_record(record: bytes) -> str:
    """The text of a record. Raises `ValueError` for one that is too long, or no text."""
    if len(record) > MAX_RECORD_BYTES:
        raise ValueError(f"has {len(record):,} bytes; a record has at most {MAX_RECORD_BYTES:,}")
    return decode_utf8(record)


def decode_utf8(content: bytes) -> str:
    """The text of bytes. Raises `ValueError` where they are none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not valid UTF-8 ({error.reason})") from error


class RecordReader(Spec, ABC):
    """How one record of a file becomes a question with its answer. A frozen dataclass."""

    lines_per_record: ClassVar[int] = 1
    """How many lines a record has."""

    preserves_characters: ClassVar[bool] = False
    """Whether questions and answers have the same characters as the file."""

    requires_answer: bool = True
    """Whether every question has an answer; in MultiRC it may be empty."""

    @abstractmethod
    def example(self, record: str) -> Example:
        """The question of a record. Raises `ValueError` that says what is wrong with it."""

    def num_header_lines(self) -> int:
        """How many lines of a file come before its first record, such as the names of columns."""
        return 0


@dataclass(frozen=True)
class JSONLines(RecordReader):
    """A JSON object per line.

    >>> JSONLines().example('{"question": "1+1=", "answer": 2}')
    Example(question='1+1=', answer='2', metadata={})
    """

    question: str = "question"
    answer: str = "answer"
    answered: bool = True

    def example(self, record: str) -> Example:
        record_object = parse_json_object(record)
        return Example(text_field(record_object, self.question), text_field(record_object, self.answer))


@dataclass(frozen=True)
class TabSeparated(RecordReader):
    """A line per question, with tabs between its columns, of which two are meant (from 0). Nothing is quoted. With
    `rest` what comes behind the last of the two belongs to it. The first `heads` lines are no questions. `columns` is
    how many there are at most; None: any number.

    >>> TabSeparated(question=1, answer=0).example("7\\tWhy did it cross?")
    Example(question='Why did it cross?', answer='7', metadata={})
    """

    question: int = 0
    answer: int = 1
    heads: int = 0
    rest: bool = False
    columns: int | None = None
    preserves_characters: ClassVar[bool] = True

    def num_header_lines(self) -> int:
        return self.heads

    def example(self, record: str) -> Example:
        last = max(self.question, self.answer)
        columns = record.split("\t", last if self.rest else -1)
        if len(columns) <= last:
            raise ValueError(f"has {len(columns)} columns, and column {last + 1} is wanted; tabs stand between them")
        if self.columns is not None and len(columns) > self.columns:
            raise ValueError(f"has {len(columns)} columns, and the first line has {self.columns}; is a tab in a text?")
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
        question, _, answer = record.partition("\n")
        question, answer = question.strip(), answer.strip()
        if not question or not answer:
            raise ValueError(f"has no {'answer' if question else 'question'}; each record must be two lines")
        return Example(question, answer)


class _InvalidJSONValue(ValueError):
    """Valid JSON with a value that is not accepted."""


class _JSONInteger(int):
    """A whole number of a JSON text, as it is written."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            number = cls(text)
        except ValueError as error:
            raise _InvalidJSONValue(
                f"has a number of {len(text):,} digits, which is read as text alone, in quotes"
            ) from error
        number.text = text
        return number


class _JSONFloat(float):
    """A number of a JSON text with a point or a power of ten, as it is written."""

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
        raise _InvalidJSONValue(
            f"has {next(name for name in names if names.count(name) > 1)!r} twice; keys must be unique"
        )
    return result


JSON_DECODER = json.JSONDecoder(
    parse_int=_JSONInteger.parse,
    parse_float=_JSONFloat.parse,
    parse_constant=_reject_constant,
    object_pairs_hook=_build_unique_object,
)
"""Reads JSON whose numbers know how they are written. Raises `ValueError` for NaN, Infinity, numbers beyond floats and
whole ones of thousands of digits, and for keys that come twice."""


def parse_json(text: str) -> Any:
    """What a JSON text says. Raises `ValueError` as `JSON` does, and for what is no JSON."""
    try:
        return JSON_DECODER.decode(text)
    except _InvalidJSONValue:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON ({error})") from error


def parse_json_object(record: str) -> dict[str, Any]:
    """The JSON object of a line. Raises `ValueError` for anything else."""
    value = parse_json(record)
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, not {json_type_name(value)}")
    return value


def is_json_object(text: str) -> bool:
    """Whether a text is an object of JSON, also one that `parse_json_object` refuses for what it holds.

    >>> [is_json_object(text) for text in ('{"question": NaN}', "[1]", "[" * 100_000)]
    [True, False, False]
    """
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def json_type_name(value: Any) -> str:
    """What a value of JSON is called."""
    return {_JSONInteger: "int", _JSONFloat: "float"}.get(type(value), type(value).__name__)


def text_field(record: Any, key: str) -> str:
    """A text of a JSON object, or a number as it is written. Raises `ValueError` where there is none.

    >>> text_field(parse_json_object('{"answer": 1e5}'), "answer")
    '1e5'
    """
    if not isinstance(record, dict):
        raise ValueError(f"must be an object with {key!r}, not {json_type_name(record)}")
    if key not in record:
        raise ValueError(f"has no {key!r}; it has: {', '.join(map(repr, record)) or 'nothing'}")
    value = record[key]
    if not isinstance(value, str | _JSONInteger | _JSONFloat):
        raise ValueError(f"{key!r} must be a string or a number, not {json_type_name(value)}")
    return value if isinstance(value, str) else value.text
