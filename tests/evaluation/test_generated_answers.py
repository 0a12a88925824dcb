"""Promises of freely generated answers: which are correct, where they end, and errors by the size of the number."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import case
from numerate.batch import Output
from numerate.config import Span
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import CellRequest
from numerate.evaluation.generate import CachedDecoder
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.kinds import generated_answers
from numerate.evaluation.kinds.generated_answers import GeneratedAnswers, is_correct
from numerate.evaluation.number_metrics import NumberScores
from numerate.models.decoder import Decoder
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.plain import plain_examples
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.layout import Continuation
from numerate.vocabulary import BOS, EOS, PAD, UNK

pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")

CELL = {"first_digits": 2, "second_digits": 2}


@pytest.mark.parametrize(
    ("prediction", "correct_answer", "expected"),
    [
        ("72", "She sold 48+24 = 72.\n#### 72", True),
        ("48/2 = 24, so 48+24 = 72.\n#### 72", "#### 72", True),
        ("#### 72\nThat is 6 dozen.", "#### 72", True),
        ("72.\n#### 71", "#### 72", False),
        ("about $1,072.50.", "1072.5", True),
        ("1/4", "0.25", True),
        ("", "0", False),
        ("-3*x  + 5", "-3*X + 5.", True),
        ("5", "-3*x + 5", False),
        ("x = 5", "5", True),
        ("None", "none", True),
        ("#### $1,234. (2 x 617)", "1234", True),
        ("####\n72\n\nProblem: 5", "72", True),
        ("72.\n#### \n\nProblem: 5 of\n#### 99", "99", True),
        ("72 clips\n#### Answer", "72", True),
        ("#### 18 000 (9 x 2000)\n#### 5", "2000", False),
        ("#### 18 000 (9 x 2000)\n#### 5", "5", False),
        ("#### yes\n#### </s>", "<pad> Yes", True),
    ],
)
def test_an_answer_is_correct_by_its_number_or_else_its_text(
    prediction: str, correct_answer: str, expected: bool
) -> None:
    assert is_correct(Generation(), prediction, correct_answer) is expected


def test_published_answers_are_correct_as_published(shared: Path) -> None:
    for prediction, answer, expected, _ in json.loads((shared / "cases" / "answers.json").read_text("utf-8"))["cases"]:
        for pattern in (Generation().answer_pattern, *["boxed{(.*?)}"] * ("boxed" in prediction)):
            with case(prediction, answer, pattern):
                assert is_correct(Generation(answer_pattern=pattern), prediction, answer) is expected


def test_another_pattern_finds_answers_elsewhere() -> None:
    for pattern in (r"boxed\{(.*?)\}", "boxed{(.*?)}", r"\\boxed\{([^}]*)\}"):
        boxed = Generation(answer_pattern=pattern)
        assert is_correct(boxed, r"\boxed{7} or \boxed{8}, not 9", "8")
        assert not is_correct(boxed, r"\boxed{8}, that is 9", "9")
        assert is_correct(boxed, r"\boxed{x_1 = \text{{4} + 5 = 9{,}500}}, \boxed{}, not 9, \boxed{8", r"\boxed{9500}")
        assert is_correct(boxed, r"\boxed{\{a, {b}\}}", r"\{a, {b}\}")
        assert not is_correct(boxed, r"\boxed{2, 3}", "3")
    assert is_correct(Generation(answer_pattern="[0-9]+ m"), "7 m 8", "7")
    assert is_correct(Generation(answer_pattern="Answer: (.*)"), "Answer: 7 of 8\nAnswer: 9", "7")


class Scripted(CachedDecoder):
    """Decodes given tokens, row by row, whatever it reads."""

    ids: Tensor

    def __init__(self, *_: Any) -> None:
        self.step_index = -1
        self.step(torch.zeros(0), None)

    def step(self, ids: Tensor, number_values: Tensor | None, row_index: Tensor | None = None) -> None:
        self.step_index += 1
        scores = nn.functional.one_hot(self.ids[:, self.step_index], 128).float()
        scores[:, [PAD, UNK, BOS]] += 0.5  # the likeliest after the given one, and if that is one of them, too
        self.output = Output(scores[:, None], nn.Identity())


def data(template: str = "{question}", **generation: Any) -> EvaluationData:
    task, tokenizer = Arithmetic(digits=Span(1, 2)), Subwords("characters", max_length=64, question_template=template)
    return EvaluationData(task, tokenizer, Continuation(), Generation(max_new_tokens=12, **generation))


def texts(found: EvaluationData, scripts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What is read of these generated texts, of 12 characters each; `|` is the end token, `<` that of the beginning."""
    special = {"|": EOS, "<": BOS}
    ids = [[special.get(one, found.vocabulary.token_to_id.get(one, UNK)) for one in text] for text in scripts]
    monkeypatch.setattr(Scripted, "ids", torch.tensor(ids), raising=False)
    monkeypatch.setattr(generated_answers, "CachedDecoder", Scripted)
    batch = found.batch(found.task.examples("test", 0, 0, len(scripts)))
    model = Decoder(hidden_size=8).build(found.vocabulary, 0)
    answers = generated_answers.generate_texts(model, found, batch)
    return [(answer["prediction"], answer["ended"]) for answer in answers]


def test_answers_end_with_an_end_token_or_a_stop_text(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [" 12|45678901", "12 stop here", "12\n\nQuestion", "123456789012", "sto12sto|---"]
    found = texts(data(stop=("stop",)), scripts, monkeypatch)
    assert found == [("12", True), ("12", True), (scripts[2], False), ("123456789012", False), ("sto12sto", True)]


NEXT_QUESTIONS: dict[str, dict[str, str | None]] = {
    "{question}": {"12\n\n34567890": "12", "12\n34\n567890": None},
    "- {question}": {"9 - 5\n- 1+2=": "9 - 5", "9 - 5 =\n-345": None},
    "# {question}": {"1 # 2\n# 3+4=": "1 # 2", "1 # 2\n#### 7": None},
    r"Q: {question}\nA:": {"12 Q: 3\nQ: 4": "12 Q: 3", "\nQ: 12\nQ: 34": ""},
}


@pytest.mark.parametrize("template", NEXT_QUESTIONS)
def test_answers_end_at_the_next_question_after_examples_alone(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for script, expected in NEXT_QUESTIONS[template].items():
        whole = (script.strip(), False)
        for without_stop in (data(template), data(template, num_fewshot=1, stop_at_next_question=False)):
            assert texts(without_stop, [script], monkeypatch) == [whole]
        found = texts(data(template, num_fewshot=1), [script], monkeypatch)
        assert found == [whole if expected is None else (expected, True)]


def test_a_special_token_is_no_text_but_may_be_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    found = data(stop=("<extra_id_0>",))
    monkeypatch.setitem(found.vocabulary.token_to_id, "!", found.vocabulary.token_to_id["<extra_id_0>"])
    assert texts(found, ["7!8901234567"], monkeypatch) == [("7", True)]


def test_tokens_that_the_tokenizer_lacks_are_not_generated_and_one_token_may_have_two_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking, same = data(), data()
    ids: Any = lacking.vocabulary.pretrained_ids
    for found, bos in ((lacking, -1), (same, ids[EOS])):
        own = np.array([*ids[:BOS], bos, *ids[BOS + 1 :]])
        found.vocabulary = replace(found.vocabulary, pretrained_ids=own)
    ((answer, ended),) = texts(lacking, ["12<" * 4], monkeypatch)
    assert ended is False
    assert "12" in answer
    assert texts(same, ["12<" * 4], monkeypatch) == [("12", True)]


def test_errors_by_digits_are_those_of_the_answers_with_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    found = data()
    model = Decoder(hidden_size=8).build(found.vocabulary, 0)
    said = {"12+9=": "21", "90+5=": "it is 96", "50+50=": "I do not know", "70+80=": "150"}
    questions = found.task.parse_question("12+9=")
    for question in [*said][1:]:
        questions = questions.concatenate([questions, found.task.parse_question(question)])
    monkeypatch.setattr(generated_answers, "cell_questions", lambda *arguments, **options: questions)
    answers = [{"prediction": text, "ended": True} for text in said.values()]
    monkeypatch.setattr(generated_answers, "generate_texts", lambda *arguments: answers)
    record = GeneratedAnswers().score(model, found, CellRequest(CELL, 4))
    assert (record["correct"], record["count"], record["scores"]) == (2, 4, {"ended": 4})
    by_digits = record["numbers_by_digits"]
    assert {digits: (one["count"], one["correct"], one["missing"]) for digits, one in by_digits.items()} == {
        "2": (2, 1, 0),
        "3": (2, 1, 1),
    }
    assert by_digits["2"]["metrics"]["mape"] == pytest.approx(1 / 95 / 2, rel=1e-6)
    parts = [NumberScores.from_record({"numbers": one}) for one in by_digits.values()]
    whole = NumberScores.from_record(record)
    assert whole is not None
    assert NumberScores.merge([one for one in parts if one is not None]).linear == whole.linear
    assert plain_examples(questions)[1].answer == "95"
