"""Promises of answers in which a model says numbers beside its tokens: they are what is read and measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.exact_match import marked
from numerate.evaluation.text_answers import TextAnswers
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.questions import Example, Questions
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.vocabulary import END, NUMBER, PAD, Vocabulary


class WithValues(Characters):
    """Reads the number beside `x`, as tokenizers whose tokens carry numbers do."""

    def decode_with_values(self, ids: Any, values: Any, vocabulary: Vocabulary) -> str:
        pairs = zip(ids, values, strict=True)
        return "".join(f"{value:g}" if vocabulary.symbols[i] == "x" else vocabulary.symbols[i] for i, value in pairs)


def test_the_numbers_beside_tokens_are_in_the_text_up_to_its_end() -> None:
    vocabulary = Vocabulary.of(["x", "a"])
    x, a = vocabulary.ids["x"], vocabulary.ids["a"]
    questions = Questions.of_texts([Example("1=", "2"), Example("1=", "a")])
    answers = TextAnswers(WithValues(), vocabulary, questions)
    answers.add([[x, a, END, PAD], [a, x, x, a]], torch.tensor([[2.5, 9, 9, 9], [9, -3, 4, 9]]).tolist())
    assert answers.predictions == ["2.5a", "a-34a"]


@pytest.mark.parametrize(("prediction", "right"), [(2.5, True), (2.5000001, True), (2.51, False), (None, False)])
def test_a_number_beside_a_token_is_right_if_it_is_the_target(prediction: float | None, right: bool) -> None:
    class Carrying(WithValues):
        def build_vocabulary(self, task: Any) -> Vocabulary:
            plain = Vocabulary.of(["x", "="])
            kinds, values = plain.kinds.copy(), plain.values.copy()
            kinds[plain.ids["x"]], values[plain.ids["x"]] = NUMBER, np.nan
            return replace(plain, kinds=kinds, values=values)

    exam = EvaluationData(Arithmetic(), Carrying(), Continuation())
    x = exam.vocabulary.ids["x"]
    rows = Characters().rows([Example("1=", "x")], exam.vocabulary)
    rows = replace(rows, values=np.where(rows.ids == x, 2.5, 1.0).astype(np.float32))
    batch = Continuation().batch(rows, np.arange(1))
    values = None if prediction is None else torch.tensor([[prediction, 9.0]])
    assert marked(exam, batch.target_ids.clone(), batch, values).right.tolist() == [right]


def test_of_tokens_that_carry_none_it_is_the_plain_text() -> None:
    vocabulary = Vocabulary.of(["x", "a"])
    ids = [vocabulary.ids["x"], vocabulary.ids["a"]]
    assert Characters().decode_with_values(ids, [7.0, 8.0], vocabulary) == "xa"
