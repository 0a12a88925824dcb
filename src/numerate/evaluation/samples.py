"""What a model says to questions, in words: real decoding, for reading and for predictions."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from numerate.batch import IGNORE, Batch, Model, StepContext, Tokens
from numerate.evaluation.beams import PUBLISHED_SPARE, beam_search
from numerate.evaluation.evaluator import Method
from numerate.evaluation.exam import SPARE, EvaluationData, chunks, pieces, prompts_of
from numerate.evaluation.generate import greedy
from numerate.evaluation.marks import MatchCounts, marked
from numerate.evaluation.text_answers import plainly
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Questions
from numerate.vocabulary import BEGIN, END


@dataclass(frozen=True)
class AnswerSample:
    """One answer. `question`, `gold` and `said` as a person writes them; `as_written` as the model reads and writes.

    Numbers that a model says beside its tokens stand in the texts. `right` is what an evaluation measures: that all of
    the answer is, its end and its numbers included; None, as `gold`, where nobody knows the answer. `probability` is
    the model's own for all the tokens that it said. `first_wrong` is the place in the answer, from 0, of the first
    token that is wrong, None where none is. `ended` says whether it stopped by itself.
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
    """Decodes every question: by a search for `method="beams"`, as it is evaluated, and else greedily, of which one
    pass tells the same.

    `spare` tokens beyond the right answer's length are allowed: 2 unless said, and `SPARE` where answers are texts; a
    search has the published number at least. For aligned labels and masks the argmax at every asked place is what is
    said. Where the answers of the questions are not `known` they tell of their length alone.
    """
    found: list[AnswerSample] = []
    spare = (2 if questions.texts is None else SPARE) if spare is None else spare
    for batch in chunks(exam, questions, model):
        spoken = _decoded(model, exam, batch, position_offset, spare, method == "beams")
        for row in range(len(spoken.ids)):
            question, answer = plain_text(questions, len(found))
            ids, words = spoken.words(exam, row)
            if questions.labels is not None:
                words = _in_places(batch, row, ids, exam)
            wrong = int(spoken.marks.first_wrong[row])
            found.append(
                AnswerSample(
                    question=question,
                    gold=answer if known else None,
                    # Digits of a task without numbers are text, which no spelling turns.
                    said=as_a_person_writes(exam, words) if questions.numbers.lengths.shape[1] else words,
                    right=bool(spoken.marks.right[row]) if known else None,
                    as_written=spoken.read(exam, row) + words,
                    probability=math.exp(spoken.log_probability[row]),
                    first_wrong=wrong if known and wrong >= 0 else None,
                    ended=END in ids,
                )
            )
    return found


@dataclass(frozen=True)
class _Spoken:
    """What was said to the questions of a batch: ids and the number beside each, if any; and what was read."""

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
        """The text of what was read before the answer; nothing where the answer stands within it."""
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
) -> _Spoken:
    if not exam.layout.continues:
        return _labels(model, exam, batch, position_offset)
    prompts, most = prompts_of(batch)
    search = beam_search if beams else greedy
    more = max(spare, PUBLISHED_SPARE) if beams else spare
    found = search(model, prompts, most + more, source=batch.source, position_offset=position_offset)
    short = max(0, most - found.ids.shape[1])
    ids = pad(found.ids, (0, short))
    values = None if found.values is None else pad(found.values, (0, short), value=1.0)
    return _Spoken(
        found.ids.tolist(),
        None if found.values is None else found.values.tolist(),
        found.log_probability.tolist(),
        marked(exam, ids[:, :most], batch, values),
        prompts if batch.source is None else batch.source,
    )


def _in_places(batch: Batch, row: int, spoken: list[int], exam: EvaluationData) -> str:
    """Labels where they were asked for, and dots elsewhere: `. 66 67`."""
    at = dict(zip(batch.target_positions[row].tolist(), spoken, strict=False))
    read = batch.tokens.ids[row, : int(batch.tokens.lengths[row])].tolist()
    symbols = exam.vocabulary.symbols
    return " ".join(symbols[at[place]] if place in at else "." for place, i in enumerate(read) if i != BEGIN)


@torch.no_grad()
def _labels(model: Model, exam: EvaluationData, batch: Batch, position_offset: int) -> _Spoken:
    """What is said at the asked places of whole rows, in the pieces in which they are evaluated."""
    parts = [
        model(
            model.assign_positions(piece.tokens, StepContext.fixed(position_offset)),
            piece.source,
            target_positions=piece.target_positions,
        )
        for piece in pieces(batch)
    ]
    best, said = torch.cat([part.logits for part in parts]).float().log_softmax(-1).max(-1)
    numbers = [part.values for part in parts] if exam.layout.masks or exam.carries else []
    values = torch.cat([one for one in numbers if one is not None]) if numbers and numbers[0] is not None else None
    asked = batch.target_ids != IGNORE
    counts = asked.sum(1).tolist()
    return _Spoken(
        [ids[:count] for ids, count in zip(said.tolist(), counts, strict=True)],
        None if values is None else [own[:count] for own, count in zip(values.tolist(), counts, strict=True)],
        best.where(asked, 0.0).sum(1).tolist(),
        marked(exam, said, batch, values),
        None,
    )


def as_a_person_writes(exam: EvaluationData, words: str) -> str:
    """Numbers in a model's spelling turned back: with `Digits(digit_order="reversed")`, `579` is said for `975`."""
    return plainly(exam.tokenizer, words)
