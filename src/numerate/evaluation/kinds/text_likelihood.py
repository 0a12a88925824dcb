"""The kind of evaluation of language modeling: the likelihood of text, portion by portion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, Model, StepContext
from numerate.evaluation.evaluation_data import EvaluationData, split_batch
from numerate.evaluation.evaluator import CellRequest, Evaluation
from numerate.evaluation.grid import Cell, Grid
from numerate.evaluation.kinds.kind import EvaluationKind, Spans
from numerate.evaluation.likelihoods import CHUNK_AXIS, Likelihoods
from numerate.evaluation.prompts import LanguageModelingPrompts, PromptProcessor
from numerate.tasks.language_modeling import LanguageModeling

MAX_LOGITS = {"cpu": 2**23, "": 2**24}
"""Number of logits computed at a time, by device: on a CPU 32 MB of float32."""

MAX_TOKENS_PER_PORTION = 2**17
"""Tokens of one portion of text, the unit that is kept in memory and recorded at once."""


class ChunkLosses(NamedTuple):
    """The losses of chunks of text in nats, their numbers of tokens and of bytes of UTF-8, and how many of the tokens
    have the highest probability."""

    nll: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    num_correct_tokens: NDArray[np.int64]

    def likelihoods(self, count: int | None = None) -> Likelihoods:
        """The sums over the first `count` chunks, or all."""
        nll, tokens, num_bytes, correct = (column[:count] for column in self)
        columns: dict[str, Any] = {"nll": nll, "tokens": tokens, "bytes": num_bytes, "correct_tokens": correct}
        columns |= {"nll_squared": nll**2, "nll_tokens": nll * tokens, "tokens_squared": tokens**2}
        columns |= {"nll_bytes": nll * num_bytes, "bytes_squared": num_bytes**2}
        return Likelihoods(chunks=len(nll), **{name: column.sum().item() for name, column in columns.items()})


@torch.no_grad()
def compute_chunk_losses(
    model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int = 0
) -> ChunkLosses:
    """The loss of each row of a batch, by the parts of `split_batch`.

    Logits are computed in chunks of `MAX_LOGITS`, never for all rows and positions at once.
    """
    nll, num_correct = [], []
    for piece in split_batch(batch):
        output = model(model.assign_positions(piece.tokens, StepContext.for_evaluation(position_offset)), piece.source)
        token_nll, correct = _token_losses(
            output.hidden_states, output.lm_head, piece.targets, len(evaluation_data.vocabulary.tokens)
        )
        nll.append(token_nll.double().sum(1))
        num_correct.append(correct.sum(1))
    target_mask = (batch.targets != IGNORE_INDEX).cpu().numpy()
    targets = np.where(target_mask, batch.targets.cpu().numpy(), 0)
    byte_counts = evaluation_data.token_bytes.target_byte_counts(batch.tokens.ids.cpu().numpy(), targets)
    return ChunkLosses(
        torch.cat(nll).cpu().numpy(),
        target_mask.sum(1),
        np.where(target_mask, byte_counts, 0).sum(1),
        torch.cat(num_correct).cpu().numpy(),
    )


def _token_losses(hidden: Tensor, head: Any, targets: Tensor, vocabulary_size: int) -> tuple[Tensor, Tensor]:
    """The loss of each target and whether it is the most probable token, `[rows, time]`; both 0 without a target."""
    max_logits = MAX_LOGITS.get(hidden.device.type, MAX_LOGITS[""])
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


def compute_portion_losses(model: Model, evaluation_data: EvaluationData, request: CellRequest) -> ChunkLosses:
    """The losses of `count` chunks of text from `cell["chunk"]` on, of `cell["context_length"]` tokens each."""
    first, device = request.cell[CHUNK_AXIS], next(model.parameters()).device
    task = _task_at(evaluation_data, tuple(request.cell.items()))
    batch = evaluation_data.batch(task.examples(request.split, 0, first, request.num_questions), first)
    return compute_chunk_losses(model, evaluation_data, batch.to(device), request.position_offset)


@dataclass(frozen=True)
class TextLikelihood(EvaluationKind):
    """Language modeling: loss, perplexity and bits per byte of text, where every token is a target."""

    unit: ClassVar[str] = "chunks"
    validates_likelihood: ClassVar[bool] = True

    def default_count(self, evaluation: Evaluation) -> int:
        return evaluation.chunks or 2**62  # more than any corpus has

    def cells(self, evaluation_data: EvaluationData, grid: Grid, count: int) -> list[Cell]:
        """Each context length, for each portion of the first `count` chunks, with the index of its first chunk, which
        does not depend on `count`."""
        cells: list[Cell] = []
        for cell in grid.cells():
            task = _task_at(evaluation_data, cell)
            num_chunks = min(count, task.num_chunks("test"))
            cells += [(*cell, (CHUNK_AXIS, first)) for first in range(0, num_chunks, _chunks_per_portion(task))]
        return cells

    def num_questions(self, evaluation_data: EvaluationData, cell: Cell, count: int) -> int:
        task = _task_at(evaluation_data, cell)
        first_chunk: int = dict(cell)[CHUNK_AXIS]
        return min(_chunks_per_portion(task), min(count, task.num_chunks("test")) - first_chunk)

    def region(self, cell: Mapping[str, int], training: Spans, ood_validation: Spans | None) -> str:
        """`in_distribution`, `ood_test` (a context longer than any that was trained) or `below`."""
        context, span = cell["context_length"], training["context_length"]
        return "in_distribution" if context in span else "ood_test" if context > span.high else "below"

    def score(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> dict[str, Any]:
        """The record of one portion: its metrics, and as `language` the sums by which portions are merged."""
        self.check_causal(model, evaluation_data)
        likelihoods = compute_portion_losses(model, evaluation_data, request).likelihoods()
        return {
            "cell": dict(request.cell),
            "count": likelihoods.chunks,
            **likelihoods.record(),
            "language": likelihoods.sums(),
            "position_offset": request.position_offset,
            "overlaps_training": False,
            "tokenizer": str(_task_at(evaluation_data, ()).load_tokenizer().fingerprint)[:12],
            "method": "one pass",
        }

    def predict(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> list[dict[str, Any]]:
        """The loss of each chunk of a portion, in nats per token."""
        found = compute_portion_losses(model, evaluation_data, request)
        lines = []
        for row, (nll, tokens, *others) in enumerate(zip(*(column.tolist() for column in found), strict=True)):
            line = {"cell": dict(request.cell), CHUNK_AXIS: request.cell[CHUNK_AXIS] + row}
            sizes = dict(zip(("bytes", "correct_tokens"), others, strict=True))
            lines.append(line | {"loss": round(nll / max(1, tokens), 6), "tokens": tokens} | sizes)
        return lines

    def prompt_processor(self, evaluation_data: EvaluationData) -> PromptProcessor:
        return LanguageModelingPrompts(_task_at(evaluation_data, ()))

    def context_length(self, evaluation_data: EvaluationData) -> int:
        return _task_at(evaluation_data, ()).context_length


def _task_at(evaluation_data: EvaluationData, cell: Cell) -> LanguageModeling:
    """The task at the context length of a cell."""
    task = evaluation_data.task.at_cell(**{axis: size for axis, size in cell if axis != CHUNK_AXIS})
    assert isinstance(task, LanguageModeling), "the task must be LanguageModeling"
    return task


def _chunks_per_portion(task: LanguageModeling) -> int:
    return max(1, MAX_TOKENS_PER_PORTION // task.context_length)
