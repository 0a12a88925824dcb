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

    `facts` are properties by name; for a task with axes, the size along each.

    >>> Example("abca>", "acba", {"letters": 4}).facts["letters"]
    4
    """

    question: str
    answer: str
    facts: Mapping[str, int] = field(default_factory=dict, compare=False)


class TextSource(ABC):
    """Questions with answers, read by index from 0 to `count - 1`."""

    count: int

    cut: Literal["left", "right"] = "right"
    """The side on which too long questions are truncated."""

    @property
    def place(self) -> str:
        """The file, for messages."""
        return "in memory"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all its texts, or of what determines them, which names cache entries."""

    @abstractmethod
    def pairs(self, rows: NDArray[np.int64]) -> list[Example]:
        """The questions with these indices. Raises `UserError`, with file and line, for one that cannot be read."""

    def where(self, row: int) -> str:
        """The file and line of a question, for messages."""
        return f"question {row}"


@dataclass(frozen=True, eq=False)
class Listed(TextSource):
    """A few examples in memory."""

    examples: tuple[Example, ...]
    cut: Literal["left", "right"] = "right"

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.examples)

    @property
    def fingerprint(self) -> str:
        import hashlib

        whole = "".join(f"{len(text)}:{text}" for pair in self.examples for text in (pair.question, pair.answer))
        return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def pairs(self, rows: NDArray[np.int64]) -> list[Example]:
        return [self.examples[row] for row in rows.tolist()]


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of a block of questions: of each, which of the `sources` it stands in and at which row.

    >>> texts = Texts.of(Listed((Example("1+1=", "2"), Example("2+2=", "4"))), np.array([1, 0]))
    >>> [pair.answer for pair in texts.pairs()]
    ['4', '2']
    """

    sources: tuple[TextSource, ...]
    source: NDArray[np.int16]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, source: TextSource, rows: NDArray[np.int64]) -> "Texts":
        return cls((source,), np.zeros(len(rows), dtype=np.int16), rows)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: "NDArray[np.int64] | NDArray[np.bool_] | slice") -> "Texts":
        return Texts(self.sources, self.source[chosen], self.rows[chosen])

    @staticmethod
    def concatenate(parts: "Sequence[Texts]") -> "Texts":
        """Concatenates texts; common sources are kept once."""
        sources = tuple(dict.fromkeys(source for part in parts for source in part.sources))
        places = [
            np.array([sources.index(source) for source in part.sources], dtype=np.int16)[part.source] for part in parts
        ]
        return Texts(sources, np.concatenate(places), np.concatenate([part.rows for part in parts]))

    def pairs(self) -> list[Example]:
        """Question and answer of each, in order."""
        found: list[Example | None] = [None] * len(self)
        for number, source in enumerate(self.sources):
            chosen = np.flatnonzero(self.source == number)
            for place, pair in zip(chosen.tolist(), source.pairs(self.rows[chosen]), strict=True):
                found[place] = pair
        return [pair for pair in found if pair is not None]
