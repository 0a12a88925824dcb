"""Evaluation of language modeling, portion by portion: `numerate.evaluation.likelihoods` has the sums."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, Model, StepContext
from numerate.config import Span
from numerate.evaluation.evaluation_data import (
    MAX_TOKENS_PER_BATCH,
    MAX_TOKENS_PER_CPU_FORWARD,
    EvaluationData,
    slice_rows,
)
from numerate.evaluation.evaluator import check_causal
from numerate.evaluation.likelihoods import CHUNK_AXIS, Likelihoods
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task

MAX_LOGITS = {"cpu": 2**23}
"""Number of logits computed at a time, by device: 32 MB of float32."""

DEFAULT_MAX_LOGITS = 2**24

MAX_TOKENS_PER_PORTION = 2**17
"""Tokens of one portion of text, the unit that is kept in memory and recorded at once."""


@dataclass(frozen=True, eq=False)
class ChunkLosses:
    """The losses of chunks of text: `nll` in nats, `num_tokens`, their `num_bytes` of UTF-8, and `num_correct_tokens`,
    the number of tokens with the highest probability. All `[chunks]`."""

    nll: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    num_correct_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nll)

    def likelihoods(self) -> Likelihoods:
        """The sums over chunks."""
        size = self.num_bytes.astype(np.float64)
        return Likelihoods(
            float(self.nll.sum()),
            int(self.num_tokens.sum()),
            int(self.num_bytes.sum()),
            int(self.num_correct_tokens.sum()),
            len(self),
            float((self.nll**2).sum()),
            float((self.nll * self.num_tokens).sum()),
            int((self.num_tokens**2).sum()),
            float((self.nll * size).sum()),
            int((self.num_bytes**2).sum()),
        )

    def records(self, cell: Mapping[str, int]) -> list[dict[str, Any]]:
        """A record for each chunk of a portion, with its loss in nats per token."""
        return [
            {
                "cell": {**cell, CHUNK_AXIS: cell[CHUNK_AXIS] + at},
                "loss": round(nll / max(1, tokens), 6),
                "tokens": tokens,
            }
            | {"bytes": size, "correct_tokens": correct}
            for at, (nll, tokens, size, correct) in enumerate(
                zip(
                    *(part.tolist() for part in (self.nll, self.num_tokens, self.num_bytes, self.num_correct_tokens)),
                    strict=True,
                )
            )
        ]

    def first(self, count: int) -> "ChunkLosses":
        """The first `count` chunks."""
        return ChunkLosses(
            self.nll[:count], self.num_tokens[:count], self.num_bytes[:count], self.num_correct_tokens[:count]
        )


@torch.no_grad()
def compute_chunk_losses(
    model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int = 0
) -> ChunkLosses:
    """The loss of each row of a batch.

    Logits are computed in chunks of `MAX_LOGITS`, never for all rows and positions at once. On a CPU a few rows are
    processed at a time.
    """
    rows, time = batch.tokens.ids.shape
    cpu = batch.tokens.ids.device.type == "cpu"
    rows_per_forward = max(1, (MAX_TOKENS_PER_CPU_FORWARD if cpu else MAX_TOKENS_PER_BATCH) // max(1, time))
    nll, num_correct = [], []
    for first in range(0, rows, rows_per_forward):
        piece = slice_rows(batch, slice(first, first + rows_per_forward))
        output = model(model.assign_positions(piece.tokens, StepContext.for_evaluation(position_offset)), piece.source)
        token_nll, correct = _token_losses(
            output.hidden_states, output.lm_head, piece.targets, len(evaluation_data.vocabulary.tokens)
        )
        nll.append(token_nll.double().sum(1))
        num_correct.append(correct.sum(1))
    target_mask = (batch.targets != IGNORE_INDEX).cpu().numpy()
    targets = np.where(target_mask, batch.targets.cpu().numpy(), 0)
    byte_counts = (
        evaluation_data.token_bytes.target_byte_counts(batch.tokens.ids.cpu().numpy(), targets)
        if evaluation_data.token_bytes
        else 0 * targets
    )
    return ChunkLosses(
        torch.cat(nll).cpu().numpy() if nll else np.zeros(0),
        target_mask.sum(1),
        np.where(target_mask, byte_counts, 0).sum(1),
        torch.cat(num_correct).cpu().numpy() if num_correct else np.zeros(0, dtype=np.int64),
    )


def _token_losses(hidden: Tensor, head: Any, targets: Tensor, vocabulary_size: int) -> tuple[Tensor, Tensor]:
    """The loss of each target and whether it is the most probable token, `[rows, time]`; both 0 without a target."""
    max_logits = MAX_LOGITS.get(hidden.device.type, DEFAULT_MAX_LOGITS)
    positions_per_forward = max(1, max_logits // vocabulary_size)
    flat_hidden, flat_targets = hidden.flatten(0, 1), targets.flatten()
    losses = torch.empty(len(flat_hidden), dtype=torch.float32, device=hidden.device)
    correct = torch.empty(len(flat_hidden), dtype=torch.bool, device=hidden.device)
    for first in range(0, len(flat_hidden), positions_per_forward):
        chunk = slice(first, first + positions_per_forward)
        logits = head(flat_hidden[chunk]).float()
        losses[chunk] = torch.nn.functional.cross_entropy(
            logits, flat_targets[chunk], ignore_index=IGNORE_INDEX, reduction="none"
        )
        correct[chunk] = logits.argmax(-1) == flat_targets[chunk]
    return losses.view_as(targets), correct.view_as(targets)


def compute_likelihoods(
    model: Model, evaluation_data: EvaluationData, batches: Iterable[Batch], position_offset: int = 0
) -> Likelihoods:
    """The sums over batches of text, each of which is one batch of the published mean over batches.

    For example:

        compute_likelihoods(model, evaluation_data, batches).record()
        {"loss": 1.7294, "perplexity": 5.63726, "bits_per_byte": 0.6021, "mean_of_exp": 5.6385, ...}
    """
    return Likelihoods.merge(
        compute_chunk_losses(model, evaluation_data, batch, position_offset).likelihoods().as_batch()
        for batch in batches
    )


def compute_portion_losses(
    model: Model,
    evaluation_data: EvaluationData,
    cell: Mapping[str, int],
    *,
    count: int,
    position_offset: int = 0,
    split: str = "test",
) -> ChunkLosses:
    """`count` chunks of text from `cell["chunk"]` on, of `cell["context_length"]` tokens each."""
    cell_task = evaluation_data.task.at_cell(**{axis: size for axis, size in cell.items() if axis != CHUNK_AXIS})
    device = next(model.parameters()).device
    batch = evaluation_data.batch(cell_task.examples(split, 0, cell[CHUNK_AXIS], count), cell[CHUNK_AXIS])
    return compute_chunk_losses(model, evaluation_data, batch.to(device), position_offset)


def evaluate_portion(
    model: Model,
    evaluation_data: EvaluationData,
    cell: Mapping[str, int],
    *,
    count: int,
    position_offset: int = 0,
    split: str = "test",
) -> dict[str, Any]:
    """The record of one portion of a language modeling task: a pure function of the weights and the arguments.

        evaluate_portion(model, evaluation_data, {"context_length": 512, "chunk": 0}, count=256)
        {"cell": {"context_length": 512, "chunk": 0}, "count": 256, "loss": 1.7294, "language": {"nll": 226683.1, ...}}

    `language` has the sums by which portions are merged (`Likelihoods.from_sums`); all other entries are of
    this portion alone. Raises `UserError` for a model that is not causal.
    """
    check_causal(model, evaluation_data)
    likelihoods = compute_portion_losses(
        model, evaluation_data, cell, count=count, position_offset=position_offset, split=split
    ).likelihoods()
    return {
        "cell": dict(cell),
        "count": likelihoods.chunks,
        **likelihoods.record(),
        "language": likelihoods.sums(),
        "position_offset": position_offset,
        "overlaps_training": False,
        "tokenizer": _tokenizer_fingerprint(evaluation_data),
        "method": "one pass",
    }


def _tokenizer_fingerprint(evaluation_data: EvaluationData) -> str | None:
    """The fingerprint of the tokenizer used for language modeling."""
    return (
        str(evaluation_data.task.load_tokenizer().fingerprint)[:12]
        if isinstance(evaluation_data.task, LanguageModeling)
        else None
    )


def context_region(cell: Mapping[str, int], trained: Mapping[str, Span]) -> str:
    """The region of a context: `in_distribution`, `ood_test` (longer than any that was trained) or `below`."""
    context, span = cell["context_length"], trained["context_length"]
    return "in_distribution" if context in span else "ood_test" if context > span.high else "below"


def evaluation_portions(task: Task, max_chunks: int | None = None, split: str = "test") -> list[tuple[int, int]]:
    """The portions of text that an evaluation goes through: (first chunk, how many), of the first `max_chunks` chunks
    or all. Portions of the same context start at the same chunks, whatever `max_chunks` is."""
    num_available = num_chunks(task, split)
    chunks_per_portion = max(1, MAX_TOKENS_PER_PORTION // max(span.high for span in task.training_spans().values()))
    return list(
        split_into_portions(num_available if max_chunks is None else min(max_chunks, num_available), chunks_per_portion)
    )


def num_chunks(task: Task, split: str) -> int:
    """Number of chunks of text in a split of a task."""
    assert isinstance(task, LanguageModeling), "the task must be LanguageModeling"
    return task.num_chunks(split)


def split_into_portions(total_chunks: int, chunks_per_portion: int) -> Iterator[tuple[int, int]]:
    """(first chunk, number of chunks) of each portion with at most `portion_size` chunks.

    >>> list(split_into_portions(600, 256))
    [(0, 256), (256, 256), (512, 88)]
    """
    for first in range(0, total_chunks, chunks_per_portion):
        yield first, min(chunks_per_portion, total_chunks - first)
