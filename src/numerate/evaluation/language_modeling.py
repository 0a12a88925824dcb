"""Evaluation of language modeling, portion by portion: `numerate.evaluation.likelihoods` has the sums."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from numerate.batch import IGNORE, Batch, Model, StepContext
from numerate.config import Span
from numerate.evaluation.evaluation_data import CHUNK, PIECE, EvaluationData, rows_of
from numerate.evaluation.evaluator import refuse_ahead
from numerate.evaluation.likelihoods import FIRST, Likelihoods
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task

HEAD = {"cpu": 2**23}
"""How many logits are computed at a time, by device: 32 MB of float32."""

HEAD_ELSEWHERE = 2**24

PORTION = 2**17
"""Tokens of one portion of running text, which are in memory at once and lost at most when killed."""


@dataclass(frozen=True, eq=False)
class ChunkLosses:
    """The losses of chunks of running text: `nll` in nats, its `tokens`, their `bytes` of UTF-8, and how many of them
    were the most probable (`right`). All `[chunks]`."""

    nll: NDArray[np.float64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]
    right: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nll)

    def likelihoods(self) -> Likelihoods:
        """The sums over chunks."""
        size = self.bytes.astype(np.float64)
        return Likelihoods(
            float(self.nll.sum()),
            int(self.tokens.sum()),
            int(self.bytes.sum()),
            int(self.right.sum()),
            len(self),
            float((self.nll**2).sum()),
            float((self.nll * self.tokens).sum()),
            int((self.tokens**2).sum()),
            float((self.nll * size).sum()),
            int((self.bytes**2).sum()),
        )

    def lines(self, cell: Mapping[str, int]) -> list[dict[str, Any]]:
        """A line for each chunk of a portion, with its loss in nats per token."""
        return [
            {"cell": {**cell, FIRST: cell[FIRST] + at}, "loss": round(nll / max(1, tokens), 6), "tokens": tokens}
            | {"bytes": size, "right": right}
            for at, (nll, tokens, size, right) in enumerate(
                zip(*(part.tolist() for part in (self.nll, self.tokens, self.bytes, self.right)), strict=True)
            )
        ]

    def first(self, count: int) -> "ChunkLosses":
        """The first `count` chunks."""
        return ChunkLosses(self.nll[:count], self.tokens[:count], self.bytes[:count], self.right[:count])


@torch.no_grad()
def read_chunks(model: Model, exam: EvaluationData, batch: Batch, position_offset: int = 0) -> ChunkLosses:
    """The loss of each row of a batch.

    Logits are computed in chunks of `HEAD`, never for all rows and positions at once. On a CPU rows are read a few at a
    time.
    """
    rows, time = batch.tokens.ids.shape
    cpu = batch.tokens.ids.device.type == "cpu"
    share = max(1, (PIECE if cpu else CHUNK) // max(1, time))
    nll, right = [], []
    for first in range(0, rows, share):
        piece = rows_of(batch, slice(first, first + share))
        output = model(model.assign_positions(piece.tokens, StepContext.fixed(position_offset)), piece.source)
        each, correct = _losses(output.hidden, output.head, piece.targets, len(exam.vocabulary.symbols))
        nll.append(each.double().sum(1))
        right.append(correct.sum(1))
    target_mask = (batch.targets != IGNORE).cpu().numpy()
    targets = np.where(target_mask, batch.targets.cpu().numpy(), 0)
    size = exam.token_bytes.of_targets(batch.tokens.ids.cpu().numpy(), targets) if exam.token_bytes else 0 * targets
    return ChunkLosses(
        torch.cat(nll).cpu().numpy() if nll else np.zeros(0),
        target_mask.sum(1),
        np.where(target_mask, size, 0).sum(1),
        torch.cat(right).cpu().numpy() if right else np.zeros(0, dtype=np.int64),
    )


def _losses(hidden: Tensor, head: Any, targets: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The loss of each target and whether it is the most probable token, `[rows, time]`; both 0 without a target."""
    most = HEAD.get(hidden.device.type, HEAD_ELSEWHERE)
    width = max(1, most // vocabulary)
    flat, flat_targets = hidden.flatten(0, 1), targets.flatten()
    losses = torch.empty(len(flat), dtype=torch.float32, device=hidden.device)
    correct = torch.empty(len(flat), dtype=torch.bool, device=hidden.device)
    for first in range(0, len(flat), width):
        here = slice(first, first + width)
        logits = head(flat[here]).float()
        losses[here] = torch.nn.functional.cross_entropy(
            logits, flat_targets[here], ignore_index=IGNORE, reduction="none"
        )
        correct[here] = logits.argmax(-1) == flat_targets[here]
    return losses.view_as(targets), correct.view_as(targets)


def read_language(
    model: Model, exam: EvaluationData, batches: Iterable[Batch], position_offset: int = 0
) -> Likelihoods:
    """The sums over batches of running text, each of which is one batch of the published mean over batches.

    >>> read_language(model, exam, batches).record()
    {"loss": 1.7294, "perplexity": 5.63726, "bits_per_byte": 0.6021, "mean_of_exp": 5.6385, ...}
    """
    return Likelihoods.together(
        read_chunks(model, exam, batch, position_offset).likelihoods().as_batch() for batch in batches
    )


def read_portion(
    model: Model,
    exam: EvaluationData,
    cell: Mapping[str, int],
    *,
    count: int,
    position_offset: int = 0,
    split: str = "test",
) -> ChunkLosses:
    """`count` chunks of running text from `cell["chunk"]` on, of `cell["context_length"]` tokens each."""
    pinned = exam.task.pinned(**{axis: size for axis, size in cell.items() if axis != FIRST})
    device = next(model.parameters()).device
    batch = exam.batch(pinned.examples(split, 0, cell[FIRST], count), cell[FIRST])
    return read_chunks(model, exam, batch.to(device), position_offset)


def evaluate_portion(
    model: Model,
    exam: EvaluationData,
    cell: Mapping[str, int],
    *,
    count: int,
    position_offset: int = 0,
    split: str = "test",
) -> dict[str, Any]:
    """The record of one portion of running text: a pure function of the weights and of what is given here.

    >>> evaluate_portion(model, exam, {"context_length": 512, "chunk": 0}, count=256)
    {"cell": {"context_length": 512, "chunk": 0}, "count": 256, "loss": 1.7294, ..., "language": {"nll": 226683.1, ...}}

    `language` has the sums by which portions are merged (`Likelihoods.of_sums`); all other entries are of
    this portion alone. Raises `UserError` for a model that looks ahead.
    """
    refuse_ahead(model, exam)
    found = read_portion(model, exam, cell, count=count, position_offset=position_offset, split=split).likelihoods()
    return {
        "cell": dict(cell),
        "count": found.chunks,
        **found.record(),
        "language": found.sums(),
        "position_offset": position_offset,
        "seen": False,
        "tokenizer": _fingerprint(exam),
        "method": "one pass",
    }


def _fingerprint(exam: EvaluationData) -> str | None:
    """The fingerprint of the tokenizer of running text."""
    return str(exam.task.pieces().fingerprint)[:12] if isinstance(exam.task, LanguageModeling) else None


def context_region(cell: Mapping[str, int], trained: Mapping[str, Span]) -> str:
    """The region of a context: `in_distribution`, `ood_test` (longer than any that was trained) or `below`."""
    context, span = cell["context_length"], trained["context_length"]
    return "in_distribution" if context in span else "ood_test" if context > span.high else "below"


def portions_of(task: Task, most: int | None = None, split: str = "test") -> list[tuple[int, int]]:
    """The portions of running text that an evaluation goes through: (first chunk, how many), of the first `most` chunks
    or all. Portions of the same context start at the same chunks, whatever `most` is."""
    there = chunks_of(task, split)
    size = max(1, PORTION // max(span.high for span in task.trained().values()))
    return list(portions(there if most is None else min(most, there), size))


def chunks_of(task: Task, split: str) -> int:
    """How many chunks of running text a split of a task has."""
    assert isinstance(task, LanguageModeling), "running text is a LanguageModeling"
    return task.chunks(split)


def portions(chunks: int, size: int) -> Iterator[tuple[int, int]]:
    """(first chunk, how many) of each portion of so many chunks.

    >>> list(portions(600, 256))
    [(0, 256), (256, 256), (512, 88)]
    """
    for first in range(0, chunks, size):
        yield first, min(size, chunks - first)
