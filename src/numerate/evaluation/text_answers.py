"""What was said to the questions of a cell, as texts and as numbers beside the right ones."""

from collections.abc import Sequence
from typing import Any

from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.numbers_in_texts import Found, last_number, whole_number
from numerate.evaluation.text_metrics import TextScores
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Questions
from numerate.tokens.tokenizer import Characters, Tokenizer
from numerate.vocabulary import END, Vocabulary


def plainly(tokenizer: Tokenizer, words: str) -> str:
    """Numbers in a model's spelling turned back: with `Digits(digit_order="reversed")`, `579` is said for `975`."""
    return tokenizer.number_format.plain(words, answer=True) if isinstance(tokenizer, Characters) else words


class TextAnswers:
    """Gathers what is said to the questions of a cell, batch by batch and in order, and makes its scores.

    Where questions are texts, the number of an answer is its last one, and there are scores of texts beside. Where
    they have number slots, and every right answer is one number, the answer as a whole must be a number.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, questions: Questions) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.texts = questions.texts is not None
        self.slots = questions.numbers.lengths.shape[1] > 0
        if questions.texts is not None:
            self.right = [pair.answer for pair in questions.texts.pairs()]
        else:
            self.right = [plain_text(questions, row)[1] for row in range(len(questions))]
        self.said: list[str] = []
        self.ended = self.tokens = self.tokens_right = 0
        self.nll = 0.0

    def add(self, ids: Sequence[Sequence[int]], values: Sequence[Sequence[float]] | None = None) -> None:
        """What was said to the next questions, as ids, and the number beside each, of a model that says numbers; what
        stands behind an end is not said."""
        for row, spoken in enumerate(ids):
            ended = END in spoken
            spoken = spoken[: spoken.index(END)] if ended else spoken
            if values is None:
                words = self.tokenizer.decode(spoken, self.vocabulary)
            else:
                words = self.tokenizer.decode_with_values(spoken, values[row][: len(spoken)], self.vocabulary)
            self.said.append(plainly(self.tokenizer, words) if self.slots else words)
            self.ended += ended

    def read(self, nll: float, tokens: int, tokens_right: int) -> None:
        """How likely the right answers to the next questions are, `nll` in nats."""
        self.nll += nll
        self.tokens += tokens
        self.tokens_right += tokens_right

    def record(self) -> dict[str, Any]:
        """`numbers`, where right answers have any, and `texts` of questions that are texts."""
        found: dict[str, Any] = {}
        numbers = self._numbers()
        if numbers is not None and numbers.asked:
            found["numbers"] = numbers.record()
        if self.texts:
            scores = TextScores.of(
                self.said,
                self.right,
                nll=self.nll,
                tokens=self.tokens,
                tokens_right=self.tokens_right,
                ended=self.ended,
            )
            found["texts"] = scores.record()
        return found

    def _numbers(self) -> NumberScores | None:
        if self.texts:
            return NumberScores.of_texts(self.said, self.right)
        right = [whole_number(text) for text in self.right]
        if any(number is None for number in right):
            return None
        whole = [whole_number(text) for text in self.said]
        said = [
            Found(number, invalid=number is None and not last_number(text).missing)
            for number, text in zip(whole, self.said, strict=True)
        ]
        return NumberScores.of(said, right)
