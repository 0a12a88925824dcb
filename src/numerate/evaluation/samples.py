"""What a model says to questions, in words: real decoding, for reading and for predictions."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from numerate.batch import IGNORE, Batch, Draw, Model
from numerate.evaluation.evaluator import SPARE, Exam, chunks, prompts_of
from numerate.evaluation.generate import greedy
from numerate.evaluation.text_answers import plainly
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Questions
from numerate.vocabulary import BEGIN, END


@dataclass(frozen=True)
class Said:
    """One answer. `question`, `gold` and `said` as a person writes them; `as_written` as the model reads and writes.

    `probability` is the model's own for all that it said. `first_wrong` is the place in the answer, from 0, of the
    first token that is wrong, None where none is. `ended` says whether it stopped by itself.
    """

    question: str
    gold: str
    said: str
    right: bool
    as_written: str
    probability: float
    first_wrong: int | None
    ended: bool

    def record(self, cell: Mapping[str, int]) -> dict[str, Any]:
        """A line of samples.jsonl or predictions.jsonl."""
        fields = asdict(self)
        fields["probability"] = round(self.probability, 6)
        return {"cell": dict(cell), **fields}


def answers(model: Model, exam: Exam, questions: Questions, placement: int = 0, spare: int | None = None) -> list[Said]:
    """Decodes every question greedily; `spare` tokens beyond the right answer's length are allowed: 2 unless said, and
    `SPARE` where answers are texts.

    For aligned labels the argmax at every asked place is what is said.
    """
    found: list[Said] = []
    spare = (2 if questions.texts is None else SPARE) if spare is None else spare
    for batch in chunks(exam, questions, model):
        rows = batch.tokens.ids.shape[0]
        targets = batch.asked_targets
        if exam.layout.continues:
            prompts, most = prompts_of(batch)
            said = greedy(model, prompts, most + spare, source=batch.source, placement=placement)
            ids, log_probability = said.ids, said.log_probability.tolist()
            shown = prompts if batch.source is None else batch.source
            read = [shown.ids[row, : int(shown.lengths[row])].tolist() for row in range(rows)]
        else:
            ids, log_probability = _labels(model, exam, batch, placement)
            read = [[] for _ in range(rows)]
        for row in range(rows):
            gold = [i for i in targets[row].tolist() if i != IGNORE]
            spoken = ids[row].tolist()
            if not exam.layout.continues:
                spoken = spoken[: len(gold)]
            elif END in spoken:
                spoken = spoken[: spoken.index(END) + 1]
            question, answer = plain_text(questions, len(found))
            wrong = next((p for p, i in enumerate(gold) if p >= len(spoken) or spoken[p] != i), None)
            words = exam.tokenizer.decode(spoken, exam.vocabulary)
            if questions.labels is not None:
                words = _in_places(batch, row, spoken, exam)
            found.append(
                Said(
                    question=question,
                    gold=answer,
                    # Digits of a task without numbers are text, which no spelling turns.
                    said=as_a_person_writes(exam, words) if questions.numbers.lengths.shape[1] else words,
                    right=wrong is None,
                    as_written=exam.tokenizer.decode(read[row], exam.vocabulary) + words,
                    probability=math.exp(log_probability[row]),
                    first_wrong=wrong,
                    ended=END in spoken,
                )
            )
    return found


def _in_places(batch: Batch, row: int, spoken: list[int], exam: Exam) -> str:
    """Labels where they were asked for, and dots elsewhere: `. 66 67`."""
    at = dict(zip(batch.asked[row].tolist(), spoken, strict=False))
    read = batch.tokens.ids[row, : int(batch.tokens.lengths[row])].tolist()
    symbols = exam.vocabulary.symbols
    return " ".join(symbols[at[place]] if place in at else "." for place, i in enumerate(read) if i != BEGIN)


@torch.no_grad()
def _labels(model: Model, exam: Exam, batch: Batch, placement: int) -> tuple[torch.Tensor, list[float]]:

    output = model(model.place(batch.tokens, Draw.fixed(placement)), batch.source, asked=batch.asked)
    best, said = output.logits.float().log_softmax(-1).max(-1)
    return said, best.where(batch.asked_targets != IGNORE, 0.0).sum(1).tolist()


def as_a_person_writes(exam: Exam, words: str) -> str:
    """Numbers in a model's spelling turned back: with `Digits(order="reversed")`, `579` is said for `975`."""
    return plainly(exam.tokenizer, words)
