"""The order in which the rows of files come: pass after pass, each in an order that is a function of its name."""

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, check_choice
from numerate.tasks.counter_rng import CounterRNG, mix_bits, random_key, shuffled_indices
from numerate.tasks.questions import Questions
from numerate.tasks.task import SPLITS, Task


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
        return self.row_questions(split, shuffled_indices(index, self.num_rows(split), key_parts))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        check_choice("split", split, SPLITS)
        if split == "ood_validation":
            raise UserError("split: rows of files have no OOD validation ('ood_validation')")
        index = np.arange(start, start + count)
        questions = self.shuffled_questions(split, index, (self.order_name, split, seed))
        (word,) = CounterRNG(random_key("chance", split, seed)).random_words(1)
        return replace(questions, random_bits=mix_bits(mix_bits(index.astype(np.uint64) + word) ^ word))
