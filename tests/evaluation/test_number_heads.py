"""Promises of answers in which a model says numbers beside its tokens: they are what is read and measured."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.exact_match import compare_with_targets
from numerate.evaluation.text_answers import AnswerScorer
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.questions import Example, Questions
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.vocabulary import EOS, NUMBER, PAD, Vocabulary


class WithValues(Characters):
    """Reads the number beside `x`, as tokenizers whose tokens carry numbers do."""

    def decode_with_number_values(self, ids: Any, values: Any, vocabulary: Vocabulary) -> str:
        pairs = zip(ids, values, strict=True)
        return "".join(f"{value:g}" if vocabulary.tokens[i] == "x" else vocabulary.tokens[i] for i, value in pairs)


def test_the_numbers_beside_tokens_are_in_the_text_up_to_its_end() -> None:
    vocabulary = Vocabulary.with_digits(["x", "a"])
    x, a = vocabulary.token_to_id["x"], vocabulary.token_to_id["a"]
    questions = Questions.from_examples([Example("1=", "2"), Example("1=", "a")])
    answers = AnswerScorer(WithValues(), vocabulary, questions)
    ids, values = torch.tensor([[x, a, EOS, PAD], [a, x, x, a]]), torch.tensor([[2.5, 9, 9, 9], [9, -3, 4, 9]])
    found: Any = SimpleNamespace(ids=ids, number_values=values)
    answers.add_answers(found)
    assert answers.predictions == ["2.5a", "a-34a"]


@pytest.mark.parametrize(("prediction", "right"), [(2.5, True), (2.5000001, True), (2.51, False), (None, False)])
def test_a_number_beside_a_token_is_right_if_it_is_the_target(prediction: float | None, right: bool) -> None:
    class Carrying(WithValues):
        def build_vocabulary(self, task: Any) -> Vocabulary:
            plain = Vocabulary.with_digits(["x", "="])
            kinds, values = plain.token_kinds.copy(), plain.number_values.copy()
            kinds[plain.token_to_id["x"]], values[plain.token_to_id["x"]] = NUMBER, np.nan
            return replace(plain, token_kinds=kinds, number_values=values)

    exam = EvaluationData(Arithmetic(), Carrying(), Continuation())
    x = exam.vocabulary.token_to_id["x"]
    rows = Characters().encode_examples([Example("1=", "x")], exam.vocabulary)
    rows = replace(rows, number_values=np.where(rows.ids == x, 2.5, 1.0).astype(np.float32))
    batch = Continuation().build_batch(rows, np.arange(1))
    values = None if prediction is None else torch.tensor([[prediction, 9.0]])
    assert compare_with_targets(exam, batch.target_ids.clone(), batch, values).correct.tolist() == [right]
