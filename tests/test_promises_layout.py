"""Promises of tasks, tokenizers and layouts together, on every combination: exactly the answer is asked for."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from numerate.batch import IGNORE_INDEX
from numerate.errors import UserError
from numerate.tasks.plain import format_question
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.layout import MaskedLM, Seq2Seq, TokenClassification
from numerate.tokenizers.words import Words
from numerate.vocabulary import EOS, PAD, UNK

COUNT = 60


def laid_out(task: Any, tokenizer: Any, layout: Any) -> tuple[Any, Any, Any]:
    questions, _, rows = written(task, tokenizer)
    if isinstance(layout, TokenClassification) == (rows.labels is None):
        with pytest.raises(
            UserError,
            match=r"TokenClassification.*Continuation|Continuation.*TokenClassification|use layout=TokenClassification",
        ):
            layout.build_batch(rows, np.arange(COUNT))
        pytest.skip("this layout is for questions of the other kind, and says so")
    return questions, rows, batch_of(task, tokenizer, layout)


def written(task: Any, tokenizer: Any) -> tuple[Any, Any, Any]:
    questions, vocabulary, rows = rows_of(task, tokenizer)
    if rows is None:
        pytest.skip("this tokenizer is for questions of another sort, and says so")
    return questions, vocabulary, rows


@cache
def batch_of(task: Any, tokenizer: Any, layout: Any) -> Any:
    return layout.build_batch(rows_of(task, tokenizer)[2], np.arange(500, 500 + COUNT))


@cache
def questions_of(task: Any) -> Any:
    return task.examples("train", 3, 0, COUNT)


@cache
def rows_of(task: Any, tokenizer: Any) -> tuple[Any, Any, Any]:
    """The rows of a block; tokenizers write questions of their own sort, and say so of others: None."""
    questions, vocabulary = questions_of(task), tokenizer.build_vocabulary(task)
    numbers = questions.numbers.lengths.shape[1] > 0
    labels = questions.labels is not None and any(
        len(questions.alphabet[i]) > 1 for i in np.unique(questions.labels[questions.labels >= 0])
    )
    if isinstance(tokenizer, Subwords):
        numbers, labels = False, questions.labels is not None
    if numbers if isinstance(tokenizer, Words) else labels:
        with pytest.raises(UserError, match=r"^tokenizer: "):
            tokenizer.encode_examples(questions, vocabulary)
        return questions, vocabulary, None
    return questions, vocabulary, tokenizer.encode_examples(questions, vocabulary)


def test_what_is_asked_is_exactly_the_answer_with_its_end(any_task: Any, any_tokenizer: Any, any_layout: Any) -> None:
    questions, rows, batch = laid_out(any_task, any_tokenizer, any_layout)
    for row in range(len(questions)):
        targets = batch.targets[row].tolist()
        places = [t for t, target in enumerate(targets) if target != IGNORE_INDEX]
        wanted = [targets[t] for t in places]
        if rows.labels is not None:
            assert wanted == rows.labels[row][rows.target_mask[row]].tolist()
            continue
        text = rows.ids[row, : rows.lengths[row]].tolist()
        answer = rows.ids[row][rows.target_mask[row]].tolist()
        assert answer[-1] == EOS
        if isinstance(any_layout, Seq2Seq):
            assert wanted == answer
            assert batch.source.ids[row, : batch.source.lengths[row]].tolist() == [*text[: -len(answer)], EOS]
        elif isinstance(any_layout, MaskedLM):
            assert wanted == answer
            assert places == list(range(len(text) - len(answer), len(text)))
            assert batch.tokens.ids[row, places].tolist() == [UNK] * len(answer)
            assert batch.tokens.ids[row, : places[0]].tolist() == text[: -len(answer)]
        elif getattr(any_layout, "targets", "answer") == "all":
            assert wanted == text[1:]
            assert places == list(range(len(text) - 1))
        else:
            assert wanted == answer
            assert places == list(range(len(text) - len(answer) - 1, len(text) - 1))
        assert text[len(text) - len(answer) :] == answer


def test_the_answer_asked_for_is_the_right_one(any_task: Any, any_tokenizer: Any) -> None:
    questions, vocabulary, rows = written(any_task, any_tokenizer)
    if rows.labels is not None:
        return
    for row in range(COUNT):
        question, gold = format_question(questions, row)
        said = any_tokenizer.decode(rows.ids[row][rows.target_mask[row]], vocabulary)
        if isinstance(any_tokenizer, Words | Subwords):
            assert said.replace(" ", "") == gold.replace(" ", "")
            continue
        if questions.numbers.lengths.shape[1] == 0 or not gold.lstrip("-").isdigit():
            assert said == gold
            continue
        random_bits = int(questions.random_bits[row])
        assert said == "".join(
            any_tokenizer.number_format.format_number(int(gold), is_answer=True, random_bits=random_bits)
        )
        assert any_tokenizer.number_format.normalize_numbers(said, is_answer=True) == gold
        assert int(gold) == eval(_sum_of(question))


def _sum_of(question: str) -> str:
    """A question as Python writes it: `12x9=` and `What is 12 times 9?` are `12*9`."""
    plain = question.removeprefix("What is ").replace(" times ", "*").rstrip("=?")
    return plain.replace("x", "*")


def test_padding_is_never_read_as_a_token_nor_asked_for(any_task: Any, any_tokenizer: Any, any_layout: Any) -> None:
    _, _, batch = laid_out(any_task, any_tokenizer, any_layout)
    time = np.arange(batch.tokens.ids.shape[1])
    inside = time < batch.tokens.lengths.numpy()[:, None]
    assert bool((batch.tokens.ids.numpy()[~inside] == PAD).all())
    begun = isinstance(any_layout, Seq2Seq)  # with [PAD], as T5 does
    assert bool((batch.tokens.ids.numpy()[:, begun:][inside[:, begun:]] != PAD).all())
    assert bool((batch.targets.numpy()[~inside] == IGNORE_INDEX).all())
    assert batch.num_input_tokens == inside.sum() + (0 if batch.source is None else int(batch.source.lengths.sum()))
    assert batch.tokens.ids.shape[1] == int(batch.tokens.lengths.max())


def test_asked_places_and_counts_say_the_same_as_the_targets(
    any_task: Any, any_tokenizer: Any, any_layout: Any
) -> None:
    _, _, batch = laid_out(any_task, any_tokenizer, any_layout)
    for row, targets in enumerate(batch.targets.tolist()):
        places = [t for t, target in enumerate(targets) if target != IGNORE_INDEX]
        asked, said = batch.target_positions[row].tolist(), batch.target_ids[row].tolist()
        assert asked[: len(places)] == places
        assert set(asked[len(places) :]) <= {places[-1]}
        assert said == [targets[t] for t in places] + [IGNORE_INDEX] * (len(asked) - len(places))
    assert batch.counts == {"tokens": int((batch.targets != IGNORE_INDEX).sum()), "examples": COUNT}
    assert batch.tokens.example_indices.tolist() == list(range(500, 500 + COUNT))
