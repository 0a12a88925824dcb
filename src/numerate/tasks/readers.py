"""How a record of a file of text becomes a question with its answer: JSON lines, columns with tabs, two lines each."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from numerate.tasks.texts import Example


class Reader(ABC):
    """How one record of a file becomes a question with its answer. A frozen dataclass."""

    lines: ClassVar[int] = 1
    """How many lines a record has."""

    plain: ClassVar[bool] = False
    """Whether the characters of questions and answers are those of the file."""

    @abstractmethod
    def example(self, record: str) -> Example:
        """The question of a record. Raises `ValueError` that says what is wrong with it."""

    def head(self) -> int:
        """How many lines of a file come before its first record, such as the names of columns."""
        return 0


@dataclass(frozen=True)
class JSONLines(Reader):
    """A JSON object per line.

    >>> JSONLines().example('{"question": "1+1=", "answer": 2}')
    Example(question='1+1=', answer='2')
    """

    question: str = "question"
    answer: str = "answer"

    def example(self, record: str) -> Example:
        found = json_object(record)
        return Example(text_of(found, self.question), text_of(found, self.answer))


@dataclass(frozen=True)
class TabSeparated(Reader):
    """A line per question, with tabs between its columns, of which two are meant (from 0). Nothing is quoted. With
    `rest` what comes behind the last of the two belongs to it. The first `heads` lines are no questions.

    >>> TabSeparated(question=1, answer=0).example("7\\tWhy did it cross?")
    Example(question='Why did it cross?', answer='7')
    """

    question: int = 0
    answer: int = 1
    heads: int = 0
    rest: bool = False
    plain: ClassVar[bool] = True

    def head(self) -> int:
        return self.heads

    def example(self, record: str) -> Example:
        last = max(self.question, self.answer)
        columns = record.split("\t", last if self.rest else -1)
        if len(columns) <= last:
            raise ValueError(f"has {len(columns)} columns, and column {last + 1} is wanted; tabs stand between them")
        if not columns[self.question].strip():
            raise ValueError(f"has no question in column {self.question + 1}")
        return Example(columns[self.question].strip(), columns[self.answer].strip())


@dataclass(frozen=True)
class TwoLines(Reader):
    """The question on a line, its answer on the next: the files of the mathematics dataset.

    >>> TwoLines().example("What is 7 + 5?\\n12\\n")
    Example(question='What is 7 + 5?', answer='12')
    """

    lines: ClassVar[int] = 2
    plain: ClassVar[bool] = True

    def example(self, record: str) -> Example:
        question, _, answer = record.partition("\n")
        question, answer = question.strip(), answer.strip()
        if not question or not answer:
            raise ValueError(f"has no {'answer' if question else 'question'}; two lines each are right")
        return Example(question, answer)


def json_object(record: str) -> dict[str, Any]:
    """The JSON object of a line. Raises `ValueError` for anything else."""
    try:
        found = json.loads(record)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"is no JSON object but {type(found).__name__}")
    return found


def text_of(record: dict[str, Any], key: str) -> str:
    """A text or number of a JSON object as text. Raises `ValueError` where there is none."""
    if key not in record:
        raise ValueError(f"has no {key!r}; it has: {', '.join(map(repr, record)) or 'nothing'}")
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"has in {key!r} neither text nor number but {type(value).__name__}")
    return value if isinstance(value, str) else json.dumps(value)
