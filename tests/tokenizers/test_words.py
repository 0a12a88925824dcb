"""Promises of words: one token per text of the alphabet, as the plain form writes them."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.text.data.writing import format_lines
from numerate.tokenizers.layout import TokenClassification
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.tokenizers.words import Words
from numerate.vocabulary import BOS, EOS, HELPER, NUMBER, SPECIAL, TEXT, UNK, Vocabulary

ALPHABET = ("0", "1", "10", "100", "a", "<pad>", "<blk>", "<bos>")


def plain(questions: Questions, row: int, begin: bool) -> tuple[list[str], dict[int, str]]:
    """The texts of a row, and the label of each position that has one."""
    written, labels_at = (["[BOS]"], {}) if begin else ([], {})
    prompt = None if questions.prompt_lengths is None else int(questions.prompt_lengths[row])
    for piece, symbol in enumerate(questions.symbols[row]):
        if symbol == EMPTY:
            continue
        if prompt is not None and piece >= prompt:
            labels_at[len(written)] = questions.alphabet[symbol]
        if questions.labels is not None and questions.labels[row, piece] >= 0:
            labels_at[len(written)] = questions.alphabet[questions.labels[row, piece]]
        written.append(questions.alphabet[symbol])
    if prompt is not None:
        labels_at[len(written)] = "[EOS]"
        written.append("[EOS]")
    return written, labels_at


@st.composite
def questions(draw: st.DrawFn) -> Questions:
    rows, pieces = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    text = st.integers(0, len(ALPHABET) - 1) | st.just(EMPTY)
    block = st.lists(text, min_size=rows * pieces, max_size=rows * pieces)
    symbols = np.array(draw(block), dtype=np.int16).reshape(rows, pieces)
    if draw(st.booleans()):
        labels = np.array(draw(block), dtype=np.int16).reshape(rows, pieces)
        return Questions(
            ALPHABET, symbols, Numbers.empty(rows), labels=np.where(symbols == EMPTY, np.int16(EMPTY), labels)
        )
    prompts = np.array(draw(st.lists(st.integers(0, pieces), min_size=rows, max_size=rows)), dtype=np.int64)
    return Questions(ALPHABET, symbols, Numbers.empty(rows), prompts)


@pytest.mark.parametrize("begin", [False, True])
@settings(max_examples=100, deadline=None)
@given(block=questions())
def test_rows_are_what_the_plain_form_writes_text_by_text(begin: bool, block: Questions) -> None:
    tokenizer = Words(add_bos_token=begin)
    vocabulary = tokenizer.build_vocabulary(ALPHABET)
    rows = tokenizer.encode_examples(block, vocabulary)
    assert len(rows) == len(block)
    assert rows.ids.dtype == np.uint8
    for row in range(len(block)):
        written, labels_at = plain(block, row, begin)
        length = int(rows.lengths[row])
        assert [vocabulary.tokens[i] for i in rows.ids[row, :length]] == written
        assert not rows.ids[row, length:].any()
        target_ids = rows.ids if rows.labels is None else rows.labels
        found = {int(p): vocabulary.tokens[target_ids[row, p]] for p in np.flatnonzero(rows.target_mask[row])}
        assert found == labels_at


def test_the_vocabulary_has_the_specials_and_then_the_texts_in_their_order() -> None:
    vocabulary = Words().build_vocabulary((*ALPHABET, "a", "10"))
    assert vocabulary.tokens == ("[PAD]", "[UNK]", "[BOS]", "[EOS]", *ALPHABET)
    kinds = [SPECIAL] * 4 + [NUMBER] * 4 + [TEXT, HELPER, HELPER, TEXT]
    assert vocabulary.token_kinds.tolist() == kinds
    assert vocabulary.number_values[4:8].tolist() == [0.0, 1.0, 10.0, 100.0]
    assert np.isnan(vocabulary.number_values[[0, 1, 2, 3, 8, 9, 10, 11]]).all()
    assert not vocabulary.is_digit.any()


def counted(text: str, labels: str, tokenizer: Words = Words()) -> TokenizedExamples:
    symbols = [ALPHABET.index(word) for word in text.split()]
    indices = [EMPTY if word == "." else ALPHABET.index(word) for word in labels.split()]
    block = Questions(
        ALPHABET, np.array([symbols], np.int16), Numbers.empty(1), labels=np.array([indices], dtype=np.int16)
    )
    return tokenizer.encode_examples(block, tokenizer.build_vocabulary(ALPHABET))


def test_a_text_has_spaces_between_its_tokens() -> None:
    vocabulary = Words().build_vocabulary(ALPHABET)
    assert format_lines(counted("0 a", ". 1"), vocabulary, Words.separator) == b"0 a\t. 1\n"
    begun = counted("0 a", ". 1", Words(add_bos_token=True))
    assert begun.ids[0, 0] == BOS
    assert format_lines(begun, vocabulary, Words.separator) == b"0 a\t. 1\n"
    assert Words().encode("10 a  b", vocabulary) == [vocabulary.token_to_id["10"], vocabulary.token_to_id["a"], UNK]


def test_more_texts_than_a_byte_holds_are_written_right() -> None:
    alphabet = tuple(map(str, range(1000)))
    block = Questions(alphabet, np.array([[999, 256]], np.int16), Numbers.empty(1), np.array([1]))
    rows = Words().encode_examples(block, Words().build_vocabulary(alphabet))
    assert rows.ids.dtype == np.uint16
    assert rows.ids.tolist() == [[1003, 260, 3]]


def test_a_text_that_the_vocabulary_has_not_is_unknown_and_such_a_label_is_refused() -> None:
    small = Vocabulary.from_words(["a", "1"])
    block = Questions(ALPHABET, np.array([[5, 4]], np.int16), Numbers.empty(1), labels=np.array([[1, EMPTY]], np.int16))
    assert Words().encode_examples(block, small).ids.tolist() == [[UNK, small.token_to_id["a"]]]
    other = Questions(ALPHABET, block.symbols, block.numbers, labels=np.array([[1, 3]], np.int16))
    with pytest.raises(UserError, match=r"^tokenizer: the label '100' must be in the vocabulary"):
        Words().encode_examples(other, small)


# Hiding --------------------------------------------------------------------------------------------------------------


def test_a_layout_hides_the_tokens_of_the_texts_it_names() -> None:
    rows = counted("0 <pad> a <pad> a <blk>", ". 0 . 1 . 10")
    batch = TokenClassification(blocked_tokens=("<pad>",)).build_batch(rows, np.arange(1))
    assert batch.tokens.blocked_keys is not None
    assert batch.tokens.blocked_keys.tolist() == [[False, True, False, True, False, False]]
    both = TokenClassification(blocked_tokens=("<pad>", "<blk>")).build_batch(rows, np.arange(1)).tokens.blocked_keys
    assert both is not None
    assert both.tolist() == [[False, True, False, True, False, True]]


def test_nothing_is_hidden_where_nothing_is_to_be() -> None:
    rows = counted("0 <pad> a", ". 0 1")
    assert TokenClassification().build_batch(rows, np.arange(1)).tokens.blocked_keys is None
    assert TokenClassification(blocked_tokens=("<blk>",)).build_batch(rows, np.arange(1)).tokens.blocked_keys is None


def test_a_text_that_is_not_there_cannot_be_hidden() -> None:
    with pytest.raises(UserError, match=re.escape("layout.blocked_tokens: must be a token of the task (0, 1, 10")):
        TokenClassification(blocked_tokens=("<b>",)).build_batch(counted("0 a", ". 1"), np.arange(1))
    silent = TokenizedExamples(
        np.ones((1, 2), np.uint8), np.array([2]), np.ones((1, 2), bool), np.ones((1, 2), np.uint8)
    )
    with pytest.raises(UserError, match=r"layout.blocked_tokens: .* is unknown, since these rows have no vocabulary"):
        TokenClassification(blocked_tokens=("<pad>",)).build_batch(silent, np.arange(1))


def test_the_names_of_special_tokens_are_no_special_tokens_in_a_text() -> None:
    tokenizer = Words()
    texts = ["a", "[EOS]", "[PAD]", "[BOS]", "[UNK]"]
    vocabulary = tokenizer.build_vocabulary(texts)
    assert tokenizer.encode(" ".join(texts), vocabulary) == [4, UNK, UNK, UNK, UNK]
    block = Questions(tuple(texts), np.array([[0, 1, 2, 3, 0]], np.int16), Numbers.empty(1), np.array([4]))
    assert tokenizer.encode_examples(block, vocabulary).ids[0].tolist() == [4, UNK, UNK, UNK, 4, EOS]
