"""Predictions for a batch of questions, in one teacher-forced forward pass or by decoding, and which are correct."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from numerate.batch import IGNORE_INDEX, Batch, Model, Output, StepContext, Tokens
from numerate.evaluation.beams import beam_search
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, extract_prompts, split_batch
from numerate.evaluation.evaluator import Method
from numerate.evaluation.generate import greedy_decode
from numerate.vocabulary import PAD


@dataclass(frozen=True)
class MatchCounts:
    """Which answers of a batch are correct: with all their target tokens, including the end token.

    `first_error` is the position in the answer (from 0) of the first wrong prediction, -1 if there is none.
    `num_correct_digits` of `num_digits` target digits are correct, and `token_correct` of the target tokens, which
    `target_mask` marks.
    """

    correct: Bool[Tensor, " rows"]
    first_error: Int[Tensor, " rows"]
    num_correct_digits: int
    num_digits: int
    token_correct: Bool[Tensor, "rows targets"]
    target_mask: Bool[Tensor, "rows targets"]


@dataclass(frozen=True)
class Predictions:
    """The predictions for a batch: `ids`, PAD after the end and outside of targets; with each the prediction of the
    number head, if the model has one. `log_probability` is that of the tokens of each answer, in nats, None if it was
    not computed; `prompts` are the rows that were continued, None in one forward pass.
    """

    ids: Int[Tensor, "rows tokens"]
    number_values: Float[Tensor, "rows tokens"] | None
    match_counts: MatchCounts
    log_probability: Float[Tensor, " rows"] | None = None
    prompts: Tokens | None = None


@torch.no_grad()
def predict(
    model: Model,
    evaluation_data: EvaluationData,
    batch: Batch,
    position_offset: int = 0,
    *,
    method: Method = "one pass",
    extra_tokens: int = 0,
    with_probability: bool = False,
) -> Predictions:
    """Predicts the targets of a batch, in one forward pass or by decoding every answer.

    `extra_tokens` tokens beyond the longest target may be decoded; they do not change the score. Beam search has at
    least `EXTRA_TEXT_TOKENS` extra tokens. `with_probability` is for one pass: decoding computes it anyway.
    """
    if method == "one pass":
        return _predict_in_one_pass(model, evaluation_data, batch, position_offset, with_probability)
    prompts, num_targets = extract_prompts(batch)
    is_beams = method == "beams"
    max_new_tokens = num_targets + (max(extra_tokens, EXTRA_TEXT_TOKENS) if is_beams else extra_tokens)
    search = beam_search if is_beams else greedy_decode
    generated = search(model, prompts, max_new_tokens, source=batch.source, position_offset=position_offset)
    padding = (0, max(0, num_targets - generated.ids.shape[1]))
    ids = pad(generated.ids, padding)
    values = None if generated.number_values is None else pad(generated.number_values, padding, value=1.0)
    matches = compare_with_targets(evaluation_data, ids[:, :num_targets], batch, values)
    return Predictions(ids, values, matches, generated.log_probability, batch.source or prompts)


def _predict_in_one_pass(
    model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int, with_probability: bool
) -> Predictions:
    ids, numbers, log_probabilities = list[Tensor](), list[Tensor](), list[Tensor]()
    for piece, output in _forward(model, batch, position_offset):
        if with_probability:
            log_probability, piece_ids = output.logits.float().log_softmax(-1).max(-1)
            log_probabilities.append(log_probability.where(piece.target_ids != IGNORE_INDEX, 0.0).sum(1))
        else:
            piece_ids = output.logits.argmax(-1)
        ids.append(piece_ids)
        numbers += [] if output.number_predictions is None else [output.number_predictions]
    predicted, number_values = torch.cat(ids), torch.cat(numbers) if numbers else None
    matches = compare_with_targets(evaluation_data, predicted, batch, number_values)
    total = torch.cat(log_probabilities) if with_probability else None
    return Predictions(predicted.where(matches.target_mask, PAD), number_values, matches, total)


def _forward(model: Model, batch: Batch, position_offset: int) -> Iterator[tuple[Batch, Output]]:
    """The output at the targets of each part of `split_batch`."""
    for piece in split_batch(batch):
        tokens = model.assign_positions(piece.tokens, StepContext.for_evaluation(position_offset))
        yield piece, model(tokens, piece.source, target_positions=piece.target_positions)


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
    num_correct_digits, num_digits = int((is_digit & ~wrong).sum()), int(is_digit.sum())
    return MatchCounts(~wrong.any(1), first_error, num_correct_digits, num_digits, target_mask & ~wrong, target_mask)


def _number_differs(batch: Batch, number_values: Tensor | None) -> Tensor:
    """Mask of numbers that differ from the target by more than float32 rounding; all True without a number head."""
    if number_values is None or batch.target_number_values is None:
        return torch.ones_like(batch.target_ids, dtype=torch.bool)
    expected = batch.target_number_values.gather(1, batch.target_positions)
    return ~torch.isclose(number_values[:, : expected.shape[1]].to(expected), expected, rtol=1e-6, atol=0.0)


@torch.no_grad()
def target_likelihood(model: Model, batch: Batch, position_offset: int = 0) -> tuple[float, int, int]:
    """The teacher-forced likelihood of the targets of a batch, including end tokens: the sum of -ln(probability) in
    nats, the number of tokens, and how many of them have the highest probability."""
    nll, num_tokens, num_correct = 0.0, 0, 0
    for piece, output in _forward(model, batch, position_offset):
        scores, targets = output.logits.float().flatten(0, 1), piece.target_ids.flatten()
        token_nll = cross_entropy(scores, targets, ignore_index=IGNORE_INDEX, reduction="none")
        nll += float(token_nll.double().sum())
        num_tokens += int((targets != IGNORE_INDEX).sum())
        num_correct += int((scores.argmax(-1) == targets).sum())
    return nll, num_tokens, num_correct
