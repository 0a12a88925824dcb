"""Promises of tasks, tokenizers and layouts together: exactly the answer is asked for. Every task with every tokenizer
that writes its questions, and with layouts in turn, so that every tokenizer meets every layout."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from cases import case
from numerate.batch import IGNORE_INDEX
from numerate.errors import UserError
from numerate.tasks.plain import format_question
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.layout import MaskedLM, Seq2Seq, TokenClassification
from numerate.tokenizers.words import Words
from numerate.vocabulary import EOS, UNK
from variants import every

COUNT = 60


class Written(NamedTuple):
    """The questions of a task, their tokens, and a batch of them."""

    tokenizer: Any
    layout: Any
    questions: Any
    vocabulary: Any
    rows: Any
    batch: Any


@cache
def written(task: Any) -> list[Written]:
    """What each tokenizer that writes a task's questions makes of them, with a layout for them."""
    questions, found = questions_of(task), []
    layouts = [one for one in every("Layout") if isinstance(one, TokenClassification) != (questions.labels is None)]
    for number, tokenizer in enumerate(every("Tokenizer")):
        if writes(tokenizer, questions):
            vocabulary = tokenizer.build_vocabulary(task)
            rows = tokenizer.encode_examples(questions, vocabulary)
            layout = layouts[(number + every("Task").index(task)) % len(layouts)]
            batch = layout.build_batch(rows, np.arange(500, 500 + COUNT))
            found.append(Written(tokenizer, layout, questions, vocabulary, rows, batch))
    return found


@cache
def questions_of(task: Any) -> Any:
    return task.examples("train", 3, 0, COUNT)


def writes(tokenizer: Any, questions: Any) -> bool:
    """Whether a tokenizer is for questions like these: words for those without numbers, subwords for those without
    labels, characters for labels of one character."""
    if isinstance(tokenizer, Words):
        return bool(questions.numbers.lengths.shape[1] == 0)
    if isinstance(tokenizer, Subwords) or questions.labels is None:
        return questions.labels is None
    return all(len(questions.alphabet[i]) == 1 for i in np.unique(questions.labels[questions.labels >= 0]))


def test_what_is_for_other_questions_says_so(any_task: Any) -> None:
    questions = questions_of(any_task)
    for tokenizer in every("Tokenizer"):
        if not writes(tokenizer, questions):
            with case(tokenizer), pytest.raises(UserError, match=r"^tokenizer: "):
                tokenizer.encode_examples(questions, tokenizer.build_vocabulary(any_task))
    for layout in every("Layout"):
        if isinstance(layout, TokenClassification) == (questions.labels is None):
            with case(layout), pytest.raises(UserError, match=r"^layout: .*TokenClassification"):
                layout.build_batch(written(any_task)[0].rows, np.arange(COUNT))


def test_what_is_asked_is_exactly_the_answer_with_its_end(any_task: Any) -> None:
    for one in written(any_task):
        with case(one.tokenizer, one.layout):
            assert_exactly_the_answer_is_asked_for(one)


def assert_exactly_the_answer_is_asked_for(one: Written) -> None:
    rows, batch = one.rows, one.batch
    for row in range(COUNT):
        targets = batch.targets[row].tolist()
        places = [t for t, target in enumerate(targets) if target != IGNORE_INDEX]
        wanted = [targets[t] for t in places]
        if rows.labels is not None:
            assert wanted == rows.labels[row][rows.target_mask[row]].tolist()
            continue
        text = rows.ids[row, : rows.lengths[row]].tolist()
        answer = rows.ids[row][rows.target_mask[row]].tolist()
        assert answer[-1] == EOS
        if isinstance(one.layout, Seq2Seq):
            assert wanted == answer
            assert batch.source.ids[row, : batch.source.lengths[row]].tolist() == [*text[: -len(answer)], EOS]
        elif isinstance(one.layout, MaskedLM):
            assert wanted == answer
            assert places == list(range(len(text) - len(answer), len(text)))
            assert batch.tokens.ids[row, places].tolist() == [UNK] * len(answer)
            assert batch.tokens.ids[row, : places[0]].tolist() == text[: -len(answer)]
        elif getattr(one.layout, "targets", "answer") == "all":
            assert wanted == text[1:]
            assert places == list(range(len(text) - 1))
        else:
            assert wanted == answer
            assert places == list(range(len(text) - len(answer) - 1, len(text) - 1))
        assert text[len(text) - len(answer) :] == answer


def test_the_answer_asked_for_is_the_right_one(any_task: Any) -> None:
    for one in written(any_task):
        if one.rows.labels is None:
            with case(one.tokenizer):
                assert_the_answer_is_right(one)


def assert_the_answer_is_right(one: Written) -> None:
    questions, tokenizer = one.questions, one.tokenizer
    for row in range(COUNT):
        question, gold = format_question(questions, row)
        said = tokenizer.decode(one.rows.ids[row][one.rows.target_mask[row]], one.vocabulary)
        if isinstance(tokenizer, Words | Subwords):
            assert said.replace(" ", "") == gold.replace(" ", "")
            continue
        if questions.numbers.lengths.shape[1] == 0 or not gold.lstrip("-").isdigit():
            assert said == gold
            continue
        random_bits = int(questions.random_bits[row])
        number_format = tokenizer.number_format
        assert said == "".join(number_format.format_number(int(gold), is_answer=True, random_bits=random_bits))
        assert number_format.normalize_numbers(said, is_answer=True) == gold
        assert int(gold) == eval(_sum_of(question))


def _sum_of(question: str) -> str:
    """A question as Python writes it: `12x9=` and `What is 12 times 9?` are `12*9`."""
    plain = question.removeprefix("What is ").replace(" times ", "*").rstrip("=?")
    return plain.replace("x", "*")
