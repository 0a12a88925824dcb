"""Questions with answers that come from files: what every such source tells, and several files under one index."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.texts import Example, TextSource


class FileSource(TextSource):
    """Texts of a file, or of several, that also know how much there is of each, and where."""

    @property
    @abstractmethod
    def record_sizes(self) -> NDArray[np.int64]:
        """How many bytes each record has in its file: its length, nearly."""

    @abstractmethod
    def used_characters(self) -> frozenset[str]:
        """Every character of questions and answers, perhaps with more."""

    @abstractmethod
    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        """Of each record, whether its question is one of these."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""

    @property
    def num_skipped(self) -> int:
        """How many records could not be read and are left out."""
        return 0


@dataclass(frozen=True, eq=False)
class ParsedFile(FileSource):
    """The questions of a file that is read as a whole, each with the line where it stands."""

    path: Path
    examples: tuple[Example, ...]
    line_numbers: tuple[int, ...]
    content_hash: str
    num_invalid: int = 0

    @property
    def fingerprint(self) -> str:
        return self.content_hash

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        return len(self.examples)

    @property
    def description(self) -> str:
        return str(self.path)

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        return [self.examples[row] for row in rows.tolist()]

    def location(self, row: int) -> str:
        return f"{self.path}, line {self.line_numbers[row]}"

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        return np.array([len(one.question) + len(one.answer) for one in self.examples], dtype=np.int64)

    def used_characters(self) -> frozenset[str]:
        return collect_characters(self.examples)

    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        return np.array([one.question in questions for one in self.examples], dtype=np.bool_)

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def num_skipped(self) -> int:
        return self.num_invalid


class ConcatenatedSources(FileSource):
    """Several sources under one index, one after the other; what is too long of them is cut as `truncation_side`
    says."""

    def __init__(self, sources: Sequence[FileSource], truncation_side: Literal["left", "right"] = "right") -> None:
        self.sources, self.truncation_side = tuple(sources), truncation_side
        self.source_ends = np.cumsum([source.num_examples for source in sources], dtype=np.int64)
        self.num_examples = int(self.source_ends[-1]) if len(self.source_ends) else 0

    @property
    def source_starts(self) -> NDArray[np.int64]:
        """The index of the first record of each source."""
        return self.source_ends - np.array([source.num_examples for source in self.sources], dtype=np.int64)

    @property
    def description(self) -> str:
        return ", ".join(source.description for source in self.sources)

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        source_index = np.searchsorted(self.source_ends, rows, side="right")
        example_at: dict[int, Example] = {}
        for number in np.unique(source_index).tolist():
            positions = np.flatnonzero(source_index == number)
            examples = self.sources[number].read_examples(rows[positions] - int(self.source_starts[number]))
            example_at.update(zip(positions.tolist(), examples, strict=True))
        return [example_at[place] for place in range(len(rows))]

    def location(self, row: int) -> str:
        number = int(np.searchsorted(self.source_ends, row, side="right"))
        return self.sources[number].location(row - int(self.source_starts[number]))

    @cached_property
    def fingerprint(self) -> str:
        return combine_hashes([source.fingerprint for source in self.sources])

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        return np.concatenate([source.record_sizes for source in self.sources])

    def used_characters(self) -> frozenset[str]:
        return frozenset().union(*(source.used_characters() for source in self.sources))

    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        return np.concatenate([source.question_mask(questions) for source in self.sources])

    def files(self) -> tuple[Path, ...]:
        return tuple(path for source in self.sources for path in source.files())

    @property
    def num_skipped(self) -> int:
        return sum(source.num_skipped for source in self.sources)


def combine_hashes(parts: Iterable[str]) -> str:
    """One hash of several texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def collect_characters(examples: Iterable[Example]) -> frozenset[str]:
    characters: set[str] = set()
    for one in examples:
        characters.update(one.question, one.answer)
    return frozenset(characters)
