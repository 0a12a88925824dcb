"""Promises of tokenizers: whole blocks at once are the plain form, symbol by symbol."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import published_case
from numerate import tokenizers
from numerate.config import Span
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import EMPTY, Example, Numbers, Questions
from numerate.tasks.task import Task
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters, TokenizedExamples, Tokenizer, num_spaces_before
from numerate.tokenizers.words import Words
from numerate.vocabulary import PAD

TINY = str(Path(__file__).parents[1] / "text" / "tiny")
EVERY = [
    Subwords(tokenizer=TINY) if name == "Subwords" else getattr(tokenizers, name)()
    for name in tokenizers.CATALOGUE["Tokenizer"]
    if name != "TokenIds"  # only for language modeling: see its own tests
]
every_tokenizer = pytest.mark.parametrize("tokenizer", EVERY, ids=lambda tokenizer: type(tokenizer).__name__)
VARIANTS = [
    Characters(),
    Characters(Digits("normal"), add_bos_token=True),
    Characters(Digits("reversed", 3)),
    Characters(Digits("answer_reversed", 1, 2, min_digits=301)),
    Characters(Digits(index_hints=True), vocabulary="index"),
    Characters(Digits("normal", index_hints=True), space_probability=0.4),
    Characters(add_bos_token=True, space_probability=1.0),
]


def plain(questions: Questions, row: int, tokenizer: Characters) -> tuple[list[str], list[bool], dict[int, str]]:
    """One row symbol by symbol: what is written, whether it is the answer, and the label at each place."""
    chance = 0 if questions.random_bits is None else int(questions.random_bits[row])
    share = 0.0 if questions.random_bits is None else tokenizer.space_probability
    blanks = num_spaces_before(np.array([chance], dtype=np.uint64), 2000, share)[0].tolist()
    written = ["[BOS]"] if tokenizer.add_bos_token else []
    answer = [False] * len(written)
    labels = {}
    for piece, symbol in enumerate(questions.symbols[row]):
        if symbol == EMPTY:
            continue
        if symbol >= 0:
            symbols = list(questions.alphabet[symbol])
        else:
            slot = -1 - symbol
            value = int("".join(map(str, questions.numbers.digits[row, slot])))
            if questions.numbers.negative is not None and questions.numbers.negative[row, slot]:
                value = -value
            in_answer = questions.prompt_lengths is not None and piece >= questions.prompt_lengths[row]
            symbols = tokenizer.number_format.format_number(value, is_answer=in_answer, random_bits=chance)
        symbols = [symbol for each in symbols for symbol in [*" " * blanks.pop(0), each]]
        written += symbols
        in_answer = questions.prompt_lengths is not None and piece >= questions.prompt_lengths[row]
        answer += [in_answer] * len(symbols)
        if questions.labels is not None and questions.labels[row, piece] >= 0:
            labels[len(written) - 1] = questions.alphabet[questions.labels[row, piece]]
    return (written, answer, labels) if questions.labels is not None else ([*written, "[EOS]"], [*answer, True], labels)


def agrees_with_the_plain_form(questions: Questions, rows: TokenizedExamples, tokenizer: Characters) -> None:
    vocabulary = tokenizer.build_vocabulary(questions.alphabet)
    assert len(rows) == len(questions)
    for row in range(len(questions)):
        written, answer, labels = plain(questions, row, tokenizer)
        length = int(rows.lengths[row])
        known = [symbol if symbol in vocabulary.token_to_id else "[UNK]" for symbol in written]
        assert [vocabulary.tokens[i] for i in rows.ids[row, :length]] == known
        assert not rows.ids[row, length:].any()
        assert not rows.target_mask[row, length:].any()
        if questions.labels is None:
            assert rows.target_mask[row, :length].tolist() == answer
            assert rows.labels is None
        else:
            assert rows.labels is not None
            places = np.flatnonzero(rows.target_mask[row])
            assert {int(p): vocabulary.tokens[rows.labels[row, p]] for p in places} == labels


@st.composite
def questions(draw: st.DrawFn, alphabet: tuple[str, ...] = ("+", "=", "a", "?"), labelled: bool = False) -> Questions:
    rows, pieces, slots = draw(st.integers(0, 6)), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    symbol = st.integers(-slots, len(alphabet) - 1) | st.just(EMPTY)
    symbols = draw(st.lists(st.lists(symbol, min_size=pieces, max_size=pieces), min_size=rows, max_size=rows))
    values = draw(
        st.lists(st.lists(st.integers(0, 10**19), min_size=slots, max_size=slots), min_size=rows, max_size=rows)
    )
    digits = np.array([[[int(d) for d in str(v).zfill(21)] for v in row] for row in values], dtype=np.uint8)
    lengths = np.array([[len(str(v)) for v in row] for row in values], dtype=np.int64)
    prompts, labels = None, None
    chance = draw(st.none() | st.lists(st.integers(0, 2**64 - 1), min_size=rows, max_size=rows))
    if labelled:
        label = st.integers(0, len(alphabet) - 1) | st.just(EMPTY)
        labels = draw(st.lists(st.lists(label, min_size=pieces, max_size=pieces), min_size=rows, max_size=rows))
        labels = np.where(
            np.array(symbols).reshape(rows, pieces) == EMPTY, EMPTY, np.array(labels).reshape(rows, pieces)
        )
    else:
        prompts = np.array(draw(st.lists(st.integers(0, pieces), min_size=rows, max_size=rows)), dtype=np.int64)
    return Questions(
        alphabet,
        np.array(symbols, dtype=np.int16).reshape(rows, pieces),
        Numbers(digits.reshape(rows, slots, 21), lengths.reshape(rows, slots)),
        prompts,
        None if labels is None else labels.astype(np.int16),
        random_bits=None if chance is None else np.array(chance, dtype=np.uint64),
    )


@pytest.mark.parametrize("tokenizer", VARIANTS, ids=repr)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_are_what_the_plain_form_writes_symbol_by_symbol(tokenizer: Characters, data: st.DataObject) -> None:
    block = data.draw(
        questions()
        | questions(labelled=True)
        | questions(alphabet=("say ", "=", "yes", ""))
        | questions(alphabet=("é",))
    )
    agrees_with_the_plain_form(
        block, tokenizer.encode_examples(block, tokenizer.build_vocabulary(block.alphabet)), tokenizer
    )


@pytest.mark.parametrize("tokenizer", VARIANTS, ids=repr)
def test_sums_are_what_the_plain_form_writes(tokenizer: Characters) -> None:
    task = Arithmetic()
    for task in (Arithmetic(), Arithmetic("-"), Arithmetic("x", digits=Span(1, 5))):
        block = task.examples("train", 0, 0, 450)
        agrees_with_the_plain_form(block, tokenizer.encode_examples(block, tokenizer.build_vocabulary(task)), tokenizer)
    task = Arithmetic()
    long = Questions.concatenate([task.parse_question("9" * 300 + "+1="), task.parse_question("1+2=")])
    agrees_with_the_plain_form(long, tokenizer.encode_examples(long, tokenizer.build_vocabulary(task)), tokenizer)


def test_a_vocabulary_of_more_than_256_symbols_is_written_right() -> None:
    alphabet = (*tuple(chr(1000 + i) for i in range(300)), "=")
    digits = np.array([[[0, 1, 2], [9, 8, 7]], [[0, 0, 5], [0, 6, 0]]], dtype=np.uint8)
    block = Questions(
        alphabet,
        np.array([[299, -1, 300, -2, 0], [-2, 300, -1, 150, EMPTY]], dtype=np.int16),
        Numbers(digits, np.array([[2, 3], [1, 2]])),
        np.array([3, 2]),
    )
    rows = Characters().encode_examples(block, Characters().build_vocabulary(alphabet))
    assert rows.ids.dtype == np.uint16
    agrees_with_the_plain_form(block, rows, Characters())


def test_free_text_is_written_as_it_is() -> None:
    tokenizer = Characters()
    vocabulary = tokenizer.build_vocabulary(["ab=:"])
    rows = tokenizer.encode_examples([Example("a 12=", "b"), Example("b:", "a21")], vocabulary)
    assert [tokenizer.decode(ids, vocabulary) for ids in rows.ids] == ["a 12=b", "b:a21"]
    assert rows.target_mask.sum(axis=1).tolist() == [2, 4]


@dataclass(frozen=True)
class Steps(Task):
    """`7 a a` with the labels `. 8 9`: a task of words."""

    def draw(self, rng: CounterRNG, indices: Any) -> Questions:
        start, count, places = rng.integers(90, (len(indices), 1)), rng.integers(9, (len(indices), 1)), np.arange(10)
        symbols = np.where(places == 0, start, 100)
        labels = np.where(places == 0, EMPTY, start + places)
        symbols, labels = (np.where(places <= count, part, EMPTY).astype(np.int16) for part in (symbols, labels))
        return Questions(self.alphabet(), symbols, Numbers.empty(len(indices)), labels=labels)

    def alphabet(self) -> tuple[str, ...]:
        return (*map(str, range(100)), "a")


def task_for(tokenizer: Tokenizer) -> Task:
    return Steps() if isinstance(tokenizer, Words) else Arithmetic()


@every_tokenizer
def test_a_row_is_the_same_whatever_rows_are_beside_it(tokenizer: Tokenizer) -> None:
    task = task_for(tokenizer)
    vocabulary = tokenizer.build_vocabulary(task)
    block = task.examples("test", 0, 0, 60)
    rows = tokenizer.encode_examples(block, vocabulary)
    for row in range(0, 60, 7):
        alone = tokenizer.encode_examples(block.take(np.array([row])), vocabulary)
        length = int(alone.lengths[0])
        assert rows.lengths[row] == length
        assert np.array_equal(rows.ids[row, :length], alone.ids[0])
        assert np.array_equal(rows.target_mask[row, :length], alone.target_mask[0])


@every_tokenizer
def test_what_is_encoded_is_decoded(tokenizer: Tokenizer) -> None:
    task = task_for(tokenizer)
    vocabulary, text = tokenizer.build_vocabulary(task), "65 a a" if isinstance(tokenizer, Words) else "321+654=975"
    assert tokenizer.decode(tokenizer.encode(text, vocabulary), vocabulary) == text
    rows = tokenizer.encode_examples(task.examples("train", 0, 0, 20), vocabulary)
    for ids, length in zip(rows.ids, rows.lengths, strict=True):
        text = ids[: length - (rows.labels is None)].tolist()
        assert tokenizer.encode(tokenizer.decode(ids, vocabulary), vocabulary) == text


def test_rows_are_taken_in_any_order_and_cut_to_the_longest() -> None:
    task, tokenizer = Arithmetic(), Characters()
    block = Questions.concatenate([task.parse_question(text) for text in ("1+2=", "1234+5=", "10+2=")])
    rows = tokenizer.encode_examples(block, tokenizer.build_vocabulary(task)).take(np.array([2, 0]))
    assert rows.lengths.tolist() == [8, 6]
    assert rows.ids.shape == rows.target_mask.shape == (2, 8)
    assert rows.ids[1, 6:].tolist() == [PAD, PAD]


def test_the_vocabulary_begins_like_the_published_one(shared: Path) -> None:
    expected = published_case(shared, "abacus.json", "vocab_pad")["expected"]
    vocabulary = Characters().build_vocabulary(Arithmetic())
    assert {symbol: i for i, symbol in enumerate(vocabulary.tokens[:19])} == expected
