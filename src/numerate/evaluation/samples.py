"""Decoded answers of a model as text, for samples and predictions."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from numerate.batch import IGNORE, Batch, Model, StepContext, Tokens
from numerate.evaluation.beams import PUBLISHED_SPARE, beam_search
from numerate.evaluation.evaluation_data import SPARE, EvaluationData, chunks, pieces, prompts_of
from numerate.evaluation.evaluator import Method
from numerate.evaluation.exact_match import MatchCounts, marked
from numerate.evaluation.generate import greedy
from numerate.evaluation.text_answers import plainly
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Questions
from numerate.vocabulary import BEGIN, END


@dataclass(frozen=True)
class AnswerSample:
    """One answer. `question`, `gold` and `said` (the prediction) as a person writes them; `as_written` in the model's
    own format.

    Numbers of a number head are inserted into the texts. `right` is the exact match of an evaluation, end and numbers
    included; None, as `gold`, where the answer is unknown. `probability` is the model's own of all generated tokens.
    `first_wrong` is the position in the answer, from 0, of the first wrong token, None where none is. `ended` is
    whether it stopped by itself.
    """

    question: str
    gold: str | None
    said: str
    right: bool | None
    as_written: str
    probability: float
    first_wrong: int | None
    ended: bool

    def record(self, cell: Mapping[str, int]) -> dict[str, Any]:
        """A line of samples.jsonl or predictions.jsonl."""
        fields = asdict(self)
        fields["probability"] = round(self.probability, 6)
        return {"cell": dict(cell), **fields}


def answers(
    model: Model,
    exam: EvaluationData,
    questions: Questions,
    position_offset: int = 0,
    spare: int | None = None,
    *,
    method: Method = "one pass",
    known: bool = True,
) -> list[AnswerSample]:
    """Decodes every question: by beam search for `method="beams"`, and else greedily, which gives the same as one
    pass.

    `spare` tokens beyond the target's length are allowed: by default 2, and `SPARE` where answers are texts; beam
    search has the published number at least. For aligned labels and masks the prediction is the argmax at every target
    position. If the answers are not `known`, those of the questions only give the length.
    """
    found: list[AnswerSample] = []
    spare = (2 if questions.texts is None else SPARE) if spare is None else spare
    for batch in chunks(exam, questions, model):
        decoded = _decoded(model, exam, batch, position_offset, spare, method == "beams")
        for row in range(len(decoded.ids)):
            question, answer = plain_text(questions, len(found))
            ids, words = decoded.words(exam, row)
            if questions.labels is not None:
                words = _in_places(batch, row, ids, exam)
            wrong = int(decoded.marks.first_wrong[row])
            found.append(
                AnswerSample(
                    question=question,
                    gold=answer if known else None,
                    # Digits of a task without numbers are text, which is never reversed.
                    said=as_a_person_writes(exam, words) if questions.numbers.lengths.shape[1] else words,
                    right=bool(decoded.marks.right[row]) if known else None,
                    as_written=decoded.read(exam, row) + words,
                    probability=math.exp(decoded.log_probability[row]),
                    first_wrong=wrong if known and wrong >= 0 else None,
                    ended=END in ids,
                )
            )
    return found


@dataclass(frozen=True)
class _Decoded:
    """The answers to a batch: ids, the number predicted with each, if any, and the prompts."""

    ids: list[list[int]]
    values: list[list[float]] | None
    log_probability: list[float]
    marks: MatchCounts
    shown: Tokens | None

    def words(self, exam: EvaluationData, row: int) -> tuple[list[int], str]:
        """The ids of a row up to and with the end, and their text."""
        ids = self.ids[row]
        if END in ids and (exam.layout.continues or exam.layout.masks):
            ids = ids[: ids.index(END) + 1]
        return ids, _text(exam, ids, None if self.values is None else self.values[row][: len(ids)])

    def read(self, exam: EvaluationData, row: int) -> str:
        """The text of the prompt; empty where the answer is inside the row."""
        if self.shown is None:
            return ""
        length, values = int(self.shown.lengths[row]), self.shown.values
        ids = self.shown.ids[row, :length].tolist()
        return _text(exam, ids, None if values is None else values[row, :length].tolist())


def _text(exam: EvaluationData, ids: list[int], values: list[float] | None) -> str:
    if values is None:
        return exam.tokenizer.decode(ids, exam.vocabulary)
    return exam.tokenizer.decode_with_values(ids, values, exam.vocabulary)


def _decoded(
    model: Model, exam: EvaluationData, batch: Batch, position_offset: int, spare: int, beams: bool
) -> _Decoded:
    if not exam.layout.continues:
        return _labels(model, exam, batch, position_offset)
    prompts, most = prompts_of(batch)
    search = beam_search if beams else greedy
    more = max(spare, PUBLISHED_SPARE) if beams else spare
    found = search(model, prompts, most + more, source=batch.source, position_offset=position_offset)
    short = max(0, most - found.ids.shape[1])
    ids = pad(found.ids, (0, short))
    values = None if found.values is None else pad(found.values, (0, short), value=1.0)
    return _Decoded(
        found.ids.tolist(),
        None if found.values is None else found.values.tolist(),
        found.log_probability.tolist(),
        marked(exam, ids[:, :most], batch, values),
        prompts if batch.source is None else batch.source,
    )


def _in_places(batch: Batch, row: int, ids: list[int], exam: EvaluationData) -> str:
    """Labels at the target positions, and dots elsewhere: `. 66 67`."""
    labels = dict(zip(batch.target_positions[row].tolist(), ids, strict=False))
    read = batch.tokens.ids[row, : int(batch.tokens.lengths[row])].tolist()
    symbols = exam.vocabulary.symbols
    return " ".join(symbols[labels[place]] if place in labels else "." for place, i in enumerate(read) if i != BEGIN)


@torch.no_grad()
def _labels(model: Model, exam: EvaluationData, batch: Batch, position_offset: int) -> _Decoded:
    """The predictions at the target positions of whole rows, in the pieces in which they are evaluated."""
    parts = [
        model(
            model.assign_positions(piece.tokens, StepContext.fixed(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        )
        for piece in pieces(batch)
    ]
    best, ids = torch.cat([part.logits for part in parts]).float().log_softmax(-1).max(-1)
    numbers = [part.values for part in parts] if exam.layout.masks or exam.carries else []
    values = torch.cat([one for one in numbers if one is not None]) if numbers and numbers[0] is not None else None
    target_mask = batch.target_ids != IGNORE
    counts = target_mask.sum(1).tolist()
    return _Decoded(
        [row[:count] for row, count in zip(ids.tolist(), counts, strict=True)],
        None if values is None else [own[:count] for own, count in zip(values.tolist(), counts, strict=True)],
        best.where(target_mask, 0.0).sum(1).tolist(),
        marked(exam, ids, batch, values),
        None,
    )


def as_a_person_writes(exam: EvaluationData, words: str) -> str:
    """Numbers from the model's format back to plain ones: with `Digits(digit_order="reversed")`, `975` is `579`."""
    return plainly(exam.tokenizer, words)
