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
    def sizes(self) -> NDArray[np.int64]:
        """How many bytes each record has in its file: its length, nearly."""

    @abstractmethod
    def characters(self) -> frozenset[str]:
        """Every character of questions and answers, perhaps with more."""

    @abstractmethod
    def matching(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        """Of each record, whether its question is one of these."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""

    @property
    def skipped(self) -> int:
        """How many records could not be read and are left out."""
        return 0


@dataclass(frozen=True, eq=False)
class WholeFile(FileSource):
    """The questions of a file that is read as a whole, each with the line where it stands."""

    path: Path
    examples: tuple[Example, ...]
    lines: tuple[int, ...]
    hash: str
    bad: int = 0

    @property
    def fingerprint(self) -> str:
        return self.hash

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.examples)

    @property
    def place(self) -> str:
        return str(self.path)

    def pairs(self, rows: NDArray[np.int64]) -> list[Example]:
        return [self.examples[row] for row in rows.tolist()]

    def where(self, row: int) -> str:
        return f"{self.path}, line {self.lines[row]}"

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(one.question) + len(one.answer) for one in self.examples], dtype=np.int64)

    def characters(self) -> frozenset[str]:
        return characters_of(self.examples)

    def matching(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        return np.array([one.question in questions for one in self.examples], dtype=np.bool_)

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def skipped(self) -> int:
        return self.bad


class JoinedSources(FileSource):
    """Several sources under one index, one after the other; what is too long of them is cut as `cut` says."""

    def __init__(self, sources: Sequence[FileSource], cut: Literal["left", "right"] = "right") -> None:
        self.sources, self.cut = tuple(sources), cut
        self.ends = np.cumsum([source.count for source in sources], dtype=np.int64)
        self.count = int(self.ends[-1]) if len(self.ends) else 0

    @property
    def begins(self) -> NDArray[np.int64]:
        """The index of the first record of each source."""
        return self.ends - np.array([source.count for source in self.sources], dtype=np.int64)

    @property
    def place(self) -> str:
        return ", ".join(source.place for source in self.sources)

    def pairs(self, rows: NDArray[np.int64]) -> list[Example]:
        which = np.searchsorted(self.ends, rows, side="right")
        found: dict[int, Example] = {}
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            read = self.sources[number].pairs(rows[places] - int(self.begins[number]))
            found.update(zip(places.tolist(), read, strict=True))
        return [found[place] for place in range(len(rows))]

    def where(self, row: int) -> str:
        number = int(np.searchsorted(self.ends, row, side="right"))
        return self.sources[number].where(row - int(self.begins[number]))

    @cached_property
    def fingerprint(self) -> str:
        return of_hashes([source.fingerprint for source in self.sources])

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.concatenate([source.sizes for source in self.sources])

    def characters(self) -> frozenset[str]:
        return frozenset().union(*(source.characters() for source in self.sources))

    def matching(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        return np.concatenate([source.matching(questions) for source in self.sources])

    def files(self) -> tuple[Path, ...]:
        return tuple(path for source in self.sources for path in source.files())

    @property
    def skipped(self) -> int:
        return sum(source.skipped for source in self.sources)


def of_hashes(parts: Iterable[str]) -> str:
    """One hash of several texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def characters_of(examples: Iterable[Example]) -> frozenset[str]:
    found: set[str] = set()
    for one in examples:
        found.update(one.question, one.answer)
    return frozenset(found)
