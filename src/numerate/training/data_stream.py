"""The order of training examples: a function of the position only, independent of workers and processes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numerate.batch import Batch
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Layout
from numerate.tokenizers.tokenizer import TokenizedExamples, Tokenizer


@dataclass(frozen=True, eq=False)
class _Window:
    """One window of examples, shortest first, in batches of equal size; `batch_order` is the order of the batches."""

    window_index: int
    rows: TokenizedExamples
    example_indices: NDArray[np.int64]
    batch_order: NDArray[np.int64]


class BatchStream:
    """Batches of a split of a task, grouped by length.

    The examples of `window` global batches are drawn at once, sorted by length (ties by index) and split into batches,
    which are shuffled by a key of (seed, split, window). Each rank or micro-batch gets an equal slice of a global
    batch, padded to its own longest row: together they contain the same examples as in a single process.

    A task that `is_ordered` is read in its own order, without sorting or shuffling, and `window` is ignored.
    If such a task has `has_order_per_rank`, each rank has its own order.
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
        self.task, self.tokenizer, self.layout = task, tokenizer, layout
        self.seed, self.split, self.batch_size, self.window = seed, split, batch_size, window
        self.vocabulary = tokenizer.build_vocabulary(task)
        self._window: _Window | None = None
        self._cached_rows: tuple[int, TokenizedExamples] | None = None

    def batch(
        self,
        num_examples_seen: int = 0,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int = 0,
        num_micro_batches: int = 1,
    ) -> Batch:
        """The batch after a number of examples, a multiple of the batch size, which is all that resuming requires; or
        its slice for micro-batch `micro_batch` of rank `rank`."""
        micro_batch_size = self.batch_size // (world_size * num_micro_batches)
        first = (rank * num_micro_batches + micro_batch) * micro_batch_size
        if self.task.is_ordered:
            return self._batch_in_order(num_examples_seen, first, micro_batch_size, rank, world_size, micro_batch)
        window_index, batch_index = divmod(num_examples_seen // self.batch_size, self.window)
        window = self._load_window(window_index)
        start = int(window.batch_order[batch_index]) * self.batch_size + first
        rows = slice(start, start + micro_batch_size)
        return self.layout.build_batch(window.rows.take(rows), window.example_indices[rows])

    def _batch_in_order(
        self, num_examples_seen: int, first: int, count: int, rank: int, world_size: int, micro_batch: int
    ) -> Batch:
        """A slice of `count` examples in the task's own order, read on demand."""
        start = num_examples_seen + first
        if world_size > 1 and self.task.has_order_per_rank(self.split):
            rank_start = num_examples_seen // world_size + micro_batch * count
            questions = self.task.examples_for_rank(self.split, self.seed, rank_start, count, rank)
        else:
            questions = self.task.examples(self.split, self.seed, start, count)
        rows = self.tokenizer.encode_examples(questions, self.vocabulary)
        return self.layout.build_batch(rows, start + np.arange(len(questions)))

    def _load_window(self, window_index: int) -> _Window:
        if self._window is None or self._window.window_index != window_index:
            count = self.window * self.batch_size
            rows = self._window_rows(window_index, count)
            by_length = np.argsort(rows.lengths, kind="stable")
            order = CounterRNG(random_key("window", self.seed, self.split, window_index)).permutation(self.window)
            self._window = _Window(window_index, rows.take(by_length), window_index * count + by_length, order)
        return self._window

    def _window_rows(self, window_index: int, count: int) -> TokenizedExamples:
        """The rows of one window, in the order in which they are drawn. Several small windows are drawn at once,
        because a task generates a whole block, of which a window of one batch would use about 1 %."""
        windows_per_read = max(1, -(-self.task.block_size // count))
        read_index, window_in_read = divmod(window_index, windows_per_read)
        if self._cached_rows is None or self._cached_rows[0] != read_index:
            questions = self.task.examples(
                self.split, self.seed, read_index * windows_per_read * count, windows_per_read * count
            )
            self._cached_rows = (read_index, self.tokenizer.encode_examples(questions, self.vocabulary))
        return self._cached_rows[1].take(slice(window_in_read * count, (window_in_read + 1) * count))


def num_total_tokens(batch: Batch) -> int:
    """Number of input tokens of a batch including padding, and including those of an encoder, as in
    `Batch.num_input_tokens`."""
    return batch.tokens.ids.numel() + (0 if batch.source is None else batch.source.ids.numel())
