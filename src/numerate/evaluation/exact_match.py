"""Exact match and digit accuracy of a batch of answers: in one teacher-forced forward pass, or by decoding."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, Model, StepContext
from numerate.evaluation.beams import PUBLISHED_EXTRA_TOKENS, beam_search
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts, split_batch
from numerate.evaluation.generate import greedy_decode
from numerate.evaluation.labels import LabelCounts


@dataclass(frozen=True)
class MatchCounts:
    """Which answers of a batch are correct.

    `correct`: whether all target tokens are predicted, including the end token. `first_error`: the position in the
    answer (from 0) of the first wrong prediction, -1 if there is none. `num_correct_digits` of `num_digits` target
    digits are correct. `token_correct`: which target tokens are predicted, in the order of the row; `target_mask` marks
    the targets.
    """

    correct: Bool[Tensor, " rows"]
    first_error: Int[Tensor, " rows"]
    num_correct_digits: int
    num_digits: int
    token_correct: Bool[Tensor, "rows targets"]
    target_mask: Bool[Tensor, "rows targets"]


@torch.no_grad()
def score_batch(model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int = 0) -> MatchCounts:
    """Scores a batch in one forward pass (on a CPU, in one for each part of `split_batch`)."""
    return score_with_predictions(model, evaluation_data, batch, position_offset)[0]


def score_with_predictions(
    model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int
) -> tuple[MatchCounts, Tensor, Tensor | None]:
    """The same with the predicted ids, `[rows, targets]`, and the predicted numbers if answers are masked and the model
    has a number head."""
    predictions = torch.cat([_predict_ids(model, piece, position_offset) for piece in split_batch(batch)])
    number_values = (
        _predict_numbers(model, batch, position_offset)
        if evaluation_data.layout.has_mask_tokens or evaluation_data.has_number_tokens
        else None
    )
    return (
        compare_with_targets(evaluation_data, predictions, batch, number_values),
        predictions,
        number_values if evaluation_data.layout.has_mask_tokens else None,
    )


def _predict_numbers(model: Model, batch: Batch, position_offset: int) -> Tensor | None:
    """The predictions of the number head at the target positions; None without one."""
    number_values: list[Tensor] = []
    for piece in split_batch(batch):
        piece_values = model(
            model.assign_positions(piece.tokens, StepContext.for_evaluation(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        ).number_predictions
        if piece_values is None:
            return None
        number_values.append(piece_values)
    return torch.cat(number_values)


def _predict_ids(model: Model, batch: Batch, position_offset: int) -> Int[Tensor, "rows targets"]:
    tokens = model.assign_positions(batch.tokens, StepContext.for_evaluation(position_offset))
    return model(tokens, batch.source, target_positions=batch.target_positions).logits.argmax(-1)  # type: ignore[no-any-return]


def compare_with_targets(
    evaluation_data: EvaluationData,
    predictions: Int[Tensor, "rows targets"],
    batch: Batch,
    number_values: Tensor | None = None,
) -> MatchCounts:
    """Compares predictions with targets; `number_values` are the predictions of the number head."""
    targets = batch.target_ids
    target_mask = targets != IGNORE_INDEX
    wrong = target_mask & (predictions != targets)
    if evaluation_data.has_number_tokens:
        wrong |= evaluation_data.is_number_token(targets) & _number_differs(batch, number_values)
    is_digit = evaluation_data.is_digit(targets) & target_mask
    first_error = torch.where(wrong.any(1), wrong.long().argmax(1), -1)
    return MatchCounts(
        ~wrong.any(1),
        first_error,
        int((is_digit & ~wrong).sum()),
        int(is_digit.sum()),
        target_mask & ~wrong,
        target_mask,
    )


def _number_differs(batch: Batch, number_values: Tensor | None) -> Tensor:
    """Mask of numbers that differ from the target by more than float32 rounding; all True without a number head."""
    if number_values is None or batch.target_number_values is None:
        return torch.ones_like(batch.target_ids, dtype=torch.bool)
    expected = batch.target_number_values.gather(1, batch.target_positions)
    return ~torch.isclose(number_values[:, : expected.shape[1]].to(expected), expected, rtol=1e-6, atol=0.0)


def score_labels(evaluation_data: EvaluationData, batch: Batch, match_counts: MatchCounts) -> LabelCounts:
    """The label scores of a batch, by position."""
    answers = evaluation_data.symbols[batch.target_ids.clamp(min=0).cpu().numpy()]
    return LabelCounts.from_arrays(
        match_counts.token_correct.cpu().numpy(),
        match_counts.target_mask.cpu().numpy(),
        answers,
        evaluation_data.max_training_labels,
    )


@torch.no_grad()
def score_by_decoding(
    model: Model,
    evaluation_data: EvaluationData,
    batch: Batch,
    position_offset: int = 0,
    extra_tokens: int = 0,
    *,
    use_beam_search: bool = False,
) -> tuple[MatchCounts, Tensor]:
    """Scores a batch by decoding every answer; returns the predicted ids too (rows x positions, PAD after the end).

    `extra_tokens` tokens beyond the longest target may be generated; they do not change the score. With
    `use_beam_search`, answers are decoded by beam search with at least `PUBLISHED_EXTRA_TOKENS` extra tokens.
    """
    match_counts, predictions, _ = decode_and_score(
        model, evaluation_data, batch, position_offset, extra_tokens, use_beam_search
    )
    return match_counts, predictions


def decode_and_score(
    model: Model,
    evaluation_data: EvaluationData,
    batch: Batch,
    position_offset: int,
    extra_tokens: int,
    use_beam_search: bool,
) -> tuple[MatchCounts, Tensor, Tensor | None]:
    """Like `score_by_decoding`, and also returns the predictions of the number head, if the model has one."""
    prompts, max_new_tokens = extract_prompts(batch)
    max_new_tokens += max(extra_tokens, PUBLISHED_EXTRA_TOKENS) if use_beam_search else extra_tokens
    search = beam_search if use_beam_search else greedy_decode
    generated = search(model, prompts, max_new_tokens, source=batch.source, position_offset=position_offset)
    targets = batch.target_ids
    num_targets = targets.shape[1]
    num_padding = max(0, num_targets - generated.ids.shape[1])
    predictions = torch.nn.functional.pad(generated.ids, (0, num_padding))
    number_values = (
        None
        if generated.number_values is None
        else torch.nn.functional.pad(generated.number_values, (0, num_padding), value=1.0)
    )
    return (
        compare_with_targets(evaluation_data, predictions[:, :num_targets], batch, number_values),
        predictions,
        number_values,
    )


@torch.no_grad()
def target_likelihood(model: Model, batch: Batch, position_offset: int = 0) -> tuple[float, int, int]:
    """The teacher-forced likelihood of the targets of a batch, including end tokens: the sum of -ln(probability) in
    nats, the number of tokens, and how many of them have the highest probability."""
    nll, num_tokens, num_correct = 0.0, 0, 0
    for piece in split_batch(batch):
        logits = model(
            model.assign_positions(piece.tokens, StepContext.for_evaluation(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        ).logits
        scores, targets = logits.float().flatten(0, 1), piece.target_ids.flatten()
        token_nll = torch.nn.functional.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX, reduction="none")
        nll += float(token_nll.double().sum())
        num_tokens += int((targets != IGNORE_INDEX).sum())
        num_correct += int((scores.argmax(-1) == targets).sum())
    return nll, num_tokens, num_correct
