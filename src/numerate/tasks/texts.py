"""Questions with answers as lazily read texts, identified by their index in a source."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Example:
    """One question and its answer in free text.

    `metadata` are properties by name; for a task with axes, the size along each.

    >>> Example("abca>", "acba", {"letters": 4}).metadata["letters"]
    4
    """

    question: str
    answer: str
    metadata: Mapping[str, int] = field(default_factory=dict, compare=False)


class TextSource(ABC):
    """Questions with answers, read by index from 0 to `num_examples - 1`."""

    num_examples: int

    truncation_side: Literal["left", "right"] = "right"
    """The side on which too long questions are truncated."""

    few_shot_examples: "tuple[Example, ...]" = ()
    """Examples that stand before every question in a prompt."""

    @property
    def description(self) -> str:
        """The file, for messages."""
        return "in memory"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all its texts, or of what determines them, which names cache entries."""

    @abstractmethod
    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        """The questions with these indices. Raises `UserError`, with file and line, for one that cannot be read."""

    def location(self, row: int) -> str:
        """The file and line of a question, for messages."""
        return f"question {row}"


@dataclass(frozen=True, eq=False)
class InMemorySource(TextSource):
    """A few examples in memory."""

    examples: tuple[Example, ...]
    truncation_side: Literal["left", "right"] = "right"

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        return len(self.examples)

    @property
    def fingerprint(self) -> str:
        import hashlib

        joined = "".join(f"{len(text)}:{text}" for pair in self.examples for text in (pair.question, pair.answer))
        return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        return [self.examples[row] for row in rows.tolist()]


@dataclass(frozen=True, eq=False)
class FewShotSource(TextSource):
    """The questions of a source, each after the same examples."""

    source: TextSource
    few_shot_examples: tuple[Example, ...]

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        return self.source.num_examples

    @property
    def truncation_side(self) -> Literal["left", "right"]:  # type: ignore[override]
        return self.source.truncation_side

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def fingerprint(self) -> str:
        return f"{self.source.fingerprint} after {InMemorySource(self.few_shot_examples).fingerprint}"

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        return self.source.read_examples(rows)

    def location(self, row: int) -> str:
        return self.source.location(row)


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of a block of questions: of each, which of the `sources` it stands in and at which row.

    >>> texts = Texts.from_source(InMemorySource((Example("1+1=", "2"), Example("2+2=", "4"))), np.array([1, 0]))
    >>> [example.answer for example in texts.read_examples()]
    ['4', '2']
    """

    sources: tuple[TextSource, ...]
    source_indices: NDArray[np.int16]
    row_indices: NDArray[np.int64]

    @classmethod
    def from_source(cls, source: TextSource, rows: NDArray[np.int64]) -> "Texts":
        return cls((source,), np.zeros(len(rows), dtype=np.int16), rows)

    def __len__(self) -> int:
        return len(self.row_indices)

    def take(self, selection: "NDArray[np.int64] | NDArray[np.bool_] | slice") -> "Texts":
        return Texts(self.sources, self.source_indices[selection], self.row_indices[selection])

    @staticmethod
    def concatenate(parts: "Sequence[Texts]") -> "Texts":
        """Concatenates texts; common sources are kept once."""
        sources = tuple(dict.fromkeys(source for part in parts for source in part.sources))
        source_indices = [
            np.array([sources.index(source) for source in part.sources], dtype=np.int16)[part.source_indices]
            for part in parts
        ]
        return Texts(sources, np.concatenate(source_indices), np.concatenate([part.row_indices for part in parts]))

    def read_examples(self) -> list[Example]:
        """Question and answer of each, in order."""
        examples: list[Example | None] = [None] * len(self)
        for source_index, source in enumerate(self.sources):
            positions = np.flatnonzero(self.source_indices == source_index)
            for position, pair in zip(
                positions.tolist(), source.read_examples(self.row_indices[positions]), strict=True
            ):
                examples[position] = pair
        return [pair for pair in examples if pair is not None]
