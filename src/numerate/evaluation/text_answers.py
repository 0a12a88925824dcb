"""Scores of the decoded answers of a cell, as texts and as numbers."""

from collections.abc import Sequence
from typing import Any

from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.numbers_in_texts import Found, last_number, whole_number
from numerate.evaluation.text_metrics import TextScores
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Questions
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.vocabulary import END, Vocabulary


def plainly(tokenizer: Tokenizer, words: str) -> str:
    """Numbers from the model's format back to plain ones: with `Digits(digit_order="reversed")`, `975` is `579`."""
    return tokenizer.number_format.plain(words, answer=True) if isinstance(tokenizer, Characters) else words


class TextAnswers:
    """Collects the answers to the questions of a cell, batch by batch and in order, and computes their scores.

    Where questions are texts, the number of an answer is its last one, and there are scores of texts beside. Where
    they have number slots, and every right answer is one number, the answer as a whole must be a number.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, questions: Questions) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.texts = questions.texts is not None
        self.slots = questions.numbers.lengths.shape[1] > 0
        if questions.texts is not None:
            self.targets = [pair.answer for pair in questions.texts.pairs()]
        else:
            self.targets = [plain_text(questions, row)[1] for row in range(len(questions))]
        self.predictions: list[str] = []
        self.ended = self.tokens = self.tokens_right = 0
        self.nll = 0.0

    def add(self, ids: Sequence[Sequence[int]], values: Sequence[Sequence[float]] | None = None) -> None:
        """Adds the answers to the next questions, as ids up to the end token, and the number predicted with each, of a
        model with a number head."""
        for row, row_ids in enumerate(ids):
            ended = END in row_ids
            row_ids = row_ids[: row_ids.index(END)] if ended else row_ids
            if values is None:
                words = self.tokenizer.decode(row_ids, self.vocabulary)
            else:
                words = self.tokenizer.decode_with_values(row_ids, values[row][: len(row_ids)], self.vocabulary)
            self.predictions.append(plainly(self.tokenizer, words) if self.slots else words)
            self.ended += ended

    def read(self, nll: float, tokens: int, tokens_right: int) -> None:
        """Adds the likelihood of the targets of the next questions, `nll` in nats."""
        self.nll += nll
        self.tokens += tokens
        self.tokens_right += tokens_right

    def record(self) -> dict[str, Any]:
        """`numbers`, where right answers have any, and `texts` of questions that are texts."""
        found: dict[str, Any] = {}
        numbers = self._numbers()
        if numbers is not None and numbers.count:
            found["numbers"] = numbers.record()
        if self.texts:
            scores = TextScores.of(
                self.predictions,
                self.targets,
                nll=self.nll,
                tokens=self.tokens,
                tokens_right=self.tokens_right,
                ended=self.ended,
            )
            found["texts"] = scores.record()
        return found

    def _numbers(self) -> NumberScores | None:
        if self.texts:
            return NumberScores.of_texts(self.predictions, self.targets)
        targets = [whole_number(text) for text in self.targets]
        if any(number is None for number in targets):
            return None
        whole = [whole_number(text) for text in self.predictions]
        found = [
            Found(number, invalid=number is None and not last_number(text).missing)
            for number, text in zip(whole, self.predictions, strict=True)
        ]
        return NumberScores.of(found, targets)
