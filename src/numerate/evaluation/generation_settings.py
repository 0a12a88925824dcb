"""How answers are generated freely, rather than compared token by token with the correct ones."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from numerate.config import Spec, setting
from numerate.evaluation.numbers_in_texts import ANSWER_PATTERN


@dataclass(frozen=True)
class Generation(Spec):
    """Answers that a model generates freely, as pretrained models do (`GeneratedAnswers`).

    The examples of a few-shot prompt are training examples, the same before every question. `answer_pattern` finds the
    answer in a text: by default what follows `####`, as in the solutions of GSM8K.

    >>> Generation(num_fewshot=8, answer_pattern="boxed{(.*?)}").max_new_tokens
    256
    """

    num_fewshot: int = setting(0, "training examples with answers before every question", at_least=0)
    max_new_tokens: int = setting(256, "maximum number of tokens of an answer", at_least=1)
    stop: tuple[str, ...] = setting(
        (), r"texts that end an answer, with \n for a new line, besides end tokens and the next question"
    )
    stop_at_next_question: bool = setting(
        True, "whether an answer after few-shot examples ends before a line that begins a question"
    )
    answer_pattern: str = setting(
        ANSWER_PATTERN, "regular expression of answers: the last match, or of (.*) at its end the first with a number"
    )

    def conflicts(self) -> Iterator[str]:
        if "" in self.stop:
            yield "stop: must not have an empty text"
        try:
            re.compile(self.answer_pattern)
        except re.error as error:
            yield f"answer_pattern: {self.answer_pattern!r} must be a regular expression ({error})"
