"""The asking side of a recipe: questions as batches, and batches in pieces that are read at once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerate.batch import Batch, Model, Tokens
from numerate.tasks.counter_rng import CounterRNG, key
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Continuation, Layout
from numerate.tokenizers.tokenizer import Tokenizer
from numerate.vocabulary import DIGIT, NUMBER

CHUNK = 32_768
"""Tokens that are read at once (rows x time): a fixed number, so that a cell is always computed in the same pieces."""

PIECE = 4_096
"""Tokens that one forward of `mark` reads on a CPU: what a layer makes of them is small enough for the cache."""

SPARE = 10
"""Tokens that an answer which is a text may be longer than the longest right one of its batch: it is to be read."""


class EvaluationData:
    """The evaluation data of a recipe: questions as batches."""

    def __init__(self, task: Task, tokenizer: Tokenizer, layout: Layout) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.layout = replace(layout, targets="answer") if isinstance(layout, Continuation) else layout
        self.vocabulary = tokenizer.build_vocabulary(task)
        self.symbols = np.array(self.vocabulary.symbols)
        self._digit = torch.from_numpy(self.vocabulary.kinds == DIGIT)
        carrier = (self.vocabulary.kinds == NUMBER) & np.isnan(self.vocabulary.values)
        self.carriers, self.carries = torch.from_numpy(carrier), bool(carrier.any())

    @property
    def labelled(self) -> bool:
        """Whether targets are labels at their own positions, so that correct ones are counted by position too."""
        return not self.layout.continues and not self.layout.masks

    @property
    def running(self) -> bool:
        """Whether it is running text, of which every token is a target, and no row is right or wrong as a whole."""
        return self.task.running

    @cached_property
    def token_bytes(self) -> Any | None:
        """The bytes of text of each token, of running text; None of all else."""
        return self.task.token_bytes() if isinstance(self.task, LanguageModeling) else None

    @cached_property
    def texts(self) -> bool:
        """Whether questions and answers are texts in a file."""
        return not self.running and self.task.draw(CounterRNG(key("cost")), np.arange(1)).texts is not None

    @cached_property
    def trained_labels(self) -> int | None:
        """The most labels that a row of training has; None if unknown."""
        return self.task.trained_labels() if self.labelled else None

    def batch(self, questions: Questions, first: int = 0) -> Batch:
        """All of them as one batch, whatever its length; rows are numbered from `first`."""
        rows = self.tokenizer.rows(questions, self.vocabulary)
        return self.layout.batch(rows, np.arange(first, first + len(questions)))

    def is_digit(self, ids: Tensor) -> Tensor:
        return self._digit.to(ids.device)[ids.clamp(min=0)] & (ids >= 0)

    def is_carrier(self, ids: Tensor) -> Tensor:
        """Which ids are tokens for any number, whose value is given with them."""
        return self.carriers.to(ids.device)[ids.clamp(min=0)] & (ids >= 0)

    def longest(self, task: Task, split: str = "development", count: int = 64) -> Tokens:
        """Tokens of the largest questions of a task: for checks of tables of positions."""
        largest = {axis: span.high for axis, span in task.trained().items()}
        pinned = task.pinned(**largest) if largest else task
        known = pinned.longest()
        return self.batch(pinned.examples(split, 0, 0, count) if known is None else known).tokens


def pieces(batch: Batch) -> Sequence[Batch]:
    """Consecutive rows of a batch, few enough on a CPU that what a layer makes of them stays in its cache."""
    rows, time = batch.tokens.ids.shape
    if batch.tokens.ids.device.type != "cpu" or rows * time <= PIECE:
        return [batch]
    share = max(1, PIECE // time)
    return [rows_of(batch, slice(first, first + share)) for first in range(0, rows, share)]


def rows_of(batch: Batch, chosen: slice) -> Batch:
    """These rows of a batch, as long as it is."""
    return replace(
        batch,
        tokens=_tokens_of(batch.tokens, chosen),
        targets=batch.targets[chosen],
        target_positions=batch.target_positions[chosen],
        target_ids=batch.target_ids[chosen],
        target_values=None if batch.target_values is None else batch.target_values[chosen],
        source=None if batch.source is None else _tokens_of(batch.source, chosen),
    )


def _tokens_of(tokens: Tokens, chosen: slice) -> Tokens:
    return replace(
        tokens,
        ids=tokens.ids[chosen],
        lengths=tokens.lengths[chosen],
        row=tokens.row[chosen],
        values=None if tokens.values is None else tokens.values[chosen],
        blocked_keys=None if tokens.blocked_keys is None else tokens.blocked_keys[chosen],
        position_ids=None,
    )


def prompts_of(batch: Batch) -> tuple[Tokens, int]:
    """The questions of a batch without their answers, and the tokens of the longest answer."""
    lengths = batch.target_positions[:, 0] + 1
    width = int(lengths.max())
    ids = batch.tokens.ids[:, :width]
    within = torch.arange(width, device=ids.device)[None, :] < lengths[:, None]
    hidden = None if batch.tokens.blocked_keys is None else batch.tokens.blocked_keys[:, :width]
    values = None if batch.tokens.values is None else torch.where(within, batch.tokens.values[:, :width], 1.0)
    ids = torch.where(within, ids, 0)
    prompts = replace(batch.tokens, ids=ids, lengths=lengths, values=values, blocked_keys=hidden, position_ids=None)
    return prompts, batch.target_ids.shape[1]


def chunks(exam: EvaluationData, questions: Questions, model: Model) -> "Sequence[Batch]":
    """Batches of a fixed number of tokens, on the model's device."""
    device = next(model.parameters()).device
    whole = exam.batch(questions)
    time = whole.tokens.ids.shape[1]
    rows = max(1, CHUNK // time)
    if len(questions) <= rows:
        return [whole.to(device)]
    return [
        exam.batch(questions.take(slice(first, first + rows)), first).to(device)
        for first in range(0, len(questions), rows)
    ]


def questions_of(task: Task, cell: Mapping[str, int], *, count: int, seed: int = 0, split: str = "test") -> Questions:
    """The questions of a cell: `count` questions of a split, or all of them, where there are no more."""
    pinned = task.pinned(**cell) if cell else task
    whole = pinned.whole(split)
    if whole is not None and len(whole) <= count:
        return whole
    return pinned.examples(split, seed, 0, at_most(pinned, count, split))


def size_of(task: Task, cell: Mapping[str, int], count: int, split: str = "test") -> int:
    """How many questions a cell has where `count` are requested: fewer, where there are no more."""
    pinned = task.pinned(**cell) if cell else task
    whole = pinned.whole(split)
    return at_most(pinned, count, split) if whole is None else min(count, len(whole))


def at_most(task: Task, count: int, split: str) -> int:
    """`count`, or as many as a split of files has rows: none is repeated."""
    rows = task.rows_in(split)
    return count if rows is None else min(count, rows)
