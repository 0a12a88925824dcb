"""Decoded answers of a model as text, for samples and predictions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numerate.batch import Batch, Model
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, make_batches
from numerate.evaluation.evaluator import Method
from numerate.evaluation.exact_match import predict
from numerate.evaluation.text_answers import decode_row, restore_number_format
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.vocabulary import BOS, EOS


@dataclass(frozen=True)
class AnswerSample:
    """One answer: `question`, `correct_answer` and `prediction` in plain format, `model_text` in the model's own.

    `correct` is the exact match of an evaluation, end and numbers included; None, as `correct_answer`, where the answer
    is unknown. `probability` is that of all generated tokens; `first_error` is the position of the first wrong one
    from 0, None where none is. `ended` is whether the answer stopped by itself.
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
    """Decodes every question: by beam search for `method="beams"`, and else greedily, which gives the same as one pass;
    for per-token labels and masks the prediction is the argmax at every target position.

    `extra_tokens` tokens beyond the target's length are allowed: by default 2, and `EXTRA_TEXT_TOKENS` where answers
    are texts. If the answers are not `are_answers_known`, those of the questions only give the length.
    """
    samples: list[AnswerSample] = []
    data, decodes = evaluation_data, evaluation_data.layout.is_autoregressive
    if extra_tokens is None:
        extra_tokens = 2 if questions.texts is None else EXTRA_TEXT_TOKENS
    if method != "beams" or not decodes:
        method = "decoding" if decodes else "one pass"
    for batch in make_batches(data, questions, model):
        found = predict(
            model, data, batch, position_offset, method=method, extra_tokens=extra_tokens, with_probability=True
        )
        assert found.log_probability is not None
        prompts, matches = found.prompts, found.match_counts
        columns = (found.log_probability, matches.correct, matches.first_error, found.ids, matches.target_mask.sum(1))
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (log_probability, is_correct, first_error, ids, length) in enumerate(rows):
            question, answer = format_question(questions, len(samples))
            ids = ids if decodes else ids[:length]
            if questions.labels is not None:
                text = _labels_at_positions(batch, row, ids, data.vocabulary.tokens)
            else:
                ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
                text = decode_row(data.tokenizer, data.vocabulary, ids, found.number_values, row)
            prompt = ""
            if prompts is not None:
                prompt_ids = prompts.ids[row, : int(prompts.lengths[row])].tolist()
                prompt = decode_row(data.tokenizer, data.vocabulary, prompt_ids, prompts.number_values, row)
            samples.append(
                AnswerSample(
                    question=question,
                    correct_answer=answer if are_answers_known else None,
                    prediction=restore_number_format(data.tokenizer, text) if questions.has_numbers else text,
                    correct=is_correct if are_answers_known else None,
                    model_text=prompt + text,
                    probability=math.exp(log_probability),
                    first_error=first_error if are_answers_known and first_error >= 0 else None,
                    ended=EOS in ids,
                )
            )
    return samples


def _labels_at_positions(batch: Batch, row: int, ids: list[int], symbols: Sequence[str]) -> str:
    """Labels at the target positions, and dots elsewhere: `. 66 67`."""
    labels = dict(zip(batch.target_positions[row].tolist(), ids, strict=False))
    read = batch.tokens.ids[row, : int(batch.tokens.lengths[row])].tolist()
    return " ".join(symbols[labels[place]] if place in labels else "." for place, i in enumerate(read) if i != BOS)
