"""Promises of questions whose texts stand elsewhere: they are the same questions, read only when somebody asks."""

import numpy as np

from numerate.tasks.plain import format_question
from numerate.tasks.questions import Example, Questions
from numerate.tasks.texts import InMemorySource, Texts
from numerate.tokenizers.tokenizer import Characters

PAIRS = (Example("1+1=", "2"), Example("what is 3x4?", "12"), Example("", "-0.5"))


def of(*rows: int) -> Questions:
    index = np.array(rows, dtype=np.int64)
    return Questions.from_source(InMemorySource(PAIRS), index, {"place": index})


def test_texts_are_written_as_the_same_questions_in_pieces_are() -> None:
    questions = of(2, 0, 1)
    vocabulary = Characters().build_vocabulary(["what is?"])
    written = Characters().encode_examples(questions, vocabulary)
    plain = Characters().encode_examples(Questions.from_examples([PAIRS[2], PAIRS[0], PAIRS[1]]), vocabulary)
    assert np.array_equal(written.ids, plain.ids)
    assert np.array_equal(written.target_mask, plain.target_mask)


def test_rows_are_taken_and_joined_with_their_texts_and_facts() -> None:
    other = Questions.from_source(InMemorySource((Example("a", "b"),)), np.array([0]), {"place": np.array([7])})
    joined = Questions.concatenate([of(0, 1), other, of(2)]).take(np.array([3, 2, 1]))
    assert [format_question(joined, row) for row in range(3)] == [("", "-0.5"), ("a", "b"), ("what is 3x4?", "12")]
    assert joined.metadata["place"].tolist() == [2, 7, 1]
    bare = Questions.from_source(InMemorySource(PAIRS), np.array([1]))
    mixed = Questions.concatenate([Questions.from_examples([Example("x", "y")]), bare])
    assert [format_question(mixed, row) for row in range(2)] == [("x", "y"), ("what is 3x4?", "12")]


def test_a_source_is_kept_once_however_often_its_rows_are_joined() -> None:
    source = InMemorySource(PAIRS)
    parts = [Texts.from_source(source, np.array([row])) for row in (0, 1, 0)]
    assert Texts.concatenate(parts).sources == (source,)


def test_a_hash_is_of_the_question_alone() -> None:
    same = Questions.from_source(InMemorySource((Example("1+1=", "3"),)), np.array([0]))
    assert same.hashes()[0] == of(0).hashes()[0] != of(1).hashes()[0]


def test_a_fingerprint_tells_where_a_question_ends() -> None:
    first, second = InMemorySource((Example("ab", "c"),)), InMemorySource((Example("a", "bc"),))
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == InMemorySource((Example("ab", "c"),)).fingerprint
