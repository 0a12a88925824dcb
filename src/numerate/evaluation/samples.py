"""Decoded answers of a model as text, for samples and predictions."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from numerate.batch import IGNORE_INDEX, Batch, Model, StepContext, Tokens
from numerate.evaluation.beams import PUBLISHED_EXTRA_TOKENS, beam_search
from numerate.evaluation.evaluation_data import (
    EXTRA_TEXT_TOKENS,
    EvaluationData,
    extract_prompts,
    make_batches,
    split_batch,
)
from numerate.evaluation.evaluator import Method
from numerate.evaluation.exact_match import MatchCounts, compare_with_targets
from numerate.evaluation.generate import greedy_decode
from numerate.evaluation.text_answers import restore_number_format
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.vocabulary import BOS, EOS


@dataclass(frozen=True)
class AnswerSample:
    """One answer: `question`, `correct_answer` and `prediction` in plain format, `model_text` in the model's own.

    Numbers of a number head are inserted into the texts. `correct` is the exact match of an evaluation, end and numbers
    included; None, as `correct_answer`, where the answer is unknown. `probability` is that of all generated tokens
    under the model. `first_error` is the position in the answer, from 0, of the first wrong token, None where none is.
    `ended` is whether it stopped by itself.
    """

    question: str
    correct_answer: str | None
    prediction: str
    correct: bool | None
    model_text: str
    probability: float
    first_error: int | None
    ended: bool

    def record(self, cell: Mapping[str, int]) -> dict[str, Any]:
        """A line of samples.jsonl or predictions.jsonl."""
        fields = asdict(self)
        fields["probability"] = round(self.probability, 6)
        return {"cell": dict(cell), **fields}


def sample_answers(
    model: Model,
    evaluation_data: EvaluationData,
    questions: Questions,
    position_offset: int = 0,
    extra_tokens: int | None = None,
    *,
    method: Method = "one pass",
    are_answers_known: bool = True,
) -> list[AnswerSample]:
    """Decodes every question: by beam search for `method="beams"`, and else greedily, which gives the same as one
    pass.

    `extra_tokens` tokens beyond the target's length are allowed: by default 2, and `EXTRA_TEXT_TOKENS` where answers
    are texts; beam search has the published number at least. For per-token labels and masks the prediction is the
    argmax at every target position. If the answers are not `are_answers_known`, those of the questions only give the
    length.
    """
    samples: list[AnswerSample] = []
    extra_tokens = (2 if questions.texts is None else EXTRA_TEXT_TOKENS) if extra_tokens is None else extra_tokens
    for batch in make_batches(evaluation_data, questions, model):
        decoded = _decode_batch(model, evaluation_data, batch, position_offset, extra_tokens, method == "beams")
        for row in range(len(decoded.ids)):
            question, answer = format_question(questions, len(samples))
            ids, answer_text = decoded.answer(evaluation_data, row)
            if questions.labels is not None:
                answer_text = _labels_at_positions(batch, row, ids, evaluation_data)
            first_error = int(decoded.match_counts.first_error[row])
            samples.append(
                AnswerSample(
                    question=question,
                    correct_answer=answer if are_answers_known else None,
                    # Digits in a task without number slots are text, which is never reversed.
                    prediction=to_plain_format(evaluation_data, answer_text)
                    if questions.numbers.lengths.shape[1]
                    else answer_text,
                    correct=bool(decoded.match_counts.correct[row]) if are_answers_known else None,
                    model_text=decoded.prompt_text(evaluation_data, row) + answer_text,
                    probability=math.exp(decoded.log_probability[row]),
                    first_error=first_error if are_answers_known and first_error >= 0 else None,
                    ended=EOS in ids,
                )
            )
    return samples


@dataclass(frozen=True)
class _DecodedBatch:
    """The answers to a batch: ids, the number predicted with each, if any, and the prompts."""

    ids: list[list[int]]
    number_values: list[list[float]] | None
    log_probability: list[float]
    match_counts: MatchCounts
    prompts: Tokens | None

    def answer(self, evaluation_data: EvaluationData, row: int) -> tuple[list[int], str]:
        """The ids of a row up to and including the end token, and their text."""
        ids = self.ids[row]
        if EOS in ids and (evaluation_data.layout.is_autoregressive or evaluation_data.layout.has_mask_tokens):
            ids = ids[: ids.index(EOS) + 1]
        return ids, _text(
            evaluation_data, ids, None if self.number_values is None else self.number_values[row][: len(ids)]
        )

    def prompt_text(self, evaluation_data: EvaluationData, row: int) -> str:
        """The text of the prompt; empty if the answer is inside the row."""
        if self.prompts is None:
            return ""
        length, values = int(self.prompts.lengths[row]), self.prompts.number_values
        ids = self.prompts.ids[row, :length].tolist()
        return _text(evaluation_data, ids, None if values is None else values[row, :length].tolist())


def _text(evaluation_data: EvaluationData, ids: list[int], values: list[float] | None) -> str:
    if values is None:
        return evaluation_data.tokenizer.decode(ids, evaluation_data.vocabulary)
    return evaluation_data.tokenizer.decode_with_number_values(ids, values, evaluation_data.vocabulary)


def _decode_batch(
    model: Model,
    evaluation_data: EvaluationData,
    batch: Batch,
    position_offset: int,
    extra_tokens: int,
    use_beam_search: bool,
) -> _DecodedBatch:
    if not evaluation_data.layout.is_autoregressive:
        return _predict_labels(model, evaluation_data, batch, position_offset)
    prompts, max_target_tokens = extract_prompts(batch)
    search = beam_search if use_beam_search else greedy_decode
    more = max(extra_tokens, PUBLISHED_EXTRA_TOKENS) if use_beam_search else extra_tokens
    generated = search(model, prompts, max_target_tokens + more, source=batch.source, position_offset=position_offset)
    num_padding = max(0, max_target_tokens - generated.ids.shape[1])
    ids = pad(generated.ids, (0, num_padding))
    number_values = (
        None if generated.number_values is None else pad(generated.number_values, (0, num_padding), value=1.0)
    )
    return _DecodedBatch(
        generated.ids.tolist(),
        None if generated.number_values is None else generated.number_values.tolist(),
        generated.log_probability.tolist(),
        compare_with_targets(evaluation_data, ids[:, :max_target_tokens], batch, number_values),
        prompts if batch.source is None else batch.source,
    )


def _labels_at_positions(batch: Batch, row: int, ids: list[int], evaluation_data: EvaluationData) -> str:
    """Labels at the target positions, and dots elsewhere: `. 66 67`."""
    labels = dict(zip(batch.target_positions[row].tolist(), ids, strict=False))
    read = batch.tokens.ids[row, : int(batch.tokens.lengths[row])].tolist()
    symbols = evaluation_data.vocabulary.tokens
    return " ".join(symbols[labels[place]] if place in labels else "." for place, i in enumerate(read) if i != BOS)


@torch.no_grad()
def _predict_labels(model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int) -> _DecodedBatch:
    """The predictions at the target positions of whole rows, in the same sub-batches as in evaluation."""
    parts = [
        model(
            model.assign_positions(piece.tokens, StepContext.for_evaluation(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        )
        for piece in split_batch(batch)
    ]
    log_probability, ids = torch.cat([part.logits for part in parts]).float().log_softmax(-1).max(-1)
    numbers = (
        [part.number_predictions for part in parts]
        if evaluation_data.layout.has_mask_tokens or evaluation_data.has_number_tokens
        else []
    )
    values = torch.cat([one for one in numbers if one is not None]) if numbers and numbers[0] is not None else None
    target_mask = batch.target_ids != IGNORE_INDEX
    counts = target_mask.sum(1).tolist()
    return _DecodedBatch(
        [row[:count] for row, count in zip(ids.tolist(), counts, strict=True)],
        None
        if values is None
        else [row_values[:count] for row_values, count in zip(values.tolist(), counts, strict=True)],
        log_probability.where(target_mask, 0.0).sum(1).tolist(),
        compare_with_targets(evaluation_data, ids, batch, values),
        None,
    )


def to_plain_format(evaluation_data: EvaluationData, text: str) -> str:
    """Numbers from the model's format back to plain ones: with `Digits(digit_order="reversed")`, `975` is `579`."""
    return restore_number_format(evaluation_data.tokenizer, text)
