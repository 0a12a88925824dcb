"""Questions with answers that come from files: what every such source tells, and several files under one index."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.texts import Example, TextSource
from numerate.text.tasks.ragged_rows import PartIndex


class FileSource(TextSource):
    """Texts of a file, or of several, that also know how much there is of each, and where."""

    num_skipped: int = 0
    """Number of records that could not be read and are left out."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that it reads."""

    def _all_examples(self) -> list[Example]:
        return self.read_examples(np.arange(self.num_examples))

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        """Approximate number of bytes of each record."""
        return np.array([len(one.question) + len(one.answer) for one in self._all_examples()], dtype=np.int64)

    def used_characters(self) -> frozenset[str]:
        """Every character of questions and answers, perhaps with more."""
        return frozenset().union(*(part for one in self._all_examples() for part in (one.question, one.answer)))

    def question_mask(self, questions: frozenset[str]) -> NDArray[np.bool_]:
        """Of each record, whether its question is one of these."""
        return np.array([one.question in questions for one in self._all_examples()], dtype=np.bool_)


class ParsedFile(FileSource):
    """The questions of a file that is read as a whole, each with the line where it stands."""

    def __init__(
        self, path: Path, examples: Sequence[tuple[int, Example]], content_hash: str, num_skipped: int
    ) -> None:
        self.path, self._examples, self._content_hash = path, examples, content_hash
        self.num_examples, self.num_skipped = len(examples), num_skipped

    @property
    def fingerprint(self) -> str:
        return self._content_hash

    @property
    def description(self) -> str:
        return str(self.path)

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        return [self._examples[row][1] for row in rows.tolist()]

    def location(self, row: int) -> str:
        return f"{self.path}, line {self._examples[row][0]}"

    def files(self) -> tuple[Path, ...]:
        return (self.path,)


class ConcatenatedSources(FileSource):
    """Several sources under one index, one after the other; what is too long of them is cut as `truncation_side`
    says."""

    def __init__(self, sources: Sequence[FileSource], truncation_side: Literal["left", "right"] = "right") -> None:
        self.sources, self.truncation_side = tuple(sources), truncation_side
        self._index = PartIndex(source.num_examples for source in sources)
        self.num_examples = self._index.count
        self.num_skipped = sum(source.num_skipped for source in sources)

    @property
    def description(self) -> str:
        return ", ".join(source.description for source in self.sources)

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        example_at: dict[int, Example] = {}
        for source, positions, local in self._index.groups(rows):
            example_at.update(zip(positions.tolist(), self.sources[source].read_examples(local), strict=True))
        return [example_at[position] for position in range(len(rows))]

    def location(self, row: int) -> str:
        source, local = self._index.locate(row)
        return self.sources[source].location(local)

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


def combine_hashes(parts: Iterable[str]) -> str:
    """One hash of several texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
