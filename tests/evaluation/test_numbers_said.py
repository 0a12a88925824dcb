"""Promises of answers in which a model says numbers beside its tokens: they are what is read and measured."""

from typing import Any

import torch

from numerate.evaluation.text_answers import TextAnswers
from numerate.tasks.questions import Example, Questions
from numerate.tokens.tokenizer import Characters
from numerate.vocabulary import END, PAD, Vocabulary


class Saying(Characters):
    """Reads the number beside `x`, as tokenizers whose tokens carry numbers do."""

    def decode_with_values(self, ids: Any, values: Any, vocabulary: Vocabulary) -> str:
        pairs = zip(ids, values, strict=True)
        return "".join(f"{value:g}" if vocabulary.symbols[i] == "x" else vocabulary.symbols[i] for i, value in pairs)


def test_the_numbers_beside_tokens_are_in_the_text_up_to_its_end() -> None:
    vocabulary = Vocabulary.of(["x", "a"])
    x, a = vocabulary.ids["x"], vocabulary.ids["a"]
    questions = Questions.of_texts([Example("1=", "2"), Example("1=", "a")])
    told = TextAnswers(Saying(), vocabulary, questions)
    told.add([[x, a, END, PAD], [a, x, x, a]], torch.tensor([[2.5, 9, 9, 9], [9, -3, 4, 9]]).tolist())
    assert told.said == ["2.5a", "a-34a"]


def test_of_tokens_that_carry_none_it_is_the_plain_text() -> None:
    vocabulary = Vocabulary.of(["x", "a"])
    ids = [vocabulary.ids["x"], vocabulary.ids["a"]]
    assert Characters().decode_with_values(ids, [7.0, 8.0], vocabulary) == "xa"
