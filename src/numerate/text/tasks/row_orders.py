"""The order in which the rows of files come: pass after pass, each in an order that is a function of its name."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, check_choice
from numerate.tasks.counter_rng import CounterRNG, mix_bits, random_key
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task


def permute(indices: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """Where each of these places goes in an order of 0 .. count - 1 that is a function of the key, without holding it.

    A Feistel network of eight rounds over the next power of four, walked until it ends below `count` (Black and Rogaway
    2002, "Ciphers with arbitrary finite domains", https://doi.org/10.1007/3-540-45760-7_9).

    >>> sorted(permute(np.arange(10), 10, random_key("a")).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = CounterRNG(key).random_words(8)
    result = indices.astype(np.uint64)
    out_of_range = np.arange(len(result))
    while len(out_of_range):
        left, right = result[out_of_range] >> half, result[out_of_range] & mask
        for word in rounds:
            left, right = right, left ^ (mix_bits(right + word) & mask)
        result[out_of_range] = left << half | right
        out_of_range = out_of_range[result[out_of_range] >= np.uint64(count)]
    return result.astype(np.int64)


def shuffled_row_indices(index: NDArray[np.int64], count: int, key_parts: Sequence[object]) -> NDArray[np.int64]:
    """The row of `count` at each index: pass after pass over all of them, each in an order of its own.

    >>> sorted(shuffled_row_indices(np.arange(4), 4, ("any",)).tolist())
    [0, 1, 2, 3]
    """
    epochs, index_in_epoch = np.divmod(index, count)
    rows = np.empty_like(index_in_epoch)
    for epoch in np.unique(epochs).tolist():
        mask = epochs == epoch
        rows[mask] = permute(index_in_epoch[mask], count, random_key(*key_parts, epoch))
    return rows


class RowTask(Task):
    """A task whose questions are rows of files: every row of a split once, then all again in another order."""

    has_ood_sizes: ClassVar[bool] = False

    order_name: ClassVar[str]
    """Part of the key of its orders."""

    @abstractmethod
    def num_rows(self, split: str | None) -> int:
        """Number of rows of a split; None: of all."""

    @abstractmethod
    def row_questions(self, split: str | None, rows: NDArray[np.int64]) -> Questions:
        """The questions of these rows of a split; None: of all."""

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        return self.shuffled_questions(None, indices, ("draw", rng.key))

    def shuffled_questions(
        self, split: str | None, index: NDArray[np.int64], key_parts: tuple[object, ...]
    ) -> Questions:
        """The questions at these indices of an order that is a function of `key_parts`."""
        return self.row_questions(split, shuffled_row_indices(index, self.num_rows(split), key_parts))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        check_choice("split", split, SPLITS)
        if split == "ood_validation":
            raise UserError("split: rows of files have no OOD validation ('ood_validation')")
        index = np.arange(start, start + count)
        questions = self.shuffled_questions(split, index, (self.order_name, split, seed))
        (word,) = CounterRNG(random_key("chance", split, seed)).random_words(1)
        return replace(questions, random_bits=mix_bits(mix_bits(index.astype(np.uint64) + word) ^ word))
