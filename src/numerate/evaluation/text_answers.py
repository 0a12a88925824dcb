"""Scores of the decoded answers of a cell, as texts and as numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from numerate.batch import Batch, Model
from numerate.evaluation.exact_match import Predictions, target_likelihood
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.numbers_in_texts import ParsedNumber, last_number, parse_entire_text
from numerate.evaluation.sums import add_sums
from numerate.evaluation.text_metrics import TextScores
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.vocabulary import EOS, Vocabulary

Score = Callable[[str, str, str], Mapping[str, float]]


def restore_number_format(tokenizer: Tokenizer, text: str) -> str:
    """Numbers from the model's format back to plain ones: with `Digits(digit_order="reversed")`, `975` is `579`."""
    return (
        tokenizer.number_format.normalize_numbers(text, is_answer=True) if isinstance(tokenizer, Characters) else text
    )


def decode_row(tokenizer: Tokenizer, vocabulary: Vocabulary, ids: list[int], values: Tensor | None, row: int) -> str:
    """The text of some ids of a row, with the values of its number tokens if it has any."""
    row_values = None if values is None else values[row, : len(ids)].tolist()
    return tokenizer.decode_with_number_values(ids, row_values, vocabulary)


class AnswerScorer:
    """Collects the decoded answers to the questions of a cell, batch by batch and in order, and computes their scores.

    If questions are texts, the number of an answer is its last number, and there are also text scores. If they have
    number slots and every correct answer is one number, the whole answer must be a number. `score` gives further scores
    of a question, its correct answer and the prediction.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: Vocabulary, questions: Questions, score: Score | None = None
    ) -> None:
        self.tokenizer, self.vocabulary, self.questions, self.score = tokenizer, vocabulary, questions, score
        self.predictions: list[str] = []
        self.sums = TextScores()

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The questions and the correct answers."""
        return [format_question(self.questions, row) for row in range(len(self.questions))]

    def add(self, model: Model, batch: Batch, predictions: Predictions, position_offset: int) -> None:
        """Adds the predictions for the next questions, and for texts the likelihood of their correct answers."""
        self.add_answers(predictions)
        if self.questions.texts is not None:
            nll, tokens, correct_tokens = target_likelihood(model, batch, position_offset)
            self.sums = add_sums(self.sums, TextScores(nll=nll, tokens=tokens, correct_tokens=correct_tokens))

    def add_answers(self, predictions: Predictions) -> None:
        """Adds the predictions for the next questions alone: their ids up to the end token."""
        for row, ids in enumerate(predictions.ids.tolist()):
            answer = ids[: ids.index(EOS)] if EOS in ids else ids
            text = decode_row(self.tokenizer, self.vocabulary, answer, predictions.number_values, row)
            has_slots = self.questions.has_numbers
            self.predictions.append(restore_number_format(self.tokenizer, text) if has_slots else text)
            self.sums = replace(self.sums, ended=self.sums.ended + (EOS in ids))

    def record(self) -> dict[str, Any]:
        """`numbers` if correct answers have any, and `texts` if questions are texts."""
        texts = self.questions.texts
        targets = [] if texts is None else [pair.answer for pair in texts.read_examples()]
        numbers = self._whole_numbers() if texts is None else NumberScores.from_texts(self.predictions, targets)
        found = {"numbers": numbers.to_record()} if numbers.count else {}
        if texts is not None:
            found["texts"] = add_sums(self.sums, TextScores.from_texts(self.predictions, targets)).to_record()
        return found | ({"scores": self.score_sums()} if self.score is not None else {})

    def score_sums(self) -> dict[str, float]:
        """The sums of the further scores over the answers."""
        assert self.score is not None
        answers = zip(self.pairs, self.predictions, strict=True)
        scores = [self.score(*pair, prediction) for pair, prediction in answers]
        return {name: round(sum(one[name] for one in scores), 6) for name in (scores[0] if scores else ())}

    def _whole_numbers(self) -> NumberScores:
        """The scores of answers each of which must be a number as a whole; none unless all correct ones are."""
        targets = [parse_entire_text(answer) for _, answer in self.pairs]
        if any(number is None for number in targets):
            return NumberScores()
        numbers = zip(map(parse_entire_text, self.predictions), self.predictions, strict=True)
        parsed = [ParsedNumber(one, invalid=one is None and not last_number(text).missing) for one, text in numbers]
        return NumberScores.from_numbers(parsed, targets)
