"""Decoded answers of a model as text, for samples and predictions."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, Model
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, make_batches
from numerate.evaluation.evaluator import Method
from numerate.evaluation.exact_match import predict
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
        return {"cell": dict(cell), **asdict(self), "probability": round(self.probability, 6)}


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
    if extra_tokens is None:
        extra_tokens = 2 if questions.texts is None else EXTRA_TEXT_TOKENS
    decodes = evaluation_data.layout.is_autoregressive
    sampled: Method = "one pass" if not decodes else "beams" if method == "beams" else "decoding"
    for batch in make_batches(evaluation_data, questions, model):
        predictions = predict(
            model,
            evaluation_data,
            batch,
            position_offset,
            method=sampled,
            extra_tokens=extra_tokens,
            with_probability=True,
        )
        matches, prompts = predictions.match_counts, predictions.prompts
        first_errors, is_correct = matches.first_error.tolist(), matches.correct.tolist()
        probabilities = predictions.log_probability.tolist() if predictions.log_probability is not None else []
        num_targets = (batch.target_ids != IGNORE_INDEX).sum(1).tolist()
        for row in range(len(num_targets)):
            question, answer = format_question(questions, len(samples))
            ids = predictions.ids[row].tolist() if decodes else predictions.ids[row, : num_targets[row]].tolist()
            if questions.labels is not None:
                text = _labels_at_positions(batch, row, ids, evaluation_data)
            else:
                ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
                text = _decode(evaluation_data, ids, predictions.number_values, row)
            prompt = ""
            if prompts is not None:
                prompt_ids = prompts.ids[row, : int(prompts.lengths[row])].tolist()
                prompt = _decode(evaluation_data, prompt_ids, prompts.number_values, row)
            samples.append(
                AnswerSample(
                    question=question,
                    correct_answer=answer if are_answers_known else None,
                    prediction=restore_number_format(evaluation_data.tokenizer, text)
                    if questions.has_numbers
                    else text,
                    correct=is_correct[row] if are_answers_known else None,
                    model_text=prompt + text,
                    probability=math.exp(probabilities[row]),
                    first_error=first_errors[row] if are_answers_known and first_errors[row] >= 0 else None,
                    ended=EOS in ids,
                )
            )
    return samples


def _decode(evaluation_data: EvaluationData, ids: list[int], values: Tensor | None, row: int) -> str:
    """The text of some ids of a row, with the values of its number tokens if it has any."""
    row_values = None if values is None else values[row, : len(ids)].tolist()
    return evaluation_data.tokenizer.decode_with_number_values(ids, row_values, evaluation_data.vocabulary)


def _labels_at_positions(batch: Batch, row: int, ids: list[int], evaluation_data: EvaluationData) -> str:
    """Labels at the target positions, and dots elsewhere: `. 66 67`."""
    labels = dict(zip(batch.target_positions[row].tolist(), ids, strict=False))
    read = batch.tokens.ids[row, : int(batch.tokens.lengths[row])].tolist()
    symbols = evaluation_data.vocabulary.tokens
    return " ".join(symbols[labels[place]] if place in labels else "." for place, i in enumerate(read) if i != BOS)
