"""What of the answers to a batch is right: read off one forward behind the right prefix, or decoded token by token."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from numerate.batch import IGNORE, Batch, Model, StepContext
from numerate.evaluation.beams import PUBLISHED_SPARE, beam_search
from numerate.evaluation.exam import EvaluationData, pieces, prompts_of
from numerate.evaluation.generate import greedy
from numerate.evaluation.labels import Labels


@dataclass(frozen=True)
class MatchCounts:
    """How each row of a batch was answered.

    `right`: everything that was asked, the end token included. `first_wrong`: the place in the answer (from 0) of the
    first argmax that is wrong, -1 where none is. `digits_right` of `digits` asked digits are right when the right
    prefix is read. `said_right` tells of each asked token whether it is right, in the order in which a row asks them;
    `asked` where a row asks one at all.
    """

    right: Bool[Tensor, " rows"]
    first_wrong: Int[Tensor, " rows"]
    digits_right: int
    digits: int
    said_right: Bool[Tensor, "rows asked"]
    target_mask: Bool[Tensor, "rows asked"]


@torch.no_grad()
def mark(model: Model, exam: EvaluationData, batch: Batch, position_offset: int = 0) -> MatchCounts:
    """Scores a batch in one forward (on a CPU, in one per piece: rows know nothing of each other)."""
    return mark_with_said(model, exam, batch, position_offset)[0]


def mark_with_said(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int
) -> tuple[MatchCounts, Tensor, Tensor | None]:
    """The same with the ids said, `[rows, asked]`, and the numbers said beside them, of a model that says numbers where
    answers are masked."""
    said = torch.cat([_said_in(model, piece, position_offset) for piece in pieces(batch)])
    values = _numbers_in(model, batch, position_offset) if exam.layout.masks or exam.carries else None
    return marked(exam, said, batch, values), said, values if exam.layout.masks else None


def _numbers_in(model: Model, batch: Batch, position_offset: int) -> Tensor | None:
    """The numbers that are said at the asked places, of a model that says numbers."""
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


def _said_in(model: Model, batch: Batch, position_offset: int) -> Int[Tensor, "rows asked"]:
    tokens = model.assign_positions(batch.tokens, StepContext.fixed(position_offset))
    return model(tokens, batch.source, target_positions=batch.target_positions).logits.argmax(-1)  # type: ignore[no-any-return]


def marked(
    exam: EvaluationData, said: Int[Tensor, "rows asked"], batch: Batch, values: Tensor | None = None
) -> MatchCounts:
    """What was said beside what was asked; `values` are the numbers said beside the tokens."""
    targets = batch.target_ids
    asked = targets != IGNORE
    wrong = asked & (said != targets)
    if exam.carries:
        wrong |= exam.is_carrier(targets) & _other_number(batch, values)
    digit = exam.is_digit(targets) & asked
    first = torch.where(wrong.any(1), wrong.long().argmax(1), -1)
    return MatchCounts(~wrong.any(1), first, int((digit & ~wrong).sum()), int(digit.sum()), asked & ~wrong, asked)


def _other_number(batch: Batch, values: Tensor | None) -> Tensor:
    """Where another number is said than asked for, by more than float32 tells apart; everywhere if none is said."""
    if values is None or batch.target_values is None:
        return torch.ones_like(batch.target_ids, dtype=torch.bool)
    wanted = batch.target_values.gather(1, batch.target_positions)
    return ~torch.isclose(values[:, : wanted.shape[1]].to(wanted), wanted, rtol=1e-6, atol=0.0)


def labels_of(exam: EvaluationData, batch: Batch, marks: MatchCounts) -> Labels:
    """What the marks of a batch with labels say of each place of its rows."""
    answers = exam.symbols[batch.target_ids.clamp(min=0).cpu().numpy()]
    return Labels.of(marks.said_right.cpu().numpy(), marks.target_mask.cpu().numpy(), answers, exam.trained_labels)


@torch.no_grad()
def mark_by_decoding(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int = 0, spare: int = 0, *, beams: bool = False
) -> tuple[MatchCounts, Tensor]:
    """Scores a batch by decoding every answer; returns what was said as well (rows x places, PAD behind the end).

    `spare` tokens beyond the longest right answer may be said. They change nothing of what is right, as that has ended.
    With `beams` by beam search, which is given the published number of spare tokens at least.
    """
    marks, said, _ = decoded_with_said(model, exam, batch, position_offset, spare, beams)
    return marks, said


def decoded_with_said(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int, spare: int, beams: bool
) -> tuple[MatchCounts, Tensor, Tensor | None]:
    """What `mark_by_decoding` gives, and the numbers that were said beside the tokens, of a model that says numbers."""
    prompts, most = prompts_of(batch)
    most += max(spare, PUBLISHED_SPARE) if beams else spare
    search = beam_search if beams else greedy
    found = search(model, prompts, most, source=batch.source, position_offset=position_offset)
    targets = batch.target_ids
    width = targets.shape[1]
    more = max(0, width - found.ids.shape[1])
    said = torch.nn.functional.pad(found.ids, (0, more))
    values = None if found.values is None else torch.nn.functional.pad(found.values, (0, more), value=1.0)
    return marked(exam, said[:, :width], batch, values), said, values


@torch.no_grad()
def likelihood(model: Model, batch: Batch, position_offset: int = 0) -> tuple[float, int, int]:
    """Of the right answers of a batch, their ends included and padding not: the sum of -ln(probability) of their tokens
    behind the right prefix, in nats; how many tokens that are; and how many of them are the likeliest."""
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
