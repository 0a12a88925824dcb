"""The base of tasks over text files: splits with files of their own, and named parts.

A part is what a test is divided into: a module of the mathematics dataset, a further test set. Parts have numbers from
1 on, which are the sizes of the task's axis; training is on the first of them, so that reports say in distribution of
those and OOD test of the others.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span
from numerate.errors import UserError, did_you_mean
from numerate.tasks.contents import named
from numerate.tasks.counter_rng import CounterRNG, key
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task
from numerate.tasks.texts import Example, Listed
from numerate.text.tasks.file_sources import FileSource, JoinedSources
from numerate.text.tasks.row_orders import chances, in_order, shuffled

Cut = Literal["left", "right"]
CUTS: tuple[Cut, ...] = ("left", "right")

_WHOLE = 1 << 16
_LONGEST = 4


@dataclass(frozen=True, eq=False)
class Stock:
    """The questions of a split: rows of a source, and the number of the part that each belongs to."""

    source: FileSource
    rows: NDArray[np.uint32]
    part: NDArray[np.int16]

    @classmethod
    def of(cls, source: FileSource, part: int = 1, cut: Cut = "right") -> "Stock":
        """All rows of a source, as one part; `cut` is what goes of questions that are too long."""
        source = source if source.cut == cut else JoinedSources((source,), cut)
        return cls(source, np.arange(source.count, dtype=np.uint32), np.full(source.count, part, dtype=np.int16))

    @classmethod
    def of_parts(cls, sources: Sequence[FileSource], parts: Sequence[int] | None = None, cut: Cut = "right") -> "Stock":
        """All rows of several sources, each with its part; by default one part per source."""
        joined = JoinedSources(sources, cut)
        numbers = np.arange(1, len(sources) + 1) if parts is None else np.array(parts)
        part = np.repeat(numbers.astype(np.int16), [source.count for source in sources])
        return cls(joined, np.arange(joined.count, dtype=np.uint32), part)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Stock":
        return Stock(self.source, self.rows[chosen], self.part[chosen])

    def within(self, parts: Span) -> "Stock":
        """The rows of these parts."""
        mine = (self.part >= parts.low) & (self.part <= parts.high)
        return self if mine.all() else self.take(mine)

    def questions(self, places: NDArray[np.int64], axis: str) -> Questions:
        """The questions at these places of it."""
        facts = {axis: self.part[places].astype(np.int64)}
        return Questions.of_source(self.source, self.rows[places].astype(np.int64), facts)

    def texts(self) -> list[str]:
        """The text of every question."""
        return [pair.question for pair in self.source.pairs(self.rows.astype(np.int64))]

    def once(self) -> "Stock":
        """Each question once, where it comes first."""
        first = {text: place for place, text in reversed([*enumerate(self.texts())])}
        return self if len(first) == len(self) else self.take(np.array(sorted(first.values()), dtype=np.int64))

    def longest(self) -> NDArray[np.int64]:
        """The places of the longest rows in their files."""
        sizes = self.source.sizes[self.rows]
        most = min(_LONGEST, len(sizes))
        return np.argpartition(sizes, len(sizes) - most)[len(sizes) - most :]


@dataclass(frozen=True, eq=False)
class Holdings:
    """What the files of a task hold: the name of each part, how many of the first are trained on, and the splits.

    `left_out` is how many rows training has not, as their questions are in another split; `skipped` how many could not
    be read. `emptied` says of a split that has none left for this reason which one has them.
    """

    names: tuple[str, ...]
    trained: int
    train: Stock
    development: Stock
    test: Stock
    left_out: int = 0
    emptied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def apart(
        cls, names: Sequence[str], trained: int, train: Stock, development: Stock, test: Stock, repeats: bool
    ) -> "Holdings":
        """Splits that have no question in common: development has each once, and no question of a test; training has
        none of either. With `repeats` they stay as they are."""
        if repeats:
            return cls(tuple(names), trained, train, development, test)
        tested = frozenset(test.texts())
        once = development.once()
        kept = once.take(np.array([text not in tested for text in once.texts()], dtype=np.bool_))
        developed = frozenset(kept.texts())
        taken = train.source.matching(tested | developed)[train.rows]
        emptied = {}
        if len(once) and not len(kept):
            emptied["development"] = "the test"
        if len(train) and taken.all():
            alone = [
                name
                for name, texts in (("development", developed), ("the test", tested))
                if train.source.matching(texts)[train.rows].all()
            ]
            emptied["train"] = alone[0] if alone else "development or the test"
        return cls(tuple(names), trained, train.take(~taken), kept, test, int(taken.sum()), emptied)

    def split(self, name: str) -> Stock:
        return {"train": self.train, "development": self.development, "test": self.test}[name]

    @property
    def sources(self) -> list[FileSource]:
        """What the splits are read from, each once."""
        return list({id(stock.source): stock.source for stock in (self.train, self.development, self.test)}.values())

    @property
    def skipped(self) -> int:
        """How many records of the files could not be read and are left out."""
        return sum(source.skipped for source in self.sources)

    def told(self) -> str:
        """The sizes of the splits, for people."""
        parts = [f"train {len(self.train):,}", f"development {len(self.development):,}"]
        for number, name in enumerate(self.names, start=1):
            parts.append(f"test {name} {int((self.test.part == number).sum()):,}")
        if self.left_out:
            parts.append(f"{self.left_out:,} rows left out of training, whose questions are in another split")
        if self.skipped:
            parts.append(f"{self.skipped:,} records skipped, which cannot be read")
        return ", ".join(parts)


class TextTask(Task):
    """Questions of files, every row once in each pass, in an order that is a function of (seed, split, pass).

    A task gives `holdings`, and a field of the name `axis` that pins the part. A part that is tested alone trains on
    what all the others train on. No question of a test or of development is trained on.
    """

    endless: ClassVar[bool] = False

    axis: ClassVar[str] = "test"
    """The field whose sizes are the numbers of the parts."""

    @property
    @abstractmethod
    def holdings(self) -> Holdings:
        """What the files hold, read once. Raises `UserError` where they are not there, and says how to get them."""

    @property
    def _parts(self) -> Span | None:
        """The parts that this task is pinned to."""
        pinned: int | Span | None = getattr(self, self.axis)
        if pinned is None:
            return None
        names, span = self.holdings.names, Span.of(pinned)
        if span.low < 1 or span.high > len(names):
            listing = ", ".join(f"{number} {name}" for number, name in enumerate(names, start=1))
            raise UserError(f"{self.axis}: there is no {pinned}; there are: {listing}")
        return span

    def _stock(self, split: str) -> Stock:
        holdings, parts = self.holdings, self._parts
        stock = holdings.split(split)
        if split == "test":
            return stock.within(parts or Span(1, holdings.trained))
        mine = stock if parts is None else stock.within(parts)
        found = mine if len(mine) else stock
        if not len(found) and split in holdings.emptied:
            raise UserError(
                f"split: {type(self).__name__} has no question left for {split!r}: all of it is in "
                f"{holdings.emptied[split]} too; other files are right, or keep_duplicates=true, which keeps such rows"
            )
        if not len(found):
            raise UserError(f"split: {type(self).__name__} has no question for {split!r}; its files have too few")
        return found

    def _questions(self, split: str, index: NDArray[np.int64], name: tuple[object, ...]) -> Questions:
        stock = self._stock(split)
        return stock.questions(in_order(index, len(stock), name), self.axis)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        """Rows that training has of the part pinned, or where it has none, of its test: for a look, not to train on."""
        parts = self._parts
        tested_alone = parts is not None and not len(self.holdings.train.within(parts))
        return self._questions("test" if tested_alone else "train", index, ("draw", draws.key))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """Examples `start` .. `start + count - 1` of a split: every row of it once, then all again in another order."""
        if split not in SPLITS:
            raise UserError(
                f"split: there is no {split!r}; there are: {', '.join(SPLITS)}." + did_you_mean(split, SPLITS)
            )
        if split == "beyond-development":
            raise UserError("split: files have no OOD validation ('beyond-development')")
        index = np.arange(start, start + count)
        return replace(self._questions(split, index, ("texts", split, seed)), chance=chances(index, split, seed))

    def whole(self, split: str = "test") -> Questions | None:
        """Every row of a split once, in the order of the files; None for more than 65,536."""
        if split == "beyond-development":
            return None
        stock = self._stock(split)
        return None if len(stock) > _WHOLE else stock.questions(np.arange(len(stock)), self.axis)

    def rows_in(self, split: str) -> int:
        return len(self._stock(split))

    def space(self) -> int:
        """The rows of training, which are an epoch."""
        return len(self._stock("train"))

    def data_warnings(self) -> list[str]:
        """How many rows of its files are left out of training, and why; nothing where none is."""
        holdings = self.holdings
        if not holdings.left_out:
            return []
        whole = len(holdings.train) + holdings.left_out
        keep = "; task.keep_duplicates=true keeps them, and then training has seen those questions" * hasattr(
            self, "keep_duplicates"
        )
        return [
            f"task: {holdings.left_out:,} of {whole:,} rows of training are left out, since their question stands in "
            f"development or a test too{keep} ({holdings.told()})"
        ]

    def held_out(self, split: str) -> bool:
        return split in ("test", "development") and not getattr(self, "keep_duplicates", False)

    def axes(self) -> tuple[str, ...]:
        return (self.axis,)

    def trained(self) -> dict[str, Span]:
        return {self.axis: self._parts or Span(1, self.holdings.trained)}

    def cells(self) -> list[tuple[int, ...]]:
        return [(number,) for number in self._parts or Span(1, len(self.holdings.names))]

    def cell_name(self, axis: str, size: int) -> str:
        names = self.holdings.names
        return names[size - 1] if axis == self.axis and 0 < size <= len(names) else str(size)

    def longest(self) -> Questions:
        """The longest rows in their files: of all trained parts, where one of those is pinned."""
        parts, trained = self._parts, Span(1, self.holdings.trained)
        if parts is None or parts.high <= trained.high:
            stocks = [self.holdings.train, self.holdings.development, self.holdings.test.within(trained)]
        else:
            stocks = [self.holdings.test.within(parts)]
        return Questions.concatenate([stock.questions(stock.longest(), self.axis) for stock in stocks if len(stock)])

    def alphabet(self) -> tuple[str, ...]:
        """Every character of all its files."""
        stocks = (self.holdings.train, self.holdings.development, self.holdings.test)
        sources = {id(stock.source): stock.source for stock in stocks if len(stock)}
        return tuple(sorted(frozenset().union(*(source.characters() for source in sources.values()))))

    def read(self, text: str) -> Questions:
        """Any text as a question, with a training answer as a placeholder."""
        stock = self._stock("train")
        (first,) = stock.source.pairs(stock.rows[:1].astype(np.int64))
        return as_question(text, first.answer, stock.source.cut)

    def files(self) -> dict[str, Path]:
        return named(path for source in self.holdings.sources for path in source.files())

    def told(self) -> str:
        """The sizes of its splits as they are, for people."""
        return self.holdings.told()


def as_question(text: str, answer: str, cut: Cut = "right") -> Questions:
    """A text as a question, with an answer that serves as a placeholder.

    Raises `UserError` for one without a word."""
    if not text.strip():
        raise UserError("question: is empty; any text that is one is right")
    return Questions.of_source(Listed((Example(text, answer),), cut), np.zeros(1, dtype=np.int64), {})


def divided(count: int, sizes: tuple[int, int], name: Sequence[object]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of training and of development: of an order of 0 .. count - 1 that is a function of the name, the first
    `sizes[0]` and the next `sizes[1]`, each set in the order of the file."""
    first, second = sizes
    held = shuffled(np.arange(first, min(count, first + second)), count, key(*name))
    if first + second >= count:
        mine = np.ones(count, dtype=np.bool_)
        mine[held] = False
        return np.flatnonzero(mine), np.sort(held)
    return np.sort(shuffled(np.arange(first), count, key(*name))), np.sort(held)


def refuse_cut(cut: str) -> None:
    """Raises `UserError` for what cannot be cut."""
    if cut not in CUTS:
        raise UserError(f"truncation_side: {cut!r} is neither 'left' nor 'right'")


def refuse_share(name: str, share: float) -> None:
    """Raises `UserError` for a share of the rows that leaves nothing to train on, or is none."""
    if not 0 <= share < 1:
        raise UserError(f"{name}: {share} is no share that leaves rows to train on; 0.1 is one row in ten")


def refuse_part(name: str, part: int | Span | None) -> None:
    """Raises `UserError` for a number that no part has. How many there are only the files say."""
    if part is not None and Span.of(part).low < 1:
        raise UserError(f"{name}: parts have numbers from 1 on, not {Span.of(part).low}")


def refuse_unknown(name: str, chosen: Sequence[str], known: Mapping[str, object] | Sequence[str]) -> None:
    """Raises `UserError` for a name that there is not, or that comes twice."""
    for number, one in enumerate(chosen):
        if one not in known:
            raise UserError(f"{name}: there is no {one!r}; there are: {', '.join(known)}.{did_you_mean(one, known)}")
        if one in chosen[:number]:
            raise UserError(f"{name}: {one!r} stands there twice; once is right")
