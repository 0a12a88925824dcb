"""The order of training examples: a function of the position, whatever the workers and processes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numerate.batch import Batch
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG, key
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Layout
from numerate.tokenizers.tokenizer import Rows, Tokenizer


@dataclass(frozen=True)
class StreamPosition:
    """Where a run stands in its data: how many examples it has seen. All that a resumed run needs to know."""

    examples: int = 0

    def next(self, batch_size: int) -> "StreamPosition":
        """The place after one more global batch."""
        return StreamPosition(self.examples + batch_size)


@dataclass(frozen=True, eq=False)
class _Window:
    """One window of examples, shortest first, in batches of equal size; `order` is the order of the batches."""

    number: int
    rows: Rows
    index: NDArray[np.int64]
    order: NDArray[np.int64]


class Stream:
    """Batches of a split of a task, grouped by length.

    `window` global batches of examples are drawn at once, sorted by length (ties by index), cut into batches, and the
    batches shuffled by a key of (seed, split, window). A rank, or a part of an accumulated step, gets an equal slice of
    a global batch, cut to its own longest row: so all of them together see the same examples as one process does.

    A task with `in_order` is read in its own order: nothing is sorted or shuffled, and `window` is ignored.
    Where such a task has `own_order`, each rank reads its own order.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        layout: Layout,
        *,
        seed: int,
        split: str = "train",
        batch_size: int,
        window: int = 64,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("window", window)):
            if value < 1:
                raise UserError(f"{name}: {value} is too small; at least 1")
        self.task, self.tokenizer, self.layout = task, tokenizer, layout
        self.seed, self.split, self.batch_size, self.window = seed, split, batch_size, window
        self.vocabulary = tokenizer.build_vocabulary(task)
        self._window: _Window | None = None
        self._read: tuple[int, Rows] | None = None

    def batch(self, place: StreamPosition, rank: int = 0, ranks: int = 1, part: int = 0, parts: int = 1) -> Batch:
        """The batch at a place, or the slice of it that part `part` of rank `rank` computes. Raises as `rows` does."""
        return self.layout.batch(*self.rows(place, rank, ranks, part, parts))

    def rows(
        self, place: StreamPosition, rank: int = 0, ranks: int = 1, part: int = 0, parts: int = 1
    ) -> tuple[Rows, NDArray[np.int64]]:
        """What `batch` lays out: rows and the global index of each.

        Raises `UserError` where the global batch does not divide into the slices, or where the place is between two
        batches of this size.
        """
        if self.batch_size % (ranks * parts):
            raise UserError(
                f"batch_size: {self.batch_size} examples do not divide among {ranks} processes with {parts} parts "
                f"each; take a multiple of {ranks * parts}"
            )
        if place.examples % self.batch_size:
            raise UserError(
                f"batch_size: {place.examples} examples have been seen, which is no whole number of batches of "
                f"{self.batch_size}; keep the batch size of the run"
            )
        share = self.batch_size // (ranks * parts)
        if self.task.in_order:
            return self._in_order(place, share, rank, ranks, part)
        number, turn = divmod(place.examples // self.batch_size, self.window)
        window = self._window_of(number)
        start = int(window.order[turn]) * self.batch_size + (rank * parts + part) * share
        chosen = slice(start, start + share)
        return window.rows.take(chosen), window.index[chosen]

    def _in_order(
        self, place: StreamPosition, share: int, rank: int, ranks: int, part: int
    ) -> tuple[Rows, NDArray[np.int64]]:
        """The examples of a slice in the task's own order, read when requested."""
        of_rank = self.batch_size // ranks
        start = place.examples + rank * of_rank + part * share
        if ranks > 1 and self.task.own_order(self.split):
            first = place.examples // ranks + part * share
            drawn = self.task.examples_of(self.split, self.seed, first, share, rank)
        else:
            drawn = self.task.examples(self.split, self.seed, start, share)
        return self.tokenizer.rows(drawn, self.vocabulary), start + np.arange(len(drawn))

    @staticmethod
    def padding(batch: Batch) -> float:
        """The share of a batch's input tokens that is padding, from 0 to 1."""
        return 1.0 - batch.real / max(1, places_of(batch))

    def _window_of(self, number: int) -> _Window:
        if self._window is None or self._window.number != number:
            count = self.window * self.batch_size
            rows = self._rows_of(number, count)
            by_length = np.argsort(rows.lengths, kind="stable")
            order = CounterRNG(key("window", self.seed, self.split, number)).permutation(self.window)
            self._window = _Window(number, rows.take(by_length), number * count + by_length, order)
        return self._window

    def _rows_of(self, number: int, count: int) -> Rows:
        """The rows of one window, in the order in which they are drawn. Several small windows are drawn at once: a task
        draws a whole block, of which a window of one batch would take a hundredth part and leave the rest."""
        together = max(1, -(-self.task.block // count))
        share, place = divmod(number, together)
        if self._read is None or self._read[0] != share:
            drawn = self.task.examples(self.split, self.seed, share * together * count, together * count)
            self._read = (share, self.tokenizer.rows(drawn, self.vocabulary))
        return self._read[1].take(slice(place * count, (place + 1) * count))


def places_of(batch: Batch) -> int:
    """The number of positions of a batch, real or padding, those of an encoder included, as `Batch.real` counts."""
    return batch.tokens.ids.numel() + (0 if batch.source is None else batch.source.ids.numel())
