"""How rows become a batch: what the model reads, and what it must say where."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import IGNORE, Batch, Tokens
from numerate.config import setting
from numerate.errors import Mistake
from numerate.tokens.numbers import Ids
from numerate.tokens.tokenizer import Rows
from numerate.vocabulary import PAD


class Layout(ABC):
    """How questions and answers are laid out for a model."""

    @abstractmethod
    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        """The batch of these rows; `row_index` is the global index of each. Raises `Mistake` for rows of another
        kind."""


@dataclass(frozen=True)
class Continuation(Layout):
    """The answer continues the question, and each token says the next one.

    `2 1 + 9 = 1 2 [EOS]` is read without its last token; asked are the places of `=`, `1` and `2`, which must say
    `1`, `2` and `[EOS]`. With `ask="all"` every place is asked, the question's own included.
    """

    ask: Literal["answer", "all"] = setting("answer", "what is asked: the answer with its end, or every token")

    def __post_init__(self) -> None:
        if self.ask not in ("answer", "all"):
            raise Mistake(f"ask: {self.ask!r} is neither 'answer' nor 'all'")

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is not None:
            raise Mistake(
                "layout: a Continuation lays out answers that follow their questions; for labels take Aligned"
            )
        lengths = rows.lengths - 1
        longest = int(lengths.max(initial=0))
        read = np.arange(longest) < lengths[:, None]
        ids = np.where(read, rows.ids[:, :longest], rows.ids.dtype.type(PAD))
        asked = rows.asked[:, 1 : longest + 1] if self.ask == "answer" else read
        return _batch(ids, lengths, asked, rows.ids[:, 1 : longest + 1], row_index)


@dataclass(frozen=True)
class Aligned(Layout):
    """Each token is answered at its own place by a label, as in counting or in tagging.

    `hide` names texts that nobody may attend to. A hidden token is still read where it stands and may be asked for a
    label: with `hide=("<pad>",)`, in `a <pad> a <pad>` no place sees a `<pad>` before it (Chang and Bisk, 2024,
    https://arxiv.org/abs/2405.20131). Only mixers that attend can hide anything.
    """

    hide: tuple[str, ...] = setting((), "texts whose tokens nobody may attend to", later=True)

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is None:
            raise Mistake("layout: Aligned lays out a label per token, which this task has not; take Continuation")
        batch = _batch(rows.ids, rows.lengths, rows.asked, rows.labels, row_index)
        if not self.hide:
            return batch
        hidden = np.any([rows.ids == i for i in self._hidden_ids(rows)], axis=0)
        if not bool(hidden.any()):
            return batch
        return replace(batch, tokens=replace(batch.tokens, hidden=_tensor(hidden)))

    def _hidden_ids(self, rows: Rows) -> list[int]:
        if rows.vocabulary is None:
            raise Mistake("layout.hide: these rows do not say which texts their tokens are, so none can be hidden")
        known = rows.vocabulary.ids
        for text in self.hide:
            if text not in known:
                raise Mistake(
                    f"layout.hide: the task has no text {text!r}; it has: {', '.join(rows.vocabulary.symbols[4:])}"
                )
        return [known[text] for text in self.hide]


def _batch(
    ids: Ids,
    lengths: NDArray[np.int64],
    asked: NDArray[np.bool_],
    said: Ids,
    row_index: NDArray[np.int64],
) -> Batch:
    """A batch of inputs `ids` that must say `said` at the places `asked`, all `[rows, time]`."""
    targets = np.where(asked, said.astype(np.int64), IGNORE)
    counts = asked.sum(axis=1)
    places, asked_targets = _asked_places(asked, targets, counts)
    return Batch(
        Tokens(_tensor(ids.astype(np.int64)), _tensor(lengths.copy()), _tensor(row_index.copy())),
        targets=_tensor(targets),
        asked=_tensor(places),
        asked_targets=_tensor(asked_targets),
        counts={"tokens": int(counts.sum()), "examples": len(ids)},
        real=int(lengths.sum()),
    )


def _asked_places(
    asked: NDArray[np.bool_], targets: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The asked places of each row in order, filled up with its last one, and the targets there, filled with IGNORE."""
    nth = np.arange(int(counts.max(initial=0)))
    last = np.maximum(counts - 1, 0)[:, None]
    upto = np.minimum(nth, last)
    filled = nth > last
    rows = np.arange(len(targets))[:, None] * targets.shape[1]
    places = upto + asked.argmax(axis=1)[:, None] if len(nth) else upto
    gathered = targets.take(rows + places)
    # Almost always the asked places of a row are one run, which is what was gathered; otherwise places are among them
    # that are not asked.
    if np.count_nonzero(gathered == IGNORE) and bool(((gathered == IGNORE) & (nth < counts[:, None])).any()):
        found = np.append(np.nonzero(asked)[1], 0)  # a row that asks nothing takes whichever comes next
        places = np.where(counts[:, None] > 0, found[(counts.cumsum() - counts)[:, None] + upto], 0)
        gathered = targets.take(rows + places)
    gathered[filled] = IGNORE
    return places, gathered


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
