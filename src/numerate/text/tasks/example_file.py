"""Questions from files of rows: data of other systems, or of `numerate data write`."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError, did_you_mean
from numerate.tasks.arithmetic import OPERATORS, Arithmetic
from numerate.tasks.contents import named
from numerate.tasks.counter_rng import CounterRNG, mix
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task
from numerate.text.tasks.labelled_files import LabelledFile, open_rows
from numerate.text.tasks.row_files import VOCABULARIES, RowFile, rows_at_once
from numerate.text.tasks.row_orders import chances, in_order
from numerate.text.tasks.row_questions import WAYS, hashes_of_either_order, questions_of, way_of

_WHOLE = 1 << 28
"""The most characters of rows that are in memory at once."""


@dataclass(frozen=True)
class ExampleFile(Task):
    """Rows of a file such as `321+654=975`, split at the equals sign into question and answer.

    `path` is a text file with a row per line, a folder of `*.txt`, a folder that Hugging Face `datasets` saved (tokens
    of the published vocabularies; needs `pip install 'numerate[data]'`), or what `numerate data write` wrote. Rows that
    have a label per word behind a tab instead, `65 a a` and . 66 67, are questions with labels.

    In rows that are sums, differences or products, numbers are number slots, which a tokenizer may write differently;
    `digit_order` is their order in the file, and "auto" takes the order in which the answers of the first 1,000 rows
    are right. Every other file, and one with leading zeros, is text, character by character.

    A grid has the lengths of the two numbers as axes if the file has rows for each pair of them, otherwise the length
    of the question.

    Every row comes once in each pass, in an order that is a function of (seed, split, pass), so that a file needs no
    shuffling. One row in ten is held out by a hash of its question, the same as in the task `Arithmetic`, so repeated
    questions are never divided. This goes by the whole file: a cell of a grid has those of its rows that are held out,
    and is seen where there are none. A file of which fewer than 10 rows would be left for the test or for development
    is seen as a whole by every split.

    `numerate evaluate latest task.path=other.txt` asks the rows of another file, all but those whose question the run
    was trained on.

    >>> task = ExampleFile(path="sums.txt")  # three lines: 321+654=975, 9+1=01 and 21+9=12
    >>> task.space(), task.alphabet()
    (3, ('+', '='))
    """

    endless: ClassVar[bool] = False
    grid_of_trained: ClassVar[bool] = True

    path: str | None = setting(None, "file or folder of examples")
    split: str = setting("all", "split of a saved DatasetDict: train, test ..., or all")
    vocabulary: Literal["pad", "index", "sort"] = setting("pad", "published vocabulary of a tokenized folder")
    digit_order: Literal["auto", "reversed", "normal", "answer reversed", "text"] = setting(
        "auto", "digit order in the file; auto: the one in which its answers are right, else text"
    )
    first_digits: int | Span | None = setting(None, "only sums whose first number has this many digits; null: all")
    second_digits: int | Span | None = setting(None, "only sums whose second number has this many digits; null: all")
    question_length: int | Span | None = setting(
        None, "only questions of so many characters, '=' included (words, where they have labels); null: all"
    )
    trained_on: Task | None = setting(
        None, "the rows of training, where an evaluation asks those of another file; set by task.path=", later=True
    )

    def __post_init__(self) -> None:
        for name, known in (("vocabulary", tuple(VOCABULARIES)), ("digit_order", ("auto", *WAYS, "text"))):
            value = getattr(self, name)
            if value not in known:
                raise UserError(
                    f"{name}: there is no {value!r}; there are: {', '.join(known)}.{did_you_mean(value, known)}"
                )

    @property
    def rows(self) -> RowFile | LabelledFile:
        """The rows of the file. Raises `UserError` where there are none."""
        if self.path is None:
            raise UserError("path: which rows? path=rows.txt names a file with a row per line, or a folder of rows")
        return open_rows(self.path, self.split, self.vocabulary)

    def files(self) -> dict[str, Path]:
        return named(self.rows.files())

    def of_file(self, path: str) -> "ExampleFile":
        """The rows of another file, of every size, for a model that was trained on these."""
        known = self if self.trained_on is None else self.trained_on
        return replace(self._whole(), path=path, trained_on=known)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        return self._questions(None, index, ("draw", draws.key))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """Examples `start` .. `start + count - 1` of a split: every row of it once, then all again in another order."""
        if split not in SPLITS:
            raise UserError(
                f"split: there is no {split!r}; there are: {', '.join(SPLITS)}." + did_you_mean(split, SPLITS)
            )
        if split == "beyond-development":
            raise UserError("split: rows of a file have no OOD validation ('beyond-development')")
        index = np.arange(start, start + count)
        return replace(self._questions(split, index, ("written", split, seed)), chance=chances(index, split, seed))

    def _questions(self, split: str | None, index: NDArray[np.int64], name: tuple[object, ...]) -> Questions:
        mine = self._rows_of(split)
        places = in_order(index, self.rows.count if mine is None else len(mine), name)
        return self.questions(places if mine is None else mine[places].astype(np.int64))

    def questions(self, rows: NDArray[np.int64]) -> Questions:
        """The rows with these indices, in the order of the file. Raises `UserError` with the file and line of a row
        that does not read like the others."""
        return questions_of(self.rows, rows, self.digit_order)

    def whole(self, split: str = "test") -> Questions | None:
        """Every different question of a split once, in the order of the file; None for more than 65,536 rows, or
        where they are long."""
        mine = self._rows_of(split)
        rows = np.arange(self.rows.count) if mine is None else mine.astype(np.int64)
        if len(rows) > 1 << 16 or len(rows) * self.rows.longest > _WHOLE:
            return None
        questions = self.questions(rows)
        _, first = np.unique(questions.hashes(), return_index=True)
        return questions.take(np.sort(first))

    def rows_in(self, split: str | None) -> int:
        mine = self._rows_of(split)
        return self.rows.count if mine is None else len(mine)

    def _rows_of(self, split: str | None) -> NDArray[np.uint32] | None:
        """The rows of a split (None: of all) that have the sizes wanted; None for every row of the file. Where a split
        has none of them, all of them: they are seen. Raises `UserError` where the file has none."""
        wanted = {name: Span.of(size) for name in SIZES if (size := getattr(self, name)) is not None}
        if not wanted and split is None:
            return None
        scan = self._scan
        divided = split if scan.divided else None
        return _chosen(scan, tuple(wanted.items()), divided, str(self.path)) if wanted or divided else None

    def _whole(self) -> "ExampleFile":
        """The same without any size wanted."""
        return replace(self, first_digits=None, second_digits=None, question_length=None)

    @property
    def _scan(self) -> "_Scan":
        return _Scan.of(self.rows, self._whole())

    def held_out(self, split: str) -> bool:
        if split in ("train", "beyond-development") or not (scan := self._scan).divided:
            return False
        return bool((scan.split[self._rows_of(split)] == list(SPLITS).index(split)).all())

    def axes(self) -> tuple[str, ...]:
        return self._scan.axes

    def trained(self) -> dict[str, Span]:
        scan = self._scan
        mine = self._rows_of(None)
        sizes = {name: scan.sizes[name] if mine is None else scan.sizes[name][mine] for name in scan.axes}
        return {name: Span(int(found.min()), int(found.max())) for name, found in sizes.items()}

    def cells(self) -> list[tuple[int, ...]]:
        """The sizes of the rows of its file along the axes, each once: also of those that are longer than what it is
        trained on, of which an evaluation may ask.

        >>> ExampleFile(path="sums.txt").cells()  # questions of 8, 4 and 5 characters
        [(4,), (5,), (8,)]
        """
        scan = self._scan
        mine = self.pinned(**dict.fromkeys(scan.axes))._rows_of(None)
        sizes = np.stack([scan.sizes[name] if mine is None else scan.sizes[name][mine] for name in scan.axes], axis=1)
        return [tuple(place) for place in np.unique(sizes, axis=0).tolist()]

    def canonical(self, questions: Questions) -> NDArray[np.uint64]:
        """As in `Arithmetic` where rows are sums: 3+4 and 4+3 are one question. So are rows of digits on either side of
        a plus or times that are read as text, such as 0000+01= and 01+0000=. Otherwise a hash of the text."""
        if questions.numbers.lengths.shape[1] != 3:
            signs = {*questions.alphabet} - {*"0123456789="}
            commutes = questions.labels is None and len(signs) == 1 and signs <= {"+", "x"}
            return hashes_of_either_order(questions, signs.pop()) if commutes else questions.hashes()
        hashes = questions.numbers.hashes(2)
        if questions.alphabet[0] == "-":
            hashes[:, 1] *= np.uint64(0x2545F4914F6CDD1D)
        return mix(hashes[:, 0] + hashes[:, 1])

    def space(self) -> int:
        return self.rows_in(None)

    def alphabet(self) -> tuple[str, ...]:
        if self.trained_on is not None:
            return self._alphabet_of_training(self.trained_on.alphabet())
        found = self.rows
        order, sign = way_of(found, self.digit_order)
        if isinstance(found, LabelledFile):
            return found.words
        return tuple(found.alphabet()) if order == "text" else (sign, "=")

    def _alphabet_of_training(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """What the model reads. Raises `UserError` where this file has anything else."""
        other = [text for text in replace(self, trained_on=None).alphabet() if text not in known]
        if other:
            listing = ", ".join(map(repr, other[:5]))
            raise UserError(f"path: {self.path} has {listing}{' ...' * (len(other) > 5)}, which no row of training has")
        return known

    def read(self, text: str) -> Questions:
        """A sum as a person types it, whatever the order of the file. Raises `UserError` where rows are no sums, or of
        an operator that no other task can work out."""
        _, sign = way_of(self.rows, self.digit_order)
        if sign not in OPERATORS:
            raise UserError("question: the answers of these rows are stored, not computed; only sums can be read")
        return Arithmetic(operator=sign).read(text)


FEWEST = 10
"""The rows that test and development have at least, or else every split is the whole file."""

SIZES = ("first_digits", "second_digits", "question_length")
"""The sizes of rows, which are grid axes."""


class _Scan:
    """What one pass over all rows of a file finds: the split of each by the hash of its question, and its sizes."""

    def __init__(self, rows: RowFile | LabelledFile, task: ExampleFile) -> None:
        self.split = np.full(rows.count, -1, dtype=np.int8)
        known = None if task.trained_on is None else _questions_of_training(task.trained_on)
        self.sizes: dict[str, NDArray[np.uint16]] = {}
        size = rows_at_once(rows.longest)
        for start in range(0, rows.count, size):
            here = slice(start, min(start + size, rows.count))
            questions = task.questions(np.arange(here.start, here.stop))
            hashes = task.canonical(questions)
            fraction = (hashes >> np.uint64(32)).astype(np.float64) / 2.0**32
            for number, (name, (low, high)) in enumerate(SPLITS.items()):
                if known is None:
                    self.split[here][(fraction >= low) & (fraction < high)] = number
                elif name in ("test", "train"):
                    self.split[here][np.isin(hashes, known) == (name == "train")] = number
            for axis, values in questions.facts.items():
                sizes = self.sizes.setdefault(axis, np.zeros(rows.count, dtype=np.uint16))
                sizes[here] = np.minimum(values, 2**16 - 1)
        rows_of = np.bincount(self.split[self.split >= 0], minlength=len(SPLITS))
        held = ("test", "development") if known is None else ("test",)
        enough = FEWEST if known is None else 1
        self.divided = all(rows_of[list(SPLITS).index(name)] >= enough for name in held)
        self.axes: tuple[str, ...] = SIZES[:2] if self._has_every_pair() else SIZES[2:]
        if task.trained_on is not None:
            self.axes = task.trained_on.axes()
            if not self.sizes.keys() >= set(self.axes):
                raise UserError(f"path: rows of {task.path} are no sums of two numbers, as those of training are")

    @staticmethod
    @lru_cache(maxsize=4)
    def of(rows: RowFile | LabelledFile, task: ExampleFile) -> "_Scan":
        return _Scan(rows, task)

    def _has_every_pair(self) -> bool:
        if SIZES[0] not in self.sizes:
            return False
        first, second = (self.sizes[name].astype(np.int64) for name in SIZES[:2])
        pairs = (int(first.max() - first.min()) + 1) * (int(second.max() - second.min()) + 1)
        return len(np.unique(first << 16 | second)) == pairs


def _questions_of_training(task: Task) -> NDArray[np.uint64]:
    """The hashes of all questions that a task of rows is trained on."""
    assert isinstance(task, ExampleFile), "rows of files are evaluated for a model that was trained on rows of files"
    mine = task._rows_of("train")
    rows = np.arange(task.rows.count) if mine is None else mine.astype(np.int64)
    size = rows_at_once(task.rows.longest)
    return np.concatenate([task.canonical(task.questions(rows[i : i + size])) for i in range(0, len(rows), size)])


@lru_cache(maxsize=32)
def _chosen(scan: _Scan, wanted: tuple[tuple[str, Span], ...], split: str | None, path: str) -> NDArray[np.uint32]:
    mask = np.ones(len(scan.split), dtype=np.bool_)
    for name, span in wanted:
        if name not in scan.sizes:
            raise UserError(
                f"{name}: rows of {path} are text, which is no sum of two numbers; question_length is right"
            )
        mask &= (scan.sizes[name] >= span.low) & (scan.sizes[name] <= span.high)
    if not mask.any():
        cell = ", ".join(f"{name}={span if len(span) > 1 else span.low}" for name, span in wanted)
        raise UserError(f"{wanted[0][0]}: no row of {path} has {cell}")
    if split is not None and (here := mask & (scan.split == list(SPLITS).index(split))).any():
        mask = here
    return np.flatnonzero(mask).astype(np.uint32)
