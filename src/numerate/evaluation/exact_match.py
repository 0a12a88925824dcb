"""Exact match and digit accuracy of a batch of answers: in one teacher-forced forward pass, or by decoding."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from numerate.batch import IGNORE, Batch, Model, StepContext
from numerate.evaluation.beams import PUBLISHED_SPARE, beam_search
from numerate.evaluation.evaluation_data import EvaluationData, pieces, prompts_of
from numerate.evaluation.generate import greedy
from numerate.evaluation.labels import Labels


@dataclass(frozen=True)
class MatchCounts:
    """What is right of each answer of a batch.

    `right`: all target tokens, the end token included. `first_wrong`: the position in the answer (from 0) of the first
    wrong argmax, -1 where none is. `digits_right` of `digits` target digits are right, teacher-forced. `said_right`:
    which of the target tokens are right, in the order of the row; `target_mask` where there is one.
    """

    right: Bool[Tensor, " rows"]
    first_wrong: Int[Tensor, " rows"]
    digits_right: int
    digits: int
    said_right: Bool[Tensor, "rows targets"]
    target_mask: Bool[Tensor, "rows targets"]


@torch.no_grad()
def mark(model: Model, exam: EvaluationData, batch: Batch, position_offset: int = 0) -> MatchCounts:
    """Scores a batch in one forward pass (on a CPU, in one per piece)."""
    return mark_with_predictions(model, exam, batch, position_offset)[0]


def mark_with_predictions(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int
) -> tuple[MatchCounts, Tensor, Tensor | None]:
    """The same with the predicted ids, `[rows, targets]`, and the numbers predicted with them, where answers are masked
    and the model has a number head."""
    predictions = torch.cat([_predicted_in(model, piece, position_offset) for piece in pieces(batch)])
    values = _numbers_in(model, batch, position_offset) if exam.layout.masks or exam.carries else None
    return marked(exam, predictions, batch, values), predictions, values if exam.layout.masks else None


def _numbers_in(model: Model, batch: Batch, position_offset: int) -> Tensor | None:
    """The predictions of the number head at the target positions; None without one."""
    found: list[Tensor] = []
    for piece in pieces(batch):
        values = model(
            model.assign_positions(piece.tokens, StepContext.fixed(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        ).values
        if values is None:
            return None
        found.append(values)
    return torch.cat(found)


def _predicted_in(model: Model, batch: Batch, position_offset: int) -> Int[Tensor, "rows targets"]:
    tokens = model.assign_positions(batch.tokens, StepContext.fixed(position_offset))
    return model(tokens, batch.source, target_positions=batch.target_positions).logits.argmax(-1)  # type: ignore[no-any-return]


def marked(
    exam: EvaluationData, predictions: Int[Tensor, "rows targets"], batch: Batch, values: Tensor | None = None
) -> MatchCounts:
    """Compares predictions with targets; `values` are the numbers predicted with the tokens."""
    targets = batch.target_ids
    target_mask = targets != IGNORE
    wrong = target_mask & (predictions != targets)
    if exam.carries:
        wrong |= exam.is_carrier(targets) & _other_number(batch, values)
    digit = exam.is_digit(targets) & target_mask
    first = torch.where(wrong.any(1), wrong.long().argmax(1), -1)
    return MatchCounts(
        ~wrong.any(1), first, int((digit & ~wrong).sum()), int(digit.sum()), target_mask & ~wrong, target_mask
    )


def _other_number(batch: Batch, values: Tensor | None) -> Tensor:
    """Where the predicted number differs from the target by more than float32 rounding; everywhere without one."""
    if values is None or batch.target_values is None:
        return torch.ones_like(batch.target_ids, dtype=torch.bool)
    expected = batch.target_values.gather(1, batch.target_positions)
    return ~torch.isclose(values[:, : expected.shape[1]].to(expected), expected, rtol=1e-6, atol=0.0)


def labels_of(exam: EvaluationData, batch: Batch, marks: MatchCounts) -> Labels:
    """The scores of labels by position, of a batch with labels."""
    answers = exam.symbols[batch.target_ids.clamp(min=0).cpu().numpy()]
    return Labels.of(marks.said_right.cpu().numpy(), marks.target_mask.cpu().numpy(), answers, exam.trained_labels)


@torch.no_grad()
def mark_by_decoding(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int = 0, spare: int = 0, *, beams: bool = False
) -> tuple[MatchCounts, Tensor]:
    """Scores a batch by decoding every answer; returns the predicted ids too (rows x positions, PAD behind the end).

    `spare` tokens beyond the longest target may be generated; they do not change what is right. With `beams` by beam
    search, with the published number of spare tokens at least.
    """
    marks, predictions, _ = decode_with_predictions(model, exam, batch, position_offset, spare, beams)
    return marks, predictions


def decode_with_predictions(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int, spare: int, beams: bool
) -> tuple[MatchCounts, Tensor, Tensor | None]:
    """The same as `mark_by_decoding`, with the numbers predicted with the tokens, of a model with a number head."""
    prompts, most = prompts_of(batch)
    most += max(spare, PUBLISHED_SPARE) if beams else spare
    search = beam_search if beams else greedy
    found = search(model, prompts, most, source=batch.source, position_offset=position_offset)
    targets = batch.target_ids
    width = targets.shape[1]
    more = max(0, width - found.ids.shape[1])
    predictions = torch.nn.functional.pad(found.ids, (0, more))
    values = None if found.values is None else torch.nn.functional.pad(found.values, (0, more), value=1.0)
    return marked(exam, predictions[:, :width], batch, values), predictions, values


@torch.no_grad()
def likelihood(model: Model, batch: Batch, position_offset: int = 0) -> tuple[float, int, int]:
    """The teacher-forced likelihood of the targets of a batch, ends included and padding not: the sum of
    -ln(probability) in nats, the count of tokens, and how many of them are the most probable."""
    nll, tokens, right = 0.0, 0, 0
    for piece in pieces(batch):
        logits = model(
            model.assign_positions(piece.tokens, StepContext.fixed(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        ).logits
        scores, targets = logits.float().flatten(0, 1), piece.target_ids.flatten()
        each = torch.nn.functional.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="none")
        nll += float(each.double().sum())
        tokens += int((targets != IGNORE).sum())
        right += int((scores.argmax(-1) == targets).sum())
    return nll, tokens, right
